"""What a call from torch costs: beside native torch and an autograd.Function, and piece by piece."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import written_out
from contenders import two_programs
from pytest_benchmark.fixture import BenchmarkFixture

import interop
import jaxclamp
from interop._arrays import adopt, lend

SMALL = (1, 1_000)
LARGE = (10_000, 20_000, 50_000, 100_000, 300_000, 1_000_000, 10_000_000)
KINDS = ("forward", "recorded", "forward and backward")


FLAT = written_out.FLAT
GRADIENT = FLAT.pullback((True,)).compiled


class InPython(torch.autograd.Function):
    """The least that a differentiable function written in Python costs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.clamp(x, 0.0, 6.0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * ((x > 0.0) & (x < 6.0))


class InCheckedPrograms(torch.autograd.Function):
    """What is compiled for the two passes, with the checks of the bridge."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return FLAT.compute((), False, [x])[0][0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return FLAT.pullback(ctx.needs_input_grad).compute((), False, [*ctx.saved_tensors, gradient])[0][0]


in_programs = two_programs(jaxclamp.relu6)

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "torch.clamp": lambda x: torch.clamp(x, 0.0, 6.0),
    "autograd.Function": InPython.apply,
    "autograd.Function of two compiled programs": in_programs,
    "relu6 written out": written_out.relu6,
    "interop.clamp": lambda x: interop.clamp(x, 0.0, 6.0),
    "interop.relu6": interop.relu6,
}


def test_what_is_written_out_answers_the_same() -> None:
    x = torch.tensor([-1.0, 0.0, 3.0, 6.0, 7.0], requires_grad=True)
    results = [function(x) for function in (interop.relu6, written_out.relu6)]
    gradients = [torch.autograd.grad(result, x, torch.ones(5))[0] for result in results]
    assert torch.equal(*results)
    assert torch.equal(*gradients)
    assert torch.equal(written_out.relu6(x.detach()), results[0])


@pytest.mark.parametrize(("kind", "size"), [*itertools.product(KINDS, SMALL), *itertools.product(KINDS[-1:], LARGE)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_call(benchmark: BenchmarkFixture, name: str, kind: str, size: int) -> None:
    function = FUNCTIONS[name]
    x = torch.from_numpy(np.random.default_rng(0).integers(-32, 32, size).astype("float32")) / 4
    leaf, cotangent = x.clone().requires_grad_(), torch.ones(size)
    calls = {
        "forward": lambda: function(x),
        "recorded": lambda: function(leaf),
        "forward and backward": lambda: torch.autograd.grad(function(leaf), leaf, cotangent),
    }
    benchmark.group = f"call from torch, {kind}, {size} x float32"
    run(benchmark, calls[kind], size)


def pieces() -> dict[str, Callable[[], object]]:
    """A call in growing parts, and what makes the first program after a backward pass slow."""
    x = torch.linspace(-4.0, 8.0, 3)
    leaf = x.clone().requires_grad_()
    array = x.numpy()
    program = FLAT.compiled
    native = torch.clamp(leaf, 0.0, 6.0)
    cotangent = torch.ones(3)

    def backward() -> object:
        return torch.autograd.grad(native, leaf, cotangent, retain_graph=True)

    def both(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(function(leaf), leaf, cotangent)

    return {
        "1 a compiled program, of a NumPy array": lambda: program((), array),
        "2 and its result as a NumPy array": lambda: np.asarray(program((), array)),
        "3 and that as a tensor": lambda: adopt(program((), array), True),
        "4 and of the memory of a tensor": lambda: adopt(program((), lend(x)), True),
        "5 and with the checks of FlatFunction.compute": lambda: FLAT.compute((), False, [x]),
        "6 and with those of a call": lambda: FLAT((), False, [x]),
        "7 and with arguments as torch gives them: interop.relu6": lambda: interop.relu6(x),
        "the same checks written out": lambda: written_out.relu6(x),
        "both passes: 1 an autograd.Function of two compiled programs": both(in_programs),
        "both passes: 2 and with the checks of FlatFunction.compute": both(InCheckedPrograms.apply),
        "both passes: 3 and with those of a call": both(lambda x: FLAT((), False, [x])),
        "both passes: 4 and with arguments as torch gives them: interop.relu6": both(interop.relu6),
        "both passes: the same checks written out": both(written_out.relu6),
        "a native backward pass": backward,
        "a native backward pass, then a compiled program": lambda: (backward(), program((), array)),
    }


@pytest.mark.benchmark(group="a call from torch, piece by piece")
@pytest.mark.parametrize("name", pieces())
def test_piece(benchmark: BenchmarkFixture, name: str) -> None:
    run(benchmark, pieces()[name], size=3)


@pytest.mark.benchmark(group="a compiled program of 1,000,000 x float32, called so long after the last")
@pytest.mark.parametrize("microseconds", [0, 100, 1_000])
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_program_after_a_pause(benchmark: BenchmarkFixture, name: str, microseconds: int) -> None:
    """As within a call of autograd, where Python runs between the programs."""
    x, cotangent = torch.linspace(-4.0, 8.0, 1_000_000).numpy(), torch.ones(1_000_000).numpy()
    calls = {"forward": lambda: FLAT.compiled((), x), "backward": lambda: GRADIENT((), x, cotangent)[0]}

    def pause() -> None:
        end = time.perf_counter() + microseconds * 1e-6
        while time.perf_counter() < end:
            pass

    benchmark.pedantic(lambda: calls[name]().block_until_ready(), setup=pause, rounds=400, warmup_rounds=10)


def run(benchmark: BenchmarkFixture, call: Callable[[], object], size: int) -> None:
    rounds = 200 if size < 1_000_000 else 40
    benchmark.pedantic(call, rounds=rounds, iterations=max(1, min(50, 500_000 // size)), warmup_rounds=10)
