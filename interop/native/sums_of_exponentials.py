"""Logarithms of sums of exponentials: torch's functions, constant where all terms are 0.

They are minus infinity where all operands are, as in a row that is masked as a whole. A finite step of the operands
does not change that, so the gradient is 0, to all orders. Torch's is NaN, as it subtracts infinities. The 0 is a
number, by which cotangents are multiplied: an infinite slope of the operands still makes NaN of it.

Each is torch's own function, unchanged, where nothing is differentiated, with ``out=``, and on the CPU where no operand
asks for more.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from interop._torch.forms import axes_of
from interop._torch.grad_state import is_active
from interop._torch.in_numpy import has_one_of
from interop.native._rules.windows_stage import is_plain
from interop.native.decorators import public

Tensor = torch.Tensor


@public
def logsumexp(input: Tensor, dim: Any, keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    """`torch.logsumexp`, with the gradient 0 where all elements are minus infinity, in place of torch's NaN."""
    if out is not None or not is_active(input):
        return torch.logsumexp(input, dim, keepdim, out=out)
    result = torch.logsumexp(input, dim, keepdim)
    if is_plain(result) and not has_one_of(result, -math.inf):
        return result
    axes = axes_of(dim, input.dim())  # `torch.all` takes no axes for none, where logsumexp takes them for all
    is_lowest = input == -math.inf
    is_flat = is_lowest.all(axes, keepdim=True)
    result = torch.logsumexp(_zero_where(is_flat, input), dim, keepdim)
    return _lowest_where(is_flat if keepdim else is_lowest.all(axes), result)


@public
def logaddexp(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`torch.logaddexp`, with gradients of 0 where both operands are minus infinity, in place of torch's NaN."""
    if out is not None or not is_active(input, other) or not isinstance(other, Tensor):
        return torch.logaddexp(input, other, out=out)
    if is_plain(input) and is_plain(other) and not any(has_one_of(x, -math.inf) for x in (input, other)):
        return torch.logaddexp(input, other)
    is_flat = (input == -math.inf) & (other == -math.inf)
    # Each operand keeps its shape: torch may round otherwise where it is broadcast.
    return _lowest_where(is_flat, torch.logaddexp(_finite(input), _finite(other)))


def _finite(x: Tensor) -> Tensor:
    """Return the least finite number in the place of minus infinity, which has no share beside any other, either."""
    if not x.is_floating_point():
        return x
    is_lowest = x == -math.inf
    return torch.where(is_lowest, _zero_where(is_lowest, x) + torch.finfo(x.dtype).min, x)


def _zero_where(is_flat: Tensor, x: Tensor) -> Tensor:
    """Return 0 in the place of minus infinity, with the slope 0, as the exponential has them."""
    return torch.where(is_flat, torch.where(is_flat, x, 0.0).exp(), x)


def _lowest_where(is_flat: Tensor, result: Tensor) -> Tensor:
    return result + torch.where(is_flat, -math.inf, 0.0).to(result.dtype)
