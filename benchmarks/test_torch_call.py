"""What a call from torch costs alone in a loop, and a program after a pause."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from call import FLAT, FUNCTIONS, LARGE, SMALL
from pytest_benchmark.fixture import BenchmarkFixture

KINDS = ("forward", "recorded", "forward and backward")


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


@pytest.mark.benchmark(group="a compiled program of 1,000,000 x float32, called so long after the last")
@pytest.mark.parametrize("microseconds", [0, 100, 1_000])
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_program_after_a_pause(benchmark: BenchmarkFixture, name: str, microseconds: int) -> None:
    """As within a call of autograd, where Python runs between the programs."""
    x, cotangent = torch.linspace(-4.0, 8.0, 1_000_000).numpy(), torch.ones(1_000_000).numpy()
    calls = {
        "forward": lambda: FLAT.compiled((), x),
        "backward": lambda: FLAT.pullback((True,)).compiled((), x, cotangent)[0],
    }

    def pause() -> None:
        end = time.perf_counter() + microseconds * 1e-6
        while time.perf_counter() < end:
            pass

    benchmark.pedantic(lambda: calls[name]().block_until_ready(), setup=pause, rounds=400, warmup_rounds=10)


def run(benchmark: BenchmarkFixture, call: Callable[[], object], size: int) -> None:
    rounds = 200 if size < 1_000_000 else 40
    benchmark.pedantic(call, rounds=rounds, iterations=max(1, min(50, 500_000 // size)), warmup_rounds=10)
