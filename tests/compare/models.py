"""Models and calls that tests of `interop.compare_models` share."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from interop import ModelComparison

F32 = np.float32


def blamed(comparison: ModelComparison) -> tuple[Any, ...]:
    """As in `BUGS`."""
    cause = comparison.cause
    if cause is None:
        return ()
    layer = cause.layer.name if cause.layer.first.path else ""
    ends = [end and end.name for end in (cause.after, cause.before)]
    return (layer, *ends) if cause.is_own_code else (layer,)


def port_of_image_model() -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(inplace=True),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 8),
        torch.nn.LayerNorm(8),
        torch.nn.ReLU(inplace=True),
        torch.nn.Linear(8, 2),
    )


def small_images() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(3, 8, 4, 3)).astype(F32)


class OfNnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(3, 4, (3, 3), padding=1, rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(32, 8, rngs=rngs), nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)])
        self.head = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        for layer in self.layers:
            x = layer(x)
        return self.head(nnx.relu(x))


def dense(*names: str) -> nn.Module:
    checkpointed = nn.remat(nn.Dense)  # whose boundaries are in a program of their own

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for name in names:
                x = nn.LayerNorm(name=name)(x) if name.startswith("norm") else jnp.tanh(checkpointed(4, name=name)(x))
            return x

    return Model()


def port_of(**layers: torch.nn.Module) -> torch.nn.Module:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, layer in layers.items():
                self.add_module(name, layer)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.children():
                x = layer(x) if isinstance(layer, torch.nn.LayerNorm) else torch.tanh(layer(x))
            return x

    return Model()


def linear() -> torch.nn.Linear:
    return torch.nn.Linear(4, 4)


X = np.random.default_rng(0).normal(size=(3, 4)).astype(F32)


class Clamped(torch.nn.Module):
    """A batch norm whose result is 0, and so on a bound."""

    def __init__(self, clamp: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        torch.nn.init.zeros_(self.norm.weight)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.clamp = clamp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.clamp(self.norm(x))


def between_0_and_6(x: torch.Tensor) -> torch.Tensor:
    """With half of the gradient at the bounds in every version of torch."""
    return torch.minimum(torch.maximum(x, torch.zeros_like(x)), torch.full_like(x, 6.0))
