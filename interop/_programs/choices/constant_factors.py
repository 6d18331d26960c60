"""Products with a logarithm: where their factor is the constant 0 they are constant, at a singular point too.

The rule and its reason are those of `jaxclamp/_programs/constant_factors.py`. Torch's powers have it already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from interop._programs.order import may_be_at, value_and_tangent


def constant_beside_0(in_torch: Callable[..., torch.Tensor], end: float) -> Callable[..., torch.Tensor]:
    """Return torch's function of a factor and of what it is beside, whose slope by that is 0 / 0 at ``end``."""

    def product(input: Any, other: Any) -> torch.Tensor:
        if not isinstance(other, torch.Tensor) or not may_be_at(other, end):
            return in_torch(input, other)
        factor, speed = value_and_tangent(input)
        is_constant = (value_and_tangent(other)[0] == end) & (factor == 0) & (speed == 0)
        return in_torch(input, torch.where(is_constant, 1.0, other))

    return product
