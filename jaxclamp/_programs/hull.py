"""The point of a convex hull that is nearest to another point."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def nearest(points: Array, target: Array, weights: Array | None = None) -> tuple[Array, Array]:
    """The point nearest to ``target`` in the hull of ``points``, and the weights whose mean of ``points`` it is.

    The algorithm is that of Wolfe (Mathematical Programming 11, 1976). It keeps a set of corners whose affine hull has
    its nearest point inside the convex one, and adds the corner that lies farthest ahead, until none does.

    Args:
      points: of shape (m, n).
      target: of shape (n,).
      weights: where to begin: those of an earlier call, with zeros for the points that were added since.

    >>> nearest(np.array([[1.0, 0.0], [0.0, 1.0]]), np.zeros(2))[0].round(6).tolist()
    [0.5, 0.5]
    """
    size = float(np.abs(points - target).max(initial=0.0)) or 1.0
    offsets = (points - target) / size
    gram = offsets @ offsets.T
    if weights is None:
        weights = np.zeros(len(points))
        weights[np.argmin(np.diagonal(gram))] = 1.0
    corners: list[int] = np.flatnonzero(weights).tolist()
    for _ in range(4 * len(points) + 100):
        products = gram @ weights
        ahead = int(np.argmin(products))
        norm = float(weights @ products)
        if ahead in corners or products[ahead] >= norm - 1e-11 - 1e-6 * norm:  # another point of the same corner
            break
        corners.append(ahead)
        while True:
            affine = _affine(gram[np.ix_(corners, corners)])
            before = weights[corners]
            falling = (affine < 1e-12) & (affine < before)
            if not falling.any():
                break
            reach = np.full(len(corners), np.inf)
            reach[falling] = before[falling] / (before[falling] - affine[falling])
            weights[corners] = np.maximum(before + reach.min() * (affine - before), 0.0)
            weights[[c for c, r in zip(corners, reach, strict=True) if r == reach.min()]] = 0.0
            corners = [c for c, r in zip(corners, reach, strict=True) if r > reach.min()]
        weights[corners] = np.maximum(affine, 0.0)
    return target + size * (weights @ offsets), weights


def _affine(gram: Array) -> Array:
    """The weights, of sum 1, of the point of least norm in the affine hull of the corners with these products."""
    k = len(gram)
    solution = np.linalg.solve(gram + 1.0 + 1e-13 * np.eye(k), np.ones(k))
    weights: Array = solution / solution.sum()
    return weights
