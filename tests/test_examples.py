"""The examples that no other test runs, in small."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest
from rich.console import Console


@pytest.fixture
def tie_influence(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    file = Path(__file__).parent.parent / "examples" / "tie_influence.py"
    spec = importlib.util.spec_from_file_location("tie_influence", file)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tie_influence", example)  # dataclasses look their module up
    spec.loader.exec_module(example)
    return example


def test_tie_influence(tie_influence: ModuleType, tmp_path: Path) -> None:
    steps, width, batch = 4, 128, 64
    results = {dtype: list(tie_influence.train(dtype, steps, width, batch)) for dtype in tie_influence.DTYPES}
    assert all(step.inputs == 3 * width * batch for found in results.values() for step in found)
    # Of 0.1 million inputs, rounding to 8 bits makes some 0, rounding to 53 bits none.
    assert tie_influence.share(results["bfloat16"]) > 0
    assert tie_influence.share(results["float64"]) == 0
    for found in results.values():
        assert all(step.zeros or not step.influence for step in found)  # else it is not from ties
    zeros, exact = (sum(getattr(step, name) for step in results["bfloat16"]) for name in ("zeros", "exact"))
    assert exact < zeros / 4

    console = Console(width=140)
    with console.capture() as capture:
        console.print(tie_influence.table(results))
    assert all(dtype in capture.get() for dtype in tie_influence.DTYPES)
    tie_influence.plot(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0


def test_tie_influence_by_hand(tie_influence: ModuleType) -> None:
    """One hidden unit at 0: with slope 1 its weight gets a gradient, with slope 0 none."""
    with jax.enable_x64(True):
        params = [(np.array([[1.0], [-1.0]]), np.zeros(1)), (np.array([[1.0, 0.0]]), np.zeros(2))]
        params = jax.tree.map(jax.numpy.asarray, params)
        _, found = tie_influence.step(params, jax.numpy.array([[0.5, 0.5]]), jax.numpy.array([0]))
        found = jax.tree.map(float, found)
    assert (found["inputs"], found["zeros"], found["exact"]) == (1, 1, 1)
    # The logits are 0 and 0, so their gradient is (-1/2, 1/2), as is that of the second bias; that of the hidden unit
    # is -1/2, of its weights -1/4 each, of its bias -1/2.
    assert found["influence"] == pytest.approx(np.sqrt(2 / 16 + 1 / 4) / np.sqrt(1 / 2))
