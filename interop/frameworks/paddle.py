"""PaddlePaddle, eagerly, as a framework that is compared."""

import importlib
from collections.abc import Collection, Mapping
from typing import ClassVar

import numpy as np

from interop.frameworks.base import Adapter, Arguments, Function, Gradient


class Paddle(Adapter):
    """PaddlePaddle, reverse mode."""

    name = "paddle"
    requirement = "paddlepaddle"
    counterparts: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "abs": "paddle:abs(x)",
        "leaky_relu": "paddle.nn.functional:leaky_relu(x, negative_slope)",
        "elu": "paddle.nn.functional:elu(x, alpha)",
        "selu": "paddle.nn.functional:selu(x)",
        "celu": "paddle.nn.functional:celu(x, alpha)",
        "hardsigmoid": "paddle.nn.functional:hardsigmoid(x)",
        "hardswish": "paddle.nn.functional:hardswish(x)",
        "softshrink": "paddle.nn.functional:softshrink(x, lambd)",
        "hardshrink": "paddle.nn.functional:hardshrink(x, lambd)",
        "threshold": "paddle.nn.functional:thresholded_relu(x, threshold, value)",
        "amax": ("paddle:amax(x, axis=axis, keepdim=keepdims)", "paddle:max(x, axis=axis, keepdim=keepdims)"),
        "amin": ("paddle:amin(x, axis=axis, keepdim=keepdims)", "paddle:min(x, axis=axis, keepdim=keepdims)"),
        "max_pool1d": "paddle.nn.functional:max_pool1d(x, kernel_size, stride, padding=padding, ceil_mode=ceil_mode)",
        "max_pool2d": "paddle.nn.functional:max_pool2d(x, kernel_size, stride, padding=padding, ceil_mode=ceil_mode)",
        "max_pool3d": "paddle.nn.functional:max_pool3d(x, kernel_size, stride, padding=padding, ceil_mode=ceil_mode)",
        "maximum": "paddle:maximum(x, y)",
        "minimum": "paddle:minimum(x, y)",
        "fmax": "paddle:fmax(x, y)",
        "fmin": "paddle:fmin(x, y)",
        "clamp": "paddle:clip(x, min, max)",
        "relu": "paddle.nn.functional:relu(x)",
        "relu6": "paddle.nn.functional:relu6(x)",
        "hardtanh": "paddle.nn.functional:hardtanh(x, min_val, max_val)",
    }

    def __init__(self) -> None:
        self._paddle = importlib.import_module("paddle")
        self._paddle.set_device("cpu")
        self.version = f"paddle {self._paddle.__version__}"

    def differentiate(self, function: Function, arguments: Arguments, active: Collection[str]) -> Gradient:
        operands = {
            name: self._paddle.to_tensor(value, stop_gradient=name not in active)
            if isinstance(value, np.ndarray)
            else value
            for name, value in arguments.items()
        }
        try:
            result = function(operands)
        except (AttributeError, RuntimeError, ValueError) as error:  # for arrays where it wants numbers
            raise TypeError(str(error)) from error
        chosen = [operands[name] for name in active]
        gradients = self._paddle.grad(result.sum(), chosen, allow_unused=True)
        if any(gradient is None for gradient in gradients):  # the function made a number of the array
            raise TypeError("paddle has no derivative for one of the operands.")
        return Gradient(result.numpy(), {name: g.numpy() for name, g in zip(active, gradients, strict=True)})
