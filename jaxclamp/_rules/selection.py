"""The rule of the selection ops, whose value is one of their operands."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from jaxclamp._rules.conventions import CONVENTIONS, Convention, check_convention
from jaxclamp._rules.differentiate import Arrays, Tangents
from jaxclamp._shared.version_derivatives import Weights

S = TypeVar("S", bound="Selection")
Step: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True, eq=False)
class Selection:
    """An op whose value is one of its operands: a fold of maxima and minima over them.

    C is the set of operands tied for the value. Under ``min_norm``, if a member of C is inactive, every gradient is 0;
    else each member gets 1/|C|. The other conventions ignore who is active: ``balanced`` gives each member 1/|C|,
    ``inclusive`` gives all to the first member, ``exclusive`` shares it among the others.

    The code is a set of operands in the bits of an int8. For ``clamp(x, min, max)`` bit 0 stands for x, bit 1 for min
    and bit 2 for max: at ``x == min < max`` it is 0b011 if both are active, and 0 if x is active alone.
    """

    compares_with_value: ClassVar[bool] = False

    name: str
    operands: tuple[str, ...]
    steps: tuple[Step, ...]
    convention: Convention

    def value(self, *primals: jax.Array) -> jax.Array:
        value = primals[0]
        for step, operand in zip(self.steps, primals[1:], strict=True):
            value = step(value, operand)
        return value

    def code(self, primals: Arrays, active: Sequence[bool]) -> jax.Array:
        """Return, element by element, the set of operands that get a share of the gradient."""
        if self.convention == "min_norm":
            return self._tied_if_all_active(primals, active)
        tied = self._tied(primals)
        first = tied & -tied  # the lowest bit that is set: of 0b110 it is 0b010
        match self.convention:
            case "balanced":
                return tied
            case "inclusive":
                return first
            case "exclusive":
                return jnp.where(tied == first, tied, tied ^ first)

    def _tied(self, primals: Arrays) -> jax.Array:
        """Return C."""
        return self._tied_if_all_active(primals, [True] * len(primals))

    def _tied_if_all_active(self, primals: Arrays, active: Sequence[bool]) -> jax.Array:
        """Return C where all its members are active, else the empty set.

        The set is folded as the value is, operand by operand. An operand that loses changes nothing. One that wins
        alone becomes the whole set, which stays empty if the operand is inactive. One that ties joins the set, but only
        if it is active and the set is not empty; else the set becomes empty.

        At ``clamp(x, min, max)`` with x = min = 0, max = 6, for example, the set begins as {x}. If min is active it
        joins, {x, min}; if not, the set becomes empty. Then max loses: the set is 0b011, or 0.
        """
        value = primals[0]
        tied: jax.Array = jnp.int8(active[0])
        for i, (step, operand) in enumerate(zip(self.steps, primals[1:], strict=True), 1):
            joined = alone = jnp.int8(active[i] << i)
            if active[i]:  # else both are 0, which XLA does not notice
                both = jnp.where(tied == 0, jnp.int8(0), tied | alone)
                joined = jnp.where(_reaches(step, value, operand), both, alone)
            tied = jnp.where(_reaches(step, operand, value), joined, tied)
            value = step(value, operand)
        return tied

    def on_tie(self, primals: Arrays) -> jax.Array:
        # Folded as the value is, in a tenth of the operations that it takes to know who is in C. An operand that equals
        # the value so far ties with it, and a tie stays one as long as its value does.
        value, tied = primals[0], None
        for step, operand in zip(self.steps, primals[1:], strict=True):
            equal, folded = jnp.equal(value, operand), step(value, operand)
            tied = equal if tied is None else equal | (tied & (folded == value))
            value = folded
        return jnp.broadcast_to(False if tied is None else tied, jnp.broadcast_shapes(*map(jnp.shape, primals)))

    def linear(self, code: jax.Array, primals: Arrays, tangents: Tangents, like: jax.ShapeDtypeStruct) -> jax.Array:
        # One active operand under min_norm, and any under inclusive, gets all or nothing: there is nothing to divide.
        alone = self.convention == "min_norm" and sum(t is not None for t in tangents) == 1
        shared = self.convention != "inclusive" and not alone
        shares = sum((code >> i) & 1 for i in range(len(tangents))) if shared else None
        terms = []
        for i, tangent in enumerate(tangents):
            if tangent is not None:
                term = jnp.broadcast_to(tangent.astype(like.dtype), like.shape)
                if shares is not None:  # at least 1, since an inactive member of C leaves the set empty
                    term = term / jnp.maximum(shares, 1).astype(like.dtype)
                has_share = (code if alone else code & (1 << i)) != 0
                terms.append(jnp.where(has_share, term, jnp.zeros((), like.dtype)))
        return sum(terms[1:], terms[0])


@dataclass(frozen=True, eq=False)
class Affine(Selection):
    """A selection op that is scaled and shifted, as ``hardsigmoid(x) = (clamp(x, -3, 3) + 3) / 6``.

    The ties are those of the selection, and all weights are scaled. The value is that of another function, which may
    round in another way.
    """

    function: Callable[[jax.Array], jax.Array]
    scale: float

    def value(self, *primals: jax.Array) -> jax.Array:
        return self.function(primals[0])

    def linear(self, code: jax.Array, primals: Arrays, tangents: Tangents, like: jax.ShapeDtypeStruct) -> jax.Array:
        return super().linear(code, primals, tangents, like) * jnp.asarray(self.scale, like.dtype)


@dataclass(frozen=True, eq=False)
class VersionedSelection(Selection):
    """A selection op with the derivative that a version of a framework gives it, which need be no subgradient.

    The code has two bits for each operand, six of an int8 for the three of a clamp: 0 for nothing, 1 for all, 2 for
    half, 3 for a quarter.
    """

    weights: Weights

    def code(self, primals: Arrays, active: Sequence[bool]) -> jax.Array:
        code: jax.Array = jnp.int8(0)
        for i, (gets, *halves) in enumerate(self.weights.of):
            if active[i]:
                # 1, and 1 more for each time that the share is halved.
                share = sum((half(*primals).astype(jnp.int8) for half in halves), start=jnp.int8(1))
                code = code | jnp.where(gets(*primals), share << (2 * i), jnp.int8(0))
        return code

    def linear(self, code: jax.Array, primals: Arrays, tangents: Tangents, like: jax.ShapeDtypeStruct) -> jax.Array:
        total = zero = jnp.zeros((), like.dtype)
        for i, tangent in enumerate(tangents):
            if tangent is not None:
                share = (code >> (2 * i)) & 3
                term = jnp.broadcast_to(tangent.astype(like.dtype), like.shape)
                for halved in (2, 3):  # by 2 each time: exact, as in the formulas of the framework
                    term = jnp.where(share >= halved, term / 2, term)
                total = total + jnp.where(share != 0, term, zero)
        return total


@functools.cache
def versioned(rule: Selection, weights: Weights) -> VersionedSelection:
    """Return ``rule`` with these weights; the same object each time, as for `extremum`."""
    return VersionedSelection(rule.name, rule.operands, rule.steps, rule.convention, weights)


def selection(name: str, **steps: Step) -> Mapping[Convention, Selection]:
    """Return the selection op ``name`` under each convention: it starts with x, and folds each further operand in.

    >>> clamp = selection("clamp", min=jnp.maximum, max=jnp.minimum)["min_norm"]
    >>> float(clamp.value(7.0, 0.0, 6.0))
    6.0
    """
    operands = ("x", *steps)
    return _ByConvention((c, Selection(name, operands, tuple(steps.values()), c)) for c in CONVENTIONS)


def affine(
    selections: Mapping[Convention, Selection], function: Callable[[jax.Array], jax.Array], scale: float
) -> Mapping[Convention, Affine]:
    """Return the selection op under each convention, scaled and shifted: the value is that of ``function``."""
    return _ByConvention((c, Affine(s.name, s.operands, s.steps, c, function, scale)) for c, s in selections.items())


class _ByConvention(dict[Convention, S]):
    """Maps a convention to a rule; any other key is an error that names the conventions."""

    def __missing__(self, ties: object) -> S:
        check_convention(next(iter(self.values())).name, ties)
        raise KeyError(ties)


_SKIPS_NAN = (jnp.fmax, jnp.fmin)
# Maps a step to the comparison ``loses_or_ties(rival, operand)`` that holds where the step may take the operand.
_LOSES_OR_TIES: Mapping[Step, Step] = {
    jnp.maximum: jnp.less_equal,
    jnp.fmax: jnp.less_equal,
    jnp.minimum: jnp.greater_equal,
    jnp.fmin: jnp.greater_equal,
}


def _reaches(step: Step, operand: jax.Array, rival: jax.Array) -> jax.Array:
    """Return where ``operand`` is the value of ``step(operand, rival)``, alone or tied with the rival.

    Operands tie where they are equal, as -0.0 and 0.0 are. They are compared with each other: to compare with the
    value, XLA would have to store it.

    NaN decides by itself. A step that takes NaN takes the operand where that is NaN, and not where the rival alone is;
    a step that skips NaN takes it where the rival is NaN, and not where it alone is. The comparison should say the
    latter, but XLA takes one such as ``abs(x) >= 0``, of what cannot be negative, to be true of NaN; so it is checked.
    """
    decides, vetoes = (rival, operand) if step in _SKIPS_NAN else (operand, rival)
    return (_LOSES_OR_TIES[step](rival, operand) & (vetoes == vetoes)) | (decides != decides)
