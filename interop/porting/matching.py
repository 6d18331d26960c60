"""Which layer of one model is which of the other, and how an array that crosses a boundary lies on both sides."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from interop.parity.frameworks import Array
from interop.porting.layers import Layer

Align: TypeAlias = Callable[[Array], Array]


class Image(NamedTuple):
    """The shape that an image had in the second model before it was flattened, and what makes it the first's."""

    shape: tuple[int, ...]
    order: tuple[int, ...]


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


def alignment(a: Array, b: Array, channels_differ: bool, images: Iterable[Image]) -> Align | None:
    """What gives an array of the second model the form that it has in the first; None if nothing does.

    ``images`` are those that are flattened somewhere, with their axes in the order of the second model.
    """
    ways: list[Align] = []
    if kind_of(a.dtype) != kind_of(b.dtype):
        return None
    if channels_differ and a.ndim == b.ndim >= 3:
        last, before_last = a.ndim - 1, tuple(range(1, a.ndim - 1))
        orders = (0, *range(2, a.ndim), 1), (0, last, *before_last)
        ways += [_transposition(order) for order in orders if tuple(b.shape[axis] for axis in order) == a.shape]
    if a.shape == b.shape:
        ways.append(lambda array: array)
        ways += [_unflattening(image) for image in images if a.ndim == 2 and math.prod(image.shape) == a.shape[1]]
    if not ways and a.size == b.size and _joined(a.shape, b.shape):
        ways.append(lambda array: array.reshape(a.shape))
    if len(ways) < 2:
        return ways[0] if ways else None
    wide = np.result_type(a.dtype, np.float64)
    return min(ways, key=lambda way: float(np.abs(a.astype(wide) - way(b).astype(wide)).sum()))


def kind_of(dtype: Any) -> str:
    """What numbers of a dtype are."""
    kinds = {"floats": jnp.floating, "complex numbers": jnp.complexfloating, "integers": jnp.integer}
    return next((kind for kind, scalar in kinds.items() if jnp.issubdtype(dtype, scalar)), "truth values")


def _transposition(order: tuple[int, ...]) -> Align:
    return lambda array: array.transpose(order)


def _unflattening(image: Image) -> Align:
    order = (0, *(axis + 1 for axis in image.order))
    return lambda array: array.reshape(-1, *image.shape).transpose(order).reshape(array.shape)


def _joined(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether one shape is the other with some axes joined, as heads are in attention."""
    boundaries = [set(np.cumprod([length for length in shape if length != 1]).tolist()) for shape in (a, b)]
    return boundaries[0] <= boundaries[1] or boundaries[1] <= boundaries[0]
