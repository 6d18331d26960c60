"""Read parameters from trees, and from files: npz, safetensors, checkpoints of orbax."""

import importlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from interop._bridge.arrays import to_host
from interop.frameworks.base import Array

_COLLECTIONS = ("params", "batch_stats", "state")


def arrays_of(parameters: Any) -> dict[tuple[str, ...], Array]:
    """Map the parts of names to arrays.

    Args:
      parameters: a tree of arrays, a state_dict, or the path of a file: ``.npz``, ``.safetensors``, or a folder that
        orbax wrote.

    Raises:
      TypeError: ``parameters`` is neither.
      ModuleNotFoundError: the package that reads the file is missing.
    """
    tree = _read(Path(parameters)) if isinstance(parameters, str | os.PathLike) else parameters
    if not isinstance(tree, Mapping):
        kind = type(parameters).__name__
        raise TypeError(f"compare_models: parameters is a {kind}; pass a tree of arrays, or a path.")
    # Files and libraries write one name in several ways, so that names are compared part by part.
    return {
        name_parts(jax.tree_util.keystr(path)): to_host(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


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


def name_parts(name: str) -> tuple[str, ...]:
    """Split a name, however its parts are joined, and drop the collection before it and the word for a leaf behind it.

    ``['params']['Dense_0']['kernel'].value`` and ``Dense_0.kernel`` both become ``("Dense_0", "kernel")``.
    """
    tokens = [token for token in re.split(r"[./\[\]']+", name) if token]
    if tokens and tokens[0] in _COLLECTIONS:
        tokens = tokens[1:]
    return tuple(tokens[:-1] if tokens[-1:] == ["value"] else tokens)
