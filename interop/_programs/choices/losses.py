"""Losses and other functions with choices in them, written out in functions whose choices are decided.

The arithmetic between these is that of `torch`: `_spelled_out` of `interop/_programs/decided.py` calls them in a block
of their own, where it is decided and fast.
"""

import torch
from torch.nn import functional

from interop._programs.choices.kinks import at_kinks
from interop._programs.choices.selections import abs, maximum
from interop._programs.dual_fast_paths import FastPaths, as_floats
from interop._programs.order import may_be_at, value_of
from interop._torch.autocast import in_full_precision
from interop._torch.private_api import named_reduction
from interop.native.losses import reduced

Tensor = torch.Tensor


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """Compute the logit of a clamped number."""
    if eps is None or eps > 0.5:  # all numbers lie on or beyond bounds that are crossed, and torch has another order
        return torch.logit(input, eps)
    return torch.logit(torch.clamp(input, eps, 1 - eps))


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """Compute the loss by `abs`, whose sign is decided."""
    if weight is None:
        input, target = in_full_precision(*torch.broadcast_tensors(input, target))  # as torch, before it promotes
        return reduced(abs(input - target), size_average, reduce, reduction)
    if weight.size() != input.size():
        raise ValueError("l1_loss: weight and input must have the same size.")
    loss = abs(input - target) * weight
    reduction = named_reduction(size_average, reduce, reduction)
    return loss.sum() / weight.sum() if reduction == "mean" else reduced(loss, None, None, reduction)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """Compute the loss by the piece that is entered: a parabola up to ``beta``, and a line beyond."""
    input, target = as_floats(input, target)
    if not beta:
        with FastPaths():
            return l1_loss(input, target, size_average, reduce, reduction)
    # Where the pieces meet their slopes agree, and those of the slopes do not: they count in a gradient of a gradient.
    if not may_be_at(value_of(input) - value_of(target), -beta, beta):
        return functional.smooth_l1_loss(input, target, size_average, reduce, reduction, beta)

    def loss(difference: Tensor) -> Tensor:
        return functional.smooth_l1_loss(difference, torch.zeros_like(difference), reduction="none", beta=beta)

    with FastPaths():
        losses = at_kinks(loss, {-beta: 0, beta: 0}, torch.sub(*in_full_precision(input, target)))
        return reduced(losses, size_average, reduce, reduction)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """Compute the loss as `smooth_l1_loss`, of whose gradient torch has forward mode."""
    input, target = in_full_precision(input, target)
    if not delta > 0 or input.dtype != target.dtype or (weight is not None and weight.size() != input.size()):
        return functional.huber_loss(input, target, reduction, delta, weight)  # type: ignore[call-arg]  # it refuses
    loss = smooth_l1_loss(input, target, reduction="none" if weight is not None else reduction, beta=delta)
    with FastPaths():
        return loss * delta if weight is None else reduced(loss * delta * weight, None, None, reduction)


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Compute ``max(margin - x[target] + x, 0) ** p`` for each class but the target."""
    if p not in (1, 2) or (weight is not None and weight.numel() != input.shape[-1]):  # which torch refuses
        return functional.multi_margin_loss(value_of(input), target, p, margin, weight)
    (scores,), targets = in_full_precision(torch.atleast_2d(input)), target.reshape(-1, 1)
    beyond = maximum(margin - scores.gather(1, targets) + scores, 0.0) ** p
    if weight is not None:
        beyond = beyond * weight[targets]
    # The mean is over all classes: the target is one of them, and adds nothing.
    loss = beyond.scatter(1, targets, 0.0).mean(1).reshape(target.shape)
    return reduced(loss, size_average, reduce, reduction)


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Compute ``1 - cos`` for the target 1, and for -1 ``max(cos - margin, 0)``."""
    # For the target 1 the loss is 1 - cos, without a choice: the one for -1, max(cos - margin, 0), is made of it.
    similar = functional.cosine_embedding_loss(input1, input2, torch.ones_like(target), reduction="none")
    loss = torch.where(target == 1, similar, maximum(1 - similar - margin, 0.0).where(target == -1, 0.0))
    return reduced(loss, size_average, reduce, reduction)
