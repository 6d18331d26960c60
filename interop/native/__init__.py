"""The ops in torch alone: torch's own kernels under the convention. No computation of JAX takes part.

Each function has the signature and the values of its namesake in torch, and ``ties`` where there is a convention to
choose. Where torch's own gradient is the one of minimum norm, it is torch's own function that is called; where another
function of torch has that gradient, that one; else a `torch.autograd.Function` around torch's own, whose rule is the
one of jaxclamp.
"""

import jaxclamp
from interop.native import kinked, losses, norms, reductions, selection, sums_of_exponentials  # noqa: F401  # they publish their functions
from interop.native.decorators import NATIVE, RIGHT_IN_TORCH
from jaxclamp import OPS

# Further names, as clip of clamp, and clip_ of clamp_.
NATIVE |= {
    f"{name}{suffix}": NATIVE[f"{op.name}{suffix}"]
    for op in OPS.values()
    for name, function in vars(jaxclamp).items()
    for suffix in ("", "_")
    if function is op.function and f"{op.name}{suffix}" in NATIVE
}

__all__ = ["NATIVE", "RIGHT_IN_TORCH", *NATIVE]

globals().update(NATIVE)
