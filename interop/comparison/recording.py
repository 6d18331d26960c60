"""`record`: one function, called as it is and under the convention, and the file that keeps what it answered.

The steps, for ``record(torch.relu, np.float32([0, 1]))``:

1. `computation_of` labels the arrays among the arguments, ``{"[0]": array([0, 1])}``, and finds the framework.
2. `Computation.recorded` differentiates the function of these arrays, and once more under min_norm.
3. The answers are labelled as the arguments are: ``{"value": array([0, 1]), "gradient[0]": array([0, 1])}``.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import reprlib
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import torch

from interop._bridge.arrays import to_host
from interop._torch.private_api import without_checkpoints
from interop.frameworks.base import Array, Convertible, Function, weighted_total
from interop.frameworks.registry import CONVERTIBLES, frameworks_of, hint_at_numpy

FilePath: TypeAlias = str | os.PathLike[str]
FrameworkName: TypeAlias = Literal["jax", "torch"]

_CONVENTIONS = {"unmodified": "native", "min_norm": "min_norm"}
"""Maps the fields of a `Recording` that hold answers to their names in a file, where the first has its former one."""
_DESCRIBED = ("name", "version", "inputs", "given_nan")
"""The other fields."""
_FORMAT = 4
"""The version of the format of files.

Before 2, gradients were those of the plain sum; before 3, NaN was not noted; before 4, labels were listed as well.
"""
_READ = (3, _FORMAT)
"""The formats that are read."""


@dataclass(frozen=True, eq=False)
class Recording:
    """The answers of one function, from `record`; `interop.compare` takes it in place of the function."""

    name: str
    version: str
    """The framework and its version."""
    inputs: Mapping[str, str] = field(repr=False)
    """Maps the label of each array among the arguments to its hash."""
    unmodified: Mapping[str, Array] = field(repr=False)
    """Maps labels to the leaves of the result, ``value...``, and of its gradient, ``gradient...``."""
    min_norm: Mapping[str, Array] = field(repr=False)
    """The same under the convention, and with other random numbers."""
    given_nan: bool = False
    """Whether there is a NaN in what the function was given."""

    @property
    def native(self) -> Mapping[str, Array]:
        """The former name of `unmodified`, kept until 0.3."""
        return self.unmodified

    @property
    def framework(self) -> str:
        """The name of the framework."""
        return self.version.partition(" ")[0]

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


def record(f: Callable[..., Any], /, *args: Any, framework: FrameworkName | None = None, **kwargs: Any) -> Recording:
    """Call ``f`` and keep what it answers, to compare it later, or with that of a process with other versions.

    Args:
      f: a function of JAX or of torch, as for `interop.compare`.
      framework: the one that ``f`` is called in, ``"jax"`` or ``"torch"``; by default the only one that it runs in.
      args, kwargs: what it is called with.

    Raises:
      TypeError: ``f`` runs in neither framework, or in both and ``framework`` was not named; or an argument is an array
        that holds no numbers.
      ValueError: ``f`` is a `torch.nn.Module`, and the first argument does not name its parameters; or ``framework`` is
        unknown.

    >>> recording = record(lambda x: torch.nn.functional.leaky_relu(x, 2.0), np.float32([0, 3, 6]))
    >>> recording.unmodified["gradient[0]"], recording.min_norm["gradient[0]"]
    (array([1.6875   , 0.8671875, 1.4140625], dtype=float32), array([0.84375  , 0.8671875, 1.4140625], dtype=float32))
    """
    if framework is not None and framework not in CONVERTIBLES:
        raise ValueError(f"record: framework={framework!r} is unknown; name one of {', '.join(CONVERTIBLES)}.")
    check_function("record: f", f)
    return computation_of("record: f", f, args, kwargs, framework).recorded()


@dataclass(frozen=True)
class Computation:
    """A function with its arguments, ready to be called in any of its frameworks."""

    name: str
    function: Function
    """Takes a mapping from labels to arrays."""
    arrays: Mapping[str, Array]
    frameworks: Sequence[Convertible]
    """The one that was named, or else those that the function runs in, JAX first."""

    @property
    def framework(self) -> Convertible:
        """The only one."""
        if len(self.frameworks) > 1:
            raise TypeError(
                f"{self.name} runs in JAX and in torch, as operators and methods do; name the one to call it in: "
                'framework="torch", or --framework torch.'
            )
        return self.frameworks[0]

    def recorded(self, *, with_min_norm: bool = True) -> Recording:
        """Call the function in its only framework, as it is and under the convention.

        Without ``with_min_norm`` it is called once, and the answers under the convention are taken to be the same.
        """
        inputs = {
            label: hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + array.tobytes()).hexdigest()
            for label, array in self.arrays.items()
        }
        given_nan = any(bool((array != array).any()) for array in self.arrays.values())
        unmodified = min_norm = self._answers(self.function)
        if with_min_norm:
            # With other random numbers, so that a value which is not the same then is known to be random.
            min_norm = self._answers(self.framework.reseeded(self.framework.min_norm(self.function)))
        return Recording(self.name, self.framework.version, inputs, unmodified, min_norm, given_nan)

    def _answers(self, function: Function) -> dict[str, Array]:
        active = [label for label, array in self.arrays.items() if jnp.issubdtype(array.dtype, jnp.inexact)]
        try:
            answer = self.framework.differentiate(function, self.arrays, active, weighted_total)
        except Exception as error:
            error.add_note(
                f"{self.name} was called with arrays of {self.framework.name}. {hint_at_numpy(error)}".rstrip()
            )
            raise
        values = {f"value{_label(path)}": leaf for path, leaf in jax.tree_util.tree_leaves_with_path(answer.value)}
        return values | {f"gradient{label}": array for label, array in answer.by_argument.items()}


def check_function(parameter: str, f: Any) -> None:
    """Raise unless ``f``, which the caller knows as ``parameter``, can be called."""
    if not callable(f):
        shown = reprlib.repr(f)
        raise TypeError(f"{parameter} is {shown}, a {type(f).__name__}; pass a function, or a torch.nn.Module.")


def computation_of(
    parameter: str,
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    framework: FrameworkName | None,
) -> Computation:
    """Bind ``f`` to its arguments, as for `record`; errors begin with the name of the ``parameter`` that has ``f``."""
    if isinstance(f, type) and issubclass(f, torch.nn.Module):
        raise TypeError(f"{parameter} is the class {f.__name__}; pass a module of it, such as {f.__name__}().")
    call = f
    if isinstance(f, torch.nn.Module):
        if framework not in (None, "torch"):
            raise ValueError(
                f"{parameter} is a torch.nn.Module, and runs in torch; it cannot be called in {framework}."
            )
        call, framework = _function_of_parameters(parameter, f, args), "torch"
    else:  # a module takes its parameters before the arguments of its forward
        check_call(parameter, f, args, kwargs)
    leaves, structure = jax.tree_util.tree_flatten_with_path((args, kwargs))
    # The first key is the number of the pair (args, kwargs): without it the first argument is [0], a keyword ['x'].
    labelled = {_label(path[1:]): leaf for path, leaf in leaves}
    arrays = {label: _numbers(parameter, label, leaf) for label, leaf in labelled.items() if is_array(leaf)}

    def function(arrays: Mapping[str, Any]) -> Any:
        args, kwargs = jax.tree.unflatten(structure, {**labelled, **arrays}.values())
        return call(*args, **kwargs)

    name = getattr(f, "__name__", type(f).__name__)
    frameworks = [CONVERTIBLES[framework]()] if framework else frameworks_of(name, function, arrays)
    return Computation(name, function, arrays, frameworks)


def check_call(parameter: str, f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise if ``f`` cannot be called with as many arguments, or with these names."""
    try:
        signature = signature_of(f)
    except (TypeError, ValueError):  # functions in C have none
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(f, "__name__", type(f).__name__)
        raise TypeError(
            f"{parameter} is {name}{signature}, which does not take the arguments: {error}; pass those to call it with."
        ) from None


def signature_of(f: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function, or of the ``forward`` of a module: what calls that takes any arguments."""
    # What wraps a function may take other arguments.
    return inspect.signature(f.forward if isinstance(f, torch.nn.Module) else f, follow_wrapped=False)


_label = jax.tree_util.keystr


def is_array(leaf: Any) -> bool:
    """Say whether ``leaf`` becomes an array of the framework; keys of JAX's random numbers stay as they are."""
    if isinstance(leaf, jax.Array):
        return not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    return isinstance(leaf, np.ndarray | np.generic | torch.Tensor)


def _numbers(parameter: str, label: str, leaf: Any) -> Array:
    array = to_host(leaf)
    if not (jnp.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        caller = parameter.partition(":")[0]
        raise TypeError(f"{caller}: argument {label} is an array of dtype {array.dtype}; pass numbers.")
    return array


def _function_of_parameters(parameter: str, module: torch.nn.Module, args: Sequence[Any]) -> Callable[..., Any]:
    """Make ``module`` a function of its parameters and inputs; one without parameters is a function of its inputs.

    A call leaves the buffers of the module, such as running statistics, alone.
    """

    def call(parameters: Mapping[str, Any], /, *args: Any, **kwargs: Any) -> Any:
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        with without_checkpoints():
            return torch.func.functional_call(module, {**buffers, **parameters}, args, kwargs)

    name = type(module).__name__
    names = {name for name, _ in module.named_parameters()}
    parameters = args[0] if args else None
    if not names and not (isinstance(parameters, Mapping) and len(parameters) == 0):
        return functools.partial(call, {})
    if not isinstance(parameters, Mapping):
        raise TypeError(
            f"{parameter} is a torch.nn.Module, {name}, so the first argument has to map the names of its parameters "
            f"to arrays, as dict(module.named_parameters()) does, but is a {type(parameters).__name__}; to keep the "
            "parameters constant, pass a function that calls the module. interop.compare_models compares models whose "
            "parameters have other names and layouts."
        )
    missing = sorted(names - parameters.keys())
    unknown = sorted(parameters.keys() - names)
    if missing or unknown:
        raise ValueError(
            f"{parameter} is a torch.nn.Module, {name}, which the first argument does not fit: it lacks {missing} and "
            f"has unknown {unknown}; the names are those of dict(module.named_parameters()), and buffers stay the "
            "module's own."
        )
    return call


def write(path: FilePath, recordings: Sequence[Recording], **settings: Any) -> None:
    """Write an npz file: the arrays, and the rest as JSON."""
    answers = {
        f"{number} {convention} {label}": array
        for number, recording in enumerate(recordings)
        for attribute, convention in _CONVENTIONS.items()
        for label, array in getattr(recording, attribute).items()
    }
    described = [{name: getattr(recording, name) for name in _DESCRIBED} for recording in recordings]
    write_arrays(path, answers, settings=settings, recordings=described)


def read(path: FilePath) -> tuple[list[Recording], dict[str, Any]]:
    """Read the recordings and the settings that `write` wrote."""
    arrays, about = _read(path)
    if "recordings" not in about:
        raise ValueError(f"{os.fspath(path)!r} holds inputs, but no recording; write one with save.")
    answers: dict[tuple[str, str], dict[str, Array]] = defaultdict(dict)
    for name, array in arrays.items():
        number, convention, label = name.split(" ", 2)
        answers[number, convention][label] = array
    recordings = []
    for i, described in enumerate(about["recordings"]):
        fields = {name: described[name] for name in _DESCRIBED}
        fields |= {attribute: answers[str(i), convention] for attribute, convention in _CONVENTIONS.items()}
        recordings.append(Recording(**fields))
    return recordings, about["settings"]


def read_inputs(path: FilePath) -> dict[str, Array]:
    """Read the arrays among the arguments of a function, by their labels, that `write_arrays` wrote."""
    inputs, about = _read(path)
    if "recordings" in about:
        raise ValueError(f"{os.fspath(path)!r} holds a recording, but no inputs; write some with Case.save.")
    return inputs


def write_arrays(path: FilePath, arrays: Mapping[str, Array], **about: Any) -> None:
    """Write the arrays, and ``about`` as JSON; dtypes that NumPy lacks are written as integers of their width."""
    dtypes = {label: array.dtype.name for label, array in arrays.items()}
    content = {
        label: array if array.dtype.isbuiltin == 1 else array.view(f"u{array.itemsize}")
        for label, array in arrays.items()
    }
    described = np.array(json.dumps({"format": _FORMAT, "dtypes": dtypes, **about}))
    with open(path, "wb") as file:  # to a name without that ending NumPy would append .npz
        np.savez(file, allow_pickle=False, about=described, **content)


def _read(path: FilePath) -> tuple[dict[str, Array], dict[str, Any]]:
    with open(path, "rb") as opened:  # of another file np.load says that it holds pickles, and how to allow them
        if not zipfile.is_zipfile(opened):
            raise ValueError(f"{os.fspath(path)!r} is not an npz file; write one with save.")
    with np.load(path, allow_pickle=False) as file:
        if "about" not in file:
            raise ValueError(f"{os.fspath(path)!r} holds arrays, but no recording or case; write one with save.")
        about = json.loads(str(file["about"]))
        if about.get("format") not in _READ:
            raise ValueError(
                f"{os.fspath(path)!r} was written by another version of interop, in another format; record again."
            )
        return {label: file[label].view(jnp.dtype(dtype)) for label, dtype in about["dtypes"].items()}, about
