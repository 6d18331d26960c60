"""Asks torch's own function what it makes of arguments: the dtype of the result, or the exception that it raises.

It is called with ones, since values change neither. For ``clamp(int tensor, min=0.5)``, for example, it gets
``[[1]]`` and 0.5: torch answers with a float tensor, so the result is one.
"""

from collections.abc import Sequence
from typing import Any

import torch

from interop._bridge.signatures import Signature
from interop._torch.private_api import without_dispatch_modes


def result_dtype(signature: Signature, values: Sequence[Any]) -> torch.dtype | None:
    """Return the dtype of the result by torch's type promotion; None if torch takes no such arguments.

    Raises:
      Exception: of the kind that torch raises for a call with one tensor. Where there are more, jaxclamp may take
        them as arguments for which torch wants numbers.
    """
    shapes = [(1,) * v.dim() if isinstance(v, torch.Tensor) else None for v in values]
    result = refusal = _answer(signature, values, shapes, device="cpu")
    if result is None or isinstance(result, Exception):
        # Without memory torch refuses less, such as numbers that are too large, but loads its compiler for it.
        result = _answer(signature, values, shapes, device="meta")
    if isinstance(result, Exception):
        if len(shapes) - shapes.count(None) > 1:
            return None
        refusal = refusal or result  # that without memory may be about the memory
        raise type(refusal)(f"{signature.name}: torch refuses these arguments: {refusal}")
    return None if result is None else (result[0] if isinstance(result, tuple) else result).dtype


def refusal_type(signature: Signature, values: Sequence[Any]) -> type[Exception] | None:
    """Return the type of the exception that torch raises for the arguments, if it raises one."""
    try:
        shapes = [tuple(map(int, v.shape)) if isinstance(v, torch.Tensor) else None for v in values]
        if not signature.has_windows:
            shapes = _shrunk(shapes)
        # Without memory, torch has other exceptions for an axis of no elements.
        answer = _answer(signature, values, shapes, device="cpu")
    except Exception:  # of tensors that have no counterpart without data, such as nested ones
        return None
    return type(answer) if isinstance(answer, Exception) else None


def _shrunk(shapes: Sequence[tuple[int, ...] | None]) -> list[tuple[int, ...] | None]:
    """Replace sizes by small ones that are equal where the sizes are; 0 and 1 have a meaning, and stay.

    Whether shapes broadcast depends on no more than that.

    >>> _shrunk([(1000, 1, 64), None, (64,)])
    [(3, 1, 2), None, (2,)]
    """
    sizes = sorted({size for shape in shapes if shape is not None for size in shape} - {0, 1})
    small = {0: 0, 1: 1, **{size: number for number, size in enumerate(sizes, 2)}}
    return [None if shape is None else tuple(small[size] for size in shape) for shape in shapes]


def _answer(signature: Signature, values: Sequence[Any], shapes: Sequence[Any], device: str) -> Any:
    """Return what torch's function answers for ones of these shapes, or the exception that it raises.

    A number beside a tensor, which it may not take, is tried again as a tensor. None if it takes neither, and for
    dtypes without a 1, such as quantized ones.
    """
    with without_dispatch_modes():
        try:
            ones = [
                torch.ones((), dtype=v.dtype, device=device).expand(shape) if shape is not None else _without_symbol(v)
                for v, shape in zip(values, shapes, strict=True)
            ]
        except RuntimeError:
            return None
        like = next(v for v in ones if isinstance(v, torch.Tensor))
        as_tensors = [
            torch.ones((), dtype=torch.result_type(like, v), device=device) if isinstance(v, int | float) else v
            for v in ones
        ]
        for arguments in (ones, as_tensors):
            try:
                return signature.in_torch(signature.by_jax_name(arguments))
            except TypeError:
                continue
            except (IndexError, OverflowError, RuntimeError, ValueError) as refusal:
                return refusal
    return None


def _without_symbol(value: Any) -> Any:
    """Replace a symbol of torch by a number: reading the symbol would make torch guard its value."""
    return 0.5 if isinstance(value, torch.SymFloat) else value
