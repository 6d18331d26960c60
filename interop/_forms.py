"""The other forms that torch gives an op: in place, with ``out=``, with the indices of what was chosen."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from interop._function import is_recorded
from jaxclamp._counterparts import Counterpart

FORMS = (
    inspect.Parameter("inplace", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False, annotation=bool),
    inspect.Parameter("return_indices", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False, annotation=bool),
    inspect.Parameter(
        "out",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None,
    ),
)


def with_forms(native: Counterpart, op: Callable[..., Any]) -> Callable[..., Any]:
    """``op`` with those of the parameters ``inplace``, ``return_indices`` and ``out`` that its counterpart has."""
    forms = {form.name: form for form in FORMS if form.name in native.names}
    plain = inspect.signature(op).parameters.values()
    positional = sum(parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in plain)
    result = inspect.signature(op).return_annotation
    signature = inspect.Signature(
        sorted([*plain, *forms.values()], key=lambda parameter: parameter.kind),
        return_annotation=result | tuple[torch.Tensor, torch.Tensor] if "return_indices" in forms else result,
    )
    overwrite = in_place(op.__name__, op)

    @functools.wraps(op)
    def function(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            kwargs = {n: v for n, v in kwargs.items() if n not in forms or not (v is None or v is False)}
        if len(args) <= positional and forms.keys().isdisjoint(kwargs):
            return op(*args, **kwargs)
        bound = bind(op.__name__, signature, args, kwargs)
        given = {name: bound.arguments.pop(name) for name in forms if name in bound.arguments}
        if given.get("inplace"):
            return overwrite(*bound.args, **bound.kwargs)
        if given.get("out") is not None:
            return _into(given["out"], op, *bound.args, **bound.kwargs)
        result = op(*bound.args, **bound.kwargs)
        if given.get("return_indices"):
            bound.apply_defaults()
            x = bound.arguments["input"].detach()
            return result, native({**bound.arguments, "x": x, "return_indices": True})[1]
        return result

    annotate(function, signature)
    return function


def annotate(function: Callable[..., Any], signature: inspect.Signature) -> None:
    """Let ``function`` show ``signature`` in place of that of what it wraps."""
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    function.__annotations__["return"] = signature.return_annotation


def bind(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments of a call of the op ``name``."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}: {error}; its arguments are ({', '.join(signature.parameters)}).") from None


def in_place(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
    """``op`` as a function called ``name`` that overwrites its first argument and returns it."""

    @functools.wraps(op)
    def function(*args: Any, **kwargs: Any) -> torch.Tensor:
        if not args and "input" not in kwargs:
            op()  # it names what is missing
        x, *rest = args or (kwargs.pop("input"),)
        # The backward pass needs what is about to be overwritten.
        source = x.clone() if is_recorded(list(_tensors((x, *rest, *kwargs.values())))) else x
        result = op(source, *rest, **kwargs)
        if result.shape != x.shape:
            raise RuntimeError(
                f"{name}: output with shape {list(x.shape)} doesn't match the broadcast shape {list(result.shape)}; "
                f"use {op.__name__}, which returns a new tensor."
            )
        if not torch.can_cast(result.dtype, x.dtype):
            raise RuntimeError(
                f"{name}: result type {result.dtype} can't be cast to {x.dtype}, the type of input; "
                f"use {op.__name__}, which returns a new tensor."
            )
        overwritten: torch.Tensor = x.copy_(result)
        return overwritten

    function.__name__ = function.__qualname__ = name
    return function


def _into(out: Any, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    outs = tuple(out) if isinstance(out, tuple | list) else (out,)
    if torch.is_grad_enabled() and any(t.requires_grad for t in _tensors((*outs, *args, *kwargs.values()))):
        raise RuntimeError(
            f"{op.__name__}(): functions with out=... arguments don't support automatic differentiation, but one of "
            "the arguments requires grad; call it under torch.no_grad() or without out."
        )
    result = op(*args, **kwargs)
    results = result if isinstance(result, tuple) else (result,)
    if len(outs) != len(results):
        raise TypeError(f"{op.__name__}: out must be {len(results)} tensors, got {len(outs)}.")
    for source, target in zip(results, outs, strict=True):
        torch.maximum(source, source, out=target)  # a copy by torch's own rules for out: resizing, casting, overlap
    return getattr(torch.return_types, f"{type(result).__name__}_out")(outs) if isinstance(result, tuple) else out


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    return (value for value in values if isinstance(value, torch.Tensor))
