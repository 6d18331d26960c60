"""The functions of torch that clamp on the way, with the clamp of this package: losses with a margin, and normalize.

Where nothing is differentiated, each is torch's own function, unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from interop._torch.autocast import in_full_precision
from interop._torch.grad_state import is_active
from interop._torch.private_api import named_reduction
from interop.native.decorators import public
from interop.native.norms import norm
from interop.native.selection import clamp_min, minimum
from jaxclamp import Convention
from jaxclamp._shared.version_derivatives import Version

Tensor = torch.Tensor


@public
def normalize(
    input: Tensor,
    p: float = 2.0,
    dim: Any = 1,
    eps: float = 1e-12,
    out: Tensor | None = None,
    *,
    ties: Convention = "min_norm",
) -> Tensor:
    """`torch.nn.functional.normalize`."""
    if out is not None or not is_active(input):
        return functional.normalize(input, p, dim, eps, out)
    # Ours has second derivatives at 0, where the quotient is linear: those of torch's own are NaN. Away from 0 the two
    # round otherwise, and a version of torch has torch's.
    length = torch.norm if isinstance(ties, Version) else norm
    return input / clamp_min(length(input, p, dim, keepdim=True), eps, ties=ties).expand_as(input)


@public
def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    *,
    ties: Convention = "min_norm",
) -> Tensor:
    """`torch.nn.functional.margin_ranking_loss`."""
    # What torch refuses goes to torch, here and below: the error is its own.
    same_dims = input1.dim() == input2.dim() == target.dim()
    if not same_dims or not is_active(input1, input2, target):
        return functional.margin_ranking_loss(input1, input2, target, margin, size_average, reduce, reduction)
    input1, input2, target = in_full_precision(input1, input2, target)
    loss = clamp_min(-target * (input1 - input2) + margin, 0, ties=ties)
    return reduced(loss, size_average, reduce, reduction)


@public
def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    *,
    ties: Convention = "min_norm",
) -> Tensor:
    """`torch.nn.functional.hinge_embedding_loss`."""
    if not is_active(input, target):
        return functional.hinge_embedding_loss(input, target, margin, size_average, reduce, reduction)
    input, target = in_full_precision(input, target)
    # As torch's own code: both terms count for a target that is neither 1 nor -1.
    below = torch.where(target != 1, clamp_min(margin - input, 0, ties=ties), 0.0)
    return reduced(below + torch.where(target != -1, input, 0.0), size_average, reduce, reduction)


@public
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    *,
    ties: Convention = "min_norm",
) -> Tensor:
    """`torch.nn.functional.triplet_margin_loss`."""
    same_dims = anchor.dim() == positive.dim() == negative.dim()
    if margin <= 0 or not same_dims or not is_active(anchor, positive, negative):  # torch refuses a margin of 0
        return functional.triplet_margin_loss(
            anchor, positive, negative, margin, p, eps, swap, size_average, reduce, reduction
        )

    anchor, positive, negative = in_full_precision(anchor, positive, negative)

    def distance(x: Tensor, y: Tensor) -> Tensor:
        return functional.pairwise_distance(x, y, p, eps)

    loss = _of_triplet(anchor, positive, negative, distance, margin, swap, ties)
    return reduced(loss, size_average, reduce, reduction)


@public
def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
    ties: Convention = "min_norm",
) -> Tensor:
    """`torch.nn.functional.triplet_margin_with_distance_loss`."""
    same_dims = anchor.dim() == positive.dim() == negative.dim()
    if margin <= 0 or not same_dims or not is_active(anchor, positive, negative):
        return functional.triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            distance_function=distance_function,
            margin=margin,
            swap=swap,
            reduction=reduction,
        )
    distance = functional.pairwise_distance if distance_function is None else distance_function
    return reduced(_of_triplet(anchor, positive, negative, distance, margin, swap, ties), None, None, reduction)


def _of_triplet(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    distance: Callable[[Tensor, Tensor], Tensor],
    margin: float,
    swap: bool,
    ties: Convention,
) -> Tensor:
    to_positive, to_negative = distance(anchor, positive), distance(anchor, negative)
    if swap:
        to_negative = minimum(to_negative, distance(positive, negative), ties=ties)
    return clamp_min(margin + to_positive - to_negative, 0, ties=ties)


def reduced(loss: Tensor, size_average: bool | None, reduce: bool | None, reduction: str) -> Tensor:
    """Return the loss of each element as the arguments of torch's losses ask for it."""
    match named_reduction(size_average, reduce, reduction):
        case "mean":
            return loss.mean()
        case "sum":
            return loss.sum()
    return loss


def _ranking_on_tie(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, *_: Any, **__: Any) -> Tensor:
    input1, input2, target = in_full_precision(input1, input2, target)
    return -target * (input1 - input2) + margin == 0


def _hinge_on_tie(input: Tensor, target: Tensor, margin: float = 1.0, *_: Any, **__: Any) -> Tensor:
    input, target = in_full_precision(input, target)
    return (target != 1) & (input == margin)


def _triplet_on_tie(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    *_: Any,
    **__: Any,
) -> Tensor:
    anchor, positive, negative = in_full_precision(anchor, positive, negative)
    to_negative = functional.pairwise_distance(anchor, negative, p, eps)
    swapped = functional.pairwise_distance(positive, negative, p, eps) if swap else to_negative
    loss = margin + functional.pairwise_distance(anchor, positive, p, eps) - torch.minimum(to_negative, swapped)
    # Below 0 the loss is cut off, and which distance is smaller does not count.
    return (loss == 0) | ((loss > 0) & (to_negative == swapped)) if swap else loss == 0


ON_TIE: Mapping[Callable[..., Any], Callable[..., Tensor]] = {
    **dict.fromkeys((functional.margin_ranking_loss, margin_ranking_loss), _ranking_on_tie),
    **dict.fromkeys((functional.hinge_embedding_loss, hinge_embedding_loss), _hinge_on_tie),
    **dict.fromkeys((functional.triplet_margin_loss, triplet_margin_loss), _triplet_on_tie),
}
"""Maps a loss, of torch or here, to what says where it is on a tie, of its elements before they are reduced."""
