"""Makes docs/_gallery, which the pages show: the report of all ops, and pictures of functions of two variables."""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from scipy.spatial import ConvexHull

import jaxclamp
from interop.parity import matrix
from interop.parity.plot import COLOURS
from interop.parity.report import page, picture
from interop.parity.rows import Row
from jaxclamp import OPS

FOLDER = Path(__file__).parent / "_gallery"

Function = Callable[[jax.Array], jax.Array]
"""Of two variables."""
PIECES = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00")


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


def answered(name: str) -> tuple[list[Row], str]:
    """The rows of the op of that name, and its picture."""
    rows = list(matrix([OPS[name]], ["float32"], list(COLOURS)))
    return rows, picture(OPS[name], rows)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        rows, pictures = zip(*processes.map(answered, OPS), strict=True)
    report = page(list(itertools.chain(*rows)), dict(zip(OPS, pictures, strict=True)), "--dtype float32")
    (FOLDER / "report.html").write_text(report, "utf-8")
    for name, (function, at) in FUNCTIONS.items():
        pieces(function, at).savefig(FOLDER / f"{name}.svg")
    (FOLDER / "drawn").touch()
