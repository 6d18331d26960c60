"""Norms in torch beside their ties: the gradients of jaxclamp, whatever torch's own are, and to second order."""

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import interop
from interop import native
from interop._programs.choices import quadratic_forms
from tests.jax.test_norms import UNITS

Tensor = torch.Tensor


def of_vector(norm: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: norm(torch.stack([x, y]), dim=0)


def under_min_norm(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return interop.min_norm(lambda x, y: function(x, y))


NO_NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "of a number and a square": lambda x: (x[0] + x[1] ** 2).sqrt(),
    "of a difference": lambda x: (x[0] ** 2 - x[1] ** 2).sqrt(),
    "of a difference, overwritten": lambda x: (x[0] ** 2).sub_(x[1] ** 2).sqrt(),
    "of weights of both signs": lambda x: (x**2 * torch.tensor([1.0, -1.0])).sum().sqrt(),
    "of two elements": lambda x: (x[0] * -x[1] + -x[1] * x[0]).sqrt(),
    "of what does not move": lambda x: (x[0] * x.detach()[0]).sqrt(),
    "of opposite numbers": lambda x: ((z := torch.complex(x, x)).imag * z.conj().imag).sum().sqrt(),
    "of a cube": lambda x: (x**3).sum().sqrt(),
    "of an outer product": lambda x: torch.outer(x, -x).sqrt().sum(),
    "of a fourth root": lambda x: (x**2).sum() ** 0.25,
    "of a moving mask": lambda x: torch.where(x > 9, x**2, x).sum().sqrt(),
}


@pytest.mark.parametrize("name", NO_NORMS)
def test_roots_of_other_sums_keep_their_slope(name: str) -> None:
    gradient = interop.grad(NO_NORMS[name], direction=torch.tensor([3.0, 4.0]))(torch.zeros(2))
    assert not gradient.isfinite().all()


def test_a_sum_of_no_grad_and_weights_that_do_not_move() -> None:
    def fun(x: Tensor) -> Tensor:
        with torch.no_grad():
            constant = (x * x).sum()
        return constant.sqrt() + x.sum()

    direction = torch.tensor([3.0, 0.0])
    assert interop.grad(fun, direction=direction)(torch.zeros(2)).tolist() == [1.0, 1.0]
    x, weights = (torch.full([2], number, requires_grad=True) for number in (0.0, 4.0))
    with interop.along(x, direction=direction):
        total = (weights * (x * x)).sqrt().sum() + x.dot(tensor=x).sqrt()  # type: ignore[call-overload]
        total.backward()
        torch.mul(x.detach(), 2.0, out=torch.empty(2))
    assert (x.grad.tolist(), weights.grad.tolist()) == ([3.0, 0.0], [0.0, 0.0])  # type: ignore[union-attr]
    assert not quadratic_forms._KNOWN  # what the total is made of


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "interop.hypot": interop.hypot,
    "native.hypot": native.hypot,
    "torch.hypot": under_min_norm(torch.hypot),
    "interop.norm": of_vector(interop.norm),
    "native.norm": of_vector(native.norm),
    "torch.norm": under_min_norm(of_vector(torch.norm)),
    "Tensor.norm": under_min_norm(of_vector(torch.Tensor.norm)),
    "vector_norm": under_min_norm(of_vector(torch.linalg.vector_norm)),
    "linalg.norm": under_min_norm(of_vector(torch.linalg.norm)),
    "linalg.norm of order 2": under_min_norm(of_vector(functools.partial(torch.linalg.norm, ord=2))),
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


@pytest.mark.parametrize("hypot", [native.hypot, interop.hypot])
def test_one_operand_of_two_is_active(hypot: Callable[..., Tensor]) -> None:
    for order in (1, -1):
        y = torch.tensor([0.0, 4.0], requires_grad=True)
        operands = (torch.tensor([0.0, 3.0]), y)[::order]
        torch.testing.assert_close(torch.autograd.grad(hypot(*operands).sum(), y)[0], torch.tensor([0.0, 0.8]))


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


LINALG: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]] = {
    "vectors": (torch.linalg.vector_norm, (2, -1, True), {}),
    "of order 1": (torch.linalg.vector_norm, (1, 0), {}),
    "of order infinity": (torch.linalg.vector_norm, (math.inf,), {"dim": (1,)}),
    "of order 3": (torch.linalg.vector_norm, (3,), {}),
    "in float64": (torch.linalg.vector_norm, (), {"dtype": torch.float64}),
    "of all": (torch.linalg.norm, (), {"keepdim": True}),
    "Frobenius": (torch.linalg.norm, ("fro",), {}),
    "along an axis": (torch.linalg.norm, (None, 0), {}),
    "the largest singular value": (torch.linalg.norm, (2,), {"dim": (0, 1)}),
    "the largest sum of a column": (torch.linalg.norm, (1,), {}),
}


@pytest.mark.parametrize("name", LINALG)
def test_linalg(name: str) -> None:
    """Values and gradients are those of torch, and at 0 the gradient is 0, but for what svd says of a matrix."""
    function, args, kwargs = LINALG[name]
    x = torch.tensor([[1.0, -2.0, 2.0], [0.0, 3.0, 4.0]], requires_grad=True)
    with interop.min_norm():
        found = function(x, *args, **kwargs)
        at_0 = torch.func.grad(lambda x: function(x, *args, **kwargs).sum())(torch.zeros(2, 3))
    expected = function(x, *args, **kwargs)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(*(torch.autograd.grad(value.sum(), x)[0] for value in (found, expected)))
    assert not at_0.any() or "singular" in name


ALONG: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": torch.norm,
    "method": lambda x: x.norm(keepdim=True).sum(),
    "vector_norm": torch.linalg.vector_norm,
    "linalg.norm": torch.linalg.norm,
    "matrix_norm": lambda x: torch.linalg.matrix_norm(x.reshape(1, 2)),
    "hypot": lambda x: torch.hypot(x[0], x[1]),
    "dist": lambda x: torch.dist(x, torch.zeros(2)),
    "native": native.vector_norm,
    "interop": interop.norm,
}


@pytest.mark.parametrize("name", ALONG)
def test_along_a_direction(name: str) -> None:
    """At 0 the limit of the gradients at t v, which is v / |v|, and no warning; elsewhere that of the norm."""
    function, v, zero = ALONG[name], torch.tensor([3.0, -4.0]), torch.zeros(2)
    unit = torch.tensor([0.6, -0.8])
    value, derivative = interop.directional_derivative(function, zero, v)
    torch.testing.assert_close((value, derivative), (torch.tensor(0.0), torch.tensor(5.0)))
    for x, expected in ((zero, unit), (torch.tensor([-0.0, 2.0]), torch.tensor([0.0, 1.0]))):
        torch.testing.assert_close(interop.grad(function, direction=v)(x), expected)
    assert not interop.grad(lambda x: interop.grad(function, direction=v)(x).sum(), direction=v)(zero).any()
    for program in (lambda x: function(x) ** 2, lambda x: function(x).clamp(min=1e-3)):
        assert not interop.grad(program)(zero).any()
    one = torch.tensor(1.0)
    with_more = interop.grad(lambda x, y: function(x) + y, (0, 1), direction=(zero, one))  # something has to move
    assert not with_more(zero, one)[0].any()
    parameter = zero.clone().requires_grad_()
    with interop.along(parameter):
        function(parameter).backward()
    torch.testing.assert_close(parameter.grad.norm(), torch.tensor(1.0))


def test_the_subdifferential_is_the_ball() -> None:
    around = interop.subdifferential(torch.linalg.vector_norm)(torch.zeros(2))
    torch.testing.assert_close(around.min_norm, torch.zeros(2), atol=1e-6, rtol=0)
    sizes = torch.stack(list(around.gradients)).norm(dim=1)
    torch.testing.assert_close(sizes, torch.ones_like(sizes))


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
    compiled = torch.compile(under_min_norm(lambda x, y: native.hypot(x, y) + (1 * x).norm()), backend="aot_eager")
    at = x.clone().requires_grad_()
    gradient = torch.autograd.grad(compiled(at, 0 * x).sum(), at)[0]
    torch.testing.assert_close(gradient, torch.tensor([[0.0, 0.0], [1 + 2.4, 1 + 3.2]]))
