"""The layouts of parameters of Flax, whose two interfaces, linen and nnx, share them."""

from typing import Any

from interop.comparison.models.parameters import Layout, layout_of_kernel, layout_of_transposed_kernel


def layout_of(name: str, shape: tuple[int, ...], module: Any, bias: Any) -> Layout:
    """Return the layout of the parameter of this name of a module with this bias, or None."""
    if name == "bias":
        return Layout.flat(shape)
    if name != "kernel":
        return Layout.same(shape)
    if hasattr(module, "transpose_kernel"):  # a transposed convolution, which is a gradient if that is true
        as_gradient = module.transpose_kernel
        return layout_of_transposed_kernel(shape, outputs_first=as_gradient, flipped=not as_gradient)
    features = getattr(module, "out_features", getattr(module, "features", 1))
    outputs = len(features) if isinstance(features, tuple) else 1
    return layout_of_kernel(shape, type(module).__name__, None if bias is None else bias.shape, outputs)
