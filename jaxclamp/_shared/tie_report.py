"""What `ties` reports: the lines of the source at which there can be ties, and how far these move the gradient."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from jaxclamp._shared.tables import markdown_table, rich_table, text_table, to_json

if TYPE_CHECKING:
    from rich.table import Table

Site: TypeAlias = tuple[str, int, str, bool, str]
"""The fields by which a `Line` differs from all others."""


class Line(NamedTuple):
    """The ties at one line of the source of one op, or of a select that looks like one, a suspect."""

    file: str
    number: int
    op: str
    suspect: bool
    module: str
    """Within a torch.nn.Module its path, ``layers.0``; in JAX the scopes of `jax.named_scope`, ``Net/Block_0``."""
    elements: int
    tied: int

    @property
    def site(self) -> Site:
        """The fields by which this line differs from all others."""
        return self.file, self.number, self.op, self.suspect, self.module

    @property
    def share(self) -> float:
        """The part of the elements that are on a tie."""
        return self.tied / self.elements if self.elements else 0.0

    @property
    def place(self) -> str:
        """``file:number``, relative to the working directory if the file is below it."""
        file = Path(self.file)
        return f"{file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}:{self.number}"

    @property
    def label(self) -> str:
        """The place, and the module if there is one."""
        return f"{self.place} {self.module}".rstrip()


@dataclass(frozen=True)
class Influence:
    """How far another convention moves the gradient of minimum norm, and the norm of that gradient.

    The other convention is ``ties="inclusive"`` or that of the function as it is, whichever is farther. Where the
    gradient is NaN, both are: docs/nan.md has the cures.
    """

    norm: float
    gradient_norm: float

    @classmethod
    def of(cls, gradient: Callable[[Literal["min_norm", "inclusive"] | None], np.ndarray[Any, Any]]) -> Influence:
        """Compute the influence on ``gradient(convention)``, a vector; None is the function as it is."""
        min_norm_gradient = gradient("min_norm")
        with np.errstate(invalid="ignore"):  # of two infinities
            differences = gradient("inclusive") - min_norm_gradient, gradient(None) - min_norm_gradient
        distances = [np.linalg.norm(difference) for difference in differences]
        # The maximum of NumPy is NaN if one of them is; that of Python need not be.
        return cls(float(np.max(distances)), float(np.linalg.norm(min_norm_gradient)))

    @property
    def relative(self) -> float:
        """The distance as a part of the norm of the gradient."""
        return self.norm / self.gradient_norm if self.gradient_norm else math.inf if self.norm else 0.0

    def __add__(self, other: Influence) -> Influence:
        """Compute the influence on two gradients as one vector, each under the convention that moves it farther."""
        return Influence(math.hypot(self.norm, other.norm), math.hypot(self.gradient_norm, other.gradient_norm))


@dataclass(frozen=True)
class TieReport:
    """The lines at which there can be ties, and, if it was computed, their influence on the gradient.

    Reports add up: ``sum(reports, TieReport())``.
    """

    lines: tuple[Line, ...] = ()
    influence: Influence | None = None
    differentiated: str = ""
    """In words, the parameters whose gradient the influence is on, and those left out; empty if it is that of all."""

    @property
    def elements(self) -> int:
        """The elements of all results but those of suspects, which no convention reaches."""
        return sum(line.elements for line in self.lines if not line.suspect)

    @property
    def tied(self) -> int:
        """The number of these elements that were on a tie; one that is NaN is on none."""
        return sum(line.tied for line in self.lines if not line.suspect)

    def __add__(self, other: TieReport) -> TieReport:
        influences = [report.influence for report in (self, other) if report.influence is not None]
        totals = Totals()
        for line in (*self.lines, *other.lines):
            totals[line.site] += line.elements, line.tied
        differentiated = "; ".join(dict.fromkeys(filter(None, (self.differentiated, other.differentiated))))
        influence = functools.reduce(Influence.__add__, influences) if influences else None
        return TieReport(totals.lines(), influence, differentiated)

    def assert_none(self) -> None:
        """Raise an AssertionError that names the lines and modules with ties, if there are any; suspects are none."""
        __tracebackhide__ = True  # pytest shows the line of the test
        tied_lines = [line for line in self.lines if line.tied and not line.suspect]
        if tied_lines:
            places = "\n".join(f"  {line.label}: {line.op}, {line.tied} of {line.elements}" for line in tied_lines)
            raise AssertionError(f"{self.tied} of {self.elements} elements are on a tie:\n{places}")

    def __str__(self) -> str:
        table = [text_table(_HEADINGS, self._rows())] if self.lines else []
        return "\n".join((self._summary(), *table, *self._about_suspects()))

    def __rich__(self) -> Table:
        from rich.text import Text

        below = {"caption": "\n".join(self._about_suspects()), "caption_justify": "left", "caption_style": ""}
        table = rich_table(*_HEADINGS, title=self._summary(), **below)
        for row in self._rows():
            table.add_row(*map(Text, row))  # a string would be markup: "[old]/x.py", "jaxclamp:clamp:1"
        return table

    def to_markdown(self) -> str:
        """Write the report as Markdown: a summary and a table of the lines."""
        return "\n\n".join((self._summary(), markdown_table(_HEADINGS, self._rows()), *self._about_suspects()))

    def to_json(self) -> str:
        """Write the report as JSON; infinities and NaN, for which JSON has no number, are strings."""
        lines = [{**line._asdict(), "share": line.share} for line in self.lines]
        influence = self.influence and {**dataclasses.asdict(self.influence), "relative": self.influence.relative}
        return to_json({"lines": lines, "influence": influence, "differentiated": self.differentiated})

    def _summary(self) -> str:
        summary = f"{self.tied} of {self.elements} elements on a tie"
        if self.influence is None:
            return summary
        norm, relative = self.influence.norm, self.influence.relative
        if not math.isfinite(norm):
            what = "infinite" if math.inf in (norm, self.influence.gradient_norm) else "NaN"
            return (
                f"{summary}; how far they move the gradient cannot be said, as it is {what}: docs/nan.md has the cures"
            )
        beside = "that of minimum norm is 0" if math.isinf(relative) else f"{relative:.2%} of its norm"
        scope = f" with respect to {self.differentiated}" if self.differentiated else ""
        return f"{summary}; another convention moves the gradient{scope} by {norm:.3g}, {beside}"

    def _about_suspects(self) -> list[str]:
        kinds = {line.op.startswith(MET_INFINITY) for line in self.lines if line.suspect}
        what = {
            False: "(suspect) marks a kink or a jump that no convention decides, and that the first line does not "
            "count: see docs/decided-choices.md.",
            True: f"Where {MET_INFINITY}, as in a branch not taken, a gradient may be NaN: docs/nan.md has the cures.",
        }
        return [what[kind] for kind in sorted(kinds)]

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (line.label, line.op + " (suspect)" * line.suspect, f"{line.elements}", f"{line.tied}", f"{line.share:.2%}")
            for line in self.lines
        ]


_HEADINGS = ("line", "op", "elements", "on a tie", "share")


MET_INFINITY = "0 met infinity"
"""The op of a suspect that is a product in a derivative, of 0 and a number that is not finite.

Behind it stands the function whose slope that is, if it is known: "0 met infinity in sqrt". In a jaxpr it is not, since
a reverse pass has products alone.
"""


class Totals(defaultdict[Site, "np.ndarray[Any, Any]"]):
    """Maps a site to its number of elements, and of elements on a tie."""

    def __init__(self) -> None:
        super().__init__(lambda: np.zeros(2, int))

    def lines(self) -> tuple[Line, ...]:
        """Return a line for each site, in the order of the source; where 0 met no infinity, there is nothing to say."""
        lines = (Line(*site, *total.tolist()) for site, total in sorted(self.items()))
        return tuple(line for line in lines if line.tied or not line.op.startswith(MET_INFINITY))
