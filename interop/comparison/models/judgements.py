"""Judge each array that two models have in common: they agree, or the difference is rounding, a tie, random, or a bug.

Each array gets its findings by `interop.comparison`, from more and more runs of both models:

1. Both run as given, and in float64; models of float64 in float32, if anything differs. A difference that is seen in
   the coarser precision alone is rounding. So is a small one of a model that computes a part in float32 all the same.
2. If values agree and gradients differ, both run under min_norm. A difference that vanishes there is one of ties.
3. If gradients still differ, both run at nudged numbers (see `nudges`). One that vanishes there is one of near ties.
4. If anything differs, each runs with other random numbers. Where a model then differs from itself, that is random.

What is left is called ``port``: likely a bug, on either side.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from interop.comparison.comparison import Comparison
from interop.comparison.leaves import coarsest, eps_of, is_rounding_alone, largest_of, tolerance_of
from interop.comparison.models.alignment import Align
from interop.comparison.models.counterparts import Counterparts
from interop.comparison.models.layers import Answer, Direction, Key, Layer, Moment, What, crossing
from interop.comparison.models.model import Run, Side
from interop.comparison.models.nudges import Crossing, nudges
from interop.comparison.recording import Recording
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

Sides: TypeAlias = tuple[Side, Side]


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


@dataclass(frozen=True)
class Place:
    """Where an array, or a gradient, is in the answers of both models."""

    match: int
    """The number of the match of layers that it belongs to."""
    what: What
    name: str
    is_gradient: bool
    read_first: Callable[[Answer], Array]
    read_second: Callable[[Answer], Array]
    """Read the array from the answers of either model, both in the layout of the first."""
    moments: tuple[Moment, Moment]
    """When the array is known, in either model."""
    variance_before: Array | None = None
    """The value before the call, if it is a variance that the call changes."""
    count: int = 0
    """Over how many numbers the call takes that variance."""

    @property
    def label(self) -> str:
        return f"{'gradient' if self.is_gradient else 'value'} {self.match} {self.what} {self.name}"


def places(
    counterparts: Counterparts,
    alignments: Mapping[tuple[int, Direction, int], Align],
    values: Mapping[str, Array],
    layers: Sequence[Layer],
) -> Iterator[Place]:
    """List all arrays to compare; ``values`` and ``layers`` are those of the first model."""
    for (n, direction, position), align in alignments.items():
        first, second = (Key(i, direction, position) for i in counterparts.matches[n])
        is_float = crossing(layers, first).gradient is not None
        moments = _moments(counterparts.matches[n], is_end=direction == "outputs")
        for is_gradient in (False, True) if is_float else (False,):
            yield Place(
                n,
                direction,
                str(position),
                is_gradient,
                functools.partial(_crossed, first, is_gradient, None),
                functools.partial(_crossed, second, is_gradient, align),
                _AT_END if is_gradient else moments,
            )
    for pair in counterparts.mapping.pairs:
        n = counterparts.match_of[pair.first.name]
        inputs = layers[counterparts.matches[n][0]].inputs
        # A variance has a number for each channel, taken over all numbers of the input in that channel.
        is_variance = pair.first.role == "var" and bool(inputs)
        is_trained = pair.first.trained
        if is_trained != pair.second.trained:
            continue  # one model has a gradient there, the other a value after the call: a note says so
        table = "gradients" if is_trained else "state"
        yield Place(
            n,
            "parameters" if is_trained else "state",
            pair.first.name,
            is_trained,
            functools.partial(_named, table, pair.first.name, None),
            functools.partial(_named, table, pair.second.name, pair.to_first),
            _AT_END if is_trained else _moments(counterparts.matches[n], is_end=True),
            values[pair.first.name] if is_variance else None,
            inputs[0].value.size // values[pair.first.name].size if is_variance else 0,
        )


def _moments(match: tuple[int, int], *, is_end: bool) -> tuple[Moment, Moment]:
    first, second = (Moment(i, is_end) for i in match)
    return first, second


_AT_END = _moments((0, 0), is_end=True)
"""When the models end; gradients depend on all that they compute."""


def _crossed(key: Key, is_gradient: bool, align: Align | None, answer: Answer) -> Array:
    point = crossing(answer.layers, key)
    array: Any = point.gradient if is_gradient else point.value
    return array if align is None else align(array)


def _named(table: str, name: str, align: Align | None, answer: Answer) -> Array:
    array: Array = getattr(answer, table)[name]
    return array if align is None else align(array)


def judge(
    to_judge: Sequence[Place],
    sides: Sides,
    crossings: Sequence[Crossing],
    given_dtype: np.dtype[Any],
    roundings: Sequence[float],
) -> list[Judged]:
    """Judge each place.

    A difference seen only in the given precision is rounding, unless it is NaN or infinite, or min_norm removes it.
    Where both arrays are nothing but rounding errors, in both precisions, it is rounding too.

    Args:
      to_judge: the places.
      sides: both models.
      crossings: where numbers are nudged, to tell near ties from bugs.
      given_dtype: the precision in which the models are given.
      roundings: for each match, how far rounding in that precision sets apart, relative to the largest number.
    """
    as_given, precise = _as_given_and_precise(to_judge, sides, given_dtype == np.float64)
    near_ties = precise.near_ties(crossings)
    judged = []
    # Explanations without a bug, of libraries and of near ties, come last: for what is still called a bug.
    for place in to_judge:
        finding, finding_as_given = precise.by_label[place.label], as_given.by_label[place.label]
        apart = as_given.apart[place.label], precise.apart[place.label]
        # Where a model computes a part in float32, as many do a softmax, an array of float64 keeps the rounding of that
        # part, and agrees by the tolerance of float32. That is too wide for a bug such as another epsilon.
        explained = _ROUNDING_WITHIN * (max(roundings) if place.is_gradient else roundings[place.match])
        if finding == "agrees" and precise.arrays.is_rounded_within(place.label) and apart[1] > explained:
            finding = "port"
        if finding in ("agrees", "rounding") and finding_as_given != "agrees":
            # An infinity in float32 is an overflow of one side, and no rounding; a tie may be one in float32 alone.
            is_graver = finding_as_given == "ties" or np.isinf(as_given.apart[place.label])
            finding = finding_as_given if is_graver else "rounding"
        if finding == "port" and place.variance_before is not None:
            variances = [side[place.label] for side in precise.arrays.sides]
            finding = "library" if _differ_by_unbiasing(place.variance_before, variances, place.count) else finding
        if finding == "port" and place.label in near_ties:
            finding = "near ties"
        judged.append(Judged(place.what, place.name, place.is_gradient, *apart, finding))
    return judged if all(one.agrees for one in judged) else _with_random(to_judge, judged, sides, as_given.arrays.eps)


def _as_given_and_precise(to_judge: Sequence[Place], sides: Sides, is_float64: bool) -> tuple[_Findings, _Findings]:
    """Return the findings in the given precision, and those in float64; twice the first where float64 tells no more."""
    arrays = _arrays(to_judge, sides, Run())
    as_given = _Findings(to_judge, sides, Run(), arrays)
    if is_float64 and "port" not in as_given.by_label.values():  # float64 without bugs has nothing to explain
        return as_given, as_given
    # The second run is in the other precision: rounding is told by one coarse and one fine run, whichever was given.
    again = _arrays(to_judge, sides, Run(np.float32 if is_float64 else np.float64))
    coarse, fine = (again, arrays) if is_float64 else (arrays, again)
    rounding = _rounding_alone(to_judge, coarse, fine)
    as_given = _Findings(to_judge, sides, Run(), arrays, rounding)
    return as_given, as_given if is_float64 else _Findings(to_judge, sides, Run(np.float64), fine, rounding)


_ROUNDING_WITHIN = 4
"""How many times what rounding explains is one where float64 does not tell: what is explained is an estimate."""


class _Findings:
    """The findings in one precision. Both sides run under min_norm only if gradients differ where values agree."""

    def __init__(
        self,
        to_judge: Sequence[Place],
        sides: Sides,
        run: Run,
        arrays: _Arrays,
        rounding: Collection[str] = frozenset(),
    ) -> None:
        self._places, self._sides, self._run, self._rounding = to_judge, sides, run, rounding
        self.arrays = arrays

    @functools.cached_property
    def apart(self) -> dict[str, float]:
        """Maps labels to how far the arrays are apart."""
        first, second = self.arrays.sides
        return {label: apart_of(array, second[label]) for label, array in first.items()}

    @functools.cached_property
    def by_label(self) -> dict[str, Judgement]:
        """Maps labels to findings."""
        if not self._only_gradients_differ:
            return self._unmodified  # gradients of other values say nothing of ties
        return self._compared_with(_arrays(self._places, self._sides, self._run._replace(min_norm=True)))

    @functools.cached_property
    def _unmodified(self) -> dict[str, Judgement]:
        """Maps labels to the findings without min_norm, where differences at ties still look like bugs."""
        return self._compared_with(self.arrays)

    @functools.cached_property
    def _only_gradients_differ(self) -> bool:
        """Whether gradients differ, and values agree; updated statistics may differ too."""
        # A statistic is read by the next call: in this one no gradient depends on its new value.
        entering = [place for place in self._places if not place.is_gradient and place.what != "state"]
        return all(self._unmodified[place.label] in ("agrees", "rounding") for place in entering) and any(
            self._unmodified[place.label] == "port" for place in self._places if place.is_gradient
        )

    def _compared_with(self, under_min_norm: _Arrays) -> dict[str, Judgement]:
        findings = _compared(self.arrays, under_min_norm)
        return {
            label: "rounding" if finding != "agrees" and label in self._rounding else finding
            for label, finding in findings.items()
        }

    def near_ties(self, crossings: Sequence[Crossing]) -> frozenset[str]:
        """Return the labels of gradients that agree at nudged numbers, if gradients alone differ."""
        labels = [place.label for place in self._places if place.is_gradient and self.by_label[place.label] == "port"]
        if not self._only_gradients_differ or not labels:
            return frozenset()
        first, second = (side.answer(Run()).layers for side in self._sides)
        first_nudges, second_nudges = nudges(crossings, (first, second), max(self.arrays.eps.values()))
        runs = self._run._replace(nudges=first_nudges), self._run._replace(nudges=second_nudges)
        arrays = _arrays(self._places, self._sides, *runs)
        findings = _compared(arrays, arrays)
        # Nudges may leave the domain of a function: NaN on both sides is equal, and says nothing.
        is_finite = {label: all(np.isfinite(side[label]).all() for side in arrays.sides) for label in labels}
        return frozenset(label for label in labels if findings[label] in ("agrees", "rounding") and is_finite[label])


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


def _rounding_alone(to_judge: Sequence[Place], coarse: _Arrays, fine: _Arrays) -> frozenset[str]:
    r"""Return the labels of what is rounding alone on both sides.

    An array that is 0 in the coarser dtype is taken to have an error of up to :math:`\epsilon` times the largest number
    in the model. One with numbers above :math:`\sqrt\epsilon` times that number has lost more than half of its digits,
    which rounding does not explain: it may be a tie in the coarser dtype alone.
    """
    coarse_largest, fine_largest = (
        {place.label: largest_of(side[place.label] for side in arrays.sides) for place in to_judge}
        for arrays in (coarse, fine)
    )
    in_model = {
        is_gradient: max([0.0, *(fine_largest[p.label] for p in to_judge if p.is_gradient == is_gradient)])
        for is_gradient in (False, True)
    }
    labels = set()
    for place in to_judge:
        label, of_model, eps = place.label, in_model[place.is_gradient], coarse.eps[place.label]
        largest = coarse_largest[label] or eps * of_model
        is_small = eps > 0 and largest <= eps**0.5 * of_model
        if is_small and is_rounding_alone(largest, fine_largest[label], coarse.sides[0][label].dtype):
            labels.add(label)
    return frozenset(labels)


def _with_random(
    to_judge: Sequence[Place], judged: Sequence[Judged], sides: Sides, eps: Mapping[str, float]
) -> list[Judged]:
    """Call a difference random where a side differs from itself when it draws other random numbers."""
    random_in: dict[str, tuple[int, ...]] = {place.label: () for place in to_judge}
    for number, side in enumerate(sides):
        if not side.model.draws:  # which saves a run
            continue
        arrays_of = [(place.label, (place.read_first, place.read_second)[number]) for place in to_judge]
        # Each side is compared with itself: two libraries never draw the same numbers.
        reseeded = side.answer(Run(reseeded=True))
        pairs = {label: (array(side.answer(Run())), array(reseeded)) for label, array in arrays_of}
        arrays = _in_common_dtypes(pairs, eps)
        for label, finding in _compared(arrays, arrays).items():
            if finding == "port":
                random_in[label] += (number,)
    return [
        replace(one, finding="random", random_in=random_in[place.label])
        if random_in[place.label] and not one.agrees
        else one
        for place, one in zip(to_judge, judged, strict=True)
    ]


_JUDGEMENTS: Mapping[str, Judgement] = {
    "agrees": "agrees",
    "rounding": "rounding",
    "ties": "ties",
    "hidden tie": "agrees",  # gradients that agree unmodified agree: what min_norm does to one side is no bug
}
"""Maps findings of `interop.comparison` to judgements; all others are bugs of the port."""


class _Arrays(NamedTuple):
    """The arrays to compare."""

    sides: tuple[dict[str, Array], dict[str, Array]]
    """For both models, maps labels to arrays, in the coarser of the two dtypes."""
    eps: dict[str, float]
    """Maps labels to the largest epsilon of the floats that the arrays were computed from; 0 for integers."""

    def is_rounded_within(self, label: str) -> bool:
        """Return whether an array was computed from floats that are coarser than its own dtype."""
        return self.eps[label] > eps_of(self.sides[0][label].dtype)


def _arrays(to_judge: Sequence[Place], sides: Sides, first_run: Run, second_run: Run | None = None) -> _Arrays:
    """Run both sides, and return the arrays to compare."""
    first, second = sides[0].answer(first_run), sides[1].answer(second_run or first_run)
    pairs = {place.label: (place.read_first(first), place.read_second(second)) for place in to_judge}
    eps = {place.label: max(first.eps[place.moments[0]], second.eps[place.moments[1]]) for place in to_judge}
    return _in_common_dtypes(pairs, eps)


def _in_common_dtypes(pairs: Mapping[str, tuple[Array, Array]], eps: Mapping[str, float]) -> _Arrays:
    first, second = {}, {}
    for label, pair in pairs.items():
        a, b = map(_as_numbers, pair)
        if jnp.issubdtype(a.dtype, jnp.floating):
            # One library may compute in bfloat16 what the other computes in float32: then no more digits are known.
            dtype = coarsest((a.dtype, b.dtype))
            a, b = a.astype(dtype, copy=False), b.astype(dtype, copy=False)
        first[label], second[label] = a, b
    of_dtypes = {label: eps_of(array.dtype) for label, array in first.items()}
    largest = {label: max(of_dtype, eps[label]) if of_dtype else 0.0 for label, of_dtype in of_dtypes.items()}
    return _Arrays((first, second), largest)


def _as_numbers(array: Array) -> Array:
    """Return complex numbers as pairs, an axis more, and truth values as 0 and 1."""
    if np.iscomplexobj(array):
        return np.stack([array.real, array.imag], axis=-1)
    return array.astype(np.uint8) if array.dtype == np.bool_ else array


def _compared(arrays: _Arrays, under_min_norm: _Arrays) -> dict[str, Judgement]:
    """Compare the arrays of two sides; what agrees under min_norm is one of ties.

    The same arrays twice explain nothing.
    """
    findings: dict[str, Judgement] = {}
    for eps in set(arrays.eps.values()):
        labels = [label for label in arrays.eps if arrays.eps[label] == eps]
        of_labels = [
            [{label: each.sides[side][label] for label in labels} for each in (arrays, under_min_norm)]
            for side in (0, 1)
        ]
        first, second = (Recording("", "", {}, unmodified, min_norm) for unmodified, min_norm in of_labels)
        leaves = Comparison(first, second, rtol=tolerance_of(eps)).leaves
        findings |= {leaf.label: _JUDGEMENTS.get(leaf.finding, "port") for leaf in leaves}
    return findings


def apart_of(a: Array, b: Array) -> float:
    """Return the largest difference, relative to the largest finite number.

    NaN and NaN, and equal infinities, are not apart; arrays of two shapes are infinitely so.
    """
    x, y = (_as_numbers(array).astype(np.float64, copy=False) for array in (a, b))
    if x.shape != y.shape:
        return float("inf")
    with np.errstate(all="ignore"):
        differences = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    if not np.isfinite(differences).all():
        return float("inf")
    largest = max(float(np.abs(side[np.isfinite(side)]).max(initial=0.0)) for side in (x, y))
    return float(differences.max(initial=0.0) / largest) if largest else 0.0
