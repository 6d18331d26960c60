"""Align tables in plain text, of no more than a hundred columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WIDTH = 100


def aligned(headings: Sequence[str], rows: Iterable[Sequence[str]], folded: Sequence[int] = ()) -> str:
    """Align rows under their headings; where a line would be too long, the columns ``folded`` lose their beginnings.

    >>> print(aligned(["x", "of"], [["1", "f"], ["20", "g"]]))
    x   of
    1   f
    20  g
    """
    lines = [list(headings), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    surplus = sum(widths) + 2 * (len(widths) - 1) - WIDTH
    while surplus > 0 and folded:
        widest = max(folded, key=lambda i: widths[i])
        widths[widest] -= 1
        surplus -= 1
    return "\n".join(
        "  ".join(shortened(cell, width).ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def shortened(text: str, width: int) -> str:
    """Cut a text to its end, which tells names of layers apart."""
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]
