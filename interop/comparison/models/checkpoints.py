"""Parameters from trees, and from files: npz, safetensors, checkpoints of orbax."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

from interop._bridge.arrays import lend
from interop.comparison.models.model import Model
from interop.frameworks.base import Array

_COLLECTIONS = ("params", "batch_stats", "state")


def values_from(given: Any, models: Sequence[Model]) -> tuple[Model, dict[str, Array]]:
    """The model whose names the parameters have, and their values by its names.

    Args:
      given: a tree of arrays, a state_dict, or the path of a file: ``.npz``, ``.safetensors``, or a folder that orbax
        wrote.
      models: those that may have the names.

    Raises:
      TypeError: ``given`` is neither.
      ValueError: the names, or the shapes, are those of neither model.
      ModuleNotFoundError: the package that reads the file is missing.
    """
    tree = _read(Path(given)) if isinstance(given, str | os.PathLike) else given
    if not isinstance(tree, Mapping):
        raise TypeError(f"compare_models: parameters is a {type(given).__name__}; pass a tree of arrays, or a path.")
    found = {
        _written(jax.tree_util.keystr(path)): _to_host(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    lacking: list[list[str]] = []
    for model in models:
        names = {_written(p.name): p for p in model.parameters}
        lacking.append([p.name for name, p in names.items() if name not in found])
        if lacking[-1]:
            continue
        for name, parameter in names.items():
            if found[name].shape != parameter.layout.own:
                raise ValueError(
                    f"compare_models: parameters has {parameter.name} of shape {found[name].shape}; {model.name} has "
                    f"{parameter.layout.own}."
                )
        return model, {p.name: found[name] for name, p in names.items()}
    told = "; ".join(f"of {m.name} are missing {', '.join(some[:5])}" for m, some in zip(models, lacking, strict=True))
    raise ValueError(f"compare_models: parameters has the names of neither model: {told}.")


def _read(path: Path) -> Any:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    if path.suffix == ".safetensors":
        try:
            from safetensors.numpy import load_file
        except ModuleNotFoundError as error:
            raise _missing(path, "safetensors") from error
        return load_file(path)
    if path.is_dir():
        try:
            import orbax.checkpoint
        except ModuleNotFoundError as error:
            raise _missing(path, "orbax-checkpoint") from error
        with orbax.checkpoint.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(path.absolute())
    raise ValueError(
        f"compare_models: parameters is {str(path)!r}; pass the path of an npz or safetensors file that exists, or of "
        "the folder of a checkpoint of orbax."
    )


def _missing(path: Path, package: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"compare_models: to read {str(path)!r}, pip install {package}.", name=package)


def _written(name: str) -> tuple[str, ...]:
    """A name, however its parts are joined, without the collection before it and the word for a leaf behind it."""
    tokens = [token for token in re.split(r"[./\[\]']+", name) if token]
    if tokens and tokens[0] in _COLLECTIONS:
        tokens = tokens[1:]
    return tuple(tokens[:-1] if tokens[-1:] == ["value"] else tokens)


def _to_host(leaf: Any) -> Array:
    return np.asarray(lend(leaf.detach()) if isinstance(leaf, torch.Tensor) else leaf)
