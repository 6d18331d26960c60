"""Publishes the functions of `interop.native`: torch's modes see their calls, and torch's forms of them are derived.

``@public``, ``public_as`` and ``@right_in_torch`` enter a function in `NATIVE`, and with it the form that overwrites
its first argument, if torch has one. With ``clamp`` in `selection.py`, for example, ``clamp_`` is published.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
from torch.overrides import handle_torch_function

from interop._torch.forms import NUMPY_NAMES, in_place, overwrite
from interop._torch.grad_state import is_active
from interop._torch.opaque import opaque
from interop._torch.private_api import is_overridden, is_traced_under_transforms
from interop.native._rules.conventions_of_torch import FOLLOWED
from jaxclamp._rules.conventions import check_convention
from jaxclamp._shared.version_derivatives import VERSIONS, Version

P = ParamSpec("P")
R = TypeVar("R")
Forms: TypeAlias = tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]
"""A function of torch, and its form that overwrites."""

NATIVE: dict[str, Callable[..., Any]] = {}
"""Maps a name to the function of this package: the name of the op, with an underscore behind it if it overwrites."""
RIGHT_IN_TORCH: set[Callable[..., Any]] = set()
"""The functions that call torch's own under the convention min_norm, whatever the arguments."""


def public(
    function: Callable[P, R], in_torch: Callable[..., Forms | None] = lambda *args, **kwargs: None
) -> Callable[P, R]:
    """Publish the function, and its form that overwrites.

    Args:
      function: the function.
      in_torch: takes its arguments and returns the forms of a function of torch that has its gradient, or None.
    """
    if in_place(function.__name__):
        _published(_overwriting(function, in_torch))
    return _published(function)


def public_as(name: str, function: Callable[P, R], about: str) -> Callable[P, R]:
    """Publish a function that is made for several names, of which this is one."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = about
    return public(function)


def right_in_torch(function: Callable[P, R]) -> Callable[P, R]:
    """Publish a function, like `public`, that is torch's own where the installed torch follows min_norm."""
    name = function.__name__
    is_right = "min_norm" in FOLLOWED[name]
    forms: Any = (function, in_place(name)) if is_right else None
    published = public(function, lambda *args, **kwargs: forms)
    if is_right:
        RIGHT_IN_TORCH.update(NATIVE[form] for form in (name, f"{name}_") if form in NATIVE)
    return published


def _overwriting(function: Callable[..., Any], in_torch: Callable[..., Forms | None]) -> Callable[..., Any]:
    """Return the form of a function that overwrites its first argument.

    A function with a parameter ``inplace`` overwrites by itself. Any other has torch's form, where nothing is
    differentiated or that has the right gradient. Else the result is copied into the argument.
    """
    signature = inspect.signature(function)
    name = f"{function.__name__}_"
    form_in_torch: Any = in_place(function.__name__)

    def by_flag(*args: Any, **kwargs: Any) -> Any:
        return function(*args, inplace=True, **kwargs)

    def by_copy(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if "out" in kwargs:
            raise TypeError(f"{name}() overwrites its first argument and takes no out; use {function.__name__}().")
        without_ties = kwargs  # no new dict in the usual call, which names no convention
        if "ties" in kwargs:
            without_ties = {parameter: value for parameter, value in kwargs.items() if parameter != "ties"}
        if not is_active(input, *args, *without_ties.values()):
            return form_in_torch(input, *args, **without_ties)
        if forms := in_torch(input, *args, **kwargs):
            # By position, as the parameters of hardtanh_, which may take the place of clamp_, have other names.
            arguments = signature.bind(input, *args, **without_ties).args if without_ties else (input, *args)
            return forms[1](*arguments)
        return overwrite(name, functools.partial(function, **kwargs), input, *args)

    # A form that overwrites has no other place for its result, and torch's own forms have neither parameter.
    parameters = [p for p in signature.parameters.values() if p.name not in ("inplace", "out")]
    overwriting: Any = by_flag if "inplace" in signature.parameters else by_copy
    overwriting.__name__ = overwriting.__qualname__ = name
    overwriting.__module__ = function.__module__
    overwriting.__doc__ = f"`interop.native.{function.__name__}`, which overwrites its first argument and returns it."
    overwriting.__signature__ = signature.replace(parameters=parameters)
    return overwriting


def _published(function: Callable[P, R]) -> Callable[P, R]:
    """Enter the function in `NATIVE`, where torch can override it, with NumPy's names for its arguments."""
    parameters = inspect.signature(function).parameters
    names = {alias: name for alias, name in NUMPY_NAMES.items() if name in parameters}
    aliases = frozenset(names)

    def with_version(*args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function with the version that its text in ``ties`` names, or with a convention."""
        if "ties" in kwargs:
            kwargs["ties"] = VERSIONS["torch"].get(str(kwargs["ties"]), kwargs["ties"])
        return function(*args, **kwargs)

    one_call: Callable[..., R] = opaque(with_version, function.__name__)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        arguments = (*args, *kwargs.values()) if kwargs else args
        if is_overridden(arguments):  # subclasses of tensors and modes want to see the call
            # By its name: Dynamo cannot look up `checked` itself in an outer block, if the table of a block led here.
            return handle_torch_function(NATIVE[function.__name__], arguments, *args, **kwargs)
        if kwargs:
            ties = kwargs.get("ties", "min_norm")
            if not isinstance(ties, Version):  # as `interop.as_of` passes
                check_convention(function.__name__, ties)
            if not aliases.isdisjoint(kwargs):
                return renamed(*args, **kwargs)
        if is_traced_under_transforms():  # Dynamo would lose the derivatives of an autograd.Function
            # A graph holds the text of a version, and no object.
            return one_call(*args, **{k: str(v) if isinstance(v, Version) else v for k, v in kwargs.items()})
        return function(*args, **kwargs)

    def renamed(*args: Any, **kwargs: Any) -> R:
        by_name = {names.get(name, name): value for name, value in kwargs.items()}
        if len(by_name) < len(kwargs):
            raise TypeError(f"{function.__name__}: got two values for one argument, {' and '.join(kwargs)}.")
        return checked(*args, **by_name)

    checked.__module__ = "interop.native"  # where users import it from, and where pickle looks for it
    NATIVE[function.__name__] = checked
    return checked
