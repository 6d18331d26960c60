"""Writes reports: tables as text and as Markdown, data as JSON, in which infinities and NaN are strings."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any


def text_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write the rows under their headings as text, a line each, in columns as wide as their widest cell.

    >>> print(text_table(["x", "its square"], [["-2", "4"]]))
    x   its square
    -2  4
    """
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


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
    """Write ``content`` as JSON; infinities and NaN are strings.

    >>> to_json({"norm": math.inf, "share": 0.5})
    '{"norm": "inf", "share": 0.5}'
    """
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(content: Any) -> Any:
    """Return ``content`` with its infinities and NaN, at any depth, as strings."""
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [*map(_finite, content)]
    return str(content) if isinstance(content, float) and not math.isfinite(content) else content
