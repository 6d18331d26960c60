"""A parameter of a model: its name, the module that owns it, and how its array lies beside torch's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from interop.frameworks.base import Array

_ROLES = {
    **dict.fromkeys(["kernel", "w", "weight", "scale", "gamma", "embedding", "embeddings"], "weight"),
    **dict.fromkeys(["bias", "b", "beta", "offset"], "bias"),
    **dict.fromkeys(["mean", "running_mean", "moving_mean"], "mean"),
    **dict.fromkeys(["var", "running_var", "moving_variance"], "var"),
}


@dataclass(frozen=True)
class Layout:
    """How an array becomes torch's: seen with the axes ``split``, their order changed, and seen as ``shape``."""

    own: tuple[int, ...]
    split: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]
    flipped: tuple[int, ...] = ()
    """The axes of torch's array that run the other way, as of a transposed convolution."""

    @classmethod
    def same(cls, shape: tuple[int, ...]) -> Layout:
        return cls(shape, shape, tuple(range(len(shape))), shape)

    def to_torch(self, array: Array) -> Array:
        return np.flip(array.reshape(self.split).transpose(self.order).reshape(self.shape), self.flipped)

    def from_torch(self, array: Array) -> Array:
        moved = [self.split[axis] for axis in self.order]
        return np.flip(array, self.flipped).reshape(moved).transpose(np.argsort(self.order)).reshape(self.own)


@dataclass(frozen=True)
class Parameter:
    """One array of a model, trained or not."""

    name: str
    layout: Layout
    dtype: np.dtype[Any]
    trained: bool = True
    value: Array | None = None

    @property
    def owner(self) -> str:
        """The path of the module."""
        return self.name.rpartition(".")[0]

    @property
    def role(self) -> str:
        """What it is in its module, in the words of torch."""
        last = self.name.rpartition(".")[2]
        return _ROLES.get(last, last)


def layout_of_kernel(shape: tuple[int, ...], kind: str, bias: tuple[int, ...] | None, outputs: int = 1) -> Layout:
    """The layout of a kernel as Flax, Haiku and Keras have it: inputs before outputs, and before these the window.

    ``kind`` is the class of the module. A kernel of a dense layer may have several axes of inputs and of outputs, as in
    attention: the last ones are those of the ``bias``, or ``outputs`` if it has none.
    """
    if len(shape) < 2:
        return Layout.same(shape)
    if "Conv" not in kind:
        count = len(bias) if bias is not None else outputs
        split = math.prod(shape[:-count]), math.prod(shape[-count:])
        return Layout(shape, split, (1, 0), split[::-1])
    window = tuple(range(len(shape) - 2))
    inner, outer = shape[-2:]
    if "Depthwise" in kind:
        order = (len(shape) - 2, len(shape) - 1, *window)
        return Layout(shape, shape, order, (inner * outer, 1, *shape[:-2]))
    order = (len(shape) - 1, len(shape) - 2, *window)
    return Layout(shape, shape, order, (outer, inner, *shape[:-2]))


def layout_of_transposed_kernel(shape: tuple[int, ...], *, outputs_first: bool, flipped: bool) -> Layout:
    """The layout of a kernel of a transposed convolution, which has the window before inputs and outputs.

    Torch has inputs before outputs, and these before the window. Its result is the gradient of a convolution with that
    kernel; in a library whose result is a convolution, the window is ``flipped``.
    """
    n = len(shape)
    order = (*((n - 1, n - 2) if outputs_first else (n - 2, n - 1)), *range(n - 2))
    moved = tuple(shape[axis] for axis in order)
    return Layout(shape, shape, order, moved, tuple(range(2, n)) if flipped else ())
