"""The libraries whose models are taken as they are, each asked for its parameters and its module boundaries."""

from __future__ import annotations

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
"""By the module here that knows it: where the classes of its models are, and their names."""


def adapter_of(given: Any, argument: str) -> type[Model]:
    """What takes a model of the library of ``given``; ``argument`` is what an error calls it."""
    bare = given[0] if type(given) is tuple and given else given
    for name, (module, classes) in _LIBRARIES.items():
        package = sys.modules.get(module)
        if package is not None and isinstance(bare, tuple(getattr(package, each) for each in classes)):
            adapter = importlib.import_module(f"interop.comparison.models.libraries.{name}")
            found: type[Model] = adapter.MODEL
            return found
    raise TypeError(
        f"compare_models: {argument} is a {type(given).__name__}; pass a module of torch.nn, Flax (linen or nnx), "
        "Equinox or Keras, or what haiku.transform returned. Functions are compared by interop.compare."
    )
