"""A network of integers: at how many steps of its training the gradient op by op is not that of the program.

Inputs and weights are small integers, as in fake quantisation. So the sums in front of the activations are integers
too, and often 0, 6 or -6. The activation is written by its two halves, relu6(x) - relu6(-x). Around 0 it is x, but each
half has a kink there, where relu6 has slope 0.

At each step all gradients are taken at the same weights. A judge that knows none of them is the difference of two
values, in 64 bits: the rate at which the loss changes along a direction v. That only one of the gradients predicts it
does not say which trains best: here all learn alike.

Run: python examples/quantised_training.py
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

import jaxclamp

TRAINED, BATCH, WIDTH = 1536, 64, 24
"""The first digits are trained with, the others test."""
LEAST, MOST = -4, 3
"""The integers of 3 bits, which the weights are."""
RATE = 3.0
NEARBY = 1e-7
"""How far along the direction the second value of the loss is."""
ROUNDING = 1e-9

Weights = dict[str, jax.Array]
Gradient = Callable[[Weights, Weights, jax.Array, jax.Array], Weights]
"""Of the weights, a direction, the inputs and their labels."""


def quantised(weights: Weights) -> Weights:
    return jax.tree.map(lambda w: jnp.clip(jnp.round(w), LEAST, MOST), weights)


def logits(weights: Weights, x: jax.Array) -> jax.Array:
    sums = x @ weights["first"]
    hidden = jax.nn.relu6(sums) - jax.nn.relu6(-sums)
    return hidden @ weights["second"] / 16


def loss(weights: Weights, x: jax.Array, labels: jax.Array) -> jax.Array:
    log_probabilities = jax.nn.log_softmax(logits(weights, x))
    return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[:, None], axis=1))


def op_by_op(loss: Callable[..., jax.Array]) -> Gradient:
    return lambda weights, v, x, labels: jax.grad(loss)(weights, x, labels)


def of_the_program(weights: Weights, v: Weights, x: jax.Array, labels: jax.Array) -> Weights:
    return jaxclamp.grad(loss, direction=v)(weights, x, labels)


GRADIENTS: Mapping[str, Gradient] = {
    "op by op, JAX": op_by_op(loss),
    "op by op, min_norm": op_by_op(jaxclamp.min_norm(loss)),
    "op by op, balanced": op_by_op(jaxclamp.min_norm(loss, ties="balanced")),
    "of the program": of_the_program,
}


@dataclass(frozen=True)
class Step:
    """One step of training: the integers that the weights are rounded to, the digits, and a direction."""

    weights: Weights
    direction: Weights
    x: jax.Array
    labels: jax.Array


@functools.cache
def data() -> tuple[np.ndarray, np.ndarray]:
    """Digits, as integers from 0 to 4."""
    pixels, labels = load_digits(return_X_y=True)
    return np.round(pixels / 4), labels


def train(name: str, steps: int) -> Iterator[Step]:
    """From the same weights, with the same digits and directions for every gradient."""
    gradient = GRADIENTS[name]

    @jax.jit
    def updated(exact: Weights, weights: Weights, v: Weights, x: jax.Array, labels: jax.Array) -> Weights:
        found = gradient(weights, v, x, labels)  # that of the integers, straight through the rounding
        return jax.tree.map(lambda w, g: jnp.clip(w - RATE * g, LEAST, MOST), exact, found)

    x, labels = data()
    generator = np.random.default_rng(0)
    exact = {"first": generator.normal(0.0, 0.7, (64, WIDTH)), "second": generator.normal(0.0, 0.7, (WIDTH, 10))}
    for _ in range(steps):
        rows = generator.choice(TRAINED, BATCH, replace=False)
        v = jax.tree.map(lambda w: generator.normal(size=w.shape), exact)
        step = Step(quantised(exact), v, x[rows], labels[rows])
        yield step
        exact = updated(exact, step.weights, v, step.x, step.labels)


def tied(step: Step) -> float:
    """The share of the sums that are on a kink."""
    return float(np.isin(step.x @ np.asarray(step.weights["first"]), (-6, 0, 6)).mean())


@jax.jit
def distances(weights: Weights, v: Weights, x: jax.Array, labels: jax.Array) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Of each gradient, as shares of the norm of that of the program.

    First the distance to that, then by how much the rate of change along v is missed.
    """
    gradients = {name: gradient(weights, v, x, labels) for name, gradient in GRADIENTS.items()}
    of_program = gradients["of the program"]
    moved = jax.tree.map(lambda w, v: w + NEARBY * v, weights, v)
    rate = (loss(moved, x, labels) - loss(weights, x, labels)) / NEARBY

    def shares(gradient: Weights) -> tuple[jax.Array, jax.Array]:
        apart = jax.tree.map(jnp.subtract, gradient, of_program)
        predicted = sum(jnp.vdot(gradient[layer], v[layer]) for layer in v)
        return norm(apart) / norm(of_program), jnp.abs(predicted - rate) / norm(of_program)

    return {name: shares(gradient) for name, gradient in gradients.items()}


def norm(weights: Weights) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(w**2) for w in weights.values()))


def accuracy(weights: Weights) -> float:
    x, labels = data()
    return float(np.mean(np.argmax(logits(weights, x[TRAINED:]), axis=1) == labels[TRAINED:]))


def table(found: Sequence[Mapping[str, tuple[float, float]]], accuracies: Mapping[str, float]) -> Table:
    """One row per gradient: its two distances, medians over the steps, and the accuracy after training with it."""
    shown = Table("gradient", title=f"{len(found)} steps; distances as shares of the norm of the program's gradient")
    for heading in ("differs at", "by", "misses the change by", "accuracy"):
        shown.add_column(heading, justify="right")
    for name in GRADIENTS:
        apart, missed = np.array([step[name] for step in found]).T
        differs = f"{np.sum(apart > ROUNDING)} steps"
        shown.add_row(name, differs, f"{np.median(apart):.1%}", f"{np.median(missed):.1%}", f"{accuracies[name]:.1%}")
    return shown


def main(steps: int = 300) -> None:
    console = Console()
    with jax.enable_x64(True):
        runs = {name: list(train(name, steps)) for name in GRADIENTS}
        run = runs["of the program"]
        found = [jax.device_get(distances(step.weights, step.direction, step.x, step.labels)) for step in run]
        accuracies = {name: accuracy(run[-1].weights) for name, run in runs.items()}
    console.print(table(found, accuracies))
    console.print(
        f"Of the sums in front of the activations, {np.mean([tied(step) for step in run]):.1%} are on a kink."
    )


if __name__ == "__main__":
    main()
