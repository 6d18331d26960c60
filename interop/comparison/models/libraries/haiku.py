"""What haiku.transform returns: alone, or with parameters and state, or with the forms of these."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from interop.comparison.models.boundaries import new_tape
from interop.comparison.models.layers import Tape
from interop.comparison.models.libraries.settings import settings_of
from interop.comparison.models.model import Call, JaxModel
from interop.comparison.models.parameters import Layout, Parameter, layout_of_kernel, layout_of_transposed_kernel

_MANY = 2**30
_AVERAGES = {"mean_ema": "mean", "var_ema": "var"}


class Haiku(JaxModel):
    distribution = "dm-haiku"
    channels_last = True

    def __init__(self, model: Any, call: Call | None, inputs: Sequence[Any]) -> None:
        import haiku as hk  # a test of this file's examples does without

        self._intercept = hk.intercept_methods
        is_bare = hasattr(model, "apply")
        transformed = model if is_bare else model[0]
        super().__init__(transformed, call, inputs)
        self._given: Any = None if is_bare else tuple(model[1:])
        self._has_state = isinstance(transformed, hk.TransformedWithState)

    @functools.cached_property
    def _trees(self) -> tuple[Any, Any]:
        """The parameters and the state, or their forms."""
        given = self._given
        if given is None:
            arrays = {i: leaf for i, leaf in enumerate(self.inputs) if isinstance(leaf, np.ndarray)}
            found = jax.eval_shape(
                lambda arrays: self.model.init(
                    jax.random.key(0), *(arrays.get(i, leaf) for i, leaf in enumerate(self.inputs))
                ),
                arrays,
            )
            given = found if self._has_state else (found,)
        return given if len(given) == 2 else (given[0], {})

    @functools.cached_property
    def _places(self) -> dict[str, tuple[int, str, str]]:
        """By name, the tree, the module and the leaf."""
        found = {
            f"{_path(module)}.{leaf}": (0, module, leaf) for module, leaves in self._trees[0].items() for leaf in leaves
        }
        for module, leaves in self._trees[1].items():
            owner, _, last = module.rpartition("/~/")
            if "average" in leaves and last in _AVERAGES:
                found[f"{_path(owner)}.{_AVERAGES[last]}"] = (1, module, "average")
        return found

    @functools.cached_property
    def parameters(self) -> Sequence[Parameter]:
        return [self._parameter(name, *place) for name, place in self._places.items()]

    @functools.cached_property
    def _kinds(self) -> dict[str, str]:
        """The classes of the modules, by path, found by running."""
        tape = new_tape()

        def run(values: Mapping[str, Any]) -> tuple[()]:
            self.run(tape, values, self.inputs)
            return ()

        jax.eval_shape(
            run, {name: self._trees[tree][module][leaf] for name, (tree, module, leaf) in self._places.items()}
        )
        return {layer.path: layer.kind for layer in tape.layers}

    def _parameter(self, name: str, tree: int, module: str, last: str) -> Parameter:
        leaf = self._trees[tree][module][last]
        shape = tuple(leaf.shape)
        kind = self._kinds.get(_path(module), "")
        layout = Layout.same(shape)
        if last == "w" and re.fullmatch(r"Conv\w*Transpose", kind):
            layout = layout_of_transposed_kernel(shape, outputs_first=True, flipped=True)
        elif last == "w":
            layout = layout_of_kernel(shape, kind, None)
        value = None if isinstance(leaf, jax.ShapeDtypeStruct) else np.asarray(leaf)
        return Parameter(name, layout, np.dtype(leaf.dtype), tree == 0, value)

    def run(self, tape: Tape, values: Mapping[str, Any], inputs: Sequence[Any]) -> tuple[Any, Mapping[str, Any]]:
        def noting(next_function: Any, args: Any, kwargs: Any, context: Any) -> Any:
            if context.method_name != "__call__":
                return next_function(*args, **kwargs)
            path = _path(context.module.module_name)
            if path == tape.innermost:
                return next_function(*args, **kwargs)
            kind = type(context.module).__name__
            args, kwargs = tape.enter(path, kind, settings_of(kind, vars(context.module)), (args, kwargs))
            return tape.leave(next_function(*args, **kwargs))

        trees: list[dict[str, dict[str, Any]]] = [{}, {}]
        for tree, known in zip(trees, self._trees, strict=True):
            for module, leaves in known.items():
                tree[module] = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in leaves.items()}
        for name, (number, module, leaf) in self._places.items():
            trees[number][module][leaf] = values[name]
            if number == 1:  # the average of so many calls that it no longer leans to 0
                trees[number][module] |= {"hidden": values[name], "counter": jnp.asarray(_MANY)}
        params, state = trees
        changed: dict[str, Any] = {}

        def model(*args: Any, **kwargs: Any) -> Any:
            key = jax.random.key(0)
            if not self._has_state:
                return self.model.apply(params, key, *args, **kwargs)
            result, after = self.model.apply(params, state, key, *args, **kwargs)
            changed.update(after)
            return result

        with self._intercept(noting):
            result = self.call(model, *inputs)
        kept = {name: place for name, place in self._places.items() if place[0] == 1}
        return result, {name: changed[module][leaf] for name, (_, module, leaf) in kept.items()}


def _path(module: str) -> str:
    return ".".join(part for part in module.split("/") if part != "~")


MODEL = Haiku
