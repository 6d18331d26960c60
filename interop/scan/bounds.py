"""Clamps before a function with an infinite slope on the bound, ``acos(clamp(x, -1, 1))``."""

import ast
from collections.abc import Iterator, Mapping

from interop.scan.finding import Finding
from interop.scan.source import Source

# Inside the ends by a number that float32 keeps apart from them: the slope of acos at 1 - 1e-6 is 700.
_AT_0 = {0.0: "1e-12"}
_ENDS: Mapping[str, Mapping[float, str]] = {
    **{name: {-1.0: "-1 + 1e-6", 1.0: "1 - 1e-6"} for name in ("acos", "asin", "arccos", "arcsin", "atanh", "arctanh")},
    **dict.fromkeys(("sqrt", "log", "log2", "log10", "rsqrt"), _AT_0),
    **{name: {1.0: "1 + 1e-6"} for name in ("acosh", "arccosh")},
}
"""Maps a function to where its slope is infinite, each place to a bound beside it."""
_CLAMPS = {"clamp", "clip", "clamp_min", "clamp_max", "relu", "maximum", "minimum"}


def findings(source: Source, node: ast.Call | ast.BinOp) -> Iterator[Finding]:
    """Return the call or the power if its operand is clamped to where the slope is infinite."""
    function, operand, ends = singular(source, node)
    clamp = source.call(source.assigned(operand))
    if clamp is None or clamp.function not in _CLAMPS:
        return
    # Of ``maximum(0, x)`` the bound comes first. One within the domain, as 1e-12 for a logarithm, is the cure.
    numbers = [0.0] if clamp.function == "relu" else map(source.number, clamp.x_and_bounds)
    reached = [value for value in numbers if value is not None and value in ends]
    if reached:
        what = f"at {reached[0]:g} the slope of {function} is infinite: the gradient is inf or, times 0, NaN"
        cure = f"clamp to a bound within, as {ends[reached[0]]}"
        yield Finding.at(source, node, "bound", what, "likely", cure)


def singular(source: Source, node: ast.Call | ast.BinOp) -> tuple[str, ast.expr, Mapping[float, str]]:
    """Return the function that a node calls, its operand, and its entry in `_ENDS`: that of 0 for ``x ** 0.5``."""
    call = source.call(node)
    match node, call and (call.function, call.operands):
        case ast.BinOp(left=x, op=ast.Pow(), right=exponent), _:
            pass
        case _, ("pow" | "power", (x, exponent)):
            pass
        case _, (function, (x, *_)):
            return function, x, _ENDS.get(function, {})
        case _:
            return "", node, {}
    power = source.number(exponent)
    return f"the power {power}", x, _AT_0 if power is not None and power < 1 else {}
