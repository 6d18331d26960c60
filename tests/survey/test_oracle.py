"""The oracle, against gradients of minimum norm that are known in closed form; no op of jaxclamp takes part."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import nnls

from jaxclamp._shared.oracle import least_norm, min_norm_gradient

Array = NDArray[np.float64]
Function = Callable[[Array], Array]


def of_one(function: Function) -> Function:
    """A function of arrays as the oracle takes it: one row per point, one column."""
    return lambda points: function(points[:, 0])


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def clamp(points: Array) -> Array:
    x, lo, hi = points.T
    return np.minimum(np.maximum(x, lo), hi)


# x, lo and hi; their gradients when all are active; the gradient of x when it alone is.
CLAMP = [
    ((1.0, 0.0, 6.0), (1, 0, 0), 1),
    ((0.0, 0.0, 6.0), (1 / 2, 1 / 2, 0), 0),
    ((6.0, 0.0, 6.0), (1 / 2, 0, 1 / 2), 0),
    ((2.0, 2.0, 2.0), (1 / 3, 1 / 3, 1 / 3), 0),
    ((-1.0, 2.0, 2.0), (0, 1 / 2, 1 / 2), 0),
    ((4.0, 2.0, 2.0), (0, 0, 1), 0),
    ((1.0, 2.0, -5.0), (0, 0, 1), 0),
    ((-7.0, 2.0, -5.0), (0, 0, 1), 0),
    ((7.0, 2.0, -5.0), (0, 0, 1), 0),
    ((-5.0, 2.0, -5.0), (0, 0, 1), 0),
    ((2.0, 2.0, -5.0), (0, 0, 1), 0),
]


@pytest.mark.parametrize("active", [a for size in (1, 2, 3) for a in itertools.combinations(range(3), size)])
@pytest.mark.parametrize(("point", "all_active", "x_alone"), CLAMP)
def test_clamp(
    point: tuple[float, ...], all_active: tuple[float, ...], x_alone: float, active: tuple[int, ...]
) -> None:
    def restricted(points: Array) -> Array:
        full = np.tile(point, (len(points), 1))
        full[:, active] = points
        return clamp(full)

    gradient = min_norm_gradient(restricted, np.array(point)[list(active)])
    if active == (0,):
        np.testing.assert_allclose(gradient, [x_alone], atol=1e-6)
    # A constant that is tied for the value leaves a side on which nothing moves, and so the gradient 0.
    constant_tied = any(all_active[i] for i in range(3) if i not in active)
    np.testing.assert_allclose(gradient, [0 if constant_tied else all_active[i] for i in active], atol=1e-6)


SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def elu(alpha: float) -> Function:
    return lambda x: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


@pytest.mark.parametrize(
    ("function", "at", "expected"),
    [
        pytest.param(np.abs, 0.0, 0, id="abs"),
        pytest.param(np.abs, -0.0, 0, id="abs at -0"),
        pytest.param(lambda x: -np.abs(x), 0.0, 0, id="concave"),
        pytest.param(lambda x: np.maximum(0.25 * x, x), 0.0, 0.25, id="both slopes positive"),
        pytest.param(lambda x: np.minimum(-0.25 * x, -x), 0.0, -0.25, id="both slopes negative"),
        pytest.param(lambda x: np.maximum(-0.5 * x, x), 0.0, 0, id="slopes of opposite sign"),
        pytest.param(elu(2.0), 0.0, 1, id="elu, alpha > 1"),
        pytest.param(elu(1.0), 0.0, 1, id="elu, alpha = 1"),
        pytest.param(elu(0.5), 0.0, 0.5, id="elu, 0 < alpha < 1"),
        pytest.param(elu(-0.5), 0.0, 0, id="elu, alpha < 0"),
        pytest.param(lambda x: SELU_SCALE * elu(SELU_ALPHA)(x), 0.0, SELU_SCALE, id="selu"),
        pytest.param(lambda x: x * np.clip(x + 3, 0, 6) / 6, -3.0, 0, id="hardswish at its lower kink"),
        pytest.param(lambda x: x * np.clip(x + 3, 0, 6) / 6, 3.0, 1, id="hardswish at its upper kink"),
    ],
)
def test_kinks(function: Function, at: float, expected: float) -> None:
    np.testing.assert_allclose(min_norm_gradient(of_one(function), np.array([at])), [expected], atol=1e-4)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param(lambda x: relu(x) - relu(-x), 1, id="relu(x) - relu(-x) = x"),
        pytest.param(lambda x: relu(x) + np.minimum(x, 0), 1, id="max(x, 0) + min(x, 0) = x"),
        pytest.param(lambda x: np.abs(x) - 2 * relu(x), -1, id="abs(x) - 2 relu(x) = -x"),
        pytest.param(lambda x: np.clip(x, 2, 2), 0, id="clip between equal bounds is constant"),
        pytest.param(lambda x: relu(x) ** 2, 0, id="relu(x)**2"),
    ],
)
def test_the_function_counts_and_not_the_program(function: Function, expected: float) -> None:
    """Each is differentiable at 0, although its parts are not."""
    np.testing.assert_allclose(min_norm_gradient(of_one(function), np.zeros(1)), [expected], atol=1e-4)


@pytest.mark.parametrize(
    ("function", "at", "expected"),
    [
        pytest.param(lambda x: np.where(np.abs(x) > 0.5, x, 0), 0.5, 0, id="hardshrink, upper end"),
        pytest.param(lambda x: np.where(np.abs(x) > 0.5, x, 0), -0.5, 0, id="hardshrink, lower end"),
        pytest.param(lambda x: np.where(np.abs(x) >= 0.5, x, 0), 0.5, 1, id="ends belong to the outside, upper end"),
        pytest.param(lambda x: np.where(np.abs(x) >= 0.5, x, 0), -0.5, 1, id="ends belong to the outside, lower end"),
        pytest.param(lambda x: np.where(x > 1, x, 20.0), 1.0, 0, id="threshold with another value"),
        pytest.param(lambda x: np.where(x >= 1, 3 * x, -2 * x), 1.0, 3, id="from slope -2 to 3, above"),
        pytest.param(lambda x: np.where(x > 1, 3 * x, -2 * x), 1.0, -2, id="from slope -2 to 3, below"),
        pytest.param(lambda x: np.where(x < 0, np.nan, 2 * x), 0.0, 2, id="not defined to the left"),
    ],
)
def test_jumps_take_the_branch_of_the_value(function: Function, at: float, expected: float) -> None:
    np.testing.assert_allclose(min_norm_gradient(of_one(function), np.array([at])), [expected], atol=1e-6)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("reduce", [np.max, np.min])
def test_tied_elements_share_evenly(reduce: Callable[..., Array], size: int) -> None:
    gradient = min_norm_gradient(lambda points: reduce(points, axis=1), np.full(size, 2.0))
    np.testing.assert_allclose(gradient, np.full(size, 1 / size), atol=1e-6)


def test_elements_that_are_not_tied_get_nothing() -> None:
    gradient = min_norm_gradient(lambda points: points.max(axis=1), np.array([3.0, 1.0, 3.0, -2.0, 3.0]))
    np.testing.assert_allclose(gradient, [1 / 3, 0, 1 / 3, 0, 1 / 3], atol=1e-6)


@pytest.mark.parametrize(
    ("function", "at", "expected"),
    [
        pytest.param(lambda p: np.sin(p[:, 0]), [0.3], [np.cos(0.3)], id="sin"),
        pytest.param(lambda p: np.tanh(p[:, 0]), [-0.7], [1 - np.tanh(0.7) ** 2], id="tanh"),
        pytest.param(lambda p: p[:, 0] ** 2, [0.0], [0], id="square at its minimum"),
        pytest.param(lambda p: p[:, 0] ** 3 - p[:, 0], [-1.5], [5.75], id="cubic"),
        pytest.param(lambda p: p[:, 0] * p[:, 1], [1.5, -2.0], [-2, 1.5], id="product"),
        pytest.param(lambda p: np.log(p[:, 0]) / p[:, 1], [2.0, 4.0], [1 / 8, -np.log(2) / 16], id="log ratio"),
        pytest.param(lambda p: 2 * p[:, 0] - p[:, 1] + 3 * p[:, 2], [0.0, 5.0, 1.0], [2, -1, 3], id="linear"),
        pytest.param(lambda p: 0 * p[:, 0] + 7, [4.0], [0], id="constant"),
        pytest.param(lambda p: np.abs(p[:, 0]) + np.exp(p[:, 1]), [0.0, 0.5], [0, np.exp(0.5)], id="kink and smooth"),
    ],
)
def test_smooth_functions_have_their_ordinary_gradient(
    function: Function, at: list[float], expected: list[float]
) -> None:
    np.testing.assert_allclose(min_norm_gradient(function, np.array(at)), expected, atol=1e-4)


@pytest.mark.parametrize("place", [1e6, 1e3, -1e3, 1e-3, -1e-3])
@pytest.mark.parametrize("slope", [1e3, 1.0, 1e-2])
def test_large_and_small_numbers(place: float, slope: float) -> None:
    def tied(points: Array) -> Array:
        return slope * np.maximum(points[:, 0], points[:, 1])

    def kink(points: Array) -> Array:
        return slope * np.abs(points[:, 0] - place)

    np.testing.assert_allclose(min_norm_gradient(tied, np.full(2, place)), np.full(2, slope / 2), rtol=1e-4)
    np.testing.assert_allclose(min_norm_gradient(kink, np.array([place])), [0], atol=1e-4 * slope)
    beside = np.array([place, place + abs(place) / 2])
    np.testing.assert_allclose(min_norm_gradient(tied, beside), [0, slope], atol=1e-4 * slope)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda points: np.full(len(points), np.nan), id="NaN everywhere"),
        pytest.param(lambda points: np.where(points[:, 0] == 1, np.nan, points[:, 0]), id="NaN at the point"),
        pytest.param(lambda points: np.where(points[:, 0] == 1, 5.0, points[:, 0]), id="a jump to either side"),
    ],
)
def test_error_where_no_differentiable_point_is_near(function: Function) -> None:
    with pytest.raises(ValueError, match=r"no differentiable point was found near \[1\.0, 2\.0\]; is the function fin"):
        min_norm_gradient(function, np.array([1.0, 2.0]))


def test_the_same_answer_every_time() -> None:
    """The nearby points are random, but the same in every call."""
    answers = [min_norm_gradient(lambda p: np.exp(p[:, 0]) * np.maximum(p[:, 1], 0), np.ones(2)) for _ in range(2)]
    np.testing.assert_array_equal(*answers)


def slopes(dimensions: int, largest: int) -> st.SearchStrategy[list[list[int]]]:
    # Small integers: a region in which one of them is the largest is then wide enough to be found by sampling.
    slope = st.lists(st.integers(-largest, largest), min_size=dimensions, max_size=dimensions)
    return st.lists(slope, min_size=1, max_size=5)


@settings(derandomize=True, deadline=None, max_examples=200)
@example(slopes=[[1, 2]], sign=1)
@example(slopes=[[2, 1], [-2, 1]], sign=1)
@example(slopes=[[1, 1, 1], [2, 0, 1], [0, 2, 1]], sign=-1)
@given(slopes=st.one_of(slopes(2, 3), slopes(3, 1)), sign=st.sampled_from([1, -1]))
def test_least_norm_in_the_hull_of_linear_pieces(slopes: list[list[int]], sign: int) -> None:
    """For f(x) = max_i(a_i . (x - p)) the subdifferential at p is the convex hull of the a_i; for min it is too.

    A point g of the hull has the least norm in it exactly if g . v >= |g|^2 for all of its corners v.
    """
    corners = np.array(slopes, float)
    place = np.arange(1.0, corners.shape[1] + 1)
    gradient = min_norm_gradient(lambda points: sign * ((points - place) @ (sign * corners.T)).max(axis=1), place)
    _, distance = nnls(np.vstack([corners.T, np.ones(len(corners))]), np.append(gradient, 1))
    assert distance < 1e-5, "outside the hull"
    assert (corners @ gradient >= gradient @ gradient - 1e-4).all()


def test_rounding_is_no_negative_zero() -> None:
    assert not np.signbit(least_norm(np.array([[-1e-13, 1.0]]))).any()
