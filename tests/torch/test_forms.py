"""The forms that torch gives an op (in place, with out=, with indices): values, gradients and errors."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import interop
from interop import IN_PLACE_OPS, TORCH_OPS
from tests.support.calls import arguments, of_name


def having(form: str) -> list[str]:
    """The ops with a parameter of that name."""
    return [name for name, op in TORCH_OPS.items() if form in inspect.signature(op).parameters]


TIED = [-1.0, 0.0, 3.0, 6.0, 7.0]


def native(name: str) -> Any:
    return next(getattr(home, name) for home in (torch, functional, torch.Tensor) if hasattr(home, name))


@pytest.mark.parametrize("name", IN_PLACE_OPS)
def test_in_place(name: str) -> None:
    """The value of the native form, the gradient of the plain op, in the tensor that was given."""
    x, *rest = arguments(of_name(name))
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    overwritten, version = 1 * a, (1 * a)._version
    assert IN_PLACE_OPS[name](overwritten, *rest) is overwritten
    assert overwritten._version > version
    torch.testing.assert_close(overwritten.detach(), native(name)(x.clone(), *rest))
    plain = TORCH_OPS[name.removesuffix("_")](1 * b, *rest)
    assert torch.equal(torch.autograd.grad(overwritten.sum(), a)[0], torch.autograd.grad(plain.sum(), b)[0])


def test_in_place_forms_are_torch_s() -> None:
    assert not hasattr(interop, "amax_")
    assert interop.clamp_.__name__ == "clamp_"
    assert torch.equal(interop.relu_(input=torch.tensor(TIED)), torch.relu(torch.tensor(TIED)))


@pytest.mark.parametrize("name", having("inplace"))
def test_inplace_argument(name: str) -> None:
    x, *rest = arguments(of_name(name))
    for overwrite in (True, False):
        given = x.clone()
        result = TORCH_OPS[name](given, *rest, inplace=overwrite)
        assert (result is given) == overwrite
        torch.testing.assert_close(result, TORCH_OPS[name](x, *rest))


@pytest.mark.parametrize("call", [lambda x: x.clamp_(min=0.0, max=6.0), lambda x: x.clamp_(0.0, max=6.0)])
def test_in_place_by_keywords(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Those of `torch.hardtanh_`, which has the gradient up to torch 2.13, have other names."""
    x = torch.tensor([0.0, 3.0, 6.0], requires_grad=True)
    with interop.min_norm():
        call(y := x * 1.0)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [0.0, 1.0, 0.0]


def test_inplace_by_position() -> None:
    x = torch.tensor(TIED)
    assert interop.hardtanh(x, 0.0, 6.0, True) is x
    assert x.tolist() == [0, 0, 3, 6, 6]


def test_autograd_notices_what_was_overwritten() -> None:
    x = torch.tensor(TIED, requires_grad=True)
    y = 1 * x
    square = y * y
    interop.clamp_(y, 0.0, 6.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        interop.relu_(x)
    with torch.no_grad():
        interop.relu_(x)
    assert x.tolist() == [0, 0, 3, 6, 7]


def test_in_place_on_a_view() -> None:
    x = torch.tensor([TIED, TIED], requires_grad=True)
    y = 1 * x
    interop.clamp_(y[:, 1:3], 0.0, 6.0)
    y.sum().backward()
    assert x.grad.tolist() == [[1, 0, 1, 1, 1]] * 2
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        interop.relu_(torch.zeros(1).expand(3))


def test_in_place_beside_a_bound_that_is_differentiated() -> None:
    x, bound = torch.tensor([0.0, 1.0, 2.0]), torch.tensor(1.0, requires_grad=True)
    interop.clamp_min_(x, bound).sum().backward()
    assert bound.grad == 1  # the tie has an inactive operand


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interop.clamp_(torch.ones(2, dtype=torch.int64), 0.5), "result type torch.float32 can't be cast to"),
        (lambda: interop.clamp_(torch.ones(2), torch.zeros(3, 2)), r"output with shape \[2\] doesn't match"),
        (lambda: interop.clamp(torch.ones(2), 0, 1, out=torch.ones(2, dtype=torch.int64)), "can't be cast to"),
        (lambda: interop.amax(torch.ones(2, requires_grad=True), out=torch.ones(())), r"amax\(\): functions with out="),
        (lambda: interop.abs(torch.ones(2), out=torch.ones(2, requires_grad=True)), r"abs\(\): functions with out="),
        (lambda: interop.abs(torch.ones(2), out=torch.zeros(1).expand(2)), "more than one element of the written-to"),
    ],
)
def test_refused(call: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call()


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(("name", "bounds"), [("abs_", ()), ("clamp_", (0.0, 6.0)), ("clamp_min_", (1.0,))])
def test_a_native_form_that_overwrites_takes_no_out(name: str, bounds: tuple[float, ...], requires_grad: bool) -> None:
    """It was dropped silently where torch's own form was called."""
    x = torch.tensor([-1.0, 3.0], requires_grad=requires_grad) * 1.0
    with pytest.raises(
        TypeError, match=rf"^{name}\(\) overwrites its first argument and takes no out; use {name[:-1]}\(\)"
    ):
        interop.native.NATIVE[name](x, *bounds, out=torch.empty(2))


@pytest.mark.parametrize("name", having("out"))
def test_out(name: str) -> None:
    x, *rest = arguments(of_name(name))
    expected = TORCH_OPS[name](x, *rest)
    several = isinstance(expected, tuple)
    out = tuple(torch.empty_like(part) for part in expected) if several else torch.empty_like(expected)
    result = TORCH_OPS[name](x, *rest, out=out)
    assert isinstance(result, tuple) == several
    for got, given, want in zip(*((result, out, expected) if several else ([result], [out], [expected])), strict=True):
        assert got is given
        assert torch.equal(got, want)


def test_out_may_be_an_argument_and_is_resized() -> None:
    x = torch.tensor(TIED)
    assert interop.clamp(x, 0.0, 6.0, out=x) is x
    assert x.tolist() == [0, 0, 3, 6, 6]
    assert interop.abs(x, out=torch.empty(0)).shape == x.shape
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        interop.abs(x, out=torch.empty(2))


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(
    "window",
    [(2,), (3, 2, 1), (2, 3, 0, 2), *(pytest.param(w, marks=pytest.mark.thorough) for w in ((3, 2), (2, 3, 1)))],
)
@pytest.mark.parametrize("dims", [1, 2])
def test_pools(dims: int, window: tuple[int, ...], ceil_mode: bool) -> None:
    """Values, indices and, without ties, gradients as in torch, whatever the last window reaches over."""
    ours, theirs = (getattr(home, f"max_pool{dims}d") for home in (interop, functional))
    numbers = torch.randperm(2 * 7**dims, generator=torch.Generator().manual_seed(0)).to(torch.float64)
    x = (numbers - 40).reshape(1, 2, *[7] * dims).requires_grad_()
    got = ours(x, *window, ceil_mode=ceil_mode, return_indices=True)
    want = theirs(x, *window, ceil_mode=ceil_mode, return_indices=True)
    for mine, native_one in zip(got, want, strict=True):
        assert torch.equal(mine, native_one)
    gradients = [torch.autograd.grad((values**2).sum(), x)[0] for values, _ in (got, want)]
    assert torch.equal(*gradients)
