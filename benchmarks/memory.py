"""What ops hold on to: bytes kept per element between forward and backward, and the peak of a process for clamp.

``python benchmarks/memory.py`` prints two tables. The peak of each contender is that of a process of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import rich
import torch
from contenders import call, convert, functions, inputs
from rich.progress import track
from rich.table import Table

from interop import min_norm
from jaxclamp import OPS

SIZE = 1_000_000
PEAK_SIZE = 20_000_000


def saved_bytes(framework: str, function: Callable[[Any], Any], x: Any) -> float:
    """Return the bytes kept per element of x, those of x itself included where a pass keeps it."""
    if framework == "jax":
        _, pull = jax.vjp(jax.jit(function), jnp.asarray(x))
        return sum(leaf.nbytes for leaf in jax.tree.leaves(pull)) / x.size
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(torch.from_numpy(x).requires_grad_())
    return sum(saved.values()) / x.size


def growth_of_peak(call: Callable[[], object]) -> float:
    """Return the bytes by which a call raises the peak of this process."""
    Path("/proc/self/clear_refs").write_text("5")  # from here on the peak is counted
    before = _resident("VmRSS")
    call()
    return _resident("VmHWM") - before


def _resident(which: str) -> int:
    """Read what Linux says of the memory of this process: ``VmRSS``, which it has now, or ``VmHWM``, the peak."""
    line = re.search(which + r":\s+(\d+)", Path("/proc/self/status").read_text())
    assert line is not None
    return 1024 * int(line[1])


def printed_in_a_process(*command: str, **environment: str) -> float:
    """Run Python with these arguments, and return the last number that it prints."""
    # With the allocator that returns what is freed: one that keeps it would hide what comes and goes.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")} | environment
    process = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True, env=variables)
    return float(process.stdout.split()[-1])


def peak(name: str) -> float:
    """Return the bytes per element by which a forward and backward pass of clamp raise the peak of this process."""
    import conftest  # noqa: F401  # sets JAX's dispatch

    x, arguments = inputs(OPS["clamp"], PEAK_SIZE, "float32")
    framework, function = next((w, f) for n, w, f in functions(OPS["clamp"], arguments) if n == name)
    call("crossing", framework, function, convert(framework, x[:1000]))()
    return growth_of_peak(call("crossing", framework, function, convert(framework, x))) / x.size


def main() -> None:
    if len(sys.argv) > 1:
        print(peak(sys.argv[1]))
        return
    table = Table("op", "bytes kept per element, float32", title=f"Kept between the passes, {SIZE:,} elements")
    for op in track(OPS.values(), "kept", transient=True):
        x, arguments = inputs(op, SIZE, "float32")
        contenders = list(functions(op, arguments))
        cells = [f"{name} {saved_bytes(framework, f, x):.2f}" for name, framework, f in contenders]
        with min_norm():  # what torch's functions keep when those of interop.native take their place
            cells += [
                f"{name}, min_norm {saved_bytes('torch', f, x):.2f}"
                for name, *_, f in contenders
                if name.startswith("torch.")
            ]
        table.add_row(op.name, "  ".join(cells))
    rich.print(table)
    table = Table(
        "contender", "bytes per element", title=f"Peak of forward and backward of clamp, {PEAK_SIZE:,} elements"
    )
    names = [name for name, *_ in functions(OPS["clamp"], inputs(OPS["clamp"], 1_000, "float32")[1])]
    for name in track(names, "peak", transient=True):
        table.add_row(name, f"{printed_in_a_process(__file__, name):.2f}")
    rich.print(table)


if __name__ == "__main__":
    main()
