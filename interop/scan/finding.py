"""What a scan reports of a place in the source."""

import ast
from typing import Literal, NamedTuple, Self, TypeAlias, get_args

from interop.scan.source import Source, shown

Likelihood: TypeAlias = Literal["likely", "possible", "rare"]
"""How likely a tie is at a place: values are there by construction; they may well be; only by chance."""
LIKELIHOODS: tuple[Likelihood, ...] = get_args(Likelihood)
Question: TypeAlias = Literal["version", "spelling", "where", "branch", "bound", "straight-through"]
"""What was asked of the place, by the file that asks it."""


class Finding(NamedTuple):
    """A place at which a gradient depends on a version, a spelling or a branch."""

    file: str
    line: int
    last_line: int
    """Of the call, which may be on several lines."""
    question: Question
    code: str
    """The call, on one line."""
    what: str
    """What differs."""
    tie: Likelihood
    cure: str

    @classmethod
    def at(cls, source: Source, node: ast.expr, question: Question, what: str, tie: Likelihood, cure: str) -> Self:
        """Report an expression in a file."""
        return cls(source.path, node.lineno, node.end_lineno or node.lineno, question, shown(node), what, tie, cure)
