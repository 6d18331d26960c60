"""How far two arrays are apart, and the tolerance that rounding explains."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np

from interop.frameworks.base import Array

Finding: TypeAlias = Literal["agrees", "ties", "port", "hidden tie", "rounding", "unsteady"]
Allowed: TypeAlias = Literal["ties", "rounding"]
"""Findings that ``allow=`` accepts."""
ROUNDING: tuple[Allowed, ...] = ("rounding",)
"""The default of ``allow=``."""


@dataclass(frozen=True)
class Largest:
    """The largest of some differences, and the index at which it is."""

    amount: float
    index: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.amount:.3g}" + (f" at {list(self.index)}" if self.amount and self.index else "")


@dataclass(frozen=True)
class Difference:
    r"""How far two arrays are apart: :math:`|a - b|`, :math:`|a - b| / \max(|a|, |b|)`, and the numbers of their dtype
    that lie between.

    NaN and NaN, and infinities of one sign, are not apart; NaN and a number are infinitely so. Complex numbers count as
    pairs, an axis more.
    """

    absolute: Largest
    relative: Largest
    ulps: Largest
    beyond: int
    """How many elements are further apart than the tolerance."""
    size: int
    numbers: tuple[float, ...]
    """The two numbers that are furthest apart; none in an empty array."""

    def relative_to(self, *sides: Array) -> float:
        """Return the largest difference, relative to the largest finite number on all sides."""
        largest = max(map(largest_finite, sides))
        return self.absolute.amount / largest if largest else self.absolute.amount


@dataclass(frozen=True)
class Leaf:
    """One leaf of the results, or of the gradients, on both sides."""

    label: str
    mismatch: str
    """Why the sides cannot be compared, or cannot agree whatever their numbers are; empty as a rule."""
    unmodified: Difference | None
    """Between the functions as they are."""
    min_norm: Difference | None
    """Between the functions under the convention."""
    finding: Finding

    @property
    def native(self) -> Difference | None:
        """The former name of `unmodified`, kept until 0.3."""
        return self.unmodified

    def passes(self, allow: Collection[Allowed] = ROUNDING) -> bool:
        """Say whether the functions agree as they are, or all that is between them is allowed."""
        return self.finding in ("agrees", "hidden tie", *allow)

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of its row in a table, which has the headings `HEADINGS`."""
        finding = f"{self.finding}: {self.mismatch}" if self.mismatch else self.finding
        difference = self.unmodified
        if difference is None or self.min_norm is None:
            return self.label, *[""] * (len(HEADINGS) - 2), finding
        apart = f"{difference.beyond} of {difference.size}"
        numbers = (difference.absolute, difference.relative, difference.ulps, apart, self.min_norm.absolute)
        return self.label, *map(str, numbers), finding

    @property
    def in_words(self) -> str:
        """A line, as ``gradient[0]: ties: 1 of 3 apart, absolute 0.844 at [0] (0 against 0.844), relative 1 at [0]``
        and so on."""
        label, absolute, relative, ulps, apart, under_min_norm, finding = self.cells
        if self.unmodified is None:
            return f"  {label}: {finding}"
        if self.unmodified.absolute.amount:
            absolute += f" ({' against '.join(f'{number:.7g}' for number in self.unmodified.numbers)})"
        return (
            f"  {label}: {finding}: {apart} apart, absolute {absolute}, relative {relative}, ulps {ulps}; "
            f"under min_norm {under_min_norm}"
        )

    def __str__(self) -> str:
        return f"{self.label} ({self.mismatch})" if self.mismatch else self.label


HEADINGS = ("leaf", "absolute", "relative", "ulps", "apart", "under min_norm", "finding")


def relative_tolerance(dtype: np.dtype[Any], rtol: float | None) -> float:
    """Return ``rtol``, or by default what rounding explains in this dtype."""
    return tolerance_of(eps_of(dtype)) if rtol is None else rtol


def tolerance_of(eps: float) -> float:
    """Return the relative tolerance that rounding explains, of floats with this epsilon."""
    # The error of a sum of n terms grows as sqrt(n) eps. In float32 eps ** (2/3) is 200 eps, room for 40,000 terms.
    return math.pow(eps, 2 / 3)


def difference_of(a: Array, b: Array, rtol: float | None, atol: float | None) -> Difference:
    """Measure how far two arrays of one shape are apart; ``beyond`` counts by these tolerances or the default ones."""
    a, b = as_reals(a, b)
    floats = [array.dtype for array in (a, b) if jnp.issubdtype(array.dtype, jnp.floating)]
    # Floats are compared in the steps of the coarser dtype; integers stay, whose promotion may round them.
    dtype = coarsest(floats) if floats else None
    rtol = relative_tolerance(dtype or a.dtype, rtol)
    with np.errstate(all="ignore"):
        # In float16 the difference of two numbers overflows, and in bfloat16 a tolerance has two digits.
        x, y = a.astype(np.float64), b.astype(np.float64)
        scale = np.fmax(abs(x), abs(y))
        ulps = _ulps(*(array.astype(dtype or array.dtype) for array in (a, b)))
        # Integers may be wider than float64 is precise. Those that differ are 1 apart at least: -1 in int64 and
        # 2**64 - 1 in uint64 have the same bits, so that no step lies between.
        absolute = abs(x - y) if floats else np.maximum(ulps, 1.0)
        same = (a == b) | (np.isnan(x) & np.isnan(y))
        one_nan = np.isnan(x) ^ np.isnan(y)
        absolute, relative, ulps = (
            # The relative difference of an infinity and a number is inf / inf, which is NaN.
            np.where(same, 0.0, np.where(one_nan | np.isnan(difference), np.inf, difference))
            for difference in (absolute, absolute / scale, ulps)
        )
        atol = rtol * largest_finite(scale) if atol is None else atol
        # Of infinity and a number the scale is infinite, and with it the tolerance; they still differ.
        beyond = np.isinf(absolute) | (absolute > atol + rtol * scale)
    largest = _largest(absolute)
    apart = tuple(side[largest.index].item() for side in (a, b)) if absolute.size else ()
    return Difference(largest, _largest(relative), _largest(ulps), int(beyond.sum()), beyond.size, apart)


def agree(a: Array, b: Array) -> bool:
    """Return whether two arrays of one shape are the same but for rounding."""
    return difference_of(a, b, None, None).beyond == 0


def apart_of(a: Array, b: Array) -> float:
    """Return the largest difference, relative to the largest finite number; infinite for arrays of two shapes."""
    return difference_of(a, b, None, None).relative_to(*as_reals(a, b)) if a.shape == b.shape else math.inf


def kind_of(dtype: Any) -> str:
    """Return what numbers of a dtype are, in words."""
    kinds = {"floats": jnp.floating, "complex numbers": jnp.complexfloating, "integers": jnp.integer}
    return next((kind for kind, scalar in kinds.items() if jnp.issubdtype(dtype, scalar)), "truth values")


def is_negligible(gradients: Iterable[Array], tolerance: float, scale: float) -> bool:
    """Say whether all gradients are so far below the largest of their model or function that they may be rounding.

    A gradient that cancels to 0 is a sum of terms as large as the other gradients, and keeps their rounding.
    """
    return largest_of(gradients) <= tolerance * scale


def may_be_rounding(largest: float, eps: float, scale: float) -> bool:
    r"""Say whether numbers are below :math:`\sqrt\epsilon` of ``scale``, that of what was summed.

    To lose more than half of its digits, a sum would need :math:`1 / \epsilon` terms or an ill-conditioned step.
    """
    return eps > 0 and largest <= math.sqrt(eps) * scale


def is_rounding_alone(before: float, after: float, dtype: np.dtype[Any]) -> bool:
    r"""Say whether numbers, or differences, are rounding alone: the largest is ``before`` in this dtype, and ``after``
    in float64.

    Rounding shrinks by the ratio of the two :math:`\epsilon`, as where terms cancel whose sum is 0; a number that is
    more than that stays what it is. The line between is :math:`\sqrt{\epsilon_{64} / \epsilon}`, halfway on a
    logarithmic scale: of float32 it is 4e-5. So 3e-9 that becomes 1e-17 is rounding, and one that becomes 2e-9 is none.
    Of a coarser dtype it is halfway to float32, in which many functions compute a part whatever they are given.
    """
    eps, eps32, eps64 = (eps_of(np.dtype(each)) for each in (dtype, np.float32, np.float64))
    finer = eps32 if eps > eps32 else eps64
    return eps > finer and math.isfinite(before) and after <= math.sqrt(finer / eps) * before


def largest_of(sides: Iterable[Array]) -> float:
    """Return the largest absolute value on all sides; NaN if one has any."""
    # By np.max, as Python's passes over NaN: max(1.0, nan) is 1.0.
    return float(np.max([np.abs(wide(side)).max(initial=0.0) for side in sides]))


def check_tolerances(rtol: Any, atol: Any) -> None:
    for name, number in (("rtol", rtol), ("atol", atol)):
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float | np.number):
            raise TypeError(f"compare: {name} is {number!r}, a {type(number).__name__}; pass a number.")
        if not number >= 0:
            raise ValueError(
                f"compare: {name} is {number!r}; pass a number from 0 on, or none, for what rounding explains."
            )


def same_kind(first: np.dtype[Any], second: np.dtype[Any]) -> bool:
    """Say whether dtypes are equal, or integers of any width: JAX has 32 bits where torch has 64."""
    return first == second or all(jnp.issubdtype(dtype, np.integer) for dtype in (first, second))


def eps_of(dtype: np.dtype[Any]) -> float:
    r"""Return :math:`\epsilon` of a dtype of floats or complex numbers; 0 for all others, which are exact."""
    return float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 0.0


def coarsest(floats: Iterable[np.dtype[Any]]) -> np.dtype[Any]:
    """Return the dtype of floats that rounds most: bfloat16 has fewer digits than float16, though as many bits."""
    return max(floats, key=eps_of)


def as_reals(a: Array, b: Array) -> tuple[Array, Array]:
    """Write both arrays as pairs of numbers, along an axis more, if one of them is complex."""
    if not (np.iscomplexobj(a) or np.iscomplexobj(b)):
        return a, b
    first, second = (np.stack([array.real, array.imag], axis=-1) for array in (a, b))
    return first, second


def _ulps(a: Array, b: Array) -> Array:
    """Count the steps from one number of a dtype to the next that lie between."""
    # Unsigned numbers wrap around, so that the difference is right though it may exceed int64: it is below 2**64.
    i, j = _ordered(a), _ordered(b)
    return np.where(a >= b, i - j, j - i).astype(np.float64)


def _ordered(array: Array) -> Array:
    """Map numbers to integers in their order, modulo 2**64; -0.0 is 0.0."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array.astype(np.uint64)
    # The bits of floats, read as integers, rise with the number above 0, and fall below it, where the sign bit makes
    # them negative. So 1.0 in float32 is 0x3F800000, and -1.0 is the least integer minus 0xBF800000: -0x3F800000.
    bits = array.view(f"i{array.itemsize}")
    return np.where(bits < 0, np.iinfo(bits.dtype).min - bits, bits).astype(np.uint64)


def is_gradient(label: str) -> bool:
    return label.startswith("gradient")


def largest_finite(array: Array) -> float:
    return float(np.abs(wide(array[np.isfinite(array)])).max(initial=0.0))


def wide(array: Array) -> Array:
    """Return an array in float64, or complex128: in int8 the absolute value of -128 is -128."""
    return array.astype(np.result_type(array.dtype, np.float64))


def _largest(differences: Array) -> Largest:
    if not differences.size:
        return Largest(0.0, ())
    index = np.unravel_index(differences.argmax(), differences.shape)
    return Largest(float(differences[index]), tuple(map(int, index)))
