"""Computes max pools in eager code, values and shares of ties: each place in the windows is a slice of the elements.

In windows of 2 with stride 1 over the elements (3, 3, 1), for example, the first place has the elements (3, 3), and the
second (3, 1). The values are the maximum of the two slices, (3, 3). Compared with these, the first slice is tied in
(True, True) and the second in (True, False): in window 0 two elements share, in window 1 there is one. The cotangents
(a, b) of the windows, divided by these counts, are added to each slice where it is tied: (a/2, a/2 + b, 0).

Along several axes, the largest element of a window is the largest of its rows. So values are computed axis by axis, and
ties are shared so too, unless windows have few elements. torch's kernel spends its time on the index of each maximum.
Slices find the values in a tenth of that time, which leaves room to share ties.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from interop._torch.in_numpy import readable
from interop._torch.private_api import is_traced
from interop.native._rules.windows_stage import (
    AdaptiveWindows,
    Pooling,
    Stage,
    at_ties,
    counter_of,
    is_channels_last,
    is_finite,
    is_plain,
    span,
)
from interop.native._rules.windows_tiled import are_tiles, largest_of_tiles, tiled_stage
from jaxclamp._rules.windows import Windows

Index: TypeAlias = tuple[Any, ...]
Place: TypeAlias = tuple[Index, Index]
"""``(elements, windows)``: indices of some elements, and of the windows that have them.

They are the elements at one place of all windows where those are alike, else all elements of one window.
"""
Tied: TypeAlias = tuple[Tensor, Index, Index]
"""``(weights, elements, windows)``: a place, with the weight 1 for an element that gets a share, else 0."""

_AT_ONCE = 8
"""The places up to which ties are shared in one stage, and not in one for each axis.

A window of 2 x 2 x 2 has 8 places, each with an eighth of the elements. Its axes have 6 places, but the first two of
these have half of them. A window of 3 x 3 has 9 places; its axes have 6.
"""
_FEW_PLACES = 16
"""The places up to which the largest elements of windows are counted at once, whose weights nobody needs."""
_BLOCK = 2**18
"""The elements in whose blocks the values of images in ``channels_last`` are found."""
_FEW = 8_192
"""The elements up to which the calls that slices take cost more than torch's kernel."""


class _Line(NamedTuple):
    """The windows along an axis."""

    places: Sequence[tuple[slice, slice]]
    number: int
    """The number of windows."""
    size: int
    """The elements of a window at most."""
    has_whole: bool
    """Whether the first place is in all windows."""


def prefers_slices(x: Tensor, dims: int) -> bool:
    """Return whether slices find the values of a pool of a plain tensor sooner than torch's kernel.

    They lie in memory as the elements do, those of torch as rows or channels.
    """
    return (
        not is_traced()  # where a size is a tensor
        and x.numel() > _FEW
        and x.is_floating_point()
        and x.dim() - dims in (1, 2)
        and (x.is_contiguous() or (dims == 2 and is_channels_last(x)))
    )


def largest_by_slices(pooling: Pooling, x: Tensor) -> Tensor:
    """Return the largest element of each window."""
    if are_tiles(pooling, x):
        return largest_of_tiles(pooling, x)
    lines = _lines(pooling, x.shape[-pooling.dims :])
    if pooling.dims != 2 or not (is_plain(x) and is_channels_last(x)):
        for axis, line in enumerate(lines, -pooling.dims):
            x = _largest_along(line, axis, x, x)
        return x
    # In blocks, which share the memory of what is found along the rows: it stays in the processor's cache.
    rows, columns = lines
    images = max(1, _BLOCK * len(x) // x.numel())
    by_rows = empty_as(x, x, (min(images, len(x)), x.shape[1], rows.number, x.shape[3]))
    result = empty_as(x, x, (*x.shape[:2], rows.number, columns.number))
    for block, largest in zip(x.split(images), result.split(images), strict=True):
        so_far = _largest_along(rows, -2, block, block, by_rows[: len(block)])
        _largest_along(columns, -1, so_far, so_far, largest)
    return result


def has_few_places(pooling: Pooling, x: Tensor) -> bool:
    """Return whether `number_of_largest` is right, and faster than to share: of plain numbers, and small windows."""
    windows = pooling.windows
    return (
        isinstance(windows, Windows)
        and math.prod(windows.sizes) <= _FEW_PLACES
        and is_plain(x)
        and x.is_floating_point()
    )


def number_of_largest(pooling: Pooling, x: Tensor, values: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return how many elements of each window equal its value, none if that is NaN."""
    elements, largest = readable(x), readable(values)
    counts = np.zeros_like(largest, np.uint8)
    for at, windows in _places(pooling, x.shape[-pooling.dims :]):
        # As numbers already, since a sum that converts truth values takes longer.
        counts[windows] += (elements[at] == largest[windows]).view(np.uint8)
    return counts


@functools.lru_cache(maxsize=1024)
def _places(pooling: Pooling, lengths: tuple[int, ...]) -> Sequence[Place]:
    """Return the places along all axes of images with these lengths."""
    return _crossed([line.places for line in _lines(pooling, lengths)])


def sliced_stages(pooling: Pooling, x: Tensor, values: Tensor, vector: Tensor) -> Sequence[Stage]:
    """Return one stage, or one for each axis.

    Buffers are made from ``vector``, so that `torch.func.linearize` does not take them for constants.
    """
    if are_tiles(pooling, x):
        return [tiled_stage(pooling, x, values)]
    lines = _lines(pooling, x.shape[-pooling.dims :])
    counter = counter_of(x.dtype, math.prod(line.size for line in lines))
    if math.prod(len(line.places) for line in lines) <= _AT_ONCE:
        tied = _tied(x, values, _crossed([line.places for line in lines]))
        return [_SlicedStage(x, values, tied, counter)]
    stages: list[Stage] = []
    for axis, line in enumerate(lines, -pooling.dims):
        largest = values if axis == -1 else _largest_along(line, axis, x, vector)
        stages.append(_SlicedStage(x, largest, _tied(x, largest, _at(axis, line)), counter))
        x = largest
    return stages


class _SlicedStage(NamedTuple):
    """A `Stage` whose places are slices."""

    x: Tensor
    values: Tensor
    tied: list[Tied]
    counter: torch.dtype

    def counted(self, like: Tensor) -> Tensor:
        one = like.new_ones((), dtype=self.counter)
        return _summed(self.values, one, [(windows, weight, ...) for weight, _, windows in self.tied])

    def gathered(self, vector: Tensor) -> Tensor:
        return _summed(self.values, vector, [(windows, weight, elements) for weight, elements, windows in self.tied])

    def spread(self, vector: Tensor) -> Tensor:
        return _summed(self.x, vector, [(elements, weight, windows) for weight, elements, windows in self.tied])


def _summed(like: Tensor, vector: Tensor, weighted: Sequence[tuple[Index, Tensor, Any]]) -> Tensor:
    """Add parts of the vector, where their weight is 1, to parts of zeros of the shape and layout of ``like``.

    Each entry of ``weighted`` is ``(to, weight, index)``: the part of the zeros, the weights, the part of the vector.
    """
    finite = is_finite(vector)
    total = empty_as(like, vector).zero_()
    for to, weight, index in weighted:
        there, part = total[to], vector[index]
        if finite and there.shape == weight.shape:
            there.addcmul_(part, weight)
        else:  # what is added to one window is the sum over its elements
            there += at_ties(part, weight, finite).sum_to_size(there.shape)
    return total


def empty_as(x: Tensor, like: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Return a tensor in the memory layout of x, of its shape or of that one, made from ``like``."""
    shape = x.shape if shape is None else shape
    if not is_channels_last(x):
        return like.new_empty(shape)
    images, channels, *lengths = shape
    return like.new_empty((images, *lengths, channels)).movedim(-1, 1)


def _largest_along(line: _Line, axis: int, x: Tensor, vector: Tensor, into: Tensor | None = None) -> Tensor:
    """Return the largest element of each window along an axis, counted from the last.

    They are written ``into`` a tensor, or into one made from ``vector``.
    """
    shape = list(x.shape)
    shape[axis] = line.number
    places = _at(axis, line)
    if line.has_whole and is_plain(x):
        first, places = x[places[0][0]], places[1:]
        largest = first.clone() if into is None else into.copy_(first)
    else:
        largest = (empty_as(x, vector, shape) if into is None else into).fill_(-math.inf)
    for elements, windows in places:
        part, so_far = x[elements], largest[windows]
        if part.shape != so_far.shape:  # these are the elements of one window
            part = part.amax(axis, keepdim=True)
        torch.maximum(so_far, part, out=so_far)
    return largest


def _tied(x: Tensor, values: Tensor, places: Sequence[Place]) -> list[Tied]:
    """Return where elements are tied, as numbers: these are added and multiplied several times as fast as bools."""
    if is_finite(values):
        # A comparison reads every other element slowly, and a copy does not.
        return [(x[elements].clone().eq_(values[windows]), elements, windows) for elements, windows in places]
    unknown = x != x
    return [
        (((x[elements] == values[windows]) | unknown[elements]).to(x.dtype), elements, windows)
        for elements, windows in places
    ]


def _lines(pooling: Pooling, lengths: Sequence[int]) -> list[_Line]:
    """Return the windows along each axis of images with these lengths."""
    windows = pooling.windows
    if isinstance(windows, AdaptiveWindows):
        return [_adapted(length, count) for length, count in zip(lengths, windows.counts, strict=True)]
    along = zip(windows.sizes, windows.strides, windows.paddings, windows.dilations, lengths, strict=True)
    return [_alike(*numbers) for numbers in along]


def _alike(size: int, stride: int, padding: tuple[int, int], dilation: int, length: int) -> _Line:
    """Return windows that are alike.

    In windows of 3 with stride 2 and padding 1, for example, the first place has the elements 1, 3, 5, ... for the
    windows 1, 2, 3, ...; in window 0 it is padding.
    """
    reach = (size - 1) * dilation
    # The first window takes reach + 1 elements, padding included, and each further one begins a stride later.
    count = (sum(padding) + length - reach - 1) // stride + 1
    places = []
    for first in range(-padding[0], reach + 1 - padding[0], dilation):
        # Window w has the element first + w * stride here, and the place exists in it for 0 <= that < length.
        begin = max(0, -(first // stride))
        end = max(begin, min(count, (length - 1 - first) // stride + 1))
        start = first + begin * stride
        places.append((slice(start, start + (end - begin) * stride, stride), slice(begin, end)))
    # A place that all windows have comes first: values begin as a copy of it, and not as -inf for all to be compared.
    whole = slice(0, count)
    places.sort(key=lambda place: place[1] != whole)
    return _Line(places, count, size, places[0][1] == whole)


def _adapted(length: int, count: int) -> _Line:
    """Return windows of nearly equal sizes; each is a place."""
    spans = [span(window, length, count) for window in range(count)]
    places = [(slice(*each), slice(window, window + 1)) for window, each in enumerate(spans)]
    return _Line(places, count, max(end - start for start, end in spans), has_whole=False)


def _at(axis: int, line: _Line) -> list[Place]:
    """Return the places along an axis, counted from the last, with all elements along the others."""
    behind = (slice(None),) * (-1 - axis)
    return [((..., elements, *behind), (..., windows, *behind)) for elements, windows in line.places]


def _crossed(axes: Sequence[Sequence[tuple[slice, slice]]]) -> list[Place]:
    """Return the places along several axes, in row-major order."""
    places = (zip(*place, strict=True) for place in itertools.product(*axes))
    return [((..., *elements), (..., *windows)) for elements, windows in places]
