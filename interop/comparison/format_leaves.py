"""Leaves of a comparison in words and in tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, get_args

from interop.comparison.leaves import Allowed, Finding, Leaf
from jaxclamp._shared.tables import markdown_table

if TYPE_CHECKING:
    from rich.table import Table

_STYLES: dict[Finding, str] = {
    "agrees": "green",
    "ties": "yellow",
    "port": "red",
    "hidden tie": "yellow",
    "rounding": "yellow",
    "unsteady": "red",
}
_HEADINGS = ("leaf", "absolute", "relative", "ulps", "apart", "under min_norm", "finding")


def table_of(leaves: Sequence[Leaf], title: str, verdict: str) -> Table:
    """For a terminal."""
    from rich.table import Table  # only who prints the table needs rich
    from rich.text import Text

    table = Table(title=title, caption=Text(verdict), caption_justify="left")
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold")
    for leaf in leaves:
        table.add_row(*map(Text, _cells(leaf)), style=_STYLES[leaf.finding])
    return table


def markdown_of(leaves: Sequence[Leaf]) -> str:
    """A table."""
    return markdown_table(_HEADINGS, map(_cells, leaves))


def _cells(leaf: Leaf) -> list[str]:
    finding = leaf.finding + (f": {leaf.mismatch}" if leaf.mismatch else "")
    if leaf.native is None or leaf.min_norm is None:
        return [leaf.label, *[""] * 5, finding]
    native = leaf.native
    apart = f"{native.beyond} of {native.size}"
    return [
        leaf.label,
        *map(str, (native.absolute, native.relative, native.ulps, apart, leaf.min_norm.absolute)),
        finding,
    ]


def in_words(leaf: Leaf) -> str:
    label, absolute, relative, ulps, apart, under_min_norm, finding = _cells(leaf)
    if not apart:
        return f"  {label}: {finding}"
    if leaf.native and leaf.native.absolute.amount:
        absolute += f" ({' against '.join(f'{number:.7g}' for number in leaf.native.numbers)})"
    differences = (
        f"{apart} apart, absolute {absolute}, relative {relative}, ulps {ulps}; under min_norm {under_min_norm}"
    )
    return f"  {label}: {finding}: {differences}"


def cures_of(disagreeing: Collection[Leaf]) -> list[str]:
    """What to do about the findings."""
    findings = {leaf.finding for leaf in disagreeing}
    cures = []
    if "ties" in findings:
        cures.append("jaxclamp.ties and interop.ties name the lines with ties; the min_norm of both removes them.")
    if findings <= {"ties", "rounding"}:
        allow = ", ".join(repr(finding) for finding in get_args(Allowed))
        cures.append(f"To let that pass: assert_agree(allow=({allow})), on the command line --allow.")
    return cures
