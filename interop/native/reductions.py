"""Reductions and poolings by torch's own kernels, with the gradient of the convention.

Where nothing is differentiated, and with ``out=``, each is torch's own function, unchanged. Under the convention
inclusive, by which the first of the tied elements gets all, so are the poolings and those with indices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from interop._torch.forms import axes_of, overloaded
from interop._torch.grad_state import is_active
from interop._torch.private_api import is_view
from interop._torch.sharding import is_distributed, on_parts
from interop.native._rules.reductions import Reduction, reduce
from interop.native._rules.settled import settled
from interop.native._rules.windows import pool
from interop.native._rules.windows_sliced import largest_by_slices, prefers_slices
from interop.native._rules.windows_stage import Pooling, adapted, is_plain, pooling_of
from interop.native.decorators import public_as
from interop.native.selection import maximum, minimum
from jaxclamp import Convention

Tensor = torch.Tensor
Sizes = int | Sequence[int]
Pair = tuple[Tensor, Tensor]
Out = Tensor | None


def _extremum(name: str) -> Callable[..., Tensor]:
    """Publish `torch.amax` or `torch.amin`.

    Torch's gradient is of minimum norm too, but it multiplies an infinite cotangent by 0 for elements that do not tie.
    """
    in_torch: Callable[..., Tensor] = getattr(torch, name)

    def extremum(
        input: Tensor,
        dim: Sizes | None = None,
        keepdim: bool = False,
        *,
        ties: Convention = "min_norm",
        out: Out = None,
    ) -> Tensor:
        if isinstance(input, torch.masked.MaskedTensor):  # its own extremum cannot be compared with its elements
            along = {} if dim is None else {"dim": dim, "keepdim": keepdim}
            return input.__torch_function__(in_torch, (type(input),), (input,), along)
        if out is not None or not is_active(input) or input.dim() == 0:  # one element has no rival
            return in_torch(input, dim, keepdim, out=out)
        if input.is_nested and ties in ("min_norm", "balanced"):  # its results cannot be compared with its elements
            return in_torch(input, dim, keepdim)
        reduction = Reduction(axes_of(dim, input.dim()), keepdim, ties)
        return reduce(lambda x: in_torch(x, dim, keepdim), reduction, settled(input))

    return public_as(name, extremum, f"`torch.{name}`.")


amax, amin = map(_extremum, ("amax", "amin"))


def _with_indices(name: str) -> Callable[..., Any]:
    """Publish `torch.max` or `torch.min` along an axis."""
    in_torch: Callable[..., Any] = getattr(torch, name)
    pair: Callable[..., Any] = getattr(torch.return_types, name)  # it has the names values and indices

    def with_indices(
        input: Tensor, dim: int, keepdim: bool = False, *, ties: Convention = "min_norm", out: Pair | None = None
    ) -> Any:
        if ties == "inclusive" or out is not None or not is_active(input) or input.dim() == 0:
            return in_torch(input, dim, keepdim, out=out)
        reduction = Reduction((operator.index(dim) % input.dim(),), keepdim, ties)
        return pair(reduce(lambda x: in_torch(x, dim, keepdim), reduction, settled(input)))

    return public_as(f"{name}_with_indices", with_indices, f"`torch.{name}` along an axis.")


max_with_indices, min_with_indices = map(_with_indices, ("max", "min"))


def _overloaded(
    name: str, of_two: Callable[..., Tensor], along_an_axis: Callable[..., Any], along_axes: Callable[..., Tensor]
) -> Callable[..., Any]:
    """Publish `torch.max` or `torch.min`, which are three functions in one."""
    in_torch: Callable[..., Tensor] = getattr(torch, name)

    def of_all(input: Tensor, *, ties: Convention = "min_norm", out: Out = None) -> Tensor:
        return in_torch(input, out=out) if out is not None or not is_active(input) else along_axes(input, ties=ties)

    def extremum(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        return overloaded(of_two, along_an_axis, of_all, input, *args, **kwargs)

    return public_as(name, extremum, f"`torch.{name}`: of two tensors, along an axis, or of all elements.")


max = _overloaded("max", maximum, max_with_indices, amax)
min = _overloaded("min", minimum, min_with_indices, amin)


def _max_pool(name: str) -> Callable[..., Any]:
    """Publish torch's pool of that name, ``max_pool2d`` for example."""
    in_torch, dims = getattr(functional, name), int(name[-2])

    def max_pool(
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
        *,
        ties: Convention = "min_norm",
    ) -> Any:
        window = (kernel_size, stride, padding, dilation, ceil_mode)

        def called(x: Tensor, has_indices: bool) -> Any:
            return in_torch(x, *window, return_indices=has_indices)

        active = is_active(input)
        # Along one axis torch has a kernel for values alone; along several its kernel finds indices, and takes longer.
        by_slices = not active and not return_indices and dims > 1 and is_plain(input) and prefers_slices(input, dims)
        if not by_slices and (not active or ties == "inclusive"):
            return in_torch(input, *window, return_indices=return_indices)
        try:
            pooling, is_whole = pooling_of(name, ties, input, dims, window)
        except (TypeError, ValueError):
            called(input, True)  # torch refuses the arguments first
            raise
        if by_slices:
            return _no_view(largest_by_slices(pooling, input))
        return _pool(pooling, called, input, return_indices, is_whole)

    return public_as(name, max_pool, f"`torch.nn.functional.{name}`.")


max_pool1d, max_pool2d, max_pool3d = map(_max_pool, ("max_pool1d", "max_pool2d", "max_pool3d"))


def _pool(
    pooling: Pooling, in_torch: Callable[[Tensor, bool], Any], input: Tensor, return_indices: bool, is_whole: bool
) -> Any:
    """Call torch's function, which takes whether it returns indices too, with the gradient of the convention."""
    if is_distributed(input):
        return on_parts(lambda x: _pool(pooling, in_torch, x, return_indices, is_whole), input, pooling.dims)

    def with_indices(x: Tensor) -> Any:
        """Return no view, such as one with a further axis: behind a Function it could not be overwritten."""
        values, indices = in_torch(x, True)
        return values.clone() if pooling.dims == 1 else values, indices

    def values(x: Tensor) -> Tensor:
        # Torch itself finds indices too where x requires grad. So graphs have that call, and so has a pool along one
        # axis of a tensor that is not row-major: the result keeps its order in memory, that of values alone does not.
        if not is_plain(x) or (pooling.dims == 1 and not x.is_contiguous()):
            return with_indices(x)[0]
        if prefers_slices(x, pooling.dims):
            return _no_view(largest_by_slices(pooling, x))
        largest = in_torch(x, False)  # in less time than with indices
        return largest.clone() if is_view(largest) else largest

    input = settled(input)
    if not is_whole:
        return pool(with_indices if return_indices else values, pooling, input)
    # One window over all of an image is a reduction: it keeps a byte for each element, and neither x nor values.
    axes = tuple(range(input.dim() - pooling.dims, input.dim()))
    result = reduce(with_indices, Reduction(axes, True, pooling.convention), input)
    return result if return_indices else result[0]


def _no_view(values: Tensor) -> Tensor:
    """Return the tensor in the same memory, as no view of another.

    A view could not be overwritten behind a Function, nor where gradients are recorded if it was made where they are
    not.
    """
    return values.new_empty(0).set_(values) if is_view(values) else values  # type: ignore[call-overload]


def _adaptive_max_pool(name: str) -> Callable[..., Any]:
    """Publish torch's pool of that name, whose windows are as large as the number of results asks for."""
    in_torch = getattr(functional, name)

    def adaptive_max_pool(
        input: Tensor, output_size: Any, return_indices: bool = False, *, ties: Convention = "min_norm"
    ) -> Any:
        if ties == "inclusive" or not is_active(input):
            return in_torch(input, output_size, return_indices)
        windows, counts = adapted(name, input, output_size)
        if 0 in counts:  # there are no windows, and torch does not differentiate that
            return in_torch(input, output_size, return_indices)

        def called(x: Tensor, has_indices: bool) -> Any:
            return in_torch(x, output_size, has_indices)

        return _pool(Pooling(windows, ties), called, input, return_indices, all(count == 1 for count in counts))

    return public_as(name, adaptive_max_pool, f"`torch.nn.functional.{name}`.")


adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = map(
    _adaptive_max_pool, ("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
)
