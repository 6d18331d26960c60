"""Differentiates poolings around torch's own function: the tied elements of each window share its gradient.

The reverse pass spreads a number for each window over its elements, the forward pass gathers one from them. Each is the
transpose of the other, so that derivatives of any order are made of the two. In windows of 2 with stride 1 over the
elements (3, 3, 1), for example, window 0 has the tied elements 0 and 1, window 1 has element 1 as its largest. The
cotangents (a, b) of the windows are spread to (a/2, a/2 + b, 0); tangents (u, v, w) are gathered to ((u + v)/2, v).

A pooling is done in stages, each a `Stage`: in one, or axis by axis if windows are large. `windows_compiled.py` has the
stages for compiled functions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from interop._torch.private_api import into_old_vmap, is_in_compiled_graph, is_in_old_vmap, out_of_old_vmap
from interop.native._rules.differentiable import differentiable
from interop.native._rules.reductions import divided, sharing
from interop.native._rules.stage import AT_ONCE, AdaptiveWindows, Stage, span
from interop.native._rules.windows_compiled import read_stages
from jaxclamp._rules.conventions import Convention
from jaxclamp._rules.windows import Windows

Index: TypeAlias = tuple[Any, ...]
Along: TypeAlias = Sequence[Sequence[tuple[slice, slice]]]
"""For each axis, some elements along it and the windows that have them."""
Chosen: TypeAlias = tuple[torch.Tensor, Index, Index]
"""Some elements, some windows that have them, and (first) which of these elements get a share there.

They are the elements at one place of all windows where those are alike, else all elements of one window.
"""
_WHOLE = (slice(None), slice(None))


class Pooling(NamedTuple):
    """The windows, and how tied elements share."""

    windows: Windows | AdaptiveWindows
    convention: Convention

    @property
    def dims(self) -> int:
        return len(self.windows.counts if isinstance(self.windows, AdaptiveWindows) else self.windows.sizes)


def pool(
    pooling: Pooling, in_torch: Callable[[torch.Tensor], Any], x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result of ``own``, torch's function: the values and their indices."""
    values, indices = _pooled(in_torch, pooling, x)
    return values, indices


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(in_torch: Callable[[torch.Tensor], Any], pooling: Pooling, x: torch.Tensor) -> Any:
        return in_torch(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.pooling, x = inputs
        values, indices = output
        ctx.mark_non_differentiable(indices)
        # Not the values, which may be overwritten, as by a ReLU behind the pool. Inductor makes no copy for a clone.
        saved = values.clone() if is_in_compiled_graph() else indices
        ctx.save_for_backward(x, saved)
        ctx.save_for_forward(x, saved)

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        x, saved = ctx.saved_tensors
        return None, None, _shared(True, ctx.pooling, x, _values(ctx.pooling, x, saved), cotangent)

    @staticmethod
    def jvp(ctx: Any, _in_torch: None, _pooling: None, tangent: torch.Tensor) -> Any:
        x, saved = ctx.saved_tensors
        return _shared(False, ctx.pooling, x, _values(ctx.pooling, x, saved), tangent), None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, in_torch: Callable[[torch.Tensor], Any], pooling: Pooling, x: torch.Tensor
    ) -> Any:
        (flat,), unflatten = _without_batch(info.batch_size, in_dims[2:], [x], pooling)
        return tuple(map(unflatten, _pooled(in_torch, pooling, flat))), (0, 0)


def _values(pooling: Pooling, x: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
    """The largest elements of the windows."""
    if saved.is_floating_point():  # these themselves, in a graph
        return saved
    return x.flatten(-pooling.dims).gather(-1, saved.flatten(-pooling.dims)).reshape(saved.shape)


_pooled = differentiable(_Pooled)


class _Shared(torch.autograd.Function):
    """Spread a number for each window over its tied elements, or gather one from them, for the same shares."""

    @staticmethod
    def forward(
        spreads: bool, pooling: Pooling, x: torch.Tensor, values: torch.Tensor, vector: torch.Tensor
    ) -> torch.Tensor:
        stages = _stages(pooling, x, values, vector)
        # What is overwritten is made of the vector, or `torch.func.linearize` would take it for a constant.
        shares = stages[0].counted(vector)
        for stage in stages[1:]:
            shares = stage.gathered(shares)
        shares.clamp_(min=1)  # a window may lie in the padding as a whole
        if spreads:
            vector = divided(vector, shares)
            for stage in reversed(stages):
                vector = stage.spread(vector)
            return vector
        for stage in stages:
            vector = stage.gathered(vector)
        return divided(vector, shares)

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


class _SlicedStage(NamedTuple):
    """A `Stage` by slices: one for each place in the windows, or one for each window where their sizes differ."""

    x: torch.Tensor
    values: torch.Tensor
    """The largest elements of the windows."""
    chosen: list[Chosen]

    def counted(self, like: torch.Tensor) -> torch.Tensor:
        counts = like.new_zeros(self.values.shape, dtype=torch.int32)
        for mask, _, outer in self.chosen:
            _add(counts, outer, mask.to(torch.int32))
        return counts

    def gathered(self, vector: torch.Tensor) -> torch.Tensor:
        result = vector.new_zeros(self.values.shape)
        for mask, inner, outer in self.chosen:
            _add(result, outer, torch.where(mask, vector[inner], 0))
        return result

    def spread(self, vector: torch.Tensor) -> torch.Tensor:
        result = _zeros_like(self.x, vector)
        for mask, inner, outer in self.chosen:
            _add(result, inner, torch.where(mask, vector[outer], 0))
        return result


def _stages(pooling: Pooling, x: torch.Tensor, values: torch.Tensor, vector: torch.Tensor) -> Sequence[Stage]:
    """The pooling at once, or axis by axis: the largest of a window is the largest among the largest of its rows."""
    windows, convention = pooling
    if torch.compiler.is_compiling() and convention != "exclusive":
        return read_stages(windows, pooling.dims, x, values)
    lengths, counts = x.shape[-pooling.dims :], values.shape[-pooling.dims :]
    axes = _windows(lengths, counts) if isinstance(windows, AdaptiveWindows) else _places(windows, lengths, counts)
    if convention == "exclusive" or math.prod([len(along) for along in axes]) <= AT_ONCE:
        tied = _tied(x, values, _crossed(axes))
        if convention == "exclusive":
            tied = _without_first(tied, values, pooling)
        return [_SlicedStage(x, values, tied)]
    stages: list[Stage] = []
    for axis in reversed(range(pooling.dims)):
        places = _crossed([along if index == axis else [_WHOLE] for index, along in enumerate(axes)])
        largest = _largest(x, axis - pooling.dims, counts[axis], places, vector) if axis else values
        stages.append(_SlicedStage(x, largest, _tied(x, largest, places)))
        x = largest
    return stages


def _largest(
    x: torch.Tensor, axis: int, count: int, places: Sequence[tuple[Index, Index]], vector: torch.Tensor
) -> torch.Tensor:
    """The largest elements of the windows along an axis, counted from the last, in memory made of the vector."""
    shape = [count if at - x.dim() == axis else length for at, length in enumerate(x.shape)]
    largest = vector.new_full(shape, -math.inf, dtype=x.dtype)
    for inner, outer in places:
        part, so_far = x[inner], largest[outer]
        if part.shape != so_far.shape:  # these are the elements of one window
            part = part.amax(axis, keepdim=True)
        largest[outer] = torch.maximum(so_far, part)
    return largest


def _tied(x: torch.Tensor, values: torch.Tensor, places: Sequence[tuple[Index, Index]]) -> list[Chosen]:
    unknown = x != x
    return [((x[inner] == values[outer]) | unknown[inner], inner, outer) for inner, outer in places]


def _add(result: torch.Tensor, index: Index, part: torch.Tensor) -> None:
    """Add a part at an index into the last axes of ``result``: the sum of the part, where that is one window."""
    there = result[index]
    there += part.sum_to_size(there.shape)


def _zeros_like(x: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Zeros that lie in memory as x does, made of the vector."""
    zeros = vector.new_zeros(x.shape, dtype=x.dtype)
    is_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return zeros.contiguous(memory_format=torch.channels_last) if is_last else zeros


def _without_first(tied: list[Chosen], values: torch.Tensor, pooling: Pooling) -> list[Chosen]:
    """``tied`` without the first of each window that has another, by the convention exclusive."""
    if isinstance(pooling.windows, AdaptiveWindows):
        axes = tuple(range(values.dim() - pooling.dims, values.dim()))
        return [(sharing(mask, axes, "exclusive"), inner, outer) for mask, inner, outer in tied]
    counted = torch.zeros(values.shape, dtype=torch.int32, device=values.device)
    for mask, _, outer in tied:
        counted[outer] += mask
    counts = counted == 1  # then the first is the only one
    after_first = []
    for mask, inner, outer in tied:
        after_first.append((mask & counts[outer], inner, outer))
        counts[outer] |= mask
    return after_first


def _places(windows: Windows, lengths: tuple[int, ...], counts: tuple[int, ...]) -> Along:
    """For each place in the windows: the elements there, and the windows that have one there.

    In windows of 3 with stride 2 and padding 1, for example, the first place has the elements 1, 3, 5, ... for the
    windows 1, 2, 3, ...; in window 0 it is padding.
    """
    return [
        [_along(place * dilation - before, stride, length, count) for place in range(size)]
        for size, stride, (before, _), dilation, length, count in zip(
            windows.sizes, windows.strides, windows.paddings, windows.dilations, lengths, counts, strict=True
        )
    ]


def _along(first: int, stride: int, length: int, count: int) -> tuple[slice, slice]:
    """The elements ``first``, ``first + stride``, ... that exist along an axis, and the windows that have them."""
    begin = max(0, -(first // stride))
    end = max(begin, min(count, (length - 1 - first) // stride + 1))
    start = first + begin * stride
    return slice(start, start + (end - begin) * stride, stride), slice(begin, end)


def _windows(lengths: tuple[int, ...], counts: tuple[int, ...]) -> Along:
    """For each of the adaptive windows, its elements and itself."""
    return [
        [(slice(*span(i, length, count)), slice(i, i + 1)) for i in range(count)]
        for length, count in zip(lengths, counts, strict=True)
    ]


def _crossed(axes: Along) -> list[tuple[Index, Index]]:
    """Elements and windows along each axis as indices into the last axes, in row-major order."""
    return [
        ((..., *(inner for inner, _ in place)), (..., *(outer for _, outer in place)))
        for place in itertools.product(*axes)
    ]
