"""Clamps that pass a gradient by hand: ``x + (clamp(x) - x).detach()``, and the backward of an autograd.Function."""

import ast
from collections.abc import Iterator

from interop.scan.finding import Finding
from interop.scan.source import Source

_CLAMPS = {"clamp", "clip"}
_CURE = 'round straight through, then interop.native.clamp(..., ties="inclusive")'


def findings(source: Source, node: ast.AST) -> Iterator[Finding]:
    """Return the sum that goes straight through a clamp, or the backward that masks by bounds."""
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            for x, stopped in ((left, right), (right, left)):  # ``(clamp(x) - x).detach() + x`` is as usual
                match source.stopped(source.assigned(stopped)):
                    case ast.BinOp(left=value, op=ast.Sub(), right=again) if ast.dump(again) == ast.dump(x):
                        if _clamps(source, value, before=x):
                            what = "straight through a clamp: the gradient is 1 outside of the bounds too"
                            yield Finding.at(source, node, "straight-through", what, "likely", _CURE)
        case ast.FunctionDef(name="backward") if source.is_function_of_autograd(node):
            forward = source.enclosing_class(node)
            compares = [inner for inner in ast.walk(node) if isinstance(inner, ast.Compare)]
            masks = [m for m in compares if all(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in m.ops)]
            if masks and forward is not None and _clamps(source, forward):
                is_strict = isinstance(masks[0].ops[0], ast.Lt | ast.Gt)
                what = f"the derivative of a clamp by hand, which is {'0' if is_strict else '1'} on this bound"
                yield Finding.at(source, masks[0], "straight-through", what, "likely", _CURE)


def _clamps(source: Source, node: ast.AST, before: ast.expr | None = None) -> bool:
    """Say whether a node clamps, where what it is made of has not been clamped before."""
    inner = set(source.within(node) if isinstance(node, ast.expr) else ast.walk(node))
    # With x = clamp(w), x + (round(x) - x).detach() reads a clamp twice, and goes straight through a rounding alone.
    if before is not None:
        inner -= set(source.within(before))
    return not _CLAMPS.isdisjoint(source.functions(inner))
