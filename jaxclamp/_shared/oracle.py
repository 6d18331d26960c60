"""Computes the definition from the values of a function alone; it shares nothing with the rules that it judges.

Near a point a piecewise smooth function has finitely many gradients. The oracle looks for them with finite differences
at random nearby points, takes their convex hull (the Clarke subdifferential) and returns its point of least Euclidean
norm.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from jaxclamp._shared.hull import nearest

Array = NDArray[np.float64]

# How far away a nearby point lies along each axis, relative to the size of the numbers. A gradient there is one at the
# point but for 1e-5 times the second derivative, and most points keep away from kinks by many steps.
_RADIUS = 1e-5
# The step of a finite difference there. Values are rounded by 1e-16, differences of values over a step by 1e-6 of them.
# The slopes of a norm turn around 0, within the radius: over a step they differ by 1e-5, the step over the radius.
_STEP = 1e-10
# The number of nearby points. A region of smoothness may be a narrow cone: one of a thousandth of all directions is
# missed once in fifty times, exp(-4).
_SAMPLES = 4000


def min_norm_gradient(function: Callable[[Array], Array], point: Array) -> Array:
    """Compute the element of least norm in the Clarke subdifferential of ``function`` at ``point``.

    Args:
      function: maps m points, an array of shape (m, n), to their m values, all in float64.
      point: n finite numbers: the active inputs. Everything inactive is a constant of ``function``.

    Returns:
      The n components of the gradient, right to about 1e-4 of the largest slope nearby.

    Where the function jumps at ``point`` only those nearby points count whose value is close to the value there: the
    gradient is that of the branch that the value takes.

    >>> min_norm_gradient(lambda p: np.maximum(p[:, 0], p[:, 1]), np.array([3.0, 3.0])).round(4).tolist()
    [0.5, 0.5]
    >>> min_norm_gradient(lambda p: np.abs(p[:, 0]), np.array([0.0])).round(4).tolist()
    [0.0]
    """
    point = np.asarray(point, np.float64)
    return min_norm_of_values(point, function(points_near(point)))


def points_near(point: Array) -> Array:
    """Return the points, of shape (m, n), whose values `min_norm_of_values` reads; the first is ``point`` itself."""
    scale = _scale(point)
    directions = np.random.default_rng(0).uniform(-1.0, 1.0, (_SAMPLES, point.size))
    nearby = point + _RADIUS * scale * directions
    steps = _STEP * scale * np.eye(point.size)
    stencil = np.concatenate([nearby[:, None], nearby[:, None] + steps, nearby[:, None] - steps], axis=1)
    return np.concatenate([point[None], stencil.reshape(-1, point.size)])


def min_norm_of_values(point: Array, values: Array) -> Array:
    """Compute what `min_norm_gradient` returns from the values of the function at `points_near`."""
    return least_norm(corners_of_values(point, values))


def corners_of_values(point: Array, values: Array) -> Array:
    """Return the gradients near ``point``, of shape (m, n), each once: their hull is the Clarke subdifferential."""
    gradients = _nearby_gradients(point, np.asarray(values, np.float64))
    rounded = np.round(gradients, 4)  # those of one piece differ by 1e-5, as above
    order = np.lexsort(rounded.T[::-1])  # equal ones side by side; np.unique takes ten times as long along an axis
    is_first = np.append(True, (np.diff(rounded[order], axis=0) != 0).any(axis=1))
    return gradients[order[is_first]]


def _scale(point: Array) -> float:
    """Return the size of the numbers, at least 1."""
    return max(1.0, float(np.abs(point).max(initial=0.0)))


def _nearby_gradients(point: Array, values: Array) -> Array:
    """Return the gradients at the nearby points that are not at a kink, nor beyond a jump."""
    n, scale = point.size, _scale(point)
    here, stencil = values[0], values[1:].reshape(_SAMPLES, 2 * n + 1)
    middle, ahead, behind = stencil[:, :1], stencil[:, 1 : n + 1], stencil[:, n + 1 :]
    with np.errstate(invalid="ignore"):  # infinities and NaN are sorted out right here
        forward, backward = (ahead - middle) / (_STEP * scale), (middle - behind) / (_STEP * scale)
        steepest = np.abs(forward).max(axis=1, initial=0.0)
        # 1e-4 of the slope is ten times what a norm turns by over a step.
        smooth = np.abs(forward - backward).max(axis=1, initial=0.0) < 1e-4 * (1 + steepest)
        # Within the radius a value moves by n times the slope, the scale and the radius; twice that leaves room.
        near = np.abs(middle[:, 0] - here) <= 2 * n * _RADIUS * scale * (1 + steepest)
    gradients: Array = (0.5 * (forward + backward))[smooth & near]
    if not len(gradients):
        raise ValueError(f"no differentiable point was found near {point.tolist()}; is the function finite there?")
    return gradients


def least_norm(corners: Array) -> Array:
    """Return the point of least norm in the convex hull of ``corners``."""
    return np.round(nearest(corners, np.zeros(corners.shape[1]))[0], 12) + 0.0  # no rounding, no negative zero
