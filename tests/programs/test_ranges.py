"""Which programs may have a slope that is infinite, and what is known of their numbers."""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend.core import jaxpr_as_fun

import jaxclamp
from jaxclamp._programs import ranges
from jaxclamp._programs.ranges import Range, has_slopes_without_bound

Function = Callable[..., Any]

X = jnp.arange(12.0).reshape(3, 4)
LABELS = jnp.zeros(3, int)


def layer(module: nn.Module) -> Function:
    variables = module.init(jax.random.key(0), X)
    return lambda x: module.apply(variables, x, mutable=["batch_stats"])[0]


def attention(x: jax.Array) -> jax.Array:
    heads = x.reshape(1, 3, 2, 2)
    return jax.nn.dot_product_attention(heads, heads, heads)  # of a softmax under vmap, whose axes are transposed


def of_square(function: Function) -> Function:
    return lambda x: function(x[:, :3])


def rotated(x: jax.Array) -> jax.Array:
    return x * jnp.sin(jnp.arange(4) / 10_000 ** (jnp.arange(4) / 4))


MESH = jax.make_mesh((1,), ("i",), (jax.sharding.AxisType.Auto,))


@jax.custom_jvp
def root(x: jax.Array) -> jax.Array:
    return jnp.sqrt(x)


root.defjvps(lambda tangent, value, x: tangent / (2 * value))

BOUNDED: dict[str, Function] = {
    "softmax": jax.nn.softmax,
    "softmax along the first axis": lambda x: jax.nn.softmax(x, 0),
    "softmax of all": lambda x: jax.nn.softmax(x, (0, 1)),
    "softmax, masked by a number": lambda x: jax.nn.softmax(jnp.where(x > 0, x, jnp.finfo(x.dtype).min)),
    "softmax, batched": jax.vmap(jax.nn.softmax, 1),
    "log_softmax": jax.nn.log_softmax,
    "logsumexp": lambda x: jax.nn.logsumexp(x, 1),
    "cross entropy": lambda x: optax.softmax_cross_entropy_with_integer_labels(x, LABELS).mean(),
    "binary cross entropy": lambda x: optax.sigmoid_binary_cross_entropy(x, jnp.ones_like(x)).mean(),
    "attention": attention,
    "positions": rotated,
    "powers of positions": lambda x: x / 10_000 ** (jnp.arange(4) / 4) * jnp.exp(-jnp.log(10_000.0) * jnp.arange(4)),
    "random numbers": lambda x: x * jax.random.normal(jax.random.key(0), x.shape),
    "sum of segments": lambda x: jax.ops.segment_sum(x, LABELS, 3) @ X.T,
    "product with a complex number": lambda x: (x * 2j).imag,
    "of 8 bits": lambda x: jnp.tanh(x.astype(jnp.float8_e4m3fn).astype(float)),
    "exponential of whole numbers": lambda x: jnp.exp(x.astype(int).astype(float)),
    "layer norm": layer(nn.LayerNorm()),
    "batch norm": layer(nn.BatchNorm(use_running_average=False)),
    "group norm": layer(nn.GroupNorm(2)),
    "RMS norm": lambda x: x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6),
    "root of a variance and a number": lambda x: x / jnp.sqrt(jnp.var(x, 0) + 1e-5),
    "gelu": jax.nn.gelu,
    "softplus": jax.nn.softplus,
    "at least 1": lambda x: x / jnp.maximum(x.sum(), 1.0),
    "remainders": lambda x: x % 2.0 + x % jnp.maximum(x.T[0, 0], 1.0),
    "clipped": lambda x: jnp.exp(jnp.clip(x, -5.0, 5.0)) + jnp.log(jnp.clip(x, 0.1, None)),
    "in a loop": lambda x: lax.scan(lambda carry, row: (jax.nn.softmax(carry + row), carry), x[0], x),
    "with a constant": lambda x: jax.nn.softmax(x + X),
    "in a branch": lambda x: lax.cond(x[0, 0] > 0, jax.nn.softmax, jax.nn.log_softmax, x),
    "in a checkpoint": jax.checkpoint(jax.nn.softmax),
    "on devices": jax.shard_map(jax.nn.softmax, mesh=MESH, in_specs=jax.P("i"), out_specs=jax.P("i")),
}
UNBOUNDED: dict[str, Function] = {
    "root": jnp.sqrt,
    "norm": jnp.linalg.norm,
    "deviation": jnp.std,
    "inverse root of a variance": lambda x: lax.rsqrt(jnp.var(x)),
    "quotient": lambda x: x / x.sum(),
    "remainder": lambda x: lax.rem(jnp.ones_like(x), x),
    "exponential": jnp.exp,
    "logarithm of a square": lambda x: jnp.log(x * x),
    "logarithm of a softmax": lambda x: jnp.log(jax.nn.softmax(x)),
    "softmax, masked by minus infinity": lambda x: jax.nn.softmax(jnp.where(x > 0, x, -jnp.inf)),
    "softmax, masked by a constant": (lambda mask: lambda x: jax.nn.softmax(x + mask))(jnp.full((3, 4), -jnp.inf)),
    "softmax of some": lambda x: jax.nn.softmax(x, where=x > 0),
    "maximum along the other axis": of_square(lambda x: jnp.exp(x - x.max(1))),
    "maximum, transposed": of_square(lambda x: jnp.exp(x - x.max(1, keepdims=True).T)),
    "exponential of a sum": lambda x: jnp.exp(jnp.clip(x, 0.0, 10.0).sum()),
    "quotient by 0 where a number is infinite": lambda x: (
        x / jnp.where(jnp.isfinite(jnp.where(x > 0, x, -jnp.inf)), 1.0, 0.0)
    ),
    "maximum of another array": lambda x: jnp.exp(2 * x - x.max()),
    "sum along the other axis": lambda x: 1 / jnp.exp(x - x.max(1, keepdims=True)).sum(0),
    "product with an inverse of a whole number": lambda x: x * (1.0 / LABELS[:, None]),
    "product with an inverse root of a count": lambda x: x * lax.rsqrt((x > 0).sum().astype(float)),
    "product of matrices with a logarithm": lambda x: x @ jnp.log(jnp.arange(4.0)),
    "product with what stands still": lambda x: x * (1 / lax.stop_gradient(x)),
    "epsilon that is 0 in float16": lambda x: x / (x * x + 1e-9).astype(jnp.float16),
    "epsilon that rounding takes": lambda x: jnp.log(1 + 1e-9 - jnp.tanh(x)),
    "whole numbers that wrap around": lambda x: x.sum() / (1.0 - lax.neg(jnp.arange(256, dtype=jnp.uint8))),
    "difference of infinities": lambda x: jnp.sqrt(jnp.where(x > 0, (x + jnp.inf) * -1, 1.0)),
    "comparison of NaN": lambda x: x / jnp.where(jnp.tanh(LABELS / LABELS)[:, None] + 2 > 0, 1.0, 0.0),
    "logarithm of NaN": lambda x: jnp.log(jnp.maximum(x + (LABELS / LABELS)[:, None], 1.0)),
    "maximum that is rounded": lambda x: jnp.exp(x.T.astype(int) - x.max()),
    "part of a row": lambda x: (
        lambda e: jax.shard_map(lambda e: e / e.sum(), mesh=MESH, in_specs=jax.P("i"), out_specs=jax.P("i"))(e)
    )(jnp.exp(x - x.max())),
    "in float16": lambda x: lax.rsqrt((x.astype(jnp.float16) ** 2).mean() + 1e-5),
    "root of a complex number": lambda x: jnp.abs(jnp.sqrt(x + 0j)),
    "complex square": lambda x: lax.rsqrt(1 + lax.convert_element_type(lax.square(1j * x), jnp.float32)),
    "infinite in the second step": lambda x: lax.scan(
        lambda carry, row: (jnp.where(row > 0, carry, -jnp.inf), jax.nn.softmax(carry)), x[0], x
    ),
    "in a while": lambda x: lax.while_loop(lambda x: x.sum() > 9, jnp.sqrt, x),
    "in a custom_jvp": root,
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bounded(name: str) -> None:
    assert not has_slopes_without_bound(jax.make_jaxpr(BOUNDED[name])(X))


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("name", UNBOUNDED)
def test_without_bound(name: str) -> None:
    assert has_slopes_without_bound(jax.make_jaxpr(UNBOUNDED[name])(X))


@pytest.mark.parametrize(
    "inverse", [lambda n: 1.0 / n, lambda n: lax.rsqrt(n.astype(float)), jnp.log, lambda n: jnp.fmod(2.5, n)]
)
def test_a_slope_of_numbers_that_are_not_differentiated(inverse: Function) -> None:
    """It is infinite where nothing is counted, in the branch that is not taken."""

    def weighted(x: jax.Array, counts: jax.Array) -> jax.Array:
        return jnp.where(counts > 0, x * inverse(counts), 0.0).sum()

    gradient = jaxclamp.grad(weighted)(jnp.ones(3), jnp.array([0, 1, 4]))
    np.testing.assert_allclose(gradient, [0.0, *inverse(jnp.array([1, 4]))])


def test_a_reference_that_is_closed_over_is_not_read() -> None:
    """NumPy would take it for a sequence, which in JAX 0.12 has no end."""
    bound = jax.new_ref(jnp.zeros(2))
    gradient = jaxclamp.grad(lambda x: jnp.maximum(x, bound[...]).sum(), direction=jnp.array([1.0, -1.0]))
    assert gradient(jnp.zeros(2)).tolist() == [1, 0]


def test_no_second_pass_where_slopes_are_bounded() -> None:
    """Neither the time to compile it nor the memory."""

    def passes(function: Function) -> int:
        return str(jax.make_jaxpr(jaxclamp.grad(lambda x: function(x).sum()))(X)).count(" cond[")

    assert [passes(jax.nn.softmax), passes(lambda x: jnp.log(jax.nn.softmax(x)))] == [0, 2]


FINITE = (-30.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 30.0)
NUMBERS = st.sampled_from([-math.inf, *FINITE, math.inf])
ELEMENTWISE: dict[str, Function] = {
    **{"add": lax.add, "sub": lax.sub, "mul": lax.mul, "div": lax.div, "max": lax.max, "min": lax.min},
    **{"neg": lax.neg, "square": lax.square, "abs": lax.abs, "exp": lax.exp, "sqrt": lax.sqrt, "rsqrt": lax.rsqrt},
    **{"tanh": lax.tanh, "logistic": lax.logistic, "erf": lax.erf, "sin": lax.sin, "cos": lax.cos, "sign": lax.sign},
    **{"clamp": lax.clamp, "gt": lax.gt, "lt": lax.lt, "square of one": lambda x: lax.mul(x, x)},
    **{"cube": lambda x: lax.integer_pow(x, 3), "fourth power": lambda x: lax.integer_pow(x, 4)},
    **{"log": lax.log, "pow": lax.pow},
    "quotient of one": lambda x: lax.div(x, x),
    "sum": lambda x, y: jnp.sum(jnp.stack([x, y])),
    "largest": lambda x, y: jnp.max(jnp.stack([x, y])),
    "selected": lambda x, y, z: jnp.where(x > y, z, y),
    "softmax": lambda x, y: jax.nn.softmax(jnp.stack([x, y]))[0],
    "logsumexp": lambda x, y: jax.nn.logsumexp(jnp.stack([x, y])),
}
COUNTS = {"clamp": 3, "selected": 3, **dict.fromkeys(("sum", "largest", "softmax", "logsumexp"), 2)} | dict.fromkeys(
    ("pow", "add", "sub", "mul", "div", "max", "min", "gt", "lt"), 2
)


@pytest.mark.parametrize("name", ELEMENTWISE)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_numbers_lie_in_their_ranges(name: str, data: st.DataObject) -> None:
    """Of operands in ranges; a number that has no value is in none."""
    count = COUNTS.get(name, 1)
    operands, inputs = [], []
    for _ in range(count):
        low, high = sorted(data.draw(st.tuples(NUMBERS, NUMBERS)))
        within = [number for number in FINITE if low <= number <= high]
        assume(within)
        number = data.draw(st.sampled_from(within))
        operands.append(jnp.float32(number))
        inputs.append(Range(low, high))
    jaxpr = jax.make_jaxpr(ELEMENTWISE[name])(*operands)
    (value,) = jaxpr_as_fun(jaxpr)(*operands)
    _, (found,) = ranges._of_body(jaxpr, inputs)
    rounding = 1e-5 * (1 + abs(float(value))) if np.isfinite(value) else 0.0
    assert np.isnan(value) or found.low - rounding <= float(value) <= found.high + rounding, (inputs, operands, found)
