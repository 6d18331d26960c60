"""Wrapped functions where torch traces instead of computing: torch.compile, torch.export, meta tensors."""

import shutil
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch._dynamo
import torch._dynamo.testing
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import interop
from interop import TORCH_OPS, min_norm, wrap_for_torch
from interop._bridge import graph
from jaxclamp import OPS, Op
from tests.support.calls import arguments
from tests.support.representatives import represented

# As torch traces a torch.autograd.Function, it makes an object of it, of which it warns itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

Tensor = torch.Tensor
TIED = torch.tensor([-1.0, 0.0, 3.0, 6.0, 7.0])


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], backend: str = "aot_eager", **options: Any) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, backend=backend, **options)
    return compiled


def clamped(x: Tensor) -> Tensor:
    return interop.clamp(2 * x, 0.0, 6.0)


def value_and_gradient(function: Callable[[Tensor], Any], x: Tensor) -> tuple[Any, Tensor]:
    x = x.detach().clone().requires_grad_()
    value = function(x)
    return value, torch.autograd.grad((value[0] if isinstance(value, tuple) else value).sum(), x)[0]


@pytest.mark.parametrize("op", represented(OPS.values()))
def test_ops_compiled(op: Op) -> None:
    x, *rest = arguments(op)
    ours = TORCH_OPS[op.name]

    def function(x: Tensor) -> Any:
        return ours(x, *rest)

    (eager, expected), (value, gradient) = (value_and_gradient(f, x) for f in (function, compiled(function)))
    assert type(value) is type(eager)
    for got, want in zip(*((value, eager) if isinstance(value, tuple) else ([value], [eager])), strict=True):
        assert torch.equal(got, want)
    assert torch.equal(gradient, expected)


@pytest.mark.thorough
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch itself
def test_inductor() -> None:
    for got, want in zip(
        value_and_gradient(compiled(clamped, "inductor"), TIED), value_and_gradient(clamped, TIED), strict=True
    ):
        assert torch.equal(got, want)


def loss(params: dict[str, Any], x: Any, scale: float = 1.0, *, power: int = 1) -> dict[str, Any]:
    hidden = jnp.tanh(x[0] @ params["w"] + params["b"][0])
    return {"loss": scale * (hidden**power).sum(), "best": jnp.argmax(hidden, 1), "both": [hidden, x[0]]}


def test_trees_static_arguments_and_integer_outputs() -> None:
    wrapped = wrap_for_torch(loss)

    def function(w: Tensor, b: Tensor, x: Tensor) -> Any:
        result = wrapped({"w": w, "b": (b,)}, [x], 2.5, power=2)
        return result["loss"] + result["both"][0].sum(), result["best"]

    generator = torch.Generator().manual_seed(0)
    w, b, x = (torch.randn(shape, generator=generator) for shape in ((3, 2), (2,), (4, 3)))
    results = []
    for f in (function, compiled(function)):
        leaves = [w.clone().requires_grad_(), b.clone().requires_grad_()]
        total, best = f(*leaves, x)
        results.append([total, best, *torch.autograd.grad(total, leaves)])
        assert not best.requires_grad
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def pooled(x: Tensor) -> Tensor:
    return clamped(x).sum() + interop.max_with_indices(x, 0).values + interop.max_pool1d(x[None], 3, 2, 1).sum()


@pytest.mark.thorough
@pytest.mark.parametrize(("dynamic", "graphs"), [(None, 2), (True, 1)])
def test_one_graph_for_all_sizes(dynamic: bool | None, graphs: int) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    function = compiled(pooled, counter, dynamic=dynamic)
    for size in range(3, 25):
        x = torch.arange(size) / 2.0
        assert torch.equal(value_and_gradient(function, x)[1], value_and_gradient(pooled, x)[1])
    assert counter.frame_count == graphs


def test_a_graph_for_each_size_that_is_looked_at() -> None:
    function = compiled(wrap_for_torch(lambda x: 2 * x if x.shape[0] > 3 else x), dynamic=True)
    assert [function(torch.ones(size)).sum() for size in (2, 3, 4, 5)] == [2, 3, 8, 10]


def test_functions_compiled_as_they_are() -> None:
    """They share the code of their wrapper, which torch.compile must not take for one function."""
    other = wrap_for_torch(lambda x: 3 * x)
    for function in (interop.relu, interop.abs, other, wrap_for_torch(lambda x: x)):
        assert torch.equal(compiled(function)(TIED), function(TIED))
    choose = compiled(lambda x, function: function(x))
    assert torch.equal(choose(TIED, interop.abs), choose(-TIED, interop.abs))
    assert torch.equal(choose(TIED, other), 3 * TIED)


def test_several_bounds() -> None:
    function = compiled(lambda x, bound: interop.clamp(x, 0.0, bound))
    assert [function(TIED, bound).max().item() for bound in (1.0, 2.0, 3.0)] == [1, 2, 3]


def test_compiled_once_for_one_shape() -> None:
    counter = torch._dynamo.testing.CompileCounter()
    function = compiled(clamped, counter)
    for _ in range(3):
        function(TIED.clone())
    assert counter.frame_count == 1


def test_64_bits() -> None:
    exact = torch.tensor([2**40 + 3, 5])
    assert torch.equal(compiled(lambda x: interop.clamp(x, 0, 2**41))(exact), exact)
    x = torch.tensor([1 + 2**-40], dtype=torch.float64)
    assert torch.equal(compiled(clamped)(x), 2 * x)


def test_input_changed_before_the_backward_pass() -> None:
    x = TIED.clone().requires_grad_()
    y = compiled(interop.relu)(x)
    with torch.no_grad():
        x.fill_(-1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("size", [1_000, 300_000])
def test_input_overwritten_right_after_a_call(size: int) -> None:
    function = compiled(clamped)
    for _ in range(10):
        x = torch.full((size,), 2.0)
        y = function(x)
        x.fill_(100.0)
        assert (y == 4).all()


def test_in_place_inside() -> None:
    def function(x: Tensor) -> Tensor:
        y = 2 * x
        interop.clamp_(y, 0.0, 6.0)
        return interop.relu6(y, inplace=True)

    for got, want in zip(value_and_gradient(compiled(function), TIED), value_and_gradient(function, TIED), strict=True):
        assert torch.equal(got, want)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch itself, as it traces one
def test_under_min_norm() -> None:
    native = compiled(lambda x: x.maximum(torch.zeros(())).minimum(torch.tensor(6.0)))

    def inside(x: Tensor) -> Tensor:
        with min_norm():
            return x.clamp(0.0, 6.0)

    for _ in range(2):
        assert value_and_gradient(native, TIED)[1].tolist() == [0, 0.5, 1, 0.5, 0]
        with min_norm():
            assert value_and_gradient(native, TIED)[1].tolist() == [0, 0, 1, 0, 0]
        assert value_and_gradient(compiled(inside), TIED)[1].tolist() == [0, 0, 1, 0, 0]
    module = torch.nn.Sequential(torch.nn.Hardtanh(0.0, 6.0))
    interop.nn.convert(module)
    assert value_and_gradient(compiled(module), TIED)[1].tolist() == [0, 0, 1, 0, 0]


def test_vmap_inside() -> None:
    x = torch.stack([TIED, -TIED])
    assert torch.equal(compiled(torch.func.vmap(clamped))(x), clamped(x))


def tangent(x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        moved: Tensor = forward_ad.unpack_dual(clamped(forward_ad.make_dual(x, x))).tangent
    return moved


def test_forward_mode_of_fake_tensors() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert tangent(TIED).shape == TIED.shape


@pytest.mark.filterwarnings("ignore")  # of the tracer of torch.func.linearize, about itself
@pytest.mark.parametrize(
    "function", [interop.relu6, lambda x: interop.maximum(x, torch.zeros(5)), wrap_for_torch(jnp.sin)]
)
def test_linearize(function: Callable[[Tensor], Tensor]) -> None:
    value, moved = torch.func.linearize(function, TIED)
    for direction in (torch.ones(5), torch.arange(5.0)):
        expected = torch.func.jvp(function, (TIED,), (direction,))
        assert all(map(torch.equal, (value, moved(direction)), expected))


def test_forward_mode_of_meta_tensors() -> None:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(TIED.to("meta"), TIED.to("meta"))
        tangent = torch.autograd.forward_ad.unpack_dual(clamped(dual)).tangent
    assert (tangent.device.type, tangent.shape) == ("meta", TIED.shape)


class Module(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return clamped(x) + interop.amax(x, 0)


def test_export_with_a_dynamic_size() -> None:
    program = torch.export.export(Module(), (TIED,), dynamic_shapes={"x": {0: torch.export.Dim("n", min=2)}})
    longer = torch.arange(9.0)
    assert torch.equal(program.module()(longer), Module()(longer))


def test_traces_of_torchscript_are_refused() -> None:
    with (
        pytest.raises(RuntimeError, match=r"relu: torch\.jit\.trace would record its result as a constant"),
        pytest.warns((DeprecationWarning, FutureWarning), match="torch.jit.trace"),
    ):
        torch.jit.trace(interop.relu, TIED)


def test_signs_of_zero_are_told_apart() -> None:
    wrapped = wrap_for_torch(lambda x, b: x / b)
    found = []
    for b in (0.0, -0.0):
        torch._dynamo.reset()
        found.append(compiled(lambda x, b=b: wrapped(x, b))(torch.ones(())).item())
    assert found == [float("inf"), -float("inf")]


def test_export() -> None:
    program = torch.export.export(Module(), (TIED,))
    exported = program.module()
    for got, want in zip(value_and_gradient(exported, TIED), value_and_gradient(Module(), TIED), strict=True):
        assert torch.equal(got, want)


def test_strict_export_is_refused() -> None:
    with pytest.raises(Exception, match=r"clamp: torch\.export with strict=True cannot record it; pass strict=False"):
        torch.export.export(Module(), (TIED,), strict=True)


@pytest.mark.thorough
def test_compiled_backward_pass_of_an_eager_call() -> None:
    x = TIED.clone().requires_grad_()
    y = interop.clamp(x, 0.0, 6.0).sum()
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(y.backward, backend="aot_eager")()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_compiled_backward_pass_beside_a_constant() -> None:
    x = TIED.clone().requires_grad_()
    y = interop.maximum(torch.zeros(2, 5), x).sum()
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(y.backward, backend="aot_eager")()
    assert x.grad is not None
    assert x.grad.tolist() == (2.0 * (TIED > 0)).tolist()


def test_graph_of_another_process_is_refused() -> None:
    with pytest.raises(RuntimeError, match="this graph calls 'clamp', a function of the process that traced it"):
        torch.ops.jaxclamp.call("clamp 0a1b", [TIED], [])


def test_opcheck() -> None:
    program = torch.export.export(Module(), (TIED,))
    key = next(node.args[0] for node in program.graph.nodes if "jaxclamp.call" in str(node.target))
    for requires_grad in (False, True):
        outcome = torch.library.opcheck(
            torch.ops.jaxclamp.call.default, (key, [TIED.clone().requires_grad_(requires_grad)], [])
        )
        assert set(outcome.values()) == {"SUCCESS"}


# Meta tensors.


@pytest.mark.parametrize("op", represented(OPS.values()))
def test_meta(op: Op) -> None:
    """Shapes, dtypes and gradients without data, as of the op on data."""
    x, *rest = arguments(op, torch.float32)
    there = [a.to("meta") if isinstance(a, Tensor) else a for a in rest]
    on_cpu, shape = value_and_gradient(lambda x: TORCH_OPS[op.name](x, *rest), x)
    on_meta, gradient = value_and_gradient(lambda x: TORCH_OPS[op.name](x, *there), x.to("meta"))
    pairs = zip(*((on_cpu, on_meta) if isinstance(on_cpu, tuple) else ([on_cpu], [on_meta])), strict=True)
    for real, meta in (*pairs, (shape, gradient)):
        assert meta.is_meta
        assert (meta.shape, meta.dtype) == (real.shape, real.dtype)


def test_meta_beside_another_device() -> None:
    with pytest.raises(ValueError, match="maximum: the tensors are on different devices"):
        interop.maximum(torch.ones(2, device="meta"), torch.ones(2))


def test_meta_calls_leave_nothing_behind() -> None:
    x = torch.ones(3, device="meta")
    scaled = wrap_for_torch(lambda x, scale: scale * x)

    def call() -> None:
        clamped(x)
        scaled(x, np.arange(3.0))
        scaled(x, float("nan"))

    call()
    before = len(graph._CALLS)
    for _ in range(5):
        call()
    assert len(graph._CALLS) == before


of_each_backend = pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.thorough)])

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


@pytest.mark.parametrize("backend", ["none", "torch", pytest.param("jax", marks=pytest.mark.thorough)])
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


@of_each_backend
def test_overloads_in_a_compiled_function(backend: Any) -> None:
    """Dynamo did not know a method that tells which of the functions called torch.max is meant."""

    def function(x: Tensor) -> list[Tensor]:
        with min_norm(backend=backend):
            return [call(x) for call in OVERLOADS]

    for n, found in enumerate(compiled(function)(X)):
        assert torch.equal(found, OVERLOADS[n](X)), n


def test_numbers_in_a_compiled_function() -> None:
    """One graph for the first number, and one for all others; each had its own. No call leaves anything behind."""
    counter, named = CompileCounterWithBackend("aot_eager"), []
    function = torch.compile(lambda x, bound: interop.clamp(x, max=bound), fullgraph=True, backend=counter)
    for bound in [k / 7 for k in range(20)]:
        assert torch.equal(function(X, bound), interop.clamp(X, max=bound))
        named.append(len(graph._CALLS))
    assert counter.frame_count == 2
    assert named[2] == named[-1]
    for bound in (-0.0, float("inf"), float("nan"), -float("inf"), 0.0):
        found, expected = function(X, bound), interop.clamp(X, max=bound)
        assert found.numpy().tobytes() == expected.numpy().tobytes(), bound
    assert counter.frame_count <= 5  # torch makes graphs of its own for NaN, which is not equal to itself


def test_numbers_of_a_wrapped_function_in_a_compiled_one() -> None:
    counter, wrapped = CompileCounterWithBackend("eager"), interop.wrap_for_torch(lambda x, factor: factor * x)
    function = torch.compile(wrapped, dynamic=True, fullgraph=True, backend=counter)
    for factor in (0.5, 0.75, 1.25):
        assert torch.equal(function(X, factor), factor * X)
    assert counter.frame_count == 1


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
