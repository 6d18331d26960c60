"""Reductions: of equal elements, the one that is ahead a small step on; and norms, which are made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from interop._programs.choices.roots import selecting
from interop._programs.choices.selections import abs
from interop._programs.dual_fast_paths import FASTER
from interop._programs.order import Sign, as_is, may_be_at, place_of_largest, value_and_tangent, value_of
from interop._torch.forms import axes_of
from interop._torch.private_api import number_apart
from interop.native._rules.reductions import with_reduced_axes

Tensor = torch.Tensor
Function: TypeAlias = Callable[..., Any]


def taken(input: Tensor, dim: int, index: Tensor, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Return the one element along ``dim`` that ``index`` names, and the index; the axis stays if ``keepdim``."""
    values = input.gather(dim, index)
    return (values, index) if keepdim else (number_apart(values.squeeze(dim)), index.squeeze(dim))


def with_indices(name: str, sign: Sign) -> Function:
    """Return `torch.max` or `torch.min` of one axis, which has indices too."""

    @selecting
    def along_an_axis(input: Tensor, dim: int, keepdim: bool = False) -> Any:
        place = place_of_largest(input, dim, sign)
        return getattr(torch.return_types, name)(taken(input, dim, place, keepdim))

    return along_an_axis


def extremum(sign: Sign) -> Function:
    """Return `torch.amax` or `torch.amin`."""

    @selecting
    def reduced(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        axes = axes_of(dim, input.dim())
        flat = input.movedim(axes, tuple(range(-len(axes), 0))).flatten(-len(axes))
        result, _ = taken(flat, -1, place_of_largest(flat, -1, sign), False)
        return with_reduced_axes(result, axes, keeps=False) if keepdim else result

    return reduced


amax, amin = extremum(as_is), extremum(torch.neg)


def index(sign: Sign) -> Function:
    """Return `torch.argmax` or `torch.argmin`."""

    def of_extremum(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is not None:
            place = place_of_largest(input, dim, sign)
            return place if keepdim else place.squeeze(dim)
        place = place_of_largest(input.flatten(), 0, sign)
        return place.reshape([1] * input.dim() if keepdim else [])

    return of_extremum


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    return torch.return_types.aminmax((amin(input, dim, keepdim), amax(input, dim, keepdim)))


def norm(in_torch: Function) -> Function:
    """Return torch's norm of vectors; orders below 1 are left to torch."""

    def of_order(input: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
        order = kwargs.pop("ord", p)  # torch.norm calls it p, torch.linalg ord
        order = 2 if order in ("fro", None) else order
        if order in (1, math.inf, -math.inf):
            size = abs(input.to(kwargs.get("dtype")))  # to None it is the same tensor
            return size.sum(dim, keepdim) if order == 1 else (amax if order > 0 else amin)(size, dim, keepdim)
        if isinstance(order, str) or not order > 1:
            return in_torch(input, order, dim, keepdim, **kwargs)
        return smooth_norm(input.to(kwargs.get("dtype")), dim, keepdim, order)

    return of_order


def smooth_norm(input: Tensor, dim: Any, keepdim: bool, order: float = 2) -> Tensor:
    """Return a norm of an order above 1; at 0, where x moves by v, as the piece x -> g . x with its gradient g at v."""
    axes = axes_of(dim, input.dim())
    result: Tensor = torch.linalg.vector_norm(input, order, axes, keepdim=keepdim)
    if not may_be_at(result, 0.0):
        return result
    value, tangent = value_and_tangent(input)
    at_0 = (value == 0).all(axes, keepdim=True)
    speed = torch.linalg.vector_norm(tangent, order, axes, keepdim=True)
    share = tangent / speed
    slope = torch.where(at_0 & (speed != 0), share.sgn() * share.abs() ** (order - 1), 0.0)  # v / |v| for order 2
    # At 0 the norm is that of ones: its own second derivatives there, NaN, would meet the cotangent 0 of a branch that
    # is not taken.
    elsewhere = torch.linalg.vector_norm(torch.where(at_0, 1.0, input), order, axes, keepdim=True)
    result = torch.where(at_0, (input * slope.conj()).real.sum(axes, keepdim=True), elsewhere)
    return result if keepdim else result.squeeze(axes)


def hypot(input: Tensor, other: Tensor) -> Tensor:
    """Return the hypotenuse over two legs; where both are 0 as the piece that is entered, as in `smooth_norm`."""
    result = torch.hypot(input, other)
    if not may_be_at(result, 0.0):
        return result
    # By `where` an operand without axes gets some, and would change the dtype.
    a, b = (leg.to(result.dtype) for leg in (input, other))
    (x, dx), (y, dy) = value_and_tangent(a), value_and_tangent(b)
    at_0 = (x == 0) & (y == 0)
    speed = torch.hypot(dx, dy)
    is_entered = at_0 & (speed != 0)
    piece = a * torch.where(is_entered, dx / speed, 0.0) + b * torch.where(is_entered, dy / speed, 0.0)
    return torch.where(at_0, piece, torch.hypot(torch.where(at_0, 1.0, a), torch.where(at_0, 1.0, b)))


vector_norm = norm(torch.linalg.vector_norm)


def matrix_norm(input: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, **kwargs: Any) -> Tensor:
    """Compute a norm of sums or squares of elements; those of singular values are torch's."""
    is_of_matrices = len(axes_of(dim, input.dim())) == 2  # else torch refuses it
    if ord == "fro" and is_of_matrices:
        return smooth_norm(input.to(kwargs.get("dtype")), dim, keepdim)
    if ord not in (1, -1, math.inf, -math.inf) or not is_of_matrices:
        return torch.linalg.matrix_norm(input, ord, dim, keepdim, **kwargs)
    # The 1-norm is the largest sum of a column, along the first of the two axes, the norm of infinity that of a row.
    summed, over = dim if ord in (1, -1) else dim[::-1]
    sums = abs(input.to(kwargs.get("dtype"))).sum(summed, keepdim=True)
    result: Tensor = (amax if ord > 0 else amin)(sums, over, True)
    return result if keepdim else result.squeeze(dim)


def norm_of_either(input: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Tensor:
    """Compute `torch.linalg.norm`, of vectors along one axis, or of matrices along two."""
    axes = axes_of(dim, input.dim())
    is_named = not isinstance(dim, Sequence) or len(dim)
    if (ord, dim) != (None, None) and not (is_named and len(axes) in (1, 2)):  # torch refuses it
        return torch.linalg.norm(input, ord, dim, keepdim, **kwargs)
    if ord is None:
        return smooth_norm(input.to(kwargs.get("dtype")), axes, keepdim)
    return (matrix_norm if len(axes) == 2 else vector_norm)(input, ord, axes, keepdim, **kwargs)


_plus, _minus = FASTER[torch.add], FASTER[torch.sub]


def dist(input: Tensor, other: Tensor, p: float = 2.0) -> Tensor:
    return vector_norm(_minus(input, other), p)


def pairwise_distance(input: Tensor, other: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    return vector_norm(_plus(_minus(input, other), eps), p, -1, keepdim)


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """Compute the distances between the rows of two matrices, with the values of torch's own function."""
    distances = vector_norm(_minus(x1.unsqueeze(-2), x2.unsqueeze(-3)), p, -1)
    return _with_value(distances, torch.cdist(value_of(x1), value_of(x2), p, compute_mode))


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """Compute the distances between the rows of a matrix, as `cdist`."""
    i, j = torch.triu_indices(len(input), len(input), 1, device=input.device)
    return _with_value(vector_norm(_minus(input[i], input[j]), p, -1), torch.pdist(value_of(input), p))


def _with_value(x: Tensor, value: Tensor) -> Tensor:
    """Return ``value``, as torch computes it, often by a product of matrices, with the derivatives of ``x``."""
    # The difference of two equal infinities would be NaN.
    return x + torch.where(value == (here := value_of(x)), 0.0, value - here)


def norm_except_dim(v: Tensor, pow: float = 2, dim: int = 0) -> Tensor:
    """Return the norms along all axes but one, or that of the whole if that is -1."""
    of_the_whole = dim == -1
    axes = [axis for axis in range(v.dim()) if of_the_whole or axis != dim % v.dim()]
    return vector_norm(v, pow, axes, not of_the_whole)


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    return v * (g / norm_except_dim(v, 2, dim))


def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Shrink the slices whose norm is above ``maxnorm``, as torch's kernel does, with its 1e-7."""
    if not p > 0 or not maxnorm >= 0 or input.dim() < 2:  # torch refuses it
        return torch.renorm(input, p, dim, maxnorm)
    axes_of_slice = set(range(input.dim())).difference(axes_of(dim, input.dim()))
    size = torch.linalg.vector_norm(input, p, tuple(axes_of_slice), keepdim=True)
    return torch.where(size > maxnorm, input * (maxnorm / (size + 1e-7)), input)
