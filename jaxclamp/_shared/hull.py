"""The point of a convex hull that is nearest to another point."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def nearest(points: Array, target: Array, weights: Array | None = None) -> tuple[Array, Array]:
    """Return the point nearest to ``target`` in the hull of ``points``, and the weights whose mean of ``points`` it is.

    The algorithm is that of Wolfe (Mathematical Programming 11, 1976). It keeps a set of corners whose affine hull has
    its nearest point inside the convex one, and adds the corner that lies farthest ahead, until none does. For (1, 0)
    and (0, 1), with the target 0, it begins at (1, 0). From there (0, 1) lies ahead. The point of least norm on the
    line through both is (1/2, 1/2), which lies between them, and nothing lies ahead of it.

    Args:
      points: of shape (m, n).
      target: of shape (n,).
      weights: where to begin: those of an earlier call, with zeros for the points that were added since.

    >>> nearest(np.array([[1.0, 0.0], [0.0, 1.0]]), np.zeros(2))[0].round(6).tolist()
    [0.5, 0.5]
    """
    # Relative to the largest entry, so that no square overflows, and 1e-14 below is a part of it.
    size = float(np.abs(points - target).max(initial=0.0)) or 1.0
    offsets = (points - target) / size
    if weights is None:
        weights = np.zeros(len(points))
        weights[np.argmin(np.sum(offsets**2, axis=1))] = 1.0
    corners: list[int] = np.flatnonzero(weights).tolist()
    # It ends by itself, in fewer steps than this. The limit is there because rounding might make it go in circles.
    for _ in range(4 * len(points) + 100):
        closest = weights @ offsets
        distance = float(np.linalg.norm(closest))
        gains = (closest - offsets) @ closest
        ahead = int(np.argmax(gains))
        # 1e-14 is some 50 units in the last place of float64, what the sums leave of rounding. No more than that: a
        # step along entries that are small next to others gains little, and should be taken all the same.
        step = float(np.abs(closest - offsets[ahead]).max(initial=0.0))
        is_least = gains[ahead] <= 1e-14 * distance * max(distance, step)
        if is_least or distance <= 1e-14 or ahead in corners:  # another point of the same corner
            break
        corners.append(ahead)
        while True:  # while the nearest point of the affine hull lies outside the convex one, go to the face between
            affine = _affine(offsets[corners])
            before = weights[corners]
            falling = affine < 0
            if not falling.any():
                break
            reach = np.full(len(corners), np.inf)
            reach[falling] = before[falling] / (before[falling] - affine[falling])
            weights[corners] = np.maximum(before + reach.min() * (affine - before), 0.0)
            # The weight that reaches 0 first is 0, where rounding would leave something.
            weights[[c for c, r in zip(corners, reach, strict=True) if r == reach.min()]] = 0.0
            corners = [c for c, r in zip(corners, reach, strict=True) if r > reach.min()]
        weights[corners] = affine
    return target + size * (weights @ offsets), weights


def _affine(corners: Array) -> Array:
    """Return the weights, of sum 1, of the point of least norm in the affine hull of the corners."""
    # Least squares keep the digits of small entries beside large ones, which the products of corners lose.
    shares = np.linalg.lstsq((corners[1:] - corners[0]).T, -corners[0], rcond=None)[0]
    return np.concatenate([[1.0 - shares.sum()], shares])
