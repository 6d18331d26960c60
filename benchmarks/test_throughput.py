"""Time per call, from 1,000 elements to more than the caches hold: every op beside its native spellings."""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from contenders import CHIEF, COPIES, call, convert, copies, functions, inputs
from pytest_benchmark.fixture import BenchmarkFixture

from jaxclamp import OPS, Op

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 64_000_000)
KINDS = ("forward", "backward", "crossing", "gradient")


def sizes(op: Op) -> tuple[int, ...]:
    if op.name not in CHIEF:
        return (1_000_000,)
    return (*SIZES, 100_000_000) if op.name == "clamp" else SIZES


def cases() -> Iterator[object]:
    for op in OPS.values():
        for size in sizes(op):
            for dtype in ("float32", "bfloat16") if (op.name, size) == ("clamp", 10_000_000) else ("float32",):
                _, arguments = inputs(op, 1_000, dtype)
                for name, framework, _ in functions(op, arguments):
                    for kind in KINDS:
                        if (framework == "jax" or kind != "gradient") and (op.name in CHIEF or kind != "backward"):
                            yield pytest.param(
                                op.name, size, dtype, kind, name, id=f"{op.name}-{size}-{dtype}-{kind}-{name}"
                            )


@pytest.mark.parametrize(("op", "size", "dtype", "kind", "contender"), list(cases()))
def test_op(benchmark: BenchmarkFixture, op: str, size: int, dtype: str, kind: str, contender: str) -> None:
    x, arguments = inputs(OPS[op], size, dtype)
    framework, function = next((w, f) for n, w, f in functions(OPS[op], arguments) if n == contender)
    benchmark.group = f"{op}, {kind}, {size:,} x {dtype}"
    benchmark.extra_info |= {"op": op, "size": size, "dtype": dtype, "kind": kind, "contender": contender}
    run(benchmark, call(kind, framework, function, convert(framework, x)), size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("contender", COPIES)
def test_copy(benchmark: BenchmarkFixture, contender: str, size: int) -> None:
    benchmark.group = f"copy, {size:,} x float32"
    benchmark.extra_info |= {"op": "copy", "size": size, "dtype": "float32", "kind": "copy", "contender": contender}
    run(benchmark, copies(jnp.ones(size), torch.ones(size))[contender], size)


def run(benchmark: BenchmarkFixture, once: object, size: int) -> None:
    iterations = max(1, 20_000 // size)
    rounds = int(np.clip(30_000_000 // size, 11, 60))
    benchmark.pedantic(once, rounds=rounds, iterations=iterations, warmup_rounds=3)
