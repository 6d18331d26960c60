"""Casts the arguments of an op as torch.autocast does: to its lower precision, or to float32."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from interop._torch.private_api import constant_in_graphs


def autocast(*values: Any) -> list[Any]:
    """Cast the values to the lower precision, each by the device that it is on."""
    return [value.to(torch.get_autocast_dtype(value.device.type)) if _is_cast(value) else value for value in values]


def in_full_precision(*values: Any) -> list[Any]:
    """Cast the values for what torch computes in float32, such as losses."""
    return [value.float() if _is_cast(value) else value for value in values]


def _is_cast(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not _is_available(value.device.type):
        return False
    if not torch.is_autocast_enabled(value.device.type):
        return False
    return value.is_floating_point() and value.dtype != torch.float64  # torch's own casts leave float64, too


@constant_in_graphs  # Dynamo of torch 2.11 does not know torch's function
def _is_available(device: str) -> bool:
    return torch.amp.is_autocast_available(device)


CASTS: Mapping[str, Callable[..., list[Any]]] = {"prelu": autocast, "max_pool3d": in_full_precision}
"""Maps the name of a function of torch to what autocast does to its arguments; torch has this list in C++ alone."""
