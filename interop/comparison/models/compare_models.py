"""Compare a model with its port: run both on the same inputs with the same parameters, and judge what differs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from interop.comparison.models.cause import LayerPair
from interop.comparison.models.counterparts import Counterparts, counterparts_of
from interop.comparison.models.inputs import inputs_of_both, refuse_wider
from interop.comparison.models.judgements import Judged, judge, places
from interop.comparison.models.layers import Layer, Moment
from interop.comparison.models.libraries import adapter_of
from interop.comparison.models.mapping import Override, ParameterMapping
from interop.comparison.models.matching import matched_parent
from interop.comparison.models.model import Call, Model, Run, Side
from interop.comparison.models.nudges import crossings_to_nudge
from interop.comparison.models.own_parameters import judged_parameters
from interop.comparison.models.report import ModelComparison
from interop.comparison.models.sides import settled


def compare_models(
    first: Any,
    second: Any,
    /,
    *inputs: Any,
    parameters: Any = None,
    mapping: Override | None = None,
    calls: tuple[Call | None, Call | None] = (None, None),
    layouts: tuple[str, str] | None = None,
) -> ModelComparison:
    r"""Compare a model with its port: find the first layer at which their values or gradients differ, and why.

    Both run on the same inputs with the same parameters. The values that enter and leave each module are compared, and
    the gradients there, of :math:`\sum_i w_i \, value_i` over the floats in the result, with weights as in `compare`; a
    complex number counts as two. The layer to blame is the first whose inputs agree and whose outputs do not. If there
    is none, it is the last in whose output gradients agree, and not in its input.

    Both run in the precision that was given, and in float64, where differences of rounding vanish, or shrink as
    :math:`\epsilon` does. If only gradients differ, both run under `min_norm`, where differences at ties vanish, and
    with small random numbers added to those that cross into their layers, where differences at near ties vanish, of
    numbers that are equal but for rounding. If anything differs, each runs again with other random numbers. What then
    differs from itself is random, and no bug.

    Args:
      first, second: models of torch.nn, Flax (linen and nnx), Equinox, Keras 3 on JAX, or what ``haiku.transform`` and
        ``haiku.transform_with_state`` return. A linen module is bound to its variables, ``module.bind(variables)``, or
        gets all from the other model. One of Equinox with state is the pair ``(model, state)``. Each is taken as it is:
        in training, or in evaluation.
      inputs: what both are called with. Arrays of NumPy, JAX or torch, in the layout that ``first`` takes; all else is
        passed as it is. Images (floats of four or five axes) are transposed for ``second`` if its library has channels
        elsewhere.
      parameters: where their values come from. By default they are those of ``first``, or of ``second`` if ``first``
        has none. ``"own"`` leaves each its own, and compares them. Else a tree of arrays, a state_dict, or the path of
        an npz or safetensors file, or of a checkpoint of orbax, under the names of either model.
      mapping: maps names of parameters or modules of ``first``, that are not paired, or not rightly, to those of
        ``second``: ``{"Dense_0": "fc1"}``. A parameter may have an order of axes, ``{"w": ("fc.weight", (1, 0))}``;
        None says that there is no counterpart.
      calls: how to call each, if not with the inputs alone: ``lambda model, x: model(x, train=False)``.
      layouts: of the inputs of both, if not what is usual in the library: ``("NHWC", "NHWC")``.

    Returns:
      A `ModelComparison`: ``verdict``, ``cause``, ``layers``, ``mapping``, and ``plot(path)``; ``print`` it.

    Raises:
      TypeError: a model is of none of these libraries, or ``calls``, ``mapping`` or ``parameters`` of another type.
      ValueError: parameters have no counterpart, or several; results differ in number, shape, kind; a name is unknown;
        an input is of float64, and parameters are not.

    >>> import flax.linen as nn
    >>> import torch
    >>> class Net(nn.Module):
    ...     @nn.compact
    ...     def __call__(self, x):
    ...         x = nn.gelu(nn.Dense(3)(x))
    ...         return nn.Dense(2)(x)
    >>> port = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU(), torch.nn.Linear(3, 2))
    >>> comparison = compare_models(Net(), port, np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4))
    >>> part, reason = comparison.verdict.split(". ")
    >>> print(part)
    Values first differ in the models' own code, after Dense_0 | 0 and before Dense_1 | 2
    >>> print(reason)
    That is not explained by ties or rounding: look at what both call there, as 1.
    >>> [layer.settings for layer in comparison.cause.between[1]]
    ["GELU(approximate='none')"]
    """
    if not (isinstance(calls, Sequence) and len(calls) == 2):
        raise TypeError(f"compare_models: calls is {calls!r}; pass two functions, None for one that is not needed.")
    if not isinstance(mapping, Mapping | None):
        raise TypeError(f"compare_models: mapping is {mapping!r}; pass a dict from names to names.")
    kinds = adapter_of(first, "first"), adapter_of(second, "second")
    of_first, of_second, notes = inputs_of_both(inputs, kinds[0].channels_last, kinds[1].channels_last, layouts)
    models = kinds[0](first, calls[0], of_first), kinds[1](second, calls[1], of_second)
    refuse_wider(models)
    sides, counterparts, alignments, dtype, replaced = settled(
        models, parameters, counterparts_of(*models, mapping or {})
    )

    layers = tuple(sides[0].answer(Run()).layers), tuple(sides[1].answer(Run()).layers)
    to_judge = list(places(counterparts, alignments, sides[0].values, layers[0]))
    crossings = crossings_to_nudge(counterparts.matches, layers, alignments, counterparts.match_of.values())
    judged_of: dict[int, list[Judged]] = defaultdict(list)
    roundings = _roundings(counterparts, layers[0], sides)
    for place, judged in zip(to_judge, judge(to_judge, sides, crossings, dtype, roundings), strict=True):
        judged_of[place.match].append(judged)
    if isinstance(parameters, str) and parameters == "own":
        for judged in judged_parameters(counterparts.mapping):
            judged_of[counterparts.match_of[judged.name]].append(judged)

    notes += _trained_in_one(models, counterparts.mapping)
    notes += [
        f"{side.model} cannot be run in another precision, which would tell rounding from bugs: {side.refusal}"
        for side in sides
        if side.refusal
    ]
    pairs = _layer_pairs(counterparts, layers, judged_of, _updated(counterparts, sides), roundings)
    names = str(models[0]), str(models[1])
    comparison = ModelComparison(*names, counterparts.mapping, pairs, layers, tuple(notes), replaced=replaced)
    cause = comparison.cause
    if cause is None or cause.finding != "ties":
        return comparison
    # Only here, as it costs one more run of both.
    return replace(comparison, ties=(sides[0].ties(cause.span(0)), sides[1].ties(cause.span(1))))


def _trained_in_one(models: tuple[Model, Model], mapping: ParameterMapping) -> list[str]:
    """Return a note for each parameter that one model trains, and the other does not."""
    return [
        f"{a.name} is trained in {models[0]}, {b.name} is not in {models[1]}: no gradients to compare."
        if a.trained
        else f"{b.name} is trained in {models[1]}, {a.name} is not in {models[0]}: no gradients to compare."
        for a, b in ((pair.first, pair.second) for pair in mapping.pairs)
        if a.trained != b.trained
    ]


def _updated(counterparts: Counterparts, sides: tuple[Side, Side]) -> tuple[set[int], set[int]]:
    """Return the numbers of the matches whose statistics a call changes, for either model."""
    first, second = sides
    updated: tuple[set[int], set[int]] = set(), set()
    for pair in counterparts.mapping.pairs:
        for numbers, side, parameter in ((updated[0], first, pair.first), (updated[1], second, pair.second)):
            after = side.answer(Run()).state.get(parameter.name)
            if after is not None and not np.array_equal(after, side.values[parameter.name], equal_nan=True):
                numbers.add(counterparts.match_of[pair.first.name])
    return updated


def _roundings(counterparts: Counterparts, layers: Sequence[Layer], sides: tuple[Side, Side]) -> list[float]:
    r"""Return for each match what rounding explains behind it; ``layers`` are those of the first model.

    A sum of n products is rounded n times, each time by up to :math:`\epsilon`, in random directions: by
    :math:`\sqrt{n} \epsilon` in all. The squares of these add up from layer to layer: behind dense layers of 100 and of
    300 inputs it is :math:`20 \epsilon`.
    """
    squares = np.zeros(len(counterparts.matches))
    answers = [side.answer(Run()) for side in sides]
    for pair in counterparts.mapping.pairs:
        n, fan_in = counterparts.match_of[pair.first.name], math.prod(pair.first.layout.torch_shape[1:])
        moments = [Moment(i, is_end=True) for i in counterparts.matches[n]]
        eps = max(answer.eps[moment] for answer, moment in zip(answers, moments, strict=True))
        squares[n] = max(squares[n], fan_in * eps**2)
    roundings = np.sqrt(np.cumsum(squares))
    indices = [i for i, _ in counterparts.matches]
    # A layer is rounded as the last match in it, or, if it has none, as itself.
    lasts = (sum(k < max(layers[i].end, i + 1) for k in indices) - 1 for i in indices)
    return [float(roundings[last]) for last in lasts]


def _layer_pairs(
    counterparts: Counterparts,
    layers: tuple[Sequence[Layer], Sequence[Layer]],
    judged_of: Mapping[int, Sequence[Judged]],
    updated: tuple[Collection[int], Collection[int]],
    roundings: Sequence[float],
) -> tuple[LayerPair, ...]:
    """Return the pairs of layers, each with its parent, what was judged of it, and what rounding explains there."""
    numbers = {i: n for n, (i, _) in enumerate(counterparts.matches)}
    pairs = []
    for n, (i, j) in enumerate(counterparts.matches):
        parent = None if n == 0 else numbers[matched_parent(layers[0], i, numbers)]
        judged = tuple(judged_of[n])
        updates = n in updated[0], n in updated[1]
        pairs.append(LayerPair(layers[0][i], layers[1][j], (i, j), parent, judged, roundings[n], updates))
    return tuple(pairs)
