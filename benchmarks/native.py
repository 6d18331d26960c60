"""`interop.native`, torch's kernels under the convention, beside torch's own functions: calls, sizes, pools, compiled.

Prints one table: each line is a contender's median over that of torch, timed in turns in one process.
``python benchmarks/native.py [cuda] [calls|sizes|pools|compiled|lengths|bounds]`` asks for a part, and for a GPU. The
environment variables of the Makefile keep glibc from returning pages between the calls.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psutil
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import interop
from interop import min_norm, native

Call = Callable[[], Any]
nn = torch.nn
DEVICE = "cuda" if "cuda" in sys.argv else "cpu"


def seconds_of(contender: Call, count: int) -> float:
    """Measure the seconds of a call, as the mean of ``count``, until the device is done with them."""
    start = time.perf_counter()
    for _ in range(count):
        contender()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def medians(contenders: Sequence[Call], seconds: float = 1.0) -> list[float]:
    """Measure the seconds of each, in turns, after a warm-up; fast ones run many times within a turn."""
    counts = []
    for contender in contenders:
        seconds_of(contender, 1)
        counts.append(max(1, int(2e-3 / max(seconds_of(contender, 1), 1e-7))))
    times: list[list[float]] = [[] for _ in contenders]
    end = time.perf_counter() + seconds * len(contenders)
    while time.perf_counter() < end or len(times[0]) < 7:
        for contender, count, of_contender in zip(contenders, counts, times, strict=True):
            of_contender.append(seconds_of(contender, count))
    return [statistics.median(of_contender) for of_contender in times]


class Unmodified:
    """torch's own functions, by the names of those of `interop.native`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(functional, name, None) or getattr(torch, name)


Library = Any
"""`Unmodified` or `interop.native`, from which a contender takes its functions."""


def row(name: str, size: int | str, *numbers: float, unit: float = 1e6, **further: float) -> None:
    cells = [f"{unit * number:12.1f}" for number in numbers] + [f"{key} {v:.2f}" for key, v in further.items()]
    print(f"{name:44} {size if isinstance(size, str) else f'{size:,}':>12}", *cells, flush=True)


def compare(name: str, size: int | str, make: Callable[[Library], Call], seconds: float = 1.0) -> None:
    """Print a line of the table, for what ``make`` makes of torch's own functions, and of those of `interop.native`."""
    of_torch, of_native = medians([make(Unmodified()), make(native)], seconds)
    row(name, size, of_torch, of_native, ratio=of_native / of_torch)


def step(function: Callable[..., torch.Tensor], *operands: torch.Tensor) -> Call:
    """Return a forward and a backward pass; operands that do not require grad are constants."""
    active = [operand for operand in operands if operand.requires_grad]

    def run() -> None:
        y = function(*operands)
        torch.autograd.grad(y, active, torch.ones((), dtype=y.dtype, device=y.device).expand_as(y))

    return run


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)


def active(*shape: int) -> torch.Tensor:
    return normal(*shape).requires_grad_()


BY_NUMBERS: dict[str, Callable[[Library, torch.Tensor], torch.Tensor]] = {
    "clamp(x, -1, 1)": lambda lib, x: lib.clamp(x, -1.0, 1.0),
    "clamp_min(x, 0.5)": lambda lib, x: lib.clamp_min(x, 0.5),
    "clamp_max(x, 0.5)": lambda lib, x: lib.clamp_max(x, 0.5),
    "elu(x)": lambda lib, x: lib.elu(x),
    "elu(x, 2)": lambda lib, x: lib.elu(x, 2.0),
    "selu(x)": lambda lib, x: lib.selu(x),
    "amax(x)": lambda lib, x: lib.amax(x),
}
BY_TENSORS: dict[str, Callable[[Library, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "clamp(x, y, y + 1), x active": lambda lib, x, y: lib.clamp(x, y, y + 1),
    "clamp_min(x, y), x active": lambda lib, x, y: lib.clamp_min(x, y),
    "maximum(x, y), x active": lambda lib, x, y: lib.maximum(x, y),
}


def sizes() -> None:
    """Time forward and backward passes of elementwise functions, by size."""
    for n in (1, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 64_000_000):
        x = active(n)
        for name, by_numbers in BY_NUMBERS.items():
            compare(name, n, partial(of_numbers, by_numbers, x))
        if n > 20_000_000:
            return
        for name, by_tensors in BY_TENSORS.items():
            compare(name, n, partial(of_tensors, by_tensors, x, normal(n)))
        compare(
            "maximum(x, y), both active", n, partial(of_tensors, BY_TENSORS["maximum(x, y), x active"], x, active(n))
        )


def of_numbers(function: Callable[..., torch.Tensor], x: torch.Tensor, lib: Library) -> Call:
    return step(lambda x: function(lib, x), x)


def of_tensors(function: Callable[..., torch.Tensor], x: torch.Tensor, y: torch.Tensor, lib: Library) -> Call:
    return step(lambda x, y: function(lib, x, y), x, y)


OF_COMPUTED: dict[str, tuple[tuple[int, ...], Callable[[Library, torch.Tensor], torch.Tensor]]] = {
    "amax(gelu(x), 1)": ((8192, 128), lambda lib, x: lib.amax(functional.gelu(x), 1)),
    "max(gelu(x), 1)": ((8192, 128), lambda lib, x: lib.max(functional.gelu(x), 1)[0]),
    "max_pool2d(gelu(x), 2)": ((8, 16, 64, 64), lambda lib, x: lib.max_pool2d(functional.gelu(x), 2)),
    "max_pool2d(gelu(x), 3, 2, 1)": ((8, 16, 64, 64), lambda lib, x: lib.max_pool2d(functional.gelu(x), 3, 2, 1)),
    "max_pool2d(x, 2)": ((8, 16, 64, 64), lambda lib, x: lib.max_pool2d(x, 2)),
    "maximum(gelu(x), x)": ((8192, 128), lambda lib, x: lib.maximum(functional.gelu(x), x)),
}
"""Extrema in programs, by the shape of x: inductor fuses what is computed before, or keeps it."""


class Watching(TorchFunctionMode):
    """The least that a mode costs: it calls what was called."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def calls() -> None:
    """Time forward passes of one element, which are the cost of a call: of functions, of modules, and in a block."""
    x = active(1)
    for name in ("relu", "relu6", "hardtanh", "abs", "amax", "leaky_relu"):
        compare(f"{name}, forward", 1, lambda lib, name=name: partial(getattr(lib, name), x))
    for name in ("ReLU", "ReLU6", "Hardtanh", "LeakyReLU"):
        compare(f"nn.{name}, forward", 1, partial(module, name, x))
    for name, function in (("relu", functional.relu), ("hardtanh", functional.hardtanh), ("exp", torch.exp)):
        (alone,) = medians([partial(function, x)])
        with Watching():
            (watched,) = medians([partial(function, x)])
        with min_norm():
            (covered,) = medians([partial(function, x)])
        row(
            f"{name}, forward, in a block",
            1,
            alone,
            covered,
            more=1e6 * (covered - alone),
            any_mode=1e6 * (watched - alone),
        )


def module(name: str, x: torch.Tensor, lib: Library) -> Call:
    return partial(getattr(interop.nn if lib is native else nn, name)(), x)


POOLS: dict[str, tuple[str, tuple[int, ...], tuple[Any, ...]]] = {
    "2x2": ("max_pool2d", (8, 16, 64, 64), (2,)),
    "3x3, stride 2, padding 1": ("max_pool2d", (8, 16, 64, 64), (3, 2, 1)),
    "3x3, stride 1, padding 1": ("max_pool2d", (8, 16, 64, 64), (3, 1, 1)),
    "2x2, large": ("max_pool2d", (32, 64, 56, 56), (2,)),
    "3x3, stride 2, padding 1, large": ("max_pool2d", (32, 64, 56, 56), (3, 2, 1)),
    "3x3, stride 1, padding 1, large": ("max_pool2d", (32, 64, 56, 56), (3, 1, 1)),
    "2x2, small": ("max_pool2d", (1, 8, 16, 16), (2,)),
    "3x3, dilation 2": ("max_pool2d", (8, 16, 64, 64), (3, 1, 1, 2)),
    "3x3, stride 2, ceil_mode": ("max_pool2d", (8, 16, 63, 63), (3, 2, 0, 1, True)),
    "13x13, padding 6": ("max_pool2d", (2, 16, 20, 20), (13, 1, 6)),
    "2": ("max_pool1d", (8, 16, 4096), (2,)),
    "2x2x2": ("max_pool3d", (2, 8, 16, 32, 32), (2,)),
    "to 8x8": ("adaptive_max_pool2d", (8, 16, 64, 64), (8,)),
    "to 7x7": ("adaptive_max_pool2d", (8, 16, 64, 64), (7,)),
}
"""Pools, the shape of x and the window."""


def pools() -> None:
    """Time both passes of pools, and values alone; half of the elements are tied at 0."""
    formats = {"channels_last": {"memory_format": torch.channels_last}, "bfloat16": {"dtype": torch.bfloat16}}
    for label, (name, (images, *image), window) in POOLS.items():
        shape = (images * (8 if DEVICE == "cuda" else 1), *image)  # a GPU has nothing to do with fewer
        for form in ("", *formats) if image == [16, 64, 64] and name == "max_pool2d" else ("",):
            x = normal(*shape).relu().to(**formats.get(form, {})).requires_grad_()
            pooled = partial(lambda name, window, lib, x: getattr(lib, name)(x, *window), name, window)
            cotangent = torch.ones_like(pooled(Unmodified(), x))
            size = "x".join(map(str, shape))
            compare(f"{name}, {label} {form}", size, partial(of_cotangent, pooled, x, cotangent))
            compare(f"{name}, {label} {form}, forward", size, partial(of_values, pooled, x.detach()), 0.5)


def of_cotangent(function: Callable[..., torch.Tensor], x: torch.Tensor, cotangent: torch.Tensor, lib: Library) -> Call:
    return lambda: torch.autograd.grad(function(lib, x), x, cotangent)


def of_values(function: Callable[..., torch.Tensor], x: torch.Tensor, lib: Library) -> Call:
    return lambda: function(lib, x)


def compiled() -> None:
    """Time forward and backward passes that inductor has compiled."""
    n = 1_000_000
    x, y = active(n), normal(n)
    for name, function in (BY_NUMBERS | BY_TENSORS).items():
        compare(f"compiled {name}", n, partial(of_inductor, function, [x] if name in BY_NUMBERS else [x, y]))
    for name, (shape, of_computed) in OF_COMPUTED.items():
        compare(f"compiled {name}", math.prod(shape), partial(of_inductor, of_computed, [active(*shape)]))


def of_inductor(function: Callable[..., torch.Tensor], operands: Sequence[torch.Tensor], lib: Library) -> Call:
    torch._dynamo.reset()
    return step(torch.compile(lambda *xs: function(lib, *xs), fullgraph=True), *operands)


def lengths() -> None:
    """Measure seconds, and the memory that stays, of 60 lengths that have not been seen before."""
    unmodified = Unmodified()
    for name, lib, first in (
        ("torch, once more", unmodified, 500),
        ("torch", unmodified, 1_000),
        ("native", native, 1_000),
    ):
        before, start = psutil.Process().memory_info().rss, time.perf_counter()
        for n in range(first, first + 60):
            of_numbers(clamped_twice, active(n), lib)()
        spent, grown = time.perf_counter() - start, psutil.Process().memory_info().rss - before
        row(f"60 new lengths, {name}", "", spent, megabytes=grown / 2**20)


def clamped_twice(lib: Library, x: torch.Tensor) -> torch.Tensor:
    return lib.clamp(lib.maximum(x, torch.zeros(())), -1.0, 1.0)  # type: ignore[no-any-return]


def bounds() -> None:
    """Time the least that gives the gradient, without a check: a Function around torch's kernels, or calls of torch.

    A pool in ``channels_last`` has at least one comparison and one product for each element.
    """
    for n in (1, 1_000, 10_000, 100_000):
        x, y, z = active(n), normal(n), normal(n) + 1
        bound("elu(x, 2), a Function", n, lambda x: functional.elu(x, 2.0), Elu.apply, x)
        bound("elu(x, 2), the call", n, lambda x: functional.elu(x, 2.0), elu_saved_moved, x)
        bound("clamp_max(x, 0.5), the call", n, partial(torch.clamp_max, max=0.5), max_of_bound, x)
        bound("maximum(x, y), x active, the call", n, partial(torch.maximum, other=y), partial(torch.clamp_min, y), x)
        bound("clamp_min(x, y), x active, the call", n, partial(torch.clamp_min, min=y), partial(torch.clamp_min, y), x)
        bound(
            "clamp(x, y, z), x active, the call",
            n,
            partial(torch.clamp, min=y, max=z),
            partial(torch.clamp, y, max=z),
            x,
        )
    for label, window in {"2x2": (2, 2, 0), "3x3, stride 2": (3, 2, 1), "3x3, stride 1": (3, 1, 1)}.items():
        in_torch = partial(lambda window, x: functional.max_pool2d(x, *window), window)
        least = partial(lambda window, x: Pool.apply(x, *window), window)
        bound(f"max_pool2d, {label}, a Function", "1x8x16x16", in_torch, least, active(1, 8, 16, 16))
    for shape in ((8, 16, 64, 64), (32, 64, 56, 56)):
        x = normal(*shape).relu().to(memory_format=torch.channels_last)
        cotangent = torch.ones_like(functional.max_pool2d(x, 2))
        contenders = [
            of_cotangent(lambda _, x: functional.max_pool2d(x, 2), x.clone().requires_grad_(), cotangent, None),
            partial(compared_and_multiplied, x, cotangent),
        ]
        size = "x".join(map(str, shape))
        row_of_bound("max_pool2d, 2x2 channels_last, the calls", size, *medians(contenders))
        for stride in (2, 1):
            name = f"max_pool2d, 3x3, stride {stride} channels_last, the calls"
            row_of_bound(name, size, *medians(in_a_block(stride, *shape)))
    passes = by_index(normal(8, 16, 64, 64).relu(), 7)
    row_of_bound("adaptive_max_pool2d, to 7x7, the calls", "8x16x64x64", *medians(passes))


def bound(name: str, size: int | str, in_torch: Call, least: Call, x: torch.Tensor) -> None:
    row_of_bound(name, size, *medians([step(in_torch, x), step(least, x)], 0.5))


def row_of_bound(name: str, size: int | str, of_torch: float, of_least: float) -> None:
    row(name, size, of_torch, of_least, ratio=of_least / of_torch)


class Elu(torch.autograd.Function):
    """elu with torch's two kernels, and the sum that moves 0 to the side whose slope counts."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return functional.elu(x, 2.0)

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return torch.ops.aten.elu_backward(cotangent, 2.0, 1, 1, False, x + 2.0**-126)  # type: ignore[no-any-return]


SAVED_MOVED = torch.autograd.graph.saved_tensors_hooks(partial(torch.add, torch.tensor(2.0**-126)), lambda moved: moved)


def elu_saved_moved(x: torch.Tensor) -> torch.Tensor:
    with SAVED_MOVED:
        return functional.elu(x, 2.0)


def max_of_bound(x: torch.Tensor) -> torch.Tensor:
    return torch.clamp_max(torch.scalar_tensor(0.5, dtype=x.dtype, device=x.device), x)


class Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *window: int) -> torch.Tensor:
        ctx.window = [[number, number] for number in window]
        values, indices = torch.ops.aten.max_pool2d_with_indices(x, *ctx.window)
        ctx.save_for_backward(x, indices)
        return values  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, indices = ctx.saved_tensors
        backward = torch.ops.aten.max_pool2d_with_indices_backward
        return backward(cotangent, x, *ctx.window, [1, 1], False, indices), None, None, None


def compared_and_multiplied(x: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
    values, result = functional.max_pool2d(x, 2), torch.empty_like(x)
    images = max(1, 2**19 * len(x) // x.numel())  # so that they stay in the processor's cache
    for block in zip(*(tensor.split(images) for tensor in (x, values, cotangent, result)), strict=True):
        elements, largest, shares, spread = block
        for rows in range(2):
            for columns in range(2):
                place = (..., slice(rows, None, 2), slice(columns, None, 2))
                tied = torch.eq(elements[place], largest, out=torch.empty_like(largest))
                torch.mul(shares, tied, out=spread[place])
    return result


def in_a_block(stride: int, images: int, channels: int, height: int, width: int) -> tuple[Call, Call]:
    """Return torch's passes of windows of 3 x 3, and values and the calls that share ties, of one image for each.

    Images are not copied to the buffer and back, of which the result is.
    """
    x = normal(1, channels, height, width).relu().to(memory_format=torch.channels_last)
    every = x.repeat(images, 1, 1, 1).to(memory_format=torch.channels_last)
    padded = torch.full((1, height + 2, width + 2, channels), -math.inf)
    padded[:, 1:-1, 1:-1] = x.movedim(1, -1)
    spread = torch.zeros_like(padded)
    places, to = (of.unfold(1, 3, stride).unfold(2, 3, stride).permute(5, 4, 0, 1, 2, 3) for of in (padded, spread))
    values = functional.max_pool2d(x, 3, stride, 1).movedim(1, -1)
    cotangent, tied, shares = normal(*values.shape), torch.empty(places.shape), torch.empty(values.shape)

    def share() -> None:
        torch.eq(places, values, out=tied)
        torch.sum(tied.flatten(0, 1), 0, out=shares)
        torch.div(cotangent, shares, out=shares)
        spread.zero_()
        for place in itertools.product(range(3), range(3)):
            to[place].addcmul_(tied[place], shares)

    share()
    along = cotangent.movedim(-1, 1)
    gradient = of_cotangent(lambda lib, x: lib.max_pool2d(x, 3, stride, 1), x.requires_grad_(), along, native)()[0]
    torch.testing.assert_close(spread[:, 1:-1, 1:-1].movedim(-1, 1), gradient)

    def least() -> None:
        native.max_pool2d(every, 3, stride, 1)
        for _ in range(images):
            share()

    along = along.repeat(images, 1, 1, 1).to(memory_format=torch.channels_last)
    active = every.clone().requires_grad_()
    return of_cotangent(lambda lib, x: lib.max_pool2d(x, 3, stride, 1), active, along, Unmodified()), least


def by_index(x: torch.Tensor, count: int) -> tuple[Call, Call]:
    """Return torch's passes of an adaptive pool, and its values and the calls that share ties by one index."""
    images, length = x.shape[0] * x.shape[1], x.shape[-1]
    starts = torch.arange(count) * length // count
    sizes = -(-(torch.arange(count) + 1) * length // count) - starts
    place = torch.arange(int(sizes.max()))
    along, exist = (starts[:, None] + place).clamp(max=length - 1), place < sizes[:, None]
    index = (along[:, None, :, None] * length + along[:, None, :]).flatten()
    exists = (exist[:, None, :, None] & exist[:, None, :]).reshape(1, count**2, -1).to(x.dtype)
    cotangent = normal(*x.shape[:2], count, count)

    def least() -> torch.Tensor:
        values = functional.adaptive_max_pool2d(x, count).reshape(images, -1, 1)
        tied = x.reshape(images, -1).index_select(1, index).reshape(images, *exists.shape[1:]).eq_(values).mul_(exists)
        tied.mul_(cotangent.reshape(values.shape) / tied.sum(-1, keepdim=True))
        return torch.zeros(images, length**2).index_add_(1, index, tied.reshape(images, -1)).reshape(x.shape)

    active = x.clone().requires_grad_()
    in_torch, in_native = (
        of_cotangent(lambda lib, x: lib.adaptive_max_pool2d(x, count), active, cotangent, lib)
        for lib in (Unmodified(), native)
    )
    torch.testing.assert_close(least(), in_native()[0])
    return in_torch, least


PARTS = {
    "calls": calls, "sizes": sizes, "pools": pools, "compiled": compiled, "lengths": lengths, "bounds": bounds
}  # fmt: skip


def main(names: Sequence[str]) -> None:
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; microseconds, medians in turns")
    print(f"{'':44} {'elements':>12} {'torch':>12} {'native':>12}")
    for name in names or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main([name for name in sys.argv[1:] if name != "cuda"])
