"""How libraries lay out arrays: parameters compared with torch's, and images with the channels first or last."""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from interop.frameworks.base import Array

_ROLES = {
    **dict.fromkeys(["kernel", "w", "weight", "scale", "gamma", "embedding", "embeddings"], "weight"),
    **dict.fromkeys(["bias", "b", "beta", "offset"], "bias"),
    **dict.fromkeys(["mean", "running_mean", "moving_mean"], "mean"),
    **dict.fromkeys(["var", "running_var", "moving_variance"], "var"),
}
"""Maps the name of a parameter in any of the libraries to its role, in torch's words."""


@dataclass(frozen=True)
class Layout:
    """How an array becomes torch's: reshaped to ``split``, transposed by ``order``, reshaped to ``torch_shape``.

    The kernel of Flax's attention with 4 inputs, 2 heads of 3 and a bias of shape (2, 3) has the layout
    ``Layout((4, 2, 3), (4, 6), (1, 0), (6, 4))``: torch has one dense layer of 6 outputs there.
    """

    shape: tuple[int, ...]
    split: tuple[int, ...]
    order: tuple[int, ...]
    torch_shape: tuple[int, ...]
    flipped: tuple[int, ...] = ()
    """The axes of torch's array that run backwards, as in a transposed convolution."""

    @classmethod
    def same(cls, shape: tuple[int, ...]) -> Self:
        """Return the layout of an array that is as torch's."""
        return cls(shape, shape, tuple(range(len(shape))), shape)

    @classmethod
    def flat(cls, shape: tuple[int, ...]) -> Self:
        """Return the layout of an array that has several axes where torch's has one, as the bias of attention."""
        size = math.prod(shape)
        return cls(shape, (size,), (0,), (size,))

    def to_torch(self, array: Array) -> Array:
        return _flipped(array.reshape(self.split).transpose(self.order).reshape(self.torch_shape), self.flipped)

    def from_torch(self, array: Array) -> Array:
        moved = [self.split[axis] for axis in self.order]  # the shape before the last step of `to_torch`
        return _flipped(array, self.flipped).reshape(moved).transpose(np.argsort(self.order)).reshape(self.shape)


def _flipped(array: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.flip(array, axes))  # of an array without axes NumPy makes a number


@dataclass(frozen=True)
class Parameter:
    """One array of a model, trained or not."""

    name: str
    layout: Layout
    dtype: np.dtype[Any]
    trained: bool = True
    value: Array | None = None
    frozen: bool = False
    """Whether it is trained in general, and does not require grad now; its gradient is compared all the same."""

    @property
    def owner(self) -> str:
        """The path of its module."""
        return self.name.rpartition(".")[0]

    @property
    def role(self) -> str:
        """What it is in its module, in torch's words."""
        last = self.name.rpartition(".")[2]
        return _ROLES.get(last, last)


def layout_of_kernel(shape: tuple[int, ...], kind: str, bias: tuple[int, ...] | None, outputs: int = 1) -> Layout:
    """Return the layout of a kernel as Flax, Haiku and Keras have it: the window, then inputs, then outputs.

    ``kind`` is the class of the module. A kernel of a dense layer may have several axes of inputs and of outputs, as in
    attention: the last ones are those of the ``bias``, or ``outputs`` if it has none.
    """
    if len(shape) < 2:
        return Layout.same(shape)
    # Only a bias, or the settings, tell where the axes of inputs end: (4, 2, 3) has one axis of inputs if the bias is
    # (2, 3), and two if it is (3,).
    if "Conv" not in kind:
        count = len(bias) if bias is not None else outputs
        split = math.prod(shape[:-count]), math.prod(shape[-count:])
        return Layout(shape, split, (1, 0), split[::-1])
    n = len(shape)
    *window, inner, outer = shape
    if "Depthwise" in kind:  # the inputs are groups of one, and each group has `outer` outputs
        return Layout(shape, shape, (n - 2, n - 1, *range(n - 2)), (inner * outer, 1, *window))
    return Layout(shape, shape, (n - 1, n - 2, *range(n - 2)), (outer, inner, *window))


def layout_of_transposed_kernel(shape: tuple[int, ...], *, outputs_first: bool, flipped: bool) -> Layout:
    """Return the layout of a kernel of a transposed convolution, which has the window before inputs and outputs.

    Torch has inputs before outputs, and these before the window. Its result is the gradient of a convolution with that
    kernel; in a library whose result is a convolution, the window is ``flipped``.
    """
    n = len(shape)
    order = (*((n - 1, n - 2) if outputs_first else (n - 2, n - 1)), *range(n - 2))
    torch_shape = tuple(shape[axis] for axis in order)
    return Layout(shape, shape, order, torch_shape, tuple(range(2, n)) if flipped else ())


def channel_order(ndim: int, *, to_last: bool) -> tuple[int, ...]:
    """Return the order of the axes of images that moves the channels from before the window behind it, or back."""
    # Of four axes (0, 2, 3, 1), and (0, 3, 1, 2).
    return (0, *range(2, ndim), 1) if to_last else (0, ndim - 1, *range(1, ndim - 1))
