"""What `make test` asks, of all that `make test-thorough` does: one op of each kind, and the first random programs."""

from collections.abc import Iterable
from typing import Any

import pytest

from jaxclamp import Op

NAMES = ("clamp", "hardsigmoid", "maximum", "leaky_relu", "elu", "amax", "max_with_indices", "max_pool2d")
"""Selections by bounds, also scaled, and of two operands, kinks between lines and curves, reductions and windows.

What the rule of a kind decides, it decides for all ops of that kind."""


def represented(ops: Iterable[Op]) -> list[Any]:
    """Return the ops as parameters of a test, of which those that are no representatives are thorough."""
    return [pytest.param(op, id=op.name, marks=thorough(op.name)) for op in ops]


def thorough(name: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a test of the op of that name."""
    return [] if name in NAMES else [pytest.mark.thorough]


def parts(seeds: range, size: int, quick: int) -> pytest.MarkDecorator:
    """Parametrise a test by so many seeds at a time, of which those from ``quick`` on are thorough."""
    groups = [seeds[start : start + size] for start in range(0, len(seeds), size)]
    cases = [pytest.param(g, id=str(g), marks=[pytest.mark.thorough] * (g.start >= quick)) for g in groups]
    return pytest.mark.parametrize("seeds", cases)
