"""Measures what a function is near a point, from its values alone: slopes along lines, then smooth pieces.

NumPy only: nothing here knows a framework, or a rule of this package. The function is taken to be piecewise smooth.
As points come closer, its gradients there tend to finitely many vectors, one for each smooth piece that touches the
point. The Clarke subdifferential is their convex hull.

It is measured in this order, and each step is a function of those before. `Neighbourhood.of` takes steps 1 to 5, whose
functions are in `jaxclamp._shared.slopes`. The last one is in `jaxclamp._shared.pieces`:

1. Rises along each entry, forwards and backwards, at distances that shrink by factors of 8: a `Ladder`. Each entry is
   measured in units of its own scale, so that slopes and gradients are in units of the output.
2. How noisy the values are, by how far they lie from smooth curves on random rays: `measured_noise`.
3. The slopes along each entry: `line_slopes`. A difference over the distance t has two errors, noise / t and what the
   slope changes over t. Both are seen from one distance to the next, and the distance with the least sum is taken.
4. How far the function is followed from now on: `fitted_steps` takes these distances as scales and radii.
5. Whether a row of the output is a sum of functions of one entry each: `measured_sums` compares slopes along random
   lines with those along the entries. Then the set is a box: an interval for each entry, from the slopes.
6. Else gradients at nearby points, each of one piece. Hundreds of ties make 2^hundreds of pieces. So a function that is
   a sum of terms, each with its own entries, is split into these: `Pieces.terms`. The set of such a sum is the
   product of the sets of its terms. Pieces are looked for in the direction of the gradient that is to be judged:
   `Pieces.nearest`.

An example: f(x, y) = max(x, y) + sin(x) at (0, 0) in float64. The slopes along x are 2 forwards and 1 backwards, along
y 1 and 0: two kinks. If f were a sum of functions of x and of y, its slope along (1, 1) would be 2 + 1. It is 2, so x
and y make one term. At nearby points its gradients are (2, 0) where x is larger, else (1, 1): two pieces. The gradient
(1.5, 0.5) is their mean, and a member; (1.5, 0) is in the box of the slopes, but not between the two.
"""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Self

import numpy as np

from jaxclamp._shared.slopes import (
    BEYOND,
    WITHIN,
    Array,
    Function,
    Indices,
    Ladder,
    LineSlopes,
    Local,
    Mask,
    Steps,
    Sums,
    default_radius,
    default_scale,
    drawn,
    fitted_steps,
    line_slopes,
    measured_noise,
    measured_sums,
    searched,
)

_RAYS = 6
"""How many random directions noise is measured along. Each gives a mean of four squared differences. The median of six
of these is off by less than a factor of 2 in 99 of 100 draws of rounding errors; comparisons with noise leave 8."""
_LINES = 32
"""How many random directions are measured, each forwards and backwards. Two entries with a kink in common show it on
the half of them where their moves have the signs of the kink; all miss it with the probability 2^-32."""
_MORE_LINES = 1024
"""How many are measured before a gradient is refused because no kink has been seen: a piece that takes 1 / 500 of the
directions is then missed with the probability (1 - 1 / 500)^2048, 2 %."""


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """A function near a point: how noisy it is, how far it is followed, and its slopes along lines."""

    local: Local
    """With the scales of ``steps``."""
    noise: Array
    steps: Steps
    slopes: LineSlopes
    sums: Sums
    random: np.random.Generator

    @classmethod
    def of(
        cls, function: Function, point: Array, unit: float, radius: float | None = None, scale: Array | None = None
    ) -> Self:
        """Measure the function, whose values have the precision ``unit``.

        ``scale`` replaces the size of each entry as its scale. ``radius``, in units of the scale, replaces the search
        for the distance at which slopes have the least error.
        """
        point = np.asarray(point, np.float64)
        random = np.random.default_rng(0)
        local = Local(function, point, default_scale(point) if scale is None else scale, unit)
        first = float(default_radius(unit) if radius is None else np.exp2(np.round(np.log2(radius))))
        ladder = Ladder.of(local, first, range(-BEYOND, WITHIN + 1))
        steep, bends = ladder.steep()
        # An entry along which slopes have no bound stays where it is, here and in the lines below: a ray that moves it
        # is not smooth.
        noise = measured_noise(local, random.uniform(-1.0, 1.0, (_RAYS, point.size)) * ~steep.any(axis=0))
        steep &= bends > 8 * noise[:, None]  # noise alone bends by less than 2 + 2 / 8 of it
        # The caller's radius is level 0, and is meant: slopes come from there and from the levels next to it.
        slopes = line_slopes(local, ladder if radius is None else ladder.cut(1), noise, steep)
        if radius is None:
            ladder = searched(local, ladder, slopes, steep)
            slopes = line_slopes(local, ladder, noise, steep)
        steps = fitted_steps(local, ladder, slopes, noise)
        slopes = slopes.rescaled(steps.scale / local.scale)
        local = dataclasses.replace(local, scale=steps.scale)
        lines = drawn(random, local, steps, _LINES, point.size) * ~steep.any(axis=0)
        return cls(local, noise, steps, slopes, measured_sums(local, steps, slopes, noise, lines), random)

    def along_more_lines(self) -> Self:
        """Measure along more lines which rows are sums."""
        lines = self.drawn(_MORE_LINES, self.point.size) * self.free
        return dataclasses.replace(self, sums=measured_sums(self.local, self.steps, self.slopes, self.noise, lines))

    @property
    def point(self) -> Array:
        return self.local.point

    @property
    def value(self) -> Array:
        return self.local.value

    @functools.cached_property
    def free(self) -> Mask:
        """The entries along which all rows are finite."""
        return np.asarray(self.slopes.finite.all(axis=0, where=np.isfinite(self.value)[:, None]))

    def drawn(self, *shape: int) -> Array:
        return drawn(self.random, self.local, self.steps, *shape)

    @property
    def bounds(self) -> tuple[Array, Array]:
        """The least and the largest slope along each entry; the derivative twice where there is no kink."""
        left, right, kinked = self.slopes.left, self.slopes.right, self.slopes.kinked
        low, high = np.minimum(left, right), np.maximum(left, right)
        return np.where(kinked, low, self.slopes.central), np.where(kinked, high, self.slopes.central)

    def moved(self, entries: Indices, radius: float) -> Array:
        """Return a nearby point that differs from the point in these entries alone."""
        moves = np.zeros(self.point.size)
        moves[entries] = self.drawn(len(entries)) * radius
        return self.local.points(moves)
