"""The gradients around a point: the search for them, the hull that they span, and what that tells.

The search calls one function, `along`, which returns the value, the derivative along a direction, and the gradient of
the piece that is entered, a vector of float64. So it serves JAX and torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxclamp._shared.hull import nearest

Array = NDArray[np.float64]
Along = Callable[[Array], tuple[float, float, Array]]
"""Maps a direction to the value, to the derivative along it, and to the gradient of the piece that is entered."""

# How far a direction of descent is moved, relative to its length, to enter a piece and not its edge: much more than
# rounding in float32, 1e-7, and much less than the angles between most pieces.
_NEARBY = 1e-3
# How many units in the last place count as rounding. An operation rounds by up to half a unit, in a random direction:
# 256 of them in a row are off by up to about sqrt(256) / 2.
_UNITS = 8
# The precision of a point of the hull, relative to its largest entry: 2**-44 is six times the 1e-14 at which `nearest`
# stops.
_PRECISION = 2.0**-44
# How many times its rounding a slope has to be, to count as one. The rounding is estimated from one difference, and may
# be larger than that, though hardly four times as large.
_RESOLVED = 4


@dataclass(frozen=True, eq=False)
class Subdifferential:
    """The gradients of the pieces around a point that the search entered, and the hull that they span.

    The hull is inside the Clarke subdifferential, and all of it where every piece was found.
    """

    points: Array = field(repr=False)
    """The gradients as vectors, an array of shape (k, n)."""
    directions: int
    """The number of directions in which a piece was entered."""
    is_certified: bool
    """Whether `min_norm` is certified, up to rounding.

    Either it is 0: then the point is stationary. Or the derivative along its opposite is minus its squared norm: where
    the function is convex nearby, no subgradient is shorter, and that is the direction of steepest descent.
    """
    least: Array = field(repr=False)
    """The point of least norm in the hull, as a vector."""
    rounding: Array = field(repr=False)
    """What counts as rounding in each entry of a gradient: some units in the last place of its largest number."""
    flatten: Callable[[Any], Array] = field(repr=False)
    unflatten: Callable[[Array], Any] = field(repr=False)

    @property
    def gradients(self) -> list[Any]:
        """The gradients found, each of the structure of the argument."""
        return [self.unflatten(point) for point in self.points]

    @property
    def min_norm(self) -> Any:
        """The point of least norm in the hull, of the structure of the argument."""
        return self.unflatten(self.least)

    @property
    def is_differentiable(self) -> bool:
        """Whether there is one gradient, in all directions."""
        return len(self.points) == 1

    def contains(self, gradient: Any) -> bool:
        """Return whether ``gradient``, of the structure of the argument, is in the hull, up to rounding."""
        point = self.flatten(gradient)
        if point.size != self.least.size:
            raise ValueError(f"subdifferential: the gradient has {point.size} numbers, and not {self.least.size}.")
        if not np.isfinite(point).all():  # the nearest point would be NaN
            return False
        # An entry that is 0 in all gradients has no rounding to be measured in: it must be 0 here too.
        moves = self.rounding > 0
        units = self.rounding[moves]
        away = nearest(self.points[:, moves] / units, point[moves] / units)[0] - point[moves] / units
        # The root is the length of a vector that is off by one unit in each entry.
        return not point[~moves].any() and bool(np.linalg.norm(away) <= math.sqrt(point.size))

    def __str__(self) -> str:
        norms = np.linalg.norm(self.points, axis=1)
        least = float(np.linalg.norm(self.least))
        count = "1 gradient, in all directions" if self.is_differentiable else f"{len(self.points)} gradients"
        spread = f"{norms.min():.4g}" if self.is_differentiable else f"{norms.min():.4g} to {norms.max():.4g}"
        meaning = (
            "not certified: the function may have more pieces"
            if not self.is_certified
            else "the point is stationary"
            if least == 0
            else f"certified: the derivative along -min_norm is {-(least**2):.4g}"
        )
        lines = {
            "found": f"{count}, of {self.directions} directions asked",
            "their norms": spread,
            "min_norm": f"{_shortened(self.least)}, norm {least:.4g}",
            "": meaning,
        }
        return "\n".join(f"{name:<12} {line}" for name, line in lines.items())


def _shortened(vector: Array) -> str:
    """Write a vector as text, of a long one the first six numbers."""
    numbers = [f"{number:.4g}" for number in vector[:6]] + ["..."] * (vector.size > 6)
    return f"[{', '.join(numbers)}]"


def check_directions(directions: object) -> None:
    """Raise unless ``directions``, the number of random directions, is a positive integer."""
    if not isinstance(directions, int | np.integer) or directions < 1:
        raise ValueError(f"subdifferential: directions={directions!r}; pass how many to ask, a positive number.")


def normal_draws(directions: int, size: int) -> Array:
    """Return directions to begin with, always the same: half as many, as `explored` takes the opposite of each too.

    They are normal, so that all directions are as likely. Numbers from an interval would favour the corners of a cube.
    """
    return np.random.default_rng(0).standard_normal(((directions + 1) // 2, size))


def explored(
    along: Along, draws: Array, epsilon: float, flatten: Callable[[Any], Array], unflatten: Callable[[Array], Any]
) -> Subdifferential:
    """Look for gradients along the directions ``draws`` and their opposites, then where one may be missing.

    Along -p, where p is the least point of the hull found, the derivative of a convex function is the largest of
    -<g, p> over all its gradients g. If that is more than -<p, p>, a gradient is missing, and entered there.

    Say f(x, y) = max(x, y, -x - y), at 0, and the one draw is (2, 1). There and in the opposite direction the gradients
    are (1, 0) and (-1, -1), with p = (1/5, -2/5). Along -p = (-1/5, 2/5) the derivative is 2/5, more than -1/5. So a
    gradient is missing: there it is (0, 1). The hull of all three contains 0, and the point is stationary.

    The entries of a gradient may differ in size by orders of magnitude, so each entry has its own rounding. Where large
    terms cancel, the error of an entry is larger than it shows. Such an error is seen along -p: the derivative and the
    gradient that is entered there, two computations of one slope, differ by it.

    Args:
      along: the function.
      draws: some directions, an array of shape (k, n).
      epsilon: the rounding of the numbers of a gradient, relative to each.
      flatten, unflatten: between gradients of the structure of the argument and vectors.

    Raises:
      ValueError: the value or a gradient is not finite.
    """
    search = _Search(along, epsilon, draws.shape[1])
    # In pairs: opposite directions enter both sides of a kink, wherever it lies, unless they run along it.
    for draw in draws:
        for direction in (draw, -draw):
            search.add(search.enter(direction)[1])
    least, excess = search.least()
    for draw in draws:
        if excess <= 0:  # nothing is missing, or the function is not convex here
            break
        # Not -least itself, which may run along an edge between pieces, but a direction near it.
        if not search.add(search.enter(_NEARBY * draw - least / float(np.linalg.norm(least)))[1]):
            break
        least, excess = search.least()
    gradients = np.array(search.gradients)
    return Subdifferential(gradients, search.directions, excess == 0, least, search.rounding, flatten, unflatten)


class _Search:
    """The gradients that were entered so far, and how far their numbers can be trusted."""

    def __init__(self, along: Along, epsilon: float, size: int) -> None:
        self.gradients: list[Array] = []
        self.directions = 0
        self._along = along
        self._epsilon = epsilon
        self._largest = np.zeros(size)
        """The largest absolute value that each entry of a gradient had."""

    def enter(self, direction: Array) -> tuple[float, Array]:
        """Return the derivative along a direction, and the gradient of the piece that is entered."""
        value, derivative, gradient = self._along(direction)
        self.directions += 1
        # Outside of a domain the value tells: the gradient of log at -1 is 1 / x, which is -1.
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            raise ValueError(
                f"subdifferential: the value is {value}, and the gradient along a direction {_shortened(gradient)}; "
                "pass a point at which both are finite."
            )
        self._largest = np.maximum(self._largest, np.abs(gradient))
        return derivative, gradient

    @property
    def rounding(self) -> Array:
        """What counts as rounding in each entry of a gradient."""
        return _UNITS * self._epsilon * self._largest + _PRECISION * self._largest.max(initial=0.0)

    def add(self, gradient: Array) -> bool:
        """Add a gradient, unless it is one of those before up to rounding; return whether it is new."""
        is_new = not any((np.abs(gradient - before) <= self.rounding).all() for before in self.gradients)
        if is_new:
            self.gradients.append(gradient)
        return is_new

    def least(self) -> tuple[Array, float]:
        """Return the least point p of the hull, and by how much more than rounding the slope along -p exceeds -|p|."""
        least, _ = nearest(np.array(self.gradients), np.zeros_like(self._largest))
        # What is left of 0 would have a direction like any other, and be followed.
        least = np.where(np.abs(least) <= self.rounding, 0.0, least)
        norm = float(np.linalg.norm(least))
        if not norm:
            return least, 0.0
        ahead = -least / norm
        slope, gradient = self.enter(ahead)
        # The slope was computed twice, and the two differ by what cancels in it. That is at most what terms as large as
        # the largest entry can leave: if they differ by more, it is because their rules differ.
        terms = float(self._largest.max() * np.abs(ahead).sum())
        cancelled = min(abs(slope - float(gradient @ ahead)), _UNITS * self._epsilon * terms)
        excess = slope + norm
        if abs(excess) > cancelled + float(self.rounding @ np.abs(ahead)):
            return least, excess
        return (least if norm > _RESOLVED * cancelled else np.zeros_like(least)), 0.0
