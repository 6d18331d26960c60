"""Has a compiler compute a tensor once for all that read it, and not anew for each, where it may round otherwise."""

from typing import Any

import torch

from interop._torch.grad_state import is_recorded
from interop._torch.private_api import is_in_compiled_graph
from interop._torch.sharding import is_distributed


@torch.library.custom_op("jaxclamp::settle_", mutates_args=("x",))
def settle_(x: torch.Tensor) -> None:
    """Leave x as it is, while compilers are told that it is overwritten.

    So they put x into memory, in its own dtype, before this call. What reads x after the call reads it there.
    """


@settle_.register_vmap
def _(info: Any, in_dims: tuple[int], x: torch.Tensor) -> tuple[None, None]:
    settle_(x)
    return None, None


def settled(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor x; in a compiled function that is differentiated, with elements that are computed once.

    Inductor would compute an operand once for its extremum, and once more for the comparison with that, in the backward
    pass. The instructions may differ, and registers have more digits than 16-bit floats. Then no element is equal to
    the extremum: the gradient is 0, or 0/0.
    """
    if not is_in_compiled_graph() or not is_recorded([x]):
        return x
    copy = x.clone()  # what inductor settles in its place, if nothing else reads x
    written: Any = copy.detach()
    settle_(written.to_local() if is_distributed(written) else written)
    return copy
