"""Four worked cases: one formula in several spellings, by unmodified torch and by the ops of interop.

Run: python examples/worked_cases.py
"""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

import interop

# torch.nn.functional also has what torch has no name for; the last one wins where both have one.
UNMODIFIED = SimpleNamespace(**{**vars(functional), **vars(torch)})


@dataclass(frozen=True)
class Case:
    """Spellings of one function, each ``spelling(ops, x)`` for unmodified or wrapped ops, at the points ``x``."""

    title: str
    points: torch.Tensor
    spellings: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]]

    def gradient(self, spelling: str, ops: Any) -> torch.Tensor:
        points = self.points.clone().requires_grad_()
        self.spellings[spelling](ops, points).sum().backward()
        assert points.grad is not None
        return points.grad


def _network_loss(activation: Callable[[torch.Tensor], torch.Tensor], w1: torch.Tensor) -> torch.Tensor:
    x = torch.tensor([[3.0, 2.0, 1.0], [1.0, 0.0, 2.0], [4.0, 1.0, 2.0], [0.0, 0.0, 1.0]])
    w2 = torch.tensor([[-1.0, 1.0], [-2.0, 3.0]])
    return ((activation(x @ w1) @ w2 - 1) ** 2).sum()


CASES = (
    Case(
        "1. max(x, 0) at x = 0",
        torch.tensor([0.0]),
        {
            "relu(x)": lambda ops, x: ops.relu(x),
            "maximum(x, tensor(0.))": lambda ops, x: ops.maximum(x, torch.tensor(0.0)),
            "clamp_min(x, 0.)": lambda ops, x: ops.clamp_min(x, 0.0),
            "clamp(x, min=0.)": lambda ops, x: ops.clamp(x, min=0.0),
        },
    ),
    Case(
        "2a. min(max(x, 0), 6) at x = 0, 6",
        torch.tensor([0.0, 6.0]),
        {
            "relu6(x)": lambda ops, x: ops.relu6(x),
            "clamp(x, 0., 6.)": lambda ops, x: ops.clamp(x, 0.0, 6.0),
        },
    ),
    Case(
        "2b. min(max(x, -1), 1) at x = -1, 1",
        torch.tensor([-1.0, 1.0]),
        {
            "hardtanh(x, -1., 1.)": lambda ops, x: ops.hardtanh(x, -1.0, 1.0),
            "clamp(x, -1., 1.)": lambda ops, x: ops.clamp(x, -1.0, 1.0),
        },
    ),
    Case("2c. min(x, 6) at x = 6", torch.tensor([6.0]), {"clamp_max(x, 6.)": lambda ops, x: ops.clamp_max(x, 6.0)}),
    Case(
        "3. clamp(a b, 1, 5), the gradients of a and b",
        torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 1.0, 2.0]]),
        {"clamp(a * b, 1., 5.)": lambda ops, ab: ops.clamp(ab[0] * ab[1], 1.0, 5.0)},
    ),
    Case(
        "4. a two-layer network, the gradient of its first weights",
        torch.tensor([[1.0, 2.0], [0.0, 1.0], [4.0, 0.0]]),
        {
            "relu(x @ w1)": lambda ops, w1: _network_loss(ops.relu, w1),
            "clamp(x @ w1, min=0.)": lambda ops, w1: _network_loss(lambda h: ops.clamp(h, min=0.0), w1),
        },
    ),
)


@dataclass(frozen=True)
class Gradients:
    """The gradient of one spelling, by unmodified torch and by the wrapped ops."""

    title: str
    spelling: str
    unmodified: torch.Tensor
    wrapped: torch.Tensor


def compare_cases() -> Iterator[Gradients]:
    """The gradients of every spelling of every case in turn."""
    for case in CASES:
        for spelling in case.spellings:
            gradients = (case.gradient(spelling, ops) for ops in (UNMODIFIED, interop))
            yield Gradients(case.title, spelling, *gradients)


def table() -> Table:
    shown = Table(box=None, pad_edge=False)
    for heading in ("case", "spelling", "unmodified", "interop"):
        shown.add_column(heading, overflow="fold")
    title = None
    for comparison in compare_cases():
        repeated, title = comparison.title == title, comparison.title
        gradients = [
            re.sub(r"\.0\b", "", str(gradient.tolist()))  # [0, 0.5] for [0.0, 0.5]
            for gradient in (comparison.unmodified, comparison.wrapped)
        ]
        shown.add_row("" if repeated else title, comparison.spelling, *gradients)
    return shown


def main() -> None:
    console = Console(width=shutil.get_terminal_size((100, 24)).columns)  # 100 in a file
    console.print(f"Gradients of equal formulas, unmodified torch {torch.__version__} against interop:")
    console.print(table())
    console.print("In your own code: with interop.min_norm(): around it.", style="dim")


if __name__ == "__main__":
    main()
