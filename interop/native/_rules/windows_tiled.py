"""Computes max pools whose windows tile the images, in eager code: rows of an image are read as they lie in memory.

Of windows of 2 x 2 over the rows (3, 1, 2, 2) and (3, 0, 1, 2), for example, the largest elements are (3, 2). Repeated
along the row, (3, 3, 2, 2), they are compared with both rows at once: (1, 0, 1, 1) and (1, 0, 0, 1) are tied. Their
sum is (2, 0, 1, 2), and that of each two in it the counts (2, 3). `windows_sliced.py` would read every other element.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from interop.native._rules.reductions import widened
from interop.native._rules.windows_stage import Pooling, at_ties, counter_of, is_channels_last, is_finite
from jaxclamp._rules.windows import Windows

_ONE_BY_ONE = 4
"""The elements of a window along an axis up to which they are added one by one, which is faster than a reduction."""


class _Tiling(NamedTuple):
    """How the windows tile the images, each with the channels behind its last axis if they lie so in memory."""

    images: int
    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    """The windows along each axis."""
    channels: int | None
    """The channels that lie last in memory, if they do."""

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return the elements of x in rows; two axes for each further one say in which window one is, and where."""
        outer = [n for pair in zip(self.counts[:-1], self.sizes[:-1], strict=True) for n in pair]
        return self._in_memory(x).reshape(self.images, *outer, self._last(self.sizes[-1]))

    def repeated(self, values: torch.Tensor) -> torch.Tensor:
        """Return the number of each window for all of its elements in a row; the result broadcasts with `rows`."""
        outer = [n for count in self.counts[:-1] for n in (count, 1)]
        count, size = self.counts[-1], self.sizes[-1]
        each = self._in_memory(values).reshape(self.images * math.prod(self.counts[:-1]), count, *self._behind())
        # Either way takes a third of the time of a copy with an axis expanded. Numbers of 16 bits are read by an index
        # in float32, as torch takes six times as long for them.
        if self.channels is None:
            wide = each.to(widened(each.dtype))
            each = wide.index_select(1, torch.arange(count * size, device=each.device) // size).to(each.dtype)
        else:
            each = torch.stack([each] * size, 2)
        return each.reshape(self.images, *outer, self._last(size))

    def reduced(
        self, rows: torch.Tensor, of_two: Callable[..., torch.Tensor], along: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """Reduce what `rows` returned to a number for each window, by a function of two tensors, or along an axis."""

        def reduce(x: torch.Tensor, axis: int, size: int) -> torch.Tensor:
            return functools.reduce(of_two, x.unbind(axis)) if size <= _ONE_BY_ONE else along(x, axis)

        for axis in reversed(range(len(self.sizes) - 1)):
            rows = reduce(rows, 2 * axis + 2, self.sizes[axis])
        behind = self._behind()
        return reduce(rows.unflatten(-1, (self.counts[-1], self.sizes[-1], *behind)), -1 - len(behind), self.sizes[-1])

    def _behind(self) -> tuple[int, ...]:
        return () if self.channels is None else (self.channels,)

    def _last(self, size: int) -> int:
        return self.counts[-1] * size * (self.channels or 1)

    def _in_memory(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.channels is None else x.movedim(1, -1)

    def back(self, reduced: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """Return numbers in the order of memory as a tensor of that shape."""
        if self.channels is None:
            return reduced.reshape(shape)
        return reduced.reshape(*shape[:1], *shape[2:], self.channels).movedim(-1, 1)


class TiledStage(NamedTuple):
    """A `Stage` of the whole pooling."""

    x: torch.Tensor
    values: torch.Tensor
    tiling: _Tiling
    weights: torch.Tensor
    """The weight 1 for an element that gets a share, else 0, in rows."""

    def counted(self, like: torch.Tensor) -> torch.Tensor:
        weights = self.weights.to(counter_of(self.x.dtype, math.prod(self.tiling.sizes)))
        return self._summed(weights)

    def gathered(self, vector: torch.Tensor) -> torch.Tensor:
        return self._summed(at_ties(self.tiling.rows(vector), self.weights, is_finite(vector)))

    def _summed(self, rows: torch.Tensor) -> torch.Tensor:
        return self.tiling.back(self.tiling.reduced(rows, torch.add, torch.sum), self.values.shape)

    def spread(self, vector: torch.Tensor) -> torch.Tensor:
        repeated = self.tiling.repeated(vector)
        # In the place of the weights, which have been counted: a buffer less goes through the processor's cache.
        spread = self.weights.mul_(repeated) if is_finite(vector) else at_ties(repeated, self.weights, False)
        return self.tiling.back(spread, self.x.shape)


def are_tiles(pooling: Pooling, x: torch.Tensor) -> bool:
    """Return whether each element of x is in exactly one window of several axes, with others, and nothing else is.

    Along one axis alone, repeating the values takes longer than reading every other element. The largest element of
    windows of one would be a view of x.
    """
    windows = pooling.windows
    if pooling.dims == 1 or not isinstance(windows, Windows) or set(windows.sizes) == {1}:
        return False
    return windows.tile(tuple(x.shape))


def largest_of_tiles(pooling: Pooling, x: torch.Tensor) -> torch.Tensor:
    """Return the largest element of each window."""
    tiling = _tiling(pooling, x)
    largest = tiling.reduced(tiling.rows(x), torch.maximum, torch.amax)
    return tiling.back(largest, torch.Size((*x.shape[: -pooling.dims], *tiling.counts)))


def tiled_stage(pooling: Pooling, x: torch.Tensor, values: torch.Tensor) -> TiledStage:
    """Return the pooling at once."""
    tiling = _tiling(pooling, x)
    rows, largest = tiling.rows(x), tiling.repeated(values)
    if is_finite(values):
        weights = torch.eq(rows, largest, out=torch.empty_like(rows))  # numbers, in half the time of bools
    else:
        weights = ((rows == largest) | (rows != rows)).to(x.dtype)
    return TiledStage(x, values, tiling, weights)


def _tiling(pooling: Pooling, x: torch.Tensor) -> _Tiling:
    windows: Any = pooling.windows
    lengths = x.shape[-pooling.dims :]
    counts = tuple(length // size for length, size in zip(lengths, windows.sizes, strict=True))
    last = pooling.dims == 2 and is_channels_last(x)  # a volume without a batch, of `max_pool3d`, has four axes as well
    return _Tiling(
        math.prod(x.shape[:1] if last else x.shape[: -pooling.dims]),
        windows.sizes,
        counts,
        x.shape[1] if last else None,
    )
