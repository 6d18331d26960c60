"""Windows over the last axes of an array, and the rules for the largest element of each."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxclamp._rules.conventions import Convention
from jaxclamp._rules.differentiate import Arrays, Tangents
from jaxclamp._rules.extremum import Extremum, lowest, sharing, widened


@dataclass(frozen=True)
class Windows:
    """Sizes, strides, paddings before and behind, and dilations, one of each per axis."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    paddings: tuple[tuple[int, int], ...]
    dilations: tuple[int, ...]

    def along(self, axis: int) -> Windows:
        """Return these windows along one axis alone; along the axes behind it a window is one element."""
        ones = (1,) * (len(self.sizes) - 1 - axis)
        return Windows(
            (self.sizes[axis], *ones),
            (self.strides[axis], *ones),
            (self.paddings[axis], *((0, 0) for _ in ones)),
            (self.dilations[axis], *ones),
        )

    def tile(self, shape: tuple[int, ...]) -> bool:
        """Return whether each element of an array of ``shape`` is in exactly one window, and nothing else is in any."""
        lengths = shape[len(shape) - len(self.sizes) :]
        return (
            self.sizes == self.strides
            and not any(itertools.chain(*self.paddings))
            and set(self.dilations) == {1}
            and not any(length % size for length, size in zip(lengths, self.sizes, strict=True))
        )

    def places(self, x: jax.Array, padding: Any) -> list[jax.Array]:
        """Return for every place in a window, in row-major order, the elements of ``x`` at that place of all windows.

        Windows of 2 elements with stride 2 over (a, b, c, d), for example, have two places: (a, c) and (b, d).
        """
        batch = x.ndim - len(self.sizes)
        if any(itertools.chain(*self.paddings)):
            x = jnp.pad(x, [(0, 0)] * batch + [*self.paddings], constant_values=padding)
        return [
            x[..., *map(self._slice, range(len(place)), place, x.shape[batch:])]
            for place in itertools.product(*map(range, self.sizes))
        ]

    def _slice(self, axis: int, place: int, length: int) -> slice:
        """Return where along an axis of this length the elements at that place are; a window needs room behind it."""
        first, past = self.dilations[axis] * place, self.dilations[axis] * (self.sizes[axis] - 1 - place)
        return slice(first, length - past, self.strides[axis])

    def inside(self, x: jax.Array) -> list[jax.Array]:
        """Return for every place in a window the windows that have an element of ``x`` there, and no padding."""
        # By a line of flags for each axis, of which the array of flags of the shape of x would be the product.
        along = []
        for i, axis in enumerate(range(x.ndim - len(self.sizes), x.ndim)):
            line = jnp.ones([length if a == axis else 1 for a, length in enumerate(x.shape)], bool)
            along.append(self.along(i).places(line, False))
        return [functools.reduce(jnp.logical_and, masks) for masks in itertools.product(*along)]


@dataclass(frozen=True, eq=False)
class LargestOfWindow:
    """The largest element of each window: a selection among elements, all of them active or none.

    The conventions are those of `Extremum`. That rule would need the windows stacked along an axis, which XLA on CPU
    does not fuse. Padding takes no part.

    The code has the places of a window in its first axis, and True where the element at a place gets a share. It is
    bool: XLA stores that. An int8 it would not store but compute once more for each place, each time from all places.
    """

    compares_with_value: ClassVar[bool] = True

    name: str
    windows: Windows
    convention: Convention
    operands: tuple[str, ...] = ("x",)

    def value(self, *primals: jax.Array) -> jax.Array:
        return jnp.max(jnp.stack(self._places(primals)), axis=0)

    def _places(self, primals: Arrays) -> list[jax.Array]:
        """Return the elements of x at each place; padding is a number that never wins."""
        (x,) = primals
        return self.windows.places(x, lowest(x.dtype))

    def code(self, primals: Arrays, active: Sequence[bool]) -> jax.Array:
        return sharing(self._tied(primals), (0,), self.convention)

    def _tied(self, primals: Arrays) -> jax.Array:
        """Return for each place the windows in which the element there ties for the value."""
        (x,) = primals
        # Padding is known by its place, not by its number: -inf in x equals it, and has the gradient alone.
        # XLA on CPU may compute the value once more for every place. Axis by axis that takes fewer operations.
        value = x
        for axis in range(len(self.windows.sizes)):
            value = jnp.max(jnp.stack(self.windows.along(axis).places(value, lowest(x.dtype))), axis=0)
        places = zip(self._places(primals), self.windows.inside(x), strict=True)
        return jnp.stack([(place == value) & inside | (place != place) for place, inside in places])  # NaN ties too

    def on_tie(self, primals: Arrays) -> jax.Array:
        return jnp.sum(self._tied(primals), 0, dtype=jnp.int32) > 1

    def linear(self, code: jax.Array, primals: Arrays, tangents: Tangents, like: jax.ShapeDtypeStruct) -> jax.Array:
        (tangent,) = tangents
        assert tangent is not None
        wide = widened(like.dtype)
        zero = jnp.zeros((), wide)
        places = self.windows.places(tangent.astype(wide), zero)
        # The division comes after the sum, so that there is one for each window. The sum of tangents near the largest
        # number may overflow.
        total = sum((jnp.where(c, place, zero) for c, place in zip(code, places, strict=True)), zero)
        shares = jnp.sum(code, 0, dtype=jnp.int32)
        return (total / jnp.maximum(shares, 1).astype(wide)).astype(like.dtype)


@dataclass(frozen=True, eq=False)
class LargestOfTile(Extremum):
    """The largest element of each window where the windows tile x: an extremum of x in another shape.

    Windows of 2x3 over x of shape (4, 6), for example, are axes 1 and 3 of x reshaped to (2, 2, 2, 3).
    """

    shape: tuple[int, ...] = ()
    """Two axes for each axis with windows: which window, and where in it."""

    def value(self, *primals: jax.Array) -> jax.Array:
        return super().value(jnp.reshape(primals[0], self.shape))

    def _tied(self, primals: Arrays) -> jax.Array:
        return super()._tied([jnp.reshape(primals[0], self.shape)])

    def linear(self, code: jax.Array, primals: Arrays, tangents: Tangents, like: jax.ShapeDtypeStruct) -> jax.Array:
        (tangent,) = tangents
        assert tangent is not None
        return super().linear(code, primals, [jnp.reshape(tangent, self.shape)], like)


_UNROLLED = 16
"""The elements of a window, 4 by 4, up to which a pool is computed place by place. With more, that takes longer to
compile and to run than a reduction over axes of x, which is possible where the windows tile x."""


@lru_cache(maxsize=1024)
def largest_of_windows(
    name: str, windows: Windows, shape: tuple[int, ...], convention: Convention
) -> LargestOfWindow | LargestOfTile:
    """Return the rule for the windows of an array of ``shape``; the same object each time, as for `extremum`."""
    if math.prod(windows.sizes) <= _UNROLLED or not windows.tile(shape):
        return _largest_of_window(name, windows, convention)
    batch = len(shape) - len(windows.sizes)
    tiles = [(length // size, size) for length, size in zip(shape[batch:], windows.sizes, strict=True)]
    within = tuple(range(batch + 1, batch + 1 + 2 * len(tiles), 2))
    tiled = (*shape[:batch], *itertools.chain(*tiles))
    return LargestOfTile(name, jnp.max, within, False, convention, shape=tiled)


_largest_of_window = lru_cache(maxsize=1024)(LargestOfWindow)  # whatever the shape


def windows_of(
    name: str,
    shape: tuple[int, ...],
    dims: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None,
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    ceil_mode: bool,
) -> Windows:
    """Check the arguments of a pool in torch; return the windows that they describe."""
    sizes = _per_axis(name, "kernel_size", kernel_size, dims, least=1)
    # Functions of torch.nn.functional pass an empty stride on if none was given.
    if stride is None or (isinstance(stride, Sequence) and not stride):
        stride = sizes
    strides = _per_axis(name, "stride", stride, dims, least=1)
    paddings = _per_axis(name, "padding", padding, dims, least=0)
    dilations = _per_axis(name, "dilation", dilation, dims, least=1)
    # As torch, since a window might lie in the padding alone, and have no largest element.
    if any(2 * p > size for p, size in zip(paddings, sizes, strict=True)):
        raise ValueError(f"{name}: padding={padding} is more than half of kernel_size={kernel_size}; pad less.")
    spans = tuple(d * (size - 1) + 1 for size, d in zip(sizes, dilations, strict=True))
    along = list(zip(shape[-dims:], spans, strides, paddings, strict=False))  # short, if x has too few axes
    ends = tuple(_end(n, span, step, p, ceil_mode) for n, span, step, p in along)
    if len(shape) < dims or any(p + n + end < span for (n, span, _, p), end in zip(along, ends, strict=True)):
        raise ValueError(f"{name}: a window of {spans} does not fit into x of shape {shape} with padding {paddings}.")
    return Windows(sizes, strides, tuple(zip(paddings, ends, strict=True)), dilations)


def _end(length: int, span: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """Return the padding behind the last element: with ``ceil_mode`` enough for a last window that begins inside.

    Behind the last window that fits, some elements are left over, and ``lacking`` ones complete them to a window. With
    these there are ``length + 2 * padding + lacking``, and the window begins ``span`` before their end. Torch takes it
    if that is before the padding behind, which begins at ``length + padding``: if ``padding + lacking < span``.

    >>> [_end(5, 2, 2, 0, ceil_mode) for ceil_mode in (False, True)]  # (a, b), (c, d), and with ceil_mode (e, padding)
    [0, 1]
    """
    lacking = -(length + 2 * padding - span) % stride
    return padding + lacking if ceil_mode and padding + lacking < span else padding


def _per_axis(name: str, argument: str, sizes: int | Sequence[int], dims: int, least: int) -> tuple[int, ...]:
    """Return one number for each axis; raise unless ``sizes`` is one number, or one for each, of at least ``least``."""
    values = sizes if isinstance(sizes, Sequence) else (sizes,)
    try:
        numbers = tuple(map(operator.index, values))
    except TypeError:  # of a float, or of None
        numbers = ()
    if len(numbers) == 1:
        numbers *= dims
    if len(numbers) != dims or min(numbers) < least:
        raise ValueError(f"{name}: {argument}={sizes} is not an integer, or {dims} of them, of at least {least}.")
    return numbers
