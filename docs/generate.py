"""Write the generated tables of the documentation: that of all ops, and those of recorded versions."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from interop.survey.classify import explanations
from interop.survey.matrix import Row, matrix
from interop.survey.records import Cell, FlatGradient, Record, recorded
from interop.survey.show.render import at, by_spelling
from interop.survey.versions import NO_ANSWER, rounded, side_by_side
from jaxclamp import OPS, Op
from jaxclamp._shared.tables import markdown_table

FOLDER = Path(__file__).parent
BLOCK = re.compile(r"(<!-- (\w+): .*? -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def pages() -> dict[Path, str]:
    """What each page with a generated part has to say."""
    tables = {
        "ops": overview(),
        "torch": of_versions(by_answers("torch")),
        "jax": of_versions(by_answers("jax")),
        "paddle": of_versions(by_answers("paddle")),
        "keras": of_versions(by_answers("keras")),
        "others": of_versions(newest(["autograd", "mlx", "tensorflow", "tinygrad"])),
        "records": origins(),
    }
    files = [FOLDER / "ops.md", FOLDER / "frameworks.md"]
    return {
        file: BLOCK.sub(lambda match: match[1] + tables[match[2]] + match[4], file.read_text("utf-8")) for file in files
    }


def by_answers(framework: str) -> Mapping[str, Record]:
    """The records of a framework, of those versions in a row that answer alike the one with the most answers."""
    alike: list[list[Record]] = []
    for record in recorded()[framework]:
        if alike and all(_agree(record, other) for other in alike[-1]):
            alike[-1].append(record)
        else:
            alike.append([record])
    return {
        ", ".join(record.version for record in records): max(reversed(records), key=lambda r: len(r.answers))
        for records in alike
    }


def _agree(record: Record, other: Record) -> bool:
    """Whether two versions answer alike at the ties that both were asked for; NaN is equal to NaN."""
    both = record.answers.keys() & other.answers.keys()
    return all(repr(record.answers[cell]) == repr(other.answers[cell]) for cell in both)


def newest(frameworks: list[str]) -> Mapping[str, Record]:
    """The newest record of each framework; their spellings of an op count as one."""
    records = [recorded()[framework][-1] for framework in frameworks]
    return {
        r.name: replace(r, answers={cell._replace(spelling=""): modes for cell, modes in r.answers.items()})
        for r in records
    }


def origins() -> str:
    """A line for each record: where and when it was asked."""
    lines = [
        [r.framework, r.version, r.platform, r.date, "yes" if any("forward" in m for m in r.answers.values()) else "no"]
        for records in recorded().values()
        for r in records
    ]
    return markdown_table(["framework", "version", "platform", "date", "forward mode"], lines) + "\n"


def overview() -> str:
    """Write a table of all ops: their ties, and what torch and JAX answer there in float32."""
    rows = list(matrix(dtypes=("float32",), frameworks=("torch", "jax")))
    versions = {answer.framework: answer.version for row in rows for answer in row.answers}
    columns = (versions["torch"], versions["jax"])
    headings = ["op", "what it computes", "ties, x alone differentiated", "gradient", *columns]
    lines = []
    for op in OPS.values():
        # At -0.0 the gradients are those at 0.0 by definition, and a table for readers is long enough.
        of_x = [row for row in rows if row.op == op.name and row.active == ("x",)]
        alone = [row for row in of_x if str(row.arguments["x"]) != "-0.0"]
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


if __name__ == "__main__":
    for file, text in pages().items():
        file.write_text(text, "utf-8")
