"""The ops of jaxclamp under torch's own signatures, derived from their records."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

import jaxclamp
from interop._counterparts import Counterpart
from interop._function import wrap_for_torch
from jaxclamp import OPS, Op

_TORCH_NAMES = {"x": "input", "y": "other", "axis": "dim", "keepdims": "keepdim"}


def _derive(op: Op) -> Callable[..., Any]:
    parameters = inspect.signature(op.function).parameters
    jax_names = {_TORCH_NAMES.get(name, name): name for name in parameters}
    wrapped = wrap_for_torch(op.function)

    @functools.wraps(op.function)
    def function(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            kwargs = {jax_names.get(name, name): value for name, value in kwargs.items()}
        dtypes = {value.dtype for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)}
        if len(dtypes) == 1 and next(iter(dtypes)).is_floating_point:
            return wrapped(*args, **kwargs)
        if not dtypes:
            raise TypeError(
                f"{op.name}: input must be a torch.Tensor; for numbers and JAX arrays use jaxclamp.{op.name}."
            )
        arguments = dict(zip(parameters, args, strict=False)) | kwargs
        return wrapped(**_promote(op, arguments))

    torch_parameters = [p.replace(name=_TORCH_NAMES.get(p.name, p.name)) for p in parameters.values()]
    function.__signature__ = inspect.Signature(torch_parameters)  # type: ignore[attr-defined]
    function.__doc__ = (
        f"`jaxclamp.{op.name}` for torch tensors: the signature and type promotion of torch, the gradient of jaxclamp."
        f"\n\n{inspect.cleandoc(op.function.__doc__ or '').partition('Args:')[0].rstrip()}\n"
    )
    function.__module__ = "interop"
    return function


def _promote(op: Op, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """``arguments`` with all tensors in the dtype that torch's own op would compute in."""
    kinds = tuple(
        (name, (value.dtype, value.dim() > 0) if isinstance(value, torch.Tensor) else value)
        for name, value in arguments.items()
        if isinstance(value, torch.Tensor | int | float)
    )
    dtype = _result_dtype(op, kinds)
    return {name: value.to(dtype) if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}


@functools.lru_cache(maxsize=1024)
def _result_dtype(op: Op, kinds: tuple[tuple[str, Any], ...]) -> torch.dtype:
    """What torch's op answers on tensors without data; a bound that it takes only as a tensor is given as one."""
    native = next(c for c in map(Counterpart, op.counterparts) if c.framework == "torch")
    empty = {n: torch.empty((0,) * k[1], dtype=k[0], device="meta") for n, k in kinds if isinstance(k, tuple)}
    numbers = {n: k for n, k in kinds if not isinstance(k, tuple)}
    try:
        result = native(empty | numbers)
    except (TypeError, RuntimeError):
        result = native(empty | {n: torch.tensor(k, device="meta") for n, k in numbers.items()})
    dtype: torch.dtype = result.dtype
    return dtype


_derived = {op.function: _derive(op) for op in OPS.values()}

TORCH_OPS: dict[str, Callable[..., Any]] = {
    name: _derived[function]
    for name, function in vars(jaxclamp).items()
    if inspect.isfunction(function) and function in _derived
}
"""Every op of jaxclamp for torch, under each of its names."""
