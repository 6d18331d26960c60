"""Several records side by side: a line for each question, without those that another line answers too."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from interop.survey.records import MODES, Cell, Gradient, Mode, Record, choices

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
    it is that part of the gradient of all, or, if there is none of all, is the one beside numbers. Forward mode has a
    line of its own where it is unlike reverse mode.
    """
    order = {case: place for place, case in enumerate(choices())}
    cells = dict.fromkeys(cell for record in records for cell in record.answers)
    whole = {(cell.op, cell.at, cell.spelling): cell for cell in cells if cell.inactive == "none"}
    found: list[Line] = []
    for cell in sorted(cells, key=lambda cell: order.get(cell.case, len(order))):
        joint = whole.get((cell.op, cell.at, cell.spelling))
        answers = {mode: _answers(records, cell, mode) for mode in MODES}
        told = [mode for mode in MODES if any(answers[mode]) and not _follows(records, cell, joint, mode)]
        pairs = zip(answers["reverse"], answers["forward"], strict=True)
        if told and all(forward is None or same(reverse, forward) for reverse, forward in pairs):
            found.append(Line(cell, MODES if any(answers["forward"]) else MODES[:1], answers["reverse"]))
        else:
            found += [Line(cell, (mode,), answers[mode]) for mode in told]
    return found


def _answers(records: Iterable[Record], cell: Cell, mode: Mode) -> Answers:
    return tuple(record.answers.get(cell, {}).get(mode) for record in records)


def _follows(records: Sequence[Record], cell: Cell, joint: Cell | None, mode: Mode) -> bool:
    """Whether the answers to other questions tell those to this one; ``joint`` has all arguments differentiated."""
    answers = _answers(records, cell, mode)
    positive = cell._replace(at=re.sub(r"-0(?=,|$)", "0", cell.at))
    if positive != cell and _alike(_answers(records, positive, mode), answers):
        return True
    if cell.inactive != "arrays":
        return False
    told = _answers(records, cell._replace(inactive="numbers"), mode)
    if joint is not None:
        places = [joint.active.index(name) for name in cell.active]
        parts = (g and tuple(g[place] for place in places) for g in _answers(records, joint, mode))
        told = tuple(part or alone for part, alone in zip(parts, told, strict=True))
    return _alike(told, answers)


def _alike(told: Sequence[Gradient | None], answers: Answers) -> bool:
    """Whether the ``answers`` that there are, are those told."""
    return all(b is None or same(a, b) for a, b in zip(told, answers, strict=True))


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


def labels(lines: Iterable[Line], records: Iterable[Record]) -> Iterator[str]:
    """By line, the op at its tie, as a call; with the spelling, where the records have several of the op."""
    spellings: dict[str, set[str]] = {}
    for record in records:
        for cell in record.answers:
            spellings.setdefault(cell.op, set()).add(cell.spelling)
    for line in lines:
        several = len(spellings[line.cell.op]) > 1
        yield f"{line.cell.op}({line.cell.at})" + (f" as {line.cell.spelling}" if several else "")
