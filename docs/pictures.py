"""Draw into docs/_static one clamp in five spellings, trainings that drift apart, and the ops of torch by versions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

import interop
import jaxclamp
from interop._commands.digits import STYLES, VARIANTS, Step, log_with_zero, train
from interop.parity.palette import BLUE, GRID_ALPHA, VERMILLION

FOLDER = Path(__file__).parent / "_static"
TIES = (0.0, 6.0)

NATIVE: dict[str, Callable[[Any], Any]] = {
    "torch.clamp(x, 0, 6)": lambda x: torch.clamp(x, 0.0, 6.0),
    "torch.nn.functional.relu6(x)": torch.nn.functional.relu6,
    "torch.minimum(torch.maximum(x, 0), 6)": lambda x: torch.minimum(
        torch.maximum(x, torch.zeros_like(x)), torch.full_like(x, 6.0)
    ),
    "jax.numpy.clip(x, 0, 6)": lambda x: jnp.clip(x, 0.0, 6.0),
    "jax.nn.relu(x) - jax.nn.relu(x - 6)": lambda x: jax.nn.relu(x) - jax.nn.relu(x - 6.0),
}
"""By the text of the picture: each is min(max(x, 0), 6)."""
OURS: dict[str, Callable[[Any], Any]] = {
    "interop.clamp(x, 0, 6)": lambda x: interop.clamp(x, 0.0, 6.0),
    "jaxclamp.clamp(x, 0, 6)": lambda x: jaxclamp.clamp(x, 0.0, 6.0),
}


def gradients(spelling: str) -> list[float]:
    """What a spelling answers at the ties."""
    function = {**NATIVE, **OURS}[spelling]
    if spelling.startswith("jax"):
        return jax.grad(lambda x: function(x).sum())(jnp.array(TIES)).tolist()
    x = torch.tensor(TIES, requires_grad=True)
    function(x).sum().backward()
    assert x.grad is not None
    return x.grad.tolist()


def spellings() -> Figure:
    """The function with its ties, and the gradient that each spelling answers there."""
    shown = Figure(figsize=(9, 3.4), layout="constrained", facecolor="white")
    left, right = shown.subplots(1, 2, width_ratios=(2, 3))
    left.plot([-4, 0, 6, 8.5], [0, 0, 6, 6], color="black")
    markers = ("o", "s")
    for tie, marker, height in zip(TIES, markers, (-20, 10), strict=True):
        left.plot(tie, tie, marker, color="black", markersize=9)
        left.annotate(f"tie at x = {tie:g}", (tie, tie), (0, height), textcoords="offset points", ha="center")
    left.set(title="min(max(x, 0), 6)", xlabel="x", xlim=(-4, 8.5), ylim=(-1, 7.5))
    left.grid(alpha=GRID_ALPHA)

    names = [*NATIVE, *OURS]
    for line, name in enumerate(names):
        colour = BLUE if name in OURS else VERMILLION
        answers = gradients(name)
        for shift, marker, answer in zip((-0.17, 0.17), markers, answers, strict=True):
            right.plot(answer, line + shift, marker, color=colour, markersize=8, clip_on=False)
        right.text(1.1, line, " and ".join(f"{answer:g}" for answer in answers), va="center", color=colour)
    right.axhline(len(NATIVE) - 0.5, color="grey", linewidth=1)
    right.set_yticks(range(len(names)), names, family="monospace", size="small")
    right.set(title="gradient at x = 0 (circle) and x = 6 (square)", xlim=(-0.08, 1.05))
    right.set_xticks([0, 0.5, 1])
    right.set_ylim(len(names) - 0.5, -0.5)
    right.grid(axis="x", alpha=GRID_ALPHA)
    return shown


def drift(steps: Sequence[Step]) -> Figure:
    """The losses of the trainings, and how far the weights of each are from those of torch's relu."""
    shown = Figure(figsize=(9, 3.4), layout="constrained", facecolor="white")
    left, right = shown.subplots(1, 2, width_ratios=(4, 3))
    for name in VARIANTS:
        left.plot([step.variants[name].loss for step in steps], label=name, **STYLES[name])
        if name != "torch relu":
            right.plot([step.distance(name, "torch relu") for step in steps], label=name, clip_on=False, **STYLES[name])
    left.set(title="one network in four spellings", xlabel="step", ylabel="loss", yscale="log")
    left.set_yticks([0.6, 1, 2], ["0.6", "1", "2"])
    left.yaxis.set_minor_locator(NullLocator())
    left.grid(alpha=GRID_ALPHA)
    left.legend()
    right.set(title="weights: distance from torch relu", xlabel="step")
    log_with_zero(right, 1.0)
    return shown


def write(figure: Figure, name: str) -> None:
    """The same bytes for the same figure: no date in it, and ids that do not change."""
    with matplotlib.rc_context({"svg.hashsalt": name, "font.sans-serif": ["DejaVu Sans"]}):
        figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    write(spellings(), "spellings")
    write(drift(list(train(200, seed=0))), "drift")
    write(interop.changes("torch", "2.11", "2.15").figure(), "changes")
