"""Choices derived from the records of ops: those that select, and those that have kinks.

Of ``relu6``, for example, the record has the rule ``min(max(x, 0), 6)``, and the name of torch's function. The rule
says what is chosen from, and torch's function which arguments there are.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from interop import native
from interop._bridge.signatures import torch_counterpart
from interop._programs.choices.kinks import at_kinks, by_pieces, in_form
from interop._programs.choices.selections import fold
from interop.native._rules.kinked import pieces_that_meet
from jaxclamp import OPS, Op
from jaxclamp._rules.kinked import Kinked, Piece
from jaxclamp._rules.selection import Affine, Selection, Step

Tensor = torch.Tensor
Choice = Callable[..., Tensor]


def choices_of_records() -> Iterator[tuple[str, Choice]]:
    """Yield the name and the choice of each op of jaxclamp that selects or has kinks."""
    of_rules = {Affine: _affine, Selection: _selection, Kinked: _kinked}
    for name, op in OPS.items():
        if op.family in ("selection", "kinked"):
            rule: Any = op.applied(*op.tie_points[0]).rule  # of the same type at all arguments
            if choose := of_rules.get(type(rule)):
                yield name, _in_torch(op, choose)


def _in_torch(op: Op, choose: Callable[..., Tensor]) -> Choice:
    """Return ``choose(op, torch's function, input, *parameters)`` with torch's signature, and its form in place."""
    in_torch = torch_counterpart(op).function
    parameters = inspect.signature(native.NATIVE[op.name]).parameters.values()
    signature = inspect.Signature([p for p in parameters if p.name not in ("ties", "out")])

    def choice(*args: Any, **kwargs: Any) -> Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        inplace = bound.arguments.pop("inplace", False)
        input, *numbers = bound.arguments.values()
        return in_form(inplace, f"{op.name}_", lambda x: choose(op, in_torch, x, *numbers), input)

    choice.__name__ = choice.__qualname__ = op.name
    choice.__signature__ = signature  # type: ignore[attr-defined]
    return choice


_WITHIN: Mapping[Step, int] = {jnp.maximum: 1, jnp.fmax: 1, jnp.minimum: -1, jnp.fmin: -1}
"""Maps a step of a rule to the side of its bound on which x is within."""


def _selection(op: Op, in_torch: Choice, x: Tensor, *parameters: Any) -> Tensor:
    """Decide between x and bounds: by torch's own slopes beside them if they are numbers, else operand by operand."""
    applied: Any = op.applied(x, *parameters)
    bounds = applied.operands[1:]
    if not applied.rule.steps:  # a clamp without bounds, which torch refuses
        return in_torch(x, *parameters)
    if all(isinstance(bound, int | float) and math.isfinite(bound) for bound in bounds):
        # As it is written in `interop.native`, since `torch.clamp` computes masks first.
        function: Choice = native.NATIVE[op.name].__wrapped__  # type: ignore[attr-defined]
        # Where x stands still at a bound, it counts as within. Beyond, a slope of 0 would hide that a root behind it,
        # as of a sum of squares, has an infinite one.
        within = {bound: _WITHIN[step] for step, bound in zip(applied.rule.steps, bounds, strict=True)}
        return at_kinks(lambda x: function(x, *parameters), within, x)
    return fold(applied.rule, *applied.operands)


def _kinked(op: Op, in_torch: Choice, x: Tensor, *parameters: Any) -> Tensor:
    """Decide by torch's own slopes beside a kink, and by the pieces where the function jumps."""

    def of_x(x: Tensor) -> Tensor:
        return in_torch(x, *parameters)

    numbers = [*map(float, parameters)]  # of tensors, too
    kinks = [*pieces_that_meet(op.name, *numbers)]
    if all(left(np, place, *numbers) == right(np, place, *numbers) for place, left, right in kinks):
        return at_kinks(of_x, {place: 0 for place, _, _ in kinks}, x)

    def of_tensors(piece: Piece) -> Callable[[Tensor], Any]:
        return lambda x: piece(torch, x, *numbers)

    return by_pieces(of_x, [(place, of_tensors(left), of_tensors(right)) for place, left, right in kinks], x)


def _affine(op: Op, in_torch: Choice, x: Tensor) -> Tensor:
    """Decide between the slope that the op has within its two bounds, and 0 beyond."""
    applied: Any = op.applied(x)
    return at_kinks(in_torch, dict.fromkeys(applied.operands[1:], 0), x)
