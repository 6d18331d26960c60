"""What of two models corresponds, and the values that their parameters get by that."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from interop._terminal import text_width
from interop.comparison.leaves import agree, apart_of, coarsest, eps_of
from interop.comparison.models.checkpoints import arrays_of, name_parts
from interop.comparison.models.layers import Answer
from interop.comparison.models.model import Model, Orders, Run, is_float_array
from interop.comparison.models.parameters import Parameter, channel_order
from interop.frameworks.base import Array
from jaxclamp._shared.tables import text_table


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

    @property
    def swapped(self) -> Image:
        """The same image where the second model is the first."""
        return Image(self.axes, not self.is_last_in_first)


@dataclass(frozen=True)
class Pair:
    """A parameter of both models."""

    first: Parameter
    second: Parameter
    reason: str
    """By what it was paired: ``name``, ``order``, ``given``, or ``given axes``."""
    image: Image | None = None
    """The flattened image whose rows a dense layer takes, if their order differs in the two models."""

    def to_second(self, array: Array) -> Array:
        rows = self.first.layout.to_torch(array)
        return self.second.layout.from_torch(self.image.swapped.rearranged(rows) if self.image else rows)

    def to_first(self, array: Array) -> Array:
        rows = self.second.layout.to_torch(array)
        return self.first.layout.from_torch(self.image.rearranged(rows) if self.image else rows)

    @functools.cached_property
    def apart(self) -> float:
        """How far the values that both models came with are apart."""
        assert self.first.value is not None  # parameters="own" without values is refused
        assert self.second.value is not None
        return apart_of(self.first.value, self.to_first(self.second.value))

    @property
    def agrees(self) -> bool:
        """Whether the values that both models came with agree."""
        # Parameters are converted by moving numbers, at most to the dtype of one of the two: one rounding.
        return self.apart <= max(eps_of(parameter.dtype) for parameter in (self.first, self.second))

    @property
    def row_length(self) -> int:
        """How many inputs a dense layer multiplies with it; 0 for other parameters, or if the caller ordered axes."""
        layouts = self.first.layout, self.second.layout
        is_dense = self.first.role == "weight" and all(
            len(layout.shape) == len(layout.torch_shape) == 2 for layout in layouts
        )
        return layouts[0].torch_shape[1] if is_dense and self.reason != "given axes" else 0

    def possible_images(self, images: Iterable[Image]) -> list[Image | None]:
        """Return what the layer may take, the likeliest last; None is rows that have one order in both models."""
        return [None, *(image for image in images if math.prod(image.axes) == self.row_length)]


@dataclass(frozen=True)
class ParameterMapping:
    """The parameters of two models, in pairs; `str` gives a table."""

    pairs: tuple[Pair, ...]
    alone: tuple[str, ...] = ()
    """Those that the caller said have no counterpart."""

    def __str__(self) -> str:
        rows = [
            (pair.first.name, _shape(pair.first), pair.second.name, _shape(pair.second), pair.reason)
            for pair in self.pairs
        ]
        return text_table(("first", "shape", "second", "shape", "by"), rows, text_width(), folded=(0, 2))

    def as_override(self) -> dict[str, str]:
        """Return the names, to be changed and passed as ``mapping``."""
        return {pair.first.name: pair.second.name for pair in self.pairs}


def _shape(parameter: Parameter) -> str:
    return "×".join(map(str, parameter.layout.shape)) or "1"


@dataclass(frozen=True)
class Counterparts:
    """What of two models corresponds to each other."""

    mapping: ParameterMapping
    matches: tuple[tuple[int, int], ...]
    """The indices of layers that are the same, in the order of the first model."""
    parents: tuple[int | None, ...]
    """For each match, the number of the innermost match around it; None for the models themselves."""
    match_of: Mapping[str, int]
    """Maps a parameter of the first model to the number of the match whose layers own it, or are around its owner."""
    images: tuple[Image, ...]
    """What both models flatten, one with the channels last and the other with the channels first."""
    result_orders: Orders
    """For each result of the second model that is differentiated, the order of axes that makes it the first's."""
    to_last: bool | None
    """Whether the first model has the channels last, and the second has them first; None if both have them alike."""


class Bound(NamedTuple):
    """Both models with the values of their parameters, and what corresponds in them."""

    models: tuple[Model, Model]
    counterparts: Counterparts
    precise: Run
    """The run that rounds least: in float64, or as the models were given if that is float64."""
    are_own: bool
    """Whether each model keeps its own parameters, which are compared."""
    replaced: str
    """How many parameters got the values of the other model, in words."""


def bind(models: tuple[Model, Model], parameters: Any, counterparts: Counterparts) -> Bound:
    """Give the parameters of both models their values, and run both until the orders of rows of kernels are settled.

    The inputs of a layer tell in which order the rows of its kernel are; in float64 they are rounded least. A kernel
    whose rows are put in another order changes the inputs of the layers behind it. So the models run again until no
    order changes. Each run settles at least the first kernel that was not settled.
    """
    are_own = isinstance(parameters, str) and parameters == "own"
    while True:  # as often as there are kernels at most
        replaced = _give_values(models, parameters, counterparts, are_own=are_own)
        precise = Run() if _coarsest_dtype(models) == np.float64 else Run(np.float64)
        pairs = _by_inputs(counterparts, (models[0].answer(precise), models[1].answer(precise)))
        if pairs == counterparts.mapping.pairs:
            return Bound(models, counterparts, precise, are_own, replaced)
        counterparts = replace(counterparts, mapping=replace(counterparts.mapping, pairs=pairs))


def _by_inputs(counterparts: Counterparts, answers: tuple[Answer, Answer]) -> tuple[Pair, ...]:
    """Map each kernel behind a flattened image by the order in which its rows enter the layers.

    Several images may have as many numbers as the kernel has rows, or the rows may come from no image: then the inputs
    of the layers tell. Where they agree in the order by which the kernel is mapped, or in none, it stays.
    """

    def by_inputs(pair: Pair) -> Pair:
        images = pair.possible_images(counterparts.images)
        indices = counterparts.matches[counterparts.match_of[pair.first.name]]
        layers = [answer.layers[i] for answer, i in zip(answers, indices, strict=True)]
        rows = [point.value for layer in layers for point in layer.inputs[:1]]
        if len(images) == 1 or [array.shape[1:] for array in rows] != [(pair.row_length,)] * 2:
            return pair
        # Both layers get the same numbers, in one order or the other: the right image makes them equal.
        rearranged = [(image, image.rearranged(rows[1]) if image else rows[1]) for image in images]
        fitting = [image for image, of_second in rearranged if agree(rows[0], of_second)]
        return pair if not fitting or pair.image in fitting else replace(pair, image=fitting[-1])

    return tuple(map(by_inputs, counterparts.mapping.pairs))


def _coarsest_dtype(models: Sequence[Model]) -> np.dtype[Any]:
    """Return the dtype that rounds most: with parameters="own" one model may be in float64, the other in float32."""
    leaves = [leaf for model in models for leaf in (*model.inputs, *model.values.values())]
    floats = [leaf.dtype for leaf in leaves if is_float_array(leaf)]
    # Of integers alone: what models compute of them is float32, the default of all libraries.
    return coarsest(floats) if floats else np.dtype(np.float32)


def _give_values(models: tuple[Model, Model], parameters: Any, counterparts: Counterparts, *, are_own: bool) -> str:
    """Give both models the values of their parameters; return, in words, how many that replaced."""
    values = [{p.name: p.value for p in model.parameters if p.value is not None} for model in models]
    is_complete = [len(bound) == len(model.parameters) for bound, model in zip(values, models, strict=True)]
    replaced = ""
    if are_own:
        if not all(is_complete):
            raise ValueError(f"compare_models: parameters is 'own', and {models[is_complete.index(False)]} has none.")
        _round_alike(values, (pair for pair in counterparts.mapping.pairs if pair.agrees))
    else:
        if parameters is not None:
            source, values_of_source = _named_as_in(models, arrays_of(parameters))
        elif any(is_complete):
            source = is_complete.index(True)
            values_of_source = values[source]
        else:
            raise ValueError(
                "compare_models: neither model has parameters; bind one to its variables, or pass parameters."
            )
        target = 1 - source
        before, values[source] = values[target], values_of_source
        # What has no counterpart, as the caller said, keeps its value.
        values[target] = before | _converted(counterparts.mapping, source, values_of_source)
        _round_alike(values, counterparts.mapping.pairs)
        changed = [name for name, value in before.items() if not np.array_equal(value, values[target][name])]
        if changed:
            count = "1 parameter" if len(changed) == 1 else f"{len(changed)} parameters"
            replaced = (
                f"{count} of {models[target]} got the values of {models[source]}; parameters='own' compares their own."
            )
    for model, bound in zip(models, values, strict=True):
        if missing := [p.name for p in model.parameters if p.name not in bound]:
            raise ValueError(
                f"compare_models: {model} has no values for {', '.join(missing)}; bind it to its variables."
            )
    models[0].bind(values[0])
    # The results of the second model are weighted in the order of the first, so that both sums are the same.
    models[1].bind(values[1], counterparts.result_orders)
    return replaced


def _named_as_in(models: Sequence[Model], arrays: Mapping[tuple[str, ...], Array]) -> tuple[int, dict[str, Array]]:
    """Return the number of the model whose names the arrays have, and a dict of these names to values."""
    missing = []
    for number, model in enumerate(models):
        names = {name_parts(p.name): p for p in model.parameters}
        absent = [p.name for name, p in names.items() if name not in arrays]
        if absent:
            missing.append(f"of {model.name} are missing {', '.join(absent[:5])}")
            continue
        for name, parameter in names.items():
            if arrays[name].shape != parameter.layout.shape:
                raise ValueError(
                    f"compare_models: parameters has {parameter.name} of shape {arrays[name].shape}; {model.name} has "
                    f"{parameter.layout.shape}."
                )
        # A file may have another dtype than the model, whose inputs have that of the model.
        return number, {p.name: arrays[name].astype(p.dtype, copy=False) for name, p in names.items()}
    raise ValueError(f"compare_models: parameters has the names of neither model: {'; '.join(missing)}.")


def _converted(mapping: ParameterMapping, source: int, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return for the other model, in its dtypes, what its parameters have as values in the ``source``, 0 or 1."""
    if source == 0:
        return {p.second.name: p.to_second(values[p.first.name]).astype(p.second.dtype) for p in mapping.pairs}
    return {p.first.name: p.to_first(values[p.second.name]).astype(p.first.dtype) for p in mapping.pairs}


def _round_alike(values: Sequence[dict[str, Array]], pairs: Iterable[Pair]) -> None:
    """Give both models the parameters in the coarser of their dtypes, each as its own dtype.

    Else rounding of parameters would look like a bug of the layer, as it does not vanish in float64: 0.1 in bfloat16 is
    0.10009765625 there, too.
    """
    for pair in pairs:
        a, b = values[0][pair.first.name], values[1][pair.second.name]
        if coarsest((a.dtype, b.dtype)) == a.dtype:
            values[1][pair.second.name] = pair.to_second(a).astype(b.dtype)
        else:
            values[0][pair.first.name] = pair.to_first(b).astype(a.dtype)
