"""Reductions by index: each result is the number that is ahead, a small step on, of all that go to it.

Say the numbers 3, 3 and 1 go to one result, and move by 1, 2 and 5. The first two lead by their values, the second of
them by its tangent. Of those that tie in both, the last is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from interop._programs.order import value_and_tangent, value_of
from interop._torch.private_api import is_of_a_batch
from interop.native._rules.windows_stage import is_plain

Tensor = torch.Tensor


def _scatter(
    name: str, input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool
) -> Tensor:
    """Compute torch's function of that name, which reduces elements of ``source`` into those of ``input``."""
    in_torch: Callable[..., Tensor] = getattr(torch, name)
    if reduce == "prod":
        raise NotImplementedError(
            f'{name}: of reduce="prod" torch has the derivative 0 in forward mode; take torch.prod of each group.'
        )
    # The last two are names that `torch.scatter_reduce` takes, and lists nowhere.
    if reduce not in ("amax", "amin", "max", "min"):
        return in_torch(input, dim, index, source, reduce, include_self=include_self)
    best = in_torch(value_of(input), dim, index, value_of(source), reduce, include_self=include_self)
    if name == "scatter_reduce":
        if source.dim() != index.dim():  # which torch allows where index has one element or none
            source = source.flatten()[: index.numel()].view(index.shape)
        source = source[tuple(map(slice, index.shape))]  # what lies beyond, torch leaves out
    elements = torch.cat([input.flatten(), source.flatten()])

    def lead(numbers: Tensor, best: Tensor) -> Tensor:
        """Return which numbers, one for each element, are the best of those that go to their result; NaN is."""
        at_source = best.gather(dim, index) if name == "scatter_reduce" else best.index_select(dim, index)
        return (numbers == torch.cat([best.flatten(), at_source.flatten()])) | numbers.isnan()

    def largest(numbers: Tensor) -> Tensor:
        """Return the largest of the numbers that go to each result."""
        of_input, of_source = numbers.split([input.numel(), source.numel()])
        shaped = of_input.view(input.shape), dim, index, of_source.view(source.shape)
        return in_torch(*shaped, "amax", include_self=include_self)

    leads = lead(value_of(elements), best)
    # For each result one leads at least. Of a batch nobody can look at their number.
    if not is_plain(leads) or is_of_a_batch(leads) or leads.count_nonzero() > input.numel():
        _, tangent = value_and_tangent(elements)
        ahead = torch.where(leads, tangent if reduce in ("amax", "max") else -tangent, -math.inf)
        leads = leads & lead(ahead, largest(ahead))
    places = torch.arange(len(elements), device=elements.device)
    return elements[largest(torch.where(leads, places, -1)).flatten()].view(input.shape)


def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return _scatter("index_reduce", input, dim, index, source, reduce, include_self)


def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return _scatter("scatter_reduce", input, dim, index, src, reduce, include_self)
