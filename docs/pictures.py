"""Draw into docs/_static a clamp in several spellings, a training, the ops of torch by versions, and programs at kinks.

The pictures have no background, and their text a grey that is read on white and on black.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from scipy.spatial import ConvexHull

import interop
import jaxclamp
from interop._palette import BLUE, GREEN, GRID_ALPHA, ORANGE, PURPLE, SKY, VERMILLION, YELLOW

if TYPE_CHECKING:
    from examples.pinned_training import Training

FOLDER = Path(__file__).parent / "_static"
INK = "#767676"
STYLE = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color"), INK),
    **dict.fromkeys(("ytick.color", "grid.color", "legend.labelcolor"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor"), "none"),
    "legend.frameon": False,
}
TIES = (0.0, 6.0)

ZERO, SIX = torch.tensor(0.0), torch.tensor(6.0)
UNMODIFIED: dict[str, Callable[[Any], Any]] = {
    "torch.clamp(x, 0, 6) of torch 2.13": interop.as_of("torch 2.13")(lambda x: torch.clamp(x, 0.0, 6.0)),
    "torch.clamp(x, 0, 6) of torch 2.15": interop.as_of("torch 2.15")(lambda x: torch.clamp(x, 0.0, 6.0)),
    "torch.minimum(torch.maximum(x, zero), six)": lambda x: torch.minimum(torch.maximum(x, ZERO), SIX),
    "torch.nn.functional.relu6(x)": torch.nn.functional.relu6,
    "jax.numpy.clip(x, 0, 6)": lambda x: jnp.clip(x, 0.0, 6.0),
    "jax.nn.relu(x) - jax.nn.relu(x - 6)": lambda x: jax.nn.relu(x) - jax.nn.relu(x - 6.0),
}
"""By the text of the picture: each is min(max(x, 0), 6)."""
OURS: dict[str, Callable[[Any], Any]] = {
    "interop.clamp(x, 0, 6)": lambda x: interop.clamp(x, 0.0, 6.0),
    "jaxclamp.clamp(x, 0, 6)": lambda x: jaxclamp.clamp(x, 0.0, 6.0),
}
SLOPES = {0.0: "0", 0.5: "½", 1.0: "1"}


def gradients(spelling: str) -> list[float]:
    """What a spelling answers at the ties."""
    function = {**UNMODIFIED, **OURS}[spelling]
    if spelling.startswith("jax"):
        return jax.grad(lambda x: function(x).sum())(jnp.array(TIES)).tolist()
    x = torch.tensor(TIES, requires_grad=True)
    function(x).sum().backward()
    assert x.grad is not None
    return x.grad.tolist()


@matplotlib.rc_context(STYLE)
def spellings() -> Figure:
    """A row for each spelling: the function around either kink, and through the kink a line with the slope answered."""
    names = [*UNMODIFIED, *OURS]
    shown = Figure(figsize=(9, 0.55 * len(names) + 0.7), layout="constrained")
    axes = shown.subplots()
    for row, name in enumerate(names):
        colour = BLUE if name in OURS else VERMILLION
        for column, (tie, slope) in enumerate(zip(TIES, gradients(name), strict=True)):
            bent = np.array([0.0, 0.0, 0.45]) if tie == 0 else np.array([-0.45, 0.0, 0.0])
            left = 3.0 * column
            axes.plot(left + np.array([-0.9, 0, 0.9]), row - bent, color=INK, linewidth=1)
            axes.plot(
                left + np.array([-0.6, 0.6]), row - 0.5 * slope * np.array([-0.6, 0.6]), color=colour, linewidth=3
            )
            axes.plot(left, row, "o", color=INK, markersize=4, zorder=3)
            axes.text(left + 1.2, row, SLOPES[slope], va="center", color=colour, size="large")
    axes.axhline(len(UNMODIFIED) - 0.5, color=INK, linewidth=1, linestyle=":")
    axes.set_yticks(range(len(names)), names, family="monospace")
    axes.set_xticks([0.3, 3.3], [f"slope at x = {tie:g}" for tie in TIES])
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.set(xlim=(-1.2, 4.6), ylim=(len(names) - 0.4, -0.7))
    axes.spines[:].set_visible(False)
    return shown


@matplotlib.rc_context(STYLE)
def learning(before: Training, after: Training) -> Figure:
    """Of the weights on a bound, how many still have a gradient; and how many weights are on a bound."""
    lines = {
        'torch 2.13; torch 2.15 under interop.as_of("torch 2.13")': (before, {"color": BLUE}),
        "torch 2.15": (after, {"color": VERMILLION, "linewidth": 2.5}),
    }
    shown = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = shown.subplots(1, 2)
    for label, (run, style) in lines.items():
        left.plot([100 * (1 - stopped) for stopped in run.stopped], label=label, clip_on=False, **style)
        right.plot([100 * bound for bound in run.tail], **style)
    left.set(title="weights on a bound that still have a gradient", ylim=(0, 100))
    right.set(title="weights on a bound, of all weights", ylim=(0, None))
    for axes in (left, right):
        axes.set(xlabel="step of a quantisation-aware training", xlim=(0, len(before.norms) - 1))
        axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
        axes.grid(alpha=GRID_ALPHA)
        axes.spines[["top", "right"]].set_visible(False)
    shown.legend(loc="outside lower center", ncols=2)
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


@matplotlib.rc_context(STYLE)
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
    left.clabel(left.contour(x, y, values, 12, colors=INK, linewidths=0.6), fontsize=7)
    left.plot(*at, "o", color=INK)
    if least.any():
        down = np.asarray(at) - 0.6 * least / np.linalg.norm(least)
        left.annotate("", down, at, arrowprops={"width": 2, "color": INK})
    left.set(xlabel="$x_0$", ylabel="$x_1$", aspect="equal")
    left.set_title("The function, and the piece that each direction enters")

    if len(gradients) > 2:
        right.fill(*gradients[ConvexHull(gradients).vertices].T, color=INK, alpha=0.3, linewidth=0, zorder=0)
    else:
        right.plot(*gradients.T, color=INK, alpha=0.3, linewidth=6, zorder=0)
    right.scatter(*gradients.T, c=colours, s=90, edgecolors=INK, label="gradients of the pieces")
    right.plot(*least, "*", color=INK, markersize=14, label="least point of their hull")
    for label, marker, op_by_op in (("JAX", "x", function), ("min_norm", "+", jaxclamp.min_norm(function))):
        gradient = jax.grad(op_by_op)(jnp.asarray(at))
        right.plot(*gradient, marker, color="red", markersize=10, label=f"op by op, {label}")
    right.axhline(0, color=INK, linewidth=0.6, zorder=0)
    right.axvline(0, color=INK, linewidth=0.6, zorder=0)
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
    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    from pinned_training import AFTER, BEFORE, train

    torch.set_num_threads(1)  # threads cost small tensors more than they save
    write(spellings(), "spellings")
    write(learning(*(train(4, 300, interop.as_of(version)) for version in (BEFORE, AFTER))), "learning")
    with matplotlib.rc_context(STYLE):
        write(interop.changes("torch", "2.11", "2.15").figure(), "changes")
    for name, (function, at) in FUNCTIONS.items():
        write(pieces(function, at), name)
