"""Kinked functions: torch's own, but at a kink the piece that is entered there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from interop._programs.dual_fast_paths import FastPaths
from interop._programs.order import may_be_at, value_and_tangent
from interop._torch.autocast import autocast
from interop._torch.forms import overwrite
from interop._torch.in_numpy import is_any
from interop.native._rules.kinked import aligned, pieces_that_meet
from interop.native._rules.windows_stage import is_plain

Tensor = torch.Tensor
Function: TypeAlias = Callable[[Tensor], Tensor]
PiecesAtKink: TypeAlias = tuple[float, Callable[[Tensor], Any], Callable[[Tensor], Any]]
"""The place of a kink, and the pieces to its left and to its right."""


def at_kinks(in_torch: Function, kinks: Sequence[PiecesAtKink], x: Tensor) -> Tensor:
    """Return ``in_torch(x)``, at each kink by the piece on which x is after a small step.

    ``hardswish`` at x = 3, where x moves by -1, is ``x (x + 3) / 6``, of slope 3/2; where x moves by 1, it is ``x``.
    """
    result = in_torch(x)
    for place, left, right in kinks:
        if not may_be_at(x, place):
            continue
        value, tangent = value_and_tangent(x)
        # Where x stands still, either piece has the tangent 0: torch's own slope stays.
        at_place = (value == place) & (tangent != 0)
        if is_plain(value) and not is_any(at_place):
            continue
        near = torch.where(at_place, x, place)  # a piece may overflow elsewhere
        # The pieces are written with numbers, beside which a dual tensor is slow.
        with FastPaths():
            # A mask that is mostly false, as few elements are there: `torch.where` reads it several times as fast.
            entered = torch.where(at_place & (tangent > 0), right(near), left(near))
        result = torch.where(at_place, entered, result)
    return result


def pieces_at_kinks(name: str, *parameters: Any) -> list[PiecesAtKink]:
    """Return the pieces that meet at each kink of the op of that name, as functions of torch."""

    def in_torch(piece: Callable[..., Any]) -> Callable[[Tensor], Any]:
        return lambda x: piece(torch, x, *parameters)

    return [(place, in_torch(left), in_torch(right)) for place, left, right in pieces_that_meet(name, *parameters)]


def in_form(inplace: bool, name: str, function: Function, input: Tensor) -> Tensor:
    """Return ``function(input)``, or overwrite the input with it, as torch's function called ``name`` does."""
    return overwrite(name, function, input) if inplace else function(input)


def rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """Decide a leaky relu whose slope is drawn in training, and in evaluation the mean of the two."""
    if training:  # the slopes are random, and 0 is on no tie but by chance
        return functional.rrelu(input, lower, upper, training, inplace)
    slope = (lower + upper) / 2
    kinks = pieces_at_kinks("leaky_relu", slope)
    return in_form(inplace, "rrelu_", lambda x: at_kinks(lambda x: functional.leaky_relu(x, slope), kinks, x), input)


def i0e(input: Tensor) -> Tensor:
    """Decide exp(-|x|) times i0, which is smooth."""
    pieces = (0.0, lambda x: torch.exp(x) * torch.special.i0(x), lambda x: torch.exp(-x) * torch.special.i0(x))
    return at_kinks(torch.special.i0e, [pieces], input)


def softsign(input: Tensor) -> Tensor:
    """Decide x / (1 + |x|), whose second derivative jumps at 0."""
    return at_kinks(functional.softsign, [(0.0, lambda x: x / (1 - x), lambda x: x / (1 + x))], input)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Decide a leaky relu whose slope is a weight."""
    input, weight = autocast(input, weight)
    kinks = pieces_at_kinks("leaky_relu", aligned(weight, input))
    return at_kinks(lambda x: functional.prelu(x, weight), kinks, input)
