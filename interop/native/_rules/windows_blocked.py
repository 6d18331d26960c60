"""Shares the ties of a max pool with overlapping windows in eager code, of images whose channels lie last in memory.

Windows of 2 with stride 1 over the elements (3, 3, 1), for example, are one view of these, ((3, 3), (3, 1)), with the
places in a window as its first axis. One call compares it with the values (3, 3), and one adds up who is tied. There
are fewer calls than in `windows_sliced.py`, so that blocks may be small. All blocks use the same buffers, which stay in
the processor's cache. New ones for each block would have to be brought there.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

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


class _Block:
    """Some images, and what is computed on the way."""

    def __init__(self, windows: Windows, shape: Sequence[int], counts: Sequence[int], like: torch.Tensor) -> None:
        images, *lengths, channels = shape
        in_front = [front for front, _ in windows.paddings]

        # The elements, and the padding in windows: 9 of windows of 3 with stride 2 and padding 1 over 7 elements.
        def padded_length(front: int, length: int, count: int, size: int, stride: int, dilation: int) -> int:
            return max(front + length, (count - 1) * stride + (size - 1) * dilation + 1)

        along = in_front, lengths, counts, windows.sizes, windows.strides, windows.dilations
        padded = like.new_full((images, *map(padded_length, *along), channels), -math.inf)
        inside = (slice(None), *(slice(n, n + length) for n, length in zip(in_front, lengths, strict=True)))

        def in_windows(x: torch.Tensor) -> torch.Tensor:
            """Return a view that has the places in a window as its first axes, and windows in the place of elements."""
            image, *steps, channel = x.stride()
            to_place, to_window = (map(operator.mul, steps, by) for by in (windows.dilations, windows.strides))
            return x.as_strided((*windows.sizes, images, *counts, channels), (*to_place, image, *to_window, channel))

        self._elements, self._places = padded[inside], in_windows(padded)
        self._tied = torch.empty_like(self._places, memory_format=torch.contiguous_format)
        self._shares = like.new_empty(self._places.shape[len(lengths) :])
        self._spread = torch.empty_like(padded)
        self._result = self._spread[inside]
        # Place by place: at one place each window has another element. In a view of several places an element may be
        # twice, and only one of the numbers for it would be added.
        of_rows = zip(in_windows(self._spread), self._tied, strict=True)
        self._parts = [part for of_row in of_rows for part in zip(*of_row, strict=True)]

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
    windows: Any = pooling.windows
    result = torch.empty_like(x)
    of_memory = [tensor.movedim(1, -1) for tensor in (x, values, vector, result)]
    shape, counts = of_memory[0].shape[1:], values.shape[2:]
    like = x.new_empty((), dtype=widened(x.dtype))

    @functools.cache
    def block(images: int) -> _Block:
        return _Block(windows, (images, *shape), counts, like)

    images = max(1, _BLOCK // math.prod(shape))
    for begin in range(0, len(x), images):
        # `split` takes five times as long
        elements, largest, numbers, into = (tensor[begin : begin + images] for tensor in of_memory)
        into.copy_(block(len(into)).spread(elements, largest, numbers))
    return result
