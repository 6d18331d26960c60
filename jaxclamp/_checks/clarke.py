"""What a function is near a point, from its values alone: slopes along lines, its smooth pieces, Clarke's set.

NumPy only: nothing here knows a framework, or a rule of this package. The function is taken to be piecewise smooth.
Then its gradients at the nearby points at which it has one tend to finitely many vectors, of each smooth piece that
touches the point one. Clarke's set is their convex hull. Hundreds of ties make 2^hundreds of pieces. So entries of
which the function is a sum of terms, each with its own entries, are kept apart: the set of such a sum is the product of
the sets of its terms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxclamp._programs.hull import nearest

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Indices = NDArray[np.intp]
Function = Callable[[Array], Array]
"""Maps points, an array of shape (k, n), to their values, of shape (k, m)."""

_LINES = 32  # random directions, of which each is asked forwards and backwards
_PIECES = 24  # nearby points at which a row that has a kink is differentiated first
_SEARCH = 160  # nearby points that are tried at once, to find a piece that is farther ahead
_PATIENCE = 4  # how many such searches in vain end the search


@dataclass(frozen=True)
class Term:
    """Clarke's set of one output, projected on entries that no other entry of the input has a say in."""

    entries: Indices
    directions: Array
    """The nearby points, in units of the radius."""
    gradients: Array
    """The gradients there with respect to ``entries``, a row each."""

    def joined(self, other: Term) -> Term:
        directions = np.concatenate([self.directions, other.directions])
        return Term(self.entries, directions, np.concatenate([self.gradients, other.gradients]))


class Neighbourhood:
    """A function near a point.

    ``radius`` is how far away the nearby points lie along each entry, and ``step`` that of a finite difference at such
    a point; both are relative to ``scale``, which is the size of the entry or 1. They are powers of two: with them the
    points are exact in the precision of the function. ``left`` and ``right`` are the one-sided slopes along each entry,
    of shape (m, n), ``central`` is their mean where there is no kink.
    """

    def __init__(self, function: Function, point: Array, unit: float, radius: float | None = None) -> None:
        self._function = function
        self.point = np.asarray(point, np.float64)
        self.finite_entries = np.isfinite(self.point)
        sizes = np.maximum(np.abs(np.where(self.finite_entries, self.point, 1.0)), 1.0)
        self.scale = np.exp2(np.ceil(np.log2(sizes)))
        self._random = np.random.default_rng(0)
        self.value = self._values(self.point[None])[0]
        self._choose_steps(unit, radius)
        self._steep, bends = self._grows()
        noise = self._measured_noise()
        coarser = float(np.max(noise / np.maximum(np.abs(self.value), 1.0), initial=0.0, where=np.isfinite(noise)))
        if coarser > 64 * unit:  # it computes with less than its dtype has, or cancels
            self._choose_steps(min(coarser, 0.01), radius)
        self.noise = np.fmax(unit * np.abs(np.nan_to_num(self.value)), np.nan_to_num(noise))
        self._steep &= bends > 8 * self.noise[:, None]
        self._follow_lines()

    def _choose_steps(self, unit: float, radius: float | None) -> None:
        self.radius = _power_of_two(2 * np.cbrt(unit) if radius is None else radius)
        self.step = self.radius * _power_of_two(min(unit ** (1 / 6) / 2, 0.25))
        self._grid = unit / self.radius

    def _values(self, points: Array) -> Array:
        return np.asarray(self._function(points), np.float64)

    def _at(self, directions: Array, factor: float) -> Array:
        """The points ``factor`` times the radius away in these directions."""
        moves = factor * self.radius * directions * self.scale
        return np.where(self.finite_entries, self.point + moves, self.point)

    def _drawn(self, *shape: int) -> Array:
        """Random directions, on a grid on which the points are exact."""
        drawn: Array = np.round(self._random.uniform(-1.0, 1.0, shape) / self._grid) * self._grid
        return drawn

    def _measured_noise(self) -> Array:
        """How far values lie from a smooth curve: fourth differences, on lines that begin beside the point."""
        directions = self._drawn(16, self.point.size) * ~self._steep.any(axis=0)
        values = np.stack([self._values(self._at(directions, k / 8)) for k in range(1, 13)])
        differences = np.sqrt(np.mean(np.diff(values, 4, axis=0) ** 2, axis=0) / 70.0)
        # A kink that is near, but not at the point, lies on some of the lines; imprecision on all.
        noise: Array = 3 * np.quantile(differences, 0.25, axis=0)
        return noise

    def _grows(self) -> tuple[Mask, Array]:
        """Where, for a row and an entry, slopes grow without bound as the point is approached, as of the square root.

        Beside it, how far values bend at the least distance, which is to be compared with their noise.

        At distances that shrink by 8 the increments of the slope of a smooth piece shrink by 8 as well. Those of a
        power below 1, or of x log x, never shrink, and each is as many times the one before; of a jump 8 times.
        """
        n = self.point.size
        factors = 8.0 ** -np.arange(5)
        lines = np.concatenate([np.eye(n), -np.eye(n)])
        rises = np.stack([self._values(self._at(lines, factor)) for factor in factors]) - self.value
        slopes = rises / (factors * self.radius)[:, None, None]
        increments = np.diff(slopes, axis=0)
        with np.errstate(all="ignore"):  # where the increments are 0, or not finite
            ratios = increments[1:] / increments[:-1]
        regular = (ratios.max(axis=0) < 6.5) & (ratios.min(axis=0) > 0.7)
        regular &= ratios.max(axis=0) < 1.3 * ratios.min(axis=0)
        above_rounding = np.abs(increments[0]) > 1e-6 * np.abs(slopes[0])
        ahead, behind = np.split(regular & above_rounding, 2)
        bends = np.abs(increments[-1]) * factors[-1] * self.radius
        return (ahead | behind).T, np.maximum(*np.split(bends, 2)).T

    def _follow_lines(self) -> None:
        """Slopes along entries and along random lines, and what they tell: kinks, jumps, rows that are sums."""
        n = self.point.size
        lines = np.concatenate([np.eye(n), self._drawn(_LINES, n) * ~self._steep.any(axis=0)])
        closest = self.step / self.radius
        factors = (1.0, 0.5, closest, -1.0, -0.5, -closest)
        moved = np.concatenate([self._values(self._at(lines, factor)) for factor in factors])
        rises = moved.reshape(len(factors), n + _LINES, -1) - self.value
        signed = rises / np.array(factors)[:, None, None] / self.radius
        steepest = np.max(np.abs(signed[[0, 1, 3, 4]]), axis=0)
        size = np.max(np.nan_to_num(steepest, nan=0.0, posinf=0.0), axis=0, initial=0.0)
        self.size = size
        """The steepest slope of each row."""
        self.accuracy = 32 * (self.noise / self.radius + self.radius**2 * size)
        """Of slopes along lines, for each row."""

        near, far = np.abs(rises[[2, 5]]), np.abs(rises[[0, 1, 3, 4]]).max(axis=0)
        jumps = (near > 0.5 * far) & (near > 100 * self.step * (1 + np.abs(self.value)))
        is_finite = np.isfinite(rises).all(axis=0)
        self.finite = (is_finite[:n] & self.finite_entries[:, None]).T & np.isfinite(self.value)[:, None] & ~self._steep
        """Where, for a row and an entry, all values are finite, and slopes are bounded."""
        self._free = self.finite.all(axis=0, where=np.isfinite(self.value)[:, None])
        """The entries along which all rows can be followed that have a value."""
        self.jumps = jumps.any(axis=0)[:n].T
        self.row_jumps = jumps.any(axis=(0, 1))

        scale = self.scale[:, None]
        self.right = ((2 * signed[1] - signed[0])[:n] / scale).T
        self.left = ((2 * signed[4] - signed[3])[:n] / scale).T
        central = (signed[[0, 1]] + signed[[3, 4]]) / 2
        self.central = ((4 * central[1] - central[0])[:n] / 3 / scale).T

        # A row is a sum of terms of one entry each if its slopes along all lines are the sums of those along entries.
        forwards, backwards = lines[n:] * self.scale, -lines[n:] * self.scale
        left, right = np.where(self.finite, self.left, 0.0), np.where(self.finite, self.right, 0.0)
        sums = [np.maximum(d, 0.0) @ right.T + np.minimum(d, 0.0) @ left.T for d in (forwards, backwards)]
        along = [(2 * signed[1] - signed[0])[n:], -(2 * signed[4] - signed[3])[n:]]
        errors = np.abs(np.array(along) - np.array(sums))
        tolerance = 4 * np.sqrt(n) * self.accuracy
        self.is_sum = ~(errors > tolerance).any(axis=(0, 1)) & ~self.row_jumps
        """The rows that are sums of functions of one entry."""

    @property
    def kinked(self) -> Mask:
        """Where, for a row and an entry, the slopes on the two sides differ."""
        differ: Mask = self.finite & (np.abs(self.right - self.left) > self.accuracy[:, None])
        return differ

    @property
    def bounds(self) -> tuple[Array, Array]:
        """The least and the largest slope along each entry; the derivative twice where there is no kink."""
        low, high = np.minimum(self.left, self.right), np.maximum(self.left, self.right)
        return np.where(self.kinked, low, self.central), np.where(self.kinked, high, self.central)

    def _distinct(self, row: int, term: Term) -> Term:
        """The term with one point of each piece."""
        rounded = np.round(term.gradients / (4 * self.accuracy_of_pieces(row) or 1.0))
        first = np.unique(rounded, axis=0, return_index=True)[1]
        return Term(term.entries, term.directions[first], term.gradients[first])

    def moved(self, entries: Indices) -> Array:
        """A nearby point at which these entries alone are others."""
        directions = np.zeros((1, self.point.size))
        directions[0, entries] = self._drawn(len(entries))
        point: Array = self._at(directions, 1.0)[0]
        return point

    def terms(self, row: int) -> list[Term]:
        """Clarke's set of a row that is not a sum of functions of one entry; empty, if no smooth piece was found.

        Entries that are in no term have one derivative, that of ``central``. Where the row jumps, the pieces are those
        whose values come close to the value at the point.
        """
        directions, gradients = self._samples[row]
        if not len(gradients):
            return []
        spread = gradients.max(axis=0) - gradients.min(axis=0) > self.accuracy_of_pieces(row)
        inside = np.flatnonzero(self.finite[row] & (spread | self.kinked[row] | self.jumps[row]))
        groups = [inside] if self.row_jumps[row] else self._groups(row, inside)
        found = [Term(group, directions, gradients[:, group]) for group in groups if len(group)]
        return [self._distinct(row, term) for term in found]

    @functools.cached_property
    def _samples(self) -> dict[int, tuple[Array, Array]]:
        """For each row that is no sum, nearby points at which it is smooth, and its gradients there."""
        rows = np.flatnonzero(~self.is_sum)
        everything = np.arange(self.point.size)
        found: dict[int, list[tuple[Array, Array]]] = {int(row): [] for row in rows}
        drawn = self._drawn(_PIECES, self.point.size) * self._free
        for directions in np.array_split(drawn, min(_PIECES, 1 + self.central.size // 2**14)):
            gradients, smooth = self._gradients(rows, everything, directions)
            for i, row in enumerate(rows):
                found[int(row)] += [(d, g[i]) for d, g, s in zip(directions, gradients, smooth, strict=True) if s[i]]
        n = self.point.size
        return {
            row: (np.array([d for d, _ in pairs]).reshape(-1, n), np.array([g for _, g in pairs]).reshape(-1, n))
            for row, pairs in found.items()
        }

    def nearest(
        self, row: int, term: Term, target: Array, accuracy: float, patience: int = _PATIENCE
    ) -> tuple[Array, Term]:
        """The point of Clarke's set nearest to ``target``, and the term with all pieces that were found on the way.

        The hull of the pieces found lies inside the set. So pieces are looked for in the direction in which ``target``
        lies outside of it, until it does not, or none is found.
        """
        closest, weights = nearest(term.gradients, target)
        in_vain = 0
        while in_vain < patience and np.linalg.norm(target - closest) > accuracy:
            ahead = self._distinct(row, self._ahead(row, term, target - closest))
            if not len(ahead.gradients):
                in_vain += 1
                continue
            in_vain = 0
            term = term.joined(ahead)
            closest, weights = nearest(term.gradients, target, np.append(weights, np.zeros(len(ahead.gradients))))
        return closest, term

    def _ahead(self, row: int, term: Term, direction: Array) -> Term:
        """New pieces of a term whose gradients lie farther in ``direction`` than all that are known."""
        entries, n = term.entries, self.point.size
        unit = direction / np.abs(direction).max()
        support = term.gradients @ unit
        known = term.directions[:, entries]
        best = known[np.argsort(support)[-4:]]
        tried = self._drawn(_SEARCH, n) * self._free
        ahead, behind, between, beside, _ = np.array_split(tried[:, entries], 5)
        first, second = (known[self._random.integers(len(known), size=len(part))] for part in (between, beside))
        share = self._random.random((len(between), 1))
        other = best[self._random.integers(len(best), size=len(between))]
        parts = [
            0.8 * unit + 0.2 * ahead,
            -0.8 * unit + 0.2 * behind,
            share * first + (1 - share) * other + 0.05 * between,
            np.where(self._random.random(beside.shape) < 0.8, second, beside),
        ]
        moved = np.concatenate(parts)
        tried[: len(moved), entries] = np.round(moved / self._grid) * self._grid

        along = np.zeros(n)
        along[entries] = unit / self.scale[entries]
        along *= self.step * self.scale.min()
        base = self._at(tried, 0.5)
        rise = self._values(base + along)[:, row] - self._values(base - along)[:, row]
        slopes = rise / (2 * self.step * self.scale.min())
        margin = self.accuracy_of_pieces(row) * len(entries)
        order = [i for i in np.argsort(-slopes, kind="stable") if slopes[i] > support.max() + margin][:16]
        if not order:
            return Term(entries, np.empty((0, n)), np.empty((0, len(entries))))
        gradients, smooth = self._gradients(np.array([row]), entries, tried[order])
        is_ahead = smooth[:, 0] & (gradients[:, 0] @ unit > support.max() + margin)
        return Term(entries, tried[order][is_ahead], gradients[is_ahead, 0])

    def accuracy_of_pieces(self, row: int) -> float:
        """Of gradients at nearby points."""
        return float(32 * (self.noise[row] / self.step + self.radius**2 * self.size[row]))

    def _gradients(self, rows: Indices, entries: Indices, directions: Array) -> tuple[Array, Mask]:
        """The gradients of the rows with respect to the entries at nearby points, and which rows are smooth there.

        They are of shape (points, rows, entries). A limit is extrapolated from a point and from one half as far away.
        """
        scale = self.scale[entries]
        moves = np.zeros((len(entries), self.point.size))
        moves[np.arange(len(entries)), entries] = self.step * scale
        bases = np.stack([self._at(directions, 1.0), self._at(directions, 0.5)])[:, :, None]
        stencil = np.concatenate([bases, bases + moves, bases - moves], axis=2)
        values = self._values(stencil.reshape(-1, self.point.size))[:, rows].reshape(*stencil.shape[:3], -1)
        middle, ahead, behind = np.split(np.moveaxis(values, 3, 2), [1, 1 + len(entries)], axis=3)
        forward, backward = (ahead - middle) / (self.step * scale), (middle - behind) / (self.step * scale)
        gradients = (forward + backward) / 2
        steepest = np.abs(gradients).max(axis=3, initial=0.0)
        error = 16 * self.noise[rows] / self.step + 4 * self.step / self.radius * steepest
        smooth = np.abs(forward - backward).max(axis=3, initial=0.0) <= error
        reach = 4 * self.radius * (np.abs(gradients) @ scale) + 1e3 * self.noise[rows] + self.radius**2
        smooth &= ~self.row_jumps[rows] | (np.abs(middle[..., 0] - self.value[rows]) <= reach)
        far, near = gradients
        is_same = np.abs(far - near).max(axis=2, initial=0.0) <= 0.01 * np.abs(near).max(axis=2, initial=0.0)
        return np.where(is_same[:, :, None], 2 * near - far, near), smooth.all(axis=0)

    def _groups(self, row: int, entries: Indices) -> list[Indices]:
        """The entries in groups, of which the row is a sum of functions of one group each.

        Two entries belong together if moving both is not the sum of moving each.
        """
        groups, left = [], entries
        while len(left):
            group, waiting, left = left[:1], list(left[:1]), left[1:]
            while waiting and len(left) and not self._is_sum_of(row, [group, left]):
                met = self._meets(row, waiting.pop(0), left)
                group, left = np.append(group, left[met]), left[~met]
                waiting += list(group[-met.sum() :]) if met.any() else []
            groups.append(np.sort(group))
        return groups if self._is_sum_of(row, groups) else [entries]

    def _meets(self, row: int, first: int, others: Indices) -> Mask:
        met = np.zeros(len(others), bool)
        for sign in (1.0, -1.0):
            one = np.zeros((1, self.point.size))
            one[0, first] = sign
            other = np.zeros((2 * len(others), self.point.size))
            other[np.arange(2 * len(others)), np.tile(others, 2)] = np.repeat([1.0, -1.0], len(others))
            points = np.concatenate([self._at(v, 1.0) for v in (one, other, other + one)])
            values = self._values(points)[:, row]
            alone, other_alone, both = values[0], values[1 : 1 + len(other)], values[1 + len(other) :]
            excess = np.abs(both - alone - other_alone + self.value[row]) / self.radius
            met |= (excess > self.accuracy_of_pieces(row) + self.radius * self.size[row]).reshape(2, -1).any(axis=0)
        return met

    def _is_sum_of(self, row: int, groups: list[Indices]) -> bool:
        """Whether the slopes of the row along random lines are the sums of those along their parts in each group."""
        directions = self._drawn(16, self.point.size)
        parts = np.zeros((len(groups) + 1, *directions.shape))
        for part, group in zip(parts[1:], groups, strict=True):
            part[:, group] = directions[:, group]
        parts[0] = parts.sum(axis=0)
        points = np.concatenate([self._at(parts, 0.5), self._at(parts, 1.0)]).reshape(-1, self.point.size)
        near, far = np.split(self._values(points)[:, row].reshape(-1, len(directions)) - self.value[row], 2)
        slopes = (4 * near - far) / self.radius
        excess = np.abs(slopes[0] - slopes[1:].sum(axis=0))
        return len(groups) == 1 or bool((excess <= len(parts) * self.accuracy_of_pieces(row)).all())


def _power_of_two(number: float) -> float:
    return float(np.exp2(np.round(np.log2(number))))
