"""Draw into docs/_static a clamp in five spellings, a training, the ops of torch by versions, and programs at kinks."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from scipy.spatial import ConvexHull

import interop
import jaxclamp
from interop._palette import BLUE, GREEN, GRID_ALPHA, ORANGE, PURPLE, SKY, VERMILLION, YELLOW
from interop.cli.digits_training import STYLES, VARIANTS, Step, log_with_zero, train

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


Function = Callable[[jax.Array], jax.Array]
"""Of two variables."""
PIECES = (SKY, ORANGE, GREEN, PURPLE, YELLOW, VERMILLION)


def identity(x: jax.Array) -> jax.Array:
    return jax.nn.relu(x) - jax.nn.relu(-x)


def kinked(x: jax.Array) -> jax.Array:
    return 2 * identity(x[0]) + 2 * jnp.abs(x[1]) + jax.nn.relu(x[1] - x[0])


A, B = jnp.array([[1.0, 1.0], [1.0, -1.0]]), jnp.array([3.0, 2.0])


def lasso(x: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum((A @ x - B) ** 2) + 2.0 * jnp.sum(jnp.abs(x))


POINTS, LABELS = jnp.array([[2.0, 0.0], [0.0, 2.0], [-2.0, 0.0], [0.0, -2.0]]), jnp.array([1.0, 1.0, -1.0, -1.0])


def machine(w: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum(w**2) + jnp.sum(jnp.maximum(0.0, 1.0 - LABELS * (POINTS @ w)))


FUNCTIONS: dict[str, tuple[Function, Sequence[float]]] = {
    "pieces": (kinked, (0.0, 0.0)),
    "lasso": (lasso, (1.5, 0.0)),
    "machine": (machine, (0.5, 0.5)),
}
"""By the name of the file; with the point around which it is drawn."""


def pieces(function: Function, at: Sequence[float]) -> Figure:
    """The plane around a point, in the colours of the gradients that it has there; and these, with their hull."""
    around = jaxclamp.subdifferential(function)(jnp.asarray(at))
    gradients, least = around.points, np.asarray(around.min_norm)

    steps = np.linspace(-1.0, 1.0, 200)
    plane = np.stack(np.meshgrid(steps, steps), -1)
    values = jax.vmap(jax.vmap(function))(jnp.asarray(at) + plane)
    # A piece along v is the gradient along v, so the colours need no derivative elsewhere.
    along = jax.vmap(jax.vmap(lambda v: jaxclamp.grad(function, direction=v)(jnp.asarray(at))))(jnp.asarray(plane))
    entered = np.argmin(np.linalg.norm(np.asarray(along)[..., None, :] - gradients, axis=-1), axis=-1)

    shown = Figure(figsize=(10, 4.6), layout="constrained")
    left, right = shown.subplots(1, 2)
    colours = PIECES[: len(gradients)]
    x, y = steps + at[0], steps + at[1]
    left.pcolormesh(
        x, y, entered, cmap=ListedColormap(colours), vmin=-0.5, vmax=len(colours) - 0.5, alpha=0.5, rasterized=True
    )
    left.clabel(left.contour(x, y, values, 12, colors="black", linewidths=0.6), fontsize=7)
    left.plot(*at, "ko")
    if least.any():
        down = np.asarray(at) - 0.6 * least / np.linalg.norm(least)
        left.annotate("", down, at, arrowprops={"width": 2, "color": "black"})
    left.set(xlabel="$x_0$", ylabel="$x_1$", aspect="equal")
    left.set_title("The function, and the piece that each direction enters")

    if len(gradients) > 2:
        right.fill(*gradients[ConvexHull(gradients).vertices].T, color="0.85", zorder=0)
    else:
        right.plot(*gradients.T, color="0.85", linewidth=6, zorder=0)
    right.scatter(*gradients.T, c=colours, s=90, edgecolors="black", label="gradients of the pieces")
    right.plot(*least, "k*", markersize=14, label="least point of their hull")
    for label, marker, op_by_op in (("JAX", "x", function), ("min_norm", "+", jaxclamp.min_norm(function))):
        gradient = jax.grad(op_by_op)(jnp.asarray(at))
        right.plot(*gradient, marker, color="red", markersize=10, label=f"op by op, {label}")
    right.axhline(0, color="0.7", linewidth=0.6, zorder=0)
    right.axvline(0, color="0.7", linewidth=0.6, zorder=0)
    right.set(xlabel=r"$\partial / \partial x_0$", ylabel=r"$\partial / \partial x_1$", title="The plane of gradients")
    shown.legend(fontsize=8, loc="outside lower right", ncols=4)
    right.margins(0.15)
    right.set_aspect("equal", "datalim")
    return shown


def write(figure: Figure, name: str) -> None:
    """The same bytes for the same figure: no date in it, and ids that do not change."""
    with matplotlib.rc_context({"svg.hashsalt": name, "font.sans-serif": ["DejaVu Sans"]}):
        figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    write(spellings(), "spellings")
    write(drift(list(train(200, seed=0))), "drift")
    write(interop.changes("torch", "2.11", "2.15").figure(), "changes")
    for name, (function, at) in FUNCTIONS.items():
        write(pieces(function, at), name)
