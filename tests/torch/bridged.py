"""Tensors that the tests of the bridge hand over."""

import math
from collections.abc import Callable

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

Layout = Callable[[torch.Tensor], torch.Tensor]


def points(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Steps of 1/4 from -1.125 to 7.875: exact in every float dtype, and never on the bounds 0 and 6."""
    steps = torch.arange(math.prod(shape)) % 37
    return (steps * 0.25 - 1.125).reshape(shape).to(dtype)


ONES = torch.ones(3)
