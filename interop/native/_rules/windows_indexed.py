"""Shares the ties of a max pool by one index of all elements of all windows: the fewest calls, for small tensors.

Windows of 2 with stride 1 over the elements (3, 3, 1), for example, have the index [[0, 1], [1, 2]], a row for each
place in the windows. It gathers the elements [[3, 3], [3, 1]], which are tied where they equal the values (3, 3). So
everything is there as often as there are windows that have it, where `windows_sliced.py` reads it in its place.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from interop.native._rules.reductions import sharing, widened
from interop.native._rules.windows_compiled import elements_along
from interop.native._rules.windows_stage import AdaptiveWindows, Pooling, at_ties, is_finite, is_plain, lying_as
from jaxclamp._rules.windows import Windows


class IndexedStage(NamedTuple):
    """A `Stage` of the whole pooling, of images as rows: torch reads a matrix by an index in a third of the time."""

    x: torch.Tensor
    values: torch.Tensor
    length: int
    """The elements of an image."""
    places: torch.Tensor
    """The index of the elements, in row-major order of the places in the windows, and then of the windows."""
    weights: torch.Tensor
    """For each row, place and window the weight 1 for an element that gets a share, else 0."""

    def counted(self, like: torch.Tensor) -> torch.Tensor:
        return self.weights.sum(1, dtype=widened(self.x.dtype)).reshape(self.values.shape)

    def gathered(self, vector: torch.Tensor) -> torch.Tensor:
        rows = vector.reshape(self.weights.shape[0], self.length)
        parts = rows.index_select(1, self.places).reshape(self.weights.shape)
        return at_ties(parts, self.weights, is_finite(vector)).sum(1).reshape(self.values.shape)

    def spread(self, vector: torch.Tensor) -> torch.Tensor:
        rows, places, windows = self.weights.shape
        parts = at_ties(vector.reshape(rows, 1, windows), self.weights, is_finite(vector))
        zeros = vector.new_zeros(rows, self.length)
        # Added, as an element may be in several windows.
        spread = zeros.index_add_(1, self.places, parts.reshape(rows, places * windows))
        return lying_as(self.x, spread.reshape(self.x.shape))


def indexed_stage(pooling: Pooling, x: torch.Tensor, values: torch.Tensor) -> IndexedStage:
    """Return the pooling at once."""
    lengths, counts = x.shape[-pooling.dims :], values.shape[-pooling.dims :]
    where = pooling.windows, lengths, counts, x.device
    # Kept for plain tensors alone: what is made while a graph is traced, such as a fake tensor, is of no use elsewhere.
    index, exist = _index_of_plain(x.dtype, *where) if is_plain(x) else index_of_windows(*where)
    length, rows = math.prod(lengths), x.numel() // math.prod(lengths)
    (places, windows), index = index.shape, index.flatten()
    read = x.reshape(rows, length).index_select(1, index).reshape(rows, places, windows)
    largest = values.reshape(rows, 1, windows)
    if pooling.convention != "exclusive" and is_finite(values):
        weights = read.eq_(largest)  # in the memory of what was gathered, which is a copy
        if exist is not None:
            weights.mul_(exist)
    else:
        tied = (read == largest) | (read != read)
        if exist is not None:
            tied = tied & (exist != 0)
        weights = sharing(tied, (1,), pooling.convention).to(x.dtype)
    return IndexedStage(x, values, length, index, weights)


def index_of_windows(
    windows: Windows | AdaptiveWindows, lengths: Sequence[int], counts: Sequence[int], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each place in a window (rows) and each window (columns) the element there, and whether it exists.

    Places, windows and elements are in row-major order. Where an element does not exist, another stands in its place.
    """
    index = torch.zeros((1, 1), dtype=torch.int64, device=device)
    exist = torch.ones((1, 1), dtype=torch.bool, device=device)
    for axis, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        reads = elements_along(windows, axis, length, count, device)
        at, there = (torch.stack(parts).unsqueeze(1) for parts in zip(*reads, strict=True))
        # The places and windows so far, each with those along this axis: a row-major index is row * length + column.
        index = (index[:, None, :, None] * length + at).flatten(0, 1).flatten(1)
        exist = (exist[:, None, :, None] & there).flatten(0, 1).flatten(1)
    return index, exist


@functools.lru_cache(maxsize=64)
def _index_of_plain(dtype: torch.dtype, *where: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what `index_of_windows` does, but 1 where an element exists, and 0 where not; None if all exist."""
    index, exist = index_of_windows(*where)
    return index, None if exist.all() else exist.to(dtype)
