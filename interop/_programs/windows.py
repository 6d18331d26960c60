"""The elements of the windows that torch's poolings look at, as indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from jaxclamp._rules.windows import Windows

Places = torch.Tensor
"""For each place in a window (rows) and each window (columns), the element there.

Windows with fewer elements than others have one of theirs several times, which changes no maximum.
"""


def elements_of(windows: Windows, lengths: Sequence[int], counts: Sequence[int], device: torch.device) -> Places:
    """Of windows of one size; they may reach into padding, which has no elements."""
    axes = []
    for size, stride, (before, _), dilation, length, count in zip(
        windows.sizes, windows.strides, windows.paddings, windows.dilations, lengths, counts, strict=True
    ):
        first = torch.arange(count, device=device) * stride - before
        places = torch.arange(size, device=device)[:, None] * dilation + first
        inside = (places >= 0) & (places < length)
        some = torch.where(inside, places, 0).amax(0)
        axes.append(torch.where(inside, places, some))
    return _crossed(axes, lengths)


def elements_of_adaptive(lengths: Sequence[int], counts: Sequence[int], device: torch.device) -> Places:
    """Of windows from i n / m to (i + 1) n / m."""
    axes = []
    for length, count in zip(lengths, counts, strict=True):
        windows = torch.arange(count, device=device)
        first, past = windows * length // count, -(-(windows + 1) * length // count)
        size = -(-length // count) + 1
        axes.append((first + torch.arange(size, device=device)[:, None]).minimum(past - 1))
    return _crossed(axes, lengths)


def _crossed(axes: Sequence[Places], lengths: Sequence[int]) -> Places:
    """The windows over all axes, of those along each; elements and windows are counted in row-major order."""
    crossed = torch.zeros((1, 1), dtype=torch.int64, device=axes[0].device)
    for places, length in zip(axes, lengths, strict=True):
        crossed = crossed[:, None, :, None] * length + places[None, :, None, :]
        crossed = crossed.reshape(math.prod(crossed.shape[:2]), math.prod(crossed.shape[2:]))
    return crossed
