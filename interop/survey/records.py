"""Reads the records in `interop/answers`: what each version of a framework answers at every tie."""

import difflib
import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeAlias

FOLDER = Path(__file__).parent.parent / "answers"
Mode: TypeAlias = Literal["reverse", "forward"]
FlatGradient: TypeAlias = tuple[float, ...]
"""A gradient over the active arguments, in their order."""
MODES: tuple[Mode, ...] = ("reverse", "forward")


class Cell(NamedTuple):
    """One question: a spelling of an op at a tie, with some of its arguments differentiated.

    >>> cell = Cell.of("clamp(x=0, min=0, max=6), x min, arrays: torch.clamp")
    >>> cell.at, cell.active
    ('x=0, min=0, max=6', ('x', 'min'))
    """

    op: str
    at: str
    """The arguments, as in a call."""
    active: tuple[str, ...]
    inactive: str
    """How the other arguments are given: as "numbers", as "arrays", or "none" if all are differentiated."""
    spelling: str

    @classmethod
    def of(cls, text: str) -> Self:
        """Read what `str` writes."""
        match = re.fullmatch(r"(\w+)\((.*)\), ([\w ]+), (numbers|arrays|none): ([\w.]+)", text)
        if match is None:
            raise ValueError(f"{text!r} is not a cell of a record.")
        op, at, active, inactive, spelling = match.groups()
        return cls(op, at, tuple(active.split()), inactive, spelling)

    @property
    def case(self) -> str:
        """The op, the tie and the active arguments: what the gradient depends on by its definition."""
        return f"{self.op}({self.at}), {' '.join(self.active)}"

    def __str__(self) -> str:
        return f"{self.case}, {self.inactive}: {self.spelling}"


@dataclass(frozen=True)
class Record:
    """What one version of a framework answers."""

    framework: str
    version: str
    platform: str
    date: str
    """The day when it was recorded, as 2026-11-23."""
    asked: str
    """The dtype and the device, as "float32, CPU"."""
    answers: Mapping[Cell, Mapping[Mode, FlatGradient]]
    """Maps a cell to the gradients there, in each of the modes in which the framework has one."""

    @property
    def name(self) -> str:
        return f"{self.framework} {self.version}"

    @property
    def origin(self) -> dict[str, str]:
        """All but the answers."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "answers"}


class Choices(NamedTuple):
    """The gradients that an op may have at a tie, over the arguments that are differentiated."""

    conventions: Mapping[str, FlatGradient]
    """Maps values of ``ties=``, those that the op takes, to gradients; "min_norm" is always there."""
    corners: tuple[FlatGradient, ...]
    """The gradients nearby, whose convex hull is the Clarke subdifferential."""


class Source(NamedTuple):
    """Where a change was decided."""

    framework: str
    version: str
    """The first that has it."""
    ops: tuple[str, ...]
    thread: str
    """As owner/repository#number."""
    what: str

    def __str__(self) -> str:
        return f"{self.thread}, since {self.version}: {self.what} ({', '.join(self.ops)})"


def writable(gradient: FlatGradient) -> list[float | str]:
    """Turn infinities and NaN, for which JSON has no numbers, into strings."""
    return [element if math.isfinite(element) else str(element) for element in gradient]


def read(file: Path) -> Record:
    """Read the file of a record, as `tools.record_frameworks` writes it."""
    content = json.loads(file.read_text("utf-8"))
    content["answers"] = {Cell.of(text): _modes(modes) for text, modes in content["answers"].items()}
    return Record(**content)


def _modes(written: Mapping[str, Sequence[float | str]]) -> Mapping[Mode, FlatGradient]:
    gradients = {name: tuple(map(float, gradient)) for name, gradient in written.items()}
    if "both" in gradients:
        return dict.fromkeys(MODES, gradients["both"])
    return {mode: gradients[mode] for mode in MODES if mode in gradients}


@functools.cache
def choices() -> Mapping[str, Choices]:
    """Map each case to the gradients that the op may have there."""
    written = json.loads((FOLDER / "choices.json").read_text("utf-8"))
    return {
        name: Choices(
            {convention: tuple(map(float, g)) for convention, g in case.items() if convention != "corners"},
            tuple(tuple(map(float, corner)) for corner in case["corners"]),
        )
        for name, case in written.items()
    }


@functools.cache
def recorded() -> Mapping[str, Sequence[Record]]:
    """Read all records: each framework is mapped to those of its versions, the oldest first."""
    by_framework: dict[str, list[Record]] = {}
    for file in sorted(FOLDER.glob("*-*.json")):  # torch-2.13.0.json, and not choices.json or sources.json
        record = read(file)
        by_framework.setdefault(record.framework, []).append(record)
    return {name: sorted(records, key=lambda r: _order(r.version)) for name, records in by_framework.items()}


def _order(version: str) -> list[Any]:
    """Make a key to sort versions by: 2.9 is before 2.13, and words are ordered as words."""
    # Numbers and words cannot be compared: numbers come first, in a place of their own.
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"[. ]", version)]


def record_of(framework: str, version: str) -> Record:
    """Return the record of a version, or of the newest recorded one that begins with it.

    Raises:
      ValueError: there is none; the message lists those that there are.

    >>> record_of("torch", "2.13").version
    '2.13.0'
    """
    for name in (framework, version):
        if not isinstance(name, str):  # 2.10 would be 2.1
            raise TypeError(f"record_of: {name!r} is a {type(name).__name__}; pass a string, such as '2.13'.")
    if framework not in recorded():
        near = difflib.get_close_matches(framework, recorded())
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"no record of {framework!r}; recorded are {', '.join(recorded())}.{hint}")
    versions = recorded()[framework]
    number = version.removeprefix(f"{framework} ").partition("+")[0]  # torch.__version__ may be 2.13.0+cpu
    # 2.1 begins 2.1.0, and not 2.13.
    matching = [record for record in versions if re.match(rf"{re.escape(number)}(?!\w)", record.version)]
    if not matching:
        known = ", ".join(record.version for record in versions)
        raise ValueError(f"no record of {framework} {version!r}; recorded are {known}.")
    return matching[-1]


def between(first: Record, last: Record) -> list[Record]:
    """List the recorded versions of a framework from one to another, whichever is older, both included."""
    low, high = sorted((_order(first.version), _order(last.version)))
    return [record for record in recorded()[first.framework] if low <= _order(record.version) <= high]


def sources(first: Record, last: Record) -> list[Source]:
    """List the threads in which changes from one version of a framework to another were decided."""
    low, high = sorted((_order(first.version), _order(last.version)))
    every = [
        Source(**{**source, "ops": tuple(source["ops"])})
        for source in json.loads((FOLDER / "sources.json").read_text("utf-8"))
    ]
    # What the older version has already is no change between the two.
    return [s for s in every if s.framework == first.framework and low < _order(s.version) <= high]
