"""The frameworks beside JAX and torch: one module each, that holds one `Adapter`."""

import importlib
import pkgutil

from interop.parity.frameworks import Adapter

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

ADAPTERS: dict[str, type[Adapter]] = {adapter.name: adapter for adapter in Adapter.__subclasses__()}
