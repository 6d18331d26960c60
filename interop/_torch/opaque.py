"""Hides functions from Dynamo: what they do with tensors enters the graph as it is."""

from collections.abc import Callable
from typing import Any

import torch

from interop._torch.named_functions import name_function
from interop._torch.private_api import is_compiled


def opaque(function: Callable[..., Any], called: str) -> Callable[..., Any]:
    """Return ``function`` as one call in the graphs of torch.compile."""
    name = name_function(function, called)

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            from interop._torch.dynamo_entry import call_opaque  # loads Dynamo, which takes a second

            return call_opaque(name, args, kwargs)
        # Dynamo leaves a call with dual tensors to Python, and would compile what it calls, JAX itself.
        return (torch.compiler.disable(function) if is_compiled() else function)(*args, **kwargs)

    return call
