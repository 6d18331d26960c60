"""The fixture `compare`: what pytest shows of a port that differs, and that nothing is imported when pytest starts."""

import os
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pytest_jaxclamp

ROOT = Path(__file__).parents[2]
CONFTEST = """
import sys
def pytest_sessionstart(session):
    assert session.config.pluginmanager.hasplugin("pytest_jaxclamp")
    print("at the start:", sorted({"jax", "torch", "jaxclamp", "interop"} & sys.modules.keys()))
"""
TESTS = """
import jax, numpy as np, torch
X = np.float32([-1, 0, 6, 7])
def test_right(compare): compare(jax.nn.relu6, torch.nn.functional.relu6, X).assert_agree()
def test_tied(compare): compare(jax.nn.hard_tanh, torch.nn.functional.hardtanh, X).assert_agree(allow=("ties",))
def test_wrong(compare): compare(jax.nn.relu6, torch.relu, X).assert_agree()
def test_probed(compare):
    compare(jax.nn.relu6, lambda x: torch.clamp(x, 0.0, 5.0), X[:2], probe=10).assert_agree()
"""


def test_a_port_that_differs_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the ports are in torch")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_port.py").write_text(TESTS)
    # The entry point is not asked for, as the installation of a checkout may be older than it.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "pytest_jaxclamp",
        "-s",
        str(tmp_path),
        f"--basetemp={tmp_path / 'temp'}",
    ]
    result = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    shown = result.stdout
    assert "at the start: []" in shown, shown + result.stderr
    assert "2 failed, 2 passed" in shown
    assert "AssertionError: relu6 (jax " in shown
    assert "value: port: 1 of 4 apart, absolute 1 at [3] (6 against 7)" in shown
    assert shown.count("- Captured comparison call -") == 2
    (case,) = tmp_path.rglob("case-0.npz")
    assert f"compare(..., case={str(case)!r}) has these inputs again." in shown
    assert "| value | 1 at [3] |" in shown


def test_pytest_finds_it() -> None:
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]["pytest11"]
    assert [*map(pkgutil.resolve_name, entry_points.values())] == [pytest_jaxclamp]
