"""Shares the ties of a max pool with overlapping windows in eager code, of images whose channels lie last in memory.

Windows of 2 with stride 1 over the elements (3, 3, 1), for example, are one view of these, ((3, 3), (3, 1)), with the
places in a window as its first axis. One call compares it with the values (3, 3), and one adds up who is tied. There
are fewer calls than in `windows_sliced.py`, so that blocks may be small. All blocks use the same buffers, which stay in
the processor's cache. New ones for each block would have to be brought there.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch

from interop.native._rules.reductions import widened
from interop.native._rules.windows_stage import Pooling, is_channels_last, is_finite, is_plain
from jaxclamp._rules.windows import Windows

_BLOCK = 2**16
"""The elements of a block of several images; of larger ones, each is a block."""
_LARGEST = 2**20
"""The elements of an image up to which this is faster than axis by axis. Windows of 3 x 3 with stride 1 take nine times
the memory of one, 36 MiB, for who is tied."""
_FEW_PLACES = 9
"""The elements of a window up to which this is faster than axis by axis."""


class _Axis(NamedTuple):
    """The windows along an axis."""

    number: int
    size: int
    stride: int
    padding: int
    """The padding in front."""
    dilation: int
    length: int
    """The elements."""

    @property
    def padded(self) -> int:
        """The elements, and the padding in windows: 9 for windows of 3 with stride 2 and padding 1 over 7 elements."""
        return max(self.padding + self.length, (self.number - 1) * self.stride + (self.size - 1) * self.dilation + 1)

    @property
    def inside(self) -> slice:
        """Where the elements are among these."""
        return slice(self.padding, self.padding + self.length)

    def places(self, padded: torch.Tensor, axis: int) -> torch.Tensor:
        """Return a view that has the windows in place of the elements, and the places in a window as its first axis."""
        shape, steps = list(padded.shape), list(padded.stride())
        step = steps[axis]
        shape[axis], steps[axis] = self.number, step * self.stride
        return padded.as_strided((self.size, *shape), (step * self.dilation, *steps), padded.storage_offset())


class _Block:
    """Some images, and what is computed on the way."""

    def __init__(self, rows: _Axis, columns: _Axis, images: int, channels: int, like: torch.Tensor) -> None:
        padded = like.new_full((images, rows.padded, columns.padded, channels), -math.inf)
        windows = columns.places(rows.places(padded, 1), 3)
        inside = (slice(None), rows.inside, columns.inside)
        self._elements, self._places = padded[inside], windows
        self._tied = torch.empty_like(windows, memory_format=torch.contiguous_format)
        self._shares = like.new_empty(windows.shape[2:])
        self._spread = torch.empty_like(padded)
        self._result = self._spread[inside]
        # Place by place: at one place each window has another element. In a view of several places an element may be
        # twice, and only one of the numbers for it would be added.
        of_columns = zip(columns.places(rows.places(self._spread, 1), 3), self._tied, strict=True)
        self._parts = [part for of_column in of_columns for part in zip(*of_column, strict=True)]

    def spread(self, x: torch.Tensor, values: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        """Return the result in a buffer."""
        self._elements.copy_(x)
        torch.eq(self._places, values.to(self._tied.dtype), out=self._tied)
        torch.sum(self._tied.flatten(0, 1), 0, out=self._shares)
        torch.div(vector, self._shares, out=self._shares)
        self._spread.zero_()
        for part, tied in self._parts:
            part.addcmul_(tied, self._shares)
        return self._result


def is_spread_in_blocks(pooling: Pooling, x: torch.Tensor, values: torch.Tensor, vector: torch.Tensor) -> bool:
    """Return whether `spread_in_blocks` is right, which adds 0 times a number where there is no tie, and fast."""
    windows = pooling.windows
    return (
        is_plain(x)
        and is_channels_last(x)
        and isinstance(windows, Windows)
        and pooling.dims == 2
        and pooling.convention != "exclusive"
        and math.prod(windows.sizes) <= _FEW_PLACES
        and math.prod(x.shape[1:]) <= _LARGEST
        and not windows.tile(tuple(x.shape))
        and is_finite(values)
        and is_finite(vector)
    )


def spread_in_blocks(pooling: Pooling, x: torch.Tensor, values: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Spread a number for each window over its tied elements."""
    like = x.new_empty((), dtype=widened(x.dtype))
    rows, columns = _axes(pooling, x, values)

    @functools.cache
    def block(images: int) -> _Block:
        return _Block(rows, columns, images, x.shape[1], like)

    result = torch.empty_like(x)
    images = max(1, _BLOCK // math.prod(x.shape[1:]))
    of_memory = [tensor.movedim(1, -1) for tensor in (x, values, vector, result)]
    for begin in range(0, len(x), images):
        # `split` takes five times as long
        elements, largest, numbers, into = (tensor[begin : begin + images] for tensor in of_memory)
        into.copy_(block(len(into)).spread(elements, largest, numbers))
    return result


def _axes(pooling: Pooling, x: torch.Tensor, values: torch.Tensor) -> list[_Axis]:
    windows: Any = pooling.windows
    in_front = [front for front, _ in windows.paddings]
    of_windows = values.shape[2:], windows.sizes, windows.strides, in_front, windows.dilations
    return [_Axis(*numbers) for numbers in zip(*of_windows, x.shape[2:], strict=True)]
