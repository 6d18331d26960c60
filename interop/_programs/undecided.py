"""The warning that a gradient of a whole program depends on a choice that was not decided, where that can be seen."""

from collections.abc import Mapping
from typing import Any

import torch

from interop._programs.order import moves, value_and_tangent
from interop._torch.private_api import is_any
from interop._transforms.jumps import Jump, places_of
from interop._transforms.ties import line_of_user
from jaxclamp._transforms.undecided import warn_once


def warn_on_jump(name: str, jump: Jump, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Warn, once for each line, if an operand of the function of that name is where that jumps, and moves."""
    try:
        with torch.no_grad():
            places = places_of(jump, args, kwargs)
            on_jump = [at & (value_and_tangent(operand)[1] != 0) for operand, at in places if moves(operand)]
            if not any(map(is_any, on_jump)):
                return
    except (TypeError, ValueError, RuntimeError):  # no numbers to see, or a call that fails by itself too
        return
    warn_once(
        line_of_user(),
        f"{name} jumps, or has no slope, at a value that it was given, and is taken as it is there. The gradient may "
        "be that of another piece of the function; interop.ties lists the line",
    )
