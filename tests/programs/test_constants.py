"""Operands that do not move beside some that do: torch's values and tangents, without its detour through Python."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import interop
from interop._programs.decided import Decided
from interop._programs.dual_fast_paths import FASTER

Function = Callable[..., Any]
F = functional


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


C, ROW, IMAGE, KERNEL = numbers(3, 3, seed=1), numbers(3, seed=2), numbers(1, 3, 4, 4), numbers(3, 3, 2, 2)
POSITIVE = C.abs() + 0.5
MASK, WHOLE, LABELS = C > 0, torch.tensor([[3, -1, 2]] * 3), torch.tensor([0, 2, 1])


def overwritten(y: torch.Tensor, function: Function) -> torch.Tensor:
    """What is in a tensor after a function, whatever that returns."""
    function(y)
    return y


ARITHMETIC: dict[str, Function] = {
    "numbers": lambda x: [x + 0.1, 0.1 + x, x - 3, 3 - x, x * 0.1, True * x, x / 3, 0.3 / x, x.true_divide(7)],
    "aliases": lambda x: [torch.subtract(x, 0.1), x.multiply(3), torch.divide(x, 0.7), torch.true_divide(x, 3)],
    "functions": lambda x: [torch.add(x, 1), torch.sub(x, 1), torch.mul(x, 0.1), torch.div(x, 3)],
    "keywords": lambda x: [torch.add(x, 1, alpha=3), x.sub(C.to(x), alpha=2), torch.mul(input=x, other=2)],
    "rounded": lambda x: [x.div(0.3, rounding_mode="floor"), torch.mul(2, x)],
    "overwritten": lambda x: [x.clone().add_(0.1).sub_(3).mul_(0.1).div_(7), x.clone().subtract_(C.to(x)).multiply_(2)],
    "overwritten by": lambda x: [C.to(x).add(0).add_(x), x.clone().divide_(C.to(x)).true_divide_(3).mul_(MASK)],
    "overwritten, and read": lambda x: [overwritten(C.to(x).clone(), lambda y: y.add_(x).mul_(x))],
    "tensors": lambda x: [x + C.to(x), C.to(x) - x, x * ROW.to(x), C.to(x) / x, x / ROW.to(x), x.mul(C.to(x)[0, 0])],
    "expanded": lambda x: [
        x - ROW.to(x).expand(3, 3),
        C.to(x)[:, :1].expand_as(x) * x,
        x.clone().add_(ROW.to(x).expand(3, 3)),
    ],
    "masks": lambda x: [x * MASK, MASK * x, WHOLE * x, x * WHOLE, MASK * WHOLE, x * (1j * C)],
    "0-dim": lambda x: [x[0, 0] * MASK, x[0, 0] * 0.1, x[0, 0] * C, x[0, 0] + C.float(), WHOLE * x[0, 0]],
}
SEVERAL: dict[str, Function] = {
    "addmm": lambda x: torch.addmm(C, x, C) + x.addmm(C, C, alpha=2),
    "addmv": lambda x: torch.addmv(ROW, x, ROW) + x[0].addmv(C, ROW),
    "addbmm": lambda x: torch.addbmm(C, x[None], C[None]) + x.addbmm(C[None], C[None]),
    "baddbmm": lambda x: torch.baddbmm(C, x[None], C[None]) + x.baddbmm(C[None], C[None]),
    "addr": lambda x: torch.addr(C, x[0], ROW) + x.addr(ROW, ROW),
    "addcmul": lambda x: torch.addcmul(C, x, C) + x.addcmul(C, C, value=2),
    "addcdiv": lambda x: torch.addcdiv(C, C, x) + x.addcdiv(C, POSITIVE),
    "mm": lambda x: torch.mm(C, x) + x.mm(C),
    "mv": lambda x: torch.mv(C, x[0]) + x.mv(ROW),
    "matmul": lambda x: C @ x + torch.matmul(x, C) + x.matmul(C) + torch.linalg.matmul(x, C) + (x @ ROW),
    "dot": lambda x: x[0].dot(ROW) + torch.dot(ROW, x[0]) + x[0].vdot(ROW) + torch.vdot(ROW, x[1]),
    "inner, outer": lambda x: x.inner(C) + torch.inner(C, x) + x[0].outer(ROW) + torch.outer(ROW, x[0]),
    "kron": lambda x: torch.kron(x, C) + x.kron(C),
    "cross": lambda x: torch.cross(x, C, 1) + x.cross(C, 0) + torch.linalg.cross(C, x),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, C) + torch.tensordot(x, C, 1),
    "rsub": lambda x: torch.rsub(x, C),
    "pow": lambda x: torch.pow(POSITIVE, x) + (x.abs() + 1).pow(C),
    "remainder": lambda x: x.fmod(C) + torch.fmod(C, x) + x.remainder(C) + torch.remainder(C, x),
    "atan2": lambda x: torch.atan2(x, C) + C.atan2(x) + torch.hypot(x, C) + C.hypot(x),
    "logaddexp": lambda x: torch.logaddexp(x, C) + C.logaddexp(x) + torch.logaddexp2(x, C) + x.logaddexp2(C),
    "xlogy": lambda x: torch.xlogy(x, POSITIVE) + C.xlogy(x.abs()) + torch.ldexp(x, C) + C.ldexp(x),
    "solve": lambda x: torch.linalg.solve(x, C) + torch.linalg.vecdot(x, C),
    "solve_triangular": lambda x: torch.linalg.solve_triangular(x, C, upper=True),
    "linear": lambda x: F.linear(x, C, ROW) + F.linear(C, x) + F.linear(x, C) + F.linear(C, C, x[0]),
    "linear, weights and bias": lambda x: F.linear(C, x, x[0]) + F.linear(C, x, bias=ROW) + F.linear(x, C, x[0]),
    "bilinear": lambda x: (
        F.bilinear(x, C, KERNEL[..., 0].repeat(1, 1, 3)[..., :3].contiguous(), ROW)
        + torch.bilinear(C, x, KERNEL[..., 0].repeat(1, 1, 3)[..., :3].contiguous(), ROW)
    ),
    "conv1d": lambda x: (
        F.conv1d(x[None], KERNEL[..., 0], ROW) + torch.conv_transpose1d(x[None], KERNEL[..., 0])[..., 1:3]
    ),
    "conv2d": lambda x: [F.conv2d(IMAGE, x[:, :, None, None], ROW), F.conv2d(x[None, ..., None], C[..., None, None])],
    "conv3d": lambda x: F.conv3d(x[None, ..., None, None], C[..., None, None, None], ROW),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x[None, :, :, None], KERNEL, ROW),
    "conv_transpose3d": lambda x: F.conv_transpose3d(x[None, ..., None, None], KERNEL[..., None], ROW),
    "batch_norm": lambda x: F.batch_norm(x, ROW, POSITIVE[0], ROW, bias=ROW) + F.batch_norm(C, ROW, POSITIVE[0], x[0]),
    "group_norm": lambda x: F.group_norm(x, 3, ROW, ROW) + torch.group_norm(C, 1, x[0], ROW),
    "instance_norm": lambda x: F.instance_norm(x[None], None, None, ROW, ROW),
    "layer_norm": lambda x: F.layer_norm(x, (3,), ROW, ROW) + torch.layer_norm(C, (3,), x[0], ROW),
    "rms_norm": lambda x: F.rms_norm(x, (3,), ROW) + torch.rms_norm(C, (3,), x[0]),
    "cosine_similarity": lambda x: F.cosine_similarity(x, C) + torch.cosine_similarity(C, x),
    "cross_entropy": lambda x: F.cross_entropy(x, LABELS, POSITIVE[0]) + F.cross_entropy(x, POSITIVE),
    "kl_div": lambda x: F.kl_div(x, POSITIVE, reduction="sum") + F.kl_div(C, x.abs(), reduction="sum"),
    "mse_loss": lambda x: F.mse_loss(x, POSITIVE) + F.mse_loss(C, x, reduction="sum"),
    "poisson_nll_loss": lambda x: F.poisson_nll_loss(x, POSITIVE) + F.poisson_nll_loss(C, x, reduction="sum"),
    "dropout": lambda x: F.dropout(x, 0.5) + torch.dropout(x, 0.25, True) + F.dropout(x, training=False),
    "dropout, overwritten": lambda x: overwritten(x.clone(), lambda y: F.dropout(y, inplace=True)),
}


def flat(result: Any) -> list[torch.Tensor]:
    return result if isinstance(result, list) else [result]


def pushed(fun: Function, x: torch.Tensor, mode: Any) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """The values and the tangents of what ``fun`` returns, in a mode."""
    torch.manual_seed(0)
    with forward_ad.dual_level(), mode:
        dual = forward_ad.make_dual(x.clone(), numbers(*x.shape, dtype=x.dtype, seed=3))
        pairs = [forward_ad.unpack_dual(result) for result in flat(fun(dual))]
    return [primal for primal, _ in pairs], [tangent for _, tangent in pairs]


class Undecided(TorchFunctionMode):
    """Torch's own functions."""

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str, dtype: torch.dtype) -> None:
    compare(ARITHMETIC[name], numbers(3, 3, dtype=dtype))


@pytest.mark.parametrize("name", SEVERAL)
def test_functions_of_several(name: str) -> None:
    compare(SEVERAL[name], numbers(3, 3))


# Calls with a slope by the constant that is not finite.
UNBOUNDED: dict[str, tuple[Function, list[float]]] = {
    "masked scores": (
        lambda x: [x * POSITIVE[0], POSITIVE[0] * x, x / POSITIVE[0], torch.addr(C, x, POSITIVE[0])],
        [-math.inf, 0.0],
    ),
    "powers of a negative number": (lambda x: [torch.pow(x, torch.full((3,), 2.0)), x.pow(0 * ROW)], [-1.0, 0.0]),
    "labels of 0": (lambda x: F.kl_div(x, torch.eye(3)[0].to(x), reduction="sum"), [-1.0, -2.0]),
    "others": (lambda x: [x.xlogy(0 * ROW), x.ldexp(ROW), torch.addcmul(ROW, x, POSITIVE[0])], [-math.inf, -1.0]),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_slopes_by_a_constant_do_not_count(name: str) -> None:
    """Each tangent was NaN, and the choices behind it were left to the values."""
    fun, x = UNBOUNDED[name]
    compare(fun, torch.tensor([*x, 1.0], dtype=torch.float64))


def test_tangents_beside_infinite_weights_and_inputs_are_those_of_what_moves() -> None:
    """Torch's are NaN: it multiplies the 0 of the constant by infinity."""
    x = torch.tensor([-math.inf, 0.0, 1.0], dtype=torch.float64)
    layers: tuple[Function, ...] = (
        lambda x: F.linear(C, x[None], ROW[:1]),
        lambda x: F.conv1d(C[:, None], x[None, None]),
        lambda x: F.linear(x, C),
    )
    for layer in layers:
        (_, tangents), (_, at_0) = (pushed(layer, point, Decided()) for point in (x, torch.zeros_like(x)))
        torch.testing.assert_close(tangents, at_0)


def test_a_choice_behind_a_masked_score() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        scores = torch.where(torch.tensor([True, True, False]), x, -torch.inf) * torch.tensor(0.5)
        y = scores.softmax(-1) @ torch.tensor([1.0, -1.0, 0.0])
        return torch.relu(y) - torch.relu(-y)

    assert interop.grad(program)(torch.zeros(3)).tolist() == [0.25, -0.25, 0.0]


def compare(fun: Function, x: torch.Tensor) -> None:
    values, tangents = pushed(fun, x, Decided())
    own_values, own_tangents = pushed(fun, x, Undecided())
    for value, own in zip(values, own_values, strict=True):
        torch.testing.assert_close(value, own, rtol=0, atol=0)
        assert value.dtype == own.dtype
    for tangent, own_tangent in zip(tangents, own_tangents, strict=True):
        if own_tangent is None:
            assert tangent is None or not tangent.any()
        else:
            torch.testing.assert_close(tangent, own_tangent)


def sum_of(fun: Function) -> Function:
    return lambda x: sum((result * result).sum() for result in flat(fun(x)) if result.is_floating_point())


@pytest.mark.parametrize("name", ["numbers", "functions", "overwritten", "tensors", "masks", *SEVERAL])
def test_gradients(name: str) -> None:
    """Of functions without a choice: those of torch, for a batch too."""
    fun, x = sum_of((ARITHMETIC | SEVERAL)[name]), numbers(3, 3)
    torch.manual_seed(0)
    own = torch.func.grad(fun)(x)
    torch.manual_seed(0)
    torch.testing.assert_close(interop.grad(fun)(x), own)
    if name in ARITHMETIC:
        batch = torch.stack([x, x + 1])
        own = torch.func.vmap(torch.func.grad(fun))(batch)
        torch.testing.assert_close(torch.func.vmap(interop.grad(fun))(batch), own)
        second = torch.func.jacrev(torch.func.grad(fun))(x)
        torch.testing.assert_close(torch.func.jacrev(interop.grad(fun))(x), second)


def test_groups_of_channels_last() -> None:
    images = numbers(2, 4, 3, 3).to(memory_format=torch.channels_last)

    def fun(x: torch.Tensor) -> torch.Tensor:  # the view is one of channels_last alone
        return F.group_norm(x, 2).permute(0, 2, 3, 1).view(2, 9, 4).pow(3).sum()

    torch.testing.assert_close(interop.grad(fun)(images), torch.func.grad(fun)(images))


class Called(TorchFunctionMode):
    """Which functions are called."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: set[Function] = set()

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.add(func)
        return func(*args, **(kwargs or {}))


def test_every_function_is_asked() -> None:
    with Called() as called:
        for fun in (ARITHMETIC | SEVERAL).values():
            fun(numbers(3, 3))
        for product in SPARSE_PRODUCTS.values():
            product(C.to_sparse(), numbers(3, 3))
    documented = {function.__name__ for function in FASTER if not isinstance(function, torch._ops.OpOverload)}
    assert documented - {function.__name__ for function in called.functions} == set()


def test_modes_around_see_the_functions_that_the_program_calls() -> None:
    with Called() as called:
        interop.directional_derivative(lambda x: x * 2 - 1, numbers(3), numbers(3))
    assert called.functions >= {torch.Tensor.mul, torch.Tensor.sub}
    assert not any(isinstance(function, torch._ops.OpOverload) for function in called.functions)


def frames_of(fun: Function, x: torch.Tensor, mode: Any) -> set[str]:
    """The functions in Python by which torch computes tensors without data."""
    seen = set()

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call" and "torch/_refs/" in frame.f_code.co_filename.replace("\\", "/"):
            seen.add(frame.f_code.co_name)

    before = sys.getprofile()
    try:
        with forward_ad.dual_level(), mode:
            dual = forward_ad.make_dual(x.clone(), torch.ones_like(x))
            sys.setprofile(watch)
            fun(dual)
            sys.setprofile(before)
    finally:
        sys.setprofile(before)
    return seen


SLOW = {"keywords", "rounded", "overwritten by", "dropout, overwritten", "remainder", "cosine_similarity"}
SLOW |= {"addr", "addcmul", "addcdiv", "pow", "atan2", "xlogy", "kl_div"}
"""With calls that are left as they are, or asked whether they jump, as remainder. Torch 2.15 computes cosine_similarity
in Python even of two dual tensors."""


@pytest.mark.parametrize("name", sorted((ARITHMETIC | SEVERAL).keys() - SLOW))
def test_torch_computes_in_its_kernels(name: str) -> None:
    assert not frames_of((ARITHMETIC | SEVERAL)[name], numbers(3, 3), Decided())


def test_torch_would_compute_in_python() -> None:
    assert frames_of(lambda x: x * 2, numbers(3, 3), Undecided())


@pytest.mark.parametrize("frozen", [False, True])
def test_averages_and_random_numbers_are_those_of_torch(frozen: bool) -> None:
    found = []
    for mode in (Decided(), Undecided()):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1)]
        for parameter in layers[1].parameters():
            parameter.requires_grad_(not frozen)
        model = torch.nn.Sequential(*layers)
        moving = [parameter for parameter in model.parameters() if parameter.requires_grad]
        with interop.along(moving) if isinstance(mode, Decided) else mode:
            loss = model(C.float()).square().sum()
        loss.backward()
        found.append([loss.detach(), *layers[1].buffers(), *(parameter.grad for parameter in moving)])
    for decided, own in zip(*found, strict=True):
        assert isinstance(decided, torch.Tensor)
        assert isinstance(own, torch.Tensor)
        torch.testing.assert_close(decided, own)


@pytest.mark.parametrize("wrong", [lambda x: x - True, lambda x: (x > 0).clone().mul_(x), lambda x: x * "2"])
def test_errors_are_those_of_torch(wrong: Function) -> None:
    messages = []
    for mode in (Decided(), Undecided()):
        with pytest.raises((RuntimeError, TypeError)) as error:
            pushed(wrong, numbers(2), mode)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


SPARSE_PRODUCTS: dict[str, Function] = {
    "matmul": lambda a, x: a @ x,
    "mm": torch.mm,
    "sparse.mm": torch.sparse.mm,
    "mv": lambda a, x: torch.stack([torch.mv(a, column) for column in x.unbind(1)], 1),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
@pytest.mark.parametrize("name", SPARSE_PRODUCTS)
def test_a_sparse_constant_beside_weights(name: str, layout: torch.layout) -> None:
    """As in a graph network, where it says which nodes are neighbours: the gradient is that a small step on."""
    graph = torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)

    def loss(x: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        h = SPARSE_PRODUCTS[name](of, x)
        return (torch.relu(h) - 2 * torch.relu(-h) + h * h).sum()

    x, v = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True), numbers(3, 2)
    with interop.along(x, direction=v):
        value = loss(x, graph.to_sparse(layout=layout))
    value.backward()
    step_on = (1e-9 * v).requires_grad_()
    (expected,) = torch.autograd.grad(loss(step_on, graph), step_on)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, expected, rtol=0, atol=1e-7)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_sparse_product_of_maxima_is_not_linear() -> None:
    graph, x = torch.ones(2, 2).to_sparse_csr(), torch.zeros(2, 1, requires_grad=True)
    with pytest.raises(NotImplementedError), interop.along(x):
        torch.sparse.mm(graph, x, "amax")
