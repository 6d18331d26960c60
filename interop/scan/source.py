"""One file of source, parsed: which function a call means by the imports, and what a local name was last assigned."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)
_FRAMEWORKS = ("torch", "jax")
_WITHOUT_GRADIENTS = {"torch.no_grad", "torch.inference_mode"}
WITHOUT_GRADIENT = {
    "long",
    "int",
    "short",
    "byte",
    "bool",
    "item",
    "tolist",
    "numpy",
    "detach",
    "size",
    "numel",
    "argmax",
}
"""Methods behind whose call there is no gradient."""


@dataclass(frozen=True)
class Call:
    """A call of a function of torch or JAX."""

    node: ast.Call
    name: str
    """By its home, as ``torch.clamp``, also where it is a method."""
    operands: tuple[ast.expr, ...]
    """The positional arguments; of a method, the object comes first."""

    def argument(self, position: int, *names: str) -> ast.expr | None:
        """Return an argument by its position among the operands, or by one of the names."""
        if len(self.operands) > position:
            return self.operands[position]
        return next((word.value for word in self.node.keywords if word.arg in names), None)


class Source:
    """A parsed file."""

    def __init__(self, text: str) -> None:
        self.nodes = list(ast.walk(ast.parse(text)))
        self._parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self._imported = dict(_imported(self.nodes))
        homes = {name.partition(".")[0] for name in self._imported.values()}
        self.frameworks = tuple(name for name in _FRAMEWORKS if name in homes)
        """Which of torch and JAX the file imports, in this order."""

    def call(self, node: ast.AST) -> Call | None:
        """Return the call of a function of a framework, or of a method that may be one of torch's tensors."""
        if not isinstance(node, ast.Call):
            return None
        if name := self.name(node.func):
            return Call(node, name, tuple(node.args)) if name.partition(".")[0] in _FRAMEWORKS else None
        if isinstance(node.func, ast.Attribute) and self.frameworks and not self._is_foreign(node.func.value):
            return Call(node, f"{self.frameworks[0]}.{node.func.attr.rstrip('_')}", (node.func.value, *node.args))
        return None

    def name(self, node: ast.expr) -> str | None:
        """Return what a name means by the imports: ``torch.nn.functional.relu`` for ``F.relu``."""
        match node:
            case ast.Name(id=name):
                return self._imported.get(name)
            case ast.Attribute(value=base, attr=attribute):
                home = self.name(base)
                return home and f"{home}.{attribute}"
        return None

    def assigned(self, node: ast.expr) -> ast.expr:
        """Return the expression that a local name was last assigned before its use; others as they are."""
        for _ in range(8):  # names may be assigned in circles
            if not isinstance(node, ast.Name):
                break
            before = [v for line, v in self._assigned.get((self._scope(node), node.id), ()) if line < node.lineno]
            if not before:
                break
            node = before[-1]
        return node

    def local_names(self, node: ast.AST) -> set[str]:
        """Return the names in an expression that are not imported."""
        return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} - self._imported.keys()

    def within(self, node: ast.expr) -> Iterator[ast.AST]:
        """Return the nodes of an expression, and of what its local names were assigned."""
        seen: set[ast.AST] = set()
        pending: list[ast.AST] = [node]
        while pending and len(seen) < 500:
            inner = pending.pop()
            if inner in seen:
                continue
            seen.add(inner)
            yield inner
            pending += ast.iter_child_nodes(inner)
            if isinstance(inner, ast.Name) and (value := self.assigned(inner)) is not inner:
                pending.append(value)

    def has_gradient(self, node: ast.AST) -> bool:
        """Say whether a gradient may flow through an expression, as far as the source tells."""
        while (parent := self._parents.get(node)) is not None:
            match parent:
                case ast.Attribute(attr=attribute) if attribute in WITHOUT_GRADIENT | {"data", "shape", "dtype"}:
                    return False
                case ast.With(items=items) if any(self._stops(item.context_expr) for item in items):
                    return False
                case ast.FunctionDef(decorator_list=decorators) if any(map(self._stops, decorators)):
                    return False
                case ast.FunctionDef(name="forward") if self.is_function_of_autograd(parent):
                    return False
                case ast.Subscript(slice=index) if index is node:
                    return False
                case ast.Compare():
                    return False
            node = parent
        return True

    def is_function_of_autograd(self, node: ast.AST) -> bool:
        """Say whether a node is in a subclass of `torch.autograd.Function`, which has a gradient of its own."""
        owner = self.enclosing_class(node)
        return owner is not None and any((self.name(base) or "").endswith("autograd.Function") for base in owner.bases)

    def enclosing_class(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the innermost class around a node."""
        while (parent := self._parents.get(node)) is not None:
            if isinstance(parent, ast.ClassDef):
                return parent
            node = parent
        return None

    def _stops(self, node: ast.expr) -> bool:
        return self.name(node.func if isinstance(node, ast.Call) else node) in _WITHOUT_GRADIENTS

    def _is_foreign(self, node: ast.expr) -> bool:
        """Say whether an object comes from another library, as an array of NumPy, or is a literal."""
        node = self.assigned(node)
        if isinstance(node, ast.Constant | ast.List | ast.Dict | ast.Tuple | ast.JoinedStr):
            return True
        while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
            node = node.func if isinstance(node, ast.Call) else node.value
        name = self.name(node)
        return name is not None and name.partition(".")[0] not in _FRAMEWORKS

    def _scope(self, node: ast.AST) -> ast.AST:
        while not isinstance(node, _SCOPES):
            node = self._parents[node]
        return node

    @functools.cached_property
    def _assigned(self) -> dict[tuple[ast.AST, str], list[tuple[int, ast.expr]]]:
        """Maps a scope and a name in it to the lines and values of its assignments."""
        assigned: dict[tuple[ast.AST, str], list[tuple[int, ast.expr]]] = {}
        for node in self.nodes:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    assigned.setdefault((self._scope(node), name), []).append((node.end_lineno or node.lineno, value))
        return {key: sorted(values, key=lambda pair: pair[0]) for key, values in assigned.items()}


def _imported(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    """Return each imported name with its home."""
    for node in nodes:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield (
                        alias.asname or alias.name.partition(".")[0],
                        alias.name if alias.asname else (alias.name.partition(".")[0]),
                    )
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    yield alias.asname or alias.name, f"{module}.{alias.name}"


def number(node: ast.expr | None) -> float | None:
    """Return the number that an expression of numbers means, such as ``-1`` or ``2**8 - 1``; else None."""
    match node:
        case ast.Constant(value=value) if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = number(operand)
            return None if inner is None else -inner
        case ast.BinOp(left=left, op=op, right=right):
            a, b = number(left), number(right)
            if a is None or b is None:
                return None
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Pow() if abs(a) <= 64 and abs(b) <= 64 and a:
                    return float(a**b) if a > 0 or b == int(b) else None
                case ast.Div() if b:
                    return a / b
    return None


def shown(node: ast.AST, width: int = 60) -> str:
    """Write an expression on one line."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= width else f"{text[: width - 1]}…"
