"""The reductions: axes, windows, several outputs from one input, and what they refuse."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxclamp
from jaxclamp._shared.oracle import min_norm_gradient
from tests.fuzz import definition
from tests.support.compilations import compilations

AXES = [None, 0, 1, -1, (0, 1), (-1, 0), [1]]
POINTS = np.random.default_rng(0).choice(np.float32([-1.0, 0.0, -0.0, 1.0, 2.0]), (50, 2, 3))
"""Arrays in which most of the largest and smallest elements are tied."""


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", ["amax", pytest.param("amin", marks=pytest.mark.thorough)])
def test_reduction_by_numpy_and_by_definition(name: str, axis: Any, keepdims: bool) -> None:
    op, numpy = getattr(jaxclamp, name), getattr(np, name)
    axes = tuple(axis) if isinstance(axis, list) else axis

    def value_and_gradient(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, pull = jax.vjp(lambda x: op(x, axis, keepdims), x)
        return value, pull(jnp.ones_like(value))[0]

    np.testing.assert_array_equal(op(POINTS[0], axis, keepdims), numpy(POINTS[0], axes, keepdims=keepdims))
    found = jax.jit(jax.vmap(value_and_gradient))(POINTS)
    for x, value, gradient, expected in zip(POINTS, *found, _by_definition(name, _from_the_end(axes)), strict=True):
        np.testing.assert_array_equal(value, numpy(x, axes, keepdims=keepdims), err_msg=str(x))
        np.testing.assert_allclose(gradient, expected, atol=1e-3, err_msg=str(x))


def _from_the_end(axes: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """The axes of one (2, 3) array, counted from the end, so that they serve a batch of them."""
    given = (0, 1) if axes is None else (axes,) if isinstance(axes, int) else axes
    return tuple(sorted(a if a < 0 else a - 2 for a in given))


@functools.cache
def _by_definition(name: str, axes: tuple[int, ...]) -> np.ndarray:
    """The gradients of the sum of the outputs."""

    def values(points: np.ndarray) -> np.ndarray:
        reduced = getattr(np, name)(points.reshape(-1, 2, 3), axes)
        return reduced.reshape(len(points), -1).sum(axis=1)

    return np.stack([min_norm_gradient(values, x.ravel().astype(np.float64)).reshape(2, 3) for x in POINTS])


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_nan_and_infinity(name: str) -> None:
    op = getattr(jaxclamp, name)
    assert jax.grad(op)(jnp.array([1.0, jnp.nan, 3.0, jnp.nan])).tolist() == [0, 0.5, 0, 0.5]
    infinite = jnp.inf if name == "amax" else -jnp.inf
    assert jax.grad(op)(jnp.array([infinite, 0.0, infinite])).tolist() == [0.5, 0, 0.5]
    bad = jax.vjp(op, jnp.array([1.0, 1.0, 2.0]))[1](jnp.float32(jnp.nan))[0]
    assert jnp.isnan(bad).tolist() == ([False, False, True] if name == "amax" else [True, True, False])
    assert (bad[~jnp.isnan(bad)] == 0).all()


def test_many_tied_elements() -> None:
    """The count of tied elements does not overflow the code's 8 bits, nor the float that divides."""
    for dtype in ("float32", "float16"):
        gradient = jax.grad(jaxclamp.amax)(jnp.ones(1000, dtype))
        np.testing.assert_allclose(np.asarray(gradient, np.float32), 1e-3, rtol=1e-3)


def test_pool_of_integers_and_conventions() -> None:
    assert jaxclamp.max_pool1d(jnp.array([[-5, -7, -9]]), 2, 1, 1).tolist() == [[-5, -5, -7, -9]]
    x = jnp.array([1.0, 1.0])
    slopes = {ties: jax.grad(lambda x, t=ties: jaxclamp.max_pool1d(x, 2, ties=t).sum())(x) for ties in jaxclamp.TIES}
    assert slopes["inclusive"].tolist() == [1, 0]
    assert slopes["exclusive"].tolist() == [0, 1]


def members(window: np.ndarray, ties: str) -> list[int]:
    """Which elements of a window get an equal share each; NaN marks what is not there."""
    tied = np.flatnonzero(window == np.nanmax(window)).tolist()
    return tied[:1] if ties == "inclusive" else tied[1:] or tied if ties == "exclusive" else tied


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "shape"),
    [
        pytest.param((2, 3), (2, 3), (0, 0), (1, 1), (12, 12), marks=pytest.mark.thorough),
        ((2, 3), (1, 2), (1, 1), (1, 1), (12, 12)),
        # More than 16 elements, which tile x, are computed in another way; of the others each is not quite a tiling.
        ((6, 3), (6, 3), (0, 0), (1, 1), (12, 12)),
        *(
            pytest.param((6, 3), *further, marks=pytest.mark.thorough)
            for further in (
                ((3, 3), (0, 0), (1, 1), (12, 12)),
                ((6, 3), (3, 0), (1, 1), (12, 12)),
                ((6, 3), (0, 0), (1, 2), (12, 12)),
            )
        ),
        ((6, 3), (6, 3), (0, 0), (1, 1), (13, 14)),
    ],
)
def test_windows_by_definition(kernel: Any, stride: Any, padding: Any, dilation: Any, shape: tuple[int, int]) -> None:
    """Under every convention."""
    x = np.random.default_rng(0).choice(np.float32([-np.inf, 0.0, 1.0]), shape, p=[0.8, 0.1, 0.1])
    padded = np.pad(x, [(p, p) for p in padding], constant_values=np.nan)

    def pool(x: jax.Array, ties: Any) -> jax.Array:
        return jaxclamp.max_pool2d(x, kernel, stride, padding, dilation, ties=ties)

    @jax.jit
    def value_and_gradients(x: jax.Array) -> dict[str, tuple[jax.Array, jax.Array]]:
        def pulled(ties: str) -> tuple[jax.Array, jax.Array]:
            value, pull = jax.vjp(lambda x: pool(x, ties), x)
            return value, pull(jnp.arange(1, 1 + value.size, dtype=np.float32).reshape(value.shape))[0]

        return {ties: pulled(ties) for ties in jaxclamp.TIES}

    inner = tuple(slice(p, p + n) for p, n in zip(padding, shape, strict=True))
    places = np.arange(padded.size).reshape(padded.shape)
    for ties, (value, gradient) in jax.device_get(value_and_gradients(x)).items():
        expected = np.zeros(padded.size)
        for number, (i, j) in enumerate(np.ndindex(*value.shape), 1):
            rows, columns = (
                s * k + d * np.arange(n) for s, k, d, n in zip(stride, (i, j), dilation, kernel, strict=True)
            )
            window = places[np.ix_(rows, columns)].ravel()
            chosen = window[members(padded.ravel()[window], ties)]
            assert value[i, j] == padded.ravel()[chosen[0]], ties
            expected[chosen] += number / len(chosen)
        np.testing.assert_allclose(gradient, expected.reshape(padded.shape)[inner], rtol=1e-6, err_msg=ties)


@pytest.mark.parametrize("kernel", [2, 5])
def test_nan_in_windows(kernel: int) -> None:
    x = jnp.zeros((5, 10)).at[0, jnp.array([0, 1, 7])].set(jnp.nan)
    gradient = jax.grad(lambda x: jaxclamp.max_pool2d(x, kernel).sum())(x)
    assert gradient[0, jnp.array([0, 1, 7])].tolist() == [0.5, 0.5, 1]


def test_windows_of_nothing_but_padding() -> None:
    """Which JAX allows: the value is the lowest number, and nothing moves it, in forward mode either."""
    pool = jaxclamp.min_norm(lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2,), (2,), [(4, 2)]))
    value, tangent = jax.jvp(pool, (jnp.ones(2),), (jnp.ones(2),))
    assert value.tolist() == [-jnp.inf, -jnp.inf, 1, -jnp.inf]
    assert tangent.tolist() == [0, 0, 1, 0]
    assert jax.grad(lambda x: pool(x)[2])(jnp.ones(2)).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jaxclamp.amax(jnp.ones((2, 3)), 2), r"amax: axis=2 is out of range for x of shape \(2, 3\)"),
        (lambda: jaxclamp.amin(jnp.ones((2, 3)), (0, -2)), r"amin: axis=\(0, -2\) does not name .* distinct"),
        (lambda: jaxclamp.amax(jnp.ones((2, 3)), 0.0), r"amax: axis=0\.0 is no integer; pass one, a tuple"),
        (lambda: jaxclamp.amax(jnp.ones((2, 3)), ()), r"amax: axis=\(\) does not name"),
        (lambda: jaxclamp.amax(jnp.ones((2, 0))), r"amax: axis=None of x of shape \(2, 0\) has no elements"),
        (lambda: jaxclamp.amax(jnp.ones((2, 0)), 1), r"amax: axis=1 of x of shape \(2, 0\) has no elements"),
        (lambda: jaxclamp.max_with_indices(jnp.ones(3), 1), r"max_with_indices: axis=1 is out of range"),
        (lambda: jaxclamp.max_pool1d(jnp.ones((1, 3)), 5), r"max_pool1d: a window of \(5,\) does not fit"),
        (lambda: jaxclamp.max_pool1d([1.0, 2.0], 2), "max_pool1d: x must be an array or a number, got list"),
        (lambda: jaxclamp.max_pool2d(None, 2), "max_pool2d: x must be an array or a number, got NoneType"),
        (lambda: jaxclamp.max_pool1d(jnp.ones(2, complex), 2), "max_pool1d: x has the complex dtype complex64"),
    ],
)
def test_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_an_empty_batch_is_no_empty_axis() -> None:
    assert jaxclamp.amax(jnp.ones((0, 3)), 1).shape == (0,)
    assert jax.grad(lambda x: jaxclamp.amax(x, 1).sum())(jnp.ones((0, 3))).shape == (0, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jaxclamp.celu(1.0, 0), "celu: alpha=0 would divide by 0"),
        (lambda: jaxclamp.softshrink(1.0, -1.0), r"softshrink: lambd=-1\.0 is negative"),
    ],
)
def test_parameters_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("op", [jaxclamp.softshrink, jaxclamp.hardshrink])
def test_shrinking_by_nothing_is_the_identity(op: Callable[..., Any]) -> None:
    assert [float(jax.grad(op)(x, 0.0)) for x in (-1.0, 0.0, 1.0)] == [1, 1, 1]


def test_slopes_that_overflow_elsewhere_do_not_leak() -> None:
    x = jnp.array([1e4, -1e4])
    for op in (jaxclamp.elu, jaxclamp.selu, jaxclamp.celu):
        assert jnp.isfinite(jax.grad(lambda x, op=op: op(x).sum())(x)).all()
        assert jnp.isfinite(jax.hessian(lambda x, op=op: op(x).sum())(x)).all()


def test_a_window_that_would_begin_in_the_padding_behind_is_left_out() -> None:
    """With ``ceil_mode``, as in torch. Of four places the first and the last pad here, and it would have the last."""
    assert jaxclamp.max_pool1d(jnp.array([[1.0, 2.0]]), 2, 3, 1, 1, True).tolist() == [[1]]


def test_padding_takes_no_gradient() -> None:
    """Not even where it is as small as the elements."""
    lowest = jnp.full((1, 4), -jnp.inf)
    assert jax.grad(lambda x: jaxclamp.max_pool1d(x, 2, 2, 1).sum())(lowest).tolist() == [[1, 0.5, 0.5, 1]]
    assert jaxclamp.max_pool1d(jnp.zeros((1, 4), bool), 2, 2, 1).tolist() == [[False] * 3]
    assert jaxclamp.max_pool1d(jnp.ones((1, 4), "float8_e4m3fn"), 2, 2, 1).tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("ties", ["min-norm", "x"])
@pytest.mark.parametrize(
    "call",
    [
        lambda x, ties: jaxclamp.amax(x, ties=ties),
        lambda x, ties: jaxclamp.amin(x, 0, ties=ties),
        lambda x, ties: jaxclamp.max_with_indices(x, 0, ties=ties),
        lambda x, ties: jaxclamp.max_pool1d(x, 2, ties=ties),
        lambda x, ties: jaxclamp.max_pool2d(x, 2, ties=ties),
    ],
)
def test_unknown_conventions(call: Callable[..., Any], ties: str) -> None:
    with pytest.raises(ValueError, match=f": ties='{ties}' is not a convention; choose one of 'min_norm'"):
        call(jnp.ones((1, 2, 2)), ties)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ((2, 0), "stride=0 is not an integer, or 1 of them, of at least 1"),
        ((0,), "kernel_size=0 is not"),
        ((2, 2, 2), "padding=2 is more than half of kernel_size=2"),
        ((2, 2, -1), "padding=-1 is not"),
        (((2, 2),), r"kernel_size=\(2, 2\) is not"),
        (((2.0,),), r"kernel_size=\(2\.0,\) is not an integer"),
    ],
)
def test_windows_refused(window: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"max_pool1d: {message}"):
        jaxclamp.max_pool1d(jnp.ones((1, 4)), *window)


def test_numpy_integers_as_axis_and_size() -> None:
    assert jaxclamp.amax(jnp.arange(3), np.int64(0)) == 2
    assert jaxclamp.max_pool1d(jnp.arange(4), np.int64(2)).tolist() == [1, 3]
    assert jaxclamp.max_pool2d(jnp.arange(4).reshape(2, 2), np.array([1, 2])).tolist() == [[1], [3]]


def test_shares_of_many_in_small_dtypes() -> None:
    """1/k is below what float16 holds, k above what float8_e4m3fn does; their product with the gradient is neither."""
    half = jax.grad(lambda x: jaxclamp.amax(x) * jnp.float16(1000))(jnp.zeros(70_000, "float16"))
    np.testing.assert_allclose(half.astype("float32"), 1000 / 70_000, rtol=1e-2)
    eighth = jax.grad(lambda x: jaxclamp.amax(x).astype("float32"))(jnp.zeros(600, "float8_e4m3fn"))
    assert jnp.isfinite(eighth.astype("float32")).all()


@pytest.mark.parametrize("initial", [None, -1.0])
def test_tangents_near_the_largest_number_stay_finite(initial: float | None) -> None:
    """Their mean is as large as they are, and their sum infinite."""
    _, tangent = jax.jvp(
        lambda x: jaxclamp.amax(x, initial=initial), (jnp.zeros(4, jnp.float32),), (jnp.full(4, 3e38, jnp.float32),)
    )
    assert tangent == jnp.float32(3e38)


def test_softshrink_by_arrays_that_are_negative() -> None:
    """Which cannot be refused: there is no flat part, and the slope is that of the value."""
    x = jnp.array([-0.2, 0.2])
    assert jaxclamp.softshrink(x, -0.5 * jnp.ones(2)).tolist() == pytest.approx([-0.7, 0.7])
    assert jax.grad(lambda x: jaxclamp.softshrink(x, -0.5 * jnp.ones(2)).sum())(x).tolist() == [1, 1]


def test_threshold_that_is_nan() -> None:
    assert jax.grad(jaxclamp.threshold, argnums=(0, 2))(2.0, jnp.nan, 5.0) == (1, 0)


@pytest.mark.parametrize(
    "call",
    [
        jaxclamp.amax,
        lambda x: jaxclamp.max_with_indices(x, 1),
        lambda x: jaxclamp.max_pool1d(x, 2, 1, 1),
        lambda x: jaxclamp.max_pool2d(x, 3, ceil_mode=True),
        lambda x: jaxclamp.max_pool2d(x, (5, 7)),
    ],
)
def test_an_eager_call_is_one_program(call: Callable[..., Any]) -> None:
    x = jnp.ones((3, 35, 49))
    before = compilations()
    call(x)
    assert compilations() == before + 1


@pytest.mark.usefixtures("strictest_settings")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: jaxclamp.amax(x, ties="inclusive"),
        lambda x: jaxclamp.amin(x, 0, ties="exclusive").sum(),
        lambda x: jaxclamp.max_with_indices(x, 1).values.sum(),
        lambda x: jaxclamp.max_pool1d(x, 2, 1, 1).sum(),
        lambda x: jaxclamp.max_pool2d(x, 2, 1, 1).sum(),
        lambda x: jaxclamp.prelu(x, jnp.full(3, 0.25)).sum(),
    ],
)
def test_strict_modes(function: Callable[..., Any]) -> None:
    x = jnp.array([[1.0, 3.0, 3.0], [3.0, 0.0, 3.0]])
    assert jnp.isfinite(jax.jit(jax.grad(function))(x)).all()


def small_integers(shape: Sequence[int]) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, shape).astype(np.float32)


def axes_of(ndim: int) -> Iterator[tuple[int, ...] | None]:
    """Every set of axes; None stands for all of them."""
    yield None
    for count in range(1, ndim + 1):
        yield from itertools.combinations(range(ndim), count)


def max_along(x: jax.Array, axis: Any, keepdims: bool) -> jax.Array:
    return jaxclamp.max_with_indices(x, axis[0], keepdims).values


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), pytest.param((2, 3, 2), marks=pytest.mark.thorough)], ids=str)
def test_ties_and_gradients_of_reductions(shape: tuple[int, ...]) -> None:
    """Of a vector no axis is left, and what was kept of it was lost: ``amax(x, keepdims=True)`` was an IndexError."""
    x = small_integers(shape)
    calls: list[tuple[Callable[..., Any], Any, bool]] = [
        (call, axes, keepdims)
        for axes in axes_of(len(shape))
        for keepdims in (False, True)
        for call in (jaxclamp.amax, jnp.max, *([max_along] if axes and len(axes) == 1 else []))
    ]

    def reduced(x: jax.Array) -> list[jax.Array]:
        return [call(x, axis=axes, keepdims=keepdims) for call, axes, keepdims in calls]

    def weighted(x: jax.Array) -> jax.Array:  # by powers of 2, so that no gradient can stand for another
        return sum(2.0**-n * value.sum() for n, value in enumerate(jaxclamp.min_norm(reduced)(x)))

    values, report = jaxclamp.ties(reduced)(jnp.asarray(x))
    tied = elements = 0
    gradient = np.zeros(shape)
    for n, (value, (call, axes, keepdims)) in enumerate(zip(values, calls, strict=True)):
        np.testing.assert_array_equal(value, x.max(axes, keepdims=keepdims))
        shares = x == x.max(axes, keepdims=True)
        counts = shares.sum(axes, keepdims=True)
        gradient += 2.0**-n * shares / counts
        tied += int((counts > 1).sum())
        elements += counts.size if shape or call is not jnp.max else 0  # jnp.max of a scalar computes nothing
    assert (report.tied, report.elements) == (tied, elements)
    np.testing.assert_allclose(jax.grad(weighted)(jnp.asarray(x)), gradient, rtol=1e-5)


INITIAL = np.float32([-1.0, 0.0, 1.0, 2.0])
"""Below all elements, tied with the smallest, tied with the largest, above all."""
MASKS = {"all": True, "some": np.array([True, False, True]), "none": False}
ROW = {"amax": np.array([0.0, 1.0, 1.0]), "amin": np.array([1.0, 0.0, 0.0])}


@pytest.mark.parametrize(("name", "native"), [("amax", jnp.max), ("amin", jnp.min)])
def test_values_of_initial_and_where(name: str, native: Callable[..., jax.Array]) -> None:
    """Which `jax.numpy.max` has, and amax had not."""
    forms = [*itertools.product((None, 0, -1, (0, 1)), (False, True), MASKS.values())]

    def values(op: Callable[..., jax.Array], initial: jax.Array) -> list[jax.Array]:
        x = jnp.asarray(small_integers((2, 3)))
        return [op(x, axis=a, keepdims=k, initial=initial, where=mask) for a, k, mask in forms]

    @jax.jit
    def both(initial: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        return values(getattr(jaxclamp, name), initial), values(native, initial)

    for initial in INITIAL:
        for form, found, expected in zip(forms, *both(initial), strict=True):
            np.testing.assert_array_equal(found, expected, err_msg=f"{initial} {form}")


@pytest.mark.parametrize("active", [(0,), (1,), (0, 1)], ids=["x", "initial", "both"])
@pytest.mark.parametrize("name", ["amax", "amin"])
def test_gradient_of_initial_and_where(name: str, active: tuple[int, ...]) -> None:
    @jax.jit
    @jax.vmap
    def gradients(initial: jax.Array) -> list[tuple[jax.Array, ...]]:
        def of(x: jax.Array, initial: jax.Array, mask: Any) -> jax.Array:
            return getattr(jaxclamp, name)(x, initial=initial, where=mask)

        x = jnp.asarray(ROW[name], jnp.float32)
        return [jax.grad(of, argnums=active)(x, initial, mask) for mask in MASKS.values()]

    for mask, found in zip(MASKS.values(), gradients(INITIAL), strict=True):
        for n, initial in enumerate(INITIAL):
            operands = definition.inputs_of([ROW[name], np.float64(initial)], [0 in active, 1 in active])
            expected = definition.evaluate(name, operands, {"where": mask}, "float64").jacobian.ravel()
            np.testing.assert_allclose(np.concatenate([part[n].ravel() for part in found]), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_nan_beside_initial_and_behind_where(name: str) -> None:
    x = jnp.array([jnp.nan, 1.0, jnp.nan])
    gradient = jax.jit(jax.grad(getattr(jaxclamp, name), argnums=(0, 3)), static_argnums=(1, 2))

    def shares(initial: float, where: Any = None) -> list[float]:
        of_x, of_initial = gradient(x, None, False, initial, where)
        return [*of_x.tolist(), float(of_initial)]

    assert shares(0.5) == [0.5, 0.0, 0.5, 0.0]
    np.testing.assert_allclose(shares(jnp.nan), [1 / 3, 0, 1 / 3, 1 / 3])
    assert shares(0.5 if name == "amax" else 1.5, ~jnp.isnan(x)) == [0, 1, 0, 0]
    alone = jax.grad(getattr(jaxclamp, name))(x, None, False, jnp.nan)
    assert alone.tolist() == [0, 0, 0]  # a number is tied, and not differentiated


def test_what_is_masked_gets_nothing_where_the_value_is_infinite() -> None:
    """It is -inf then, as the value is, and as an element that takes part may be."""
    where = jnp.array([True, False])
    gradient = jax.grad(lambda x, initial: jaxclamp.amax(x, initial=initial, where=where), argnums=(0, 1))
    of_x, of_initial = gradient(jnp.array([-jnp.inf, 2.0]), -jnp.inf)
    assert (of_x.tolist(), of_initial) == ([0.5, 0.0], 0.5)


@pytest.mark.parametrize("x", [np.arange(3), np.array([True, False])], ids=["integers", "bools"])
def test_integers_do_not_move_with_initial(x: np.ndarray[Any, Any]) -> None:
    """`jax.numpy.max` takes a float beside them, too, and rounds it."""
    for op, native in ((jaxclamp.amax, jnp.max), (jaxclamp.amin, jnp.min)):
        value, tangent = jax.jvp(lambda initial, op=op: op(x, initial=initial) * 1.0, (2.0,), (1.0,))
        assert (value, tangent) == (native(x, initial=2.0), 0)


@pytest.mark.parametrize("settings", [{"base_dilation": (2,)}, {"padding": ((-1, 0),)}], ids=str)
def test_windows_over_gaps_or_a_part_stay_as_they_are(settings: dict[str, Any]) -> None:
    """No pool has such windows: ``min_norm`` leaves them to JAX."""
    geometry = {"window_dimensions": (3,), "window_strides": (1,), "padding": ((0, 0),), **settings}
    function = lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, **geometry)  # noqa: E731
    x = jnp.array([5.0, 1.0, 3.0, 2.0, 4.0])
    assert jaxclamp.min_norm(function)(x).tolist() == function(x).tolist()
