"""How the tests call the ops of interop: with the arguments of a tie, as torch takes them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jaxclamp
from jaxclamp import OPS, Op

_TENSORS = ("x", "y", "weight")


def of_name(name: str) -> Op:
    """Return the op that torch calls ``name``, or ``name_`` in place."""
    function = getattr(jaxclamp, name.rpartition(".")[2].removesuffix("_"))
    return OPS[function.__name__]


def arguments(op: Op, dtype: torch.dtype = torch.float64, tie: tuple[Any, ...] | None = None) -> list[Any]:
    """Return the arguments of a tie of ``op``, by default of the fullest."""
    tie = max(op.tie_points, key=len) if tie is None else tie
    return [torch.tensor(v, dtype=dtype) if n in _TENSORS else v for n, v in zip(parameters(op), tie, strict=False)]


def parameters(op: Op) -> tuple[str, ...]:
    return tuple(op.signature.parameters)


of_aminmax = pytest.mark.skipif(
    torch.aminmax(torch.zeros(1, requires_grad=True)).max.grad_fn.name().endswith("NotImplemented"),
    reason="torch has no derivative of aminmax below 2.12",
)


def refusal(call: Callable[[], object]) -> type[Exception]:
    """Return the kind of exception that the installed torch raises, as this package has to; ours where it has none."""
    try:
        call()
    except Exception as error:
        return type(error)
    return OverflowError
