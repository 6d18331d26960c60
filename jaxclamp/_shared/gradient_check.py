"""The check of derivatives against values, of a function as any framework presents it."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from jaxclamp._shared.neighbourhood import Neighbourhood
from jaxclamp._shared.pieces import Pieces
from jaxclamp._shared.slopes import Array, Function, Indices, default_scale
from jaxclamp._shared.verdict import GradientReport, Kind, Names, Tolerance, Verdict, differing, judged

_TOLERANCES = {"float64": 1e-5, "float32": 2e-3, "float16": 1e-2, "bfloat16": 1e-1}
"""Of derivatives, by the least precise dtype that takes part: those of `jax.test_util.check_grads`."""
_ROUNDED = 3  # nearby points at which the rounding of gradients is measured
_SUMMED = 4
"""Units of the dtype by which a weighted sum of up to 8 gradients is off, each of its products by half a unit."""
_MOVES = 8  # how often ties are counted anew to find the line of a kink


Scale: TypeAlias = float | Sequence[Any] | None
"""A number, or for each argument a number, an array of them or None."""


class Flat(Protocol):
    """A function of the floating point numbers in its arguments, as a vector, whose value is a vector too."""

    point: Array
    largest: Array
    """For each entry, the largest number in its array."""
    arguments: NDArray[np.int_]
    """For each entry, the number of its argument."""
    names: Names
    dtype: str
    """The least precise of inputs and outputs."""
    epsilon: float
    """Its precision."""

    def forward(self, point: Array, wide: bool = False) -> Array:
        """Return the Jacobian by forward mode, in the dtypes of the arguments, or in float64."""

    def reverse(self, point: Array, wide: bool = False) -> Array:
        """Return the Jacobian by reverse mode."""

    def values(self, wide: bool = True) -> tuple[Function, float]:
        """Return the function of many points at once, and the precision of its values.

        It is computed in float64 if it allows that, or unless ``wide`` in the dtypes of the arguments.
        """

    def ties_at(self, point: Array) -> Mapping[str, int]:
        """Return the lines of the code with ties at that point, and how many."""


def check(
    function: Flat,
    caller: str,
    *,
    forward: bool,
    reverse: bool,
    atol: float | None,
    rtol: float | None,
    eps: float | None,
    scale: Scale = None,
) -> GradientReport:
    """Return the report on the modes that are asked for; None stands for what the dtype suggests."""
    for name, number in {"atol": atol, "rtol": rtol, "eps": eps}.items():
        # Asked so that NaN is refused as well; a tolerance may be 0, and a distance may not.
        if number is not None and not (number >= 0 and (number or name != "eps")):
            raise ValueError(f"{caller}: {name} is {number!r}; pass a positive number, or None.")
    scales = _scales(function, caller, scale)
    default = _TOLERANCES.get(function.dtype, 0.5)  # of float8, whose precision is up to 1 / 4
    tolerance = Tolerance(atol or 0.0, default if rtol is None else rtol, default)
    modes = [mode for mode, is_checked in [(function.reverse, reverse), (function.forward, forward)] if is_checked]
    jacobians = [mode(function.point) for mode in modes]
    values, unit = function.values()
    nothing = np.zeros_like(jacobians[0])

    def verdicts(
        pieces: Pieces, jacobians: Sequence[Array], rounding: Array, mode: Callable[[Array], Array] = modes[0]
    ) -> list[Verdict]:
        line, variation = _line_of_kink(function, pieces), _variation(mode, jacobians[0], pieces)
        each = list(judged(pieces, jacobians[0], rounding, function.names, tolerance, line, variation))
        if len(jacobians) > 1:
            each += differing(pieces, jacobians[1], jacobians[0], rounding, function.names, tolerance)
        return each

    with np.errstate(all="ignore"):  # what is not finite has a verdict
        pieces = Pieces.of(values, function.point, unit, eps, scales)
        result = verdicts(pieces, jacobians, nothing)
        # What fails may be rounding of the gradient, if values are more precise than it. Only then is that measured.
        if unit < function.epsilon and any(verdict.failed for verdict in result):
            # A gradient at a kink is a weighted sum of those of the pieces, each rounded, which may cancel.
            of_sums = _SUMMED * function.epsilon * pieces.steepest / pieces.steps.scale
            rounding = np.fmax(_rounding(function, modes[0], scales), of_sums)
            result = verdicts(pieces, jacobians, rounding)
            if any(verdict.failed for verdict in result):
                # Rounding makes and breaks ties, and leaves something of terms that cancel, in values as in gradients:
                # then values in the dtype do not refute the gradient, and that in float64 is right.
                in_dtype, _ = function.values(wide=False)
                coarse = Pieces.of(in_dtype, function.point, function.epsilon, eps, scales)
                widened = [mode(function.point, wide=True) for mode in modes]
                wide = verdicts(pieces, widened, nothing, functools.partial(modes[0], wide=True))
                result = _rounded(result, verdicts(coarse, jacobians, rounding), wide, function.dtype)
    return GradientReport(nothing.size, tuple(result))


def names_of_entries(shapes: Iterable[tuple[str, Sequence[int]]]) -> list[str]:
    """List names of all numbers in some arrays: that of the array and the index, such as ``args[0]['w'][2, 1]``."""
    return [f"{name}{list(index) if index else ''}" for name, shape in shapes for index in np.ndindex(*shape)]


def _scales(function: Flat, caller: str, scale: Scale) -> Array:
    """Return the scale of each entry, a power of two: that of its argument, or if that is None by its size."""
    sizes = default_scale(function.point, function.largest)
    last = int(function.arguments.max())
    by_argument = list(scale) if isinstance(scale, Sequence) else [scale] * (last + 1)
    if len(by_argument) <= last:
        raise ValueError(f"{caller}: scale has {len(by_argument)} numbers; pass one for each argument, or one for all.")
    for number, of_argument in enumerate(by_argument):
        entries = function.arguments == number
        if of_argument is not None and entries.any():
            numbers = np.asarray(of_argument, np.float64).ravel()
            if numbers.size not in (1, entries.sum()) or not (np.isfinite(numbers) & (numbers > 0)).all():
                raise ValueError(f"{caller}: scale is {scale!r}; pass a positive number, or one for each argument.")
            sizes[entries] = np.exp2(np.ceil(np.log2(numbers)))
    return sizes


def _rounding(function: Flat, mode: Callable[..., Array], scale: Array) -> Array:
    """Return how far the numbers of the Jacobian are from those in float64, at nearby points, which are on no tie."""
    random = np.random.default_rng(0)
    units = random.integers(1, 5, (_ROUNDED, scale.size)) * random.choice([-1, 1], (_ROUNDED, scale.size))
    points = function.point + 2 * function.epsilon * scale * units  # exact in the dtype
    away = [np.abs(mode(point) - mode(point, wide=True)) for point in points]
    # Of errors as of a normal distribution the median is 0.67 standard deviations; four of these are six medians.
    # An infinite difference is one of overflow, and no rounding.
    return np.nan_to_num(6 * np.median(away, axis=0), posinf=0.0)


def _variation(mode: Callable[[Array], Array], jacobian: Array, nearby: Neighbourhood) -> Callable[[], Array]:
    """Return a function that computes, once, how far the numbers of the Jacobian are from those at nearby points."""

    @functools.cache
    def variation() -> Array:
        radius, entries = float(nearby.steps.radius.max()), np.arange(nearby.point.size)
        points = [nearby.moved(entries, radius) for _ in range(_ROUNDED)]
        farthest: Array = np.max([np.abs(mode(point) - jacobian) for point in points], axis=0)
        return np.nan_to_num(farthest)

    return variation


def _rounded(
    verdicts: Sequence[Verdict], coarse: Sequence[Verdict], wide: Sequence[Verdict], dtype: str
) -> list[Verdict]:
    """Put verdicts that fail down to the precision of the dtype, if neither ``coarse`` nor ``wide`` fails there.

    ``coarse`` are those by values in the dtype, ``wide`` those on the gradient in float64. A verdict without a
    counterpart among the first is left out: it is right. Where modes differ by rounding alone, reverse mode has a
    verdict of its own.
    """
    reason = f"the gradient is right in float64, and {dtype} cannot tell these points; pass float64 arguments"
    result = []
    for verdict in verdicts:
        of_coarse, of_wide = (
            [v for v in again if v.output == verdict.output and not set(verdict.entries).isdisjoint(v.entries)]
            for again in (coarse, wide)
        )
        if not verdict.failed or any(v.failed for v in (*of_coarse, *of_wide)):
            result.append(verdict)
        elif of_coarse and verdict.kind is not Kind.MODES_DIFFER:
            result.append(verdict._replace(kind=Kind.NOT_CHECKABLE, reason=reason))
    return result


def _line_of_kink(function: Flat, nearby: Neighbourhood) -> Callable[[Indices], str]:
    """Find the lines with the kink of some entries: the only one with ties, or those with fewer once these move."""
    ties_at = functools.cache(lambda: function.ties_at(nearby.point))
    moves = iter(range(_MOVES))

    def line(entries: Indices) -> str:
        tied = ties_at()
        if len(tied) > 1:
            left = tied
            if next(moves, None) is not None:
                left = function.ties_at(nearby.moved(entries, float(nearby.steps.radius.max())))
            tied = {line: count for line, count in tied.items() if left.get(line, 0) < count}
        return ", ".join(tied)

    return line
