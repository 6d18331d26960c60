"""In a block of `interop.along`, do modules whose parameters tie get the gradient that they have nearby?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import nn

import interop
from tests.programs.functions_at_ties_torch import numbers

Tensor = torch.Tensor

MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]] = {
    "two layers": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.ReLU6()),
        lambda layers: layers(numbers(2, 3, step=1.0)),
    ),
    "relu(y) - relu(-y)": (
        lambda: nn.Linear(2, 2),
        lambda layer: torch.relu(y := layer(numbers(2, 2, step=1.0))) - torch.relu(-y),
    ),
    "convolution, pool": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 1)),
        lambda layers: layers(numbers(1, 1, 4, 4, step=1.0).remainder(3) - 1),
    ),
    "a bounded batch": (
        lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.PReLU(2), nn.Hardtanh(-0.5, 0.5)),
        lambda layers: layers(numbers(4, 2).square()),
    ),
    "recurrent, relu": (
        lambda: nn.RNN(2, 2, 2, nonlinearity="relu"),
        lambda layers: layers(numbers(3, 1, 2, step=1.0))[0],
    ),
    "a loss of absolute values": (
        lambda: nn.Linear(3, 2),
        lambda layer: nn.L1Loss()(layer(torch.eye(3).double()), numbers(3, 2)),
    ),
    "a hinge over normalised rows": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)),
        lambda layers: nn.MultiMarginLoss()(layers(numbers(2, 3)), torch.tensor([0, 2])),
    ),
    "an embedding, the largest of": (lambda: nn.Embedding(4, 3), lambda layer: layer(torch.tensor([0, 1, 3])).amax(0)),
    "a head that sorts": (lambda: nn.Linear(2, 4), lambda layer: layer(numbers(2, 2, step=1.0)).topk(2).values.abs()),
}


QUICK = ("two layers", "convolution, pool", "a head that sorts")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name not in QUICK)) for name in MODULES]
)
def test_gradients_of_modules_are_those_nearby(name: str) -> None:
    """Their parameters are small whole numbers, by which many operands tie."""
    build, run = MODULES[name]
    layers = build().double()
    source, t = torch.Generator().manual_seed(1), 1e-5
    direction = [torch.randn(p.shape, dtype=p.dtype, generator=source) for p in layers.parameters()]

    def gradient_at(distance: float) -> Tensor:
        layers.zero_grad()
        with torch.no_grad():
            for p, v in zip(layers.parameters(), direction, strict=True):
                p.copy_(numbers(*p.shape, step=1.0).remainder(3) - 1 + distance * v)
        with interop.along(layers, direction=direction) if distance == 0 else contextlib.nullcontext():
            result = run(layers)
            (result * numbers(*result.shape, start=1.0)).sum().backward()
        return torch.cat([p.grad.flatten() for p in layers.parameters()])  # type: ignore[union-attr]

    near, far = gradient_at(t), gradient_at(2 * t)
    torch.testing.assert_close(near, far, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(gradient_at(0.0), 2 * near - far, atol=1e-3, rtol=1e-3)
