"""HIPS autograd, which differentiates NumPy, as a framework that is compared."""

import importlib
import importlib.metadata
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np

from interop.frameworks.base import Adapter, Arguments, Function, Gradient


class HipsAutograd(Adapter):
    """HIPS autograd, reverse mode."""

    name = "autograd"
    requirement = "autograd"
    counterparts: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "abs": "autograd.numpy:abs(x)",
        "amax": "autograd.numpy:max(x, axis=axis, keepdims=keepdims)",
        "amin": "autograd.numpy:min(x, axis=axis, keepdims=keepdims)",
        "maximum": "autograd.numpy:maximum(x, y)",
        "minimum": "autograd.numpy:minimum(x, y)",
        "fmax": "autograd.numpy:fmax(x, y)",
        "fmin": "autograd.numpy:fmin(x, y)",
        "clamp": "autograd.numpy:clip(x, min, max)",
    }

    def __init__(self) -> None:
        self._autograd = importlib.import_module("autograd")
        self._numpy = importlib.import_module("autograd.numpy")
        self.version = f"autograd {importlib.metadata.version('autograd')}"

    def differentiate(self, function: Function, arguments: Arguments, active: Collection[str]) -> Gradient:
        # Of a dtype that is not NumPy's, as bfloat16, it refuses some functions, and differentiates others.
        for value in arguments.values():
            if isinstance(value, np.ndarray) and not np.issubdtype(value.dtype, np.number):
                raise TypeError(f"autograd has NumPy's own dtypes, not {value.dtype}.")

        def total(chosen: Mapping[str, Any]) -> Any:
            return self._numpy.sum(function({**arguments, **chosen}))

        try:
            gradient = self._autograd.grad(total)({name: arguments[name] for name in active})
        # The first for an operand that is differentiated alone, the second for one of several.
        except (NotImplementedError, KeyError) as error:
            raise TypeError("autograd has no derivative for one of the operands.") from error
        return Gradient(np.asarray(function(arguments)), {name: np.asarray(gradient[name]) for name in active})
