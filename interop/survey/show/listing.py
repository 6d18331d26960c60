"""The cases of ops, as a terminal shows them: below each tie a line for each choice of what is differentiated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from interop.survey.matrix import FRAMEWORKS, OURS, Answer, Row
from interop.survey.show.render import AGREES, NO_ANSWER, Tally, at
from interop.survey.versions import rounded

_LEGEND = f"{AGREES} agrees with the definition · a number differs from it · {NO_ANSWER} has no such form"
_DEFINITION = "definition"
_BETWEEN = 2
"""Spaces between columns."""

Column = tuple[str, frozenset[str]]
"""A heading, and the spellings whose answers are below it."""


class _Widths(NamedTuple):
    """Of the columns of the case."""

    active: int
    definition: int


def listing(rows: Sequence[Row], summary: Sequence[Tally], width: int) -> Group:
    """The cases, and how many of all agree. What is wider than ``width`` goes on in a further table."""
    parts: list[RenderableType] = []
    for op in dict.fromkeys(row.op for row in rows):
        for dtypes, alike in _by_dtypes([row for row in rows if row.op == op]):
            columns = _columns(alike)
            parts.append(Text(f"{op}, {', '.join(dtypes)}", style="bold underline"))
            parts += _tables(alike, columns, width)
            parts += [*_differences(alike, columns), ""]
    lines = [Text(str(tally), style="green" if tally.agreeing == tally.cases else "yellow") for tally in summary]
    return Group(*parts, Text(_LEGEND), "", *lines)


def _by_dtypes(rows: Sequence[Row]) -> Iterator[tuple[list[str], list[Row]]]:
    """The rows of one op. Dtypes in which all is alike, to the digits shown, go together."""
    groups: dict[object, dict[str, list[Row]]] = {}
    for dtype in dict.fromkeys(row.dtype for row in rows):
        its = [row for row in rows if row.dtype == dtype]
        shown = tuple(
            (at(row), row.active, row.inactive, rounded(row.definition))
            + tuple((answer.spelling, answer.agrees, rounded(answer.gradient)) for answer in row.answers)
            for row in its
        )
        groups.setdefault(shown, {})[dtype] = its
    for group in groups.values():
        yield list(group), next(iter(group.values()))


def _columns(rows: Sequence[Row]) -> list[Column]:
    """One for each spelling, called by its framework where that has no other; ours share one while they all agree."""
    found = dict.fromkeys((answer.framework, answer.spelling) for row in rows for answer in row.answers)
    spellings = sorted(found, key=lambda one: FRAMEWORKS.index(one[0]))
    count = Counter(framework for framework, _ in spellings)
    ours = frozenset(spelling for framework, spelling in spellings if framework in OURS)
    agree = all(answer.agrees for row in rows for answer in row.answers if answer.framework in OURS)
    together = agree and len(ours) > 1
    return [("ours", ours)] * together + [
        (framework if count[framework] == 1 else ".".join(spelling.split(".")[-2:]), frozenset((spelling,)))
        for framework, spelling in spellings
        if not (together and framework in OURS)
    ]


def _tables(rows: Sequence[Row], columns: Sequence[Column], width: int) -> Iterator[Text]:
    """The columns, as many side by side as there is room for, each time beside the cases."""
    case = _Widths(
        active=max(cell_len(_active(row)) for row in rows),
        definition=max(len(_DEFINITION), *(cell_len(rounded(row.definition)) for row in rows)),
    )
    left = sum(case) + _BETWEEN
    beside: list[tuple[Column, int]] = []
    used = left
    for column in columns:
        wide = _BETWEEN + max(cell_len(column[0]), *(cell_len(_cell(row, column).plain) for row in rows))
        if beside and used + wide > width:
            yield from _table(rows, beside, case)
            beside, used = [], left
        beside.append((column, wide))
        used += wide
    yield from _table(rows, beside, case)


def _table(rows: Sequence[Row], columns: Sequence[tuple[Column, int]], case: _Widths) -> Iterator[Text]:
    """Line by line; the ties take a line each, as long as they are."""

    def line(active: str, definition: str, cells: Iterable[Text]) -> Text:
        beside = (_padded(cell, wide) for cell, (_, wide) in zip(cells, columns, strict=True))
        left = _padded(Text(active), case.active + _BETWEEN) + _padded(Text(definition), case.definition + _BETWEEN)
        return Text("", no_wrap=True).join([left, *beside])

    yield line("", _DEFINITION, (Text(heading) for (heading, _), _ in columns))
    tie = None
    for row in rows:
        if at(row) != tie:
            tie = at(row)
            yield Text(tie, "bold")
        yield line(_active(row), rounded(row.definition), (_cell(row, column) for column, _ in columns))


def _padded(text: Text, width: int) -> Text:
    text.pad_right(width - text.cell_len)
    return text


def _active(row: Row) -> str:
    return "  " + ", ".join(row.active) + (" (numbers)" if row.inactive == "numbers" else "")


def _answers(rows: Sequence[Row], column: Column) -> list[Answer]:
    _, spellings = column
    return [answer for row in rows for answer in row.answers if answer.spelling in spellings]


def _cell(row: Row, column: Column) -> Text:
    answers = _answers([row], column)
    if not answers:
        return Text(NO_ANSWER, "dim")
    if all(answer.agrees for answer in answers):
        return Text(AGREES, "green")
    return Text(rounded(answers[0].gradient), "red")


def _differences(rows: Sequence[Row], columns: Sequence[Column]) -> Iterator[Text]:
    """By column, how many of the cases agree, and which conventions give the others."""
    for column in columns:
        answers = _answers(rows, column)
        differing = [answer for answer in answers if not answer.agrees]
        if differing:
            like = Counter(answer.conventions[0] for answer in differing if answer.conventions)
            conventions = ", ".join(f"{count} as ties={ties}" for ties, count in like.most_common())
            agreeing = f"{column[0]}: {len(answers) - len(differing)} of {len(answers)} agree"
            yield Text(f"{agreeing}; {conventions}" if conventions else agreeing, "dim")
