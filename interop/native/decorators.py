"""How a function of this package becomes public: it may be overridden, and its arguments have all names of torch's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from torch.overrides import handle_torch_function

from interop._torch.forms import NUMPY_NAMES
from interop._torch.private_api import is_overridden
from interop.native._rules.conventions_of_torch import FOLLOWED
from jaxclamp import CONVENTIONS
from jaxclamp._rules.conventions import refuse_convention
from jaxclamp._shared.version_derivatives import Version

P = ParamSpec("P")
R = TypeVar("R")

NATIVE: dict[str, Callable[..., Any]] = {}
"""Every function of this package by its name: that of the op, with an underscore behind it where it overwrites."""
RIGHT_IN_TORCH: set[Callable[..., Any]] = set()
"""Those that are torch's own, whatever the arguments, under the convention min_norm."""


def public(function: Callable[P, R]) -> Callable[P, R]:
    """The decorated function as one of this package."""
    parameters = inspect.signature(function).parameters
    names = {alias: name for alias, name in NUMPY_NAMES.items() if name in parameters and alias not in parameters}
    aliases = frozenset(names)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        given = (*args, *kwargs.values()) if kwargs else args
        if is_overridden(given):  # subclasses of tensors and modes want to see the call
            overridden: R = handle_torch_function(checked, given, *args, **kwargs)
            return overridden
        if kwargs:
            ties = kwargs.get("ties", "min_norm")
            if not isinstance(ties, Version) and ties not in CONVENTIONS:  # `interop.as_of` passes a version
                refuse_convention(ties)
            if not aliases.isdisjoint(kwargs):
                return renamed(*args, **kwargs)
        return function(*args, **kwargs)

    def renamed(*args: Any, **kwargs: Any) -> R:
        known = {names.get(name, name): value for name, value in kwargs.items()}
        if len(known) < len(kwargs):
            raise TypeError(f"{function.__name__}: got two values for one argument, {' and '.join(kwargs)}.")
        return function(*args, **known)

    checked.__module__ = "interop.native"
    NATIVE[function.__name__] = checked
    return checked


def right_in_torch(function: Callable[P, R]) -> Callable[P, R]:
    """`public`, for what needs no detour under min_norm in a torch that answers by it."""
    published = public(function)
    if "min_norm" in FOLLOWED[function.__name__.rstrip("_")]:
        RIGHT_IN_TORCH.add(published)
    return published
