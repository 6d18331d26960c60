"""How reports are written: tables as Markdown, data as JSON, in which infinities and NaN are strings."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""The rows under their headings, a line each.

    >>> print(markdown_table(["x", "|x|"], [["-2", "2"]]))
    | x | \|x\| |
    | --- | --- |
    | -2 | 2 |
    """
    lines = [[cell.replace("|", r"\|") for cell in line] for line in (headings, ["---"] * len(headings), *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def to_json(content: Any, indent: int | None = None) -> str:
    """``content`` as JSON; infinities and NaN are strings.

    >>> to_json({"norm": math.inf, "share": 0.5})
    '{"norm": "inf", "share": 0.5}'
    """
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [*map(_finite, content)]
    return str(content) if isinstance(content, float) and not math.isfinite(content) else content
