"""One network in two equal spellings, trained natively and under `interop.min_norm`, which alone keeps them together.

The weights of the forward pass are rounded to multiples of 1/16, as in quantisation-aware training, and the pixels are
integers. So sums are exact, and often lie on a bound, where the spellings have different gradients natively.

Run: python examples/torch_training.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch.nn.utils import parameters_to_vector, parametrize

import interop

TRAINED, BATCH = 1536, 64
"""The first digits are trained with, the others test."""


class Rounded(torch.nn.Module):
    """To a multiple of 1/16, with gradient 1."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + (torch.round(16 * weight) / 16 - weight).detach()


class Function(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def clamped(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(0.0, 6.0)


def largest_of_windows(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).amax((3, 5))


def between(x: torch.Tensor) -> torch.Tensor:
    return torch.minimum(torch.maximum(x, torch.tensor(0.0)), torch.tensor(1.0))


SPELLINGS: Mapping[str, Sequence[torch.nn.Module]] = {
    "modules": (torch.nn.ReLU6(), torch.nn.MaxPool2d(2), torch.nn.Hardtanh(0.0, 1.0)),
    "functions": (Function(clamped), Function(largest_of_windows), Function(between)),
}


@dataclass(frozen=True)
class Training:
    losses: list[float]
    parameters: list[torch.Tensor]
    """All of them in one vector, after each step."""
    accuracy: float
    """On the digits that were not trained with."""


def network(spelling: str) -> torch.nn.Module:
    """With the same initial parameters in every spelling."""
    torch.manual_seed(0)
    bound, pool, gate = SPELLINGS[spelling]
    convolution, dense, head = torch.nn.Conv2d(1, 8, 3), torch.nn.Linear(72, 32), torch.nn.Linear(32, 10)
    for layer in (convolution, dense, head):
        for name in ("weight", "bias"):
            parametrize.register_parametrization(layer, name, Rounded())
    return torch.nn.Sequential(convolution, bound, pool, torch.nn.Flatten(), dense, gate, head)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)


def train(model: torch.nn.Module, steps: int) -> Training:
    x, labels = data()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses, parameters = [], []
    for step in range(steps):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % TRAINED
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        parameters.append(parameters_to_vector(model.parameters()).detach())
    with torch.no_grad():
        right = model(x[TRAINED:]).argmax(dim=1) == labels[TRAINED:]
    return Training(losses, parameters, right.float().mean().item())


def trainings(steps: int) -> dict[str, list[Training]]:
    """Those of each spelling, natively and under the convention; `train` knows of neither."""
    native = [train(network(spelling), steps) for spelling in SPELLINGS]
    with interop.min_norm():
        min_norm = [train(network(spelling), steps) for spelling in SPELLINGS]
    return {"native": native, "min_norm": min_norm}


def distances(first: Training, second: Training) -> list[float]:
    """Between the parameters after each step, relative to those of the second."""
    pairs = zip(first.parameters, second.parameters, strict=True)
    return [((a - b).norm() / b.norm()).item() for a, b in pairs]


def table(found: Mapping[str, Sequence[Training]], every: int) -> Table:
    shown = Table("step", title="The loss in both spellings, and the distance between their parameters")
    columns = []
    for convention, spelled in found.items():
        for heading in (*SPELLINGS, "distance"):
            shown.add_column(f"{convention}\n{heading}", justify="right")
        columns += [[f"{loss:.4f}" for loss in training.losses] for training in spelled]
        columns.append([f"{apart:.2g}" for apart in distances(*spelled)])
    rows = list(zip(*columns, strict=True))
    for step in range(0, len(rows), every):
        shown.add_row(str(step), *rows[step])
    return shown


def main(steps: int = 120, every: int = 10) -> None:
    console = Console()
    found = trainings(steps)
    console.print(table(found, every))
    for convention, spelled in found.items():
        console.print(f"accuracy, {convention}:", *(f"{training.accuracy:.2%}" for training in spelled))


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors are too small to share
    main()
