"""Lay out what both models are called with: arrays of NumPy, images as each library expects them, and notes of that."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from interop._bridge.arrays import to_host
from interop.comparison.models.alignment import channel_order
from interop.comparison.models.model import Model


def inputs_of_both(
    inputs: Sequence[Any], first_channels_last: bool, second_channels_last: bool, layouts: tuple[str, str] | None
) -> tuple[list[Any], list[Any], list[str]]:
    """Return the inputs of the first model, those of the second, and notes of what a reader has to know of them.

    Args:
      inputs: in the layout of the first model.
      first_channels_last, second_channels_last: whether the library of each model has the channels of images last.
      layouts: the axes of the inputs of both, if they are not what is usual in the libraries.
    """
    first = [_checked(i, leaf) for i, leaf in enumerate(inputs)]
    second, notes = _transposed(first, first_channels_last, second_channels_last, layouts)
    return first, second, notes + _notes_of_constants(first)


def _checked(i: int, leaf: Any) -> Any:
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
    second_inputs, notes = [], []
    for i, leaf in enumerate(inputs):
        order = orders.get(np.ndim(leaf)) if is_float(leaf) else None
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
        if is_float(leaf) and leaf.size > 1 and (leaf == leaf.flat[0]).all()
    ]


def refuse_wider(models: Sequence[Model]) -> None:
    """Raise if an input is of float64, and the parameters of a model are not: torch would not multiply the two."""
    for model in models:
        dtypes = {p.dtype.name for p in model.parameters if jnp.issubdtype(p.dtype, jnp.floating)}
        for i, leaf in enumerate(model.inputs):
            if dtypes and "float64" not in dtypes and is_float(leaf) and leaf.dtype == np.float64:
                narrower = sorted(dtypes)
                raise ValueError(
                    f"compare_models: input {i} is of float64, as NumPy makes arrays, and the parameters of {model} "
                    f"are of {' and '.join(narrower)}; pass input.astype({narrower[0]!r}), or models with parameters "
                    "of float64."
                )


def is_float(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating)
