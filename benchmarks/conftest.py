"""How the benchmarks run: JAX's dispatch, and what of the surroundings is recorded with the results.

JAXCLAMP_DISPATCH=asynchronous leaves XLA its own thread; without it, a call computes before it returns.
"""

import os
import platform
from typing import Any

import jax
import numpy as np
import torch

DISPATCH = os.environ.get("JAXCLAMP_DISPATCH", "synchronous")
jax.config.update("jax_cpu_enable_async_dispatch", {"synchronous": False, "asynchronous": True}[DISPATCH])


def pytest_benchmark_update_machine_info(config: Any, machine_info: dict[str, Any]) -> None:
    machine_info |= {
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"jax": jax.__version__, "torch": torch.__version__, "numpy": np.__version__},
        "python": platform.python_version(),
        "dispatch": DISPATCH,
        "allocator": {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")} or "default",
        "devices": [str(device) for device in jax.devices()],
    }
