"""What torch.autocast makes of the arguments of an op that it computes in its lower precision."""

from __future__ import annotations

from typing import Any

import torch


def autocast(*values: Any) -> list[Any]:
    """The values as torch would have them, each by the device that it is on."""
    return list(map(_autocast, values))


def in_full_precision(*values: Any) -> list[Any]:
    """The values as torch would have them for what it computes in float32, such as losses."""
    return [value.float() if _is_cast(value) else value for value in values]


def _autocast(value: Any) -> Any:
    return value.to(torch.get_autocast_dtype(value.device.type)) if _is_cast(value) else value


def _is_cast(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not torch.amp.is_autocast_available(value.device.type):
        return False
    if not torch.is_autocast_enabled(value.device.type):
        return False
    return value.is_floating_point() and value.dtype != torch.float64
