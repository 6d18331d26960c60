"""The examples in JAX that no other test runs, in small."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console


@pytest.fixture
def tie_influence(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("tie_influence")


@pytest.mark.thorough
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


def test_ties_in_training(load: Callable[[str], ModuleType], tmp_path: Path) -> None:
    example = load("ties_in_training")
    steps, width, batch = 3, 8, 16
    reports = list(example.train(steps, width, batch))
    layers = example.shares(reports)
    assert layers.keys() == {"layer 0", "layer 1", "layer 2"}
    assert all(len(of_steps) == steps and max(of_steps) > 0 for of_steps in layers.values())
    assert {line.elements for report in reports for line in report.lines if line.op == "clamp"} == {width * batch}
    example.plot(layers, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0


@pytest.mark.thorough
def test_jax_training(load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    example = load("jax_training")
    train = functools.cache(lambda loss, epochs: list(example.train(loss, epochs)))
    runs = {name: train(loss, 1) for name, loss in example.CONVENTIONS.items()}
    for networks in runs.values():
        before, after = map(example.losses, networks)
        assert len(set(before)) == len(set(after)) == 1  # the same values
        assert after[0] < before[0]
    starts, ends = zip(*runs.values(), strict=True)
    assert all(example.distance(other, starts[0]) == 0 for other in starts)
    assert min(example.distance(ends[i], ends[j]) for i, j in [(0, 1), (0, 2), (1, 2)]) > 0.01  # other gradients

    network = ends[0]
    report = example.audit(network)
    assert report.influence.relative > 0.05
    lines = {line.op: line for line in report.lines}
    x, _ = example.data()
    first = example.rounded(jax.vmap(network.first)(x[: example.TRAINED]))
    second = example.rounded(jax.vmap(network.second)(jnp.clip(first, 0.0, 1.0)))
    for op, found in {"clamp": jnp.isin(first, jnp.array([0, 1])), "hardtanh": jnp.abs(second) == 1}.items():
        assert (lines[op].elements, lines[op].tied) == (found.size, found.sum())

    monkeypatch.setattr(example, "train", train)
    result = CliRunner().invoke(example.main, ["--epochs", "1", "--plot", str(tmp_path / "plot.png")])
    assert result.exit_code == 0, result.output
    assert "the same loss to the bit at 6 of 6 points" in " ".join(result.output.split())
    assert (tmp_path / "plot.png").stat().st_size > 0


@pytest.mark.thorough
def test_quantised_training(load: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    example = load("quantised_training")
    with jax.enable_x64(True):
        for step in example.train("of the program", 3):
            assert all((np.asarray(w) == np.round(w)).all() for w in step.weights.values())
            assert example.tied(step) > 0.02
            found = jax.device_get(example.distances(step.weights, step.direction, step.x, step.labels))
            assert found["of the program"] == (0, pytest.approx(0, abs=1e-5))
            for name in ("op by op, JAX", "op by op, min_norm", "op by op, balanced"):
                assert min(found[name]) > 1e-3, name

    example.main(steps=2)
    printed = capsys.readouterr().out
    assert printed.count("2 steps") == 4
    assert printed.count("0 steps") == 1


def test_sharded_jax(load: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    example = load("sharded_jax")
    mesh = example.mesh()
    params, x = example.integers()
    hidden = np.asarray(x @ params["w"] + params["b"])
    assert np.isin(hidden, (-2, 0, 2)).mean() > 0.1
    for gradient in (example.by_jit(mesh), example.by_shard_map(mesh)):
        for numbers, tolerance in ((example.integers(), 0), (example.normals(), 1e-6)):
            result = gradient(*numbers)
            assert example.difference(example.single(*numbers), result) <= tolerance
            assert result[1].sharding.is_equivalent_to(NamedSharding(mesh, P("batch")), 2)
        assert example.collectives(gradient, params, x) == {"all-reduce"}
    _, x = example.normals()
    divided = jax.device_put(x, NamedSharding(mesh, P("batch")))
    assert example.collectives(example.activation_backward, divided) == set()
    assert example.difference(example.activation_backward(x), example.activation_backward(divided)) == 0
    assert example.difference(x, x.at[3, 3].add(0.01)) > 0

    example.main()
    assert capsys.readouterr().out.count("all-reduce") == 4


@pytest.mark.thorough  # its processes are those of tests/jax/test_devices.py
def test_two_processes(load: Callable[[str], ModuleType]) -> None:
    example = load("two_processes")
    w, x = example.data()
    assert np.isin(x @ w, (-2, 0, 2)).mean() > 0.1
    assert (example.gradient(w, x) != jax.grad(example.loss)(w, x)).any()  # so the convention matters
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, str(example.__file__)], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "2 processes, one gradient: 256 entries are the same to the bit\n" in done.stdout
