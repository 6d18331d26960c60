"""The ops of jaxclamp under torch's own signatures and type promotion, derived from their records."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import jax
import numpy as np
import torch

import jaxclamp
from interop._forms import in_place, with_forms
from interop._function import flattening, traceable
from jaxclamp import OPS, Op, WithIndices
from jaxclamp._counterparts import Counterpart

_TORCH_NAMES = {"x": "input", "y": "other", "axis": "dim", "keepdims": "keepdim"}
_ARRAY = object()
_AUTOCAST = {"prelu"}
"""The ops that torch.autocast computes in its lower precision."""


def _derive(op: Op) -> Callable[..., Any]:
    native = _native(op)
    parameters = inspect.signature(op.function).parameters
    jax_names = {_TORCH_NAMES.get(name, name): name for name in parameters}

    @functools.wraps(op.function)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        return op.function(*args, **{jax_names.get(name, name): value for name, value in kwargs.items()})

    signature = inspect.Signature([p.replace(name=_TORCH_NAMES.get(p.name, p.name)) for p in parameters.values()])
    renamed.__signature__ = signature  # type: ignore[attr-defined]
    wrapped = flattening(renamed)

    bounds = [name for name, p in signature.parameters.items() if "ArrayLike" in str(p.annotation)]
    positions = {index for index, name in enumerate(signature.parameters) if name in bounds}
    required = sum(p.default is p.empty for p in signature.parameters.values())

    @functools.wraps(renamed)
    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) < required or not kwargs.keys() <= signature.parameters.keys():
            signature.bind(*args, **kwargs)  # it names what is missing or unknown
        if op.name in _AUTOCAST:
            args, kwargs = _autocast(args), dict(zip(kwargs, _autocast(kwargs.values()), strict=True))
        dtypes = {value.dtype for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)}
        if not dtypes:
            raise TypeError(
                f"{op.name}: input must be a torch.Tensor; jaxclamp.{op.name} takes numbers and JAX arrays."
            )
        if kwargs.get("dim") == ():
            kwargs["dim"] = None  # all of them, as in torch
        floating = all(dtype.is_floating_point for dtype in dtypes)
        args = tuple([_as_number(v, floating) if index in positions else v for index, v in enumerate(args)])
        kwargs = {name: _as_number(v, floating) if name in bounds else v for name, v in kwargs.items()}
        if float in map(type, (*args, *kwargs.values())):
            _check(renamed, tuple(map(_constant, args)), tuple((n, _constant(v)) for n, v in kwargs.items()))
        if (len(dtypes) > 1 or not floating) and not any(dtype.is_complex for dtype in dtypes):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            # Where torch refuses, jaxclamp may still compute; if it refuses too, its error says why.
            with contextlib.suppress(TypeError, RuntimeError, ValueError):
                dtype = _result_dtype(op, _kinds(bound.arguments, jax_names), torch.get_default_dtype())
                args = tuple(_to(dtype, value) for value in bound.args)
                kwargs = {name: _to(dtype, value) for name, value in bound.kwargs.items()}
        result = wrapped(*args, **kwargs)
        if isinstance(result, WithIndices):
            as_in_torch = getattr(torch.return_types, native.function.__name__)
            values, indices = cast("tuple[torch.Tensor, torch.Tensor]", result)
            return as_in_torch((values, indices.long()))
        return result

    function.__doc__ = (
        f"`jaxclamp.{op.name}` for torch tensors: the signature and type promotion of torch, the gradient of jaxclamp."
        f"\n\n{inspect.cleandoc(op.function.__doc__ or '').partition('Args:')[0].rstrip()}\n"
    )
    function.__module__ = "interop"
    return function


def _native(op: Op) -> Counterpart:
    return next(c for c in map(Counterpart, op.counterparts) if c.framework == "torch")


def _as_number(value: Any, floating: bool) -> Any:
    """A bound as a number: NumPy's scalars would promote as arrays, and every new int would compile anew."""
    if isinstance(value, np.generic):
        value = value.item()
    return float(value) if floating and type(value) is int else value


def _autocast(values: Iterable[Any]) -> tuple[Any, ...]:
    def cast_(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not torch.is_autocast_enabled(value.device.type):
            return value
        is_cast = value.is_floating_point() and value.dtype != torch.float64
        return value.to(torch.get_autocast_dtype(value.device.type)) if is_cast else value

    return tuple(map(cast_, values))


def _constant(value: Any) -> Any:
    """A number as it is, for its value to be checked; anything else stands for an array."""
    return value if type(value) in (int, float, bool, str, type(None)) else _ARRAY


def _to(dtype: torch.dtype, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    return int(value) if isinstance(value, float) and not dtype.is_floating_point else value


@functools.lru_cache(maxsize=4096)
def _check(function: Callable[..., Any], args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> None:
    """Let the op look at its numbers, once each, before they are traced and have no value any more."""

    def call(x: jax.Array) -> Any:
        positional = [x if value is _ARRAY else value for value in args]
        return function(*positional, **{name: x if value is _ARRAY else value for name, value in kwargs})

    jax.eval_shape(call, jax.ShapeDtypeStruct((), "float32"))


def _kinds(arguments: Mapping[str, Any], jax_names: Mapping[str, str]) -> tuple[tuple[str, Any, Any], ...]:
    """What type promotion depends on: (name, dtype, whether it has dimensions), or (name, type, number)."""
    return tuple(
        (jax_names[name], value.dtype, value.dim() > 0)
        if isinstance(value, torch.Tensor)
        else (jax_names[name], type(value), value)
        for name, value in arguments.items()
        if isinstance(value, torch.Tensor | int | float)
    )


@functools.lru_cache(maxsize=1024)
def _result_dtype(op: Op, kinds: tuple[tuple[str, Any, Any], ...], default: torch.dtype) -> torch.dtype:
    """What torch's op answers on tensors without data; a bound that it takes only as a tensor is given as one."""
    native = _native(op)
    tensors = {
        name: torch.empty((1,) * has_dimensions, dtype=dtype, device="meta")
        for name, dtype, has_dimensions in kinds
        if isinstance(dtype, torch.dtype)
    }
    numbers = {name: number for name, kind, number in kinds if not isinstance(kind, torch.dtype)}
    try:
        result = native(tensors | numbers)
    except (TypeError, RuntimeError):
        result = native(tensors | {n: torch.tensor(number, device="meta") for n, number in numbers.items()})
    dtype: torch.dtype = (result[0] if isinstance(result, tuple) else result).dtype
    return dtype


_plain = {op.function: _derive(op) for op in OPS.values()}
_all_forms = {op.function: traceable(with_forms(_native(op), _plain[op.function])) for op in OPS.values()}
_by_name = {name: f for name, f in vars(jaxclamp).items() if inspect.isfunction(f) and f in _plain}

TORCH_OPS: dict[str, Callable[..., Any]] = {name: _all_forms[function] for name, function in _by_name.items()}
"""Every op of jaxclamp for torch, under each of its names."""

IN_PLACE_OPS: dict[str, Callable[..., Any]] = {
    f"{name}_": traceable(in_place(f"{name}_", _plain[function]))
    for name, function in _by_name.items()
    if any(hasattr(home, f"{name}_") for home in (torch, torch.Tensor, torch.nn.functional))
}
"""The forms that overwrite their first argument, for the ops of which torch has one."""
