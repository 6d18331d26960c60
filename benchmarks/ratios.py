"""The tables of docs/measurements.md, as Markdown: times as ratios to native spellings, and bandwidth and its bounds.

The contenders of a row take turns, so that what slows the machine for a while slows them all; each turn in another
order, since what ran before decides what is in the caches, and which memory is free.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable, Mapping

import numpy as np
from conftest import DISPATCH
from contenders import (
    CHIEF,
    COPIES,
    OPS,
    Call,
    call,
    convert,
    copies,
    functions,
    inputs,
    single_operations,
    two_programs,
)
from rich.console import Console
from rich.progress import track

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 64_000_000)
KINDS = ("gradient", "forward", "backward", "crossing")
FLOOR = "the floor"
OURS = {"jaxclamp": ("jax.",), "interop": ("torch.", FLOOR)}
"""The packages, and how the names of their rivals begin."""
PASSES = {  # and the single operation that moves as many bytes
    ("jaxclamp", "forward"): "negation",
    ("jaxclamp", "backward"): "selection",
    ("interop", "forward"): "negation",
    ("interop", "backward"): "product",
}


def moved(ours: str, kind: str, itemsize: int) -> int:
    """Bytes per element that a pass has to move: x or a code of one byte, the cotangent, the result."""
    kept = 1 if ours == "jaxclamp" else itemsize
    return {"forward": 2 * itemsize, "backward": kept + 2 * itemsize}[kind]


def medians(calls: Mapping[str, Call], size: int, draw: random.Random) -> dict[str, float]:
    """Seconds of each call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    repeats = max(1, 20_000 // size)
    for turn in range(int(np.clip(200_000_000 // size, 31, 300)) + 3):
        for name in draw.sample(list(calls), len(calls)):
            once = calls[name]
            before = time.perf_counter()
            for _ in range(repeats):
                once()
            if turn >= 3:
                times[name].append((time.perf_counter() - before) / repeats)
    return {name: statistics.median(found) for name, found in times.items()}


def timed(op: str, kind: str, size: int, dtype: str = "float32") -> dict[str, float]:
    """Seconds of each contender, and of what bounds it."""
    x, arguments = inputs(OPS[op], size, dtype)
    found = [c for c in functions(OPS[op], arguments) if c[1] == "jax" or kind != "gradient"]
    if kind != "gradient":
        (_, _, ours), *_ = found
        found.append((FLOOR, "torch", two_programs(ours)))
    shared = {framework: convert(framework, x) for framework in ("jax", "torch")}
    calls = {name: call(kind, framework, function, shared[framework]) for name, framework, function in found}
    calls |= copies(shared["jax"], shared["torch"])
    if size == SIZES[-1] and kind in ("forward", "backward"):
        calls |= single_operations(shared["jax"])
    return medians(calls, size, random.Random(f"{op}, {kind}, {size}"))


def markdown(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [[*headings], *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    found = {
        case: timed(*case)
        for case in track([(op, kind, size) for kind in KINDS for op in CHIEF for size in SIZES], transient=True)
    }
    console = Console(width=200)
    console.print(f"{DISPATCH} dispatch")
    for kind in KINDS:
        rows = []
        for ours, rivals in OURS.items():
            for op in CHIEF:
                names = found[op, kind, SIZES[0]]
                for name in (n for n in names if n.startswith(rivals) and f"{ours}.{op}" in names):
                    times = [found[op, kind, size] for size in SIZES]
                    rows.append([f"{ours}.{op} / {name}", *(f"{t[f'{ours}.{op}'] / t[name]:.2f}" for t in times)])
        console.print(markdown([kind, *(f"{size:,}" for size in SIZES)], rows))
    rows = []
    for (ours, kind), single in PASSES.items():
        for op in CHIEF:
            times = found[op, kind, SIZES[-1]]
            rates = [moved(ours, kind, 4) * SIZES[-1] / times[name] / 1e9 for name in (f"{ours}.{op}", single)]
            copy = 8 * SIZES[-1] / min(times[name] for name in COPIES) / 1e9
            shares = [f"{rate / copy:.2f}" for rate in rates]
            rows.append([f"{ours}.{op}", kind, f"{rates[0]:.1f}", f"{copy:.1f}", *shares])
    headings = [f"{SIZES[-1]:,} elements", "pass", "GB/s", "a copy", "share", "that of a single operation"]
    console.print(markdown(headings, rows))


if __name__ == "__main__":
    main()
