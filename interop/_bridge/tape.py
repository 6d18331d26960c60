"""Puts calls of flat functions on torch's tape, by the `torch.autograd.Function` that suits the state of torch.

A call of ``interop.clamp(x, 0.0, 6.0)``, for example, becomes a custom op while torch compiles. It is computed and
leaves nothing if x requires no grad. It is `_RecordedUnderTransforms` in `torch.func`, and `_Recorded` else: that saves
x, and its backward pass calls the pullback of the flat function, by `call` again. So derivatives of any order follow.
"""

from collections.abc import Sequence
from typing import Any

import jax
import torch
from torch.autograd import forward_ad

from interop._bridge.flat import LEAF, FlatFunction
from interop._bridge.saved import CallState, pull_back, remember
from interop._torch.grad_state import is_recorded
from interop._torch.private_api import (
    into_old_vmap,
    is_dispatch_mode_active,
    is_forward_mode,
    is_in_old_vmap,
    is_transformed,
    out_of_old_vmap,
)


def call(flat: FlatFunction, non_tensors: tuple[Any, ...], x64: bool, tensors: Sequence[torch.Tensor]) -> Any:
    """Return the result of ``flat``, recorded on torch's tape if torch may ask for derivatives.

    A call that torch traces goes into its graph. Any other is computed at once. The tape keeps the inputs of a recorded
    call, or the residuals of JAX if the function is to save these.
    """
    is_in_graph = not is_transformed() and (torch.compiler.is_compiling() or is_dispatch_mode_active())
    # The custom op of a graph has no forward mode. `torch.func.linearize` asks for one while it records a graph.
    is_dual = is_in_graph and is_forward_mode() and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)
    if is_dual and torch.compiler.is_compiling():
        raise NotImplementedError(
            f"{flat.name}: forward mode of torch.autograd.forward_ad is not available under torch.compile, where "
            "derivatives would be dropped silently; use torch.func.jvp or reverse mode, or differentiate outside."
        )
    if tensors and is_in_graph and not is_dual:
        leaves, tree = _computed(flat, non_tensors, x64, tensors)
    elif not is_recorded(tensors):
        leaves, tree = flat.compute(non_tensors, x64, tensors)
    else:
        # Residuals are of reverse mode, and have no rule for vmap: forward mode and torch.func save the inputs.
        on_tape: type[torch.autograd.Function] = _Recorded
        if is_transformed() or is_dual:
            on_tape = _RecordedUnderTransforms
        elif flat.save == "residuals" and not is_forward_mode():
            on_tape = _RecordedWithResiduals
        state = CallState(flat, non_tensors, x64)
        leaves = on_tape.apply(state, *tensors)
        tree = state.tree
    if tree is None:
        return leaves
    return leaves[0] if tree is LEAF else jax.tree.unflatten(tree, leaves)


def _computed(flat: FlatFunction, non_tensors: tuple[Any, ...], x64: bool, tensors: Sequence[torch.Tensor]) -> Any:
    """Return the leaves of the result and its structure, in the graph that torch makes, if it makes one."""
    if tensors and (torch.compiler.is_compiling() or is_dispatch_mode_active()):
        from interop._bridge.graph import leaves_in_graph  # loads Dynamo, which takes a second

        return leaves_in_graph(flat, non_tensors, x64, tensors)
    return flat.compute(non_tensors, x64, tensors)


class _Recorded(torch.autograd.Function):
    """A call that keeps its inputs."""

    @staticmethod
    def forward(ctx: Any, state: CallState, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, state.tree = state.flat.compute(state.non_tensors, state.x64, tensors)
        remember(ctx, state, tensors, outputs)
        if is_forward_mode():
            ctx.save_for_forward(*tensors)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        active = ctx.needs_input_grad[1:]
        return None, *pull_back(ctx, ctx.state.flat.pullback(active), active, gradients, _run_derivative)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        present = [tangent for tangent in tangents[1:] if tangent is not None]
        active = tuple([tangent is not None for tangent in tangents[1:]])
        pushed = iter(_run_derivative(ctx, ctx.state.flat.pushforward(active), present))
        return tuple([next(pushed) if inexact else None for inexact in ctx.state.inexact])


class _RecordedWithResiduals(torch.autograd.Function):
    """A call that keeps the residuals of JAX's reverse pass, and not the inputs."""

    @staticmethod
    def forward(ctx: Any, state: CallState, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.active = ctx.needs_input_grad[1:]
        leaves, tree = state.flat.linearized(ctx.active).compute(state.non_tensors, state.x64, tensors)
        state.tree, ctx.pull = tree.children()  # of the outputs, and of JAX's pull, whose leaves are the residuals
        outputs = leaves[: state.tree.num_leaves]
        state.non_tensors = ()  # they are among the residuals
        remember(ctx, state, leaves[len(outputs) :], outputs)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():  # torch's once_differentiable lets this pass where the gradients are constants
            raise RuntimeError(
                f"{ctx.state.flat.name}: with save='residuals' there is no second derivative, which create_graph=True "
                "asks for; use save='inputs'."
            )
        derivative = ctx.state.flat.transposed(ctx.pull)
        return None, *pull_back(ctx, derivative, ctx.active, gradients, _run_derivative)


class _RecordedUnderTransforms(torch.autograd.Function):
    """`_Recorded` under torch.func, which needs ``setup_context`` apart from ``forward``; that costs 7 us a call."""

    @staticmethod
    def forward(state: CallState, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, state.tree = _computed(state.flat, state.non_tensors, state.x64, tensors)
        return tuple(outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        state, *tensors = inputs
        remember(ctx, state, tensors, output)
        ctx.save_for_forward(*tensors)

    backward = staticmethod(_Recorded.backward)
    jvp = staticmethod(_Recorded.jvp)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], state: CallState, *tensors: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
        result = call(state.flat.batched(in_dims[1:]), state.non_tensors, state.x64, tensors)
        outputs, state.tree = jax.tree.flatten(result)
        return tuple(outputs), (0,) * len(outputs)


def _run_derivative(ctx: Any, derivative: FlatFunction, directions: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    # In the 64-bit mode of the forward pass, since else JAX would give the derivative of a float64 result as float32.
    state = ctx.state
    tensors = (*ctx.saved_tensors, *directions)
    if not torch.compiler.is_compiling() and any(map(is_in_old_vmap, directions)):
        return _run_in_old_vmap(derivative, state, tensors)
    return call(derivative, state.non_tensors, state.x64, tensors)


def _run_in_old_vmap(flat: FlatFunction, state: CallState, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Call ``flat`` with batched gradients, as ``is_grads_batched=True`` asks for them.

    They come from a vmap older than torch.func's, which cannot be extended in public. So its tensors are unwrapped
    here, and the results wrapped again.
    """
    axes = tuple([0 if is_in_old_vmap(tensor) else None for tensor in tensors])
    plain = [t if axis is None else out_of_old_vmap(t) for t, axis in zip(tensors, axes, strict=True)]
    return list(map(into_old_vmap, call(flat.batched(axes), state.non_tensors, state.x64, plain)))
