"""Give both models the values of their parameters, and settle by their runs how kernels and layers correspond."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from interop.comparison.leaves import coarsest
from interop.comparison.models.alignment import Align, channel_orders, kind_of
from interop.comparison.models.checkpoints import values_from
from interop.comparison.models.counterparts import Counterparts
from interop.comparison.models.inputs import is_float
from interop.comparison.models.layers import Direction
from interop.comparison.models.mapping import ParameterMapping
from interop.comparison.models.model import Model, Orders, Run, Side
from interop.comparison.models.own_parameters import rounded_alike
from interop.frameworks.base import Array


class Settled(NamedTuple):
    """Two models with the values of their parameters, and what corresponds in their runs."""

    sides: tuple[Side, Side]
    counterparts: Counterparts
    alignments: Mapping[tuple[int, Direction, int], Align]
    """Maps each crossing to what lays the array of the second model out as that of the first."""
    dtype: np.dtype[Any]
    """The coarsest dtype of inputs and parameters."""
    replaced: str
    """How many parameters got the values of the other model, in words."""


def settled(models: tuple[Model, Model], parameters: Any, counterparts: Counterparts) -> Settled:
    """Bind the parameters of both models, and run both until the orders of rows of all kernels are settled.

    Which order of rows a kernel has, the inputs of its layer tell, with the least rounding in float64. Another order
    changes what enters the layers behind, so that these are looked at again until nothing changes: from the first layer
    on, one kernel more is settled each time.
    """
    sides, replaced = _sides(models, parameters, counterparts.mapping)
    dtype = _coarsest_dtype(sides)
    precise = Run() if dtype == np.float64 else Run(np.float64)
    for _ in counterparts.mapping.pairs:
        by_inputs = counterparts.settled_by((sides[0].answer(precise), sides[1].answer(precise)))
        if by_inputs == counterparts:
            break
        counterparts = by_inputs
        sides, replaced = _sides(models, parameters, counterparts.mapping)
    alignments = counterparts.alignments((sides[0].answer(precise).layers, sides[1].answer(precise).layers))
    return Settled(sides, counterparts, alignments, dtype, replaced)


def _coarsest_dtype(sides: tuple[Side, Side]) -> np.dtype[Any]:
    """Return the dtype that rounds most: with parameters="own" one model may be in float64, the other in float32."""
    leaves = [leaf for side in sides for leaf in (*side.model.inputs, *side.values.values())]
    floats = [leaf.dtype for leaf in leaves if is_float(leaf)]
    # Of integers alone: what models compute of them is float32, the default of all libraries.
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
        return rounded_alike(values, mapping), ""
    if parameters is not None:
        source, values_of_source = values_from(parameters, models)
    elif any(is_complete):
        source = is_complete.index(True)
        values_of_source = values[source]
    else:
        raise ValueError("compare_models: neither model has parameters; bind one to its variables, or pass parameters.")
    # The target gets the dtype of the source too, so that rounding of parameters is no difference.
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
