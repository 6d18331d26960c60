"""Read parameters from trees, and from files: npz, safetensors, checkpoints of orbax."""

import importlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from interop._bridge.arrays import to_host
from interop.comparison.models.model import Model
from interop.frameworks.base import Array

_COLLECTIONS = ("params", "batch_stats", "state")


def values_from(parameters: Any, models: Sequence[Model]) -> tuple[int, dict[str, Array]]:
    """Return the number of the model whose names the parameters have, and a dict of these names to values.

    Args:
      parameters: a tree of arrays, a state_dict, or the path of a file: ``.npz``, ``.safetensors``, or a folder that
        orbax wrote.
      models: those that may have the names.

    Raises:
      TypeError: ``parameters`` is neither.
      ValueError: the names, or the shapes, are those of neither model.
      ModuleNotFoundError: the package that reads the file is missing.
    """
    tree = _read(Path(parameters)) if isinstance(parameters, str | os.PathLike) else parameters
    if not isinstance(tree, Mapping):
        kind = type(parameters).__name__
        raise TypeError(f"compare_models: parameters is a {kind}; pass a tree of arrays, or a path.")
    # Files and libraries write one name in several ways, so that names are compared part by part.
    arrays = {
        _name_parts(jax.tree_util.keystr(path)): to_host(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    missing: list[list[str]] = []
    for number, model in enumerate(models):
        names = {_name_parts(p.name): p for p in model.parameters}
        missing.append([p.name for name, p in names.items() if name not in arrays])
        if missing[-1]:
            continue
        for name, parameter in names.items():
            if arrays[name].shape != parameter.layout.shape:
                raise ValueError(
                    f"compare_models: parameters has {parameter.name} of shape {arrays[name].shape}; {model.name} has "
                    f"{parameter.layout.shape}."
                )
        # A file may have another dtype than the model, whose inputs have that of the model.
        return number, {p.name: arrays[name].astype(p.dtype, copy=False) for name, p in names.items()}
    lists = "; ".join(
        f"of {model.name} are missing {', '.join(names[:5])}" for model, names in zip(models, missing, strict=True)
    )
    raise ValueError(f"compare_models: parameters has the names of neither model: {lists}.")


def _read(path: Path) -> Any:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:  # pickles run code
            return dict(file)
    if path.suffix == ".safetensors":
        return _imported("safetensors.numpy", "safetensors", path).load_file(path)
    if path.is_dir():
        with _imported("orbax.checkpoint", "orbax-checkpoint", path).StandardCheckpointer() as checkpointer:
            return checkpointer.restore(path.absolute())
    raise ValueError(
        f"compare_models: parameters is {str(path)!r}; pass the path of an npz or safetensors file that exists, or of "
        "the folder of a checkpoint of orbax."
    )


def _imported(module: str, package: str, path: Path) -> Any:
    """Import the module that reads a file, from the package of that name."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        message = f"compare_models: to read {str(path)!r}, pip install {package}."
        raise ModuleNotFoundError(message, name=package) from error


def _name_parts(name: str) -> tuple[str, ...]:
    """Split a name, however its parts are joined, and drop the collection before it and the word for a leaf behind it.

    ``['params']['Dense_0']['kernel'].value`` and ``Dense_0.kernel`` both become ``("Dense_0", "kernel")``.
    """
    tokens = [token for token in re.split(r"[./\[\]']+", name) if token]
    if tokens and tokens[0] in _COLLECTIONS:
        tokens = tokens[1:]
    return tuple(tokens[:-1] if tokens[-1:] == ["value"] else tokens)
