"""Inputs that `interop.compare` draws: what they find and what not, how they shrink, and how a file keeps them."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional

from interop import Comparison, Probe, Recording, compare, record
from interop.__main__ import main
from interop.comparison.probe import Probed, _drawn, search
from interop.frameworks.jax import Jax
from interop.frameworks.torch import Torch

F32 = np.float32
GIVEN = F32([1, 2])


def bound_5(x: torch.Tensor) -> torch.Tensor:
    return torch.clamp(x, 0.0, 5.0)


def found(comparison: Comparison) -> list[tuple[str, tuple[int, ...], float, float]]:
    assert comparison.probed is not None
    assert comparison.probed.case is not None
    return [(change.label, change.index, change.number, change.given) for change in comparison.probed.case.changes]


def test_a_bound_that_no_given_input_exceeds() -> None:
    assert compare(jax.nn.relu6, bound_5, GIVEN).agree
    comparison = compare(jax.nn.relu6, bound_5, GIVEN, probe=20)
    ((label, index, number, given),) = found(comparison)
    assert (label, number) == ("[0]", 6.0)
    assert {5.0, 6.0} <= set(comparison.probed.bounds)  # type: ignore[union-attr]
    assert "they disagree, and not by convention alone: under min_norm too they differ in value" in comparison.verdict
    draw = comparison.probed.case.draw  # type: ignore[union-attr]
    says = f"Found by draw {draw} of seed 0, with [0]{list(index)} = 6 in place of {given:.0f}."
    assert comparison.verdict.endswith(says)
    assert str(compare(jax.nn.relu6, bound_5, GIVEN, probe=20).probed) == str(comparison.probed)
    (value, _) = comparison.leaves
    assert value.unmodified is not None
    assert value.unmodified.numbers == (6.0, 5.0)
    summary = json.loads(comparison.to_json())["probe"]
    assert summary["case"] == {
        "draw": draw,
        "changes": [{"label": "[0]", "index": list(index), "number": 6.0, "given": given}],
    }
    assert {name: type(value) for name, value in summary.items()} == {
        **{"draws": int, "seed": int, "nonfinite": bool, "bounds": list, "compared": int, "case": dict}
    }


@pytest.mark.thorough
def test_a_bound_behind_a_layer() -> None:
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(4, 3)).astype(F32) / 4, rng.normal(size=(8, 4)).astype(F32)
    comparison = compare(
        lambda w, x: jnp.clip(x @ w, 0.0, 6.0).mean(), lambda w, x: bound_5(x @ w).mean(), w, x, probe=20
    )
    assert "not by convention alone" in comparison.verdict
    (change,) = found(comparison)
    assert change[2] == int(change[2])


def test_functions_that_agree() -> None:
    comparison = compare(jnp.tanh, torch.tanh, GIVEN, probe=Probe(20, seed=3, nonfinite=True))
    assert comparison.agree
    assert comparison.verdict == ("jax against torch: they agree. At 20 inputs drawn with seed 3 nothing else differs.")
    assert json.loads(comparison.to_json())["probe"]["case"] is None


def test_inputs_are_moved_onto_bounds_that_were_seen() -> None:
    """On no other numbers are there ties: the bounds are no integers."""
    at_bound = compare(lambda x: jnp.clip(x, 0.3, 4.7), lambda x: functional.hardtanh(x, 0.3, 4.7), GIVEN, probe=40)
    ((label, _, number, _),) = found(at_bound)
    assert (label, number) in [("[0]", float(F32(bound))) for bound in (0.3, 4.7)]
    assert "because of ties alone" in at_bound.verdict
    at_bound.assert_agree(allow=("ties",))


def test_bounds_that_are_seen() -> None:
    arrays = {"x": GIVEN}
    for function, bounds in (
        (lambda given: torch.clamp(given["x"], 0.25, max=torch.tensor(6.0)), {0.0, 0.25, 6.0}),
        (lambda given: given["x"].clamp_(-7), {-7.0, 0.0}),
        (lambda given: functional.hardswish(given["x"]), {-3.0, 3.0}),  # without numbers in its call
        (lambda given: torch.where(given["x"] > 1.5, given["x"], 0.125), {0.125, 1.5}),
        (lambda given: torch.clip(torch.max(given["x"], torch.tensor(0.25)), max=6.5), {0.25, 6.5}),
        (lambda given: torch.less_equal(given["x"], 4.5), {4.5}),
        (lambda given: given["x"].sum(dim=0) * 17.0, set()),
    ):
        assert Torch().bounds(function, arrays) >= bounds
        assert 17.0 not in Torch().bounds(function, arrays)
    for in_jax, bounds in (
        (lambda given: jnp.clip(given["x"], 0.25, 6.5), {0.25, 6.5}),
        (lambda given: jax.nn.relu6(given["x"]), {0.0, 6.0}),
        (lambda given: jax.lax.cond(given["x"][0] > 2.5, jnp.abs, jax.nn.hard_tanh, given["x"]), {-1.0, 1.0, 2.5}),
    ):
        assert Jax().bounds(in_jax, arrays) >= {float(F32(bound)) for bound in bounds}
    weights, least = jnp.array([1.5, 2.5]), F32(-np.inf)  # arrays are data more often than bounds
    assert Jax().bounds(lambda given: jnp.maximum(given["x"] * weights, least) + 3.5, arrays) == {3.5}


def test_ties_as_given_do_not_hide_a_bug() -> None:
    comparison = compare(lambda x: jnp.clip(x, 0.0, 6.0), bound_5, F32([0.0, 1.0]), probe=10)
    assert comparison.leaves[0].finding == "port"
    tied = compare(jnp.abs, torch.abs, F32([0.0, 1.0]), probe=10)
    assert tied.verdict.endswith("At 10 inputs drawn with seed 0 nothing else differs.")
    assert tied.leaves[1].finding == "ties"


@pytest.mark.thorough
def test_rounding_is_not_found() -> None:
    """1e6 + x is exact in float32 for the numbers that are given, and rounds others; float64 has room for both."""
    x = F32([0.5, 1.0])
    comparison = compare(lambda x: (x + 1e6) - jnp.float32(1e6), lambda x: torch.mul(x, 1.0), x, probe=8)
    assert comparison.agree
    # Of a formula that overflows, float64 only moves the place.
    overflow = compare(jax.nn.softplus, lambda x: torch.log1p(torch.exp(x)), F32([8.0, 9.0]), probe=20)
    assert found(overflow)[0][2] == 89.0


def test_numbers_that_are_not_finite_are_drawn_on_request() -> None:
    def skips_nan(x: torch.Tensor) -> torch.Tensor:
        return torch.fmax(x, torch.tensor(0.5))

    def takes_nan(x: torch.Tensor) -> torch.Tensor:
        return torch.maximum(x, torch.tensor(0.5))

    with_nan, without = (
        compare(takes_nan, skips_nan, GIVEN, probe=Probe(40, nonfinite=nonfinite)) for nonfinite in (True, False)
    )
    assert np.isnan(found(with_nan)[0][2])
    assert with_nan.leaves[0].finding == "port"
    assert without.leaves[0].finding == "agrees"


def test_a_draw_at_which_a_function_raises_is_passed_over() -> None:
    def of_small(x: torch.Tensor) -> torch.Tensor:
        if x.abs().max() > 5.0:
            raise OverflowError
        return torch.relu(x)

    comparison = compare(lambda x: jax.nn.relu(x), of_small, GIVEN, probe=8)
    probed = comparison.probed
    assert probed is not None
    assert 0 < probed.compared < 8
    assert str(probed).endswith(f"At {8 - probed.compared} more a function raised.")


def test_a_difference_as_given_leaves_nothing_to_draw() -> None:
    comparison = compare(jax.nn.relu6, bound_5, F32([5.5]), probe=20)
    assert comparison.probed is None
    assert json.loads(comparison.to_json())["probe"] is None


def sought(given: Mapping[str, Any], severity: Callable[[Mapping[str, Any]], int | None], **settings: Any) -> Probed:
    return search(given, [0.0, 6.0], Probe(**settings), severity, 1)


def test_what_does_not_matter_is_put_back() -> None:
    """Two numbers matter, of 5000 in two arrays; how many calls that took is bounded."""
    given = {"[0]": np.zeros((50, 40), F32), "[1]": np.zeros(3000, np.float16), "[2]": np.arange(3)}
    calls = []

    def severity(arrays: Mapping[str, Any]) -> int:
        calls.append(None)
        return 3 * bool(arrays["[0]"][3, 7] != 0 and arrays["[1]"][2999] > 2)

    probed = sought(given, severity, draws=100)
    assert probed.case is not None
    found = [(change.label, change.index, abs(change.number)) for change in probed.case.changes]
    assert found == [("[0]", (3, 7), 1.0), ("[1]", (2999,), 3.0)]
    assert len(calls) < 600
    changed = {label: np.flatnonzero(array != given[label]).size for label, array in probed.case.arrays.items()}
    assert changed == {"[0]": 1, "[1]": 1, "[2]": 0}
    assert {label: array.dtype for label, array in probed.case.arrays.items()} == {
        label: array.dtype for label, array in given.items()
    }


def test_a_case_that_needs_all_its_numbers_stays() -> None:
    given = {"[0]": np.ones(100, F32)}
    probed = sought(given, lambda arrays: 3 * bool((arrays["[0]"] != 1).all()), draws=20)
    assert probed.case is not None
    assert len(probed.case.changes) == 100
    assert str(probed.case) == "100 numbers changed in [0]"


def test_the_worst_draw_is_found() -> None:
    given = {"[0]": np.ones(3, F32)}
    draws = [tuple(draw["[0]"].tolist()) for draw in _drawn(given, [0.0, 6.0], Probe(20))]
    severities: dict[Any, int | None] = {draws[0]: 0, draws[1]: 1, draws[2]: None, draws[5]: 3}

    def severity(arrays: Mapping[str, Any]) -> int | None:
        return severities.get(tuple(arrays["[0]"].tolist()), 1)

    probed = sought(given, severity, draws=20)
    assert (probed.case.draw if probed.case else None, probed.compared) == (5, 5)
    del severities[draws[5]]
    probed = sought(given, severity, draws=20)
    assert (probed.case.draw if probed.case else None, probed.compared) == (1, 19)


def test_draws() -> None:
    given = {"[0]": np.full((20, 20), 1e-3, F32), "[1]": np.array([7, 8]), "[2]": np.zeros((0, 3), F32)}
    draws, again, others = ([*_drawn(given, [0.25, 9.0], Probe(60, seed, nonfinite=True))] for seed in (0, 0, 1))
    for one, other in zip(draws, again, strict=True):
        assert one["[0]"].tobytes() == other["[0]"].tobytes()
        assert one["[1]"] is given["[1]"]  # integers stay as they are
        assert one["[2]"].shape == (0, 3)
        assert one["[0]"].dtype == F32
    # A draw onto a bound may change nothing, or all to the same numbers.
    assert sum(a["[0]"].tobytes() == b["[0]"].tobytes() for a, b in zip(draws, others, strict=True)) < 3
    every = 10
    scales = [round(np.log10(draws[i]["[0]"].std() / 1e-3)) for i in (1, 3, 5, 7)]
    assert scales == [0, 1, 2, -1]
    assert all((draw["[0]"] == np.rint(draw["[0]"])).all() for draw in draws[::every])
    onto = [np.isin(draws[i]["[0]"], [0.25, 9.0]).sum() for i in range(60) if i % every in (2, 4, 6, 8)]
    assert min(onto) < 10
    assert max(onto) > 100
    assert all((~np.isfinite(draw["[0]"])).any() == (i % every == 9) for i, draw in enumerate(draws))
    assert any(np.isnan(draw["[0]"]).any() for draw in draws)
    assert any(np.isinf(draw["[0]"]).any() for draw in draws)


def of_tree_in_jax(params: Any, x: Any, rows: Any, *, scale: Any) -> Any:
    return jax.nn.relu6(params["w"][rows] * x * scale)


def of_tree_in_torch(params: Any, x: Any, rows: Any, *, scale: Any) -> Any:
    return bound_5(params["w"][rows] * x * scale)


TREE = ({"w": np.ones(3, jnp.bfloat16)}, np.ones((), jnp.bfloat16), np.array([2, 0]))


def test_a_case_is_kept_in_a_file(tmp_path: Path) -> None:
    settings = {"scale": np.ones((), jnp.bfloat16)}
    comparison = compare(of_tree_in_jax, of_tree_in_torch, *TREE, **settings, probe=10)
    probed = comparison.probed
    assert probed is not None
    assert probed.case is not None
    probed.case.save(tmp_path / "case.npz")
    again = compare(of_tree_in_jax, of_tree_in_torch, *TREE, **settings, case=tmp_path / "case.npz")
    assert again.leaves == comparison.leaves
    assert again.leaves[0].finding == "port"
    with pytest.raises(
        ValueError, match=r"case=.*case.npz' has arrays as .*'scale'.*, and the arguments have them as \["
    ):
        compare(of_tree_in_jax, of_tree_in_torch, *TREE, scale=1.0, case=tmp_path / "case.npz")
    with pytest.raises(ValueError, match=r"case.npz' holds inputs, but no recording"):
        Recording.load(tmp_path / "case.npz")
    record(jnp.sin, GIVEN).save(tmp_path / "recording.npz")
    with pytest.raises(ValueError, match=r"recording.npz' holds a recording, but no inputs"):
        compare(jnp.sin, torch.sin, GIVEN, case=tmp_path / "recording.npz")


def test_bad_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, error, message in (
        ({"draws": 0}, ValueError, "Probe: draws is 0; pass an integer from 1 on"),
        ({"seed": -1}, ValueError, "Probe: seed is -1; pass an integer from 0 on"),
        ({"draws": 2.0}, TypeError, r"Probe: draws is 2\.0, a float; pass an integer"),
    ):
        with pytest.raises(error, match=message):
            Probe(**settings)  # type: ignore[arg-type]
    for arguments, probe, error, message in (
        ((jnp.sin, torch.sin, GIVEN), "many", TypeError, "compare: probe is 'many', a str; pass how many"),
        ((jnp.sin, torch.sin, GIVEN), 0, ValueError, "Probe: draws is 0"),
        ((record(jnp.sin, GIVEN), torch.sin, GIVEN), 8, TypeError, "compare: probe asks both sides .* one is recorded"),
        ((jnp.sin, torch.sin, np.array([1])), 8, ValueError, "probe draws floats, and there are none"),
    ):
        with pytest.raises(error, match=message):
            compare(*arguments, probe=probe)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(ModuleNotFoundError, match=r"probe needs hypothesis: pip install 'jaxclamp\[probe\]'"):
        compare(jnp.sin, torch.sin, GIVEN, probe=8)


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probed_forms.py").write_text(
        "import jax, torch\ndef in_jax(x): return jax.nn.relu6(x)\ndef in_torch(x): return torch.clamp(x, 0.0, 5.0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    np.savez(tmp_path / "x.npz", GIVEN)
    case = str(tmp_path / "case.npz")

    def run(*more: str) -> Any:
        command = ["compare", "probed_forms:in_jax", "probed_forms:in_torch", f"--inputs={tmp_path / 'x.npz'}", *more]
        return CliRunner().invoke(main, command)

    assert run().exit_code == 0
    probed = run("--probe=20", "--seed=1", "--nonfinite", f"--save-case={case}", "--json")
    assert probed.exit_code == 1, probed.output
    content = json.loads(probed.stdout)
    assert (content["probe"]["seed"], content["probe"]["nonfinite"]) == (1, True)
    assert "of seed 1, with [0][" in content["verdict"]
    again = run(f"--case={case}", "--json")
    assert again.exit_code == 1
    assert json.loads(again.stdout)["leaves"] == content["leaves"]
    assert "does not exist" in run("--case=absent.npz").output
    assert "is not an npz file" in run(f"--case={tmp_path / 'probed_forms.py'}").output
    del sys.modules["probed_forms"]
