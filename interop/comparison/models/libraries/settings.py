"""How the settings of a module are shown, to be read beside those of its counterpart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HIDDEN = {"name", "parent", "dtype", "param_dtype", "training"}


def settings_of(kind: str, fields: Mapping[str, Any]) -> str:
    """The class and those of its fields that are numbers or words, or tuples of them, as in a call."""
    shown = [
        f"{name}={value!r}"
        for name, value in fields.items()
        if not name.startswith("_") and name not in _HIDDEN
        if _is_plain(value)
    ]
    return f"{kind}({', '.join(shown)})"


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)
