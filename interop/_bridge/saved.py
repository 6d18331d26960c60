"""Saves what a backward pass needs of a call, and runs that pass: on the tape and in graphs alike."""

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from interop._bridge.flat import FlatFunction


@dataclass(eq=False)
class CallState:
    """All of a call but its tensors, and what becomes known of its result.

    A `torch.autograd.Function` takes it as one argument, because torch examines each argument.
    """

    flat: FlatFunction
    non_tensors: tuple[Any, ...]
    x64: bool
    tree: Any = field(init=False)
    """The structure of the result."""
    inexact: list[bool] = field(init=False)
    """Which leaves of the result can have a gradient."""


def remember(ctx: Any, state: CallState, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Keep on ``ctx`` what the derivatives need of a call. Torch guards ``tensors`` against changes in place."""
    ctx.state = state
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)  # else torch fills in zeros of integer outputs too, which have no cotangent
    state.inexact = [output.is_floating_point() or output.is_complex() for output in outputs]
    if not all(state.inexact):
        ctx.mark_non_differentiable(*itertools.compress(outputs, map(operator.not_, state.inexact)))
    # Of several outputs some may have a gradient, and others none. To keep the outputs would hold their memory.
    if len(outputs) > 1:
        ctx.zeros = [functools.partial(torch.zeros, o.shape, dtype=o.dtype, device=o.device) for o in outputs]


def pull_back(
    ctx: Any,
    derivative: FlatFunction,
    active: Sequence[bool],
    gradients: Sequence[torch.Tensor | None],
    call: Callable[[Any, FlatFunction, Sequence[torch.Tensor]], Sequence[torch.Tensor]],
) -> Sequence[torch.Tensor | None]:
    """Return the gradient of each active input, None for the others; ``call`` runs the derivative."""
    # An output marked as not differentiable has no gradient.
    cotangents = [gradient for gradient in gradients if gradient is not None]
    if not cotangents:
        return [None] * len(active)
    if len(cotangents) < len(gradients):
        outputs = zip(gradients, ctx.zeros, ctx.state.inexact, strict=True)
        cotangents = [zeros() if gradient is None else gradient for gradient, zeros, inexact in outputs if inexact]
    pulled = call(ctx, derivative, cotangents)
    if all(active):
        return pulled
    remaining = iter(pulled)
    return [next(remaining) if is_active else None for is_active in active]
