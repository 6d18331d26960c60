"""Norms by torch's own kernels: torch's function, with the gradient 0 where the 2-norm is 0, to all orders.

Where nothing is differentiated, and with ``out=``, each is torch's own function, unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from interop._torch.grad_state import is_active
from interop.native._rules.norms import euclidean_norm
from interop.native.decorators import public


@public
def hypot(input: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.hypot`, whose gradient at (0, 0) is NaN."""
    if out is not None or not is_active(input, other):
        return torch.hypot(input, other, out=out)
    return euclidean_norm(torch.hypot, (), True, input, other)


@public
def norm(
    input: torch.Tensor,
    p: float | str | None = "fro",
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    out: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`torch.norm`, whose gradient at 0 is 0, and whose second derivatives there are NaN."""
    if out is not None or p not in ("fro", 2) or not is_active(input) or _is_left_to_torch(input):
        return torch.norm(input, p, dim, keepdim, out, dtype)  # type: ignore[no-any-return]
    axes: Any = (dim,) if isinstance(dim, int) else tuple(dim or range(input.dim()))  # no axes are all axes
    if input.dim() == 0:
        input, axes, keepdim = input.reshape(1), (0,), False
    axes = tuple(axis % input.dim() for axis in axes)
    x = input if dtype is None else input.to(dtype)
    return euclidean_norm(lambda x: torch.norm(x, p, axes, keepdim), axes, keepdim, x)


def _is_left_to_torch(input: torch.Tensor) -> bool:
    """Return whether there is nothing to choose, or the tensor is sparse."""
    return input.layout is not torch.strided or not input.numel()
