"""Norms by torch's own kernels: torch's function, with the gradient 0 where the 2-norm is 0, to all orders.

Where nothing is differentiated, and with ``out=``, each is torch's own function, unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from interop._torch.forms import axes_of
from interop._torch.grad_state import is_active
from interop._torch.sharding import is_distributed
from interop.native._rules.norms import euclidean_norm
from interop.native._rules.reductions import Reduction
from interop.native.decorators import public


@public
def hypot(input: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.hypot`, with the gradient 0 at (0, 0) in place of torch's NaN."""
    if out is not None or not is_active(input, other):
        return torch.hypot(input, other, out=out)
    return euclidean_norm(torch.hypot, Reduction((), True), input, other)


@public
def norm(
    input: torch.Tensor,
    p: float | str | None = "fro",
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    out: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`torch.norm`, with second derivatives of 0 at 0 in place of torch's NaN; the gradient there is 0 in torch too."""
    if out is not None or p not in ("fro", 2) or not is_active(input) or _is_left_to_torch(input):
        return torch.norm(input, p, _named_axes(input, dim), keepdim, out, dtype)
    x = input if dtype is None else input.to(dtype)
    return _euclidean(lambda x, keepdim: torch.norm(x, p, dim, keepdim), x, dim, keepdim)


@public
def vector_norm(
    x: torch.Tensor,
    ord: float = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`torch.linalg.vector_norm`, with second derivatives of 0 at 0, as `norm`."""
    if out is not None or ord != 2 or not is_active(x) or _is_left_to_torch(x):
        return torch.linalg.vector_norm(x, ord, _named_axes(x, dim), keepdim, dtype=dtype, out=out)
    x = x if dtype is None else x.to(dtype)
    return _euclidean(lambda x, keepdim: torch.linalg.vector_norm(x, 2, dim, keepdim), x, dim, keepdim)


@public
def linalg_norm(
    A: torch.Tensor,  # noqa: N803  # as torch calls it
    ord: float | str | None = None,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    out: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`torch.linalg.norm`: `vector_norm` of vectors, and of matrices whose norm is that of Frobenius."""
    axes = axes_of(dim, A.dim())
    is_of_all = ord is None and dim is None
    # Of matrices, 2 is the largest singular value. Torch refuses what is left: more axes than two, or ``()``.
    is_refused = isinstance(dim, Sequence) and not dim
    is_of_vectors = len(axes) == 1 and not isinstance(ord, str)
    is_of_frobenius = len(axes) == 2 and ord in (None, "fro")
    if out is not None or is_refused or not (is_of_all or is_of_vectors or is_of_frobenius):
        return torch.linalg.norm(A, ord, dim, keepdim, out=out, dtype=dtype)
    return vector_norm(A, 2 if ord is None or isinstance(ord, str) else ord, axes, keepdim, dtype=dtype)


def _euclidean(
    in_torch: Callable[..., torch.Tensor], x: torch.Tensor, dim: int | Sequence[int] | None, keepdim: bool
) -> torch.Tensor:
    axes = axes_of(dim, x.dim())
    if x.dim() == 0:  # without axes, `euclidean_norm` would take x as the one operand of a `hypot`, and lose its sign
        x, axes, keepdim = x.reshape(1), (0,), False
    return euclidean_norm(lambda x: in_torch(x, keepdim), Reduction(axes, keepdim), x)


def _named_axes(x: torch.Tensor, dim: int | Sequence[int] | None) -> int | Sequence[int] | None:
    # Of a norm of infinite order, torch counts the ties of all processes only if the axes are named.
    return axes_of(dim, x.dim()) if is_distributed(x) else dim


def _is_left_to_torch(input: torch.Tensor) -> bool:
    """Return whether there is nothing to choose, or the tensor is sparse or complex."""
    return input.layout is not torch.strided or not input.numel() or input.is_complex()
