"""Says what a max pool is, and a stage of its derivative, which the files ``windows_*.py`` compute in several ways."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from interop._torch.grad_state import PLAIN_TENSORS
from interop._torch.private_api import is_dispatch_mode_active
from jaxclamp._rules.conventions import Convention
from jaxclamp._rules.windows import Windows, windows_of

# Of 11 binary digits, and of 8: 2**11 + 1 needs 12.
_EXACT = {torch.float16: 2**11, torch.bfloat16: 2**8}
"""The number up to which these dtypes count."""


class AdaptiveWindows(NamedTuple):
    """Windows of nearly equal sizes, of which the number along each axis is given."""

    counts: tuple[int, ...]


def adapted(name: str, x: torch.Tensor, output_size: Any) -> tuple[Windows | AdaptiveWindows, tuple[int, ...]]:
    """Return the windows of an adaptive pool, alike where their number divides the length, and how many there are."""
    lengths = x.shape[-int(name[-2]) :]  # ``adaptive_max_pool2d`` has two
    sizes = output_size if isinstance(output_size, Sequence) else (output_size,) * len(lengths)
    counts = tuple(n if count is None else count for n, count in zip(lengths, sizes, strict=False))
    # Torch refuses another number of counts than of axes, and has no windows for a count of 0.
    if len(lengths) != len(counts) or any(not m or n % m for n, m in zip(lengths, counts, strict=True)):
        return AdaptiveWindows(counts), counts
    widths = tuple(n // m for n, m in zip(lengths, counts, strict=True))
    return Windows(widths, widths, ((0, 0),) * len(widths), (1,) * len(widths)), counts


class Pooling(NamedTuple):
    """The windows, and how tied elements share."""

    windows: Windows | AdaptiveWindows
    convention: Convention

    @property
    def dims(self) -> int:
        return len(self.windows.counts if isinstance(self.windows, AdaptiveWindows) else self.windows.sizes)

    def number_of_reads(self, x: torch.Tensor, values: torch.Tensor) -> int:
        """Count the elements of all windows, each as often as windows have it; of adaptive ones each once."""
        if isinstance(self.windows, AdaptiveWindows):
            return x.numel()
        return values.numel() * math.prod(self.windows.sizes)


def pooling_of(name: str, ties: Convention, x: torch.Tensor, dims: int, window: Sequence[Any]) -> tuple[Pooling, bool]:
    """Check the arguments of a pool; return it, and whether its window is the whole image."""
    if not is_plain(x):  # its sizes may be symbols
        return _pooling_of_numbers(name, ties, tuple(x.shape), dims, *window)
    numbers = window if _CONSTANT.issuperset(map(type, window)) else map(_as_numbers, window)
    return _cached_pooling_of(name, ties, tuple(x.shape), dims, *numbers)


def _pooling_of_numbers(
    name: str, ties: Convention, shape: tuple[int, ...], dims: int, *window: Any
) -> tuple[Pooling, bool]:
    windows = windows_of(name, shape, dims, *window)
    return Pooling(windows, ties), windows.sizes == shape[-dims:] and not any(map(any, windows.paddings))


# Typed, since 2.0, which is refused, equals 2, and so does its hash.
_cached_pooling_of = functools.lru_cache(maxsize=1024, typed=True)(_pooling_of_numbers)
"""The checks take as long as torch's kernel for 1,000 elements."""

_CONSTANT = frozenset((int, bool, type(None)))


def _as_numbers(argument: Any) -> Any:
    """Return the argument of a pool with what may change in place, lists and tensors, as tuples and numbers."""
    if isinstance(argument, (list, tuple)):
        return tuple(map(_as_numbers, argument))
    return argument.item() if isinstance(argument, torch.Tensor) and not argument.dim() else argument


class Stage(Protocol):
    """A pooling, or the part of one that is along one axis."""

    def counted(self, like: torch.Tensor) -> torch.Tensor:
        """Return how many tied elements each window has; buffers are made from ``like``."""

    def gathered(self, vector: torch.Tensor) -> torch.Tensor:
        """Return for each window the sum of the vector over its tied elements."""

    def spread(self, vector: torch.Tensor) -> torch.Tensor:
        """Return for each element the sum of the vector over the windows in which it is tied; it uses the stage up."""


def span(index: Any, length: int, count: int) -> tuple[Any, Any]:
    """Return the first element of an adaptive window along an axis, and the one past its last.

    For many windows, ``index`` and the results are tensors. It is the same the other way round: of ``count`` elements,
    ``length`` windows, the windows that have an element.

    >>> [span(index, 5, 2) for index in range(2)]
    [(0, 3), (2, 5)]
    >>> span(2, 2, 5)
    (0, 2)
    """
    return index * length // count, ((index + 1) * length + count - 1) // count


def is_channels_last(x: torch.Tensor) -> bool:
    """Return whether x is a batch of images that lies in memory with the channels last, and not row-major as well."""
    return x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def lying_as(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient of x laid out in memory as x is: with the channels last, or row-major."""
    layout = torch.channels_last if is_channels_last(x) else torch.contiguous_format
    return gradient.contiguous(memory_format=layout)


def is_plain(x: torch.Tensor) -> bool:
    """Say whether x is a tensor of eager code in the memory of the CPU, and nothing watches what is done with it."""
    return _is_eager(x) and x.is_cpu


def is_on_gpu(x: torch.Tensor) -> bool:
    """Say whether x is such a tensor in the memory of a GPU."""
    return _is_eager(x) and x.is_cuda


def _is_eager(x: torch.Tensor) -> bool:
    return not torch.compiler.is_compiling() and type(x) in PLAIN_TENSORS and not is_dispatch_mode_active()


def is_finite(x: torch.Tensor) -> bool:
    """Return True only if the elements may be read and their sum is finite; False means unknown or not finite."""
    return is_plain(x) and math.isfinite(x.sum().item())


def at_ties(part: torch.Tensor, weight: torch.Tensor, finite: bool) -> torch.Tensor:
    """Return the part where its weight is 1, else 0."""
    return part * weight if finite else torch.where(weight != 0, part, 0)  # 0 times infinity is NaN


def counter_of(dtype: torch.dtype, number: int) -> torch.dtype:
    """Return the dtype, or float32 if it cannot count to that number."""
    return dtype if number <= _EXACT.get(dtype, math.inf) else torch.float32
