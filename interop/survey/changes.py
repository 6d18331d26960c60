"""What changed at ties from one recorded version of a framework to another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from interop._terminal import WIDTH
from interop.survey.records import Record, Source, between, record_of, sources, writable
from interop.survey.versions import Line, labels, rounded_or_dash, same, side_by_side

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.box import Box
    from rich.console import RenderableType
    from rich.table import Table

_COLUMNS = {"numbers": "others are numbers", "none": "all differentiated", "arrays": "some differentiated"}
"""Maps the form of the inactive arguments to the heading of its column."""
_LEGEND = (
    "The share of the gradient that an argument gets, before and after. All differentiated: a share for each, in their "
    "order. Others are numbers: x alone is differentiated."
)


@dataclass(frozen=True)
class Changes:
    """What `changes` found: two records, and the lines in which they differ.

    A line has a ``cell`` (the ``op``, the tie ``at`` which it is asked, the ``active`` arguments, how the ``inactive``
    ones are given, and the ``spelling``), the ``modes`` in which it holds, and the ``answers`` before and after.
    """

    before: Record
    after: Record

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """What is answered differently; without what follows from another line."""
        lines = side_by_side([self.before, self.after])
        # A record that is older than an op says nothing of it: no change.
        return tuple(line for line in lines if line.cell.op in self._ops_of_both and not same(*line.answers))

    @cached_property
    def _ops_of_both(self) -> frozenset[str]:
        """The ops in the records of both versions."""
        before, after = (frozenset(cell.op for cell in r.answers) for r in (self.before, self.after))
        return before & after

    @cached_property
    def ops(self) -> tuple[str, ...]:
        """The ops in these lines."""
        return tuple(dict.fromkeys(line.cell.op for line in self.lines))

    @property
    def sources(self) -> tuple[Source, ...]:
        """The threads in which changes of these ops were decided, where they are known."""
        every = sources(self.before, self.after)
        return tuple(source for source in every if not {*source.ops}.isdisjoint(self.ops))

    @property
    def summary(self) -> str:
        """What holds, in a sentence."""
        ops = self._ops_of_both
        versions = f"From {self.before.name} to {self.after.version}"
        if not self.ops:
            return f"{versions} no gradient at a tie changed; {len(ops)} ops were asked."
        return f"{versions} {len(self.ops)} of {len(ops)} ops changed their gradient at ties: {', '.join(self.ops)}."

    @property
    def cures(self) -> tuple[str, ...]:
        """What to do about it, for the frameworks for which there is something."""
        pin = f'as_of("{self.before.framework} {self.before.version}")'
        keep = "To keep the old gradients: "
        versions = f"--before {self.before.version} --after {self.after.version}"
        cures = {
            "torch": (f"Is your code affected? jaxclamp audit FILE.py:FUNCTION {versions}", f"{keep}interop.{pin}"),
            "jax": (f"{keep}jaxclamp.{pin}",),
        }
        return cures.get(self.before.framework, ()) if self.lines else ()

    def __str__(self) -> str:
        return printed(self, WIDTH)

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        table: list[RenderableType] = ["", self._table(), "", Text(_LEGEND)] if self.lines else []
        return Group(Text(self.summary), *table, *map(str, self.sources), *map(Text, self.cures))

    def to_markdown(self) -> str:
        """Write the summary, a table and the sources."""
        from rich import box

        table = printed(self._table(box.MARKDOWN), 10_000) if self.lines else ""  # so wide that nothing is folded
        parts = [self.summary, table, "\n".join(f"- {source}" for source in self.sources)]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _table(self, box: Box | None = None) -> Table:
        """Make a table with a row for an op at a tie, or two where the modes differ, and the columns of `_COLUMNS`."""
        labelled = list(zip(labels(self.lines, (self.before, self.after)), self.lines, strict=True))
        split = {label for label, line in labelled if line.mode != "both"}
        rows: dict[tuple[str, str], dict[str, list[str]]] = {}
        for label, line in labelled:
            column = _COLUMNS[line.cell.inactive]
            change = " → ".join(map(rounded_or_dash, line.answers))
            cell = f"{line.asked}: {change}" if line.cell.inactive == "arrays" else change
            for mode in line.modes if label in split else ["both"]:
                rows.setdefault((label, mode), {}).setdefault(column, []).append(cell)
        from rich.table import Table

        table = Table(box=box, pad_edge=box is not None)  # as `rich_table`, whose import is slow, as JAX's is
        columns = [name for name in _COLUMNS.values() if any(name in cells for cells in rows.values())]
        for heading in ("at a tie", "mode", *columns):
            table.add_column(heading, overflow="fold")
        for (label, mode), cells in rows.items():
            table.add_row(label, mode, *("; ".join(cells.get(name, [])) for name in columns))
        return table

    def to_json(self) -> str:
        """Write the records without their answers, and all lines; infinities are strings, as JSON has no number."""
        content = {
            "framework": self.before.framework,
            "before": self.before.origin,
            "after": self.after.origin,
            "lines": [
                {
                    **line.cell._asdict(),
                    "modes": line.modes,
                    "before": line.answers[0] and writable(line.answers[0]),
                    "after": line.answers[1] and writable(line.answers[1]),
                }
                for line in self.lines
            ],
            "sources": [source._asdict() for source in self.sources],
        }
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    def figure(self) -> Figure:
        """Draw every op in every recorded version between the two, in the colours of what its answers follow."""
        from interop.survey.history import figure

        return figure(between(self.before, self.after))


def printed(content: RenderableType, width: int) -> str:
    """Print ``content`` as text, without colours, and without spaces at the ends of lines."""
    from rich.console import Console

    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(content)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def changes(framework: str, before: str, after: str) -> Changes:
    r"""List the gradients at ties that changed between two versions of a framework, by the records of this package.

    A record has the gradient :math:`\partial \sum_i f_i / \partial x` of every op at every tie, in float32, for every
    set of differentiated arguments. The further arguments are numbers, and arrays. There are gradients in reverse mode
    and, if the framework has one, in forward mode. Nothing is computed now, and the framework need not be installed.

    Args:
      framework: its name, such as "torch", "jax" or "paddle".
      before, after: versions. "2.13" is the newest recorded one of 2.13; "3.15.1 on jax" tells the backend of Keras.

    Returns:
      `Changes`, which prints as a table, and has the lines as data, as Markdown, as JSON and as a picture.

    Raises:
      ValueError: there is no such record; the message lists those that there are.

    >>> changed = changes("torch", "2.13", "2.15")
    >>> changed.ops
    ('clamp', 'clamp_min', 'clamp_max', 'fmax', 'fmin')
    >>> line = changed.lines[0]
    >>> line.cell.at, line.asked, line.mode, line.answers
    ('x=0, min=0, max=6', 'x, numbers', 'both', ((1.0,), (0.0,)))
    """
    return Changes(record_of(framework, before), record_of(framework, after))
