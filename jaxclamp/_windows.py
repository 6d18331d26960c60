"""Windows over the last axes of an array, and the min-norm rule for the largest element of each."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxclamp._rules import Ties, of_tied, widened


@dataclass(frozen=True)
class Windows:
    """Sizes, strides, paddings before and behind, and dilations, one of each per axis."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    paddings: tuple[tuple[int, int], ...]
    dilations: tuple[int, ...]

    def along(self, axis: int) -> Windows:
        """The same along one axis; those behind it stay as they are."""
        ones = (1,) * (len(self.sizes) - 1 - axis)
        return Windows(
            (self.sizes[axis], *ones),
            (self.strides[axis], *ones),
            (self.paddings[axis], *((0, 0) for _ in ones)),
            (self.dilations[axis], *ones),
        )

    def tile(self, shape: tuple[int, ...]) -> bool:
        """Whether each element of an array of ``shape`` is in exactly one window, and nothing else is in any."""
        lengths = shape[len(shape) - len(self.sizes) :]
        return (
            self.sizes == self.strides
            and not any(itertools.chain(*self.paddings))
            and set(self.dilations) == {1}
            and not any(length % size for length, size in zip(lengths, self.sizes, strict=True))
        )

    def places(self, x: jax.Array, padding: Any) -> list[jax.Array]:
        """What is at one place of each window, for every place in row-major order."""
        batch = x.ndim - len(self.sizes)
        if any(itertools.chain(*self.paddings)):
            x = jnp.pad(x, [(0, 0)] * batch + [*self.paddings], constant_values=padding)
        return [
            x[..., *map(self._slice, range(len(place)), place, x.shape[batch:])]
            for place in itertools.product(*map(range, self.sizes))
        ]

    def _slice(self, axis: int, place: int, length: int) -> slice:
        first, past = self.dilations[axis] * place, self.dilations[axis] * (self.sizes[axis] - 1 - place)
        return slice(first, length - past, self.strides[axis])

    def inside(self, x: jax.Array) -> list[jax.Array]:
        """For every place, in which windows it is no padding."""
        along = []
        for i, axis in enumerate(range(x.ndim - len(self.sizes), x.ndim)):
            line = jnp.ones([length if a == axis else 1 for a, length in enumerate(x.shape)], bool)
            along.append(self.along(i).places(line, False))
        return [functools.reduce(jnp.logical_and, masks) for masks in itertools.product(*along)]


@dataclass(frozen=True, eq=False)
class LargestOfWindow:
    """The largest element of each window: a selection among elements, all of them active or none.

    The conventions are those of `Extremum`; that would need the windows stacked along an axis, which XLA on CPU does
    not fuse. Padding takes no part. The code is bool: an int8 XLA would compute anew for each place, from all places.
    """

    name: str
    windows: Windows
    ties: Ties
    operands: tuple[str, ...] = ("x",)

    def value(self, *primals: jax.Array) -> jax.Array:
        return jnp.max(jnp.stack(self._places(primals)), axis=0)

    def _places(self, primals: Sequence[jax.Array]) -> list[jax.Array]:
        (x,) = primals
        return self.windows.places(x, _lowest(x.dtype))

    def code(self, primals: Sequence[jax.Array], active: Sequence[bool]) -> jax.Array:
        """Where an element of a window gets a share of the gradient; places come first."""
        return of_tied(self._tied(primals), (0,), self.ties)

    def _tied(self, primals: Sequence[jax.Array]) -> jax.Array:
        (x,) = primals
        value = x  # axis by axis it takes fewer operations, and XLA on CPU may compute it anew for every place
        for axis in range(len(self.windows.sizes)):
            value = jnp.max(jnp.stack(self.windows.along(axis).places(value, _lowest(x.dtype))), axis=0)
        places = zip(self._places(primals), self.windows.inside(x), strict=True)
        return jnp.stack([(place == value) & inside | (place != place) for place, inside in places])

    def on_tie(self, primals: Sequence[jax.Array]) -> jax.Array:
        return jnp.sum(self._tied(primals), 0, dtype=jnp.int32) > 1

    def linear(
        self,
        code: jax.Array,
        primals: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
        like: jax.ShapeDtypeStruct,
    ) -> jax.Array:
        (tangent,) = tangents
        assert tangent is not None
        wide = widened(like.dtype)
        zero = jnp.zeros((), wide)
        places = self.windows.places(tangent.astype(wide), zero)
        # Divided last, in the reverse pass first: once for each window. Tangents near the largest number may overflow.
        total = sum((jnp.where(c, place, zero) for c, place in zip(code, places, strict=True)), zero)
        shares = jnp.sum(code, 0, dtype=jnp.int32)
        return (total / jnp.maximum(shares, 1).astype(wide)).astype(like.dtype)


def _lowest(dtype: np.dtype[Any]) -> Any:
    if dtype == np.bool_:
        return False
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).min
    infinite = np.asarray(-np.inf, dtype)
    return infinite if np.isinf(infinite) else jnp.finfo(dtype).min  # float8_e4m3fn has no infinity
