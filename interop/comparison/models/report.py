"""Report the comparison of two models: a verdict, a table of layers, a picture."""

from __future__ import annotations

import functools
import math
import textwrap
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from interop._terminal import text_width
from interop.comparison.leaves import coarsest
from interop.comparison.models.cause import Cause, LayerPair, cause_of, slip_of
from interop.comparison.models.judgements import Judged
from interop.comparison.models.layers import Layer, Point
from interop.comparison.models.mapping import Bound, ParameterMapping
from interop.comparison.models.model import Run
from interop.comparison.recording import FilePath
from interop.frameworks.reseed import CURE
from jaxclamp import TieReport
from jaxclamp._shared.tables import listed, text_table

_ALLOWED = ("ties", "near ties")
_SHOWN = 8  # layers on either side of the cause, so that the report fits on a screen
_TIED_LINES = 3  # for each model
_HEADINGS = ("", "first", "second", "values", "gradients", "rounding", "finding")
_IN_THE_TABLE = {"agrees": "ok", "port": "differs"}
"""Maps a judgement to its word in the table, if that is not itself: a layer behind a bug differs without one."""


def reported(
    bound: Bound, judged: Mapping[int, Sequence[Judged]], roundings: Sequence[float], notes: Iterable[str]
) -> ModelComparison:
    """Put together what is known of both models: the pairs of layers with their judgements, and the notes."""
    (first, second), counterparts = bound.models, bound.counterparts
    layers = tuple(first.answer(Run()).layers), tuple(second.answer(Run()).layers)
    updated = _updated(bound)
    pairs = tuple(
        LayerPair(
            first=layers[0][i],
            second=layers[1][j],
            indices=(i, j),
            parent=counterparts.parents[n],
            judged=tuple(judged[n]),
            rounding=roundings[n],
            updates=(n in updated[0], n in updated[1]),
        )
        for n, (i, j) in enumerate(counterparts.matches)
    )
    cause, ties = cause_of(pairs, layers), None
    if cause is not None and cause.finding == "ties":  # only then, as it costs one more run of both
        ties = first.ties(cause.span(0)), second.ties(cause.span(1))
    all_notes = (*notes, *_notes(bound))
    return ModelComparison(
        str(first), str(second), counterparts.mapping, pairs, layers, all_notes, ties, bound.replaced
    )


def _notes(bound: Bound) -> Iterator[str]:
    """Note parameters and results of two dtypes, parameters that one model alone trains, and what was refused."""
    pairs = bound.counterparts.mapping.pairs
    dtypes_of_pairs = Counter((pair.first.dtype, pair.second.dtype) for pair in pairs)
    for dtypes, count in dtypes_of_pairs.items():
        if dtypes[0] != dtypes[1]:
            which = "All" if count == len(pairs) else f"{count} of {len(pairs)}"
            yield (
                f"{which} parameters are {_of_dtypes(dtypes)}: both get the numbers of {coarsest(dtypes)}, and each "
                "computes in its own dtype."
            )
    for pair in pairs:
        sides = [(parameter, model) for parameter, model in zip((pair.first, pair.second), bound.models, strict=True)]
        if pair.first.trained != pair.second.trained:
            (trained, training), (constant, freezing) = sorted(sides, key=lambda side: not side[0].trained)
            in_both = f"{trained.name} is trained in {training}, {constant.name} is not in {freezing}"
            yield f"{in_both}: no gradients to compare."
    by_side = [(pair.first, pair.second) for pair in pairs], [(pair.second, pair.first) for pair in pairs]
    for model, parameters in zip(bound.models, by_side, strict=True):
        frozen = [one.name for one, counterpart in parameters if one.frozen > counterpart.frozen]
        if frozen:
            yield (
                f"In {model} requires_grad is False for {listed(frozen)}, and the counterpart is trained: gradients "
                "are compared as if both were."
            )
    results = zip(*(model.answer(Run()).layers[0].outputs for model in bound.models), strict=True)
    for i, (first, second) in enumerate(results):
        dtypes = first.value.dtype, second.value.dtype
        if dtypes[0] != dtypes[1] and all(jnp.issubdtype(dtype, jnp.inexact) for dtype in dtypes):
            yield f"Result {i} is {_of_dtypes(dtypes)}."
    of_first, of_second = (model.integers.keys() for model in bound.models)
    for this, other, alone in (("first", "second", of_first - of_second), ("second", "first", of_second - of_first)):
        if alone:
            names = listed(sorted(alone))
            yield f"Integers of the {this} model are not compared, as the {other} has none by that name: {names}."
    for model in bound.models:
        if model.refusal:
            yield f"{model} cannot be run in another precision, which would tell rounding from bugs: {model.refusal}"


def _of_dtypes(dtypes: Sequence[np.dtype[Any]]) -> str:
    return f"of {dtypes[0]} in the first model, and of {dtypes[1]} in the second"


def _updated(bound: Bound) -> tuple[set[int], set[int]]:
    """Return the numbers of the matches whose statistics a call changes, for either model."""
    updated: tuple[set[int], set[int]] = set(), set()
    for pair in bound.counterparts.mapping.pairs:
        for numbers, model, parameter in zip(updated, bound.models, (pair.first, pair.second), strict=True):
            after = model.answer(Run()).state.get(parameter.name)
            if after is not None and not np.array_equal(after, model.values[parameter.name], equal_nan=True):
                numbers.add(bound.counterparts.match_of[pair.first.name])
    return updated


@dataclass(frozen=True, repr=False)
class ModelComparison:
    """How two models compare, as `compare_models` returns it; ``print`` fits it to the terminal, up to 100 columns."""

    first: str
    second: str
    mapping: ParameterMapping
    """Which parameter is which; ``print`` shows a table."""
    layers: tuple[LayerPair, ...]
    """Those that both models have, in the order in which they begin in the first."""
    all_layers: tuple[tuple[Layer, ...], tuple[Layer, ...]]
    """All of the first model, and all of the second."""
    notes: tuple[str, ...]
    """What was done without being asked for, such as inputs transposed and parameters replaced."""
    ties: tuple[TieReport, TieReport] | None = None
    """Where each model is on ties, within the cause alone, if ties make gradients differ."""
    replaced: str = ""
    """In words, how many parameters of a model were replaced by those of the other; empty if none were."""

    @functools.cached_property
    def cause(self) -> Cause | None:
        """Where the models first differ, in the forward pass or else in the backward pass; None where they agree."""
        return cause_of(self.layers, self.all_layers)

    @property
    def agree(self) -> bool:
        """Whether the models agree as they are, in values, gradients and statistics, but for rounding."""
        return self.cause is None

    @property
    def verdict(self) -> str:
        """What holds, in words."""
        cause = self.cause
        if cause is None:
            findings = {j.finding for pair in self.layers for j in pair.judged}
            layers = "1 layer" if len(self.layers) == 1 else f"{len(self.layers)} layers"
            sentences = [f"They agree, in values and gradients, at the boundaries of {layers}."]
            if "rounding" in findings:
                sentences.append("Some differ by rounding alone.")
            if "library" in findings:
                sentences.append("One library keeps the unbiased variance, with n / (n - 1), the other the plain one.")
            if self.replaced:  # then a slip in how they were converted does not show
                sentences.append(self.replaced)
            if with_nan := [pair for pair in self.layers if any(map(_has_nan, pair.first.outputs))]:
                sentences.append(
                    f"At {len(with_nan)} of the layers both have NaN, which counts as equal and hides what differs."
                )
            return " ".join(sentences)
        if cause.finding == "random":
            sides = {side for part in cause.parts for side in part.random_in}
            models = " and ".join((self.first, self.second)[side] for side in sorted(sides))
            # What is behind a dropout is random too, and may have a bug of its own.
            reason = (
                "It cannot be judged, as it is random there: with other random numbers, "
                f"{models} answer{'s' * (len(sides) < 2)} otherwise. {CURE}"
            )
        elif cause.finding == "ties":
            reason = "The reason is ties: under min_norm they agree."
        elif cause.finding == "near ties":
            reason = (
                "The reason is near ties: at numbers beside these, further away than rounding, both agree. Use random "
                "inputs."
            )
        else:
            slip = slip_of(cause, (self.first, self.second))
            reason = "That is not explained by ties or rounding" + (
                f". {slip}" if slip else f": look at {_suspect(cause)}."
            )
        return f"{_subject(cause)} first differ {_place(cause)}. {reason}"

    def assert_agree(self, *, allow: Collection[str] = ()) -> None:
        """Check that the models agree, but for rounding.

        Args:
          allow: ``["ties"]`` if gradients may differ because of ties; ``"near ties"``, if because of these.

        Raises:
          AssertionError: they do not; the message is the report.
          ValueError: ``allow`` has another word.
        """
        if isinstance(allow, str) or not set(allow) <= set(_ALLOWED):
            raise ValueError(
                f"assert_agree: allow is {allow!r}; pass a list of these: {', '.join(map(repr, _ALLOWED))}."
            )
        __tracebackhide__ = True  # pytest shows the line of the test
        if self.cause is not None and self.cause.finding not in allow:
            raise AssertionError(str(self))

    def __repr__(self) -> str:
        return f"<{self.first} against {self.second}: {self.verdict}>"

    def __str__(self) -> str:
        parts = [f"{self.first} against {self.second}", self.verdict]
        if self.cause is not None:
            parts += [*_details(self.cause, self.mapping), *([self.replaced] if self.replaced else [])]
        for report, model in zip(self.ties or (), (self.first, self.second), strict=False):
            parts += _of_ties(report, model)
        width = text_width()
        lines = [line for part in (*parts, *self.notes) for line in textwrap.wrap(part, width, subsequent_indent="  ")]
        return "\n".join([*lines, "", self._table(width)])

    def _table(self, width: int) -> str:
        """Return a table of the layers around the cause, or of the last ones."""
        centre = self.layers.index(self.cause.marked_pair) if self.cause else len(self.layers)
        shown = self.layers[max(centre - _SHOWN, 0) : centre + _SHOWN]
        rows = [_row(pair, self.cause) for pair in shown]
        hidden = len(self.layers) - len(rows)
        table = text_table(_HEADINGS, rows, width, folded=(1, 2)) + (f"\n… and {hidden} layers more" if hidden else "")
        return table + (f"\n> {_marked(self.cause)}" if self.cause else "")

    def plot(self, path: FilePath) -> None:
        """Draw how far each layer is apart, and write the picture to a file whose ending says the format.

        Raises:
          ModuleNotFoundError: matplotlib is not installed.
        """
        try:
            from interop.comparison.models.plot import figure  # only who draws needs matplotlib
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"plot: {error}; pip install 'jaxclamp[plot]', or in a checkout '.[plot]'."
            ) from None

        figure(self.layers, self.cause, f"{self.first} against {self.second}").savefig(path)


def _has_nan(point: Point) -> bool:
    """Say whether there is a NaN in what crossed a boundary, or in the gradient there."""
    arrays = [point.value] if point.gradient is None else [point.value, point.gradient]
    return any(bool((array != array).any()) for array in arrays)


def _subject(cause: Cause) -> str:
    if cause.is_gradient:
        return "Values agree; gradients"
    return {"parameters": "The parameters", "state": "The statistics"}.get(cause.parts[0].what, "Values")


def _place(cause: Cause) -> str:
    names = [j.name for j in cause.parts if j.what in ("parameters", "state")]
    of = f": {', '.join(names)}" if names else ""
    if not cause.is_own_code:
        return f"at {cause.layer.name}{of}"
    code = "the models' own code" if not cause.layer.first.path else f"the own code of {cause.layer.name}"
    ends = [f"{word} {end.name}" for word, end in (("after", cause.after), ("before", cause.before)) if end]
    return f"in {code}, {' and '.join(ends)}{of}"  # a layer with code of its own has others in it


def _marked(cause: Cause) -> str:
    """Say what the mark in the table means."""
    if not cause.is_own_code:
        return "they first differ in this layer"
    side = "before" if cause.before else "after"
    return f"they first differ in the code {side} this layer"


def _suspect(cause: Cause) -> str:
    if cause.is_own_code:
        layers = dict.fromkeys(f"{layer.path} ({layer.kind})" for side in cause.between for layer in side)
        return "the code of both there" + (f", and at {listed(layers)}, which one alone calls" if layers else "")
    if cause.parts[0].what == "parameters" and not cause.is_gradient:
        return "how they were converted"
    return "the settings and the code of both layers"


def _details(cause: Cause, mapping: ParameterMapping) -> list[str]:
    """Say how far the models are apart there, and what the settings of the layers are."""
    worst = max(cause.parts, key=lambda j: j.apart_in_float64)
    details = [
        f"Largest difference there, relative to the largest value: {worst.apart:.2g}, in float64 "
        f"{worst.apart_in_float64:.2g}; rounding explains {cause.layer.rounding:.1g}."
    ]
    if cause.is_own_code:
        for side, layers in zip(("first", "second"), cause.between, strict=True):
            if layers:
                details.append(f"Only the {side} model calls there: {', '.join(map(_with_settings, layers))}.")
        if cause.finding == "port" and (names := _paired_by_order(cause, mapping)):
            details.append(
                "Paired by the order in which they run alone, among several of the same shapes: "
                f"{', '.join(names)}. If that is wrong, pass mapping."
            )
        return details
    return [*details, f"first: {_with_settings(cause.layer.first)}", f"second: {_with_settings(cause.layer.second)}"]


def _paired_by_order(cause: Cause, mapping: ParameterMapping) -> list[str]:
    """Name the layers beside the code to blame that the order alone tells from others of the same shapes."""
    beside = {end.first.path for end in (cause.after, cause.before) if end}
    shapes_by_layers: dict[tuple[str, str], set[object]] = defaultdict(set)
    for pair in mapping.pairs:
        if pair.reason == "order":
            layers = pair.first.owner, pair.second.owner
            shapes_by_layers[layers].add((pair.first.role, pair.first.layout.torch_shape))
    number_of = Counter(map(frozenset, shapes_by_layers.values()))
    return [
        f"{first} | {second}"
        for (first, second), shapes in shapes_by_layers.items()
        if first in beside and number_of[frozenset(shapes)] > 1
    ]


def _with_settings(layer: Layer) -> str:
    return f"{layer.path} = {layer.settings}" if layer.path else layer.settings


def _of_ties(report: TieReport, model: str) -> list[str]:
    tied = sorted((line for line in report.lines if line.tied and not line.suspect), key=lambda line: -line.tied)
    return [
        f"On ties there in {model}: {line.op} at {line.label}, {line.tied} of {line.elements} elements"
        for line in tied[:_TIED_LINES]
    ]


def _row(pair: LayerPair, cause: Cause | None) -> Sequence[str]:
    mark = ">" if cause and pair is cause.marked_pair else ""
    apart = [pair.apart(gradients=is_gradient) for is_gradient in (False, True)]
    values, gradients = ("–" if math.isnan(distance) else f"{distance:.1e}" for distance in apart)
    findings = [pair.finding(gradients=is_gradient) for is_gradient in (False, True)]
    words = dict.fromkeys(_IN_THE_TABLE.get(finding, finding) for finding in findings)
    finding = ", ".join(word for word in words if word != "ok") or "ok"
    return mark, pair.first.name, pair.second.name, values, gradients, f"{pair.rounding:.0e}", finding
