"""The comparison of frameworks at ties: the matrix of answers, the oracle, adapters, whole computations, reports."""

from typing import TYPE_CHECKING, Any

__all__ = ["Answer", "Row", "matrix"]

if TYPE_CHECKING:
    from interop.survey.matrix import Answer, Row, matrix


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from interop.survey import matrix as rows  # it needs SciPy, which the ops do not

    return getattr(rows, name)
