"""Converted models beyond Python: compiled, exported, traced, in other processes, and without an XLA backend."""

import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch._inductor import metrics
from torch.autograd import forward_ad
from torch.distributed import pipelining
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import interop
from interop import min_norm, native
from interop._transforms.modules import MODULES
from interop.native import RIGHT_IN_TORCH

Tensor = torch.Tensor
nn = torch.nn

# torch itself, when it looks into an autograd.Function or writes a graph
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit"),
]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.Hardtanh(0.0, 6.0),
        nn.MaxPool2d(2),
        nn.SELU(),
        nn.LeakyReLU(2.0),
        nn.Flatten(),
        nn.PReLU(),
    )


def converted() -> nn.Sequential:
    model = network()
    interop.nn.convert(model)
    return model


def images() -> Tensor:
    """Small integers, so that windows have ties."""
    return torch.randint(-1, 2, (2, 1, 6, 6), generator=torch.Generator().manual_seed(0)).float()


class Functions(nn.Module):
    """Calls of functions that the mode replaces, by functions and by methods, overwriting too."""

    def forward(self, x: Tensor) -> Tensor:
        clamped = torch.clamp(2 * x, 0.0, 6.0) + torch.maximum(x, torch.zeros_like(x))
        return functional.elu(clamped, 2.0) + (1 * x).clamp_(min=-1.0) + x.amax(-1, keepdim=True)


TIED = torch.tensor([[-1.0, 0.0, 0.0, 3.0], [-2.0, -0.5, 1.0, 1.0]])


def value_and_gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = function(x)
    return y.detach(), torch.autograd.grad(y.sum(), x)[0]


@pytest.mark.parametrize("ties", [None, pytest.param("inclusive", marks=pytest.mark.thorough)])
def test_compiled_without_a_break(ties: Any) -> None:
    """``fullgraph=True`` refuses what is not in the graph."""
    torch._dynamo.reset()
    model = network()
    interop.nn.convert(model, ties=ties)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for found, expected in zip(
        value_and_gradient(compiled, images()), value_and_gradient(model, images()), strict=True
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.thorough)])
def test_compiled_under_the_mode(backend: Any) -> None:
    torch._dynamo.reset()
    model = Functions()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with min_norm(backend=backend):
        found, expected = value_and_gradient(compiled, TIED), value_and_gradient(model, TIED)
    assert all(map(torch.equal, found, expected))
    assert not torch.equal(found[1], value_and_gradient(model, TIED)[1])


def clamps(x: Tensor, low: float, high: float) -> Tensor:
    return (
        native.clamp(x, low, high) + native.clamp_min(x, high) + native.clamp_max(x, low) + native.clamp_(1 * x, 0, 3)
    )


def bends(x: Tensor, slope: float, width: float) -> Tensor:
    bent = native.leaky_relu(x, slope) + native.elu(x, slope)
    return bent + native.softshrink(x, width) + native.hardshrink(x, width)


@pytest.mark.parametrize("function", [pytest.param(clamps, marks=pytest.mark.thorough), bends])
def test_numbers_as_arguments_of_a_compiled_function(function: Callable[..., Tensor]) -> None:
    """With ``dynamic=True`` the graph has symbols for them."""
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for numbers in ((-1.0, 3.0), (2.5, 0.0)):
        found, expected = (value_and_gradient(lambda x, f=f: f(x, *numbers), TIED) for f in (compiled, function))  # noqa: B023
        assert all(map(torch.equal, found, expected))


class ClampedByElements(nn.Module):
    """The bounds are known when the graph runs."""

    def forward(self, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return clamps(x, low.item(), high.item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, pytest.param(torch.float16, marks=pytest.mark.thorough)])
def test_bounds_that_are_elements_of_tensors(dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    model, bounds = ClampedByElements(), (torch.tensor(0, dtype=dtype), torch.tensor(1, dtype=dtype))
    x = TIED if dtype.is_floating_point else TIED.half()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        found, expected = (value_and_gradient(lambda x, f=f: f(x, *bounds), x) for f in (compiled, model))
    assert all(map(torch.equal, found, expected))
    assert torch.equal(torch.export.export(model, (x, *bounds)).module()(x, *bounds), expected[0])


def tangent(x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        moved: Tensor = forward_ad.unpack_dual(native.maximum(dual, torch.zeros_like(x))).tangent
    return moved


def test_forward_mode_in_a_compiled_function_is_refused_or_left_to_python() -> None:
    """Rather than that of torch at ties; `torch.func.jvp` works."""
    torch._dynamo.reset()
    with pytest.raises(Exception, match="forward-mode"):
        torch.compile(tangent, fullgraph=True, backend="eager")(TIED)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(tangent, backend="eager")(TIED), (TIED > 0).float())


def test_no_grad_within_a_compiled_function() -> None:
    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            value = native.maximum(x, torch.zeros_like(x))
        return value + native.maximum(x, torch.zeros_like(x))

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, value_and_gradient(compiled, TIED), value_and_gradient(function, TIED)))


@pytest.mark.parametrize(
    "calling",
    [
        lambda x: torch.cond(x.sum() > 0, lambda x: x.clamp(0.0, 3.0), lambda x: 1 * x, (x,)),
        lambda x: checkpoint(lambda x: x.clamp(0.0, 3.0), x, use_reentrant=False),
    ],
    ids=["cond", "checkpoint"],
)
def test_functions_that_operators_call_in_a_graph_are_refused_in_a_block(calling: Callable[[Tensor], Tensor]) -> None:
    torch._dynamo.reset()
    text = "a block of interop does not reach into functions"
    if torch.__version__ < "2.12":  # there Dynamo shows the type alone of an error within torch.cond
        text += "|raised exception ExceptionVariable\\(<class 'NotImplementedError'>\\)"
    with min_norm(), pytest.raises(Exception, match=text):
        torch.compile(calling, fullgraph=True, backend="aot_eager")(TIED)


class Extrema(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return native.maximum(native.amax(x, 1), torch.func.vmap(lambda x: native.maximum(x, x))(x[0]))


@pytest.mark.parametrize("strict", [True, False])
def test_export_records_the_functions_of_torch_alone(strict: bool) -> None:
    program = torch.export.export(Extrema(), (TIED[:, :2],), strict=strict)
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert [name for name in called if name.startswith("aten")] == [
        "aten.amax.default",
        "aten.select.int",
        "aten.maximum.default",
        "aten.maximum.default",
    ]


def pools(x: Tensor) -> Tensor:
    """Windows that overlap, with padding and steps, and as many as are asked for."""
    return native.max_pool2d(x, 3, 2, (1, 0), (1, 2)).sum() + native.adaptive_max_pool2d(x, (2, 1)).sum()


@pytest.mark.thorough
def test_pools_compiled() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(pools, fullgraph=True, backend="aot_eager")
    for found, expected in zip(*(value_and_gradient(f, images()) for f in (compiled, pools)), strict=True):
        torch.testing.assert_close(found, expected)


def test_what_a_compiled_pool_returns_may_be_overwritten() -> None:
    def function(x: Tensor) -> Tensor:
        return (native.max_pool2d(x, 2).mul_(2) * x[..., ::2, ::2]).sum()

    torch._dynamo.reset()
    x = images()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for found, expected in zip(*(value_and_gradient(f, x) for f in (compiled, function)), strict=True):
        torch.testing.assert_close(found, expected)


needs_a_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++"))), reason="inductor needs a C++ compiler"
)


def kernels(function: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """How many inductor makes for the forward and the backward pass."""
    torch._dynamo.reset()
    metrics.reset()
    value_and_gradient(torch.compile(function, fullgraph=True), x)
    count: int = metrics.generated_kernel_count
    return count


@pytest.mark.thorough
@needs_a_compiler
def test_as_many_kernels_as_the_native_model() -> None:
    """Inductor fuses what takes the place of torch's functions as well."""
    chain = nn.Sequential(nn.Hardtanh(0.0, 6.0), nn.ReLU6(), nn.LeakyReLU(2.0), nn.SELU())
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))

    def function(x: Tensor) -> Tensor:
        return torch.maximum(chain(x).clamp(x.detach() - 1, torch.ones(8)), torch.zeros(8)).clamp_min(0.5)

    of_torch = kernels(function, x)
    interop.nn.convert(chain)
    with min_norm():
        assert kernels(function, x) == of_torch > 0


@pytest.mark.thorough
@needs_a_compiler
@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="inductor of torch 2.11 fuses less: 5 and 7 kernels")
@pytest.mark.parametrize("window", [(2,), (3, 2, 1), (3, 1)])
def test_as_many_kernels_for_pools(window: tuple[int, ...]) -> None:
    """Behind another function, though the tied elements of each window are counted before the gradient is shared.

    An input of the program itself is copied once, which is one kernel more.
    """
    for before, more in ((functional.gelu, 0), (lambda x: x, 1)):
        for_torch, ours = (
            kernels(lambda x, f=f: f(before(x), *window), images())  # noqa: B023  # called here
            for f in (functional.max_pool2d, native.max_pool2d)
        )
        assert ours == for_torch + more


WITHOUT_JAXCLAMP = """
    import sys
    sys.modules.update(dict.fromkeys(("jaxclamp", "interop", "jax", "jaxlib")))  # an import raises
    import torch
    folder = sys.argv[1]
    model = {load}
    x, y = torch.load(folder + "/xy.pt")
    assert torch.equal(model(x), y)
    print("loaded")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["export", "trace"])
def test_loaded_where_jaxclamp_is_not_installed(kind: str, tmp_path: Path) -> None:
    model, x = converted().eval(), images()
    torch.save((x, model(x).detach()), tmp_path / "xy.pt")
    if kind == "export":
        torch.export.save(torch.export.export(model, (x,)), tmp_path / "model")
        load = 'torch.export.load(folder + "/model").module()'
    else:
        torch.jit.trace(model, x).save(str(tmp_path / "model"))
        load = 'torch.jit.load(folder + "/model")'
    code = textwrap.dedent(WITHOUT_JAXCLAMP).format(load=load)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "loaded\n", done.stderr


class AtTies(nn.Module):
    """Functions of each kind, at ties."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            x.clamp(0.0, 2.0),
            torch.clamp_min(x, 0.0),
            functional.relu6(x),
            functional.leaky_relu(x, 2.0),
            functional.elu(x, 2.0),
            functional.max_pool1d(x, 2),
            torch.maximum(x, y),
            x.amax(1),
            x.max(1).values,
            x.max(),
            (x * 1.0).clamp_(0.0, 2.0),
        )


AT_TIES = torch.tensor([[0.0, 0.0, 2.0, 6.0]]), torch.zeros(1, 4)


@pytest.mark.parametrize("block", [min_norm, lambda: interop.as_of("torch 2.13"), lambda: interop.as_of("torch 2.15")])
def test_an_exported_program_in_a_block(block: Callable[[], Any]) -> None:
    x, y = (t.clone().requires_grad_() for t in AT_TIES)
    program = torch.export.export(AtTies(), (x, y)).module()

    def gradients(model: Callable[..., tuple[Tensor, ...]]) -> list[list[float]]:
        with block():
            results = model(x, y)
        return [torch.autograd.grad(result.sum(), x)[0].flatten().tolist() for result in results]

    assert gradients(program) == gradients(AtTies())


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch, about itself
def test_a_program_in_which_selu_is_decomposed() -> None:
    x = torch.zeros(1, requires_grad=True)
    program = torch.export.export(nn.SELU(), (x,)).run_decompositions().module()
    with min_norm():
        gradients = [torch.autograd.grad(f(x), x)[0] for f in (program, functional.selu)]
    assert torch.equal(*gradients)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch, about itself
def test_a_pipeline_in_a_block() -> None:
    """Torch traces the model into its own operators, stage by stage."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.MaxPool1d(2), nn.Linear(2, 2, bias=False), nn.SELU())
    for parameter in model.parameters():
        nn.init.constant_(parameter, 1.0)
    x = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    stages = pipelining.pipeline(model, (x,), split_spec={"2": pipelining.SplitPoint.BEGINNING})
    with min_norm():
        stages.get_stage_module(1)(stages.get_stage_module(0)(x)).sum().backward()
    gradients = [p.grad for i in range(2) for p in stages.get_stage_module(i).parameters()]
    interop.nn.convert(model)
    model(x).sum().backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)
    assert gradients[0].unique().numel() > 1


def test_weights_go_back_to_the_native_model() -> None:
    model = converted()
    plain = network()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain(images()), model(images()))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # of the exporter, about itself
def test_onnx(tmp_path: Path) -> None:
    model, x = converted().eval(), images()
    program = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    program.save(str(tmp_path / "model.onnx"))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(found, model(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_symbolic_trace_keeps_the_convention() -> None:
    """Functions of `interop.native` become nodes of the graph."""
    chain = nn.Sequential(nn.Hardtanh(0.0, 6.0), nn.MaxPool1d(2), nn.LeakyReLU(2.0))
    interop.nn.convert(chain)
    for model in (chain, Calls()):
        traced = torch.fx.symbolic_trace(model)
        found, expected = value_and_gradient(traced, TIED[None]), value_and_gradient(model, TIED[None])
        assert all(map(torch.equal, found, expected))
    assert native.clamp in {node.target for node in traced.graph.nodes}


class Calls(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return native.clamp(x, 0.0, 1.0) + native.max_pool1d(x, 1)


@pytest.mark.parametrize("name", ["ReLU6", "ReLU", "Hardswish", "CELU"])
def test_script_of_what_torch_has_right(name: str) -> None:
    module = getattr(interop.nn, name)()
    scripted = torch.jit.script(module)
    assert all(map(torch.equal, value_and_gradient(scripted, TIED), value_and_gradient(module, TIED)))


def test_script_says_what_to_do() -> None:
    model = nn.Sequential(nn.ReLU(), nn.SELU())
    conversion = interop.nn.convert(model)
    with pytest.raises(NotImplementedError, match=r"cannot compile interop.nn.SELU.*call conversion.undo\(\) first"):
        torch.jit.script(model)
    with pytest.raises(NotImplementedError, match=r"interop.nn.ReLU,"):
        torch.jit.script(with_ties(interop.nn.ReLU()))
    conversion.undo()
    torch.jit.script(model)
    assert {name for name, kind in MODULES.items() if kind._function in RIGHT_IN_TORCH} >= {"ReLU", "ReLU6", "CELU"}


def with_ties(module: Any) -> nn.Module:
    module.ties = "inclusive"
    return module


WITHOUT_XLA = """
    import os, warnings
    import torch
    import interop
    from jax._src import xla_bridge  # JAX has no public way to ask
    from torch.utils.data import DataLoader, Dataset

    class Clamped(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.full((3,), float(index)).clamp(0.0, 6.0)

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Hardtanh(), torch.nn.MaxPool1d(2), torch.nn.SELU())
    interop.nn.convert(model)
    print(interop.nn.convert(torch.nn.ReLU()))
    with interop.min_norm() as block:
        for batch in DataLoader(Clamped(), batch_size=4, num_workers=1):
            rows = torch.maximum(model(batch), torch.zeros(4, 1))
            (rows.clamp(0.0, 1.0).sum() + torch.nn.functional.elu(rows, 2.0).sort().values.sum()).backward()
    assert interop.native.fmax(torch.zeros(2), torch.zeros(2)).tolist() == [0, 0]
    pid = os.fork()
    if pid == 0:
        with interop.min_norm():
            model(torch.ones(1, 3)).sum().backward()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert not xla_bridge.backends_are_initialized(), "an XLA backend was started"
    print("passed", *block.passed)
"""


def test_no_xla_backend_is_started() -> None:
    """So the process can be forked, by the workers of a DataLoader too."""
    code = textwrap.dedent(WITHOUT_XLA)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.splitlines()[-1:] == ["passed torch.Tensor.sort"], done.stderr


COMPILED_IN_PLACE = """
import torch, interop
x = torch.tensor([0.0, 3.0, 6.0], requires_grad=True)
with interop.min_norm():
    y = torch.compile(lambda x: torch.clamp_(x * 1, 0.0, 6.0).sum(), backend="aot_eager")(x)
assert torch.autograd.grad(y, x)[0].tolist() == [0.0, 1.0, 0.0]
"""


@pytest.mark.thorough
def test_forms_that_overwrite_in_the_first_compiled_function_of_a_process() -> None:
    """Dynamo, which is loaded by it, knows of torch's list of functions that may be replaced."""
    done = subprocess.run([sys.executable, "-c", COMPILED_IN_PLACE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
