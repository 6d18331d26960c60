"""jaxclamp's ops for PyTorch, any JAX function as a torch function, and the comparison of frameworks at ties."""

try:
    import torch  # noqa: F401  # here alone can a missing torch be explained
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "interop needs PyTorch: pip install 'jaxclamp[torch]', or in a checkout '.[torch]'.",
        name="torch",
    ) from missing

from interop import native, nn
from interop._bridge.arrays import jax_to_torch, torch_to_jax
from interop._bridge.ops import IN_PLACE_OPS, TORCH_OPS
from interop._bridge.wrap import wrap_for_torch
from interop._convention.min_norm import min_norm
from interop._convention.ties import influence, ties
from interop._programs.along import along, directional_derivative, grad, subdifferential
from interop._programs.gradcheck import gradcheck
from interop.parity.compare import Comparison, compare
from interop.parity.recording import Recording, record

__all__ = [
    "IN_PLACE_OPS",
    "TORCH_OPS",
    "Comparison",
    "Recording",
    "along",
    "compare",
    "directional_derivative",
    "grad",
    "gradcheck",
    "influence",
    "jax_to_torch",
    "min_norm",
    "native",
    "nn",
    "record",
    "subdifferential",
    "ties",
    "torch_to_jax",
    "wrap_for_torch",
    *TORCH_OPS,
    *IN_PLACE_OPS,
]

globals().update(TORCH_OPS | IN_PLACE_OPS)
