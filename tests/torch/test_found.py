"""What testers found broken once in interop. Each test failed on the code as it was then."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import interop
import jaxclamp
from interop import min_norm
from interop._bridge import graph_registry, ops
from interop._bridge.bounded import Bounded

Tensor = torch.Tensor

# As torch traces a torch.autograd.Function, it makes an object of it, of which it warns itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
of_each_backend = pytest.mark.parametrize("backend", ["torch", "jax"])


@pytest.fixture
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def gradient(function: Callable[[Tensor], Tensor], at: list[float]) -> list[float]:
    x = torch.tensor(at, requires_grad=True)
    function(x).sum().backward()
    return x.grad.tolist()


# Reductions of integers.


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_amax_of_integers(name: str) -> None:
    """To find the dtype of the result, a scalar stood for the tensor, and no axis but the first was in range."""
    for shape in ((), (3,), (3, 2, 1, 2)):
        x = torch.arange(torch.Size(shape).numel()).reshape(shape)
        dims = [(), *range(-len(shape), len(shape)), *itertools.combinations(range(len(shape)), 2)]
        for dim, keepdim in itertools.product(dims, (False, True)):
            found, expected = (getattr(home, name)(x, dim, keepdim=keepdim) for home in (interop, torch))
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected), (shape, dim, keepdim)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
def test_amax_of_other_integers(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 127, 3], [5, 4, 127]]).to(dtype)
    assert torch.equal(interop.amax(x, 1), torch.amax(x, 1))
    assert torch.equal(interop.amin(x, dim=1), torch.amin(x, dim=1))


# The mode.


def test_the_mode_refuses_classes() -> None:
    """It did nothing to them, silently."""
    for decorate in (min_norm(), min_norm, min_norm(backend="jax")):
        with pytest.raises(TypeError, match="cannot decorate the class ReLU6"):
            decorate(torch.nn.ReLU6)


@of_each_backend
def test_modules_take_the_convention_of_the_block(backend: Any) -> None:
    """Converted ones ignored it."""
    module = interop.nn.Hardtanh(0.0, 6.0)
    assert gradient(module, [0.0, 3.0, 6.0]) == [0, 1, 0]
    with min_norm(ties="inclusive", backend=backend):
        assert gradient(module, [0.0, 3.0, 6.0]) == [1, 1, 1]
        with min_norm(backend=backend):
            assert gradient(module, [0.0, 3.0, 6.0]) == [0, 1, 0]


def inclusive_inside(x: Tensor) -> Tensor:
    with min_norm(ties="inclusive"):
        inner = x.clamp(0.0, 6.0)
    return inner + 10 * x.clamp(0.0, 6.0)


@pytest.mark.parametrize("reentrant", [False, True])
@of_each_backend
def test_checkpoint_of_two_conventions(backend: Any, reentrant: bool) -> None:
    """The reentrant one recomputed all of it as inclusive."""

    def function(x: Tensor) -> Tensor:
        with min_norm(backend=backend):
            return checkpoint(inclusive_inside, x, use_reentrant=reentrant)

    assert gradient(function, [0.0, 3.0, 6.0]) == [1, 11, 1]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", ["torch", "jax", "nn"])
def test_checkpoint_sequential(inside: Any, reentrant: bool) -> None:
    """A KeyError 'ctx', where it was looked for in a frame that has none."""
    layers = torch.nn.Sequential(*[torch.nn.Hardtanh(0.0, 6.0), torch.nn.Hardtanh(-6.0, 3.0)] * 2)
    if inside == "nn":
        interop.nn.convert(layers)

    def function(x: Tensor) -> Tensor:
        with torch.no_grad() if inside == "nn" else min_norm(backend=inside), torch.enable_grad():
            return checkpoint_sequential(layers, 2, x, use_reentrant=reentrant)

    assert gradient(function, [0.0, 1.0, 3.0, 6.0]) == [0, 1, 0, 0]


# Where torch traces.

X = torch.tensor([[-1.0, 0.5, 3.0, 2.0]])

IN_PLACE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], list[float]]] = {
    "clamp_": (lambda x: torch.clamp_(x, 0.0, 1.0), lambda x: interop.clamp(x, 0.0, 1.0), [0, 0.5, 1]),
    "clip_": (lambda x: torch.clip_(x, 0.0, 1.0), lambda x: interop.clamp(x, 0.0, 1.0), [0, 0.5, 1]),
    "Tensor.clamp_": (lambda x: x.clamp_(0.0, 1.0), lambda x: interop.clamp(x, 0.0, 1.0), [0, 0.5, 1]),
    "clamp_min_": (lambda x: torch.clamp_min_(x, 0.0), lambda x: interop.clamp_min(x, 0.0), [-1, 0, 1]),
    "clamp_max_": (lambda x: torch.clamp_max_(x, 0.0), lambda x: interop.clamp_max(x, 0.0), [-1, 0, 1]),
    "selu_": (torch.selu_, interop.selu, [-1, 0, 1]),
    "leaky_relu_": (lambda x: functional.leaky_relu_(x, 2.0), lambda x: interop.leaky_relu(x, 2.0), [-1, 0, 1]),
    "elu_": (lambda x: functional.elu_(x, 2.0), lambda x: interop.elu(x, 2.0), [-1, 0, 1]),
    "hardtanh_": (lambda x: functional.hardtanh_(x), lambda x: interop.hardtanh(x), [-1, 0, 1]),
    "relu_": (torch.relu_, interop.relu, [-1, 0, 1]),
    "threshold_": (lambda x: functional.threshold_(x, 0.0, 1.0), lambda x: interop.threshold(x, 0.0, 1.0), [-1, 0, 1]),
    "hardswish": (functional.hardswish, interop.hardswish, [-3, 0, 3]),
}


@pytest.mark.usefixtures("fresh_dynamo")
@of_each_backend
def test_in_place_forms_in_a_compiled_function(backend: Any) -> None:
    """They had torch's own gradients, silently: of ``clamp_(x, 0, 1)`` at 0 it is 1. One graph has all of them."""

    def all_forms(*given: Tensor) -> tuple[Tensor, ...]:
        with min_norm(backend=backend):
            return tuple(form(1 * x) for (form, _, _), x in zip(IN_PLACE.values(), given, strict=True))

    given = [torch.tensor(at, dtype=torch.float32, requires_grad=True) for _, _, at in IN_PLACE.values()]
    results = compiled(all_forms)(*given)
    found = torch.autograd.grad([result.sum() for result in results], given)
    for name, of_graph, x in zip(IN_PLACE, found, given, strict=True):
        expected = torch.autograd.grad(IN_PLACE[name][1](x).sum(), x)[0]
        assert torch.allclose(of_graph, expected), (name, of_graph, expected)


WITH_NONE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "clamp": lambda home, x: home.clamp(x, None, 1.0),
    "clamp by keyword": lambda home, x: home.clamp(x, min=0.0, max=None),
    "clamp_": lambda home, x: home.clamp_(x.clone(), None, 1.0),
    "amax": lambda home, x: home.amax(x, None if home is interop else ()),
    "max_pool1d": lambda home, x: (functional if home is torch else home).max_pool1d(x, 2, None),
    "method": lambda home, x: x.clamp(min=0.0, max=None),
}


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("backend", ["none", "torch", "jax"])
def test_none_in_a_compiled_function(backend: Any) -> None:
    """Dynamo refuses None among the arguments of what it does not look into."""

    def all_calls(home: Any, x: Tensor) -> list[Tensor]:
        return [call(home, x) for call in WITH_NONE.values()]

    def function(x: Tensor) -> list[Tensor]:
        if backend == "none":
            return all_calls(interop, x)
        with min_norm(backend=backend):
            return all_calls(torch, x)

    for name, found, expected in zip(WITH_NONE, compiled(function)(X), all_calls(torch, X), strict=True):
        assert torch.equal(found, expected), name


OVERLOADS: list[Callable[[Tensor], Any]] = [
    *(torch.max, torch.min, lambda x: x.max(), lambda x: x.min()),
    *(lambda x: torch.max(x, 1)[0], lambda x: x.min(1)[0], lambda x: torch.max(x, dim=0, keepdim=True).values),
    *(lambda x: torch.max(x, 0 * x), lambda x: torch.min(x, other=0 * x), lambda x: x.max(0 * x)),
]


@pytest.mark.usefixtures("fresh_dynamo")
@of_each_backend
def test_overloads_in_a_compiled_function(backend: Any) -> None:
    """Dynamo did not know a method that tells which of the functions called torch.max is meant."""

    def function(x: Tensor) -> list[Tensor]:
        with min_norm(backend=backend):
            return [call(x) for call in OVERLOADS]

    for n, found in enumerate(compiled(function)(X)):
        assert torch.equal(found, OVERLOADS[n](X)), n


@pytest.mark.usefixtures("fresh_dynamo")
def test_numbers_in_a_compiled_function() -> None:
    """One graph for the first number, and one for all others; each had its own. No call leaves anything behind."""
    counter, named = CompileCounterWithBackend("aot_eager"), []
    function = torch.compile(lambda x, bound: interop.clamp(x, max=bound), fullgraph=True, backend=counter)
    for bound in [k / 7 for k in range(20)]:
        assert torch.equal(function(X, bound), interop.clamp(X, max=bound))
        named.append(len(graph_registry._CALLS))
    assert counter.frame_count == 2
    assert named[2] == named[-1]
    for bound in (-0.0, float("inf"), float("nan"), -float("inf"), 0.0):
        found, expected = function(X, bound), interop.clamp(X, max=bound)
        assert found.numpy().tobytes() == expected.numpy().tobytes(), bound
    assert counter.frame_count <= 5  # torch makes graphs of its own for NaN, which is not equal to itself


def of_interop(x: Tensor) -> Tensor:
    return interop.clamp(2 * x, 0.0, 1.0).sum() + interop.amax(x, 0)


def of_torch(x: Tensor) -> Tensor:
    with min_norm():
        return torch.clamp(2 * x, 0.0, 1.0).sum() + x.max(0).values


def of_torch_in_jax(x: Tensor) -> Tensor:
    with min_norm(backend="jax"):
        return torch.clamp(2 * x, 0.0, 1.0).sum() + x.max(0).values


@pytest.mark.parametrize("function", [of_interop, of_torch, of_torch_in_jax], ids=lambda f: f.__name__)
def test_fake_tensors(function: Callable[[Tensor], Tensor]) -> None:
    with FakeTensorMode():
        result = function(torch.ones(3))
        pooled = interop.max_pool1d(torch.ones(2, 8), 2)
    assert (type(result).__name__, result.shape, result.dtype) == ("FakeTensor", (), torch.float32)
    assert pooled.shape == (2, 4)


@pytest.mark.parametrize("tracing", ["fake", "real", "symbolic"])
@pytest.mark.parametrize("function", [of_interop, of_torch, of_torch_in_jax], ids=lambda f: f.__name__)
def test_make_fx(function: Callable[[Tensor], Tensor], tracing: str) -> None:
    """The graph computes the op. It held the result for the example as a constant."""
    graph = make_fx(function, tracing_mode=tracing)(torch.tensor([0.5, 2.0]))
    called = [node for node in graph.graph.nodes if str(node.target) == "jaxclamp.call.default"]
    assert len(called) == (0 if function is of_torch else 2)
    for x in ([-1.0, 0.25], [3.0, 0.0], *([[0.1, 0.2, 0.3]] if tracing == "symbolic" else [])):
        assert graph(torch.tensor(x)) == function(torch.tensor(x)), x


# The plans of calls.

DERIVATIVES: dict[str, Callable[..., Tensor]] = {
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,))[1],
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](x)[0],
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "grad": lambda f, x: torch.func.vmap(torch.func.grad(f))(x),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_number_in_the_first_call_under_a_transformation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor for the number, made to ask torch for the dtype, was one that the transformation watched."""
    monkeypatch.setattr(ops._IMPLEMENTED[jaxclamp.clamp_min], "_plans", Bounded(1))
    found, expected = (DERIVATIVES[name](lambda x, h=h: h.clamp_min(x, 0.7), X[0]) for h in (interop, torch))
    assert torch.equal(found, expected)


def test_calls_leave_nothing_behind() -> None:
    """Meta tensors and numbers had a name each, for graphs that nobody made."""
    before = len(graph_registry._CALLS), len(graph_registry._CALL_NAMES)
    for k in range(50):
        interop.clamp(torch.ones(k + 1, device="meta"), 0.0, k / 3)
        interop.clamp(torch.ones(2), 0.0, k / 3)
    assert (len(graph_registry._CALLS), len(graph_registry._CALL_NAMES)) == before


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one for each kind of call."""
    op = ops._IMPLEMENTED[jaxclamp.amax]
    assert isinstance(op._plans, Bounded)
    monkeypatch.setattr(op, "_plans", Bounded(3))
    x = torch.arange(24.0).reshape(2, 3, 4)
    for _, dims in itertools.product(range(2), itertools.permutations(range(3), 2)):
        assert torch.equal(interop.amax(x, dims), torch.amax(x, dims))
        assert len(op._plans) <= 3


# What torch allows.


def test_jax_told_to_be_strict() -> None:
    """Torch broadcasts and promotes, whatever JAX has been told."""
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        assert interop.maximum(torch.ones(2, 3), torch.zeros(3)).tolist() == [[1, 1, 1]] * 2
        half, x = torch.ones(3, dtype=torch.float16), torch.zeros(2, 3, requires_grad=True)
        clamped = interop.clamp(x, half, 2.0)
        clamped.sum().backward()
        assert interop.leaky_relu(half, 0.5).dtype == torch.float16
        assert interop.prelu(torch.ones(2, 3), torch.ones(3)).shape == (2, 3)
    assert clamped.dtype == torch.float32
    assert x.grad.tolist() == [[0, 0, 0]] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_numbers_leave_the_dtype_of_the_tensor(dtype: torch.dtype) -> None:
    """Where torch takes tensors alone: a number there is none of the default dtype."""
    x = torch.tensor(-1.0, dtype=dtype)
    assert torch.equal(interop.prelu(x, 0.25), torch.tensor(-0.25, dtype=dtype))
    assert torch.equal(interop.maximum(x, 0.25), torch.tensor(0.25, dtype=dtype))


@pytest.mark.parametrize(("shape", "weights"), [((0, 3), 3), ((2, 0), 0), ((2, 0), 1), ((2, 0, 4), 0), ((0,), 1)])
def test_prelu_of_no_elements(shape: tuple[int, ...], weights: int) -> None:
    """It could not reshape them."""
    results = []
    for prelu in (interop.prelu, interop.native.prelu, functional.prelu):
        x, weight = torch.ones(shape, requires_grad=True), torch.ones(weights, requires_grad=True)
        value = prelu(x, weight)
        results.append([value.detach(), *torch.autograd.grad(value.sum(), (x, weight))])
    for *found, expected in zip(*results, strict=True):
        assert all(f.dtype == expected.dtype and torch.equal(f, expected) for f in found)


@pytest.mark.parametrize("home", [interop, interop.native], ids=lambda home: home.__name__)
def test_number_on_cpu_beside_a_tensor_elsewhere(home: Any) -> None:
    x, number = torch.ones(2, 3, device="meta"), torch.tensor(1.0)
    for call in (
        lambda home: home.maximum(x, number),
        lambda home: home.fmin(x, number),
        lambda home: home.clamp(x, number, torch.tensor(2.0)),
        lambda home: home.clamp(x, max=number),
    ):
        found, expected = call(home), call(torch)
        assert (found.device, found.shape, found.dtype) == (expected.device, expected.shape, expected.dtype)


def test_tensors_on_two_devices_are_refused() -> None:
    with pytest.raises((RuntimeError, ValueError), match="different devices"):
        interop.maximum(torch.ones(2, 3, device="meta"), torch.ones(3))


@pytest.mark.parametrize("home", [interop, interop.native], ids=lambda home: home.__name__)
def test_pools_keep_channels_last(home: Any) -> None:
    numbers = torch.arange(2 * 3 * 4 * 6.0).reshape(2, 3, 4, 6)
    for window in ((2,), ((1, 3), 1), (3, 2, 1)):
        found = []
        for pool in (home.max_pool2d, functional.max_pool2d):
            x = numbers.to(memory_format=torch.channels_last).requires_grad_()
            value = pool(x, *window)
            found.append((value.detach(), torch.autograd.grad((value**2).sum(), x)[0]))
        for got, want in zip(*found, strict=True):
            assert torch.equal(got, want)
            assert got.stride() == want.stride()
            assert got.is_contiguous(memory_format=torch.channels_last)
    assert home.max_pool2d(numbers, 2).is_contiguous()


# Beside torch's own numbers.

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def ordinals(x: Tensor) -> Tensor:
    """The numbers of the floats in ascending order: the difference of two is that in units in the last place."""
    width = x.element_size()
    bits = x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[width]).to(torch.int64)
    return torch.where(bits < 0, -(2 ** (8 * width - 1)) - bits, bits)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_hardswish_at_infinities(dtype: torch.dtype) -> None:
    """To the bit: minus infinity times 0 is NaN."""
    largest = torch.finfo(dtype).max
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 3.0, -3.0, -largest], dtype=dtype)
    found, expected = interop.hardswish(x), functional.hardswish(x)
    unknown = [False, True, True, False, False, False, False, False]
    assert found.isnan().tolist() == expected.isnan().tolist() == unknown
    known = ~torch.tensor(unknown)
    assert torch.equal(ordinals(found[known]), ordinals(expected[known]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_hardswish_elsewhere(dtype: torch.dtype) -> None:
    """Torch divides the product by 6, XLA multiplies by a sixth: two units in the last place at most."""
    info = torch.finfo(dtype)
    if dtype.itemsize == 2:
        x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)  # all numbers
    else:
        x = 3 * torch.randn(100_000, dtype=dtype, generator=torch.Generator().manual_seed(0))
    x = x[(x.abs() > 4 * info.tiny) & (x.abs() < info.max / 8)]  # no subnormal products, and none that overflow
    found, expected = interop.hardswish(x), functional.hardswish(x)
    is_flushed = expected.abs() < info.tiny
    assert int((ordinals(found) - ordinals(expected)).abs()[~is_flushed].max()) <= 2
