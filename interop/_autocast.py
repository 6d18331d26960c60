"""What torch.autocast makes of the arguments of an op that it computes in its lower precision."""

from __future__ import annotations

from typing import Any

import torch


def autocast(*values: Any) -> list[Any]:
    """The values as torch would have them, each by the device that it is on."""
    return list(map(_autocast, values))


def _autocast(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not torch.amp.is_autocast_available(value.device.type):
        return value
    if not torch.is_autocast_enabled(value.device.type):
        return value
    is_cast = value.is_floating_point() and value.dtype != torch.float64
    return value.to(torch.get_autocast_dtype(value.device.type)) if is_cast else value
