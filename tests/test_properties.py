"""What must hold at every point, tied or not: values, weights, special values, shapes and dtypes."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from elementwise import ELEMENTWISE, is_curved, operands, valid_operands
from hypothesis import given
from hypothesis import strategies as st

import jaxclamp
from jaxclamp import OPS, Op

FLOATS = ("float32", "float64", "bfloat16", "float16")
SELECTIONS = [op for op in OPS.values() if op.family == "selection"]
NUMPY: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "clamp": lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi),
    "clamp_max": np.minimum,
    "clamp_min": np.maximum,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "hardtanh": lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.minimum(np.maximum(x, 0), 6),
}

# Ties are likely: few numbers, among them the bounds that ops have built in, and their neighbours.
TIE_PRONE = st.sampled_from([-7.0, -6.0, -1.0, -0.0, 0.0, 1.0, 2.0, 6.0, 7.0])
NEIGHBOURS = st.sampled_from([float(np.nextafter(np.float32(v), np.float32(s))) for v in (-1, 1, 6) for s in (-9, 9)])
FINITE = st.one_of(TIE_PRONE, NEIGHBOURS, st.floats(-100, 100, width=32).filter(lambda x: x == 0 or abs(x) > 1e-30))
ANY = st.one_of(FINITE, st.sampled_from([np.inf, -np.inf, np.nan]))


def point(op: Op, numbers: st.SearchStrategy[float]) -> st.SearchStrategy[list[float]]:
    """Operands of ``op``: anything for a selection op; for a kinked one any x, with parameters that make sense."""
    if op.family == "kinked":
        tied = st.sampled_from(valid_operands(op))
        return st.one_of(st.tuples(numbers, tied).map(lambda pair: [pair[0], *pair[1][1:]]), tied)
    draw = st.lists(numbers, min_size=len(operands(op)), max_size=len(operands(op)))
    # hardtanh refuses bounds in the wrong order, where clamp takes them
    return draw.filter(lambda p: not p[1] > p[2]) if op.name == "hardtanh" else draw


def sharing(op: Op, values: list[float]) -> range:
    """The operands that share the gradient. That of a parameter of a kinked op is a product, 0 times NaN included."""
    return range(len(values) if op.family == "selection" else 1)


def point_with_slopes(op: Op, numbers: st.SearchStrategy[float]) -> st.SearchStrategy[list[float]]:
    """Points whose parameters are not 0: a slope that happens to be 0 multiplies, only a constant piece selects."""
    return point(op, numbers).filter(lambda p: op.family == "selection" or all(p[1:]))


def as_arrays(values: list[float], dtype: str = "float32") -> list[jax.Array]:
    return [jnp.asarray(value, dtype) for value in values]


def weights(op: Op, values: list[float], active: tuple[int, ...], cotangent: float = 1.0) -> np.ndarray:
    arrays = as_arrays(values)

    def restricted(*moving: jax.Array) -> jax.Array:
        merged = list(arrays)
        for index, value in zip(active, moving, strict=True):
            merged[index] = value
        return op.function(*merged)

    _, pull = jax.vjp(restricted, *(arrays[index] for index in active))
    return np.array(pull(jnp.float32(cotangent)))


every_op = pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
every_linear = pytest.mark.parametrize("op", [op for op in ELEMENTWISE if not is_curved(op)], ids=lambda op: op.name)
every_selection = pytest.mark.parametrize("op", SELECTIONS, ids=lambda op: op.name)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", [OPS[name] for name in NUMPY], ids=lambda op: op.name)
def test_values_equal_numpy(op: Op, dtype: str) -> None:
    @given(st.lists(point(op, ANY), min_size=8, max_size=8))
    def check(points: list[list[float]]) -> None:
        columns = [np.asarray(column, jnp.dtype(dtype)) for column in zip(*points, strict=True)]
        with jax.enable_x64(dtype == "float64"):
            found = op.function(*columns)
        assert found.dtype == dtype
        expected = NUMPY[op.name](*(column.astype(np.float64) for column in columns))
        np.testing.assert_array_equal(np.asarray(found, np.float64), expected)

    check()


@every_selection
def test_weights_are_a_convex_combination(op: Op) -> None:
    @given(point(op, FINITE))
    def check(values: list[float]) -> None:
        everything = tuple(range(len(values)))
        found = weights(op, values, everything)
        assert (found >= 0).all()
        if len(values) > 1:  # all operands are arguments
            np.testing.assert_allclose(found.sum(), 1, rtol=1e-6)
        else:
            assert found.sum() in (0, 1)

    check()


@every_op
def test_forward_equals_reverse(op: Op) -> None:
    @given(point(op, FINITE))
    def check(values: list[float]) -> None:
        for size in range(1, len(values) + 1):
            for active in itertools.combinations(range(len(values)), size):
                chosen = jax.jacfwd(op.function, argnums=active)(*as_arrays(values))
                np.testing.assert_allclose(weights(op, values, active), chosen, rtol=1e-6)

    check()


@given(FINITE, FINITE)
def test_maximum_and_minimum_are_mirror_images(x: float, y: float) -> None:
    both = weights(OPS["maximum"], [-x, -y], (0, 1)), weights(OPS["minimum"], [x, y], (0, 1))
    np.testing.assert_array_equal(*both)
    alone = weights(OPS["maximum"], [-x, -y], (0,)), weights(OPS["minimum"], [x, y], (0,))
    np.testing.assert_array_equal(*alone)


@given(FINITE, FINITE)
def test_bounds_from_both_sides_add_up(x: float, bound: float) -> None:
    """clamp_min(x, b) + clamp_max(x, b) = x + b."""
    below, above = (weights(OPS[name], [x, bound], (0, 1)) for name in ("clamp_min", "clamp_max"))
    np.testing.assert_allclose(below + above, 1)


@given(FINITE, FINITE)
def test_spellings_agree(x: float, bound: float) -> None:
    """What the whole library is for."""
    x_, bound_ = as_arrays([x, bound])
    spellings = (
        lambda x: jaxclamp.maximum(x, bound),
        lambda x: jaxclamp.maximum(x, bound_),
        lambda x: jaxclamp.clamp_min(x, bound),
        lambda x: jaxclamp.clamp(x, min=bound),
        lambda x: -jaxclamp.minimum(-x, -bound),
        lambda x: jaxclamp.relu(x) if bound == 0 else jaxclamp.clamp(x, bound_),
    )
    assert len({float(jax.grad(spelling)(x_)) for spelling in spellings}) == 1


@given(st.floats(-10, 10), st.floats(0, 10))
def test_gradient_is_true_where_the_function_is_differentiable(t: float, gap: float) -> None:
    """A tie of operands that move together is no kink: clamp(t - gap, t, t) = t."""
    assert jax.grad(lambda t: jaxclamp.clamp(t - gap, t, t))(t) == 1


@every_selection
def test_nan_operands_share_the_gradient(op: Op) -> None:
    everything = range(len(operands(op)))

    @given(point(op, FINITE), st.sets(st.sampled_from(everything), min_size=1))
    def check(values: list[float], unknown: set[int]) -> None:
        values = [np.nan if index in unknown else value for index, value in enumerate(values)]
        tied = np.isnan(values)
        if op.name in ("fmax", "fmin") and not tied.all():
            tied = ~tied  # the number is the value
        np.testing.assert_allclose(weights(op, values, tuple(everything)), tied / tied.sum(), rtol=1e-6)
        for index in everything:
            alone = tied[index] and tied.sum() == 1
            np.testing.assert_array_equal(weights(op, values, (index,)), [float(alone)])

    check()


@pytest.mark.parametrize("cotangent", [np.nan, np.inf, -np.inf])
@every_linear
def test_bad_cotangents_reach_only_what_has_weight(op: Op, cotangent: float) -> None:
    @given(point_with_slopes(op, ANY))
    def check(values: list[float]) -> None:
        shared = sharing(op, values)
        for size in range(1, len(shared) + 1):
            for active in itertools.combinations(shared, size):
                clean = weights(op, values, active)
                dirty = weights(op, values, active, cotangent)
                assert (np.isfinite(dirty) == (clean == 0)).all(), (values, active, clean, dirty)
                assert (dirty[clean == 0] == 0).all()

    check()


@every_linear
def test_nan_tangents_reach_the_result_only_with_weight(op: Op) -> None:
    @given(point_with_slopes(op, FINITE))
    def check(values: list[float]) -> None:
        arrays = as_arrays(values)
        clean = weights(op, values, tuple(range(len(values))))
        for index in sharing(op, values):
            tangents = [jnp.float32(np.nan if k == index else 0) for k in range(len(values))]
            _, out = jax.jvp(op.function, arrays, tangents)
            assert bool(jnp.isnan(out)) == (clean[index] != 0)

    check()


@pytest.mark.parametrize("op", [OPS[name] for name in NUMPY], ids=lambda op: op.name)
def test_integers_have_a_value_only(op: Op) -> None:
    count = len(operands(op))
    numbers = [np.array([-3, 0, 7]), np.array([-1, 0, 2]), np.array([1, 5, 6])][:count]
    for dtype in ("int8", "int32", "uint8"):
        arrays = [jnp.asarray(np.abs(n) if dtype == "uint8" else n, dtype) for n in numbers]
        found = op.function(*arrays)
        expected = NUMPY[op.name](*map(np.asarray, arrays))
        np.testing.assert_array_equal(found, expected)
        # An integer beside a float that is differentiated changes nothing.
        assert jax.grad(lambda s, arrays=arrays: (s * op.function(*arrays)).sum())(2.0) == expected.sum()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@every_selection
def test_broadcast_operands_get_the_sum(op: Op, dtype: str) -> None:
    names = operands(op)
    if len(names) == 1:
        shapes: list[tuple[int, ...]] = [(2, 3)]
    else:
        shapes = [(2, 3), (3,), ()][: len(names)]
    with jax.enable_x64(dtype == "float64"):
        arrays = [jnp.zeros(shape, dtype) for shape in shapes]
        gradients = jax.grad(lambda *a: op.function(*a).sum(), argnums=tuple(range(len(names))))(*arrays)
        full = [jnp.broadcast_to(a, (2, 3)) for a in arrays]
        elementwise = jax.grad(lambda *a: op.function(*a).sum(), argnums=tuple(range(len(names))))(*full)
    for array, gradient, whole in zip(arrays, gradients, elementwise, strict=True):
        assert (gradient.shape, gradient.dtype) == (array.shape, array.dtype)
        lead = tuple(range(2 - array.ndim))
        np.testing.assert_allclose(np.asarray(gradient, np.float64), np.asarray(whole, np.float64).sum(lead), rtol=1e-2)


@every_op
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 0, 4)])
def test_small_and_empty_shapes(op: Op, shape: tuple[int, ...]) -> None:
    x, *parameters = valid_operands(op)[0]
    arrays = [jnp.full(shape, x), *parameters]
    assert op.function(*arrays).shape == shape
    assert jax.grad(lambda *a: op.function(*a).sum())(*arrays).shape == shape


SAMPLES = {
    "bool": True,
    "int": 2,
    "float": 2.0,
    "uint8": jnp.uint8(2),
    "int32": jnp.int32([2]),
    "float16": jnp.float16([2]),
    "bfloat16": jnp.bfloat16(2),
    "float32": jnp.float32([2]),
    "numpy float64": np.float64(2),
}


@pytest.mark.parametrize("names", list(itertools.product(SAMPLES, SAMPLES)), ids="-".join)
def test_promotion_and_weak_types_as_in_jax_numpy(names: tuple[str, str]) -> None:
    x, y = (SAMPLES[name] for name in names)
    expected = jnp.maximum(x, y)
    for found in (jaxclamp.maximum(x, y), jaxclamp.clamp_min(x, y), jaxclamp.clamp(x, y, y)):
        assert (found.dtype, found.weak_type, found.shape) == (expected.dtype, expected.weak_type, expected.shape)


@pytest.mark.parametrize(("x", "y"), [("float16", "float32"), ("bfloat16", "float32"), ("int32", "float32")])
def test_gradients_keep_the_dtype_of_each_operand(x: str, y: str) -> None:
    at = jnp.ones(3, x), jnp.ones(3, y)
    argnums = tuple(i for i, a in enumerate(at) if jnp.issubdtype(a.dtype, jnp.floating))
    gradients = jax.grad(lambda x, y: jaxclamp.maximum(x, y).sum(), argnums)(*at)
    assert [g.dtype for g in gradients] == [at[i].dtype for i in argnums]


def test_subnormal_numbers_tie_with_zero_on_cpu() -> None:
    """XLA on CPU flushes them to zero, so this gradient is not that of the real-number function."""
    subnormal = jnp.float32(1e-40)
    assert subnormal != np.float32(0) or jax.default_backend() == "cpu"
    assert jax.grad(jaxclamp.relu)(subnormal) == 0
