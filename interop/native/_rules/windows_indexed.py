"""Shares the ties of a max pool by one index of all elements of all windows: the fewest calls, for small tensors.

Windows of 2 with stride 1 over the elements (3, 3, 1), for example, have the index [[0, 1], [1, 2]], a row for each
place in the windows. It gathers the elements [[3, 3], [3, 1]], which are tied where they equal the values (3, 3). So
everything is there as often as there are windows that have it, where `windows_sliced.py` reads it in its place.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from interop.native._rules.reductions import sharing
from interop.native._rules.stage import AdaptiveWindows, Pooling, is_channels_last, is_plain
from interop.native._rules.windows_compiled import Read, elements_along
from jaxclamp._rules.windows import Windows


class IndexedStage(NamedTuple):
    """A `Stage` of the whole pooling."""

    x: torch.Tensor
    values: torch.Tensor
    dims: int
    places: torch.Tensor
    """The index: a row for each place in the windows, a column for each window."""
    tied: torch.Tensor
    """Which of these elements get a share."""

    def counted(self, like: torch.Tensor) -> torch.Tensor:
        return self._summed(self.tied)

    def gathered(self, vector: torch.Tensor) -> torch.Tensor:
        return self._summed(torch.where(self.tied, vector.flatten(-self.dims)[..., self.places], 0))

    def _summed(self, parts: torch.Tensor) -> torch.Tensor:
        return parts.sum(-2).reshape(self.values.shape)

    def spread(self, vector: torch.Tensor) -> torch.Tensor:
        parts = torch.where(self.tied, vector.flatten(-self.dims).unsqueeze(-2), 0).flatten(-2)
        zeros = vector.new_zeros(self.x.flatten(-self.dims).shape)
        # Added, as an element may be in several windows.
        spread = zeros.scatter_add_(-1, self.places.flatten().expand_as(parts), parts).reshape(self.x.shape)
        # The flat buffer is row-major, and a gradient should lie in memory as its tensor does.
        return spread.contiguous(memory_format=torch.channels_last) if is_channels_last(self.x) else spread


def indexed_stage(pooling: Pooling, x: torch.Tensor, values: torch.Tensor) -> IndexedStage:
    """Return the pooling at once."""
    dims = pooling.dims
    index_of = _index_of_plain if is_plain(x) else _index  # one that is kept is no part of a graph
    index, exist = index_of(pooling.windows, tuple(x.shape[-dims:]), tuple(values.shape[-dims:]), x.device)
    elements = x.flatten(-dims)[..., index]
    tied = ((elements == values.flatten(-dims).unsqueeze(-2)) | (elements != elements)) & exist
    return IndexedStage(x, values, dims, index, sharing(tied, (tied.dim() - 2,), pooling.convention))


def _index(
    windows: Windows | AdaptiveWindows, lengths: Sequence[int], counts: Sequence[int], device: torch.device
) -> Read:
    """Return the index, and which elements in it exist: where one does not, another stands in its place."""
    index = torch.zeros((1, 1), dtype=torch.int64, device=device)
    exist = torch.ones((1, 1), dtype=torch.bool, device=device)
    for axis, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        reads = elements_along(windows, axis, length, count, device)
        at, there = (torch.stack(parts).unsqueeze(1) for parts in zip(*reads, strict=True))
        # The places and windows so far, each with those along this axis.
        index = (index[:, None, :, None] * length + at).flatten(0, 1).flatten(1)
        exist = (exist[:, None, :, None] & there).flatten(0, 1).flatten(1)
    return index, exist


_index_of_plain = functools.lru_cache(maxsize=256)(_index)
