"""The gradients around a point: the search for them, the hull that they span, and what that tells.

The search knows a function by what `along` answers: the derivative and the gradient of the piece along a direction, as
vectors of float64. So it serves JAX and torch.
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
Along = Callable[[Array], tuple[float, Array]]
"""The directional derivative, and the gradient of the piece that is entered, along a direction."""

_NEARBY = 1e-3  # how far a direction of descent is moved, relative to its length, to enter a piece and not its edge
_UNITS = 8  # in the last place, that count as rounding
_PRECISION = 2.0**-44  # of the hull, relative to the largest entry
_RESOLVED = 4  # how many times the rounding a slope has to be, to count as one


@dataclass(frozen=True, eq=False)
class Subdifferential:
    """The gradients of the pieces around a point, as far as they were found, and the hull that they span.

    The hull is inside Clarke's subdifferential, and all of it where every piece was found.
    """

    points: Array = field(repr=False)
    """The gradients found, as vectors, an array of shape (k, n)."""
    directions: int
    """Along how many directions the function was asked."""
    is_certified: bool
    """Whether `min_norm` is certified, up to rounding.

    Either it is 0: then the point is stationary. Or the derivative along its opposite is minus its squared norm: where
    the function is convex nearby, no subgradient is shorter, and that is the direction of steepest descent.
    """
    least: Array = field(repr=False)
    """The point of least norm in the hull, as a vector."""
    rounding: Array = field(repr=False)
    """What is taken for rounding in each entry of a gradient: some units in the last place of its largest number."""
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
        """Whether all gradients that were found are the same."""
        return len(self.points) == 1

    def contains(self, gradient: Any) -> bool:
        """Whether ``gradient``, of the structure of the argument, is in the hull, up to rounding."""
        point = self.flatten(gradient)
        moves = self.rounding > 0
        units = self.rounding[moves]
        away = nearest(self.points[:, moves] / units, point[moves] / units)[0] - point[moves] / units
        return not point[~moves].any() and bool(np.linalg.norm(away) <= math.sqrt(point.size))

    def __str__(self) -> str:
        norms = np.linalg.norm(self.points, axis=1)
        least = float(np.linalg.norm(self.least))
        found = "1 gradient, in all directions" if self.is_differentiable else f"{len(self.points)} gradients"
        spread = f"{norms.min():.4g}" if self.is_differentiable else f"{norms.min():.4g} to {norms.max():.4g}"
        meaning = (
            "not certified: the function may have more pieces"
            if not self.is_certified
            else "the point is stationary"
            if least == 0
            else f"certified: the derivative along -min_norm is {-(least**2):.4g}"
        )
        lines = {
            "found": f"{found}, of {self.directions} directions asked",
            "their norms": spread,
            "min_norm": f"{_shown(self.least)}, norm {least:.4g}",
            "": meaning,
        }
        return "\n".join(f"{name:<12} {line}" for name, line in lines.items())


def _shown(vector: Array) -> str:
    numbers = [f"{number:.4g}" for number in vector[:6]] + ["..."] * (vector.size > 6)
    return f"[{', '.join(numbers)}]"


def check_directions(directions: object) -> None:
    """Raise unless ``directions`` is how many directions to ask along."""
    if not isinstance(directions, int) or directions < 1:
        raise ValueError(f"subdifferential: directions={directions!r}; pass how many to ask, a positive number.")


def explored(
    along: Along,
    draws: Array,
    epsilon: float,
    flatten: Callable[[Any], Array],
    unflatten: Callable[[Array], Any],
) -> Subdifferential:
    """Look for gradients along the directions ``draws`` and their opposites, then where one may be missing.

    Along -p, where p is the least point of the hull found, the derivative of a convex function is the largest of
    -<g, p> over all its gradients g. If that is more than -<p, p>, a gradient is missing, and entered there.

    The entries of a gradient may differ in size by orders of magnitude, so each entry has its own rounding. Where large
    terms cancel, the error of an entry is larger than it shows. Such an error is seen along -p: the derivative and the
    gradient that is entered there, two computations of one slope, differ by it.

    Args:
      along: the function.
      draws: some directions, an array of shape (k, n).
      epsilon: the rounding of the numbers of a gradient, relative to each.
      flatten, unflatten: between gradients of the structure of the argument and vectors.

    Raises:
      ValueError: a gradient is not finite.
    """
    found: list[Array] = []
    largest = np.zeros(draws.shape[1])
    asked = 0

    def ask(direction: Array) -> tuple[float, Array]:
        nonlocal largest, asked
        derivative, gradient = along(direction)
        asked += 1
        if not np.isfinite(gradient).all():
            raise ValueError(f"subdifferential: the gradient along a direction is not finite: {_shown(gradient)}.")
        largest = np.maximum(largest, np.abs(gradient))
        return derivative, gradient

    def rounding() -> Array:
        each: Array = _UNITS * epsilon * largest + _PRECISION * largest.max(initial=0.0)
        return each

    def keep(gradient: Array) -> bool:
        is_new = not any((np.abs(gradient - other) <= rounding()).all() for other in found)
        if is_new:
            found.append(gradient)
        return is_new

    for gradient in [ask(direction)[1] for draw in draws for direction in (draw, -draw)]:
        keep(gradient)

    def least_found() -> tuple[Array, float]:
        """The least point p of the hull, and by how much more than rounding the slope along -p exceeds -|p|."""
        least, _ = nearest(np.array(found), np.zeros(draws.shape[1]))
        least = np.where(np.abs(least) <= rounding(), 0.0, least)
        norm = float(np.linalg.norm(least))
        if not norm:
            return least, 0.0
        ahead = -least / norm
        slope, gradient = ask(ahead)
        # No more than terms as large as the largest entry can leave: else the derivatives differ by their rules.
        terms = float(largest.max() * np.abs(ahead).sum())
        cancelled = min(abs(slope - float(gradient @ ahead)), _UNITS * epsilon * terms)
        excess = slope + norm
        if abs(excess) > cancelled + float(rounding() @ np.abs(ahead)):
            return least, excess
        return (least if norm > _RESOLVED * cancelled else np.zeros_like(least)), 0.0

    least, excess = least_found()
    for draw in draws:
        if excess <= 0:  # nothing is missing, or the function is not convex here
            break
        # Beside the direction of descent, which may run along an edge between pieces.
        if not keep(ask(_NEARBY * draw - least / float(np.linalg.norm(least)))[1]):
            break
        least, excess = least_found()
    return Subdifferential(np.array(found), asked, excess == 0, least, rounding(), flatten, unflatten)
