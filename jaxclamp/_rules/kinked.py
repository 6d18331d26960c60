"""The rule of the kinked ops of one variable: smooth pieces that meet at kinks."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxclamp._rules.differentiate import Arrays, Tangents
from jaxclamp._shared.version_derivatives import Side

Piece: TypeAlias = Callable[..., Any]
"""A function ``piece(xp, x, *parameters)``, where ``xp`` is the namespace of the arrays, such as `jax.numpy`."""


def identity(xp: Any, x: Any, *_: Any) -> Any:
    """Return x, the piece of slope 1, whatever the parameters."""
    return x


@dataclass(frozen=True, eq=False)
class Kinked:
    """An op of one variable, made of smooth pieces that meet at kinks.

    ``pieces[k]`` holds between kink k-1 and kink k; every piece is finite at 0. The gradient at a kink is the number
    nearest to 0 between the one-sided slopes: the slope of the flatter piece, or 0 where the signs differ. NaN passes
    through with slope 1. Where the function jumps, the flatter piece has to be the one that the value takes, as in
    ``hardshrink``: at 0.5 it is 0, on the piece of slope 0.

    The code is an index. For ``softshrink(x, 0.5)`` it is 0 left of -0.5, 1 from -0.5 to 0.5, 2 to the right of 0.5: at
    both kinks the flatter of the two pieces that meet is the middle one.
    """

    compares_with_value: ClassVar[bool] = False

    name: str
    operands: tuple[str, ...]
    function: Callable[..., jax.Array]
    pieces: tuple[Piece, ...]
    kinks: Callable[..., tuple[Any, ...]]
    """``kinks(xp, *parameters)`` returns the places where the pieces meet, in ascending order."""

    def value(self, *primals: jax.Array) -> jax.Array:
        return self.function(*primals)

    def code(self, primals: Arrays, active: Sequence[bool]) -> jax.Array:
        """Return the index in ``_branches`` of the slope that counts; one past the last for slope 0."""
        x, kinks, meeting = self._pieces_that_meet(primals)
        code = self._past(x, kinks)
        for on_kink, left, right, left_slope, right_slope in meeting:
            flatter = jnp.where(jnp.abs(left_slope) <= jnp.abs(right_slope), left, right)
            opposite = jnp.sign(left_slope) * jnp.sign(right_slope) < 0
            # A parameter that moves may part kinks that coincide. With lambd = 0 a shrinkage is x, of slope 1. As lambd
            # grows, its flat piece opens around 0, and (0, 0) is a gradient by x and lambd.
            if any(active[1:]):
                opposite |= right - left > 1
            code = jnp.where(on_kink, jnp.where(opposite, jnp.int8(len(self._branches)), flatter), code)
        return self._or_nan(x, code)

    def _past(self, x: jax.Array, kinks: Sequence[jax.Array]) -> jax.Array:
        """Return the index of the piece that x is on, at a kink the one to the left."""
        # Not x > kink, which does not hold of NaN: that is past all kinks, on the last piece.
        return _count(~(x <= kink) for kink in kinks)

    def _or_nan(self, x: jax.Array, code: jax.Array) -> jax.Array:
        """Return ``code``, at NaN the index of the identity."""
        if self._branches == self.pieces:
            return code  # NaN is past every kink, and so on the last piece already
        return jnp.where(jnp.isnan(x), jnp.int8(len(self.pieces)), code)

    @property
    def _branches(self) -> tuple[Piece, ...]:
        """The pieces, and behind them the identity, for NaN, unless it is the last piece already."""
        return self.pieces if self.pieces[-1] is identity else (*self.pieces, identity)

    def on_tie(self, primals: Arrays) -> jax.Array:
        _, _, meeting = self._pieces_that_meet(primals)
        on_ties = (on_kink & (left_slope != right_slope) for on_kink, _, _, left_slope, right_slope in meeting)
        return _count(on_ties) > 0

    def _pieces_that_meet(self, primals: Arrays) -> tuple[jax.Array, list[jax.Array], Iterator[tuple[jax.Array, ...]]]:
        """Return x, the kinks, and for each kink where x is on it, the pieces to both sides, and their slopes."""
        # Integers become floats: a slope of integers has no dtype.
        dtype = jnp.result_type(*primals)
        x, *parameters = _promote(primals, dtype if jnp.issubdtype(dtype, jnp.floating) else float)
        kinks = [jnp.asarray(kink, x.dtype) for kink in self.kinks(jnp, *parameters)]

        def meeting() -> Iterator[tuple[jax.Array, ...]]:
            for kink in kinks:  # kinks may coincide: then the pieces to either side of all of them meet
                left = _count(place < kink for place in kinks)
                right = _count(place <= kink for place in kinks)
                # At the kink and not at x: that is one number, if the parameters are, and no slope overflows far away.
                slopes = [_slope(piece, kink, *parameters) for piece in self.pieces]
                yield x == kink, left, right, _choose(left, slopes), _choose(right, slopes)

        return x, kinks, meeting()

    def linear(self, code: jax.Array, primals: Arrays, tangents: Tangents, like: jax.ShapeDtypeStruct) -> jax.Array:
        x, *parameters = _promote(primals, like.dtype)
        moving = [None if t is None else t.astype(like.dtype) for t in tangents]
        if moving[0] is not None:  # `jnp.where` gives x the shape of the code; its tangent needs the same
            moving[0] = jnp.broadcast_to(moving[0], like.shape)
        zero = jnp.zeros((), like.dtype)
        total = zero
        for k, piece in enumerate(self._branches):
            # Elsewhere x becomes 0: a slope that overflows outside its piece would turn a zero cotangent into NaN.
            term = _directional(piece, (jnp.where(code == k, x, zero), *parameters), moving)
            total = total + jnp.where(code == k, term, zero)
        return total


@dataclass(frozen=True, eq=False)
class Sided(Kinked):
    """A kinked op with the slope to one side of each kink, as some versions of frameworks have it."""

    side: Side

    def code(self, primals: Arrays, active: Sequence[bool]) -> jax.Array:
        x, kinks, _ = self._pieces_that_meet(primals)
        past = self._past(x, kinks) if self.side == "left" else _count(~(x < kink) for kink in kinks)
        return self._or_nan(x, past)


@functools.cache
def sided(rule: Kinked, side: Side) -> Sided:
    """Return ``rule`` with the slopes to that side; the same object each time, as for `extremum`."""
    return Sided(rule.name, rule.operands, rule.function, rule.pieces, rule.kinks, side)


def _promote(primals: Arrays, dtype: DTypeLike) -> list[jax.Array]:
    return [jnp.asarray(primal, dtype) for primal in primals]


def _count(conditions: Iterable[jax.Array]) -> jax.Array:
    """Count, element by element, the conditions that hold."""
    return functools.reduce(operator.add, (condition.astype(jnp.int8) for condition in conditions))


def _choose(index: jax.Array, options: Sequence[jax.Array]) -> jax.Array:
    """Return ``options[index]``, element by element."""
    chosen = options[0]
    for k, option in enumerate(options[1:], 1):
        chosen = jnp.where(index == k, option, chosen)
    return chosen


def _slope(piece: Piece, x: jax.Array, *parameters: jax.Array) -> jax.Array:
    """Return the derivative of ``piece`` at x, the parameters fixed."""
    return _directional(piece, (x, *parameters), (jnp.ones_like(x), *[None] * len(parameters)))


def _directional(piece: Piece, primals: Arrays, tangents: Tangents) -> jax.Array:
    """Return the derivative of ``piece`` along the tangents; operands whose tangent is None are fixed."""

    def restricted(*moving: jax.Array) -> Any:
        remaining = iter(moving)
        return piece(jnp, *(p if t is None else next(remaining) for p, t in zip(primals, tangents, strict=True)))

    moving = [(p, t) for p, t in zip(primals, tangents, strict=True) if t is not None]
    return jax.jvp(restricted, tuple(p for p, _ in moving), tuple(t for _, t in moving))[1]
