"""Every op under every transformation of JAX, with the inactive operands staying inactive, sharded or not.

A program takes longer to compile than to run. So what is asked of one op goes into one program where it can.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxclamp
from jaxclamp import OPS, TIES, Op
from tests.support.elementwise import ELEMENTWISE, is_curved, valid_operands
from tests.support.representatives import represented

DEVICES = 8


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((DEVICES,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))


every_op = pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
one_of_each_kind = pytest.mark.parametrize("op", represented(ELEMENTWISE))


def of_x(op: Op) -> Callable[[jax.Array], jax.Array]:
    """``op`` of x alone, with the parameters of its first tie as constant arrays."""
    _, *parameters = valid_operands(op)[0]
    return lambda x: op.function(x, *map(jnp.asarray, parameters))


def ties_and_neighbours(op: Op) -> jax.Array:
    tied = {row[0] for row in valid_operands(op) if row[1:] == valid_operands(op)[0][1:]}
    return jnp.array(sorted({t + shift for t in tied for shift in (-1.5, -0.25, 0.0, 0.25, 1.5)}))


def through_scan(f: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    return lambda x: jax.lax.scan(lambda carry, xi: (carry, f(xi)), None, x)[1]


def through_cond(f: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    return lambda x: jax.lax.cond(x.sum() < 1e9, f, lambda x: x, x)


def through_switch(f: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    return lambda x: jax.lax.switch((x.sum() < 1e9).astype(int), [lambda x: x, f], x)


def through_nested_vmap(f: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    return lambda x: jax.vmap(jax.vmap(f, in_axes=1, out_axes=1))(x[None, :, None])[0, :, 0]


def through_shard_map(f: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    def padded(x: jax.Array) -> jax.Array:
        whole = jnp.concatenate([x, jnp.ones(-x.size % DEVICES)])
        return jax.shard_map(f, mesh=mesh(), in_specs=P("batch"), out_specs=P("batch"))(whole)[: x.size]

    return padded


WRAPPERS: dict[str, Callable[..., Callable[[jax.Array], jax.Array]]] = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "vmap": jax.vmap,
    "nested vmap": through_nested_vmap,
    "scan": through_scan,
    "cond": through_cond,
    "switch": through_switch,
    "shard_map": through_shard_map,
    "checkpoint of scan of checkpoint": lambda f: jax.jit(jax.checkpoint(through_scan(jax.checkpoint(f)))),
}


@one_of_each_kind
def test_gradient_is_the_same_through_every_wrapper(op: Op) -> None:
    f, x = of_x(op), ties_and_neighbours(op)

    @jax.jit
    def wrapped(x: jax.Array) -> dict[str, tuple[jax.Array, jax.Array]]:
        def both_modes(f: Callable[[jax.Array], jax.Array]) -> tuple[jax.Array, jax.Array]:
            return jax.grad(lambda x: f(x).sum())(x), jax.jvp(f, (x,), (jnp.ones_like(x),))[1]

        return {name: both_modes(wrapper(f)) for name, wrapper in WRAPPERS.items()}

    plain = jax.grad(lambda x: f(x).sum())(x)
    for name, modes in wrapped(x).items():
        for mode, found in zip(("reverse", "forward"), modes, strict=True):
            np.testing.assert_allclose(found, plain, rtol=1e-6, atol=1e-7, err_msg=f"{name}, {mode} mode")


@one_of_each_kind
def test_forward_mode_through_while(op: Op) -> None:
    f, x = of_x(op), ties_and_neighbours(op)

    def once(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda state: state[0] < 1, lambda state: (state[0] + 1, f(state[1])), (0, x))[1]

    @jax.jit
    def both(x: jax.Array) -> list[jax.Array]:
        return [jax.jvp(g, (x,), (jnp.ones_like(x),))[1] for g in (once, f)]

    np.testing.assert_array_equal(*both(x))


@one_of_each_kind
def test_value_and_grad_vjp_linearize_and_jacobians_agree(op: Op) -> None:
    f, x = of_x(op), ties_and_neighbours(op)

    @jax.jit
    def everything(x: jax.Array) -> tuple[tuple[jax.Array, jax.Array], dict[str, jax.Array]]:
        one = jnp.ones_like(x)
        return jax.value_and_grad(lambda x: f(x).sum())(x), {
            "vjp": jnp.diag(jax.vjp(f, x)[1](one)[0]),
            "linearize": jnp.diag(jax.linearize(f, x)[1](one)),
            "jacfwd": jax.jacfwd(f)(x),
            "jacrev": jax.jacrev(f)(x),
        }

    (value, gradient), jacobians = everything(x)
    np.testing.assert_allclose(value, f(x).sum(), rtol=1e-6)
    for name, jacobian in jacobians.items():  # XLA rounds what it fuses in other ways
        np.testing.assert_allclose(jacobian, np.diag(gradient), rtol=1e-6, atol=1e-7, err_msg=name)


@every_op
def test_gradient_off_the_ties(op: Op) -> None:
    """The slope of the values, by differences: at a tie a piece may be wrong that does not count there."""
    f, x = of_x(op), ties_and_neighbours(op)
    with jax.enable_x64(True):
        x64, step = np.asarray(x, "float64"), 1e-5
        differences = (f(x64 + step) - f(x64 - step)) / (2 * step)
        slopes = jax.grad(lambda x: f(x).sum())(x64)
    off = ~np.isin(x, [row[0] for row in valid_operands(op)])
    assert off.sum() >= 4
    np.testing.assert_allclose(slopes[off], differences[off], rtol=1e-6, atol=1e-9)


@every_op
def test_hessian(op: Op) -> None:
    """0 for piecewise linear ops; for the others the true second derivative off the kinks, and a number at them."""
    f, x = of_x(op), ties_and_neighbours(op)
    hessian = np.diag(jax.jit(jax.hessian(lambda x: f(x).sum()))(x))
    if not is_curved(op):
        assert (hessian == 0).all()
        return
    assert np.isfinite(hessian).all()
    with jax.enable_x64(True):
        x64, step = np.asarray(x, "float64"), 1e-5
        slopes = jax.jit(jax.vmap(jax.grad(lambda x: f(x[None])[0])))
        ahead, behind = np.split(np.asarray(slopes(np.concatenate([x64 + step, x64 - step]))), 2)
    off = ~np.isin(x, [row[0] for row in valid_operands(op)])
    np.testing.assert_allclose(hessian[off], ((ahead - behind) / (2 * step))[off], rtol=1e-3, atol=1e-5)


CONTEXTS = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "vmap": lambda f: lambda x, y: jax.vmap(f)(x[None], y[None])[0],
    "vmap of one": lambda f: lambda x, y: jax.vmap(f, in_axes=(0, None))(x[None], y)[0],
    "scan": lambda f: lambda x, y: jax.lax.scan(lambda c, _: (c, f(x, y)), 0, length=1)[1][0],
    "scan of constants": lambda f: lambda x, y: jax.lax.scan(lambda c, yi: (c, f(x, yi)), 0, y[None])[1][0],
    "cond": lambda f: lambda x, y: jax.lax.cond(x.sum() < 1e9, f, f, x, y),
}


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(op, marks=[pytest.mark.thorough] * (op.name not in ("maximum", "fmax")))
        for op in ELEMENTWISE
        if op.family == "selection" and len(op.tie_points[0]) == 2
    ],
)
def test_constant_operands_stay_inactive(op: Op) -> None:
    """0 and not 1/2 at a tie, although y is an array that passes through the transformation as x does."""

    @jax.jit
    def gradients(x: jax.Array, y: jax.Array) -> dict[str, tuple[Any, Any]]:
        def of_one_and_both(f: Callable[..., jax.Array]) -> tuple[Any, Any]:
            def total(x: jax.Array, y: jax.Array) -> jax.Array:
                return f(x, y).sum()

            return jax.grad(total)(x, y), jax.grad(total, argnums=(0, 1))(x, y)

        return {name: of_one_and_both(context(op.function)) for name, context in CONTEXTS.items()}

    tied = jnp.full(3, 2.0)
    for name, (alone, both) in gradients(tied, tied).items():
        np.testing.assert_array_equal(alone, np.zeros(3), err_msg=name)
        np.testing.assert_array_equal(both, np.full((2, 3), 0.5), err_msg=name)


def test_where_an_operand_becomes_active() -> None:
    """The two places that the documentation names."""
    _, tangent = jax.jvp(jaxclamp.maximum, (0.0, 0.0), (1.0, 0.0))  # an explicit zero tangent is a tangent
    assert tangent == 0.5

    def loop(x: jax.Array) -> jax.Array:  # the carry depends on x from the second step on, so in all of them
        def step(bound: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            return bound + 0 * x, jaxclamp.maximum(x, bound)

        return jax.lax.scan(step, jnp.zeros(()), None, length=2)[1].sum()

    assert jax.grad(loop)(0.0) == 1.0


SHARES = {
    # op, tied operands: the weights of each under the four conventions, with all active and with the first alone
    "maximum": ((2.0, 2.0), {"min_norm": (0.5, 0.5), "inclusive": (1, 0), "exclusive": (0, 1), "balanced": (0.5, 0.5)}),
    "clamp": (
        (2.0, 2.0, 2.0),
        {
            "min_norm": (1 / 3, 1 / 3, 1 / 3),
            "inclusive": (1, 0, 0),
            "exclusive": (0, 0.5, 0.5),
            "balanced": (1 / 3, 1 / 3, 1 / 3),
        },
    ),
    "fmin": ((2.0, 2.0), {"min_norm": (0.5, 0.5), "inclusive": (1, 0), "exclusive": (0, 1), "balanced": (0.5, 0.5)}),
}
ALONE = {"maximum": (3.0, 2.0), "clamp": (2.0, 1.0, 3.0), "fmin": (1.0, 2.0)}


@pytest.mark.parametrize(("name", "ties"), [(name, ties) for name in SHARES for ties in TIES])
def test_conventions(name: str, ties: str) -> None:
    point, shares = SHARES[name]
    function = functools.partial(OPS[name].function, ties=ties)
    each = range(len(point))

    @jax.jit
    def together_and_alone(*point: jax.Array) -> tuple[Any, list[jax.Array]]:
        return jax.grad(function, argnums=tuple(each))(*point), [jax.grad(function, argnums=k)(*point) for k in each]

    together, alone = together_and_alone(*point)
    np.testing.assert_allclose(together, shares[ties])
    np.testing.assert_allclose(alone, np.zeros(len(point)) if ties == "min_norm" else shares[ties])
    # Where the first operand is the value alone, there is nothing to share.
    for found in together_and_alone(*ALONE[name]):
        np.testing.assert_array_equal(found, np.eye(len(point))[0])


@pytest.mark.parametrize("name", ["relu", "relu6"])
def test_conventions_of_ops_with_bounds_built_in(name: str) -> None:
    slopes = jax.jit(lambda x: [jax.grad(functools.partial(OPS[name].function, ties=ties))(x) for ties in TIES])(0.0)
    assert slopes == [0, 1, 0, 0.5]


@pytest.mark.parametrize(
    ("ties", "expected"),
    [
        ("min_norm", [[1 / 3, 0], [1 / 3, 1 / 3]]),
        ("balanced", [[1 / 3, 0], [1 / 3, 1 / 3]]),
        ("inclusive", [[1, 0], [0, 0]]),
        ("exclusive", [[0, 0], [0.5, 0.5]]),
    ],
)
def test_conventions_of_reductions(ties: str, expected: list[list[float]]) -> None:
    largest = jax.grad(lambda x: jaxclamp.amax(x, ties=ties))
    smallest = jax.grad(lambda x: -jaxclamp.amin(-x, (1, 0), ties=ties))

    @jax.jit
    def gradients(x: jax.Array, distinct: jax.Array) -> list[jax.Array]:
        return [largest(x), smallest(x), largest(distinct)]

    of_max, of_min, without_ties = gradients(jnp.array([[3.0, 1.0], [3.0, 3.0]]), jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(of_max, expected)
    np.testing.assert_allclose(of_min, expected)
    assert without_ties.tolist() == [0, 1]  # there is nothing to share


COLLECTIVES = re.compile(r"\b(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)\b(?!-done)")


def collectives(function: Callable[..., Any], *arrays: jax.Array) -> set[str]:
    return collectives_of(jax.jit(function).lower(*arrays).compile())


def collectives_of(program: jax.stages.Compiled) -> set[str]:
    return set(COLLECTIVES.findall(program.as_text()))


@one_of_each_kind
def test_sharded_elementwise_ops_do_not_communicate(op: Op) -> None:
    sharding = jax.sharding.NamedSharding(mesh(), P("batch"))
    whole, ones = np.linspace(-4, 4, 4 * DEVICES, dtype=np.float32), np.ones(4 * DEVICES, np.float32)

    @jax.jit
    def value_and_gradient(x: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, pull = jax.vjp(of_x(op), x)
        return value, pull(cotangent)[0]

    shards = jax.device_put((whole, ones), sharding)
    program = value_and_gradient.lower(*shards).compile()
    assert collectives_of(program) == set()
    sharded, alone = program(*shards), value_and_gradient(whole, ones)
    for found, expected in zip(sharded, alone, strict=True):
        assert found.sharding.is_equivalent_to(sharding, 1)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_reductions_over_a_sharded_axis_only_reduce(name: str) -> None:
    sharding = jax.sharding.NamedSharding(mesh(), P("batch"))
    x = jax.device_put(jnp.ones((2 * DEVICES, 3)), sharding)
    op = OPS[name].function
    assert collectives(lambda x: op(x, 0), x) == {"all-reduce"}
    along = jax.jit(jax.grad(lambda x: op(x, 0).sum())).lower(x).compile()
    assert collectives_of(along) == {"all-reduce"}
    np.testing.assert_allclose(along(x), 1 / (2 * DEVICES))
    assert collectives(jax.grad(lambda x: op(x, 1).sum()), x) == set()


def test_collectives_can_be_seen() -> None:
    x = jax.device_put(jnp.ones(2 * DEVICES), jax.sharding.NamedSharding(mesh(), P("batch")))
    assert collectives(lambda x: x.sum(), x) == {"all-reduce"}


FLOAT8 = [f"float8_{kind}" for kind in ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")]


@pytest.mark.thorough
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_float8(op: Op) -> None:
    """Values and gradients at every tie are those of float32 at the numbers that the dtype holds, rounded to it."""

    def value_and_gradient(x: jax.Array, *rest: Any) -> tuple[jax.Array, jax.Array]:
        def value(x: jax.Array) -> jax.Array:
            result = jax.tree.leaves(op.function(x, *rest))[0]
            assert result.dtype == x.dtype
            return result.astype("float32").sum()

        return jax.value_and_grad(value)(x)

    def of_all(tie: tuple[Any, ...]) -> tuple[list[Any], tuple[jax.Array, jax.Array]]:
        """What each dtype gives, and what float32 gives at the numbers of each."""
        inexact = [name in op.arrays and is_inexact(v) for name, v in zip(op.signature.parameters, tie, strict=False)]
        given = [[rounded(v, dtype) if i else v for i, v in zip(inexact, tie, strict=True)] for dtype in FLOAT8]
        pairs = zip(FLOAT8, given, strict=True)
        ours = [value_and_gradient(jnp.asarray(x, dtype), *rest) for dtype, (x, *rest) in pairs]
        columns = [np.stack(c) if i else c[0] for i, c in zip(inexact, zip(*given, strict=True), strict=True)]
        axes = tuple(0 if i else None for i in inexact)
        return ours, jax.vmap(value_and_gradient, in_axes=axes)(*columns)

    # One program, since each takes longer to compile than to run.
    everything = jax.jit(lambda: [of_all(tie) for tie in op.tie_points])()
    for tie, (ours, in_float32) in zip(op.tie_points, everything, strict=True):
        for dtype, (value, gradient), *expected in zip(FLOAT8, ours, *in_float32, strict=True):
            assert gradient.dtype == dtype, tie
            if op.name == "norm" and np.isinf(value):
                value = expected[0]  # the sum of squares overflows, which leaves the gradient right
            for got, want in zip((value, gradient), expected, strict=True):
                np.testing.assert_array_equal(rounded(got, dtype), rounded(want, dtype), err_msg=f"{tie}, {dtype}")


def is_inexact(argument: Any) -> bool:
    return any(isinstance(leaf, float) for leaf in jax.tree.leaves(argument))


def rounded(argument: Any, dtype: str) -> Any:
    """The nearest numbers that ``dtype`` holds: a float for a float, a float32 array for all else."""
    nearest = np.asarray(argument).astype(dtype).astype(np.float32)
    return float(nearest) if isinstance(argument, float) else nearest


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_float8_without_zero(op: Op) -> None:
    x, *rest = op.tie_points[0]
    with pytest.raises(TypeError, match=f"{op.name}: x has the dtype float8_e8m0fnu, .* convert it first"):
        op.function(jnp.ones_like(jnp.asarray(x), "float8_e8m0fnu"), *rest)


@pytest.mark.usefixtures("strictest_settings")
@one_of_each_kind
def test_strict_modes(op: Op) -> None:
    x = ties_and_neighbours(op)
    _, *parameters = valid_operands(op)[0]
    forms: list[list[Any]] = [parameters]
    if op.name != "prelu":  # in which a vector of weights means channels
        forms.append([np.full(x.shape, p, np.float32) for p in parameters])

    def gradient(x: jax.Array, given: list[Any]) -> jax.Array:
        return jax.grad(lambda x: op.function(x, *given).sum())(x)

    jax.jit(lambda x, arrays: [gradient(x, given) for given in (parameters, *arrays)])(x, forms[1:])
    for given in forms:
        op.function(x, *given)


@one_of_each_kind
def test_x_broadcasts_against_the_parameters(op: Op) -> None:
    _, *parameters = valid_operands(op)[0]
    if not parameters or op.name == "prelu":
        return  # a vector of weights means channels
    arrays = [jnp.full(3, parameter) for parameter in parameters]

    @jax.jit
    def gradients(xs: list[jax.Array]) -> list[tuple[jax.Array, jax.Array]]:
        def of(x: jax.Array, parameters: list[Any]) -> jax.Array:
            return jax.grad(lambda x: op.function(x, *parameters).sum())(x)

        return [(of(x, arrays), of(x, parameters)) for x in xs]

    for beside_arrays, alone in gradients([jnp.array(x) for x in (-0.25, [-0.25], [[-0.25], [0.25]])]):
        np.testing.assert_allclose(beside_arrays, 3 * alone, rtol=1e-6)
