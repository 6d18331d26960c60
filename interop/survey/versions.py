"""Several records side by side: a line for each question, without those that another line answers too.

Many of the answers in a record say the same thing again. ``torch.maximum`` at x = y = 0 has these:

    x y, none      (0.5, 0.5)
    x, arrays      (0.5,)        left out: the part of x in the first line
    y, arrays      (0.5,)        left out: the part of y in the first line

Forward mode is left out as well, unless it differs from reverse mode. `_is_implied` has the rules.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from interop.survey.records import MODES, Cell, FlatGradient, Mode, Record, choices

NO_ANSWER = "–"

Answers: TypeAlias = tuple[FlatGradient | None, ...]
"""The gradient in each record, None where it has no such cell."""


@dataclass(frozen=True)
class Line:
    """What each of the records answers to one question."""

    cell: Cell
    modes: tuple[Mode, ...]
    """The modes in which all of them answer so."""
    answers: Answers

    @property
    def asked(self) -> str:
        """What is differentiated: "x, numbers" is x with numbers for the further arguments."""
        return " ".join(self.cell.active) + (", numbers" if self.cell.inactive == "numbers" else "")

    @property
    def mode(self) -> str:
        return "both" if len(self.modes) == 2 else self.modes[0]


def side_by_side(records: Sequence[Record]) -> list[Line]:
    """List the lines, op by op."""
    order = {case: place for place, case in enumerate(choices())}
    # A record need not have all cells: forward mode, spellings and ops are missing in some.
    cells = dict.fromkeys(cell for record in records for cell in record.answers)
    full = {(cell.op, cell.at, cell.spelling): cell for cell in cells if cell.inactive == "none"}
    lines: list[Line] = []
    for cell in sorted(cells, key=lambda cell: order.get(cell.case, len(order))):
        joint = full.get((cell.op, cell.at, cell.spelling))
        answers = {mode: _answers(records, cell, mode) for mode in MODES}
        modes = [mode for mode in MODES if not _is_implied(records, cell, joint, mode)]
        pairs = zip(answers["reverse"], answers["forward"], strict=True)
        # Some records may have no forward mode there, which does not split the line.
        if modes and all(forward is None or same(reverse, forward) for reverse, forward in pairs):
            # A gradient is a tuple, and true even if it is 0.
            lines.append(Line(cell, MODES if any(answers["forward"]) else MODES[:1], answers["reverse"]))
        else:
            lines += [Line(cell, (mode,), answers[mode]) for mode in modes]
    return lines


def _answers(records: Iterable[Record], cell: Cell, mode: Mode) -> Answers:
    return tuple(record.answers.get(cell, {}).get(mode) for record in records)


def _is_implied(records: Sequence[Record], cell: Cell, joint: Cell | None, mode: Mode) -> bool:
    """Say whether the answers in another cell imply those in this one.

    Two cells may do so. At -0.0 it is the same cell at 0.0. For some arguments beside arrays it is ``joint``, in which
    all are differentiated: a reverse pass computes all parts of a gradient, whichever are asked for. A record without
    ``joint`` has the gradient beside numbers instead.
    """
    answers = _answers(records, cell, mode)
    positive = cell._replace(at=re.sub(r"-0(?=,|$)", "0", cell.at))  # and not -0.5
    if positive != cell and _agree(_answers(records, positive, mode), answers):
        return True
    if cell.inactive != "arrays":
        return False
    implied = _answers(records, cell._replace(inactive="numbers"), mode)
    if joint is not None:
        places = [joint.active.index(name) for name in cell.active]
        parts = (g and tuple(g[place] for place in places) for g in _answers(records, joint, mode))
        implied = tuple(part or alone for part, alone in zip(parts, implied, strict=True))
    return _agree(implied, answers)


def _agree(implied: Answers, answers: Answers) -> bool:
    """Say whether each of the ``answers`` that there are is the implied one."""
    return all(b is None or same(a, b) for a, b in zip(implied, answers, strict=True))


def same(first: FlatGradient | None, second: FlatGradient | None) -> bool:
    """Say whether two gradients are equal but for the last digits of float32."""
    if first is None or second is None:
        return first is second
    # 1e-6 is some 8 units in the last place of float32.
    return all(math.isclose(a, b, rel_tol=1e-6) or (a != a and b != b) for a, b in zip(first, second, strict=True))


def rounded(values: Iterable[float]) -> str:
    """Write numbers to two places, as a reader wants them."""
    return " ".join(f"{round(value, 2) + 0.0:g}" for value in values)


def rounded_or_dash(gradient: FlatGradient | None) -> str:
    """Write a gradient, or a dash where there is none."""
    return NO_ANSWER if gradient is None else rounded(gradient)


def labels(lines: Iterable[Line], records: Iterable[Record]) -> Iterator[str]:
    """Name each line by the op at its tie, as a call, and by the spelling where the records have several of the op."""
    spellings: dict[str, set[str]] = {}
    for record in records:
        for cell in record.answers:
            spellings.setdefault(cell.op, set()).add(cell.spelling)
    for line in lines:
        several = len(spellings[line.cell.op]) > 1
        yield f"{line.cell.op}({line.cell.at})" + (f" as {line.cell.spelling}" if several else "")
