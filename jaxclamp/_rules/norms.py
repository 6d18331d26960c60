"""The rules of the norms: they have kinks where elements are 0, and 0 is the least of their subgradients there."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxclamp._rules.differentiate import Arrays, Tangents
from jaxclamp._rules.extremum import ties_with, widened
from jaxclamp._rules.operands import is_floating


@dataclass(frozen=True, eq=False)
class EuclideanNorm:
    r"""The 2-norm of the elements along axes, :math:`\sqrt{\sum_i x_i^2}`.

    The gradient is x divided by its norm, and 0 where all elements are 0: there the subdifferential is the unit ball.
    Infinite elements count as equal, and all others beside them as 0. Second derivatives where all are 0 are 0.

    The code has a 1 for each norm that is not 0.
    """

    compares_with_value: ClassVar[bool] = False
    name: ClassVar[str] = "norm"
    operands: ClassVar[tuple[str, ...]] = ("x",)

    axes: tuple[int, ...]
    keepdims: bool

    def value(self, *primals: jax.Array) -> jax.Array:
        (x,) = primals
        # As floats, since `jnp.linalg.vector_norm` squares integers in their own dtype, where 200 * 200 wraps around.
        floats = x if is_floating(x) else x.astype(float)
        return jnp.linalg.vector_norm(floats, axis=self.axes, keepdims=self.keepdims)

    def code(self, primals: Arrays, active: Sequence[bool]) -> jax.Array:
        (x,) = primals
        return jnp.any(x != 0, self.axes, keepdims=True).astype(jnp.int8)

    def on_tie(self, primals: Arrays) -> jax.Array:
        (x,) = primals
        return jnp.all(x == 0, self.axes, keepdims=self.keepdims)

    def linear(self, code: jax.Array, primals: Arrays, tangents: Tangents, like: jax.ShapeDtypeStruct) -> jax.Array:
        moved = _along_units(code, primals, tangents, like, self.axes)
        return jnp.sum(moved, self.axes, keepdims=self.keepdims).astype(like.dtype)


@dataclass(frozen=True, eq=False)
class Hypotenuse:
    r"""The 2-norm of two operands, :math:`\sqrt{x^2 + y^2}`, with the gradient of `EuclideanNorm`."""

    compares_with_value: ClassVar[bool] = False

    name: str
    function: Callable[..., jax.Array]
    operands: tuple[str, ...] = ("x", "y")

    def value(self, *primals: jax.Array) -> jax.Array:
        return self.function(*primals)

    def code(self, primals: Arrays, active: Sequence[bool]) -> jax.Array:
        return (~self.on_tie(primals)).astype(jnp.int8)

    def on_tie(self, primals: Arrays) -> jax.Array:
        x, y = primals
        return (x == 0) & (y == 0)

    def linear(self, code: jax.Array, primals: Arrays, tangents: Tangents, like: jax.ShapeDtypeStruct) -> jax.Array:
        return _along_units(code, primals, tangents, like).astype(like.dtype)


@dataclass(frozen=True, eq=False)
class PolyhedralNorm:
    r"""The 1-norm of the elements along axes, :math:`\sum_i |x_i|`, or their infinity norm, :math:`\max_i |x_i|`.

    Each element has the slope of its absolute value, 0 at 0. In the infinity norm, each of k elements of the largest
    size gets 1/k of it. NaN counts as such an element, with slope 1. The code has the sign of each element with a
    share, and 0 for the others.
    """

    compares_with_value: ClassVar[bool] = True
    name: ClassVar[str] = "norm"
    operands: ClassVar[tuple[str, ...]] = ("x",)

    order: float
    axes: tuple[int, ...]
    keepdims: bool

    def value(self, *primals: jax.Array) -> jax.Array:
        (x,) = primals
        order: int = self.order  # type: ignore[assignment]  # infinity, which the stub of JAX forgets
        return jnp.linalg.vector_norm(x, axis=self.axes, keepdims=self.keepdims, ord=order)

    def code(self, primals: Arrays, active: Sequence[bool]) -> jax.Array:
        (x,) = primals
        sign = jnp.where(jnp.isnan(x), 1, jnp.sign(x))
        return jnp.where(self._shares(x), sign, 0).astype(jnp.int8)

    def _shares(self, x: jax.Array) -> jax.Array:
        """Return which elements are part of the value."""
        if self.order == 1:
            return jnp.ones(x.shape, bool)
        # The norm of no elements is 0, so they have a largest size of 0, where `jnp.max` alone would raise.
        return ties_with(jnp.abs(x), jnp.max(jnp.abs(x), self.axes, keepdims=True, initial=0))

    def on_tie(self, primals: Arrays) -> jax.Array:
        (x,) = primals
        shares = self._shares(x)
        has_zero = jnp.any(shares & (x == 0), self.axes, keepdims=self.keepdims)
        if self.order == 1:
            return has_zero
        return has_zero | (jnp.sum(shares, self.axes, dtype=jnp.int32, keepdims=self.keepdims) > 1)

    def linear(self, code: jax.Array, primals: Arrays, tangents: Tangents, like: jax.ShapeDtypeStruct) -> jax.Array:
        (tangent,) = tangents
        assert tangent is not None
        moved = tangent.astype(widened(like.dtype))
        if self.order != 1:  # in the 1-norm each element has all of its slope
            shares = jnp.sum(jnp.abs(code), self.axes, keepdims=True, dtype=jnp.int32)
            moved = moved / jnp.maximum(shares, 1).astype(moved.dtype)
        zero = jnp.zeros((), moved.dtype)
        moved = jnp.where(code > 0, moved, zero) - jnp.where(code < 0, moved, zero)
        return jnp.sum(moved, self.axes, keepdims=self.keepdims).astype(like.dtype)


@functools.lru_cache(maxsize=1024)
def norm_of_order(order: float, axes: tuple[int, ...], keepdims: bool) -> EuclideanNorm | PolyhedralNorm:
    """Return the rule of the norm of order 1, 2 or infinity; the same object each time, as for `extremum`."""
    return EuclideanNorm(axes, keepdims) if order == 2 else PolyhedralNorm(order, axes, keepdims)


ORDERS = (1, 2, math.inf)


def _along_units(
    code: jax.Array, primals: Arrays, tangents: Tangents, like: jax.ShapeDtypeStruct, axes: tuple[int, ...] = ()
) -> jax.Array:
    """Return the sum of the operands' tangents, each times its operand divided by the norm; 0 where ``code`` is 0.

    The norm is that of all operands, and of their elements along the axes.
    """
    wide = widened(like.dtype)
    is_smooth = code == 1
    # Where the norm is 0, the units are those of ones: neither they nor their derivatives become NaN.
    units = _units([jnp.where(is_smooth, x.astype(wide), 1) for x in primals], axes)
    total = zero = jnp.zeros((), wide)
    for unit, tangent in zip(units, tangents, strict=True):
        if tangent is not None:
            total = total + jnp.where(is_smooth, unit * tangent.astype(wide), zero)
    return total


def _units(operands: Sequence[jax.Array], axes: tuple[int, ...]) -> list[jax.Array]:
    """Return the operands divided by their norm, which is not 0; no square overflows, and none that counts vanishes."""
    sizes = functools.reduce(jnp.maximum, map(jnp.abs, operands))
    # The units are the same whatever operands are divided by first, so that no derivative comes through this number.
    largest = jax.lax.stop_gradient(jnp.max(sizes, axes, keepdims=True, initial=0))
    scaled = [jnp.where(jnp.isinf(x), jnp.sign(x), x / largest) for x in operands]  # inf / inf is NaN
    norm = jnp.sqrt(jnp.sum(sum(x * x for x in scaled), axes, keepdims=True))
    return [x / norm for x in scaled]
