"""Functions that sort: equal elements are in the order that they have a small step on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from interop._programs.choices.reductions import taken
from interop._programs.choices.roots import selecting
from interop._programs.order import Sign, follows, keys_of, order, place_in_order, value_of
from interop.native._rules.windows_stage import is_plain

Tensor = torch.Tensor


# What is decided here is one of the orders that ``stable=False`` and ``sorted=False`` leave open.
@selecting
def sort(input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Any:
    index = order(input, dim, descending=descending)
    return torch.return_types.sort((input.gather(dim, index), index))


def argsort(input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Tensor:
    return order(input, dim, descending=descending)


@selecting
def msort(input: Tensor) -> Tensor:
    return input.gather(0, order(input, 0))


@selecting
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Return the first elements in the order."""
    # One element is in order, and has no axis to sort along; torch refuses other numbers.
    if not input.dim() or not 0 <= k <= input.size(dim):
        return torch.topk(input, k, dim)
    index, value = None, value_of(input)
    if is_plain(value):
        # To sort all takes several times as long, and matters if two of the first are equal, or the last and the next.
        first = torch.topk(value, min(k + 1, value.size(dim)), dim, largest)
        if not follows(first.values, first.values, dim):
            index = first.indices
        elif (keys := keys_of(input)) is not None:
            index = torch.topk(keys, k, dim, largest).indices
    index = (order(input, dim, descending=largest) if index is None else index).narrow(dim, 0, k)
    return torch.return_types.topk((input.gather(dim, index), index))


@selecting
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the element of that number in the order."""
    if not input.dim() or not 1 <= k <= input.size(dim):  # which torch refuses
        return torch.kthvalue(input, k, dim, keepdim)
    in_torch = functools.partial(torch.kthvalue, k=k)
    index = place_in_order(input, dim, in_torch, lambda order: order.narrow(dim, k - 1, 1))
    return torch.return_types.kthvalue(taken(input, dim, index, keepdim))


def median(name: str) -> Callable[..., Any]:
    """Return `torch.median` or `torch.nanmedian`."""

    @selecting
    def along_an_axis(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is None:
            return along_an_axis(input.flatten(), 0)[0]

        def middle_of(order: Tensor) -> Tensor:
            unknown = torch.isnan(input).sum(dim, keepdim=True)
            length = input.size(dim) if input.dim() else 1
            middle = (length - 1 - unknown).clamp(min=0) // 2  # the lower of two, as torch has it
            if name == "median":  # what is NaN in part is NaN, which is sorted to the end
                middle = torch.where(unknown > 0, length - 1, middle)
            return order.gather(dim, middle)

        index = place_in_order(input, dim, getattr(torch, name), middle_of)
        return getattr(torch.return_types, name)(taken(input, dim, index, keepdim))

    return along_an_axis


def cumulative(name: str, sign: Sign) -> Callable[..., Any]:
    """Return `torch.cummax` or `torch.cummin`."""

    @selecting
    def along_an_axis(input: Tensor, dim: int) -> Any:
        index, value = None, sign(value_of(input))
        if input.dim() and is_plain(value):
            so_far = torch.cummax(value, dim)
            index = None if follows(value, so_far.values, dim) else so_far.indices
        if index is None:
            if (keys := keys_of(input, sign)) is None:
                # Ranks are the inverse of the order.
                keys = order(input, dim, sign).argsort(dim)
            index = torch.cummax(keys, dim).indices
        return getattr(torch.return_types, name)((input.gather(dim, index), index))

    return along_an_axis
