"""The record of an op, which is declared at it, and the registry of all records."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, get_args, get_type_hints

import jax
from jax.typing import ArrayLike

from jaxclamp._rules.differentiate import Applied
from jaxclamp._shared.counterparts import Counterpart

P = ParamSpec("P")
R = TypeVar("R")

Family: TypeAlias = Literal["selection", "kinked", "reduction"]
Argument: TypeAlias = Any  # arrays are written as nested tuples

OPS: dict[str, Op] = {}
"""Maps a name to the record of the op, in the order of use."""


@dataclass(frozen=True)
class Op:
    """The record of one op: its rule, its family, where it ties, and its counterparts in other libraries."""

    function: Callable[..., Any]
    applied: Callable[..., Applied[Any]]
    """Maps the arguments of ``function`` to its rule, and to the operands of that rule."""
    family: Family
    tie_points: tuple[tuple[Argument, ...], ...]
    """Points at which the gradient is a matter of convention, as positional arguments.

    Arguments that are floats, or arrays of floats written as nested tuples, may be differentiated.
    """
    counterparts: tuple[Counterpart, ...]
    """The same function in other libraries, each written as a call with the names of this op's parameters.

    Further forms that a counterpart has are named too: ``inplace``, ``out``, ``return_indices``.
    """

    @property
    def name(self) -> str:
        return self.function.__name__

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """The signature of ``function``."""
        return inspect.signature(self.function)

    @functools.cached_property
    def arrays(self) -> tuple[str, ...]:
        """The parameters that take arrays; all others are sizes, axes, flags and conventions."""
        of_arrays = set(get_args(ArrayLike))  # a subset of ``ArrayLike | None``
        return tuple(name for name in self.signature.parameters if of_arrays.issubset(get_args(self.types[name])))

    @functools.cached_property
    def types(self) -> dict[str, Any]:
        """Maps a parameter, and "return", to its type."""
        return get_type_hints(self.function)

    @property
    def has_conventions(self) -> bool:
        """Whether the op takes ``ties``."""
        return "ties" in self.signature.parameters

    def counterparts_in(self, framework: str) -> tuple[Counterpart, ...]:
        """Return the counterparts in the package of that name."""
        return tuple(counterpart for counterpart in self.counterparts if counterpart.framework == framework)

    def on_tie(self, *args: Any, **kwargs: Any) -> jax.Array:
        """Return where the elements of the result are on a tie or a kink; the arguments are those of ``function``.

        >>> OPS["relu6"].on_tie(jax.numpy.array([-1.0, 0.0, 6.0])).tolist()
        [False, True, True]
        """
        return self.applied(*args, **kwargs).on_tie()


def op(
    family: Family, *, tie_points: tuple[tuple[Argument, ...], ...], counterparts: tuple[str, ...]
) -> Callable[[Callable[P, Applied[R]]], Callable[P, R]]:
    """Make an op of the decorated function, which returns its rule and operands, and register the record.

    The op has the parameters and the docstring of the function, and returns the value.
    """

    def register(applied: Callable[P, Applied[R]]) -> Callable[P, R]:
        @functools.wraps(applied)
        def function(*args: P.args, **kwargs: P.kwargs) -> R:
            return applied(*args, **kwargs).value()

        (result,) = get_args(get_type_hints(applied)["return"])  # of Applied[result]
        # Both are set: `get_type_hints` reads the one, `inspect.signature` the other, which `wraps` left as they were.
        function.__annotations__ = {**applied.__annotations__, "return": result}
        function.__signature__ = inspect.signature(applied).replace(return_annotation=result)  # type: ignore[attr-defined]
        OPS[function.__name__] = Op(function, applied, family, tie_points, tuple(map(Counterpart, counterparts)))
        return function

    return register
