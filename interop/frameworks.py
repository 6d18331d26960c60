"""How to ask JAX and torch for a gradient in the same words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import torch

Function = Callable[[Mapping[str, Any]], Any]


class Framework(Protocol):
    """A library that differentiates."""

    name: str
    version: str

    def gradient(
        self, function: Function, arguments: Mapping[str, Any], active: tuple[str, ...], dtype: str
    ) -> dict[str, np.ndarray[Any, Any]]:
        """The gradient of the sum of ``function(arguments)`` with respect to the ``active`` arguments.

        NumPy arrays among the arguments become arrays of the framework, of the given dtype; all else stays as it is.
        """
        ...


class Jax:
    """JAX, reverse mode."""

    name = "jax"
    version = f"jax {jax.__version__}"

    def gradient(
        self, function: Function, arguments: Mapping[str, Any], active: tuple[str, ...], dtype: str
    ) -> dict[str, np.ndarray[Any, Any]]:
        with jax.enable_x64(dtype == "float64"):
            arrays = {
                name: jnp.asarray(value, dtype) if isinstance(value, np.ndarray) else value
                for name, value in arguments.items()
            }
            chosen = {name: arrays[name] for name in active}
            gradient = jax.grad(lambda chosen: total(function({**arrays, **chosen})))(chosen)
            return {name: np.asarray(g, np.float64) for name, g in gradient.items()}


class Torch:
    """PyTorch, reverse mode."""

    name = "torch"
    version = f"torch {torch.__version__.partition('+')[0]}"

    def gradient(
        self, function: Function, arguments: Mapping[str, Any], active: tuple[str, ...], dtype: str
    ) -> dict[str, np.ndarray[Any, Any]]:
        tensors = {
            name: torch.tensor(value, dtype=getattr(torch, dtype), requires_grad=name in active)
            if isinstance(value, np.ndarray)
            else value
            for name, value in arguments.items()
        }
        total(function(tensors)).backward()
        gradients = {name: tensors[name].grad for name in active}
        return {
            name: np.zeros(tensors[name].shape) if g is None else g.double().numpy() for name, g in gradients.items()
        }


def total(result: Any) -> Any:
    """The sum of the values; what else an op returns, such as indices, comes after them."""
    return (result[0] if isinstance(result, tuple) else result).sum()
