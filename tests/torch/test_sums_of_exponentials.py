"""`logsumexp` and `logaddexp` in torch where all operands are minus infinity: gradient 0, values to the bit."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import interop
from interop import native
from tests.jax.test_sums_of_exponentials import SOFTMAX, X

Tensor = torch.Tensor
Function = Callable[..., Tensor]
INF = math.inf
ROWS, OF_ROWS = torch.tensor(X.tolist()), torch.tensor(SOFTMAX).float()

CALLS: dict[str, Function] = {
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "method": lambda x: x.logsumexp(dim=(-1,), keepdim=True),
    "torch.special": lambda x: torch.special.logsumexp(x, [1]),
    "logaddexp": lambda x: torch.logaddexp(x[:, 0], x[:, 1]),
    "method of two": lambda x: x[:, 0].logaddexp(x[:, 1]),
}


def of_finite(function: Function) -> Function:
    """The sum of those results that are finite, and of exponentials."""

    def total(x: Tensor) -> Tensor:
        result = function(x)
        return torch.where(result.isfinite(), result, result.exp()).sum()

    return total


def under_min_norm(function: Function) -> Function:
    return torch.func.grad(interop.min_norm(function))


def along(function: Function) -> Function:
    def gradient(x: Tensor) -> Any:
        parameter = x.clone().requires_grad_()
        with interop.along(parameter):
            function(parameter).backward()
        return parameter.grad

    return gradient


GRADIENTS = {"min_norm": under_min_norm, "grad": interop.grad, "along": along}


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("call", CALLS)
def test_rows(call: str, gradient: str) -> None:
    found = GRADIENTS[gradient](of_finite(CALLS[call]))(ROWS)
    torch.testing.assert_close(found, OF_ROWS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_are_those_of_torch(dtype: torch.dtype) -> None:
    x = torch.randn(9, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[3], x[4, 0], x[5, 0], x[6, 0], x[7] = -INF, -INF, INF, math.nan, -0.0
    for call in CALLS.values():
        with interop.min_norm():
            found = call(x.clone().requires_grad_())
        expected = call(x)
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        is_number = ~expected.isnan()  # the sign of a NaN depends on the processor
        assert torch.equal(found.signbit()[is_number], expected.signbit()[is_number])


def test_axes() -> None:
    for shape, dim in (((2, 2), (0, 1)), ((2, 2), (0, -1)), ((), 0), ((2, 2), -2)):
        x = torch.full(shape, -INF, requires_grad=True)
        value, expected = native.logsumexp(x, dim), torch.logsumexp(x, dim)
        assert torch.equal(value, expected)
        assert torch.equal(torch.autograd.grad(value.sum(), x)[0], torch.zeros(shape))
    assert native.logsumexp(torch.zeros(2, 0, requires_grad=True), 1).tolist() == [-INF, -INF]


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize(
    "function", [lambda x: x.logsumexp(0), lambda x: torch.logaddexp(*x)], ids=["logsumexp", "logaddexp"]
)
def test_programs(function: Function, gradient: str) -> None:
    """0 for operands that are masked by an infinity; NaN, and no wrong number, where their slopes are infinite."""
    of = GRADIENTS[gradient]
    for masked in (lambda x: function(x - INF), lambda x: function(x - INF).exp()):
        assert of(masked)(torch.ones(2)).tolist() == [0, 0]
    for singular in (lambda x: function(x.log()), lambda x: function(x.log()).exp()):
        assert of(singular)(torch.zeros(2)).isnan().all()


def test_further_derivatives_and_forward_mode() -> None:
    for function in (lambda x: native.logsumexp(x, 0), lambda x: native.logaddexp(*x)):
        for mode in (torch.func.hessian, interop.grad):
            assert not mode(function)(torch.full((2,), -INF)).any()
        hessian = torch.func.hessian(function)(torch.zeros(2))
        torch.testing.assert_close(hessian, torch.tensor([[0.25, -0.25], [-0.25, 0.25]]))
        at = torch.full((2,), -INF), torch.ones(2)
        assert interop.directional_derivative(function, *at) == (-INF, 0)


def test_batched_and_compiled() -> None:
    rows = torch.func.vmap(torch.func.grad(lambda row: native.logsumexp(row, 0)))(ROWS)
    torch.testing.assert_close(rows, OF_ROWS)
    compiled = torch.compile(of_finite(lambda x: native.logsumexp(x, 1)), backend="aot_eager")
    x = ROWS.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x)[0], OF_ROWS)


def test_an_operand_that_is_broadcast_keeps_its_shape() -> None:
    """The value would be rounded otherwise in torch, which computes contiguous numbers in vectors."""
    generator = torch.Generator().manual_seed(0)
    for first, second in (((5, 10, 5), (5,)), ((5, 10, 5), (10, 1)), ((), (7, 9))):
        x, y = (5 * torch.randn(shape, generator=generator) for shape in (first, second))
        assert torch.equal(native.logaddexp(x.clone().requires_grad_(), y), torch.logaddexp(x, y))


def test_an_operand_of_integers() -> None:
    x = torch.tensor([-INF, 1.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(native.logaddexp(x, torch.tensor([1, 1])).sum(), x)
    assert gradient.tolist() == [0, 0.5]
