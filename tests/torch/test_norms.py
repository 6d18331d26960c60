"""Norms in torch beside their ties: the gradients of jaxclamp, whatever torch's own are, and to second order."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import interop
from interop import native
from tests.jax.test_norms import UNITS

Tensor = torch.Tensor


def of_vector(norm: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: norm(torch.stack([x, y]), dim=0)


def under_min_norm(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return interop.min_norm(lambda x, y: function(x, y))


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "interop.hypot": interop.hypot,
    "native.hypot": native.hypot,
    "torch.hypot": under_min_norm(torch.hypot),
    "interop.norm": of_vector(interop.norm),
    "native.norm": of_vector(native.norm),
    "torch.norm": under_min_norm(of_vector(torch.norm)),
    "Tensor.norm": under_min_norm(of_vector(torch.Tensor.norm)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_jaxclamp(name: str) -> None:
    """And second derivatives are finite wherever the gradient is."""
    points, expected = (torch.tensor(column).T.contiguous() for column in zip(*UNITS, strict=True))
    x, y = points.clone().requires_grad_()
    gradients = torch.autograd.grad(FUNCTIONS[name](x, y).sum(), (x, y), create_graph=True)
    torch.testing.assert_close(torch.stack(gradients).detach(), expected, equal_nan=True)
    second = torch.autograd.grad(sum(gradients).sum(), (x, y))
    assert torch.equal(torch.stack(second).isfinite(), expected.isfinite())
    assert second[0][:2].tolist() == second[1][:2].tolist() == [0, 0]


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "of all": ((), {}),
    "Frobenius": (("fro",), {"dim": (0, 1)}),
    "along an axis that stays": ((2, -1, True), {}),
    "along no axes, which are all": ((2, ()), {}),
    "in float64": ((2, 0), {"dtype": torch.float64}),
    "of order 3": ((3, 0), {}),
    "nuclear": (("nuc",), {}),
    "of order infinity": ((math.inf, 0), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_values_are_those_of_torch(name: str) -> None:
    """And gradients too, where no row is 0."""
    args, kwargs = CALLS[name]
    x = torch.tensor([[1.0, -2.0, 2.0], [0.0, 3.0, 4.0]], requires_grad=True)
    found, expected = native.norm(x, *args, **kwargs), torch.norm(x, *args, **kwargs)
    assert torch.equal(found, expected)
    assert found.dtype == expected.dtype
    gradients = [torch.autograd.grad(value.sum(), x)[0] for value in (found, expected)]
    torch.testing.assert_close(*gradients)
    with interop.min_norm(backend="jax"), interop.ties():
        value = torch.norm(x, *args, **kwargs)
    torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("function", [native.hypot, of_vector(native.norm)])
def test_dtypes_and_shapes(function: Callable[..., Tensor], dtype: torch.dtype) -> None:
    x, y = torch.tensor([[0.0], [3.0]], dtype=dtype), torch.tensor([0.0, 4.0], dtype=dtype)
    if function is not native.hypot:
        y = y.expand(2, 2)
        x = x.expand(2, 2)
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    of_x, of_y = torch.autograd.grad(function(x, y).sum(), (x, y))
    assert (of_x.dtype, of_x.shape, of_y.shape) == (dtype, x.shape, y.shape)
    torch.testing.assert_close(of_x.sum().item(), 1.6, rtol=4 * torch.finfo(dtype).eps, atol=0)
    torch.testing.assert_close(of_y.sum().item(), 1.8, rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_a_number_and_nothing() -> None:
    for value, slope in ((-2.0, -1.0), (0.0, 0.0), (3.0, 1.0)):
        x = torch.tensor(value, requires_grad=True)
        assert torch.autograd.grad(native.norm(x), x) == (slope,)
    empty = torch.zeros(2, 0, requires_grad=True)
    assert torch.autograd.grad(native.norm(empty, dim=1).sum(), empty)[0].shape == (2, 0)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch itself, as it traces one
def test_in_forward_mode_batched_and_compiled() -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    rows = torch.func.vmap(torch.func.grad(native.norm))(x)
    torch.testing.assert_close(rows, torch.tensor([[0.0, 0.0], [0.6, 0.8]]))
    value, tangent = torch.func.jvp(lambda x: native.norm(x, dim=1), (x,), (torch.ones_like(x),))
    torch.testing.assert_close((value, tangent), (torch.tensor([0.0, 5.0]), torch.tensor([0.0, 1.4])))
    compiled = torch.compile(lambda x, y: native.hypot(x, y) + native.norm(x), backend="aot_eager")
    at = x.clone().requires_grad_()
    gradient = torch.autograd.grad(compiled(at, 0 * x).sum(), at)[0]
    torch.testing.assert_close(gradient, torch.tensor([[0.0, 0.0], [1 + 2.4, 1 + 3.2]]))
