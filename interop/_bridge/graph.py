"""Puts flat functions into the graphs of torch.compile, torch.export and torch.fx, by one custom op for all.

A graph holds tensors, numbers and strings. So the op takes the name of a call, under which this process keeps the rest.
"""

import uuid
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch

from interop._bridge.flat import FlatFunction
from interop._bridge.saved import CallState, pull_back, remember

_CALLS: dict[str, tuple[FlatFunction, tuple[Any, ...], bool]] = {}
_CALL_NAMES: dict[Hashable, str] = {}


@torch.compiler.disable  # type: ignore[untyped-decorator]  # compiled autograd looks into what backward passes call
def name_call(flat: FlatFunction, non_tensors: tuple[Any, ...], x64: bool) -> str:
    """Return a name for a call without its tensors. It is unique, since graphs are cached on disk and exported.

    A graph may be run as long as the process lives, so the names stay. There is one for each function, kind of
    arguments and array or number that a graph holds as a constant.
    """
    description = (flat, x64, *map(_identity, non_tensors))
    if description not in _CALL_NAMES:
        name = _CALL_NAMES[description] = f"{flat.name} {uuid.uuid4()}"
        _CALLS[name] = flat, non_tensors, x64
    return _CALL_NAMES[description]


def _identity(value: Any) -> Any:
    """Return a key by which values differ to the bit: 0.0 == -0.0, yet they are not the same argument."""
    bits = np.asarray(value)
    return bits.dtype, bits.shape, bits.tobytes(), getattr(value, "weak_type", type(value))


def call_named(name: str) -> tuple[FlatFunction, tuple[Any, ...], bool]:
    """Return the call that got this name from `name_call`."""
    try:
        return _CALLS[name]
    except KeyError:
        raise RuntimeError(
            f"this graph calls '{name.rpartition(' ')[0]}', a function of the process that traced it; "
            "trace the model again in this process."
        ) from None


def leaves_in_graph(
    flat: FlatFunction, non_tensors: tuple[Any, ...], x64: bool, tensors: Sequence[torch.Tensor]
) -> tuple[Sequence[torch.Tensor], Any]:
    """Return the leaves of the result of ``flat`` where torch traces the tensors, and its structure."""
    flat.check_devices(tensors)
    # A number that is a symbol of torch becomes a tensor, so that one graph serves all values. It is made by a sum:
    # torch's compiler fixes the value of the symbol in other ways to make a tensor of it.
    symbols: list[Any] = [n for n in non_tensors if isinstance(n, torch.SymFloat)]
    zero = torch.full((), -0.0, dtype=torch.float64, device="cpu")  # added to -0.0 it leaves -0.0
    numbers = [zero + n for n in symbols]
    constants = tuple([_NUMBER if isinstance(n, torch.SymFloat) else n for n in non_tensors])
    _, tree = flat.describe(_filled(constants, [0.0] * len(numbers)), x64, tensors)
    return _call(name_call(flat, constants, x64), list(tensors), numbers), tree


_NUMBER = "number"
"""The place, among the values that come from no tensor, of a number that a tensor brings."""


def _filled(non_tensors: tuple[Any, ...], numbers: Sequence[float]) -> tuple[Any, ...]:
    remaining = iter(numbers)
    return tuple([next(remaining) if value is _NUMBER else value for value in non_tensors])


@torch.library.custom_op("jaxclamp::call", mutates_args=())
def _call(name: str, tensors: list[torch.Tensor], numbers: list[torch.Tensor]) -> list[torch.Tensor]:
    flat, non_tensors, x64 = call_named(name)
    # To know the strides of the result while tracing would take guards on those of the arguments.
    return flat.compute(_filled(non_tensors, [n.item() for n in numbers]), x64, tensors, is_row_major=True)[0]


@_call.register_fake
def _(name: str, tensors: list[torch.Tensor], numbers: list[torch.Tensor]) -> list[torch.Tensor]:
    flat, non_tensors, x64 = call_named(name)
    outputs, _ = flat.describe(_filled(non_tensors, [0.0] * len(numbers)), x64, tensors)
    return [torch.empty(shape, dtype=dtype, device=tensors[0].device) for shape, dtype in outputs]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    name, tensors, numbers = inputs
    remember(ctx, CallState(*call_named(name)), [*numbers, *tensors], output)
    ctx.count = len(numbers)


def _pull_back(
    ctx: Any, gradients: list[torch.Tensor | None]
) -> tuple[None, Sequence[torch.Tensor | None], Sequence[None]]:
    active = tuple(ctx.needs_input_grad[1])
    pulled = pull_back(ctx, ctx.state.flat.pullback(active), active, gradients, _run_derivative)
    return None, pulled, [None] * ctx.count


def _run_derivative(ctx: Any, derivative: FlatFunction, directions: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    name = name_call(derivative, ctx.state.non_tensors, ctx.state.x64)
    saved = ctx.saved_tensors  # once, as a checkpoint allows
    numbers, tensors = saved[: ctx.count], saved[ctx.count :]
    return _call(name, [*tensors, *directions], list(numbers))


_call.register_autograd(_pull_back, setup_context=_remember)


@_call.register_vmap
def _(
    info: Any,
    in_dims: tuple[None, list[int | None], list[None]],
    name: str,
    tensors: list[torch.Tensor],
    numbers: list[torch.Tensor],
) -> tuple[list[torch.Tensor], list[int]]:
    flat, non_tensors, x64 = call_named(name)
    outputs = _call(name_call(flat.batched(tuple(in_dims[1])), non_tensors, x64), tensors, numbers)
    return outputs, [0] * len(outputs)
