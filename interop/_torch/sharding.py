"""Tells which tensors lie in parts in several processes."""

from __future__ import annotations

import sys
from typing import Any

import torch


def is_distributed(x: Any) -> bool:
    """Return whether x is a `torch.distributed.tensor.DTensor`."""
    distributed = None if type(x) is torch.Tensor else sys.modules.get("torch.distributed.tensor")  # slow to import
    return distributed is not None and isinstance(x, distributed.DTensor)
