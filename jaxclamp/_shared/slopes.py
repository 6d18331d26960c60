"""Measures a function along lines through a point: distances, noise, slopes, and whether it is a sum over the entries.

`jaxclamp._shared.neighbourhood` says in which order, and has an example.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Indices = NDArray[np.intp]
Function = Callable[[Array], Array]
"""Maps points, an array of shape (k, n), to their values, of shape (k, m)."""

RESOLUTION = 0.01
"""A slope is known if its error is below this part of it: then an error of 1 % in a gradient can be told."""
RATIO = 8.0
"""The ratio of one distance to the next. A power of two keeps points exact in the precision of the function."""
BEYOND, WITHIN = 1, 4
"""How many distances are measured beyond the radius, to see how slopes change with the distance, and within it. Slopes
without bound are told by three ratios of increments, which take five slopes."""
NOISE_OF_SLOPES = 2 * (RATIO**2 + 1) / (RATIO - 1)
"""The error of the slope (8 D(t / 8) - D(t)) / 7, in units of noise / t, if both values in each D are off by it."""
_FARTHEST = 4.0
"""How many scales away slopes are still taken to be those at the point."""
_NEARER = 5
"""How many smaller distances are tried if no slope is known. An entry that is 0 gets the scale 1, and may have 1e-6,
2^-20. Nine steps lead from 2^-16, the radius of float64, to 2^-43. That is 2^-7 of the radius for that scale, 2^-36."""


class Steps(NamedTuple):
    """How far away from the point a function is followed."""

    scale: Array
    """How far each entry moves before slopes change much, a power of two."""
    radius: Array
    """For each row, how far away nearby points lie along each entry, in units of the scale."""
    step: Array
    """For each row, the distance of a finite difference at such a point, in these units."""


class Sums(NamedTuple):
    """Which rows are sums of functions of one entry each."""

    jumps: Mask
    """The rows that jump, along an entry or a random line."""
    is_sum: Mask
    error: Array
    """The largest difference of a slope along a line from the sum of those along the entries; 0 for other rows."""
    steepest: Array
    """The size of the steepest slope along a line."""


class LineSlopes(NamedTuple):
    """Slopes along the entries, of shape (m, n), in units of the output for each scale of the entry."""

    right: Array
    left: Array
    error: Array
    """The error of either slope; infinite where they cannot be measured."""
    central: Array
    """The derivative, where right and left are equal."""
    central_error: Array
    radius_level: NDArray[np.int_]
    """For each row, the level of the ladder at which noise lets slopes have the least error."""
    level: NDArray[np.int_]
    """How many levels nearer than that of the row slopes were measured; 0 if they are good enough there."""
    finite: Mask
    """Where values are finite, and slopes are bounded."""
    jumps: Mask
    far: Mask
    """Where they were measured far beyond the scale."""
    distance: Array
    """How far away they were measured, in units of the scale."""
    reach: Array
    """The largest rise of each row within the scales."""

    @property
    def kinked(self) -> Mask:
        """Where right and left differ by more than their errors."""
        return self.finite & (np.abs(self.right - self.left) > 2 * self.error)

    @property
    def steeper(self) -> Array:
        """The size of the steeper slope of each pair."""
        return np.fmax(np.abs(self.right), np.abs(self.left))

    @property
    def size(self) -> Array:
        """The steepest slope of each row."""
        return np.max(np.where(self.finite & ~self.jumps, self.steeper, 0.0), axis=1, initial=0.0)

    @property
    def known(self) -> Mask:
        """Where the error is small enough to tell an error of 1 % in a gradient."""
        return self.finite & ~self.far & (self.error <= RESOLUTION * self.steeper) & (self.steeper > 0)

    def rescaled(self, factors: Array) -> LineSlopes:
        """Return the slopes for scales that are ``factors`` times as large."""
        names = ("right", "left", "error", "central", "central_error")
        scaled = {name: getattr(self, name) * factors for name in names}
        return self._replace(**scaled, distance=self.distance / factors)


def default_scale(point: Array, largest: Array | None = None) -> Array:
    """Return the power of two next to the size of each entry.

    An entry that is 0 but for rounding takes the size of ``largest``, the largest number beside it, or else 1.
    """
    sizes = np.abs(np.where(np.isfinite(point), point, 1.0))
    beside = np.full_like(sizes, sizes.max(initial=0.0)) if largest is None else largest
    # A part of less than 2^-960 would be a subnormal number, which XLA takes for 0.
    beside = np.where(beside > 2.0**-960, beside, 1.0)
    # 1e-6 beside 1e6 is a number of its own. 2^-44 of a number is 2^8 units in its last place: what is left of 0.
    is_own = sizes > np.fmax(2.0**-44 * beside, 2.0**-960)
    powers = np.ceil(np.log2(np.where(is_own, sizes, beside)))
    return np.exp2(np.fmin(powers, 1023))  # 2^1024 is infinite


def largest_beside(arrays: Sequence[Array]) -> Array:
    """Return the size of the largest number in the array of each entry; the arrays stand one after the other."""
    sizes = [np.abs(array) for array in arrays]
    return np.concatenate([np.full(s.size, s.max(initial=0.0, where=np.isfinite(s))) for s in sizes])


def default_radius(unit: float | Array) -> Array:
    """Return the distance in units of the scale at which differences of values of this precision have the least error.

    The sum of noise / t and f'' t is least near the square root of the noise, that of noise / t and f''' t^2 near the
    cube root. Slopes have the second kind of error, as those at two distances are combined.
    """
    return np.exp2(np.round(np.log2(2 * np.cbrt(unit))))


@dataclass(frozen=True)
class Local:
    """A function as one of moves from a point, each in units of its scale."""

    function: Function
    point: Array
    scale: Array
    unit: float
    """The precision of the function's values, relative to them."""

    @functools.cached_property
    def value(self) -> Array:
        return np.asarray(self.function(self.point[None]), np.float64)[0]

    @functools.cached_property
    def grid(self) -> Array:
        """Moves by multiples of this are exact in the function's precision, beyond the next power of two too."""
        sizes = np.abs(np.where(np.isfinite(self.point), self.point, 1.0))
        exponents = np.ceil(np.log2(np.where(sizes > 0, sizes, 1.0)))
        return np.where(sizes > 0, 2 * self.unit * np.exp2(exponents), 0.0) / self.scale

    def points(self, moves: Array) -> Array:
        # Points are rounded to the grid here: if the function did it, a difference would be divided by a distance that
        # was not moved.
        grid = np.where(self.grid > 0, self.grid, 1.0)
        exact = np.where(self.grid > 0, np.round(moves / grid) * grid, moves)
        return np.where(np.isfinite(self.point), self.point + exact * self.scale, self.point)

    def __call__(self, moves: Array) -> Array:
        """Return the values after ``moves``, of shape (..., n), of shape (..., m)."""
        points = self.points(moves)
        values = np.asarray(self.function(points.reshape(-1, self.point.size)), np.float64)
        return values.reshape(*moves.shape[:-1], -1)


@dataclass(frozen=True)
class Ladder:
    """The rises of a function along each entry, forwards and backwards, at distances that shrink by `RATIO`."""

    radius: float
    levels: NDArray[np.int_]
    """Consecutive; the distances are the radius divided by `RATIO` to these powers."""
    rises: Array
    """Of shape (distances, 2, m, n); NaN where a point was not asked, or is no other in the function's precision."""

    @classmethod
    def of(cls, local: Local, radius: float, levels: Sequence[int], entries: Indices | None = None) -> Ladder:
        n = local.point.size
        entries = np.arange(n) if entries is None else entries
        lines = np.eye(n)[entries]
        distances = radius * RATIO ** -np.array(levels, np.float64)
        rises = np.full((len(levels), 2, local.value.size, n), np.nan)
        values = local(distances[:, None, None, None] * np.stack([lines, -lines])) - local.value
        rises[..., entries] = np.moveaxis(values, 2, 3)  # rows of the output come before entries of the input
        rises[np.broadcast_to((distances[:, None] < local.grid)[:, None, None], rises.shape)] = np.nan
        return cls(radius, np.array(levels), rises)

    def joined(self, further: Ladder) -> Ladder:
        """Join two ladders, which have no level in common."""
        levels = np.concatenate([self.levels, further.levels])
        order = np.argsort(levels)
        return Ladder(self.radius, levels[order], np.concatenate([self.rises, further.rises])[order])

    def cut(self, level: int) -> Ladder:
        """Return the ladder down to that level."""
        left = self.levels <= level
        return Ladder(self.radius, self.levels[left], self.rises[left])

    @property
    def distances(self) -> Array:
        return self.radius * RATIO ** -self.levels.astype(np.float64)

    @functools.cached_property
    def slopes(self) -> Array:
        """The slopes of the lines from the point to the points at each distance."""
        return self.rises / np.array([1.0, -1.0])[:, None, None] / self.distances[:, None, None, None]

    def steep(self) -> tuple[Mask, Array]:
        """Find where slopes grow without bound toward the point.

        As the distance shrinks by 8, the increments of the slope of a smooth piece shrink by 8 too. For ``|x|^p`` each
        increment is 8^(1 - p) times the one before. It does not shrink for p < 1, nor for x log x, and grows 8-fold for
        a jump, where p is 0. Powers from 0.1 to 1.15 are told from both. Those a little above 1 belong to slopes that
        are bounded at distances too small to see. The ratio is the same at all distances, up to 8^0.125.

        Also return how far values bend at the smallest distance, to compare with their noise.
        """
        increments = np.diff(self.slopes, axis=0)
        with np.errstate(all="ignore"):  # where increments are 0, or not finite
            ratios = increments[1:] / increments[:-1]
        least, most = ratios.min(axis=0), ratios.max(axis=0)
        regular = (most < RATIO**0.9) & (least > RATIO**-0.15) & (most < RATIO**0.125 * least)
        # Slopes at the least distance are rounded by 2^-52 * 8^6 of them, 6e-11, if values are as large as their rises;
        # a part of 1e-6 is no rounding even if values are larger by four digits.
        regular &= np.abs(increments[0]) > 1e-6 * np.abs(self.slopes[0])
        bends = np.abs(increments[-1]) * self.distances[-1]
        return regular.any(axis=0), bends.max(axis=0)


def measured_noise(local: Local, directions: Array) -> Array:
    """Return how far values lie from smooth curves, for each row.

    The curves are rays from the point, which stay within one smooth piece. Fourth differences of values at equal
    distances are those of the noise, whose variance they multiply by 1 + 16 + 36 + 16 + 1 = 70, and of the fourth
    derivative. As the distance shrinks by 32, the second part shrinks by 32^4, and if a kink is crossed by 32. The
    noise stays. So the noise is what no longer shrinks by 8: of x + 10^6 x^4 with errors of 1e-6, the farthest distance
    says 5e-3, and each nearer one 2e-6. But a function of a small scale looks like noise from afar, and imprecise
    values are constant nearby. So first of all the noise counts where the function moves by more.
    """
    reached = 2.0**-4 * 32.0 ** -np.arange(6)[:, None, None, None]
    values = local(reached * np.arange(1, 9)[:, None, None] / 8 * directions)
    squares = np.mean(np.diff(values, 4, axis=1) ** 2, axis=1) / 70
    # Rays on which no value changes tell nothing. Of the others, fewer than half cross a kink that is near, and all are
    # imprecise. Errors of rounding to nearest are less than two of their standard deviations.
    changes = (values != values[:, :1]).any(axis=1)
    noise = 2 * np.sqrt(_median_where(changes, squares))
    # By chance a slope is a multiple of the last place, and no noise is seen. But what is seen nearer is noise.
    nearer = np.maximum.accumulate(np.where(np.isfinite(noise), noise, 0.0)[::-1])[::-1]
    noise = np.where(np.isfinite(noise), nearer, np.inf)
    moves = _median_where(changes, np.abs(values[:, -1] - values[:, 0])) > 8 * noise
    stays = np.isfinite(noise[:-1]) & (noise[:-1] <= 8 * noise[1:])
    stays = np.concatenate([stays, np.ones((1, noise.shape[1]), bool)])
    still = np.take_along_axis(noise, stays.argmax(axis=0)[None], axis=0)[0]
    measured = np.where(moves.any(axis=0), np.where(moves, noise, np.inf).min(axis=0), still)
    rounding = local.unit * np.abs(np.nan_to_num(local.value))
    return np.fmax(rounding, np.where(np.isfinite(measured), measured, 0.0))


def _median_where(mask: Mask, of_rays: Array) -> Array:
    """Return the median over the rays that are in the mask, of shape (distances, rays, rows).

    It is 0 where the mask has fewer than half as many rays as at another distance.
    """
    count = mask.sum(axis=1, keepdims=True)
    ordered = np.sort(np.where(mask, of_rays, np.inf), axis=1)
    middle = np.take_along_axis(ordered, np.minimum(count // 2, of_rays.shape[1] - 1), axis=1)
    return np.where(2 * count >= np.maximum(count.max(axis=0), 1), middle, 0.0)[:, 0]


def line_slopes(local: Local, ladder: Ladder, noise: Array, steep: Mask) -> LineSlopes:
    """Return the slopes along the entries, each at the distance at which its error is least."""
    slopes, errors = _one_sided(local, ladder, noise)
    which, far = _least_errors(slopes, errors, ladder.distances)
    right, left, error = _at(slopes[:, 0], which), _at(slopes[:, 1], which), _at(errors, which)
    central, central_error = _central(ladder, noise, (right + left) / 2, error, far)
    is_value = np.isfinite(local.value)[:, None] & np.isfinite(local.point) & ~steep
    heights = np.abs(ladder.rises)
    within = np.isfinite(heights) & (ladder.distances <= _FARTHEST)[:, None, None, None]
    result = LineSlopes(
        right,
        left,
        error,
        central,
        central_error,
        radius_level=np.zeros(len(noise), int),
        level=ladder.levels[which],
        finite=np.isfinite(error) & is_value,
        jumps=_jumps(heights, noise) & is_value,
        far=far,
        distance=ladder.distances[which],
        reach=np.max(heights, axis=(0, 1, 3), initial=0.0, where=within),
    )
    # A noisier row needs a larger radius: in float64 it is 2^-16, and with a noise of 1e-9 of the slopes 2^-9, to which
    # level -2 is nearest, as 8^2 is 2^6. Where the slope is good enough there, the entry keeps its scale: its level is
    # 0.
    relative = noise / np.where(result.size > 0, result.size, np.inf)
    ratio = default_radius(np.fmax(local.unit, relative)) / ladder.radius
    # The farthest distance is out: its slopes have none before them that would tell their error.
    of_row = np.round(-np.log2(ratio) / np.log2(RATIO)).astype(int).clip(ladder.levels[0] + 1, 0)
    error_at_radius = _at(errors, np.broadcast_to((of_row - ladder.levels[0])[:, None], which.shape))
    radius_suffices = error_at_radius <= np.fmax(RESOLUTION / 8 * result.steeper, 8 * error)
    # Values nearby are as large as the slopes make them, and are rounded too, four of them in a slope.
    rounding = 4 * local.unit * result.size[:, None]
    return result._replace(
        error=error + rounding,
        central_error=np.fmin(central_error, error) + rounding,
        radius_level=of_row,
        level=np.where(radius_suffices, 0, result.level - of_row[:, None]),
    )


def _at(array: Array, which: Indices) -> Array:
    """Return the numbers at the distances ``which``, the first axis: one for each row and entry."""
    return np.take_along_axis(array, which[None], axis=0)[0]


def _one_sided(local: Local, ladder: Ladder, noise: Array) -> tuple[Array, Array]:
    """Return the slopes forwards and backwards at each distance, and for each the larger of their errors.

    The error of D(t) = (f(x + t) - f(x)) / t is f'' t / 2 + f''' t^2 / 6 + ..., so that (8 D(t / 8) - D(t)) / 7 has no
    f'' in its error. The change from one distance to the next tells the error: one of the order of t^p is 8^p times as
    large at the larger distance, so that it is less than the change, if p is 1 or more. That of a kink within the
    distance grows as t shrinks, so that p is -1; it is 8 / 7 times the change.
    """
    slopes = (RATIO * ladder.slopes[1:] - ladder.slopes[:-1]) / (RATIO - 1)
    noise_of_slopes = NOISE_OF_SLOPES * noise[:, None] / ladder.distances[:-1, None, None]
    changes = np.full_like(slopes, np.inf)
    changes[1:] = np.abs(np.diff(slopes, axis=0)) * RATIO / (RATIO - 1)
    errors = noise_of_slopes + np.fmax(changes[:, 0], changes[:, 1])
    errors = np.where(np.isfinite(errors) & np.isfinite(slopes).all(axis=1), errors, np.inf)
    # What holds at one distance must hold at all smaller ones, up to their noise: this is how Lepski chooses a
    # bandwidth. It tells kinks beside the point from those at it, and a function of a small scale from what it looks
    # like from afar. 16 units allow for the rounding of values as large as their rises, at both ends of either slope,
    # with a factor of 4 to spare.
    for k in range(len(errors) - 1):
        differences = np.abs(slopes[k + 1 :] - slopes[k])
        allowed = (noise_of_slopes[k + 1 :] + errors[k])[:, None] + 16 * local.unit * np.abs(slopes[k])
        errors[k, (differences > allowed).any(axis=(0, 1))] = np.inf
    return slopes, errors


def _least_errors(slopes: Array, errors: Array, distances: Array) -> tuple[Indices, Mask]:
    """Return the index of the distance with the least error, and where that distance is far.

    Farther away than a few scales another function may be: a saturated one, say. So slopes from there are taken only if
    they are known and none is known from nearer.
    """
    is_near = (distances[:-1] <= _FARTHEST)[:, None, None]
    steeper = np.abs(slopes).max(axis=1)
    near, far = np.where(is_near, errors, np.inf), np.where(is_near, np.inf, errors)
    nearer, farther = near.argmin(axis=0), far.argmin(axis=0)
    is_known = _at(near, nearer) <= RESOLUTION * _at(steeper, nearer)
    is_far = ~is_known & (_at(far, farther) <= RESOLUTION * _at(steeper, farther)) & (_at(steeper, farther) > 0)
    return np.where(is_far, farther, nearer), is_far


def _central(ladder: Ladder, noise: Array, mean: Array, error: Array, far: Mask) -> tuple[Array, Array]:
    """Return the central slopes with the least errors, of those that are ``mean`` up to ``error``.

    The error of C(t) = (f(x + t) - f(x - t)) / 2 t is f''' t^2 / 6 + ..., and noise / t. (64 C(t / 8) - C(t)) / 63 has
    no f''' in its error, and (64 * 8 + 1) / 63 of that noise. The correction is a part of 1 / 63 of C(t / 8) - C(t); a
    part of 1 / 8 is on the safe side.
    """
    distances = ladder.distances[:-1, None, None]
    means = ladder.slopes.mean(axis=1)
    slopes = (RATIO**2 * means[1:] - means[:-1]) / (RATIO**2 - 1)
    errors = (RATIO**3 + 1) / (RATIO**2 - 1) * noise[:, None] / distances + np.abs(np.diff(means, axis=0)) / RATIO
    fits = (np.abs(slopes - mean) <= error) & ((distances <= _FARTHEST) | far)  # else there is a kink within
    errors = np.where(fits & np.isfinite(errors), errors, np.inf)
    best = errors.argmin(axis=0)
    is_any = np.isfinite(_at(errors, best))
    return np.where(is_any, _at(slopes, best), mean), np.where(is_any, _at(errors, best), error)


def _jumps(heights: Array, noise: Array) -> Mask:
    """Find where a rise stays as the distance shrinks: over three distances that of a smooth piece shrinks by 512."""
    last = len(heights) - 1 - np.isfinite(heights[::-1]).argmax(axis=0)
    close, away = _at(heights, last), _at(heights, np.maximum(last - 3, 0))
    # Of the power 0.11 one half stays. Smaller ones look like jumps, but `Ladder.steep` has found those from 0.1 on. A
    # rise of noise alone is less than 4 of it, as two values have it and it is known up to a factor of 2; 32 leave 8.
    return np.any((close > 0.5 * away) & (close > 32 * noise[:, None]), axis=0)


def searched(local: Local, ladder: Ladder, slopes: LineSlopes, steep: Mask) -> Ladder:
    """Return the ladder with more distances for the entries at whose scale no slope is known well."""
    # Of sin(1e6 x) at 0 no slope is known at the scale 1: all distances are too far, so that smaller ones are asked.
    known = slopes.known
    constant = (ladder.rises == 0).all(axis=(0, 1))
    is_value = ~steep & np.isfinite(local.value)[:, None] & np.isfinite(local.point)
    # Where the entry has a known slope in another row, and the row one by another entry, the distances are right, and
    # the slope is small.
    elsewhere = known.any(axis=0) & known.any(axis=1, keepdims=True)
    # This close, noise may hide a slope that matters beside the steepest one.
    hidden = (slopes.error > RESOLUTION / 8 * slopes.size[:, None]) & (slopes.size[:, None] > 0)
    is_lost = is_value & ~known & (~constant & ~elsewhere | hidden)
    lost: Mask = is_lost.any(axis=0)
    # If no entry changes anything, farther points may tell whether that is so.
    alone: Mask = constant.all(axis=0) & ~known.any()
    if not (lost | alone).any():
        return ladder
    # Up to moves that are four times as large as the entry, and as 1.
    ratio = 4 * max(1.0, 1 / float(local.scale[lost | alone].min())) / ladder.radius
    up = int(np.ceil(np.log(ratio) / np.log(RATIO)))
    if above := range(-up, int(ladder.levels[0])):  # the radius of bfloat16 is large, and one step leads so far
        ladder = ladder.joined(Ladder.of(local, ladder.radius, above, np.flatnonzero(lost | alone)))
    below = range(WITHIN + 1, WITHIN + 1 + _NEARER)
    return ladder.joined(Ladder.of(local, ladder.radius, below, np.flatnonzero(lost))) if lost.any() else ladder


def fitted_steps(local: Local, ladder: Ladder, slopes: LineSlopes, noise: Array) -> Steps:
    """Return a scale for each entry and a radius for each row, whose products are the distances of the slopes.

    The radius is that of the noise, and the scale the median of what the rows say. An entry of little effect is
    followed farther, until it has as much effect as the steepest, but no farther: else it would drown the others, as
    errors are in proportion to the steepest slope.
    """
    known = slopes.known
    sizes = np.where(known, slopes.steeper, 1.0)
    factors = RATIO ** -slopes.level.astype(np.float64)
    steepest = np.max(sizes * np.fmin(factors, 1.0), axis=1, keepdims=True, initial=0.0, where=known)
    farther = np.exp2(np.floor(np.log2(np.fmax(steepest / sizes, 1.0))))
    columns = zip(np.log2(np.fmin(factors, farther)).T, known.T, strict=True)
    factors = np.exp2([np.round(np.median(column[k])) if k.any() else 0.0 for column, k in columns])
    radius = ladder.radius * RATIO ** -slopes.radius_level.astype(np.float64)
    relative = noise / np.where(slopes.size > 0, slopes.size, 1.0)
    # A difference over a step has the error noise / step, and step^2 if pieces bend; a point that is a radius away is
    # in one piece for most steps of that part of the radius. At the precision u, the radius is 2 u^(1/3), and the step
    # u^(1/2), as large as noise / step: so noise and bends tell the slopes to both sides apart by as much.
    parts = np.fmin(np.fmax(local.unit, relative) ** (1 / 6) / 2, 0.25)
    return Steps(local.scale * factors, radius, radius * np.exp2(np.round(np.log2(parts))))


def drawn(random: np.random.Generator, local: Local, steps: Steps, *shape: int) -> Array:
    """Draw random directions that make moves by the radius, and by a part of it, exact.

    128 steps of the precision at the radius leave room for the part 1 / 64; 2^-20 to 2^-4 are as fine as needed.
    """
    grain = np.clip(local.unit / steps.radius.min() * 128, 2.0**-20, 2.0**-4)
    return np.round(random.uniform(-1.0, 1.0, shape) / grain) * grain


def measured_sums(local: Local, steps: Steps, slopes: LineSlopes, noise: Array, lines: Array) -> Sums:
    """Compare slopes along the lines, forwards and backwards, with the sums of those along the entries."""
    m, n = slopes.right.shape
    factors = np.array([1.0, 1 / RATIO, 1 / RATIO**2])[:, None, None, None]
    left, right = np.where(slopes.finite, slopes.left, 0.0), np.where(slopes.finite, slopes.right, 0.0)
    # Of a sum, the slope along a line is that of each entry, to the side to which the line moves it.
    sums = np.stack([np.maximum(s * lines, 0) @ right.T + np.minimum(s * lines, 0) @ left.T for s in (1, -1)])
    errors = np.sqrt(np.sum(np.where(slopes.finite, slopes.error, 0.0) ** 2, axis=1))
    # The error of a slope over the radius is `NOISE_OF_SLOPES`, 18.6, times noise / radius, and radius^2 times a third
    # derivative. Scales are known up to a factor of 8, so that is up to 64 times the slope, and 1 / 6 of it counts.
    accuracy = 32 * (noise / steps.radius + steps.radius**2 * slopes.size)
    # Errors of n entries add as their root. The largest of 64 is less than four standard deviations.
    tolerance = 4 * (np.sqrt(n) * accuracy + errors)
    jumps: Mask = np.asarray(slopes.jumps.any(axis=1))
    differences, steepest = np.zeros((2, m))
    for rows, radius, _ in rows_by_steps(steps, np.arange(m)):
        rises = local(radius * factors * np.stack([lines, -lines]))[..., rows] - local.value[rows]
        near, far = np.abs(rises[-1]), np.abs(rises[:-1]).max(axis=0)
        # Of a smooth piece it is a part of 1 / 64, and of the power 0.17 one half.
        jumps[rows] |= ((near > 0.5 * far) & (near > 32 * noise[rows])).any(axis=(0, 1))
        # (8 D(r / 8) - D(r)) / 7 as in `_one_sided`, where D(r / 8) is 8 rises[1] / r.
        along = (RATIO * RATIO * rises[1] - rises[0]) / radius / (RATIO - 1)
        differences[rows] = np.nan_to_num(np.abs(along - sums[..., rows])).max(axis=(0, 1))
        steepest[rows] = np.max(far, axis=(0, 1), initial=0.0, where=np.isfinite(far)) / radius
    is_sum = (differences <= tolerance) & ~jumps
    return Sums(jumps, is_sum, np.where(is_sum, differences, 0.0), steepest)


def rows_by_steps(steps: Steps, rows: Indices) -> Iterator[tuple[Indices, float, float]]:
    """Yield the rows in groups that have their radius and step in common."""
    pairs = np.stack([steps.radius[rows], steps.step[rows]], axis=1)
    for radius, step in np.unique(pairs, axis=0):
        yield rows[(pairs == (radius, step)).all(axis=1)], float(radius), float(step)
