"""Modules of Flax linen: bound to their variables, or with the shapes of those that they would be initialized to."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from interop.comparison.models.layers import CallRecorder
from interop.comparison.models.libraries.flax import compute_in, layout_of
from interop.comparison.models.libraries.patching import interceptor
from interop.comparison.models.model import Call, Dtype, JaxModel
from interop.comparison.models.parameters import Parameter


class Linen(JaxModel):
    distribution = "flax"
    channels_last = True

    def __init__(self, model: nn.Module, call: Call | None, inputs: Sequence[Any]) -> None:
        super().__init__(model, call, inputs)
        self._unbound, bound = model.unbind() if model.scope is not None else (model, None)
        self._variables: Any = bound

    @functools.cached_property
    def _tree(self) -> dict[str, dict[tuple[str, ...], Any]]:
        """Maps collections to dicts of paths to variables, or to their shapes."""
        variables = self._variables
        if variables is None:
            keys = {"params": jax.random.key(0), "dropout": jax.random.key(0)}
            variables = self._shapes_of(functools.partial(nn.init(self.call, self._unbound), keys))
        return {
            collection: {tuple(key.key for key in path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}
            for collection, tree in variables.items()
            if collection != "intermediates"  # what a module has sown is a result, and no parameter
        }

    @functools.cached_property
    def _modules(self) -> dict[tuple[str, ...], nn.Module]:
        """Maps paths to the modules, which exist only while the model runs."""
        modules: dict[tuple[str, ...], nn.Module] = {}

        def note(next_function: Any, args: Any, kwargs: Any, context: Any) -> Any:
            modules.setdefault(context.module.path, context.module)
            return next_function(*args, **kwargs)

        variables = {name: self._tree[collection][path] for name, (collection, path) in self._paths.items()}
        with nn.intercept_methods(note):
            jax.eval_shape(lambda variables: self._apply(variables, self.inputs)[0], variables)
        return modules

    @functools.cached_property
    def _paths(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Maps names to the collection and the path."""
        return {".".join(path): (collection, path) for collection, tree in self._tree.items() for path in tree}

    @functools.cached_property
    def parameters(self) -> Sequence[Parameter]:
        return [self._parameter(name, *place) for name, place in self._paths.items()]

    def _parameter(self, name: str, collection: str, path: tuple[str, ...]) -> Parameter:
        leaf = self._tree[collection][path]
        bias = self._tree[collection].get((*path[:-1], "bias"))
        layout = layout_of(path[-1], tuple(leaf.shape), self._modules.get(path[:-1]), bias)
        value = None if self._variables is None else np.asarray(leaf)
        return Parameter(name, layout, np.dtype(leaf.dtype), collection == "params", value)

    def _apply(self, values: Mapping[str, Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
        """Return the result, and the collections that the call changes."""
        variables: dict[str, Any] = {}
        for name, (collection, path) in self._paths.items():
            tree = variables.setdefault(collection, {})
            for key in path[:-1]:
                tree = tree.setdefault(key, {})
            tree[path[-1]] = values[name]
        mutable = [collection for collection in variables if collection != "params"]
        apply: Callable[..., tuple[Any, Any]] = nn.apply(self.call, self._unbound, mutable=mutable)
        return apply(variables, *inputs, rngs={"dropout": jax.random.key(0)})

    def run(
        self, recorder: CallRecorder, values: Mapping[str, Any], inputs: Sequence[Any], dtype: Dtype
    ) -> tuple[Any, Mapping[str, Any]]:
        def describe(module: Any) -> tuple[str, Any]:
            fields = {name: getattr(module, name, None) for name in module.__dataclass_fields__}
            return ".".join(module.path), fields

        def in_dtype(next_function: Any, args: Any, kwargs: Any, context: Any) -> Any:
            compute_in(dtype, context.module)
            return next_function(*args, **kwargs)

        with nn.intercept_methods(in_dtype), nn.intercept_methods(interceptor(recorder, describe)):
            result, changed = self._apply(values, inputs)
        state = {
            ".".join(key.key for key in path): leaf
            for tree in changed.values()
            for path, leaf in jax.tree.leaves_with_path(tree)
        }
        return result, state


MODEL = Linen
