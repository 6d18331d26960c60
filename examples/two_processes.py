"""Two processes of JAX on one machine, each with half of the batch, compute the gradient of one process with all of it.

The numbers are small integers, so sums are exact, whatever their order: the gradients are the same to the bit. Many of
the integers sit exactly on a bound.

Run: python examples/two_processes.py
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxclamp

PROCESSES, ROWS, WIDTH = 2, 64, 16
LIMIT = 240
"""Seconds, for all of it, which takes ten on an idle machine."""


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.abs(jnp.clip(x @ w, -2.0, 2.0)))


gradient = jax.jit(jax.grad(jaxclamp.min_norm(loss)))


def data() -> tuple[np.ndarray, np.ndarray]:
    """Parameters and inputs."""
    generator = np.random.default_rng(0)
    w, x = (generator.integers(-1, 2, shape).astype(np.float32) for shape in ((WIDTH, WIDTH), (ROWS, WIDTH)))
    return w, x


def work(rank: int, address: str) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(
        address, PROCESSES, rank, initialization_timeout=LIMIT, coordinator_bind_address=address if rank == 0 else None
    )
    try:
        mesh = jax.make_mesh((PROCESSES,), ("batch",), axis_types=(AxisType.Auto,))
        w, x = data()
        everywhere, divided = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))
        share = np.split(x, PROCESSES)[rank]
        ours = gradient(
            jax.make_array_from_process_local_data(everywhere, w),
            jax.make_array_from_process_local_data(divided, share),
        )
        np.testing.assert_array_equal(ours.addressable_data(0), gradient(w, x))
        if rank == 0:
            print(f"{jax.process_count()} processes, one gradient: {ours.size} entries are the same to the bit")
    finally:
        jax.distributed.shutdown()


def launch(file: str = __file__) -> None:
    """Run the file once per process, with its rank and the address where they meet; whatever happens, none is left."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    end = time.monotonic() + LIMIT
    processes = [subprocess.Popen([sys.executable, file, str(rank), address]) for rank in range(PROCESSES)]
    try:
        for rank, process in enumerate(processes):
            if process.wait(end - time.monotonic()):
                sys.exit(f"process {rank} ended with {process.returncode}")
    finally:
        for process in processes:
            process.kill()  # does nothing to one that has ended
            process.wait()


if __name__ == "__main__":
    if arguments := sys.argv[1:]:
        work(int(arguments[0]), arguments[1])
    else:
        launch()
