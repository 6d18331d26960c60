"""Print the settings of a module, to be compared with those of its counterpart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HIDDEN = {"name", "parent", "dtype", "param_dtype", "training"}


def settings_of(kind: str, fields: Mapping[str, Any]) -> str:
    """Return a call of the class with those of its fields that are numbers or words, or tuples of them."""
    arguments = [
        f"{name}={value!r}"
        for name, value in fields.items()
        if not name.startswith("_") and name not in _HIDDEN
        if _is_plain(value)
    ]
    return f"{kind}({', '.join(arguments)})"


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)
