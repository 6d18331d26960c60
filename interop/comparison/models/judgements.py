r"""Judge each array that two models have in common: they agree, or the difference is rounding, a tie, random, or a bug.

Each array gets its findings from more and more runs of both models:

1. Both run as given, and in float64; models of float64 in float32, if anything differs. A difference that is seen in
   the coarser precision alone is rounding. So is a small one of a model that computes a part in float32 all the same.
2. If values agree and gradients differ, both run under min_norm. A difference that vanishes there is one of ties.
3. If gradients still differ, both run at nudged numbers. One that vanishes there is one of near ties.
4. If anything differs, each runs with other random numbers. Where a model then differs from itself, that is random.

What is left is called ``port``: likely a bug, on either side.

Numbers that are equal but for rounding are a near tie, as those in the windows of a constant image. Rounding decides
which of them is the largest: in each model, and in each precision, it may be another one. Gradients differ with no bug.
A near tie is a difference of some :math:`\epsilon` times the largest number, a bug is one of the order of 1. So both
models get the same numbers added that lie between, of :math:`\sqrt{\epsilon}` times the largest: one of the window
stands out, and it is the same one in both. If gradients still differ there, the reason is no near tie.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np

from interop.comparison.leaves import (
    Difference,
    apart_of,
    as_reals,
    coarsest,
    difference_of,
    eps_of,
    is_negligible,
    is_rounding_alone,
    largest_finite,
    largest_of,
    may_be_rounding,
    tolerance_of,
)
from interop.comparison.models.layers import Key, Moment, What, crossing
from interop.comparison.models.mapping import Bound, Counterparts
from interop.comparison.models.model import Model, Run
from interop.comparison.models.places import Place
from interop.frameworks.base import Array

Judgement: TypeAlias = Literal["agrees", "rounding", "library", "ties", "near ties", "random", "port"]
"""How an array of both models compares:

- ``agrees``: within the tolerance of its dtype;
- ``rounding``: they differ in the coarser precision alone, or are nothing but rounding errors;
- ``library``: a variance that one library keeps with a factor n / (n - 1), the unbiased one, and the other without;
- ``ties``: gradients that differ, and agree under min_norm;
- ``near ties``: gradients that differ, and agree at nudged numbers, where none are equal but for rounding;
- ``random``: a side has another array there when it runs again, with other random numbers;
- ``port``: none of these explains the difference, which is likely a bug, on either side.
"""

Models: TypeAlias = tuple[Model, Model]


@dataclass(frozen=True)
class Judged:
    """How an array, or a gradient, of both models compares."""

    what: What
    name: str
    """Of the parameter; or the number of the input or the output."""
    is_gradient: bool
    apart: float
    """The largest difference, relative to the largest number, as the models were given."""
    apart_in_float64: float
    """The same in float64, or as given where that was not to be had."""
    finding: Judgement
    random_in: tuple[int, ...] = ()
    """The sides, 0 and 1, on which the difference is random."""

    @property
    def agrees(self) -> bool:
        return self.finding in ("agrees", "rounding", "library")


def roundings_of(bound: Bound) -> list[float]:
    r"""Return for each match what rounding explains behind it.

    A sum of n products is rounded n times, each time by up to :math:`\epsilon`, in random directions: by
    :math:`\sqrt{n} \epsilon` in all. The squares of these add up from layer to layer: behind dense layers of 100 and of
    300 inputs it is :math:`20 \epsilon`.
    """
    counterparts = bound.counterparts
    squares = np.zeros(len(counterparts.matches))
    answers = [model.answer(Run()) for model in bound.models]
    for pair in counterparts.mapping.pairs:
        n, fan_in = counterparts.match_of[pair.first.name], math.prod(pair.first.layout.torch_shape[1:])
        moments = [Moment(i, "outputs") for i in counterparts.matches[n]]
        eps = max(answer.eps[moment] for answer, moment in zip(answers, moments, strict=True))
        squares[n] = max(squares[n], fan_in * eps**2)  # that of the kernel: beside it a bias is one more term
    roundings = np.sqrt(np.cumsum(squares))
    indices = [i for i, _ in counterparts.matches]
    # A layer is rounded as the last match in it, which may be itself.
    return [float(roundings[bisect.bisect_left(indices, answers[0].layers[i].end) - 1]) for i in indices]


def judge(bound: Bound, to_judge: Sequence[Place], roundings: Sequence[float]) -> Mapping[int, list[Judged]]:
    """Judge each place, and list the judgements by matches.

    Args:
      bound: both models.
      to_judge: the places.
      roundings: for each match, how far rounding in the given precision sets apart, relative to the largest number.
    """
    as_given, precise = _as_given_and_precise(bound, to_judge)
    near_ties = precise.near_ties(bound.counterparts)
    judged = {}
    for place in to_judge:
        explained = _MARGIN * (max(roundings) if place.is_gradient else roundings[place.match])
        finding = _finding(place, as_given, precise, explained, near_ties)
        apart = as_given.compared[place].apart, precise.compared[place].apart
        judged[place] = Judged(place.what, place.name, place.is_gradient, *apart, finding)
    if not all(one.agrees for one in judged.values()):
        judged = _with_random(bound.models, judged, as_given.compared)
    by_match: dict[int, list[Judged]] = defaultdict(list)
    for place, one in judged.items():
        by_match[place.match].append(one)
    for pair in bound.counterparts.mapping.pairs if bound.are_own else ():
        one = Judged("parameters", pair.first.name, False, pair.apart, pair.apart, "agrees" if pair.agrees else "port")
        by_match[bound.counterparts.match_of[pair.first.name]].append(one)
    first, second = (model.integers for model in bound.models)
    for name in filter(second.__contains__, first):  # each model keeps its own, as an index of positions
        distance = apart_of(first[name], second[name])
        one = Judged("parameters", f"{name} (integers)", False, distance, distance, "port" if distance else "agrees")
        by_match[0].append(one)
    return by_match


_MARGIN = 4
"""How many times what rounding explains counts as rounding where float64 does not tell, as that is an estimate.

In tests/compare/test_precisions.py right models are apart by 0.3 times that at most, and where one has an epsilon of
1e-5 in place of 1e-6, by 15 times."""


def _finding(
    place: Place, as_given: _Findings, precise: _Findings, explained: float, near_ties: Collection[Place]
) -> Judgement:
    """Join what both precisions say of a place; rounding sets it apart by no more than ``explained``.

    Say the models have these numbers there::

        as given       in float64
        1, 1.1         1, 1.1          port, unless a convention of the library or a near tie explains it
        1, 1.001       1, 1            rounding, which is seen in the coarser precision alone
        1, inf or NaN  1, 1            port: one side overflows
        1, 0.5         1, 1            ties, if min_norm removes the difference: a tie of the coarser precision
        1, 1.00001     1, 1.00001      port, where a model computes a part in float32, if rounding explains less
    """
    finding, fine = precise.judgements[place], precise.compared[place]
    # Where a model computes a part in float32, as many do a softmax, an array of float64 keeps the rounding of that
    # part, and agrees by the tolerance of float32. That is too wide for a bug such as another epsilon.
    if finding == "agrees" and fine.is_rounded_within and fine.apart > explained:
        finding = "port"
    if finding in ("agrees", "rounding") and as_given.judgements[place] != "agrees":
        is_graver = as_given.judgements[place] == "ties" or np.isinf(as_given.compared[place].apart)
        finding = as_given.judgements[place] if is_graver else "rounding"
    # Conventions of libraries and near ties come last: they explain what would be called a bug without them.
    if finding == "port" and place.variance_before is not None:
        is_unbiasing = _differ_by_unbiasing(place.variance_before, (fine.first, fine.second), place.count)
        finding = "library" if is_unbiasing else finding
    return "near ties" if finding == "port" and place in near_ties else finding


@dataclass(frozen=True)
class _Compared:
    """The arrays of both models at a place."""

    first: Array
    second: Array
    eps: float
    """The largest epsilon of the floats that they are, or were computed from; 0 for integers."""

    @classmethod
    def of(cls, a: Array, b: Array, eps: float) -> _Compared:
        """Compare what was computed from floats of ``eps`` at most."""
        a, b = as_reals(a, b)
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return cls(a, b, 0.0)
        # One library may compute in bfloat16 what the other computes in float32: then no more digits are known.
        return cls(a, b, max(eps_of(a.dtype), eps_of(b.dtype), eps))

    @functools.cached_property
    def difference(self) -> Difference | None:
        """Measure how far the arrays differ, by the tolerance of ``eps``; None if they have two shapes."""
        if self.first.shape != self.second.shape:
            return None
        return difference_of(self.first, self.second, tolerance_of(self.eps), None)

    @property
    def apart(self) -> float:
        """The largest difference, relative to the largest number; infinite between arrays of two shapes."""
        return math.inf if self.difference is None else self.difference.relative_to(self.first, self.second)

    @property
    def agree(self) -> bool:
        return self.difference is not None and self.difference.beyond == 0

    @functools.cached_property
    def largest(self) -> float:
        return largest_of((self.first, self.second))

    @property
    def is_rounded_within(self) -> bool:
        """Whether they were computed from floats that are coarser than their own dtype."""
        return self.eps > eps_of(self.dtype)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The coarser of their dtypes."""
        return coarsest((self.first.dtype, self.second.dtype))


_AtPlaces: TypeAlias = Mapping[Place, _Compared]


def _compared(models: Models, to_judge: Iterable[Place], runs: tuple[Run, Run]) -> _AtPlaces:
    """Run each model as ``runs`` says, and compare the arrays at the places."""
    first, second = models[0].answer(runs[0]), models[1].answer(runs[1])
    return {
        place: _Compared.of(
            place.read[0](first),
            place.read[1](second),
            max(first.eps[place.moments[0]], second.eps[place.moments[1]]),
        )
        for place in to_judge
    }


def _as_given_and_precise(bound: Bound, to_judge: Sequence[Place]) -> tuple[_Findings, _Findings]:
    """Return the findings in the given precision, and those in float64; twice the first where float64 tells no more."""
    is_float64 = bound.precise == Run()
    as_given = _Findings.of(bound.models, to_judge, Run())
    if is_float64 and "port" not in as_given.judgements.values():  # float64 without bugs has nothing to explain
        return as_given, as_given
    # The second run is in the other precision: rounding is told by one coarse and one fine run, whichever was given.
    again = _Findings.of(bound.models, to_judge, Run(np.float32 if is_float64 else np.float64))
    coarse, fine = (again, as_given) if is_float64 else (as_given, again)
    rounding = _rounding_alone(coarse.compared, fine.compared)
    as_given, again = replace(as_given, rounding=rounding), replace(again, rounding=rounding)
    return as_given, as_given if is_float64 else again


@dataclass(frozen=True)
class _Findings:
    """The findings in one precision. Both models run under min_norm only if gradients differ where values agree."""

    models: Models
    run: Run
    compared: _AtPlaces
    rounding: Collection[Place] = frozenset()
    """The places whose arrays are rounding alone."""

    @classmethod
    def of(cls, models: Models, to_judge: Iterable[Place], run: Run) -> _Findings:
        """Run both models alike."""
        return cls(models, run, _compared(models, to_judge, (run, run)))

    @functools.cached_property
    def judgements(self) -> dict[Place, Judgement]:
        # Without min_norm, differences at ties still look like bugs.
        unmodified = _explained(self.compared, self.compared, self.rounding)
        if not _differing_gradients(unmodified):
            return unmodified
        run = self.run._replace(min_norm=True)
        return _explained(self.compared, _compared(self.models, self.compared, (run, run)), self.rounding)

    def near_ties(self, counterparts: Counterparts) -> frozenset[Place]:
        """Return the gradients that agree at nudged numbers, if gradients alone differ."""
        differing = _differing_gradients(self.judgements)
        if not differing:
            return frozenset()
        eps = max(compared.eps for compared in self.compared.values())
        first, second = _nudges(self.models, counterparts, self.compared, eps)
        runs = self.run._replace(nudges=first), self.run._replace(nudges=second)
        compared = _compared(self.models, self.compared, runs)
        judgements = _explained(compared, compared)
        # Nudges may leave the domain of a function: NaN on both sides is equal, and says nothing.
        return frozenset(
            place
            for place in differing
            if judgements[place] in ("agrees", "rounding") and np.isfinite(compared[place].largest)
        )


def _differing_gradients(judgements: Mapping[Place, Judgement]) -> list[Place]:
    """List the gradients that differ; none if values do, as gradients of other values say nothing of ties."""
    # A statistic is read by the next call: in this one no gradient depends on its new value.
    values = [judgement for place, judgement in judgements.items() if not place.is_gradient and place.what != "state"]
    if not {"agrees", "rounding"}.issuperset(values):
        return []
    return [place for place, judgement in judgements.items() if place.is_gradient and judgement == "port"]


def _explained(
    compared: _AtPlaces, under_min_norm: _AtPlaces, rounding: Collection[Place] = frozenset()
) -> dict[Place, Judgement]:
    """Judge each place: a gradient that differs, and agrees under min_norm, differs by ties.

    Where there was no run under min_norm, ``compared`` takes its place: what differs still differs, so no tie is found.
    """
    gradients = [side for place, each in compared.items() if place.is_gradient for side in (each.first, each.second)]
    scale = max(map(largest_finite, gradients), default=0.0)
    judgements: dict[Place, Judgement] = {}
    for place, each in compared.items():
        without_ties = under_min_norm[place]
        if each.agree:
            judgements[place] = "agrees"
        elif place in rounding:
            judgements[place] = "rounding"
        elif place.is_gradient and without_ties.agree:
            judgements[place] = "ties"
        else:
            arrays = each.first, each.second, without_ties.first, without_ties.second
            is_small = place.is_gradient and is_negligible(arrays, tolerance_of(each.eps), scale)
            judgements[place] = "rounding" if is_small else "port"
    return judgements


def _nudges(
    models: Models, counterparts: Counterparts, to_judge: Iterable[Place], eps: float
) -> tuple[dict[Key, Array], dict[Key, Array]]:
    """Draw for both models what to add to their inputs, and to the results of layers that sum.

    These have parameters, and no layers in them. They sum, so that equal results are rounded differently. What other
    layers return, such as an activation, is not summed: it ties exactly, or as its inputs do.
    """
    layers = models[0].answer(Run()).layers, models[1].answer(Run()).layers
    summing = {
        n
        for n in counterparts.match_of.values()
        if all(side[i].end == i + 1 for side, i in zip(layers, counterparts.matches[n], strict=True))
    }
    rng = np.random.default_rng(0)  # seeded, so that a verdict can be repeated
    to_first: dict[Key, Array] = {}
    to_second: dict[Key, Array] = {}
    for place in to_judge:
        is_nudged = place.match == 0 if place.what == "inputs" else place.match in summing
        if place.crossing is None or place.is_gradient or not is_nudged:
            continue
        first_key, second_key, align = place.crossing
        first, second = crossing(layers[0], first_key), crossing(layers[1], second_key)
        # Where each element of the first array lies in the second: the numbers of the elements, laid out as the first.
        # Of two rows of three, transposed in the first, they are [[0, 3], [1, 4], [2, 5]].
        positions = align(np.arange(second.value.size).reshape(second.value.shape))
        if first.gradient is None or second.gradient is None or positions.shape != first.value.shape:
            continue
        largest = largest_finite(first.value) or 1.0  # zeros have no scale
        to_first[first_key] = math.sqrt(eps) * largest * rng.uniform(-1, 1, size=tuple(positions.shape))
        flat = np.empty(positions.size)
        flat[positions] = to_first[first_key]
        to_second[second_key] = flat.reshape(second.value.shape)
    return to_first, to_second


def _differ_by_unbiasing(before: Array, after: Sequence[Array], count: int) -> bool:
    """Return whether two averages of variances differ by a factor n / (n - 1) of what the call adds, and by no more.

    With ``old + m * (batch - old)`` on one side, and ``old + m * (batch * n / (n - 1) - old)`` on the other, m is the
    same for all of them. Call what the two add ``biased`` and ``unbiased``: their difference is
    ``m * batch / (n - 1)``, and ``m * batch`` is ``biased + m * old``. So m is the one in
    ``(unbiased - biased) * (n - 1) = biased + m * old``.
    """
    old = before.astype(np.float64).ravel()
    added = [array.astype(np.float64).ravel() - old for array in after]
    for biased, unbiased in (added, added[::-1]):
        with np.errstate(all="ignore"):
            momentum = ((unbiased - biased) * (count - 1) - biased) / old
        # It is the same but for rounding, which the factor n - 1 multiplies: 1 % leaves room for that.
        if np.isfinite(momentum).all() and 0 < momentum.mean() <= 1 and np.ptp(momentum) <= 0.01 * momentum.mean():
            return True
    return False


def _rounding_alone(coarse: _AtPlaces, fine: _AtPlaces) -> frozenset[Place]:
    r"""Return the places of what is rounding alone on both sides.

    An array that is 0 in the coarser dtype is taken to have an error of up to :math:`\epsilon` times the largest number
    in the model. One that is too large for rounding may be a tie in the coarser dtype alone.
    """
    # By np.max, as Python's passes over NaN.
    in_model = {
        is_gradient: np.max([0.0, *(each.largest for place, each in fine.items() if place.is_gradient == is_gradient)])
        for is_gradient in (False, True)
    }
    alone = set()
    for place, each in coarse.items():
        scale = in_model[place.is_gradient]
        largest = each.largest or each.eps * scale
        is_small = may_be_rounding(largest, each.eps, scale)
        if is_small and is_rounding_alone(largest, fine[place].largest, each.dtype):
            alone.add(place)
    return frozenset(alone)


def _with_random(models: Models, judged: Mapping[Place, Judged], as_given: _AtPlaces) -> dict[Place, Judged]:
    """Call a difference random where a model differs from itself when it draws other random numbers."""
    random_in: dict[Place, tuple[int, ...]] = defaultdict(tuple)
    for number, model in enumerate(models):
        if not model.draws:  # which saves a run
            continue
        # Each model is compared with itself: two libraries never draw the same numbers.
        answer, reseeded = model.answer(Run()), model.answer(Run(reseeded=True))
        for place, one in judged.items():
            read = place.read[number]
            if not one.agrees and not _Compared.of(read(answer), read(reseeded), as_given[place].eps).agree:
                random_in[place] += (number,)
    return {
        place: replace(one, finding="random", random_in=random_in[place]) if place in random_in else one
        for place, one in judged.items()
    }
