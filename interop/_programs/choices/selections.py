"""Selections: the value is one of the operands, and of equal ones that which is ahead a small step on."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import torch

from interop._programs.order import holds, may_be_at, may_be_equal, moves, value_and_tangent, value_of
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
    if set(rule.steps) <= {jnp.maximum, jnp.minimum}:
        numbers = [bound for bound in bounds if isinstance(bound, int | float) and not math.isnan(bound)]
        if len(numbers) == len(rule.steps):
            return _between(input, {_END[step]: bound for step, bound in zip(rule.steps, numbers, strict=True)})
    value = input
    for step, bound in zip(rule.steps, bounds, strict=True):
        value = _STEPS[step](value, bound)
    return value


_END: Mapping[Step, str] = {jnp.maximum: "min", jnp.minimum: "max"}
"""Maps a step to the argument of `torch.clamp` for its bound."""


_BEYOND = {"min": operator.lt, "max": operator.gt}
"""Maps such an argument to the comparison that says where x is beyond the bound."""


def _between(input: Tensor, ends: Mapping[str, float]) -> Tensor:
    """Keep ``input`` between numbers: one choice, in place of one for each of them.

    ``hardtanh(x, 0, 6)`` at 0, where x moves by -2, is beyond 0, and its slope is 0. Where x moves by 2, it is 1.
    """
    beyond = functools.reduce(torch.logical_or, [holds(_BEYOND[name], input, end) for name, end in ends.items()])
    # On the CPU this takes a tenth of the time of ``torch.where(beyond, 0, input)`` where the mask is mixed.
    result: Tensor = _aten.threshold_backward(input, (~beyond).to(torch.int8), 0.5)
    # Its slopes are right now. Where they are 0, its value becomes that of the bound.
    result.detach().copy_(value_of(input).clamp(**ends))
    return result


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
