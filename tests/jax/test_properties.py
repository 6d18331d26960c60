"""What must hold at every point, tied or not: values, weights, special values, shapes and dtypes.

A program takes longer to compile than to run. So there is one for all active sets of an op, and it gets many points at
a time.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxclamp
from jaxclamp import OPS, Op
from tests.support.elementwise import ELEMENTWISE, active_sets, is_curved, of_numbers, operands, valid_operands
from tests.support.representatives import represented

Active = tuple[int, ...]
FLOATS = ("float32", "float64", "bfloat16", "float16")
MIRRORED = ("minimum", "fmin", "clamp_max", "hardtanh", "relu6")
"""Selections that are as others are, but for a sign or for the bounds."""
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


DRAWN = {1: 16, 2: 8, 3: 4}
"""How many numbers are drawn at once, by the number of operands."""


def points(op: Op, numbers: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    """Many points of ``op`` as one array, a row for each: all that have a few drawn numbers as operands.

    So each number meets itself and all others. Bounds of hardtanh in the wrong order are swapped, as it refuses them. A
    kinked op has the drawn numbers as x, and those of its ties, with parameters that make sense.
    """
    count = len(operands(op))

    def combined(drawn: list[float]) -> np.ndarray:
        if op.family == "selection":
            rows = [list(row) for row in itertools.product(drawn, repeat=count)]
        else:
            rows = [[x, *tie[1:]] for tie in valid_operands(op) for x in (*drawn, tie[0])]
        if op.name == "hardtanh":
            rows = [[x, hi, lo] if lo > hi else [x, lo, hi] for x, lo, hi in rows]
        return np.array(rows, np.float32)

    return st.lists(numbers, min_size=DRAWN[count], max_size=DRAWN[count]).map(combined)


def points_with_slopes(op: Op, numbers: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    """Points whose parameters are not 0: a slope that happens to be 0 multiplies, only a constant piece selects."""
    found = points(op, numbers)
    return found if op.family == "selection" else found.map(lambda rows: rows[(rows[:, 1:] != 0).all(axis=1)])


def all_active(op: Op) -> Active:
    return tuple(range(len(operands(op))))


def sharing(op: Op) -> range:
    """The operands that share the gradient. That of a parameter of a kinked op is a product, 0 times NaN included."""
    return range(len(operands(op)) if op.family == "selection" else 1)


def pulled_back(op: Op, columns: list[jax.Array], cotangent: jax.Array) -> dict[Active, tuple[jax.Array, ...]]:
    """For every set of active operands what becomes of a cotangent."""

    def pull(active: Active) -> tuple[jax.Array, ...]:
        def restricted(*moving: jax.Array) -> jax.Array:
            merged = dict(enumerate(columns)) | dict(zip(active, moving, strict=True))
            return of_numbers(op)(*merged.values())

        return jax.vjp(restricted, *(columns[index] for index in active))[1](cotangent)

    return {active: pull(active) for active in active_sets(len(columns))}


@functools.cache
def in_reverse(op: Op) -> Callable[..., dict[Active, tuple[jax.Array, ...]]]:
    """The program that does so."""
    return jax.jit(functools.partial(pulled_back, op))


@functools.cache
def forward(op: Op) -> Callable[..., dict[Active, tuple[jax.Array, ...]]]:
    """The program that takes Jacobians in forward mode, for every set of active operands."""

    def chosen(columns: list[jax.Array]) -> dict[Active, tuple[jax.Array, ...]]:
        return {a: jax.vmap(jax.jacfwd(op.function, argnums=a))(*columns) for a in active_sets(len(columns))}

    return jax.jit(chosen)


def weights(op: Op, at: np.ndarray) -> dict[Active, np.ndarray]:
    """For every set of active operands their gradients in reverse mode, a row for each point."""
    return in_rows(in_reverse(op)([*at.T], np.ones(len(at), np.float32)))


def in_rows(found: dict[Active, tuple[jax.Array, ...]]) -> dict[Active, np.ndarray]:
    return {active: np.stack(columns, axis=-1) for active, columns in found.items()}


def apart(label: object, at: np.ndarray, found: np.ndarray, expected: np.ndarray, rtol: float = 0.0) -> list[str]:
    """A line for each point at which the two differ."""
    differ = ~np.isclose(found, expected, rtol=rtol, atol=0, equal_nan=True).all(axis=1)
    rows = zip(*(array[differ].tolist() for array in (at, found, expected)), strict=True)
    return [f"{label} at {p}: {f}, expected {e}" for p, f, e in rows]


every_op = pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
every_linear = pytest.mark.parametrize("op", represented(op for op in ELEMENTWISE if not is_curved(op)))
every_selection = pytest.mark.parametrize(
    "op", [pytest.param(op, id=op.name, marks=[pytest.mark.thorough] * (op.name in MIRRORED)) for op in SELECTIONS]
)


@pytest.mark.parametrize(
    "op", [pytest.param(OPS[name], id=name, marks=[pytest.mark.thorough] * (name in MIRRORED)) for name in NUMPY]
)
def test_values_equal_numpy(op: Op) -> None:
    """In every dtype at the same points, rounded to it."""

    @given(points(op, ANY))
    def check(at: np.ndarray) -> None:
        for dtype in FLOATS:
            columns = [column.astype(jnp.dtype(dtype)) for column in at.T]
            with jax.enable_x64(dtype == "float64"):
                found = op.function(*columns)
            assert found.dtype == dtype
            expected = NUMPY[op.name](*(column.astype(np.float64) for column in columns))
            np.testing.assert_array_equal(np.asarray(found, np.float64), expected, err_msg=dtype)

    check()


@every_selection
def test_weights_are_a_convex_combination(op: Op) -> None:
    @given(points(op, FINITE))
    def check(at: np.ndarray) -> None:
        found = weights(op, at)[all_active(op)]
        total = found.sum(axis=1)
        # The bounds of relu and relu6 are built in, and no arguments.
        sums_up = np.isclose(total, 1, rtol=1e-6) if len(operands(op)) > 1 else np.isin(total, (0, 1))
        wrong = (found < 0).any(axis=1) | ~sums_up
        assert not wrong.any(), f"at {at[wrong].tolist()}: {found[wrong].tolist()}"

    check()


@pytest.mark.parametrize("op", represented(ELEMENTWISE))
def test_forward_equals_reverse(op: Op) -> None:
    @given(points(op, FINITE))
    def check(at: np.ndarray) -> None:
        found, chosen = weights(op, at), forward(op)([*at.T])
        wrong = [
            line
            for active, pulled in found.items()
            for line in apart(active, at, pulled, np.stack(chosen[active], axis=-1), rtol=1e-6)
        ]
        assert not wrong, "\n".join(wrong)

    check()


@given(points(OPS["minimum"], FINITE))
def test_maximum_and_minimum_are_mirror_images(at: np.ndarray) -> None:
    mirrored, found = weights(OPS["maximum"], -at), weights(OPS["minimum"], at)
    wrong = [line for active in ((0, 1), (0,)) for line in apart(active, at, found[active], mirrored[active])]
    assert not wrong, "\n".join(wrong)


@given(points(OPS["clamp_min"], FINITE))
def test_bounds_from_both_sides_add_up(at: np.ndarray) -> None:
    """clamp_min(x, b) + clamp_max(x, b) = x + b."""
    below, above = (weights(OPS[name], at)[0, 1] for name in ("clamp_min", "clamp_max"))
    wrong = apart("both active", at, below + above, np.ones_like(at), rtol=1e-7)
    assert not wrong, "\n".join(wrong)


@given(st.lists(FINITE, min_size=8, max_size=8), FINITE)
def test_spellings_agree(x: list[float], bound: float) -> None:
    """What the whole library is for. The bound is given as a number and as an array, and one x is on it."""
    x_, bound_ = jnp.float32([*x, bound]), jnp.float32(bound)
    spellings = {
        "maximum, number": lambda x: jaxclamp.maximum(x, bound),
        "maximum, array": lambda x: jaxclamp.maximum(x, bound_),
        "clamp_min": lambda x: jaxclamp.clamp_min(x, bound),
        "clamp": lambda x: jaxclamp.clamp(x, min=bound),
        "minimum": lambda x: -jaxclamp.minimum(-x, -bound),
        "relu or clamp": lambda x: jaxclamp.relu(x) if bound == 0 else jaxclamp.clamp(x, bound_),
    }
    slopes = {name: np.asarray(jax.grad(lambda x, f=f: f(x).sum())(x_)) for name, f in spellings.items()}
    for name, found in slopes.items():
        np.testing.assert_array_equal(found, slopes["maximum, number"], err_msg=f"{name}, x={x_.tolist()}")


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(0, 10)), min_size=4, max_size=4))
def test_gradient_is_true_where_the_function_is_differentiable(drawn: list[tuple[float, float]]) -> None:
    """A tie of operands that move together is no kink: clamp(t - gap, t, t) = t."""
    t, gap = jnp.float32(drawn).T
    slopes = jax.grad(lambda t: jaxclamp.clamp(t - gap, t, t).sum())(t)
    assert (slopes == 1).all(), f"{slopes} at (t, gap) in {drawn}"


@every_selection
def test_nan_operands_share_the_gradient(op: Op) -> None:
    everything = all_active(op)

    @given(points(op, FINITE), st.sampled_from(active_sets(len(everything))))
    def check(at: np.ndarray, unknown: Active) -> None:
        at[:, unknown] = np.nan
        tied = np.isnan(at)
        if op.name in ("fmax", "fmin"):
            tied = np.where(tied.all(axis=1, keepdims=True), tied, ~tied)  # a number beside a NaN is the value
        shares = tied / tied.sum(axis=1, keepdims=True)
        found = weights(op, at)
        wrong = apart(everything, at, found[everything], shares, rtol=1e-6)
        for index in everything:
            alone = shares[:, index : index + 1] == 1
            wrong += apart((index,), at, found[index,], alone)
        assert not wrong, "\n".join(wrong)

    check()


# These two compile no whole program: in it XLA turns a product with a mask, in which a NaN would pass, into a select.


@pytest.mark.parametrize("op", represented(op for op in ELEMENTWISE if not is_curved(op)))
def test_bad_cotangents_reach_only_what_has_weight(op: Op) -> None:
    @settings(max_examples=10)
    @given(points_with_slopes(op, ANY))
    def check(at: np.ndarray) -> None:
        at, cotangent = np.tile(at, (3, 1)), np.repeat(np.float32([np.nan, np.inf, -np.inf]), len(at))
        clean = weights(op, at)
        dirty = in_rows(pulled_back(op, [jnp.asarray(column) for column in at.T], jnp.asarray(cotangent)))
        wrong = []
        for active in active_sets(len(sharing(op))):
            wrong += apart(f"{active}, is reached", at, ~np.isfinite(dirty[active]), clean[active] != 0)
            without = np.where(clean[active] == 0, dirty[active], 0)
            wrong += apart(f"{active}, without weight", at, without, np.zeros_like(without))
        assert not wrong, "\n".join(wrong)

    check()


@every_linear
def test_nan_tangents_reach_the_result_only_with_weight(op: Op) -> None:
    def pushed(columns: list[jax.Array], index: int) -> jax.Array:
        """What the tangent NaN of one operand makes of the result, beside tangents 0 of the others."""
        tangents = [jnp.asarray(np.full_like(c, np.nan if k == index else 0)) for k, c in enumerate(columns)]
        return jax.jvp(of_numbers(op), columns, tangents)[1]

    @settings(max_examples=10)
    @given(points_with_slopes(op, FINITE))
    def check(at: np.ndarray) -> None:
        clean = weights(op, at)[all_active(op)]
        columns = [jnp.asarray(column) for column in at.T]
        reached = np.isnan(np.stack([pushed(columns, index) for index in sharing(op)], axis=-1))
        wrong = apart("is reached", at, reached, clean[:, list(sharing(op))] != 0)
        assert not wrong, "\n".join(wrong)

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


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.thorough), "bfloat16"])
@every_selection
def test_broadcast_operands_get_the_sum(op: Op, dtype: str) -> None:
    count = len(operands(op))
    shapes: list[tuple[int, ...]] = [(2, 3), (3,), ()][:count]
    arrays = [jnp.zeros(shape, dtype) for shape in shapes]

    @jax.jit
    def gradient(arrays: list[jax.Array]) -> Any:
        return jax.grad(lambda arrays: op.function(*arrays).sum())(arrays)

    elementwise = gradient([jnp.broadcast_to(a, (2, 3)) for a in arrays])
    for array, found, whole in zip(arrays, gradient(arrays), elementwise, strict=True):
        assert (found.shape, found.dtype) == (array.shape, array.dtype)
        lead = tuple(range(2 - array.ndim))
        np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(whole, np.float64).sum(lead), rtol=1e-2)


SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (0, 3), (1,), (2, 0, 4))


@pytest.mark.parametrize("op", represented(ELEMENTWISE))
def test_small_and_empty_shapes(op: Op) -> None:
    x, *parameters = valid_operands(op)[0]

    @jax.jit
    def everything(arrays: list[jax.Array]) -> list[tuple[jax.Array, Any]]:
        def value_and_gradients(x: jax.Array) -> tuple[jax.Array, Any]:
            operands = [x, *parameters]
            return op.function(*operands), jax.grad(lambda operands: op.function(*operands).sum())(operands)

        return [value_and_gradients(x) for x in arrays]

    for shape, (value, (gradient, *_)) in zip(SHAPES, everything([jnp.full(s, x) for s in SHAPES]), strict=True):
        assert value.shape == gradient.shape == shape


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
    """Of the types alone, without numbers: nothing is compiled."""
    x, y = (SAMPLES[name] for name in names)
    expected, *others = jax.eval_shape(
        lambda: [jnp.maximum(x, y), jaxclamp.maximum(x, y), jaxclamp.clamp_min(x, y), jaxclamp.clamp(x, y, y)]
    )
    for found in others:
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


@pytest.mark.parametrize("function", [lambda f: f, jax.jit], ids=["op by op", "compiled"])
def test_nan_that_cannot_be_negative(function: Callable[..., Any]) -> None:
    """XLA takes ``relu(x) >= 0`` to be true of NaN too, and so took 0 for a value of the minimum, or the maximum."""

    def compared(x: jax.Array) -> list[jax.Array]:
        return [
            *(
                op(inner(x), 0.0)
                for op in (jaxclamp.minimum, jaxclamp.clamp_max)
                for inner in (jaxclamp.relu, jaxclamp.abs)
            ),
            *(op(inner(x), 0.0) for op in (jaxclamp.fmax, jaxclamp.fmin) for inner in (jaxclamp.relu, jaxclamp.abs)),
        ]

    for x, expected in ((jnp.nan, [1, 1, 1, 1, 0, 0, 0, 0]), (0.0, [0] * 8), (1.0, [0, 0, 0, 0, 1, 1, 0, 0])):
        assert [float(v) for v in function(jax.jacfwd(compared))(x)] == expected
