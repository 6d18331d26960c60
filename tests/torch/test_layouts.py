"""The order of the axes in memory, such as channels_last: where torch's elementwise ops keep it, so do ours."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.nn import functional

import interop
from interop import TORCH_OPS
from jaxclamp import Op
from tests.support.calls import arguments, parameters
from tests.support.elementwise import ELEMENTWISE
from tests.support.representatives import thorough

Tensor = torch.Tensor
Layout = Callable[[Tensor], Tensor]

SHAPE = (2, 3, 4, 5)
LAYOUTS: dict[str, Layout] = {
    "row-major": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3),
    "permuted": lambda x: x.permute(3, 0, 2, 1),
    "one channel": lambda x: x[:, :1].contiguous(memory_format=torch.channels_last),
    "one image": lambda x: x[:1].contiguous(memory_format=torch.channels_last),
    "gaps": lambda x: x.transpose(2, 3)[:, :, ::2],
    "expanded": lambda x: x[:, :1].expand(x.shape),
}
LAYOUT = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
QUICK = ("row-major", "channels last", "gaps", "expanded")
FEW_LAYOUTS = pytest.mark.parametrize(
    "layout",
    [
        pytest.param(layout, id=name, marks=[pytest.mark.thorough] * (name not in QUICK))
        for name, layout in LAYOUTS.items()
    ],
)
CHANNELS_LAST = LAYOUTS["channels last"]


def values(*shape: int, dtype: torch.dtype = torch.float32, start: float = -4.0) -> Tensor:
    """Numbers from -4 to 11, ties of the ops among them, no two neighbours alike."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) * 7 % 61 * 0.25 + start).reshape(shape).to(dtype)


def both(op: Op, rest: list[Any]) -> list[Layout]:
    """``op`` for torch and torch's own, as functions of the first argument."""
    native = next(c for c in op.counterparts if c.framework == "torch")
    names = parameters(op)
    return [lambda x: TORCH_OPS[op.name](x, *rest), lambda x: native(dict(zip(names, (x, *rest), strict=False)))]


def copied(x: Tensor) -> Tensor:
    """A leaf of its own, with the same strides."""
    return x.detach().clone(memory_format=torch.preserve_format)


def pulled(function: Layout, x: Tensor, cotangent: Tensor) -> Tensor:
    """The gradient at a row-major copy of ``x``."""
    leaf = x.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
    return torch.autograd.grad(function(leaf), leaf, cotangent)[0]


def assert_same_layout(ours: Tensor, native: Tensor) -> None:
    """The same strides, but along axes of one element, where they mean nothing."""
    pairs = zip(ours.shape, ours.stride(), native.stride(), strict=True)
    assert all(size == 1 or stride == wanted for size, stride, wanted in pairs), (ours.stride(), native.stride())
    assert ours.is_contiguous(memory_format=torch.channels_last) == native.is_contiguous(
        memory_format=torch.channels_last
    )


@pytest.mark.parametrize(
    ("op", "layout"),
    [
        pytest.param(op, LAYOUTS[name], id=f"{op.name}-{name}", marks=thorough(op.name))
        for op in ELEMENTWISE
        for name in (LAYOUTS if op.name in ("clamp", "maximum", "hardswish") else ("channels last", "gaps"))
    ],
)
def test_values_and_gradients_lie_as_the_input(op: Op, layout: Layout) -> None:
    _, *rest = arguments(op, torch.float32)
    ours, native = both(op, rest)
    leaf = copied(layout(values(*SHAPE))).requires_grad_()
    y = ours(leaf)
    (gradient,) = torch.autograd.grad(y, leaf, layout(values(*SHAPE, start=1.0)))
    torch.testing.assert_close(y, native(leaf))
    assert torch.equal(gradient, pulled(ours, leaf, layout(values(*SHAPE, start=1.0))))
    assert_same_layout(y, native(leaf))
    assert_same_layout(gradient, native(leaf))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    x = CHANNELS_LAST(values(*SHAPE, dtype=dtype))
    y = interop.clamp(x, 0.0, 6.0)
    assert y.dtype == dtype
    assert torch.equal(y, torch.clamp(x, 0.0, 6.0))
    assert_same_layout(y, x)


@LAYOUT
def test_order_is_that_of_the_first(layout: Layout) -> None:
    x = CHANNELS_LAST(values(*SHAPE))
    for other in (layout(values(*SHAPE)), torch.tensor(0.5), torch.tensor([0.5]), torch.full((1, 1, 1, 1), 0.5)):
        if other.shape == x.shape or other.numel() == 1:
            ours = interop.maximum(x, other)
            assert torch.equal(ours, torch.maximum(x, other))
            assert ours.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", [Tensor.clone, Tensor.numpy, interop.torch_to_jax], ids=["torch", "NumPy", "JAX"])
@pytest.mark.parametrize(
    "shape", [(3, 1, 1), (3,), (1, 3, 1, 1), (3, 3, 3, 1), (1, 1, 1, 1, 1), (2, 3, 3, 3, 3)], ids=str
)
@pytest.mark.parametrize("name", ["channels last", "transposed", "permuted"])
def test_broadcast(name: str, shape: tuple[int, ...], kind: Callable[[Tensor], Any]) -> None:
    """An axis of the other operand meets the axis that it would if both were row-major."""
    x = LAYOUTS[name](values(3, 3, 3, 3)).requires_grad_()
    other = values(*shape, start=-2.0)
    off_ties = x != other
    for ours, native in ((interop.maximum, torch.maximum), (clamped_from, clamped_from_natively)):
        y, expected = ours(x, kind(other)), native(x, other)
        assert torch.equal(y, expected)
        cotangent = values(*expected.shape, start=1.0) * off_ties
        assert torch.equal(*(torch.autograd.grad(z, x, cotangent)[0] for z in (y, expected)))


def clamped_from(x: Tensor, bound: Any) -> Tensor:
    return interop.clamp(x, bound, 6.125)


def clamped_from_natively(x: Tensor, bound: Tensor) -> Tensor:
    return torch.clamp(x, bound, torch.tensor(6.125))


def test_errors_name_the_shapes_of_the_arguments() -> None:
    x, other = CHANNELS_LAST(values(*SHAPE)), CHANNELS_LAST(values(2, 3, 4, 6))
    with pytest.raises(RuntimeError, match=r"\(2, 3, 4, 5\).*\(2, 3, 4, 6\)"):
        interop.maximum(x, other)


@LAYOUT
@pytest.mark.parametrize("dim", [None, 0, 1, 2, 3, (1, 3)], ids=str)
def test_reductions(layout: Layout, dim: Any) -> None:
    x = layout(values(*SHAPE))
    dims = {} if dim is None else {"dim": dim}
    ours, native = (amax(x, **dims, keepdim=True) for amax in (interop.amax, torch.amax))
    assert torch.equal(ours, native)
    assert_same_layout(ours, native)


@LAYOUT
def test_pools(layout: Layout) -> None:
    x = layout(values(*SHAPE))
    ours, native = interop.max_pool2d(x, (2, 1)), torch.nn.functional.max_pool2d(x, (2, 1))
    assert torch.equal(ours, native)
    assert_same_layout(ours, native)


@pytest.mark.parametrize("kind", [Tensor.clone, Tensor.numpy], ids=["torch", "NumPy"])
def test_channels_of_prelu(kind: Callable[[Tensor], Any]) -> None:
    x, weight = CHANNELS_LAST(values(2, 3, 3, 3)), torch.tensor([0.5, 0.25, 2.0])
    y = interop.prelu(x, kind(weight))
    assert torch.equal(y, torch.nn.functional.prelu(x, weight))
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_bounds_of_channels() -> None:
    x, bound = CHANNELS_LAST(values(2, 3, 3, 3)), values(3, 1, 1)
    assert_same_layout(interop.maximum(x, bound), torch.maximum(x, bound))


def test_axis_of_one_element_without_a_stride() -> None:
    x = CHANNELS_LAST(values(*SHAPE))[:, :, :1].expand(2, 3, 7, 5)[:, :, :1]
    assert x.stride() == (60, 1, 0, 3)
    assert_same_layout(interop.relu(x), torch.relu(x))


def test_gradients_of_single_elements() -> None:
    x = CHANNELS_LAST(values(*SHAPE))
    for shape in ((), (1,), (1, 1), (1, 1, 1, 1)):
        bound = torch.full(shape, 0.375, requires_grad=True)
        (gradient,) = torch.autograd.grad(interop.maximum(x, bound).sum(), bound)
        assert gradient.shape == shape
        assert gradient.item() == (x < 0.375).sum()


@LAYOUT
def test_second_derivatives_and_forward_mode(layout: Layout) -> None:
    x, tangent = layout(values(*SHAPE)), layout(values(*SHAPE, start=1.0))
    gradient = torch.func.grad(lambda x: (interop.hardswish(x) ** 2).sum())
    expected = torch.func.grad(lambda x: (torch.nn.functional.hardswish(x) ** 2).sum())
    inside = (x.abs() != 3).float()  # at the kinks the two differ
    torch.testing.assert_close(inside * gradient(x), inside * expected(x))
    value, pushed = torch.func.jvp(interop.relu, (x,), (tangent,))
    assert torch.equal(value, torch.relu(x))
    assert torch.equal(pushed, tangent * (x > 0))
    batched = torch.func.vmap(interop.relu, in_dims=2, out_dims=2)(x)
    assert torch.equal(batched, torch.relu(x))


@LAYOUT
def test_result_can_be_changed_in_place(layout: Layout) -> None:
    """Torch forbids that for views which were made while it did not record."""
    x = layout(values(*SHAPE))
    with torch.no_grad():
        y = interop.relu(x)
    assert not y._is_view()
    assert_same_layout(y, torch.relu(x))
    w = torch.ones((), requires_grad=True)
    y.mul_(w).sum().backward()
    assert torch.equal(w.grad, torch.relu(x).sum())


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.thorough)])
@FEW_LAYOUTS
def test_compiled(layout: Layout, dynamic: bool) -> None:
    torch._dynamo.reset()

    def function(x: Tensor) -> Tensor:
        return interop.relu(2 * x).view(-1)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    leaf = copied(layout(values(*SHAPE))).requires_grad_()
    y = compiled(leaf)
    (gradient,) = torch.autograd.grad(y, leaf, layout(values(*SHAPE, start=1.0)).reshape(-1))
    assert torch.equal(y, torch.relu(2 * leaf).reshape(-1))
    assert torch.equal(gradient, 2 * layout(values(*SHAPE, start=1.0)) * (leaf > 0))


def test_compiled_for_sizes_that_depend_on_data() -> None:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(lambda x, mask: interop.relu(x[mask].T), fullgraph=True, backend="aot_eager")
        x, mask = values(4, 5), torch.tensor([True, False, True, True])
        assert torch.equal(compiled(x, mask), torch.relu(x[mask].T))


@FEW_LAYOUTS
def test_opcheck(layout: Layout) -> None:
    """What torch's compiler is told of the strides is what it gets."""
    x = layout(values(*SHAPE))
    exported = torch.export.export(Clamped(), (x,))
    key = next(node.args[0] for node in exported.graph.nodes if "jaxclamp.call" in str(node.target))
    for requires_grad in (False, True):
        leaf = copied(x).requires_grad_(requires_grad)
        outcome = torch.library.opcheck(torch.ops.jaxclamp.call.default, (key, [leaf], []))
        assert set(outcome.values()) == {"SUCCESS"}


class Clamped(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return interop.clamp(x, 0.0, 6.0)


def test_model_in_channels_last_stays_so() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU6(), torch.nn.Conv2d(4, 2, 1))
    model = model.to(memory_format=torch.channels_last)
    interop.nn.convert(model)
    y = model(CHANNELS_LAST(values(*SHAPE)))
    assert y.is_contiguous(memory_format=torch.channels_last)


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


@pytest.mark.parametrize("requires_grad", [False, True])
@LAYOUT
def test_large_pools_lie_as_those_of_torch(layout: Layout, requires_grad: bool) -> None:
    """Many elements, of which the largest are found slice by slice."""
    x = layout(values(24, 24, 24, 24)).detach().requires_grad_(requires_grad)
    pools: list[Callable[[Any], Tensor]] = [
        lambda home: home.max_pool1d(x[0], 2),
        lambda home: home.max_pool2d(x, 2),
        lambda home: home.max_pool2d(x, 3, 2, 1),
        lambda home: home.max_pool2d(x[0], 3, 1),
        lambda home: home.max_pool3d(x[None], (1, 2, 3)),
        lambda home: home.adaptive_max_pool2d(x, 5),
    ]
    for pool in pools:
        assert_same_layout(pool(interop.native), pool(functional))
