"""What testers found broken once in jaxclamp. Each test failed on the code as it was then."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import jet
from jax.sharding import NamedSharding, PartitionSpec

import jaxclamp
from tests.fuzz import definition


def small_integers(shape: Sequence[int]) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, shape).astype(np.float32)


# Reductions.


def axes_of(ndim: int) -> Iterator[tuple[int, ...] | None]:
    """Every set of axes; None stands for all of them."""
    yield None
    for count in range(1, ndim + 1):
        yield from itertools.combinations(range(ndim), count)


def max_along(x: jax.Array, axis: Any, keepdims: bool) -> jax.Array:
    return jaxclamp.max_with_indices(x, axis[0], keepdims).values


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 2)], ids=str)
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


# jaxclamp.min_norm and jaxclamp.ties.


def test_clip_without_bounds() -> None:
    """It was taken for clamp_min without a minimum."""
    x = jnp.array([-1.0, 0.0, -0.0, jnp.inf, jnp.nan])

    def identities(x: jax.Array) -> list[jax.Array]:
        of_jax = [jnp.clip(x), x.clip(), jnp.clip(x, None, None)]
        return of_jax + [jaxclamp.clip(x), jaxclamp.clip(x, None, None), jaxclamp.clamp(x, min=None)]

    values, report = jaxclamp.ties(identities)(x)
    for found in (*identities(x), *values, *jaxclamp.min_norm(identities)(x)):
        assert found.tobytes() == x.tobytes()
    assert report.tied == 0
    for function in (identities, jaxclamp.min_norm(identities)):
        assert jax.grad(lambda x, f=function: sum(map(jnp.sum, f(x))))(x).tolist() == [6, 6, 6, 6, 6]


def test_influence_of_a_function_with_auxiliary_results() -> None:
    x = jnp.array([-1.0, 0.0, 2.0])
    (value, rest), report = jaxclamp.ties(
        lambda x: (jnp.maximum(x, 0.0).sum(), {"x": x}), influence=True, has_aux=True
    )(x)
    assert (value, rest["x"].tolist(), report.tied) == (2, [-1, 0, 2], 1)
    assert report.influence == jaxclamp.ties(lambda x: jnp.maximum(x, 0.0).sum(), influence=True)(x)[1].influence
    assert report.influence.norm == 1


LIBRARY_NAMES = (
    *("clip", "fmax", "fmin", "maximum", "minimum", "absolute", "max", "min", "relu", "relu6", "hard_tanh"),
    *("leaky_relu", "elu", "selu", "celu", "hard_sigmoid", "hard_swish", "_where", "_reduce_max", "_reduce_min"),
)
BODIES: dict[str, tuple[Callable[..., Any], Any]] = {
    "reduces all axes": (lambda x: jnp.max(x, keepdims=True), jnp.ones((2, 2))),
    "reduces all axes and an operand more": (lambda x, y: jnp.max(x, keepdims=True) * y, (jnp.ones((2, 2)), 2.0)),
    "sums all axes": (lambda x: jnp.sum(x, keepdims=True), jnp.ones((2, 2, 2))),
    "takes a random key": (lambda key, x: x + jax.random.uniform(key), (jax.random.key(0), jnp.ones(2))),
    "makes random keys": (lambda x: jax.random.split(jax.random.key(0)), jnp.ones(2)),
    "has no results": (lambda x: jax.debug.callback(lambda x: None, x), jnp.ones(2)),
    "has no operands": (lambda: jnp.zeros(2), ()),
    "has several results": (lambda x: (jnp.maximum(x, 0), x), jnp.ones(2)),
    "is of integers": (lambda i: i + 1, jnp.arange(3)),
    "is of integers and floats": (lambda x, i: x[i], (jnp.arange(3.0), jnp.arange(2))),
    "is of complex numbers": (lambda z: z * 1j, jnp.ones(2, complex)),
    "is of no elements": (lambda x: x * 2, jnp.ones((0, 2))),
    "holds a constant array": (lambda x: x + np.arange(2.0, dtype=np.float32), jnp.ones(2)),
    "contracts axes": (lambda x, y: x @ y, (jnp.ones((2, 2)), jnp.ones((2, 2)))),
    "transposes": (lambda x, y: jnp.maximum(x.T, y), (jnp.ones((2, 2)), jnp.ones((2, 2)))),
    "loops": (lambda x: jax.lax.fori_loop(0, 2, lambda _, x: jnp.maximum(x, 0), x), jnp.ones(2)),
    "is another function inside": (lambda x: jax.jit(lambda x: jnp.max(x, keepdims=True))(x), jnp.ones((2, 2))),
}


@pytest.mark.parametrize("body", BODIES)
def test_functions_with_the_names_of_a_library(body: str) -> None:
    """Whatever is in them, they are called as they are."""
    function, given = BODIES[body]
    arguments = given if isinstance(given, tuple) else (given,)

    def all_names(*arguments: Any) -> list[Any]:
        results = []
        for name in LIBRARY_NAMES:

            def named(*arguments: Any) -> Any:
                return function(*arguments)

            named.__name__ = named.__qualname__ = name
            results.append(jax.jit(named)(*arguments))
        return results

    expected = jax.jit(all_names)(*arguments)
    for found in (jax.jit(jaxclamp.min_norm(all_names))(*arguments), jaxclamp.ties(jax.jit(all_names))(*arguments)[0]):
        for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert got.dtype == want.dtype
            raw = [jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a for a in (got, want)]
            np.testing.assert_array_equal(*raw)


def device_mesh(axis_type: str) -> jax.sharding.Mesh:
    return jax.make_mesh((8,), ("i",), axis_types=(getattr(jax.sharding.AxisType, axis_type),))


@pytest.mark.parametrize("zero", [jnp.zeros((2, 1)), np.zeros((2, 1), np.float32)], ids=["of JAX", "of NumPy"])
@pytest.mark.parametrize("op", [jnp.fmin, jnp.fmax], ids=lambda op: op.__name__)
def test_skipping_ops_in_a_shard_map(op: Callable[..., jax.Array], zero: Any) -> None:
    """What spreads a constant over the devices hid the formula, for operands of different rank."""
    spread = jax.shard_map(
        lambda x: op(zero, x), mesh=device_mesh("Auto"), in_specs=PartitionSpec("i"), out_specs=PartitionSpec(None, "i")
    )
    x = jnp.array([-1.0, 0.0, 1.0, 0.0] * 2)
    gradient = jax.jit(jax.grad(lambda x: jaxclamp.min_norm(spread)(x).sum()))(x)
    assert gradient.tolist() == [2.0 * float(v < 0 if op is jnp.fmin else v > 0) for v in x.tolist()]


@pytest.mark.parametrize("op", [jnp.fmin, jnp.fmax], ids=lambda op: op.__name__)
def test_skipping_ops_under_explicit_sharding(op: Callable[..., jax.Array]) -> None:
    mesh = device_mesh("Explicit")
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.array([-1.0, 0.0, 1.0, 0.0] * 2), NamedSharding(mesh, PartitionSpec("i")))
        gradient = jax.grad(lambda x: jaxclamp.min_norm(lambda x: op(jnp.full((2, 8), 0.0), x))(x).sum())(x)
    assert gradient.tolist() == [2.0 * float(v < 0 if op is jnp.fmin else v > 0) for v in x.tolist()]


def test_ties_of_a_select_between_constants() -> None:
    """Partial evaluation leaves a select without operands."""
    x = jnp.array([-1.0, 0.0, 2.0])
    value, report = jaxclamp.ties(lambda x: x * jnp.where(True, 1.0, 0.0))(x)
    assert (value.tolist(), report.lines) == ([-1, 0, 2], ())


def test_flax_scan() -> None:
    from flax import linen

    class Cell(linen.Module):
        @linen.compact
        def __call__(self, carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            carry = linen.leaky_relu(linen.Dense(3, use_bias=False)(carry) + x)
            return carry, carry

    class Model(linen.Module):
        @linen.compact
        def __call__(self, xs: jax.Array) -> jax.Array:
            over = linen.scan(Cell, variable_broadcast="params", split_rngs={"params": False})
            return over()(jnp.zeros(3), xs)[1]

    model, xs = Model(), jnp.array([[0.0, 0.0, -1.0], [0.0, 1.0, 2.0]])
    parameters = model.init(jax.random.key(0), xs)

    def loss(xs: jax.Array) -> jax.Array:
        return model.apply(parameters, xs)[0].sum()

    _, report = jaxclamp.ties(jax.value_and_grad(loss))(xs)
    assert (report.elements, report.tied) == (6, 2)  # of the first step, in which the carry is 0
    np.testing.assert_allclose(jax.grad(jaxclamp.min_norm(loss))(xs), [[0.01, 0.01, 0.01], [0, 0, 0]], rtol=1e-6)
    assert jax.grad(loss)(xs)[0].tolist() == pytest.approx([1, 1, 0.01])


# Other transformations.


@pytest.mark.parametrize("op", [jaxclamp.relu, jaxclamp.leaky_relu, jaxclamp.amax], ids=lambda op: op.__name__)
def test_jet_is_refused(op: Callable[[jax.Array], jax.Array]) -> None:
    """It does not ask functions for a derivative of their own, and would take another.

    JAX itself refuses such a function under ``jit``, `jax.nn.relu` too; since 0.11.2 by an error of its own code.
    """
    ones = jnp.ones(2)
    with pytest.raises((jax.errors.UnexpectedTracerError, AttributeError)):
        jet.jet(op, (ones,), ((ones, ones),))


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
