"""Several records side by side: a line for each question, without those that another line answers too."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from interop.parity.answers import MODES, Cell, Gradient, Mode, Record

Answers: TypeAlias = tuple[Gradient | None, ...]
"""Of each record, None where it has no such cell."""


@dataclass(frozen=True)
class Line:
    """What each of the records answers to one question."""

    cell: Cell
    modes: tuple[Mode, ...]
    """Those in which all of them answer so."""
    answers: Answers

    @property
    def asked(self) -> str:
        """What is differentiated: "x, numbers" is x with numbers for the other arguments."""
        return " ".join(self.cell.active) + (", numbers" if self.cell.inactive == "numbers" else "")

    @property
    def mode(self) -> str:
        return "both" if len(self.modes) == 2 else self.modes[0]


def side_by_side(records: Sequence[Record]) -> list[Line]:
    """The lines, op by op.

    Left out is what follows from another line: at -0.0 where it is as at 0.0, and the gradient of some arguments where
    it is that part of the gradient of all, or is the one beside numbers.
    """
    cells = list(dict.fromkeys(cell for record in records for cell in record.answers))
    answers = {
        mode: {cell: tuple(record.answers.get(cell, {}).get(mode) for record in records) for cell in cells}
        for mode in MODES
    }
    found: list[Line] = []
    for cell in cells:
        told: list[Mode] = [mode for mode in MODES if any(answers[mode][cell]) and not _follows(cell, answers[mode])]
        if len(told) == 2 and _alike(answers["reverse"][cell], answers["forward"][cell]):
            found.append(Line(cell, MODES, answers["reverse"][cell]))
        else:
            found += [Line(cell, (mode,), answers[mode][cell]) for mode in told]
    return found


def _follows(cell: Cell, answers: dict[Cell, Answers]) -> bool:
    """Whether the answers to another question tell those to this one."""
    positive = cell._replace(at=re.sub(r"-0(?=,|$)", "0", cell.at))
    if positive != cell and positive in answers and _alike(answers[positive], answers[cell]):
        return True
    if cell.inactive != "arrays":
        return False
    others = [other for other in answers if (other.op, other.at, other.spelling) == (cell.op, cell.at, cell.spelling)]
    joint = next((other for other in others if other.inactive == "none"), cell._replace(inactive="numbers"))
    places = [joint.active.index(name) for name in cell.active if name in joint.active]
    if joint not in answers or len(places) != len(cell.active):
        return False
    parts = tuple(gradient and tuple(gradient[place] for place in places) for gradient in answers[joint])
    return _alike(parts, answers[cell])


def _alike(first: Answers, second: Answers) -> bool:
    return all(same(a, b) for a, b in zip(first, second, strict=True))


def same(first: Gradient | None, second: Gradient | None) -> bool:
    """Whether two gradients are equal but for the last digits of float32."""
    if first is None or second is None or len(first) != len(second):
        return first is second
    return all(math.isclose(a, b, rel_tol=1e-6) or (a != a and b != b) for a, b in zip(first, second, strict=True))


def rounded(values: Iterable[float]) -> str:
    """For a reader."""
    return " ".join(f"{round(value, 2) + 0.0:g}" for value in values)


def told(gradient: Gradient | None) -> str:
    """For a reader, of a gradient that may not be there."""
    return "–" if gradient is None else rounded(gradient)


def labels(lines: Sequence[Line]) -> Iterator[str]:
    """By line, the op at its tie, as a call; with the spelling, where there are several of the op."""
    spellings: dict[str, set[str]] = {}
    for line in lines:
        spellings.setdefault(line.cell.op, set()).add(line.cell.spelling)
    for line in lines:
        several = len(spellings[line.cell.op]) > 1
        yield f"{line.cell.op}({line.cell.at})" + (f" as {line.cell.spelling}" if several else "")
