"""The former place of frameworks, comparison and survey, kept until 0.3 for code that imports from here."""

from typing import TYPE_CHECKING, Any

__all__ = ["Answer", "Row", "matrix"]

if TYPE_CHECKING:
    from interop.survey.matrix import Answer, Row, matrix


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from interop.survey import matrix as home  # it imports all frameworks, which the ops do not

    return getattr(home, name)
