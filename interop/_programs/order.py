"""Orders numbers that move: by their values, and where these are equal, by their tangents.

It is the order of the values a small step along the tangents: of 1 and 1 with the tangents 2 and -1, the first is the
larger. Each function here looks at dual tensors of `torch.autograd.forward_ad` and says how a choice falls; nothing of
that is differentiated.
"""

import cmath
import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch.autograd import forward_ad

from interop._torch.private_api import depth_of_transformations, is_among, is_any, outside_of_transformations
from interop.native._rules.windows_stage import is_plain

Pair = tuple[torch.Tensor, torch.Tensor]
_DEPTH = ContextVar("depth", default=0)
AT_THE_POINT = "_at_the_point"
"""The attribute of a comparison that was decided, which says where it holds by the values."""


@contextlib.contextmanager
def tangents_at(depth: int) -> Iterator[None]:
    """Let tensors in the block move by the tangents that they have within so many transformations of torch.func.

    What is within more of them may hide these, and have others of its own.
    """
    token = _DEPTH.set(depth)
    try:
        yield
    finally:
        _DEPTH.reset(token)


def is_transformed_within() -> bool:
    """Return whether more transformations of torch.func are at work."""
    return depth_of_transformations() > _DEPTH.get()


def _unpacked(x: torch.Tensor) -> Sequence[Any]:
    return outside_of_transformations(_DEPTH.get(), forward_ad.unpack_dual, x)


def moves(x: Any) -> bool:
    """Return whether ``x`` is a tensor of real or complex numbers that has a tangent, which sparse tensors have not."""
    may_move = isinstance(x, torch.Tensor) and x.layout is torch.strided and (x.is_floating_point() or x.is_complex())
    return may_move and _unpacked(x)[1] is not None


def value_and_tangent(x: Any) -> tuple[Any, Any]:
    """Return the value and the tangent, of the same shape; a number does not move."""
    if not isinstance(x, torch.Tensor):
        return x, 0
    value, tangent = _unpacked(x)
    value = value.detach()
    # One zero in memory, seen at every element.
    return value, value.new_zeros(()).expand_as(value) if tangent is None else tangent.detach()


def may_be_at(x: torch.Tensor, *places: float) -> bool:
    """Return whether an element is equal to one of the places, or nobody looks.

    A look would make a GPU wait, and a graph that is traced has no numbers yet.
    """
    value, _ = value_and_tangent(x)
    return not is_plain(value) or any(is_among(place, value) for place in places)


def holds(comparison: Callable[[Any, Any], Any], x: Any, y: Any) -> torch.Tensor:
    """Return where the comparison holds: ``x > 0`` at x = 0 does where the tangent of x is 2, not where it is -2 or 0.

    Infinities do not move. A tangent of NaN leaves it to the values, but for ``==``: that does not hold if one tangent
    alone is NaN.
    """
    (x_value, x_tangent), (y_value, y_tangent) = value_and_tangent(x), value_and_tangent(y)
    if not isinstance(y, torch.Tensor) and (cmath.isinf(y) or not may_be_at(x, y)):
        return comparison(x_value, y_value)
    tied = x_value == y_value
    if isinstance(y, torch.Tensor):
        tied = tied & torch.isfinite(y_value)
    ahead = _OF_TANGENTS.get(comparison, comparison)(x_tangent, y_tangent)
    at_the_point = comparison(x_value, y_value)
    decided: torch.Tensor = (tied & ahead) | (~tied & at_the_point)
    setattr(decided, AT_THE_POINT, at_the_point)
    return decided


# Of ``sqrt(x * x) >= 0`` at 0 the tangent is 0 / 0, of which ``>=`` does not hold. Neither does ``<``, as of equal
# values: so the comparisons that are not strict are made of those that are.
_OF_TANGENTS: Mapping[Callable[[Any, Any], Any], Callable[[Any, Any], Any]] = {
    operator.ge: lambda dx, dy: ~(dx < dy),
    operator.le: lambda dx, dy: ~(dx > dy),
    operator.eq: lambda dx, dy: (dx == dy) | ((dx != dx) & (dy != dy)),
    operator.ne: lambda dx, dy: (dx != dy) & ((dx == dx) | (dy == dy)),
}


def negated(pair: Pair) -> Pair:
    """Negate the value and the tangent, so that the smallest is the largest."""
    value, tangent = pair
    return -value, -tangent


def place_of_largest(pair: Pair, dim: int) -> torch.Tensor:
    """Return which element along ``dim`` is the largest, or is NaN; the axis stays."""
    value, tangent = pair
    leads = (value == value.amax(dim, keepdim=True)) | (value != value)
    # A tangent of NaN is the largest: the gradient is NaN then, and not that of an element that may not be ahead.
    finite = tangent.clamp(min=torch.finfo(tangent.dtype).min)  # a tangent of -inf stays above what does not lead
    # argmax takes longer, along axes other than the last twice as long.
    return torch.where(leads, finite, -math.inf).max(dim, keepdim=True).indices


def order(pair: Pair, dim: int, descending: bool = False) -> torch.Tensor:
    """Return the permutation along ``dim`` that sorts the elements; NaN counts as the largest."""
    value, tangent = pair
    if is_plain(value) and value.dim():
        by_value = value.argsort(dim=dim, descending=descending, stable=True)
        ordered, before = value.gather(dim, by_value), value.size(dim) - 1
        if not is_any(ordered.narrow(dim, 1, before) == ordered.narrow(dim, 0, before)):
            return by_value
    # A stable sort by values keeps the order by tangents where values are equal.
    by_tangent = tangent.argsort(dim=dim, descending=descending, stable=True)
    by_value = value.gather(dim, by_tangent).argsort(dim=dim, descending=descending, stable=True)
    return by_tangent.gather(dim, by_value)
