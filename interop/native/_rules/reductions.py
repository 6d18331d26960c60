"""Differentiates reductions around torch's own function: tied elements along the reduced axes share the gradient."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from interop.native._rules.differentiable import differentiable
from jaxclamp import Convention


@dataclass(frozen=True)  # and no tuple, in which torch.func.vmap would look for tensors
class Reduction:
    """The axes that are reduced, whether they stay, and how tied elements share."""

    axes: tuple[int, ...]
    keeps: bool
    convention: Convention = "min_norm"


class _Reduced(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(in_torch: Callable[[torch.Tensor], Any], reduction: Reduction, x: torch.Tensor) -> Any:
        result = in_torch(x)
        return tuple(result) if isinstance(result, tuple) else result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.reduction, x = inputs
        ctx.has_indices = isinstance(output, tuple)
        values = output[0] if ctx.has_indices else output
        if ctx.has_indices:
            ctx.mark_non_differentiable(output[1])
            ctx.set_materialize_grads(False)  # torch makes no zeros of the shape of jagged indices
        # Neither x nor the values are kept: both may be overwritten then.
        tied = (x == with_reduced_axes(values, ctx.reduction.axes, ctx.reduction.keeps)) | x.isnan()
        chosen = sharing(tied, ctx.reduction.axes, ctx.reduction.convention)
        ctx.save_for_backward(chosen)
        ctx.save_for_forward(chosen)

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor | None, *_: Any) -> tuple[torch.Tensor | None, ...]:
        if cotangent is None:
            return None, None, None
        (chosen,) = ctx.saved_tensors
        weighted = divided(
            with_reduced_axes(cotangent, ctx.reduction.axes, ctx.reduction.keeps), _shares(ctx.reduction, chosen)
        )
        return None, None, torch.where(chosen, weighted, 0.0)

    @staticmethod
    def jvp(ctx: Any, _in_torch: None, _reduction: None, tangent: torch.Tensor) -> Any:
        (chosen,) = ctx.saved_tensors
        weighted = torch.where(chosen, divided(tangent, _shares(ctx.reduction, chosen)), 0.0)
        moved = weighted.sum(ctx.reduction.axes, keepdim=ctx.reduction.keeps)
        return (moved, None) if ctx.has_indices else moved


reduce: Callable[..., Any] = differentiable(_Reduced)
"""Returns the result of torch's function: the values alone, or a pair of the values and their indices."""


def _shares(reduction: Reduction, chosen: torch.Tensor) -> torch.Tensor:
    """Count the elements that share; reduced axes stay."""
    return chosen.sum(reduction.axes, keepdim=True, dtype=torch.int32)  # half the time of int64


def with_reduced_axes(reduced: torch.Tensor, axes: Sequence[int], keeps: bool) -> torch.Tensor:
    """Give the result of a reduction its axes back, of size 1, unless it keeps them."""
    if not keeps:
        for axis in sorted(axes):
            reduced = reduced.unsqueeze(axis)
    return reduced


def divided(vector: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Divide the vector by the shares; the result has its dtype."""
    return (vector.to(widened(vector.dtype)) / shares).to(vector.dtype)


def widened(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to share in: those of 16 bits hold neither large counts nor small parts."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def sharing(tied: torch.Tensor, axes: tuple[int, ...], convention: Convention) -> torch.Tensor:
    """Return which of the tied elements along ``axes`` share the gradient."""
    if convention in ("min_norm", "balanced"):
        return tied
    last = tuple(range(-len(axes), 0))
    lines = tied.movedim(axes, last)
    flat = lines.flatten(lines.dim() - len(axes))
    # The first: of (0, 1, 0, 1) the running sum is (0, 1, 1, 2), and it is 1 where an element ties there alone.
    # Not along -1: by that DTensor adds up the part of each process alone.
    chosen = flat & (flat.cumsum(flat.dim() - 1) == 1)
    if convention == "exclusive":
        chosen = torch.where(flat.sum(-1, keepdim=True) == 1, flat, flat & ~chosen)  # one that ties with none keeps all
    return chosen.reshape(lines.shape).movedim(last, axes)
