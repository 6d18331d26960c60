"""Writes reports: lists and tables as text, tables as Markdown, data as JSON with strings for infinities and NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def listed(names: Iterable[Any], most: int = 6) -> str:
    """Write names on one line; of more than ``most`` all but the first are counted.

    >>> listed("abc", 3), listed("abcd", 3)
    ('a, b, c', 'a, b and 2 more')
    """
    texts = [str(name) for name in names]
    if len(texts) <= most:
        return ", ".join(texts)
    return f"{', '.join(texts[: most - 1])} and {len(texts) - most + 1} more"


def text_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], width: int | None = None, folded: Sequence[int] = ()
) -> str:
    """Write the rows under their headings as text, a line each, in columns as wide as their widest cell.

    Where lines would be longer than ``width``, the cells of the columns ``folded`` lose their beginnings.

    >>> print(text_table(["x", "its square"], [["-2", "4"]]))
    x   its square
    -2  4
    """
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    surplus = 0 if width is None else sum(widths) + 2 * (len(widths) - 1) - width
    for _ in range(surplus if folded else 0):
        widths[max(folded, key=widths.__getitem__)] -= 1
    return "\n".join(
        "  ".join(shortened(cell, wide).ljust(wide) for cell, wide in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def shortened(text: str, width: int) -> str:
    """Cut a text to its end, which tells names of layers apart.

    >>> shortened("encoder.layers.0.dense", 10)
    '…s.0.dense'
    """
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def rich_table(*headings: str, **settings: Any) -> Table:
    """Make a table for a terminal, in the one style of all: columns two spaces apart, without lines."""
    from rich.table import Table  # who prints no table needs no rich

    table = Table(box=None, pad_edge=False, title_justify="left", title_style="", **settings)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""Write the rows under their headings as Markdown, a line each.

    >>> print(markdown_table(["x", "|x|"], [["-2", "2"]]))
    | x | \|x\| |
    | --- | --- |
    | -2 | 2 |
    """
    lines = [[cell.replace("|", r"\|") for cell in line] for line in (headings, ["---"] * len(headings), *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def to_json(content: Any, indent: int | None = None) -> str:
    """Write ``content`` as JSON: a `NamedTuple` by its names, infinities and NaN as strings.

    >>> to_json({"norm": math.inf, "share": 0.5})
    '{"norm": "inf", "share": 0.5}'
    """
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(content: Any) -> Any:
    """Return ``content`` with what JSON has not, at any depth, as what it has."""
    if hasattr(content, "_asdict"):
        content = content._asdict()
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [*map(_finite, content)]
    return str(content) if isinstance(content, float) and not math.isfinite(content) else content
