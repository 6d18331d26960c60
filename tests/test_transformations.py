"""Every op under every transformation of JAX, with the inactive operands staying inactive, sharded or not."""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from elementwise import ELEMENTWISE, is_curved, valid_operands
from jax.sharding import PartitionSpec as P

import jaxclamp
from jaxclamp import OPS, TIES, Op

DEVICES = 8


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((DEVICES,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))


every_op = pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)


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


WRAPPERS = (
    jax.jit,
    jax.checkpoint,
    jax.vmap,
    through_nested_vmap,
    through_scan,
    through_cond,
    through_switch,
    through_shard_map,
    lambda f: jax.jit(jax.checkpoint(through_scan(jax.checkpoint(f)))),
)


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda w: getattr(w, "__name__", "wrapper"))
@every_op
def test_gradient_is_the_same_through(op: Op, wrapper: Callable[..., Any]) -> None:
    f, x = of_x(op), ties_and_neighbours(op)
    plain = jax.grad(lambda x: f(x).sum())(x)
    np.testing.assert_allclose(jax.grad(lambda x: wrapper(f)(x).sum())(x), plain, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(jax.jvp(wrapper(f), (x,), (jnp.ones_like(x),))[1], plain, rtol=1e-6, atol=1e-7)


@every_op
def test_forward_mode_through_while(op: Op) -> None:
    f, x = of_x(op), ties_and_neighbours(op)

    def once(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda state: state[0] < 1, lambda state: (state[0] + 1, f(state[1])), (0, x))[1]

    one = jnp.ones_like(x)
    np.testing.assert_array_equal(jax.jvp(once, (x,), (one,))[1], jax.jvp(f, (x,), (one,))[1])


@every_op
def test_value_and_grad_vjp_linearize_and_jacobians_agree(op: Op) -> None:
    f, x = of_x(op), ties_and_neighbours(op)
    value, gradient = jax.value_and_grad(lambda x: f(x).sum())(x)
    np.testing.assert_allclose(value, f(x).sum())
    equal = functools.partial(np.testing.assert_allclose, rtol=1e-6)  # XLA rounds what it fuses in other ways
    equal(jax.vjp(f, x)[1](jnp.ones_like(x))[0], gradient)
    equal(jax.linearize(f, x)[1](jnp.ones_like(x)), gradient)
    equal(jax.jacfwd(f)(x), jax.jacrev(f)(x))
    equal(jnp.diag(jax.jacrev(f)(x)), gradient)


@every_op
def test_hessian(op: Op) -> None:
    """0 for piecewise linear ops; for the others the true second derivative off the kinks, and a number at them."""
    f, x = of_x(op), ties_and_neighbours(op)
    hessian = jnp.diag(jax.hessian(lambda x: f(x).sum())(x))
    if not is_curved(op):
        assert (hessian == 0).all()
        return
    assert jnp.isfinite(hessian).all()
    with jax.enable_x64(True):
        x64, step = jnp.asarray(x, "float64"), 1e-5
        slope = jax.vmap(jax.grad(lambda x: f(x[None])[0]))
        differences = (slope(x64 + step) - slope(x64 - step)) / (2 * step)
    off = ~jnp.isin(x, jnp.array([row[0] for row in valid_operands(op)]))
    np.testing.assert_allclose(hessian[off], differences[off], rtol=1e-3, atol=1e-5)


CONTEXTS = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "vmap": lambda f: lambda x, y: jax.vmap(f)(x[None], y[None])[0],
    "vmap of one": lambda f: lambda x, y: jax.vmap(f, in_axes=(0, None))(x[None], y)[0],
    "scan": lambda f: lambda x, y: jax.lax.scan(lambda c, _: (c, f(x, y)), 0, length=1)[1][0],
    "scan of constants": lambda f: lambda x, y: jax.lax.scan(lambda c, yi: (c, f(x, yi)), 0, y[None])[1][0],
    "cond": lambda f: lambda x, y: jax.lax.cond(x.sum() < 1e9, f, f, x, y),
}


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS.keys())
@pytest.mark.parametrize("op", [op for op in ELEMENTWISE if op.family == "selection" and len(op.tie_points[0]) == 2])
def test_constant_operands_stay_inactive(op: Op, context: Callable[..., Any]) -> None:
    """0 and not 1/2 at a tie, although y is an array that passes through the transformation as x does."""
    x = y = jnp.full(3, 2.0)
    assert (jax.grad(lambda x: context(op.function)(x, y).sum())(x) == 0).all()
    both = jax.grad(lambda x, y: context(op.function)(x, y).sum(), argnums=(0, 1))(x, y)
    assert all((gradient == 0.5).all() for gradient in both)


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


@pytest.mark.parametrize(("name", "ties"), [(name, ties) for name in SHARES for ties in TIES])
def test_conventions(name: str, ties: str) -> None:
    point, shares = SHARES[name]
    function = functools.partial(OPS[name].function, ties=ties)
    np.testing.assert_allclose(jax.grad(function, argnums=tuple(range(len(point))))(*point), shares[ties])
    for index, share in enumerate(shares[ties]):
        alone = jax.grad(function, argnums=index)(*point)
        np.testing.assert_allclose(alone, 0 if ties == "min_norm" else share)


@pytest.mark.parametrize("name", ["relu", "relu6"])
def test_conventions_of_ops_with_bounds_built_in(name: str) -> None:
    slopes = [float(jax.grad(functools.partial(OPS[name].function, ties=ties))(0.0)) for ties in TIES]
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
    x = jnp.array([[3.0, 1.0], [3.0, 3.0]])
    np.testing.assert_allclose(jax.grad(lambda x: jaxclamp.amax(x, ties=ties))(x), expected)
    np.testing.assert_allclose(jax.grad(lambda x: -jaxclamp.amin(-x, (1, 0), ties=ties))(x), expected)
    # Without a tie there is nothing to share.
    assert jax.grad(lambda x: jaxclamp.amax(x, ties=ties))(jnp.array([1.0, 2.0])).tolist() == [0, 1]


COLLECTIVES = re.compile(r"\b(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)\b(?!-done)")


def collectives(function: Callable[..., Any], *arrays: jax.Array) -> set[str]:
    return set(COLLECTIVES.findall(jax.jit(function).lower(*arrays).compile().as_text()))


@every_op
def test_sharded_elementwise_ops_do_not_communicate(op: Op) -> None:
    sharding = jax.sharding.NamedSharding(mesh(), P("batch"))
    x = jax.device_put(jnp.linspace(-4, 4, 4 * DEVICES), sharding)
    f = of_x(op)
    assert collectives(f, x) == set()
    assert collectives(lambda x: jax.vjp(f, x)[1](x)[0], x) == set()
    gradient = jax.jit(lambda x: jax.vjp(f, x)[1](jnp.ones_like(x))[0])(x)
    assert gradient.sharding.is_equivalent_to(sharding, 1)
    alone = jax.grad(lambda x: f(x).sum())(jnp.asarray(np.asarray(x)))
    np.testing.assert_allclose(gradient, alone, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_reductions_over_a_sharded_axis_only_reduce(name: str) -> None:
    sharding = jax.sharding.NamedSharding(mesh(), P("batch"))
    x = jax.device_put(jnp.ones((2 * DEVICES, 3)), sharding)
    op = OPS[name].function
    assert collectives(lambda x: op(x, 0), x) == {"all-reduce"}
    assert collectives(jax.grad(lambda x: op(x, 0).sum()), x) == {"all-reduce"}
    assert collectives(jax.grad(lambda x: op(x, 1).sum()), x) == set()
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: op(x, 0).sum()))(x), 1 / (2 * DEVICES))


def test_collectives_can_be_seen() -> None:
    x = jax.device_put(jnp.ones(2 * DEVICES), jax.sharding.NamedSharding(mesh(), P("batch")))
    assert collectives(lambda x: x.sum(), x) == {"all-reduce"}


FLOAT8 = [f"float8_{kind}" for kind in ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")]


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_float8(op: Op) -> None:
    """Values and gradients at every tie are those of float32 at the numbers that the dtype holds, rounded to it."""

    def value_and_gradient(tie: tuple[Any, ...], dtype: str, as_dtype: str) -> list[jax.Array]:
        x, *rest = [rounded(v, dtype) if is_inexact(v) else v for v in tie]

        def value(x: jax.Array) -> jax.Array:
            result = jax.tree.leaves(op.function(x, *rest))[0]
            assert result.dtype == as_dtype
            return result.astype("float32").sum()

        pair = jax.value_and_grad(value)(jnp.asarray(x, as_dtype))
        assert pair[1].dtype == as_dtype
        return [rounded(part, dtype) for part in pair]

    @jax.jit  # one program, since each takes longer to compile than to run
    def everything() -> list[Any]:
        return [[value_and_gradient(t, d, as_d) for as_d in (d, "float32")] for t in op.tie_points for d in FLOAT8]

    for ours, expected in everything():
        for got, want in zip(ours, expected, strict=True):
            np.testing.assert_array_equal(got, want)


def is_inexact(argument: Any) -> bool:
    return any(isinstance(leaf, float) for leaf in jax.tree.leaves(argument))


def rounded(argument: Any, dtype: str) -> Any:
    if isinstance(argument, float):
        return float(np.asarray(argument).astype(dtype).astype(float))
    return jnp.asarray(argument).astype(dtype).astype("float32")


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_float8_without_zero(op: Op) -> None:
    x, *rest = op.tie_points[0]
    with pytest.raises(TypeError, match=f"{op.name}: x has the dtype float8_e8m0fnu, .* convert it first"):
        op.function(jnp.ones_like(jnp.asarray(x), "float8_e8m0fnu"), *rest)


@pytest.mark.usefixtures("strictest_settings")
@every_op
def test_strict_modes(op: Op) -> None:
    x = ties_and_neighbours(op)
    _, *parameters = valid_operands(op)[0]
    for given in (parameters, [jnp.full_like(x, p) for p in parameters]):
        if op.name == "prelu" and given is not parameters:
            continue  # a vector of weights means channels
        jax.jit(jax.grad(lambda x, given=given: op.function(x, *given).sum()))(x)
        op.function(x, *given)


@every_op
def test_x_broadcasts_against_the_parameters(op: Op) -> None:
    _, *parameters = valid_operands(op)[0]
    if not parameters or op.name == "prelu":
        return  # a vector of weights means channels
    arrays = [jnp.full(3, parameter) for parameter in parameters]
    for x in (jnp.asarray(-0.25), jnp.asarray([-0.25]), jnp.asarray([[-0.25], [0.25]])):
        gradient = jax.grad(lambda x: op.function(x, *arrays).sum())(x)
        alone = jax.grad(lambda x: op.function(x, *parameters).sum())(x)
        np.testing.assert_allclose(gradient, 3 * alone, rtol=1e-6)
