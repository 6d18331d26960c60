"""Says by torch's own kernels which elements of a result are on a tie, as an op's record says by JAX.

The mask of a comparison has numbers, 1 and 0 in the dtype of the operand, which torch computes and adds up several
times as fast as truth values.

``clamp(x, 0, 6)`` at (-1, 0, 3, 6) is on a tie at 0 and at 6. The pool with windows of 2 and stride 1 over (3, 3, 1)
has two windows. In the first both elements are the largest, so it is on a tie; the second has one that is.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from interop._torch.forms import axes_of
from interop._torch.grad_state import PLAIN_TENSORS
from interop._torch.private_api import is_dispatch_mode_active, is_transformed
from interop.native._rules.kinked import places_of_ties
from interop.native._rules.selection import number_of_members
from interop.native._rules.windows import windows_on_tie
from interop.native._rules.windows_sliced import largest_by_slices, prefers_slices
from interop.native._rules.windows_stage import Pooling, adapted, is_plain
from jaxclamp import Op
from jaxclamp._rules.selection import Selection
from jaxclamp._rules.windows import windows_of


def mask_of_ties(op: Op, arguments: Mapping[str, Any], values: torch.Tensor | None = None) -> torch.Tensor | None:
    """Return which elements of the result are on a tie.

    Args:
      op: the op.
      arguments: those that it has in torch, by jaxclamp's names.
      values: the result, if it is known; a pool takes time to find it.

    Returns:
      The mask; None of a call that torch's kernels do not answer.
    """
    if not _can_be_compared([value for value in arguments.values() if isinstance(value, torch.Tensor)]):
        return None
    x, *parameters = (value for name, value in arguments.items() if name != "ties")
    if not isinstance(x, torch.Tensor):
        return None
    if op.name.startswith("max_pool"):
        return _of_pool(op.name, x, parameters, values)
    if op.name in _EXTREMA:
        return _of_extremum(_EXTREMA[op.name], x, arguments["axis"])
    has_tensors = any(isinstance(value, torch.Tensor) for value in parameters)
    if op.family == "reduction" or (op.family == "kinked" and has_tensors):
        return None
    rule, operands = op.applied(**arguments)
    if isinstance(rule, Selection):
        return _of_selection(rule, operands)
    return _equals_any_of(x, places_of_ties(op.name, *parameters))


def _of_selection(rule: Selection, operands: Sequence[Any]) -> torch.Tensor:
    """Return where more than one operand is the value: x beside a bound, or beside the other tensor of a maximum."""
    x, *rivals = operands
    are_numbers = not any(isinstance(rival, torch.Tensor) for rival in rivals)
    if len(rivals) < 2 or (are_numbers and rivals[0] < rivals[1]):  # the operands tie in pairs with x alone
        return _equals_any_of(x, rivals)
    return number_of_members(rule, operands) > 1


def _equals_any_of(x: torch.Tensor, rivals: Sequence[Any]) -> torch.Tensor:
    """Return where x equals a rival: a kink, a bound or another operand; nowhere if there is none."""
    if not rivals:
        return x.new_zeros(()).expand_as(x)
    masks = (_equals(x, rival) for rival in rivals)
    # Into the first of two, as a third one would take as long to bring into the cache as all else.
    return functools.reduce(lambda mask, rival: torch.maximum(mask, rival, out=mask), masks)


def _equals(x: torch.Tensor, rival: torch.Tensor | float) -> torch.Tensor:
    """Return where the two are equal; a NaN equals nothing."""
    # Into a tensor without elements, which takes the shape of the result, without the warning of another shape.
    return torch.eq(x, rival, out=torch.empty(0, dtype=x.dtype, device=x.device))


_EXTREMA: Mapping[str, Callable[..., torch.Tensor]] = {
    "amax": torch.amax,
    "amin": torch.amin,
    "max_with_indices": torch.amax,
    "min_with_indices": torch.amin,
}


def mask_of_adaptive_pool(
    name: str, input: torch.Tensor, output_size: Any, *_: Any, values: torch.Tensor | None = None, **__: Any
) -> torch.Tensor:
    """Return where the windows of torch's adaptive pool of that name have several largest elements."""
    windows, _counts = adapted(name, input, output_size)
    if values is None:
        values = getattr(functional, name)(input, output_size)
    return windows_on_tie(Pooling(windows, "min_norm"), input, values)


def _can_be_compared(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether these are tensors of real numbers in memory, of one device, outside of transformations."""
    return (
        not is_transformed()
        and not is_dispatch_mode_active()
        and all(
            type(tensor) in PLAIN_TENSORS
            and tensor.layout is torch.strided
            and (tensor.is_cpu or tensor.is_cuda)
            and not tensor.is_complex()
            for tensor in tensors
        )
        and len({tensor.device for tensor in tensors}) == 1
    )


def _of_extremum(
    reduce: Callable[..., torch.Tensor], x: torch.Tensor, axis: int | Sequence[int] | None
) -> torch.Tensor:
    axes = axes_of(axis, x.dim())
    # A NaN equals nothing: a row that has one is on no tie.
    return _equals(x, reduce(x, axes, keepdim=True)).sum(axes, keepdim=True) > 1


def _of_pool(name: str, x: torch.Tensor, window: Sequence[Any], values: torch.Tensor | None) -> torch.Tensor:
    dims = int(name[-2])
    pooling = Pooling(windows_of(name, tuple(x.shape), dims, *window), "min_norm")
    if values is None:
        by_slices = is_plain(x) and prefers_slices(x, dims)
        values = largest_by_slices(pooling, x) if by_slices else getattr(functional, name)(x, *window)
    return windows_on_tie(pooling, x, values)
