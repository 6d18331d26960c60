"""Differentiates max pools: the tied elements of each window share its gradient.

The reverse pass spreads a number for each window over its elements, the forward pass gathers one from them. Each is the
transpose of the other, so that derivatives of any order are made of the two. In windows of 2 with stride 1 over the
elements (3, 3, 1), for example, window 0 has the tied elements 0 and 1, window 1 has element 1 as its largest. The
cotangents (a, b) of the windows are spread to (a/2, a/2 + b, 0); tangents (u, v, w) are gathered to ((u + v)/2, v).

A pooling is done in stages, each a `Stage`: in one, or axis by axis if windows are large. `windows_sliced.py` has them
for eager code, `windows_tiled.py` where the windows tile the images, `windows_indexed.py` for small images,
`windows_compiled.py` for compiled functions, and `windows_viewed.py` on a GPU. `windows_blocked.py` spreads numbers
over batches of images in ``channels_last``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from interop._torch.grad_state import records_nothing
from interop._torch.in_numpy import Mask
from interop._torch.private_api import into_old_vmap, is_in_old_vmap, out_of_old_vmap
from interop.native._rules.differentiable import differentiable
from interop.native._rules.reductions import divided
from interop.native._rules.windows_blocked import is_spread_in_blocks, spread_in_blocks
from interop.native._rules.windows_compiled import read_stages
from interop.native._rules.windows_indexed import indexed_stage
from interop.native._rules.windows_sliced import empty_as, has_few_places, number_of_largest, sliced_stages
from interop.native._rules.windows_stage import Pooling, Stage, is_on_gpu, is_plain
from interop.native._rules.windows_viewed import has_view, viewed_stage

_BLOCK = 2**19
"""The elements in whose blocks ties are shared, so that what is computed on the way stays in the processor's cache."""
_FEW_READS = 2**17
"""The elements in all windows up to which one index of them is faster than slices, which take more calls."""
_FEW_READS_ON_GPU = 2**25
"""That number on a GPU, where a view of the elements replaces the index."""


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(in_torch: Callable[[Tensor], Any], pooling: Pooling, x: Tensor) -> Any:
        return in_torch(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.pooling, x = inputs
        ctx.has_indices = isinstance(output, tuple)
        values = output[0] if ctx.has_indices else output
        if ctx.has_indices:
            ctx.mark_non_differentiable(output[1])
        # A copy of the values, which may be overwritten, as by a ReLU behind the pool. Inductor makes none for a clone.
        values = values.clone()
        ctx.save_for_backward(x, values)
        ctx.save_for_forward(x, values)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, values = ctx.saved_tensors
        return None, None, _shared(True, ctx.pooling, x, values, cotangent)

    @staticmethod
    def jvp(ctx: Any, _in_torch: None, _pooling: None, tangent: Tensor) -> Any:
        x, values = ctx.saved_tensors
        moved = _shared(False, ctx.pooling, x, values, tangent)
        return (moved, None) if ctx.has_indices else moved

    # By hand, as torch cannot batch the calls of eager stages: they read numbers by `item`, and write to ``out=``.
    @staticmethod
    def vmap(info: Any, in_dims: Any, in_torch: Callable[[Tensor], Any], pooling: Pooling, x: Tensor) -> Any:
        (flat,), unflatten = _without_batch(info.batch_size, in_dims[2:], [x], pooling)
        result = pool(in_torch, pooling, flat)
        return (tuple(map(unflatten, result)), (0, 0)) if isinstance(result, tuple) else (unflatten(result), 0)


pool: Callable[..., Any] = differentiable(_Pooled)
"""Returns the result of torch's function: the values alone, or a pair of the values and their indices."""


class _Shared(torch.autograd.Function):
    """Spread a number for each window over its tied elements, or gather one from them, for the same shares."""

    @staticmethod
    def forward(spreads: bool, pooling: Pooling, x: Tensor, values: Tensor, vector: Tensor) -> Tensor:
        if spreads and not _has_few_reads(pooling, x, values) and is_spread_in_blocks(pooling, x, values, vector):
            return spread_in_blocks(pooling, x, values, vector)
        if x.numel() <= _BLOCK or not is_plain(x):
            return _shared_at_once(spreads, pooling, x, values, vector)
        result = empty_as(x if spreads else values, vector)
        # Whole images to a block: no window reaches from one image to the next.
        images = max(1, _BLOCK * len(x) // x.numel())
        for *block, part in zip(*(tensor.split(images) for tensor in (x, values, vector, result)), strict=True):
            part.copy_(_shared_at_once(spreads, pooling, *block))
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.spreads, ctx.pooling, x, values, _ = inputs
        ctx.save_for_backward(x, values)
        ctx.save_for_forward(x, values)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        x, values = ctx.saved_tensors
        return None, None, None, None, _shared(not ctx.spreads, ctx.pooling, x, values, cotangent)

    @staticmethod
    def jvp(ctx: Any, _spreads: None, _pooling: None, _x: Any, _values: Any, tangent: Tensor) -> Tensor:
        x, values = ctx.saved_tensors
        return _shared(ctx.spreads, ctx.pooling, x, values, tangent)

    @staticmethod
    def vmap(info: Any, in_dims: Any, spreads: bool, pooling: Pooling, *tensors: Tensor) -> tuple[Tensor, int]:
        flat, unflatten = _without_batch(info.batch_size, in_dims[2:], tensors, pooling)
        return unflatten(_shared(spreads, pooling, *flat)), 0


_recorded: Callable[..., Tensor] = differentiable(_Shared)


def _shared(spreads: bool, pooling: Pooling, x: Tensor, values: Tensor, vector: Tensor) -> Tensor:
    if not torch.compiler.is_compiling() and is_in_old_vmap(vector):
        whole = out_of_old_vmap(vector)
        (x, values, vector), unflatten = _without_batch(len(whole), (None, None, 0), (x, values, whole), pooling)
        return into_old_vmap(unflatten(_recorded(spreads, pooling, x, values, vector)))
    # Where nothing is recorded, a Function would take its time for nothing.
    apply = _Shared.forward if records_nothing() else _recorded
    return apply(spreads, pooling, x, values, vector)


def _without_batch(
    size: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor], pooling: Pooling
) -> tuple[list[Tensor], Callable[[Tensor], Tensor]]:
    """Return the tensors with the batch of a vmap as images of one batch, and how to take a result apart again."""
    moved = [
        tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, in_dims, strict=True)
    ]
    if moved[0].dim() == pooling.dims + 2:  # one image each
        return moved, lambda result: result
    return [tensor.flatten(0, 1) for tensor in moved], lambda result: result.unflatten(0, (size, -1))


def _shared_at_once(spreads: bool, pooling: Pooling, x: Tensor, values: Tensor, vector: Tensor) -> Tensor:
    # Say the first stage goes from elements to the largest of each row of a window, and the second from these to the
    # windows. A tangent is gathered in this order, a cotangent is spread from the windows back.
    stages = _stages(pooling, x, values, vector)
    shares = _counted(stages, vector).clamp_(min=1)  # a window may lie in the padding as a whole
    if spreads:
        vector = divided(vector, shares)
        for stage in reversed(stages):
            vector = stage.spread(vector)
        return vector
    for stage in stages:
        vector = stage.gathered(vector)
    return divided(vector, shares)


def windows_on_tie(pooling: Pooling, x: Tensor, values: Tensor) -> Mask:
    """Return which windows have several largest elements; one with NaN is on no tie."""
    if has_few_places(pooling, x):
        return number_of_largest(pooling, x, values) > 1
    return (_counted(_stages(pooling, x, values, values), values) > 1) & ~values.isnan()


def _counted(stages: Sequence[Stage], vector: Tensor) -> Tensor:
    # Of two stages, the first counts along one axis, and the second adds up these counts along the other, where the
    # largest numbers tie. In a window ((3, 3), (1, 3)) the rows have 2 and 1, both of the number 3: so 3 share.
    # Buffers are made from the vector, so that `torch.func.linearize` does not take them for constants.
    shares = stages[0].counted(vector)
    for stage in stages[1:]:
        shares = stage.gathered(shares)
    return shares


def _stages(pooling: Pooling, x: Tensor, values: Tensor, vector: Tensor) -> Sequence[Stage]:
    """Return the stages by the fastest way; under the convention exclusive there is one."""
    if is_on_gpu(x) and has_view(pooling, x) and pooling.number_of_reads(x, values) <= _FEW_READS_ON_GPU:
        return [viewed_stage(pooling, x, values)]
    # Exclusive leaves out the first of the tied elements of a window, which no axis by itself determines.
    if pooling.convention == "exclusive" or _has_few_reads(pooling, x, values):
        return [indexed_stage(pooling, x, values)]
    if torch.compiler.is_compiling():
        return read_stages(pooling, x, values)
    return sliced_stages(pooling, x, values, vector)


def _has_few_reads(pooling: Pooling, x: Tensor, values: Tensor) -> bool:
    return is_plain(x) and pooling.number_of_reads(x, values) <= _FEW_READS
