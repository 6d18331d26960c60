"""Where two models part first: the layer to blame, or the code between layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from interop.comparison.models.comparison import Judged, Judgement, What
from interop.comparison.models.layers import Layer

_OF_TIES: tuple[Judgement, ...] = ("ties", "near ties")


@dataclass(frozen=True)
class LayerPair:
    """A layer of both models, and what crosses its boundary, is learned in it, or kept in it."""

    first: Layer
    second: Layer
    indices: tuple[int, int]
    """Among the layers of the models."""
    parent: int | None
    """The index of the pair around this."""
    judged: tuple[Judged, ...]
    rounding: float
    """What rounding may leave of the largest number here, after all sums up to here, in the dtype of the inputs."""

    def agrees(self, *what: What, gradients: bool, allowed: Collection[Judgement] = ()) -> bool:
        return not self.differing(*what, gradients=gradients, allowed=allowed)

    def differing(self, *what: What, gradients: bool, allowed: Collection[Judgement] = ()) -> list[Judged]:
        """Those that do not agree, but for findings that are allowed."""
        chosen = self.those(*what, gradients=gradients)
        return [j for j in chosen if not j.agrees and j.finding not in allowed]

    def those(self, *what: What, gradients: bool) -> list[Judged]:
        return [j for j in self.judged if j.is_gradient == gradients and (j.what in what or not what)]

    def apart(self, *, gradients: bool, in_float64: bool = False) -> float:
        """The largest difference of what it returns and keeps, or of the gradients in it, beside the largest number."""
        chosen = self.those(*(("inputs", "parameters") if gradients else ("outputs", "state")), gradients=gradients)
        return max((j.apart_in_float64 if in_float64 else j.apart for j in chosen), default=0.0)

    def finding(self, *, gradients: bool) -> Judgement:
        """The gravest of its findings."""
        return gravest(self.those(gradients=gradients))

    @property
    def name(self) -> str:
        a, b = self.first.name, self.second.name
        return a if a == b else f"{a} | {b}"


def gravest(judged: Sequence[Judged]) -> Judgement:
    found = {j.finding for j in judged}
    order: tuple[Judgement, ...] = ("port", "random", "ties", "near ties", "library", "rounding")
    return next((finding for finding in order if finding in found), "agrees")


@dataclass(frozen=True)
class Cause:
    """Where the models part first."""

    layer: LayerPair
    parts: tuple[Judged, ...]
    """What differs there."""
    after: LayerPair | None = None
    before: LayerPair | None = None
    """If no layer in it is to blame but its own code, between which of these that is, as far as is known."""
    is_own_code: bool = False
    between: tuple[tuple[Layer, ...], tuple[Layer, ...]] = ((), ())
    """The layers of both models without counterpart that run in there."""

    @property
    def is_gradient(self) -> bool:
        """Whether values agree, and gradients part."""
        return self.parts[0].is_gradient

    @property
    def finding(self) -> Judgement:
        finding = gravest(self.parts)
        return finding if self.is_gradient or finding == "random" else "port"


def cause_of(pairs: Sequence[LayerPair], all_layers: tuple[Sequence[Layer], Sequence[Layer]]) -> Cause | None:
    """The cause; None if they agree."""
    found = _in_values(pairs) or _in_gradients(pairs, allowed=_OF_TIES) or _in_gradients(pairs)
    if found is None or found.finding in _OF_TIES:  # other statistics are graver than ties
        found = _in_state(pairs) or found
    if found is None or not found.is_own_code:
        return found
    between = tuple(_between(found, layers, side, pairs) for side, layers in enumerate(all_layers))
    return Cause(found.layer, found.parts, found.after, found.before, True, (between[0], between[1]))


def _in_values(pairs: Sequence[LayerPair]) -> Cause | None:
    """The first layer, in the order in which they end, that takes what is alike and returns what is not."""
    for pair in pairs:
        differing = pair.differing("parameters", gradients=False)
        if differing:
            return Cause(pair, tuple(differing))
    by_end = sorted(range(len(pairs)), key=lambda n: (pairs[n].first.end, -n))
    for n in by_end:
        pair = pairs[n]
        inside = [m for m, other in enumerate(pairs) if other.parent == n]
        spoilt = [m for m in inside if not pairs[m].agrees("inputs", gradients=False)]
        differing = pair.differing("outputs", gradients=False)
        if spoilt and not differing:  # nothing is left of it in the end
            differing = pairs[spoilt[0]].differing("outputs", gradients=False)
        if not differing or not pair.agrees("inputs", gradients=False):
            continue
        if inside and not spoilt and n and _is_mended_later(pairs, n):
            continue  # the boundary lies elsewhere, as before and behind an activation
        if not inside:
            return Cause(pair, tuple(differing))
        before = spoilt[0] if spoilt else None
        earlier = [m for m in inside if (before is None or m < before) and pairs[m].agrees("outputs", gradients=False)]
        if before is not None:
            differing = pairs[before].differing("inputs", gradients=False)
        return Cause(
            pair,
            tuple(differing),
            pairs[earlier[-1]] if earlier else None,
            pairs[before] if before is not None else None,
            is_own_code=True,
        )
    differing_pairs = [(n, pairs[n].differing("outputs", gradients=False)) for n in by_end]
    return next((Cause(pairs[n], tuple(parts)) for n, parts in differing_pairs if parts), None)


def _is_mended_later(pairs: Sequence[LayerPair], n: int) -> bool:
    later = [pair for pair in pairs if pair.first.end > pairs[n].first.end and pair.indices[0] >= pairs[n].first.end]
    return any(pair.those("inputs", gradients=False) and pair.agrees("inputs", gradients=False) for pair in later)


def _in_gradients(pairs: Sequence[LayerPair], allowed: Collection[Judgement] = ()) -> Cause | None:
    """The last layer with like gradients of what it returns, and other ones of what it takes, or of its parameters."""
    for n in reversed(range(len(pairs))):
        pair = pairs[n]
        inside = [m for m, other in enumerate(pairs) if other.parent == n]
        spoilt = [m for m in inside if not pairs[m].agrees("outputs", gradients=True, allowed=allowed)]
        differing = pair.differing("inputs", "parameters", gradients=True, allowed=allowed)
        if spoilt and not differing:  # the gradient is 0 before the layers that it reaches
            differing = pairs[spoilt[-1]].differing("outputs", gradients=True, allowed=allowed)
        if not differing or not pair.agrees("outputs", gradients=True, allowed=allowed):
            continue
        if not inside:
            return Cause(pair, tuple(differing))
        after = spoilt[-1] if spoilt else None
        later = [m for m in inside if after is None or m > after]
        like = [m for m in later if pairs[m].agrees("inputs", gradients=True, allowed=allowed)]
        return Cause(
            pair,
            tuple(differing),
            pairs[after] if after is not None else None,
            pairs[like[0]] if like else None,
            is_own_code=True,
        )
    differing_pairs = [(pair, pair.differing(gradients=True, allowed=allowed)) for pair in reversed(pairs)]
    return next((Cause(pair, tuple(parts)) for pair, parts in differing_pairs if parts), None)


def _in_state(pairs: Sequence[LayerPair]) -> Cause | None:
    """The first layer whose statistics differ after the call."""
    differing = [(pair, pair.differing("state", gradients=False)) for pair in pairs]
    return next((Cause(pair, tuple(parts)) for pair, parts in differing if parts), None)


def _between(cause: Cause, layers: Sequence[Layer], side: int, pairs: Sequence[LayerPair]) -> tuple[Layer, ...]:
    """The layers of a model that run where the cause is, and have no counterpart."""
    begin = cause.layer.indices[side] + 1
    end = layers[cause.layer.indices[side]].end
    if cause.after is not None:
        begin = layers[cause.after.indices[side]].end
    if cause.before is not None:
        end = cause.before.indices[side]
    matched = {pair.indices[side] for pair in pairs}
    return tuple(layers[i] for i in range(begin, end) if i not in matched)
