"""Models of Keras 3 on its backend JAX."""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from interop.comparison.models.layers import CallRecorder
from interop.comparison.models.libraries.patching import recording
from interop.comparison.models.model import Call, Dtype, JaxModel
from interop.comparison.models.parameters import Layout, Parameter, layout_of_kernel, layout_of_transposed_kernel


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
            self.call(model, *inputs)

    @functools.cached_property
    def _variables(self) -> dict[str, Any]:
        """Maps names to the variables of floats."""
        variables = {variable.path.replace("/", "."): variable for variable in self.model.variables}
        return {name: variable for name, variable in variables.items() if "float" in variable.dtype}

    @functools.cached_property
    def _kinds(self) -> dict[str, str]:
        """Maps paths to the classes of the layers."""
        layers: list[Any] = [self.model]
        kinds: dict[str, str] = {}
        while layers:
            layer = layers.pop()
            kinds[(layer.path or layer.name).replace("/", ".")] = type(layer).__name__
            layers += getattr(layer, "layers", [])
        return kinds

    @functools.cached_property
    def parameters(self) -> Sequence[Parameter]:
        return [self._parameter(name, variable) for name, variable in self._variables.items()]

    def _parameter(self, name: str, variable: Any) -> Parameter:
        shape = tuple(variable.shape)
        owner, _, last = name.rpartition(".")
        layout = Layout.same(shape)
        kind = self._kinds.get(owner, "")
        if last == "kernel" and re.fullmatch(r"Conv\w*Transpose", kind):
            layout = layout_of_transposed_kernel(shape, outputs_first=True, flipped=False)
        elif "kernel" in last:
            bias = self._variables.get(f"{owner}.bias")
            kind += "Depthwise" * (last == "depthwise_kernel")  # of a layer that has a pointwise one, too
            layout = layout_of_kernel(shape, kind, None if bias is None else tuple(bias.shape))
        elif last == "bias":
            layout = Layout.flat(shape)
        return Parameter(name, layout, np.dtype(variable.dtype), variable.trainable, np.asarray(variable.value))

    def run(
        self, recorder: CallRecorder, values: Mapping[str, Any], inputs: Sequence[Any], dtype: Dtype
    ) -> tuple[Any, Mapping[str, Any]]:
        def describe(layer: Any) -> tuple[str, Any] | None:
            if layer is self.model:
                return "", {}
            return (layer.path or layer.name).replace("/", "."), layer.get_config()

        pairs = [(variable, values[name]) for name, variable in self._variables.items()]
        with self._scope(state_mapping=pairs) as scope, recording(recorder, [self._layer], describe):
            result = self.call(self.model, *inputs)
        changed = {name: scope.get_current_value(variable) for name, variable in self._variables.items()}
        return result, {p.name: changed[p.name] for p in self.parameters if not p.trained}


MODEL = Keras
