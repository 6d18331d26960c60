"""Find what in one model corresponds to what in the other: parameters, layers, arrays that cross boundaries."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from interop.comparison.models.alignment import Align, Image, agree, alignment, as_it_is
from interop.comparison.models.layers import Answer, Direction, Layer
from interop.comparison.models.mapping import Override, Pair, ParameterMapping, images_of, inferred
from interop.comparison.models.matching import has_channels, matched_layers, matched_parent
from interop.comparison.models.model import Model

_DIRECTIONS: tuple[Direction, ...] = ("inputs", "outputs")


@dataclass(frozen=True)
class Counterparts:
    """What of two models corresponds to each other."""

    mapping: ParameterMapping
    matches: tuple[tuple[int, int], ...]
    """The indices of layers that are the same, in the order of the first model."""
    match_of: dict[str, int]
    """Maps a parameter of the first model to the number of the match whose layers own it, or are around its owner."""
    images: tuple[Image, ...]
    """What both models flatten, one with the channels last and the other with the channels first."""
    to_last: bool | None
    """Whether the first model has the channels last, and the second has them first; None if both have them alike."""

    def settled_by(self, answers: tuple[Answer, Answer]) -> Counterparts:
        """Map each kernel behind a flattened image by the order in which its rows enter the layers.

        Several images may have as many numbers as the kernel has rows, or the rows may come from no image: then the
        inputs of the layers tell. Where they agree in the order by which the kernel is mapped, or in none, it stays.
        """

        def settled(pair: Pair) -> Pair:
            images = pair.possible_images(self.images)
            indices = self.matches[self.match_of[pair.first.name]]
            layers = [answer.layers[i] for answer, i in zip(answers, indices, strict=True)]
            rows = [point.value for layer in layers for point in layer.inputs[:1]]
            if len(images) == 1 or [array.shape[1:] for array in rows] != [(pair.row_length,)] * 2:
                return pair
            # Both layers get the same numbers, in one order or the other: the right image makes them equal.
            fitting = [image for image in images if agree(rows[0], image.rearranged(rows[1]) if image else rows[1])]
            return pair if not fitting or pair.image in fitting else pair.with_rows_of(fitting[-1])

        return replace(self, mapping=replace(self.mapping, pairs=tuple(map(settled, self.mapping.pairs))))

    def alignments(self, layers: tuple[Sequence[Layer], Sequence[Layer]]) -> dict[tuple[int, Direction, int], Align]:
        """Map each crossing to what lays the array of the second model out as that of the first.

        A crossing is the number of the match, the direction, and the number of the array. Those that nothing aligns
        are left out, but for two results of different sizes, which are a difference.
        """
        alignments: dict[tuple[int, Direction, int], Align] = {}
        for n, (i, j) in enumerate(self.matches):
            for direction in _DIRECTIONS:
                points = getattr(layers[0][i], direction), getattr(layers[1][j], direction)
                for position, (first, second) in enumerate(zip(*points, strict=False)):
                    # Three axes are sequences of vectors, which stay as they are, unless convolutions are near.
                    stays = first.value.shape == second.value.shape and first.value.ndim == 3
                    if n == 0:  # the inputs may be transposed, by layouts; of results `_result_orders` decides
                        stays &= direction == "outputs"
                    else:
                        stays &= not (has_channels(layers[0], i) or has_channels(layers[1], j))
                    begin = i if direction == "inputs" else layers[0][i].end
                    images = self._images_at(begin, first.value.shape[-1:])
                    align = alignment(first, second, None if stays else self.to_last, images)
                    if align is not None:
                        alignments[n, direction, position] = align
                    elif direction == "outputs" and _differ_in_size(layers[0][i], layers[1][j]):
                        alignments[n, direction, position] = as_it_is
        return alignments

    def _images_at(self, begin: int, length: tuple[int, ...]) -> list[Image | None]:
        """Return what rows of this length may be made of, the likeliest first.

        That is what the next dense layer takes, of those of the first model that begin at ``begin`` or later.
        """
        likeliest = next((pair.image for i, pair in self._kernels if i >= begin and (pair.row_length,) == length), None)
        fitting = [image for image in self.images if (math.prod(image.axes),) == length]
        return list(dict.fromkeys([likeliest, None, *fitting]))

    @functools.cached_property
    def _kernels(self) -> list[tuple[int, Pair]]:
        """The kernels of dense layers, each with the layer of the first model, in the order in which these begin."""
        kernels = [(self.matches[self.match_of[p.first.name]][0], p) for p in self.mapping.pairs if p.row_length]
        return sorted(kernels, key=lambda kernel: kernel[0])


def counterparts_of(first: Model, second: Model, override: Override) -> Counterparts:
    """Pair the parameters of two models, and by them the layers."""
    mapping = inferred(first, second, override)
    matches = matched_layers(first.layers, second.layers, [(p.first.owner, p.second.owner) for p in mapping.pairs])
    numbers = {i: n for n, (i, _) in enumerate(matches)}
    # Backwards, so that of several calls of a module the first one stays.
    began = {layer.path: i for i, layer in reversed(list(enumerate(first.layers)))}

    def match_of(path: str) -> int:
        while path not in began:
            path = path.rpartition(".")[0]
        i = began[path]
        return numbers[i if i in numbers else matched_parent(first.layers, i, numbers)]

    return Counterparts(
        mapping,
        tuple(matches),
        {pair.first.name: match_of(pair.first.owner) for pair in mapping.pairs},
        tuple(images_of(first, second)),
        None if first.channels_last == second.channels_last else first.channels_last,
    )


def _differ_in_size(first: Layer, second: Layer) -> bool:
    """Return whether two layers, without others in them, return one array each, in sizes that do not broadcast."""
    if any(layer.end > layer.begin + 1 or len(layer.outputs) != 1 for layer in (first, second)):
        return False
    shapes = [layer.outputs[0].value.shape for layer in (first, second)]
    return len(shapes[0]) != len(shapes[1]) or any(x != y and 1 not in (x, y) for x, y in zip(*shapes, strict=True))
