"""Prints the parity matrix on one screen: a line for each framework, then a line for each op."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.text import Text

from interop.survey.matrix import PACKAGES, Answer, Row
from interop.survey.show.render import AGREES, Column, side_by_side, tallies
from interop.survey.versions import NO_ANSWER, rounded
from jaxclamp._shared.tables import rich_table

_BAR = 24
_NARROW = 80
"""The columns from which one table of ops has room for all frameworks, if some of its cells are cut off."""
_LEGEND = (
    f"{AGREES} all cases agree with the definition, the subgradient of minimum norm.\n"
    "inclusive, balanced, exclusive: what jaxclamp returns with that ties=.\n"
    "1 for 0: returns 1 where 0 is right. +2: two further kinds of difference."
)
_MORE = (
    "One op: {program} clamp. All cases: --all. Other dtypes: --dtype float64, --dtype all.\n"
    "As data: --format json, csv, markdown. Commands and options: --help."
)


def screen(rows: Sequence[Row], width: int, program: str) -> Group:
    """Print all frameworks and all ops; ``program`` is how the command line is called.

    Below 80 columns, the frameworks that have no room in the table of ops go on in a further one.
    """
    ops = list(dict.fromkeys(row.op for row in rows))
    dtypes = ", ".join(dict.fromkeys(row.dtype for row in rows))
    title = f"Gradients at ties, {dtypes}: {len(rows)} cases of {len(ops)} op{'s' * (len(ops) != 1)}"
    more = Text(_MORE.format(program=program), style="dim")
    return Group(Text(title, style="bold"), "", _frameworks(rows), "", *_ops(rows, ops, width), Text(_LEGEND), more)


def _frameworks(rows: Sequence[Row]) -> RenderableType:
    """Say how many of the cases that each framework answers agree with the definition."""
    table = rich_table(show_header=False)
    for justify in ("left", "right", "right"):
        table.add_column(no_wrap=True, overflow="ellipsis", justify=justify)
    table.add_column()
    for tally in tallies(rows):
        style = "green" if tally.agreeing == tally.cases else "yellow"
        share = f"{tally.agreeing} of {tally.cases} agree"
        percent = f"{tally.agreeing / tally.cases:.0%}"
        bar = Bar(tally.cases, 0, tally.agreeing, width=_BAR, color=style)
        table.add_row(tally.name, share, percent, bar)
    return table


def _ops(rows: Sequence[Row], ops: Sequence[str], width: int) -> Iterator[RenderableType]:
    """Say what each framework answers where it differs; the packages of this project share a column.

    Yields the tables, and a blank line behind each.
    """
    frameworks = dict.fromkeys(answer.framework for row in rows for answer in row.answers)
    titles: dict[str, Sequence[str]] = {name: (name,) for name in frameworks if name not in PACKAGES}
    if packages := tuple(name for name in frameworks if name in PACKAGES):
        titles = {"ours": packages, **titles}
    rows_of = {op: [row for row in rows if row.op == op] for op in ops}
    columns: list[Column] = [(title, [_cell(rows_of[op], names) for op in ops]) for title, names in titles.items()]
    room = width - max(map(len, ("op", *ops)))
    for beside in side_by_side(columns, room) if width < _NARROW else [columns]:
        table = rich_table()
        table.add_column("op", no_wrap=True)
        for title, _ in beside:
            table.add_column(_shortened(title))
        for op, *cells in zip(ops, *(cells for _, cells in beside), strict=True):
            table.add_row(op, *cells)
        yield table
        yield ""


def _cell(rows: Sequence[Row], frameworks: Sequence[str]) -> Text:
    """Name the most frequent kind of deviation, and count the further ones."""
    answers = [(row, answer) for row in rows for answer in row.answers if answer.framework in frameworks]
    differing = Counter(_deviation(row, answer) for row, answer in answers if not answer.agrees)
    if not answers:
        return _shortened(NO_ANSWER, "dim")
    if not differing:
        return _shortened(AGREES, "green")
    ((commonest, _),) = differing.most_common(1)
    return _shortened(commonest + (f" +{len(differing) - 1}" if len(differing) > 1 else ""), "red")


def _shortened(text: str, style: str = "") -> Text:
    """Keep ``text`` on one line, cut off where the terminal is too narrow."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _deviation(row: Row, answer: Answer) -> str:
    """Name the convention that gives the answer, or else the first of its numbers that is wrong."""
    if answer.conventions:
        return answer.conventions[0]
    # The first that differs as it is printed; numbers that print alike are almost right.
    pairs = ((rounded([a]), rounded([b])) for a, b in zip(answer.gradient, row.definition, strict=True))
    return next((f"{a} for {b}" for a, b in pairs if a != b), "almost")
