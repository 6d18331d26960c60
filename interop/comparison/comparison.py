"""What holds between two forms of one computation: a finding for each leaf of their answers, and the verdict.

A leaf is compared twice, as the functions are and under min_norm. The four outcomes have a name each:

| as they are | under min_norm | finding                                                              |
| ----------- | -------------- | -------------------------------------------------------------------- |
| agree       | agree          | agrees                                                               |
| differ      | agree          | ties: the convention alone comes between them                        |
| differ      | differ         | port: a bug                                                          |
| agree       | differ         | hidden tie: one side has a tie that min_norm cannot see              |

Then two findings take the place of these. Values that are random, or derivatives, are unsteady. Rounding is the finding
of a leaf so small that what differs may be nothing but what rounding left. An example is the gradient of a bias before
a normalization: it is 0, and either side computes another 1e-9 in its place.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from interop.comparison.leaves import (
    HEADINGS,
    ROUNDING,
    Allowed,
    Finding,
    Leaf,
    check_tolerances,
    coarsest,
    difference_of,
    eps_of,
    is_gradient,
    is_negligible,
    largest_finite,
    relative_tolerance,
    same_kind,
)
from interop.comparison.probe import Probed
from interop.comparison.recording import FilePath, Recording, read, write
from interop.frameworks.reseed import CURE
from jaxclamp._shared.tables import listed, markdown_table, rich_table, to_json

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA = 1
"""The version of what `Comparison.to_json` writes, which docs/porting.md describes."""
_UNREACHED = "a tie that min_norm does not reach (as in a hand-written where, or in a block of another convention)"

_STYLES: dict[Finding, str] = {
    "agrees": "green",
    "ties": "yellow",
    "port": "red",
    "hidden tie": "yellow",
    "rounding": "yellow",
    "unsteady": "red",
}


@dataclass(frozen=True)
class Comparison:
    r"""What `compare` found.

    Two numbers agree if :math:`|a - b| \le atol + rtol \max(|a|, |b|)`. Unless given, ``rtol`` is
    :math:`\epsilon^{2/3}` for the coarser of the two dtypes (2e-5 in float32; 0 for integers), and ``atol`` is ``rtol``
    times the largest number in the leaf, as sums round. Gradients that cancel to 0, as that of a bias before a
    normalization, leave the rounding of their terms: unless ``atol`` is given, a leaf that differs, with no number on
    either side above ``rtol`` times the largest in all gradients, is ``rounding``, unless `compare` finds that it
    differs in float64 too. So is a small difference that shrinks as :math:`\epsilon` does in float64.

    For other tolerances: ``dataclasses.replace(comparison, rtol=..., atol=...)``.

    Raises:
      TypeError: a tolerance is no number.
      ValueError: the sides were not given the same arrays, or a tolerance is negative.
    """

    first: Recording
    second: Recording
    rtol: float | None = None
    atol: float | None = None
    probed: Probed | None = None
    """What came of the probe, if one was asked for; ``probed.case`` has the inputs at which they differ."""
    noise: tuple[str, ...] = ()
    """The labels of the leaves that are rounding alone on both sides, as float64 showed."""
    lasting: tuple[str, ...] = ()
    """The labels of the leaves that are as small as rounding, and differ in float64 too."""

    def __post_init__(self) -> None:
        check_tolerances(self.rtol, self.atol)
        inputs = self.first.inputs.keys() | self.second.inputs.keys()
        differing = sorted(i for i in inputs if self.first.inputs.get(i) != self.second.inputs.get(i))
        if differing:
            raise ValueError(
                f"compare: {self.first} and {self.second} were given different arrays as {listed(differing)}; "
                "record both sides from the same arrays, of the same dtypes."
            )

    @functools.cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves of the values, then those of the gradients."""
        return tuple(map(self._leaf, dict.fromkeys([*self.first.unmodified, *self.second.unmodified])))

    def _leaf(self, label: str) -> Leaf:
        sides = (self.first, self.second)
        having = [side for side in sides if label in side.unmodified]
        if len(having) == 1:
            return Leaf(label, f"only {having[0]} has it", None, None, "port")
        a, b = (side.unmodified[label] for side in sides)
        if a.shape != b.shape:
            return Leaf(label, f"shape {a.shape} against {b.shape}", None, None, "port")
        mismatch = "" if same_kind(a.dtype, b.dtype) else f"dtype {a.dtype} against {b.dtype}"
        a_min_norm, b_min_norm = (side.min_norm[label] for side in sides)
        unmodified = difference_of(a, b, self.rtol, self.atol)
        min_norm = difference_of(a_min_norm, b_min_norm, self.rtol, self.atol)
        findings: dict[tuple[bool, bool], Finding] = {
            (True, True): "agrees",
            (False, True): "ties",
            (False, False): "port",
            (True, False): "hidden tie",
        }
        # Numbers of two dtypes may agree, and what is computed from them next does not.
        finding = "port" if mismatch else findings[unmodified.beyond == 0, min_norm.beyond == 0]
        if finding != "agrees" and not all(self._answers_twice(side, label) for side in sides):
            finding = "unsteady"  # where both draw the same random numbers, they agree
        # Whoever gives ``atol`` has said what is small: then nothing is taken for rounding beyond that.
        if self.atol is None and finding != "agrees" and not mismatch:
            rtol, arrays = relative_tolerance(a.dtype, self.rtol), (a, b, a_min_norm, b_min_norm)
            is_small = is_gradient(label) and is_negligible(arrays, rtol, self.gradient_scale)
            if label in self.noise or (is_small and label not in self.lasting):
                finding = "rounding"
        return Leaf(label, mismatch, unmodified, min_norm, finding)

    @functools.cached_property
    def gradient_scale(self) -> float:
        """The largest number in the gradients, of all arguments."""
        answers = [*self.first.unmodified.items(), *self.second.unmodified.items()]
        return max((largest_finite(array) for label, array in answers if is_gradient(label)), default=0.0)

    @property
    def agree(self) -> bool:
        """Whether the functions agree as they are, under the conventions of their frameworks."""
        return not self.disagreeing()

    def disagreeing(self, allow: Collection[Allowed] = ROUNDING) -> list[Leaf]:
        """List the leaves in which the functions, as they are, do not agree.

        Args:
          allow: the findings that count as agreement, of ``"ties"`` and ``"rounding"``.

        Raises:
          ValueError: ``allow`` has another finding.
        """
        allowed = get_args(Allowed)
        if isinstance(allow, str) or not set(allow) <= set(allowed):
            raise ValueError(f"compare: allow={allow!r} is not a tuple of findings; those that can be are {allowed}.")
        return [leaf for leaf in self.leaves if not leaf.passes(allow)]

    @property
    def verdict(self) -> str:
        """What holds, in words that begin with the frameworks."""
        return f"{self.first.framework} against {self.second.framework}: {self._verdict}"

    @property
    def _verdict(self) -> str:
        by_finding: dict[Finding, list[Leaf]] = {finding: [] for finding in get_args(Finding)}
        for leaf in self.leaves:
            by_finding[leaf.finding].append(leaf)
        if by_finding["unsteady"]:
            # First, as all that is computed from random values differs too, gradients included.
            labels = [leaf.label for leaf in by_finding["unsteady"]]
            sides = (self.first, self.second)
            unsteady = [side for side in sides if not all(self._answers_twice(side, label) for label in labels)]
            return (
                f"not comparable: {listed(labels)} is random, or a derivative: called again under min_norm, with other "
                f"random numbers, other values came from {listed(unsteady)}. {CURE} In place of a derivative, compare "
                "the function that is differentiated."
            )
        if by_finding["port"]:
            by_value = any(not is_gradient(leaf.label) for leaf in by_finding["port"])
            cause = "Look at the code of both." if by_value else f"Look at the code of both, or for {_UNREACHED}."
            sentences = [
                "they disagree, and not by convention alone: under min_norm too they differ in "
                f"{listed(by_finding['port'])}. {cause}"
            ]
        elif by_finding["ties"]:
            # At a NaN, in what the functions were given or answered, conventions may differ too.
            has_nan = self.first.given_nan or self._answers_nan
            causes = "by convention alone, at ties or at NaN" if has_nan else "because of ties alone"
            sentences = [f"they disagree {causes}."]
        else:
            sentences = ["they agree, but for rounding." if by_finding["rounding"] else "they agree."]
            if self._answers_nan:
                sentences.append("Both answer NaN, which counts as equal and hides what differs.")
            if not any(is_gradient(leaf.label) for leaf in self.leaves):
                sentences.append("Values alone are compared, as no argument is an array of floats.")
            if all(is_gradient(leaf.label) for leaf in self.leaves):
                sentences.append("No values are compared, as neither function returns any.")
            if empty := [label for label, array in self.first.unmodified.items() if not array.size]:
                sentences.append(f"Without elements, and compared in shape alone: {listed(empty)}.")
        if by_finding["ties"]:
            sentences.append(f"{_differ(by_finding['ties'])} by convention alone: under min_norm both agree.")
        if by_finding["hidden tie"]:
            sentences.append(
                f"Only under min_norm they differ in {listed(by_finding['hidden tie'])}. That is {_UNREACHED}."
            )
        if by_finding["rounding"]:
            sentences.append(f"{_differ(by_finding['rounding'])} by no more than rounding explains.")
        if self.rtol is None and not by_finding["port"] and (loose := self._loose_dtype):
            sentences.append(
                f"The tolerance is that of {loose}, rtol={relative_tolerance(loose, None):.2g}: pass float32 arrays to "
                "see smaller differences."
            )
        if self.probed:
            sentences.append(str(self.probed))
        return " ".join(sentences)

    @property
    def _loose_dtype(self) -> np.dtype[Any] | None:
        """The coarsest dtype of what is compared, if it is coarser than float32."""
        answers = [*self.first.unmodified.values(), *self.second.unmodified.values()]
        coarse = [array.dtype for array in answers if eps_of(array.dtype) > eps_of(np.dtype(np.float32))]
        return coarsest(coarse) if coarse else None

    @property
    def _answers_nan(self) -> bool:
        """Whether there is a NaN in what either side answers."""
        answers = [*self.first.unmodified.values(), *self.second.unmodified.values()]
        return any(bool((array != array).any()) for array in answers)

    def _answers_twice(self, side: Recording, label: str) -> bool:
        """Say whether a value is the same under min_norm, with other random numbers; a derivative may not be."""
        # Gradients change under min_norm by their nature, and say nothing.
        return (
            is_gradient(label)
            or difference_of(side.unmodified[label], side.min_norm[label], self.rtol, self.atol).beyond == 0
        )

    def assert_agree(
        self, rtol: float | None = None, atol: float | None = None, allow: Collection[Allowed] = ROUNDING
    ) -> None:
        """Check that the functions agree as they are.

        Args:
          rtol, atol: the tolerance, by default that of the comparison.
          allow: the findings that count as agreement: ``("ties", "rounding")`` lets ties pass too, ``()`` nothing.

        Raises:
          AssertionError: they do not; the message names the leaves, and says what to do.
          TypeError: a tolerance is no number.
          ValueError: a tolerance is negative, or ``allow`` has another finding.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        checked = dataclasses.replace(
            self, rtol=self.rtol if rtol is None else rtol, atol=self.atol if atol is None else atol
        )
        if disagreeing := checked.disagreeing(allow):
            lines = [checked._title, checked.verdict, *(leaf.in_words for leaf in disagreeing), *checked.cures(allow)]
            raise AssertionError("\n".join(lines))

    def cures(self, allow: Collection[Allowed] = ROUNDING) -> list[str]:
        """Say what to do about the leaves in which the functions do not agree."""
        findings = {leaf.finding for leaf in self.disagreeing(allow)}
        cures = []
        if "ties" in findings:
            cures.append("jaxclamp.ties and interop.ties name the lines with ties; the min_norm of both removes them.")
        if findings and findings <= {"ties", "rounding"}:
            allowed = ", ".join(map(repr, get_args(Allowed)))
            cures.append(f"To let that pass: assert_agree(allow=({allowed})), on the command line --allow.")
        return cures

    def __str__(self) -> str:
        return "\n".join([self._title, self.verdict, *(leaf.in_words for leaf in self.disagreeing())])

    def __rich__(self) -> Table:
        from rich.text import Text

        table = rich_table(*HEADINGS, title=f"{self._title}\n{self.verdict}")
        for leaf in self.leaves:
            table.add_row(*map(Text, leaf.cells), style=_STYLES[leaf.finding])
        return table

    def to_markdown(self) -> str:
        """Write the verdict and a table."""
        table = markdown_table(HEADINGS, (leaf.cells for leaf in self.leaves))
        return f"**{self._title}**\n\n{self.verdict}\n\n{table}\n"

    def to_json(self) -> str:
        """Write all that is known of each leaf, but for the arrays; infinities and NaN are strings.

        The page on checking a port describes the fields. A change of their meaning changes the number ``schema``.
        """
        first, second = (
            {"name": side.name, "framework": side.framework, "version": side.version}
            for side in (self.first, self.second)
        )
        content = {
            "schema": SCHEMA,
            "first": first,
            "second": second,
            "agree": self.agree,
            "verdict": self.verdict,
            **self._tolerances,
            "probe": self.probed and self.probed.summary(),
            "leaves": [_fields(leaf) for leaf in self.leaves],
        }
        return to_json(content, indent=1) + "\n"

    def save(self, path: FilePath) -> None:
        """Write an npz file, the answers of both sides included."""
        write(path, [self.first, self.second], **self._tolerances, noise=self.noise, lasting=self.lasting)

    @classmethod
    def load(cls, path: FilePath) -> Comparison:
        """Read what `save` wrote.

        Raises:
          ValueError: the file holds something else.
        """
        recordings, settings = read(path)
        if len(recordings) != 2:
            raise ValueError(f"Comparison.load: {str(path)!r} holds one side; use Recording.load.")
        first, second = recordings
        labels = {name: tuple(settings.get(name, ())) for name in ("noise", "lasting")}
        return cls(first, second, **{**settings, **labels})

    @property
    def _tolerances(self) -> dict[str, float | None]:
        # Those that were passed may be NumPy's numbers, which JSON does not take.
        passed = {"rtol": self.rtol, "atol": self.atol}
        return {name: None if number is None else float(number) for name, number in passed.items()}

    @property
    def _title(self) -> str:
        return f"{self.first} against {self.second}"


def _differ(leaves: Sequence[Leaf]) -> str:
    return f"{listed(leaves)} differ{'s' * (len(leaves) == 1)}"


def _fields(leaf: Leaf) -> dict[str, Any]:
    """Return the fields of a leaf for JSON, whose schema has the former name of ``unmodified``."""
    return {"native" if name == "unmodified" else name: field for name, field in dataclasses.asdict(leaf).items()}
