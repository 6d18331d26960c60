"""Transformations of torch.func within compiled functions: have they the derivatives of eager code, at ties too?"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jvp, vmap

import interop
from interop import native

Tensor = torch.Tensor

# torch itself, when it looks into an autograd.Function
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

X = torch.tensor([[-1.0, 0.0, 3.0, 3.0], [2.0, 0.0, 0.0, -1.0]])


def operands(x: Tensor) -> Tensor:
    return native.maximum(x, torch.zeros_like(x)) * native.clamp(x, -torch.ones_like(x), 3 * torch.ones_like(x))


def rows(x: Tensor) -> Tensor:
    return native.amax(x, -1, keepdim=True) * x + native.max_pool1d(x, 2).sum() + native.max(x, -1)[0].sum()


def kinks(x: Tensor) -> Tensor:
    return native.elu(x, 2.0) * native.prelu(x, torch.full((1,), 0.25)) + native.norm(0 * x)


def bridged(x: Tensor) -> Tensor:
    return interop.maximum(x, torch.zeros_like(x)) * interop.hardswish(x) + interop.amax(x, -1, keepdim=True)


def summed(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: (function(x) ** 2).sum()


def behind(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The function with the gradient that a backward pass behind it finds."""

    def gradient(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(function(x).sum(), x)[0]

    return gradient


WAYS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "gradient": (lambda f: grad(summed(f)), lambda f: f),
    "of a gradient, behind": (lambda f: grad(summed(f)), behind),
    "of a gradient": (lambda f: grad(lambda x: (grad(summed(f))(x) * x).sum()), lambda f: f),
    "of a batch, behind": (lambda f: lambda x: vmap(summed(f))(x.unsqueeze(1)), behind),
    "of a batch": (lambda f: grad(lambda x: vmap(summed(f))(x.unsqueeze(1)).sum()), lambda f: f),
    "each of a batch": (lambda f: lambda x: vmap(grad(summed(f)))(x.unsqueeze(1)), lambda f: f),
    "forward mode": (lambda f: lambda x: jvp(f, (x,), (x + 1,))[1], lambda f: f),
    "hessian": (lambda f: hessian(summed(f)), lambda f: f),
}
"""What is compiled of a function, and what is asked of that."""


QUICK = {
    operands: ("of a gradient", "each of a batch", "hessian"),
    bridged: ("gradient", "of a batch, behind", "forward mode"),
}
CASES = [
    pytest.param(f, way, id=f"{f.__name__}-{way}", marks=[pytest.mark.thorough] * (way not in QUICK.get(f, ())))
    for f in (operands, bridged, rows, kinks)
    for way in WAYS
]


@pytest.mark.parametrize(("function", "way"), CASES)
def test_as_eager_code(function: Callable[[Tensor], Tensor], way: str) -> None:
    torch._dynamo.reset()
    within, around = WAYS[way]
    compiled = torch.compile(within(function), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(around(compiled)(X), around(within(function))(X))


@pytest.mark.skipif(torch.__version__ < "2.15", reason="the function is compiled, and drops the tangents")
def test_dual_tensors_are_left_to_python() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(interop.hardswish, backend="eager")
    with forward_ad.dual_level():
        found, expected = (f(forward_ad.make_dual(X, X + 1)) for f in (compiled, interop.hardswish))
        assert torch.equal(forward_ad.unpack_dual(found).tangent, forward_ad.unpack_dual(expected).tangent)


def clamps(x: Tensor) -> Tensor:
    return torch.clamp(x, 0.0, 3.0) + torch.maximum(input=x, x2=torch.zeros_like(x)) + x.amax(-1, keepdim=True)


@pytest.mark.parametrize("block", [interop.min_norm(), interop.as_of("torch 2.15"), interop.as_of("torch 2.13")])
def test_in_a_block(block: Any) -> None:
    torch._dynamo.reset()
    gradient = grad(lambda x: clamps(x).sum())
    compiled = torch.compile(gradient, fullgraph=True, backend="aot_eager")
    with block:
        assert torch.equal(compiled(X), gradient(X))


def test_gradients_of_a_module_for_each_sample() -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU6(), torch.nn.PReLU(), torch.nn.MaxPool1d(2))
    torch.nn.init.eye_(model[0].weight)  # type: ignore[arg-type]
    torch.nn.init.zeros_(model[0].bias)  # type: ignore[arg-type]
    interop.nn.convert(model)
    parameters = dict(model.named_parameters())
    gradients = vmap(grad(lambda p, x: functional_call(model, p, (x.unsqueeze(0),)).sum()), (None, 0))
    found = torch.compile(gradients, fullgraph=True, backend="aot_eager")(parameters, X)
    torch.testing.assert_close(found, gradients(parameters, X))


def test_sizes_and_bounds_that_are_symbols() -> None:
    torch._dynamo.reset()

    def function(x: Tensor, bound: float) -> Tensor:
        return grad(lambda x: (native.clamp(x, 0.0, bound) + native.amax(x, -1, keepdim=True)).sum())(x)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for x, bound in ((X, 3.0), (X[:, :3], 2.0), (X.repeat(1, 2), 1.5)):
        torch.testing.assert_close(compiled(x, bound), function(x, bound))


def test_a_tensor_that_is_overwritten() -> None:
    torch._dynamo.reset()

    def function(x: Tensor) -> Tensor:
        y = 1 * x
        native.clamp_(y, torch.zeros(4))
        return y * y

    gradients = vmap(grad(lambda x: function(x).sum()))
    assert torch.equal(torch.compile(gradients, fullgraph=True, backend="aot_eager")(X), gradients(X))
