"""What each installed framework answers in float32 at every tie; run as a script, it writes one file per version."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from interop.parity.render import at
from interop.parity.rows import THEIRS, Row, matrix

Record = dict[str, list[float]]
"""The gradient in every cell: the op at a tie, its active arguments, how the others are given, and the spelling."""


def record_of(version: str) -> Path:
    return Path(__file__).parent / "native_answers" / f"{version.replace(' ', '-')}.json"


def answers(rows: Iterable[Row]) -> dict[str, Record]:
    """By the version that answers."""
    found: dict[str, Record] = {}
    for row in rows:
        for answer in row.answers:
            if answer.framework in THEIRS:
                cell = f"{row.op}({at(row)}), {' '.join(row.active)}, {row.inactive}: {answer.spelling}"
                gradient = [float(str(np.float32(g))) for g in answer.gradient]  # 0.01, not 0.009999999776482582
                found.setdefault(answer.version, {})[cell] = gradient
    return found


def changes(recorded: Record, found: Record) -> list[str]:
    return [
        f"{cell}: recorded {recorded.get(cell)}, now {found.get(cell)}"
        for cell in recorded | found
        if not (
            cell in recorded and cell in found and np.allclose(recorded[cell], found[cell], rtol=1e-6, equal_nan=True)
        )
    ]


if __name__ == "__main__":
    for version, record in answers(matrix(dtypes=["float32"])).items():
        lines = ",\n".join(f"{json.dumps(cell)}: {json.dumps(gradient)}" for cell, gradient in record.items())
        record_of(version).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
