"""The command `digits`: what it prints is what its training computes."""

import re
from pathlib import Path

import pytest

from interop.cli import digits_training as digits
from tests.project.test_command_line import run


def test_digits_prints_the_steps_and_plots_them(tmp_path: Path) -> None:
    file = tmp_path / "steps.png"
    result = run("digits", "--steps", "3", "--seed", "1", "--plot", str(file))
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


def test_digits_without_a_plot_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("digits", "--steps", "1")
    assert result.exit_code == 0
    assert "over 1 step" in result.stdout
    assert list(tmp_path.iterdir()) == []
