"""What a call from torch consists of, and where it breaks even: tables of docs/measurements.md, by taking turns."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from contenders import Call, convert, inputs, two_programs
from ratios import medians
from rich.console import Console
from rich.progress import track

import interop
import jaxclamp
from interop._bridge.arrays import adopt, lend
from interop._bridge.flat import FlatFunction
from interop._bridge.tape import call
from jaxclamp import OPS
from jaxclamp._shared.tables import markdown_table

FLAT = FlatFunction(lambda non_tensors, x: jaxclamp.relu6(x), "relu6", ["x"], layout="kept")
SMALL = (1, 1_000)
LARGE = (10_000, 20_000, 50_000, 100_000, 300_000, 1_000_000, 10_000_000)
FEW = 400
"""The number of elements of which `medians` makes 50 calls in a turn, 300 times: enough for three elements too."""


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
    """The compiled programs of both passes, with the checks of the bridge."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return FLAT.compute((), False, [x])[0][0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return FLAT.pullback(ctx.needs_input_grad).compute((), False, [*ctx.saved_tensors, gradient])[0][0]


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "torch.clamp": lambda x: torch.clamp(x, 0.0, 6.0),
    "autograd.Function that calls torch": InPython.apply,
    "the floor, an autograd.Function of two compiled programs": two_programs(jaxclamp.relu6),
    "interop.relu6": interop.relu6,
    "interop.clamp": lambda x: interop.clamp(x, 0.0, 6.0),
}


def forward() -> dict[str, Call]:
    """Return calls without a gradient, from a compiled program to the ops, each with one step more than the last."""
    x = torch.linspace(-4.0, 8.0, 3)
    array, program = x.numpy(), FLAT.compiled
    return {
        "1 a compiled program, of a NumPy array": lambda: program((), array),
        "2 and its result as a NumPy array": lambda: np.asarray(program((), array)),
        "3 and that as a tensor": lambda: adopt(program((), array), True),
        "4 and of the memory of a tensor": lambda: adopt(program((), lend(x)), True),
        "5 and with the checks of the bridge": lambda: FLAT.compute((), False, [x]),
        "6 and with the choice by what torch is doing": lambda: call(FLAT, (), False, [x]),
        **{name: lambda function=function: function(x) for name, function in FUNCTIONS.items()},
    }


def both_passes(functions: Mapping[str, Callable[[torch.Tensor], torch.Tensor]], size: int) -> dict[str, Call]:
    """Return a forward and a backward pass of each function."""
    numbers, _ = inputs(OPS["clamp"], size, "float32")  # in no order: torch takes half the time for sorted ones
    leaf, cotangent = convert("torch", numbers).requires_grad_(), torch.ones(size)
    return {
        name: lambda function=function: torch.autograd.grad(function(leaf), leaf, cotangent)
        for name, function in functions.items()
    }


IN_PARTS = {
    **FUNCTIONS,
    "the floor with the checks of the bridge": InCheckedPrograms.apply,
    "and with the choice by what torch is doing": lambda x: call(FLAT, (), False, [x]),
}


def backward_passes() -> dict[str, Call]:
    """Return torch's own backward pass, alone and before a program of XLA: in turns each makes the other slow."""
    x, cotangent = torch.linspace(-4.0, 8.0, 3), torch.ones(3)
    array, leaf = x.numpy(), x.clone().requires_grad_()
    result = torch.clamp(leaf, 0.0, 6.0)

    def backward() -> object:
        return torch.autograd.grad(result, leaf, cotangent, retain_graph=True)

    return {
        "a backward pass of torch": backward,
        "a backward pass of torch, then a compiled program": lambda: (backward(), FLAT.compiled((), array)),
    }


def main() -> None:
    x = torch.tensor([-1.0, 3.0, 7.0], requires_grad=True)
    for function in IN_PARTS.values():  # what is compared answers the same
        assert function(x).tolist() == [0, 3, 6]
        assert torch.autograd.grad(function(x), x, torch.ones(3))[0].tolist() == [0, 1, 0]
    console = Console(width=200)
    draw = random.Random(0)
    for heading, calls in {
        "forward": forward(),
        "forward and backward": both_passes(IN_PARTS, 3),
        "backward": backward_passes(),
    }.items():
        rows = [[name, f"{1e6 * time:.1f}"] for name, time in medians(calls, FEW, draw).items()]
        console.print(markdown_table([heading, "us"], rows), end="\n\n")
    sizes = (*SMALL, *LARGE)
    times = [medians(both_passes(FUNCTIONS, size), max(size, FEW), draw) for size in track(sizes, transient=True)]
    rows = [[name, *(f"{time[name] / time['torch.clamp']:.2f}" for time in times)] for name in FUNCTIONS]
    console.print(markdown_table(["in shares of torch.clamp", *(f"{size:,}" for size in sizes)], rows))


if __name__ == "__main__":
    main()
