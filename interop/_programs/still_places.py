"""Tells where a tensor stands still whatever moves: at the bounds of the clamp that made it, if nothing tied there.

The zeros of ``relu(x)``, for example, are of negative elements of x. So a max pool behind it may take any of the zeros
in a window: no gradient passes the relu there. This is asked in a block of `along` whose tangents are late.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_KEEPS_PLACES = frozenset(
    f"{name}Backward{number}"
    for name in (
        *("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Select", "Slice", "Permute", "Transpose", "T"),
        *("Clone", "Expand", "MaxPool2DWithIndices", "MaxPool3DWithIndices", "AdaptiveMaxPool2D", "AdaptiveMaxPool3D"),
    )
    for number in range(5)
)
"""The nodes whose results have elements of their first operand alone."""


def still_places(x: torch.Tensor) -> Sequence[float]:
    """Return numbers such that elements of ``x`` equal to one do not move, if no clamp behind ``x`` was on a tie.

    >>> x = torch.randn(2, 2, requires_grad=True)
    >>> still_places(x.relu().flatten()), still_places(x.clamp(max=1.0)), still_places(x.relu() + x)
    ((0.0,), (1.0,), ())
    """
    node = x.grad_fn
    while node is not None:
        name = node.name()
        if name == "ReluBackward0":
            return (0.0,)
        if name in _BOUNDS:
            bounds = (getattr(node, bound) for bound in _BOUNDS[name])
            return tuple(bound for bound in bounds if isinstance(bound, int | float))
        if name in _KEEPS_PLACES:
            node = node.next_functions[0][0]
        elif name == "torch::autograd::CopyBackwards":  # where `overwrite` has written a result
            node = node.next_functions[1][0]
        else:
            break
    return ()


_BOUNDS = {
    "ThresholdBackward0": ("_saved_threshold",),
    "HardtanhBackward0": ("_saved_min_val", "_saved_max_val"),
    "ClampBackward1": ("_saved_min", "_saved_max"),
    "ClampMinBackward0": ("_saved_min",),
    "ClampMaxBackward0": ("_saved_max",),
}
"""Maps the node of a clamp to the attributes that have its bounds."""
