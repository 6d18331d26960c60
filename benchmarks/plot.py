"""A plot of one run: time per element against size, each contender beside the floor that memory bandwidth sets.

Run: python benchmarks/plot.py RESULTS.json PLOT.png
"""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path
from typing import Any

from contenders import CHIEF
from matplotlib import pyplot

from interop._palette import BLUE, ORANGE, SKY, VERMILLION

COLOURS = {"jaxclamp": BLUE, "interop": VERMILLION, "jax": SKY, "torch": ORANGE}
MARKERS = {"jaxclamp": "o", "interop": "s", "jax": "v", "torch": "^"}


def points(results: dict[str, Any], op: str, kind: str) -> dict[str, list[tuple[int, float]]]:
    """Map each contender to its sizes, each with the nanoseconds per element."""
    times: dict[str, list[tuple[int, float]]] = collections.defaultdict(list)
    for benchmark in results["benchmarks"]:
        info = benchmark["extra_info"]
        if (info.get("op"), info.get("kind"), info.get("dtype")) == (op, kind, "float32"):
            times[info["contender"]].append((info["size"], 1e9 * benchmark["stats"]["median"] / info["size"]))
    return {contender: sorted(row) for contender, row in times.items()}


def main(source: Path, target: Path) -> None:
    results = json.loads(source.read_text())
    machine = results["machine_info"]
    copies = points(results, "copy", "copy").values()
    floor = [(row[0][0], min(time for _, time in row)) for row in zip(*copies, strict=True)]
    kinds = ("forward", "backward", "crossing", "gradient")
    figure, grid = pyplot.subplots(
        len(CHIEF), len(kinds), figsize=(17, 13), sharex=True, sharey=True, layout="constrained"
    )
    for row, op in zip(grid, CHIEF, strict=True):
        for axes, kind in zip(row, kinds, strict=True):
            for contender, measured in points(results, op, kind).items():
                framework = contender.partition(".")[0]
                line = "-" if framework in ("jaxclamp", "interop") else "--"
                style = {"color": COLOURS[framework], "marker": MARKERS[framework], "linestyle": line}
                axes.loglog(*zip(*measured, strict=True), label=contender, **style)
            axes.loglog(*zip(*floor, strict=True), color="black", linestyle=":", label="a copy")
            axes.set_title(f"{op}, {kind}")
            axes.grid(alpha=0.3)
            axes.legend(fontsize=7)
    for axes in grid[-1]:
        axes.set_xlabel("elements, float32")
    for axes in grid[:, 0]:
        axes.set_ylabel("ns per element (median)")
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    allocator = "reusing pages" if isinstance(machine["allocator"], dict) else "default allocator"
    figure.suptitle(f"{versions}; {machine['cores']} cores, {machine['dispatch']} dispatch, {allocator}")
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
