"""Modules of Equinox, and pairs of one and its state."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from interop.comparison.models.layers import CallRecorder
from interop.comparison.models.libraries.patching import recording
from interop.comparison.models.model import Call, Dtype, JaxModel, Values, cast
from interop.comparison.models.parameters import Layout


class Equinox(JaxModel):
    """A model of Equinox: called on single samples, and so mapped over the first axis, unless ``call`` says how."""

    distribution = "equinox"
    channels_last = False

    def __init__(self, model: Any, call: Call | None, inputs: Sequence[Any]) -> None:
        self._state: Any = model[1] if isinstance(model, tuple) else None
        super().__init__(model[0] if isinstance(model, tuple) else model, call or _mapped, inputs)

    @functools.cached_property
    def arrays(self) -> Values:
        leaves = jax.tree.leaves_with_path(self.model)
        trained = {_name(keys): leaf for keys, leaf in leaves if eqx.is_inexact_array(leaf)}
        return trained | self._statistics_in(self._state)

    def is_trained(self, name: str) -> bool:
        return name not in self._statistics_in(self._state)

    def layout(self, name: str, shape: tuple[int, ...], module: Any, bias: tuple[int, ...] | None) -> Layout:
        if name == "bias":  # those of convolutions have axes of length 1 for the window
            return Layout.flat(shape)
        if name != "weight" or not isinstance(module, eqx.nn.ConvTranspose):
            return Layout.same(shape)
        # Outputs before inputs, and the window flipped; torch has inputs before outputs, both in groups.
        outputs, inputs, *window = shape
        split = module.groups, outputs // module.groups, inputs, *window
        torch_shape = module.groups * inputs, outputs // module.groups, *window
        axes = range(3, len(shape) + 1)
        return Layout(shape, split, (0, 2, 1, *axes), torch_shape, tuple(range(2, len(shape))))

    def _statistics_in(self, state: Any) -> dict[str, Any]:
        """Map names to the statistics of all batch norms in a state; there are none without one."""
        norms = [(path, module) for path, module in _modules(self.model) if isinstance(module, eqx.nn.BatchNorm)]
        return {
            f"{path}.{name}": value
            for path, norm in (norms if self._state else [])
            # A batch norm has the one or the other index, by its mode.
            for name, value in zip(
                ("mean", "var"), state.get(norm.batch_state_index or norm.ema_state_index), strict=True
            )
        }

    def run(self, recorder: CallRecorder, values: Values, inputs: Sequence[Any], dtype: Dtype) -> tuple[Any, Values]:
        model = jax.tree.map_with_path(lambda keys, leaf: values.get(_name(keys), leaf), self.model)
        modules = list(_modules(model))
        described = {id(module): (path, _fields(module)) for path, module in modules}
        # Not by ``state.set``, which keeps the dtype that is there: a statistic has that of its value.
        state = eqx.tree_at(
            lambda state: list(self._statistics_in(state).values()),
            _fresh(self._state, dtype),
            [values[name] for name in self._statistics_in(self._state)],
        )
        with recording(recorder, {type(module) for _, module in modules}, lambda module: described.get(id(module))):
            result = self.call(model, *inputs) if state is None else self.call(model, *inputs, state)
        result, state = (result, None) if state is None else result
        return result, self._statistics_in(state)


def _mapped(model: Any, *inputs: Any) -> Any:
    """Call the model for each sample; a state passes through all of them, as does a number or a key."""
    # A batch norm averages over the axis of the name that it was made with, which is taken to be "batch".
    axes = [0 if eqx.is_array(leaf) and leaf.ndim else None for leaf in inputs]
    outputs = (0, None) if isinstance(inputs[-1], eqx.nn.State) else 0
    return jax.vmap(model, in_axes=axes, out_axes=outputs, axis_name="batch")(*inputs)


def _fresh(state: Any, dtype: Dtype) -> Any:
    """Return a copy of a state, as each can be changed only once, with its floats in ``dtype``, if there is one."""

    def leaf_in(leaf: Any) -> Any:
        if eqx.is_inexact_array(leaf):
            return jnp.asarray(cast(np.asarray(leaf), dtype))
        # A counter that is weakly typed is of int64 where x64 is on: so the module makes it, and a state has to match.
        return jnp.asarray(leaf.item()) if getattr(leaf, "weak_type", False) else leaf

    return jax.tree.map(leaf_in, state)


def _modules(module: eqx.Module, path: str = "") -> Iterator[tuple[str, eqx.Module]]:
    """Yield a module and those in it, each with its path."""
    yield path, module

    def is_inner(node: Any) -> bool:
        return isinstance(node, eqx.Module) and node is not module

    for keys, inner in jax.tree.leaves_with_path(module, is_leaf=is_inner):
        if is_inner(inner):
            yield from _modules(inner, f"{path}.{_name(keys)}".lstrip("."))


def _name(keys: Any) -> str:
    return jax.tree_util.keystr(keys, simple=True, separator=".")


def _fields(module: eqx.Module) -> dict[str, Any]:
    return {field.name: getattr(module, field.name, None) for field in dataclasses.fields(module)}
