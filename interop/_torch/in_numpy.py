"""Compares and counts numbers on the CPU by numpy, which makes and reads truth values in a fifth of torch's time."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from interop._torch.grad_state import PLAIN_TENSORS
from interop._torch.private_api import of_a_batch, without_function_modes, without_transformations, written_out

Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]] | torch.Tensor
"""Truth values: of numpy for numbers on the CPU, else of torch."""


def as_numpy(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the numbers of a tensor as numpy sees them, in the same memory; its storage stays resizable.

    `Tensor.numpy` forbids for good that the storage is resized. But FullyShardedDataParallel frees weights so, and
    functions of torch give ``out=`` its size.
    """
    typestr = _TYPESTR.get(x.dtype)
    is_usual = type(x) in PLAIN_TENSORS and x.is_cpu and x.layout is torch.strided and not x.is_nested
    if not is_usual or typestr is None or x.is_neg() or x.is_conj() or x._is_zerotensor():
        return written_out(x.detach()).numpy()
    address = x.data_ptr()
    # One that is empty, or was freed, has no memory to show.
    return np.asarray(_Shown(x, address, typestr)) if address else np.empty(x.shape, typestr)


class _Shown:
    """Shows numpy the memory of a tensor, which lives as long as an array over it."""

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, tensor: torch.Tensor, address: int, typestr: str) -> None:
        size = tensor.element_size()
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "shape": tensor.shape,
            "typestr": typestr,
            "data": (address, False),
            "strides": None if tensor.is_contiguous() else tuple([size * stride for stride in tensor.stride()]),
        }


_TYPESTR: Mapping[torch.dtype, str] = {
    dtype: np.dtype(str(dtype).removeprefix("torch.")).str
    for dtype in (
        *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
}
"""Maps a dtype to what numpy's array interface calls it."""


def readable(x: torch.Tensor) -> Any:
    """Return the numbers of torch's own tensors on the CPU as numpy sees them, in the same memory; others stay tensors.

    Floats of 8 and 16 bits are copied to float32, which has them all: numpy has most not, and is slow for float16.
    """
    if not x.is_cpu or type(x) not in PLAIN_TENSORS:
        return x
    return as_numpy(x.float() if _is_narrow(x) else x)


def rounded(number: float, x: torch.Tensor) -> float:
    """Return a number as it is in the dtype of a tensor, in which torch compares it; numpy does so for others."""
    return x.new_full((), number).item() if _is_narrow(x) else number


def _is_narrow(x: torch.Tensor) -> bool:
    return x.dtype.is_floating_point and x.dtype.itemsize < 4


def equals_one_of(x: torch.Tensor, *numbers: float) -> Mask:
    """Return which elements of a tensor are one of the numbers, as these are in its dtype.

    >>> equals_one_of(torch.tensor([0.1, 1.0, 2.0], dtype=torch.bfloat16), 0.1, 2.0)  # there 0.1 is 0.10009765625
    array([ True, False,  True])
    """
    elements = readable(x)
    mask: Mask = functools.reduce(operator.or_, [elements == rounded(number, x) for number in numbers])
    return mask


def equals(x: torch.Tensor, y: torch.Tensor) -> Mask:
    """Return where two tensors are equal, in the dtype in which torch compares them."""
    if x.dtype is not y.dtype:
        dtype = torch.result_type(x, y)
        x, y = x.to(dtype), y.to(dtype)
    mask: Mask = readable(x) == readable(y)
    return mask


def is_any(mask: torch.Tensor) -> bool:
    """Return whether an element is true, of a whole batch too: `torch.func.vmap` refuses to look at a number of it."""
    with without_transformations(), without_function_modes():
        return bool(readable(of_a_batch(mask)).any())


def has_one_of(x: torch.Tensor, *numbers: float) -> bool:
    """Return whether an element is equal to one of the numbers, of a whole batch too."""
    with without_transformations(), without_function_modes():
        return bool(equals_one_of(of_a_batch(x), *numbers).any())


def is_all_finite(x: torch.Tensor) -> bool:
    """Return whether no element is NaN or infinite, of a whole batch too."""
    with without_transformations(), without_function_modes():
        elements = readable(of_a_batch(x))
        return bool((torch if isinstance(elements, torch.Tensor) else np).isfinite(elements).all())
