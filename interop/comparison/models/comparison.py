"""What two models answer, put side by side, and judged: agreement, ties, rounding, or a bug."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import jax.numpy as jnp
import numpy as np

from interop.comparison.comparison import Comparison
from interop.comparison.leaves import is_rounding_alone, largest_of
from interop.comparison.models.layers import Answer, Layer
from interop.comparison.models.mapping import ParameterMapping
from interop.comparison.models.matching import Align
from interop.comparison.models.model import Run
from interop.comparison.recording import Recording
from interop.frameworks.base import Array

Judgement: TypeAlias = Literal["agrees", "rounding", "library", "ties", "near ties", "random", "port"]
"""``random``: a side has another array there when it runs again, with other random numbers.

``near ties``: gradients that differ here and agree beside, where no numbers are equal but for rounding.

``library``: a variance that one library keeps with a factor n / (n - 1), the unbiased one, and the other without."""
What: TypeAlias = Literal["inputs", "outputs", "parameters", "state"]


@dataclass(frozen=True)
class Judged:
    """An array of both models, or a gradient."""

    what: What
    name: str
    """Of the parameter; or the number of the input or the output."""
    is_gradient: bool
    apart: float
    """The largest difference, beside the largest number, as the models were given."""
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
    """Where an array comes from on both sides."""

    pair: int
    what: What
    name: str
    is_gradient: bool
    first: Callable[[Answer], Array]
    second: Callable[[Answer], Array]
    before: Array | None = None
    """Of a variance that the call changes, what it was."""
    count: int = 0
    """Over how many numbers the call takes it."""

    @property
    def label(self) -> str:
        return f"{'gradient' if self.is_gradient else 'value'} {self.pair} {self.what} {self.name}"


def places(
    pairs: Sequence[tuple[int, int]],
    aligns: Mapping[tuple[int, What, int], Align],
    mapping: ParameterMapping,
    owners: Mapping[str, int],
    before: Mapping[str, Array],
    layers: Sequence[Layer],
) -> Iterator[Place]:
    """All arrays to compare.

    By the name of a parameter of the first model, whose ``layers`` these are, ``owners`` has the pair of its layer, and
    ``before`` its value.
    """
    for (n, what, k), align in aligns.items():
        i, j = pairs[n]
        is_float = getattr(layers[i], what)[k].gradient is not None
        for is_gradient in (False, True) if is_float else (False,):
            yield Place(
                n,
                what,
                str(k),
                is_gradient,
                _crossed(i, what, k, is_gradient, None),
                _crossed(j, what, k, is_gradient, align),
            )
    for pair in mapping.pairs:
        n = owners[pair.first.name]
        inputs = layers[pairs[n][0]].inputs
        is_variance = pair.first.role == "var" and bool(inputs)
        trained = pair.first.trained and pair.second.trained
        table = "gradients" if trained else "state"
        yield Place(
            n,
            "parameters" if trained else "state",
            pair.first.name,
            trained,
            functools.partial(_named, table, pair.first.name, None),
            functools.partial(_named, table, pair.second.name, pair.to_first),
            before[pair.first.name] if is_variance else None,
            inputs[0].value.size // before[pair.first.name].size if is_variance else 0,
        )


def _crossed(layer: int, what: What, k: int, is_gradient: bool, align: Align | None) -> Callable[[Answer], Array]:
    def array(answer: Answer) -> Array:
        point = getattr(answer.layers[layer], what)[k]
        found: Array = point.gradient if is_gradient else point.value
        return found if align is None else align(found)

    return array


def _named(table: str, name: str, align: Align | None, answer: Answer) -> Array:
    found: Array = getattr(answer, table)[name]
    return found if align is None else align(found)


Ask: TypeAlias = Callable[[Run], tuple[Answer, Answer]]
"""Both answers."""


def judge(found: Sequence[Place], ask: Ask, beside: Ask, is_float64: bool) -> list[Judged]:
    """Each place, judged in the precision that was given and in float64.

    What differs as given, and neither in float64 nor under min_norm, is rounding; not so NaN or an infinity beside
    another number. So are numbers that are rounding alone in both precisions.

    Args:
      found: the places.
      ask, beside: the answers at the numbers that were given, and at numbers beside these.
      is_float64: whether that is the precision that was given, which else is asked for, too.
    """
    other = Run(np.float32 if is_float64 else np.float64)
    native = _arrays(found, *ask(Run()))
    as_given = precise = _Judge(found, Run(), ask, native, frozenset())
    if not is_float64 or as_given.has_bugs:
        again = _arrays(found, *ask(other))
        coarse, fine = (again, native) if is_float64 else (native, again)
        if _is_float64(fine):  # some libraries compute in a dtype of their own
            noise = _noise(found, coarse, fine)
            as_given = precise = _Judge(found, Run(), ask, native, noise)
            if not is_float64:
                precise = _Judge(found, other, ask, fine, noise)
    near = precise.near_ties(beside)
    judged = []
    for place in found:
        finding = precise.finding(place)
        if finding in ("agrees", "rounding") and as_given.finding(place) != "agrees":
            is_graver = as_given.finding(place) == "ties" or np.isinf(as_given.apart[place.label])
            finding = as_given.finding(place) if is_graver else "rounding"
        if finding == "port" and place.before is not None and precise.is_unbiased(place):
            finding = "library"
        if finding == "port" and place.label in near:
            finding = "near ties"
        judged.append(
            Judged(
                place.what,
                place.name,
                place.is_gradient,
                as_given.apart[place.label],
                precise.apart[place.label],
                finding,
            )
        )
    return judged


def _is_float64(arrays: Arrays) -> bool:
    return all(array.dtype == np.float64 or array.dtype.kind in "iu" for array in arrays[0].values())


def _noise(found: Sequence[Place], coarse: Arrays, fine: Arrays) -> frozenset[str]:
    r"""The labels of what is rounding alone on both sides.

    Numbers that are 0 in the coarser dtype may have been up to :math:`\epsilon` times the largest number at the
    boundary of their layer.
    """
    sizes: dict[tuple[int, bool], float] = defaultdict(float)
    for place in found:
        boundary = place.pair, place.is_gradient
        sizes[boundary] = max(sizes[boundary], largest_of(side[place.label] for side in fine))
    labels = set()
    for place in found:
        before, after = (largest_of(side[place.label] for side in arrays) for arrays in (coarse, fine))
        dtype = coarse[0][place.label].dtype
        if jnp.issubdtype(dtype, jnp.floating):
            before = before or float(jnp.finfo(dtype).eps) * sizes[place.pair, place.is_gradient]
            if is_rounding_alone(before, after, dtype):
                labels.add(place.label)
    return frozenset(labels)


def with_random(
    found: Sequence[Place],
    judged: Sequence[Judged],
    given: tuple[Answer, Answer],
    again: tuple[Answer | None, Answer | None],
) -> list[Judged]:
    """The judgements, in which a difference is random where a side differs from itself.

    ``again`` is what each side answers with other random numbers; None for one that draws none.
    """
    random_in: dict[str, tuple[int, ...]] = {place.label: () for place in found}
    for side, (answer, other) in enumerate(zip(given, again, strict=True)):
        if other is None:
            continue
        its = [(place.first, place.second)[side] for place in found]
        own = _arrays([replace(p, first=f, second=f) for p, f in zip(found, its, strict=True)], answer, other)
        for label, finding in _leaves(own, own).items():
            if finding == "port":
                random_in[label] += (side,)
    return [
        replace(one, finding="random", random_in=random_in[place.label])
        if random_in[place.label] and not one.agrees
        else one
        for place, one in zip(found, judged, strict=True)
    ]


class _Judge:
    """The findings in one precision; min_norm is asked only if gradients differ where values agree."""

    def __init__(self, found: Sequence[Place], run: Run, ask: Ask, native: Arrays, noise: Collection[str]) -> None:
        self._found, self._run, self._native, self._noise = found, run, native, noise
        self.apart = {p.label: apart_of(native[0][p.label], native[1][p.label]) for p in found}
        leaves = self._findings(native)
        crossing = [p for p in found if not p.is_gradient and p.what != "state"]  # gradients are not those of state
        values_agree = all(leaves[p.label] in ("agrees", "rounding") for p in crossing)
        self._gradients_differ = values_agree and any(leaves[p.label] == "port" for p in found if p.is_gradient)
        if self._gradients_differ:
            leaves = self._findings(_arrays(found, *ask(run._replace(min_norm=True))))
        self._leaves = leaves

    def near_ties(self, beside: Ask) -> frozenset[str]:
        """The labels of gradients that agree at the numbers beside, if gradients alone differ."""
        labels = [place.label for place in self._found if place.is_gradient and self._leaves[place.label] == "port"]
        if not self._gradients_differ or not labels:
            return frozenset()
        sides = _arrays(self._found, *beside(self._run))
        leaves = _leaves(sides, sides)
        is_finite = {label: all(np.isfinite(side[label]).all() for side in sides) for label in labels}
        return frozenset(label for label in labels if leaves[label] in ("agrees", "rounding") and is_finite[label])

    def _findings(self, minimal: Arrays) -> dict[str, Judgement]:
        leaves = _leaves(self._native, minimal)
        noise = {label for label in self._noise if leaves[label] != "agrees"}
        return {label: "rounding" if label in noise else finding for label, finding in leaves.items()}

    @property
    def has_bugs(self) -> bool:
        return "port" in self._leaves.values()

    def is_unbiased(self, place: Place) -> bool:
        """Whether two averages of variances differ by a factor n / (n - 1) of what the call adds, and by no more.

        With ``old + m * (batch - old)`` on one side, and ``old + m * (batch * n / (n - 1) - old)`` on the other, m is
        the same for all of them.
        """
        assert place.before is not None
        old = place.before.astype(np.float64).ravel()
        moved = [side[place.label].astype(np.float64).ravel() - old for side in self._native]
        for biased, unbiased in (moved, moved[::-1]):
            with np.errstate(all="ignore"):
                momentum = ((unbiased - biased) * (place.count - 1) - biased) / old
            if np.isfinite(momentum).all() and 0 < momentum.mean() <= 1 and np.ptp(momentum) <= 0.01 * momentum.mean():
                return True
        return False

    def finding(self, place: Place) -> Judgement:
        return self._leaves[place.label]


_JUDGEMENTS: Mapping[str, Judgement] = {
    "agrees": "agrees",
    "rounding": "rounding",
    "ties": "ties",
    "hidden tie": "agrees",  # a gradient that agrees natively agrees: what min_norm does to one side is no bug
}

Arrays: TypeAlias = tuple[dict[str, Array], dict[str, Array]]
"""By label, those of both models, in the coarser of their dtypes."""


def _arrays(found: Sequence[Place], first: Answer, second: Answer) -> Arrays:
    ours, theirs = {}, {}
    for place in found:
        a, b = _as_numbers(place.first(first)), _as_numbers(place.second(second))
        if jnp.issubdtype(a.dtype, jnp.floating):
            dtype = max((a.dtype, b.dtype), key=lambda dtype: float(jnp.finfo(dtype).eps))
            a, b = a.astype(dtype, copy=False), b.astype(dtype, copy=False)
        ours[place.label], theirs[place.label] = a, b
    return ours, theirs


def _as_numbers(array: Array) -> Array:
    """Complex numbers as pairs, an axis more; truth values as 0 and 1."""
    if np.iscomplexobj(array):
        return np.stack([array.real, array.imag], axis=-1)
    return array.astype(np.uint8) if array.dtype == np.bool_ else array


def _leaves(native: Arrays, minimal: Arrays) -> dict[str, Judgement]:
    first, second = (Recording("", "", {}, native[i], minimal[i]) for i in (0, 1))
    found: dict[str, Judgement] = {}
    for leaf in Comparison(first, second).leaves:
        found[leaf.label] = _JUDGEMENTS.get(leaf.finding, "port")
    return found


def apart_of(a: Array, b: Array) -> float:
    """The largest difference, beside the largest finite number; NaN and NaN, and equal infinities, are not apart."""
    x, y = a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)
    if x.shape != y.shape:
        return float("inf")
    with np.errstate(all="ignore"):
        differences = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    if not np.isfinite(differences).all():
        return float("inf")
    largest = max(float(np.abs(side[np.isfinite(side)]).max(initial=0.0)) for side in (x, y))
    return float(differences.max(initial=0.0) / largest) if largest else 0.0
