"""How likely the operands of a call are on a tie, by what the source says of them."""

from __future__ import annotations

import ast
import re

from interop.scan.finding import Likelihood
from interop.scan.source import WITHOUT_GRADIENT, Call, Source

FLAT = {"round", "floor", "ceil", "trunc", "rint", "fix", "sign", "argmax", "one_hot"}
"""Functions whose gradient is 0 wherever there is one."""
# No letter before, so that "surround" is none, and none behind "ste", so that "step" and "system" are none.
_BY_HAND = re.compile(r"(?<![a-z])(round|ste(?![a-z])|straight|(fake_?)?quant)")
"""What a function that rounds straight through is likely called by."""
_QUANTISED = ("quant", "qmin", "qmax", "q_min", "q_max", "bits", "n_levels")
_TINY = 1e-2
"""A bound below that keeps a divisor from zero, and few values are on it."""


def tie_of_bounds(source: Source, call: Call) -> Likelihood:
    """Say how likely a value is on a bound of a clamp."""
    x, *bounds = call.x_and_bounds or (ast.Constant(0),)
    if rounds(source, x) or _are_codes(source, bounds):
        return "likely"
    values = [source.number(bound) for bound in bounds]
    is_tiny = [value is not None and 0 < abs(value) < _TINY for value in values]
    # A bound that may be a name is told by its name. A small one keeps a divisor or a logarithm from 0.
    names = " ".join(ast.unparse(bound).lower() for bound in bounds)
    if any(is_tiny) or any(word in names for word in ("eps", "tiny", "finfo", "1e-")):
        return "rare"
    return "possible" if any(value is not None for value in values) else "rare"


def tie_of_operands(source: Source, call: Call) -> Likelihood:
    """Say how likely two operands, or two elements, are equal."""
    if any(rounds(source, operand) for operand in call.operands):
        return "likely"
    return "possible" if any(source.number(operand) is not None for operand in call.operands) else "rare"


def rounds(source: Source, node: ast.expr) -> bool:
    """Say whether an expression is rounded straight through: ``x + (round(x) - x).detach()``, or by a function for it.

    A rounding by itself has no slope, so that no gradient is lost behind it.
    """
    node = source.assigned(node)
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            # In either order: ``(round(x) - x).detach() + x`` is as usual.
            return any(source.stopped(source.assigned(s)) and _calls_rounding(source, s) for s in (left, right))
        case ast.Call():
            called = source.call(node)
            name = ast.unparse(node.func).lower()
            return not (called and called.function in FLAT) and _BY_HAND.search(name) is not None
    return False


def is_flat(source: Source, node: ast.expr) -> bool:
    """Say whether an expression has no gradient to pass, as one that is rounded, or converted to integers."""
    called = source.call(source.assigned(node))
    return called is not None and called.function in FLAT | WITHOUT_GRADIENT


def _calls_rounding(source: Source, node: ast.expr) -> bool:
    calls = (source.call(inner) for inner in source.within(node))
    return any(call is not None and call.function in FLAT for call in calls)


def _are_codes(source: Source, bounds: list[ast.expr]) -> bool:
    """Say whether bounds are the first and the last of 2**n signed integers, or are named so."""
    names = " ".join(ast.unparse(bound).lower() for bound in bounds)
    if any(word in names for word in _QUANTISED):
        return True
    low, high, *_ = (*map(source.number, bounds), None, None)
    if low is None or high is None or not (low.is_integer() and high.is_integer()):
        return False
    # -8 and 7 are the ends of 16 numbers. A count that is a power of two has no bit in common with the number before.
    # 0 and 2**n - 1 are not taken for codes: images have values from 0 to 1, or to 255.
    count = int(high - low) + 1
    return low < 0 and count >= 4 and count & (count - 1) == 0
