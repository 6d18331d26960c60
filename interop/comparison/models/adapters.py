"""Find the adapter of each model's library, and lay out the inputs as that library expects them."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from interop._bridge.arrays import to_host
from interop.comparison.models.model import Call, Model, is_float_array
from interop.comparison.models.parameters import channel_order
from interop.comparison.recording import is_array

# Keras first: on its torch backend its layers are modules of torch too.
_LIBRARIES = {
    "Keras": ("keras", ("Layer",)),
    "Torch": ("torch.nn", ("Module",)),
    "Linen": ("flax.linen", ("Module",)),
    "Nnx": ("flax.nnx", ("Module",)),
    "Equinox": ("equinox", ("Module",)),
    "Haiku": ("haiku", ("Transformed", "TransformedWithState")),
}
"""Maps the class that adapts a library, in the file of its name in ``libraries``, to its models' module and classes."""
_WITH_STATE = {"Equinox", "Haiku"}
"""The libraries of which a model may come in a tuple, before its state."""


def models_of(
    first: Any,
    second: Any,
    inputs: Sequence[Any],
    calls: tuple[Call | None, Call | None],
    layouts: tuple[str, str] | None,
) -> tuple[tuple[Model, Model], list[str]]:
    """Return both models with their inputs, and notes of what a reader has to know of these.

    Args:
      first, second: models of any of the libraries.
      inputs: in the layout of the first model.
      calls: how to call each.
      layouts: the axes of the inputs of both, if they are not what is usual in the libraries.
    """
    adapters = adapter_of(first, "first"), adapter_of(second, "second")
    of_first = [_checked(i, leaf) for i, leaf in enumerate(inputs)]
    of_second, notes = _transposed(of_first, adapters[0].channels_last, adapters[1].channels_last, layouts)
    models = adapters[0](first, calls[0], of_first), adapters[1](second, calls[1], of_second)
    _refuse_wider(models)
    return models, notes + _notes_of_constants(of_first)


def adapter_of(model: Any, argument: str) -> type[Model]:
    """Return the subclass of `Model` for the library of a model; ``argument`` is what an error calls it."""
    for name, (module, classes) in _LIBRARIES.items():
        bare = model[0] if name in _WITH_STATE and type(model) is tuple and model else model
        package = sys.modules.get(module)
        if package is not None and isinstance(bare, tuple(getattr(package, cls) for cls in classes)):
            adapters = importlib.import_module(f"interop.comparison.models.libraries.{name.lower()}")
            return getattr(adapters, name)
    kind = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
    raise TypeError(
        f"compare_models: {argument} is {kind}; pass a module of torch.nn, Flax (linen or nnx), Equinox or Keras, or "
        "what haiku.transform returned; of linen module.bind(variables). Functions are compared by interop.compare."
    )


def _checked(i: int, leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return to_host(leaf.detach().cpu()).copy()
    if isinstance(leaf, jax.Array | np.generic | np.ndarray):
        return to_host(leaf) if is_array(leaf) else leaf
    if any(isinstance(inner, jax.Array | np.ndarray | torch.Tensor) for inner in jax.tree.leaves(leaf)):
        raise TypeError(
            f"compare_models: input {i} is a {type(leaf).__name__} of arrays; pass the arrays one by "
            "one, and functions as calls that put them together."
        )
    return leaf


def _transposed(
    inputs: Sequence[Any], first_channels_last: bool, second_channels_last: bool, layouts: tuple[str, str] | None
) -> tuple[list[Any], list[str]]:
    """Transpose images for the second model; return its inputs, and notes of what was transposed."""
    if layouts is not None:
        is_pair = isinstance(layouts, tuple | list) and len(layouts) == 2
        if not is_pair or sorted(layouts[0]) != sorted(layouts[1]) or len(set(layouts[0])) != len(layouts[0]):
            raise ValueError(f'compare_models: layouts is {layouts!r}; pass the axes of both, as in ("NHWC", "NCHW").')
        orders = {len(layouts[0]): tuple(layouts[0].index(axis) for axis in layouts[1])}
    elif first_channels_last == second_channels_last:
        orders = {}
    else:
        # Images have four axes, volumes five. Three may be a sequence of vectors as well as an image of one axis.
        orders = {n: channel_order(n, to_last=second_channels_last) for n in (4, 5)}
    # Integers may be anything, unless the caller says in which layout they are; truth values are masks.
    kind = jnp.floating if layouts is None else jnp.number
    second_inputs, notes = [], []
    for i, leaf in enumerate(inputs):
        may_be_image = isinstance(leaf, np.ndarray) and jnp.issubdtype(leaf.dtype, kind)
        order = orders.get(leaf.ndim) if may_be_image else None
        if order is None or list(order) == sorted(order):
            second_inputs.append(leaf)
            continue
        transposed = leaf.transpose(order)
        second_inputs.append(transposed)
        notes.append(f"Input {i} of shape {leaf.shape} was given to the second model as {transposed.shape}.")
    return second_inputs, notes


def _notes_of_constants(inputs: Sequence[Any]) -> list[str]:
    """Return a note for each input that is the same number everywhere."""
    return [
        f"Input {i} is {leaf.flat[0]:g} everywhere, which hides differences and makes ties: use random inputs."
        for i, leaf in enumerate(inputs)
        if is_float_array(leaf) and leaf.size > 1 and (leaf == leaf.flat[0]).all()
    ]


def _refuse_wider(models: Sequence[Model]) -> None:
    """Raise if an input is of float64, and the parameters of a model are not: torch would not multiply the two."""
    for model in models:
        dtypes = {p.dtype.name for p in model.parameters if jnp.issubdtype(p.dtype, jnp.floating)}
        for i, leaf in enumerate(model.inputs):
            if dtypes and "float64" not in dtypes and is_float_array(leaf) and leaf.dtype == np.float64:
                narrower = sorted(dtypes)
                raise ValueError(
                    f"compare_models: input {i} is of float64, as NumPy makes arrays, and the parameters of {model} "
                    f"are of {' and '.join(narrower)}; pass input.astype({narrower[0]!r}), or models with parameters "
                    "of float64."
                )
