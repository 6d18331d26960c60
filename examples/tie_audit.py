"""An audit of a torch model that exists already: where ties happen, whether they matter, and what can be done.

Its weights come from 8 bits and its pixels have 16 levels, so sums are exact and often lie on a bound; and windows in
which ReLU6 left only zeros tie as a whole.

Run: python examples/tie_audit.py
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch.nn.utils import parameters_to_vector

import interop
from jaxclamp import Influence, TieReport

Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]


class Model(torch.nn.Module):
    """The model under audit; nothing in it is written for it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 3, padding=1),
            torch.nn.ReLU6(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(8, 16, 3),
            torch.nn.Hardswish(),
        )
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.features(x).flatten(1)
        return self.head(h.clamp(0.0, 1.0))


def checkpoint() -> Model:
    """The model with weights that are multiples of 1/8."""
    torch.manual_seed(0)
    model = Model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.round(8 * parameter) / 8)
    return model


def batches(number: int, size: int) -> list[Batch]:
    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return list(zip(x.split(size), torch.tensor(labels).split(size), strict=True))[:number]


def total_loss(model: torch.nn.Module, data: Sequence[Batch]) -> torch.Tensor:
    return torch.stack([torch.nn.functional.cross_entropy(model(x), labels) for x, labels in data]).sum()


def ties(model: torch.nn.Module, data: Sequence[Batch]) -> TieReport:
    """Where they happen, by line and module."""
    with interop.ties() as counted, torch.no_grad():
        total_loss(model, data)
    return counted.report


def influence(model: torch.nn.Module, data: Sequence[Batch]) -> Influence:
    """How far another convention moves the gradient."""
    return interop.influence(lambda: total_loss(model, data), model.parameters())


def gradient(model: torch.nn.Module, data: Sequence[Batch]) -> torch.Tensor:
    return parameters_to_vector(torch.autograd.grad(total_loss(model, data), list(model.parameters())))


def gradients(model: torch.nn.Module, data: Sequence[Batch]) -> dict[str, torch.Tensor]:
    """As the model is, and with what can be done about ties without a change to its source."""
    found = {"as it is": gradient(model, data)}
    conversion = interop.nn.convert(model)  # the modules, not what a forward calls
    found["interop.nn.convert(model)"] = gradient(model, data)
    conversion.undo()
    with interop.min_norm():
        found["interop.min_norm()"] = gradient(model, data)
    with interop.min_norm(ties="inclusive"):
        found['interop.min_norm(ties="inclusive")'] = gradient(model, data)
    return found


def table(found: Mapping[str, torch.Tensor]) -> Table:
    min_norm = found["interop.min_norm()"]
    shown = Table("", "distance to that of minimum norm", title="The gradient")
    for name, gradient in found.items():
        shown.add_row(name, f"{(gradient - min_norm).norm() / min_norm.norm():.2%}")
    return shown


def main(number: int = 8, size: int = 64) -> None:
    console = Console(width=100)
    model, data = checkpoint(), batches(number, size)
    report = dataclasses.replace(ties(model, data), influence=influence(model, data))
    console.rule("Where ties happen, and whether they matter")
    console.print(report)
    console.rule("What a test says that calls assert_none()")
    try:
        report.assert_none()
    except AssertionError as error:
        console.print(error)
    console.rule("What can be done")
    console.print(table(gradients(model, data)))


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors are too small to share
    main()
