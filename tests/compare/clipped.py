"""Functions to compare: clips in JAX and in torch, right and wrong ones, and what a comparison finds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from rich.console import Console

from interop import Comparison, Recording

F32 = np.float32


def recording(array: Any, under_min_norm: Any = None, label: str = "value") -> Recording:
    native = {label: np.asarray(array)}
    return Recording(
        "f", "by hand", {}, native, native if under_min_norm is None else {label: np.asarray(under_min_norm)}
    )


def difference(a: Any, b: Any, **tolerance: float) -> Any:
    (leaf,) = Comparison(recording(a), recording(b), **tolerance).leaves
    return leaf.unmodified


def findings(comparison: Comparison) -> dict[str, str]:
    return {leaf.label: leaf.finding for leaf in comparison.leaves}


def jax_clip(x: jax.Array) -> jax.Array:
    return jnp.clip(x, 0.0, 6.0)


def torch_clamp(x: torch.Tensor) -> torch.Tensor:
    return torch.clamp(x, 0.0, 6.0)


def jax_hard(x: jax.Array) -> jax.Array:
    """The same, with all of the gradient at the bounds."""
    return 3.0 + 3.0 * jax.nn.hard_tanh((x - 3.0) / 3.0)


AT = F32([-1.0, 0.0, 3.0, 6.0, 7.0])


def in_jax(params: Any, x: jax.Array) -> jax.Array:
    h = x @ params["linear.weight"].T + params["linear.bias"]
    h = (h - h.mean(0)) * jax.lax.rsqrt(h.var(0) + 1e-5)
    return jax.nn.hard_tanh(h * params["norm.weight"] + params["norm.bias"])


def printed(comparison: Comparison, width: int = 140) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(comparison)
    return " ".join(line.strip() for line in capture.get().splitlines())
