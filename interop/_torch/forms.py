"""Gives a function the further forms of torch: several in one, one for many tensors, overwriting, or with ``out``."""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from interop._torch.grad_state import is_recorded
from interop._torch.private_api import bindings_named, operators_named
from interop._torch.sharding import is_distributed

NUMPY_NAMES = {"x": "input", "a": "input", "x1": "input", "x2": "other", "axis": "dim", "keepdims": "keepdim"}
"""Maps a name of NumPy for a parameter, which torch takes too, to torch's name."""
HOMES: dict[str, Any] = {
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.nn.functional": torch.nn.functional,
    "torch.special": torch.special,
    "torch.linalg": torch.linalg,
}
"""Maps the name of a place where torch has functions to that place."""


def overloaded(
    of_two: Callable[..., Any], along_an_axis: Callable[..., Any], of_all: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call the function that the arguments are for, as torch.max and torch.min do.

    A tensor behind the first is another operand, but an axis by the keyword ``dim``, and before ``keepdim``.
    """
    if (len(args) == 2 and isinstance(args[1], torch.Tensor)) or "other" in kwargs or "x2" in kwargs:
        return of_two(*args, **kwargs)
    if len(args) > 1 or "dim" in kwargs or "axis" in kwargs:
        return along_an_axis(*args, **kwargs)
    return of_all(*args, **kwargs)


def axes_of(dim: Any, dims: int) -> tuple[int, ...]:
    """Return the axes that a reduction of torch means by ``dim``: one, several, or all if it names none.

    They are counted from 0; a tensor without axes has none. What torch refuses, as an axis out of range, it is made to
    refuse.

    >>> axes_of(-1, 3), axes_of((0, -1), 3), axes_of((), 3), axes_of(None, 3)
    ((2,), (0, 2), (0, 1, 2), (0, 1, 2))
    """
    named = (dim if isinstance(dim, Sequence) else (dim,)) if dim is not None else ()
    length = max(dims, 1)
    axes = tuple(operator.index(axis) % length for axis in named)
    if len(set(axes)) < len(axes) or any(isinstance(axis, bool) or not -length <= axis < length for axis in named):
        torch.ones((1,) * dims).amax(dim)  # it raises
    return (axes or tuple(range(dims))) if dims else ()


def dtypes_named(*args: Any, **kwargs: Any) -> list[Any]:
    """Return the dtypes among the arguments of a conversion: one of torch's, that of a tensor, or of a type of them.

    >>> dtypes_named(torch.int8, "cpu", torch.zeros(1), torch.LongTensor, "torch.BoolTensor")
    [torch.int8, torch.float32, torch.int64, torch.bool]
    """
    kinds = (
        getattr(torch, kind.rpartition(".")[2], kind) if isinstance(kind, str) else kind
        for kind in (*args, *kwargs.values())
    )
    return [kind for kind in (getattr(kind, "dtype", kind) for kind in kinds) if isinstance(kind, torch.dtype)]


def functions_named(name: str) -> Iterator[Callable[..., Any]]:
    """Yield all functions of torch of that name, documented or not, and the forms of them that overwrite."""
    for form in (name, f"{name}_"):
        for home in HOMES.values():
            if hasattr(home, form):
                yield getattr(home, form)
        yield from (*bindings_named(form), *operators_named(form))


def in_place(name: str) -> Callable[..., torch.Tensor] | None:
    """Return the form of torch's function of that name that overwrites its first argument, if torch has one."""
    homes = (torch, torch.nn.functional, torch.Tensor)
    return next((getattr(home, f"{name}_") for home in homes if hasattr(home, f"{name}_")), None)


def overwrite(name: str, op: Callable[..., Any], x: torch.Tensor, *operands: Any) -> torch.Tensor:
    """Overwrite ``x`` with ``op(x, *operands)``, and return it; errors call the op ``name``."""
    if is_distributed(x) and any(placement.is_partial() for placement in x.placements):  # type: ignore[attr-defined]
        raise RuntimeError(
            f"{name}: input is a sum of which each process has a part, and cannot be overwritten as one; "
            f"use {name.removesuffix('_')}, which returns a new tensor, or redistribute it first."
        )
    # A rule keeps its operands for the backward pass, and x is one of them, which is about to be overwritten.
    source = x.clone() if is_recorded(list(_tensors((x, *operands)))) else x
    result = op(source, *operands)
    if result.shape != x.shape:
        raise RuntimeError(
            f"{name}: output with shape {list(x.shape)} doesn't match the broadcast shape {list(result.shape)}; "
            f"use {name.removesuffix('_')}, which returns a new tensor."
        )
    if _kind(result.dtype) > _kind(x.dtype):
        raise RuntimeError(
            f"{name}: result type {result.dtype} can't be cast to {x.dtype}, the type of input; "
            f"use {name.removesuffix('_')}, which returns a new tensor."
        )
    return x.copy_(result)


def of_each(function: Callable[..., Any], tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> list[Any]:
    """Call ``function`` with each of the tensors; of the further arguments there is one for all, or one for each."""
    operands = [*args, *(kwargs.pop(name) for name in ("scalar", "scalars", "other", "src") if name in kwargs)]
    return [
        function(tensor, *(x[i] if isinstance(x, Sequence) else x for x in operands), **kwargs)
        for i, tensor in enumerate(tensors)
    ]


def _kind(dtype: torch.dtype) -> int:
    """Rank a dtype: bool, integers, floats, complex numbers, as torch casts upwards.

    Dynamo knows no `torch.can_cast`, which says so.
    """
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else int(dtype != torch.bool)


def write_to(out: Any, name: str, op: Callable[..., Any], *arguments: Any) -> Any:
    """Write ``op(*arguments)`` to ``out``, a tensor or a pair of them, and return that; errors call the op ``name``."""
    outs: Sequence[torch.Tensor] = tuple(out) if isinstance(out, tuple | list) else (out,)
    if torch.is_grad_enabled() and any(t.requires_grad for t in _tensors((*outs, *arguments))):
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic differentiation, but one of "
            "the arguments requires grad; call it under torch.no_grad() or without out."
        )
    result = op(*arguments)
    results = result if isinstance(result, tuple) else (result,)
    if len(outs) != len(results):
        raise TypeError(f"{name}: out must be {len(results)} tensors, got {len(outs)}.")
    for source, target in zip(results, outs, strict=True):
        torch.maximum(source, source, out=target)  # a copy by torch's own rules for out: resizing, casting, overlap
    return getattr(torch.return_types, f"{type(result).__name__}_out")(outs) if isinstance(result, tuple) else out


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    return (value for value in values if isinstance(value, torch.Tensor))
