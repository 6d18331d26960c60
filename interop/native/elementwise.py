"""The elementwise ops in torch alone: torch's own function where it answers as the definition does, else a detour.

Where nothing is differentiated, and with ``out=``, each is torch's own function, unchanged.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np
import torch
from torch.nn import functional

from interop._torch.autocast import autocast
from interop._torch.forms import overwrite
from interop._torch.grad_state import is_active
from interop._torch.private_api import constant_of, is_constant
from interop.native.asked import FOLLOWED
from interop.native.kinked import bend, bend_by_weight
from interop.native.public import public, right_in_torch
from interop.native.selection import select
from jaxclamp import Convention
from jaxclamp.kinked import SELU_ALPHA, SELU_SCALE

aten: Any = torch.ops.aten

Bound = torch.Tensor | float
Out = torch.Tensor | None


@public
def clamp(
    input: torch.Tensor,
    min: Bound | None = None,
    max: Bound | None = None,
    *,
    ties: Convention = "min_norm",
    out: Out = None,
) -> torch.Tensor:
    """`torch.clamp`: of numbers below torch 2.14 by way of `torch.nn.functional.hardtanh`, of gradient 0 at both."""
    own: Callable[..., torch.Tensor] = torch.clamp
    if out is not None or not is_active(input, min, max):
        return own(input, min, max, out=out)
    if max is None and min is not None:
        return clamp_min(input, min, ties=ties)
    if min is None and max is not None:
        return clamp_max(input, max, ties=ties)
    if _is_exact(min, input) and _is_exact(max, input):
        if ties in FOLLOWED["clamp"]:
            return own(input, min, max)
        if ties in FOLLOWED["hardtanh"] and min <= max:
            return functional.hardtanh(input, min, max)
    return select("clamp", own, ties, input, min, max)


@public
def clamp_min(input: torch.Tensor, min: Bound, *, ties: Convention = "min_norm", out: Out = None) -> torch.Tensor:
    """`torch.clamp_min`: of a number below torch 2.14 by `torch.threshold`, of gradient 0 there."""
    if out is not None or not is_active(input, min):
        return torch.clamp_min(input, min, out=out)
    if _is_exact(min, input):
        if ties in FOLLOWED["clamp_min"]:
            return torch.clamp_min(input, min)
        if min and ties in FOLLOWED["threshold"]:
            return torch.threshold(input, min, min)
        if not min and math.copysign(1.0, min) > 0 and ties in FOLLOWED["relu"]:  # a threshold loses the sign of -0.0
            return functional.relu(input)
    return select("clamp_min", torch.clamp_min, ties, input, min)


@public
def clamp_max(input: torch.Tensor, max: Bound, *, ties: Convention = "min_norm", out: Out = None) -> torch.Tensor:
    """`torch.clamp_max`: of a number as ``-threshold(-input)``, by the way of `clamp_min`."""
    if out is not None or not is_active(input, max):
        return torch.clamp_max(input, max, out=out)
    if _is_exact(max, input):
        if ties in FOLLOWED["clamp_max"]:
            return torch.clamp_max(input, max)
        if max and ties in FOLLOWED["threshold"]:  # the sign of 0.0 might be lost
            return -torch.threshold(-input, -max, -max)
    return select("clamp_max", torch.clamp_max, ties, input, max)


_NUMBERS = frozenset((int, float, torch.SymInt, torch.SymFloat))
_DIGITS = {torch.float16: 11, torch.bfloat16: 8}
"""The binary digits of the dtypes whose derivatives compare with a number as it is, not as the dtype has it."""


def _is_exact(bound: Any, x: torch.Tensor) -> TypeGuard[float]:
    """Whether torch's kernels with bounds built in can be used: for a number, and one that the dtype of x has.

    A symbol of a graph cannot be compared, where it stands for what is known only when the graph runs.
    """
    if type(bound) not in _NUMBERS or bound != bound or not is_constant(bound) or _is_distributed(x):
        return False
    return x.dtype not in _DIGITS or _has(_DIGITS[x.dtype], bound)


def _is_distributed(x: torch.Tensor) -> bool:
    """Whether x is a `torch.distributed.tensor.DTensor`: torch has no derivative of `hardtanh` for these."""
    distributed = None if type(x) is torch.Tensor else sys.modules.get("torch.distributed.tensor")  # slow to import
    return distributed is not None and isinstance(x, distributed.DTensor)


def _has(digits: int, number: float) -> bool:
    """Whether ``number`` has so few binary digits; of very small and very large ones it may say no."""
    if number in (math.inf, -math.inf):
        return True
    mantissa, exponent = math.frexp(number)
    return (mantissa * 2**digits).is_integer() and -13 <= exponent <= 16


@public
def maximum(
    input: torch.Tensor, other: torch.Tensor, *, ties: Convention = "min_norm", out: Out = None
) -> torch.Tensor:
    """`torch.maximum`."""
    return _of_two("maximum", input, other, ties, out)


@public
def minimum(
    input: torch.Tensor, other: torch.Tensor, *, ties: Convention = "min_norm", out: Out = None
) -> torch.Tensor:
    """`torch.minimum`."""
    return _of_two("minimum", input, other, ties, out)


@public
def fmax(input: torch.Tensor, other: torch.Tensor, *, ties: Convention = "min_norm", out: Out = None) -> torch.Tensor:
    """`torch.fmax`."""
    return _of_two("fmax", input, other, ties, out)


@public
def fmin(input: torch.Tensor, other: torch.Tensor, *, ties: Convention = "min_norm", out: Out = None) -> torch.Tensor:
    """`torch.fmin`."""
    return _of_two("fmin", input, other, ties, out)


def _of_two(name: str, input: torch.Tensor, other: torch.Tensor, ties: Convention, out: Out) -> torch.Tensor:
    own: Callable[..., torch.Tensor] = getattr(torch, name)
    if out is not None or not is_active(input, other):
        return own(input, other, out=out)
    return select(name, own, ties, input, other)


# The clamps with bounds built in.


@right_in_torch
def relu(input: torch.Tensor, inplace: bool = False, *, ties: Convention = "min_norm") -> torch.Tensor:
    """`torch.nn.functional.relu`."""
    if ties in FOLLOWED["relu"] or not is_active(input):
        return functional.relu(input, inplace)
    return _selected("relu", functional.relu, input, inplace, ties)


@right_in_torch
def relu6(input: torch.Tensor, inplace: bool = False, *, ties: Convention = "min_norm") -> torch.Tensor:
    """`torch.nn.functional.relu6`."""
    if ties in FOLLOWED["relu6"] or not is_active(input):
        return functional.relu6(input, inplace)
    return _selected("relu6", functional.relu6, input, inplace, ties)


@right_in_torch
def hardsigmoid(input: torch.Tensor, inplace: bool = False, *, ties: Convention = "min_norm") -> torch.Tensor:
    """`torch.nn.functional.hardsigmoid`."""
    if ties in FOLLOWED["hardsigmoid"] or not is_active(input):
        return functional.hardsigmoid(input, inplace)
    return _selected("hardsigmoid", functional.hardsigmoid, input, inplace, ties)


@public
def hardtanh(
    input: torch.Tensor,
    min_val: float = -1.0,
    max_val: float = 1.0,
    inplace: bool = False,
    *,
    ties: Convention = "min_norm",
) -> torch.Tensor:
    """`torch.nn.functional.hardtanh`."""
    if ties in FOLLOWED["hardtanh"] and _is_exact(min_val, input) and _is_exact(max_val, input):
        return functional.hardtanh(input, min_val, max_val, inplace)
    if not is_active(input):
        return functional.hardtanh(input, min_val, max_val, inplace)
    return _selected("hardtanh", functional.hardtanh, input, inplace, ties, min_val, max_val)


def _selected(
    name: str,
    own: Callable[..., torch.Tensor],
    input: torch.Tensor,
    inplace: bool,
    ties: Convention,
    *bounds: float,
) -> torch.Tensor:
    def of(x: torch.Tensor) -> torch.Tensor:
        return select(name, lambda x, *_: own(x, *bounds), ties, x, *bounds)

    return overwrite(f"{name}_", of, input) if inplace else of(input)


# The kinked ops.


@right_in_torch
def abs(input: torch.Tensor, *, out: Out = None) -> torch.Tensor:
    """`torch.abs`."""
    if _is_right("abs") or out is not None or not is_active(input):
        return torch.abs(input, out=out)
    return _bent("abs", torch.abs, _of_abs, input, False)


@public
def leaky_relu(input: torch.Tensor, negative_slope: float = 0.01, inplace: bool = False) -> torch.Tensor:
    """`torch.nn.functional.leaky_relu`, whose gradient at 0 is the slope: right from 0 to 1."""
    if (_is_right("leaky_relu") and 0 <= negative_slope <= 1) or not is_active(input):
        return functional.leaky_relu(input, negative_slope, inplace)
    return _bent("leaky_relu", functional.leaky_relu, _of_leaky_relu, input, inplace, negative_slope)


@public
def prelu(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`torch.nn.functional.prelu`."""
    if not is_active(input, weight):
        return functional.prelu(input, weight)
    return bend_by_weight(functional.prelu, *autocast(input, weight))


@public
def elu(input: torch.Tensor, alpha: float = 1.0, inplace: bool = False) -> torch.Tensor:
    """`torch.nn.functional.elu`, whose gradient at 0 is alpha: right from 0 to 1."""
    if (_is_right("elu") and 0 <= alpha <= 1) or not is_active(input):
        return functional.elu(input, alpha, inplace)
    return _bent("elu", functional.elu, _of_elu, input, inplace, alpha)


@public
def selu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """`torch.nn.functional.selu`."""
    return (
        _bent("selu", functional.selu, _of_selu, input, inplace)
        if is_active(input)
        else functional.selu(input, inplace)
    )


@right_in_torch
def celu(input: torch.Tensor, alpha: float = 1.0, inplace: bool = False) -> torch.Tensor:
    """`torch.nn.functional.celu`."""
    if _is_right("celu") or not is_active(input):
        return functional.celu(input, alpha, inplace)
    return _bent("celu", functional.celu, _of_celu, input, inplace, alpha)


@right_in_torch
def hardswish(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """`torch.nn.functional.hardswish`."""
    if _is_right("hardswish") or not is_active(input):
        return functional.hardswish(input, inplace)
    return _bent("hardswish", functional.hardswish, aten.hardswish_backward, input, inplace)


@public
def softshrink(input: torch.Tensor, lambd: float = 0.5) -> torch.Tensor:
    """`torch.nn.functional.softshrink`, whose gradient at 0 is 0 also with ``lambd=0``, where it is the identity."""
    if (_is_right("softshrink") and lambd) or not is_active(input):
        return functional.softshrink(input, lambd)
    return _bent("softshrink", functional.softshrink, _of_shrink, input, False, lambd)


@public
def hardshrink(input: torch.Tensor, lambd: float = 0.5) -> torch.Tensor:
    """`torch.nn.functional.hardshrink`, whose gradient at 0 is 0 also with ``lambd=0``, where it is the identity."""
    if (_is_right("hardshrink") and lambd) or not is_active(input):
        return functional.hardshrink(input, lambd)
    return _bent("hardshrink", functional.hardshrink, _of_shrink, input, False, lambd)


@right_in_torch
def threshold(input: torch.Tensor, threshold: float, value: float, inplace: bool = False) -> torch.Tensor:
    """`torch.nn.functional.threshold`."""
    if _is_right("threshold") or not is_active(input):
        return functional.threshold(input, threshold, value, inplace)
    return _bent("threshold", functional.threshold, _of_threshold, input, inplace, threshold, value)


def _is_right(name: str) -> bool:
    return "min_norm" in FOLLOWED[name]


def _bent(
    name: str,
    own: Callable[..., torch.Tensor],
    derivative: Callable[..., torch.Tensor],
    input: torch.Tensor,
    inplace: bool,
    *parameters: float,
) -> torch.Tensor:
    numbers = [_number(parameter) for parameter in parameters]

    def of(x: torch.Tensor) -> torch.Tensor:
        return bend(name, own, derivative, x, *numbers)

    return overwrite(f"{name}_", of, input) if inplace else of(input)


def _number(parameter: Any) -> float:
    """As torch reads a number: a scalar of NumPy is one, and a tensor without axes, but for one that requires grad."""
    if isinstance(parameter, torch.Tensor) and parameter.requires_grad:
        raise TypeError("a slope or threshold must be a number, not a tensor that requires grad; pass its item().")
    return parameter.item() if isinstance(parameter, torch.Tensor | np.generic) else constant_of(parameter)


# torch's own derivatives: of a vector, x and the parameters, that vector times the slopes.


def _of_leaky_relu(vector: torch.Tensor, x: torch.Tensor, negative_slope: float) -> Any:
    return aten.leaky_relu_backward(vector, x, negative_slope, False)


def _of_elu(vector: torch.Tensor, x: torch.Tensor, alpha: float) -> Any:
    return aten.elu_backward(vector, alpha, 1.0, 1.0, False, x)


def _of_selu(vector: torch.Tensor, x: torch.Tensor) -> Any:
    return aten.elu_backward(vector, SELU_ALPHA, SELU_SCALE, 1.0, False, x)


def _of_abs(vector: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return vector * x.sgn()


def _of_celu(vector: torch.Tensor, x: torch.Tensor, alpha: float) -> Any:
    return aten.elu_backward(vector, alpha, 1.0, 1.0 / alpha, False, x)


def _of_threshold(vector: torch.Tensor, x: torch.Tensor, threshold: float, value: float) -> Any:
    return aten.threshold_backward(vector, x, threshold)


def _of_shrink(vector: torch.Tensor, x: torch.Tensor, lambd: float) -> torch.Tensor:
    """Of softshrink and hardshrink; torch's own of these two refuses symbolic shapes."""
    return torch.where(x.abs() <= lambd, 0.0, vector)


# The forms that overwrite their first argument.


@public
def clamp_(
    input: torch.Tensor, min: Bound | None = None, max: Bound | None = None, *, ties: Convention = "min_norm"
) -> torch.Tensor:
    """`torch.clamp_`."""
    own: Callable[..., torch.Tensor] = torch.clamp_
    if not is_active(input, min, max):
        return own(input, min, max)
    if _is_exact(min, input) and _is_exact(max, input):
        if ties in FOLLOWED["clamp"]:
            return own(input, min, max)
        if ties in FOLLOWED["hardtanh"] and min <= max:
            return functional.hardtanh_(input, min, max)
    return overwrite("clamp_", functools.partial(clamp, ties=ties), input, min, max)


@public
def clamp_min_(input: torch.Tensor, min: Bound, *, ties: Convention = "min_norm") -> torch.Tensor:
    """`torch.clamp_min_`."""
    if not is_active(input, min):
        return torch.clamp_min_(input, min)
    return overwrite("clamp_min_", functools.partial(clamp_min, ties=ties), input, min)


@public
def clamp_max_(input: torch.Tensor, max: Bound, *, ties: Convention = "min_norm") -> torch.Tensor:
    """`torch.clamp_max_`."""
    if not is_active(input, max):
        return torch.clamp_max_(input, max)
    return overwrite("clamp_max_", functools.partial(clamp_max, ties=ties), input, max)


@right_in_torch
def relu_(input: torch.Tensor, *, ties: Convention = "min_norm") -> torch.Tensor:
    """`torch.relu_`."""
    return relu(input, True, ties=ties)


@public
def hardtanh_(
    input: torch.Tensor, min_val: float = -1.0, max_val: float = 1.0, *, ties: Convention = "min_norm"
) -> torch.Tensor:
    """`torch.nn.functional.hardtanh_`."""
    return hardtanh(input, min_val, max_val, True, ties=ties)


@right_in_torch
def abs_(input: torch.Tensor) -> torch.Tensor:
    """`torch.abs_`."""
    if _is_right("abs") or not is_active(input):
        return torch.abs_(input)
    return overwrite("abs_", abs, input)


@public
def leaky_relu_(input: torch.Tensor, negative_slope: float = 0.01) -> torch.Tensor:
    """`torch.nn.functional.leaky_relu_`."""
    return leaky_relu(input, negative_slope, True)


@public
def elu_(input: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """`torch.nn.functional.elu_`."""
    return elu(input, alpha, True)


@public
def selu_(input: torch.Tensor) -> torch.Tensor:
    """`torch.selu_`."""
    return selu(input, True)


@right_in_torch
def celu_(input: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """`torch.celu_`."""
    return celu(input, alpha, True)


@right_in_torch
def threshold_(input: torch.Tensor, threshold: float, value: float) -> torch.Tensor:
    """`torch.threshold_`."""
    if _is_right("threshold") or not is_active(input):
        return torch.threshold_(input, threshold, value)
    return _bent("threshold", functional.threshold, _of_threshold, input, True, threshold, value)
