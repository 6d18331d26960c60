"""Numbers beside those that cross the boundaries of two models, further away than rounding, and the same in both.

Numbers that are equal but for rounding are a near tie, as those in the windows of a constant image. Each model, and
each precision, may have another largest one. Beside them it is the same one in both. A difference that is left there is
not one of ties.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from interop.comparison.leaves import largest_finite
from interop.comparison.models.comparison import What
from interop.comparison.models.layers import Key, Layer, Point, Side
from interop.comparison.models.matching import Align
from interop.frameworks.base import Array

Crossing = tuple[Key, Key, Align]
"""The same array in both models, and how that of the second lies beside that of the first."""


def crossings_to_nudge(
    pairs: Sequence[tuple[int, int]],
    layers: tuple[Sequence[Layer], Sequence[Layer]],
    aligns: Mapping[tuple[int, What, int], Align],
    owners: Collection[int],
) -> list[Crossing]:
    """The inputs of the models, and what is returned by the layers that have parameters and no layers in them.

    What other layers return is not summed, so that it ties exactly, or for what it is given.
    """
    summing = {n for n in owners if all(side[i].end == i + 1 for side, i in zip(layers, pairs[n], strict=True))}
    found = []
    for (n, what, k), align in aligns.items():
        side: Side = "inputs" if what == "inputs" else "outputs"
        if n == 0 if side == "inputs" else n in summing:
            i, j = pairs[n]
            found.append((Key(i, side, k), Key(j, side, k), align))
    return found


def nudges(
    crossings: Iterable[Crossing], layers: tuple[Sequence[Layer], Sequence[Layer]], eps: float
) -> tuple[dict[Key, Array], dict[Key, Array]]:
    r"""For both models, what to add where: random numbers of :math:`\sqrt{\epsilon}` times the largest that cross."""
    rng = np.random.default_rng(0)
    ours: dict[Key, Array] = {}
    theirs: dict[Key, Array] = {}
    for first, second, align in crossings:
        here, there = _crossed(layers[0], first), _crossed(layers[1], second)
        places = align(np.arange(there.value.size).reshape(there.value.shape))
        if here.gradient is None or there.gradient is None or places.shape != here.value.shape:
            continue
        largest = largest_finite(here.value) or 1.0
        ours[first] = math.sqrt(eps) * largest * rng.uniform(-1, 1, size=tuple(places.shape))
        flat = np.empty(places.size)
        flat[places] = ours[first]
        theirs[second] = flat.reshape(there.value.shape)
    return ours, theirs


def _crossed(layers: Sequence[Layer], key: Key) -> Point:
    points: list[Point] = getattr(layers[key.layer], key.side)
    return points[key.position]
