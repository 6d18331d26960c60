"""The steps of random programs: each by definition in NumPy, and as JAX spells it. Torch is in `steps_torch`.

A step takes arrays of the shape (..., 3, 4) and returns one. It is continuous and piecewise smooth, so that whatever is
composed of steps is so too. Constants are integers, so that ties are common and exact.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Spelling: TypeAlias = Callable[..., Any]
Draw: TypeAlias = Callable[[random.Random], Any]

SHAPE = (3, 4)


@dataclass(frozen=True)
class Kind:
    """A kind of step."""

    definition: Spelling
    """Of the arrays, and then of the constants."""
    jax: Sequence[Spelling]
    arrays: int = 1
    constants: Sequence[Draw] = ()
    is_linear: bool = False
    is_rounded: bool = False
    """Whether values at ties are rounded: behind it, only linear steps are drawn."""
    is_product: bool = False
    """Whether values grow fast: it is drawn once in a program."""


# Constants.


def _number(*numbers: float) -> Draw:
    return lambda choices: choices.choice(numbers)


def _array(shape: tuple[int, ...], most: int) -> Draw:
    return lambda choices: np.array([choices.randint(-most, most) for _ in range(np.prod(shape))], float).reshape(shape)


def _numbers(count: int, below: int) -> Draw:
    return lambda choices: tuple(choices.randrange(below) for _ in range(count))


def _either(*draws: Draw) -> Draw:
    return lambda choices: choices.choice(draws)(choices)


_AXIS = _number(-1, -2)
_BOUND = _either(_number(-2.0, -1.0, 0.0, 1.0, 2.0), _array(SHAPE, 2))
_SLOPE = _number(-1.0, 0.0, 0.5, 2.0)
_WINDOW = _number((1, 3), (3, 1), (3, 3))


# What takes more than an expression.


def _windows(x: Array, window: tuple[int, int]) -> Array:
    """The largest of each window, one around each element."""
    beside = [(size // 2, size // 2) for size in window]
    padded = np.pad(x, [(0, 0)] * (x.ndim - 2) + beside, constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(padded, window, (-2, -1)).max((-2, -1))  # type: ignore[no-any-return]


def _windows_in_jax(x: jax.Array, window: tuple[int, int]) -> jax.Array:
    ones = (1,) * (x.ndim - 2)
    return lax.reduce_window(x, -jnp.inf, lax.max, (*ones, *window), (1,) * x.ndim, "SAME")


def _scatter(x: Array, updates: Array, rows: Sequence[int]) -> Array:
    """Each row of ``updates`` is written to a row of ``x``, where the largest remains."""
    result = x.copy()
    for update, row in enumerate(rows):
        result[..., row, :] = np.maximum(result[..., row, :], updates[..., update, :])
    return result


def _segments(x: Array, columns: Sequence[int]) -> Array:
    """In the place of each element: the largest in its row of those whose column has the same number."""
    same = np.equal.outer(columns, columns)
    return np.where(same, x[..., None, :], -np.inf).max(-1)  # type: ignore[no-any-return]


def _segments_in_jax(x: jax.Array, columns: Sequence[int]) -> jax.Array:
    numbers = jnp.array(columns)
    largest = jax.ops.segment_max(jnp.moveaxis(x, -1, 0), numbers, 4)
    return jnp.moveaxis(largest[numbers], 0, -1)


def _branch(x: Array, above: float, below: float) -> Array:
    """All elements are moved by twice the first, or by another multiple where that is negative."""
    first = x[..., :1, :1]
    return x + np.where(first >= 0, above * first, below * first)


def _branch_in_jax(x: jax.Array, above: float, below: float) -> jax.Array:
    first = x[..., :1, :1]
    if x.ndim > 2:
        return x + jnp.where(first >= 0, above * first, below * first)
    return x + lax.cond(first[0, 0] >= 0, lambda a: above * a, lambda a: below * a, first)


def _switch_in_jax(x: jax.Array, above: float, below: float) -> jax.Array:
    first = x[..., :1, :1]
    if x.ndim > 2:
        return x + jnp.where(first < 0, below * first, above * first)
    return x + lax.switch((first[0, 0] >= 0).astype(int), [lambda a: below * a, lambda a: above * a], first)


def by_argsort(x: jax.Array, axis: int) -> jax.Array:
    return jnp.take_along_axis(x, jnp.argsort(x, axis), axis)


def _sorted_pair(x: jax.Array, axis: int) -> jax.Array:
    keys, carried = lax.sort((x, 2 * x), dimension=axis % x.ndim, num_keys=1)
    return carried - keys


def by_clamp(x: jax.Array, y: jax.Array, z: jax.Array) -> jax.Array:
    return lax.clamp(jnp.minimum(x, y), z, jnp.maximum(x, y))


def median(x: Any, y: Any, z: Any, xp: Any) -> Any:
    """By the maxima and minima of a framework."""
    return xp.maximum(xp.minimum(x, y), xp.minimum(xp.maximum(x, y), z))


KINDS: Mapping[str, Kind] = {
    # Linear, to make ties of others.
    "mix rows": Kind(
        lambda x, m: m @ x,
        [lambda x, m: jnp.asarray(m) @ x, lambda x, m: jnp.einsum("ij,...jk->...ik", m, x)],
        constants=[_array((3, 3), 1)],
        is_linear=True,
    ),
    "mix columns": Kind(
        lambda x, m: x @ m,
        [lambda x, m: x @ m, lambda x, m: jnp.tensordot(x, m, 1)],
        constants=[_array((4, 4), 1)],
        is_linear=True,
    ),
    "add": Kind(lambda x, y: x + y, [jnp.add], arrays=2, is_linear=True),
    "subtract": Kind(lambda x, y: x - y, [jnp.subtract], arrays=2, is_linear=True),
    "scale": Kind(
        lambda x, k: k * x,
        [lambda x, k: k * x],
        constants=[_number(-2.0, -1.0, 0.5, 2.0)],
        is_linear=True,
    ),
    "shift": Kind(lambda x, c: x + c, [jnp.add], constants=[_array(SHAPE, 2)], is_linear=True),
    "flip": Kind(
        lambda x, axis: np.flip(x, axis),
        [jnp.flip],
        constants=[_AXIS],
        is_linear=True,
    ),
    # Kinks.
    "relu": Kind(
        lambda x: np.maximum(x, 0),
        [
            jax.nn.relu,
            lambda x: jnp.maximum(x, 0.0),
            lambda x: jnp.where(x > 0, x, 0.0),
            lambda x: jnp.where(x >= 0, x, 0.0),
            lambda x: x * (x > 0),
            lambda x: jnp.maximum(x, 0.0) + jnp.minimum(x, 0.0) + jax.nn.relu(-x),
        ],
    ),
    "identity": Kind(
        lambda x: x,
        [
            lambda x: jax.nn.relu(x) - jax.nn.relu(-x),
            lambda x: jnp.clip(x, min=0.0) + jnp.clip(x, max=0.0),
            lambda x: jnp.where(x > 0, x, 0.0) + jnp.where(x >= 0, 0.0, x),
            lambda x: jnp.sign(x) * jnp.abs(x),
            lambda x: jnp.abs(x) - jnp.maximum(x, -x) + x,
            lambda x: jnp.floor(x) + jnp.mod(x, 1),
            lambda x: x.astype(int) + lax.rem(x, jnp.ones_like(x)),
        ],
    ),
    "triangle wave": Kind(
        lambda x: np.abs(np.mod(x, 2) - 1),
        [
            lambda x: jnp.abs(x - 2 * jnp.floor(x / 2) - 1),
            lambda x: jnp.abs(jnp.remainder(x, 2) - 1),
            lambda x: 1 - jnp.abs(x - 2 * jnp.round(x / 2)),
            lambda x: jnp.abs(lax.rem(jnp.abs(x), 2 * jnp.ones_like(x)) - 1),
        ],
    ),
    "abs": Kind(
        np.abs,
        [jnp.abs, lambda x: jnp.sign(x) * x, lambda x: jnp.maximum(x, -x), lambda x: jnp.where(x < 0, -x, x)],
    ),
    "relu6": Kind(
        lambda x: np.clip(x, 0, 6),
        [jax.nn.relu6, lambda x: jnp.clip(x, 0.0, 6.0), lambda x: jnp.where((x > 0) & (x < 6), x, 6.0 * (x >= 6))],
    ),
    "clamp": Kind(  # also with low > high, where high is the result
        lambda x, low, high: np.minimum(np.maximum(x, low), high),
        [
            jnp.clip,
            lambda x, low, high: lax.clamp(jnp.broadcast_to(low, x.shape), x, jnp.broadcast_to(high, x.shape)),
            lambda x, low, high: jnp.minimum(jnp.maximum(x, low), high),
        ],
        constants=[_BOUND, _BOUND],
    ),
    "leaky_relu": Kind(
        lambda x, slope: np.where(x >= 0, x, slope * x),
        [jax.nn.leaky_relu, lambda x, slope: jnp.where(x > 0, x, slope * x)],
        constants=[_SLOPE],
    ),
    "kink by hand": Kind(
        lambda x, above, below: np.where(x >= 0, above * x, below * x),
        [
            lambda x, above, below: jnp.where(x >= 0, above * x, below * x),
            lambda x, above, below: jnp.select([x < 0, x >= 0], [below * x, above * x]),
            lambda x, above, below: jnp.piecewise(x, [x > 0], [lambda a: above * a, lambda a: below * a]),
            lambda x, above, below: x * jnp.where(x <= 0, below, above),
        ],
        constants=[_SLOPE, _SLOPE],
    ),
    "branch": Kind(_branch, [_branch_in_jax, _switch_in_jax], constants=[_SLOPE, _SLOPE]),
    "hard_sigmoid": Kind(
        lambda x: np.clip(x + 3, 0, 6) / 6,
        [jax.nn.hard_sigmoid],
        is_rounded=True,
    ),
    "hard_swish": Kind(
        lambda x: x * np.clip(x + 3, 0, 6) / 6,
        [jax.nn.hard_swish],
        is_rounded=True,
        is_product=True,
    ),
    "root beyond 1": Kind(  # in the branch that is not taken, a slope that is infinite or NaN
        lambda x: np.where(x > 1, np.sqrt(np.maximum(x, 1)), x),
        [
            lambda x: jnp.where(x > 1, jnp.sqrt(x), x),
            lambda x: jnp.where(x >= 1, x**0.5, x),
            lambda x: jnp.where(x <= 1, x, jnp.exp(jnp.log(x) / 2)),
        ],
        is_rounded=True,
    ),
    # Choices between two and three.
    "maximum": Kind(
        np.maximum,
        [
            jnp.maximum,
            jnp.fmax,
            lambda x, y: jnp.where(x > y, x, y),
            lambda x, y: jnp.where(y >= x, y, x),
            lambda x, y: jnp.stack([x, y]).max(0),
        ],
        arrays=2,
    ),
    "minimum": Kind(
        np.minimum,
        [jnp.minimum, jnp.fmin, lambda x, y: jnp.where(x < y, x, y), lambda x, y: y - jax.nn.relu(y - x)],
        arrays=2,
    ),
    "median": Kind(
        lambda x, y, z: np.median([x, y, z], 0),
        [
            lambda x, y, z: median(x, y, z, jnp),
            by_clamp,
            lambda x, y, z: jnp.sort(jnp.stack([x, y, z]), 0)[1],
            lambda x, y, z: jnp.median(jnp.stack([x, y, z]), 0),
        ],
        arrays=3,
    ),
    # Along axes.
    "less the largest": Kind(
        lambda x, y, axis: y - x.max(axis, keepdims=True),
        [
            lambda x, y, axis: y - x.max(axis, keepdims=True),
            lambda x, y, axis: y - jnp.take_along_axis(x, x.argmax(axis, keepdims=True), axis),
            lambda x, y, axis: y - jnp.moveaxis(lax.top_k(jnp.moveaxis(x, axis, -1), 1)[0], -1, axis),
        ],
        arrays=2,
        constants=[_number(-1, -2)],
    ),
    "less the smallest": Kind(
        lambda x, y: y - x.min((-1, -2), keepdims=True),
        [
            lambda x, y: y - x.min((-1, -2), keepdims=True),
            lambda x, y: y + (-x).max(-2, keepdims=True).max(-1, keepdims=True),
            lambda x, y: (
                y
                - jnp.take_along_axis(
                    x.reshape(*x.shape[:-2], 12), x.reshape(*x.shape[:-2], 12).argmin(-1)[..., None], -1
                )[..., None]
            ),
        ],
        arrays=2,
    ),
    "less the norm": Kind(
        lambda x, y: y - np.abs(x).max(-1, keepdims=True),
        [
            lambda x, y: y - jnp.linalg.norm(x, jnp.inf, -1, keepdims=True),
            lambda x, y: y - jnp.abs(x).max(-1, keepdims=True),
        ],
        arrays=2,
    ),
    "less the length": Kind(
        lambda x, y: y - np.sqrt((x * x).sum(-1, keepdims=True)),
        [
            lambda x, y: y - jnp.linalg.norm(x, axis=-1, keepdims=True),
            lambda x, y: y - jnp.sqrt((x * x).sum(-1, keepdims=True)),
        ],
        arrays=2,
        is_rounded=True,
    ),
    "less the two largest": Kind(
        lambda x, y: y - np.sort(x, -1)[..., 2:].sum(-1, keepdims=True),
        [
            lambda x, y: y - lax.top_k(x, 2)[0].sum(-1, keepdims=True),
            lambda x, y: y - jnp.take_along_axis(x, lax.top_k(x, 2)[1], -1).sum(-1, keepdims=True),
        ],
        arrays=2,
    ),
    "sort": Kind(
        lambda x, axis: np.sort(x, axis),
        [
            jnp.sort,
            lambda x, axis: jnp.flip(jnp.sort(x, axis, descending=True), axis),
            by_argsort,
            _sorted_pair,
        ],
        constants=[_AXIS],
    ),
    "cumulative maximum": Kind(
        lambda x, axis: np.maximum.accumulate(x, axis),
        [
            lambda x, axis: lax.cummax(x, axis % x.ndim),
            lambda x, axis: lax.associative_scan(jnp.maximum, x, axis=axis),
            lambda x, axis: jnp.maximum.accumulate(x, axis),
        ],
        constants=[_AXIS],
    ),
    "cumulative minimum": Kind(
        lambda x, axis: np.flip(np.minimum.accumulate(np.flip(x, axis), axis), axis),
        [lambda x, axis: lax.cummin(x, axis % x.ndim, reverse=True)],
        constants=[_AXIS],
    ),
    "windows": Kind(
        _windows,
        [
            _windows_in_jax,
            lambda x, window: (
                -lax.reduce_window(-x, jnp.inf, lax.min, (1,) * (x.ndim - 2) + window, (1,) * x.ndim, "SAME")
            ),
        ],
        constants=[_WINDOW],
    ),
    "scatter": Kind(
        _scatter,
        [
            lambda x, y, rows: x.at[..., np.array(rows), :].max(y),
            lambda x, y, rows: -((-x).at[..., np.array(rows), :].min(-y)),
        ],
        arrays=2,
        constants=[_numbers(3, 3)],
    ),
    "segments": Kind(_segments, [_segments_in_jax], constants=[_numbers(4, 3)]),
    # Smooth.
    "product": Kind(lambda x, y: x * y, [jnp.multiply], arrays=2, is_product=True),
    "square": Kind(lambda x: x * x, [jnp.square, lambda x: x**2], is_product=True),
}
