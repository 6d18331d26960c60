"""Tells which tensors lie in parts in several processes, and computes on the part of each."""

import sys
from collections.abc import Callable
from typing import Any

import torch


def is_distributed(x: Any) -> bool:
    """Return whether x is a `torch.distributed.tensor.DTensor`."""
    distributed = None if type(x) is torch.Tensor else sys.modules.get("torch.distributed.tensor")  # slow to import
    return distributed is not None and isinstance(x, distributed.DTensor)


def on_parts(function: Callable[[torch.Tensor], Any], x: Any, axes: int) -> Any:
    """Call a function that reads along the last axes of a distributed tensor, and of no other, on each part of it.

    What is cut along these axes is gathered first. So of images, whose rows and columns a pool reads, those of a batch
    stay where they are.

    Args:
      function: of a tensor; it returns a tensor, or a tuple of them, whose other axes are those of the argument.
      x: a `torch.distributed.tensor.DTensor`.
      axes: how many axes the function reads along.
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard

    leading = x.dim() - axes
    placements = [p if isinstance(p, Shard) and p.dim < leading else Replicate() for p in x.placements]

    def whole(part: torch.Tensor) -> torch.Tensor:
        # Without a shape, from_local takes all parts to be of one size. Of 3 images in 2 processes the second has 1. It
        # asks for strides beside a shape: the meta device has those of a row-major tensor, without its memory.
        shape = torch.Size((*x.shape[:leading], *part.shape[leading:]))
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(part, x.device_mesh, placements, shape=shape, stride=stride)

    result = function(x.redistribute(placements=placements).to_local())
    return tuple(map(whole, result)) if isinstance(result, tuple) else whole(result)
