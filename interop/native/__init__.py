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

for _alias, _function in vars(jaxclamp).items():
    for _suffix in ("", "_"):
        if (
            _alias not in OPS
            and getattr(_function, "__name__", "") in OPS
            and f"{_function.__name__}{_suffix}" in NATIVE
        ):
            NATIVE[f"{_alias}{_suffix}"] = NATIVE[f"{_function.__name__}{_suffix}"]

__all__ = ["NATIVE", "RIGHT_IN_TORCH", *NATIVE]

globals().update(NATIVE)
