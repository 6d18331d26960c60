"""Functions of the sweep of JAX programs that need more than an expression, and the points at which choices tie."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas

Program = Callable[[jax.Array], Any]

POINT = [0.0, 1.0, -2.0, 1.0]
"""With a zero, and with two that are equal, on the bound of many of the programs."""
ZEROS, ONES, EQUAL = [0.0] * 4, [1.0] * 4, [1.0, 2.0, 2.0, 1.0]
GRID = [[0.0, 2.0, 2.0, 1.0], [2.0, -1.0, 2.0, 0.0], [0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, -1.0]]


def numbers(*size: int, start: float = -1.0, step: float = 0.375) -> jax.Array:
    """Weights that differ."""
    return (start + step * jnp.arange(math.prod(size), dtype=float)).reshape(size)


def rows(x: jax.Array) -> jax.Array:
    return x.reshape(2, -1)


def simplex(x: jax.Array) -> jax.Array:
    ordered = jnp.sort(x)[::-1]
    excess = jnp.cumsum(ordered) - 1
    count = jnp.sum(ordered * jnp.arange(1, x.size + 1) > excess)
    return jax.nn.relu(x - excess[count - 1] / count)


def l1_ball(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.abs(x).sum() <= 1, x, jnp.sign(x) * simplex(jnp.abs(x)))


def group_shrunk(x: jax.Array) -> jax.Array:
    size = jnp.linalg.norm(x)
    return x * jnp.where(size > math.sqrt(6), 1 - math.sqrt(6) / size, 0.0)


def stable_softmax(x: jax.Array) -> jax.Array:
    e = jnp.exp(x - x.max())
    return e / e.sum()


def stable_sigmoid(x: jax.Array) -> jax.Array:
    z = jnp.exp(-jnp.abs(x))
    return jnp.where(x >= 0, 1 / (1 + z), z / (1 + z))


# Functions with rules of their own.


@jax.custom_jvp
def relu_by_result(x: jax.Array) -> jax.Array:
    return jnp.maximum(x, 0.0)


@relu_by_result.defjvp
def _(primals: Any, tangents: Any) -> Any:
    y = relu_by_result(*primals)
    return y, jnp.where(y > 0, tangents[0], 0.0)


@jax.custom_jvp
def relu_by_operand(x: jax.Array) -> jax.Array:
    return jnp.maximum(x, 0.0)


@relu_by_operand.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return relu_by_operand(*primals), tangents[0] * (primals[0] > 0)


@jax.custom_jvp
def maximum_by_result(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.maximum(x, y)


@maximum_by_result.defjvp
def _(primals: Any, tangents: Any) -> Any:
    z = maximum_by_result(*primals)
    return z, jnp.where(z == primals[0], tangents[0], tangents[1])


@jax.custom_jvp
def largest_by_result(x: jax.Array) -> jax.Array:
    return jnp.max(x)


@largest_by_result.defjvp
def _(primals: Any, tangents: Any) -> Any:
    z = largest_by_result(*primals)
    ties = primals[0] == z
    return z, jnp.sum(jnp.where(ties, tangents[0], 0.0)) / jnp.sum(ties)


@jax.custom_jvp
def safe_norm(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(x * x))


@safe_norm.defjvp
def _(primals: Any, tangents: Any) -> Any:
    size = safe_norm(*primals)
    return size, jnp.sum(primals[0] * tangents[0]) / jnp.where(size > 0, size, 1.0)


@jax.custom_jvp
def contact(x: jax.Array) -> jax.Array:
    """The force of a spring that pushes and does not pull."""
    return jnp.where(x < 0, -4.0 * x, 0.0)


contact.defjvp(lambda x, v: (contact(*x), jnp.where(contact(*x) > 0, -4.0 * v[0], 0.0)))


@jax.custom_jvp
def branch_in_rule(x: jax.Array) -> jax.Array:
    return jnp.maximum(x, 0.0)


@branch_in_rule.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return branch_in_rule(*primals), lax.cond(primals[0] > 0, lambda v: v, lambda v: 0 * v, *tangents)


@jax.custom_vjp
def relu_with_vjp(x: jax.Array) -> jax.Array:
    return jnp.maximum(x, 0.0)


relu_with_vjp.defvjp(lambda x: (relu_with_vjp(x), x), lambda x, cotangent: (jnp.where(x > 0, cotangent, 0.0),))


@jax.custom_vjp
def abs_with_vjp(x: jax.Array) -> jax.Array:
    return jnp.abs(x)


abs_with_vjp.defvjp(lambda x: (jnp.abs(x), jnp.sign(x)), lambda sign, cotangent: (sign * cotangent,))


@jax.custom_vjp
def clipped_gradient(x: jax.Array) -> jax.Array:
    return x


clipped_gradient.defvjp(lambda x: (x, None), lambda _, cotangent: (jnp.clip(cotangent, -1.0, 1.0),))


@jax.custom_vjp
def rounded(x: jax.Array) -> jax.Array:
    return jnp.round(x)


rounded.defvjp(lambda x: (rounded(x), None), lambda _, cotangent: (cotangent,))


@jax.custom_vjp
def clipped_in_vjp(x: jax.Array) -> jax.Array:
    return jnp.round(jnp.clip(x, 0.0, 1.0))


clipped_in_vjp.defvjp(
    lambda x: (clipped_in_vjp(x), x), lambda x, cotangent: (jnp.where((x >= 0) & (x <= 1), cotangent, 0.0),)
)


@jax.custom_jvp
def on_the_host(x: jax.Array) -> jax.Array:
    return jax.pure_callback(np.abs, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")


@on_the_host.defjvp
def _(primals: Any, tangents: Any) -> Any:
    y = on_the_host(*primals)
    return y, jnp.where(y == primals[0], tangents[0], -tangents[0])


@jax.custom_batching.custom_vmap
def batched_abs(x: jax.Array) -> jax.Array:
    return jnp.abs(x)


@batched_abs.def_vmap
def _(size: int, batched: Any, x: jax.Array) -> Any:
    return jnp.abs(x), True


def in_a_kernel(x: jax.Array) -> Any:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.maximum(x_ref[...], 0.0)

    return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


# Loops.


def spring(x: jax.Array) -> jax.Array:
    """Masses that touch: forces while they overlap, in a few steps of time."""

    def step(state: Any, _: None) -> Any:
        position, velocity = state
        velocity = velocity + 0.1 * (jnp.where(position < 0, -4.0 * position, 0.0) - 1)
        return (position + 0.1 * velocity, velocity), None

    return lax.scan(step, (x, jnp.zeros_like(x)), None, 3)[0][0]


def running_maximum(x: jax.Array) -> jax.Array:
    def step(best: jax.Array, a: jax.Array) -> Any:
        best = jnp.where(a > best, a, best)
        return best, best

    return lax.scan(step, x[0], x)[1]


def with_loop_state(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 3, lambda i, y: jnp.maximum(y, jnp.roll(y, 1)) + 0.1 * x, x)


def until_settled(x: jax.Array) -> jax.Array:
    """A loop whose number of steps is chosen by the values; no gradient in reverse mode, so of fixed length."""

    def step(y: jax.Array, _: None) -> Any:
        return jnp.where(y > 1, y - 0.5 * (y - 1), y), None

    return lax.scan(step, x, None, 4)[0]


def while_in_forward_mode(x: jax.Array) -> jax.Array:
    return jax.jvp(lambda y: lax.while_loop(lambda y: y.sum() > 2, lambda y: y / 2, y), (x,), (x,))[0]


def with_a_break(x: jax.Array) -> jax.Array:
    """A sum up to the first element that is not above the mean of the others, in a scan with a flag."""
    ordered = jnp.sort(x)[::-1]

    def step(state: Any, k: jax.Array) -> Any:
        best, is_open = state
        new = (jnp.sum(jnp.where(jnp.arange(4) <= k, ordered, 0.0)) - 1) / (k + 1)
        is_open = is_open & (ordered[k] > best - 1)
        return (jnp.where(is_open, new, best), is_open), None

    return lax.scan(step, (ordered[0], jnp.asarray(True)), jnp.arange(4))[0][0]


def bellman_ford(x: jax.Array) -> jax.Array:
    lengths = jnp.abs(x) + 1
    first = jnp.stack([0.0 * lengths[0], lengths[0], lengths[1], lengths[2]])
    return lax.fori_loop(0, 3, lambda _, d: jnp.minimum(d, jnp.roll(d, 1) + lengths), first)


def time_warping(x: jax.Array) -> jax.Array:
    cost = jnp.abs(x[:, None] - jnp.array([1.0, 0.0, 1.0]))
    table = [[cost[0, 0] + 9] * 4 for _ in range(5)]
    table[0][0] = cost[0, 0] * 0
    for i, j in itertools.product(range(4), range(3)):
        table[i + 1][j + 1] = cost[i, j] + jnp.minimum(table[i][j], jnp.minimum(table[i + 1][j], table[i][j + 1]))
    return table[4][3]


def viterbi(x: jax.Array) -> jax.Array:
    def step(score: jax.Array, _: None) -> Any:
        return (score[:, None] - jnp.eye(4)).max(0) + x, None

    return lax.scan(step, x, None, 3)[0].max()


def bisected(x: jax.Array) -> jax.Array:
    """The bound that leaves a sum of 1, by bisection and a step of Newton's method."""

    def step(_: int, bounds: Any) -> Any:
        low, high = bounds
        middle = (low + high) / 2
        is_large = jax.nn.relu(x - middle).sum() > 1
        return jnp.where(is_large, middle, low), jnp.where(is_large, high, middle)

    _low, high = lax.stop_gradient(lax.fori_loop(0, 40, step, (x.min() - 1, x.max())))
    active = x > high
    return (x - (jnp.sum(x * active) - 1) / active.sum()) * active


def conjugate_gradient(x: jax.Array) -> Any:
    return jax.scipy.sparse.linalg.cg(lambda y: (jnp.abs(x) + 2) * y + 0.25 * y.sum(), jnp.ones_like(x), tol=1e-13)[0]


def custom_root(x: jax.Array) -> Any:
    """The root of y + relu(y) = x, with the derivative of `jax.lax.custom_root`."""

    def solve(function: Any, y: jax.Array) -> Any:
        for _ in range(4):
            y = y - function(y) / (1 + (y > 0))
        return y

    return lax.custom_root(
        lambda y: y + jax.nn.relu(y) - x, jnp.zeros_like(x), solve, lambda g, y: y / g(jnp.ones_like(y))
    )


def rnn(x: jax.Array) -> jax.Array:
    w = jnp.array([1.0, -1.0])

    def step(state: jax.Array, a: jax.Array) -> Any:
        state = jax.nn.relu(w * a + state[::-1])
        return state, state

    return lax.scan(step, jnp.zeros(2), x)[1]


def sorting_network(x: jax.Array) -> jax.Array:
    a = list(x)
    for i, j in itertools.combinations(range(4), 2):
        a[i], a[j] = jnp.minimum(a[i], a[j]), jnp.maximum(a[i], a[j])
    return jnp.stack(a)


# Tables and quantisers.


def table_at_floor(x: jax.Array) -> jax.Array:
    table = jnp.array([0.0, 1.0, -1.0, 2.0, 0.5, 0.25, 3.0])
    left = jnp.floor(x)
    place = left.astype(int) + 3
    return table[place] + (x - left) * (table[place + 1] - table[place])


def table_at_integer(x: jax.Array) -> jax.Array:
    table = jnp.array([0.0, 1.0, -1.0, 2.0, 0.5])
    y = jnp.abs(x)
    place = y.astype(int)
    return table[place] + (y - place) * (table[place + 1] - table[place])


def table_at_searchsorted(x: jax.Array) -> jax.Array:
    knots, table = jnp.array([-3.0, -2.0, 0.0, 1.0, 4.0]), jnp.array([0.0, 1.0, -1.0, 2.0, 0.5])
    place = jnp.searchsorted(knots, x, side="right") - 1
    return table[place] + (x - knots[place]) * (table[place + 1] - table[place]) / (knots[place + 1] - knots[place])


def table_at_digitize(x: jax.Array) -> jax.Array:
    slopes, offsets = jnp.array([-1.0, 0.0, 2.0, 1.0]), jnp.array([-1.0, 0.0, 0.0, 1.0])
    place = jnp.digitize(x, jnp.array([-1.0, 0.0, 1.0]))
    return slopes[place] * x + offsets[place]


def table_at_stopped(x: jax.Array) -> jax.Array:
    table = jnp.array([0.0, 1.0, -1.0, 2.0, 0.5, 0.25, 3.0])
    left = jnp.floor(lax.stop_gradient(x))
    place = left.astype(int) + 3
    return table[place] + (x - left) * (table[place + 1] - table[place])


def straight_through(x: jax.Array) -> jax.Array:
    q = jnp.clip(x / 0.5, -4, 2)
    return (q + lax.stop_gradient(jnp.round(q) - q)) * 0.5


def learned_step(x: jax.Array) -> jax.Array:
    """LSQ: the last entry of ``x`` is the step."""
    step = x[3]
    q = jnp.clip(x[:3] / step, -2, 1)
    return (q + lax.stop_gradient(jnp.round(q) - q)) * step


def binarised(x: jax.Array) -> jax.Array:
    y = jax.nn.hard_tanh(x)
    return y + lax.stop_gradient(jnp.where(x >= 0, 1.0, -1.0) - y)


# Attention and networks.


def attention(x: jax.Array) -> jax.Array:
    q, k = x[:, None] * numbers(3), x[:, None] * numbers(3, start=0.5)
    return jax.nn.relu(q @ k.T) @ k


def hard_attention(x: jax.Array) -> jax.Array:
    values, index = lax.top_k(-jnp.abs(x[:, None] - x), 3)
    return (jax.nn.softmax(values) * x[index]).sum(1)


def attention_of_relu(x: jax.Array) -> jax.Array:
    q = jax.nn.relu(x)[:, None]
    return jax.nn.softmax(q @ (q + 1).T) @ q


def flax_network(x: jax.Array) -> Any:
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = nn.relu(nn.Conv(2, (3, 3), use_bias=False)(x.reshape(1, 4, 4, 1)))
            return nn.Dense(2)(nn.max_pool(x, (2, 2), (2, 2)).reshape(-1))

    network = Network()
    shapes = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((4, 4)))
    return network.apply(jax.tree.map(lambda s: numbers(*s.shape, step=0.25), shapes), x)


def dense(x: jax.Array) -> jax.Array:
    return jax.nn.relu(jax.nn.relu(x @ numbers(4, 4)) @ numbers(4, 2))


def equinox_network(x: jax.Array) -> Any:
    return jax.nn.relu6(eqx.nn.MaxPool1d(2, 1)(eqx.nn.PReLU(0.25)(x)[None]))


def clipped_by_norm(x: jax.Array) -> jax.Array:
    return x * jnp.minimum(1.0, math.sqrt(6) / jnp.linalg.norm(x))


def median_filter(x: jax.Array) -> jax.Array:
    padded = jnp.pad(x, 1, mode="edge")
    return jnp.median(jnp.stack([padded[:-2], padded[1:-1], padded[2:]]), 0)


def pool(x: jax.Array) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID")


def in_a_map(x: jax.Array) -> Any:
    return lax.map(lambda row: row.max(), rows(x))
