"""Clamps before a function with an infinite slope on the bound, ``acos(clamp(x, -1, 1))``."""

from __future__ import annotations

from collections.abc import Iterator

from interop.scan.finding import Finding
from interop.scan.source import Call, Source

_ENDS = {
    **dict.fromkeys(("acos", "asin", "arccos", "arcsin", "atanh", "arctanh"), (-1.0, 1.0)),
    **dict.fromkeys(("sqrt", "log", "log2", "log10", "rsqrt"), (0.0,)),
    **dict.fromkeys(("acosh", "arccosh"), (1.0,)),
}
"""Maps a function to where its slope is infinite."""
_CLAMPS = {"clamp", "clip", "clamp_min", "clamp_max", "relu", "maximum", "minimum"}


def findings(source: Source, call: Call, file: str) -> Iterator[Finding]:
    """Return the call if its operand is clamped to where the slope is infinite."""
    if call.function not in _ENDS or not call.operands or not source.has_gradient(call.node):
        return
    clamp = source.call(source.assigned(call.operands[0]))
    if clamp is None or clamp.function not in _CLAMPS:
        return
    # Of ``maximum(0, x)`` the bound comes first. One within the domain, as 1e-12 for a logarithm, is the cure.
    numbers = [0.0] if clamp.function == "relu" else map(source.number, clamp.x_and_bounds)
    reached = [value for value in numbers if value in _ENDS[call.function]]
    if reached:
        what = f"at {reached[0]:g} the slope of {call.function} is infinite: the gradient is inf or, times 0, NaN"
        cure = "clamp to a bound within, as 1 - 1e-6 or 1e-12"
        yield Finding.at(call.node, file, "bound", what, "likely", cure)
