"""Adapters to the libraries whose models are taken as they are: their parameters and their module boundaries."""

import importlib
import sys
from typing import Any

from interop.comparison.models.model import Model

# Keras first: on its torch backend its layers are modules of torch too.
_LIBRARIES = {
    "keras": ("keras", ("Layer",)),
    "torch": ("torch.nn", ("Module",)),
    "linen": ("flax.linen", ("Module",)),
    "nnx": ("flax.nnx", ("Module",)),
    "equinox": ("equinox", ("Module",)),
    "haiku": ("haiku", ("Transformed", "TransformedWithState")),
}
"""Maps the module here that adapts a library to where the classes of its models are, and their names."""


def adapter_of(model: Any, argument: str) -> type[Model]:
    """Return the subclass of `Model` for the library of a model; ``argument`` is what an error calls it."""
    bare = model[0] if type(model) is tuple and model else model
    for name, (module, classes) in _LIBRARIES.items():
        package = sys.modules.get(module)
        if package is not None and isinstance(bare, tuple(getattr(package, cls) for cls in classes)):
            adapter: type[Model] = importlib.import_module(f"interop.comparison.models.libraries.{name}").MODEL
            return adapter
    kind = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
    raise TypeError(
        f"compare_models: {argument} is {kind}; pass a module of torch.nn, Flax (linen or nnx), "
        "Equinox or Keras, or what haiku.transform returned. Functions are compared by interop.compare."
    )
