"""Keras 3 as a framework that is compared, on the backend that it runs on in this process."""

import importlib
from collections.abc import Collection, Mapping
from typing import ClassVar

from interop.frameworks.base import Adapter, Arguments, Framework, Function, Gradient
from interop.frameworks.jax import Jax
from interop.frameworks.tensorflow import TensorFlow
from interop.frameworks.torch import Torch


class Keras(Adapter):
    """Keras, differentiated by its backend, which the environment variable KERAS_BACKEND chooses."""

    name = "keras"
    requirement = "keras"
    counterparts: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "abs": "keras.ops:abs(x)",
        "leaky_relu": "keras.ops:leaky_relu(x, negative_slope)",
        "elu": "keras.ops:elu(x, alpha)",
        "selu": "keras.ops:selu(x)",
        "celu": "keras.ops:celu(x, alpha)",
        "hardsigmoid": "keras.ops:hard_sigmoid(x)",
        "hardswish": "keras.ops:hard_swish(x)",
        "softshrink": "keras.ops:soft_shrink(x, lambd)",
        "hardshrink": "keras.ops:hard_shrink(x, lambd)",
        "threshold": "keras.ops:threshold(x, threshold, value)",
        "amax": "keras.ops:max(x, axis=axis, keepdims=keepdims)",
        "amin": "keras.ops:min(x, axis=axis, keepdims=keepdims)",
        "maximum": "keras.ops:maximum(x, y)",
        "minimum": "keras.ops:minimum(x, y)",
        "clamp": "keras.ops:clip(x, min, max)",
        "relu": "keras.ops:relu(x)",
        "relu6": "keras.ops:relu6(x)",
        "hardtanh": "keras.ops:hard_tanh(x)",
    }

    def __init__(self) -> None:
        backends: Mapping[str, type[Framework]] = {"jax": Jax, "torch": Torch, "tensorflow": TensorFlow}
        cure = f"set KERAS_BACKEND to one of {', '.join(backends)}"
        try:
            keras = importlib.import_module("keras")
        except ModuleNotFoundError as missing:
            if missing.name == "keras":  # and not the package of its backend
                raise
            raise ImportError(f"keras is to run on {missing.name}, which is not installed; {cure}") from missing
        name = keras.backend.backend()
        if name not in backends:
            raise ImportError(f"keras runs on {name}, which is not compared; {cure}")
        self._backend = backends[name]()
        self.version = f"keras {keras.__version__} on {self._backend.version}"

    def differentiate(self, function: Function, arguments: Arguments, active: Collection[str]) -> Gradient:
        try:
            return self._backend.differentiate(function, arguments, active)
        except ValueError as error:  # for what cannot become a tensor, such as None
            raise TypeError(str(error)) from error
