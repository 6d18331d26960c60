"""A model beside its port: both asked on the same inputs with the same parameters, and what they answer compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from interop._bridge.arrays import lend
from interop.comparison.models.cause import LayerPair
from interop.comparison.models.checkpoints import values_from
from interop.comparison.models.comparison import Judged, What, apart_of, judge, places, with_random
from interop.comparison.models.layers import Answer, Key, Layer
from interop.comparison.models.libraries import adapter_of
from interop.comparison.models.mapping import Override, Pair, ParameterMapping, images_of, inferred
from interop.comparison.models.matching import (
    Align,
    Image,
    agree,
    alignment,
    channel_order,
    has_channels,
    kind_of,
    known_parent,
    matched_layers,
)
from interop.comparison.models.model import Call, Model, Orders, Run
from interop.comparison.models.nudges import crossings_to_nudge, nudges
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
    r"""A model beside its port: the first layer at which their values differ, or their gradients, and why.

    Both run on the same inputs with the same parameters. The values that enter and leave each module are compared, and
    the gradients there, of :math:`\sum_i w_i \, value_i` over the floats in the result, with weights as in `compare`; a
    complex number counts as two. The layer to blame is the first whose inputs agree and whose outputs do not. If there
    is none, it is the last in whose output gradients agree, and not in its input.

    Both run in the precision that was given, and in float64, where differences of rounding vanish, or shrink as
    :math:`\epsilon` does. If only gradients differ, both run under `min_norm`, where differences at ties vanish, and at
    numbers beside those that cross into their layers, where differences at near ties vanish: numbers that are equal but
    for rounding. If anything differs, each runs once more with other random numbers. What differs then from itself is
    random, and no bug.

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
      mapping: for names of parameters or modules of ``first`` that are not found, or not rightly, those of ``second``:
        ``{"Dense_0": "fc1"}``. A parameter may have an order of axes, ``{"w": ("fc.weight", (1, 0))}``; None says that
        there is no counterpart.
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
    Values part in the models' own code, after Dense_0 | 0 and before Dense_1 | 2
    >>> print(reason)
    That is not explained by ties or rounding: look at what both call there, as 1.
    >>> [layer.settings for layer in comparison.cause.between[1]]
    ["GELU(approximate='none')"]
    """
    if not (isinstance(calls, Sequence) and len(calls) == 2):
        raise TypeError(f"compare_models: calls is {calls!r}; pass two functions, None for one that is not needed.")
    given = [_to_host(i, leaf) for i, leaf in enumerate(inputs)]
    kinds = adapter_of(first, "first"), adapter_of(second, "second")
    theirs, notes = _for_second(given, kinds[0].channels_last, kinds[1].channels_last, layouts)
    notes += _of_constants(given)
    a, b = kinds[0](first, calls[0], given), kinds[1](second, calls[1], theirs)
    _refuse_wider(given, (a, b))
    found = inferred(a, b, mapping or {})
    values, replaced = _values(a, b, parameters, found)
    orders = _orders(a, b)

    def answers(run: Run, nudged: tuple[Mapping[Key, Array], Mapping[Key, Array]] = ({}, {})) -> tuple[Answer, Answer]:
        first, second = (run._replace(nudges=nudges) for nudges in nudged)
        return a.answer(values[0], None, first), b.answer(values[1], orders, second)

    floats = [leaf.dtype for leaf in (*given, *values[0].values()) if _is_float(leaf)]
    coarsest = max(floats, key=lambda dtype: float(jnp.finfo(dtype).eps), default=np.dtype(np.float32))
    indices = matched_layers(a.layers, b.layers, [(pair.first.owner, pair.second.owner) for pair in found.pairs])
    owners = {pair.first.name: _owner(pair.first.owner, a.layers, dict(indices)) for pair in found.pairs}
    images = images_of(a, b)
    fine = Run() if coarsest == np.float64 else Run(np.float64)
    precise = answers(fine)
    while (seen := _as_rows_cross(found, images, owners, indices, precise)) != found:
        found = seen
        values, replaced = _values(a, b, parameters, found)
        precise = answers(fine)
    as_given = precise if fine == Run() else answers(Run())
    layers = tuple(as_given[0].layers), tuple(as_given[1].layers)
    to_last = None if a.channels_last == b.channels_last else a.channels_last
    aligns = _aligns(indices, (precise[0].layers, precise[1].layers), to_last, images, found, owners)
    compared = list(places(indices, aligns, found, owners, values[0], layers[0]))

    def ask(run: Run) -> tuple[Answer, Answer]:
        return as_given if run == Run() else precise if run == fine else answers(run)

    def beside(run: Run) -> tuple[Answer, Answer]:
        crossings = crossings_to_nudge(indices, layers, aligns, owners.values())
        return answers(run, nudges(crossings, layers, float(jnp.finfo(run.dtype or coarsest).eps)))

    judged = judge(compared, ask, beside, coarsest == np.float64)
    if not all(one.agrees for one in judged):
        again = (
            a.answer(values[0], None, Run(redrawn=True)) if a.draws else None,
            b.answer(values[1], orders, Run(redrawn=True)) if b.draws else None,
        )
        judged = with_random(compared, judged, as_given, again)
    of_layer: list[list[Judged]] = [[] for _ in indices]
    for place, one in zip(compared, judged, strict=True):
        of_layer[place.pair].append(one)
    if isinstance(parameters, str) and parameters == "own":
        for name, one in _own_parameters(found, *values):
            of_layer[owners[name]].append(one)
    pairs = _pairs(indices, layers, of_layer, _roundings(found, owners, float(jnp.finfo(coarsest).eps)))
    comparison = ModelComparison(str(a), str(b), found, pairs, layers, (*notes, *replaced))
    if comparison.cause is None or comparison.cause.finding != "ties":
        return comparison
    return replace(comparison, ties=(a.ties(values[0]), b.ties(values[1])))


def _to_host(i: int, leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return np.array(lend(leaf.detach().cpu()))
    if isinstance(leaf, jax.Array | np.generic | np.ndarray):
        return np.asarray(leaf)
    if any(isinstance(inner, jax.Array | np.ndarray | torch.Tensor) for inner in jax.tree.leaves(leaf)):
        raise TypeError(
            f"compare_models: input {i} is a {type(leaf).__name__} of arrays; pass the arrays one by "
            "one, and functions as calls that put them together."
        )
    return leaf


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating)


def _refuse_wider(given: Sequence[Any], models: Sequence[Model]) -> None:
    """Raise if an input is of float64, and the parameters of a model are not: torch would not multiply the two."""
    for model in models:
        floats = {p.dtype.name for p in model.parameters if jnp.issubdtype(p.dtype, jnp.floating)}
        for i, leaf in enumerate(given):
            if floats and "float64" not in floats and _is_float(leaf) and leaf.dtype == np.float64:
                narrower = sorted(floats)
                raise ValueError(
                    f"compare_models: input {i} is of float64, as NumPy makes arrays, and the parameters of {model} "
                    f"are of {' and '.join(narrower)}; pass input.astype({narrower[0]!r}), or models with parameters "
                    "of float64."
                )


def _for_second(
    given: Sequence[Any], first_last: bool, second_last: bool, layouts: tuple[str, str] | None
) -> tuple[list[Any], list[str]]:
    """The inputs of the second model, and what is to be said of them."""
    if layouts is not None:
        if len(layouts) != 2 or sorted(layouts[0]) != sorted(layouts[1]) or len(set(layouts[0])) != len(layouts[0]):
            raise ValueError(f'compare_models: layouts is {layouts!r}; pass the axes of both, as in ("NHWC", "NCHW").')
        orders = {len(layouts[0]): tuple(layouts[0].index(axis) for axis in layouts[1])}
    elif first_last == second_last:
        orders = {}
    else:
        orders = {n: channel_order(n, to_last=second_last) for n in (4, 5)}
    theirs, notes = [], []
    for i, leaf in enumerate(given):
        order = orders.get(np.ndim(leaf)) if _is_float(leaf) else None
        if order is None or list(order) == sorted(order):
            theirs.append(leaf)
            continue
        theirs.append(leaf.transpose(order))
        notes.append(f"Input {i} of shape {leaf.shape} was given to the second model as {theirs[-1].shape}.")
    return theirs, notes


def _of_constants(given: Sequence[Any]) -> list[str]:
    """What is to be said of inputs that are the same number everywhere."""
    return [
        f"Input {i} is {leaf.flat[0]:g} everywhere, which hides differences and makes ties: use random inputs."
        for i, leaf in enumerate(given)
        if _is_float(leaf) and leaf.size > 1 and (leaf == leaf.flat[0]).all()
    ]


def _values(
    a: Model, b: Model, parameters: Any, found: ParameterMapping
) -> tuple[tuple[dict[str, Array], dict[str, Array]], list[str]]:
    """The values of the parameters of both models, and what is to be said of them."""
    own = [{p.name: p.value for p in model.parameters if p.value is not None} for model in (a, b)]
    complete = [len(values) == len(model.parameters) for values, model in zip(own, (a, b), strict=True)]
    if isinstance(parameters, str) and parameters == "own":
        if not all(complete):
            raise ValueError(f"compare_models: parameters is 'own', and {(a, b)[complete.index(False)]} has none.")
        return (own[0], own[1]), []
    if parameters is not None:
        source, values = values_from(parameters, (a, b))
    elif any(complete):
        source = a if complete[0] else b
        values = own[0] if complete[0] else own[1]
    else:
        raise ValueError("compare_models: neither model has parameters; bind one to its variables, or pass parameters.")
    if source is a:
        other = {**own[1], **{pair.second.name: pair.to_second(values[pair.first.name]) for pair in found.pairs}}
        target, ours = own[1], (values, other)
    else:
        other = {**own[0], **{pair.first.name: pair.to_first(values[pair.second.name]) for pair in found.pairs}}
        target, ours = own[0], (other, values)
    for model, have in zip((a, b), ours, strict=True):
        if missing := [p.name for p in model.parameters if p.name not in have]:
            raise ValueError(
                f"compare_models: {model} has no values for {', '.join(missing)}; bind it to its variables."
            )
    replaced = [name for name, value in target.items() if not np.array_equal(value, other[name])]
    note = (
        f"{len(replaced)} parameters of {b if source is a else a} had other values, and were given those of "
        f"{source}; parameters='own' keeps them."
    )
    return ours, [note] if replaced else []


def _orders(a: Model, b: Model) -> Orders:
    """For each result of the second model that is differentiated, the order of axes that makes it the first's."""
    forms = [[(kind_of(p.value.dtype), tuple(p.value.shape)) for p in m.layers[0].outputs] for m in (a, b)]
    differentiated = [kind for kind, _ in forms[0] if kind in ("floats", "complex numbers")]
    if len(forms[0]) != len(forms[1]) or not differentiated:
        lists = [", ".join(f"{kind} {shape}" for kind, shape in side) or "nothing" for side in forms]
        raise ValueError(
            f"compare_models: {a} returns {lists[0]}; {b} {lists[1]}. Choose arrays to compare, one of floats among "
            "them: calls=(lambda model, x: model(x)[0], None)."
        )
    orders: list[tuple[int, ...] | None] = []
    for i, ((kind, ours), (other, theirs)) in enumerate(zip(*forms, strict=True)):
        if kind != other:
            raise ValueError(f"compare_models: result {i} is of {kind} in {a}, and of {other} in {b}.")
        n = len(ours)
        directions = (a.channels_last, b.channels_last) if a.channels_last != b.channels_last and n >= 3 else ()
        ways = [channel_order(n, to_last=direction) for direction in directions]
        found = [way for way in ways if len(theirs) == n and tuple(theirs[axis] for axis in way) == ours]
        if not found and ours != theirs:
            raise ValueError(f"compare_models: result {i} has shape {ours} in {a}, and {theirs} in {b}.")
        if kind in differentiated:
            orders.append(found[0] if found and n >= 4 else None if ours == theirs else found[0])
    return orders


def _as_rows_cross(
    found: ParameterMapping,
    images: Sequence[Image],
    owners: Mapping[str, int],
    indices: Sequence[tuple[int, int]],
    answers: tuple[Answer, Answer],
) -> ParameterMapping:
    """The mapping, with each kernel behind flattened images in the order in which these enter its layer.

    Where the values there agree in the order by which the kernel was mapped, or in no order, it stays as it was.
    """

    def settled(pair: Pair) -> Pair:
        orders = pair.orders(images)
        layers = [answer.layers[i] for answer, i in zip(answers, indices[owners[pair.first.name]], strict=True)]
        rows = [point.value for layer in layers for point in layer.inputs[:1]]
        if len(orders) == 1 or [array.shape[1:] for array in rows] != [(pair.rows,)] * 2:
            return pair
        fitting = [order for order in orders if agree(rows[0], order.rearranged(rows[1]) if order else rows[1])]
        return pair if not fitting or pair.image in fitting else pair.behind(fitting[-1])

    return replace(found, pairs=tuple(map(settled, found.pairs)))


def _aligns(
    indices: Sequence[tuple[int, int]],
    layers: tuple[Sequence[Layer], Sequence[Layer]],
    to_last: bool | None,
    images: Sequence[Image],
    mapping: ParameterMapping,
    owners: Mapping[str, int],
) -> dict[tuple[int, What, int], Align]:
    """How to lay the arrays of the second model beside those of the first, for all that can be."""
    found: dict[tuple[int, What, int], Align] = {}
    sides: tuple[What, ...] = ("inputs", "outputs")
    kernels = [(indices[owners[pair.first.name]][0], pair.rows, pair.image) for pair in mapping.pairs if pair.rows]
    kernels.sort(key=lambda kernel: kernel[0])
    for n, (i, j) in enumerate(indices):
        for side in sides:
            for k, (ours, theirs) in enumerate(
                zip(getattr(layers[0][i], side), getattr(layers[1][j], side), strict=False)
            ):
                is_settled = ours.value.shape == theirs.value.shape and ours.value.ndim == 3
                if n == 0:  # the inputs may be transposed, by layouts; of results `_orders` decides
                    is_settled &= side == "outputs"
                else:
                    is_settled &= not (has_channels(layers[0], i) or has_channels(layers[1], j))
                length, begin = ours.value.shape[-1:], i if side == "inputs" else layers[0][i].end
                behind = next((image for at, rows, image in kernels if at >= begin and (rows,) == length), None)
                fitting = [image for image in images if (math.prod(image.axes),) == length]
                orders = list(dict.fromkeys([behind, None, *fitting]))
                align = alignment(ours, theirs, None if is_settled else to_last, orders)
                if align is not None:
                    found[n, side, k] = align
                elif side == "outputs" and _differ_in_size(layers[0][i], layers[1][j]):
                    found[n, side, k] = lambda array: array  # of another size, which is a difference
    return found


def _differ_in_size(first: Layer, second: Layer) -> bool:
    """Whether two layers, without others in them, return one array each, in sizes that do not broadcast."""
    if any(layer.end > layer.begin + 1 or len(layer.outputs) != 1 for layer in (first, second)):
        return False
    shapes = [layer.outputs[0].value.shape for layer in (first, second)]
    return len(shapes[0]) != len(shapes[1]) or any(x != y and 1 not in (x, y) for x, y in zip(*shapes, strict=True))


def _owner(path: str, layers: Sequence[Layer], indices: Mapping[int, int]) -> int:
    """The number of the pair of layers that owns a parameter, or is around its owner."""
    began = {layer.path: i for i, layer in reversed(list(enumerate(layers)))}
    while path not in began:
        path = path.rpartition(".")[0]
    i = began[path]
    return sorted(indices).index(i if i in indices else known_parent(layers, i, indices))


def _own_parameters(
    found: ParameterMapping, first: Mapping[str, Array], second: Mapping[str, Array]
) -> Iterator[tuple[str, Judged]]:
    for pair in found.pairs:
        ours, theirs = first[pair.first.name], pair.to_first(second[pair.second.name])
        apart = apart_of(ours, theirs)
        equal = apart <= float(jnp.finfo(ours.dtype).eps)
        yield pair.first.name, Judged("parameters", pair.first.name, False, apart, apart, "agrees" if equal else "port")


def _roundings(found: ParameterMapping, owners: Mapping[str, int], eps: float) -> dict[int, float]:
    """By the number of a pair of layers, the sum of the lengths of its sums, as a part of the square of what rounding
    may leave."""
    lengths: dict[int, float] = {}
    for pair in found.pairs:
        shape = pair.first.layout.shape
        lengths[owners[pair.first.name]] = max(lengths.get(owners[pair.first.name], 0.0), math.prod(shape[1:]) * eps**2)
    return lengths


def _pairs(
    indices: Sequence[tuple[int, int]],
    layers: tuple[Sequence[Layer], Sequence[Layer]],
    judged: Sequence[Sequence[Judged]],
    roundings: Mapping[int, float],
) -> tuple[LayerPair, ...]:
    numbers = {i: n for n, (i, _) in enumerate(indices)}
    squares = np.cumsum([roundings.get(n, 0.0) for n in range(len(indices))])
    pairs = []
    for n, (i, j) in enumerate(indices):
        last = sum(1 for k, _ in indices if k < max(layers[0][i].end, i + 1)) - 1
        parent = None if n == 0 else numbers[known_parent(layers[0], i, numbers)]
        rounding = math.sqrt(float(squares[last])) if squares[last] else 0.0
        pairs.append(LayerPair(layers[0][i], layers[1][j], (i, j), parent, tuple(judged[n]), rounding))
    return tuple(pairs)
