"""Derivatives of programs by differences of their values, in NumPy: what `by_differences` expects of programs of steps.

The gradient along a direction v is that at x + h v, where the program is smooth, and the directional derivative is
(f(x + h v) - f(x)) / h. No rule for choices is written here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.fuzz.definition import UndecidedError
from tests.fuzz.steps import SHAPE, Array

if TYPE_CHECKING:
    from tests.fuzz.programs import Program

_NEAR = 2.0**-15  # how far away, along the direction, the differences are taken
_RADIUS = 2.0**-27  # of the differences there
TOLERANCE = 1e-4
"""Relative to the largest of the numbers compared and the value. Rounding is far below that; gradients of pieces
differ by far more, since weights and constants are integers."""


@dataclass(frozen=True)
class Expected:
    """What differences of values say, for each row."""

    value: Array
    derivative: Array
    gradients: tuple[Array, ...]
    """With respect to each of the active arrays."""


def expected(program: Program) -> Expected:
    """Raises UndecidedError."""
    value = program.value(*program.points)

    def moved(distance: float) -> tuple[Array, Array]:
        x, y = (p + distance * d for p, d in zip(program.points, program.directions, strict=True))
        return x, y

    def slope(distance: float) -> Array:
        return (program.value(*moved(distance)) - value) / distance

    def gradient(distance: float, active: int) -> Array:
        there = moved(distance)
        steps = _RADIUS * np.eye(12).reshape(12, 1, *SHAPE)
        both = [program.value(*(p + sign * steps * (n == active) for n, p in enumerate(there))) for sign in (1, -1)]
        return np.moveaxis((both[0] - both[1]) / (2 * _RADIUS), 0, -1).reshape(-1, *SHAPE)

    def extrapolated(function: Callable[..., Array], *args: Any) -> Array:
        """Without what is linear in the distance, the curvature of a piece."""
        near, far = function(_NEAR, *args), function(2 * _NEAR, *args)
        # Where the two lie in different pieces, they differ by more than by the curvature.
        if (np.abs(near - far) > 1e-2 * (1 + np.abs(value).max() / 100)).any():
            raise UndecidedError("a kink is near")
        return 2 * near - far

    if np.abs(value).max() > 1e4:
        raise UndecidedError("large values")
    gradients = tuple(extrapolated(gradient, active) for active in program.active)
    derivative = extrapolated(slope)
    pushed = sum((g * program.directions[n]).sum((-1, -2)) for n, g in zip(program.active, gradients, strict=True))
    if not agree(pushed, derivative, value):
        raise UndecidedError("the slope along the direction is not that of the gradient")
    return Expected(value, derivative, gradients)


def agree(found: Array, wanted: Array, value: Array) -> bool:
    """Whether derivatives are the same, beside a value of that size."""
    size = 1 + np.abs(value).max() + np.abs(wanted).max()
    return found.shape == wanted.shape and bool((np.abs(found - wanted) <= TOLERANCE * size).all())
