"""One network, four spellings: a perceptron with fixed-point weights, trained on scikit-learn's digits.

The weights used in the forward pass lie on a grid of 1/16 (as in quantisation-aware training, rounding has gradient 1)
and the pixels are integers from 0 to 16. So the sums before the first activation are exact, the same in both frameworks
whatever the order of summation, and often exactly 0: ties occur by construction, at every step. Arithmetic is float64,
so that rounding differs in the fifteenth digit and anything larger is the convention.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch.nn import functional

import interop
import jaxclamp
from interop.parity.plot import BLUE, GREEN, GRID_ALPHA, VERMILLION

Parameters = Mapping[str, NDArray[np.float64]]
Activations = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""max(x, 0) for the first hidden layer and min(max(x, 0), 6) for the second, in some spelling."""

GRID = 16.0
_SIZES = (64, 32, 16, 10)


@dataclass(frozen=True)
class Gradients:
    """What one variant computes in one step."""

    loss: float
    ties: int
    gradients: Parameters


@dataclass(frozen=True)
class Step:
    """One training step of all variants, each from its own weights."""

    variants: dict[str, Gradients]

    def difference(self, first: str, second: str) -> float:
        """The largest difference between the gradients of two variants."""
        a, b = self.variants[first].gradients, self.variants[second].gradients
        return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def train(steps: int, seed: int, rate: float = 1e-2) -> Iterator[Step]:
    """Full-batch gradient descent of the four variants from the same initial weights, step by step."""
    from sklearn.datasets import load_digits  # two seconds, which other commands need not wait for

    pixels, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    initial: dict[str, NDArray[np.float64]] = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(_SIZES)):
        initial[f"w{layer}"] = rng.normal(0.0, 1.0 / np.sqrt(inputs), (inputs, outputs))
        initial[f"b{layer}"] = np.zeros(outputs)
    weights = {name: dict(initial) for name in VARIANTS}
    for _ in range(steps):
        step = Step({name: variant(weights[name], pixels, labels) for name, variant in VARIANTS.items()})
        for name, result in step.variants.items():
            weights[name] = {k: w - rate * result.gradients[k] for k, w in weights[name].items()}
        yield step


def _torch_variant(activations: Activations) -> Callable[[Parameters, Any, Any], Gradients]:
    def quantised(weight: torch.Tensor) -> torch.Tensor:
        return weight + (torch.round(weight * GRID) / GRID - weight).detach()

    def gradients(weights: Parameters, pixels: NDArray[np.float64], labels: NDArray[np.int64]) -> Gradients:
        leaves = {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}
        q = {name: quantised(leaf) for name, leaf in leaves.items()}
        first = torch.tensor(pixels) @ q["w0"] + q["b0"]
        second = activations[0](first) @ q["w1"] + q["b1"]
        logits = activations[1](second) @ q["w2"] + q["b2"]
        loss = functional.cross_entropy(logits, torch.tensor(labels))
        loss.backward()
        ties = (first == 0).sum() + ((second == 0) | (second == 6)).sum()
        grads = {name: leaf.grad.numpy() for name, leaf in leaves.items() if leaf.grad is not None}
        return Gradients(loss.item(), int(ties.item()), grads)

    return gradients


def _jax_loss(weights: dict[str, jax.Array], pixels: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    q = {name: w + jax.lax.stop_gradient(jnp.round(w * GRID) / GRID - w) for name, w in weights.items()}
    first = pixels @ q["w0"] + q["b0"][None]
    second = jaxclamp.clamp(first, min=0.0) @ q["w1"] + q["b1"][None]
    logits = jaxclamp.clamp(second, 0.0, 6.0) @ q["w2"] + q["b2"][None]
    loss = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()
    return loss, (first == 0).sum() + ((second == 0) | (second == 6)).sum()


_jax_gradients = jax.jit(jax.value_and_grad(_jax_loss, has_aux=True))


def _jax_variant(weights: Parameters, pixels: NDArray[np.float64], labels: NDArray[np.int64]) -> Gradients:
    with jax.enable_x64(True):
        (loss, ties), gradients = _jax_gradients(dict(weights), pixels, labels)
        return Gradients(float(loss), int(ties), {name: np.asarray(g) for name, g in gradients.items()})


VARIANTS: Mapping[str, Callable[[Parameters, Any, Any], Gradients]] = {
    "torch clamp": _torch_variant((lambda x: torch.clamp(x, min=0.0), lambda x: torch.clamp(x, 0.0, 6.0))),
    "torch relu": _torch_variant((functional.relu, functional.relu6)),
    "interop clamp": _torch_variant((lambda x: interop.clamp(x, min=0.0), lambda x: interop.clamp(x, 0.0, 6.0))),
    "jaxclamp clamp": _jax_variant,
}
PAIRS = (("torch clamp", "torch relu"), ("interop clamp", "torch relu"), ("interop clamp", "jaxclamp clamp"))


def plot_steps(steps: list[Step], file: Path) -> None:
    """Draw the differences between variants and their losses over the steps."""
    figure = Figure(figsize=(8, 7), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True)
    for (first, second), style, colour in zip(PAIRS, ("-", "--", ":"), (VERMILLION, BLUE, GREEN), strict=True):
        differences = [max(step.difference(first, second), 1e-18) for step in steps]
        upper.semilogy(differences, style, color=colour, label=f"{first} against {second}")
    upper.set(ylabel="largest difference of a gradient", title="One network in four spellings, digits, float64")
    for name, style in zip(VARIANTS, ("-", "--", "-.", ":"), strict=True):
        lower.plot([step.variants[name].loss for step in steps], style, label=name)
    lower.set(xlabel="step", ylabel="loss")
    for axes in (upper, lower):
        axes.legend()
        axes.grid(alpha=GRID_ALPHA)
    figure.savefig(file)
