"""Draws one op: its values, its slopes, and the gradient that every spelling answers at each tie."""

import itertools
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from interop._palette import BLUE, GREEN, GRID_ALPHA, PURPLE, SKY, VERMILLION
from interop.survey.matrix import Row
from interop.survey.show.render import AGREES, DISAGREES, as_in_a_call
from interop.survey.versions import rounded
from jaxclamp import Op

COLOURS = {"jaxclamp": BLUE, "interop": GREEN, "native": SKY, "jax": PURPLE, "torch": VERMILLION}
MARKERS = {"jaxclamp": ("o",), "interop": ("s",), "native": ("p",), "jax": ("D", "P", "v"), "torch": ("^", "X", "<")}
"""Maps a framework to the marks of the first, second, ... spelling that it has; those behind the first are hollow."""

_BAND: dict[str, Any] = {"color": "black", "alpha": 0.15, "linewidth": 0}
_LEGEND_COLUMNS = 4
_CELL = 0.5  # inches, for an element of a reduction
_POINTS = 300  # of the grid on which slopes are taken, between two ties or beyond them
_STEEP = 30.0  # no op has such a slope: where one is found, the function jumps


@dataclass(frozen=True)
class _Derivative:
    """One derivative at one tie, and what each spelling that takes the arguments answers."""

    label: str
    definition: float
    answers: Mapping[str, float]

    def differing(self) -> set[float]:
        return {answer for answer in self.answers.values() if rounded([answer]) != rounded([self.definition])}


@dataclass(frozen=True)
class _Tie:
    """The derivatives at one value of x, or at both zeros where they are alike, for one choice of the parameters."""

    points: list[float]
    derivatives: tuple[_Derivative, ...]

    @property
    def differs(self) -> bool:
        return any(derivative.differing() for derivative in self.derivatives)


def figure(op: Op, rows: Iterable[Row]) -> Figure:
    """Draw ``op`` from its rows of the parity matrix in one dtype; the frameworks are those of `COLOURS`."""
    rows = [replace(row, answers=tuple(a for a in row.answers if a.framework in COLOURS)) for row in rows]
    order = list(COLOURS)
    answers = sorted((answer for row in rows for answer in row.answers), key=lambda a: order.index(a.framework))
    spellings = {answer.spelling: answer.framework for answer in answers}
    styles = _styles(spellings)
    drawn = (_draw_reduction if op.family == "reduction" else _draw_elementwise)(op, rows, styles)
    # Some 12.5 letters of a title are an inch wide; 11 leave room for wide ones.
    verdict = textwrap.fill(_verdict(rows, spellings), int(11 * drawn.get_figwidth()))
    drawn.suptitle(f"The gradient of {op.name} at its ties\n{verdict}", x=0.01, ha="left", linespacing=1.5)
    versions = dict.fromkeys(answer.version for answer in answers)
    footer = f"{', '.join(versions)}, {rows[0].dtype} · all cases: jaxclamp {op.name} --all"
    drawn.supxlabel(footer, x=0.01, ha="left", fontsize="small")
    return drawn


def _styles(spellings: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    styles: dict[str, dict[str, Any]] = {}
    for spelling, framework in spellings.items():
        colour, place = COLOURS[framework], [s for s, f in spellings.items() if f == framework].index(spelling)
        fill = "white" if place else colour
        styles[spelling] = {"color": colour, "marker": MARKERS[framework][place], "markerfacecolor": fill}
    return styles


def _verdict(rows: Sequence[Row], spellings: Mapping[str, str]) -> str:
    differing = []
    for spelling in spellings:
        agree = [answer.agrees for row in rows for answer in row.answers if answer.spelling == spelling]
        if not all(agree):
            differing.append(f"{spelling} in {agree.count(False)} of {len(agree)} cases")
    return f"differing from the definition: {', '.join(differing)}" if differing else "all agree with the definition"


def _draw_elementwise(op: Op, rows: Sequence[Row], styles: Mapping[str, dict[str, Any]]) -> Figure:
    """Draw a line of panels for each function of x: its values, its slopes, and the answers beside them.

    Where somebody differs at some tie, those at which all agree are left out.
    """
    calls: dict[str, list[Row]] = {}
    for row in rows:
        calls.setdefault(_call(row), []).append(row)
    every = {call: _ties(of_call) for call, of_call in calls.items()}
    differing = {call: [tie for tie in at if tie.differs] for call, at in every.items()}
    ties = {call: at for call, at in differing.items() if at} or every
    most = max(map(len, ties.values()))
    widest = max(len(tie.derivatives) for at in ties.values() for tie in at)
    # Calls with one tie each, as those of leaky_relu, have room for two in a line.
    blocks = 2 if most == 1 and len(ties) > 3 else 1
    lines = -(-len(ties) // blocks)
    # In inches: values, slopes, and for each tie a panel with 0.8 for each derivative.
    widths = [2.2, 2.2, *[0.6 + 0.8 * widest] * most]
    legend = _legend(styles)
    # A line of the legend, in small letters of 8.3 points, is 0.17 inches high.
    heights = (2.5 * lines, 0.15 + 0.17 * -(-len(legend) // _LEGEND_COLUMNS))
    drawing = Figure(figsize=(max(9.5, blocks * sum(widths)), sum(heights) + 0.9), layout="constrained")
    (body,), (foot,) = drawing.subfigures(2, 1, squeeze=False, height_ratios=heights)
    parts = body.subfigures(lines, blocks, squeeze=False)
    for part, (call, at) in zip(parts.flat, ties.items(), strict=False):  # the last line may have room left
        part.suptitle(call, x=0.01, ha="left", fontweight="bold")
        axes = part.subplots(1, 2 + most, width_ratios=widths, squeeze=False)[0]
        _draw_function(axes[0], axes[1], op, _parameters(calls[call][0]), at)
        for panel, tie in itertools.zip_longest(axes[2:], at):
            if tie is None:
                panel.remove()
            else:
                panel.sharey(axes[1])
                _draw_answers(panel, tie, styles)
    foot.legend(handles=legend, loc="center left", ncols=_LEGEND_COLUMNS, frameon=False, fontsize="small")
    return drawing


def _legend(styles: Mapping[str, dict[str, Any]]) -> list[Line2D | Patch]:
    """Say what each mark means."""
    return [
        Line2D([], [], color="black", linewidth=2, label="by definition"),
        *(Line2D([], [], linestyle="none", label=spelling, **style) for spelling, style in styles.items()),
        Patch(**_BAND, label="between the one-sided slopes"),
    ]


def _parameters(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.arguments.items() if name != "x"}


def _call(row: Row) -> str:
    return f"{row.op}({', '.join(filter(None, ('x', as_in_a_call(_parameters(row)))))})"


def _ties(rows: Iterable[Row]) -> list[_Tie]:
    at_x: dict[str, list[Row]] = {}
    for row in rows:
        at_x.setdefault(str(row.arguments["x"]), []).append(row)  # by its text, as -0.0 equals 0.0
    ties: dict[str, _Tie] = {}
    for group in at_x.values():
        x, derivatives = group[0].arguments["x"], tuple(_derivatives(group))
        ties.setdefault(f"{x + 0.0} {derivatives}", _Tie([], derivatives)).points.append(x)  # zeros of both signs
    return list(ties.values())


def _derivatives(rows: Iterable[Row]) -> Iterator[_Derivative]:
    """Yield the derivatives with x alone active, where numbers and arrays are merged if they agree, then with all."""
    alone, together = [], []
    for row in rows:
        if row.active == ("x",):
            label = "gradient" if row.inactive == "none" else f"x alone, {row.inactive}"
            alone.append(_Derivative(label, row.definition[0], {a.spelling: a.gradient[0] for a in row.answers}))
        elif row.inactive == "none":
            for index, name in enumerate(row.active):
                answers = {a.spelling: a.gradient[index] for a in row.answers}
                together.append(_Derivative(name, row.definition[index], answers))
    merged = {spelling: gradient for derivative in alone for spelling, gradient in derivative.answers.items()}
    if len(alone) > 1 and all(derivative.answers.items() <= merged.items() for derivative in alone):
        alone = [_Derivative("x alone", alone[0].definition, merged)]
    yield from alone
    yield from together


def _draw_function(values: Axes, slopes: Axes, op: Op, parameters: Mapping[str, Any], ties: Sequence[_Tie]) -> None:
    points = sorted({point + 0.0 for tie in ties for point in tie.points})
    margin = 1.0 + 0.5 * (points[-1] - points[0])
    ends = [points[0] - margin, *points, points[-1] + margin]
    x = np.unique(np.concatenate([np.linspace(*pair, _POINTS) for pair in itertools.pairwise(ends)]))
    f = _values(op, x, parameters)
    slope = np.diff(f) / np.diff(x)
    jumps = np.abs(slope) > _STEEP
    values.plot(*_broken(x, f, jumps), color="black")
    values.plot(points, _values(op, np.array(points), parameters), "o", color="black", markersize=5)
    middle = (x[1:] + x[:-1]) / 2
    finite, corners = slope[~jumps], middle[~jumps]
    # From one point to the next, 0.02 apart, a smooth slope changes by less than 0.1.
    slopes.plot(*_broken(corners, finite, np.abs(np.diff(finite)) > 0.1), color="black")
    for tie in ties:
        low, high = _one_sided(op, tie.points[0], parameters)
        if high - low > 1e-3:
            slopes.fill_between(
                [tie.points[0] - 0.04 * np.ptp(x), tie.points[0] + 0.04 * np.ptp(x)], low, high, **_BAND
            )
        slopes.plot(tie.points[0], tie.derivatives[0].definition, "_", color="black", markersize=14, markeredgewidth=2)
    values.set(xlabel="x", ylabel="value")
    slopes.set(xlabel="x", ylabel="slope, gradient")
    for axes in (values, slopes):
        axes.margins(y=0.25)
        axes.grid(alpha=GRID_ALPHA)
    if not np.ptp(f):  # a constant, whose axis would have no height
        values.set_ylim(f[0] - 1, f[0] + 1)


def _values(op: Op, x: NDArray[np.float64], parameters: Mapping[str, Any]) -> NDArray[np.float64]:
    with jax.enable_x64(True):
        return np.asarray(op.function(x, **parameters), np.float64)


def _one_sided(op: Op, x: float, parameters: Mapping[str, Any]) -> tuple[float, float]:
    """Measure the smaller and the larger slope beside x; both are 0 at a jump, where there is nothing between them."""
    # In float64 the values are rounded to 1e-16 of themselves, their differences to 1e-9 of a step.
    step = 1e-7
    before, here, after = _values(op, np.array([x - step, x, x + step]), parameters)
    low, high = sorted([(here - before) / step, (after - here) / step])
    return (low, high) if max(-low, high) < _STEEP else (0.0, 0.0)


def _broken(
    x: NDArray[np.float64], y: NDArray[np.float64], gaps: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Break the line through the points where ``gaps`` is set."""
    behind = np.flatnonzero(gaps) + 1
    return np.insert(x, behind, np.nan), np.insert(y, behind, np.nan)


def _draw_answers(axes: Axes, tie: _Tie, styles: Mapping[str, dict[str, Any]]) -> None:
    labels = [d.label.replace(", ", ",\n") for d in tie.derivatives]
    # Each has 0.8 inches, see `widths`, in which ten letters have room.
    labels = [label if len(label) <= 10 else label.replace("_", "_\n") for label in labels]
    for index, derivative in enumerate(tie.derivatives):
        axes.hlines(derivative.definition, index - 0.45, index + 0.45, color="black", linewidth=2, zorder=1)
        # Each spelling has its slot, whether it answers or not, so that its mark is at one place in all panels.
        places = {s: index + 0.8 * ((slot + 0.5) / len(styles) - 0.5) for slot, s in enumerate(styles)}
        for spelling, x in places.items():
            if spelling in derivative.answers:
                y = derivative.answers[spelling]
                axes.plot(x, y, linestyle="none", markersize=7, label=spelling, **styles[spelling])
        for text, answer in {rounded([answer]): answer for answer in derivative.differing()}.items():
            x = float(np.mean([places[spelling] for spelling, y in derivative.answers.items() if rounded([y]) == text]))
            # NaN has no place on the axis: it is written below the definition.
            height = derivative.definition if math.isnan(answer) else answer
            _annotate(axes, text, (x, height), 6 if answer > derivative.definition else -6)
    alone = sum(label.startswith("x alone") for label in labels)
    if alone:
        axes.axvline(alone - 0.5, color="grey", linewidth=1)
        below = -18 - 13 * max(label.count("\n") for label in labels)
        _annotate(axes, "← all active →", ((alone + len(labels) - 1) / 2, 0), below, xycoords=("data", "axes fraction"))
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.set_title("at x = " + " and ".join(f"{point:g}" for point in tie.points), fontsize="medium")
    axes.tick_params(bottom=False, labelleft=False)
    axes.margins(y=0.25)
    axes.grid(axis="y", alpha=GRID_ALPHA)


def _annotate(axes: Axes, text: str, where: tuple[float, float], points: float, **more: Any) -> None:
    """Write the text so many points above the place, or below it."""
    near: dict[str, Any] = {"xytext": (0, points), "textcoords": "offset points", "ha": "center", "fontsize": "small"}
    axes.annotate(text, where, va="bottom" if points > 0 else "top", **near, **more)


def _draw_reduction(op: Op, rows: Sequence[Row], styles: Mapping[str, dict[str, Any]]) -> Figure:
    """Draw the elements of x and, in their shape, the weights that they get."""
    arrays = [np.asarray(row.arguments["x"]) for row in rows]
    widest = max(x.shape[-1] for x in arrays)
    heights = [0.9 + _CELL * x.size / x.shape[-1] for x in arrays]
    size = ((2 + len(styles)) * max(2.2, 0.3 + _CELL * widest), 1.1 + sum(heights))
    drawing = Figure(figsize=size, layout="constrained")
    parts = drawing.subfigures(len(rows), 1, squeeze=False, height_ratios=heights)
    for part, row, x in zip(parts.flat, rows, arrays, strict=True):
        part.suptitle(_call(row), x=0.01, ha="left", fontweight="bold")
        titles = ["x", "by definition", *(f"{AGREES if a.agrees else DISAGREES} {a.spelling}" for a in row.answers)]
        numbers: list[Any] = [x, row.definition, *(answer.gradient for answer in row.answers)]
        panels = part.subplots(1, 2 + len(styles), sharex=True, sharey=True)
        for axes in panels:
            axes.set(xlim=(x.shape[-1] / 2 - widest / 2, x.shape[-1] / 2 + widest / 2), aspect="equal")
            axes.set_ylim(x.size / x.shape[-1], 0)
            axes.set_axis_off()
        for axes, title, cells in zip(panels, titles, numbers, strict=False):
            _draw_cells(axes, title, np.reshape(cells, (-1, x.shape[-1])))
    return drawing


def _draw_cells(axes: Axes, title: str, numbers: NDArray[np.float64]) -> None:
    """Draw the numbers in the shape of x; weights are darker the larger they are."""
    wrong = title.startswith(DISAGREES)
    edge: dict[str, Any] = {"edgecolor": VERMILLION, "linewidth": 2} if wrong else {"edgecolor": "grey"}
    for (row, column), number in np.ndenumerate(numbers):
        strength = 0.0 if title == "x" else 0.6 * float(np.fmin(abs(number), 1.0))  # NaN is as dark as 1
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=(BLUE, strength), clip_on=False, **edge))
        text = f"{number:g}" if title == "x" else rounded([number])
        axes.annotate(text, (column + 0.5, row + 0.5), ha="center", va="center")
    axes.set_title(title, fontsize="small", color=VERMILLION if wrong else "black")
