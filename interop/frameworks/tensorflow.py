"""TensorFlow, eagerly, as a framework that is compared."""

import importlib
from collections.abc import Collection, Mapping
from typing import ClassVar

from interop.frameworks.base import Adapter, Arguments, Function, Gradient, converted


class TensorFlow(Adapter):
    """TensorFlow, reverse mode."""

    name = "tensorflow"
    requirement = "tensorflow"
    counterparts: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "abs": "tensorflow:abs(x)",
        "leaky_relu": "tensorflow:nn.leaky_relu(x, negative_slope)",
        "elu": "tensorflow:nn.elu(x)",
        "selu": "tensorflow:nn.selu(x)",
        "amax": "tensorflow:reduce_max(x, axis=axis, keepdims=keepdims)",
        "amin": "tensorflow:reduce_min(x, axis=axis, keepdims=keepdims)",
        "maximum": "tensorflow:maximum(x, y)",
        "minimum": "tensorflow:minimum(x, y)",
        "clamp": "tensorflow:clip_by_value(x, min, max)",
        "relu": "tensorflow:nn.relu(x)",
        "relu6": "tensorflow:nn.relu6(x)",
    }

    def __init__(self) -> None:
        self._tf = importlib.import_module("tensorflow")
        self.version = f"tensorflow {self._tf.__version__}"

    def differentiate(self, function: Function, arguments: Arguments, active: Collection[str]) -> Gradient:
        operands = converted(arguments, self._tf.constant)
        chosen = {name: operands[name] for name in active}
        with self._tf.GradientTape() as tape:
            tape.watch(chosen)
            try:
                result = function(operands)
            except ValueError as error:  # for what cannot become a tensor, such as None
                raise TypeError(str(error)) from error
        gradient = tape.gradient(result, chosen, unconnected_gradients=self._tf.UnconnectedGradients.ZERO)
        return Gradient(result.numpy(), {name: gradient[name].numpy() for name in active})
