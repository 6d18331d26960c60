"""Names that stand for calls of flat functions in the graphs of torch, which hold strings."""

import uuid
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch

from interop._bridge.flat import FlatFunction

_CALLS: dict[str, tuple[FlatFunction, tuple[Any, ...], bool]] = {}
_CALL_NAMES: dict[Hashable, str] = {}


@torch.compiler.disable  # type: ignore[untyped-decorator]  # compiled autograd looks into what backward passes call
def name_call(flat: FlatFunction, non_tensors: tuple[Any, ...], x64: bool) -> str:
    """Return a name for a call without its tensors. It is unique, since graphs are cached on disk and exported.

    A graph may be run as long as the process lives, so the names stay. There is one for each function, kind of
    arguments and array or number that a graph holds as a constant.
    """
    description = (flat, x64, *map(_identity, non_tensors))
    if description not in _CALL_NAMES:
        name = _CALL_NAMES[description] = f"{flat.name} {uuid.uuid4()}"
        _CALLS[name] = flat, non_tensors, x64
    return _CALL_NAMES[description]


def _identity(value: Any) -> Any:
    """Return a key that tells a value from others to the bit: 0.0 == -0.0, yet they are not the same argument."""
    bits = np.asarray(value)
    return bits.dtype, bits.shape, bits.tobytes(), getattr(value, "weak_type", type(value))


def call_named(name: str) -> tuple[FlatFunction, tuple[Any, ...], bool]:
    """Return the call that got this name from `name_call`."""
    try:
        return _CALLS[name]
    except KeyError:
        raise RuntimeError(
            f"this graph calls '{name.rpartition(' ')[0]}', a function of the process that traced it; "
            "trace the model again in this process."
        ) from None
