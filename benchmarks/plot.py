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

COLOURS = {"jaxclamp": "#0072b2", "interop": "#d55e00", "jax": "#56b4e9", "torch": "#e69f00"}  # Okabe and Ito
MARKERS = {"jaxclamp": "o", "interop": "s", "jax": "v", "torch": "^"}


def points(results: dict[str, Any], op: str, kind: str) -> dict[str, list[tuple[int, float]]]:
    """For each contender, its sizes and the nanoseconds per element."""
    found: dict[str, list[tuple[int, float]]] = collections.defaultdict(list)
    for benchmark in results["benchmarks"]:
        info = benchmark["extra_info"]
        if (info.get("op"), info.get("kind"), info.get("dtype")) == (op, kind, "float32"):
            found[info["contender"]].append((info["size"], 1e9 * benchmark["stats"]["median"] / info["size"]))
    return {contender: sorted(row) for contender, row in found.items()}


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
