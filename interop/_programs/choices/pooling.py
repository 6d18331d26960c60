"""Pools for whole programs (`interop.grad`): of equal elements of a window, the one ahead after a small step.

The gradients of max pools under `interop.min_norm` are in `interop/native/_rules/windows.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from interop._programs.choices.selections import abs
from interop._programs.order import are_late, place_ahead, value_and_tangent, value_of
from interop._programs.still_places import still_places
from interop._torch.in_numpy import is_any
from interop._torch.private_api import is_of_a_batch, without_dispatch_modes, without_transformations
from interop.native._rules.windows import windows_on_tie
from interop.native._rules.windows_indexed import index_of_windows
from interop.native._rules.windows_stage import AdaptiveWindows, Pooling, adapted, is_plain, pooling_of
from jaxclamp._rules.windows import Windows

Tensor = torch.Tensor
Function = Callable[..., Any]


def max_pool(name: str) -> Function:
    """Return torch's pool of that name, ``max_pool2d`` for example, whose windows have one size."""
    in_torch: Function = getattr(functional, name)

    def pool(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        window = (kernel_size, stride, padding, dilation, ceil_mode)

        def called(x: Tensor, has_indices: bool) -> Any:
            return in_torch(x, *window, return_indices=has_indices)

        def pooling() -> Pooling:
            return pooling_of(name, "min_norm", input, int(name[-2]), window)[0]

        return _pooled(called, pooling, input, return_indices)

    return pool


def adaptive_max_pool(name: str) -> Function:
    """Return torch's pool of that name, whose windows are as large as the number of results asks for."""
    in_torch: Function = getattr(functional, name)

    def pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        def called(x: Tensor, has_indices: bool) -> Any:
            return in_torch(x, output_size, has_indices)

        def pooling() -> Pooling:
            return Pooling(adapted(name, input, output_size)[0], "min_norm")

        return _pooled(called, pooling, input, return_indices)

    return pool


def _pooled(
    in_torch: Callable[[Tensor, bool], Any], pooling_of_input: Callable[[], Pooling], input: Tensor, has_indices: bool
) -> Any:
    """Take the largest element of each window, and of several the one ahead.

    ``in_torch`` is torch's pool of a tensor, with indices or without. It is called first, to refuse wrong arguments.
    """
    value = value_of(input)
    if are_late() and is_plain(value) and not is_of_a_batch(value):
        return _pooled_in_torch(in_torch, pooling_of_input, input, has_indices)
    # One image: torch says how many windows there are, and in which dtype autocast has them.
    like = in_torch(value[:1], has_indices)
    like = like[0] if has_indices else like
    if not like.numel():  # there are no windows, and torch does not differentiate that
        return in_torch(input, has_indices)
    pooling = pooling_of_input()
    lengths, counts = (tuple(x.shape[-pooling.dims :]) for x in (input, like))
    elements, limits = _elements(pooling.windows, lengths, counts)
    elements = elements.to(input.device)
    flat = input.to(like.dtype).reshape(-1, math.prod(lengths))  # torch selects fastest from rows
    value, tangent = value_and_tangent(flat)

    def in_windows(rows: Tensor) -> Tensor:
        """Return for each row a place of the window in axis 1, and the window in axis 2."""
        return rows.index_select(1, elements.flatten()).unflatten(1, elements.shape)

    values = in_windows(value)
    if limits is not None:
        values = torch.minimum(values, limits.to(values))
    place = place_ahead(values, lambda: in_windows(tangent), 1)
    index = elements.expand(len(flat), -1, -1).gather(1, place).squeeze(1)
    shape = (*input.shape[: -pooling.dims], *counts)
    result = flat.gather(1, index).reshape(shape)
    return (result, index.reshape(shape)) if has_indices else result


def _pooled_in_torch(
    in_torch: Callable[[Tensor, bool], Any], pooling_of_input: Callable[[], Pooling], input: Tensor, has_indices: bool
) -> Any:
    """Take torch's pool, which is right if no window has a tie that moves; else ask for the tangent, which is late."""
    result = in_torch(input, has_indices)
    values = value_of(result[0] if has_indices else result)
    tied = torch.as_tensor(windows_on_tie(pooling_of_input(), value_of(input), values))
    for still in still_places(input):
        tied = tied & (values != still)
    if is_any(tied):
        value_and_tangent(input)  # of what stands still it is 0, and any element is right
    return result


@functools.lru_cache(maxsize=64)
def _elements(
    windows: Windows | AdaptiveWindows, lengths: tuple[int, ...], counts: tuple[int, ...]
) -> tuple[Tensor, Tensor | None]:
    """Return for each place in a window (rows) and each window (columns) the element there, in row-major order.

    A place that is padding, or behind the end of a window, has an element of the same window. So that it makes no tie,
    its value is limited: the limits are minus infinity there, and infinity elsewhere, or None if there is no padding.
    """
    # Outside of transformations and graphs, as later calls within others have the same index.
    with without_transformations(), without_dispatch_modes():
        # On the CPU: on a GPU the check below would have to wait.
        index, exist = index_of_windows(windows, lengths, counts, torch.device("cpu"))
        if exist.all():
            return index, None
        if not exist.any(0).all():
            raise NotImplementedError(
                "max_pool: a window reaches over the elements with its dilation, and has padding alone; use less."
            )
        return torch.where(exist, index, torch.where(exist, index, 0).amax(0)), torch.where(exist, math.inf, -math.inf)


def fractional_max_pool(name: str) -> Function:
    """Return torch's pool of that name, whose windows are random."""
    in_torch: Function = getattr(functional, name)
    dims = int(name[-2])

    def pool(
        input: Tensor,
        kernel_size: Any,
        output_size: Any = None,
        _random_samples: Any = None,
        *,
        return_indices: bool = False,
        output_ratio: Any = None,
    ) -> Any:
        value, tangent = (x.flatten(-dims) for x in value_and_tangent(input))
        # Torch alone knows the windows. Of equal elements it takes the first, so that zeros show where each begins.
        zeros = torch.zeros_like(value).reshape(input.shape)
        like, begins = in_torch(zeros, kernel_size, output_size, output_ratio, True, _random_samples)
        sizes = (kernel_size,) * dims if isinstance(kernel_size, int) else kernel_size
        # How far each element of a window is from its first: 0, 1, 5 and 6 for 2 by 2 elements in rows of five.
        window = torch.zeros(1, dtype=torch.int64, device=input.device)
        for length, size in zip(input.shape[-dims:], sizes, strict=True):
            window = (window[:, None] * length + torch.arange(size, device=input.device)).flatten()
        elements = begins.flatten(-dims).unsqueeze(-2) + window.unsqueeze(-1)

        def in_windows(x: Tensor) -> Tensor:
            return x.unsqueeze(-2).expand(*elements.shape[:-1], -1).gather(-1, elements)

        place = place_ahead(in_windows(value), lambda: in_windows(tangent), -2)
        index = elements.gather(-2, place).reshape(begins.shape)
        result = input.to(like.dtype).flatten(-dims).gather(-1, index.flatten(-dims)).reshape(index.shape)
        return (result, index) if return_indices else result

    return pool


def power_average_pool(name: str) -> Function:
    """Return torch's pool of that name, ``lp_pool2d`` for example, whose results are norms of windows."""
    in_torch: Function = getattr(functional, name)
    average: Function = getattr(functional, name.replace("lp", "avg"))
    largest = max_pool(name.replace("lp", "max"))
    dims = int(name[-2])

    def pool(input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
        if math.isinf(norm_type):
            sign = math.copysign(1.0, norm_type)
            sizes: Tensor = largest(sign * abs(input), kernel_size, stride, ceil_mode=ceil_mode)
            return sign * sizes
        window = (kernel_size, stride, 0, ceil_mode)
        count = math.prod(kernel_size) if isinstance(kernel_size, Sequence) else kernel_size**dims
        if norm_type == 1:  # a sum, to which torch gives the slope 0 where it is 0
            total: Tensor = average(input, *window) * count
            return total
        result: Tensor = in_torch(input, norm_type, kernel_size, stride, ceil_mode)
        if norm_type < 1:
            return result
        # Where a window is 0 and moves by v, its piece is g . x, with the gradient g = (v / |v|) ** (p - 1).
        value, tangent = value_and_tangent(input)
        tangent = torch.where(value == 0, tangent, 0.0)  # elsewhere its power may be NaN
        speed = in_torch(tangent, norm_type, kernel_size, stride, ceil_mode)
        sums = average(input * tangent ** (norm_type - 1), *window) * count
        piece = sums / torch.where(speed == 0, 1.0, speed) ** (norm_type - 1)
        return torch.where(average(value.abs(), *window) == 0, piece, result)

    return pool
