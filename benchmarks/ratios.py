"""The tables of docs/measurements.md, as Markdown: times as ratios to native spellings, and bandwidth and its bounds.

The contenders of a row take turns, so that what slows the machine for a while slows them all; each turn in another
order, since what ran before decides what is in the caches, and which memory is free.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping

import numpy as np
from conftest import DISPATCH
from contenders import (
    CHIEF,
    COPIES,
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

from jaxclamp import OPS
from jaxclamp._shared.tables import markdown_table

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 64_000_000)
KINDS = ("gradient", "forward", "backward", "crossing")
FLOOR = "the floor"
RIVALS = {"jaxclamp": ("jax.",), "interop": ("torch.", FLOOR)}
"""Maps a package to how the names of its rivals begin."""
PASSES = {  # and the single operation that moves as many bytes
    ("jaxclamp", "forward"): "negation",
    ("jaxclamp", "backward"): "selection",
    ("interop", "forward"): "negation",
    ("interop", "backward"): "product",
}


def moved(package: str, kind: str, itemsize: int) -> int:
    """Return the bytes per element that a pass has to move: x or a code of one byte, the cotangent, the result."""
    saved = 1 if package == "jaxclamp" else itemsize
    return {"forward": 2 * itemsize, "backward": saved + 2 * itemsize}[kind]


def medians(calls: Mapping[str, Call], size: int, draw: random.Random) -> dict[str, float]:
    """Measure the seconds that each call takes, in turns."""
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
    return {name: statistics.median(of_call) for name, of_call in times.items()}


def timed(op: str, kind: str, size: int, dtype: str = "float32") -> dict[str, float]:
    """Measure the seconds of each contender, and of what bounds it."""
    x, arguments = inputs(OPS[op], size, dtype)
    contenders = [c for c in functions(OPS[op], arguments) if c[1] == "jax" or kind != "gradient"]
    if kind != "gradient":
        (_, _, of_jaxclamp), *_ = contenders
        contenders.append((FLOOR, "torch", two_programs(of_jaxclamp)))
    shared = {framework: convert(framework, x) for framework in ("jax", "torch")}
    calls = {name: call(kind, framework, function, shared[framework]) for name, framework, function in contenders}
    calls |= copies(shared["jax"], shared["torch"])
    if size == SIZES[-1] and kind in ("forward", "backward"):
        calls |= single_operations(shared["jax"])
    return medians(calls, size, random.Random(f"{op}, {kind}, {size}"))


def main() -> None:
    seconds = {
        case: timed(*case)
        for case in track([(op, kind, size) for kind in KINDS for op in CHIEF for size in SIZES], transient=True)
    }
    console = Console(width=200)
    console.print(f"{DISPATCH} dispatch")
    for kind in KINDS:
        rows = []
        for package, rivals in RIVALS.items():
            for op in CHIEF:
                ours = f"{package}.{op}"
                times = [seconds[op, kind, size] for size in SIZES]
                for name in (name for name in times[0] if name.startswith(rivals) and ours in times[0]):
                    rows.append([f"{ours} / {name}", *(f"{time[ours] / time[name]:.2f}" for time in times)])
        console.print(markdown_table([kind, *(f"{size:,}" for size in SIZES)], rows), end="\n\n")
    rows = []
    for (package, kind), single in PASSES.items():
        for op in CHIEF:
            times = seconds[op, kind, SIZES[-1]]
            rates = [moved(package, kind, 4) * SIZES[-1] / times[name] / 1e9 for name in (f"{package}.{op}", single)]
            copy = 8 * SIZES[-1] / min(times[name] for name in COPIES) / 1e9
            shares = [f"{rate / copy:.2f}" for rate in rates]
            rows.append([f"{package}.{op}", kind, f"{rates[0]:.1f}", f"{copy:.1f}", *shares])
    headings = [f"{SIZES[-1]:,} elements", "pass", "GB/s", "a copy", "share", "that of a single operation"]
    console.print(markdown_table(headings, rows))


if __name__ == "__main__":
    main()
