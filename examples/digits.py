"""One network, four spellings: a perceptron with fixed-point weights, trained on scikit-learn's digits.

The weights used in the forward pass lie on a grid of 1/16 (as in quantisation-aware training, rounding has gradient 1)
and the pixels are integers from 0 to 16. So the sums before the first activation are exact, the same in both frameworks
whatever the order of summation, and often exactly 0: ties occur by construction, at every step. Arithmetic is float64,
so that rounding differs in the fifteenth digit and anything larger is the convention.

Run: python examples/digits.py [--steps 300] [--seed 0] [--plot FILE]
"""

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch.nn import functional

import interop
import jaxclamp

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
    weights: dict[str, Parameters]

    def difference(self, first: str, second: str) -> float:
        """The largest difference between the gradients of two variants."""
        a, b = self.variants[first].gradients, self.variants[second].gradients
        return max(float(np.abs(a[name] - b[name]).max()) for name in a)

    def distance(self, first: str, second: str) -> float:
        """The distance between the weights of two variants, relative to the norm of the second's."""
        a, b = (np.concatenate([w.ravel() for w in self.weights[name].values()]) for name in (first, second))
        return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def train(steps: int, seed: int, rate: float = 1e-2) -> Iterator[Step]:
    """Train the four variants from the same initial weights by full-batch gradient descent, step by step."""
    pixels, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    initial: dict[str, NDArray[np.float64]] = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(_SIZES)):
        initial[f"w{layer}"] = rng.normal(0.0, 1.0 / np.sqrt(inputs), (inputs, outputs))
        initial[f"b{layer}"] = np.zeros(outputs)
    # Each variant goes on from its own weights: small differences of gradients add up, as they would in a training.
    weights: dict[str, Parameters] = dict.fromkeys(VARIANTS, initial)
    for _ in range(steps):
        step = Step({name: variant(weights[name], pixels, labels) for name, variant in VARIANTS.items()}, weights)
        yield step
        weights = {
            name: {k: w - rate * step.variants[name].gradients[k] for k, w in weights[name].items()} for name in weights
        }


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
        # Exact comparisons find all ties, as the sums are exact.
        ties = (first == 0).sum() + ((second == 0) | (second == 6)).sum()
        grads = {name: leaf.grad.numpy() for name, leaf in leaves.items() if leaf.grad is not None}
        return Gradients(loss.item(), int(ties.item()), grads)

    return gradients


def _jax_loss(weights: dict[str, jax.Array], pixels: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    q = {name: w + jax.lax.stop_gradient(jnp.round(w * GRID) / GRID - w) for name, w in weights.items()}
    # With `[None]` and not by rank promotion, which the tests make an error.
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

_REFERENCE = "torch relu"
STYLES: Mapping[str, dict[str, Any]] = {
    "torch clamp": {"color": "#D55E00", "linestyle": "-"},
    _REFERENCE: {"color": "0.7", "linestyle": "-", "linewidth": 4},
    "interop clamp": {"color": "#009E73", "linestyle": "--"},
    "jaxclamp clamp": {"color": "#0072B2", "linestyle": ":", "linewidth": 2},
}
"""Maps a variant to the style of its line. The reference is broad, to be seen under lines that coincide with it."""


def plot_steps(steps: list[Step], file: Path) -> None:
    """Draw, over the steps, how far the gradients of each variant are from those of torch's relu, and all losses."""
    figure = Figure(figsize=(8, 7), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True)
    for name in VARIANTS:
        if name != _REFERENCE:
            differences = [step.difference(name, _REFERENCE) for step in steps]
            equal = " (exactly 0)" if not any(differences) else ""
            upper.plot(differences, label=f"{name}{equal}", clip_on=False, **STYLES[name])
        lower.plot([step.variants[name].loss for step in steps], label=name, **STYLES[name])
    _log_with_zero(upper)
    upper.set(ylabel="largest difference of a gradient")
    lower.set(xlabel="step", ylabel="loss")
    upper.set_title(f"Gradients of each spelling against {_REFERENCE}", loc="left", fontsize="medium")
    lower.set_title("Losses of all four", loc="left", fontsize="medium")
    upper.legend(loc="center right")
    lower.legend()
    lower.grid(alpha=0.3)
    figure.suptitle("One network in four spellings, digits, float64", x=0.01, ha="left", fontweight="bold")
    figure.savefig(file)


def _log_with_zero(axes: Axes) -> None:
    """Make the axis of y logarithmic, from what rounding leaves in float64 to 1, with a place for 0."""
    smallest = 1e-18  # below what rounding leaves, some 1e-16 of numbers about 1
    axes.set_yscale("symlog", linthresh=smallest, linscale=0.5)
    axes.set_ylim(-smallest, 10)
    powers = [10.0**k for k in range(-16, 1, 4)]
    axes.set_yticks([0, *powers], ["exactly 0", *(f"$10^{{{k}}}$" for k in range(-16, 1, 4))])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.axhspan(-smallest, smallest, color="black", alpha=0.08, linewidth=0)
    axes.grid(alpha=0.3)


def by_step(done: list[Step]) -> Table:
    """The largest difference of each pair at some ten steps and the last, and the ties of the first variant."""
    shown = Table(box=None, pad_edge=False)
    for heading in ("step", *(" against\n".join(pair) for pair in PAIRS), "ties"):
        shown.add_column(heading, justify="right")
    for index in sorted({*range(0, len(done), max(1, len(done) // 10)), len(done) - 1}):
        figures = (f"{done[index].difference(*pair):.1e}" for pair in PAIRS)
        shown.add_row(str(index), *figures, str(done[index].variants[PAIRS[0][0]].ties))
    shown.add_row("largest", *(f"{max(step.difference(*pair) for step in done):.1e}" for pair in PAIRS))
    return shown


def summary(done: list[Step]) -> Table:
    """The losses and the ties of each variant."""
    shown = Table("variant", "first loss", "last loss", "ties per step", "ties in all", box=None, pad_edge=False)
    for name in VARIANTS:
        results = [step.variants[name] for step in done]
        ties = sum(result.ties for result in results)
        shown.add_row(name, f"{results[0].loss:.4f}", f"{results[-1].loss:.4f}", f"{ties / len(done):.0f}", str(ties))
    return shown


@click.command()
@click.option("--steps", type=click.IntRange(min=1), default=300, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--plot", "file", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Draw the steps.")
def main(steps: int, seed: int, file: Path | None) -> None:
    torch.set_num_threads(1)  # the tensors are too small to share
    done = list(track(train(steps, seed), "training", steps, console=Console(stderr=True), transient=True))
    console = Console(width=shutil.get_terminal_size((100, 24)).columns)  # 100 in a file
    console.print("The largest difference between the gradients of two variants, and the ties of the first:")
    console.print(by_step(done))
    console.print(f"\nLosses and ties over {steps} step{'s' * (steps > 1)}:")
    console.print(summary(done))
    if file is not None:
        plot_steps(done, file)
        console.print(f"plot written to {file}")


if __name__ == "__main__":
    main()
