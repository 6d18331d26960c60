"""The example `worked_cases`: its numbers are those worked by hand, and are what it prints."""

import ast
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.survey.test_parity import is_inclusive

# By the spelling: the native gradient, where clamps are inclusive, and the gradient of the wrapped op.
WORKED_CASES = {
    "relu(x)": ([0], [0]),
    "maximum(x, tensor(0.))": ([0.5], [0]),
    "clamp_min(x, 0.)": ([1], [0]),
    "clamp(x, min=0.)": ([1], [0]),
    "relu6(x)": ([0, 0], [0, 0]),
    "clamp(x, 0., 6.)": ([1, 1], [0, 0]),
    "hardtanh(x, -1., 1.)": ([0, 0], [0, 0]),
    "clamp(x, -1., 1.)": ([1, 1], [0, 0]),
    "clamp_max(x, 6.)": ([1], [0]),
    "clamp(a * b, 1., 5.)": ([[1, 2, 1, 0], [1, 2, 3, 0]], [[0, 2, 1, 0], [0, 2, 3, 0]]),
    "relu(x @ w1)": ([[932, 2376], [354, 904], [512, 1260]], [[932, 2376], [354, 904], [512, 1260]]),
    "clamp(x @ w1, min=0.)": ([[932, 2376], [354, 904], [512, 1298]], [[932, 2376], [354, 904], [512, 1260]]),
}


@pytest.fixture(scope="module")
def example(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("worked_cases")


@pytest.fixture(scope="module")
def worked_cases(example: ModuleType) -> Mapping[str, Any]:
    return {comparison.spelling: comparison for comparison in example.compare_cases()}


def test_the_worked_cases_are_those_recorded(worked_cases: Mapping[str, Any]) -> None:
    assert list(worked_cases) == list(WORKED_CASES)
    assert [c.title[:2] for c in worked_cases.values()] == ["1."] * 4 + [
        "2a",
        "2a",
        "2b",
        "2b",
        "2c",
        "3.",
        "4.",
        "4.",
    ]


@pytest.mark.parametrize("spelling", WORKED_CASES)
def test_worked_case_here(spelling: str, worked_cases: Mapping[str, Any]) -> None:
    assert worked_cases[spelling].wrapped.tolist() == WORKED_CASES[spelling][1]


@pytest.mark.parametrize("spelling", WORKED_CASES)
def test_worked_case_natively(spelling: str, worked_cases: Mapping[str, Any]) -> None:
    of_inclusive_clamps, ours = WORKED_CASES[spelling]
    expected = ours if spelling.startswith("clamp") and not is_inclusive() else of_inclusive_clamps
    assert worked_cases[spelling].unmodified.tolist() == expected


def test_the_network_of_the_fourth_case_by_hand(worked_cases: Mapping[str, Any]) -> None:
    """Backpropagation in NumPy, with the slope of relu and with that of an inclusive clamp."""
    x = np.array([[3, 2, 1], [1, 0, 2], [4, 1, 2], [0, 0, 1]])
    w1, w2 = np.array([[1, 2], [0, 1], [4, 0]]), np.array([[-1, 1], [-2, 3]])
    hidden = x @ w1
    upstream = 2 * (np.maximum(hidden, 0) @ w2 - 1) @ w2.T
    relu, clamp = x.T @ (upstream * (hidden > 0)), x.T @ (upstream * (hidden >= 0))
    assert (relu - clamp).tolist() == [[0, 0], [0, 0], [0, -38]]
    assert worked_cases["relu(x @ w1)"].unmodified.tolist() == relu.tolist()
    assert (
        worked_cases["relu(x @ w1)"].wrapped.tolist()
        == worked_cases["clamp(x @ w1, min=0.)"].wrapped.tolist()
        == relu.tolist()
    )
    assert worked_cases["clamp(x @ w1, min=0.)"].unmodified.tolist() == (clamp if is_inclusive() else relu).tolist()


def test_the_numbers_are_printed(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    example.main()
    printed = [re.split("  +", line.strip())[-3:] for line in capsys.readouterr().out.splitlines() if "]  " in line]
    expected = [(c.spelling, c.unmodified.tolist(), c.wrapped.tolist()) for c in example.compare_cases()]
    assert [(spelling, *map(ast.literal_eval, gradients)) for spelling, *gradients in printed] == expected
