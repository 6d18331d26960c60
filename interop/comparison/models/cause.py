"""Find where two models diverge first: the layer to blame, or the code between layers.

A pass carries values forward through the layers, or gradients backward. A layer is to blame if what enters it agrees,
and what leaves it does not. Layers are nested, so the search goes in the order in which they are done, the inner ones
before the one around them: the first that fits is the innermost. If that layer has sublayers, none of them fits, or it
would have been found first. Then its own code is to blame, between the last sublayer that agrees and the first that
gets another input. All that differs later differs because of that.

Say a model calls ``a``, doubles the result, and calls ``b``; its port forgets to double:

    layer   inputs   outputs
    a       agree    agree
    b       differ   differ     not to blame: its inputs differ
    model   agree    differ     to blame; its own code, after a and before b

If values agree everywhere, the same search runs backward: the gradient of a layer's outputs enters it, and those of its
inputs and parameters leave it.
"""

import itertools
import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from interop.comparison.models.judgements import Judged, Judgement
from interop.comparison.models.layers import Direction, Layer, Moment, Span, What

_MOMENTUM = re.compile(r"\b(?:momentum|decay_rate)=([\d.e-]+)")
_OF_TIES: tuple[Judgement, ...] = ("ties", "near ties")


@dataclass(frozen=True, repr=False)
class LayerPair:
    """A layer of both models, and how what it takes, returns, learns and keeps compares."""

    first: Layer
    second: Layer
    indices: tuple[int, int]
    """Among the layers of the models."""
    parent: int | None
    """The index of the pair around this."""
    judged: tuple[Judged, ...]
    rounding: float
    """The relative difference that rounding in all layers up to this one can cause, in the given dtype."""
    updates: tuple[bool, bool] = (False, False)
    """For each model, whether the call changed the statistics of the layer, as it does in training."""

    def differing(self, *what: What, gradients: bool, allowed: Collection[Judgement] = ()) -> list[Judged]:
        """Return the judgements that do not agree, without findings that are allowed."""
        selected = self.select(*what, gradients=gradients)
        return [j for j in selected if not j.agrees and j.finding not in allowed]

    def select(self, *what: What, gradients: bool) -> list[Judged]:
        """Return the judgements of values, or of gradients; those of ``what`` alone, if it is passed."""
        return [j for j in self.judged if j.is_gradient == gradients and (j.what in what or not what)]

    def apart(self, *, gradients: bool, in_float64: bool = False) -> float:
        """Return the largest distance of what it returns and keeps, or of the gradients of what it takes and learns.

        It is NaN where nothing of that is compared.
        """
        selected = self.select(*(("inputs", "parameters") if gradients else ("outputs", "state")), gradients=gradients)
        return max((j.apart_in_float64 if in_float64 else j.apart for j in selected), default=math.nan)

    def finding(self, *, gradients: bool) -> Judgement:
        """Return the gravest of its findings."""
        return gravest(self.select(gradients=gradients))

    @property
    def name(self) -> str:
        a, b = self.first.name, self.second.name
        return a if a == b else f"{a} | {b}"

    def __repr__(self) -> str:
        return f"<{self.name}: {gravest(self.judged)}>"


def gravest(judged: Sequence[Judged]) -> Judgement:
    findings = {j.finding for j in judged}
    # A bug is always told. What is random can be switched off, and checked again. Ties, conventions of libraries and
    # rounding are no fault of the port.
    order: tuple[Judgement, ...] = ("port", "random", "ties", "near ties", "library", "rounding")
    return next((finding for finding in order if finding in findings), "agrees")


@dataclass(frozen=True)
class Cause:
    """Where the models diverge first."""

    layer: LayerPair
    parts: tuple[Judged, ...]
    """What differs there."""
    after: LayerPair | None = None
    before: LayerPair | None = None
    """The sublayers before and behind the code to blame, if it is the layer's own.

    Of values, the outputs of ``after`` agree, and the inputs of ``before`` differ. Of gradients, which come from the
    end, those that leave ``before`` agree, and those that enter ``after`` differ.
    """
    is_own_code: bool = False
    between: tuple[tuple[Layer, ...], tuple[Layer, ...]] = ((), ())
    """The layers of both models without counterpart that run in there."""

    @property
    def marked_pair(self) -> LayerPair:
        """The layer that a table marks: the one behind the code to blame, else the one before it, else the layer."""
        return self.before or self.after or self.layer

    def span(self, side: int) -> Span:
        """Return the span of the run of a model, 0 or 1, in which the cause is."""
        begin, end = (Moment(self.layer.indices[side], direction) for direction in get_args(Direction))
        if self.after:
            begin = Moment(self.after.indices[side], "outputs")
        if self.before:
            end = Moment(self.before.indices[side], "inputs")
        return begin, end

    @property
    def is_gradient(self) -> bool:
        """Whether values agree, and gradients diverge."""
        return self.parts[0].is_gradient

    @property
    def finding(self) -> Judgement:
        """The gravest finding there; values that differ are a bug, or random: ties change gradients alone."""
        gravest_there = gravest(self.parts)
        return gravest_there if self.is_gradient or gravest_there == "random" else "port"


def cause_of(pairs: Sequence[LayerPair], all_layers: tuple[Sequence[Layer], Sequence[Layer]]) -> Cause | None:
    """Return the cause; None if the models agree.

    Parameters are searched first, then values, then gradients without those that ties explain, then statistics, which
    reach no later layer, and ties last.
    """
    # Other parameters explain whatever differs behind them, and are no fault of the code: they come first.
    cause = (
        _first_differing(pairs, "parameters")
        or _first_to_diverge(pairs, _Pass(pairs, is_backward=False))
        or _first_to_diverge(pairs, _Pass(pairs, is_backward=True, allowed=_OF_TIES))
        or _first_to_diverge(pairs, _Pass(pairs, is_backward=True))
    )
    if cause is None or cause.finding in _OF_TIES:
        cause = _first_differing(pairs, "state") or cause
    if cause is None or not cause.is_own_code:
        return cause
    first, second = (_without_counterpart(cause, layers, side, pairs) for side, layers in enumerate(all_layers))
    return replace(cause, between=(first, second))


class _Pass:
    """A pass of values forward, or of gradients backward, through the layers."""

    def __init__(self, pairs: Sequence[LayerPair], *, is_backward: bool, allowed: Collection[Judgement] = ()) -> None:
        self._pairs, self.is_backward, self._allowed = pairs, is_backward, allowed
        # A layer is done at its end; of two with the same end, the inner one first. Backward, begin and end change
        # places: the layer that begins last comes first.
        forward = sorted(range(len(pairs)), key=lambda n: (pairs[n].first.end, -n))
        self.order = list(reversed(range(len(pairs)))) if is_backward else forward
        """The numbers of the pairs, in the order in which the pass is done with them."""

    def inside(self, n: int) -> list[LayerPair]:
        """Return the pairs directly in that of number n, in the order in which they are reached."""
        inside = [pair for pair in self._pairs if pair.parent == n]
        return inside[::-1] if self.is_backward else inside

    def entering(self, pair: LayerPair) -> list[Judged]:
        """Return what differs of all that enters a layer."""
        return self.differing(pair, "outputs" if self.is_backward else "inputs")

    def leaving(self, pair: LayerPair) -> list[Judged]:
        """Return what differs of all that leaves a layer."""
        return self.differing(pair, *(("inputs", "parameters") if self.is_backward else ("outputs",)))

    def differing(self, pair: LayerPair, *what: What) -> list[Judged]:
        return pair.differing(*what, gradients=self.is_backward, allowed=self._allowed)


def _first_differing(pairs: Sequence[LayerPair], what: What) -> Cause | None:
    """Return the first layer with other parameters, or whose statistics differ after the call."""
    return _first_with((pair, pair.differing(what, gradients=False)) for pair in pairs)


def _first_with(differing: Iterable[tuple[LayerPair, Sequence[Judged]]]) -> Cause | None:
    return next((Cause(pair, tuple(parts)) for pair, parts in differing if parts), None)


def _first_to_diverge(pairs: Sequence[LayerPair], a_pass: _Pass) -> Cause | None:
    """Search a pass for the first layer whose inputs agree, and whose outputs do not."""
    for n in a_pass.order:
        pair, inside = pairs[n], a_pass.inside(n)
        first_differing = next((inner for inner in inside if a_pass.entering(inner)), None)
        parts = a_pass.leaving(pair)
        # If the difference is lost in the layer, as one that is multiplied by 0, the sublayer shows it.
        if first_differing and not parts:
            parts = a_pass.differing(first_differing, "outputs")
        if not parts or a_pass.entering(pair):
            continue
        return _in_own_code(a_pass, pair, inside, parts) if inside else Cause(pair, tuple(parts))
    # No layer can be blamed: name the first whose results differ.
    return _first_with((pairs[n], a_pass.differing(pairs[n], "outputs")) for n in a_pass.order)


def _in_own_code(a_pass: _Pass, pair: LayerPair, inside: Sequence[LayerPair], parts: Sequence[Judged]) -> Cause:
    """Return the cause in the code of a layer, between the last layer in it that agrees and the first that differs.

    Say a layer calls a, b and c in this order. If forward the outputs of a agree, and the inputs of b differ, that is
    after a and before b. If backward the gradients that leave c agree, and those that enter b differ, it is after b and
    before c: the pass comes from the end.
    """
    reached = list(itertools.takewhile(lambda inner: not a_pass.entering(inner), inside))
    first_differing = inside[len(reached)] if len(reached) < len(inside) else None
    last_agreeing = reached[-1] if reached else None
    if a_pass.is_backward:
        return Cause(pair, tuple(parts), first_differing, last_agreeing, is_own_code=True)
    parts = a_pass.entering(first_differing) if first_differing else parts
    return Cause(pair, tuple(parts), last_agreeing, first_differing, is_own_code=True)


def _without_counterpart(
    cause: Cause, layers: Sequence[Layer], side: int, pairs: Sequence[LayerPair]
) -> tuple[Layer, ...]:
    """Return the layers of a model that run where the cause is, and have no counterpart."""
    # The layers stand in the order in which they began, so that those within one follow it, up to its ``end``.
    begin, end = cause.span(side)
    first = layers[begin.layer].end if begin.direction == "outputs" else begin.layer + 1
    behind = layers[end.layer].end if end.direction == "outputs" else end.layer
    matched = {pair.indices[side] for pair in pairs}
    return tuple(layers[i] for i in range(first, behind) if i not in matched)


def slip_of(cause: Cause, models: tuple[str, str]) -> str:
    """Name in words the slip behind a difference, if it is one of the commonest of ports, else nothing.

    Args:
      cause: where the models first differ.
      models: their names, each with its library, as ``Network (flax 0.12.8)``.
    """
    if cause.is_own_code:
        return ""
    if cause.layer.updates in ((True, False), (False, True)):
        training, evaluating = ("first", "second") if cause.layer.updates[0] else ("second", "first")
        return f"The {training} model is in training mode there, the {evaluating} uses its running averages."
    momenta = [_MOMENTUM.search(layer.settings) for layer in (cause.layer.first, cause.layer.second)]
    of_torch = ["(torch " in model for model in models]
    if cause.parts[0].what == "state" and all(momenta) and any(of_torch) and not all(of_torch):
        text, text_elsewhere = (momenta[of_torch.index(is_torch)][1] for is_torch in (True, False))  # type: ignore[index]
        if math.isclose(float(text) + float(text_elsewhere), 1):
            return ""  # they are as they should be: the statistics differ for another reason
        return (
            "Look at the momentum: in torch it is the share of the new statistics, elsewhere that of the old, so that "
            f"{text} in torch is {1 - float(text):.4g} in the other model."
        )
    return ""
