"""Whether the versions are installed that constraints.txt pins, and those that documentation names."""

import importlib.metadata
import importlib.util
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

DOCUMENTED_PYTHON = "3.11"
"""The Python for which the versions are pinned that documentation names. Later Pythons have some later versions."""


def pinned(constraints: str, python: str | None = None) -> dict[str, Requirement]:
    """Return the lines of constraints that hold for ``python``, by the package; None is the Python that runs."""
    environment = {} if python is None else {"python_version": python}
    lines = [line for line in constraints.splitlines() if line and not line.startswith("#")]
    return {r.name: r for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate(environment)}


def _are_installed(requirements: dict[str, Requirement], names: Iterable[str]) -> bool:
    """Say whether those of ``names`` that are installed have the versions of ``requirements``."""
    installed = [name for name in names if importlib.util.find_spec(name)]
    return all(requirements[name].specifier.contains(importlib.metadata.version(name)) for name in installed)


_CONSTRAINTS = (Path(__file__).parents[2] / "constraints.txt").read_text("utf-8")

of_pinned = pytest.mark.skipif(
    not _are_installed(pinned(_CONSTRAINTS), ["torch", "jax"]),
    reason="it tells what the pinned versions of torch and JAX have and answer",
)
of_documented = pytest.mark.skipif(
    not _are_installed(pinned(_CONSTRAINTS, DOCUMENTED_PYTHON), ["torch", "jax", "flax"]),
    reason=f"it names the versions that are pinned for Python {DOCUMENTED_PYTHON}",
)
