"""Which layer of one model is which of the other, and how an array that crosses a boundary lies on both sides."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from interop.comparison.leaves import difference_of
from interop.comparison.models.layers import Layer, Point
from interop.frameworks.base import Array

Align: TypeAlias = Callable[[Array], Array]

_MANY = 16
"""Over how many steps between the numbers of a dtype arrays may be apart, and not tell the order of their axes."""


class Image(NamedTuple):
    """What is flattened: an image, or a volume, of which one model has the channels last and the other first."""

    axes: tuple[int, ...]
    """Without those of samples, the channels last."""
    is_last_in_first: bool
    """Whether it is the first model that has the channels last."""

    def rearranged(self, rows: Array) -> Array:
        """The flattened samples of the second model, in the order of the first."""
        *window, channels = self.axes
        seen = (channels, *window) if self.is_last_in_first else self.axes
        order = channel_order(len(seen) + 1, to_last=self.is_last_in_first)
        return rows.reshape(-1, *seen).transpose(order).reshape(rows.shape)


def channel_order(ndim: int, *, to_last: bool) -> tuple[int, ...]:
    """The order of the axes of images that moves the channels from before the window behind it, or back."""
    return (0, *range(2, ndim), 1) if to_last else (0, ndim - 1, *range(1, ndim - 1))


_FAMILIES = (
    *("dropout", "max_?pool", "a(vg|verage)_?pool", "log_?softmax", "softmax", "leaky_?relu", "relu6", "relu", "gelu"),
    *("sigmoid", "tanh", "flatten", "identity"),
)


def matched_layers(
    first: Sequence[Layer], second: Sequence[Layer], owners: Iterable[tuple[str, str]]
) -> list[tuple[int, int]]:
    """The indices of layers that are the same, in the order of the first model.

    Args:
      first, second: the layers of both, the model itself first.
      owners: for each parameter, the paths of the modules that own it on both sides.

    Layers are the same if the same parameters are used in them, and if they are called equally often; of layers around
    each other, the innermost are the same first. Layers without parameters are the same if they lie between the same
    others, and their classes are called alike.
    """
    owners = list(owners)
    used = _used(first, [a for a, _ in owners]), _used(second, [b for _, b in owners])
    chains = _chains(first, used[0]), _chains(second, used[1])
    pairs = {0: 0}
    for parameters in chains[0].keys() & chains[1].keys():
        ours, theirs = (side[parameters] for side in chains)
        if len(ours) == len(theirs):
            for chain, other in zip(ours, theirs, strict=True):
                inside = zip(reversed(chain), reversed(other), strict=False)
                pairs |= {i: j for i, j in inside if i and j}
    known = dict(pairs)
    places = _places(first, known), _places(second, {j: j for j in known.values()})
    for (parent, gap, family), alike in places[0].items():
        others = places[1].get((known[parent], gap, family), [])
        if len(alike) == len(others):
            pairs |= dict(zip(alike, others, strict=True))
    return sorted(pairs.items())


def _used(layers: Sequence[Layer], owners: Sequence[str]) -> list[frozenset[int]]:
    """For each layer, the numbers of the parameters that are used in it."""
    paths = {layer.path for layer in layers}
    by_path: dict[str, set[int]] = defaultdict(set)
    for number, path in enumerate(owners):
        while path not in paths:
            path = path.rpartition(".")[0]
        by_path[path].add(number)
    return [
        frozenset().union(*(by_path[inner.path] for inner in layers[i : layer.end]), by_path[layer.path])
        for i, layer in enumerate(layers)
    ]


def _chains(layers: Sequence[Layer], used: Sequence[frozenset[int]]) -> Mapping[frozenset[int], list[list[int]]]:
    """By the parameters used in them, the layers around each other, for each of the calls."""
    found: dict[frozenset[int], list[list[int]]] = defaultdict(list)
    for i, layer in enumerate(layers):
        if used[i]:
            if layer.parent is not None and used[layer.parent] == used[i] and found[used[i]]:
                found[used[i]][-1].append(i)
            else:
                found[used[i]].append([i])
    return found


def _places(layers: Sequence[Layer], known: Mapping[int, int]) -> Mapping[tuple[int, int, str], list[int]]:
    """By the known layer around them, how many known ones ran in that before, and the family: the other layers."""
    found: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    before: dict[int, int] = defaultdict(int)
    for i in range(1, len(layers)):
        parent = known_parent(layers, i, known)
        if i in known:
            before[parent] += 1
        elif family := family_of(layers[i].kind):
            found[parent, before[parent], family].append(i)
    return found


def known_parent(layers: Sequence[Layer], i: int, known: Mapping[int, int]) -> int:
    """The innermost layer around a layer that has a counterpart; the model itself has one."""
    parent = layers[i].parent
    while parent is not None and parent not in known:
        parent = layers[parent].parent
    return parent or 0


def family_of(kind: str) -> str:
    """The family of a class of layers without parameters; empty if it is of none."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()
    return next((family for family in _FAMILIES if re.search(family, snake)), "")


def has_channels(layers: Sequence[Layer], i: int) -> bool:
    """Whether convolutions or pools run in a layer or beside it, so that its arrays of three axes may be images."""
    parent = layers[i].parent
    near = [*layers[i : layers[i].end], *(layer for layer in layers if layer.parent == parent)]
    return any(re.search("conv|pool|batch_?norm", layer.kind.lower()) for layer in near)


def alignment(a: Point, b: Point, to_last: bool | None, images: Sequence[Image | None]) -> Align | None:
    """What gives an array of the second model the form that it has in the first; None if nothing does.

    The shapes leave some ways. Of these it is the one with which the values agree, or are least apart; among several,
    as of a constant, the first with which the gradients agree too.

    Args:
      a, b: what crossed the boundary in both models.
      to_last: whether the first model has the channels of images last, and the second has them first; None if both
        have them in the same place.
      images: what may have been flattened there, the likeliest first; None is what has one order in both models.
    """
    if kind_of(a.value.dtype) != kind_of(b.value.dtype):
        return None
    ways: list[Align] = []
    ours, theirs = a.value.shape, b.value.shape
    directions = () if to_last is None or not len(ours) == len(theirs) >= 3 else (to_last, not to_last)
    orders = [channel_order(len(ours), to_last=direction) for direction in directions]
    transposed = [_transposition(order) for order in orders if tuple(theirs[axis] for axis in order) == ours]
    if ours == theirs:
        flattened = [image.rearranged if image else _as_it_is for image in images if len(ours) == 2]
        ways = [*transposed[:1], *(flattened or [_as_it_is]), *transposed[1:]]
    elif transposed:
        ways = transposed
    elif a.value.size == b.value.size and _joined(ours, theirs):
        ways = [lambda array: array.reshape(ours)]
    if len(ways) < 2:
        return ways[0] if ways else None
    return min(ways, key=lambda way: _misfit(a, b, way))


def _as_it_is(array: Array) -> Array:
    return array


def _misfit(a: Point, b: Point, way: Align) -> tuple[bool, bool, float]:
    """Whether the values differ, whether the gradients do, and how far values are apart where that is no rounding."""
    ours, theirs = a.value, way(b.value)
    gradients_differ = a.gradient is not None and b.gradient is not None and not agree(a.gradient, way(b.gradient))
    wide = np.result_type(ours.dtype, np.float64)
    apart = float(np.abs(ours.astype(wide) - theirs.astype(wide)).sum())
    eps = float(jnp.finfo(ours.dtype).eps) if jnp.issubdtype(ours.dtype, jnp.inexact) else 0.0
    return not agree(ours, theirs), gradients_differ, max(apart, _MANY * eps * float(np.abs(ours.astype(wide)).sum()))


def agree(a: Array, b: Array) -> bool:
    """Whether two arrays are the same but for rounding."""
    return difference_of(a, b, None, None).beyond == 0


def kind_of(dtype: Any) -> str:
    """What numbers of a dtype are."""
    kinds = {"floats": jnp.floating, "complex numbers": jnp.complexfloating, "integers": jnp.integer}
    return next((kind for kind, scalar in kinds.items() if jnp.issubdtype(dtype, scalar)), "truth values")


def _transposition(order: tuple[int, ...]) -> Align:
    return lambda array: array.transpose(order)


def _joined(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether one shape is the other with some axes joined, as heads are in attention."""
    boundaries = [set(np.cumprod([length for length in shape if length != 1]).tolist()) for shape in (a, b)]
    return boundaries[0] <= boundaries[1] or boundaries[1] <= boundaries[0]
