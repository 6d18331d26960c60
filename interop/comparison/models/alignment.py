"""Lay an array of the second model out as that of the first, which may have its axes in another order.

The shapes leave some ways, the numbers choose among them. Say the first model has the channels of images last, and both
arrays have the shape (2, 4, 4, 4). Then the axes of the second may be samples, channels, height, width, to be moved to
(0, 2, 3, 1), or they may be those of the first, to stay. The way is taken under which the values agree; if there is
none, as behind a bug, the one under which they are least apart.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from interop.comparison.leaves import difference_of
from interop.comparison.models.layers import Point
from interop.frameworks.base import Array

Align: TypeAlias = Callable[[Array], Array]
"""Lays an array of the second model out as that of the first."""

# Under the right order, two right models are apart by a few epsilon of their numbers; under a wrong one, by the numbers
# themselves. What is below 16 epsilon is noise, which must not choose between two orders.
_NOISE_IN_EPS = 16


class Image(NamedTuple):
    """An image, or a volume, that both models flatten: one with the channels last, the other with the channels first.

    Of an image of height 2, width 3 and 4 channels, ``axes`` is (2, 3, 4), and both have rows of 24 numbers.
    """

    axes: tuple[int, ...]
    """Without that of samples, the channels last."""
    is_last_in_first: bool
    """Whether it is the first model that has the channels last."""

    def rearranged(self, rows: Array) -> Array:
        """Return the flattened samples of the second model in the order of the first."""
        *window, channels = self.axes
        axes_in_second = (channels, *window) if self.is_last_in_first else self.axes
        order = channel_order(len(self.axes) + 1, to_last=self.is_last_in_first)
        return rows.reshape(-1, *axes_in_second).transpose(order).reshape(rows.shape)


def channel_order(ndim: int, *, to_last: bool) -> tuple[int, ...]:
    """Return the order of the axes of images that moves the channels from before the window behind it, or back."""
    return (0, *range(2, ndim), 1) if to_last else (0, ndim - 1, *range(1, ndim - 1))


def channel_orders(
    first: tuple[int, ...], second: tuple[int, ...], directions: Iterable[bool]
) -> list[tuple[int, ...]]:
    """Return the channel orders, ``to_last`` in these ``directions``, that make the second shape the first."""
    if len(first) != len(second) or len(first) < 3:
        return []
    orders = [channel_order(len(first), to_last=to_last) for to_last in directions]
    return [order for order in orders if tuple(second[axis] for axis in order) == first]


def alignment(a: Point, b: Point, to_last: bool | None, images: Sequence[Image | None]) -> Align | None:
    """Return what gives an array of the second model the form that it has in the first; None if nothing does.

    If the values agree under several ways, as those of a constant do, it is the first under which the gradients agree
    too.

    Args:
      a, b: what crossed the boundary in both models.
      to_last: whether the first model has the channels of images last, and the second has them first; None if both
        have them in the same place.
      images: what may have been flattened there, the likeliest first; None is what has one order in both models.
    """
    if kind_of(a.value.dtype) != kind_of(b.value.dtype):
        return None
    # The usual way comes first, as `min` takes the first of those that fit equally.
    ways: list[Align] = []
    first, second = a.value.shape, b.value.shape
    directions = () if to_last is None else (to_last, not to_last)
    transposed: list[Align] = [
        functools.partial(np.transpose, axes=order) for order in channel_orders(first, second, directions)
    ]
    if first == second:
        flattened = [image.rearranged if image else as_it_is for image in images if len(first) == 2]
        ways = [*transposed[:1], *(flattened or [as_it_is]), *transposed[1:]]
    elif transposed:
        ways = transposed
    elif a.value.size == b.value.size and _is_joined(first, second):
        ways = [lambda array: array.reshape(first)]
    if len(ways) < 2:
        return ways[0] if ways else None
    return min(ways, key=lambda way: _misfit(a, b, way))


def as_it_is(array: Array) -> Array:
    return array


def _misfit(a: Point, b: Point, way: Align) -> tuple[bool, bool, float]:
    """Return whether values differ, whether gradients do, and how far values are apart where that is no rounding."""
    first, second = a.value, way(b.value)
    gradients_differ = a.gradient is not None and b.gradient is not None and not agree(a.gradient, way(b.gradient))
    # complex128 for complex numbers, float64 for all others
    wide = np.result_type(first.dtype, np.float64)
    apart = float(np.abs(first.astype(wide) - second.astype(wide)).sum())
    eps = float(jnp.finfo(first.dtype).eps) if jnp.issubdtype(first.dtype, jnp.inexact) else 0.0
    noise = _NOISE_IN_EPS * eps * float(np.abs(first.astype(wide)).sum())
    return not agree(first, second), gradients_differ, max(apart, noise)


def agree(a: Array, b: Array) -> bool:
    """Return whether two arrays are the same but for rounding."""
    return difference_of(a, b, None, None).beyond == 0


def kind_of(dtype: Any) -> str:
    """Return what numbers of a dtype are, in words."""
    kinds = {"floats": jnp.floating, "complex numbers": jnp.complexfloating, "integers": jnp.integer}
    return next((kind for kind, scalar in kinds.items() if jnp.issubdtype(dtype, scalar)), "truth values")


def _is_joined(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether one shape is the other with some axes joined, as heads are in attention.

    The products of the first lengths tell: of (5, 2, 3) they are 5, 10, 30, of (5, 6) they are 5, 30.
    """
    products = [set(np.cumprod([length for length in shape if length != 1]).tolist()) for shape in (a, b)]
    return products[0] <= products[1] or products[1] <= products[0]
