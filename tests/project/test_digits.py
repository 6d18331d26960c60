"""The example `digits`: spellings with one convention train alike, and what it prints and draws is what it computes."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from tests.survey.test_parity import is_inclusive


@pytest.fixture(scope="module")
def digits(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("digits")


@pytest.fixture(scope="module")
def training(digits: ModuleType) -> Sequence[Any]:
    return list(digits.train(steps=5, seed=0))


STEPS = range(5)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("other", ["jaxclamp clamp", "torch relu"])
def test_the_spellings_with_one_convention_train_alike(step: int, other: str, training: Sequence[Any]) -> None:
    assert training[step].difference("interop clamp", other) < 1e-12
    losses = {name: result.loss for name, result in training[step].variants.items()}
    assert losses["interop clamp"] == pytest.approx(losses[other], abs=1e-12)


@pytest.mark.parametrize("step", STEPS)
def test_native_clamp_and_relu_train_apart_where_their_conventions_differ(step: int, training: Sequence[Any]) -> None:
    apart = training[step].difference("torch clamp", "torch relu")
    assert apart > 1e-4 if is_inclusive() else apart < 1e-12


def test_training_descends(digits: ModuleType, training: Sequence[Any]) -> None:
    for name in digits.VARIANTS:
        losses = [step.variants[name].loss for step in training]
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < losses[0] - 0.1


def recount(weights: Mapping[str, NDArray[np.float64]], pixels: NDArray[np.float64]) -> int:
    """The ties of one step: weights on a grid of 1/16, so that every sum is exact in float64."""
    q = {name: np.round(weight * 16) / 16 for name, weight in weights.items()}
    first = pixels @ q["w0"] + q["b0"]
    second = np.maximum(first, 0) @ q["w1"] + q["b1"]
    return int((first == 0).sum() + (second == 0).sum() + (second == 6).sum())


def test_the_ties_of_the_first_step_are_counted_right(monkeypatch: pytest.MonkeyPatch, digits: ModuleType) -> None:
    counts: dict[str, int] = {}

    def counting(name: str, variant: Callable[..., Any]) -> Callable[..., Any]:
        def run(weights: Mapping[str, NDArray[np.float64]], pixels: NDArray[np.float64], labels: Any) -> Any:
            counts[name] = recount(weights, pixels)
            return variant(weights, pixels, labels)

        return run

    variants = {name: counting(name, variant) for name, variant in digits.VARIANTS.items()}
    monkeypatch.setattr(digits, "VARIANTS", variants)
    (step,) = digits.train(steps=1, seed=0)
    assert {name: result.ties for name, result in step.variants.items()} == counts
    assert len(set(counts.values())) == 1, "the variants start from other weights"
    assert counts["torch clamp"] > 0


def test_training_is_determined_by_the_seed(digits: ModuleType) -> None:
    first, again, other = (next(digits.train(steps=1, seed=seed)) for seed in (0, 0, 1))
    for name in digits.VARIANTS:
        for key, gradient in first.variants[name].gradients.items():
            np.testing.assert_array_equal(again.variants[name].gradients[key], gradient)
        assert first.variants[name].loss == again.variants[name].loss != other.variants[name].loss


def test_exact_zero_is_drawn_as_zero_and_each_spelling_in_one_colour(
    digits: ModuleType, training: Sequence[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = []
    monkeypatch.setattr(digits.Figure, "savefig", lambda figure, file: figures.append(figure))
    digits.plot_steps(training[:3], tmp_path / "steps.png")
    upper, lower = figures[0].axes
    drawn = {line.get_label(): line for line in upper.lines}
    assert list(drawn["interop clamp (exactly 0)"].get_ydata()) == [0, 0, 0]
    ticks = zip(upper.get_yticks(), (label.get_text() for label in upper.get_yticklabels()), strict=True)
    assert next(ticks) == (0, "exactly 0")
    assert upper.get_ylim()[0] < 0
    colours = {line.get_label(): line.get_color() for line in lower.lines}
    assert len(set(colours.values())) == len(digits.VARIANTS)
    for label, line in drawn.items():
        assert line.get_color() == colours[label.removesuffix(" (exactly 0)")]


def test_the_steps_are_printed_and_plotted(tmp_path: Path, digits: ModuleType) -> None:
    file = tmp_path / "steps.png"
    result = CliRunner().invoke(digits.main, ["--steps", "3", "--seed", "1", "--plot", str(file)])
    assert result.exit_code == 0
    assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    first, *_, last = digits.train(3, seed=1)
    cells = [re.split("  +", line.strip()) for line in result.stdout.splitlines()]
    table = {line[0]: line[1:] for line in cells}
    assert [name for name in table if name.isdigit()] == ["0", "1", "2"]
    assert table["0"] == [f"{first.difference(*pair):.1e}" for pair in digits.PAIRS] + [
        str(first.variants[digits.PAIRS[0][0]].ties)
    ]
    for name in digits.VARIANTS:
        assert table[name][:2] == [f"{step.variants[name].loss:.4f}" for step in (first, last)]


def test_without_a_plot_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: ModuleType) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(digits.main, ["--steps", "1"])
    assert result.exit_code == 0
    assert "over 1 step" in result.stdout
    assert list(tmp_path.iterdir()) == []
