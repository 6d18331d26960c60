"""Writes the leaves of a comparison, in words and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from interop.comparison.leaves import Finding, Leaf
from jaxclamp._shared.tables import markdown_table, rich_table

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
    """Make a table of rich, for a terminal."""
    from rich.text import Text

    table = rich_table(*_HEADINGS, title=f"{title}\n{verdict}")
    for leaf in leaves:
        table.add_row(*map(Text, _cells(leaf)), style=_STYLES[leaf.finding])
    return table


def markdown_of(leaves: Sequence[Leaf]) -> str:
    """Write a table of Markdown."""
    return markdown_table(_HEADINGS, map(_cells, leaves))


def _cells(leaf: Leaf) -> list[str]:
    if leaf.unmodified is None or leaf.min_norm is None:
        return [leaf.label, *[""] * 5, _finding(leaf)]
    difference = leaf.unmodified
    apart = f"{difference.beyond} of {difference.size}"
    numbers = (difference.absolute, difference.relative, difference.ulps, apart, leaf.min_norm.absolute)
    return [leaf.label, *map(str, numbers), _finding(leaf)]


def in_words(leaf: Leaf) -> str:
    """Write a leaf on one line, as in ``gradient[0]: ties: 1 of 3 apart, absolute 0.844 at [0] (0 against 0.844)``."""
    difference = leaf.unmodified
    if difference is None or leaf.min_norm is None:
        return f"  {leaf.label}: {_finding(leaf)}"
    numbers = f" ({' against '.join(f'{n:.7g}' for n in difference.numbers)})" if difference.absolute.amount else ""
    return (
        f"  {leaf.label}: {_finding(leaf)}: {difference.beyond} of {difference.size} apart, absolute "
        f"{difference.absolute}{numbers}, relative {difference.relative}, ulps {difference.ulps}; under min_norm "
        f"{leaf.min_norm.absolute}"
    )


def _finding(leaf: Leaf) -> str:
    return f"{leaf.finding}: {leaf.mismatch}" if leaf.mismatch else leaf.finding
