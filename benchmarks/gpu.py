"""On a GPU: bandwidth beside that of a device copy, `interop` beside torch, and whether a call waits for the device."""

from __future__ import annotations

import random
from collections.abc import Sequence

import jax
import torch
from contenders import CHIEF, COPIES, OPS, Call, call, convert, copies, functions, inputs
from ratios import OURS, markdown, medians
from rich.console import Console
from rich.progress import track

import interop

LARGE, MEDIUM = 2**28, 2**26
DTYPES = {"float32": 4, "bfloat16": 2}
BANDWIDTH = [(op, kind, dtype, LARGE) for op in CHIEF for dtype in DTYPES for kind in ("forward", "backward")]
CROSSING = [(op, "crossing", dtype, MEDIUM) for op in CHIEF for dtype in DTYPES]


def timed(op: str, kind: str, dtype: str, size: int) -> dict[str, float]:
    """Seconds of each contender, until the device is done, and of a copy."""
    x, arguments = inputs(OPS[op], size, dtype)
    given = {"jax": convert("jax", x), "torch": convert("torch", x).cuda()}
    calls = {name: call(kind, framework, f, given[framework]) for name, framework, f in functions(OPS[op], arguments)}
    calls |= copies(given["jax"], given["torch"])
    awaited = {name: _awaited(once) for name, once in calls.items()}
    return medians(awaited, size, random.Random(f"{op}, {kind}, {dtype}, {size}"))


def _awaited(once: Call) -> Call:
    def call_and_wait() -> None:
        once()
        torch.cuda.synchronize()

    return call_and_wait


def moved(ours: str, kind: str, itemsize: int) -> int:
    """Bytes per element that a pass has to move: x or a code of one byte, the cotangent, the result."""
    kept = 1 if ours == "jaxclamp" else itemsize
    return {"forward": 2 * itemsize, "backward": kept + 2 * itemsize}[kind]


def returns_early() -> bool:
    """Whether both passes of a call are back while the device has not yet begun with them."""
    x = torch.ones(1_000, device="cuda", requires_grad=True)
    cotangent = torch.ones_like(x)

    def once() -> Sequence[torch.Tensor]:
        return torch.autograd.grad(interop.clamp(x, 0.0, 6.0), x, cotangent)

    once()
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second
    asleep = torch.cuda.Event()
    asleep.record()
    once()
    return not asleep.query()


def main() -> None:
    if jax.default_backend() != "gpu" or not torch.cuda.is_available():
        raise SystemExit(
            f"JAX computes on {jax.default_backend()}, torch has CUDA: {torch.cuda.is_available()}; both need it."
        )
    found = {case: timed(*case) for case in track([*BANDWIDTH, *CROSSING], transient=True)}
    console = Console(width=200)
    console.print(f"{torch.cuda.get_device_name()}, jax {jax.__version__}, torch {torch.__version__}\n")
    rows = []
    for op, kind, dtype, size in BANDWIDTH:
        times, itemsize = found[op, kind, dtype, size], DTYPES[dtype]
        copy = 2 * itemsize * size / min(times[name] for name in COPIES)
        for ours in OURS:
            rate = moved(ours, kind, itemsize) * size / times[f"{ours}.{op}"]
            rows.append([f"{ours}.{op}", kind, dtype, f"{rate / 1e9:.0f}", f"{copy / 1e9:.0f}", f"{rate / copy:.2f}"])
    console.print(markdown([f"{LARGE:,} elements", "pass", "dtype", "GB/s", "a copy", "share"], rows))
    rows = []
    for op, kind, dtype, size in CROSSING:
        times = found[op, kind, dtype, size]
        native = min(time for name, time in times.items() if name.startswith("torch."))
        rows.append([op, dtype, f"{times[f'interop.{op}'] / native:.2f}"])
    console.print(markdown([f"{MEDIUM:,} elements, forward and backward", "dtype", "interop / torch"], rows))
    console.print(f"a call returns before the device has begun with it: {returns_early()}")


if __name__ == "__main__":
    main()
