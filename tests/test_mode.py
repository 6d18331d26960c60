"""Existing torch code under `interop.min_norm`, and the modules of `interop.nn`."""

import copy
import inspect
import pickle
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from calls import arguments, of_name
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import interop
import jaxclamp
from interop import TORCH_OPS, min_norm
from jaxclamp import TIES, Op

Tensor = torch.Tensor
OVERLOADED = {"max", "min"}
NAMES = [name for name in min_norm.intercepted if name.rpartition(".")[2] not in OVERLOADED]


def gradient(function: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    x = x.detach().clone().requires_grad_()
    y = function(x)
    return torch.autograd.grad((y[0] if isinstance(y, tuple) else y).sum(), x)[0]


def is_ours(y: Tensor) -> bool:
    """Whether a wrapped function is on the tape behind ``y``."""
    nodes = [y.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None:
            if "_Recorded" in node.name():
                return True
            nodes += [parent for parent, _ in node.next_functions]
    return False


@pytest.mark.parametrize("name", NAMES)
def test_intercepted(name: str) -> None:
    native = at(name)
    op = behind(name)
    x, *rest = arguments(op)
    ours = TORCH_OPS[op.name]
    with min_norm():
        y = native(1 * x.clone().requires_grad_(), *rest)
        assert is_ours(y[0] if isinstance(y, tuple) else y)
        assert torch.equal(gradient(lambda x: native(1 * x, *rest), x), gradient(lambda x: ours(x, *rest), x))
    y = native(1 * x.clone().requires_grad_(), *rest)
    assert not is_ours(y[0] if isinstance(y, tuple) else y)


def behind(name: str) -> Op:
    """The op that replaces the function of that name."""
    last = name.rpartition(".")[2].removesuffix("_with_indices")
    return of_name("abs" if last == "__abs__" else last)


def at(name: str) -> Callable[..., Any]:
    """What the dotted ``name`` stands for: a function, or a method of tensors."""
    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


TIED = torch.tensor([-1.0, 0.0, 0.0, 3.0, 6.0, 6.0])
ZEROS = torch.zeros(6)
CODE: dict[str, tuple[Callable[[Tensor], Any], list[float]]] = {
    "torch.max of two": (lambda x: torch.max(x, ZEROS), [0, 0, 0, 1, 1, 1]),
    "torch.max, other=": (lambda x: torch.max(x, other=ZEROS), [0, 0, 0, 1, 1, 1]),
    "max of two": (lambda x: x.max(ZEROS), [0, 0, 0, 1, 1, 1]),
    "min of two": (lambda x: x.min(ZEROS), [1, 0, 0, 0, 0, 0]),
    "max along an axis": (lambda x: x.max(0), [0, 0, 0, 0, 0.5, 0.5]),
    "max, dim=": (lambda x: torch.max(x, dim=-1, keepdim=True), [0, 0, 0, 0, 0.5, 0.5]),
    "min along an axis": (lambda x: torch.min(x[1:], 0), [0, 0.5, 0.5, 0, 0, 0]),
    "max of all": (lambda x: x.max(), [0, 0, 0, 0, 0.5, 0.5]),
    "min of all": (lambda x: torch.min(x[1:]), [0, 0.5, 0.5, 0, 0, 0]),
    "builtin abs": (lambda x: abs(x), [-1, 0, 0, 1, 1, 1]),
    "amax over no axes, all of them in torch": (lambda x: x.amax(dim=()), [0, 0, 0, 0, 0.5, 0.5]),
    "module": (lambda x: torch.nn.Hardtanh(0.0, 6.0)(x), [0, 0, 0, 1, 0, 0]),
    "module in place": (lambda x: torch.nn.ReLU6(inplace=True)(1 * x), [0, 0, 0, 1, 0, 0]),
    "pool with indices": (lambda x: functional.max_pool1d(x[None], 3, return_indices=True), [0, 0.5, 0.5, 0, 0.5, 0.5]),
    "pool module": (lambda x: torch.nn.MaxPool2d((1, 3))(x[None, None]), [0, 0.5, 0.5, 0, 0.5, 0.5]),
    "method in place": (lambda x: (1 * x).clamp_(0, 6), [0, 0, 0, 1, 0, 0]),
    "bounds by keyword": (lambda x: x.clip(min=0.0), [0, 0, 0, 1, 1, 1]),
    "several layers": (lambda x: torch.nn.Sequential(torch.nn.ReLU6(), torch.nn.LeakyReLU(2.0))(x), [0, 0, 0, 1, 0, 0]),
}


@pytest.mark.parametrize("name", CODE)
def test_code(name: str) -> None:
    function, expected = CODE[name]
    with min_norm():
        assert gradient(function, TIED).tolist() == expected
        ours = function(TIED)
    theirs = function(TIED)
    assert type(ours) is type(theirs)
    for mine, native in zip(*((ours, theirs) if isinstance(ours, tuple) else ([ours], [theirs])), strict=True):
        assert mine.dtype == native.dtype
        assert torch.equal(mine, native)


def clamped(x: Tensor) -> Tensor:
    return x.clamp(0.0, 6.0)


NATIVE = gradient(clamped, TIED).tolist()
EXPECTED = [0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("decorate", [min_norm(), min_norm], ids=["called", "as it is"])
def test_as_a_decorator(decorate: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    decorated = decorate(clamped)
    assert decorated.__name__ == "clamped"
    assert gradient(decorated, TIED).tolist() == gradient(decorated, TIED).tolist() == EXPECTED
    assert gradient(clamped, TIED).tolist() == NATIVE != EXPECTED


def test_nesting_and_conventions() -> None:
    outer, inner = min_norm(), min_norm(ties="inclusive")
    with outer:
        with inner, inner:
            assert gradient(clamped, TIED).tolist() == [0, 1, 1, 1, 1, 1]
        assert gradient(clamped, TIED).tolist() == EXPECTED
    for ties in TIES:
        with min_norm(ties=ties):
            assert torch.equal(
                gradient(clamped, TIED), gradient(partial(interop.clamp, min=0.0, max=6.0, ties=ties), TIED)
            )
            assert gradient(torch.abs, TIED).tolist() == [-1, 0, 0, 1, 1, 1]
    with pytest.raises(ValueError, match="ties='min-norm' is not a convention"):
        min_norm(ties="min-norm")


def test_restored_by_an_exception() -> None:
    with pytest.raises(IndexError), min_norm():
        TIED[99]
    assert gradient(clamped, TIED).tolist() == NATIVE


def test_of_one_thread() -> None:
    found = []
    with min_norm():
        thread = threading.Thread(target=lambda: found.append(gradient(clamped, TIED).tolist()))
        thread.start()
        thread.join()
    assert found == [NATIVE]


def test_backward_pass_after_the_block() -> None:
    x = TIED.clone().requires_grad_()
    with min_norm():
        y = clamped(x)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == EXPECTED


def test_input_changed_after_the_call_is_noticed() -> None:
    x = 1 * TIED.clone().requires_grad_()
    with min_norm():
        y = clamped(x)
        x.clamp_(0.0, 6.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_what_has_no_gradient_stays_native() -> None:
    with min_norm():
        assert torch.tensor([1, 5]).clamp(max=2).tolist() == [1, 2]
        assert torch.abs(torch.tensor([3 + 4j])).tolist() == [5]
        assert torch.max(torch.tensor([True, False])).item() is True
        assert torch.tensor([2, 1]).max(0).indices == 0


def test_torch_func_inside_and_outside() -> None:
    with min_norm():
        inside = torch.func.vmap(torch.func.grad(clamped))(TIED)
    outside = torch.func.vmap(torch.func.grad(min_norm()(clamped)))(TIED)
    assert inside.tolist() == outside.tolist() == EXPECTED


CHECKPOINTED: dict[str, tuple[Callable[[Tensor], Any], list[float]]] = {
    "maximum": (lambda x: torch.maximum(x, ZEROS), [0, 0, 0, 1, 1, 1]),
    "clamp": (lambda x: x.clamp(0.0, 6.0), [0, 0, 0, 1, 0, 0]),
    "max along an axis": (lambda x: x.max(0).values, [0, 0, 0, 0, 0.5, 0.5]),
    "checkpoint in a checkpoint": (
        lambda x: checkpoint(lambda y: y * y.clamp(0.0, 6.0), 1 * x, use_reentrant=False),
        [0, 0, 0, 6, 6, 6],
    ),
}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_recomputed_by_a_checkpoint(name: str, reentrant: bool) -> None:
    """The recomputation comes after the block."""
    function, expected = CHECKPOINTED[name]
    x = TIED.clone().requires_grad_()
    with min_norm():
        y = checkpoint(function, x, use_reentrant=reentrant)
    y.sum().backward()
    assert x.grad.tolist() == expected


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_under_the_convention_of_its_block(reentrant: bool) -> None:
    x = TIED.clone().requires_grad_()
    with min_norm(ties="inclusive"):
        y = checkpoint(clamped, x, use_reentrant=reentrant)
    with min_norm():
        z = checkpoint(clamped, x, use_reentrant=reentrant)
    native = checkpoint(clamped, x, use_reentrant=reentrant)
    found = [torch.autograd.grad(out.sum(), x)[0].tolist() for out in (y, z, native)] if not reentrant else []
    if reentrant:  # it does not support autograd.grad
        for out in (y, z, native):
            x.grad = None
            out.sum().backward()
            found.append(x.grad.tolist())
    assert found == [[0, 1, 1, 1, 1, 1], EXPECTED, NATIVE]


def test_in_place_under_torch_func() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.func.vmap(torch.nn.ReLU6(inplace=True))(torch.stack([2 * x, 3 * x])).sum()

    with min_norm():
        assert torch.func.grad(function)(torch.tensor([-1.0, 1.0, 2.0, 3.0])).tolist() == [0, 5, 2, 0]


def later() -> Any:
    yield clamped(TIED)


async def awaited() -> None:
    clamped(TIED)


@pytest.mark.parametrize("function", [later, awaited])
def test_what_runs_after_the_block_cannot_be_decorated(function: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=f"min_norm\\(\\) cannot decorate {function.__name__}"):
        min_norm()(function)


MATRIX = torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 9.0]])
SPELLINGS: dict[str, Callable[[], Any]] = {
    "axis": lambda: torch.max(MATRIX, axis=0),
    "axis and keepdims": lambda: MATRIX.min(axis=1, keepdims=True),
    "keepdims": lambda: MATRIX.amax(0, keepdims=True),
    "x2": lambda: torch.max(MATRIX, x2=-MATRIX),
    "no axes": lambda: MATRIX.amin(()),
    "a list of no axes": lambda: MATRIX.amax(dim=[]),
    "a list of axes": lambda: MATRIX.amax(dim=[0, 1]),
    "axis of a scalar": lambda: torch.max(torch.tensor(3.0), 0),
    "last axis of a scalar": lambda: torch.tensor(3.0).amax(-1, keepdim=True),
    "NumPy integer": lambda: torch.max(MATRIX, dim=np.int64(1)),
    "tensor as axis": lambda: torch.max(MATRIX, dim=torch.tensor(1)),
    "list of outs": lambda: torch.max(MATRIX, 1, out=[torch.empty(0), torch.empty(0, dtype=torch.int64)]),
    "window of one size": lambda: functional.max_pool2d(MATRIX[None], [2]),
    "no stride": lambda: functional.max_pool2d(MATRIX[None], 2, []),
    "bool bound": lambda: MATRIX.clamp(min=True),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_whatever_torch_takes(name: str) -> None:
    expected = SPELLINGS[name]()
    for _ in range(2):  # the second time the call is known
        with min_norm():
            got = SPELLINGS[name]()
        assert type(got) is type(expected)
        for mine, theirs in zip(*((got, expected) if isinstance(got, tuple) else ([got], [expected])), strict=True):
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs)


# Modules.

ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "CELU": [{"alpha": 2.0, "inplace": True}],
    "ELU": [{"alpha": 2.0}],
    "Hardshrink": [{"lambd": 3.0}],
    "Hardtanh": [{"min_val": 0.0, "max_val": 6.0}, {"inplace": True}],
    "LeakyReLU": [{"negative_slope": 2.0}],
    "MaxPool1d": [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}],
    "MaxPool2d": [{"kernel_size": (1, 2), "return_indices": True}],
    "PReLU": [{"num_parameters": 1, "init": 2.0}],
    "ReLU": [{"inplace": True}],
    "Softshrink": [{"lambd": 3.0}],
    "Threshold": [{"threshold": 0.0, "value": 0.0}],
}
MODULES = [name for name in interop.nn.__all__ if hasattr(torch.nn, name)]
X = TIED.reshape(1, 1, 6)


def test_modules_of_all_ops() -> None:
    assert set(ARGUMENTS) < set(MODULES)
    assert len(MODULES) == 15


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    for given in (
        ({}, *ARGUMENTS.get(name, [])) if name not in ("MaxPool1d", "MaxPool2d", "Threshold") else ARGUMENTS[name]
    ):
        ours, native = getattr(interop.nn, name)(**given), getattr(torch.nn, name)(**given)
        assert inspect.signature(type(ours)) == inspect.signature(type(native))
        assert repr(ours) == repr(native)
        assert ours.state_dict().keys() == native.state_dict().keys()
        native.load_state_dict(ours.state_dict())
        expected = gradient(lambda x, native=native: of_module(native, 1 * x), X)
        for module in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert type(module) is type(ours)
            assert torch.equal(gradient(lambda x, module=module: module(1 * x), X), expected)
            y = module(X.clone().requires_grad_() * 1)
            assert is_ours(y[0] if isinstance(y, tuple) else y)


def of_module(native: torch.nn.Module, x: Tensor) -> Any:
    """What the op makes of ``x``, given the attributes of the module as its parameters."""
    op = TORCH_OPS[next(name for name in TORCH_OPS if name.replace("_", "") == type(native).__name__.lower())]
    return op(x, **{name: getattr(native, name) for name in inspect.signature(op).parameters if hasattr(native, name)})


class OwnReLU(torch.nn.ReLU):
    pass


def model() -> torch.nn.Sequential:
    shared = torch.nn.Hardtanh(0.0, 6.0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 6), shared, torch.nn.ModuleDict({"a": shared, "b": OwnReLU()}), torch.nn.PReLU()
    )


def test_convert_and_undo() -> None:
    network = model()
    before, weight = repr(network), network[3].weight
    report = interop.nn.convert(network)
    assert dict(report.replaced) == {"1": "Hardtanh", "2.a": "Hardtanh", "3": "PReLU"}
    assert str(report) == "1    Hardtanh\n2.a  Hardtanh\n3    PReLU"
    assert [type(m).__module__ for m in network.modules()].count("interop.nn") == 2
    assert network[1] is network[2]["a"]
    assert network[3].weight is weight
    assert type(network[2]["b"]) is OwnReLU
    assert repr(network) == before
    assert gradient(network[1], TIED).tolist() == EXPECTED
    assert interop.nn.convert(network).replaced == {}
    assert "nothing to replace" in str(interop.nn.convert(network))
    report.undo()
    assert [type(m) for m in network.modules()] == [type(m) for m in model().modules()]


def test_convert_a_module_itself() -> None:
    module = torch.nn.ReLU6()
    seen = []
    module.register_forward_hook(lambda module, args, output: seen.append(type(module)))
    interop.nn.convert(module)
    module(TIED)
    assert seen == [interop.nn.ReLU6]


def test_names_of_the_ops_of_jax() -> None:
    """A guard for the table: each op has a function of torch that the mode replaces."""
    found = {behind(name).name for name in NAMES}
    assert found | {"max_with_indices", "min_with_indices"} == set(jaxclamp.OPS)
