"""The modules of torch.nn with the gradients of jaxclamp, and how a model that exists already gets them."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MethodType, ModuleType
from typing import Any

import torch

from interop._torch.grad_state import records_nothing
from interop._torch.sharding import is_distributed
from interop._transforms.as_of import AS_OF
from interop._transforms.min_norm import UNCOVERED, in_block, namesakes
from interop.native import NATIVE, RIGHT_IN_TORCH
from jaxclamp import CONVENTIONS, Convention


class _MinNorm:
    """Mixin of a module of torch.nn: ``forward`` calls a function of `interop.native` with the module's attributes."""

    ties: Convention | str | None = None
    """The convention, or a version of torch. None: as in the block around a call, min_norm where there is none."""
    _function: Callable[..., Any]
    _is_right: bool
    """Whether torch's own function is the right one under min_norm."""
    _is_faster: bool
    """Whether the function has a faster way than torch to values alone."""
    _attributes: tuple[str, ...]
    """The attributes that the function takes, under the names of its parameters."""
    _follow: bool
    """Whether these parameters follow those of ``forward``, and may be given by position."""
    _native: type[torch.nn.Module]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        kind = type(self)
        # torch's module is called where its gradient is right, where a block replaces the function that it calls, and
        # where nothing is differentiated, unless the function of `interop.native` finds the values sooner.
        is_right = kind._is_right and not any(map(is_distributed, (*args, *kwargs.values())))
        is_left_to_torch = is_right or in_block() or (records_nothing() and not kind._is_faster)
        if self.ties is None and is_left_to_torch:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        function = kind._function
        values = [getattr(self, name) for name in kind._attributes]
        if self.ties in AS_OF:
            function = AS_OF[self.ties].functions[function]
        elif self.ties is not None:
            kwargs["ties"] = self.ties
        if kind._follow and not kwargs:
            return function(*args, *values)
        return function(*args, **kwargs, **dict(zip(kind._attributes, values, strict=True)))

    def extra_repr(self) -> str:
        text: str = super().extra_repr()  # type: ignore[misc]
        return text if self.ties is None else ", ".join(filter(None, (text, f"ties={self.ties!r}")))

    def __prepare_scriptable__(self) -> torch.nn.Module:
        """Return the module that torch.jit.script compiles."""
        name = type(self).__name__
        if self.ties is not None or not self._is_right:
            raise NotImplementedError(
                f"torch.jit.script cannot compile interop.nn.{name}, whose gradient is not that of torch.nn.{name}; "
                "call conversion.undo() first, or use torch.export."
            )
        plain: Any = copy.copy(self)
        plain.__class__ = self._native
        return plain


def _derive(native: type[torch.nn.Module], function: Callable[..., Any]) -> type[torch.nn.Module]:
    """Make the class of a module of torch.nn that calls the function: for Hardtanh with ``min_val`` and ``max_val``."""
    of_forward = inspect.signature(native.forward).parameters
    # The constructors of losses make ``reduction`` of two older parameters; PReLU makes a weight.
    of_module = (inspect.signature(native).parameters.keys() - {"size_average", "reduce"}) | {"weight"}
    parameters = inspect.signature(function).parameters
    attributes = [name for name in parameters if name in of_module]
    positional = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    return type(
        native.__name__,
        (_MinNorm, native),
        {
            "__module__": "interop.nn",
            "__qualname__": native.__name__,
            "__doc__": f"`torch.nn.{native.__name__}` with the gradient of jaxclamp at ties and kinks.",
            "__init__": _constructor(native),
            "_function": staticmethod(function),
            "_is_right": function in RIGHT_IN_TORCH,
            "_is_faster": function in (NATIVE["max_pool2d"], NATIVE["max_pool3d"]),
            "_attributes": tuple(attributes),
            # The function has the operands of ``forward``, but for ``self``, first.
            "_follow": positional[len(of_forward) - 1 :][: len(attributes)] == attributes,
            "_native": native,
        },
    )


def _constructor(native: type[torch.nn.Module]) -> Callable[..., None]:
    """Return the constructor of a module of torch.nn with one argument more, the ``ties`` of `convert`."""

    @functools.wraps(native.__init__)
    def __init__(self: Any, *args: Any, ties: Convention | str | None = None, **kwargs: Any) -> None:  # noqa: N807
        native.__init__(self, *args, **kwargs)
        if ties is not None:
            convert(self, ties=ties)
            if self.ties is None:
                raise TypeError(f"{native.__name__}: there is no convention to choose; leave out ties={ties!r}.")

    signature = inspect.signature(native.__init__)
    parameter = inspect.Parameter(
        "ties", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="Convention | str | None"
    )
    __init__.__signature__ = signature.replace(parameters=[*signature.parameters.values(), parameter])  # type: ignore[attr-defined]
    return __init__


# ``MaxPool2d`` calls ``max_pool2d``: without case and underscores the names are the same.
_FUNCTIONS = {name.replace("_", ""): function for name, function in NATIVE.items() if not name.endswith("_")}
_CONVERTED = {
    module: _derive(module, _FUNCTIONS[name.lower()])
    for name, module in vars(torch.nn).items()
    if name.lower() in _FUNCTIONS and isinstance(module, type)
}

MODULES = {module.__name__: module for module in _CONVERTED.values()}
"""Maps a name, that of the class in torch.nn, to the module."""


@dataclass(frozen=True)
class Conversion:
    """What `convert` did to a model; printed, it is a table."""

    replaced: Mapping[str, str]
    """Maps the path of each module that was replaced to the name of its class."""
    left: Mapping[str, str]
    """Maps the path of each module that has ties or kinks and was left to the reason."""
    _before: tuple[tuple[Any, type[torch.nn.Module], str | None], ...] = field(repr=False)
    _block: str = field(repr=False)
    """What gives functions these gradients; empty if those of the installed torch are the same."""

    def __call__(self, *_: Any, **__: Any) -> None:
        """Raise: who writes ``model = convert(model)`` and calls that has lost the model."""
        raise TypeError("convert: the model was changed in place, and this is a report; call the model itself.")

    def undo(self) -> None:
        """Give each module that was replaced its class of torch.nn back."""
        for module, kind, ties in self._before:
            if (current := _class_of(module)) not in (kind, *MODULES.values()):  # a shared module is back already
                raise RuntimeError(
                    f"Conversion.undo: a module is of class {current.__module__}.{current.__name__} since it was "
                    "converted, as by a parametrization, or the undo of an earlier conversion; take back the latest "
                    "first."
                )
            _give_class(module, kind)
            vars(module).pop("ties", None)
            if ties is not None:  # what a conversion before this one had chosen
                module.ties = ties

    def __str__(self) -> str:
        lines = {**self.replaced, **{path: f"left: {reason}" for path, reason in self.left.items()}}
        if not lines:
            if not self._block:
                return "nothing to do: the installed torch has these gradients"
            return f"nothing to replace: no module with a counterpart in interop.nn; functions need {self._block}"
        named = {path or "(the model)": line for path, line in lines.items()}
        width = max(map(len, named))
        return "\n".join(f"{path:{width}}  {line}" for path, line in named.items())


def convert(model: torch.nn.Module, *, ties: Convention | str | None = None) -> Conversion:
    """Change the class of each module in ``model`` that has a counterpart here to that counterpart, in place.

    Parameters, buffers, hooks, training mode and shared modules stay as they are. The report names what has ties or
    kinks and was left: subclasses that are not torch's own, modules without a counterpart, and functions called in a
    ``forward``, for which there is `interop.min_norm`.

    Args:
      model: any module; it is changed.
      ties: the convention of the modules that have one to choose, as for `jaxclamp.clamp`; or a version of torch, such
        as ``"torch 2.13"``, whose gradients all of them get, as under `interop.as_of`. With None, modules follow the
        block of `interop.min_norm` or `interop.as_of` around a call, and are under min_norm outside of one.

    Returns:
      A report of what was replaced and what was left; its ``undo()`` takes it back.

    Raises:
      TypeError: ``model`` is not a module.
      ValueError: ``ties`` is unknown.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU6(), torch.nn.FractionalMaxPool2d(2, 1))
    >>> print(convert(model))
    1  ReLU6
    2  left: FractionalMaxPool2d calls fractional_max_pool2d, without a counterpart here
    >>> type(model[1]).__module__
    'interop.nn'
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"convert: model is {model!r}; pass an object of torch.nn.Module, such as torch.nn.ReLU().")
    if ties is not None and ties not in CONVENTIONS and ties not in AS_OF:
        versions = dict.fromkeys(str(table.version) for table in AS_OF.values())
        raise ValueError(
            f"convert: ties={ties!r} is not a convention, nor a version of torch; choose one of "
            f"{', '.join(map(repr, (*CONVENTIONS, *versions)))}."
        )
    block, covered, uncovered = _block_of(ties)
    replaced, left, before = {}, {}, []
    for path, module in model.named_modules(remove_duplicate=False):
        kind = _class_of(module)
        has_own_forward = "forward" in vars(module)
        if (kind in _CONVERTED and not has_own_forward) or (ties is not None and isinstance(module, _MinNorm)):
            replaced[path] = kind.__name__
            before.append((module, kind, vars(module).get("ties")))
        elif reason := _why_left(module, block, covered, uncovered):
            left[path] = reason
    for module, kind, _ in before:
        converted: Any = _CONVERTED.get(kind, kind)
        _give_class(module, converted)
        if ties in AS_OF or (ties is not None and "ties" in inspect.signature(converted._function).parameters):
            module.ties = ties
    return Conversion(replaced, left, tuple(before), block if covered or uncovered else "")


def _class_of(module: torch.nn.Module) -> type[torch.nn.Module]:
    """Return the class of a module, without what `torch.distributed.fsdp.fully_shard` has put before it.

    That makes ``class FSDPPReLU(FSDPModule, PReLU)``, for example, the class of a module with parameters.
    """
    kind = type(module)
    return kind.__bases__[1] if _is_sharded(kind) else kind


def _give_class(module: torch.nn.Module, kind: type[torch.nn.Module]) -> None:
    """Make a module one of that class; a module that ``fully_shard`` has sharded stays sharded."""
    current = type(module)
    if _is_sharded(current):
        # Copies of sharded modules are refused by a method that ``fully_shard`` puts into their class.
        refusal = {name: value for name, value in vars(current).items() if name == "__deepcopy__"}
        kind = type(f"FSDP{kind.__name__}", (current.__bases__[0], kind), refusal)
    module.__class__ = kind


def _is_sharded(kind: type[torch.nn.Module]) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # slow to import
    return fsdp is not None and kind.__bases__[0] is fsdp.FSDPModule and len(kind.__bases__) == 2


def _block_of(ties: str | None) -> tuple[str, set[str], set[str]]:
    """Return the block that gives functions these gradients, and the names of those it changes, and cannot change."""
    if ties not in AS_OF:
        return "interop.min_norm()", set(_COVERED.values()), set(_UNCOVERED.values())
    table = AS_OF[ties]
    covered, uncovered = (set(_last_names(of).values()) for of in (table.covered, table.uncovered))
    return f'interop.as_of("{table.version}")', covered, uncovered


def _last_names(dotted: Mapping[Callable[..., Any], str]) -> dict[Callable[..., Any], str]:
    return {function: name.rpartition(".")[2] for function, name in dotted.items()}


_COVERED = _last_names({function: dotted for dotted, function, op in namesakes(NATIVE) if op not in RIGHT_IN_TORCH})
_UNCOVERED = _last_names(UNCOVERED)
_POWER_AVERAGES = torch.nn.LPPool1d, torch.nn.LPPool2d, torch.nn.LPPool3d


def _why_left(module: torch.nn.Module, block: str, covered: set[str], uncovered: set[str]) -> str:
    """Say why a module without a counterpart in `interop.nn` may have other gradients; empty if it has none."""
    kind = type(module)
    if kind in _CONVERTED:
        return f"{kind.__name__} has a forward of its own beside that of its class; convert the model before it is set"
    if isinstance(module, _MinNorm):
        return f"{kind.__name__} keeps ties={module.ties!r}, which it has already" if module.ties else ""
    for base in kind.__mro__[1:]:
        if base in _CONVERTED and torch.nn.utils.parametrize.is_parametrized(module):
            return f"{kind.__name__} is parametrized; convert the model before it is"
        if base in _CONVERTED:
            return (
                f"{kind.__name__} is a subclass of torch.nn.{base.__name__}; make it one of interop.nn.{base.__name__}"
            )
    if isinstance(module, torch.jit.ScriptModule):
        return f"{kind.__name__} is a program of TorchScript, which cannot be looked into"
    # These take sums, which have no ties.
    if isinstance(module, torch.nn.EmbeddingBag) and module.mode != "max":
        return ""
    if isinstance(module, _POWER_AVERAGES) and not math.isinf(module.norm_type):
        return ""
    try:
        used = _used(module)
    except (OSError, TypeError, SyntaxError):  # of a class that was made at run time, or in C
        return f"{kind.__name__} has code whose source cannot be read"
    reasons = []
    if named := sorted(used & covered):
        reasons.append(f"calls {', '.join(named)}; run the model under {block}")
    if named := sorted(used & uncovered):
        reasons.append(f"calls {', '.join(named)}, without a counterpart here")
    return f"{kind.__name__} {' and '.join(reasons)}" if reasons else ""


def _used(module: torch.nn.Module) -> set[str]:
    """Return the names of the functions of torch that a module holds, or that its ``forward`` and its helpers name.

    Helpers are its methods and properties, functions of the same file, and functions that the module holds. Of what is
    called as a method, such as ``x.clamp(0)``, the name alone is known. Of ``return F.relu(self._scaled(x))`` it is
    ``relu``, and what is named in ``_scaled``.
    """
    known = _COVERED | _UNCOVERED
    held = {routine for value in vars(module).values() for routine in _routines(value)}
    used = {known.get(routine, "") for routine in held}
    pending: list[Any] = [type(module).forward, type(module).__call__]
    pending += [routine for routine in held if not _home(routine).startswith("torch.")]
    seen = {torch.nn.Module.__call__}
    while pending:
        function = inspect.unwrap(pending.pop())
        if function in seen or not inspect.isfunction(function):
            continue
        seen.add(function)
        of_closure = inspect.getclosurevars(function).nonlocals
        names = {**function.__globals__, **of_closure, "self": module, "cls": type(module)}
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name)):
                    bases = set(type(module).__mro__) - {torch.nn.Module}
                    pending += filter(inspect.isfunction, (vars(base).get(name) for base in bases))
                # ``x.clamp(0)``; but ``F.relu(x)`` is looked up, and ``self.norm(x)`` may call a layer of that name.
                case ast.Call(func=ast.Attribute(value=base, attr=name)) if not isinstance(
                    _meant(base, names), ModuleType | torch.nn.Module
                ):
                    used.add(name)
                # Called, passed to another function, or looked up in a table of functions.
                case ast.Attribute() | ast.Name():
                    for routine in _routines(_meant(node, names)):
                        used.add(known.get(routine, ""))
                        # ``self._activate``: a helper, which may be inherited from a class in another file.
                        is_of_module = isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls")
                        if routine not in held and (is_of_module or _home(routine) == _home(function)):
                            pending.append(routine)
    return used


def _home(routine: Callable[..., Any]) -> str:
    """Return the name of the module of a function; empty of a method in C, as `torch.Tensor.clamp`."""
    return getattr(routine, "__module__", None) or ""


def _routines(value: Any) -> Iterator[Callable[..., Any]]:
    """Return the functions behind a method, a property or a partial, or those in a dict, a list or a tuple."""
    match value:
        case dict():
            yield from _routines(list(value.values()))
        case list() | tuple():
            for entry in value:
                if not isinstance(entry, dict | list | tuple):
                    yield from _routines(entry)
        case (
            staticmethod(__func__=function)
            | classmethod(__func__=function)
            | MethodType(__func__=function)
            | property(fget=function)
            | functools.partial(func=function)
        ):
            yield from _routines(function)
        case _ if inspect.isroutine(value):
            yield value


def _meant(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Look up a name, or one in a module of Python or torch or a class, as ``torch.clamp`` and ``self.norm``.

    It is None if that is unknown, and of what every module of torch has, whose methods call nothing with ties.
    """
    match node:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Attribute(value=base, attr=name):
            home = _meant(base, names)
            if isinstance(home, ModuleType):
                return getattr(home, name, None)
            # Not by getattr, which would run the properties of a model.
            if isinstance(home, torch.nn.Module):
                instance = {**vars(home), **vars(home)["_modules"]}
                return instance.get(name) if name in instance else _meant_in_class(type(home), name)
            return _meant_in_class(home, name) if isinstance(home, type) else None
    return None


def _meant_in_class(kind: type, name: str) -> Any:
    return None if hasattr(torch.nn.Module, name) else inspect.getattr_static(kind, name, None)
