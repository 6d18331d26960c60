"""Names that stand for functions in the graphs of torch, which hold strings."""

import itertools
import weakref
from collections.abc import Callable
from typing import Any

_FUNCTIONS: weakref.WeakValueDictionary[str, Callable[..., Any]] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def name_function(function: Callable[..., Any], called: str) -> str:
    """Return a name under which `function_named` finds ``function`` as long as it lives."""
    name = f"{called} {next(_NUMBERS)}"  # no number alone: Dynamo would take it for a symbol
    _FUNCTIONS[name] = function
    return name


def function_named(name: str) -> Callable[..., Any]:
    """Return the function that got this name from `name_function`."""
    return _FUNCTIONS[name]
