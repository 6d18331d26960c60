"""Lists the primitives whose choices derivatives of whole programs do not decide, and warns of a line with one."""

import warnings
from collections.abc import Mapping


class UndecidedWarning(UserWarning):
    """A gradient depends on a choice that was not decided, nor put under a convention; the warning names the line."""


UNDECIDED: Mapping[str, str] = {
    "pallas_call": "choices in a kernel are taken as they fall at the point",
    "run_state": "choices in a program with state are taken as they fall at the point",
    "approx_top_k": "of equal elements it takes those that it takes at the point",
    **dict.fromkeys(("pure_callback", "io_callback", "ffi_call"), ""),  # which have no derivative: JAX raises
    "custom_vjp_call": "",  # its derivative is what its author says it is
    "reduce_precision": "",  # a step function, to which JAX gives slope 1, as to a conversion to a smaller dtype
}
"""Maps a primitive to what the warning says if a gradient depends on it; to nothing, if there is no warning."""
NOT_ENTERED = "choices in a program that it calls are taken as they fall at the point"
"""What the warning says of a primitive that is not JAX's, such as that of a linear solve in lineax."""
STRAIGHT_THROUGH = (
    "the function of a jax.custom_vjp is constant between jumps, as one that rounds, and its rule has no transpose, as "
    "one that is not linear: the function stands still for the choices behind it; a straight-through estimator that is "
    "written as x + stop_gradient(round(x) - x) moves as its gradient says"
)
ASKS_FOR_ITSELF = (
    "the rule of a jax.custom_jvp asks for the result of the function, into which forward mode cannot look; a choice "
    "by this result is taken as it falls at the point"
)


def warn(place: tuple[str, int], what: str) -> None:
    """Warn of ``what`` once for each place, a file and a line."""
    consequence = "Where operands tie there, the gradient may be that of another piece of the function"
    warn_once(place, f"{what}. {consequence}; jaxclamp.ties lists the line")


def warn_once(place: tuple[str, int], text: str) -> None:
    """Warn with this text, unless a warning has named the place before."""
    if place not in _SHOWN:
        file, line = place
        message = f"{file}:{line}: {text}, and jaxclamp.UndecidedWarning can be filtered."
        warnings.warn_explicit(message, UndecidedWarning, file, line)
        _SHOWN.add(place)


_SHOWN: set[tuple[str, int]] = set()
"""The places that a warning has named: Python would forget them whenever a filter changes."""
