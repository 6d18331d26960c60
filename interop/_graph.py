"""Wrapped functions in the graphs of torch.compile and torch.export, and on meta tensors: one custom op for all."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import numpy as np
import torch
import torch._dynamo

from interop._arrays import jax_dtype, torch_dtype
from interop._function import FlatFunction, Task, in_width, pull_back, remember, untraced
from interop._private import is_forward_mode


@torch._dynamo.nonstrict_trace  # it has no public name yet; allow_in_graph has one, but refuses dicts
def call_traceable(key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dynamo takes this call as it is; what is behind it meets the tensors that make up the graph."""
    args, kwargs = jax.tree.map(_concrete, (args, kwargs))
    return untraced(key)(*args, **kwargs)


def _concrete(leaf: Any) -> Any:
    """A number for a symbol that stands for one: JAX compiles for its value, and torch then guards it."""
    kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return kinds[type(leaf)](leaf) if type(leaf) in kinds else leaf


def leaves_in_graph(
    flat: FlatFunction, traced: tuple[Any, ...], wide: bool, tensors: Sequence[torch.Tensor]
) -> tuple[Sequence[torch.Tensor], Any]:
    """`FlatFunction.leaves` where torch traces the tensors, or where they have no data."""
    if is_forward_mode():
        raise NotImplementedError(
            f"{flat.name}: forward-mode derivatives are not available under torch.compile, where they would be dropped "
            "silently, nor on meta tensors; use reverse mode, or differentiate outside."
        )
    flat.check_devices(tensors)
    return _call(_key(flat, traced, wide), list(tensors)), _describe(flat, traced, wide, tensors)[1]


@torch.library.custom_op("interop::call", mutates_args=())
def _call(key: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    flat, traced, wide = _lookup(key)
    # To know the strides of the result while tracing would take guards on those of the arguments.
    return flat.compute(traced, wide, tensors, is_row_major=True)[0]


@_call.register_fake
def _(key: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    outputs, _ = _describe(*_lookup(key), tensors)
    return [torch.empty(shape, dtype=dtype, device=tensors[0].device) for shape, dtype in outputs]


def _remember(ctx: Any, inputs: tuple[str, list[torch.Tensor]], output: list[torch.Tensor]) -> None:
    key, tensors = inputs
    remember(ctx, Task(*_lookup(key)), tensors, output)


def _pull_back(ctx: Any, gradients: list[torch.Tensor | None]) -> tuple[None, Sequence[torch.Tensor | None]]:
    active = tuple(ctx.needs_input_grad[1])
    return None, pull_back(ctx, ctx.task.flat.pullback(active), active, gradients, _call_derivative)


def _call_derivative(ctx: Any, derivative: FlatFunction, directions: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    outputs: Sequence[torch.Tensor] = _call(
        _key(derivative, ctx.task.traced, ctx.task.wide), [*ctx.saved_tensors, *directions]
    )
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
    description = (flat, wide, *map(_identity, traced))
    if description not in _KEYS:
        key = _KEYS[description] = f"{flat.name} {uuid.uuid4()}"
        _CALLS[key] = flat, traced, wide
    return _KEYS[description]


def _identity(value: Any) -> Any:
    """What tells a value from others, to the bit: 0.0 == -0.0, yet they are not the same argument."""
    bits = np.asarray(value)
    return bits.dtype, bits.shape, bits.tobytes(), getattr(value, "weak_type", type(value))


def _lookup(key: str) -> tuple[FlatFunction, tuple[Any, ...], bool]:
    try:
        return _CALLS[key]
    except KeyError:
        raise RuntimeError(
            f"this graph calls '{key.rpartition(' ')[0]}', a function of the process that traced it; "
            "trace the model again in this process."
        ) from None


def _describe(
    flat: FlatFunction, traced: tuple[Any, ...], wide: bool, tensors: Sequence[torch.Tensor]
) -> tuple[list[tuple[tuple[Any, ...], torch.dtype]], Any]:
    """Shape and dtype of each output, and the structure of them all."""
    if flat.resembled:
        like = tuple([t for t, is_resembled in zip(tensors, flat.resembled, strict=False) if is_resembled])
        return [(tuple(tensor.shape), tensor.dtype) for tensor in like], jax.tree.structure(like)

    def evaluate(shapes: Sequence[tuple[Any, ...]]) -> Any:
        arrays = [jax.ShapeDtypeStruct(s, jax_dtype(t.dtype)) for s, t in zip(shapes, tensors, strict=True)]
        return in_width(wide, jax.eval_shape, flat.compiled, traced, *arrays)

    sizes = {str(n): n for tensor in tensors for n in tensor.shape if isinstance(n, torch.SymInt)}
    try:
        # Torch's symbols become JAX's, so that one graph serves all sizes.
        names = {size: f"n{i}" for i, size in enumerate(sizes)}
        symbols = dict(zip(names, jax.export.symbolic_shape(",".join(names.values())), strict=True))
        result = evaluate([tuple([symbols.get(str(n), n) for n in tensor.shape]) for tensor in tensors])
    except Exception:  # a choice that depends on the size: one graph for each shape
        result = evaluate([tuple(map(int, tensor.shape)) for tensor in tensors])
    outputs, tree = jax.tree.flatten(result)
    terms = {name: sizes[size] for size, name in names.items()}
    # An expression of symbols can be read as text alone.
    shapes = [tuple([n if isinstance(n, int) else eval(str(n), _FUNCTIONS, terms) for n in o.shape]) for o in outputs]
    return [(shape, torch_dtype(o.dtype)) for shape, o in zip(shapes, outputs, strict=True)], tree


_FUNCTIONS = {"floordiv": operator.floordiv, "mod": operator.mod, "max": torch.sym_max, "min": torch.sym_min}
