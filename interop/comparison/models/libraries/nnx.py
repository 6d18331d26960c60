"""Modules of Flax nnx."""

import functools
from collections.abc import Sequence
from typing import Any

from flax import nnx

from interop.comparison.models.layers import CallRecorder
from interop.comparison.models.libraries.flax import compute_in, layout_of
from interop.comparison.models.libraries.patching import recording
from interop.comparison.models.model import Dtype, JaxModel, Values, is_parameter


class Nnx(JaxModel):
    distribution = "flax"
    channels_last = True

    @functools.cached_property
    def _variables(self) -> dict[str, Any]:
        """Maps names to the variables of floats and complex numbers."""
        variables = {_name(path): variable for path, variable in nnx.to_flat_state(nnx.state(self.model))}
        return {name: variable for name, variable in variables.items() if is_parameter(variable[...])}

    @property
    def arrays(self) -> Values:
        return {name: variable[...] for name, variable in self._variables.items()}

    def is_trained(self, name: str) -> bool:
        return isinstance(self._variables[name], nnx.Param)

    layout = staticmethod(layout_of)

    def run(self, recorder: CallRecorder, values: Values, inputs: Sequence[Any], dtype: Dtype) -> tuple[Any, Values]:
        structure, state = nnx.split(self.model)
        flat = [
            (path, variable.replace(values[_name(path)]) if _name(path) in values else variable)
            for path, variable in nnx.to_flat_state(state)
        ]
        # Without a copy, a call would advance the random numbers of the model itself, and the next run draw others.
        model = nnx.merge(structure, nnx.from_flat_state(flat), copy=True)
        described = {}
        for path, module in nnx.iter_modules(model):
            compute_in(dtype, module)
            described[id(module)] = _name(path), vars(module)
        classes = {type(module) for _, module in nnx.iter_modules(model)}
        with recording(recorder, classes, lambda module: described.get(id(module))):
            result = self.call(model, *inputs)
        after = nnx.to_flat_state(nnx.state(model))
        return result, {_name(path): variable[...] for path, variable in after if _name(path) in values}


def _name(path: Sequence[Any]) -> str:
    return ".".join(map(str, path))
