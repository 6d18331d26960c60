"""Branches that are not taken, ``where(x > 0, sqrt(x), 0)``: their infinite slope makes the gradient NaN."""

import ast
from collections.abc import Iterator

from interop.scan.bounds import singular
from interop.scan.finding import Finding
from interop.scan.source import Call, Source, shown

# An operand that one of these makes is taken to be safe, as that of ``sqrt(softplus(x))``.
_GUARDS = {"where", "clamp", "clip", "clamp_min", "maximum", "max", "select", "abs", "relu", "softplus", "exp"}
# An operand that one of these makes has no gradient, which an infinite slope could spoil.
_CONSTANTS = {"detach", "stop_gradient", "full", "full_like", "ones_like", "zeros_like", "tensor", "randn", "rand"}


def findings(source: Source, call: Call) -> Iterator[Finding]:
    """Return the first singular call in a branch whose operand the condition tests."""
    condition, *branches = call.operands
    test = source.assigned(condition)
    tested = source.local_names(test)
    compared = {text for node in ast.walk(test) if isinstance(node, ast.Compare) for text in _compared(source, node)}
    for branch in branches:
        for node in ast.walk(source.assigned(branch)):
            operand = _singular_operand(source, node)
            if operand is None or source.number(operand) is not None or _is_guarded(source, operand):
                continue
            # A divisor may have but a name in common with the condition. If that compares it with a number, the divisor
            # is taken to be 0 where the branch is not taken. A root or a logarithm counts whatever is compared.
            is_divisor = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
            if is_divisor and ast.unparse(operand) not in compared:
                continue
            if tested & source.local_names(operand):
                what = f"a branch that is not taken, {shown(node, 30)}, makes the gradient NaN (0 · inf)"
                cure = "choose a safe operand first, sqrt(where(ok, x, 1)); or jaxclamp.grad, interop.grad"
                yield Finding.at(source, call.node, "branch", what, "likely", cure)
                return


def _compared(source: Source, node: ast.Compare) -> list[str]:
    """Return the texts of what is compared with a constant."""
    sides = (node.left, *node.comparators)
    return list(map(ast.unparse, sides)) if _has_constant(source, *sides) else []


def _has_constant(source: Source, *sides: ast.expr) -> bool:
    """Say whether one of them is a number, or by its name the smallest one of a dtype."""
    return any(source.number(side) is not None or "eps" in ast.unparse(side) for side in sides)


def _singular_operand(source: Source, node: ast.AST) -> ast.expr | None:
    """Return the operand at which a call or a division has no bounded slope."""
    match node:
        case ast.BinOp(op=ast.Div(), right=divisor):
            return divisor
        case ast.BinOp() | ast.Call():
            function, operand, ends = singular(source, node)
            return operand if ends or function in ("reciprocal", "norm") else None
    return None


def _is_guarded(source: Source, operand: ast.expr) -> bool:
    """Say whether the operand is made safe before, has a constant added to it, or has no gradient."""
    for node in ast.walk(source.assigned(operand)):
        if isinstance(node, ast.Call):
            called = source.call(node)
            name = called.function if called else ast.unparse(node.func).rpartition(".")[2]
            if name in _GUARDS | _CONSTANTS:
                return True
        match node:
            case ast.Compare():  # a product with a mask, or an index by one
                return True
            case ast.BinOp(left=left, op=ast.Add(), right=right) if _has_constant(source, left, right):
                return True
    return False
