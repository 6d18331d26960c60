"""Writes tables of the documentation: the gradients of all ops at ties, and what recorded versions answer there."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping

from interop.survey.classify import explanations
from interop.survey.matrix import Row, matrix
from interop.survey.records import Cell, FlatGradient, Record
from interop.survey.show.render import at, by_spelling
from interop.survey.versions import NO_ANSWER, rounded, side_by_side
from jaxclamp import OPS, Op
from jaxclamp._shared.tables import markdown_table


def overview() -> str:
    """Write a table of all ops: their ties, and what torch and JAX answer there in float32."""
    rows = list(matrix(dtypes=("float32",), frameworks=("torch", "jax")))
    versions = {answer.framework: answer.version for row in rows for answer in row.answers}
    columns = (versions["torch"], versions["jax"])
    headings = ["op", "what it computes", "ties, x alone differentiated", "gradient", *columns]
    lines = []
    for op in OPS.values():
        # At -0.0 the gradients are those at 0.0 by definition, and a table for readers is long enough.
        alone = [row for row in rows if row.op == op.name and row.active == ("x",) and not _is_negative_zero(row)]
        ties = [row for row in alone if row.inactive != "arrays"]
        as_arrays = {at(row): row for row in alone}  # for frameworks that do not take the bounds as numbers
        cells = [
            f"`{op.name}`",
            _summary(op),
            "<br>".join(at(row) for row in ties),
            "<br>".join(rounded(row.definition) for row in ties),
            *(
                "<br>".join(
                    _unmodified(row, framework) or _unmodified(as_arrays[at(row)], framework) or NO_ANSWER
                    for row in ties
                )
                for framework in ("torch", "jax")
            ),
        ]
        lines.append(cells)
    return markdown_table(headings, lines) + "\n"


def of_versions(columns: Mapping[str, Record]) -> str:
    """Write a table of records: what each answers at every tie, below the headings in ``columns``.

    Ties of a function at which all of them answer alike share a line, and so do functions that are alike there. Bold is
    what is not the subgradient of minimum norm; behind what is no subgradient at all there is a dagger.
    """
    lines = side_by_side(list(columns.values()))
    modes = Counter(line.cell for line in lines)
    ties: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for line in lines:
        active = line.asked + (f", {line.mode}" if modes[line.cell] > 1 else "")
        function = f"`{line.cell.spelling or line.cell.op}`"
        answers = tuple(_judged(line.cell, answer) for answer in line.answers)
        ties.setdefault((function, active, answers), []).append(line.cell.at)
    functions: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (function, active, answers), points in ties.items():
        functions.setdefault(("<br>".join(points), active, answers), []).append(function)
    headings = ["function", "at", "differentiated", *columns]
    rows = ([", ".join(names), points, active, *answers] for (points, active, answers), names in functions.items())
    return markdown_table(headings, rows) + "\n"


def _judged(cell: Cell, answer: FlatGradient | None) -> str:
    if answer is None:
        return NO_ANSWER
    classes = explanations(cell, answer)
    return _marked(answer, "min_norm" in classes) + " †" * ("no subgradient" in classes)


def _is_negative_zero(row: Row) -> bool:
    x = row.arguments["x"]
    return isinstance(x, float) and x == 0 and math.copysign(1, x) < 0


def _summary(op: Op) -> str:
    line = (op.function.__doc__ or "").partition("\n")[0]
    return re.sub(r":math:`(.*?)`", r"$\1$", line).replace("``", "`")


def _unmodified(row: Row, framework: str) -> str:
    """Write what a framework answers, and where its spellings differ, which says what."""
    answers = [answer for answer in row.answers if answer.framework == framework]
    return by_spelling(
        answers,
        lambda answer: _marked(answer.gradient, answer.agrees),
        lambda text, names: f"{text} ({', '.join(f'`{name}`' for name in names)})",
    )


def _marked(gradient: FlatGradient, is_right: bool) -> str:
    return rounded(gradient) if is_right else f"**{rounded(gradient)}**"
