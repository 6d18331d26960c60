"""Hides functions from Dynamo: what they do with tensors enters the graph as it is."""

from collections.abc import Callable
from typing import Any

import torch

from interop._torch.named_functions import name_function


def opaque(function: Callable[..., Any], called: str) -> Callable[..., Any]:
    """Return ``function`` as one call in the graphs of torch.compile."""
    name = name_function(function, called)

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            from interop._torch.dynamo_entry import call_opaque  # loads Dynamo, which takes a second

            return call_opaque(name, args, kwargs)
        return function(*args, **kwargs)

    return call
