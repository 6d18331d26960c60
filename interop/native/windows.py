"""The rule of the windows in torch: the tied elements of each window share the gradient, at torch's own value.

The reverse pass spreads a number for each window over its elements, the forward pass gathers one from them. Each is the
transpose of the other, so that derivatives of any order are made of the two.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from interop._private_torch import into_old_vmap, is_in_old_vmap, out_of_old_vmap
from interop.native.differentiable import differentiable
from interop.native.reductions import divided, sharing
from jaxclamp._rules.conventions import Convention
from jaxclamp._rules.windows import Windows

Index: TypeAlias = tuple[Any, ...]


class AdaptiveWindows(NamedTuple):
    """As many windows along each axis as are asked for, of nearly equal sizes: from i n / m to (i + 1) n / m."""

    counts: tuple[int, ...]


class Pooling(NamedTuple):
    """The windows, and how tied elements share."""

    windows: Windows | AdaptiveWindows
    convention: Convention

    @property
    def dims(self) -> int:
        return len(self.windows.counts if isinstance(self.windows, AdaptiveWindows) else self.windows.sizes)


def pool(pooling: Pooling, own: Callable[[torch.Tensor], Any], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The result of ``own``, torch's function: the values and their indices."""
    values, indices = _pooled(own, pooling, x)
    return values, indices


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(own: Callable[[torch.Tensor], Any], pooling: Pooling, x: torch.Tensor) -> Any:
        return own(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.pooling, x = inputs
        _, indices = output
        ctx.mark_non_differentiable(indices)
        # Not the values, which may be overwritten, as by a ReLU behind the pool.
        ctx.save_for_backward(x, indices)
        ctx.save_for_forward(x, indices)

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        x, indices = ctx.saved_tensors
        return None, None, _shared(True, ctx.pooling, x, _values(ctx.pooling, x, indices), cotangent)

    @staticmethod
    def jvp(ctx: Any, _own: None, _pooling: None, tangent: torch.Tensor) -> Any:
        x, indices = ctx.saved_tensors
        return _shared(False, ctx.pooling, x, _values(ctx.pooling, x, indices), tangent), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, own: Callable[[torch.Tensor], Any], pooling: Pooling, x: torch.Tensor) -> Any:
        (flat,), unflatten = _without_batch(info.batch_size, in_dims[2:], [x], pooling)
        return tuple(map(unflatten, _pooled(own, pooling, flat))), (0, 0)


def _values(pooling: Pooling, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The largest elements of the windows."""
    at = indices.flatten(-pooling.dims)
    return x.flatten(-pooling.dims).gather(-1, at).reshape(indices.shape)


_pooled = differentiable(_Pooled)


class _Shared(torch.autograd.Function):
    """Spread a number for each window over its tied elements, or gather one from them, for the same shares."""

    @staticmethod
    def forward(
        spreads: bool, pooling: Pooling, x: torch.Tensor, values: torch.Tensor, vector: torch.Tensor
    ) -> torch.Tensor:
        chosen = _chosen(pooling, x, values)
        # What is overwritten is made of the vector, or `torch.func.linearize` would take it for a constant.
        counted = vector.new_zeros(values.shape, dtype=torch.int32)
        for mask, _, outer in chosen:
            counted[outer] += _summed(mask.to(torch.int32), counted[outer])
        counted.clamp_(min=1)  # a window may lie in the padding as a whole
        if spreads:
            share, result = divided(vector, counted), _zeros_like(x, vector)
            for mask, inner, outer in chosen:
                result[inner] += torch.where(mask, share[outer], 0.0)
            return result
        result = _zeros_like(values, vector)
        for mask, inner, outer in chosen:
            result[outer] += _summed(torch.where(mask, vector[inner], 0.0), result[outer])
        return divided(result, counted)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.spreads, ctx.pooling, x, values, _ = inputs
        ctx.save_for_backward(x, values)
        ctx.save_for_forward(x, values)

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, values = ctx.saved_tensors
        return None, None, None, None, _shared(not ctx.spreads, ctx.pooling, x, values, cotangent)

    @staticmethod
    def jvp(ctx: Any, _spreads: None, _pooling: None, _x: Any, _values: Any, tangent: torch.Tensor) -> torch.Tensor:
        x, values = ctx.saved_tensors
        return _shared(ctx.spreads, ctx.pooling, x, values, tangent)

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, spreads: bool, pooling: Pooling, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        flat, unflatten = _without_batch(info.batch_size, in_dims[2:], tensors, pooling)
        return unflatten(_shared(spreads, pooling, *flat)), 0


_applied = differentiable(_Shared)


def _shared(
    spreads: bool, pooling: Pooling, x: torch.Tensor, values: torch.Tensor, vector: torch.Tensor
) -> torch.Tensor:
    if not torch.compiler.is_compiling() and is_in_old_vmap(vector):
        whole = out_of_old_vmap(vector)
        (x, values, vector), unflatten = _without_batch(len(whole), (None, None, 0), (x, values, whole), pooling)
        return into_old_vmap(unflatten(_applied(spreads, pooling, x, values, vector)))
    shared: torch.Tensor = _applied(spreads, pooling, x, values, vector)
    return shared


def _without_batch(
    size: int, in_dims: Sequence[int | None], tensors: Sequence[torch.Tensor], pooling: Pooling
) -> tuple[list[torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]:
    """The tensors with the batch of a vmap as images of one batch, and how to take a result apart again."""
    moved = [
        tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, in_dims, strict=True)
    ]
    if moved[0].dim() == pooling.dims + 2:  # one image each
        return moved, lambda result: result
    return [tensor.flatten(0, 1) for tensor in moved], lambda result: result.unflatten(0, (size, -1))


def _zeros_like(x: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Zeros that lie in memory as x does, made of the vector."""
    zeros = vector.new_zeros(x.shape, dtype=x.dtype)
    is_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return zeros.contiguous(memory_format=torch.channels_last) if is_last else zeros


def _summed(parts: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The sums of the parts of each window, where they are those of one window."""
    return parts.sum_to_size(like.shape)


def _chosen(pooling: Pooling, x: torch.Tensor, values: torch.Tensor) -> list[tuple[torch.Tensor, Index, Index]]:
    """Some elements, some windows that have them, and which of these elements get a share there.

    They are the elements at one place of all windows where those are alike, else all elements of one window.
    """
    windows, convention = pooling
    unknown = x != x
    lengths, counts = x.shape[-pooling.dims :], values.shape[-pooling.dims :]
    is_adaptive = isinstance(windows, AdaptiveWindows)
    pairs = _windows(lengths, counts) if isinstance(windows, AdaptiveWindows) else _places(windows, lengths, counts)
    tied = [((x[inner] == values[outer]) | unknown[inner], inner, outer) for inner, outer in pairs]
    if convention in ("min_norm", "balanced"):
        return tied
    if is_adaptive:
        axes = tuple(range(x.dim() - pooling.dims, x.dim()))
        return [(sharing(mask, axes, convention), inner, outer) for mask, inner, outer in tied]
    return _without_first(tied, values)


def _without_first(
    tied: list[tuple[torch.Tensor, Index, Index]], values: torch.Tensor
) -> list[tuple[torch.Tensor, Index, Index]]:
    """``tied`` without the first of each window that has another, by the convention exclusive."""
    counted = torch.zeros(values.shape, dtype=torch.int32, device=values.device)
    for mask, _, outer in tied:
        counted[outer] += mask
    counts = counted == 1  # then the first is the only one
    others = []
    for mask, inner, outer in tied:
        others.append((mask & counts[outer], inner, outer))
        counts[outer] |= mask
    return others


def _places(windows: Windows, lengths: tuple[int, ...], counts: tuple[int, ...]) -> list[tuple[Index, Index]]:
    """For each place in the windows, in row-major order: the elements there, and the windows that have one there.

    In windows of 3 with stride 2 and padding 1, for example, the first place has the elements 1, 3, 5, ... for the
    windows 1, 2, 3, ...; in window 0 it is padding.
    """
    axes = [
        [_along(place * dilation - before, stride, length, count) for place in range(size)]
        for size, stride, (before, _), dilation, length, count in zip(
            windows.sizes, windows.strides, windows.paddings, windows.dilations, lengths, counts, strict=True
        )
    ]
    return _crossed(axes)


def _along(first: int, stride: int, length: int, count: int) -> tuple[slice, slice]:
    """The elements ``first``, ``first + stride``, ... that exist along an axis, and the windows that have them."""
    begin = max(0, -(first // stride))
    end = max(begin, min(count, (length - 1 - first) // stride + 1))
    start = first + begin * stride
    return slice(start, start + (end - begin) * stride, stride), slice(begin, end)


def _windows(lengths: tuple[int, ...], counts: tuple[int, ...]) -> list[tuple[Index, Index]]:
    """For each of the adaptive windows, its elements and itself."""
    return _crossed(
        [
            [(slice(i * length // count, -(-(i + 1) * length // count)), slice(i, i + 1)) for i in range(count)]
            for length, count in zip(lengths, counts, strict=True)
        ]
    )


def _crossed(axes: Sequence[Sequence[tuple[slice, slice]]]) -> list[tuple[Index, Index]]:
    """Elements and windows along each axis as indices into the last axes."""
    return [
        ((..., *(inner for inner, _ in place)), (..., *(outer for _, outer in place)))
        for place in itertools.product(*axes)
    ]
