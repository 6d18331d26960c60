"""List what two models have in common, and lay each array of the second model out as that of the first.

Shapes leave several ways to do that, and the numbers choose one. Say the first model has the channels of images last,
and both arrays have the shape (2, 4, 4, 4). Either the axes of the second are samples, channels, height and width, and
have to be moved, to the order (0, 2, 3, 1). Or they are those of the first already. The way is taken under which the
values agree; if there is none, as behind a bug, the one under which they are least apart.
"""

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np

from interop.comparison.leaves import agree, kind_of, wide
from interop.comparison.models.counterparts import channel_orders
from interop.comparison.models.layers import Answer, Direction, Key, Layer, Moment, Point, What, crossing
from interop.comparison.models.mapping import Bound, Counterparts, Image, Pair
from interop.frameworks.base import Array

Align: TypeAlias = Callable[[Array], Array]
"""Lays an array of the second model out as that of the first."""
Read: TypeAlias = Callable[[Answer], Array]


class Crossing(NamedTuple):
    """The same array at a boundary in both models, and what lays that of the second out as that of the first."""

    first: Key
    second: Key
    align: Align


@dataclass(frozen=True, eq=False)
class Place:
    """Where an array, or a gradient, is in the answers of both models."""

    match: int
    """The number of the match of layers that it belongs to."""
    what: What
    name: str
    is_gradient: bool
    read: tuple[Read, Read]
    """Read the array from the answers of either model, both in the layout of the first."""
    moments: tuple[Moment, Moment]
    """When the array is known, in either model."""
    crossing: Crossing | None = None
    """Where it crosses a boundary; a parameter crosses none."""
    variance_before: Array | None = None
    """The value before the call, if it is a variance that the call changes."""
    count: int = 0
    """Over how many numbers the call takes that variance."""


def places(bound: Bound) -> Iterator[Place]:
    """List all arrays to compare, laid out as the numbers tell in the run that rounds least."""
    models, counterparts = bound.models, bound.counterparts
    layers = models[0].answer(bound.precise).layers, models[1].answer(bound.precise).layers
    by_match = [list(_crossings(counterparts, layers, n)) for n in range(len(counterparts.matches))]
    # All at once: in a port that is wrong from its first layer on, each would be compared for each of the others.
    agreeing = [crossed for of_match in by_match for crossed in of_match if _agrees(crossed, layers)]
    for n, of_match in enumerate(by_match):
        for crossed in of_match:
            if crossed in agreeing or not _is_drawn_elsewhere(crossed, agreeing, layers):
                yield from _of_crossing(n, crossed, crossing(layers[0], crossed.first))
    for pair in counterparts.mapping.pairs:
        # Else one model has a gradient there, the other a value after the call: a note says so.
        if pair.first.trained == pair.second.trained:
            n = counterparts.match_of[pair.first.name]
            match, before = counterparts.matches[n], models[0].values[pair.first.name]
            yield _of_parameter(n, match, pair, before, layers[0][match[0]].inputs)


def _of_crossing(n: int, crossed: Crossing, point: Point) -> Iterator[Place]:
    direction, position = crossed.first.direction, str(crossed.first.position)
    moments = crossed.first.moment, crossed.second.moment
    for is_gradient in (False, True) if point.gradient is not None else (False,):
        readers = (
            functools.partial(_crossed, crossed.first, is_gradient, _as_it_is),
            functools.partial(_crossed, crossed.second, is_gradient, crossed.align),
        )
        yield Place(n, direction, position, is_gradient, readers, _AT_END if is_gradient else moments, crossed)


def _of_parameter(n: int, match: tuple[int, int], pair: Pair, before: Array, inputs: Sequence[Point]) -> Place:
    if pair.first.trained:
        return Place(n, "parameters", pair.first.name, True, _readers("gradients", pair), _AT_END)
    moments = Moment(match[0], "outputs"), Moment(match[1], "outputs")
    place = Place(n, "state", pair.first.name, False, _readers("state", pair), moments)
    if pair.first.role != "var" or not inputs:
        return place
    # A variance has a number for each channel, taken over all numbers of the input in that channel.
    return replace(place, variance_before=before, count=inputs[0].value.size // before.size)


_AT_END = Moment(0, "outputs"), Moment(0, "outputs")
"""When the models end; gradients depend on all that they compute."""


def _crossed(key: Key, is_gradient: bool, align: Align, answer: Answer) -> Array:
    point: Any = crossing(answer.layers, key)
    return align(point.gradient if is_gradient else point.value)


def _readers(table: str, pair: Pair) -> tuple[Read, Read]:
    return (
        lambda answer: getattr(answer, table)[pair.first.name],
        lambda answer: pair.to_first(getattr(answer, table)[pair.second.name]),
    )


def _crossings(
    counterparts: Counterparts, layers: tuple[Sequence[Layer], Sequence[Layer]], n: int
) -> Iterator[Crossing]:
    """Yield what crosses the boundary of both layers of a match.

    What nothing aligns is left out, but for two results of different sizes, which are a difference.
    """
    i, j = counterparts.matches[n]
    for direction in get_args(Direction):
        points = getattr(layers[0][i], direction), getattr(layers[1][j], direction)
        for position, (first, second) in enumerate(zip(*points, strict=False)):
            # Three axes are sequences of vectors, which stay as they are, unless convolutions are near.
            stays = first.value.shape == second.value.shape and first.value.ndim == 3
            if n == 0:  # the inputs may be transposed, by layouts; of results their order decides
                stays &= direction == "outputs"
            else:
                stays &= not (_has_channels(layers[0], i) or _has_channels(layers[1], j))
            begin = i if direction == "inputs" else layers[0][i].end
            images = _images_at(counterparts, begin, first.value.shape[-1:])
            align = _alignment(first, second, None if stays else counterparts.to_last, images)
            if align is None and direction == "outputs" and _differ_in_size(layers[0][i], layers[1][j]):
                align = _as_it_is
            if align is not None:
                yield Crossing(Key(i, direction, position), Key(j, direction, position), align)


def _is_drawn_elsewhere(
    crossed: Crossing, agreeing: Iterable[Crossing], layers: tuple[Sequence[Layer], Sequence[Layer]]
) -> bool:
    """Return whether the models end a layer at different places: one before an activation, the other behind it.

    Then what leaves the layer differs. The model that ends it later passes that on as it is, to a later boundary, where
    both models agree: the other has applied the activation by then.
    """
    return crossed.first.direction == "outputs" and any(
        all(map(_is_later, crossed[:2], each[:2], layers)) and any(map(_is_passed_on, crossed[:2], each[:2], layers))
        for each in agreeing
    )


def _agrees(crossed: Crossing, layers: tuple[Sequence[Layer], Sequence[Layer]]) -> bool:
    first, second = crossing(layers[0], crossed.first).value, crossed.align(crossing(layers[1], crossed.second).value)
    return first.shape == second.shape and agree(first, second)


def _is_later(left: Key, key: Key, layers: Sequence[Layer]) -> bool:
    """Return whether an array crosses the boundary at ``key`` when the layer of ``left`` has ended.

    It enters or leaves a layer that begins behind that one, or leaves one around it.
    """
    layer, end = layers[key.layer], layers[left.layer].end
    is_around = layer.begin < left.layer and layer.end >= end
    return layer.begin >= end or (is_around and key.direction == "outputs")


def _is_passed_on(earlier: Key, later: Key, layers: Sequence[Layer]) -> bool:
    """Return whether the same numbers cross both boundaries, in the same order; the shape may be another one."""
    first, second = (crossing(layers, key).value.ravel() for key in (earlier, later))
    return np.array_equal(first, second)


def _images_at(counterparts: Counterparts, begin: int, length: tuple[int, ...]) -> list[Image | None]:
    """Return what rows of this length may be made of, the likeliest first.

    That is what the next dense layer takes, of those of the first model that begin at ``begin`` or later.
    """
    kernels = sorted(
        (counterparts.matches[counterparts.match_of[pair.first.name]][0], n)
        for n, pair in enumerate(counterparts.mapping.pairs)
        if (pair.row_length,) == length
    )
    likeliest = next((counterparts.mapping.pairs[n].image for i, n in kernels if i >= begin), None)
    fitting = [image for image in counterparts.images if (math.prod(image.axes),) == length]
    return list(dict.fromkeys([likeliest, None, *fitting]))


def _has_channels(layers: Sequence[Layer], i: int) -> bool:
    """Return whether convolutions or pools run in a layer or next to it, so that its arrays of three axes may be
    images."""
    parent = layers[i].parent
    near = [*layers[i : layers[i].end], *(layer for layer in layers if layer.parent == parent)]
    return any(re.search("conv|pool|batch_?norm", layer.kind.lower()) for layer in near)


def _differ_in_size(first: Layer, second: Layer) -> bool:
    """Return whether two layers, without others in them, return one array each, in sizes that do not broadcast."""
    if any(layer.end > layer.begin + 1 or len(layer.outputs) != 1 for layer in (first, second)):
        return False
    shapes = [layer.outputs[0].value.shape for layer in (first, second)]
    return len(shapes[0]) != len(shapes[1]) or any(x != y and 1 not in (x, y) for x, y in zip(*shapes, strict=True))


def _alignment(a: Point, b: Point, to_last: bool | None, images: Sequence[Image | None]) -> Align | None:
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
    transposed: list[Align] = [
        functools.partial(np.transpose, axes=order) for order in channel_orders(first, second, to_last)
    ]
    if first == second:
        of_rows = [image.rearranged if image else _as_it_is for image in images if len(first) == 2]
        ways = [*transposed[:1], *(of_rows or [_as_it_is]), *transposed[1:]]
    elif transposed:
        ways = transposed
    elif a.value.size == b.value.size and _is_joined(first, second):
        ways = [lambda array: array.reshape(first)]
    if len(ways) < 2:
        return ways[0] if ways else None
    return min(ways, key=lambda way: _misfit(a, b, way))


def _as_it_is(array: Array) -> Array:
    return array


def _misfit(a: Point, b: Point, way: Align) -> tuple[bool, bool, float]:
    """Return whether values differ, whether gradients do, and how far apart values are that differ."""
    first, second = a.value, way(b.value)
    gradients_differ = a.gradient is not None and b.gradient is not None and not agree(a.gradient, way(b.gradient))
    if agree(first, second):  # but for rounding, which must not choose between two ways
        return False, gradients_differ, 0.0
    return True, gradients_differ, float(np.abs(wide(first) - wide(second)).sum())


def _is_joined(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether one shape is the other with some axes joined, as heads are in attention.

    The products of the first lengths tell: of (5, 2, 3) they are 5, 10, 30, of (5, 6) they are 5, 30.
    """
    products = [set(np.cumprod([length for length in shape if length != 1]).tolist()) for shape in (a, b)]
    return products[0] <= products[1] or products[1] <= products[0]
