"""Compare a model with its port: run both on the same inputs with the same parameters, and judge what differs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from interop._bridge.arrays import to_host
from interop.comparison.leaves import coarsest
from interop.comparison.models.alignment import channel_order, channel_orders, kind_of
from interop.comparison.models.cause import LayerPair
from interop.comparison.models.checkpoints import values_from
from interop.comparison.models.counterparts import Counterparts, counterparts_of
from interop.comparison.models.judgements import Judged, Judgement, apart_of, judge, places
from interop.comparison.models.layers import Layer
from interop.comparison.models.libraries import adapter_of
from interop.comparison.models.mapping import Override, Pair, ParameterMapping
from interop.comparison.models.matching import matched_parent
from interop.comparison.models.model import Call, Model, Orders, Run, Side
from interop.comparison.models.nudges import crossings_to_nudge
from interop.comparison.models.report import ModelComparison
from interop.frameworks.base import Array


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
    arrays = [_checked_input(i, leaf) for i, leaf in enumerate(inputs)]
    kinds = adapter_of(first, "first"), adapter_of(second, "second")
    second_arrays, notes = _inputs_of_second(arrays, kinds[0].channels_last, kinds[1].channels_last, layouts)
    notes += _constant_inputs(arrays)
    models = kinds[0](first, calls[0], arrays), kinds[1](second, calls[1], second_arrays)
    _refuse_wider(arrays, models)
    counterparts = counterparts_of(*models, mapping or {})
    sides, replaced = _sides(models, parameters, counterparts.mapping)

    # Which order of rows a kernel has, the inputs of its layer tell, with the least rounding in float64. Another order
    # changes what enters the layers behind, so that these are looked at again until nothing changes: from the first
    # layer on, one kernel more is settled each time.
    dtype = _coarsest_dtype(arrays, sides)
    precise = Run() if dtype == np.float64 else Run(np.float64)
    for _ in counterparts.mapping.pairs:
        settled = counterparts.settled_by((sides[0].answer(precise), sides[1].answer(precise)))
        if settled == counterparts:
            break
        counterparts = settled
        sides, replaced = _sides(models, parameters, counterparts.mapping)
    alignments = counterparts.alignments((sides[0].answer(precise).layers, sides[1].answer(precise).layers))

    layers = tuple(sides[0].answer(Run()).layers), tuple(sides[1].answer(Run()).layers)
    to_judge = list(places(counterparts, alignments, sides[0].values, layers[0]))
    crossings = crossings_to_nudge(counterparts.matches, layers, alignments, counterparts.match_of.values())
    judged_of: dict[int, list[Judged]] = defaultdict(list)
    for place, judged in zip(to_judge, judge(to_judge, sides, crossings, dtype), strict=True):
        judged_of[place.match].append(judged)
    if isinstance(parameters, str) and parameters == "own":
        for judged in _judged_parameters(counterparts.mapping):
            judged_of[counterparts.match_of[judged.name]].append(judged)

    notes += _trained_in_one(models, counterparts.mapping)
    pairs = _layer_pairs(counterparts, layers, judged_of, _updated(counterparts, sides), float(jnp.finfo(dtype).eps))
    names = str(models[0]), str(models[1])
    comparison = ModelComparison(*names, counterparts.mapping, pairs, layers, tuple(notes), replaced=replaced)
    cause = comparison.cause
    if cause is None or cause.finding != "ties":
        return comparison
    # Only here, as it costs one more run of both.
    return replace(comparison, ties=(sides[0].ties(cause.part(0)), sides[1].ties(cause.part(1))))


def _checked_input(i: int, leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return to_host(leaf.detach().cpu()).copy()
    if isinstance(leaf, jax.Array | np.generic | np.ndarray):
        return to_host(leaf)
    if any(isinstance(inner, jax.Array | np.ndarray | torch.Tensor) for inner in jax.tree.leaves(leaf)):
        raise TypeError(
            f"compare_models: input {i} is a {type(leaf).__name__} of arrays; pass the arrays one by "
            "one, and functions as calls that put them together."
        )
    return leaf


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating)


def _refuse_wider(inputs: Sequence[Any], models: Sequence[Model]) -> None:
    """Raise if an input is of float64, and the parameters of a model are not: torch would not multiply the two."""
    for model in models:
        floats = {p.dtype.name for p in model.parameters if jnp.issubdtype(p.dtype, jnp.floating)}
        for i, leaf in enumerate(inputs):
            if floats and "float64" not in floats and _is_float(leaf) and leaf.dtype == np.float64:
                narrower = sorted(floats)
                raise ValueError(
                    f"compare_models: input {i} is of float64, as NumPy makes arrays, and the parameters of {model} "
                    f"are of {' and '.join(narrower)}; pass input.astype({narrower[0]!r}), or models with parameters "
                    "of float64."
                )


def _inputs_of_second(
    inputs: Sequence[Any], first_last: bool, second_last: bool, layouts: tuple[str, str] | None
) -> tuple[list[Any], list[str]]:
    """Transpose images for the second model; return its inputs, and notes of what was transposed."""
    if layouts is not None:
        is_pair = isinstance(layouts, tuple | list) and len(layouts) == 2
        if not is_pair or sorted(layouts[0]) != sorted(layouts[1]) or len(set(layouts[0])) != len(layouts[0]):
            raise ValueError(f'compare_models: layouts is {layouts!r}; pass the axes of both, as in ("NHWC", "NCHW").')
        orders = {len(layouts[0]): tuple(layouts[0].index(axis) for axis in layouts[1])}
    elif first_last == second_last:
        orders = {}
    else:
        # Images have four axes, volumes five. Three may be a sequence of vectors as well as an image of one axis.
        orders = {n: channel_order(n, to_last=second_last) for n in (4, 5)}
    second_inputs, notes = [], []
    for i, leaf in enumerate(inputs):
        order = orders.get(np.ndim(leaf)) if _is_float(leaf) else None
        if order is None or list(order) == sorted(order):
            second_inputs.append(leaf)
            continue
        transposed = leaf.transpose(order)
        second_inputs.append(transposed)
        notes.append(f"Input {i} of shape {leaf.shape} was given to the second model as {transposed.shape}.")
    return second_inputs, notes


def _constant_inputs(inputs: Sequence[Any]) -> list[str]:
    """Return a note for each input that is the same number everywhere."""
    return [
        f"Input {i} is {leaf.flat[0]:g} everywhere, which hides differences and makes ties: use random inputs."
        for i, leaf in enumerate(inputs)
        if _is_float(leaf) and leaf.size > 1 and (leaf == leaf.flat[0]).all()
    ]


def _trained_in_one(models: tuple[Model, Model], mapping: ParameterMapping) -> list[str]:
    """Return a note for each parameter that one model trains, and the other does not."""
    return [
        f"{a.name} is trained in {models[0]}, {b.name} is not in {models[1]}: no gradients to compare."
        if a.trained
        else f"{b.name} is trained in {models[1]}, {a.name} is not in {models[0]}: no gradients to compare."
        for a, b in ((pair.first, pair.second) for pair in mapping.pairs)
        if a.trained != b.trained
    ]


def _coarsest_dtype(inputs: Sequence[Any], sides: tuple[Side, Side]) -> np.dtype[Any]:
    """Return the dtype that rounds most: with parameters="own" one model may be in float64, the other in float32."""
    leaves = (*inputs, *sides[0].values.values(), *sides[1].values.values())
    floats = [leaf.dtype for leaf in leaves if _is_float(leaf)]
    return coarsest(floats) if floats else np.dtype(np.float32)


def _sides(models: tuple[Model, Model], parameters: Any, mapping: ParameterMapping) -> tuple[tuple[Side, Side], str]:
    """Give both models the values of their parameters; return also, in words, how many that replaced."""
    values, replaced = _values(models, parameters, mapping)
    # The results of the second model are weighted in the order of the first, so that both sums are the same.
    return (Side(models[0], values[0], None), Side(models[1], values[1], _result_orders(*models))), replaced


def _values(
    models: tuple[Model, Model], parameters: Any, mapping: ParameterMapping
) -> tuple[list[dict[str, Array]], str]:
    values = [{p.name: p.value for p in model.parameters if p.value is not None} for model in models]
    is_complete = [len(bound) == len(model.parameters) for bound, model in zip(values, models, strict=True)]
    if isinstance(parameters, str) and parameters == "own":
        if not all(is_complete):
            raise ValueError(f"compare_models: parameters is 'own', and {models[is_complete.index(False)]} has none.")
        return _rounded_alike(values, mapping), ""
    if parameters is not None:
        source, values_of_source = values_from(parameters, models)
    elif any(is_complete):
        source = is_complete.index(True)
        values_of_source = values[source]
    else:
        raise ValueError("compare_models: neither model has parameters; bind one to its variables, or pass parameters.")
    target = 1 - source
    if source == 0:
        converted = {pair.second.name: pair.to_second(values_of_source[pair.first.name]) for pair in mapping.pairs}
    else:
        converted = {pair.first.name: pair.to_first(values_of_source[pair.second.name]) for pair in mapping.pairs}
    # What has no counterpart, as the caller said, keeps its value.
    before, after = values[target], {**values[target], **converted}
    values[source], values[target] = values_of_source, after
    for model, bound in zip(models, values, strict=True):
        if missing := [p.name for p in model.parameters if p.name not in bound]:
            raise ValueError(
                f"compare_models: {model} has no values for {', '.join(missing)}; bind it to its variables."
            )
    replaced = [name for name, value in before.items() if not np.array_equal(value, after[name])]
    if not replaced:
        return values, ""
    count = "1 parameter" if len(replaced) == 1 else f"{len(replaced)} parameters"
    return (
        values,
        f"{count} of {models[target]} got the values of {models[source]}; parameters='own' compares their own.",
    )


def _result_orders(first: Model, second: Model) -> Orders:
    """Return for each result of the second model that is differentiated the order of axes that makes it the first's."""
    results = [[(kind_of(p.value.dtype), tuple(p.value.shape)) for p in m.layers[0].outputs] for m in (first, second)]
    differentiated = ("floats", "complex numbers")
    if len(results[0]) != len(results[1]) or not any(kind in differentiated for kind, _ in results[0]):
        lists = [", ".join(f"{kind} {shape}" for kind, shape in side) or "nothing" for side in results]
        raise ValueError(
            f"compare_models: {first} returns {lists[0]}; {second} {lists[1]}. Choose arrays to compare, one of "
            "floats among them: calls=(lambda model, x: model(x)[0], None)."
        )
    directions = () if first.channels_last == second.channels_last else (first.channels_last, second.channels_last)
    result_orders: list[tuple[int, ...] | None] = []
    for i, ((kind, shape), (second_kind, second_shape)) in enumerate(zip(*results, strict=True)):
        if kind != second_kind:
            raise ValueError(f"compare_models: result {i} is of {kind} in {first}, and of {second_kind} in {second}.")
        orders = channel_orders(shape, second_shape, directions)
        if not orders and shape != second_shape:
            raise ValueError(
                f"compare_models: result {i} has shape {shape} in {first}, and {second_shape} in {second}."
            )
        if kind in differentiated:
            is_image = len(shape) >= 4 or shape != second_shape  # of three axes and one shape is a sequence of vectors
            result_orders.append(orders[0] if orders and is_image else None)
    return result_orders


def _rounded_alike(values: list[dict[str, Array]], mapping: ParameterMapping) -> list[dict[str, Array]]:
    """Return the values of both models; if a parameter differs by rounding alone, both get that of the coarser dtype.

    Else rounding of parameters would look like a bug of the layer, as it does not vanish in float64: 0.1 in bfloat16 is
    0.10009765625 there, too.
    """
    for pair in mapping.pairs:
        a, b = values[0][pair.first.name], values[1][pair.second.name]
        if not _parameters_agree(pair, _apart_as_parameters(pair)):
            continue
        if coarsest((a.dtype, b.dtype)) == a.dtype:
            values[1][pair.second.name] = pair.to_second(a).astype(b.dtype)
        else:
            values[0][pair.first.name] = pair.to_first(b).astype(a.dtype)
    return values


def _judged_parameters(mapping: ParameterMapping) -> Iterator[Judged]:
    """Compare the parameters that the models came with."""
    for pair in mapping.pairs:
        apart = _apart_as_parameters(pair)
        finding: Judgement = "agrees" if _parameters_agree(pair, apart) else "port"
        yield Judged("parameters", pair.first.name, False, apart, apart, finding)


def _apart_as_parameters(pair: Pair) -> float:
    first, second = pair.first.value, pair.second.value
    assert first is not None  # `_values` refuses "own" without values
    assert second is not None
    return apart_of(first, pair.to_first(second))


def _parameters_agree(pair: Pair, apart: float) -> bool:
    # Parameters are converted by moving numbers, at most to the dtype of one of the two: one rounding.
    return apart <= float(jnp.finfo(coarsest((pair.first.dtype, pair.second.dtype))).eps)


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


def _layer_pairs(
    counterparts: Counterparts,
    layers: tuple[Sequence[Layer], Sequence[Layer]],
    judged_of: Mapping[int, Sequence[Judged]],
    updated: tuple[Collection[int], Collection[int]],
    eps: float,
) -> tuple[LayerPair, ...]:
    r"""Return the pairs of layers, each with its parent, what was judged of it, and what rounding explains there.

    A sum of n products is rounded n times, each time by up to :math:`\epsilon`, in random directions: by
    :math:`\sqrt{n} \epsilon` in all. The squares of these add up from layer to layer: behind dense layers of 100 and of
    300 inputs it is :math:`20 \epsilon`.
    """
    numbers = {i: n for n, (i, _) in enumerate(counterparts.matches)}
    squares = np.zeros(len(numbers))
    for pair in counterparts.mapping.pairs:
        n, fan_in = counterparts.match_of[pair.first.name], math.prod(pair.first.layout.torch_shape[1:])
        squares[n] = max(squares[n], fan_in * eps**2)
    roundings = np.sqrt(np.cumsum(squares))
    pairs = []
    for n, (i, j) in enumerate(counterparts.matches):
        last = sum(k < max(layers[0][i].end, i + 1) for k in numbers) - 1  # the last match in it, or itself
        parent = None if n == 0 else numbers[matched_parent(layers[0], i, numbers)]
        judged = tuple(judged_of[n])
        updates = n in updated[0], n in updated[1]
        pairs.append(LayerPair(layers[0][i], layers[1][j], (i, j), parent, judged, float(roundings[last]), updates))
    return tuple(pairs)
