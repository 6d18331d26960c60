"""Tells whether torch may ask for a derivative of a call, and runs what has to be differentiated whatever the state."""

import graphlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch.autograd.graph import Node

from interop._torch.private_api import is_forward_mode, is_traced, is_transformed

R = TypeVar("R")


def outside_of_modes(function: Callable[[], R]) -> R:
    """Call the function in a thread of its own: modes, transformations and `torch.no_grad` hold for their thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def is_recorded(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether torch may ask for derivatives of a call with ``tensors``, under torch.func always."""
    if torch.is_grad_enabled():
        for tensor in tensors:  # a loop here and below, as `any` of a generator takes more than twice as long
            if tensor.requires_grad:
                return True
    return is_forward_mode() or is_transformed()


def records_nothing() -> bool:
    """Say whether torch asks for no derivative of any call, as under `torch.no_grad`, and makes no graph of them."""
    return not (
        torch.is_grad_enabled() or torch.compiler.is_compiling() or is_forward_mode() or is_transformed() or is_traced()
    )


def nodes_behind(root: Node) -> list[Node]:
    """List the nodes of a graph, each before all that it leads to."""
    behind: dict[Node, list[Node]] = {}
    pending = [root]
    while pending:
        node = pending.pop()
        if node not in behind:
            behind[node] = [following for following, _ in node.next_functions if following is not None]
            pending += behind[node]
    return [*graphlib.TopologicalSorter(behind).static_order()][::-1]


def leaves_behind(total: torch.Tensor) -> list[torch.Tensor]:
    """List the tensors that require grad in the graph of ``total``."""
    nodes = [] if total.grad_fn is None else nodes_behind(total.grad_fn)
    return [node.variable for node in nodes if hasattr(node, "variable")]  # they accumulate the gradient of a leaf


def is_active(input: torch.Tensor, *operands: Any) -> bool:
    """Return whether torch may ask for a derivative of a call with these arguments that an op of real numbers has.

    In a compiled function it may for any floating-point tensor, since the graph may be differentiated. TorchScript has
    no derivatives of ours: what it traces is torch's own function.
    """
    if not isinstance(input, torch.Tensor) or input.is_complex():
        return False  # torch refuses numbers in the place of the tensor, and complex tensors, by itself
    if torch.compiler.is_compiling():
        return input.is_floating_point() or any(map(_is_floating, operands))
    if torch.is_grad_enabled():
        if input.requires_grad:
            return not is_traced()
        for operand in operands:
            if isinstance(operand, torch.Tensor) and operand.requires_grad:
                return not is_traced()
    if is_forward_mode() or is_transformed():
        return input.is_floating_point() or any(map(_is_floating, operands))
    return False


def activity(input: torch.Tensor, *operands: Any) -> bool | list[int]:
    """Return what `is_active` does, or the indices of the active operands, where eager reverse mode alone may ask.

    That is known if the operands are numbers and plain tensors, outside of all transformations.
    """
    if torch.compiler.is_compiling() or is_forward_mode() or is_transformed() or is_traced():
        return is_active(input, *operands)
    if not torch.is_grad_enabled():
        return False
    active = []
    for index, operand in enumerate((input, *operands)):
        if type(operand) in PLAIN_TENSORS and operand.layout is torch.strided:
            if operand.requires_grad:
                active.append(index)
        elif isinstance(operand, torch.Tensor):
            return is_active(input, *operands)
    return active if isinstance(input, torch.Tensor) and not input.is_complex() else False


PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
"""The types of tensors whose functions are torch's own, as those of a subclass need not be."""


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
