"""Selection ops by torch's own kernels: torch's function where its gradient follows the convention, else `select`.

Where nothing is differentiated, and with ``out=``, each is torch's own function, unchanged.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from interop._torch.forms import overwrite
from interop._torch.grad_state import activity, is_active
from interop._torch.private_api import is_constant
from interop._torch.sharding import is_distributed
from interop.native._rules.conventions_of_torch import FOLLOWED, follows
from interop.native._rules.selection import BOUNDS_LOSE, select
from interop.native.decorators import Forms, public, public_as, right_in_torch
from jaxclamp import Convention

Tensor = torch.Tensor
Bound = Tensor | float
Out = Tensor | None


def _clamp_in_torch(input: Tensor, min: Any = None, max: Any = None, *, ties: Convention = "min_norm") -> Forms | None:
    """Return torch's function with the gradient of clamp at two numbers, if it has one; `hardtanh` has its values."""
    if _are_exact(input, min, max):
        if ties in FOLLOWED["clamp"]:
            return torch.clamp, torch.clamp_
        if ties in FOLLOWED["hardtanh"] and min <= max:  # it refuses bounds that are crossed
            return functional.hardtanh, functional.hardtanh_
    return None


@functools.partial(public, in_torch=_clamp_in_torch)
def clamp(
    input: Tensor, min: Bound | None = None, max: Bound | None = None, *, ties: Convention = "min_norm", out: Out = None
) -> Tensor:
    """`torch.clamp` by torch's own kernels: take it for small tensors, and for what is compiled or exported.

    `interop.clamp` is JAX's program on torch's tape, with the same gradient. At numbers, the gradient is that of
    `torch.nn.functional.hardtanh` up to torch 2.13, and that of `torch.clamp` from 2.14 on.
    """
    in_torch: Callable[..., Tensor] = torch.clamp
    if out is not None or not (active := activity(input, min, max)):
        return in_torch(input, min, max, out=out)
    if max is None and min is not None:
        return clamp_min(input, min, ties=ties)
    if min is None and max is not None:
        return clamp_max(input, max, ties=ties)
    if forms := _clamp_in_torch(input, min, max, ties=ties):
        return forms[0](input, min, max)
    return select("clamp", in_torch, ties, active, input, min, max)


@public
def clamp_min(input: Tensor, min: Bound, *, ties: Convention = "min_norm", out: Out = None) -> Tensor:
    """`torch.clamp_min`: of a number below torch 2.14 by `torch.threshold`, of gradient 0 there."""
    if out is not None or not (active := activity(input, min)):
        return torch.clamp_min(input, min, out=out)
    if _are_exact(input, min):
        if ties in FOLLOWED["clamp_min"]:
            return torch.clamp_min(input, min)
        if min and ties in FOLLOWED["threshold"]:
            return torch.threshold(input, min, min)  # type: ignore[arg-type]
        if not min and math.copysign(1.0, min) > 0 and ties in FOLLOWED["relu"]:  # a threshold loses the sign of -0.0
            return functional.relu(input)
    return select("clamp_min", torch.clamp_min, ties, active, input, min)


@public
def clamp_max(input: Tensor, max: Bound, *, ties: Convention = "min_norm", out: Out = None) -> Tensor:
    """`torch.clamp_max`: of a number below torch 2.14 as ``-threshold(-input)``, as `clamp_min`.

    Of few elements, and on a GPU, it is ``clamp_max(max, input)``: the input takes the place of the bound, which gets 0
    at a tie.
    """
    if out is not None or not (active := activity(input, max)):
        return torch.clamp_max(input, max, out=out)
    if _are_exact(input, max):
        if ties in FOLLOWED["clamp_max"]:
            return torch.clamp_max(input, max)
        if max and ties in FOLLOWED["threshold"]:  # at a bound of 0.0, -0.0 would become 0.0
            if isinstance(active, list) and BOUNDS_LOSE and (input.is_cuda or input.numel() <= _FEW):
                bound = torch.scalar_tensor(max, dtype=input.dtype, device=input.device)  # type: ignore[arg-type]
                return torch.clamp_max(bound, input)
            return -torch.threshold(-input, -max, -max)  # type: ignore[arg-type]
    return select("clamp_max", torch.clamp_max, ties, active, input, max)


_FEW = 2**12
"""The elements up to which torch's clamp by a tensor takes less time, on a CPU, than a threshold and two negations."""

_NUMBERS = frozenset((int, float, torch.SymInt, torch.SymFloat))

_DIGITS = {torch.float16: 11, torch.bfloat16: 8}
"""The binary digits of the dtypes whose derivatives compare with a number as it is, not as the dtype has it."""


def _are_exact(x: Tensor, *bounds: Any) -> bool:
    """Return whether torch's kernels with bounds built in can be used: for numbers, and those that the dtype of x has.

    A symbol of a graph cannot be compared, where it stands for what is known only when the graph runs.
    """
    for bound in bounds:  # a clamp by NaN is NaN, where a threshold of NaN leaves x as it is
        if type(bound) not in _NUMBERS or bound != bound or not is_constant(bound):
            return False
    digits = _DIGITS.get(x.dtype)
    if digits is not None and not all(_has(digits, bound) for bound in bounds):
        return False
    return not is_distributed(x)


def _has(digits: int, number: float) -> bool:
    """Return whether ``number`` has so few binary digits; of very small and very large ones it may say no.

    >>> _has(8, 0.125), _has(8, 0.1), _has(8, 257.0)
    (True, False, False)
    """
    if number in (math.inf, -math.inf):
        return True
    # The exponents are those of float16, whose numbers have all their digits from 2^-14 to below 2^16.
    mantissa, exponent = math.frexp(number)
    return (mantissa * 2**digits).is_integer() and -13 <= exponent <= 16


def _of_two(name: str) -> Callable[..., Tensor]:
    """Publish torch's function of that name, of two tensors."""
    in_torch: Callable[..., Tensor] = getattr(torch, name)

    def of_two(input: Tensor, other: Tensor, *, ties: Convention = "min_norm", out: Out = None) -> Tensor:
        if out is not None or not (active := activity(input, other)):
            return in_torch(input, other, out=out)
        return select(name, in_torch, ties, active, input, other)

    return public_as(name, of_two, f"`torch.{name}`.")


maximum, minimum, fmax, fmin = map(_of_two, ("maximum", "minimum", "fmax", "fmin"))


@right_in_torch
def relu(input: Tensor, inplace: bool = False, *, ties: Convention = "min_norm") -> Tensor:
    """`torch.nn.functional.relu`."""
    if ties in FOLLOWED["relu"] or not is_active(input):
        return functional.relu(input, inplace)
    return selected("relu", functional.relu, input, inplace, ties)


@right_in_torch
def relu6(input: Tensor, inplace: bool = False, *, ties: Convention = "min_norm") -> Tensor:
    """`torch.nn.functional.relu6`."""
    if follows("relu6", input, ties) or not is_active(input):
        return functional.relu6(input, inplace)
    return selected("relu6", functional.relu6, input, inplace, ties)


@public
def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False, *, ties: Convention = "min_norm"
) -> Tensor:
    """`torch.nn.functional.hardtanh`."""
    if not is_active(input) or (ties in FOLLOWED["hardtanh"] and _are_exact(input, min_val, max_val)):
        return functional.hardtanh(input, min_val, max_val, inplace)
    return selected("hardtanh", functional.hardtanh, input, inplace, ties, min_val, max_val)


def selected(
    name: str, in_torch: Callable[..., Tensor], input: Tensor, inplace: bool, ties: Convention, *bounds: float
) -> Tensor:
    """Give ``in_torch``, a function of torch with its bounds built in, the gradient of the op of that name."""

    def op(x: Tensor) -> Tensor:
        return select(name, lambda x, *_: in_torch(x, *bounds), ties, activity(x), x, *bounds)

    return overwrite(f"{name}_", op, input) if inplace else op(input)
