"""Find the elements of the windows that torch's poolings look at, as indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxclamp._rules.windows import Windows

Places = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""For each place in a window (rows) and each window (columns), the element there.

Windows with fewer elements than others have one of theirs several times, which changes no maximum.
"""


def elements_of(windows: Windows, lengths: Sequence[int], counts: Sequence[int]) -> Places:
    """Find the elements of windows of one size; they may reach into padding, which has no elements."""
    axes = []
    for size, stride, (before, _), dilation, length, count in zip(
        windows.sizes, windows.strides, windows.paddings, windows.dilations, lengths, counts, strict=True
    ):
        first = np.arange(count) * stride - before
        places = np.arange(size)[:, None] * dilation + first
        inside = (places >= 0) & (places < length)
        if not inside.any(0).all():
            raise NotImplementedError(
                "max_pool: a window reaches over the elements with its dilation, and has padding alone; use less."
            )
        last_inside = np.where(inside, places, 0).max(0)
        axes.append(np.where(inside, places, last_inside))
    return _crossed(axes, lengths)


def elements_of_adaptive(lengths: Sequence[int], counts: Sequence[int]) -> Places:
    """Find the elements of the windows from i n / m to (i + 1) n / m, of n elements and m windows.

    Of 5 elements and 2 windows these are 0 to 2 and 2 to 4: the beginnings are rounded down, the ends up.
    """
    axes = []
    for length, count in zip(lengths, counts, strict=True):
        windows = np.arange(count)
        first, past = windows * length // count, -(-(windows + 1) * length // count)
        size = -(-length // count) + 1  # rounding both ends makes a window up to one element longer
        axes.append(np.minimum(first + np.arange(size)[:, None], past - 1))
    return _crossed(axes, lengths)


def _crossed(axes: Sequence[Places], lengths: Sequence[int]) -> Places:
    """Cross windows along each axis to windows over all; elements and windows are counted in row-major order."""
    crossed: Places = np.zeros((1, 1), np.int64)
    for places, length in zip(axes, lengths, strict=True):
        crossed = crossed[:, None, :, None] * length + places[None, :, None, :]
        crossed = crossed.reshape(math.prod(crossed.shape[:2]), math.prod(crossed.shape[2:]))
    return crossed
