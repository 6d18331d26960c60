"""Differentiates the 2-norm around torch's own function: where it is 0 its gradient is 0, and so are further ones."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from interop.native._rules.differentiable import differentiable
from interop.native._rules.reductions import Reduction, widened, with_reduced_axes
from interop.native._rules.selection import as_operand

Tensor = torch.Tensor


class _Norm(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(in_torch: Callable[..., Tensor], reduction: Reduction, *operands: Tensor) -> Tensor:
        return in_torch(*operands)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.reduction, *operands = inputs
        ctx.save_for_backward(*operands)
        ctx.save_for_forward(*operands)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        axes, operands = ctx.reduction.axes, ctx.saved_tensors
        cotangent = with_reduced_axes(cotangent, axes, ctx.reduction.keeps)
        moved = _along_units(operands, axes, [cotangent] * len(operands))
        return None, None, *map(as_operand, moved, operands)

    @staticmethod
    def jvp(ctx: Any, _in_torch: None, _reduction: None, *tangents: Tensor) -> Tensor:
        axes = ctx.reduction.axes
        moved: Any = sum(_along_units(ctx.saved_tensors, axes, tangents))
        return moved.sum(axes, keepdim=ctx.reduction.keeps) if axes else moved


euclidean_norm: Callable[..., Tensor] = differentiable(_Norm)
"""Returns the value of torch's function, with the gradient of the norm of all operands along the axes reduced."""


def _along_units(operands: Sequence[Tensor], axes: tuple[int, ...], vectors: Sequence[Tensor]) -> list[Tensor]:
    """Return each vector times its operand divided by the norm, 0 where that is 0; no square overflows.

    The rule is `jaxclamp._rules.norms.EuclideanNorm`.
    """
    dtype = functools.reduce(torch.promote_types, [x.dtype for x in operands])
    wide = widened(dtype)
    operands = [x.to(wide) for x in operands]
    largest = functools.reduce(torch.maximum, [x.detach().abs() for x in operands])
    # The units are the same whatever operands are divided by first, so that no derivative comes through this number.
    if axes:
        largest = torch.linalg.vector_norm(largest, float("inf"), axes, keepdim=True)
    is_smooth = largest != 0
    largest = torch.where(is_smooth, largest, 1.0)
    scaled = []
    for x in operands:
        x = torch.where(is_smooth, x, 1.0)  # where the norm is 0 that of ones, which has derivatives
        # Infinite elements count as equal, as 1, and all others beside them are divided to 0.
        scaled.append(torch.where(x.isinf(), x.sign(), x / largest))
    norm = torch.linalg.vector_norm(scaled[0], 2, axes, keepdim=True) if axes else functools.reduce(torch.hypot, scaled)
    units = [x / norm for x in scaled]
    return [
        torch.where(is_smooth, unit * vector.to(wide), 0.0).to(dtype)
        for unit, vector in zip(units, vectors, strict=True)
    ]
