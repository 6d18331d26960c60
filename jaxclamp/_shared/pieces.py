"""Finds the smooth pieces of a function that touch a point, and the nearest point of the Clarke subdifferential.

The Clarke subdifferential of a row of the output is the convex hull of the gradients of its pieces. Where the row is a
sum of terms, each with its own entries, it is the product of their sets: `jaxclamp._shared.neighbourhood` has an
example.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from jaxclamp._shared.hull import nearest
from jaxclamp._shared.neighbourhood import Neighbourhood
from jaxclamp._shared.slopes import RATIO, RESOLUTION, Array, Indices, Mask, rows_by_steps

_PIECES = 24
"""How many nearby points a row that has a kink is differentiated at first. Two ties make four pieces; one of these is
missed with the probability 4 * (3 / 4)^24, 0.4 %, and `Pieces.nearest` looks for it."""
_SEARCH = 160
"""How many nearby points are tried at once to find a piece that is farther ahead: 32 for each of five ways to draw."""
_GROWTH = 4  # of that number, after each search in vain
_PATIENCE = 3
"""How many such searches in vain end the search: 672 points of each way then. A piece that takes 1 / 128 of a way's
points is missed with the probability (1 - 1 / 128)^672, 0.5 %, and one of 1 / 672 with that of a third."""


@dataclass(frozen=True)
class Term:
    """The Clarke subdifferential of one output, restricted to entries that share no kink with any other entry."""

    entries: Indices
    directions: Array
    """The nearby points, in units of the radius."""
    gradients: Array
    """The gradients there with respect to ``entries``, a row each, in units of the output for each scale."""

    def joined(self, further: Term) -> Term:
        directions = np.concatenate([self.directions, further.directions])
        return Term(self.entries, directions, np.concatenate([self.gradients, further.gradients]))


class Pieces(Neighbourhood):
    """The neighbourhood of a point with the pieces of the rows that are no sums of functions of one entry each."""

    def accuracy(self, row: int) -> float:
        """Return how far off gradients at nearby points may be."""
        # A central difference of two values is off by noise / step, and the extrapolated one by 3 times as much. Its
        # other error is radius^2 / 4 times the third derivative. `_gradients` sees 3 / 4 of radius^2 times that, and
        # lets pass what is less than twice the sum here: then the error is less than 2 / 3 of it.
        steps = self.steps
        return float(4 * self.noise[row] / steps.step[row] + 8 * steps.radius[row] ** 2 * self.slopes.size[row])

    @property
    def steepest(self) -> Array:
        """The size of the largest slope by each entry, of all pieces that are known."""
        slopes = self.slopes
        steepest: Array = np.where(slopes.finite & ~slopes.jumps, slopes.steeper, 0.0)
        for row, (_, gradients) in self._samples.items():
            steepest[row] = np.fmax(steepest[row], np.abs(gradients).max(axis=0, initial=0.0))
        return steepest

    def terms(self, row: int, suspects: Mask | None = None) -> list[Term]:
        """Return the terms of the Clarke subdifferential of a row that is no sum of functions of one entry.

        There are none where no smooth piece was found. Entries that are in no term have one derivative,
        `LineSlopes.central`. ``suspects`` are put into one: a gradient says that they have another derivative, as few
        of the pieces may have. Where the row jumps, the pieces are those whose values come close to the value at the
        point.
        """
        directions, gradients = self._samples[row]
        if not len(gradients):
            return []
        spread = gradients.max(axis=0) - gradients.min(axis=0) > self.accuracy(row)
        inside = spread | self.slopes.kinked[row] | self.slopes.jumps[row]
        inside = np.flatnonzero(self.slopes.finite[row] & (inside if suspects is None else inside | suspects))
        groups = [inside] if self.sums.jumps[row] else self._groups(row, inside)
        terms = [Term(group, directions, gradients[:, group]) for group in groups if len(group)]
        return [self._distinct(row, term) for term in terms]

    def as_one(self, row: int, split: list[Term], searched: list[Term]) -> Term | None:
        """Return one term of all entries, if a piece that was found since the split depends on more than its term.

        The lines by which the row was split may have missed a thin piece.
        """
        entries = np.flatnonzero(self.slopes.finite[row])
        for before, after in zip(split, searched, strict=True):
            to_new_pieces = after.directions[len(before.directions) :]
            other_entries = np.setdiff1d(entries, after.entries)
            if len(to_new_pieces) and not self._is_sum_of(row, [after.entries, other_entries], to_new_pieces):
                break
        else:
            return None
        directions = np.concatenate([term.directions for term in searched])
        gradients, smooth = self._gradients(np.array([row]), entries, directions)
        return self._distinct(row, Term(entries, directions[smooth[:, 0]], gradients[smooth[:, 0], 0]))

    @functools.cached_property
    def _samples(self) -> dict[int, tuple[Array, Array]]:
        """Maps each row that is no sum to nearby points at which it is smooth, and its gradients there."""
        n = self.point.size
        samples: dict[int, list[tuple[Array, Array]]] = {}
        tried = self.drawn(_PIECES, n) * self.free
        for rows, _, _ in rows_by_steps(self.steps, np.flatnonzero(~self.sums.is_sum)):
            samples |= {int(row): [] for row in rows}
            # A direction takes six values for each number of a Jacobian: where that is large, few at a time.
            for directions in np.array_split(tried, min(_PIECES, 1 + self.slopes.central.size // 2**14)):
                gradients, smooth = self._gradients(rows, np.arange(n), directions)
                for i, row in enumerate(rows):
                    pairs = zip(directions, gradients, smooth, strict=True)
                    samples[int(row)] += [(d, g[i]) for d, g, s in pairs if s[i]]
        return {
            row: (np.array([d for d, _ in pairs]).reshape(-1, n), np.array([g for _, g in pairs]).reshape(-1, n))
            for row, pairs in samples.items()
        }

    def nearest(
        self,
        row: int,
        term: Term,
        target: Array,
        accuracy: float,
        patience: int = _PATIENCE,
        metric: Array | None = None,
    ) -> tuple[Array, Term, bool]:
        """Return the point of the Clarke subdifferential nearest to ``target``, and the term with all known pieces.

        The hull of the known pieces lies inside the set. So pieces are looked for in the direction in which ``target``
        lies outside of it, until it does not, or no further piece shows. ``metric`` weighs the entries of the distance.
        The last result tells whether a piece is missed: no piece reaches as far as ``target``, but a slope does. A
        slope is a mean of slopes of pieces, so one of these reaches as far.
        """
        metric = np.ones(len(target)) if metric is None else metric
        weighed, weights = nearest(term.gradients * metric, target * metric)
        in_vain, is_missed = 0, False
        while in_vain < patience and np.linalg.norm(target * metric - weighed) > accuracy:
            direction = metric * (target * metric - weighed)
            ahead, farthest = self._ahead(row, term, direction, _SEARCH * _GROWTH**in_vain)
            if not len(ahead.gradients):
                in_vain += 1
                is_missed |= farthest >= target @ direction / np.abs(direction).max()
                continue
            in_vain, is_missed = 0, False
            ahead = self._distinct(row, ahead)
            term = term.joined(ahead)
            weights = np.append(weights, np.zeros(len(ahead.gradients)))
            weighed, weights = nearest(term.gradients * metric, target * metric, weights)
        return weights @ term.gradients, term, is_missed

    def _ahead(self, row: int, term: Term, direction: Array, count: int) -> tuple[Term, float]:
        """Try ``count`` points, and return the new pieces that lie farther along ``direction`` than all known ones.

        Also return a lower bound of the steepest slope along it, scaled so that its largest entry is 1.
        """
        entries, n = term.entries, self.point.size
        unit = direction / np.abs(direction).max()
        support = term.gradients @ unit
        known = term.directions[:, entries]
        # A fifth of the points is drawn in each of these ways:
        # - along the direction, where a convex function has its farthest gradients;
        # - against it, where a concave one has them;
        # - between a known point and one of the four whose gradients reach farthest;
        # - as a known point with a fifth of its entries drawn anew: of many ties, few fall another way;
        # - anywhere, with some entries moved less than others.
        best = known[np.argsort(support)[-4:]]
        tried = self.drawn(count, n) * self.free
        ahead, behind, between, beside, _ = np.array_split(tried[:, entries], 5)
        first, second = (known[self.random.integers(len(known), size=len(part))] for part in (between, beside))
        share = self.random.random((len(between), 1))
        foremost = best[self.random.integers(len(best), size=len(between))]
        parts = [
            0.8 * unit + 0.2 * ahead,
            -0.8 * unit + 0.2 * behind,
            share * first + (1 - share) * foremost + 0.05 * between,
            np.where(self.random.random(beside.shape) < 0.8, second, beside),
        ]
        moved = np.concatenate(parts)
        tried[: len(moved), entries] = moved
        # A piece may be thin, as an entry that moves less than others by its scale may choose it.
        thin = tried[len(moved) :]
        thin *= RATIO ** -self.random.integers(0, 3, thin.shape).astype(np.float64)

        radius, step = self.steps.radius[row], self.steps.step[row]
        along = np.zeros(n)
        along[entries] = step * unit
        # Two values tell how far ahead a point is, and its gradient takes six for each entry, three more for itself: so
        # only the foremost 16 are differentiated. They lie at half the radius, the nearest distance there.
        base = radius / 2 * tried
        slopes = (self.local(base + along) - self.local(base - along))[:, row] / (2 * step)
        margin = self.accuracy(row) * len(entries)
        order = [i for i in np.argsort(-slopes, kind="stable") if slopes[i] > support.max() + margin][:16]
        farthest = float(slopes.max() - margin)
        if not order:
            return Term(entries, np.empty((0, n)), np.empty((0, len(entries)))), farthest
        gradients, smooth = self._gradients(np.array([row]), entries, tried[order])
        is_ahead = smooth[:, 0] & (gradients[:, 0] @ unit > support.max() + margin)
        return Term(entries, tried[order][is_ahead], gradients[is_ahead, 0]), farthest

    def _distinct(self, row: int, term: Term) -> Term:
        """Return the term with one point of each piece."""
        # Gradients of one piece are within twice the accuracy of each other. A few fall to both sides of where numbers
        # are rounded, and stay two points, which costs time alone.
        rounded = np.round(term.gradients / (4 * self.accuracy(row) or 1.0))
        first = np.unique(rounded, axis=0, return_index=True)[1]
        return Term(term.entries, term.directions[first], term.gradients[first])

    def _gradients(self, rows: Indices, entries: Indices, directions: Array) -> tuple[Array, Mask]:
        """Differentiate the rows with respect to the entries at nearby points, and find which rows are smooth there.

        They are of shape (points, rows, entries). A limit is extrapolated from the points and from those half as far
        away, if the gradients there and twice as far away lie on a line, as those of one smooth piece do.
        """
        radius, step = self.steps.radius[rows[0]], self.steps.step[rows[0]]
        moves = step * np.eye(self.point.size)[entries]
        bases = radius * np.stack([2 * directions, directions, directions / 2])[:, :, None]
        values = self.local(np.concatenate([bases, bases + moves, bases - moves], axis=2))[..., rows]
        middle, ahead, behind = np.split(np.moveaxis(values, 3, 2), [1, 1 + len(entries)], axis=3)
        forward, backward = (ahead - middle) / step, (middle - behind) / step
        gradients = (forward + backward) / 2
        steepest = np.abs(gradients).max(axis=3, initial=0.0)
        # On a smooth piece forward and backward differ by the noise of four values, and by step * curvature. Curvature
        # that changes the slope four times over within a radius is a kink.
        error = 16 * self.noise[rows] / step + 4 * step / radius * steepest
        smooth = np.abs(forward - backward).max(axis=3, initial=0.0) <= error
        # If the row jumps, keep only points whose value is as close to that at the point as slopes, noise and curvature
        # allow.
        reach = 4 * radius * np.abs(gradients).sum(axis=3) + 32 * self.noise[rows] + radius**2 * self.slopes.size[rows]
        smooth &= ~self.sums.jumps[rows] | (np.abs(middle[..., 0] - self.value[rows]) <= reach)
        # They are those at 2, 1 and 1/2 of the way along a ray. If they are on a line 1 + 3 t, they are 7, 4 and 2.5:
        # then far - 3 near + 2 nearest is 0, and 2 nearest - near is 1, the gradient at the point.
        far, near, nearest = gradients
        # Errors of central differences in proportion to (step / distance)^2, as those of a norm near 0, may be 1, 4 and
        # 16 sixths of it; if that is too much to tell 1 %, norms are told from kinks no longer.
        of_norms = min((1 + 3 * 4 + 2 * 16) / 6 * (step / radius) ** 2, RESOLUTION / 8) * self.slopes.size[rows]
        accuracy = np.array([self.accuracy(int(row)) for row in rows])
        bend = np.abs(far - 3 * near + 2 * nearest).max(axis=2, initial=0.0)
        is_line = bend <= 2 * accuracy + of_norms
        return 2 * nearest - near, smooth.all(axis=0) & is_line

    def _groups(self, row: int, entries: Indices) -> list[Indices]:
        """Split the entries into groups, so that the row is a sum of functions of one group each.

        Two entries belong together if moving both is not the sum of moving each.
        """
        groups, left = [], entries
        while len(left):
            group, waiting, left = left[:1], list(left[:1]), left[1:]
            # If the row is a sum of the group and the rest already, no entry of the rest can be met.
            while waiting and len(left) and not self._is_sum_of(row, [group, left], self.drawn(16, self.point.size)):
                met = self._meets(row, waiting.pop(0), left)
                group, left = np.append(group, left[met]), left[~met]
                waiting += list(group[-met.sum() :]) if met.any() else []
            groups.append(np.sort(group))
        # Entries may meet only where three of them move: no pair shows that, but random lines do.
        return groups if self._is_sum_of(row, groups, self.drawn(16, self.point.size)) else [entries]

    def _meets(self, row: int, entry: int, candidates: Indices) -> Mask:
        """Say which candidates belong with the entry: of max(x, y) at 0, moving both by 1 gives 1, each alone 1 too."""
        met = np.zeros(len(candidates), bool)
        radius = self.steps.radius[row]
        for sign in (1.0, -1.0):
            of_entry = sign * np.eye(self.point.size)[[entry]]
            of_each = np.concatenate([np.eye(self.point.size)[candidates], -np.eye(self.point.size)[candidates]])
            values = self.local(radius * np.concatenate([of_entry, of_each, of_each + of_entry]))[:, row]
            entry_moved, each_moved, both_moved = np.split(values, [1, 1 + len(of_each)])
            excess = np.abs(both_moved - entry_moved - each_moved + self.value[row]) / radius
            # A product of two entries adds radius * size.
            limit = self.accuracy(row) + radius * self.slopes.size[row]
            met |= (excess > limit).reshape(2, -1).any(axis=0)
        return met

    def _is_sum_of(self, row: int, groups: list[Indices], directions: Array) -> bool:
        """Say whether slopes of the row along the directions are the sums of those along their parts in each group."""
        radius = self.steps.radius[row]
        parts = np.zeros((len(groups) + 1, *directions.shape))
        for part, group in zip(parts[1:], groups, strict=True):
            part[:, group] = directions[:, group]
        parts[0] = parts.sum(axis=0)
        near, far = self.local(radius * np.stack([parts / 2, parts]))[..., row] - self.value[row]
        slopes = (4 * near - far) / radius  # 2 D(r / 2) - D(r), without the first part of their error
        excess = np.abs(slopes[0] - slopes[1:].sum(axis=0))
        return len(groups) == 1 or bool((excess <= len(parts) * self.accuracy(row)).all())
