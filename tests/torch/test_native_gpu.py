"""torch's own kernels under the convention, on CUDA: the same values and gradients as on CPU. JAX takes no part."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import interop
import jaxclamp
from interop import min_norm
from interop.native import NATIVE
from interop.native._rules import windows
from jaxclamp import CONVENTIONS, OPS, Op
from tests.support.calls import arguments

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device that torch sees"),
]

DEVICE = "cuda"


def value_and_gradients(function: Callable[..., Any], given: list[Any], device: str) -> list[torch.Tensor]:
    moved = [a.to(device).requires_grad_() if isinstance(a, torch.Tensor) else a for a in given]
    result = function(*moved)
    value = result[0] if isinstance(result, tuple) else result
    active = [a for a in moved if isinstance(a, torch.Tensor)]
    assert value.device.type == device
    return [value.detach().cpu(), *(part.cpu() for part in torch.autograd.grad(value.sum(), active))]


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_ops_as_on_cpu(op: Op) -> None:
    """At every tie, under every convention."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for tie in op.tie_points:
            given = arguments(op, dtype, tie)
            for ties in CONVENTIONS if op.has_conventions else (None,):

                def function(*args: Any, ties: Any = ties) -> Any:
                    return NATIVE[op.name](*args, **({"ties": ties} if ties else {}))

                found, expected = (value_and_gradients(function, given, device) for device in (DEVICE, "cpu"))
                for one, other in zip(found, expected, strict=True):
                    torch.testing.assert_close(one, other, msg=f"{dtype}, {tie}, {ties}")


def test_bounds_on_the_cpu() -> None:
    """torch takes a tensor without axes from another device."""
    x = torch.tensor([-1.0, 0.0, 2.0], device=DEVICE, requires_grad=True)
    y = interop.native.maximum(x, torch.tensor(0.0))
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [0, 0, 1]


def test_the_mode_and_converted_models() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Hardtanh(), torch.nn.MaxPool2d(2), torch.nn.SELU())
    x = torch.zeros(2, 1, 8, 8)
    with min_norm():
        expected = value_and_gradients(model, [x], "cpu")
        found = value_and_gradients(model.to(DEVICE), [x], DEVICE)
    interop.nn.convert(model)
    for one, other, third in zip(found, expected, value_and_gradients(model, [x], DEVICE), strict=True):
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(one, third)


POOLS: dict[str, tuple[str, tuple[int, ...], tuple[Any, ...]]] = {
    "2": ("max_pool1d", (3, 4, 9), (2,)),
    "3, of one image": ("max_pool1d", (4, 9), (3, 1, 1)),
    "2x2": ("max_pool2d", (5, 3, 8, 8), (2,)),
    "3x3, stride 2": ("max_pool2d", (5, 3, 8, 9), (3, 2, 1)),
    "3x3, stride 1, of one image": ("max_pool2d", (3, 8, 9), (3, 1, 1)),
    "3x2, dilation 2, ceil_mode": ("max_pool2d", (5, 3, 9, 8), ((3, 2), 2, (1, 0), 2, True)),
    "2x2x2": ("max_pool3d", (2, 3, 4, 4, 6), (2,)),
    "3x3x3": ("max_pool3d", (2, 3, 5, 5, 5), (3, 2, 1)),
    "to 7x7": ("adaptive_max_pool2d", (5, 3, 16, 16), (7,)),
    "to 4x4": ("adaptive_max_pool2d", (5, 3, 16, 16), (4,)),
}


@pytest.mark.parametrize("few", [2**25, 0], ids=["by views", "by slices"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_pools_as_on_cpu(
    name: str, memory_format: torch.memory_format, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ties, windows of -inf next to padding, infinities and NaN; the second derivative too."""
    pool, shape, window = POOLS[name]
    if memory_format == torch.channels_last and len(shape) != 4:
        pytest.skip("channels_last is a format of batches of images")
    monkeypatch.setattr(windows, "_FEW_READS_ON_GPU", few)
    x = torch.randint(-2, 3, shape).to(torch.float64).contiguous(memory_format=memory_format)
    x[..., :3] = -math.inf
    x[(-1,) * x.dim()], x[(0,) * x.dim()] = math.nan, math.inf
    results = []
    for device in ("cpu", DEVICE):
        leaf = x.to(device).requires_grad_()
        y = NATIVE[pool](leaf, *window)
        cotangent = torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape).to(device).requires_grad_()
        (gradient,) = torch.autograd.grad(y, leaf, cotangent, create_graph=True)
        (second,) = torch.autograd.grad((gradient * gradient.detach()).sum(), cotangent)
        assert gradient.stride() == leaf.stride()
        results.append([part.detach().cpu() for part in (y, gradient, second)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_pools_are_the_same_each_time() -> None:
    x = torch.randint(0, 2, (8, 16, 64, 64), device=DEVICE).float().requires_grad_()
    cotangent = torch.randn(8, 16, 64, 64, device=DEVICE)
    first, *rest = (torch.autograd.grad(NATIVE["max_pool2d"](x, 3, 1, 1), x, cotangent)[0] for _ in range(5))
    assert all(torch.equal(first, gradient) for gradient in rest)


def test_a_step_is_recorded_as_a_graph_of_the_device() -> None:
    """Such a graph allows no call that waits for the device."""
    model = torch.nn.Sequential(
        torch.nn.Hardtanh(), torch.nn.MaxPool2d(3, 2, 1), torch.nn.SELU(), torch.nn.MaxPool2d(2)
    )
    interop.nn.convert(model)
    x = torch.zeros(2, 3, 16, 16, device=DEVICE, requires_grad=True)

    def step() -> torch.Tensor:
        return torch.autograd.grad(model(x).sum(), x)[0]

    expected = step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradient = step()
    gradient.zero_()
    graph.replay()
    torch.testing.assert_close(gradient, expected)


PROGRAMS: dict[str, Callable[..., torch.Tensor]] = {
    "identity": lambda x: torch.relu(x) - torch.relu(-x),
    "sorted": lambda x: x.sort().values * torch.arange(1, 5, device=x.device),
    "pool": lambda x: functional.max_pool1d(torch.relu(x)[None], 2),
    "where": lambda x: torch.where(x > 0, x, 3 * x).square() + x.clamp(0, 6),
    "cumulated": lambda x: torch.cummax(x, 0).values,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_programs_as_on_cpu(name: str) -> None:
    program, direction = PROGRAMS[name], torch.tensor([1.0, -2.0, 0.5, 3.0])
    gradients = [
        interop.grad(lambda x: program(x).sum(), direction=direction.to(device))(torch.zeros(4, device=device)).cpu()
        for device in ("cpu", DEVICE)
    ]
    assert torch.equal(*gradients)


def test_a_quantile_where_it_turns_warns() -> None:
    x = torch.tensor([0.0, 2.0, 2.0], device=DEVICE)
    with pytest.warns(jaxclamp.UndecidedWarning, match="quantile jumps"):
        interop.grad(lambda x: x.quantile(0.5))(x)


def test_ties_are_counted() -> None:
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Hardtanh()).to(DEVICE)
    x = torch.zeros(1, 1, 4, 4, device=DEVICE, requires_grad=True)
    with interop.ties() as counted:
        model(x)
    assert {(line.op, line.elements, line.tied) for line in counted.report.lines} == {
        ("relu", 16, 16), ("max_pool2d", 4, 4), ("hardtanh", 4, 0)
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch, as it compiles
@pytest.mark.parametrize("name", ["relu", "hardtanh", "selu", "max_pool2d", "amax", "maximum"])
def test_compiled_as_eager(name: str) -> None:
    rest = {"max_pool2d": (2,), "maximum": (torch.zeros(2, 3, 4, 4, device=DEVICE),)}.get(name, ())
    x = torch.zeros(2, 3, 4, 4, device=DEVICE, requires_grad=True)
    eager, compiled = (
        torch.autograd.grad(function(x, *rest).sum(), x)[0]
        for function in (NATIVE[name], torch.compile(lambda *args: NATIVE[name](*args), fullgraph=True))
    )
    torch.testing.assert_close(eager, compiled)


def test_pools_of_a_volume_whose_second_axis_lies_last_in_memory() -> None:
    """Torch's pool refuses that memory on the CPU, as it has no batch, and takes it here."""
    x = (torch.arange(128.0) % 5).reshape(2, 4, 4, 4)
    expected = value_and_gradients(lambda x: NATIVE["max_pool3d"](x, 2), [x], "cpu")
    found = value_and_gradients(
        lambda x: NATIVE["max_pool3d"](x, 2), [x.contiguous(memory_format=torch.channels_last)], DEVICE
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_of_whole_programs_without_a_direction_as_on_cpu() -> None:
    sizes = interop.grad(lambda x: x.abs().sum())
    assert sizes(torch.zeros(1000, device=DEVICE)).tolist() == sizes(torch.zeros(1000)).tolist()
