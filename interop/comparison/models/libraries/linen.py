"""Modules of Flax linen: bound to their variables, or with the shapes of those that they would be initialized to."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from interop.comparison.models.layers import CallRecorder
from interop.comparison.models.libraries.flax import compute_in, layout_of
from interop.comparison.models.libraries.patching import interceptor
from interop.comparison.models.model import Call, Dtype, JaxModel, Values, is_parameter


class Linen(JaxModel):
    distribution = "flax"
    channels_last = True

    def __init__(self, model: nn.Module, call: Call | None, inputs: Sequence[Any]) -> None:
        super().__init__(model, call, inputs)
        self._unbound, bound = model.unbind() if model.scope is not None else (model, None)
        self._variables: Any = bound

    @functools.cached_property
    def _places(self) -> dict[str, tuple[tuple[str, ...], Any]]:
        """Maps names to the path of a variable, which begins with its collection, and to the array or its shape."""
        variables = self._variables
        if variables is None:
            variables = self._initial(functools.partial(nn.init(self.call, self._unbound), jax.random.key(0)))
        return {name: (path, leaf) for name, path, leaf in _named(variables)}

    @property
    def arrays(self) -> Values:
        return {name: leaf for name, (_, leaf) in self._places.items() if is_parameter(leaf)}

    def is_trained(self, name: str) -> bool:
        return self._places[name][0][0] == "params"

    layout = staticmethod(layout_of)

    def run(self, recorder: CallRecorder, values: Values, inputs: Sequence[Any], dtype: Dtype) -> tuple[Any, Values]:
        def describe(module: Any) -> tuple[str, Any]:
            fields = {name: getattr(module, name, None) for name in module.__dataclass_fields__}
            return ".".join(module.path), fields

        def in_dtype(next_function: Any, args: Any, kwargs: Any, context: Any) -> Any:
            compute_in(dtype, context.module)
            return next_function(*args, **kwargs)

        variables = unflatten_dict({path: values.get(name, leaf) for name, (path, leaf) in self._places.items()})
        mutable = [collection for collection in variables if collection != "params"]
        apply: Callable[..., tuple[Any, Any]] = nn.apply(self.call, self._unbound, mutable=mutable)
        with nn.intercept_methods(in_dtype), nn.intercept_methods(interceptor(recorder, describe)):
            # A single key is that of all random numbers, whatever their name.
            result, changed = apply(variables, *inputs, rngs=jax.random.key(0))
        return result, {name: leaf for name, _, leaf in _named(changed) if name in values}


def _named(variables: Any) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yield the arrays in the collections with their names and paths; tuples are results that a module has sown."""
    for collection, tree in variables.items():  # parameters come first, as modules list them
        unboxed = nn.unbox(tree)  # out of boxes that say how arrays are sharded
        for path, leaf in sorted(flatten_dict(unboxed).items()):
            if hasattr(leaf, "dtype"):
                yield ".".join(path), (collection, *path), leaf
