"""Writes rows of the parity matrix as Markdown, JSON or CSV, and has what all its forms share."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

from interop.survey.matrix import FRAMEWORKS, Answer, Row
from interop.survey.versions import NO_ANSWER, rounded
from jaxclamp._shared import tables
from jaxclamp._shared.tables import markdown_table

AGREES, DISAGREES = "✓", "✗"
CAPTION = f"{AGREES} agrees with the definition, {DISAGREES} does not; behind =, the convention that gives it here"
BETWEEN = 2
"""Spaces between columns."""

Column: TypeAlias = tuple[str, Sequence[Text]]
"""A heading, and the cells below it."""


@dataclass(frozen=True)
class Tally:
    """How many of the cases that a framework answers agree with the definition: as many in each of the dtypes."""

    framework: str
    version: str
    dtypes: tuple[str, ...]
    agreeing: int
    cases: int

    @property
    def name(self) -> str:
        """The framework with its version; a package of this project with the version of what it runs on."""
        is_of_version = self.version.startswith(self.framework)
        return self.version if is_of_version else f"{heading(self.framework)} on {self.version}"

    def __str__(self) -> str:
        share = f"{self.agreeing} of {self.cases} cases agree ({self.agreeing / self.cases:.0%})"
        return f"{self.name}, {', '.join(self.dtypes)}: {share}"


def tallies(rows: Iterable[Row]) -> list[Tally]:
    """Count for each framework how many answers agree; each spelling that it has for an op counts as a case."""
    answers: dict[tuple[str, str, str], list[bool]] = {}
    for row in rows:
        for answer in row.answers:
            answers.setdefault((answer.framework, answer.version, row.dtype), []).append(answer.agrees)
    dtypes: dict[tuple[str, str, int, int], list[str]] = {}
    for (framework, version, dtype), agrees in answers.items():
        dtypes.setdefault((framework, version, sum(agrees), len(agrees)), []).append(dtype)
    return [Tally(f, v, tuple(names), agreeing, cases) for (f, v, agreeing, cases), names in dtypes.items()]


def drawn(content: RenderableType, width: int) -> str:
    """Print ``content`` as rich does on a terminal."""
    # Colours are in the text always: `click.echo` takes them out where it writes to no terminal.
    file = io.StringIO()
    Console(file=file, force_terminal=True, width=width, legacy_windows=False).print(content)
    return file.getvalue()


def width_of(column: Column) -> int:
    """Return how wide a column is, with the spaces that part it from the next."""
    heading, cells = column
    return BETWEEN + max([cell_len(heading), *(cell.cell_len for cell in cells)])


def side_by_side(columns: Iterable[Column], room: int) -> Iterator[list[Column]]:
    """Yield the columns of one table after the other, as many as there is room for, and at least one."""
    chosen: list[Column] = []
    used = 0
    for column in columns:
        if chosen and used + width_of(column) > room:
            yield chosen
            chosen, used = [], 0
        chosen.append(column)
        used += width_of(column)
    yield chosen


def to_markdown(rows: Sequence[Row], summary: Sequence[Tally]) -> str:
    headings, lines = cells_of(rows, summary)
    table = markdown_table(headings, ([*cells, *answers.values()] for cells, answers in lines))
    return "\n".join([table, "", *(f"- {tally}" for tally in summary)]) + "\n"


def to_json(rows: Sequence[Row], summary: Sequence[Tally]) -> str:
    """Write the fields of the dataclasses."""
    content = {"summary": [asdict(tally) for tally in summary], "rows": [asdict(row) for row in rows]}
    return tables.to_json(content, indent=1) + "\n"


def to_csv(rows: Sequence[Row], summary: Sequence[Tally]) -> str:
    """Write one line per answer, with the numbers in full; the summary is left to whoever reads it."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    headings = "op at active inactive dtype definition framework version spelling gradient agrees conventions"
    writer.writerow(headings.split())
    for row in rows:
        for a in row.answers:
            writer.writerow(
                [row.op, at(row), " ".join(row.active), row.inactive, row.dtype, _numbers(row.definition)]
                + [a.framework, a.version, a.spelling, _numbers(a.gradient), a.agrees, " ".join(a.conventions)]
            )
    return file.getvalue()


FORMATS: Mapping[str, Callable[[Sequence[Row], Sequence[Tally]], str]] = {
    "markdown": to_markdown,
    "json": to_json,
    "csv": to_csv,
}


def cells_of(rows: Sequence[Row], summary: Iterable[Tally]) -> tuple[list[str], list[tuple[list[str], dict[str, str]]]]:
    """Write the cells of a table: the headings, and for each line those of the case and, by heading, of the answers.

    Dtypes with equal cells share a line: ``["relu", "x=0", "x", "all", "0"]`` with ``{"jax": "✓ 0"}``, say.
    """
    present = {tally.framework for tally in summary}
    frameworks = [framework for framework in FRAMEWORKS if framework in present]
    dtypes: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for row in rows:
        case = (row.op, at(row), active_in(row), rounded(row.definition))
        answers = tuple(_answers([a for a in row.answers if a.framework == name]) for name in frameworks)
        dtypes.setdefault((case, answers), []).append(row.dtype)
    # A sort that keeps equal ones in order: the cases of an op stay as they came, dtypes among them.
    all_dtypes = len({row.dtype for row in rows})
    order = list(dict.fromkeys(row.op for row in rows))
    headings = [*map(heading, frameworks)]
    merged = sorted(dtypes.items(), key=lambda item: order.index(item[0][0][0]))
    lines = [
        (
            [*case[:3], "all" if len(names) == all_dtypes > 1 else ", ".join(names), case[3]],
            dict(zip(headings, answers, strict=True)),
        )
        for (case, answers), names in merged
    ]
    return ["op", "at", "active", "dtype", "definition", *headings], lines


def _answers(answers: Sequence[Answer]) -> str:
    def text(answer: Answer) -> str:
        convention = f" = {answer.conventions[0]}" if answer.conventions else ""
        return f"{AGREES if answer.agrees else DISAGREES} {rounded(answer.gradient)}{convention}"

    return by_spelling(answers, text, lambda text, names: f"{text} {'/'.join(names)}") or NO_ANSWER


def by_spelling(
    answers: Iterable[Answer], text: Callable[[Answer], str], named: Callable[[str, Sequence[str]], str]
) -> str:
    """Write the ``text`` of the answers; where they differ, each ``named`` by the last names of its spellings."""
    spellings: dict[str, list[str]] = {}
    for answer in answers:
        spellings.setdefault(text(answer), []).append(answer.spelling.rpartition(".")[2])
    return "".join(spellings) if len(spellings) < 2 else ", ".join(named(*item) for item in spellings.items())


def heading(framework: str) -> str:
    """Name a framework where it is read: ``native`` is the package `interop.native`."""
    return "interop.native" if framework == "native" else framework


def at(row: Row) -> str:
    return as_in_a_call(row.arguments)


def active_in(row: Row) -> str:
    """Name the active arguments, and say if the others are numbers: ``x (numbers)``."""
    return ", ".join(row.active) + (" (numbers)" if row.inactive == "numbers" else "")


def as_in_a_call(arguments: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in arguments.items()
    )


def _numbers(values: Iterable[float]) -> str:
    return " ".join(map(repr, values))
