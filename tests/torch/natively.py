"""What the tests of `interop.native` share."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from interop.native import NATIVE
from jaxclamp import OPS

Tensor = torch.Tensor
DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}
PLAIN = [name for name in NATIVE if not name.endswith("_")]
OF_OPS = [name for name in PLAIN if name in OPS]
HOMES = (torch, functional, torch.Tensor, torch.linalg)


def own(name: str) -> Callable[..., Any]:
    """The function of torch of that name."""
    if name == "linalg_norm":  # torch has another ``norm`` than that of torch.linalg
        return torch.linalg.norm
    known = NATIVE[name].__name__.removesuffix("_with_indices")
    return next(getattr(home, known) for home in HOMES if hasattr(home, known))


def values(result: Any) -> Tensor:
    """The values of a result that may have indices too."""
    return result[0] if isinstance(result, tuple) else result


TAKE_TENSORS = {"clamp", "clamp_min", "clamp_max"}
WANT_TENSORS = {"maximum", "minimum", "fmax", "fmin", "hypot", "prelu"}


def gradients_of(
    function: Callable[..., Any], x: Tensor, given: list[Any], cotangent: float, ties: str | None
) -> tuple[Tensor, ...]:
    x = x.clone().requires_grad_()
    active = [x] + [value for value in given if isinstance(value, Tensor) and value.requires_grad]
    y = values(function(x, *given, **({"ties": ties} if ties else {})))
    return torch.autograd.grad(y, active, torch.full_like(y, cotangent), materialize_grads=True)
