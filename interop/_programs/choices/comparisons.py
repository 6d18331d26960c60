"""Comparisons, and what is made of truth values: they hold or not a small step along the tangents."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from interop._programs.order import holds, may_be_at, value_and_tangent, value_of

Tensor = torch.Tensor
Operand = torch.Tensor | float


def comparison(compare: Callable[[Any, Any], Any]) -> Callable[[Operand, Operand], Tensor]:
    """Return the comparison of numbers that move."""

    def compared(input: Operand, other: Operand) -> Tensor:
        return holds(compare, input, other)

    return compared


def is_not_zero(input: Tensor) -> Tensor:
    """Decide `torch.Tensor.bool`, which asks where a number is not 0."""
    return holds(operator.ne, input, 0)


def logical_not(input: Tensor) -> Tensor:
    return ~is_not_zero(input)


def of_truth_values(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return `torch.logical_and`, ``logical_or`` or ``logical_xor``."""
    return lambda input, other: combine(is_not_zero(input), is_not_zero(other))


def sign(input: Tensor) -> Tensor:
    """Decide a sign: at 0 it is that of the tangent, or its direction if it is complex."""
    if not may_be_at(input, 0.0):
        return torch.sgn(input)
    value, tangent = value_and_tangent(input)
    # Of the input itself: that of a complex number turns with it, and that of a real one has the gradient 0.
    return torch.sgn(torch.where(value == 0, tangent, input))


def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """Decide `torch.heaviside`: at 0 ``values`` counts only where the input stands still."""
    if input.dtype != values.dtype:  # which torch refuses
        return torch.heaviside(value_of(input), value_of(values))
    rises = holds(operator.gt, input, 0)  # where it moves, one of the two holds, or none
    return torch.where(holds(operator.ge, input, 0) & ~rises, values, rises.to(values.dtype))
