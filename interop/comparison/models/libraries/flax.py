"""What the two interfaces of Flax, linen and nnx, share: the layouts of parameters, and where modules keep a dtype."""

from typing import Any

import jax.numpy as jnp

from interop.comparison.models.model import Dtype
from interop.comparison.models.parameters import Layout, layout_of_kernel, layout_of_transposed_kernel


def compute_in(dtype: Dtype, module: Any) -> None:
    """Let a module compute in ``dtype``, if there is one, and the module says itself in which it computes."""
    written_for = getattr(module, "dtype", None)
    if dtype is not None and written_for is not None and jnp.issubdtype(written_for, jnp.floating):
        object.__setattr__(module, "dtype", dtype)  # modules of linen are frozen


def layout_of(name: str, shape: tuple[int, ...], module: Any, bias: tuple[int, ...] | None) -> Layout:
    """Return the layout of a parameter, as `JaxModel.layout`."""
    if name == "bias":
        return Layout.flat(shape)
    if name != "kernel":
        return Layout.same(shape)
    if hasattr(module, "transpose_kernel"):  # a transposed convolution, which is a gradient if that is true
        as_gradient = module.transpose_kernel
        return layout_of_transposed_kernel(shape, outputs_first=as_gradient, flipped=not as_gradient)
    features = getattr(module, "out_features", getattr(module, "features", 1))
    outputs = len(features) if isinstance(features, tuple) else 1
    return layout_of_kernel(shape, type(module).__name__, bias, outputs)
