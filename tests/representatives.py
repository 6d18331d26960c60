"""One op of each kind: what the rule of a kind decides, `make test` asks of these, and `make test-thorough` of all."""

from collections.abc import Iterable
from typing import Any

import pytest

from jaxclamp import Op

NAMES = ("clamp", "maximum", "leaky_relu", "elu", "amax", "max_with_indices", "max_pool2d")
"""Selections by bounds and of two operands, kinks between lines and curves, reductions and windows."""


def represented(ops: Iterable[Op]) -> list[Any]:
    """The ops as parameters of a test, of which those that are no representatives are thorough."""
    return [pytest.param(op, id=op.name, marks=thorough(op.name)) for op in ops]


def thorough(name: str) -> list[pytest.MarkDecorator]:
    """The marks of a test of the op of that name."""
    return [] if name in NAMES else [pytest.mark.thorough]
