"""Tables of the documentation: all ops with their gradients at ties, and what recorded versions answer there."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from interop.survey.classify import explanations
from interop.survey.matrix import Answer, Row, matrix
from interop.survey.records import Cell, Gradient, Record
from interop.survey.show.render import NO_ANSWER, at
from interop.survey.versions import rounded, side_by_side
from jaxclamp import OPS, Op
from jaxclamp._shared.tables import markdown_table


def overview() -> str:
    """Markdown, from the records and from what torch and JAX answer in float32."""
    rows = list(matrix(dtypes=("float32",), frameworks=("torch", "jax")))
    versions = {answer.framework: answer.version for row in rows for answer in row.answers}
    headings = [
        "op",
        "what it computes",
        "ties, x alone differentiated",
        "gradient",
        versions["torch"],
        versions["jax"],
    ]
    lines = []
    for op in OPS.values():
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
                    _native(row, framework) or _native(as_arrays[at(row)], framework) or NO_ANSWER for row in ties
                )
                for framework in ("torch", "jax")
            ),
        ]
        lines.append(cells)
    return markdown_table(headings, lines) + "\n"


def of_versions(columns: Mapping[str, Record]) -> str:
    """Markdown, from records alone: what each of them answers at every tie, under the headings given.

    Ties of a function at which all of them answer alike share a line, and so do functions that are alike there. Bold is
    what is not the subgradient of minimum norm; behind what is no subgradient at all there is a dagger.
    """
    lines = side_by_side(list(columns.values()))
    modes = Counter(line.cell for line in lines)
    ties: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for line in lines:
        asked = line.asked + (f", {line.mode}" if modes[line.cell] > 1 else "")
        spelled = f"`{line.cell.spelling or line.cell.op}`"
        answers = tuple(_judged(line.cell, answer) for answer in line.answers)
        ties.setdefault((spelled, asked, answers), []).append(line.cell.at)
    functions: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (spelled, asked, answers), found in ties.items():
        functions.setdefault(("<br>".join(found), asked, answers), []).append(spelled)
    headings = ["function", "at", "differentiated", *columns]
    told = ([", ".join(names), ties_at, asked, *answers] for (ties_at, asked, answers), names in functions.items())
    return markdown_table(headings, told) + "\n"


def _judged(cell: Cell, answer: Gradient | None) -> str:
    if answer is None:
        return NO_ANSWER
    found = explanations(cell, answer)
    shown = rounded(answer) if "min_norm" in found else f"**{rounded(answer)}**"
    return shown + " †" * ("no subgradient" in found)


def _is_negative_zero(row: Row) -> bool:
    x = row.arguments["x"]
    return isinstance(x, float) and x == 0 and math.copysign(1, x) < 0


def _summary(op: Op) -> str:
    line = (op.function.__doc__ or "").partition("\n")[0]
    return re.sub(r":math:`(.*?)`", r"$\1$", line).replace("``", "`")


def _native(row: Row, framework: str) -> str:
    answers = [answer for answer in row.answers if answer.framework == framework]
    spelled: dict[str, list[str]] = {}
    for answer in answers:
        spelled.setdefault(_marked(answer), []).append(answer.spelling.rpartition(".")[2])
    if len(spelled) <= 1:
        return next(iter(spelled), "")
    return ", ".join(f"{shown} ({_join(names)})" for shown, names in spelled.items())


def _marked(answer: Answer) -> str:
    return rounded(answer.gradient) if answer.agrees else f"**{rounded(answer.gradient)}**"


def _join(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
