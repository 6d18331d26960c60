"""Existing torch code under `interop.min_norm`, by both backends."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, get_args

import jax
import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import interop
import jaxclamp
from interop import TORCH_OPS, min_norm
from interop._torch.private_api import function_modes
from interop._transforms.min_norm import Backend
from jaxclamp import CONVENTIONS, OPS, Op
from tests.support.calls import arguments
from tests.support.representatives import thorough

Tensor = torch.Tensor
BACKENDS = get_args(Backend)
FEW = [pytest.param(c, marks=[pytest.mark.thorough] * (c not in ("min_norm", "balanced"))) for c in CONVENTIONS]
by_both_backends = pytest.mark.parametrize("backend", BACKENDS)


def gradient(function: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    x = x.detach().clone().requires_grad_()
    y = function(x)
    return torch.autograd.grad((y[0] if isinstance(y, tuple) else y).sum(), x)[0]


def functions_of_jax(y: Tensor) -> int:
    """How many programs of JAX are on the tape behind ``y``."""
    nodes, found = [y.grad_fn], 0
    while nodes:
        node = nodes.pop()
        if node is not None:
            found += "_Recorded" in node.name()
            nodes += [parent for parent, _ in node.next_functions]
    return found


def behind(name: str) -> Op | None:
    """The op that stands for the function of that dotted name."""
    known = name.rpartition(".")[2].removesuffix("_with_indices").strip("_")
    return OPS.get(getattr(getattr(jaxclamp, known, None), "__name__", ""))


OF_OPS = [name for name in min_norm.intercepted if behind(name) and name != "torch.linalg.norm"]
FURTHER = {"max", "min", "normalize", "adaptive_max_pool", "loss", "logsumexp", "logaddexp", "norm"}


def test_all_names_are_tested() -> None:
    """Each as an op here, or among the further functions below or of other files."""
    others = set(min_norm.intercepted) - set(OF_OPS)
    assert {behind(name).name for name in OF_OPS} | {"max_with_indices", "min_with_indices"} == set(OPS)
    assert all(any(further in name for further in FURTHER) for name in others)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param(name, backend, id=f"{name}-{backend}", marks=thorough(behind(name).name) * (backend == "jax"))
        for name in OF_OPS
        for backend in BACKENDS
    ],
)
def test_intercepted(name: str, backend: Backend) -> None:
    function, op = at(name), behind(name)
    x, *rest = arguments(op)
    ours = TORCH_OPS[op.name]
    with min_norm(backend=backend):
        y = function(1 * x.clone().requires_grad_(), *rest)
        assert functions_of_jax(y[0] if isinstance(y, tuple) else y) == (backend == "jax")
        assert torch.equal(gradient(lambda x: function(1 * x, *rest), x), gradient(lambda x: ours(x, *rest), x))
    y = function(1 * x.clone().requires_grad_(), *rest)
    assert not functions_of_jax(y[0] if isinstance(y, tuple) else y)


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


@by_both_backends
@pytest.mark.parametrize("name", CODE)
def test_code(name: str, backend: Backend) -> None:
    function, expected = CODE[name]
    with min_norm(backend=backend):
        assert gradient(function, TIED).tolist() == expected
        ours = function(TIED)
    theirs = function(TIED)
    assert type(ours) is type(theirs)
    for mine, native in zip(*((ours, theirs) if isinstance(ours, tuple) else ([ours], [theirs])), strict=True):
        assert mine.dtype == native.dtype
        assert torch.equal(mine, native)


def clamped(x: Tensor) -> Tensor:
    """By functions whose own gradient at a tie is 1/2 in every version of torch; that of clamp has changed."""
    return x.maximum(torch.zeros_like(x)).minimum(torch.full_like(x, 6.0))


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
    with pytest.raises(ValueError, match="min_norm: ties='min-norm' is not a convention"):
        min_norm(ties="min-norm")
    with pytest.raises(ValueError, match=r"choose one of 'min_norm', .*; as_of takes a version"):
        min_norm(ties="torch 2.13")
    with pytest.raises(ValueError, match="backend='xla' is not one of 'torch', 'jax'"):
        min_norm(backend="xla")


@by_both_backends
@pytest.mark.parametrize("ties", FEW)
def test_conventions(ties: str, backend: Backend) -> None:
    """They govern every op that takes one, the activations with built-in bounds too."""
    with min_norm(ties=ties, backend=backend):
        assert torch.equal(gradient(clamped, TIED), gradient(partial(interop.clamp, min=0.0, max=6.0, ties=ties), TIED))
        assert torch.equal(gradient(functional.relu6, TIED), gradient(partial(interop.relu6, ties=ties), TIED))
        assert torch.equal(
            gradient(functional.hardsigmoid, TIED - 3), gradient(partial(interop.hardsigmoid, ties=ties), TIED - 3)
        )
        assert gradient(torch.abs, TIED).tolist() == [-1, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("ties", FEW)
def test_conventions_mean_the_same_in_both_frameworks(ties: str) -> None:
    for in_torch, in_jax in ((functional.relu6, jax.nn.relu6), (functional.relu, jax.nn.relu)):
        with min_norm(ties=ties):
            found = gradient(in_torch, TIED)
        rewritten = jaxclamp.min_norm(lambda x, f=in_jax: f(x).sum(), ties=ties)
        assert found.tolist() == jax.grad(rewritten)(TIED.numpy()).tolist()


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
        y = x.clamp(0.0, 6.0)
        x.clamp_(0.0, 6.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@by_both_backends
def test_what_has_no_gradient_stays_native(backend: Backend) -> None:
    with min_norm(backend=backend):
        assert torch.tensor([1, 5]).clamp(max=2).tolist() == [1, 2]
        assert torch.abs(torch.tensor([3 + 4j])).tolist() == [5]
        assert torch.max(torch.tensor([True, False])).item() is True
        assert torch.tensor([2, 1]).max(0).indices == 0


@by_both_backends
def test_torch_func_inside_and_outside(backend: Backend) -> None:
    with min_norm(backend=backend):
        inside = torch.func.vmap(torch.func.grad(clamped))(TIED)
    outside = torch.func.vmap(torch.func.grad(min_norm(backend=backend)(clamped)))(TIED)
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


@by_both_backends
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_recomputed_by_a_checkpoint(name: str, reentrant: bool, backend: Backend) -> None:
    """The recomputation comes after the block."""
    function, expected = CHECKPOINTED[name]
    x = TIED.clone().requires_grad_()
    with min_norm(backend=backend):
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


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_of_code_with_its_own_block(reentrant: bool) -> None:
    """The inner block decides in the recomputation too; what is outside of it stays under the outer one."""

    def function(x: Tensor) -> Tensor:
        y = clamped(x)
        with min_norm(ties="inclusive"):
            z = clamped(x)
        return y + 10 * z + 100 * clamped(x)

    x = TIED.clone().requires_grad_()
    with min_norm():
        y = checkpoint(function, x, use_reentrant=reentrant)
    y.sum().backward()
    assert x.grad.tolist() == [0, 10, 10, 111, 10, 10]


@by_both_backends
def test_checkpoint_sequential(backend: Backend) -> None:
    x = TIED.clone().requires_grad_()
    with min_norm(backend=backend):
        y = checkpoint_sequential([torch.nn.Hardtanh(0.0, 6.0), torch.nn.ReLU6()], 2, x, use_reentrant=False)
    y.sum().backward()
    assert x.grad.tolist() == EXPECTED


def test_classes_cannot_be_decorated() -> None:
    with pytest.raises(TypeError, match=r"cannot decorate the class Network.*decorate its forward, or use .*convert"):

        @min_norm()
        class Network(torch.nn.Module):
            pass


def test_modules_cannot_be_decorated() -> None:
    """It would be a function, without the parameters."""
    for decorate in (min_norm, min_norm(), interop.as_of("torch 2.13"), interop.along(torch.ones(1).requires_grad_())):
        with pytest.raises(TypeError, match=r"cannot decorate a ReLU module.*in a `with` around its calls"):
            decorate(torch.nn.ReLU())


PASSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "cummax": (lambda x: x.cummax(0), "torch.Tensor.cummax"),
    "topk": (lambda x: torch.topk(x, 2), "torch.topk"),
    "sort": (lambda x: torch.sort(x), "torch.sort"),
    "largest of a bag": (
        lambda x: functional.embedding_bag(torch.tensor([[0, 1]]), x[:, None], mode="max"),
        "torch.nn.functional.embedding_bag",
    ),
    "largest of a segment": (
        lambda x: torch.zeros(1).scatter_reduce(0, torch.zeros(6, dtype=torch.int64), x, "amax"),
        "torch.Tensor.scatter_reduce",
    ),
    "largest distance": (lambda x: torch.cdist(x[None], x[None], p=torch.inf), "torch.cdist"),
    "largest of a window": (lambda x: functional.lp_pool1d(x[None], torch.inf, 2), "torch.nn.functional.lp_pool1d"),
    "smallest": (lambda x: torch.nn.LPPool2d(-torch.inf, 1)(x[None, None]), "torch.nn.functional.lp_pool2d"),
}


@by_both_backends
@pytest.mark.parametrize("name", PASSED)
def test_the_mode_says_what_it_let_pass(name: str, backend: Backend) -> None:
    function, dotted = PASSED[name]
    x = TIED.clone().requires_grad_()
    with min_norm(backend=backend) as block:
        function(x)
        function(x)
        torch.clamp(x, 0.0, 6.0)
        functional.embedding_bag(torch.tensor([[0, 1]]), x[:, None], mode="sum")
        torch.cdist(x[None], x[None])
        functional.lp_pool1d(x[None], 2.0, 2)
        function(TIED)  # for which nobody asks for a gradient
    assert block.passed == {dotted: 2}


def test_in_place_under_torch_func() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.func.vmap(torch.nn.ReLU6(inplace=True))(torch.stack([2 * x, 3 * x])).sum()

    with min_norm():
        assert torch.func.grad(function)(torch.tensor([-1.0, 1.0, 2.0, 3.0])).tolist() == [0, 5, 2, 0]


@pytest.mark.parametrize("make", [min_norm, interop.ties, lambda: interop.as_of("torch 2.13")])
def test_a_block_may_be_left_before_those_that_were_entered_in_it(make: Callable[[], Any]) -> None:
    """As a generator leaves its block when nobody asks it any more, which may be at any time."""

    def suspended() -> Iterator[None]:
        with make():
            yield

    generator, x = suspended(), torch.zeros(2, requires_grad=True)
    next(generator)
    with min_norm(ties="exclusive"), min_norm(ties="inclusive") as innermost:
        del generator
        assert torch.autograd.grad(x.clamp(min=0.0).sum(), x)[0].tolist() == [1.0, 1.0]
    assert function_modes() == []
    with pytest.raises(RuntimeError, match="leave the block once, and in the thread that entered it"):
        innermost.__exit__()


def later() -> Any:
    yield clamped(TIED)


async def awaited() -> None:
    clamped(TIED)


@pytest.mark.parametrize(("function", "name"), [(later, "later"), (awaited, "awaited"), (partial(later), "partial")])
def test_what_runs_after_the_block_cannot_be_decorated(function: Callable[[], Any], name: str) -> None:
    with pytest.raises(TypeError, match=f"min_norm\\(\\) cannot decorate {name}, which runs after"):
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
    "out of softshrink": lambda: functional.softshrink(MATRIX, 2.0, out=torch.empty(0)),
    "out of hardshrink": lambda: torch.hardshrink(MATRIX, out=torch.empty(0)),
    "out of threshold, of a block within": lambda: min_norm()(torch.threshold)(MATRIX, 1.0, 2.0, out=torch.empty(0)),
    "window of one size": lambda: functional.max_pool2d(MATRIX[None], [2]),
    "no stride": lambda: functional.max_pool2d(MATRIX[None], 2, []),
    "bool bound": lambda: MATRIX.clamp(min=True),
}


@by_both_backends
@pytest.mark.parametrize("name", SPELLINGS)
def test_whatever_torch_takes(name: str, backend: Backend) -> None:
    expected = SPELLINGS[name]()
    for _ in range(2):  # the second time the call is known
        with min_norm(backend=backend):
            got = SPELLINGS[name]()
        assert type(got) is type(expected)
        for mine, theirs in zip(*((got, expected) if isinstance(got, tuple) else ([got], [expected])), strict=True):
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs)


def test_a_compiled_block_around_code_that_is_not_compiled() -> None:
    @torch._dynamo.disable
    def library(x: Tensor) -> Tensor:
        return clamped(x)

    @torch.compile(backend="eager")
    def step(x: Tensor) -> Tensor:
        with min_norm():
            return library(x)

    torch._dynamo.reset()
    assert gradient(step, TIED).tolist() == EXPECTED
    assert gradient(step, TIED).tolist() == EXPECTED
    assert gradient(clamped, TIED).tolist() == NATIVE


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch, of an autograd.Function
def test_a_compiled_function_in_several_blocks() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(clamped, backend="aot_eager")
    with interop.as_of("torch 2.13"), min_norm(ties="inclusive"), min_norm():  # the innermost decides
        assert gradient(compiled, TIED).tolist() == EXPECTED
        with interop.as_of("torch 2.13"):  # in which some of these functions are torch's own, whatever is installed
            assert gradient(compiled, TIED).tolist() == gradient(clamped, TIED).tolist()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch, of an autograd.Function
def test_a_hook_at_which_the_graph_of_a_compiled_model_breaks() -> None:
    """Torch then reads ``requires_grad`` and ``grad_fn`` of tensors in the block, and each has its own answer."""
    model = torch.nn.Sequential(torch.nn.Hardtanh(0.0, 6.0), torch.nn.Identity())
    seen: list[Tensor] = []
    model[1].register_full_backward_hook(lambda _, __, cotangents: seen.extend(cotangents))
    torch._dynamo.reset()
    with min_norm(ties="inclusive"):
        y = torch.compile(model, backend="eager")(x := torch.tensor([0.0, 3.0, 6.0, 7.0], requires_grad=True))
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0, 1.0, 0.0]
    assert [cotangent.tolist() for cotangent in seen] == [[1.0] * 4]


of_each_backend = pytest.mark.parametrize("backend", ["torch", "jax"])


def gradient_at(function: Callable[[Tensor], Tensor], at: list[float]) -> list[float]:
    x = torch.tensor(at, requires_grad=True)
    function(x).sum().backward()
    return x.grad.tolist()


def test_the_mode_refuses_classes() -> None:
    """It did nothing to them, silently."""
    for decorate in (min_norm(), min_norm, min_norm(backend="jax")):
        with pytest.raises(TypeError, match="cannot decorate the class ReLU6"):
            decorate(torch.nn.ReLU6)


@of_each_backend
def test_modules_take_the_convention_of_the_block(backend: Any) -> None:
    """Converted ones ignored it."""
    module = interop.nn.Hardtanh(0.0, 6.0)
    assert gradient_at(module, [0.0, 3.0, 6.0]) == [0, 1, 0]
    with min_norm(ties="inclusive", backend=backend):
        assert gradient_at(module, [0.0, 3.0, 6.0]) == [1, 1, 1]
        with min_norm(backend=backend):
            assert gradient_at(module, [0.0, 3.0, 6.0]) == [0, 1, 0]
