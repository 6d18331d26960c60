"""What the first use costs: the import of jaxclamp on top of that of JAX, and the first call of each op."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import rich
from contenders import functions, inputs
from rich.progress import track
from rich.table import Table

from jaxclamp import OPS

IMPORT = """
import time
import jax
before = time.perf_counter()
import jaxclamp
print(time.perf_counter() - before)
"""


def importing() -> float:
    """Measure the seconds that ``import jaxclamp`` takes once JAX is there, in a fresh process."""
    return float(subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True).stdout)


def main() -> None:
    times = [1e3 * importing() for _ in track(range(11), "importing", transient=True)]
    rich.print(f"import jaxclamp, after import jax: {statistics.median(times):.1f} ms, the median of {len(times)}")
    jax.block_until_ready(jax.jit(jnp.sin)(jnp.zeros(3)))  # what the first program of all costs is not the op's
    table = Table("op", "forward", "gradient", title="First call, with tracing and compilation, in ms")
    for op in OPS.values():
        x, arguments = inputs(op, 1_000, "float32")
        _, _, function = next(functions(op, arguments))
        gradient = jax.grad(lambda x, function=function: jnp.sum(function(x)))
        row = []
        for call in (function, gradient):
            before = time.perf_counter()
            jax.block_until_ready(call(jnp.asarray(x)))
            row.append(f"{1e3 * (time.perf_counter() - before):.0f}")
        table.add_row(op.name, *row)
    rich.print(table)


if __name__ == "__main__":
    main()
