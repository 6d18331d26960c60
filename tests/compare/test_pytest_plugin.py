"""The plugin for pytest: what it shows of a port that differs and of a wrong gradient, and that it imports nothing."""

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
PORTS = """
import jax, numpy as np, pytest, torch
from jax import numpy as jnp
X = np.float32([-1, 0, 6, 7])
def test_right(jaxclamp_compare): jaxclamp_compare(jax.nn.relu6, torch.nn.functional.relu6, X).assert_agree()
def test_tied(jaxclamp_compare):
    jaxclamp_compare(jax.nn.hard_tanh, torch.nn.functional.hardtanh, X).assert_agree(allow=("ties",))
def test_wrong(jaxclamp_compare): jaxclamp_compare(jax.nn.relu6, torch.relu, X).assert_agree()
def test_probed(jaxclamp_compare):
    jaxclamp_compare(jax.nn.relu6, lambda x: torch.clamp(x, 0.0, 5.0), X[:2], probe=10).assert_agree()
def test_former_name(compare): compare(jax.nn.relu, torch.relu, X).assert_agree()
"""
GRADIENTS = """
import jax, numpy as np, pytest, torch
from jax import numpy as jnp
X = np.float64([-1, 0, 6, 7])
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, cotangent): return 2 * cotangent
@jax.custom_jvp
def thrice(x): return x * x
thrice.defjvp(lambda primals, tangents: (primals[0] ** 2, 3 * primals[0] * tangents[0]))

@pytest.mark.gradients(inputs=(X,))
def right_in_jax(x): return jnp.clip(x, 0.0, 6.0)
@pytest.mark.gradients(inputs=lambda: (torch.tensor(X, requires_grad=True),), check_forward_ad=True)
def right_in_torch(x): return torch.clamp(x, 0.0, 6.0)
@pytest.mark.gradients(inputs=(X,))
def test_wrong_in_jax(x): return thrice(x)
@pytest.mark.gradients(inputs=(torch.tensor(X, requires_grad=True),))
def wrong_in_torch(x): return Doubled.apply(x)
@pytest.mark.gradients(inputs=(X,), eps=-1.0)
def misused(x): return x
def test_other(): pass
"""


LAZY = """
import pytest
def absent(): raise RuntimeError("inputs are made when they are needed")
@pytest.mark.gradients(inputs=absent)
def marked(x): return x
@pytest.mark.gradients(inputs=absent)
def test_marked(x): return x
def test_other(): pass
"""


def run(folder: Path, tests: dict[str, str], *options: str) -> str:
    """The output of pytest with the plugin, in a process of its own."""
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in tests.items():
        (folder / name).write_text(text)
    # The entry point is not asked for, as the installation of a checkout may be older than it.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plugin = ["-p", "pytest_jaxclamp", "--strict-markers", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugin, "-s", str(folder), f"--basetemp={folder / 'temp'}", *options]
    result = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert "at the start: []" in result.stdout, result.stdout + result.stderr
    return result.stdout


def test_ports_and_gradients_that_are_wrong_are_shown(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the ports are in torch")
    tests = {"test_ports.py": PORTS, "test_gradients.py": GRADIENTS}
    shown = run(tmp_path, tests, "--gradients", "-W", "default::DeprecationWarning")
    assert "5 failed, 6 passed" in shown
    assert "DeprecationWarning: the fixture compare is called jaxclamp_compare now" in shown
    assert "AssertionError: relu6 (jax " in shown
    assert "value: port: 1 of 4 apart, absolute 1 at [3] (6 against 7)" in shown
    assert shown.count("- Captured comparison call -") == 2
    (case,) = tmp_path.rglob("case-0.npz")
    assert f"jaxclamp_compare(..., case={str(case)!r}) has these inputs again." in shown
    assert "| value | 1 at [3] |" in shown
    assert "_ gradients of test_wrong_in_jax _" in shown
    assert "_ gradients of wrong_in_torch _" in shown
    assert "check_grads: " in shown
    assert "gradcheck: " in shown
    assert "ValueError: check_grads: eps is -1.0" in shown


def test_gradients_are_left_out_unless_asked(tmp_path: Path) -> None:
    assert "1 passed, 2 deselected" in run(tmp_path, {"test_it.py": LAZY})
    shown = run(tmp_path, {"test_it.py": LAZY}, "--gradients")
    assert "2 failed, 1 passed" in shown
    assert "RuntimeError: inputs are made when they are needed" in shown


ODD = """
from unittest.mock import call
import pytest, test_marked
class Unready:
    def __getattribute__(self, name): raise RuntimeError("outside of a request")
unready = Unready()
def test_odd(): assert call
"""


def test_objects_with_any_attribute_or_none_are_no_functions_with_a_mark(tmp_path: Path) -> None:
    marked = "import pytest\npytestmark = [pytest.mark.gradients(inputs=())]\ndef test_it(): pass\n"
    shown = run(tmp_path, {"test_odd.py": ODD, "test_marked.py": marked, "test_lazy.py": LAZY})
    assert "3 passed, 2 deselected" in shown


def test_a_mark_needs_inputs(tmp_path: Path) -> None:
    marks = {"none": "", "by_position": "1", "other": "atol=1.0"}
    tests = {
        f"test_{name}.py": f"import pytest\n@pytest.mark.gradients({mark})\ndef f(x): return x\n"
        for name, mark in marks.items()
    }
    shown = run(tmp_path, tests)
    assert shown.count("\nf: pytest.mark.gradients takes keywords, and needs inputs=(...,).") == len(marks)


def test_pytest_finds_it() -> None:
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]["pytest11"]
    assert [*map(pkgutil.resolve_name, entry_points.values())] == [pytest_jaxclamp]
