"""Kinks written by hand, ``where(x > 0, x, 0)``: at the tie the gradient is that of one branch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from interop.scan.finding import Finding, Likelihood
from interop.scan.likelihood import rounds
from interop.scan.source import Call, Source, number, shown

WHERE = {"torch.where", "jax.numpy.where", "jax.lax.select"}


def findings(source: Source, call: Call, file: str) -> Iterator[Finding]:
    """Return the call if it is a maximum, a minimum or a leaky unit of what its condition compares."""
    if call.name not in WHERE or len(call.operands) != 3 or not source.has_gradient(call.node):
        return
    condition, *branches = map(source.assigned, call.operands)
    match condition:
        case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE() | ast.Lt() | ast.LtE()], comparators=[bound]):
            texts = [ast.unparse(branch) for branch in branches]
            x, limit = ast.unparse(left), ast.unparse(bound)
            is_extremum = sorted(texts) == sorted((x, limit))
            is_zero = number(bound) == 0 and x in texts
            other = branches[1 - texts.index(x)] if x in texts else None
            is_leaky = is_zero and isinstance(other, ast.BinOp) and isinstance(other.op, ast.Mult) and _has(other, x)
            is_relu = is_zero and other is not None and (number(other) == 0 or "zeros" in ast.unparse(other))
            if not (is_extremum or is_leaky or is_relu):
                return
            tie: Likelihood = "likely" if rounds(source, left) else "possible" if number(bound) is not None else "rare"
            what = f"a kink by hand: at {shown(left, 20)} = {shown(bound, 20)} the gradient is that of one branch"
            home = "jaxclamp" if call.name.startswith("jax") else "interop.native"
            cure = f"{home}.{'relu' if is_relu else 'leaky_relu' if is_leaky else 'maximum or minimum'}"
            yield Finding(file, call.node.lineno, "where", shown(call.node), what, tie, cure)


def _has(node: ast.AST, text: str) -> bool:
    return any(isinstance(inner, ast.expr) and ast.unparse(inner) == text for inner in ast.walk(node))
