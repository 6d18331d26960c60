"""The examples in torch that no other test runs, in small."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from rich.console import Console

import interop
from interop import native
from jaxclamp._shared.version_derivatives import VERSIONS
from tests.support.imports import ROOT


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads cost small tensors of torch more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_torch_training(load: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    example = load("torch_training")
    found = example.trainings(4)
    assert len({training.losses[0] for spelled in found.values() for training in spelled}) == 1  # one formula
    assert min(example.distances(*found["native"])) > 1e-3
    assert example.distances(*found["min_norm"]) == [0.0] * 4
    first, second = found["min_norm"]
    assert first.losses == second.losses
    assert first.accuracy == second.accuracy
    assert first.losses[-1] < first.losses[0]

    example.main(steps=1, every=1)
    printed = capsys.readouterr().out
    assert printed.count(f"{first.losses[0]:.4f}") == 4
    assert printed.count("accuracy") == 2


@pytest.mark.usefixtures("one_thread")
def test_tie_audit(load: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    example = load("tie_audit")
    model, data = example.checkpoint(), example.batches(2, 32)
    with torch.no_grad():
        x = torch.cat([x for x, _ in data])
        bounded = model.features[0](x)
        windows = bounded.clamp(0, 6).unflatten(3, (4, 2)).unflatten(2, (4, 2)).movedim(3, 4).flatten(4)
        curved = model.features[:4](x)
        clamped = model.features(x)
    found = {
        "features.1": torch.isin(bounded, torch.tensor([0.0, 6.0])),
        "features.2": (windows == windows.amax(4, keepdim=True)).sum(4) > 1,
        "features.4": curved.abs() == 3,
        "Model": torch.isin(clamped, torch.tensor([0.0, 1.0])),
    }
    report = example.ties(model, data)
    assert {line.module: (line.elements, line.tied) for line in report.lines} == {
        module: (tied.numel(), tied.sum().item()) for module, tied in found.items()
    }

    class ByHand(example.Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = native.max_pool2d(native.relu6(self.features[0](x)), 2)
            h = native.hardswish(self.features[3](h)).flatten(1)
            return self.head(native.clamp(h, 0.0, 1.0))

    by_hand = ByHand()
    by_hand.load_state_dict(model.state_dict())
    expected = example.gradient(by_hand, data)
    as_it_is, converted, min_norm, inclusive = example.gradients(model, data).values()
    torch.testing.assert_close(min_norm, expected, rtol=0, atol=0)
    assert (as_it_is - min_norm).norm() > 1e-3 * min_norm.norm()
    assert not torch.equal(converted, as_it_is)
    assert type(model.features[1]) is torch.nn.ReLU6  # converted back
    relative = example.influence(model, data).relative
    assert relative == pytest.approx(((inclusive - min_norm).norm() / min_norm.norm()).item(), rel=1e-5)

    example.main(2, 32)
    printed = capsys.readouterr().out
    assert "elements are on a tie" in printed
    assert all(name in printed for name in ("features.2", "max_pool2d", "interop.nn.convert(model)", "0.00%"))


def test_pinned_training(load: Callable[[str], ModuleType], one_thread: None) -> None:
    """The installed version trains the same bits as its pin; of 2.15, no weight on a bound has a gradient."""
    example = load("pinned_training")
    runs = {version: example.train(4, 12, interop.as_of(version)) for version in (example.BEFORE, example.AFTER)}
    before, after = runs.values()
    assert before.digest != after.digest
    assert before.norms[0] != after.norms[0]
    assert min(after.tail) > 0.02
    assert min(after.stopped) == 1.0 > max(before.stopped)
    native = example.train(4, 12, contextlib.nullcontext())
    installed = f"torch {torch.__version__.partition('+')[0]}"
    assert native.digest in ({before.digest, after.digest} if installed in VERSIONS["torch"] else {native.digest})
    (first, second) = example.audited(bits=4).changes
    assert (first.line.number, first.line.module, second.line.module) == (second.line.number, "0", "2")
    assert first.line.tied > 100
    rendered = Console(width=140, record=True, file=io.StringIO())
    keyed = {(4, version): run for version, run in runs.items()}
    rendered.print(example.by_step(keyed))
    rendered.print(example.summary(keyed, {key: [0.5] for key in keyed}))
    assert after.digest in rendered.export_text()


@pytest.mark.thorough
def test_fsdp_training() -> None:
    """By the command that it names."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        str(ROOT / "examples" / "fsdp_training.py"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert "2 processes, one training: the weights agree after 5 steps\n" in done.stdout, done.stderr
    assert done.stdout.count("elements on a tie") == 5
