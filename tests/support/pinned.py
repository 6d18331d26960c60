"""Whether the versions are installed of which documentation tells the answers."""

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest
from packaging.requirements import Requirement


def pinned(constraints: str) -> dict[str, Requirement]:
    """The lines of constraints that hold for this Python, by the package."""
    lines = [line for line in constraints.splitlines() if line and not line.startswith("#")]
    return {r.name: r for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate()}


_PINNED = pinned((Path(__file__).parents[2] / "constraints.txt").read_text("utf-8"))
_INSTALLED = [name for name in ("torch", "jax") if importlib.util.find_spec(name)]

of_pinned = pytest.mark.skipif(
    not all(_PINNED[name].specifier.contains(importlib.metadata.version(name)) for name in _INSTALLED),
    reason="documentation tells what the pinned versions of torch and JAX answer",
)
