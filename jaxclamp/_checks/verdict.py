"""The verdicts of a check of gradients, and the report that holds them; no framework takes part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from jaxclamp._checks.clarke import Array, Indices, Neighbourhood, Term

Kind: TypeAlias = Literal[
    "right",
    "least norm",
    "member",
    "jump",
    "not checkable",
    "wrong",
    "not a member",
    "off the branch",
    "modes differ",
]
Names: TypeAlias = tuple[Sequence[str], Sequence[str]]
"""Of the outputs and of the inputs."""
_KINDS = get_args(Kind)
_FAILING = _KINDS[5:]
_MEANING = {
    "right": "differentiable and right",
    "least norm": "at a kink, the point of least norm in Clarke's set",
    "member": "at a kink, a member of Clarke's set",
    "jump": "at a jump, where there is no Clarke's set",
    "not checkable": "not checkable, since values or slopes nearby are not finite",
    "wrong": "differentiable and wrong",
    "not a member": "at a kink, not a member of Clarke's set",
    "off the branch": "at a jump, not a gradient of the branch that the value takes",
    "modes differ": "forward mode differs from reverse mode",
}
_BESIDE = {"wrong": "the derivative is", "modes differ": "reverse mode says"}
_MOST = 12  # lines that are shown


class Verdict(NamedTuple):
    """What holds for the gradient of one entry of the output with respect to some entries of the input."""

    kind: Kind
    output: str
    entries: tuple[str, ...]
    gradient: Array
    """The gradient that was checked, with respect to these entries."""
    nearest: Array
    """The derivative; at a kink the point of Clarke's set nearest to ``gradient``; what reverse mode says."""
    line: str
    """The line of code with the kink, if it is known, and the op there."""

    @property
    def failed(self) -> bool:
        return self.kind in _FAILING

    @property
    def distance(self) -> float:
        """How far ``gradient`` is from ``nearest``."""
        return float(np.linalg.norm(self.gradient - self.nearest))

    def __str__(self) -> str:
        said = f"{self.output} by {_listed(self.entries, 4)}: {_MEANING[self.kind]}; "
        said += f"the gradient is {_numbers(self.gradient)}"
        if self.failed:
            beside = _BESIDE.get(self.kind, "the nearest one is")
            said += f", {beside} {_numbers(self.nearest)}, which is {self.distance:.3g} away"
        return f"{said} ({self.line})" if self.line else said


@dataclass(frozen=True)
class GradientReport:
    """What a check of gradients found; true if the check passed, and printed as a short table.

    ``derivatives`` is how many pairs there are of an entry of the output and one of the input. Those that are in none
    of ``verdicts`` are differentiable and right.
    """

    derivatives: int
    verdicts: tuple[Verdict, ...]

    @property
    def failures(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.failed)

    def __bool__(self) -> bool:
        return not self.failures and self._counts()["not checkable"] < self.derivatives

    def failure(self, caller: str) -> str:
        """What an error says: a line for each verdict that makes the check fail."""
        told = self.failures or self.verdicts
        return "\n  ".join([f"{caller}: {self._summary()}", *_first(list(map(str, told)))])

    def _counts(self) -> Counter[str]:
        counts = Counter[str]()
        for verdict in self.verdicts:
            counts[verdict.kind] += len(verdict.entries)
        counts["right"] = self.derivatives - sum(n for kind, n in counts.items() if kind != "modes differ")
        return counts

    def _summary(self) -> str:
        counts = self._counts()
        noun = "derivative" if self.derivatives == 1 else "derivatives"
        return f"{self.derivatives} {noun}: " + ", ".join(f"{counts[k]} {k}" for k in _KINDS if counts[k])

    def __str__(self) -> str:
        ordered = sorted(self.verdicts, key=lambda verdict: not verdict.failed)
        rows = [
            (
                v.kind,
                v.output,
                _listed(v.entries, 2),
                _numbers(v.gradient),
                _numbers(v.nearest),
                _numbers(np.array([v.distance])),
                v.line,
            )
            for v in ordered
        ]
        if not rows:
            return self._summary()
        shown = [("verdict", "output", "input", "gradient", "nearest", "away", "line"), *rows[:_MOST]]
        widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
        table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]
        return "\n".join([self._summary(), *table, *_first(rows)[_MOST:]])


def _first(lines: Sequence[object]) -> list[str]:
    rest = len(lines) - _MOST
    return [*map(str, lines[:_MOST]), *([f"... and {rest} more"] if rest > 0 else [])]


def _listed(entries: Sequence[str], most: int) -> str:
    return (
        ", ".join(entries)
        if len(entries) <= most
        else f"{', '.join(entries[: most - 1])} and {len(entries) - most + 1} more"
    )


def _numbers(values: Array) -> str:
    told = [f"{0.0 + value:.4g}" for value in np.round(values[:4], 8)]
    return told[0] if len(values) == 1 else f"[{' '.join(told)}{' ...' if len(values) > 4 else ''}]"


def judged(
    nearby: Neighbourhood,
    jacobian: Array,
    names: Names,
    atol: float,
    rtol: float,
    line: Callable[[Indices], str],
) -> Iterator[Verdict]:
    """The verdicts on ``jacobian``, of shape (m, n), but for what is right.

    ``line`` tells the line of the code that has the kink of these entries of the input, if it is known.
    """
    least = np.clip(0.0, *nearby.bounds)
    nearest = np.where(np.isnan(jacobian), least, np.clip(jacobian, *nearby.bounds))
    tolerance = atol + rtol * np.abs(nearest) + nearby.accuracy[:, None]
    is_in = np.abs(jacobian - nearest) <= tolerance
    is_least = np.abs(jacobian - least) <= tolerance
    skipped = ~nearby.finite
    kinds = np.select(
        [skipped, ~nearby.kinked & is_in, ~nearby.kinked, ~is_in, is_least],
        [_KINDS.index(kind) for kind in ("not checkable", "right", "wrong", "not a member", "least norm")],
        _KINDS.index("member"),
    )
    found: list[tuple[int, Indices, Kind]] = []
    for row in np.flatnonzero(~nearby.is_sum & np.isfinite(nearby.value)).tolist():
        terms = nearby.terms(row)
        if not terms:  # there is no smooth piece, or the function is smooth after all
            unknown = (nearby.kinked[row] | nearby.jumps[row]) & ~skipped[row]
            kinds[row, unknown] = _KINDS.index("jump" if nearby.row_jumps[row] else "not checkable")
        for term in terms:
            kind, nearest[row, term.entries] = _judged_term(nearby, row, term, jacobian[row, term.entries], atol, rtol)
            kinds[row, term.entries] = _KINDS.index(kind if len(term.entries) == 1 else "right")
            if len(term.entries) > 1 and kind != "right":
                found.append((row, term.entries, kind))
    for row in np.flatnonzero((kinds != 0).any(axis=1)).tolist():
        for code in np.unique(kinds[row][kinds[row] != 0]):
            found.append((row, np.flatnonzero(kinds[row] == code), _KINDS[code]))
    for row, entries, kind in sorted(found, key=lambda verdict: (verdict[0], verdict[1][0])):
        yield _verdict(kind, row, entries, jacobian, nearest, names, line)


def _judged_term(
    nearby: Neighbourhood, row: int, term: Term, gradient: Array, atol: float, rtol: float
) -> tuple[Kind, Array]:
    tolerance = atol + rtol * float(np.abs(gradient).max()) + nearby.accuracy_of_pieces(row)
    if not np.isfinite(gradient).all():
        return "not a member", nearby.nearest(row, term, np.zeros_like(gradient), tolerance, patience=1)[0]
    nearest, term = nearby.nearest(row, term, gradient, tolerance)
    is_in = np.linalg.norm(gradient - nearest) <= tolerance
    if nearby.row_jumps[row]:
        return "jump" if is_in else "off the branch", nearest
    if not is_in:
        return "not a member", nearest
    if np.ptp(term.gradients, axis=0).max() <= tolerance:
        return "right", nearest
    least, _ = nearby.nearest(row, term, np.zeros_like(gradient), tolerance, patience=1)
    return "least norm" if np.linalg.norm(gradient - least) <= tolerance else "member", nearest


def differing(
    nearby: Neighbourhood, forward: Array, reverse: Array, names: Names, atol: float, rtol: float
) -> Iterator[Verdict]:
    """A verdict for each output of which the two modes have different derivatives."""
    same = np.isclose(forward, reverse, rtol=rtol, atol=atol, equal_nan=True)
    differ = ~same & nearby.finite
    for row in np.flatnonzero(differ.any(axis=1)):
        yield _verdict("modes differ", int(row), np.flatnonzero(differ[row]), forward, reverse, names)


def _verdict(
    kind: Kind,
    row: int,
    entries: Indices,
    gradients: Array,
    nearest: Array,
    names: Names,
    line: Callable[[Indices], str] | None = None,
) -> Verdict:
    outputs, inputs = names
    place = line(entries) if line and kind != "not checkable" else ""
    named = tuple(inputs[entry] for entry in entries)
    return Verdict(kind, outputs[row], named, gradients[row, entries], nearest[row, entries], place)
