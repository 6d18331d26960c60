"""Draws recorded versions: the ops by versions, in the colours of the conventions that their answers follow."""

import textwrap
from collections import Counter
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from interop._palette import BLUE, GREEN, PURPLE, VERMILLION
from interop.survey.classify import CLASSES, classify
from interop.survey.records import MODES, Record

COLOURS = dict(zip(CLASSES, (GREEN, VERMILLION, BLUE, PURPLE, "0.75", "black"), strict=True))


def figure(records: Sequence[Record]) -> Figure:
    """Draw ``records``, versions of one framework; forward mode where it is unlike reverse mode.

    If some op changed, those that did not are counted alone.
    """
    ops = list(dict.fromkeys(cell.op for record in records for cell in record.answers))
    lines: dict[str, list[Counter[str]]] = {}
    for op in ops:
        reverse, forward = ([classify(record, op, mode) for record in records] for mode in MODES)
        lines[op] = reverse
        if any(pushed and pushed != pulled for pulled, pushed in zip(reverse, forward, strict=True)):
            lines[f"{op}, forward mode"] = forward
    lines = {line: counts for line, counts in lines.items() if _changes(counts)} or lines
    unchanged = set(ops) - {line.partition(",")[0] for line in lines}
    drawn = Figure(figsize=(2.5 + 1.3 * len(records), 1.4 + 0.24 * len(lines)), layout="constrained")
    axes = drawn.subplots()
    # A bar is 0.92 wide and 0.8 high, in units of the grid: gaps part versions and ops.
    for row, counts in enumerate(lines.values()):
        for column, of_version in enumerate(counts):
            left = column - 0.46
            for name in filter(of_version.get, COLOURS):
                width = 0.92 * of_version[name] / of_version.total()
                axes.barh(row, width, 0.8, left, color=COLOURS[name], edgecolor="white", linewidth=0.4)
                left += width
    axes.set_xticks(range(len(records)), [record.version.replace(" on ", "\non ") for record in records])
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(lines)), list(lines))
    axes.set(xlim=(-0.55, len(records) - 0.45), ylim=(len(lines) - 0.4, -0.6))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    named = [name for name in COLOURS if any(of_version[name] for counts in lines.values() for of_version in counts)]
    handles = [Patch(color=COLOURS[name], label=name) for name in named]
    drawn.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    title = f"What {records[0].framework} returns at ties. The width of a colour is its share of the ties of an op."
    drawn.suptitle(textwrap.fill(title, int(11 * drawn.get_figwidth())), x=0.01, ha="left", fontsize="medium")
    if unchanged:
        axes.set_xlabel(f"{len(unchanged)} more ops never changed", loc="left")
    return drawn


def _changes(counts: Sequence[Counter[str]]) -> bool:
    """Say whether what an op follows differs between the versions that were asked."""
    recorded = [of_version for of_version in counts if of_version]
    return any(of_version != recorded[0] for of_version in recorded)
