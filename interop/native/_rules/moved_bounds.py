"""Reproduces another version's clamp gradient by moving each bound one float.

Up to torch 2.13 the gradient of ``clamp(x, 0., 1.)`` is 1 for 0 <= x <= 1, from 2.14 on for 0 < x < 1. Let s be the
smallest positive number of the dtype. Then x >= 0 is the same as x > -s, and x > 0 the same as x >= s. So each kernel
has the gradient of the other version between bounds that are one number further apart, or closer together.

It is worth its lines for speed: a clamp under `interop.as_of` is torch's own kernel, forward and backward, called a
second time for the value. The rule of `selection.py` would compare x with the bounds in a backward pass in Python.
docs/measurements.md has the figures.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from interop._torch.grad_state import outside_of_modes
from jaxclamp._shared.version_derivatives import Weights

Moves: TypeAlias = Literal["apart", "together"]

_APART = {"clamp": (-math.inf, math.inf), "clamp_min": (-math.inf,), "clamp_max": (math.inf,)}
"""Maps an op to where its bounds go if they move apart."""
_DTYPES: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}
_SMALLEST = 5e-324  # the smallest positive float64; it compares as 0 where subnormal numbers are flushed


def clamp_with_moved_bounds(name: str, weights: Weights, x: Any, *bounds: Any) -> torch.Tensor | None:
    """Return the op's value, with the gradient of ``weights``; None if moved bounds cannot give that gradient.

    The tensor x is in eager code, outside of all transformations.
    """
    # Where subnormal numbers count as 0, as under `torch.set_flush_denormal`, a bound of 0 cannot move by one float.
    can_move = x.dtype in _DTYPES and (x.is_cpu or x.is_cuda) and not x.is_nested and _SMALLEST > 0
    if name not in _APART or not can_move or not all(type(b) in (int, float) and math.isfinite(b) for b in bounds):
        return None
    moves = _moves(name, weights)
    return None if moves is None else _with_moved_bounds(name, moves, x, bounds)


@functools.cache
def _moves(name: str, weights: Weights) -> Moves | None:
    """Return how the bounds of the installed op have to move for these weights; None if neither way gives them."""
    return outside_of_modes(functools.partial(_moves_that_lead_to, name, weights))


def _moves_that_lead_to(name: str, weights: Weights) -> Moves | None:
    # Which way leads there is tried, not read from the version: with each pair of three bounds, also equal or crossed,
    # at each bound, one float to each side of it, at infinities and NaN.
    ties = np.array([0.0, 1.0, 2.0], np.float32)
    special = np.array([-math.inf, math.inf, math.nan], np.float32)
    around = [np.nextafter(ties, end) for end in special[:2]]
    at = torch.from_numpy(np.hstack([ties, *around, special])).requires_grad_()
    # Where x gets all of the gradient. Where it gets half is not looked at: moved bounds cannot give that, so that the
    # comparison below fails.
    ((gets, *_), *_) = weights.of
    moves: Moves
    for moves in ("apart", "together"):
        for bounds in itertools.product(ties.tolist(), repeat=len(_APART[name])):
            (gradient,) = torch.autograd.grad(_with_moved_bounds(name, moves, at, bounds).sum(), at)
            if not torch.equal(gradient, gets(at, *bounds).to(gradient.dtype)):
                break
        else:
            return moves
    return None


def _with_moved_bounds(name: str, moves: Moves, x: torch.Tensor, bounds: Sequence[float]) -> torch.Tensor:
    in_torch = getattr(torch, name)
    y: torch.Tensor = in_torch(x, *_moved(name, moves, x.dtype, *bounds))
    # The value between the bounds themselves is written over y. The derivative keeps x alone, and misses nothing.
    in_torch(x.detach(), *bounds, out=y.detach())
    return y


@functools.lru_cache(maxsize=1024)
def _moved(name: str, moves: Moves, dtype: torch.dtype, *bounds: float) -> list[float]:
    number = _DTYPES[dtype]
    ends = [end if moves == "apart" else -end for end in _APART[name]]
    with np.errstate(over="ignore"):  # torch refuses the bound itself
        return [float(np.nextafter(number(bound), number(end))) for bound, end in zip(bounds, ends, strict=True)]
