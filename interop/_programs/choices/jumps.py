"""Functions that jump: at a jump they are on the side of it that lies a small step along the tangents.

``floor(x)`` at x = 2 is 1 where x falls, and 2 where it rises or stands still. Where functions jump is said by
`interop._transforms.jumps`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

from interop._programs.choices import selections
from interop._programs.choices.comparisons import is_not_zero
from interop._programs.choices.sorting import sort
from interop._programs.order import holds, moves, value_and_tangent, value_of
from interop._torch.forms import dtypes_named
from interop._torch.in_numpy import is_any
from interop._torch.private_api import number_apart
from interop._transforms.jumps import jump_of, places_of
from interop.native._rules.windows_stage import is_plain

Tensor = torch.Tensor
Function = Callable[..., Any]


def step(in_torch: Function) -> Function:
    """Return a function that is constant between its jumps, as `torch.floor`, or a conversion to integers."""

    def decided(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        jump = None if input.is_complex() else jump_of(in_torch, kwargs)
        for _, jumps in places_of(jump[1], (value_of(input), *args), kwargs) if jump else ():
            input = _beyond(input, jumps)
        return in_torch(input, *args, **kwargs)

    return decided


def _is_nowhere(mask: Tensor) -> bool:
    """Return whether the mask is empty; a look would make a GPU wait, and a graph that is traced has no numbers yet."""
    return is_plain(mask) and not is_any(mask)


def _beyond(x: Tensor, jumps: Tensor) -> Tensor:
    """Return ``x``, and where it ``jumps`` a number close to it, on the side to which it moves."""
    if _is_nowhere(jumps):
        return x
    value, tangent = value_and_tangent(x)
    limits = torch.finfo(value.dtype)
    # 2 eps times a number is more than one unit in its last place; half an integer on, nothing jumps.
    distance = torch.where(value == 0, limits.tiny, value.abs() * (2 * limits.eps)).clamp(max=0.5)
    # Beyond 1 / eps the next numbers are integers themselves.
    jumps = jumps & ((tangent > 0) | (tangent < 0)) & (value.abs() < 1 / limits.eps)
    return torch.where(jumps, value + tangent.sign() * distance, x)


def is_discrete(*args: Any, **kwargs: Any) -> bool:
    """Return whether these arguments of a conversion say that its result has truth values or integers."""
    return any(not (dtype.is_floating_point or dtype.is_complex) for dtype in dtypes_named(*args, **kwargs))


def conversion(in_torch: Function) -> Function:
    """Return the same conversion, which compares with 0 if it is one to truth values, and may jump if to integers."""
    to_integers = step(in_torch)

    def converted(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        is_to_bools = torch.bool in dtypes_named(*args, **kwargs)
        result: Tensor = (asks_of_0(in_torch) if is_to_bools else to_integers)(input, *args, **kwargs)
        return result

    return converted


def asks_of_0(in_torch: Function) -> Function:
    """Return a function that asks which numbers are 0, as `torch.nonzero`, or whether one is, as ``if x``."""
    return lambda input, *args, **kwargs: in_torch(is_not_zero(input), *args, **kwargs)


def frac(input: Tensor) -> Tensor:
    """Decide `torch.frac`, which is x - trunc(x)."""
    whole: Tensor = step(torch.trunc)(input)
    return input - whole


# Where a quotient x / y is a whole number, it rounds to this one, or to the one before. Parameters are called as torch
# calls them: ``input`` is the dividend, and ``other`` the divisor.


def _falls_short(dividend: Any, divisor: Any, is_whole: Tensor, towards_0: bool = False) -> Tensor:
    """Return where the quotient ``is_whole``, and becomes less, or moves ``towards_0``."""
    if _is_nowhere(is_whole):
        return is_whole
    (x, dx), (y, dy) = value_and_tangent(dividend), value_and_tangent(divisor)
    speed = dx * y - x * dy  # that of x / y, times y squared
    return is_whole & ((speed * _sign(x, y) if towards_0 else speed) < 0)


def _sign(x: Any, y: Any) -> Tensor:
    """Return the sign of x / y."""
    return torch.as_tensor(value_of(x)).sign() * torch.as_tensor(value_of(y)).sign()


def remainder(input: Any, other: Any) -> Tensor:
    """Decide `torch.remainder`, which is x - floor(x / y) y."""
    result = torch.remainder(input, other)
    # The quotient is rounded to one less than the whole number that it is, which leaves one divisor more.
    return torch.where(_falls_short(input, other, value_of(result) == 0), result + other, result)


def fmod(input: Any, other: Any) -> Tensor:
    """Decide `torch.fmod`, which is x - trunc(x / y) y."""
    result = torch.fmod(input, other)
    falls_short = _falls_short(input, other, value_of(result) == 0, towards_0=True)
    # A number has the dtype of the result, even beside a tensor without axes.
    return torch.where(falls_short, result + _sign(input, other).to(result.dtype) * other, result)


def quotient(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """Decide `torch.div` with a ``rounding_mode``."""
    result = torch.div(input, other, rounding_mode=rounding_mode)
    if rounding_mode is None:
        return result
    towards_0 = rounding_mode == "trunc"
    is_whole = torch.remainder(value_of(input), value_of(other)) == 0
    falls_short = _falls_short(input, other, is_whole, towards_0)
    return result - falls_short * (_sign(input, other).to(result.dtype) if towards_0 else 1)


# Signs and angles, places among numbers, equality, and quantiles.


def copysign(input: Tensor, other: Any) -> Tensor:
    """Decide `torch.copysign`, |x| with the sign of ``other``."""
    signed = value_of(_beyond(other, value_of(other) == 0) if moves(other) else other)
    if not moves(input):
        return torch.copysign(input, signed)
    size = selections.abs(input)
    return size * torch.copysign(torch.ones_like(size), signed)


def atan2(input: Tensor, other: Tensor) -> Tensor:
    """Decide an angle: where x is negative and y is 0, it is pi if y rises, and -pi if y falls."""
    angle = torch.atan2(input, other)
    is_at_cut = (value_of(input) == 0) & (value_of(other) < 0)
    if _is_nowhere(is_at_cut):
        return angle
    value, tangent = value_of(angle), value_and_tangent(input)[1]
    entered = torch.where(is_at_cut & (tangent != 0), torch.copysign(value, tangent), value)
    return angle + (entered - value)  # 0, or a full turn: the derivative of the angle is the same on both sides


def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Decide `torch.bucketize`, by the places of the input among the boundaries."""
    find = functools.partial(torch.bucketize, value_of(input), value_of(boundaries), out_int32=out_int32)
    return _place(find, input, boundaries, right=right)


def searchsorted(
    sorted_sequence: Tensor,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Decide `torch.searchsorted`, as `bucketize`, of a row of boundaries for each row."""
    find = functools.partial(
        torch.searchsorted, value_of(sorted_sequence), value_of(input), out_int32=out_int32, sorter=sorter
    )
    ordered = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    return _place(find, input, ordered, right=right, side=side)


def _place(find: Callable[..., Tensor], input: Any, ordered: Tensor, **on_which_side: Any) -> Tensor:
    """Return the place of ``input`` among sorted numbers: beside an equal one, on the side to which it moves from it.

    ``find`` returns it by the values. Of 2 among (1, 2, 3) it is 1 before the equal number, and 2 behind it.
    """
    at_the_point, before, behind = find(**on_which_side), find(right=False), find(right=True)
    if _is_nowhere(before != behind):
        return at_the_point
    if moves(ordered) and not _is_nowhere(behind - before > 1):  # equal numbers, which may part
        is_right = on_which_side["right"] or on_which_side.get("side") == "right"
        compare = operator.le if is_right else operator.lt
        is_before = holds(compare, ordered.unsqueeze(-2), torch.as_tensor(input).unsqueeze(-1))
        place = is_before.sum(-1).reshape(at_the_point.shape).to(at_the_point.dtype)
        return torch.where(before == behind, at_the_point, place)  # NaN is before none, and torch has it at the end
    tangents = value_and_tangent(ordered)[1]
    index = before.long().clamp(max=max(tangents.size(-1) - 1, 0))
    moved = value_and_tangent(input)[1] - (tangents[index] if tangents.dim() == 1 else tangents.gather(-1, index))
    return torch.where(moved > 0, behind, torch.where(moved < 0, before, at_the_point))


def isclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Decide `torch.isclose`: whether the distance is ``atol + rtol * |other|`` at most."""
    at_the_point = torch.isclose(value_of(input), value_of(other), rtol, atol, equal_nan)
    distance, bound = selections.abs(input - other), atol + rtol * selections.abs(other)
    is_at_bound = (value_of(distance) == value_of(bound)) & value_of(bound).isfinite()
    return torch.where(is_at_bound, holds(operator.le, distance, bound), at_the_point)


def allclose(*args: Any, **kwargs: Any) -> bool:
    return bool(isclose(*args, **kwargs).all())


def equal(input: Tensor, other: Tensor) -> bool:
    return input.shape == other.shape and bool(holds(operator.eq, input, other).all())


def quantile(in_torch: Function) -> Function:
    """Return `torch.quantile` or `torch.nanquantile`: what lies between two of the elements, in their order."""

    def decided(
        input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
    ) -> Tensor:
        by_value = in_torch(value_of(input), value_of(q), dim, keepdim, interpolation=interpolation)
        rows = input.reshape(-1) if dim is None or not input.dim() else input.movedim(dim, -1)
        unknown = rows.isnan().sum(-1, keepdim=True)  # which are sorted to the end
        last = rows.size(-1) - 1
        # A row of these for each row of numbers: the place of each probability among the sorted ones.
        ranks = torch.as_tensor(q, dtype=input.dtype, device=input.device).reshape(-1) * torch.ones_like(unknown)
        if in_torch is torch.nanquantile:
            ranks = (ranks * (last - unknown)).clamp(min=0)
        else:
            ranks = torch.where(unknown > 0, last, ranks * last)
        rounded = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}.get(interpolation)
        ranks = rounded(ranks) if rounded else ranks
        ordered = sort(rows)[0]
        low, high = (ordered.gather(-1, rank.long()) for rank in (ranks.floor(), ranks.ceil()))
        weights = torch.full_like(ranks, 0.5) if interpolation == "midpoint" else ranks - ranks.floor()
        between = low if rounded else torch.lerp(low, high, weights)  # which is NaN where both are infinite
        # The probabilities, of which q has several, have the first axis.
        return number_apart(between.movedim(-1, 0).reshape(by_value.shape))

    return decided
