"""The entry of opaque functions into the graphs of torch.compile. To import it loads Dynamo."""

from typing import Any

import torch
from torch.utils import _pytree as pytree

from interop._torch.named_functions import function_named
from interop._torch.private_api import is_in_compiled_graph, nonstrict_trace

_NONE = "the argument None"  # `nonstrict_trace` of torch 2.11 to 2.13 refuses None itself


def call_opaque(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the function of that name, as one call in the graph."""
    if torch.compiler.is_dynamo_compiling() and not is_in_compiled_graph():
        raise NotImplementedError(
            f"{name.partition(' ')[0]}: torch.export with strict=True cannot record it; pass strict=False, the default."
        )
    args, kwargs = pytree.tree_map(lambda leaf: _NONE if leaf is None else leaf, (args, kwargs))
    return _call(name, args, kwargs)


@nonstrict_trace
def _call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function behind what Dynamo takes as one call: it meets the tensors that make up the graph."""
    args, kwargs = pytree.tree_map(_without_symbols, (args, kwargs))
    return function_named(name)(*args, **kwargs)


def _without_symbols(leaf: Any) -> Any:
    """Replace a symbol of an int or a bool by its value, which torch then guards, as it steers what is computed."""
    if isinstance(leaf, str) and leaf == _NONE:
        return None
    kinds = {torch.SymInt: int, torch.SymBool: bool}
    return kinds[type(leaf)](leaf) if type(leaf) in kinds else leaf
