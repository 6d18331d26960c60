"""tinygrad as a framework that is compared, on the device that interprets its kernels in Python."""

import importlib
import importlib.metadata
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from interop.frameworks.base import Adapter, Arguments, Array, Function, Gradient, converted


class Tinygrad(Adapter):
    """tinygrad, reverse mode."""

    name = "tinygrad"
    requirement = "tinygrad"
    counterparts: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "abs": "tinygrad:Tensor.abs(x)",
        "leaky_relu": "tinygrad:Tensor.leaky_relu(x, negative_slope)",
        "elu": "tinygrad:Tensor.elu(x, alpha)",
        "selu": "tinygrad:Tensor.selu(x)",
        "celu": "tinygrad:Tensor.celu(x, alpha)",
        "hardsigmoid": "tinygrad:Tensor.hardsigmoid(x)",
        "hardswish": "tinygrad:Tensor.hardswish(x)",
        "amax": "tinygrad:Tensor.max(x, axis=axis, keepdim=keepdims)",
        "amin": "tinygrad:Tensor.min(x, axis=axis, keepdim=keepdims)",
        "max_pool2d": (
            "tinygrad:Tensor.max_pool2d"
            "(x, kernel_size, stride, dilation=dilation, padding=padding, ceil_mode=ceil_mode)"
        ),
        "maximum": "tinygrad:Tensor.maximum(x, y)",
        "minimum": "tinygrad:Tensor.minimum(x, y)",
        "clamp_min": "tinygrad:Tensor.clamp(x, min)",
        "clamp_max": "tinygrad:Tensor.clamp(x, max_=max)",
        "clamp": "tinygrad:Tensor.clamp(x, min, max)",
        "relu": "tinygrad:Tensor.relu(x)",
        "relu6": "tinygrad:Tensor.relu6(x)",
        "hardtanh": "tinygrad:Tensor.hardtanh(x, min_val, max_val)",
    }

    def __init__(self) -> None:
        self._tinygrad = importlib.import_module("tinygrad")
        self.version = f"tinygrad {importlib.metadata.version('tinygrad')}"

    def differentiate(self, function: Function, arguments: Arguments, active: Collection[str]) -> Gradient:
        # The other devices for CPUs need Clang or LLVM, and other processes longer to start than the kernels to write.
        with self._tinygrad.Context(DEV="PYTHON", PARALLEL=0):
            operands = converted(arguments, self._tensor)
            result = function(operands)
            # Clones, since a gradient that is constant is on no device.
            gradient = [g.clone() for g in result.sum().gradient(*(operands[name] for name in active))]
            self._tinygrad.Tensor.realize(result, *gradient)  # together, in fewer kernels
            return Gradient(result.numpy(), {name: g.numpy() for name, g in zip(active, gradient, strict=True)})

    def _tensor(self, array: Array) -> Any:
        # Of a list, since arrays without axes become constants, which are one object where they are equal.
        flat = self._tinygrad.Tensor(array.ravel().tolist(), dtype=getattr(self._tinygrad.dtypes, array.dtype.name))
        return flat.reshape(array.shape)
