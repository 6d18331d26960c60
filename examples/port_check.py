"""A network of JAX ported to torch: what differs by convention, and what by a bug of the port.

Its weights and inputs are small integers, so many activations sit exactly on a bound.

Run: python examples/port_check.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from rich.console import Console

import interop

WIDTH = 6


def in_jax(params: Mapping[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
    h = jax.nn.hard_tanh(x @ params["w1"] + params["b1"])
    h = jnp.clip(h @ params["w2"] + params["b2"], -1.0, 2.0)
    y = jax.nn.relu6(h @ params["w3"])
    return {"loss": jnp.mean((y - 1.0) ** 2), "prediction": y}


class Ported(torch.nn.Module):
    """``in_jax`` in torch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, WIDTH)
        self.second = torch.nn.Linear(WIDTH, WIDTH)
        self.third = torch.nn.Linear(WIDTH, 2, bias=False)

    def between(self, h: torch.Tensor) -> torch.Tensor:
        return h.clamp(-1.0, 2.0)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = torch.nn.functional.hardtanh(self.first(x))
        y = torch.nn.functional.relu6(self.third(self.between(self.second(h))))
        return {"loss": torch.mean((y - 1.0) ** 2), "prediction": y}


class WrongSlope(Ported):
    """A port that lets a little through above the bound."""

    def between(self, h: torch.Tensor) -> torch.Tensor:
        return h.clamp(-1.0, 2.0) + 0.01 * torch.relu(h - 2.0)


def converted(params: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The parameters under torch's names and layouts."""
    return {
        "first.weight": params["w1"].T,
        "first.bias": params["b1"],
        "second.weight": params["w2"].T,
        "second.bias": params["b2"],
        "third.weight": params["w3"].T,
    }


def not_transposed(params: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A conversion that forgets the second layer; its weight is square, so torch does not complain."""
    return {**converted(params), "second.weight": params["w2"]}


def port(
    model: torch.nn.Module, convert: Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> Callable[[Mapping[str, torch.Tensor], torch.Tensor], Any]:
    """``model`` as a function of the parameters of JAX; gradients reach them through the conversion."""

    def in_torch(params: Mapping[str, torch.Tensor], x: torch.Tensor) -> Any:
        return torch.func.functional_call(model, convert(params), (x,))

    return in_torch


PORTS = {
    "the port as it should be": port(Ported(), converted),
    "a weight not transposed": port(Ported(), not_transposed),
    "a wrong slope above the bound": port(WrongSlope(), converted),
}


def arguments() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Parameters and inputs."""
    generator = np.random.default_rng(0)
    shapes = {"w1": (4, WIDTH), "b1": (WIDTH,), "w2": (WIDTH, WIDTH), "b2": (WIDTH,), "w3": (WIDTH, 2)}
    params = {name: generator.integers(-1, 2, shape).astype(np.float32) for name, shape in shapes.items()}
    return params, generator.integers(-1, 2, (16, 4)).astype(np.float32)


if __name__ == "__main__":
    console = Console(width=140)
    for title, in_torch in PORTS.items():
        console.rule(title)
        console.print(interop.compare(in_jax, in_torch, *arguments()))
