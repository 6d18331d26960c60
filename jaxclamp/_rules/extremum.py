"""The rules of the reductions, whose value is one of the elements along some axes, of an array or of a mesh."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from jaxclamp._rules.conventions import Convention
from jaxclamp._rules.differentiate import Arrays, Tangents, differentiable


@dataclass(frozen=True, eq=False)
class Extremum:
    """The largest or smallest element along axes: a selection among elements, all of them active or none.

    Each of k tied elements gets 1/k (``min_norm`` and ``balanced``); ``inclusive`` gives all to the first along the
    axes in row-major order, ``exclusive`` shares it among the others. The code has a 1 for each element with a share.
    """

    compares_with_value: ClassVar[bool] = True

    name: str
    function: Callable[..., jax.Array]
    axes: tuple[int, ...]
    keepdims: bool
    convention: Convention
    operands: tuple[str, ...] = ("x",)

    def value(self, *primals: jax.Array) -> jax.Array:
        (x,) = primals
        return self.function(x, axis=self.axes, keepdims=self.keepdims)

    def code(self, primals: Arrays, active: Sequence[bool]) -> jax.Array:
        # As int8, since XLA on CPU would write an array of bools to memory and read it again.
        return sharing(self._tied(primals), self.axes, self.convention).astype(jnp.int8)

    def _tied(self, primals: Arrays) -> jax.Array:
        """Return which elements of x tie for the value."""
        (x,) = primals
        return ties_with(x, self.function(x, axis=self.axes, keepdims=True))

    def on_tie(self, primals: Arrays) -> jax.Array:
        return jnp.sum(self._tied(primals), self.axes, dtype=jnp.int32, keepdims=self.keepdims) > 1

    def linear(self, code: jax.Array, primals: Arrays, tangents: Tangents, like: jax.ShapeDtypeStruct) -> jax.Array:
        (tangent,) = tangents
        assert tangent is not None
        wide = widened(like.dtype)
        # Counted once more, since the reverse pass keeps the code alone. Divided before the sum, tangents near the
        # largest number stay finite.
        shares = jnp.sum(code, axis=self.axes, keepdims=True, dtype=jnp.int32).astype(wide)
        # Selected here and in all rules, not multiplied by the share: 0 times infinity is NaN.
        weighted = jnp.where(code == 1, tangent.astype(wide) / shares, jnp.zeros((), wide))
        return jnp.sum(weighted, axis=self.axes, keepdims=self.keepdims).astype(like.dtype)


@dataclass(frozen=True, eq=False)
class ExtremumFrom(Extremum):
    """The extremum of a number ``initial`` and of the elements at which the mask ``where`` is set.

    The number counts as one more element, behind the others. It may be inactive while they are active, or active alone:
    then a tie between the two gives 0, as in `Selection`. The elements along the axes become one line, in a last axis,
    with the number at its end; the code has the same shape. For x of shape (2, 3, 4), reduced over axes 0 and 2, the
    lines have the shape (3, 2 * 4 + 1).
    """

    operands: tuple[str, ...] = ("x", "initial", "where")

    def value(self, *primals: jax.Array) -> jax.Array:
        return self._reshaped(self.function(self._lines(primals), axis=-1))

    def _reshaped(self, reduced: jax.Array) -> jax.Array:
        """Return what is left of the lines, in the shape of the result."""
        return jnp.expand_dims(reduced, self.axes) if self.keepdims else reduced

    def _lines(self, primals: Arrays) -> jax.Array:
        """Return the lines of x and the number; elements that the mask leaves out become a number that never wins."""
        x, initial, where = primals
        never = lowest(x.dtype) if self.function is jnp.max else highest(x.dtype)
        # In the dtype of x, as `jnp.max` takes it.
        return self._with_last(jnp.where(where, x, never), initial.astype(x.dtype))

    def _with_last(self, elements: jax.Array, last: jax.Array) -> jax.Array:
        """Return the elements along the axes as one line in the last axis, with the scalar ``last`` at its end."""
        lines = flattened(elements, self.axes)
        return jnp.concatenate([lines, jnp.broadcast_to(last, (*lines.shape[:-1], 1))], axis=-1)

    def code(self, primals: Arrays, active: Sequence[bool]) -> jax.Array:
        tied = self._tied(primals)
        # If x alone is active, a line on which the number ties gets nothing; if the number alone is, one on which an
        # element of x ties.
        if self.convention == "min_norm" and not (active[0] and active[1]):
            inactive = tied[..., -1:] if active[0] else tied[..., :-1]
            tied &= ~jnp.any(inactive, axis=-1, keepdims=True)
        return sharing(tied, (-1,), self.convention).astype(jnp.int8)

    def _tied(self, primals: Arrays) -> jax.Array:
        """Return which elements of the lines tie for the value; those that the mask leaves out do not."""
        x, _, where = primals
        lines = self._lines(primals)
        takes_part = self._with_last(jnp.broadcast_to(where, x.shape), jnp.bool(True))
        return ties_with(lines, self.function(lines, axis=-1, keepdims=True)) & takes_part

    def on_tie(self, primals: Arrays) -> jax.Array:
        return self._reshaped(jnp.sum(self._tied(primals), -1, dtype=jnp.int32) > 1)

    def linear(self, code: jax.Array, primals: Arrays, tangents: Tangents, like: jax.ShapeDtypeStruct) -> jax.Array:
        wide = widened(like.dtype)
        of_x, of_initial = (
            jnp.zeros(primal.shape, wide) if tangent is None else tangent.astype(wide)
            for primal, tangent in zip(primals[:2], tangents[:2], strict=True)
        )
        # A line has no share where the tied operand is inactive.
        shares = jnp.maximum(jnp.sum(code, axis=-1, keepdims=True, dtype=jnp.int32), 1).astype(wide)
        weighted = jnp.where(code == 1, self._with_last(of_x, of_initial) / shares, jnp.zeros((), wide))
        return self._reshaped(jnp.sum(weighted, axis=-1)).astype(like.dtype)


@lru_cache(maxsize=1024)
def extremum(
    name: str,
    function: Callable[..., jax.Array],
    axes: tuple[int, ...],
    keepdims: bool,
    convention: Convention,
    has_initial: bool = False,
) -> Extremum:
    """Return the rule; the same object each time, since `jax.jit` compiles for each object."""
    return (ExtremumFrom if has_initial else Extremum)(name, function, axes, keepdims, convention)


@dataclass(frozen=True, eq=False)
class ExtremumOfDevices:
    """The largest or smallest of what the devices along mapped axes hold, element by element: `jax.lax.pmax`, ``pmin``.

    The devices that tie for the value share as the elements of `Extremum` do; the first is that of the lowest number.
    The code is a device's own: 1 where it has a share.
    """

    compares_with_value: ClassVar[bool] = True

    name: str
    function: Callable[..., jax.Array]
    over: Mapping[str, Any]
    """The names of the axes, and the groups into which they are divided, as `jax.lax.psum` takes them."""
    convention: Convention
    operands: tuple[str, ...] = ("x",)

    def value(self, *primals: jax.Array) -> jax.Array:
        (x,) = primals
        return self.function(x, **self.over)

    def code(self, primals: Arrays, active: Sequence[bool]) -> jax.Array:
        tied = self._tied(primals)
        if self.convention in ("inclusive", "exclusive"):
            first = tied & is_first_device(tied, self.over)
            alone = self._count(tied) == 1  # there is no other device to take what the first does not
            tied = first if self.convention == "inclusive" else jnp.where(alone, first, tied & ~first)
        return tied.astype(jnp.int8)

    def _tied(self, primals: Arrays) -> jax.Array:
        (x,) = primals
        # Not by `self.function`, of which JAX has no derivative: `jaxclamp.grad` decides the comparison by how both
        # sides move, and the value would stand still.
        return ties_with_devices(x, differentiable(self, x))

    def _count(self, flags: jax.Array) -> jax.Array:
        """Return on how many devices the flag is set."""
        return lax.psum(flags.astype(jnp.int32), **self.over)

    def on_tie(self, primals: Arrays) -> jax.Array:
        return self._count(self._tied(primals)) > 1

    def linear(self, code: jax.Array, primals: Arrays, tangents: Tangents, like: jax.ShapeDtypeStruct) -> jax.Array:
        (tangent,) = tangents
        assert tangent is not None
        wide = widened(like.dtype)
        weighted = jnp.where(code == 1, tangent.astype(wide) / self._count(code).astype(wide), jnp.zeros((), wide))
        return lax.psum(weighted, **self.over).astype(like.dtype)


@lru_cache(maxsize=1024)
def extremum_of_devices(
    name: str, function: Callable[..., jax.Array], axis_name: Any, groups: Any, convention: Convention
) -> ExtremumOfDevices:
    """Return the rule; the same object each time, as `extremum` does."""
    return ExtremumOfDevices(name, function, {"axis_name": axis_name, "axis_index_groups": groups}, convention)


def is_first_device(flags: jax.Array, over: Mapping[str, Any]) -> jax.Array:
    """Return, element by element, whether this device is the first along the axes on which the flag is set."""
    number = lax.axis_index(over["axis_name"])
    beyond = jnp.iinfo(jnp.int32).max
    return number == lax.pmin(jnp.where(flags, number, beyond), **over)


def flattened(x: jax.Array, axes: Sequence[int]) -> jax.Array:
    """Return ``x`` with one axis, the last, in the place of ``axes``: of shape (2, 3, 4), with axes 0 and 2, (3, 8)."""
    batch_axes = [axis for axis in range(x.ndim) if axis not in axes]
    batch_shape = [x.shape[axis] for axis in batch_axes]
    return x.transpose(*batch_axes, *axes).reshape(*batch_shape, math.prod(x.shape[axis] for axis in axes))


def sharing(tied: jax.Array, axes: tuple[int, ...], convention: Convention) -> jax.Array:
    """Return which of the tied elements along ``axes`` share the gradient.

    >>> sharing(jnp.array([True, False, True, True]), (0,), "exclusive").tolist()
    [False, False, True, True]
    """
    if convention in ("min_norm", "balanced"):
        return tied
    last = tuple(range(-len(axes), 0))
    lines = jnp.moveaxis(tied, axes, last)
    flat = lines.reshape(*lines.shape[: last[0]], -1)
    # The running count stays 1 behind the first, up to the second.
    first = (jnp.cumsum(flat, axis=-1, dtype=jnp.int32) == 1) & flat
    alone = jnp.sum(flat, axis=-1, keepdims=True, dtype=jnp.int32) == 1
    chosen = first if convention == "inclusive" else jnp.where(alone, first, flat & ~first)
    return jnp.moveaxis(chosen.reshape(lines.shape), last, axes)


def ties_with(operand: jax.Array, value: jax.Array) -> jax.Array:
    """Return where an operand ties with the value, which is NaN if any operand is."""
    return (operand == value) | (operand != operand)


def ties_with_devices(x: jax.Array, value: jax.Array) -> jax.Array:
    """Return where x of this device ties with the value of all devices, which between CPUs leaves out NaN."""
    return (x == value) | (jnp.isnan(x) & jnp.isnan(value))


def widened(dtype: np.dtype[Any]) -> DTypeLike:
    """Return the dtype to share the gradient in: dtypes below 32 bits can hold neither a large k nor 1/k."""
    return jnp.float32 if jnp.finfo(dtype).bits < 32 else dtype


def lowest(dtype: np.dtype[Any]) -> Any:
    """Return the smallest number of ``dtype``, -inf if it has that."""
    if dtype == np.bool_:
        return False
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).min
    infinite = np.asarray(-np.inf, dtype)
    return infinite if np.isinf(infinite) else jnp.finfo(dtype).min  # float8_e4m3fn has no infinity


def highest(dtype: np.dtype[Any]) -> Any:
    """Return the largest number of ``dtype``, inf if it has that."""
    if dtype == np.bool_ or jnp.issubdtype(dtype, jnp.integer):
        # All bits the other way: of -128 that is 127, of 0 in uint8 255.
        return np.invert(np.asarray(lowest(dtype), dtype))
    return -lowest(dtype)
