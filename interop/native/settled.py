"""One value for all that read it, where a compiler would compute it once for each of them and round it each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from interop._recorded import is_recorded


@torch.library.custom_op("jaxclamp::settle_", mutates_args=("x",))
def settle_(x: torch.Tensor) -> None:
    """Leave x as it is, while compilers are told that it is overwritten.

    So they put x into memory, in its own dtype, before this call. What reads x after the call reads it there.
    """


@settle_.register_vmap
def _(info: Any, in_dims: tuple[int], x: torch.Tensor) -> tuple[None, None]:
    settle_(x)
    return None, None


def settled(x: torch.Tensor) -> torch.Tensor:
    """The tensor x; in a compiled function that is differentiated, with elements that are computed once.

    Inductor would compute an operand once for its extremum, and once more for the comparison with that, in the backward
    pass. The instructions may differ, and registers have more digits than 16-bit floats. Then no element is equal to
    the extremum: the gradient is 0, or 0/0.
    """
    return _in_memory(x) if _is_in_graph() and is_recorded([x]) else x


def all_settled(operands: Sequence[Any]) -> Sequence[Any]:
    """`settled` for operands that are compared with each other, if more than one of them gets a gradient.

    Inductor may compute their gradients in two kernels, which have to agree on who is tied.
    """
    if not _is_in_graph():
        return operands
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    if sum(is_recorded([tensor]) for tensor in tensors) < 2:
        return operands
    return [_in_memory(operand) if isinstance(operand, torch.Tensor) else operand for operand in operands]


def _is_in_graph() -> bool:
    """Whether a compiler looks on. A graph of `torch.export` is read where there is no jaxclamp."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting()


def _in_memory(x: torch.Tensor) -> torch.Tensor:
    copy = x.clone()  # what inductor settles in its place, if nothing else reads x
    settle_(copy.detach())
    return copy
