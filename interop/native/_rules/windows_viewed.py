"""Shares the ties of a max pool on a GPU, where each call costs its launch: a view has the elements of all windows.

Windows of 2 with stride 1 over the elements (3, 3, 1), for example, are the view ((3, 3), (3, 1)) of them, a row for
each place in the windows, which takes no memory. It is compared with the values (3, 3) by one call: ((1, 1), (1, 0))
are tied. What the windows give is added by torch's `fold`, in the same order each time, as `index_add` on a GPU is not.
"""

import itertools
import math
import operator
from typing import NamedTuple

import torch
from torch.nn import functional

from interop.native._rules.reductions import sharing
from interop.native._rules.windows_stage import Pooling, lying_as
from jaxclamp._rules.windows import Windows


class ViewedStage(NamedTuple):
    """A `Stage` of the whole pooling."""

    x: torch.Tensor
    values: torch.Tensor
    windows: Windows
    weights: torch.Tensor
    """For each image or channel, place and window whether the element gets a share, an axis for each of theirs."""

    def counted(self, like: torch.Tensor) -> torch.Tensor:
        return self.weights.sum(_places(self.windows), dtype=torch.int32).reshape(self.values.shape)

    def gathered(self, vector: torch.Tensor) -> torch.Tensor:
        parts = torch.where(self.weights, _view(self.windows, vector, self.values, 0), 0)
        return parts.sum(_places(self.windows)).reshape(self.values.shape)

    def spread(self, vector: torch.Tensor) -> torch.Tensor:
        parts = torch.where(self.weights, _of_windows(self.windows, vector), 0)
        add = _in_place if self.windows.tile(tuple(self.x.shape)) else _folded
        return lying_as(self.x, add(self.windows, parts, self.x.shape))


def has_view(pooling: Pooling, x: torch.Tensor) -> bool:
    """Return whether windows are alike, and either tile the images or have no more axes than `fold` adds along.

    `fold` takes no images without elements.
    """
    windows = pooling.windows
    return isinstance(windows, Windows) and x.numel() > 0 and (pooling.dims <= 2 or windows.tile(tuple(x.shape)))


def viewed_stage(pooling: Pooling, x: torch.Tensor, values: torch.Tensor) -> ViewedStage:
    """Return the pooling at once."""
    windows = pooling.windows
    assert isinstance(windows, Windows)
    # Padding is NaN, which equals no value, and it is not among the elements that are NaN.
    tied = (_view(windows, x, values, math.nan) == _of_windows(windows, values)) | _view(windows, x != x, values, False)
    return ViewedStage(x, values, windows, sharing(tied, _places(windows), pooling.convention))


def _places(windows: Windows) -> tuple[int, ...]:
    """Return the axes of the places in a view: behind the images, and before the windows."""
    return tuple(range(1, 1 + len(windows.sizes)))


def _of_windows(windows: Windows, vector: torch.Tensor) -> torch.Tensor:
    """Return numbers of windows in a shape that broadcasts with a view."""
    dims = len(windows.sizes)
    return vector.reshape(math.prod(vector.shape[:-dims]), *(1,) * dims, *vector.shape[-dims:])


def _view(windows: Windows, x: torch.Tensor, values: torch.Tensor, padding: float) -> torch.Tensor:
    """Return the elements of x by image or channel, place and window, of which there are as many as values."""
    if any(itertools.chain(*windows.paddings)):
        x = functional.pad(x, [n for pair in reversed(windows.paddings) for n in pair], value=padding)
    x = x.contiguous()
    dims = len(windows.sizes)
    # How far the next place, window and image are in memory: so one call does what `unfold` does for each axis.
    steps = x.stride()[-dims:]
    to_place, to_window = (map(operator.mul, steps, by) for by in (windows.dilations, windows.strides))
    to_image = math.prod(x.shape[-dims:])
    shape = (x.numel() // to_image, *windows.sizes, *values.shape[-dims:])
    return x.as_strided(shape, (to_image, *to_place, *to_window))


def _in_place(windows: Windows, parts: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return what the elements get, each from the one window that has it."""
    dims = len(windows.sizes)
    place_behind_window = [axis for place in _places(windows) for axis in (place + dims, place)]
    return parts.permute(0, *place_behind_window).reshape(shape)


def _folded(windows: Windows, parts: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return the sums of what the elements get from the windows that have them; `fold` has two axes."""
    # Windows of 3 along one axis, say, are windows of 1 x 3 over an image of one row.
    sizes, strides, dilations = ((1, *n)[-2:] for n in (windows.sizes, windows.strides, windows.dilations))
    (top, bottom), (left, right) = ((0, 0), *windows.paddings)[-2:]
    height, width = (1, *shape[-len(windows.sizes) :])[-2:]
    # Images as channels of one: `fold` may take a call for each image.
    blocks = parts.flatten(1 + len(windows.sizes)).flatten(0, -2)[None]
    whole = functional.fold(blocks, (top + height + bottom, left + width + right), sizes, dilations, 0, strides)
    return whole[0, :, top : top + height, left : left + width].reshape(shape)
