"""The modules of torch.nn with the gradients of jaxclamp, and how a model that exists already gets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from interop._bridge.ops import TORCH_OPS
from interop._convention.min_norm import min_norm


class _MinNorm:
    """Mixed in before a module of torch.nn."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with min_norm():
            return super().forward(*args, **kwargs)  # type: ignore[misc]


def _derive(native: type[torch.nn.Module]) -> type[torch.nn.Module]:
    doc = f"`torch.nn.{native.__name__}` with the gradient of jaxclamp at ties and kinks."
    return type(
        native.__name__,
        (_MinNorm, native),
        {"__module__": "interop.nn", "__qualname__": native.__name__, "__doc__": doc},
    )


_OF_OPS = {name.replace("_", "") for name in TORCH_OPS}
_CONVERTED = {
    module: _derive(module)
    for name, module in vars(torch.nn).items()
    if name.lower() in _OF_OPS and isinstance(module, type)
}

MODULES = {module.__name__: module for module in _CONVERTED.values()}
"""The modules by their names, which are those of torch.nn."""


@dataclass(frozen=True)
class Conversion:
    """What `convert` replaced: ``replaced`` maps the path of each module to the name of its class."""

    replaced: Mapping[str, str]
    _natives: tuple[tuple[torch.nn.Module, type[torch.nn.Module]], ...] = field(repr=False)

    def undo(self) -> None:
        """Give each module that was replaced its class of torch.nn back."""
        for module, native in self._natives:
            module.__class__ = native

    def __str__(self) -> str:
        if not self.replaced:
            return "nothing to replace: no module with a counterpart in interop.nn; functions need interop.min_norm()"
        width = max(map(len, self.replaced))
        return "\n".join(f"{path:{width}}  {name}" for path, name in self.replaced.items())


def convert(model: torch.nn.Module) -> Conversion:
    """Make the modules in ``model`` that have a counterpart here into that, in place.

    Parameters, buffers, hooks, training mode and shared modules stay what they are. Subclasses that are not torch's own
    stay too, and so do functions called in a ``forward``: for those there is `interop.min_norm`.

    Args:
      model: any module; it is changed.

    Returns:
      A report of what was replaced; its ``undo()`` takes it back.

    Raises:
      TypeError: ``model`` is not a module.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU6())
    >>> print(convert(model))
    1  ReLU6
    >>> type(model[1]).__module__
    'interop.nn'
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"convert: model is {model!r}; pass an object of torch.nn.Module, such as torch.nn.ReLU().")
    found = [
        (path, module) for path, module in model.named_modules(remove_duplicate=False) if type(module) in _CONVERTED
    ]
    natives = tuple((module, type(module)) for _, module in found)
    for module, native in natives:
        module.__class__ = _CONVERTED[native]
    return Conversion({path: native.__name__ for (path, _), (_, native) in zip(found, natives, strict=True)}, natives)
