"""The record that is declared at each op, and the registry that collects the records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")

Family: TypeAlias = Literal["selection", "kinked", "reduction"]
Argument: TypeAlias = Any  # nested tuples are arrays

OPS: dict[str, Op] = {}


@dataclass(frozen=True)
class Op:
    """What is true of an op and cannot be read off its function.

    ``ties`` are points at which the gradient is a matter of convention, as positional arguments; those that are floats,
    or arrays of floats written as nested tuples, may be differentiated. ``counterparts`` are the spellings of the same
    function elsewhere, each written as a call with this op's parameter names, such as
    ``"jax.lax:clamp(min, x, max)"``, and with those of further forms that it has: ``inplace``, ``out``,
    ``return_indices``.
    """

    function: Callable[..., jax.Array]
    family: Family
    ties: tuple[tuple[Argument, ...], ...]
    counterparts: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.function.__name__


def op(
    family: Family,
    *,
    ties: tuple[tuple[Argument, ...], ...],
    counterparts: tuple[str, ...],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register the decorated function as an op and return it unchanged."""

    def register(function: Callable[P, R]) -> Callable[P, R]:
        OPS[function.__name__] = Op(function, family, ties, counterparts)  # type: ignore[arg-type]
        return function

    return register
