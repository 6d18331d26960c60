"""Wrapped functions in the graphs of torch.compile and torch.export, and on meta tensors: one custom op for all."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import jax
import torch
import torch._dynamo
from torch.autograd import forward_ad

from interop._arrays import jax_dtype, torch_dtype
from interop._function import FlatFunction, adopt_all, pull_back, remember, untraced


@torch._dynamo.nonstrict_trace  # it has no public name yet; allow_in_graph has one, but refuses dicts
def call_traceable(key: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dynamo takes this call as it is; what is behind it meets the tensors that make up the graph."""
    args, kwargs = jax.tree.map(_concrete, (args, kwargs))
    return untraced(key)(*args, **kwargs)


def _concrete(leaf: Any) -> Any:
    """A number for a symbol that stands for one: JAX compiles for its value, and torch then guards it."""
    kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return kinds[type(leaf)](leaf) if type(leaf) in kinds else leaf


def call_in_graph(flat: FlatFunction, traced: tuple[Any, ...], wide: bool, tensors: Sequence[torch.Tensor]) -> Any:
    if forward_ad._current_level >= 0:
        raise NotImplementedError(
            f"{flat.name}: forward-mode derivatives are not available under torch.compile, where they would be dropped "
            "silently, nor on meta tensors; use reverse mode, or differentiate outside."
        )
    flat.check_devices(tensors)
    outputs = _call(_key(flat, traced, wide), list(tensors))
    return jax.tree.unflatten(jax.tree.structure(_shapes(flat, traced, wide, tensors)), outputs)


@torch.library.custom_op("interop::call", mutates_args=())
def _call(key: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    flat, traced, wide = _lookup(key)
    return adopt_all(jax.tree.leaves(flat.compute(traced, wide, tensors)))


@_call.register_fake
def _(key: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    shapes = jax.tree.leaves(_shapes(*_lookup(key), tensors))
    return [torch.empty(s.shape, dtype=torch_dtype(s.dtype), device=tensors[0].device) for s in shapes]


def _remember(ctx: Any, inputs: tuple[str, list[torch.Tensor]], output: list[torch.Tensor]) -> None:
    key, tensors = inputs
    remember(ctx, *_lookup(key), tensors, output)


def _pull_back(ctx: Any, gradients: list[torch.Tensor | None]) -> tuple[None, list[torch.Tensor | None]]:
    return None, pull_back(ctx, ctx.needs_input_grad[1], gradients, _call_derivative)


def _call_derivative(ctx: Any, derivative: FlatFunction, directions: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    outputs: Sequence[torch.Tensor] = _call(_key(derivative, ctx.traced, ctx.wide), [*ctx.saved_tensors, *directions])
    return outputs


_call.register_autograd(_pull_back, setup_context=_remember)


@_call.register_vmap
def _(
    info: Any, in_dims: tuple[None, list[int | None]], key: str, tensors: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[int]]:
    flat, traced, wide = _lookup(key)
    outputs = _call(_key(flat.batched(tuple(in_dims[1])), traced, wide), tensors)
    return outputs, [0] * len(outputs)


_CALLS: dict[str, tuple[FlatFunction, tuple[Any, ...], bool]] = {}
_KEYS: dict[tuple[Any, ...], str] = {}


def _key(flat: FlatFunction, traced: tuple[Any, ...], wide: bool) -> str:
    """A name for a call without its tensors; unique, since graphs are cached on disk and exported."""
    description = (flat, *[(type(value), value if isinstance(value, float) else id(value)) for value in traced], wide)
    if description not in _KEYS:
        key = _KEYS[description] = f"{flat.name} {uuid.uuid4()}"
        _CALLS[key] = flat, traced, wide
    return _KEYS[description]


def _lookup(key: str) -> tuple[FlatFunction, tuple[Any, ...], bool]:
    try:
        return _CALLS[key]
    except KeyError:
        raise RuntimeError(
            f"this graph calls '{key.rpartition(' ')[0]}', a function of the process that traced it; "
            "trace the model again in this process."
        ) from None


def _shapes(flat: FlatFunction, traced: tuple[Any, ...], wide: bool, tensors: Sequence[torch.Tensor]) -> Any:
    # A size that is symbolic becomes a number: one graph for each shape, since XLA compiles for one shape.
    arrays = [jax.ShapeDtypeStruct(tuple(map(int, tensor.shape)), jax_dtype(tensor.dtype)) for tensor in tensors]
    with jax.enable_x64(wide):
        return jax.eval_shape(flat.compiled, traced, *arrays)
