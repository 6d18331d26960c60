"""The convex hull of some points: its point of least norm, and how far away another point is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Array = NDArray[np.float64]


def least_norm(points: Array) -> Array:
    """The point of least Euclidean norm in the convex hull of ``points``, an array of shape (k, n).

    Non-negative weights w that minimise |G w|^2 + (1 w - 1)^2 are, for a given direction in the hull, s p with
    s = 1 / (1 + |p|^2), where the sum is |p|^2 / (1 + |p|^2): smallest for the p that is wanted. G has a point in each
    column, here relative to the largest of all numbers.

    >>> least_norm(np.array([[2.0, 0.0], [0.0, 2.0]])).round(6).tolist()
    [1.0, 1.0]
    """
    scale = float(np.abs(points).max(initial=0.0)) or 1.0
    rows = np.vstack([points.T / scale, np.ones(len(points))])
    weights = nnls(rows, np.append(np.zeros(points.shape[1]), 1.0))[0]
    least: Array = points.T @ (weights / weights.sum())
    return least


def distance(points: Array, point: Array) -> float:
    """How far ``point`` is from the convex hull of ``points``; 0 for a point of it.

    >>> round(distance(np.array([[2.0, 0.0], [0.0, 2.0]]), np.zeros(2)), 6)
    1.414214
    """
    return float(np.linalg.norm(least_norm(points - point)))
