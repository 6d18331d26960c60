"""One file of source, parsed: which function a call means by the imports, what a name was assigned, what pins a place.

Of the comments, those that ignore a place are read.
"""

import ast
import functools
import io
import math
import operator
import re
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)
_HOLDERS = (*_SCOPES, ast.Lambda, ast.ClassDef)
"""What may hold names of its own."""
# A method in a file that imports both is taken for one of the first: code for JAX calls functions as a rule.
_FRAMEWORKS = ("torch", "jax")
_HOMES_OF_METHODS = {"torch": "torch", "jax": "jax.numpy"}
"""Maps a framework to the module whose functions have the names of methods."""
_HOMES = ("jaxclamp", "interop")
_IGNORE = re.compile(r"#\s*jaxclamp:\s*ignore\b")
_BLOCKS_WITHOUT_GRADIENT = {"torch.no_grad", "torch.inference_mode"}
_STOPS = {"detach", "stop_gradient"}
FLAT = {"round", "floor", "ceil", "trunc", "rint", "fix", "sign", "argmax", "one_hot", "arange", "randint"}
"""Functions whose gradient is 0 wherever there is one."""
_WITHOUT_GRADIENT = {
    *("long", "int", "short", "byte", "bool", "item", "tolist", "numpy", "detach", "size", "numel", "argmax"),
    *("data", "grad", "shape", "dtype"),
}
"""Methods and attributes behind which there is no gradient."""
# The keywords of x and of its bounds, in the order of their positions.
_KEYWORDS = ("input", "x", "a", "arr", "min", "a_min", "min_val", "max", "a_max", "max_val", "other")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.LShift: lambda number, bits: number * 2**bits,
}
_OF_NUMBERS = {"int", "float", "None", "Optional", "Union", "typing"}
"""The names in annotations of numbers, as ``Optional[float]``."""
_NUMBERS_BY_NAME = {"pi", "e", "inf", "nan"}
"""What `math`, `numpy`, `torch` and `jax.numpy` call numbers."""
_INTEGERS = re.compile(r"\b(u?int\d*|long|short|bool)\b")
_WIDTH = re.compile(r"\b(?P<unsigned>u?)int(?P<bits>\d{1,3})\b")
_ARRAYS_ELSEWHERE = ("numpy.", "pandas.")
# How many names are followed from one assignment to the next, as they may be assigned in circles. In 2,157 files of
# transformers, Keras, torch and Flax a function is behind 2 names at most, and a number behind 5.
_DEPTH = 8


@dataclass(frozen=True)
class Call:
    """A call of a function of torch or JAX."""

    node: ast.Call
    name: str
    """By its home, as ``torch.clamp``, also where it is a method."""
    operands: tuple[ast.expr, ...]
    """The positional arguments in the order of the function of torch; of a method, the object is among them.

    In ``partial(torch.clamp, min=0)`` the call itself stands for the x that is passed later.
    """

    @property
    def function(self) -> str:
        """The last part of the name, as ``clamp`` of ``torch.clamp_``."""
        return self.name.rpartition(".")[2].rstrip("_")

    @property
    def x_and_bounds(self) -> tuple[ast.expr, ...]:
        """The operands, those passed by keyword included, without options such as ``inplace``, and bounds of None.

        Of ``torch.clamp(x, max=6, min=0)`` they are x, 0 and 6.
        """
        words = [word for word in self.node.keywords if word.arg in _KEYWORDS]
        words.sort(key=lambda word: _KEYWORDS.index(word.arg or ""))
        operands = (*self.operands, *(word.value for word in words))
        return tuple(x for x in operands if not _is_none(x))


class Source:
    """A parsed file."""

    def __init__(self, text: str, path: str) -> None:
        self._text = text
        self.path = path
        with warnings.catch_warnings(action="ignore"):  # of text such as "\d", which is no question here
            file = ast.parse(text)
        self.nodes = list(ast.walk(file))
        self._parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self._imported: dict[str, str] = {}
        for name, home in _imported(self.nodes):
            # In ``try: import jax.numpy as np`` and ``except ImportError: import numpy as np``, it is the framework.
            if not _is_of_framework(self._imported.get(name)):
                self._imported[name] = home
        for node in file.body:  # a function of the file takes the place of one that was imported
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._imported.pop(node.name, None)
        homes = {name.partition(".")[0] for name in self._imported.values()}
        self.frameworks = tuple(name for name in _FRAMEWORKS if name in homes)
        """Which of torch and JAX the file imports, in this order."""

    def call(self, node: ast.AST) -> Call | None:
        """Return the call of a function of a framework, or of a method that may be one of torch's tensors."""
        if not isinstance(node, ast.Call):
            return None
        name, operands = self.name(node.func), list(node.args)
        if name == "functools.partial" and operands:
            function, *operands = operands
            name, operands = self.name(function), operands or [node]
        match node.func:
            case ast.Attribute(value=x, attr=method) if not (name or self._is_foreign(x)) and self.frameworks:
                name = f"{_HOMES_OF_METHODS[self.frameworks[0]]}.{method}"
                # Of ``x.where(condition, y)``, the condition is the first operand of the function.
                operands.insert(int(method == "where"), x)
        return Call(node, name, tuple(operands)) if name and _is_of_framework(name) else None

    def name(self, node: ast.expr, depth: int = _DEPTH) -> str | None:
        """Return what a name means by the imports: ``torch.nn.functional.relu`` for ``F.relu``.

        Assignments such as ``relu = F.relu`` and ``self.act = F.relu`` are followed, ``depth`` of them at most.
        """
        match node:
            case ast.Name(id=name) if name in self._imported:
                return self._imported[name]
            case ast.Name() | ast.Attribute() if depth and isinstance(
                value := self._constant(node), ast.Name | ast.Attribute
            ):
                return self.name(value, depth - 1)
            case ast.Attribute(value=base, attr=attribute):
                home = self.name(base, depth)
                return home and f"{'torch' if home == 'torch.Tensor' else home}.{attribute}"
        return None

    def assigned(self, node: ast.expr) -> ast.expr:
        """Return the expression that a local name was last assigned before its use; others as they are.

        Behind the lines ``x = f(y)`` and ``z = x`` it returns ``f(y)`` for z.
        """
        while isinstance(node, ast.Name):  # each time an earlier line
            values = self._bound.get((self._scope(node), node.id), ())
            # The default of a parameter is no assignment: a call may pass another value.
            expressions = (value for value in values if isinstance(value, ast.expr))
            assigned = [value for value in expressions if not isinstance(self._parents[value], ast.arguments)]
            # The x on the right of ``x = x.round()`` is that of an earlier line.
            before = [v for v in assigned if (v.end_lineno or v.lineno) < node.lineno]
            if not before:
                break
            node = max(before, key=lambda v: v.end_lineno or v.lineno)
        return node

    def number(self, node: ast.expr | None) -> float | None:
        """Return the finite number that an expression means; else None.

        Numbers are ``-1``, ``2**8 - 1``, and a name of the file, of a class or of an object that is assigned once, to a
        number.
        """
        number = self._number(node, _DEPTH)
        return None if number is None or math.isnan(number) else number

    def is_number(self, node: ast.AST | None) -> bool:
        """Say whether an expression is a number of Python, of whatever value: ``2**bits - 1``, ``len(x)``."""
        return self._number(node, _DEPTH) is not None

    def _number(self, node: ast.AST | None, depth: int) -> float | None:
        """Return a number, NaN if its value is not known; None of what is no number. ``depth`` names are followed."""
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return float(value) if abs(value) <= sys.float_info.max else math.nan
            case ast.Attribute(value=ast.Call(func=function, args=[dtype]), attr=limit) if (
                self.name(function) or ""
            ).endswith((".iinfo", ".finfo")):
                return _limit_of(dtype, limit)
            case ast.Name() | ast.Attribute() if (self.name(node) or "").rpartition(".")[2] in _NUMBERS_BY_NAME:
                return math.nan
            case ast.Name() | ast.Attribute() if depth:
                values = self._values(node)
                if len(values) == 1:
                    return self._number(values[0], depth - 1)
                are_numbers = values and all(self._number(value, depth - 1) is not None for value in values)
                return math.nan if are_numbers else None
            case ast.UnaryOp(op=op, operand=operand):
                inner = self._number(operand, depth)
                if inner is None:
                    return None
                return -inner if isinstance(op, ast.USub) else math.nan
            case ast.BinOp(left=left, op=op, right=right):
                a, b = self._number(left, depth), self._number(right, depth)
                if a is not None and b is not None:
                    return _computed(a, op, b)
                is_power = isinstance(op, ast.Pow | ast.LShift)  # 2**bits, 1 << bits
                return math.nan if a is not None and is_power else None
            case (
                ast.Call(func=ast.Name(id="int" | "float" | "len"))
                | ast.Call(func=ast.Attribute(attr="item" | "size" | "numel"))
                | ast.Subscript(value=ast.Attribute(attr="shape"))
            ):
                return math.nan
            case ast.arg(annotation=ast.expr() as annotation):
                named = set(re.findall(r"\w+", ast.unparse(annotation)))
                return math.nan if named & {"int", "float"} and named <= _OF_NUMBERS else None
        return None

    def text(self, node: ast.expr) -> str:
        """Write an expression and, of a name, what it is assigned, in small letters."""
        values = self._values(node) if isinstance(node, ast.Name | ast.Attribute) else ()
        return " ".join(ast.unparse(part) for part in (node, *values) if part is not None).lower()

    def pins(self, node: ast.AST) -> Iterator[str]:
        """Return the functions of this project that decide the gradient there: by a block, a decorator or a call.

        A call is ``jaxclamp.min_norm(f)``, where ``f`` is a lambda, or the name of a function of this file.
        """
        for parent, inner in self._around(node):
            deciding: list[ast.expr] = []
            match parent:
                case ast.With(items=items):
                    deciding = [item.context_expr for item in items]
                case (
                    ast.FunctionDef(name=name, decorator_list=decorators)
                    | ast.AsyncFunctionDef(name=name, decorator_list=decorators)
                ):
                    deciding = [*decorators, *self._transformations.get(name, ())]
                case ast.Call(func=transformation) if isinstance(inner, ast.Lambda):
                    deciding = [transformation]
            for name in map(self._called, deciding):
                if name.partition(".")[0] in _HOMES:
                    yield name.rpartition(".")[2]

    @functools.cached_property
    def ignored(self) -> frozenset[int]:
        """The lines with a comment ``# jaxclamp: ignore``."""
        tokens = tokenize.generate_tokens(io.StringIO(self._text).readline)
        return frozenset(t.start[0] for t in tokens if t.type == tokenize.COMMENT and _IGNORE.match(t.string))

    def local_names(self, node: ast.AST) -> set[str]:
        """Return the names in an expression that are not imported."""
        return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} - self._imported.keys()

    def within(self, node: ast.expr) -> Iterator[ast.AST]:
        """Return the nodes of an expression, and of what its local names were assigned."""
        seen: set[ast.AST] = set()
        pending: list[ast.AST] = [node]
        while pending:
            inner = pending.pop()
            if inner in seen:
                continue
            seen.add(inner)
            yield inner
            pending += ast.iter_child_nodes(inner)
            if isinstance(inner, ast.Name) and (value := self.assigned(inner)) is not inner:
                pending.append(value)

    def functions(self, nodes: Iterable[ast.AST]) -> set[str]:
        """Return the last parts of the names of the functions that are called, among these nodes."""
        return {call.function for call in map(self.call, nodes) if call is not None}

    def has_gradient(self, node: ast.AST) -> bool:
        """Say whether a gradient may flow through an expression, as far as the source tells."""
        is_differentiated = False  # as in ``grad(lambda x: x.clamp(0, 6))(x).item()``, whatever is done to the result
        for parent, inner in self._around(node):
            match parent:
                case ast.With(items=items) if any(self._stops(item.context_expr) for item in items):
                    return False
                case ast.FunctionDef() | ast.AsyncFunctionDef() if any(map(self._stops, parent.decorator_list)):
                    return False
                case ast.FunctionDef(name="forward") if self.is_function_of_autograd(parent):
                    return False
                case _ if is_differentiated:
                    continue
                case ast.Attribute(attr=attribute) if attribute in _WITHOUT_GRADIENT:
                    return False
                case ast.Call() if _is_conversion_to_integers(parent):
                    return False
                case ast.Subscript(slice=index) if index is inner:  # of x[i], a gradient flows through x alone
                    return False
                case ast.Compare():
                    return False
                case ast.Call() if self.stopped(parent) is inner:
                    return False
                case ast.Lambda() | ast.NamedExpr():
                    is_differentiated = True
                case ast.Call(func=function) if inner is not function:
                    is_differentiated = (self.name(function) or "").endswith(".grad")
        return True

    def is_flat(self, node: ast.expr) -> bool:
        """Say whether an expression has no gradient to pass, as one that is rounded, or converted to integers."""
        node = self.assigned(node)
        if isinstance(node, ast.Attribute):
            return node.attr in _WITHOUT_GRADIENT
        called = self.call(node)
        return called is not None and (
            called.function in FLAT | _WITHOUT_GRADIENT or _is_conversion_to_integers(called.node)
        )

    def stopped(self, node: ast.expr) -> ast.expr | None:
        """Return the x of ``x.detach()`` or ``stop_gradient(x)``."""
        called = self.call(node)
        return called.operands[0] if called and called.operands and called.function in _STOPS else None

    def is_function_of_autograd(self, node: ast.AST) -> bool:
        """Say whether a node is in a subclass of `torch.autograd.Function`, which has a gradient of its own."""
        owner = self.enclosing_class(node)
        return owner is not None and any((self.name(base) or "").endswith("autograd.Function") for base in owner.bases)

    def enclosing_class(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the innermost class around a node."""
        return next((parent for parent, _ in self._around(node) if isinstance(parent, ast.ClassDef)), None)

    def _around(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Return what is around a node, from inside out, each with the part of it that the node is in."""
        while (parent := self._parents.get(node)) is not None:
            yield parent, node
            node = parent

    def _stops(self, node: ast.expr) -> bool:
        return self._called(node) in _BLOCKS_WITHOUT_GRADIENT

    def _called(self, node: ast.expr) -> str:
        """Return the name of a function, with or without a call of it; empty if it is of no import."""
        node = self.assigned(node)
        if isinstance(node, ast.Name):
            node = self._constant(node) or node
        return self.name(node.func if isinstance(node, ast.Call) else node) or ""

    def _is_foreign(self, node: ast.expr) -> bool:
        """Say whether an object comes from another library, as an array of NumPy, or is a literal."""
        node = self.assigned(node)
        if isinstance(node, ast.Name):
            match self._values(node):
                case [ast.arg(annotation=ast.expr() as annotation)]:
                    return (self.name(annotation) or "").startswith(_ARRAYS_ELSEWHERE)
        if isinstance(node, ast.Constant | ast.List | ast.Dict | ast.Tuple | ast.JoinedStr):
            return True
        while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
            node = node.func if isinstance(node, ast.Call) else node.value
        name = self.name(node)
        return name is not None and not _is_of_framework(name)

    def _scope(self, node: ast.AST, kinds: tuple[type[ast.AST], ...] = _SCOPES) -> ast.AST:
        while not isinstance(node, kinds):
            node = self._parents[node]
        return node

    def _constant(self, node: ast.Name | ast.Attribute) -> ast.expr | None:
        """Return the one expression that a name is assigned in the file; None if there is no such, or another one."""
        match self._values(node):
            case [ast.expr() as value]:
                return value
        return None

    def _values(self, node: ast.Name | ast.Attribute) -> Sequence[ast.AST | None]:
        """Return what a name is bound to in the file: expressions, an argument, or None for what is not known."""
        match node:
            case ast.Name(id=name):
                scopes = [parent for parent, _ in self._around(node) if isinstance(parent, _HOLDERS)]
                for outwards, scope in enumerate(scopes):
                    # As Python looks names up: a method does not see those of the class around it, but by ``self``.
                    if (scope, name) in self._bound and not (outwards and isinstance(scope, ast.ClassDef)):
                        return self._bound[scope, name]
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                home = self.enclosing_class(node) if owner in ("self", "cls") else self._classes.get(owner)
                return self._bound.get((home, name), ()) if home else ()
        return ()

    @functools.cached_property
    def _classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}

    @functools.cached_property
    def _bound(self) -> dict[tuple[ast.AST, str], list[ast.AST | None]]:
        """Maps a scope, and a name in it, to what it is bound to: of a parameter that is the default, if it has one.

        A class is a scope too, in which the attributes of ``self`` are names.
        """
        values = {id(target): value for node in self.nodes for target, value in _assignments(node)}
        bound: dict[tuple[ast.AST, str], list[ast.AST | None]] = {}
        for node in self.nodes:
            names: list[str] = []
            scope: ast.AST | None = None
            match node:
                case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                    scope, names = self._scope(node, _HOLDERS), [name]
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                    scope, names = self.enclosing_class(node), [name]
                case ast.Global(names=names):  # a function may assign it, at any time: what it is is not known
                    scope = self.nodes[0]
            for name in names:
                if scope is not None:
                    argument = node if isinstance(node, ast.arg) else None
                    bound.setdefault((scope, name), []).append(values.get(id(node), argument))
        return bound

    @functools.cached_property
    def _transformations(self) -> dict[str, list[ast.expr]]:
        """Maps the name of a function to what it is passed to by that name, as ``jaxclamp.min_norm(f)``."""
        passed: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Call) and self._called(node.func).partition(".")[0] in _HOMES:
                for argument in node.args:
                    if isinstance(argument, ast.Name):
                        passed.setdefault(argument.id, []).append(node.func)
        return passed


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_of_framework(name: str | None) -> bool:
    return (name or "").partition(".")[0] in _FRAMEWORKS


def _imported(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    """Return each imported name with its home."""
    for node in nodes:
        match node:
            case ast.Import(names=names):
                for alias in names:  # ``import torch.nn`` binds torch, and with ``as nn`` torch.nn
                    home = alias.name if alias.asname else alias.name.partition(".")[0]
                    yield alias.asname or home, home
            case ast.ImportFrom(module=str(module), names=[ast.alias(name="*")], level=0):
                # It binds what the module has; of that, what the file calls matters, and does not bind itself.
                called = {x.func.id for x in nodes if isinstance(x, ast.Call) and isinstance(x.func, ast.Name)}
                stored = {x.id for x in nodes if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
                yield from ((name, f"{module}.{name}") for name in called - stored)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    yield alias.asname or alias.name, f"{module}.{alias.name}"


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr | ast.arg, ast.expr]]:
    """Return the targets of an assignment with what each is assigned, of ``a, b = 0, 1`` too; arguments by default."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield target, value
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    yield from zip(target.elts, value.elts, strict=False)  # of `a, *b = 1, 2, 3` they are fewer
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.arguments(defaults=defaults, kw_defaults=kw_defaults):
            positional = [*node.posonlyargs, *node.args]
            with_defaults = [
                *zip(positional[len(positional) - len(defaults) :], defaults, strict=True),
                *zip(node.kwonlyargs, kw_defaults, strict=True),
            ]
            # A default of None says nothing of what is passed, as the annotation beside it may.
            yield from ((arg, value) for arg, value in with_defaults if value and not _is_none(value))


def _is_conversion_to_integers(node: ast.Call) -> bool:
    """Say whether a call is ``x.to(torch.uint8)``, or the like."""
    values = [*node.args, *(word.value for word in node.keywords)]
    is_conversion = isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "type", "astype")
    return is_conversion and any(_INTEGERS.search(ast.unparse(value)) for value in values)


def _limit_of(dtype: ast.expr, limit: str) -> float:
    """Return the first or the last integer of a dtype, as ``torch.iinfo(torch.int8).min``; NaN for other limits."""
    width = _WIDTH.search(ast.unparse(dtype))
    if width is None or limit not in ("min", "max"):
        return math.nan
    count = 2.0 ** int(width["bits"])
    first = 0.0 if width["unsigned"] else -count / 2
    return first if limit == "min" else first + count - 1


def _computed(a: float, op: ast.operator, b: float) -> float:
    """Compute in floats: 10**10**10, which a source may say, overflows at once, and would take long in integers."""
    try:
        result = _OPERATORS[type(op)](a, b)
    except (KeyError, ArithmeticError):  # an operator that is not in the table; division by 0, overflow
        return math.nan
    # The root of a negative number is complex.
    return result if isinstance(result, float) and math.isfinite(result) else math.nan


def shown(node: ast.AST, width: int = 60) -> str:
    """Write an expression on one line."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= width else f"{text[: width - 1]}…"
