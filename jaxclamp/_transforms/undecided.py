"""The primitives whose choices are not decided in derivatives of whole programs, and the warning that names a line."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any


class UndecidedWarning(UserWarning):
    """A gradient of a whole program depends on a choice that was not decided, at a line that the warning names."""


UNDECIDED: Mapping[str, str] = {
    "pallas_call": "choices in a kernel are taken as they fall at the point",
    "run_state": "choices in a program with state are taken as they fall at the point",
    "approx_top_k": "of equal elements it takes those that it takes at the point",
    **dict.fromkeys(("pure_callback", "io_callback", "ffi_call"), ""),  # which have no derivative: JAX raises
    "custom_vjp_call": "",  # its derivative is what its author says it is
    "reduce_precision": "",  # a step function, to which JAX gives slope 1, as to a conversion to a smaller dtype
}
"""Maps a primitive to what the warning says if a gradient depends on it; to nothing, if there is no warning."""
ROUNDING = frozenset({"floor", "ceil", "round", "sign"})
"""Primitives of slope 0 between jumps. In a ``custom_vjp`` they make a straight-through estimator."""
STRAIGHT_THROUGH = (
    "a jax.custom_vjp that rounds stands still for the choices behind it, though its rule passes a gradient; written "
    "as x + stop_gradient(round(x) - x) it moves as its gradient says"
)
ASKS_FOR_ITSELF = (
    "the rule of a jax.custom_jvp asks for the result of the function, into which forward mode cannot look; a choice "
    "by this result is taken as it falls at the point"
)


def warn(place: tuple[str, int], what: str) -> None:
    """Warn of ``what`` once for each place, a file and a line."""
    file, line = place
    message = (
        f"{file}:{line}: {what}. Where operands tie there, the gradient may be that of another piece of the function; "
        "jaxclamp.ties lists the line, and jaxclamp.UndecidedWarning can be filtered."
    )
    warnings.warn_explicit(message, UndecidedWarning, file, line, registry=_SHOWN)


_SHOWN: dict[Any, Any] = {}
"""The registry in which Python notes which warnings it has shown."""
