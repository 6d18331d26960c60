"""The verdicts of a check of gradients, and the report that holds them; no framework takes part.

First each derivative is judged by itself, against the slopes to both sides along its entry. Those of ``|x|`` at 0 are
-1 and 1: the gradient 0 is the point of least norm, 0.3 a member, and 1.2 not a member. If the row of the output is a
sum of functions of one entry each, that is all. Else the entries of each term of the row are judged together, by the
gradients of its pieces. Those of ``max(x, y)`` at (0, 0) are (1, 0) and (0, 1): (0.5, 0.5) is the point of least norm,
and (0, 0) is not a member, though each of its entries is between the slopes along that entry. What noise could explain
is not called wrong but not checkable, with the reason.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from jaxclamp._shared.neighbourhood import Neighbourhood
from jaxclamp._shared.pieces import Pieces, Term
from jaxclamp._shared.slopes import NOISE_OF_SLOPES, RESOLUTION, Array, Indices
from jaxclamp._shared.tables import listed, text_table


class Kind(enum.StrEnum):
    """The kinds of verdicts, in the order in which a report counts them. Each is the string that is printed."""

    meaning: str
    """What a line of an error says of it."""
    fails: bool
    """Whether it makes a check fail."""

    RIGHT = "right", "differentiable and right"
    LEAST_NORM = "least norm", "at a kink, the point of least norm in the Clarke subdifferential"
    MEMBER = "member", "at a kink, a member of the Clarke subdifferential"
    JUMP = "jump", "at a jump, where there is no Clarke subdifferential"
    NOT_CHECKABLE = "not checkable", "not checkable"
    WRONG = "wrong", "differentiable and wrong", True
    NOT_A_MEMBER = "not a member", "at a kink, not a member of the Clarke subdifferential", True
    OFF_THE_BRANCH = "off the branch", "at a jump, not a gradient of the branch that the value takes", True
    MODES_DIFFER = "modes differ", "forward mode differs from reverse mode", True

    def __new__(cls, value: str, meaning: str, fails: bool = False) -> Self:
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.meaning = meaning
        kind.fails = fails
        return kind

    __repr__ = str.__repr__  # in the repr of a `Verdict`, a tuple: 'right', and not <Kind.RIGHT: 'right'>


Names: TypeAlias = tuple[Sequence[str], Sequence[str]]
"""Of the outputs and of the inputs."""
_BESIDE = {Kind.WRONG: "the derivative is", Kind.MODES_DIFFER: "reverse mode says"}
_MOST = 12  # lines that are shown


class Verdict(NamedTuple):
    """What holds for the gradient of one entry of the output with respect to some entries of the input."""

    kind: Kind
    output: str
    entries: tuple[str, ...]
    gradient: Array
    """The gradient that was checked, with respect to these entries."""
    nearest: Array
    """The derivative; at a kink the point of the Clarke subdifferential nearest to ``gradient``; or what reverse mode
    says."""
    line: str
    """The line of code with the kink, if it is known, and the op there."""
    reason: str = ""
    """Why it is not checkable, and what to do."""

    @property
    def failed(self) -> bool:
        return self.kind.fails

    @property
    def distance(self) -> float:
        """How far ``gradient`` is from ``nearest``."""
        return float(np.linalg.norm(self.gradient - self.nearest))

    def texts(self) -> tuple[str, ...]:
        """Write the gradient, the nearest one and the distance."""
        numbers = np.concatenate([self.gradient, self.nearest])
        # What is left of 0 by rounding is written as 0, and so is -0. But beside nothing larger, a small number is one.
        least = 1e-8 * np.abs(numbers).max(initial=0.0, where=np.isfinite(numbers))
        parts = self.gradient, self.nearest, np.array([self.distance])
        return tuple(_numbers(np.where(np.abs(part) <= least, 0.0, part)) for part in parts)

    def __str__(self) -> str:
        gradient, nearest, _ = self.texts()
        said = f"{self.output} by {listed(self.entries, 4)}: {self.kind.meaning}"
        said += f", since {self.reason}; " if self.reason else "; "
        said += f"the gradient is {gradient}"
        if self.failed:
            beside = _BESIDE.get(self.kind, "the nearest one is")
            said += f", {beside} {nearest}, which is {self.distance:.3g} away"
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
        # A check of which nothing was checkable has not passed.
        return not self.failures and self._counts()[Kind.NOT_CHECKABLE] < self.derivatives

    def failure(self, caller: str) -> str:
        """Return what an error says: a line for each verdict that makes the check fail."""
        verdicts = self.failures or self.verdicts
        return "\n  ".join([f"{caller}: {self._summary()}", *map(str, verdicts[:_MOST]), *_rest_of(verdicts)])

    def _counts(self) -> Counter[Kind]:
        counts = Counter[Kind]()
        for verdict in self.verdicts:
            counts[verdict.kind] += len(verdict.entries)
        # Where modes differ, reverse mode has been judged too, and is among the other kinds or right.
        not_right = sum(n for kind, n in counts.items() if kind is not Kind.MODES_DIFFER)
        counts[Kind.RIGHT] = self.derivatives - not_right
        return counts

    def _summary(self) -> str:
        counts = self._counts()
        noun = "derivative" if self.derivatives == 1 else "derivatives"
        return f"{self.derivatives} {noun}: " + ", ".join(f"{counts[k]} {k}" for k in Kind if counts[k])

    def __str__(self) -> str:
        ordered = sorted(self.verdicts, key=lambda verdict: not verdict.failed)
        rows = [(v.kind, v.output, listed(v.entries, 2), *v.texts(), v.reason or v.line) for v in ordered]
        if not rows:
            return self._summary()
        headings = ("verdict", "output", "input", "gradient", "nearest", "away", "line")
        return "\n".join([self._summary(), text_table(headings, rows[:_MOST]), *_rest_of(rows)])


def _rest_of(lines: Sequence[object]) -> list[str]:
    """Write how many lines there are beyond those shown, if any."""
    hidden = len(lines) - _MOST
    return [f"... and {hidden} more"] if hidden > 0 else []


def _numbers(values: Array) -> str:
    texts = [f"{value:.4g}" for value in values[:4]]
    return texts[0] if len(values) == 1 else f"[{' '.join(texts)}{' ...' if len(values) > 4 else ''}]"


@dataclass(frozen=True)
class Tolerance:
    """How far a gradient may be from the nearest right one, for the units of the arguments."""

    atol: float
    rtol: float
    least: float
    """A derivative counts for nothing if its entry, moving by its scale, changes the output by less than this part of
    what the entry with the largest effect does."""


def judged(
    pieces: Pieces,
    jacobian: Array,
    rounding: Array,
    names: Names,
    tolerance: Tolerance,
    line: Callable[[Indices], str],
    variation: Callable[[], Array],
) -> Iterator[Verdict]:
    """Yield the verdicts on ``jacobian``, of shape (m, n), but for what is right.

    ``rounding`` is how far its numbers are off by rounding. ``line`` tells the line of the code that has the kink of
    these entries of the input, if it is known, and ``variation`` how far the numbers are from those at nearby points.
    """
    slopes, scale = pieces.slopes, pieces.steps.scale
    judge = _Judge(
        pieces, jacobian * scale, rounding * scale, tolerance.atol * scale, tolerance, lambda: variation() * scale
    )
    kinds, nearest = judge.entries()
    fails = (kinds == Kind.WRONG) | (kinds == Kind.NOT_A_MEMBER)
    if fails[pieces.sums.is_sum].any():  # along few lines a row may look like a sum, as a thin piece is missed
        pieces = pieces.along_more_lines()
        judge = dataclasses.replace(judge, pieces=pieces)
    verdicts: list[tuple[int, Indices, Kind]] = []
    for row in np.flatnonzero(~pieces.sums.is_sum).tolist():
        terms = pieces.terms(row, kinds[row] == Kind.WRONG)
        if not terms:  # there is no smooth piece, or the function is smooth after all
            unknown = (slopes.kinked[row] | slopes.jumps[row]) & slopes.finite[row]
            kinds[row, unknown] = Kind.JUMP if pieces.sums.jumps[row] else Kind.NOT_CHECKABLE
        for term, kind, near in judge.terms(row, terms):
            nearest[row, term.entries] = near
            # A verdict on several entries at once is one line. Those on single entries are put together below, all of
            # one kind in a row.
            kinds[row, term.entries] = kind if len(term.entries) == 1 else Kind.RIGHT
            if len(term.entries) > 1 and kind != Kind.RIGHT:
                verdicts.append((row, term.entries, kind))
    for row in np.flatnonzero((kinds != Kind.RIGHT).any(axis=1)).tolist():
        for kind in np.unique(kinds[row][kinds[row] != Kind.RIGHT]):
            verdicts.append((row, np.flatnonzero(kinds[row] == kind), kind))
    for row, entries, kind in sorted(verdicts, key=lambda verdict: (verdict[0], verdict[1][0])):
        is_open = kind == Kind.NOT_CHECKABLE
        place, reason = ("", judge.reason(row, entries)) if is_open else (line(entries), "")
        yield Verdict(
            kind, *_names(names, row, entries), jacobian[row, entries], (nearest / scale)[row, entries], place, reason
        )


def _names(names: Names, row: int, entries: Indices) -> tuple[str, tuple[str, ...]]:
    outputs, inputs = names
    return outputs[row], tuple(inputs[entry] for entry in entries)


@dataclass(frozen=True)
class _Judge:
    """Verdicts in units of the output for each scale of the entry, in which the numbers here are too."""

    pieces: Pieces
    gradient: Array
    rounding: Array
    atol: Array
    tolerance: Tolerance
    variation: Callable[[], Array]

    @property
    def small(self) -> Array:
        """How large an error of a derivative may be that hides nothing that has to be seen."""
        # Of a product of zeros, all slopes along entries are 0; it moves along lines alone.
        size = np.where(self.pieces.slopes.size > 0, self.pieces.slopes.size, self.pieces.sums.steepest)
        return self.tolerance.least * size[:, None] + self.atol

    def entries(self) -> tuple[NDArray[np.object_], Array]:
        """Return the kinds of the verdicts on each derivative by itself, and the nearest right ones."""
        slopes, gradient = self.pieces.slopes, self.gradient
        low, high = self.pieces.bounds
        least = np.clip(0.0, low, high)
        nearest = np.where(np.isnan(gradient), least, np.clip(gradient, low, high))
        error = np.where(slopes.kinked, slopes.error, slopes.central_error)
        tolerance = self.atol + self.tolerance.rtol * np.abs(nearest) + self.rounding
        is_in = np.abs(gradient - nearest) <= tolerance + error
        is_least = np.abs(gradient - least) <= tolerance + error
        may_be_in = self._may_be_in(tolerance)
        cases = (
            # A slope from far away can confirm a gradient, but not refute it: there the function may be another one.
            (~slopes.finite | (slopes.far & ~is_in), Kind.NOT_CHECKABLE),
            (slopes.kinked & ~is_in & ~may_be_in, Kind.NOT_A_MEMBER),
            (~is_in & ~may_be_in, Kind.WRONG),
            # From here on noise may explain what differs, or may hide it.
            (~is_in | ~self._tells(error), Kind.NOT_CHECKABLE),
            (~slopes.kinked, Kind.RIGHT),
            (is_least, Kind.LEAST_NORM),
        )
        # As objects: of bare strings NumPy makes its own, which are no kinds.
        conditions, kinds = zip(*((condition, np.array(kind, object)) for condition, kind in cases), strict=True)
        return np.select(conditions, kinds, np.array(Kind.MEMBER, object)), nearest

    def _may_be_in(self, tolerance: Array) -> NDArray[np.bool_]:
        """Return where noise may explain that a derivative is not among the slopes."""
        slopes = self.pieces.slopes
        # Where there are kinks, they may be of several entries together.
        error_of_sums = np.where(slopes.kinked.any(axis=1), self.pieces.sums.error, 0.0)[:, None]
        hidden = slopes.error + 2 * error_of_sums + tolerance
        # A kink may be so small that noise hides it. Then all from the least to the largest slope is right.
        lowest, highest = np.minimum(slopes.left, slopes.right), np.maximum(slopes.left, slopes.right)
        return (self.gradient >= lowest - hidden) & (self.gradient <= highest + hidden)

    def _tells(self, error: Array) -> NDArray[np.bool_]:
        """Return where slopes with this error confirm a derivative, and not only fail to refute it."""
        slopes, gradient = self.pieces.slopes, self.gradient
        # Of a sum with kinks it is known up to ``sums.error`` that it is one, so that each entry has its own set.
        coupled = np.where(slopes.kinked, self.pieces.sums.error[:, None], 0.0)
        error_of_all = error + coupled + self.rounding
        # An error of 1 % shows if what it is measured against is known to half of that.
        shows = error_of_all <= np.fmax(np.fmax(RESOLUTION / 2, self.tolerance.rtol) * np.abs(gradient), self.small)
        # By the gradient the output does not change beyond its noise, that of two values, known up to a factor of 2. By
        # the slopes it changes by a small part of itself and of what it does farther away.
        is_none = np.abs(gradient) <= 4 * self.pieces.noise[:, None] + self.rounding
        is_none &= error_of_all <= self.tolerance.least * np.fmax(np.abs(self.pieces.value), slopes.reach)[:, None]
        # So it is 0, or what rounding leaves of terms that cancel, which at nearby points is another number, or 0. A
        # gradient that stays what it is, as 1 of 1e8 + x in float32, says something that values do not tell.
        if (is_none & ~shows & (gradient != 0)).any():
            is_none &= np.abs(gradient) <= 2 * self.variation()
        return shows | is_none

    def terms(self, row: int, terms: list[Term]) -> list[tuple[Term, Kind, Array]]:
        """Return the verdicts on the gradient with respect to the entries of each term, and the nearest right ones."""
        result = [self._term(row, term) for term in terms]
        whole = self.pieces.as_one(row, terms, [term for term, _, _ in result])
        return [self._term(row, whole)] if whole else result

    def _term(self, row: int, term: Term) -> tuple[Term, Kind, Array]:
        """Return the term with all pieces that its verdict needed, the verdict, and the nearest right gradient."""
        pieces, gradient = self.pieces, self.gradient[row, term.entries]
        error = pieces.accuracy(row)
        rounding = self.rounding[row, term.entries]
        # Each entry has its own tolerance. Distances are measured in units of these, times the least of them.
        tolerances = self.atol[term.entries] + self.tolerance.rtol * np.abs(np.nan_to_num(gradient)) + rounding + error
        tolerance = float(tolerances.min())
        weights = tolerance / np.where(tolerances > 0, tolerances, 1.0) if tolerance else np.ones_like(tolerances)
        in_arguments = 1 / pieces.steps.scale[term.entries]

        def least() -> Array:
            """Return the point of least norm, as the arguments measure it."""
            # One search in vain ends it: a piece that it misses makes a member of a point of least norm at worst, and
            # no check fails by that.
            metric = in_arguments / in_arguments.max()
            return pieces.nearest(row, term, np.zeros_like(gradient), tolerance, patience=1, metric=metric)[0]

        def either(if_smooth: Kind, at_kink: Kind) -> Kind:
            """Return the first kind if all pieces are one, so that there is no kink."""
            return if_smooth if np.ptp(term.gradients, axis=0).max() <= tolerance else at_kink

        if not np.isfinite(gradient).all():
            return term, either(Kind.WRONG, Kind.NOT_A_MEMBER), least()
        # The term has all pieces that this search adds, and `least` below begins with these.
        nearest, term, is_missed = pieces.nearest(row, term, gradient, tolerance, metric=weights)
        away = float(np.linalg.norm((gradient - nearest) * weights))
        if pieces.sums.jumps[row]:
            return term, Kind.JUMP if away <= tolerance else Kind.OFF_THE_BRANCH, nearest
        # The search finds no piece that lies less than the error of all entries ahead of the others.
        if away > tolerance + 2 * len(term.entries) * error and not is_missed:
            return term, either(Kind.WRONG, Kind.NOT_A_MEMBER), nearest
        # Each entry is told by itself: a steep one beside it says nothing of the error that can be seen in it.
        noticeable = np.fmax(max(RESOLUTION / 2, self.tolerance.rtol) * np.abs(gradient), self.small[row, term.entries])
        if away > tolerance or (error + rounding > noticeable).any():
            return term, Kind.NOT_CHECKABLE, nearest
        is_least = np.linalg.norm((gradient - least()) * weights) <= tolerance
        return term, either(Kind.RIGHT, Kind.LEAST_NORM if is_least else Kind.MEMBER), nearest

    def reason(self, row: int, entries: Indices) -> str:
        """Say why these derivatives are not checkable, and what to do."""
        pieces, slopes = self.pieces, self.pieces.slopes
        if not np.isfinite(pieces.value[row]):
            return "the value is not finite"
        if not np.isfinite(pieces.point[entries]).all():
            return "the input is not finite"
        if not np.isfinite(slopes.error[row, entries]).all():
            return "values nearby are not finite"
        if not slopes.finite[row, entries].all():
            return "slopes grow without bound"
        which = entries[np.argmax(slopes.error[row, entries])]
        scale, distance = pieces.steps.scale[which], slopes.distance[row, which]
        if self.rounding[row, which] > slopes.error[row, which]:
            return f"rounding changes the gradient by {self.rounding[row, which] / scale:.1g}; pass float64 arguments"
        if slopes.far[row, which]:
            away = f"{distance * scale:.1g}"
            return f"the slope is that of points {away} away; pass scale={away} if the function is smooth so far"
        noise = pieces.noise[row]
        # If noise makes up half of the error or more, points farther away help: at the distance ``needed`` it hides 1 %
        # of the gradient.
        if NOISE_OF_SLOPES * noise >= slopes.error[row, which] * distance / 2 and self.gradient[row, which]:
            needed = NOISE_OF_SLOPES * noise / RESOLUTION / abs(self.gradient[row, which]) * scale
            return (
                f"values have an error of {noise:.1g}, which hides one of 1 % in the gradient; "
                f"pass scale={needed:.1g} if the function is smooth over such a distance"
            )
        return (
            f"slopes differ at all distances down to {distance * scale:.1g}; "
            "pass as scale how far the input moves before they do"
        )


def differing(
    nearby: Neighbourhood, forward: Array, reverse: Array, rounding: Array, names: Names, tolerance: Tolerance
) -> Iterator[Verdict]:
    """Yield a verdict for each output whose derivatives differ between the two modes."""
    unseen = nearby.slopes.error / nearby.steps.scale  # a difference that values do not show is one of rounding
    allowed = tolerance.atol + tolerance.rtol * np.abs(reverse) + 2 * rounding + unseen  # either mode rounds
    same = (np.abs(forward - reverse) <= allowed) | (np.isnan(forward) & np.isnan(reverse)) | (forward == reverse)
    differ = ~same & nearby.slopes.finite
    for row in np.flatnonzero(differ.any(axis=1)).tolist():
        entries = np.flatnonzero(differ[row])
        named = _names(names, row, entries)
        yield Verdict(Kind.MODES_DIFFER, *named, forward[row, entries], reverse[row, entries], line="")
