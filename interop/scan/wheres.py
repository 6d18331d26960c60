"""Kinks written by hand, ``where(x > 0, x, 0)``: at the tie the gradient is that of one branch."""

import ast
from collections.abc import Iterator

from interop.scan.finding import Finding
from interop.scan.likelihood import is_zero, tie_of
from interop.scan.source import Call, Source, shown


def findings(source: Source, call: Call) -> Iterator[Finding]:
    """Return the call if it is a maximum, a minimum or a leaky unit of what its condition compares."""
    condition, *branches = map(source.assigned, call.operands)
    match condition:
        case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE() | ast.Lt() | ast.LtE()], comparators=[bound]):
            if source.number(left) is not None:  # 0 < x
                left, bound = bound, left
            # Equal texts are the same value, unless a call in them is random. A name stands for what was assigned last
            # before it: in ``x = f(y)`` and ``where(x > 0, x, 0)`` x is ``f(y)`` in both places.
            texts = [ast.unparse(branch) for branch in branches]
            x, limit = (ast.unparse(source.assigned(side)) for side in (left, bound))
            is_extremum = sorted(texts) == sorted((x, limit))
            is_at_zero = source.number(bound) == 0 and x in texts
            branch = branches[1 - texts.index(x)] if is_at_zero else None  # the one that is not x
            is_leaky = branch is not None and _is_multiple(source, branch, x)
            is_relu = branch is not None and is_zero(source, branch)
            if not (is_extremum or is_leaky or is_relu):
                return
            what = f"a kink by hand: at {shown(left, 20)} = {shown(bound, 20)} the gradient is that of one branch"
            home = "jaxclamp" if call.name.startswith("jax") else "interop.native"
            cure = f"{home}.{'relu' if is_relu else 'leaky_relu' if is_leaky else 'maximum or minimum'}"
            yield Finding.at(source, call.node, "where", what, tie_of(source, left, [bound]), cure)


def _is_multiple(source: Source, node: ast.expr, text: str) -> bool:
    """Say whether an expression is a product with the one of that text in it."""
    inner = [part for part in ast.walk(node) if isinstance(part, ast.expr)]
    is_product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
    return is_product and any(ast.unparse(source.assigned(part)) == text for part in inner)
