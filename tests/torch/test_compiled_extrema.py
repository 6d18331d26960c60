"""Extrema in programs that inductor compiles: those who are tied share the whole gradient, whatever is computed twice.

Inductor computes an operand once for the extremum, and once more for the backward pass. There it may round otherwise:
in registers 16-bit floats have 24 digits, and the sine of a vector is not always that of a scalar.
"""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import interop
from interop import min_norm, native

Tensor = torch.Tensor
Sums = Callable[[Tensor], Tensor]
"""Of the weights of all elements: the sum in each slice, or the mean of these sums where slices overlap."""

pytestmark = [
    pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="inductor needs a C++ compiler"),
    # torch itself, when it looks into an autograd.Function or first compiles
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]

SHAPE = (4, 10, 8)


class Own:
    """torch's own functions, by the names of those of `interop.native`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(functional, name, None) or getattr(torch, name)


def tiles(*size: int) -> Sums:
    """For pools of windows that tile the last axes."""
    return lambda weights: functional.avg_pool2d(weights, size, divisor_override=1)


def blocks(weights: Tensor) -> Tensor:
    """For a pool of 2x2x2."""
    return functional.avg_pool3d(weights[None], 2, divisor_override=1)


def on_average(count: int) -> Sums:
    return lambda weights: weights.sum() / count


EXTREMA: dict[str, tuple[Callable[[Any, Tensor], Tensor], Sums]] = {
    "amax": (lambda lib, h: lib.amax(h, 1), lambda weights: weights.sum(1)),
    "amin": (lambda lib, h: lib.amin(h, (0, 2)), lambda weights: weights.sum((0, 2))),
    "max along": (lambda lib, h: lib.max(h, -1)[0], lambda weights: weights.sum(-1)),
    "min along": (lambda lib, h: lib.min(h, 1, True).values, lambda weights: weights.sum(1)),
    "max": (lambda lib, h: lib.max(h), torch.sum),
    "min": (lambda lib, h: lib.min(h), torch.sum),
    "max_pool1d": (lambda lib, h: lib.max_pool1d(h, 2), tiles(1, 2)),
    "max_pool2d": (lambda lib, h: lib.max_pool2d(h, 2), tiles(2, 2)),
    "max_pool2d, overlapping": (lambda lib, h: lib.max_pool2d(h, 3, 2, 1), on_average(4 * 5 * 4)),
    "max_pool2d, axis by axis": (lambda lib, h: lib.max_pool2d(h, 5, 1, 2), on_average(4 * 10 * 8)),
    "max_pool3d": (lambda lib, h: lib.max_pool3d(h[None], 2), blocks),
    "adaptive_max_pool1d": (lambda lib, h: lib.adaptive_max_pool1d(h, 4), tiles(1, 2)),
    "adaptive_max_pool2d": (lambda lib, h: lib.adaptive_max_pool2d(h, (3, 3)), on_average(4 * 3 * 3)),
    "adaptive_max_pool3d": (lambda lib, h: lib.adaptive_max_pool3d(h[None], 1), torch.sum),
}  # fmt: skip
SELECTIONS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "maximum": lambda lib, h, other: lib.maximum(h, other),
    "minimum": lambda lib, h, other: lib.minimum(h, other),
    "fmax": lambda lib, h, other: lib.fmax(h, other),
    "fmin": lambda lib, h, other: lib.fmin(h, other),
    "clamp": lambda lib, h, other: lib.clamp(h, other, other + 1),
    "clamp_min": lambda lib, h, other: lib.clamp_min(h, other),
    "clamp_max": lambda lib, h, other: lib.clamp_max(h, other),
}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WAYS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "native": (native, lambda function: function),
    "mode": (Own(), min_norm),
}
"""The functions that are called, and what is done to the program."""
FEW = ("amax",)
"""A program of all takes minutes."""
product = [
    pytest.param(dtype, way, id=f"{str(dtype)[6:]}-{way}", marks=pytest.mark.thorough)
    for dtype in DTYPES
    for way in WAYS
]


def operands(dtype: torch.dtype, count: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """A batch, a matrix, and zeros, which get as gradients the weights of what they are added to."""
    generator = torch.Generator().manual_seed(0)
    x, matrix = (torch.randn(shape, generator=generator).to(dtype) for shape in (SHAPE, (8, 8)))
    return x, matrix, [torch.zeros(SHAPE, dtype=dtype, requires_grad=True) for _ in range(count)]


def hidden(x: Tensor, matrix: Tensor) -> Tensor:
    h = x @ matrix
    return h + h.sin()


def assert_whole(name: str, sums: Tensor, dtype: torch.dtype) -> None:
    whole = torch.ones_like(sums)
    torch.testing.assert_close(sums, whole, rtol=4 * torch.finfo(dtype).eps, atol=0, msg=lambda m: f"{name}: {m}")


@pytest.mark.thorough
def test_the_weights_of_a_slice_sum_to_1() -> None:
    assert_weights_of_slices(FEW, torch.bfloat16, "native")


@pytest.mark.parametrize(("dtype", "way"), product)
def test_the_weights_of_each_slice_sum_to_1(dtype: torch.dtype, way: str) -> None:
    assert_weights_of_slices(tuple(EXTREMA), dtype, way)


def assert_weights_of_slices(names: tuple[str, ...], dtype: torch.dtype, way: str) -> None:
    lib, put_under = WAYS[way]
    functions, sums = zip(*(EXTREMA[name] for name in names), strict=True)
    x, matrix, zeros = operands(dtype, len(names))

    def program(x: Tensor, matrix: Tensor, *zeros: Tensor) -> Any:
        h = hidden(x, matrix)
        return [function(lib, h + zero).float().sum() for function, zero in zip(functions, zeros, strict=True)]

    torch._dynamo.reset()
    compiled = torch.compile(put_under(program), fullgraph=True)
    weights = torch.autograd.grad(sum(compiled(x, matrix, *zeros)), zeros)
    for name, sums_of, of_elements in zip(names, sums, weights, strict=True):
        assert_whole(name, sums_of(of_elements.double()), dtype)


@pytest.mark.parametrize(("dtype", "way"), product)
def test_the_weights_of_operands_sum_to_1(dtype: torch.dtype, way: str) -> None:
    """The other operand is a column, whose gradient is summed, or the transpose: there are kernels of each."""
    lib, put_under = WAYS[way]
    x, matrix, zeros = operands(dtype, len(SELECTIONS))
    columns = [torch.zeros(10, 1, dtype=dtype, requires_grad=True) for _ in SELECTIONS]

    def program(x: Tensor, matrix: Tensor, *zeros: Tensor) -> Any:
        h = hidden(x, matrix)
        pairs = zip(zeros[: len(SELECTIONS)], zeros[len(SELECTIONS) :], strict=True)
        return [
            f(lib, h + zero, h.mean(2, keepdim=True)[0] + column).float().sum()
            for f, (zero, column) in zip(SELECTIONS.values(), pairs, strict=True)
        ]

    torch._dynamo.reset()
    compiled = torch.compile(put_under(program), fullgraph=True)
    weights = torch.autograd.grad(sum(compiled(x, matrix, *zeros, *columns)), [*zeros, *columns])
    for name, of_x, of_other in zip(SELECTIONS, weights, weights[len(SELECTIONS) :], strict=False):
        sums = of_x.double().sum((0, 2)) + of_other.double().squeeze(1)
        assert_whole(name, sums / (SHAPE[0] * SHAPE[2]), dtype)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_converted_pool(dtype: torch.dtype) -> None:
    x, matrix, (zero,) = operands(dtype, 1)
    model = torch.nn.Sequential(torch.nn.MaxPool2d(2))
    interop.nn.convert(model)

    def program(x: Tensor, matrix: Tensor, zero: Tensor) -> Tensor:
        return model(hidden(x, matrix) + zero).float().sum()  # type: ignore[no-any-return]

    torch._dynamo.reset()
    (weights,) = torch.autograd.grad(torch.compile(program, fullgraph=True)(x, matrix, zero), zero)
    assert_whole("MaxPool2d", tiles(2, 2)(weights.double()), dtype)
