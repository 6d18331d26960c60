"""One leaf of what two functions answer: how far its arrays are apart, and what was found."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np

from interop.frameworks.base import Array

Finding: TypeAlias = Literal["agrees", "ties", "port", "hidden tie", "rounding", "unsteady"]
Allowed: TypeAlias = Literal["ties", "rounding"]
"""The findings that may count as agreement."""
ROUNDING: tuple[Allowed, ...] = ("rounding",)
"""Those that do, unless others are named."""


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


@dataclass(frozen=True)
class Leaf:
    """One leaf of the results, or of the gradients, on both sides."""

    label: str
    mismatch: str
    """Why the sides cannot be compared, or cannot agree whatever their numbers are; empty as a rule."""
    native: Difference | None
    min_norm: Difference | None
    finding: Finding

    def passes(self, allow: Collection[Allowed] = ROUNDING) -> bool:
        """Whether the functions agree as they are, or all that is between them is allowed."""
        return self.finding in ("agrees", "hidden tie", *allow)

    def __str__(self) -> str:
        return f"{self.label} ({self.mismatch})" if self.mismatch else self.label


def relative_tolerance(dtype: np.dtype[Any], rtol: float | None) -> float:
    """The one that was given, or what rounding explains in this dtype."""
    if rtol is not None:
        return rtol
    return float(jnp.finfo(dtype).eps) ** (2 / 3) if jnp.issubdtype(dtype, jnp.floating) else 0.0


def difference_of(a: Array, b: Array, rtol: float | None, atol: float | None) -> Difference:
    """How far two arrays of one shape are apart, beside these tolerances or those of their dtype."""
    dtype = _common(a.dtype, b.dtype)
    if np.iscomplexobj(a) or np.iscomplexobj(b):
        a, b = (np.stack([array.real, array.imag], axis=-1) for array in (a, b))
    is_float = jnp.issubdtype(dtype, jnp.floating)
    rtol = relative_tolerance(dtype, rtol)
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        scale = np.fmax(abs(x), abs(y))
        ulps = _ulps(a.astype(dtype), b.astype(dtype))
        absolute = abs(x - y) if is_float else ulps  # integers may be wider than float64 is precise
        same = (a == b) | (np.isnan(x) & np.isnan(y))
        one_nan = np.isnan(x) ^ np.isnan(y)
        absolute, relative, ulps = (
            np.where(same, 0.0, np.where(one_nan | np.isnan(d), np.inf, d))  # NaN is an infinity by another
            for d in (absolute, absolute / scale, ulps)
        )
        atol = rtol * largest_finite(scale) if atol is None else atol
        beyond = np.isinf(absolute) | (absolute > atol + rtol * scale)
    largest = _largest(absolute)
    apart = tuple(side[largest.index].item() for side in (a, b)) if absolute.size else ()
    return Difference(largest, _largest(relative), _largest(ulps), int(beyond.sum()), beyond.size, apart)


def is_rounding_alone(before: float, after: float, dtype: np.dtype[Any]) -> bool:
    r"""Whether numbers whose largest is ``before`` in this dtype, and ``after`` in float64, are nothing but rounding.

    Rounding shrinks by the ratio of the two :math:`\epsilon`, as where terms cancel whose sum is 0; a number that is
    more than that stays what it is. The line between is :math:`\sqrt{\epsilon_{64} / \epsilon}`, halfway on a
    logarithmic scale.
    """
    eps, eps64 = (float(jnp.finfo(d).eps) for d in (dtype, np.float64))
    return eps > eps64 and math.isfinite(before) and after <= math.sqrt(eps64 / eps) * before


def largest_of(sides: Iterable[Array]) -> float:
    """The largest absolute value on all sides; NaN if one has any."""
    return float(np.max([np.abs(side.astype(np.float64)).max(initial=0.0) for side in sides]))


def check_tolerances(rtol: Any, atol: Any) -> None:
    for name, number in (("rtol", rtol), ("atol", atol)):
        if number is None:
            continue
        if not isinstance(number, int | float | np.number):
            raise TypeError(f"compare: {name} is {number!r}, a {type(number).__name__}; pass a number.")
        if not number >= 0:
            raise ValueError(
                f"compare: {name} is {number!r}; pass a number from 0 on, or none, for what rounding explains."
            )


def same_kind(first: np.dtype[Any], second: np.dtype[Any]) -> bool:
    """Equal, or integers of any width: JAX has 32 bits where torch has 64."""
    return first == second or all(jnp.issubdtype(dtype, np.integer) for dtype in (first, second))


def _common(first: np.dtype[Any], second: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in whose steps both are compared: of two floats the coarser, and the parts of complex numbers."""
    floats = [jnp.finfo(dtype) for dtype in (first, second) if jnp.issubdtype(dtype, jnp.inexact)]
    return max(floats, key=lambda info: info.eps).dtype if floats else np.promote_types(first, second)


def _ulps(a: Array, b: Array) -> Array:
    """The steps from one number of a dtype to the next that lie between."""
    i, j = _ordered(a), _ordered(b)
    return np.where(a >= b, i - j, j - i).astype(np.float64)


def _ordered(array: Array) -> Array:
    """Integers in the order of the numbers, modulo 2**64; -0.0 is 0.0."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array.astype(np.uint64)
    bits = array.view(f"i{array.itemsize}")
    return np.where(bits < 0, np.iinfo(bits.dtype).min - bits, bits).astype(np.uint64)


def is_gradient(label: str) -> bool:
    return label.startswith("gradient")


def largest_finite(array: Array) -> float:
    return float(abs(array[np.isfinite(array)].astype(np.float64)).max(initial=0.0))


def _largest(differences: Array) -> Largest:
    if not differences.size:
        return Largest(0.0, ())
    index = np.unravel_index(differences.argmax(), differences.shape)
    return Largest(float(differences[index]), tuple(map(int, index)))
