"""Functions that choose nothing, where torch's own derivative is wrong or missing."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from interop._programs.order import is_nested_at_tangents, moves, value_of
from interop._torch.private_api import without_function_modes
from interop.native._rules.differentiable import differentiable

Tensor = torch.Tensor


class _Determinant(torch.autograd.Function):
    """Determinants with one derivative for both modes; of a singular matrix, torch's is right in reverse mode alone."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor) -> Tensor:
        return torch.linalg.det(input)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, vector: Tensor) -> Tensor:
        return vector[..., None, None] * _cofactors(*ctx.saved_tensors)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return (tangent * _cofactors(*ctx.saved_tensors)).sum((-2, -1))


_determinant: Callable[[Tensor], Tensor] = differentiable(_Determinant)


def _cofactors(matrices: Tensor) -> Tensor:
    with without_function_modes():
        return torch.func.grad(lambda x: torch.linalg.det(x).sum())(matrices)


def det(input: Tensor) -> Tensor:
    return torch.linalg.det(input) if input.is_complex() else _determinant(input)


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """Compute complex numbers; torch's own derivative by a size of 0 is 0, and by a negative one has a wrong sign."""
    return torch.complex(abs * angle.cos(), abs * angle.sin())


def cholesky_inverse(input: Tensor, upper: bool = False) -> Tensor:
    """Invert the matrix of a triangular factor; torch's own derivative of that is wrong in forward mode."""
    factor = input.triu() if upper else input.tril()
    return torch.cholesky_solve(torch.eye(input.size(-1), dtype=input.dtype, device=input.device), factor, upper)


def nan_to_num(input: Tensor, *numbers: Any, **named: Any) -> Tensor:
    """Replace numbers that are not finite by constants; torch's own tangent there is 0 times the tangent, or NaN."""
    if input.is_complex():  # of which torch 2.13 refuses derivatives; those of 2.15 stay as they are
        return torch.nan_to_num(input, *numbers, **named)
    return torch.where(input.isfinite(), input, torch.nan_to_num(value_of(input), *numbers, **named))


def to_dense(input: Tensor, dtype: torch.dtype | None = None, *, masked_grad: bool | None = None) -> Tensor:
    """Return a tensor that moves, and so is dense already: torch 2.15 drops its tangent."""
    return input.to(dtype)


def linear_cross_entropy(*args: Any, options: Any = None, **kwargs: Any) -> Tensor:
    """Compute the loss from all logits at once: in chunks, as ``options`` say, torch has no forward mode."""
    return functional.linear_cross_entropy(*args, **kwargs)


# Torch detaches from the innermost transformation alone: in `interop.grad` from the tangents, not from the gradient.


def data(input: Tensor) -> Tensor:
    return input.detach() if is_nested_at_tangents() and moves(input) else input.data


def detach_(input: Tensor) -> Tensor:
    if is_nested_at_tangents() and moves(input):
        raise NotImplementedError("detach_ would leave the gradient as it is; call detach(), which returns a tensor.")
    return input.detach_()
