"""The command `ties`: what it counts in functions of either framework, their influence, and bad usage."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from interop.__main__ import main
from tests.support.strict_json import strictly


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["ties", *arguments])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("in_jax", [(8, "clamp", "", 6, 2), (9, "abs", "", 6, 2), (9, "select", "", 6, 0)]),
        ("network", [(4, "abs", "Network", 6, 2), (4, "hardtanh", "bounded", 6, 2)]),
    ],
)
def test_ties(function: str, expected: list[tuple[Any, ...]], inputs: str) -> None:
    """x * w[0] is -2, 0, 2, 4, 6 and a little more than 6."""
    result = run(f"tying:{function}", "--inputs", inputs, "--json")
    assert result.exit_code == 0, result.output
    lines = strictly(result.stdout)["lines"]
    assert {Path(line["file"]).name for line in lines} == {"tying.py"}
    found = [tuple(line[key] for key in ("number", "op", "module", "elements", "tied")) for line in lines]
    assert found == expected


@pytest.mark.parametrize("function", ["torch:relu", "jaxclamp:clamp", "tying:network.bounded"])
def test_a_function_of_a_library_is_in_the_line_that_names_it(function: str, tmp_path: Path, inputs: str) -> None:
    np.savez(tmp_path / "one.npz", x=np.float32([0, 3]))
    result = run(function, "--inputs", str(tmp_path / "one.npz"))
    assert result.exit_code == 0, result.output
    assert f"\n{function}:1 " in result.output


@pytest.mark.parametrize(("framework", "op"), [("jax", "clamp"), ("torch", "clip")])
def test_ties_in_the_framework_that_is_named(framework: str, op: str, inputs: str) -> None:
    """The method is jax.numpy's clip, which calls clamp, or torch's."""
    result = run("tying:in_both", "--inputs", inputs, "--framework", framework, "--json")
    assert result.exit_code == 0, result.output
    (line,) = strictly(result.stdout)["lines"]
    assert (line["op"], line["tied"]) == (op, 2)


def test_ties_as_a_table(inputs: str) -> None:
    result = run("tying:in_jax", "--inputs", inputs)
    assert result.exit_code == 0, result.output
    assert "4 of 12 elements on a tie" in result.output
    (row,) = (line for line in result.output.splitlines() if "select (suspect)" in line)
    assert re.split("  +", row.strip())[1:] == ["select (suspect)", "6", "0", "0.00%"]


@pytest.mark.parametrize(("function", "squares"), [("in_jax", (52, 68)), ("network", (13, 17))])
def test_influence_of_ties(function: str, squares: tuple[int, int], inputs: str) -> None:
    """By hand: at 2 and 4 dx is 2 and dw 1 and 2, at 6, if inclusive, 2 and 3; twice that through the select of in_jax.

    At 0, abs lets nothing pass under any convention.
    """
    result = run(f"tying:{function}", "--inputs", inputs, "--influence", "--json")
    assert result.exit_code == 0, result.output
    found = strictly(result.stdout)["influence"]
    assert [found["norm"] ** 2, found["gradient_norm"] ** 2] == pytest.approx(squares)


def test_influence_on_parameters(inputs: str, tmp_path: Path) -> None:
    """Of the parameters, both on a bound, and of x, two on one, torch lets pass 2 each; min_norm only of 2 within."""
    result = run("tying:trained", "--inputs", inputs, "--influence", "--json")
    assert result.exit_code == 0, result.output
    report = strictly(result.stdout)
    assert report["lines"][0]["tied"] == 4
    assert [report["influence"]["norm"] ** 2, report["influence"]["gradient_norm"] ** 2] == pytest.approx((16, 8))
    assert report["differentiated"] == "the inputs [0], [1] and 1 parameters (2 numbers)"
    np.savez(tmp_path / "integers.npz", x=np.array([2, 8]), a=np.array([3]))
    result = run("tying:trained", "--inputs", str(tmp_path / "integers.npz"), "--influence")
    assert "with respect to 1 parameters (2 numbers), but not [0] (int64), [1] (int64)," in in_words(result)


def test_what_has_no_influence_to_weigh_is_said(inputs: str) -> None:
    result = run("tying:of_held", "--inputs", inputs, "--influence")
    assert "but not what the function holds (1 arrays; pass them as inputs)," in in_words(result)
    result = run("tying:stepping", "--inputs", inputs, "--influence")
    assert result.exit_code == 2
    assert "pass one that computes the loss alone" in in_words(result)


def in_words(result: Any) -> str:
    """The output, whose lines are broken."""
    return " ".join(result.output.split())


@pytest.mark.parametrize("function", ["in_jax", "network"])
def test_no_influence(function: str, inputs: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "integers.npz", x=np.array([2, 3]), a=np.array([3]))
    result = run(f"tying:{function}", "--inputs", str(tmp_path / "integers.npz"), "--influence")
    assert result.exit_code == 2
    assert "no array of floats" in result.output
    np.savez(tmp_path / "outside.npz", x=np.array([-2.0, 8.0]), a=np.array([3.0]))
    result = run(f"tying:{function}", "--inputs", str(tmp_path / "outside.npz"), "--influence", "--json")
    assert strictly(result.stdout)["influence"] == {"norm": 0.0, "gradient_norm": 0.0, "relative": 0.0}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("tying:absent", "'tying:absent' is not found"),
        ("tying.py", "'tying.py' names no function; write tying.py:FUNCTION."),
        ("nowhere.py:absent", "'nowhere.py:absent' is not found ([Errno 2] No such file"),
        ("tying:in_neither", "in_neither takes neither JAX arrays"),
        ("tying:of_one", "MODULE:FUNCTION is of_one(x), which does not take the arguments: too many"),
        ("tying:Network", "MODULE:FUNCTION is Network(), which does not take the arguments: too many"),
        ("tying:in_both", "in_both runs in JAX and in torch, as operators and methods do; name the one"),
    ],
)
def test_ties_on_bad_usage(function: str, message: str, inputs: str) -> None:
    result = run(function, "--inputs", inputs)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())  # click breaks lines


@pytest.mark.usefixtures("inputs")
def test_arguments_of_a_module_are_those_of_its_forward() -> None:
    result = run("tying:network")
    assert result.exit_code == 2
    assert "MODULE:FUNCTION is Network(x, w), which does not take the arguments: missing" in in_words(result)


@pytest.mark.parametrize("ending", ["", ".py"])
@pytest.mark.parametrize("kind", ["ModuleNotFoundError", "AttributeError", "OSError"])
def test_a_module_that_fails_says_where(
    kind: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: str
) -> None:
    module = f"failing_by_{kind}{ending.strip('.')}"  # a name for each, as a file that fails stays in sys.modules
    (tmp_path / f"{module}.py").write_text(f"import os\nraise {kind}('of the module')")
    monkeypatch.chdir(tmp_path)
    result = run(f"{module}{ending}:f", "--inputs", inputs)
    assert result.exit_code == 2
    assert f'{module}.py", line 2, in <module>' in result.stderr
    assert f"{kind}: of the module" in result.stderr
    assert "Usage" not in result.stderr


@pytest.mark.parametrize("returned", ["loss", "loss.item(), 'loss'"])
def test_a_step_of_training_is_counted_where_it_begins(returned: str, tmp_path: Path) -> None:
    """Finding out in which framework it runs takes steps, too, which leave the weights as they are."""
    file = tmp_path / "steps.py"
    file.write_text(f"""
import torch
weight = torch.nn.Parameter(torch.zeros(2))
optimizer = torch.optim.SGD([weight], 1.0)
def step():
    loss = (weight.abs() + weight).sum()
    loss.backward()
    optimizer.step()
    return {returned}
""")
    result = run(f"{file}:step", "--framework", "torch", "--json")
    assert [(line["op"], line["tied"]) for line in strictly(result.stdout)["lines"]] == [("abs", 2)]


def test_status_2_where_the_function_raises(inputs: str) -> None:
    result = run("tying:raising", "--inputs", inputs)
    assert result.exit_code == 2
    assert "in raising\n" in result.stderr  # the traceback
    assert "ValueError: of the function" in result.stderr
    assert "Usage" not in result.stderr
