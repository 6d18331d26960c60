"""Says by numpy, or by torch's own kernels, which elements of a result are on a tie, as an op's record says by JAX.

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
from interop._torch.in_numpy import Mask, equals, equals_one_of
from interop._torch.private_api import is_dispatch_mode_active, is_transformed, without_forward_mode
from interop.native._rules.kinked import places_of_ties
from interop.native._rules.selection import number_of_members
from interop.native._rules.windows import windows_on_tie
from interop.native._rules.windows_sliced import largest_by_slices, prefers_slices
from interop.native._rules.windows_stage import Pooling, adapted, is_plain, pooling_of
from jaxclamp import Op
from jaxclamp._rules.selection import Selection


def mask_of_ties(op: Op, arguments: Mapping[str, Any], values: torch.Tensor | None = None) -> Mask | None:
    """Return which elements of the result are on a tie.

    Args:
      op: the op.
      arguments: those that it has in torch, by jaxclamp's names.
      values: the result, if it is known; a pool takes time to find it.

    Returns:
      The mask; None where neither can say, as of tensors without numbers.
    """
    if not can_be_compared([value for value in arguments.values() if isinstance(value, torch.Tensor)]):
        return None
    x, *_ = arguments.values()
    if not isinstance(x, torch.Tensor):
        return None
    if of_x := mask_by_numbers(op, arguments):
        return of_x(x, values)
    if op.name in _EXTREMA:
        return _of_extremum(_EXTREMA[op.name], x, arguments["axis"])
    if op.family != "selection":
        return None
    rule, operands = op.applied(**arguments)
    assert isinstance(rule, Selection)
    rivals: Sequence[Any] = operands[1:]
    if len(rivals) == 1:
        return equals(x, rivals[0])
    return number_of_members(rule, operands) > 1


def mask_by_numbers(op: Op, arguments: Mapping[str, Any]) -> Callable[[torch.Tensor, torch.Tensor | None], Mask] | None:
    """Return the function of x, and of the result if known, that says where x is on a tie, whatever its numbers are.

    Args:
      op: the op.
      arguments: those that it has in torch, by jaxclamp's names; of x itself nothing is read.

    Returns:
      The function; None if other tensors decide, as of a maximum, or `mask_of_ties` knows a way of its own.
    """
    _, *parameters = (value for name, value in arguments.items() if name != "ties")
    if op.name.startswith("max_pool"):
        return functools.partial(_of_pool, op.name, parameters)
    numbers = _numbers_on_tie(op, arguments, parameters)
    if numbers is None:
        return None
    return lambda x, _: equals_one_of(x, *numbers) if numbers else x.new_zeros((), dtype=torch.bool).expand_as(x)


def _numbers_on_tie(op: Op, arguments: Mapping[str, Any], parameters: Sequence[Any]) -> Sequence[float] | None:
    """Return the numbers at which elements of x are on a tie: its kinks, or the bounds beside it; None without such."""
    if op.family not in ("kinked", "selection") or any(isinstance(value, torch.Tensor) for value in parameters):
        return None
    rule, operands = op.applied(**arguments)
    if not isinstance(rule, Selection):
        return places_of_ties(op.name, *parameters)
    numbers: Sequence[Any] = operands[1:]
    # Two bounds in their order tie with x alone. In another order they tie with each other, too.
    return numbers if len(numbers) < 2 or numbers[0] < numbers[1] else None


_EXTREMA: Mapping[str, Callable[..., torch.Tensor]] = {
    "amax": torch.amax,
    "amin": torch.amin,
    "max_with_indices": torch.amax,
    "min_with_indices": torch.amin,
}


def mask_of_adaptive_pool(
    name: str, input: torch.Tensor, output_size: Any, *_: Any, values: torch.Tensor | None = None, **__: Any
) -> Mask:
    """Return where the windows of torch's adaptive pool of that name have several largest elements."""
    windows, _counts = adapted(name, input, output_size)
    if values is None:
        values = getattr(functional, name)(input, output_size)
    return windows_on_tie(Pooling(windows, "min_norm"), input, values)


def can_be_compared(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether these are tensors of real numbers in memory, of one device, outside of transformations."""
    return (
        not is_transformed()
        and not is_dispatch_mode_active()
        and all(
            type(tensor) in PLAIN_TENSORS
            and tensor.layout is torch.strided
            and not tensor.is_nested
            and (tensor.is_cpu or tensor.is_cuda)
            and not tensor.is_complex()
            for tensor in tensors
        )
        and len({tensor.device for tensor in tensors}) == 1
    )


def _of_extremum(reduce: Callable[..., torch.Tensor], x: torch.Tensor, axis: int | Sequence[int] | None) -> Mask:
    axes = axes_of(axis, x.dim())
    # A NaN equals nothing: a row that has one is on no tie.
    return torch.as_tensor(equals(x, reduce(x, axes, keepdim=True))).sum(axes, keepdim=True) > 1


def _of_pool(name: str, window: Sequence[Any], x: torch.Tensor, values: torch.Tensor | None) -> Mask:
    dims = int(name[-2])
    pooling, _ = pooling_of(name, "min_norm", x, dims, window)
    with torch.no_grad(), without_forward_mode():
        if values is None:
            by_slices = is_plain(x) and prefers_slices(x, dims)
            values = largest_by_slices(pooling, x) if by_slices else getattr(functional, name)(x, *window)
        return windows_on_tie(pooling, x, values)
