"""jaxclamp's ops for PyTorch, any JAX function as a torch function, and the comparison of frameworks at ties."""

from typing import TYPE_CHECKING

try:
    import torch
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "interop needs PyTorch: pip install 'jaxclamp[torch]', or in a checkout '.[torch]'.",
        name="torch",
    ) from missing

from interop import nn
from interop._arrays import jax_to_torch, torch_to_jax
from interop._compare import Comparison, compare
from interop._function import wrap_for_torch
from interop._min_norm import min_norm
from interop._ops import IN_PLACE_OPS, TORCH_OPS
from interop._recording import Recording, record
from interop._ties import influence, ties

__all__ = [
    "IN_PLACE_OPS",
    "TORCH_OPS",
    "Comparison",
    "Recording",
    "compare",
    "influence",
    "jax_to_torch",
    "min_norm",
    "nn",
    "record",
    "ties",
    "torch_to_jax",
    "wrap_for_torch",
    *TORCH_OPS,
    *IN_PLACE_OPS,
]

if TYPE_CHECKING:
    from collections.abc import Callable

    def __getattr__(name: str) -> Callable[..., torch.Tensor]: ...
else:
    globals().update(TORCH_OPS | IN_PLACE_OPS)
