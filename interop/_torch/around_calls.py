"""Blocks that decorate functions, and are entered around each call."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])


class AroundCalls(contextlib.ContextDecorator):
    """A block that is a decorator too, of functions whose body runs in the call."""

    _cure_of_a_class: ClassVar[str] = "decorate its methods"
    """What to do in the place of decorating a class."""

    def __call__(self, function: F) -> F:
        if isinstance(function, type):
            raise TypeError(
                f"{type(self).__name__}() cannot decorate the class {function.__name__}, whose methods run after it is "
                f"made; {self._cure_of_a_class}."
            )
        if isinstance(function, torch.nn.Module):
            raise TypeError(
                f"{type(self).__name__}() cannot decorate a {type(function).__name__} module, which would lose "
                "its parameters; use it in a `with` around its calls, or decorate its forward."
            )
        if any(is_kind(function) for is_kind in _SUSPENDED):
            name = getattr(function, "__name__", type(function).__name__)  # a partial has none
            raise TypeError(
                f"{type(self).__name__}() cannot decorate {name}, which runs after the call has returned; use it in a "
                "`with` around the computations in it."
            )
        return super().__call__(function)


_SUSPENDED = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
