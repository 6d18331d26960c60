"""The part of a pooling that `windows.py` and `windows_compiled.py` compute in two ways, and what they share."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

AT_ONCE = 16
"""The elements of a window up to which a pool is one stage, and not one for each axis.

A window of 13 x 13 has 169 places, each of which takes a few steps; its rows and a column have 26.
"""


class AdaptiveWindows(NamedTuple):
    """As many windows along each axis as are asked for, of nearly equal sizes."""

    counts: tuple[int, ...]


class Stage(Protocol):
    """A pooling, or the part of one that is along one axis."""

    @property
    def values(self) -> torch.Tensor:
        """The largest elements of the windows."""

    def counted(self, like: torch.Tensor) -> torch.Tensor:
        """How many tied elements each window has; memory is made of ``like``."""

    def gathered(self, vector: torch.Tensor) -> torch.Tensor:
        """For each window, the sum of the vector over its tied elements."""

    def spread(self, vector: torch.Tensor) -> torch.Tensor:
        """For each element, the sum of the vector over the windows in which it is tied."""


def span(index: Any, length: int, count: int) -> tuple[Any, Any]:
    """The first element of an adaptive window along an axis, and the one past its last; of many, as a tensor of them.

    It is the same the other way round: of ``count`` elements, ``length`` windows, the windows that have an element.

    >>> [span(index, 5, 2) for index in range(2)]
    [(0, 3), (2, 5)]
    >>> span(2, 2, 5)
    (0, 2)
    """
    return index * length // count, ((index + 1) * length + count - 1) // count
