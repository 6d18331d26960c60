"""Kinked ops by torch's own kernels: torch's function where its gradient follows the definition, else around it `bend`.

Where nothing is differentiated, and with ``out=``, each is torch's own function, unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from interop._torch.autocast import autocast
from interop._torch.forms import overwrite
from interop._torch.grad_state import is_active
from interop._torch.private_api import constant_of
from interop.native._rules.conventions_of_torch import follows
from interop.native._rules.kinked import bend, bend_by_weight
from interop.native.decorators import public, right_in_torch
from interop.native.selection import selected
from jaxclamp import Convention
from jaxclamp.kinked import SELU_ALPHA, SELU_SCALE

aten: Any = torch.ops.aten

Out = torch.Tensor | None


@right_in_torch
def hardsigmoid(input: torch.Tensor, inplace: bool = False, *, ties: Convention = "min_norm") -> torch.Tensor:
    """`torch.nn.functional.hardsigmoid`."""
    if follows("hardsigmoid", input, ties) or not is_active(input):
        return functional.hardsigmoid(input, inplace)
    return selected("hardsigmoid", functional.hardsigmoid, input, inplace, ties)


@right_in_torch
def abs(input: torch.Tensor, *, out: Out = None) -> torch.Tensor:
    """`torch.abs`."""
    return torch.abs(input, out=out)


@public
def leaky_relu(input: torch.Tensor, negative_slope: float = 0.01, inplace: bool = False) -> torch.Tensor:
    """`torch.nn.functional.leaky_relu`; torch's gradient at 0 is ``negative_slope``, which is right from 0 to 1."""
    if follows("leaky_relu", input, parameter=negative_slope) or not is_active(input):
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
    """`torch.nn.functional.elu`; torch's gradient at 0 is ``alpha``, which is right from 0 to 1."""
    if follows("elu", input, parameter=alpha) or not is_active(input):
        return functional.elu(input, alpha, inplace)
    return _bent("elu", functional.elu, _of_elu, input, inplace, alpha)


@public
def selu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """`torch.nn.functional.selu`."""
    if not is_active(input):
        return functional.selu(input, inplace)
    return _bent("selu", functional.selu, _of_selu, input, inplace)


@right_in_torch
def celu(input: torch.Tensor, alpha: float = 1.0, inplace: bool = False) -> torch.Tensor:
    """`torch.nn.functional.celu`."""
    return functional.celu(input, alpha, inplace)


@right_in_torch
def hardswish(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """`torch.nn.functional.hardswish`."""
    if follows("hardswish", input) or not is_active(input):
        return functional.hardswish(input, inplace)
    return _bent("hardswish", functional.hardswish, _of_hardswish, input, inplace)


@public
def softshrink(input: torch.Tensor, lambd: float = 0.5, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.nn.functional.softshrink`; with ``lambd=0`` it is the identity, to which torch gives the slope 0 at 0."""
    if out is not None or follows("softshrink", input, parameter=lambd) or not is_active(input):
        return functional.softshrink(input, lambd, out=out)  # type: ignore[call-arg]  # not in torch's stubs
    return _bent("softshrink", functional.softshrink, _of_shrink, input, False, lambd)


@public
def hardshrink(input: torch.Tensor, lambd: float = 0.5, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.nn.functional.hardshrink`; with ``lambd=0`` it is the identity, to which torch gives the slope 0 at 0."""
    if out is not None or follows("hardshrink", input, parameter=lambd) or not is_active(input):
        return functional.hardshrink(input, lambd, out=out)
    return _bent("hardshrink", functional.hardshrink, _of_shrink, input, False, lambd)


@right_in_torch
def threshold(
    input: torch.Tensor, threshold: float, value: float, inplace: bool = False, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """`torch.nn.functional.threshold`, and `torch.threshold`, which takes ``out``."""
    if out is not None:
        return torch.threshold(input, threshold, value, out=out)
    return functional.threshold(input, threshold, value, inplace)


def _bent(
    name: str,
    in_torch: Callable[..., torch.Tensor],
    derivative: Callable[..., torch.Tensor],
    input: torch.Tensor,
    inplace: bool,
    *parameters: float,
) -> torch.Tensor:
    numbers = [*map(_number, parameters)]
    if inplace:
        return overwrite(f"{name}_", lambda x: bend(name, in_torch, derivative, x, *numbers), input)
    return bend(name, in_torch, derivative, input, *numbers)


def _number(parameter: Any) -> float:
    """Read a number as torch does: of NumPy's scalars and tensors without axes too, but for those that require grad."""
    if not isinstance(parameter, (torch.Tensor, np.generic)):
        return constant_of(parameter)
    if isinstance(parameter, torch.Tensor) and parameter.requires_grad:
        raise TypeError("a slope or threshold must be a number, not a tensor that requires grad; pass its item().")
    return parameter.item()


def _of_leaky_relu(vector: torch.Tensor, x: torch.Tensor, negative_slope: float) -> Any:
    return aten.leaky_relu_backward(vector, x, negative_slope, False)  # x is no result: a negative slope changes signs


# Behind the vector, elu_backward takes alpha, the scales of the result and of x, and whether the last argument is the
# result in place of x: elu is alpha (exp(x) - 1) below 0, and selu scales the result.
def _of_elu(vector: torch.Tensor, x: torch.Tensor, alpha: float) -> Any:
    return aten.elu_backward(vector, alpha, 1.0, 1.0, False, x)


def _of_selu(vector: torch.Tensor, x: torch.Tensor) -> Any:
    return aten.elu_backward(vector, SELU_ALPHA, SELU_SCALE, 1.0, False, x)


def _of_hardswish(vector: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Pull a vector back through hardswish; torch's own derivative of it refuses tensors in several processes."""
    between = torch.where(x < 3, vector * (x / 3 + 0.5), vector)
    return torch.where(x > -3, between, 0.0)


def _of_shrink(vector: torch.Tensor, x: torch.Tensor, lambd: float) -> torch.Tensor:
    """Pull a vector back through softshrink or hardshrink; torch's own derivatives of these refuse symbolic shapes."""
    return torch.where(x.abs() <= lambd, 0.0, vector)
