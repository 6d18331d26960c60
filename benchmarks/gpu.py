"""On a GPU: bandwidth beside that of a device copy, `interop` beside torch, and whether a call waits for the device."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import torch
from contenders import CHIEF, COPIES
from ratios import RIVALS, moved, timed
from rich.console import Console
from rich.progress import track

import interop
from jaxclamp._shared.tables import markdown_table

LARGE, MEDIUM = 2**28, 2**26
DTYPES = {"float32": 4, "bfloat16": 2}
BANDWIDTH = [(op, kind, LARGE, dtype) for op in CHIEF for dtype in DTYPES for kind in ("forward", "backward")]
CROSSING = [(op, "crossing", MEDIUM, dtype) for op in CHIEF for dtype in DTYPES]


def returns_early() -> bool:
    """Say whether both passes of a call are back while the device has not yet begun with them."""
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
    seconds = {case: timed(*case) for case in track([*BANDWIDTH, *CROSSING], transient=True)}
    console = Console(width=200)
    console.print(f"{torch.cuda.get_device_name()}, jax {jax.__version__}, torch {torch.__version__}\n")
    rows = []
    for op, kind, size, dtype in BANDWIDTH:
        times, itemsize = seconds[op, kind, size, dtype], DTYPES[dtype]
        copy = 2 * itemsize * size / min(times[name] for name in COPIES)
        for package in RIVALS:
            name = f"{package}.{op}"
            rate = moved(package, kind, itemsize) * size / times[name]
            rows.append([name, kind, dtype, f"{rate / 1e9:.0f}", f"{copy / 1e9:.0f}", f"{rate / copy:.2f}"])
    headings = [f"{LARGE:,} elements", "pass", "dtype", "GB/s", "a copy", "share"]
    console.print(markdown_table(headings, rows), end="\n\n")
    rows = []
    for op, kind, size, dtype in CROSSING:
        times = seconds[op, kind, size, dtype]
        of_torch = min(time for name, time in times.items() if name.startswith("torch."))
        rows.append([op, dtype, f"{times[f'interop.{op}'] / of_torch:.2f}"])
    headings = [f"{MEDIUM:,} elements, forward and backward", "dtype", "interop / torch"]
    console.print(markdown_table(headings, rows), end="\n\n")
    console.print(f"a call returns before the device has begun with it: {returns_early()}")


if __name__ == "__main__":
    main()
