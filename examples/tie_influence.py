"""How often the choice of relu'(0) changes backpropagation, for each floating point type.

Bertoin, Bolte, Gerchinovitz and Pauwels ("Numerical influence of ReLU'(0) on backpropagation", NeurIPS 2021, arXiv
2106.12915) find that relu'(0) = 0 and relu'(0) = 1 give different gradients about half of the time in 32 bits, always
in 16 bits and never in 64 bits. Those are the figures of the abstract; to the arXiv version an erratum is attached,
which is not taken into account here. This script asks the same of a perceptron with three hidden layers of 512 units,
trained for 40 steps of 256 digits each, far smaller than the paper's VGG and ResNet.

- It agrees at 16 bits (the share is 1 in float16, and in bfloat16, which the abstract does not mention) and at 64 (0).
- It does not at 32 bits: the share is 0. The zeros per million inputs of relu say why: they go with the precision, 115
  at 8 bits and 15 at 11 bits, so at the 24 bits of float32 about 0.002 are to be expected. A step here has 0.4
  million inputs; half of the steps would have a zero at some 400 million. Larger networks raise the share, but that the
  paper's half comes from their size alone is not shown here.
- Nor does it hold at 16 bits whatever the network. Most zeros arise where a rounded sum is the negative of a bias: when
  all biases start at 0, the shares fall to about 0.8 in bfloat16 and 0.2 in float16.

No input of relu is 0 by construction: weights and biases are drawn from continuous distributions, so that a unit which
sees zeros alone still has its bias. As a check, each layer is computed from the same operands in float64 too: an input
that is 0 there as well counts as exact, and was not made by the rounding in this layer (but by that of its operands, in
under 1% of the cases).

Run: python examples/tie_influence.py
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits

import jaxclamp

Parameters = list[tuple[jax.Array, jax.Array]]

DTYPES = ("bfloat16", "float16", "float32", "float64")
COLOURS = ("#D55E00", "#E69F00", "#0072B2", "#009E73")
PUBLISHED = (None, 1.0, 0.5, 0.0)
"""The shares of the paper's abstract; bfloat16 is not in it."""
RATE = 0.05


@dataclass(frozen=True)
class Step:
    """What happened in one step of training."""

    inputs: int
    """The inputs of relu."""
    zeros: int
    """Those of them that are 0."""
    exact: int
    """Those that are 0 in float64 as well, computed from the same operands: not made by rounding in this layer."""
    influence: float
    """The norm of the difference between the two gradients, relative to that of minimum norm."""


def loss(
    params: Parameters, x: jax.Array, labels: jax.Array, ties: jaxclamp.Ties
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The cross entropy of a perceptron, and the counts of a `Step`."""
    counts = {"inputs": jnp.array(0), "zeros": jnp.array(0), "exact": jnp.array(0)}
    *hidden, (w, b) = params
    for weight, bias in hidden:
        h = x @ weight + bias
        precise = x.astype(float) @ weight.astype(float) + bias.astype(float)
        found = {"inputs": jnp.ones_like(h, bool), "zeros": h == 0, "exact": (h == 0) & (precise == 0)}
        counts = {name: count + jnp.sum(found[name]) for name, count in counts.items()}
        x = jaxclamp.relu(h, ties=ties)
    log_probabilities = jax.nn.log_softmax(x @ w + b)
    return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)), counts


@jax.jit
def step(params: Parameters, x: jax.Array, labels: jax.Array) -> tuple[Parameters, dict[str, jax.Array]]:
    """One step of gradient descent under minimum norm, beside the gradient with slope 1 at 0."""
    gradient, counts = jax.grad(loss, has_aux=True)(params, x, labels, "min_norm")
    other, _ = jax.grad(loss, has_aux=True)(params, x, labels, "inclusive")

    def norm(tree: Any) -> jax.Array:
        return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))

    precise, other = jax.tree.map(lambda g: g.astype(float), (gradient, other))
    influence = norm(jax.tree.map(jnp.subtract, precise, other)) / norm(precise)
    moved = jax.tree.map(lambda p, g: p - jnp.asarray(RATE, p.dtype) * g, params, gradient)
    return moved, {**counts, "influence": influence}


def train(dtype: str, steps: int, width: int, batch: int) -> Iterator[Step]:
    """Steps of training on the digits, in all dtypes from the same weights, rounded, and with the same batches."""
    pixels, labels = load_digits(return_X_y=True)
    generator = np.random.default_rng(0)
    with jax.enable_x64(True):
        params = [
            (
                jnp.asarray(generator.normal(0.0, np.sqrt(2 / inputs), (inputs, outputs)), dtype),
                jnp.asarray(generator.normal(0.0, 0.05, outputs), dtype),
            )
            for inputs, outputs in itertools.pairwise((64, width, width, width, 10))
        ]
        for _ in range(steps):
            rows = generator.choice(len(labels), batch, replace=False)
            params, found = step(params, jnp.asarray(pixels[rows] / 16, dtype), labels[rows])
            yield Step(**{name: value.item() for name, value in found.items()})


def share(steps: Sequence[Step]) -> float:
    """That of the steps in which the choice of relu'(0) matters."""
    return float(np.mean([step.influence > 0 for step in steps]))


def table(results: Mapping[str, Sequence[Step]]) -> Table:
    """One row per dtype."""
    shown = Table(title="How often relu'(0) changes the gradient, digits, multilayer perceptron")
    for heading in ("dtype", "share of steps", "published", "zeros", "exact", "per million", "median influence"):
        shown.add_column(heading, justify="left" if heading == "dtype" else "right")
    for (dtype, steps), published in zip(results.items(), PUBLISHED, strict=True):
        zeros, exact, inputs = (sum(getattr(s, name) for s in steps) for name in ("zeros", "exact", "inputs"))
        influences = [s.influence for s in steps if s.influence]
        shown.add_row(
            dtype,
            f"{share(steps):.2f}",
            "–" if published is None else f"{published:.1f}",
            str(zeros),
            str(exact),
            f"{1e6 * zeros / inputs:.3g}",
            f"{np.median(influences):.2%}" if influences else "–",
        )
    return shown


def plot(results: Mapping[str, Sequence[Step]], file: Path) -> None:
    """Draw the shares beside the published ones, and the influence in each step."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.bar(DTYPES, [share(results[dtype]) for dtype in DTYPES], color=COLOURS)
    known = [(dtype, value) for dtype, value in zip(DTYPES, PUBLISHED, strict=True) if value is not None]
    left.plot(*zip(*known, strict=True), "kD", fillstyle="none", label="Bertoin et al. 2021")
    left.set(ylabel="share of steps", ylim=(-0.05, 1.1), title="Steps in which relu'(0) changes the gradient")
    left.legend()
    for dtype, colour, marker in zip(DTYPES, COLOURS, "o^sx", strict=True):
        influences = [step.influence or np.nan for step in results[dtype]]
        if not np.isnan(influences).all():
            right.semilogy(influences, marker, color=colour, label=dtype)
    right.set(xlabel="step", ylabel="relative to the gradient", title="How far it moves the gradient, where it does")
    if right.lines:
        right.legend()
    right.grid(alpha=0.3)
    figure.savefig(file)


if __name__ == "__main__":
    console = Console()
    results = {dtype: list(track(train(dtype, 40, 512, 256), dtype, total=40, console=console)) for dtype in DTYPES}
    console.print(table(results))
    plot(results, Path("tie_influence.png"))
    console.print("plot written to tie_influence.png")
