"""Quantisation-aware training that a new version of torch changes: what is lost, where, and the pin that restores it.

A small network learns scikit-learn's digits with weights of 4 or 8 bits and activations of 8 bits. Its fake
quantisation is written as that of pytorch/ao was before its #4806: rounded straight through, then clamped to integers.
Whatever rounds to the first or the last code sits on a bound of the clamp. There torch has slope 1 up to 2.13 and slope
0 from 2.14 on.

Each training runs twice, with the gradients of either version by `interop.as_of`, whatever version is installed. The
digest of the trained weights tells whether two trainings, or those of two installations, are equal to the last bit.

Run: python examples/pinned_training.py
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch.nn import functional

import interop

BEFORE, AFTER = "torch 2.13", "torch 2.15"
TRAINED, BATCH, WIDTH, GROUP = 1536, 64, 32, 32
RATE = 0.1

Tensor = torch.Tensor


class StraightThroughRound(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return cotangent


def fake_quantised(x: Tensor, scale: Tensor, zero: Tensor | float, bits: int) -> Tensor:
    codes = StraightThroughRound.apply(x / scale) + zero
    codes = torch.clamp(codes, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return (codes - zero) * scale


def scales(weight: Tensor, bits: int) -> Tensor:
    """One for each group of weights of an output, by the largest of them."""
    groups = weight.detach().unflatten(1, (-1, GROUP))
    return groups.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 0.5)


def quantised_weight(weight: Tensor, bits: int) -> Tensor:
    groups = weight.unflatten(1, (-1, GROUP))
    return fake_quantised(groups, scales(weight, bits), 0.0, bits).flatten(1)


def quantised_activation(x: Tensor, bits: int) -> Tensor:
    """With a scale and a zero for each row."""
    low, high = x.detach().amin(-1, keepdim=True), x.detach().amax(-1, keepdim=True)
    scale = ((high - low) / (2**bits - 1)).clamp(min=1e-6)
    zero = -(2 ** (bits - 1)) - torch.round(low / scale)
    return fake_quantised(x, scale, zero, bits)


class QuantisedLinear(torch.nn.Linear):
    def __init__(self, inputs: int, outputs: int, bits: int) -> None:
        super().__init__(inputs, outputs)
        self.bits = bits

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(quantised_activation(x, 8), quantised_weight(self.weight, self.bits), self.bias)


@functools.cache
def data() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)


def network(bits: int, seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(QuantisedLinear(64, WIDTH, bits), torch.nn.ReLU(), QuantisedLinear(WIDTH, 10, bits))


@dataclass(frozen=True)
class Training:
    """What happened in one training."""

    norms: Sequence[float]
    """Of the gradient of the weights, by step."""
    tail: Sequence[float]
    """The share of the weights on the first or last code, by step."""
    stopped: Sequence[float]
    """The share of these that have no gradient, by step."""
    accuracy: float
    digest: str
    """Of the bits of all trained parameters."""


def train(bits: int, steps: int, block: contextlib.AbstractContextManager[Any], seed: int = 0) -> Training:
    """For one seed, from the same weights and with the same digits in each block."""
    model, (x, labels) = network(bits, seed), data()
    weights = [layer.weight for layer in model if isinstance(layer, QuantisedLinear)]
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    generator = np.random.default_rng(seed)
    norms, tail, stopped = [], [], []
    for _ in range(steps):
        rows = generator.choice(TRAINED, BATCH, replace=False)
        optimizer.zero_grad()
        with block:
            loss = functional.cross_entropy(model(x[rows]), labels[rows])
        loss.backward()
        gradient = torch.cat([weight.grad.flatten() for weight in weights])
        bound = torch.cat([on_a_bound(weight.detach(), bits).flatten() for weight in weights])
        norms.append(gradient.norm().item())
        tail.append(bound.float().mean().item())
        stopped.append((gradient[bound] == 0).float().mean().item())
        optimizer.step()
    with torch.no_grad():
        right = model(x[TRAINED:]).argmax(1) == labels[TRAINED:]
    trained = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return Training(norms, tail, stopped, right.float().mean().item(), hashlib.sha256(trained).hexdigest()[:16])


def on_a_bound(weight: Tensor, bits: int) -> Tensor:
    codes = torch.round(weight.unflatten(1, (-1, GROUP)) / scales(weight, bits))
    return (codes == -(2 ** (bits - 1))) | (codes == 2 ** (bits - 1) - 1)


def audited(bits: int) -> interop.Audit:
    """Which lines are behind it, in one step."""
    model, (x, labels) = network(bits, seed=0), data()
    return interop.audit(lambda: functional.cross_entropy(model(x[:BATCH]), labels[:BATCH]), before=BEFORE, after=AFTER)


def by_step(runs: Mapping[tuple[int, str], Training]) -> Table:
    table = Table("step", title="Norm of the gradient of the weights")
    for bits, version in runs:
        table.add_column(f"{bits} bits,\n{version}", justify="right")
    steps = len(next(iter(runs.values())).norms)
    for step in sorted({*range(0, steps, max(1, steps // 6)), steps - 1}):
        table.add_row(str(step), *(f"{run.norms[step]:.3f}" for run in runs.values()))
    return table


def summary(runs: Mapping[tuple[int, str], Training], accuracies: Mapping[tuple[int, str], Sequence[float]]) -> Table:
    seeds = len(next(iter(accuracies.values())))
    table = Table("weights", "gradients of", title="Means over the steps, and what was trained")
    for heading in ("on a bound", "of these stopped", f"accuracy, {seeds} seeds", "digest, first seed"):
        table.add_column(heading, justify="right")
    for (bits, version), run in runs.items():
        shares = (f"{np.mean(shares):.1%}" for shares in (run.tail, run.stopped))
        table.add_row(f"{bits} bits", version, *shares, f"{np.mean(accuracies[bits, version]):.1%}", run.digest)
    return table


def main(steps: int = 300, seeds: int = 5) -> None:
    console = Console(width=None if sys.stdout.isatty() else 100)
    trained = {
        (bits, version): [train(bits, steps, interop.as_of(version), seed) for seed in range(seeds)]
        for bits in (8, 4)
        for version in (BEFORE, AFTER)
    }
    runs = {key: of_seeds[0] for key, of_seeds in trained.items()}
    console.print(by_step(runs))
    accuracies = {key: [run.accuracy for run in of_seeds] for key, of_seeds in trained.items()}
    console.print(summary(runs, accuracies))
    console.print(str(audited(bits=4)), markup=False, highlight=False)
    native = train(4, steps, contextlib.nullcontext()).digest
    same = [version for version in (BEFORE, AFTER) if runs[4, version].digest == native]
    console.print(f"Without a pin, torch {torch.__version__.partition('+')[0]} trains {native} with 4 bits,")
    console.print(f"to the last bit the run of {' and '.join(same) or 'neither version'}.")


if __name__ == "__main__":
    torch.set_num_threads(1)  # threads cost small tensors more than they save
    main()
