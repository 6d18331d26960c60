"""Kinked functions: torch's own, but at a kink the derivatives of the piece that is entered there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn import functional

from interop._programs.dual_fast_paths import FASTER, FastPaths
from interop._programs.order import (
    Tangents,
    are_around,
    may_be_at,
    step_from,
    tangents_around,
    value_and_tangent,
    value_of,
)
from interop._torch.autocast import autocast
from interop._torch.forms import overwrite
from interop._torch.private_api import version_of

Tensor = torch.Tensor
Function: TypeAlias = Callable[[Tensor], Tensor]
PiecesThatMeet: TypeAlias = tuple[float, Callable[[Tensor], Any], Callable[[Tensor], Any]]
"""The place of a kink, and the pieces to its left and to its right."""

_plus = FASTER[torch.add]


def at_kinks(in_torch: Function, kinks: Mapping[float, int], x: Tensor) -> Tensor:
    """Return ``in_torch(x)``, with the derivatives of the piece on which x is after a small step from a kink.

    Torch takes them at a neighbour of the kink. Of ``hardswish`` at x = 3, where x moves by -1, that is a float below
    3, where the slope is that of ``x (x + 3) / 6``. The value is the one at 3.

    Args:
      in_torch: torch's function, which is continuous.
      kinks: maps the place of each kink to the neighbour that counts where x stands still there: 1 for the one above,
        -1 for the one below, 0 for the kink itself.
      x: its argument.
    """
    has_lower_bound_0 = kinks.get(0.0, 0) > 0
    # Infinities do not move.
    kinks = {place: still for place, still in kinks.items() if math.isfinite(place) and may_be_at(x, place)}
    if kinks:
        neighbour = _plus(x, step_from(x, kinks))
        result = in_torch(neighbour).clone()
        result.detach().copy_(in_torch(value_of(x)))
    else:
        result = in_torch(x)
    if has_lower_bound_0:
        _mark_as_clamped(result, value_of(neighbour) >= 0 if kinks else None)
    return result


class _Clamp(NamedTuple):
    """What is known of a tensor that was clamped at 0, in a block that decides, until it is overwritten."""

    tangents: Tangents
    version: int
    may_move: Tensor | None
    """Where it is 0 and yet may move; None if that is nowhere."""


_CLAMP = "_clamp_at_0"
"""The attribute of a tensor that has its `_Clamp`."""


def _mark_as_clamped(result: Tensor, may_move: Tensor | None) -> None:
    setattr(result, _CLAMP, _Clamp(tangents_around(), version_of(result), may_move))


def stands_still_at_0(x: Tensor) -> Tensor | None:
    """Return where a tensor stands still at 0, as it was clamped there, or None if that is not known."""
    clamp: _Clamp | None = getattr(x, _CLAMP, None)
    if clamp is None or not are_around(clamp.tangents) or clamp.version != version_of(x):
        return None
    is_0: Tensor = value_of(x) == 0
    return is_0 if clamp.may_move is None else is_0 & ~clamp.may_move


def by_pieces(in_torch: Function, pieces: Iterable[PiecesThatMeet], x: Tensor) -> Tensor:
    """Return ``in_torch(x)``, and at a kink the piece on which x is after a small step, with its value.

    ``threshold(x, 1, 5)`` jumps at x = 1. It is x there, where x moves by 2, and 5, where it moves by -1 or not at all.
    """
    result = in_torch(x)
    for place, left, right in pieces:
        if not may_be_at(x, place):
            continue
        value, tangent = value_and_tangent(x)
        at_place = (value == place) & (tangent != 0)
        near = torch.where(at_place, x, place)  # a piece may overflow elsewhere
        # The pieces are written with numbers, beside which a dual tensor is slow.
        with FastPaths():
            entered = torch.where(at_place & (tangent > 0), right(near), left(near))
        result = torch.where(at_place, entered, result)
    return result


def in_form(inplace: bool, name: str, function: Function, input: Tensor) -> Tensor:
    """Return ``function(input)``, or overwrite the input with it, as torch's function called ``name`` does."""
    return overwrite_by(name, function, input) if inplace else function(input)


def overwrite_by(name: str, choice: Callable[..., Tensor], x: Tensor, *operands: Any) -> Tensor:
    """Overwrite ``x`` with ``choice(x, *operands)``, and return it; what is clamped at 0 stays known as that."""
    results: list[Tensor] = []

    def recorded(*operands: Any) -> Tensor:
        results.append(choice(*operands))
        return results[0]

    overwritten = overwrite(name, recorded, x, *operands)
    clamp: _Clamp | None = getattr(results[0], _CLAMP, None)
    # A parameter moves along the direction, whatever was written to it.
    if clamp and not (x.is_leaf and x.requires_grad):
        _mark_as_clamped(overwritten, clamp.may_move)
    return overwritten


def rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """Decide a leaky relu whose slope is drawn in training, and in evaluation the mean of the two."""
    if training:  # the slopes are random, and 0 is on no tie but by chance
        return functional.rrelu(input, lower, upper, training, inplace)
    slope = (lower + upper) / 2
    return in_form(inplace, "rrelu_", lambda x: at_kinks(lambda x: functional.leaky_relu(x, slope), {0.0: 0}, x), input)


def i0e(input: Tensor) -> Tensor:
    """Decide exp(-|x|) times i0, which is smooth."""
    # Torch's third derivative is wrong beside 0.
    pieces = (0.0, lambda x: torch.exp(x) * torch.special.i0(x), lambda x: torch.exp(-x) * torch.special.i0(x))
    return by_pieces(torch.special.i0e, [pieces], input)


def softsign(input: Tensor) -> Tensor:
    """Decide x / (1 + |x|), whose second derivative jumps at 0."""
    return at_kinks(functional.softsign, {0.0: 0}, input)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Decide a leaky relu whose slope is a weight, which gets at most the step of `step_from` for an x of 0."""
    input, weight = autocast(input, weight)
    return at_kinks(lambda x: functional.prelu(x, weight), {0.0: 0}, input)
