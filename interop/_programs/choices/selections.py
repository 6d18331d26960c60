"""Selections: the value is one of the operands, and of equal ones that which is ahead a small step on."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import torch

from interop._programs.order import holds, may_be_at, may_be_equal, moves, value_and_tangent
from jaxclamp._rules.selection import Selection, Step

Tensor = torch.Tensor
_aten = torch.ops.aten
Operand = torch.Tensor | float


def _of_two(gives_way: Callable[[Any, Any], Any], nan_wins: bool) -> Callable[[Tensor, Operand], Tensor]:
    """Return a selection of two operands, where the first ``gives_way`` to the second."""

    def selected(input: Tensor, other: Operand) -> Tensor:
        # Of NaN nothing holds, so that ``input`` would be taken: only the operand named here needs a look.
        unknown = other if nan_wins else input
        is_other = holds(gives_way, input, other)
        if isinstance(unknown, Tensor) or unknown != unknown:
            is_other = is_other | (unknown != unknown)
        if moves(other) and may_be_equal(input, other):
            value, tangent = value_and_tangent(other)
            is_other = is_other | ((input == value) & (tangent != tangent))
        return torch.where(is_other, other, input)

    return selected


# NaN is larger and smaller than anything, but for fmax and fmin.
maximum, minimum = _of_two(operator.lt, nan_wins=True), _of_two(operator.gt, nan_wins=True)

_STEPS: Mapping[Step, Callable[[Tensor, Operand], Tensor]] = {
    jnp.maximum: maximum,
    jnp.minimum: minimum,
    jnp.fmax: _of_two(operator.lt, nan_wins=False),
    jnp.fmin: _of_two(operator.gt, nan_wins=False),
}
"""Maps a step of a rule of jaxclamp to its choice."""


def fold(rule: Selection, input: Tensor, *bounds: Operand) -> Tensor:
    """Select among the operands, as the rule of the op folds them: of ``clamp`` the larger, then the smaller."""
    value = input
    for step, bound in zip(rule.steps, bounds, strict=True):
        value = _STEPS[step](value, bound)
    return value


def abs(input: Tensor) -> Tensor:
    """Decide an absolute value: whether it is x or -x."""
    if input.is_complex():
        size = torch.abs(input)
        if not may_be_at(size, 0.0):
            return size
        value, tangent = value_and_tangent(input)
        at_0 = value == 0
        # There it is the part of z along its direction; elsewhere that of 1 has no NaN, as in `reductions.smooth_norm`.
        return torch.where(at_0, (input * tangent.sgn().conj()).real, torch.where(at_0, 1.0, input).abs())
    # Unlike other kinked ops it takes a piece where nothing moves, too: so a derivative of torch, 0 at 0, never counts.
    is_above = ~holds(operator.lt, input, 0)  # where x stands still at 0, too
    # ``where(is_above, input, -input)``, on the CPU in a tenth of the time.
    result: Tensor = _aten.leaky_relu_backward(input, is_above.to(torch.int8), -1, False)
    result.detach().abs_()  # of -0.0, or of 0.0 that moves down, it is -0.0, and 1 / abs(x) minus infinity
    return result
