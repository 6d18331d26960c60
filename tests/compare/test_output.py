"""What `interop.compare` says: errors, tables, JSON, and the command."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import torch
from click.testing import CliRunner, Result
from torch.nn import functional

import interop
from interop import compare
from interop.__main__ import main
from tests.compare.clipped import AT, jax_clip, jax_hard, printed, torch_clamp
from tests.support.strict_json import strictly

F32 = np.float32


def torch_clip(x: torch.Tensor) -> torch.Tensor:
    """With half of the gradient at the bounds in every version of torch."""
    return torch.minimum(torch.maximum(x, torch.zeros_like(x)), torch.full_like(x, 6.0))


def test_assert_agree() -> None:
    compare(jax.nn.relu6, functional.relu6, AT).assert_agree()
    comparison = compare(jax_hard, torch_clip, AT)
    with pytest.raises(AssertionError) as raised:
        comparison.assert_agree()
    message = str(raised.value)
    assert message.startswith(str(comparison))
    assert "because of ties alone" in message
    assert (
        "  gradient[0]: ties: 2 of 5 apart, absolute 0.5 at [3] (1 against 0.5), relative 0.5 at [1], "
        "ulps 8.39e+06 at [1]; " in message
    )
    assert "\n  value" not in message  # it agrees
    assert message.endswith("To let that pass: assert_agree(allow=('ties', 'rounding')), on the command line --allow.")
    comparison.assert_agree(allow=("ties",))
    for allow in ("ties", ("port",), ("ties", "agrees")):
        with pytest.raises(ValueError, match=r"compare: allow=.* those that can be are \('ties', 'rounding'\)"):
            comparison.assert_agree(allow=allow)  # type: ignore[arg-type]
    comparison.assert_agree(atol=0.5)
    with pytest.raises(AssertionError):
        comparison.assert_agree(atol=0.4, rtol=0.0)
    comparison.assert_agree(rtol=0.5, atol=0.0)


def test_table_and_markdown() -> None:
    comparison = compare(jax_hard, torch_clip, AT)
    table = printed(comparison)
    assert comparison.verdict in table
    assert "gradient[0]  0.5 at [3]  0.5 at [1]  8.39e+06 at [1]  2 of 5  0               ties" in table
    title, _, verdict, _, headings, rule, value, gradient = comparison.to_markdown().splitlines()
    assert (
        title == f"**jax_hard (jax {jax.__version__}) against torch_clip ({interop.frameworks.torch.Torch.version})**"
    )
    assert verdict == comparison.verdict
    assert headings.count("|") == rule.count("|") == value.count("|") == gradient.count("|") == 8
    assert gradient == "| gradient[0] | 0.5 at [3] | 0.5 at [1] | 8.39e+06 at [1] | 2 of 5 | 0 | ties |"


def test_markdown_of_names_with_bars() -> None:
    markdown = compare(jnp.sin, lambda x: torch.sin(x), AT).to_markdown()
    named = compare(lambda d: {"a|b": jnp.sin(d["a|b"])}, lambda d: {"a|b": torch.sin(d["a|b"])}, {"a|b": AT})
    assert r"| value['a\|b'] |" in named.to_markdown()
    assert named.to_markdown().replace(r"\|", "").count("|") == markdown.count("|")


def test_json_has_a_stable_schema() -> None:
    """Whoever changes a name or a type here changes `SCHEMA` and docs/porting.md with it."""

    def shape(content: Any) -> Any:
        if isinstance(content, dict):
            return {name: shape(inner) for name, inner in content.items()}
        return [shape(inner) for inner in content] if isinstance(content, list) else type(content).__name__

    comparison = compare(jnp.sqrt, lambda x: torch.sqrt(x.abs()), F32([-1.0, 4.0]), rtol=0.25)
    content = strictly(comparison.to_json())
    side = {"name": "str", "framework": "str", "version": "str"}
    largest = {"amount": "float", "index": ["int"]}
    difference = {
        **dict.fromkeys(["absolute", "relative", "ulps"], largest),
        **{"beyond": "int", "size": "int", "numbers": ["float", "float"]},
    }
    (value, _) = leaves = content.pop("leaves")
    assert shape(content) == {
        **{"schema": "int", "first": side, "second": side, "agree": "bool", "verdict": "str"},
        **{"rtol": "float", "atol": "NoneType", "probe": "NoneType"},
    }
    assert (content["schema"], content["first"]["framework"], content["rtol"]) == (1, "jax", 0.25)
    assert (content["agree"], content["verdict"]) == (False, comparison.verdict)
    of_value = value["native"]
    assert (of_value["absolute"], of_value["numbers"]) == ({"amount": "inf", "index": [0]}, ["nan", 1.0])
    assert of_value["beyond"] == 1
    for leaf in leaves:
        apart = {name: leaf.pop(name) for name in ("native", "min_norm")}
        assert shape(leaf) == {"label": "str", "mismatch": "str", "finding": "str"}
        for found in apart.values():
            for name in ("absolute", "relative", "ulps"):
                found[name]["amount"] = float(found[name]["amount"])  # infinities are strings
            found["numbers"] = [*map(float, found["numbers"])]
            assert shape(found) == difference
    assert (value["label"], value["finding"]) == ("value", "port")
    only_here = compare(lambda x: {"y": jnp.sin(x)}, lambda x: {"z": torch.sin(x)}, AT)
    assert json.loads(only_here.to_json())["leaves"][0] | {"mismatch": ""} == {
        **{"label": "value['y']", "mismatch": "", "native": None, "min_norm": None, "finding": "port"}
    }


def test_long_lists_are_cut() -> None:
    several = {str(i): AT for i in range(7)}
    comparison = compare(
        lambda x: jax.tree.map(jax_clip, x), lambda x: {name: torch_clamp(x[name]) for name in x}, several
    )
    assert "gradient[0]['4'] and 2 more differ by convention alone" in comparison.verdict
    assert str(comparison).count("\n  gradient") == 7


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["compare", *arguments])


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module ``forms`` to import, and a file with arguments for its functions."""
    (tmp_path / "forms.py").write_text(
        "import jax.numpy as jnp, torch\n"
        "BOUND = 6.0\n"
        "def in_jax(x, w): return jnp.clip(x - w, 0.0, BOUND)\n"
        "def in_torch(x, w): return torch.clamp(x - w, 0.0, BOUND)\n"
        "def smooth(x, w): return torch.sub(x, w).clamp(0.0, BOUND) * 1.001\n"
        "def both(x, w): return (x - w).std()\n"
        "def of_tree(params, x): return jnp.clip(x - params['w'], 0.0, BOUND) + params['b'].astype('float32')\n"
        "def of_tree_in_torch(params, x): return torch.clamp(x - params['w'], 0.0, BOUND) + params['b'].float()\n"
        "def fails(x, w): raise TypeError('of its own')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    # Not in the order of the alphabet: the order of the file counts.
    np.savez(tmp_path / "inputs.npz", x=F32([0.0, 3.0]), a=F32([1.0, 1.0]))
    np.savez(tmp_path / "ties.npz", x=F32([1.0, 3.0]), a=F32([1.0, 1.0]))
    yield str(tmp_path / "inputs.npz")
    sys.modules.pop("forms", None)


def test_command(inputs: str) -> None:
    agreeing = run("forms:in_jax", "forms:in_torch", "--inputs", inputs)
    assert agreeing.exit_code == 0, agreeing.output
    assert "jax against torch: they agree." in agreeing.output
    assert "gradient[1]" in agreeing.output

    tied = ("forms:in_jax", "forms:in_torch", "--inputs", inputs.replace("inputs", "ties"))
    ties = run(*tied)
    assert ties.exit_code == 1
    assert "because of ties alone" in ties.output
    assert run(*tied, "--allow", "ties").exit_code == 0
    assert run(*tied, "--allow", "rounding").exit_code == 1
    assert run("forms:in_jax", "forms:smooth", "--inputs", inputs, "--allow", "ties").exit_code == 1

    named = run("forms:both", "forms:both", "--inputs", inputs, "--frameworks", "jax", "torch")
    assert named.exit_code == 1
    assert "jax against torch: they disagree, and not by convention alone" in named.output
    failed = run("forms:fails", "forms:in_torch", "--inputs", inputs)
    assert failed.exit_code == 2  # 1 would be that they disagree
    assert "TypeError: of its own" in failed.stderr
    assert "in fails\n" in failed.stderr  # the traceback
    assert "Usage" not in failed.stderr

    as_json = run("forms:in_jax", "forms:smooth", "--inputs", inputs, "--json")
    assert as_json.exit_code == 1
    content = json.loads(as_json.stdout)
    (largest,) = (leaf["native"]["absolute"] for leaf in content["leaves"] if leaf["label"] == "value")
    assert largest == {"amount": pytest.approx(0.002, rel=1e-3), "index": [1]}  # (3 - 1) * 0.001: the order held

    loose = run("forms:in_jax", "forms:smooth", "--inputs", inputs, "--rtol", "0.002", "--atol", "0")
    assert loose.exit_code == 0
    strict = run("forms:in_jax", "forms:smooth", "--inputs", inputs, "--rtol", "0", "--atol", "0.0005")
    assert strict.exit_code == 1
    roomy = run("forms:in_jax", "forms:smooth", "--inputs", inputs, "--rtol", "0", "--atol", "0.003")
    assert roomy.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("forms:in_jax forms:in_torch", "missing a required argument: 'x'; pass those to call it with."),
        ("forms:in_jax forms:absent --inputs FILE", "'forms:absent' is not found"),
        ("forms:in_jax nowhere:f --inputs FILE", "No module named 'nowhere'"),
        ("forms:in_jax forms/in_torch --inputs FILE", "write forms/in_torch:FUNCTION"),
        ("forms:in_jax forms:BOUND --inputs FILE", "'forms:BOUND' is a float"),
        ("forms:in_jax forms:in_torch --inputs absent.npz", "does not exist"),
        ("forms:in_jax forms:in_torch --inputs TEXT", "is not an npz, pt or safetensors file"),
        ("forms:in_jax forms:in_torch --inputs OBJECTS", "Object arrays cannot be loaded"),
        ("forms:in_jax forms.py: --inputs FILE", "write forms.py:FUNCTION"),
        ("forms:in_jax forms:in_torch --inputs FILE --save-case case.npz", "for what --probe draws"),
        ("forms:in_jax forms:in_torch --inputs FILE --rtol -1", "'--rtol'"),
        ("forms:in_jax forms:in_torch --inputs ONE", "f is in_jax(x, w), which does not take the arguments"),
        ("forms:in_jax forms:in_torch --inputs FILE --allow port", "'port' is not one of 'ties', 'rounding'"),
        ("forms:in_jax forms:in_torch --inputs FILE --frameworks jax numpy", "'numpy' is not one of 'jax', 'torch'"),
        ("forms:both forms:both --inputs FILE", "or --frameworks jax torch."),
        ("forms:in_jax forms:in_torch --inputs SAFE", "safe.safetensors': "),
    ],
)
def test_command_on_bad_usage(inputs: str, arguments: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("text")
    np.savez(tmp_path / "objects.npz", np.array([None]))
    np.savez(tmp_path / "one.npz", F32([1.0]))
    (tmp_path / "safe.safetensors").write_text("text")
    files = {"FILE": inputs, "SAFE": str(tmp_path / "safe.safetensors")} | {
        name.upper(): str(tmp_path / f"{name}.npz") for name in ("text", "objects", "one")
    }
    result = run(*(files.get(argument, argument) for argument in arguments.split()))
    assert result.exit_code == 2, result.output
    # click breaks lines and draws a box around them
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize("kind", ["safetensors", "pt", "pth"])
def test_trees_of_parameters_in_files(kind: str, inputs: str, tmp_path: Path) -> None:
    parameters = {"w": F32([1.0, 1.0]), "b": np.array([0.5, 2.0], jnp.bfloat16)}
    names = [f"parameters.{kind}", "x.npz"]
    if kind == "safetensors":
        safetensors.numpy.save_file(parameters, tmp_path / names[0])
    else:
        tensors = {"w": torch.nn.Parameter(torch.ones(2)), "b": torch.tensor([0.5, 2.0], dtype=torch.bfloat16)}
        torch.save([tensors, torch.tensor([1.0, 3.0])] if kind == "pth" else tensors, tmp_path / names[0])
    np.savez(tmp_path / "x.npz", F32([1.0, 3.0]))
    files = [f"--inputs={tmp_path / name}" for name in (names[:1] if kind == "pth" else names)]
    result = run("forms:of_tree", "forms:of_tree_in_torch", *files, "--json")
    found = {leaf["label"]: leaf["finding"] for leaf in json.loads(result.stdout)["leaves"]}
    # The gradient of b in bfloat16 shows that the dtype held.
    assert found == {"value": "agrees", "gradient[0]['b']": "agrees", "gradient[0]['w']": "ties", "gradient[1]": "ties"}
    ties = CliRunner().invoke(main, ["ties", "forms:of_tree", *files, "--json"])
    assert [line["tied"] for line in json.loads(ties.stdout)["lines"]] == [1]


def test_safetensors_may_be_missing(monkeypatch: pytest.MonkeyPatch, inputs: str, tmp_path: Path) -> None:
    (tmp_path / "parameters.safetensors").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    result = run("forms:in_jax", "forms:in_torch", "--inputs", str(tmp_path / "parameters.safetensors"))
    assert result.exit_code == 2
    assert "pip install 'jaxclamp[safetensors]'" in result.output
