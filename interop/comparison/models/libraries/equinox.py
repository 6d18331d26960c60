"""Modules of Equinox, and pairs of one and its state."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from interop.comparison.models.layers import CallRecorder
from interop.comparison.models.libraries.patching import recording
from interop.comparison.models.model import Call, Dtype, JaxModel
from interop.comparison.models.parameters import Layout, Parameter


class Equinox(JaxModel):
    """A model of Equinox: called on single samples, and so mapped over the first axis, unless ``call`` says how."""

    distribution = "equinox"
    channels_last = False

    def __init__(self, model: Any, call: Call | None, inputs: Sequence[Any]) -> None:
        self._state: Any = model[1] if isinstance(model, tuple) else None
        super().__init__(model[0] if isinstance(model, tuple) else model, call or _mapped, inputs)

    @functools.cached_property
    def parameters(self) -> Sequence[Parameter]:
        modules = {path: leaf for path, leaf in _walked(self.model) if isinstance(leaf, eqx.Module)}
        trained = [
            Parameter(name, _layout(modules, name, leaf), np.dtype(leaf.dtype), True, np.asarray(leaf))
            for name, leaf in _walked(self.model)
            if eqx.is_inexact_array(leaf)
        ]
        statistics = [
            Parameter(name, Layout.same(leaf.shape), np.dtype(leaf.dtype), False, np.asarray(leaf))
            for path, index in self._indices
            for name, leaf in zip((f"{path}.mean", f"{path}.var"), self._state.get(index), strict=True)
        ]
        return [*trained, *statistics]

    @property
    def _indices(self) -> list[tuple[str, Any]]:
        """The path of each batch norm, and where its statistics are in the state."""
        # A batch norm has the one or the other index, by its mode.
        norms = [(path, leaf) for path, leaf in _walked(self.model) if isinstance(leaf, eqx.nn.BatchNorm)]
        return [(path, norm.batch_state_index or norm.ema_state_index) for path, norm in norms] if self._state else []

    def run(
        self, recorder: CallRecorder, values: Mapping[str, Any], inputs: Sequence[Any], dtype: Dtype
    ) -> tuple[Any, Mapping[str, Any]]:
        def value_at(path: Any, leaf: Any) -> Any:
            return values.get(jax.tree_util.keystr(path, simple=True, separator="."), leaf)

        model = jax.tree.map_with_path(value_at, self.model)
        modules = [(path, module) for path, module in _walked(model) if isinstance(module, eqx.Module)]
        described = {id(module): (path, _fields(module)) for path, module in modules}
        state = _fresh(self._state, next(iter(values.values())).dtype)
        for path, index in self._indices:
            state = state.set(index, (values[f"{path}.mean"], values[f"{path}.var"]))
        with recording(recorder, {type(module) for _, module in modules}, lambda module: described.get(id(module))):
            result = self.call(model, *inputs) if state is None else self.call(model, *inputs, state)
        if state is None:
            return result, {}
        result, state = result
        return result, {
            f"{path}.{name}": value
            for path, index in self._indices
            for name, value in zip(("mean", "var"), state.get(index), strict=True)
        }


def _mapped(model: Any, *inputs: Any) -> Any:
    """Call the model for each sample; a state passes through all of them."""
    # A batch norm averages over the axis of the name that it was made with, which is taken to be "batch".
    axes = [0 if eqx.is_array(leaf) else None for leaf in inputs]
    outputs = (0, None) if isinstance(inputs[-1], eqx.nn.State) else 0
    return jax.vmap(model, in_axes=axes, out_axes=outputs, axis_name="batch")(*inputs)


def _fresh(state: Any, dtype: Any) -> Any:
    """Return a copy of a state, as each can be changed only once, in the precision in which it is used."""

    def leaf_in(leaf: Any) -> Any:
        if eqx.is_inexact_array(leaf):
            return leaf.astype(dtype)
        # A counter that is weakly typed is of int64 where x64 is on: so the module makes it, and a state has to match.
        return jnp.asarray(leaf.item()) if getattr(leaf, "weak_type", False) else leaf

    return jax.tree.map(leaf_in, state)


def _walked(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the paths of a module, of the modules in it, and of the arrays in these, each with what is there."""
    if isinstance(tree, eqx.Module):
        yield path, tree
        inside: Any = _fields(tree).items()
    elif isinstance(tree, tuple) and hasattr(tree, "_asdict"):
        inside = tree._asdict().items()
    elif isinstance(tree, list | tuple):
        inside = enumerate(tree)
    elif isinstance(tree, dict):
        inside = tree.items()
    else:
        if eqx.is_array(tree):
            yield path, tree
        return
    for name, value in inside:
        yield from _walked(value, f"{path}.{name}".lstrip("."))


def _fields(module: eqx.Module) -> dict[str, Any]:
    return {field.name: getattr(module, field.name, None) for field in dataclasses.fields(module)}


def _layout(modules: Mapping[str, eqx.Module], name: str, leaf: Any) -> Layout:
    if name.endswith(".bias"):  # those of convolutions have axes of length 1 for the window
        return Layout.flat(leaf.shape)
    owner = modules.get(name.rpartition(".")[0])
    if not isinstance(owner, eqx.nn.ConvTranspose):
        return Layout.same(leaf.shape)
    # Outputs before inputs, and the window flipped; torch has inputs before outputs, both in groups.
    outputs, inputs, *window = leaf.shape
    groups, axes = owner.groups, range(3, leaf.ndim + 1)
    split = groups, outputs // groups, inputs, *window
    shape = groups * inputs, outputs // groups, *window
    return Layout(leaf.shape, split, (0, 2, 1, *axes), shape, tuple(range(2, leaf.ndim)))


MODEL = Equinox
