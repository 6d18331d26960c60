"""How likely the operands of a call are on a tie, by what the source says of them."""

import ast
import re
from collections.abc import Sequence

from interop.scan.finding import Likelihood
from interop.scan.source import FLAT, Source

# No letter before, so that "surround" is none, and none behind "ste", so that "step" and "system" are none.
_BY_HAND = re.compile(r"(?<![a-z])(round|ste(?![a-z])|straight|(fake_?)?quant)")
"""What a function that rounds straight through is likely called by."""
_QUANTISED = ("quant", "qmin", "qmax", "q_min", "q_max", "bits", "n_levels")
_TINY = 1e-2
"""A bound below that keeps a divisor from zero, and few values are on it."""


def tie_of(source: Source, x: ast.expr, bounds: Sequence[ast.expr]) -> Likelihood:
    """Say how likely a value is on a bound, or equal to another operand.

    Of ``clamp(x, -8, 7)`` it is likely, of ``clamp(x, 0, 6)`` possible, and of ``clamp(x, 1e-6)`` rare.
    """
    operands = x, *bounds
    if any(rounds(source, operand) for operand in operands) or _are_codes(source, bounds):
        return "likely"
    values = [0.0 if is_zero(source, operand) else source.number(operand) for operand in operands]
    is_tiny = [value is not None and 0 < abs(value) < _TINY for value in values]
    # A bound that may be a name is told by its name. A small one keeps a divisor or a logarithm from 0.
    names = " ".join(map(source.text, bounds))
    if any(is_tiny) or any(word in names for word in ("eps", "tiny", "finfo", "1e-")):
        return "rare"
    return "possible" if any(value is not None for value in values) else "rare"


def is_zero(source: Source, node: ast.expr) -> bool:
    """Say whether an expression is 0, or an array of zeros."""
    call = source.call(node)
    if call is None:
        return source.number(node) == 0
    is_of_numbers = call.function in ("tensor", "array") and any(source.number(x) == 0 for x in call.operands)
    return call.function in ("zeros", "zeros_like", "new_zeros") or is_of_numbers


def rounds(source: Source, node: ast.expr) -> bool:
    """Say whether an expression is rounded straight through: ``x + (round(x) - x).detach()``, or by a function for it.

    A rounding by itself has no slope, so that no gradient is lost behind it.
    """
    node = source.assigned(node)
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            # In either order: ``(round(x) - x).detach() + x`` is as usual.
            return any(
                source.stopped(source.assigned(s)) and source.functions(source.within(s)) & FLAT for s in (left, right)
            )
        case ast.Call():
            called = source.call(node)
            name = ast.unparse(node.func).lower()
            return not (called and called.function in FLAT) and _BY_HAND.search(name) is not None
    return False


def _are_codes(source: Source, bounds: Sequence[ast.expr]) -> bool:
    """Say whether bounds are the first and the last of 2**n signed integers, or are named so."""
    names = " ".join(map(source.text, bounds))
    if any(word in names for word in _QUANTISED):
        return True
    low, high, *_ = (*map(source.number, bounds), None, None)
    if low is None or high is None or not (low.is_integer() and high.is_integer()):
        return False
    # -8 and 7 are the ends of 16 numbers. A count that is a power of two has no bit in common with the number before.
    # 0 and 2**n - 1 are not taken for codes: images have values from 0 to 1, or to 255.
    count = int(high - low) + 1
    return low < 0 and count >= 4 and count & (count - 1) == 0
