"""How the tests of the checkers read reports, and plant a wrong gradient."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxclamp
from jaxclamp import GradientReport


def kinds(report: GradientReport) -> dict[str, int]:
    """Count the verdicts of each kind."""
    return dict(collections.Counter(verdict.kind for verdict in report.verdicts))


def refused(function: Callable[..., Any], *args: Any, **settings: Any) -> str:
    """Return what the error says of a gradient that does not pass."""
    with pytest.raises(AssertionError, match=r"^check_grads: ") as raised:
        jaxclamp.check_grads(function, args, **settings)
    return str(raised.value)


def with_gradient(function: Callable[..., Any], gradient: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with another derivative: ``gradient(x)``, of the shape of ``x``."""
    changed = jax.custom_jvp(function)

    @changed.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return function(*primals), jnp.sum(gradient(*primals) * tangents[0])

    return changed
