"""`interop.subdifferential`: which gradients are found around a point, and what is certified."""

from __future__ import annotations

import pytest
import torch

import interop
from tests.programs.nearby import ZERO, tensor


def test_subdifferential() -> None:
    """A LASSO at its minimiser, which is 0: the hull has 0 in it; and a maximum whose hull has not."""
    a, b = tensor([[2.0, 1.0], [0.0, 1.0]]), tensor(0.25, -0.5)

    def lasso(x: torch.Tensor) -> torch.Tensor:
        return ((a @ x - b) ** 2).sum() / 2 + x.abs().sum()

    found = interop.subdifferential(lasso)(tensor(0.0, 0.0))
    assert found.is_certified
    assert not found.is_differentiable
    assert found.min_norm.tolist() == [0.0, 0.0]
    lines = interop.subdifferential(lambda p: torch.maximum(p["x"] + p["y"], p["x"] - p["y"]))({"x": ZERO, "y": ZERO})
    assert {name: pytest.approx(part.item(), abs=1e-6) for name, part in lines.min_norm.items()} == {"x": 1.0, "y": 0.0}


def test_a_point_outside_of_the_domain() -> None:
    """There the gradient of log is finite."""
    with pytest.raises(ValueError, match=r"the value is nan, .* \[-1\]; pass a point at which both are finite"):
        interop.subdifferential(torch.log)(tensor(-1.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_each_entry_of_a_gradient_has_its_own_rounding(dtype: torch.dtype) -> None:
    """A small slope beside a steep kink is not taken for 0, and a small kink beside a steep slope not for smooth."""
    slope = torch.tensor(0.2, dtype=dtype)
    found = interop.subdifferential(lambda x: 1000 * x[0].abs() + slope * x[1])(torch.zeros(2, dtype=dtype))
    assert found.min_norm.tolist() == [0.0, slope]
    assert found.is_certified
    kink = interop.subdifferential(lambda x: 1000 * x[0] + slope * x[1].abs())(torch.zeros(2, dtype=dtype))
    assert not kink.is_differentiable
    assert not kink.contains(torch.tensor([1000.0, 1.0], dtype=dtype))


def test_the_least_precise_of_the_arguments_decides_what_is_rounding() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x * 0.7 * 9, x * 6.3) + y  # slopes that differ in float32 by a unit in the last place

    around = interop.subdifferential(program, (0, 1))(torch.tensor(0.0), torch.tensor(1.0, dtype=torch.float64))
    assert around.is_differentiable
