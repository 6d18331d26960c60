"""Write the generated tables of the documentation: that of all ops, and those of recorded versions."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from interop.survey.overview import of_versions, overview
from interop.survey.records import Record, recorded
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


if __name__ == "__main__":
    for file, text in pages().items():
        file.write_text(text, "utf-8")
