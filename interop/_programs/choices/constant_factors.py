"""Gives products with a logarithm the slope 0 by its operand where their factor is the constant 0.

``xlogy(0, y)`` is 0 for all y, so that the slope by y is 0, at y = 0 too, where torch computes it as 0 / 0. The same
for JAX, and for its powers, is in `jaxclamp/_programs/constant_factors.py`. Torch's powers have the slope 0 already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from interop._programs.order import may_be_at, value_and_tangent, value_of


def constant_beside_0(in_torch: Callable[..., torch.Tensor], end: float) -> Callable[..., torch.Tensor]:
    """Return torch's function of a factor and the operand of a logarithm, which torch calls ``input`` and ``other``.

    At ``other == end`` the logarithm is infinite, and torch's slope by ``other`` is 0 / 0 beside a factor of 0.
    """

    def product(input: Any, other: Any) -> torch.Tensor:
        if not isinstance(other, torch.Tensor) or not may_be_at(other, end):
            return in_torch(input, other)
        factor, speed = value_and_tangent(input)
        is_constant = (value_of(other) == end) & (factor == 0) & (speed == 0)
        return in_torch(input, torch.where(is_constant, 1.0, other))  # at 1 the slope is 0

    return product
