"""`wrap_for_torch`: any JAX function of pytrees as a differentiable function of torch tensors."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, get_args

import jax
import numpy as np
import torch
from torch.overrides import handle_torch_function, has_torch_function

from interop._bridge.bounded import Bounded
from interop._bridge.flat import FlatFunction, Save, needs_x64
from interop._bridge.tape import call
from interop._torch.opaque import opaque


def wrap_for_torch(function: Callable[..., Any], *, save: Save = "inputs") -> Callable[..., Any]:
    """Return ``function``, written in JAX, as a function of torch tensors with gradients.

    Args:
      function: a JAX function that can be jitted, of pytrees (dicts, lists, tuples, ...) of arrays.
      save: what is kept for the backward pass. ``"inputs"`` are there already, as a rule, and the backward pass
        computes anew what it needs of them. ``"residuals"`` is what JAX's reverse pass needs, such as one byte per
        element for the ops of jaxclamp, where the input can be freed; this has no second derivative, and
        torch.func and torch.compile save the inputs all the same.

    Returns:
      A function with the same parameters. Tensors among its arguments become arrays, and arrays in its result tensors.
      Floats, NumPy and JAX arrays are traced too; all else (ints, bools, strings, functions) is static, so a new value
      of it compiles anew. Gradients reach the tensors that require them, to any order, in reverse and in forward mode,
      and under torch.func's transformations. Compiled once per shapes, dtypes and active inputs; 64-bit dtypes stay
      64-bit whatever JAX's mode is. The result never shares memory with an argument.

    Raises:
      TypeError: ``function`` is not callable.
      ValueError: ``save`` is unknown.

    Raises when called:
      TypeError: a tensor without plain memory or of a dtype that JAX lacks, or a static argument that is not hashable
        or is a `torch.nn.Module`.
      ValueError: tensors on different devices.
      RuntimeError: the process was forked after JAX had started; and, as for native functions, in the backward pass
        when an argument was changed in place after the call.

    >>> import jax.numpy as jnp
    >>> softplus = wrap_for_torch(lambda x, beta=1.0: jnp.logaddexp(0.0, beta * x) / beta)
    >>> x = torch.zeros(2, requires_grad=True)
    >>> softplus(x, beta=2.0).sum().backward()
    >>> x.grad
    tensor([0.5000, 0.5000])
    """
    if not callable(function):
        raise TypeError(f"wrap_for_torch: function is {function!r}; pass a function written in JAX.")
    if save not in get_args(Save):
        raise ValueError(f"wrap_for_torch: save={save!r} is not one of {', '.join(map(repr, get_args(Save)))}.")
    known: dict[Any, FlatFunction] = Bounded(1024)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if has_torch_function(tensors):
            return handle_torch_function(public, tensors, *args, **kwargs)
        # The backward pass sees what the forward pass saw, whatever the caller does to an array between them.
        non_tensors = tuple([_copied(leaf) for leaf in leaves if _is_non_tensor(leaf)])
        kinds = [*map(_kind, leaves)]
        try:
            flat = known.get((structure, *kinds))
        except TypeError as error:
            raise TypeError(_describe_unhashable(function, args, kwargs)) from error
        if flat is None:
            flat = known[structure, *kinds] = _flattened(function, save, structure, kinds, (args, kwargs))
        return call(flat, non_tensors, needs_x64((*tensors, *non_tensors)), tensors)

    public = functools.wraps(function)(opaque(wrapped, _name(function)))
    return public


_TENSOR, _NON_TENSOR = object(), object()


def _is_non_tensor(leaf: Any) -> bool:
    """Return whether a leaf that is no tensor becomes an array, as a float does; an int or a bool may steer Python."""
    return isinstance(leaf, float | complex | np.ndarray | np.generic | jax.Array | torch.SymFloat)


def _copied(leaf: Any) -> Any:
    """Copy an array of NumPy, in the byte order of the machine, as JAX refuses others."""
    return leaf.astype(leaf.dtype.newbyteorder("=")) if isinstance(leaf, np.ndarray) else leaf


def _kind(leaf: Any) -> Any:
    """Return a key of a leaf by which calls differ; 0 == False, yet they are not the same argument."""
    if isinstance(leaf, torch.Tensor):
        return _TENSOR
    return _NON_TENSOR if _is_non_tensor(leaf) else (type(leaf), leaf)


def _flattened(
    function: Callable[..., Any], save: Save, structure: Any, kinds: Sequence[Any], arguments: Any
) -> FlatFunction:
    """Return ``function`` as a flat function of the leaves of its arguments."""
    names = []
    for (path, leaf), kind in zip(jax.tree_util.tree_leaves_with_path(arguments), kinds, strict=True):
        if isinstance(leaf, torch.nn.Module):  # JAX would take its parameters for constants
            raise TypeError(
                f"{_name(function)}: {_argument(function, path)} is a {type(leaf).__name__}, a module of torch; pass "
                "its parameters, as dict(module.named_parameters())."
            )
        if kind is _TENSOR:
            names.append(_argument(function, path))

    def flat(non_tensors: Sequence[Any], *arrays: jax.Array) -> Any:
        sources = {_TENSOR: iter(arrays), _NON_TENSOR: iter(non_tensors)}
        leaves = [next(sources[kind]) if kind in sources else kind[1] for kind in kinds]
        args, kwargs = jax.tree.unflatten(structure, leaves)
        try:
            return function(*args, **kwargs)
        except (TypeError, AttributeError) as error:
            if ("must be Tensor" if isinstance(error, TypeError) else "Tracer") in str(error):
                error.add_note("wrap_for_torch: the function is called with arrays of JAX; write it with jax.numpy.")
            raise

    return FlatFunction(flat, _name(function), names, save)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _argument(function: Callable[..., Any], path: Sequence[Any]) -> str:
    """Name the leaf at ``path`` of ``(args, kwargs)`` as the caller does."""
    where, argument, *inside = path
    if where.idx == 1:  # in kwargs
        name = argument.key
    else:
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names: list[str] = []
        with contextlib.suppress(ValueError):  # a function that is written in C may have no signature
            names += [p.name for p in inspect.signature(function).parameters.values() if p.kind in positional]
        name = names[argument.idx] if argument.idx < len(names) else f"argument {argument.idx}"
    return f"{name}{jax.tree_util.keystr(tuple(inside))}"


def _describe_unhashable(function: Callable[..., Any], args: Any, kwargs: Any) -> str:
    for path, leaf in jax.tree_util.tree_leaves_with_path((args, kwargs)):
        try:
            hash(leaf)
        except TypeError:
            if not _is_non_tensor(leaf):
                return (
                    f"{_name(function)}: {_argument(function, path)} is a {type(leaf).__name__}, which is neither an "
                    "array nor hashable; pass an array, or bind it beforehand with functools.partial."
                )
    raise AssertionError("a key of hashable leaves is hashable")
