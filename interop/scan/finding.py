"""What a scan reports of a place in the source."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

Likelihood: TypeAlias = Literal["likely", "possible", "rare"]
"""How likely a tie is at a place: values are there by construction; they may well be; only by chance."""
LIKELIHOODS: tuple[Likelihood, ...] = get_args(Likelihood)
Question: TypeAlias = Literal["version", "spelling", "where", "branch", "bound", "straight-through"]
"""What was asked of the place, by the file that asks it."""


class Finding(NamedTuple):
    """A place at which a gradient depends on a version, a spelling or a branch."""

    file: str
    line: int
    question: Question
    code: str
    """The call, on one line."""
    what: str
    """What differs."""
    tie: Likelihood
    cure: str
