"""What one function answers for given arrays, natively and under the convention, and how a file keeps it."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import torch

from interop._bridge.arrays import lend
from interop.parity.frameworks import Array, Convertible, Function, Torch, frameworks_of, weighted_total

FilePath: TypeAlias = str | os.PathLike[str]

_CONVENTIONS = ("native", "min_norm")
_FORMAT = 2
"""The version of the format of files. Before 2, the gradients were those of the plain sum."""


@dataclass(frozen=True, eq=False)
class Recording:
    """The answers of one function, from `record`; `interop.compare` takes it in place of the function."""

    name: str
    version: str
    """The framework and its version."""
    inputs: Mapping[str, str] = field(repr=False)
    """A hash of each array that the function was given."""
    native: Mapping[str, Array] = field(repr=False)
    """The leaves of the result, ``value...``, and of its gradient, ``gradient...``."""
    min_norm: Mapping[str, Array] = field(repr=False)
    """The same under the convention."""

    def __str__(self) -> str:
        return f"{self.name} ({self.version})"

    def save(self, path: FilePath) -> None:
        """Write an npz file."""
        write(path, [self])

    @classmethod
    def load(cls, path: FilePath) -> Recording:
        """Read what `save` wrote, in whatever version of the framework.

        Raises:
          ValueError: the file holds something else.
        """
        recordings, _ = read(path)
        if len(recordings) != 1:
            raise ValueError(f"Recording.load: {os.fspath(path)!r} holds a comparison; use Comparison.load.")
        return recordings[0]


def record(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Recording:
    """What ``f`` answers, to be compared later, or in another process with other versions installed.

    Args:
      f: a function of JAX or of torch, as for `interop.compare`. One that runs in both is run in JAX, or in torch if
        there are tensors of torch among the arguments.
      args, kwargs: what it is called with.

    Raises:
      TypeError: ``f`` runs in neither framework, or an argument is an array that holds no numbers.
      ValueError: ``f`` is a `torch.nn.Module`, and the first argument does not name its parameters.

    >>> recording = record(lambda x: torch.nn.functional.leaky_relu(x, 2.0), np.float32([0, 3, 6]))
    >>> recording.native["gradient[0]"], recording.min_norm["gradient[0]"]
    (array([1.6875   , 0.8671875, 1.4140625], dtype=float32), array([0.84375  , 0.8671875, 1.4140625], dtype=float32))
    """
    computation = computation_of(f, *args, **kwargs)
    return computation.recorded_in(computation.frameworks[0])


@dataclass(frozen=True)
class Computation:
    """A function with its arguments, ready to be asked in any of its frameworks."""

    name: str
    function: Function
    """Of the arrays by their labels."""
    arrays: Mapping[str, Array]
    frameworks: Sequence[Convertible]
    """Those that the function runs in; the first is that of the tensors among the arguments, else JAX."""

    def recorded_in(self, framework: Convertible) -> Recording:
        """The answers in one of the frameworks."""
        active = [label for label, array in self.arrays.items() if jnp.issubdtype(array.dtype, jnp.floating)]

        def answers(function: Function) -> dict[str, Array]:
            result, gradient = framework.answer(function, self.arrays, active, weighted_total)
            values = {f"value{_label(path)}": leaf for path, leaf in jax.tree_util.tree_flatten_with_path(result)[0]}
            return values | {f"gradient{label}": leaf for label, leaf in gradient.items()}

        inputs = {
            label: hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + array.tobytes()).hexdigest()
            for label, array in self.arrays.items()
        }
        minimal = framework.min_norm(self.function)
        return Recording(self.name, framework.version, inputs, answers(self.function), answers(minimal))


def computation_of(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Computation:
    """``f`` with its arguments, as for `record`."""
    if not callable(f):
        raise TypeError(f"record: f is {f!r}, a {type(f).__name__}; pass a function, or a torch.nn.Module.")
    call = _of_parameters(f, args) if isinstance(f, torch.nn.Module) else f
    leaves, structure = jax.tree_util.tree_flatten_with_path((args, kwargs))
    labelled = {_label(path[1:]): leaf for path, leaf in leaves}
    arrays = {label: _to_host(label, leaf) for label, leaf in labelled.items() if _is_array(leaf)}

    def function(given: Mapping[str, Any]) -> Any:
        args, kwargs = jax.tree.unflatten(structure, {**labelled, **given}.values())
        return call(*args, **kwargs)

    name = getattr(f, "__name__", type(f).__name__)
    frameworks = [Torch()] if isinstance(f, torch.nn.Module) else frameworks_of(name, function, arrays)
    if any(isinstance(leaf, torch.Tensor) for leaf in labelled.values()):
        frameworks.reverse()
    return Computation(name, function, arrays, frameworks)


_label = jax.tree_util.keystr


def _is_array(leaf: Any) -> bool:
    """Whether ``leaf`` becomes an array of the framework; keys of JAX's random numbers stay as they are."""
    if isinstance(leaf, jax.Array):
        return not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    return isinstance(leaf, np.ndarray | np.generic | torch.Tensor)


def _to_host(label: str, leaf: Any) -> Array:
    array: Array = np.asarray(lend(leaf) if isinstance(leaf, torch.Tensor) else leaf)
    if not (jnp.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        raise TypeError(f"record: argument {label} is an array of dtype {array.dtype}; pass numbers.")
    return array


def _of_parameters(module: torch.nn.Module, args: Sequence[Any]) -> Callable[..., Any]:
    """``module`` as a function of its parameters; a call leaves its buffers, such as running statistics, alone."""
    name = type(module).__name__
    given = args[0] if args else None
    if not isinstance(given, Mapping):
        raise TypeError(
            f"record: {name} is a torch.nn.Module, so the first argument has to map the names of its parameters to "
            f"arrays, as dict(module.named_parameters()) does, but is a {type(given).__name__}; to keep the "
            "parameters constant, pass a function that calls the module."
        )
    parameters = {parameter for parameter, _ in module.named_parameters()}
    missing = sorted(parameters - given.keys())
    unknown = sorted(given.keys() - parameters)
    if missing or unknown:
        raise ValueError(
            f"record: the first argument does not fit {name}: it lacks {missing} and has unknown {unknown}; "
            "the names are those of dict(module.named_parameters()), and buffers stay the module's own."
        )

    def function(parameters: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        return torch.func.functional_call(module, {**buffers, **parameters}, args, kwargs)

    return function


def write(path: FilePath, recordings: Sequence[Recording], **settings: Any) -> None:
    """Write an npz file: the arrays, with dtypes that NumPy lacks as integers of their width, and the rest as JSON."""
    content: dict[str, Array] = {}
    about: dict[str, Any] = {"format": _FORMAT, "settings": settings, "recordings": []}
    for number, recording in enumerate(recordings):
        dtypes: dict[str, dict[str, str]] = {}
        for convention in _CONVENTIONS:
            answers: Mapping[str, Array] = getattr(recording, convention)
            dtypes[convention] = {label: array.dtype.name for label, array in answers.items()}
            for label, array in answers.items():
                builtin = array.dtype.isbuiltin == 1
                content[f"{number} {convention} {label}"] = array if builtin else array.view(f"u{array.itemsize}")
        described = {"name": recording.name, "version": recording.version, "inputs": dict(recording.inputs)}
        about["recordings"].append(described | {"dtypes": dtypes})
    with open(path, "wb") as file:
        np.savez(file, allow_pickle=False, about=np.array(json.dumps(about)), **content)


def read(path: FilePath) -> tuple[list[Recording], dict[str, Any]]:
    """The recordings and the settings that `write` was given."""
    with open(path, "rb") as opened:
        if not zipfile.is_zipfile(opened):
            raise ValueError(f"{os.fspath(path)!r} is not an npz file; write one with save.")
    with np.load(path, allow_pickle=False) as file:
        if "about" not in file:
            raise ValueError(f"{os.fspath(path)!r} holds arrays, but no recording; write one with save.")
        about = json.loads(str(file["about"]))
        if about.get("format") != _FORMAT:
            raise ValueError(
                f"{os.fspath(path)!r} was written by another version of interop, whose gradients are those of another "
                "sum; record again."
            )
        recordings = []
        for number, described in enumerate(about["recordings"]):
            native, min_norm = (
                {
                    label: file[f"{number} {convention} {label}"].view(jnp.dtype(dtype))
                    for label, dtype in described["dtypes"][convention].items()
                }
                for convention in _CONVENTIONS
            )
            recordings.append(Recording(described["name"], described["version"], described["inputs"], native, min_norm))
    return recordings, about["settings"]
