"""The check of derivatives against values, of a function as any framework presents it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from jaxclamp._checks.clarke import Array, Function, Indices, Neighbourhood
from jaxclamp._checks.verdict import GradientReport, Names, differing, judged

_TOLERANCES = {"float64": 1e-5, "float32": 2e-3, "float16": 1e-2, "bfloat16": 1e-1}
"""Of derivatives, by the least precise dtype that takes part: those of `jax.test_util.check_grads`."""
_MOVES = 8  # how often ties are counted anew to find the line of a kink
_LINES = 3  # that may share one


class Flat(Protocol):
    """A function of the floating point numbers in its arguments, as a vector, whose value is a vector too."""

    point: Array
    names: Names
    dtype: str
    """The least precise of inputs and outputs."""

    def forward(self) -> Array:
        """The Jacobian by forward mode, in the dtypes of the arguments."""

    def reverse(self) -> Array:
        """The Jacobian by reverse mode."""

    def values(self) -> tuple[Function, float]:
        """The function of many points at once, in float64 if it allows that, and the precision of its values."""

    def ties_at(self, point: Array) -> Mapping[str, int]:
        """The lines of the code with ties at that point, and how many."""


def check(
    function: Flat,
    caller: str,
    *,
    forward: bool,
    reverse: bool,
    atol: float | None,
    rtol: float | None,
    eps: float | None,
) -> GradientReport:
    """The report on the modes that are asked for; None stands for what the dtype suggests."""
    for name, number in {"atol": atol, "rtol": rtol, "eps": eps}.items():
        if number is not None and not (number >= 0 and (number or name != "eps")):
            raise ValueError(f"{caller}: {name} is {number!r}; pass a positive number, or None.")
    tolerance = _TOLERANCES.get(function.dtype, 0.5)
    atol, rtol = (tolerance if given is None else given for given in (atol, rtol))
    jacobians = [mode() for mode, asked in [(function.reverse, reverse), (function.forward, forward)] if asked]
    values, unit = function.values()
    with np.errstate(all="ignore"):  # what is not finite has a verdict
        nearby = Neighbourhood(values, function.point, unit, eps)
        verdicts = list(judged(nearby, jacobians[0], function.names, atol, rtol, _line_of_kink(function, nearby)))
        if len(jacobians) > 1:
            verdicts += differing(nearby, jacobians[1], jacobians[0], function.names, atol, rtol)
    return GradientReport(nearby.kinked.size, tuple(verdicts))


def _line_of_kink(function: Flat, nearby: Neighbourhood) -> Callable[[Indices], str]:
    """Which lines have the kink of some entries: the only one with ties, or those with fewer once they have moved."""
    ties_at = functools.cache(lambda: function.ties_at(nearby.point))
    moves = iter(range(_MOVES))

    def line(entries: Indices) -> str:
        tied = ties_at()
        if len(tied) > 1:
            left = function.ties_at(nearby.moved(entries)) if next(moves, None) is not None else tied
            tied = {line: count for line, count in tied.items() if left.get(line, 0) < count}
        return ", ".join(tied) if len(tied) <= _LINES else ""

    return line
