"""What haiku.transform returns: alone, or with parameters and state, or with the shapes of these."""

import functools
import inspect
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from interop.comparison.models.layers import CallRecorder
from interop.comparison.models.libraries.patching import interceptor
from interop.comparison.models.model import Call, Dtype, JaxModel, Values, is_parameter
from interop.comparison.models.parameters import Layout, layout_of_kernel, layout_of_transposed_kernel

_MANY = 2**30  # calls, after which 1 - decay**calls, by which an average is divided, is 1
_AVERAGES = {"mean_ema": "mean", "var_ema": "var"}
"""Maps modules that average to the names of the averages in torch."""


class Haiku(JaxModel):
    distribution = "dm-haiku"
    channels_last = True

    def __init__(self, model: Any, call: Call | None, inputs: Sequence[Any]) -> None:
        import haiku as hk  # here, as pytest imports this file for its doctests, also where the library is missing

        self._intercept = hk.intercept_methods
        is_bare = hasattr(model, "apply")
        transformed = model if is_bare else model[0]
        super().__init__(transformed, call, inputs)
        self._bound: Any = None if is_bare else tuple(model[1:])
        self._has_state = isinstance(transformed, hk.TransformedWithState)
        leading = tuple(inspect.signature(transformed.apply).parameters)[: 2 + self._has_state]
        self._takes_key = leading[-1] == "rng"  # not after ``haiku.without_apply_rng``

    @functools.cached_property
    def _trees(self) -> tuple[Any, Any]:
        """The parameters and the state; of a bare model, arrays of floats are their shapes."""
        trees = self._bound
        if trees is None:
            initial = self._initial(functools.partial(self.model.init, jax.random.key(0)))
            trees = initial if self._has_state else (initial,)
        return trees if len(trees) == 2 else (trees[0], {})

    @functools.cached_property
    def _places(self) -> dict[str, tuple[int, str, str]]:
        """Maps names to the number of the tree, the module and the leaf."""
        places: dict[str, tuple[int, str, str]] = {}
        for number, tree in enumerate(self._trees):
            for module, leaves in tree.items():
                # Haiku calls what a module makes in its constructor ``batch_norm/~/mean_ema``: the average of that.
                owner, _, last = module.rpartition("/~/")
                if "average" in leaves and last in _AVERAGES:
                    places[f"{_path(owner)}.{_AVERAGES[last]}"] = (number, module, "average")
                else:
                    names = [leaf for leaf, array in leaves.items() if is_parameter(array)]
                    places |= {f"{_path(module)}.{leaf}".lstrip("."): (number, module, leaf) for leaf in names}
        return places

    @property
    def arrays(self) -> Values:
        return {name: self._trees[tree][module][leaf] for name, (tree, module, leaf) in self._places.items()}

    def is_trained(self, name: str) -> bool:
        return self._places[name][0] == 0

    def layout(self, name: str, shape: tuple[int, ...], module: Any, bias: tuple[int, ...] | None) -> Layout:
        kind = type(module).__name__
        if name != "w":
            return Layout.same(shape)
        if re.fullmatch(r"Conv\w*Transpose", kind):
            return layout_of_transposed_kernel(shape, outputs_first=True, flipped=True)
        return layout_of_kernel(shape, kind, None)

    def run(self, recorder: CallRecorder, values: Values, inputs: Sequence[Any], dtype: Dtype) -> tuple[Any, Values]:
        def describe(module: Any) -> tuple[str, Any]:
            return _path(module.module_name), vars(module)

        trees = [{module: dict(leaves) for module, leaves in tree.items()} for tree in self._trees]
        for name, (number, module, leaf) in self._places.items():
            trees[number][module][leaf] = values[name]
            if module.rpartition("/~/")[2] in _AVERAGES:
                # Haiku keeps ``hidden``, and divides it by 1 - decay**counter for the average.
                trees[number][module] |= {"hidden": values[name], "counter": jnp.asarray(_MANY)}
        params, state = trees
        changed: dict[str, Any] = {}

        def model(*args: Any, **kwargs: Any) -> Any:
            keys = (jax.random.key(0),) if self._takes_key else ()
            if not self._has_state:
                return self.model.apply(params, *keys, *args, **kwargs)
            result, after = self.model.apply(params, state, *keys, *args, **kwargs)
            changed.update(after)
            return result

        with self._intercept(interceptor(recorder, describe)):
            result = self.call(model, *inputs)
        averages = [(name, module, leaf) for name, (tree, module, leaf) in self._places.items() if tree == 1]
        return result, {name: changed[module][leaf] for name, module, leaf in averages}


def _path(module: str) -> str:
    return ".".join(part for part in module.split("/") if part != "~")
