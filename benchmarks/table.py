"""The tables of one run, as Markdown: times as ratios to native spellings, and bandwidth as a share of a copy's.

Run: python benchmarks/table.py RESULTS.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from contenders import CHIEF

OURS = {"jaxclamp": "jax", "interop": "torch"}
LARGE = 64_000_000
MOVED = {  # bytes per element of float32: x, code, cotangent, result
    ("jaxclamp", "forward"): 4 + 4,
    ("jaxclamp", "backward"): 1 + 4 + 4,
    ("interop", "forward"): 4 + 4,
    ("interop", "backward"): 4 + 4 + 4,
}


class Case(NamedTuple):
    """What was timed."""

    op: str
    kind: str
    size: int
    contender: str

    @property
    def framework(self) -> str:
        return self.contender.partition(".")[0]


def medians(results: Mapping[str, Any]) -> dict[Case, float]:
    """Seconds, in float32."""
    infos = [(benchmark["extra_info"], benchmark["stats"]["median"]) for benchmark in results["benchmarks"]]
    return {
        Case(info["op"], info["kind"], info["size"], info["contender"]): median
        for info, median in infos
        if info.get("dtype") == "float32"
    }


def ratios(found: Mapping[Case, float], kind: str, sizes: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """A row for each chief op and native spelling: our time over its time, at each of ``sizes``."""
    for ours, framework in OURS.items():
        for op in CHIEF:
            mine = {c.size: t for c, t in found.items() if c[:2] == (op, kind) and c.framework == ours}
            names = dict.fromkeys(c.contender for c in found if c[:2] == (op, kind) and c.framework == framework)
            for name in names if mine else ():
                native = {size: found[Case(op, kind, size, name)] for size in mine}
                yield f"{ours}.{op} / {name}", *(f"{mine[n] / native[n]:.2f}" if n in mine else "" for n in sizes)


def bandwidths(found: Mapping[Case, float]) -> Iterator[tuple[str, ...]]:
    """Bytes moved per second at the size that no cache holds, beside those of a copy: 4 read and 4 written."""
    copy = 8 / min(t for c, t in found.items() if c.op == "copy" and c.size == LARGE and c.contender != "copy in torch")
    for (ours, kind), moved in MOVED.items():
        for case, time in found.items():
            if (case.framework, case.kind, case.size) == (ours, kind, LARGE):
                rate = moved / time
                yield case.contender, kind, f"{rate * LARGE / 1e9:.1f}", f"{rate / copy:.2f}"


def markdown(headings: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [tuple(headings), *rows]
    lines.insert(1, ("---",) * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(file: Path) -> None:
    found = medians(json.loads(file.read_text()))
    sizes = sorted({case.size for case in found if case.op == CHIEF[0]})
    for kind in dict.fromkeys(case.kind for case in found if case.op != "copy"):
        print(markdown([kind, *(f"{size:,}" for size in sizes)], ratios(found, kind, sizes)))
    print(markdown(["", "pass", "GB/s", "share of a copy"], bandwidths(found)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
