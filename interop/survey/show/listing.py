"""Prints the cases of ops on a terminal: below each tie a line for each choice of what is differentiated.

In this example, the first column says what is differentiated:

                    definition  ours  jax  torch.maximum  torch.fmax
    x=0, y=0
      x, y          0.5 0.5     ✓     ✓    ✓              1 0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from interop.survey.matrix import FRAMEWORKS, PACKAGES, Answer, Row
from interop.survey.show.render import AGREES, Tally, at, heading
from interop.survey.versions import NO_ANSWER, rounded

_LEGEND = (
    f"{AGREES} agrees with the definition · a number differs from it · {NO_ANSWER} has no such form",
    "x, min: both are differentiated · x: it alone, and the others are arrays · x (numbers): the others are numbers",
)
_DEFINITION = "definition"
_BETWEEN = 2
"""Spaces between columns."""

Column = tuple[str, frozenset[str]]
"""A heading, and the spellings whose answers are below it."""


class _Widths(NamedTuple):
    """How wide the two columns of the case are."""

    active: int
    definition: int


def listing(rows: Sequence[Row], summary: Sequence[Tally], width: int, folded: bool = False) -> Group:
    """Print how many cases agree, and the cases; if ``folded``, of ties at which all agree the number alone.

    What is wider than ``width`` goes on in a further table.
    """
    tallies = [Text(str(tally), style="green" if tally.agreeing == tally.cases else "yellow") for tally in summary]
    parts: list[RenderableType] = [*tallies, ""]
    for op in dict.fromkeys(row.op for row in rows):
        for dtypes, alike in _merged_dtypes([row for row in rows if row.op == op]):
            columns = _columns(alike)
            parts.append(Text(f"{op}, {', '.join(dtypes)}", style="bold underline"))
            differing = {at(row) for row in alike if not row.agrees} if folded else set(map(at, alike))
            unfolded = [row for row in alike if at(row) in differing]
            parts += _tables(unfolded, columns, width) if unfolded else []
            if agreed := len(set(map(at, alike)) - differing):
                parts.append(
                    Text(f"{agreed} {'more ' * bool(unfolded)}tie{'s' * (agreed > 1)} at which all agree: --all", "dim")
                )
            parts += [*_differences(alike, columns), ""]
    return Group(*parts, *map(Text, _LEGEND))


def _merged_dtypes(rows: Sequence[Row]) -> Iterator[tuple[list[str], list[Row]]]:
    """Merge the rows of one op in dtypes whose tables are equal, to the digits that are printed."""
    groups: dict[object, dict[str, list[Row]]] = {}
    for dtype in dict.fromkeys(row.dtype for row in rows):
        in_dtype = [row for row in rows if row.dtype == dtype]
        printed = tuple(
            (at(row), row.active, row.inactive, rounded(row.definition))
            + tuple((answer.spelling, answer.agrees, rounded(answer.gradient)) for answer in row.answers)
            for row in in_dtype
        )
        groups.setdefault(printed, {})[dtype] = in_dtype
    for group in groups.values():
        yield list(group), next(iter(group.values()))


def _columns(rows: Sequence[Row]) -> list[Column]:
    """Make a column for each spelling, and a single one for the packages of this project while they all agree.

    The heading is the framework, or the spelling where the framework has several.
    """
    every = dict.fromkeys((answer.framework, answer.spelling) for row in rows for answer in row.answers)
    spellings = sorted(every, key=lambda pair: FRAMEWORKS.index(pair[0]))
    count = Counter(framework for framework, _ in spellings)
    of_packages = frozenset(spelling for framework, spelling in spellings if framework in PACKAGES)
    agree = all(answer.agrees for row in rows for answer in row.answers if answer.framework in PACKAGES)
    together = agree and len(of_packages) > 1
    return [("ours", of_packages)] * together + [
        (heading(framework) if count[framework] == 1 else ".".join(spelling.split(".")[-2:]), frozenset((spelling,)))
        for framework, spelling in spellings
        if not (together and framework in PACKAGES)
    ]


def _tables(rows: Sequence[Row], columns: Sequence[Column], width: int) -> Iterator[Text]:
    """Print the columns, as many side by side as there is room for, each time beside the cases."""
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
    """Yield the lines of one table; the ties take a line each, as long as they are."""

    def line(active: str, definition: str, cells: Iterable[Text]) -> Text:
        beside = (_padded(cell, wide) for cell, (_, wide) in zip(cells, columns, strict=True))
        left = _padded(Text(active), case.active + _BETWEEN) + _padded(Text(definition), case.definition + _BETWEEN)
        return Text("", no_wrap=True).join([left, *beside])

    yield line("", _DEFINITION, (Text(title) for (title, _), _ in columns))
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
    """Say for each column how many of the cases agree, and which conventions give the answers that do not."""
    for column in columns:
        answers = _answers(rows, column)
        differing = [answer for answer in answers if not answer.agrees]
        if differing:
            conventions = Counter(answer.conventions[0] for answer in differing if answer.conventions)
            explained = ", ".join(f"{count} as ties={ties}" for ties, count in conventions.most_common())
            agreeing = f"{column[0]}: {len(answers) - len(differing)} of {len(answers)} agree"
            yield Text(f"{agreeing}; {explained}" if explained else agreeing, "dim")
