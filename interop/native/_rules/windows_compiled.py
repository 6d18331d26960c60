"""Max-pool gradients for torch.compile, written as gathers that inductor fuses.

Each window reads its elements, and each element its windows. In windows of 3 with stride 2 over 5 elements, for
example, window 0 reads the elements 0, 1, 2 and window 1 the elements 2, 3, 4; element 2 reads the windows 1 and 0, and
gets its share of both. All of it is pointwise, so it is one kernel. In `windows_sliced.py`, for eager code, each place
in the windows is a slice to which a part is added, which inductor compiles to a kernel for each.
"""

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from interop.native._rules.windows_stage import AdaptiveWindows, Pooling, span
from jaxclamp._rules.windows import Windows

Read: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""What each window reads along an axis, or each element, and whether that exists; if not, another is read instead."""
Reads: TypeAlias = Sequence[tuple[tuple[Any, ...], torch.Tensor]]
"""The reads along all axes, in indices that broadcast."""

_AT_ONCE = 16
"""The elements of a window up to which a pool is one stage, and not one for each axis.

A window of 13 x 13 has 169 places, each of which is read; its rows and a column have 26.
"""


class ReadStage(NamedTuple):
    """A `Stage` by what the windows and the elements read."""

    x: torch.Tensor
    values: torch.Tensor
    """The largest elements of the windows."""
    elements: Reads
    """The elements that the windows read."""
    windows: Reads
    """The windows that the elements read."""

    def counted(self, like: torch.Tensor) -> torch.Tensor:
        counts = like.new_zeros(self.values.shape, dtype=torch.int32)
        for at, exist in self.elements:
            counts = counts + (_tied(self.x[at], self.values) & exist).to(torch.int32)
        return counts

    def gathered(self, vector: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(self.values, dtype=vector.dtype)
        for at, exist in self.elements:
            tied = _tied(self.x[at], self.values) & exist
            result = result + torch.where(tied, vector[at], 0)
        return result

    def spread(self, vector: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(self.x, dtype=vector.dtype)
        for at, exist in self.windows:
            tied = _tied(self.x, self.values[at]) & exist
            result = result + torch.where(tied, vector[at], 0)
        return result


def read_stages(pooling: Pooling, x: torch.Tensor, values: torch.Tensor) -> list[ReadStage]:
    """Return the pooling, at once or axis by axis."""
    windows, dims = pooling.windows, pooling.dims
    lengths, counts = x.shape[-dims:], values.shape[-dims:]
    axes = [
        (elements_along(windows, axis, *sizes, x.device), _windows_along(windows, axis, *sizes, x.device))
        for axis, sizes in enumerate(zip(lengths, counts, strict=True))
    ]
    if math.prod([len(elements) for elements, _ in axes]) <= _AT_ONCE:
        elements, reading = (_crossed(list(reads)) for reads in zip(*axes, strict=True))
        if isinstance(windows, Windows) and _are_apart(windows, lengths, counts):
            elements = _slices(windows, counts, x.device)
        return [ReadStage(x, values, elements, reading)]
    stages = []
    for axis in reversed(range(dims)):
        # Of the shape so far: axes behind this one have windows in the place of elements already.
        whole = [_itself(length, x.device) for length in x.shape[-dims:]]
        elements, reading = (_crossed([*whole[:axis], reads, *whole[axis + 1 :]]) for reads in axes[axis])
        largest = _largest(x, elements) if axis else values  # behind the last stage they are the pool's, as known
        stages.append(ReadStage(x, largest, elements, reading))
        x = largest
    return stages


def _tied(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return (x == values) | (x != x)  # the value of a window with NaN is NaN, which equals nothing


def _largest(x: torch.Tensor, elements: Reads) -> torch.Tensor:
    parts = [torch.where(exist, x[at], -math.inf) for at, exist in elements]
    return functools.reduce(torch.maximum, parts)


def elements_along(
    windows: Windows | AdaptiveWindows, axis: int, length: int, count: int, device: torch.device
) -> list[Read]:
    """Return the elements of each window along an axis.

    Windows of 3 with stride 2 and padding 1, for example, have the elements -1, 1, 3, ... in the first place. Element
    -1 is padding.
    """
    window = torch.arange(count, device=device)
    if isinstance(windows, AdaptiveWindows):
        start, end = span(window, length, count)
        # One place more than 5 / 3, rounded up: of 5 elements in 3 windows, the second has 1, 2 and 3.
        return [_read(start + place, start + place < end, length) for place in range(-(-length // count) + 1)]
    stride, dilation = windows.strides[axis], windows.dilations[axis]
    reads = []
    for place in range(windows.sizes[axis]):
        first = place * dilation - windows.paddings[axis][0]
        element = first + window * stride
        if first >= 0 and first + (count - 1) * stride < length:  # without a test the program is up to twice as fast
            reads.append((element, torch.ones_like(element, dtype=torch.bool)))
        else:
            reads.append(_read(element, (element >= 0) & (element < length), length))
    return reads


def _are_apart(windows: Windows, lengths: Sequence[int], counts: Sequence[int]) -> bool:
    """Return whether no element is in two windows, and no window reaches into padding."""
    return all(
        # A window ends before the next one begins, and the last one before the elements do.
        before == 0 and (size - 1) * dilation < stride and (size - 1) * dilation + (count - 1) * stride < length
        for size, stride, (before, _), dilation, length, count in zip(
            windows.sizes, windows.strides, windows.paddings, windows.dilations, lengths, counts, strict=True
        )
    )


def _slices(windows: Windows, counts: Sequence[int], device: torch.device) -> Reads:
    """Return the elements at each place of windows that are apart, as slices: pool and ties are then one kernel.

    Where windows overlap indices are faster: in windows of 3 x 3 with stride 1, slices take 1.6 times as long.
    """
    axes = [
        [slice(start, start + (count - 1) * stride + 1, stride) for start in range(0, size * dilation, dilation)]
        for size, stride, dilation, count in zip(windows.sizes, windows.strides, windows.dilations, counts, strict=True)
    ]
    exist = torch.ones((), dtype=torch.bool, device=device)
    return [((..., *slices), exist) for slices in itertools.product(*axes)]


def _windows_along(
    windows: Windows | AdaptiveWindows, axis: int, length: int, count: int, device: torch.device
) -> list[Read]:
    """Return the windows that have each element along an axis.

    Windows of 3 with stride 2 and padding 1, for example, have element 3 as the last of window 1 and the first of 2.
    """
    element = torch.arange(length, device=device)
    if isinstance(windows, AdaptiveWindows):
        start, end = span(element, count, length)
        return [_read(start + offset, start + offset < end, count) for offset in range(-(-count // length) + 1)]
    stride, dilation = windows.strides[axis], windows.dilations[axis]
    reach = (windows.sizes[axis] - 1) * dilation
    padded = element + windows.paddings[axis][0]
    reads = []
    for offset in range(reach // stride + 1):
        # The last window that begins at the element or before it, and those before that one as far as windows reach.
        window = padded // stride - offset
        place = padded - window * stride
        exists = (window >= 0) & (window < count) & (place <= reach) & (place % dilation == 0)
        reads.append(_read(window, exists, count))
    return reads


def _read(index: torch.Tensor, exists: torch.Tensor, length: int) -> Read:
    return index.clamp(0, length - 1), exists


def _itself(length: int, device: torch.device) -> list[Read]:
    return [(torch.arange(length, device=device), torch.ones(length, dtype=torch.bool, device=device))]


def _crossed(axes: Sequence[Sequence[Read]]) -> Reads:
    """Return all combinations of a read along each axis."""
    crossed = []
    for reads in itertools.product(*axes):
        # Of two axes, the indices have the shapes (-1, 1) and (-1,): together they have one element for each pair.
        shapes = [(-1, *(1,) * behind) for behind in reversed(range(len(reads)))]
        indices = [index.reshape(shape) for (index, _), shape in zip(reads, shapes, strict=True)]
        exist = [exists.reshape(shape) for (_, exists), shape in zip(reads, shapes, strict=True)]
        crossed.append(((..., *indices), functools.reduce(operator.and_, exist)))
    return crossed
