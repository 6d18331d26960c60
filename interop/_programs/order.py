"""Orders numbers that move: by their values, and where these are equal, by their tangents.

It is the order of the values a small step along the tangents: of 1 and 1 with the tangents 2 and -1, the first is the
larger. Each function here looks at dual tensors of `torch.autograd.forward_ad` and says how a choice falls; nothing of
that is differentiated.
"""

import cmath
import contextlib
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np
import torch

from interop._programs.still_places import still_places
from interop._torch.in_numpy import has_one_of, is_any, readable, rounded
from interop._torch.private_api import (
    depth_of_transformations,
    is_of_a_batch,
    of_a_batch,
    outside_of_transformations,
    unpacked,
    without_function_modes,
    without_transformations,
)
from interop.native._rules.windows_stage import is_plain

AT_THE_POINT = "_at_the_point"
"""The attribute of a comparison that was decided, which says where it holds by the values."""


@dataclasses.dataclass
class Tangents:
    """Where the tangents are by which choices are decided."""

    depth: int
    """The transformations of torch.func within which they are. More of them may hide these, and have others."""
    are_late: bool = False
    """Whether no tensor has one yet. What needs a gradient moves all the same, as `late_tangents.py` gives it one."""


class LateTangentError(Exception):
    """A choice asks for a tangent that is late."""


_OUTSIDE = Tangents(0)
_TANGENTS = ContextVar("tangents", default=_OUTSIDE)


@contextlib.contextmanager
def moving_by(tangents: Tangents) -> Iterator[None]:
    """Let tensors in the block move by these tangents."""
    token = _TANGENTS.set(tangents)
    try:
        yield
    finally:
        _TANGENTS.reset(token)


def tangents_around() -> Tangents:
    """Return the tangents by which tensors move."""
    return _TANGENTS.get()


def are_around(tangents: Tangents) -> bool:
    """Return whether tensors move by these tangents, and not by those of a derivative within."""
    return _TANGENTS.get() is tangents


def are_late() -> bool:
    """Return whether the tangents of the block around are late."""
    return _TANGENTS.get().are_late


def is_transformed_within() -> bool:
    """Return whether more transformations of torch.func are at work than around the tangents."""
    return depth_of_transformations() > _TANGENTS.get().depth


def is_nested_at_tangents() -> bool:
    """Return whether the tangents are within another transformation of torch.func, and none is within them."""
    return 1 < depth_of_transformations() == _TANGENTS.get().depth


def _unpacked(x: torch.Tensor) -> Sequence[Any]:
    return outside_of_transformations(_TANGENTS.get().depth, unpacked, x)


def moves(x: Any) -> bool:
    """Return whether ``x`` is a tensor of real or complex numbers that has a tangent, which sparse tensors have not."""
    may_move = isinstance(x, torch.Tensor) and x.layout is torch.strided and (x.is_floating_point() or x.is_complex())
    return may_move and (x.requires_grad if are_late() else _unpacked(x)[1] is not None)


def value_of(x: Any) -> Any:
    """Return the number, or the tensor without its tangent."""
    if not isinstance(x, torch.Tensor):
        return x
    return (x if are_late() else _unpacked(x)[0]).detach()


def value_and_tangent(x: Any) -> tuple[Any, Any]:
    """Return the value and the tangent, of the same shape; a number does not move."""
    if not isinstance(x, torch.Tensor):
        return x, 0
    if are_late() and moves(x):
        raise LateTangentError
    value, tangent = _unpacked(x)
    value = value.detach()
    # One zero in memory, seen at every element.
    return value, value.new_zeros(()).expand_as(value) if tangent is None else tangent.detach()


def may_be_at(x: torch.Tensor, *places: float) -> bool:
    """Return whether an element is equal to one of the places, or nobody looks.

    A look would make a GPU wait, and a graph that is traced has no numbers yet.
    """
    value = value_of(x)
    if not is_plain(value):
        return bool(places)
    if are_late():
        still = still_places(x)  # where either side has the same slope, that of a clamp before it
        places = tuple(place for place in places if place not in still)
    return bool(places) and has_one_of(value, *places)


def may_be_equal(x: Any, y: Any) -> bool:
    """Return whether elements of two tensors, or a tensor and a number, are equal, or nobody looks."""
    equal = value_of(x) == value_of(y)
    return not is_plain(equal) or is_any(equal)


def holds(comparison: Callable[[Any, Any], Any], x: Any, y: Any) -> torch.Tensor:
    """Return where the comparison holds: ``x > 0`` at x = 0 does where the tangent of x is 2, not where it is -2 or 0.

    Infinities do not move. A tangent of NaN leaves it to the values, but for ``==``: that does not hold if one tangent
    alone is NaN.
    """
    if not (may_be_equal(x, y) if isinstance(y, torch.Tensor) else cmath.isfinite(y) and may_be_at(x, y)):
        return comparison(value_of(x), value_of(y))
    parts = *value_and_tangent(x), *value_and_tangent(y)
    x_value, x_tangent, y_value, y_tangent = _in_numpy(*parts)
    tied = x_value == y_value
    if isinstance(y, torch.Tensor):
        tied = tied & (torch if isinstance(y_value, torch.Tensor) else np).isfinite(y_value)
    ahead = _OF_TANGENTS.get(comparison, comparison)(x_tangent, y_tangent)
    at_the_point = comparison(x_value, y_value)
    decided = torch.as_tensor((tied & ahead) | (~tied & at_the_point))
    setattr(decided, AT_THE_POINT, torch.as_tensor(at_the_point))
    return decided


def step_from(x: torch.Tensor, places: Mapping[float, int]) -> torch.Tensor:
    """Return what moves each element that is at a place to a neighbour, to which its tangent points; elsewhere 0.

    Where the tangent is 0, it is moved as the place is mapped: up for 1, down for -1, not at all for 0. A neighbour is
    one or two floats away. Of 0 it is the smallest normal number, as processors are slow with smaller ones, and in
    float16, which they compute in float32, the smallest number.
    """
    value, tangent, *numbers = _in_numpy(*value_and_tangent(x), *places)
    xp: Any = torch if isinstance(value, torch.Tensor) else np
    finfo = torch.finfo(x.dtype)
    smallest = finfo.tiny * (finfo.eps if x.dtype is torch.float16 else 1)
    steps = []
    for number, of_still in zip(numbers, places.values(), strict=True):
        # One float at least, also from what the dtype rounds to a power of two, as 1 - 1e-8: floats above are sparser.
        size = max(abs(number) * finfo.eps, smallest)
        sizes = (value == number) * xp.asarray(size, dtype=value.dtype)
        # A tangent of NaN points nowhere.
        up = tangent >= 0 if of_still > 0 else tangent > 0
        down = tangent <= 0 if of_still < 0 else tangent < 0
        steps.append(up * sizes - down * sizes)
    return torch.as_tensor(functools.reduce(operator.add, steps), dtype=x.dtype)


def _in_numpy(*operands: Any) -> Sequence[Any]:
    """Return tensors and numbers as numpy has them; all as they are where it cannot read one, as of a batch."""
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    if len({x.dtype for x in tensors}) > 1 or not all(is_plain(x) and not is_of_a_batch(x) for x in tensors):
        return operands
    with without_transformations(), without_function_modes():
        return [readable(of_a_batch(x)) if isinstance(x, torch.Tensor) else rounded(x, tensors[0]) for x in operands]


# Of ``sqrt(x * x) >= 0`` at 0 the tangent is 0 / 0, of which ``>=`` does not hold. Neither does ``<``, as of equal
# values: so the comparisons that are not strict are made of those that are.
_OF_TANGENTS: Mapping[Callable[[Any, Any], Any], Callable[[Any, Any], Any]] = {
    operator.ge: lambda dx, dy: ~(dx < dy),
    operator.le: lambda dx, dy: ~(dx > dy),
    operator.eq: lambda dx, dy: (dx == dy) | ((dx != dx) & (dy != dy)),
    operator.ne: lambda dx, dy: (dx != dy) & ((dx == dx) | (dy == dy)),
}


Sign: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""`as_is` for what is the largest, and `torch.neg` for the smallest, which is the largest of the negated numbers."""


def as_is(x: torch.Tensor) -> torch.Tensor:
    return x


def place_of_largest(x: torch.Tensor, dim: int, sign: Sign) -> torch.Tensor:
    """Return which element along ``dim`` is the largest, or is NaN; the axis stays."""
    return place_ahead(sign(value_of(x)), lambda: sign(value_and_tangent(x)[1]), dim)


def place_ahead(value: torch.Tensor, tangent: Callable[[], torch.Tensor], dim: int) -> torch.Tensor:
    """Return which element along ``dim`` is the largest a small step ahead; the axis stays.

    Where values are equal the tangents say so, which are asked for only then. Of the values (1, 3, 3) with the tangents
    (9, 1, 2) it is the last. A value of NaN is ahead of all others, and a tangent of NaN counts as infinity.
    """
    (numbers,) = _in_numpy(value) if value.dim() else (value,)
    xp: Any = torch if isinstance(numbers, torch.Tensor) else np
    leads = (numbers == xp.amax(numbers, axis=dim, keepdims=True)) | (numbers != numbers)
    if xp is np:
        has_ties = np.count_nonzero(leads) * leads.shape[dim] > leads.size
    else:
        has_ties = not is_plain(value) or is_any(leads.sum(dim) > 1)
    if not has_ties:
        return _first(leads, dim)
    (speeds,) = _in_numpy(tangent())
    if xp is torch or isinstance(speeds, torch.Tensor):  # a batch of points, or of directions
        xp, leads, speeds = torch, torch.as_tensor(leads), torch.as_tensor(speeds)
    # What does not lead becomes minus infinity, by a minimum with that: `where` takes five times as long. What leads
    # has to stay above. NaN becomes infinity: where it may be ahead, the gradient is NaN, and no wrong number.
    finite = speeds.clip(xp.finfo(speeds.dtype).min, None)
    ahead = xp.fmin(finite, (leads + xp.asarray(-0.5, dtype=speeds.dtype)) * math.inf)
    return _first(ahead == xp.amax(ahead, axis=dim, keepdims=True), dim)


def _first(mask: Any, dim: int) -> torch.Tensor:
    """Return where the mask is first true along ``dim``, as it is somewhere; the axis stays."""
    if isinstance(mask, torch.Tensor):
        return mask.max(dim, keepdim=True).indices
    lines = np.moveaxis(mask, dim, -1)
    if lines.flags.c_contiguous:
        place = lines.argmax(-1)
    else:  # the places before are counted, in a tenth of the time
        place = np.zeros(lines.shape[:-1], np.int64)
        is_before = np.ones(place.shape, bool)
        for k in range(lines.shape[-1] - 1):
            is_before &= ~lines[..., k]
            place += is_before
    return torch.as_tensor(place).unsqueeze(dim)


def order(x: torch.Tensor, dim: int, sign: Sign = as_is, descending: bool = False) -> torch.Tensor:
    """Return the permutation along ``dim`` that sorts the elements; NaN counts as the largest."""
    value = sign(value_of(x))
    if is_plain(value) and value.dim():
        ordered, by_value = value.sort(dim=dim, descending=descending, stable=True)
        if not follows(ordered, ordered, dim):
            return by_value
    if (keys := keys_of(x, sign)) is not None:
        return keys.argsort(dim=dim, descending=descending, stable=True)
    value, tangent = map(sign, value_and_tangent(x))
    # A stable sort by values keeps the order by tangents where values are equal.
    by_tangent = tangent.argsort(dim=dim, descending=descending, stable=True)
    by_value = value.gather(dim, by_tangent).argsort(dim=dim, descending=descending, stable=True)
    return by_tangent.gather(dim, by_value)


def keys_of(x: torch.Tensor, sign: Sign = as_is) -> torch.Tensor | None:
    """Return integers in the order that the elements have a small step on; None of float64, and where numpy has no x.

    The upper half of an integer is made of the value, the lower half of the tangent.
    """
    value, tangent = _in_numpy(*map(sign, value_and_tangent(x)))
    if isinstance(value, torch.Tensor) or value.dtype != np.float32:
        return None
    return torch.as_tensor((_in_order(value).astype(np.int64) << 32) + _in_order(tangent))


def _in_order(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return integers in the order of floats of 32 bits, of which NaN is the largest, and both zeros are equal.

    The bits of floats, read as integers, are in their order from 0 on, and those of negative floats in reverse.
    """
    floats = x + np.float32(0)  # which makes 0 of -0
    np.copyto(floats, np.nan, where=np.isnan(x))  # whose sign may be either
    bits = np.asarray(floats).view(np.int32)
    return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))


def follows(x: torch.Tensor, y: torch.Tensor, dim: int) -> bool:
    """Return whether an element of x is equal to the one of y before it along ``dim``."""
    further = max(x.size(dim) - 1, 0)
    return is_any(x.narrow(dim, x.size(dim) - further, further) == y.narrow(dim, 0, further))


def place_in_order(
    x: torch.Tensor, dim: int, in_torch: Callable[..., Any], in_order: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return which element torch's function takes along ``dim``, as the median; the axis stays.

    If others are equal to that one, ``in_order`` says which it is by the permutation that sorts the elements.
    """
    value = value_of(x)
    if is_plain(value):
        taken = in_torch(value, dim=dim, keepdim=True)
        if not is_any((value == taken.values).sum(dim) > 1):
            return taken.indices
    return in_order(order(x, dim))
