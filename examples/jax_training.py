"""Quantised activations in JAX, trained natively and under `jaxclamp.min_norm`: the same values, other gradients.

Activations are rounded to steps of 1/8 before they are clipped, so many of them sit exactly on a bound. At the same
parameters the loss is the same to the bit whatever the convention; the gradient is not, and so the trainings part. That
does not say which convention trains best: here all of them learn.

Run: python examples/jax_training.py [--epochs 10] [--plot FILE]
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import click
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

import jaxclamp

TRAINED, BATCH = 1536, 128
"""The first digits are trained with, the others test."""
OPTIMIZER = optax.adam(3e-3)


class Network(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        self.first = eqx.nn.Linear(64, 32, key=keys[0])
        self.second = eqx.nn.Linear(32, 32, key=keys[1])
        self.head = eqx.nn.Linear(32, 10, key=keys[2])

    def __call__(self, x: jax.Array) -> jax.Array:
        h = jnp.clip(rounded(self.first(x)), 0.0, 1.0)
        h = jax.nn.hard_tanh(rounded(self.second(h)))
        return self.head(h)


def rounded(x: jax.Array) -> jax.Array:
    """To a multiple of 1/8, with gradient 1."""
    return x + jax.lax.stop_gradient(jnp.round(8 * x) / 8 - x)


def loss(network: Network, x: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(network)(x), labels).mean()


Loss: TypeAlias = Callable[[Network, jax.Array, jax.Array], jax.Array]
Runs: TypeAlias = Mapping[str, Sequence[Network]]
"""The networks of each convention, before training and after each epoch."""

CONVENTIONS: Mapping[str, Loss] = {
    "native": loss,
    "min_norm": jaxclamp.min_norm(loss),
    "inclusive": jaxclamp.min_norm(loss, ties="inclusive"),
}
VALUES = [jax.jit(loss) for loss in CONVENTIONS.values()]


@functools.cache
def data() -> tuple[np.ndarray, np.ndarray]:
    pixels, labels = load_digits(return_X_y=True)
    return np.float32(pixels / 16), labels


def train(loss: Loss, epochs: int) -> Iterator[Network]:
    """From the same parameters and with the same batches for every ``loss``."""

    @jax.jit
    def step(
        network: Network, state: optax.OptState, x: jax.Array, labels: jax.Array
    ) -> tuple[Network, optax.OptState]:
        updates, state = OPTIMIZER.update(jax.grad(loss)(network, x, labels), state)
        return optax.apply_updates(network, updates), state

    x, labels = data()
    network = Network(jax.random.key(0))
    state = OPTIMIZER.init(network)
    generator = np.random.default_rng(0)
    yield network
    for _ in range(epochs):
        for rows in generator.permutation(TRAINED).reshape(-1, BATCH):
            network, state = step(network, state, x[rows], labels[rows])
        yield network


def losses(network: Network) -> list[float]:
    """On the digits that were not trained with, as each convention computes it, in a program of its own."""
    x, labels = data()
    return [float(value(network, x[TRAINED:], labels[TRAINED:])) for value in VALUES]


@jax.jit
def accuracy(network: Network) -> jax.Array:
    """On the same digits."""
    x, labels = data()
    return jnp.mean(jnp.argmax(jax.vmap(network)(x[TRAINED:]), axis=1) == labels[TRAINED:])


@jax.jit
def distance(first: Network, second: Network) -> jax.Array:
    """Between the parameters of two networks, relative to those of the second."""
    difference = optax.tree.norm(jax.tree.map(jnp.subtract, first, second))
    return difference / optax.tree.norm(second)


def table(runs: Runs) -> Table:
    shown = Table("epoch", title="Digits not trained with: loss and accuracy")
    for name in runs:
        shown.add_column(name, justify="right")
    shown.add_column("native to min_norm", justify="right")
    apart = map(distance, runs["native"], runs["min_norm"])
    for epoch, (networks, difference) in enumerate(zip(zip(*runs.values(), strict=True), apart, strict=True)):
        cells = [f"{losses(network)[0]:.4f}  {accuracy(network):6.2%}" for network in networks]
        shown.add_row(str(epoch), *cells, f"{difference:.2%}")
    return shown


def plot(runs: Runs, file: Path) -> None:
    """Draw the losses, and how far the parameters are apart."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, networks), style in zip(runs.items(), ("-o", "--s", ":^"), strict=True):
        left.plot([losses(network)[0] for network in networks], style, fillstyle="none", label=name)
        if name != "min_norm":
            apart = map(distance, networks, runs["min_norm"])
            right.plot(list(apart), style, fillstyle="none", label=f"{name} to min_norm")
    left.set(xlabel="epoch", ylabel="loss", title="Digits not trained with")
    right.set(xlabel="epoch", ylabel="relative to the norm", title="Distance between the parameters")
    for axes in (left, right):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(file)


def audit(network: Network) -> jaxclamp.TieReport:
    """Where ties happen on the digits that it was trained with, and how far they move the gradient."""
    x, labels = data()
    _, report = jaxclamp.ties(jax.jit(loss), influence=True)(network, x[:TRAINED], labels[:TRAINED])
    return report


@click.command()
@click.option("--epochs", default=10, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--plot", "file", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Draw losses and distances."
)
def main(epochs: int, file: Path | None) -> None:
    console = Console()
    runs = {name: list(train(loss, epochs)) for name, loss in CONVENTIONS.items()}
    console.print(table(runs))
    networks = [network for run in runs.values() for network in run]
    same = sum(len(set(losses(network))) == 1 for network in networks)
    console.print(f"All conventions give the same loss to the bit at {same} of {len(networks)} points of training.")
    console.print(audit(runs["min_norm"][-1]))
    if file is not None:
        plot(runs, file)
        console.print(f"plot written to {file}")


if __name__ == "__main__":
    main()
