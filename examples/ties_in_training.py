"""The share of activations on a tie in each layer, logged at every step of a training.

A perceptron of three layers, with activations that are rounded to multiples of 1/4 and clipped to between 0 and 6, is
trained on digits. The training step is compiled, and returns the counts beside the new parameters.

Run: python examples/ties_in_training.py
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits

import jaxclamp

Parameters = list[jax.Array]

RATE = 0.05


def quantised(x: jax.Array) -> jax.Array:
    """Multiples of 1/4, with the gradient of the number before rounding."""
    return x + jax.lax.stop_gradient(jnp.round(4 * x) / 4 - x)


def loss(parameters: Parameters, x: jax.Array, labels: jax.Array) -> jax.Array:
    *hidden, last = parameters
    for number, weights in enumerate(hidden):
        with jax.named_scope(f"layer {number}"):
            x = jnp.clip(quantised(x @ weights), 0.0, 6.0)
    log_probabilities = jax.nn.log_softmax(x @ last)
    return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[:, None], axis=1))


@jax.jit
def step(parameters: Parameters, x: jax.Array, labels: jax.Array) -> tuple[Parameters, jaxclamp.TieCounts]:
    """One step of gradient descent, and the ties that happened in it."""
    gradient, counts = jax.grad(jaxclamp.count_ties(loss), has_aux=True)(parameters, x, labels)
    return jax.tree.map(lambda p, g: p - RATE * g, parameters, gradient), counts


def train(steps: int, width: int, batch: int) -> Iterator[jaxclamp.TieReport]:
    """The reports of the steps."""
    pixels, labels = load_digits(return_X_y=True)
    generator = np.random.default_rng(0)
    sizes = (64, width, width, width, 10)
    parameters = [
        jnp.asarray(generator.normal(0.0, np.sqrt(2 / inputs), (inputs, outputs)), "float32")
        for inputs, outputs in itertools.pairwise(sizes)
    ]
    for _ in range(steps):
        rows = generator.choice(len(labels), batch, replace=False)
        parameters, counts = step(parameters, jnp.asarray(pixels[rows] / 16, "float32"), labels[rows])
        yield counts.report()


def shares(reports: list[jaxclamp.TieReport]) -> dict[str, list[float]]:
    """For each layer, the share of its activations that are on a tie, step by step."""
    layers: dict[str, list[float]] = {}
    for line in (line for report in reports for line in report.lines if line.op == "clamp"):
        layers.setdefault(line.module, []).append(line.share)
    return layers


def plot(layers: dict[str, list[float]], file: Path) -> None:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes: Any = figure.subplots()
    for layer, of_steps in layers.items():
        axes.plot(of_steps, label=layer)
    axes.set(xlabel="step", ylabel="share on a tie", ylim=(0, None), title="Activations exactly at 0 or 6")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file)


if __name__ == "__main__":
    console = Console()
    layers = shares(list(track(train(200, 128, 256), "training", total=200, console=console)))
    for layer, of_steps in layers.items():
        console.print(
            f"{layer}: {of_steps[0]:.1%} of the activations on a tie in the first step, {of_steps[-1]:.1%} in the last"
        )
    plot(layers, Path("ties_in_training.png"))
    console.print("plot written to ties_in_training.png")
