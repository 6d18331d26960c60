"""Draws inputs at which two functions may differ, and shrinks the first that shows the worst difference.

An example is ``compare(jax.nn.relu6, lambda x: torch.clamp(x, 0.0, 5.0), np.float32([1, 2]), probe=100)``, whose
functions agree at [1, 2]:

1. The numbers in both programs, 0, 5 and 6 among them, are the ``bounds``.
2. The draws change some of the inputs: to small integers; to normal numbers of several scales; onto the bounds. Draw 3
   is [8.2, 9.8], where one function is 6 and the other 5.
3. As many numbers as possible are put back: [1, 9.8] differs as well.
4. The changed numbers are made integers, the simplest that differ: [1, 6].
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np

from interop.comparison.recording import FilePath, write_arrays
from interop.frameworks.base import Array, is_float

Arrays: TypeAlias = Mapping[str, Array]
"""Maps labels to the arrays among the arguments."""

WORST = 3
"""The greatest severity of a difference, from 0: a difference of values, which no tie explains."""
_SCALES = (1.0, 10.0, 100.0, 0.1)
"""How large normal numbers are drawn, beside those in the array: up to two decades above, and one below."""
_BLOCKS = 64
"""Into how many blocks the changed numbers are split: 3 rounds single out one of 64 ** 3, a quarter of a million."""
_CALLS = 100
"""How often the functions are called for one step of shrinking, which then takes as long as the default probe."""
_LARGE = 1e6
"""From where on numbers are left as they are, as float32 holds integers only up to 1.7e7."""
_SIMPLIFIED = 8
"""How many changed numbers are made simpler; a case with more of them is printed as a count."""


@dataclass(frozen=True)
class Probe:
    """What `interop.compare` draws beside the inputs that it is given.

    The floats in the arguments are changed, in turn, in these ways. Each array is drawn anew, normal, at 0.1 to 100
    times its scale; or as small integers, which tie; or some of its numbers, or all, are moved onto the bounds that
    the functions compare with, or past them. All else stays as it is given. A draw depends on ``seed`` and its
    number alone.

    Args:
      draws: how many inputs.
      seed: of the random numbers.
      nonfinite: whether there are draws with NaN or infinities, too.

    Raises:
      ValueError: ``draws`` is less than 1, or ``seed`` is negative.
      TypeError: one of them is no integer.
    """

    draws: int = 100
    seed: int = 0
    nonfinite: bool = False

    def __post_init__(self) -> None:
        for name, least in (("draws", 1), ("seed", 0)):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool):
                raise TypeError(f"Probe: {name} is {number!r}, a {type(number).__name__}; pass an integer.")
            if number < least:
                raise ValueError(f"Probe: {name} is {number}; pass an integer from {least} on.")


@dataclass(frozen=True)
class Change:
    """One number of the arguments that a case changes."""

    label: str
    index: tuple[int, ...]
    number: float
    given: float

    def __str__(self) -> str:
        place = self.label + (str(list(self.index)) if self.index else "")
        return f"{place} = {self.number:.7g} in place of {self.given:.7g}"


@dataclass(frozen=True, eq=False)
class Case:
    """Inputs at which two functions were found to differ, as few numbers changed as were found to matter."""

    draw: int
    """The number of the draw that found it."""
    changes: tuple[Change, ...]
    arrays: Arrays = field(repr=False)
    """Maps labels to all arrays among the arguments."""

    def __str__(self) -> str:
        if len(self.changes) <= _SIMPLIFIED:
            return ", ".join(map(str, self.changes))
        return f"{len(self.changes)} numbers changed in {', '.join(dict.fromkeys(c.label for c in self.changes))}"

    def save(self, path: FilePath) -> None:
        """Write an npz file, which `interop.compare` takes as ``case``, and the command line as ``--case``."""
        write_arrays(path, self.arrays)


@dataclass(frozen=True)
class Probed:
    """What came of a probe."""

    probe: Probe
    bounds: tuple[float, ...]
    """The numbers that the functions were seen to compare with."""
    compared: int
    """At how many of the draws the functions gave answers."""
    case: Case | None
    """The first draw with the worst finding, shrunk; none if the functions differ at none, or no more than as given."""

    def summary(self) -> dict[str, Any]:
        """Return all fields but for the arrays."""
        case = self.case and {"draw": self.case.draw, "changes": [asdict(change) for change in self.case.changes]}
        return {**asdict(self.probe), "bounds": self.bounds, "compared": self.compared, "case": case}

    def __str__(self) -> str:
        if self.case:
            return f"Found by draw {self.case.draw} of seed {self.probe.seed}, with {self.case}."
        failed = self.probe.draws - self.compared
        raised = f" At {failed} more a function raised." if failed else ""
        return f"At {self.compared} inputs drawn with seed {self.probe.seed} nothing else differs.{raised}"


def search(
    inputs: Arrays, bounds: Collection[float], probe: Probe, severity: Callable[[Arrays], int | None], least: int
) -> Probed:
    """Draw inputs, up to the first at which the functions differ most, and shrink it.

    ``severity`` is up to WORST; None where a function raises. What is below ``least`` is not sought.
    """
    worst, draw, compared = None, 0, 0
    for number, arrays in enumerate(_drawn(inputs, sorted(bounds), probe)):
        degree = severity(arrays)
        compared += degree is not None
        # From now on only what is worse counts: a case is shrunk once, at the end.
        if degree and degree >= least:
            worst, draw, least = arrays, number, degree + 1
        if least > WORST:  # no further draw can be worse
            break
    case = None
    if worst is not None:
        shrunk = _shrunk(inputs, worst, lambda arrays: (severity(arrays) or 0) >= least - 1, probe.seed)
        case = Case(draw, tuple(_changes(inputs, shrunk)), shrunk)
    return Probed(probe, tuple(sorted(bounds)), compared, case)


def is_drawn(array: Array) -> bool:
    """Say whether there are numbers in ``array`` that are drawn: floats, with respect to which there are gradients."""
    return is_float(array) and array.size > 0


def _changes(inputs: Arrays, arrays: Arrays) -> Iterator[Change]:
    for label, array in arrays.items():
        for index in map(tuple, np.argwhere(_bits(inputs[label]) != _bits(array)).tolist()):
            yield Change(label, index, float(array[index]), float(inputs[label][index]))


def _bits(array: Array) -> Array:
    """View floats as integers, by which NaN equals itself, and -0.0 is not 0.0."""
    return array.view(f"u{array.itemsize}") if is_float(array) else array


def _drawn(inputs: Arrays, bounds: Sequence[float], probe: Probe) -> Iterator[dict[str, Array]]:
    onto_bounds = functools.partial(_onto, bounds)
    ways: list[Callable[[np.random.Generator, Array], Array]] = [_integers]
    # Bounds come after each scale, in four of nine draws: gradients may differ there alone.
    for scale in _SCALES:
        ways += [functools.partial(_normal, scale), onto_bounds]
    if probe.nonfinite:
        ways.append(functools.partial(_onto, [np.nan, np.inf, -np.inf]))
    labels = [label for label, array in inputs.items() if is_drawn(array)]
    for number in range(probe.draws):
        rng = np.random.default_rng([probe.seed, number])  # more draws begin with the same ones
        chosen = [label for label in labels if rng.random() < 0.5] or [labels[rng.integers(len(labels))]]
        way = ways[number % len(ways)]
        yield {**inputs, **{label: _rounded(way(rng, inputs[label]), inputs[label].dtype) for label in chosen}}


def _rounded(array: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):  # of float16
        return np.asarray(array).astype(dtype)


def _normal(scale: float, rng: np.random.Generator, array: Array) -> Array:
    """Draw normal numbers ``scale`` times as large as the array, whose size is 1 if it is 0 or not finite."""
    size = np.sqrt(np.mean(np.square(array, dtype=np.float64)))
    return np.asarray(rng.normal(0.0, scale * (size if np.isfinite(size) and size else 1.0), array.shape))


def _integers(rng: np.random.Generator, array: Array) -> Array:
    return np.asarray(rng.integers(-6, 7, array.shape))  # few of them, so that many are equal


def _onto(bounds: Sequence[float], rng: np.random.Generator, array: Array) -> Array:
    """Move some numbers onto bounds, or a little to a side."""
    # Two numbers are moved on average, half of them, or all: a difference may need several, or drown among many.
    moved = rng.choice(bounds, size=array.shape) + rng.choice([0.0, 0.0, 0.5, -0.5], size=array.shape)
    return np.where(rng.random(array.shape) < rng.choice([2 / array.size, 0.5, 1.0]), moved, array.astype(np.float64))


def _shrunk(inputs: Arrays, arrays: Arrays, fails: Callable[[Arrays], bool], seed: int) -> dict[str, Array]:
    """Put back as many of the changed numbers as may be while ``fails``, and make the remaining ones simple.

    The changed positions are split into blocks, of which hypothesis looks for the fewest that fail, and these are split
    again. If the first of 4096 numbers alone matters, one of 64 blocks is left, then one of its 64 numbers.
    """
    from hypothesis import strategies as st

    # The floats of all arguments as one vector, in which a position is that of a number.
    floats = {label: array for label, array in inputs.items() if is_drawn(array)}
    original, numbers = (
        np.concatenate([side[label].astype(np.float64).ravel() for label in floats]) for side in (inputs, arrays)
    )
    ends = np.cumsum([array.size for array in floats.values()])

    def changed(positions: Any, to: Any) -> dict[str, Array]:
        vector = original.copy()
        vector[positions] = to
        parts = zip(floats.items(), np.split(vector, ends[:-1]), strict=True)
        return {**inputs, **{label: _rounded(part.reshape(a.shape), a.dtype) for (label, a), part in parts}}

    def selected(blocks: Sequence[Any], flags: Sequence[bool]) -> Any:
        return np.concatenate([np.zeros(0, int), *itertools.compress(blocks, flags)])  # NumPy cannot join none

    def matter(blocks: Sequence[Any], flags: Sequence[bool]) -> bool:
        positions = selected(blocks, flags)
        return fails(changed(positions, numbers[positions]))

    positions = np.flatnonzero(_bits(numbers) != _bits(original))
    while len(positions) > 1:
        blocks = np.array_split(positions, min(_BLOCKS, len(positions)))
        flags = _simplest(st.tuples(*[st.booleans()] * len(blocks)), functools.partial(matter, blocks), seed)
        if flags is None or all(flags):  # the calls were spent, or no block can be put back
            break
        positions = selected(blocks, flags)
    shrunk = changed(positions, numbers[positions])
    if len(positions) <= _SIMPLIFIED:
        # Up to one more than the number: of 5.4, past a bound of 5, the integer is 6, though it rounds to 5.
        integers = st.tuples(
            *(
                st.integers(-round(abs(n)) - 1, round(abs(n)) + 1) if abs(n) < _LARGE else st.just(n)
                for n in numbers[positions].tolist()
            )
        )
        simplest = _simplest(integers, lambda chosen: fails(changed(positions, chosen)), seed)
        shrunk = shrunk if simplest is None else changed(positions, simplest)
    return shrunk


def _simplest(strategy: Any, condition: Callable[[Any], bool], seed: int) -> Any:
    """Let hypothesis find the simplest example that fulfils the condition; None if there is none."""
    import hypothesis

    known: dict[str, bool] = {}

    def once(example: Any) -> bool:
        # ``max_examples`` does not bound the calls for shrinking: when all calls are spent, nothing more holds.
        key = repr(example)
        if key not in known:
            known[key] = len(known) < _CALLS and condition(example)
        return known[key]

    settings = hypothesis.settings(
        max_examples=_CALLS // 2,  # the other half is left for shrinking
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        # On a machine under load drawing may take longer than hypothesis lets pass, and that would end the comparison.
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        return hypothesis.find(strategy, once, settings=settings, random=random.Random(seed))
    except hypothesis.errors.NoSuchExample:
        return None
