"""MLX, on the CPU, as a framework that is compared."""

import importlib
import importlib.metadata
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np

from interop.frameworks.base import Adapter, Arguments, Array, Function, Gradient, converted


class Mlx(Adapter):
    """MLX, reverse mode."""

    name = "mlx"
    requirement = "'mlx[cpu]'"
    counterparts: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "abs": "mlx.core:abs(x)",
        "leaky_relu": "mlx.nn:leaky_relu(x)",  # max(slope x, x), which is another function for slopes above 1
        "prelu": "mlx.nn:prelu(x, weight)",
        "elu": "mlx.nn:elu(x, alpha)",
        "selu": "mlx.nn:selu(x)",
        "celu": "mlx.nn:celu(x, alpha)",
        "hardswish": "mlx.nn:hardswish(x)",
        "softshrink": "mlx.nn:softshrink(x, lambd)",
        "hardshrink": "mlx.nn:hard_shrink(x, lambd)",
        "amax": "mlx.core:max(x, axis=axis, keepdims=keepdims)",
        "amin": "mlx.core:min(x, axis=axis, keepdims=keepdims)",
        "maximum": "mlx.core:maximum(x, y)",
        "minimum": "mlx.core:minimum(x, y)",
        "clamp": "mlx.core:clip(x, min, max)",
        "relu": "mlx.nn:relu(x)",
        "relu6": "mlx.nn:relu6(x)",
        "hardtanh": "mlx.nn:hard_tanh(x, min_val, max_val)",
    }

    def __init__(self) -> None:
        self._mx = importlib.import_module("mlx.core")
        self.version = f"mlx {importlib.metadata.version('mlx')}"

    def differentiate(self, function: Function, arguments: Arguments, active: Collection[str]) -> Gradient:
        mx = self._mx
        with mx.stream(mx.cpu):  # a GPU has no float64
            operands = converted(arguments, self._from_numpy)

            def with_result(chosen: Mapping[str, Any]) -> tuple[Any, Any]:
                result = function({**operands, **chosen})
                return result.sum(), result

            (_, result), gradient = mx.value_and_grad(with_result)({name: operands[name] for name in active})
            return Gradient(self._to_numpy(result), {name: self._to_numpy(gradient[name]) for name in active})

    def _from_numpy(self, array: Array) -> Any:
        # Without a dtype, float64 becomes float32.
        return self._mx.array(array, getattr(self._mx, array.dtype.name))

    def _to_numpy(self, array: Any) -> Array:
        # NumPy cannot read MLX's bfloat16; float32 holds it exactly.
        return np.array(array.astype(self._mx.float32) if array.dtype == self._mx.bfloat16 else array)
