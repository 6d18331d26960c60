"""The report of an audit: the lines whose gradient changes, the effect of that, and both as text."""

from __future__ import annotations

import functools
import itertools
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from interop._terminal import WIDTH
from jaxclamp._shared.tables import to_json
from jaxclamp._shared.tie_report import Line


class ChangedLine(NamedTuple):
    """A line of the source at which the gradient is another one, over all calls and operands."""

    line: Line
    before: float
    """The norm of the gradient that goes into the operands."""
    after: float
    difference: float
    """The norm of the difference of the two."""
    largest: float
    """The largest entry of the difference."""
    slopes: tuple[tuple[float, float], ...]
    """The derivatives of the result by its operands that change, each with what it becomes; at most three."""
    cure: str
    """What keeps the gradient as it was."""


class Effect(NamedTuple):
    """How the gradient of the result changes, by all parameters as one vector, or by the inputs if there are none."""

    of: str
    """What is differentiated, as ``4 parameters`` or ``the inputs``."""
    before: float
    """The norm of the gradient."""
    after: float
    difference: float
    """The norm of the difference of the two."""

    def __str__(self) -> str:
        share = f" ({self.difference / self.before:.1%} of it)" if self.before else ""
        return (
            f"gradient of the result by {self.of}: norm {self.before:.4g} -> {self.after:.4g}, "
            f"difference {self.difference:.4g}{share}"
        )


@dataclass(frozen=True)
class Audit:
    """What `audit` found; printed, it is a report of at most 100 columns."""

    before: str
    after: str
    changes: tuple[ChangedLine, ...]
    lines: tuple[Line, ...]
    """The lines that call a function whose gradient depends on the version, and were recorded for a gradient."""
    probed: tuple[ChangedLine, ...] = ()
    """What would change at the lines without a tie if all elements there were on the nearest bound that was seen."""
    effect: Effect | None = None
    """The effect on the gradient of the result; None if nothing changes, or it cannot be said, by ``no_effect``."""
    no_effect: str = ""
    """Why the effect cannot be said."""
    probe: bool = False
    """Whether it was asked what a tie would change where there was none."""
    note: str = ""
    """Which record stands for the installed version of torch, if it has none of its own."""

    unwatched: tuple[str, ...] = ()
    """The functions that were called and not looked at, though their gradient may depend on the version."""

    def __str__(self) -> str:
        return self.text(WIDTH)

    def text(self, width: int) -> str:
        """Write the report in lines of at most ``width`` columns."""
        changing, watched = {change.line.place for change in self.changes}, {line.place for line in self.lines}
        versions = f"{self.before} -> {self.after}"
        lines = f"{len(watched)} line{'s' * (len(watched) > 1)} that may depend on the version"
        paragraphs = [f"{versions}: the gradient changes at {len(changing)} of {lines}"]
        if not watched:
            paragraphs = [f"{versions}: no gradient changes, as no function is called that depends on the version"]
        if self.unwatched:
            names = ", ".join(self.unwatched)
            named = f"not looked at: {names}, where another one of equal elements may get the gradient"
            paragraphs = [*paragraphs, named] if watched else [f"{versions}: {named}"]
        if self.note:
            paragraphs.append(self.note)
        if self.changes:
            paragraphs.append(
                str(self.effect)
                if self.effect
                else f"how far this moves the gradient of the result is not known: {self.no_effect}"
            )
        paragraphs += itertools.chain.from_iterable(map(_described, self.changes))
        changed = [change.line.site for change in self.changes]  # at NaN without a tie, too
        unchanged = [line for line in self.lines if line.site not in changed]
        for line in unchanged:
            ties = f"{line.tied} of {line.elements} on a tie, no change there" if line.tied else "no tie in this run"
            paragraphs.append(f"{line.label}: {line.op}, {ties}")
        if not self.probed and not all(line.tied for line in unchanged):
            paragraphs.append(
                "where there was no tie, one would change nothing"
                if self.probe
                else "to see what a tie would change where there was none: --probe, or probe=True"
            )
        if self.probed:
            paragraphs.append("where there was no tie, if each element were on the nearest bound that was seen:")
            paragraphs += itertools.chain.from_iterable(map(_described, self.probed))
        if self.changes or self.probed:
            paragraphs.append(f'to keep all gradients: run it in a block `with interop.as_of("{self.before}"):`')
        fill = functools.partial(textwrap.fill, width=width, subsequent_indent="    ", break_on_hyphens=False)
        return "\n".join(map(fill, paragraphs))

    def to_json(self) -> str:
        """Write all of it; infinities and NaN, for which JSON has no number, are strings."""
        fields = ("before", "after", "note", "lines", "changes", "effect", "no_effect", "probed", "unwatched")
        return to_json({name: getattr(self, name) for name in fields})


def _described(change: ChangedLine) -> Iterator[str]:
    line = change.line
    slopes = ", ".join(f"{old:.4g} -> {new:.4g}" for old, new in change.slopes)
    yield f"{line.label}: {line.op}, {line.tied} of {line.elements} elements on a tie" + (
        f", slope there {slopes}" if slopes else ""
    )
    yield (
        f"    gradient passed on: norm {change.before:.4g} -> {change.after:.4g}, difference {change.difference:.4g}, "
        f"largest entry {change.largest:.4g}"
    )
    yield f"    to keep it: {change.cure}"
