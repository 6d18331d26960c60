"""Models of Keras 3 on its backend JAX."""

import functools
import re
from collections.abc import Sequence
from typing import Any

from interop.comparison.models.layers import CallRecorder
from interop.comparison.models.libraries.patching import recording
from interop.comparison.models.model import Call, Dtype, JaxModel, Values
from interop.comparison.models.parameters import Layout, layout_of_kernel, layout_of_transposed_kernel


class Keras(JaxModel):
    distribution = "keras"
    channels_last = True

    def __init__(self, model: Any, call: Call | None, inputs: Sequence[Any]) -> None:
        import keras  # here, as pytest imports this file for its doctests, also where the library is missing

        super().__init__(model, call, inputs)
        self._scope, self._layer = keras.StatelessScope, keras.Layer
        if keras.backend.backend() != "jax":
            raise ValueError(
                f"compare_models: Keras runs on {keras.backend.backend()}; set the environment variable "
                "KERAS_BACKEND=jax before it is imported."
            )
        if not model.built:
            self.call(model, *inputs)  # a layer makes its variables when it is first called

    @functools.cached_property
    def _variables(self) -> dict[str, Any]:
        """Maps names to the variables of floats."""
        variables = {variable.path.replace("/", "."): variable for variable in self.model.variables}
        return {name: variable for name, variable in variables.items() if "float" in variable.dtype}

    @property
    def arrays(self) -> Values:
        return {name: variable.value for name, variable in self._variables.items()}

    def is_trained(self, name: str) -> bool:
        return bool(self._variables[name].trainable)

    def layout(self, name: str, shape: tuple[int, ...], module: Any, bias: tuple[int, ...] | None) -> Layout:
        kind = type(module or self.model).__name__  # the variables of a model that is one layer bear its name
        if name == "kernel" and re.fullmatch(r"Conv\w*Transpose", kind):
            return layout_of_transposed_kernel(shape, outputs_first=True, flipped=False)
        if "kernel" in name:
            kind += "Depthwise" * (name == "depthwise_kernel")  # SeparableConv2D has one, and a pointwise one
            return layout_of_kernel(shape, kind, bias)
        return Layout.flat(shape) if name == "bias" else Layout.same(shape)

    def run(self, recorder: CallRecorder, values: Values, inputs: Sequence[Any], dtype: Dtype) -> tuple[Any, Values]:
        def describe(layer: Any) -> tuple[str, Any] | None:
            if layer is self.model:
                return "", {}
            return (layer.path or layer.name).replace("/", "."), layer.get_config()

        pairs = [(variable, values[name]) for name, variable in self._variables.items()]
        with self._scope(state_mapping=pairs) as scope, recording(recorder, [self._layer], describe):
            result = self.call(self.model, *inputs)
        return result, {name: scope.get_current_value(variable) for name, variable in self._variables.items()}
