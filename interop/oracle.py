"""The definition, computed from the values of a function alone; it shares nothing with the rules that it judges.

Near a point a piecewise smooth function has finitely many gradients. The oracle looks for them with finite differences
at random nearby points, takes their convex hull (the Clarke subdifferential) and returns its point of least Euclidean
norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_RADIUS = 1e-5  # how far away a nearby point lies, relative to the size of the numbers
_STEP = 1e-8  # the step of a finite difference there
_SAMPLES = 400


def min_norm_gradient(function: Callable[[Array], Array], point: Array) -> Array:
    """The element of least norm in the Clarke subdifferential of ``function`` at ``point``.

    Args:
      function: maps m points, an array of shape (m, n), to their m values, all in float64.
      point: n finite numbers: the active inputs. Everything inactive is a constant of ``function``.

    Returns:
      The n components of the gradient, right to about 1e-4.

    Where the function jumps at ``point`` only those nearby points count whose value is close to the value there: the
    gradient is that of the branch that the value takes.

    >>> min_norm_gradient(lambda p: np.maximum(p[:, 0], p[:, 1]), np.array([3.0, 3.0])).round(4).tolist()
    [0.5, 0.5]
    >>> min_norm_gradient(lambda p: np.abs(p[:, 0]), np.array([0.0])).round(4).tolist()
    [0.0]
    """
    return _least_norm(_nearby_gradients(function, np.asarray(point, np.float64)))


def _nearby_gradients(function: Callable[[Array], Array], point: Array) -> Array:
    n = point.size
    scale = max(1.0, float(np.abs(point).max(initial=0.0)))
    directions = np.random.default_rng(0).uniform(-1.0, 1.0, (_SAMPLES, n))
    nearby = point + _RADIUS * scale * directions
    steps = _STEP * scale * np.eye(n)
    stencil = np.concatenate([nearby[:, None], nearby[:, None] + steps, nearby[:, None] - steps], axis=1)
    here = function(point[None])[0]
    values = np.asarray(function(stencil.reshape(-1, n)), np.float64).reshape(_SAMPLES, 2 * n + 1)
    middle, ahead, behind = values[:, :1], values[:, 1 : n + 1], values[:, n + 1 :]
    width = _STEP * scale
    forward, backward = (ahead - middle) / width, (middle - behind) / width
    smooth = np.abs(forward - backward).max(axis=1) < 1e-4 * (1 + np.abs(forward).max(axis=1))
    near = np.abs(middle[:, 0] - here) <= 100 * _RADIUS * scale * (1 + abs(here))
    gradients: Array = (0.5 * (forward + backward))[smooth & near]
    if not len(gradients):
        raise ValueError(f"no differentiable point was found near {point.tolist()}; is the function finite there?")
    return gradients


def _least_norm(gradients: Array) -> Array:
    """The point of least norm in the convex hull: that of some face, by Caratheodory one of at most n + 1 corners."""
    corners = gradients[np.unique(np.round(gradients, 4), axis=0, return_index=True)[1]]
    candidates = [p for size in range(1, corners.shape[1] + 2) for p in _faces(corners, size)]
    return min(candidates, key=lambda p: float(p @ p))


def _faces(corners: Array, size: int) -> Iterator[Array]:
    for face in combinations(corners, min(size, len(corners))):
        vertices = np.array(face)
        edges = (vertices[1:] - vertices[0]).T
        weights = np.linalg.lstsq(edges, -vertices[0], rcond=None)[0] if edges.size else np.zeros(0)
        if (weights >= -1e-9).all() and weights.sum() <= 1 + 1e-9:
            yield vertices[0] + edges @ weights
