"""What clamp-family ops hold on to: bytes kept per element between forward and backward, and the peak of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import rich
import torch
from contenders import OPS, functions, inputs
from rich.progress import track
from rich.table import Table

from interop import min_norm

SIZE = 1_000_000
PEAK_SIZE = 20_000_000
PEAK = """
import re, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import conftest
from contenders import OPS, call, convert, functions, inputs
def resident(which):
    return 1024 * int(re.search(which + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
x, arguments = inputs(OPS["clamp"], {size}, "float32")
framework, function = next((w, f) for n, w, f in functions(OPS["clamp"], arguments) if n == {name!r})
call("crossing", framework, function, convert(framework, x[:1000]))()
once = call("crossing", framework, function, convert(framework, x))
Path("/proc/self/clear_refs").write_text("5")  # from here on the peak is counted
before = resident("VmRSS")
once()
print((resident("VmHWM") - before) / x.size)
"""


def kept(framework: str, function: Callable[[Any], Any], x: Any) -> float:
    """Bytes kept per element of x, those of x itself included where a pass keeps it."""
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


def peak(name: str) -> float:
    """How far a forward and backward pass of clamp raise the peak of a fresh process, in bytes per element."""
    code = PEAK.format(folder=str(Path(__file__).parent), size=PEAK_SIZE, name=name)
    # With the allocator that returns what is freed: one that keeps it would hide what comes and goes.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def main() -> None:
    table = Table("op", "bytes kept per element, float32", title=f"Kept between the passes, {SIZE:,} elements")
    for op in track(OPS.values(), "kept", transient=True):
        x, arguments = inputs(op, SIZE, "float32")
        contenders = list(functions(op, arguments))
        found = [f"{name} {kept(framework, f, x):.2f}" for name, framework, f in contenders]
        with min_norm():  # what torch's functions keep when those of interop.native take their place
            found += [
                f"{name}, min_norm {kept('torch', f, x):.2f}" for name, *_, f in contenders if name[:6] == "torch."
            ]
        table.add_row(op.name, "  ".join(found))
    rich.print(table)
    table = Table(
        "contender", "bytes per element", title=f"Peak of forward and backward of clamp, {PEAK_SIZE:,} elements"
    )
    names = [name for name, *_ in functions(OPS["clamp"], inputs(OPS["clamp"], 1_000, "float32")[1])]
    for name in track(names, "peak", transient=True):
        table.add_row(name, f"{peak(name):.2f}")
    rich.print(table)


if __name__ == "__main__":
    main()
