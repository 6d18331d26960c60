"""Prints the cases of ops on a terminal: below each tie a line for each choice of what is differentiated.

In this example, the first column says what is differentiated:

                    definition  ours  jax  torch.maximum  torch.fmax
    x=0, y=0
      x, y          0.5 0.5     ✓     ✓    ✓              1 0
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from interop.survey.matrix import FRAMEWORKS, PACKAGES, Answer, Row
from interop.survey.show.render import AGREES, BETWEEN, Column, Tally, active_in, at, heading, side_by_side, width_of
from interop.survey.versions import NO_ANSWER, rounded

_LEGEND = (
    f"{AGREES} agrees with the definition · a number differs from it · {NO_ANSWER} has no such form",
    "x, min: both are differentiated · x: it alone, and the others are arrays · x (numbers): the others are numbers",
)


def listing(rows: Sequence[Row], summary: Sequence[Tally], width: int, folded: bool = False) -> Group:
    """Print how many cases agree, and the cases; if ``folded``, of ties at which all agree the number alone.

    What is wider than ``width`` goes on in a further table.
    """
    tallies = [Text(str(tally), style="green" if tally.agreeing == tally.cases else "yellow") for tally in summary]
    parts: list[RenderableType] = [*tallies, ""]
    for op in dict.fromkeys(row.op for row in rows):
        for dtypes, alike in _merged_dtypes([row for row in rows if row.op == op]):
            spellings = _spellings(alike)
            parts.append(Text(f"{op}, {', '.join(dtypes)}", style="bold underline"))
            differing = {at(row) for row in alike if not row.agrees} if folded else set(map(at, alike))
            unfolded = [row for row in alike if at(row) in differing]
            parts += _tables(unfolded, spellings, width) if unfolded else []
            if agreed := len(set(map(at, alike)) - differing):
                parts.append(
                    Text(f"{agreed} {'more ' * bool(unfolded)}tie{'s' * (agreed > 1)} at which all agree: --all", "dim")
                )
            parts += [*_differences(alike, spellings), ""]
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


def _spellings(rows: Sequence[Row]) -> list[tuple[str, frozenset[str]]]:
    """List the headings of columns, each with the spellings that share it: the packages of this project if they agree.

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


def _tables(rows: Sequence[Row], spellings: Sequence[tuple[str, frozenset[str]]], width: int) -> Iterator[Text]:
    """Yield the lines of tables, with as many columns as there is room for beside the cases."""
    case: list[Column] = [
        ("", [Text(f"  {active_in(row)}") for row in rows]),
        ("definition", [Text(rounded(row.definition)) for row in rows]),
    ]
    answers = [(title, [_cell(row, names) for row in rows]) for title, names in spellings]
    # Behind the last column there are spaces too, which may be cut off.
    room = width + BETWEEN - sum(map(width_of, case))
    for beside in side_by_side(answers, room):
        columns = [*case, *beside]
        widths = [width_of(column) for column in columns]
        yield _line([Text(title) for title, _ in columns], widths)
        tie = None
        for row, *cells in zip(rows, *(cells for _, cells in columns), strict=True):
            if at(row) != tie:
                tie = at(row)
                yield Text(tie, "bold")  # on a line of its own, as it may be longer than any column
            yield _line(cells, widths)


def _line(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    padded = [cell.copy() for cell in cells]  # the cells of the case are on lines of further tables too
    for cell, width in zip(padded, widths, strict=True):
        cell.pad_right(width - cell.cell_len)
    return Text("", no_wrap=True).join(padded)


def _answers(rows: Sequence[Row], spellings: frozenset[str]) -> list[Answer]:
    return [answer for row in rows for answer in row.answers if answer.spelling in spellings]


def _cell(row: Row, spellings: frozenset[str]) -> Text:
    answers = _answers([row], spellings)
    if not answers:
        return Text(NO_ANSWER, "dim")
    if all(answer.agrees for answer in answers):
        return Text(AGREES, "green")
    return Text(rounded(answers[0].gradient), "red")


def _differences(rows: Sequence[Row], spellings: Sequence[tuple[str, frozenset[str]]]) -> Iterator[Text]:
    """Say for each column how many of the cases agree, and which conventions give the answers that do not."""
    for title, names in spellings:
        answers = _answers(rows, names)
        differing = [answer for answer in answers if not answer.agrees]
        if differing:
            conventions = Counter(answer.conventions[0] for answer in differing if answer.conventions)
            explained = ", ".join(f"{count} as ties={ties}" for ties, count in conventions.most_common())
            agreeing = f"{title}: {len(answers) - len(differing)} of {len(answers)} agree"
            yield Text(f"{agreeing}; {explained}" if explained else agreeing, "dim")
