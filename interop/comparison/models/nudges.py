r"""Move both models away from near ties, by the same small random numbers.

Numbers that are equal but for rounding are a near tie, as those in the windows of a constant image. Rounding decides
which of them is the largest: in each model, and in each precision, it may be another one. Gradients differ with no bug.

A near tie is a difference of some :math:`\epsilon` times the largest number, a bug is one of the order of 1. So both
models get numbers added that lie between, of :math:`\sqrt{\epsilon}` times the largest: one of the window stands out,
and it is the same one in both. If gradients still differ there, the reason is no near tie.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from interop.comparison.leaves import largest_finite
from interop.comparison.models.alignment import Align
from interop.comparison.models.layers import Direction, Key, Layer, crossing
from interop.frameworks.base import Array

Crossing: TypeAlias = tuple[Key, Key, Align]
"""The same array in both models, and what lays that of the second out as that of the first."""


def crossings_to_nudge(
    matches: Sequence[tuple[int, int]],
    layers: tuple[Sequence[Layer], Sequence[Layer]],
    alignments: Mapping[tuple[int, Direction, int], Align],
    with_parameters: Collection[int],
) -> list[Crossing]:
    """Select the inputs of the models, and what layers return that have parameters and no layers in them.

    These sum, so that equal results are rounded differently. What other layers return, such as an activation, is not
    summed: it ties exactly, or as its inputs do. ``with_parameters`` has numbers of matches.
    """
    summing = {
        n for n in with_parameters if all(side[i].end == i + 1 for side, i in zip(layers, matches[n], strict=True))
    }
    crossings = []
    for (n, direction, position), align in alignments.items():
        if n == 0 if direction == "inputs" else n in summing:
            i, j = matches[n]
            crossings.append((Key(i, direction, position), Key(j, direction, position), align))
    return crossings


def nudges(
    crossings: Iterable[Crossing], layers: tuple[Sequence[Layer], Sequence[Layer]], eps: float
) -> tuple[dict[Key, Array], dict[Key, Array]]:
    """Draw for both models what to add at each crossing."""
    rng = np.random.default_rng(0)  # seeded, so that a verdict can be repeated
    to_first: dict[Key, Array] = {}
    to_second: dict[Key, Array] = {}
    for first_key, second_key, align in crossings:
        first, second = crossing(layers[0], first_key), crossing(layers[1], second_key)
        # Where each element of the first array lies in the second: the numbers of the elements, laid out as the first.
        places = align(np.arange(second.value.size).reshape(second.value.shape))
        if first.gradient is None or second.gradient is None or places.shape != first.value.shape:
            continue
        largest = largest_finite(first.value) or 1.0  # zeros have no scale
        to_first[first_key] = math.sqrt(eps) * largest * rng.uniform(-1, 1, size=tuple(places.shape))
        # The same numbers at the same places: places says where element i of the first is in the second.
        flat = np.empty(places.size)
        flat[places] = to_first[first_key]
        to_second[second_key] = flat.reshape(second.value.shape)
    return to_first, to_second
