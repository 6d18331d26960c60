"""Small torch programs at points where choices tie: does `interop.grad` give a wrong gradient without a word?

The truth is torch's own: its gradient a small step along a direction, where nothing ties, and the difference of values.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import interop
import jaxclamp
from jaxclamp._transforms import undecided
from tests.programs.functions_at_ties_torch import (
    EQUAL,
    GRID,
    ONES,
    POINT,
    ZEROS,
    Program,
    ReluWithJvp,
    ReluWithoutJvp,
    Tensor,
    aten,
    attention,
    bellman_ford,
    binarised,
    bisected,
    box_distance,
    bubble,
    by_an_if,
    by_elif,
    called,
    cell,
    clipped_by_norm,
    conjugate_gradient,
    eps_insensitive,
    forward_inside,
    friction,
    fused_attention,
    gated,
    group_shrunk,
    hard_attention,
    huber,
    interpolated,
    l1_ball,
    learned_step,
    looked_up_by_bucketize,
    looked_up_by_counting,
    looked_up_by_floor,
    looked_up_by_long,
    looked_up_by_moving_searchsorted,
    looked_up_by_searchsorted,
    masked_attention,
    masked_without_grad,
    median_filter,
    module,
    negated_by_index,
    negatives_by_index,
    newton_of_relu,
    numbers,
    over,
    overwritten,
    penalty,
    penalty_by_autograd,
    pinball,
    recurrent,
    rows,
    running_maximum,
    simplex,
    sparsemax,
    spring,
    stable_cross_entropy,
    stable_logsumexp,
    stable_sigmoid,
    stable_softmax,
    straight_through,
    straight_through_then_clip,
    time_warping,
    total_variation,
    unpooled,
    until_settled,
    viterbi,
    water_filling,
)
from tests.support.imports import TESTS

PROGRAMS: dict[str, tuple[Program, Any]] = {
    # Rectifiers, clamps and absolute values, as functions, methods, in place and by hand.
    "relu": (torch.relu, POINT),
    "functional.relu": (F.relu, POINT),
    "x.relu()": (lambda x: x.relu(), POINT),
    "relu_": (lambda x: (x * 1).relu_(), POINT),
    "relu, inplace": (lambda x: F.relu(x * 1, inplace=True), POINT),
    "relu(x) - relu(-x)": (lambda x: torch.relu(x) - torch.relu(-x), POINT),
    "relu(relu(x)) - relu(-x)": (lambda x: torch.relu(torch.relu(x)) - torch.relu(-x), POINT),
    "maximum with zeros": (lambda x: torch.maximum(x, torch.zeros_like(x)), POINT),
    "max of two tensors": (lambda x: torch.max(x, torch.zeros_like(x)), POINT),
    "maximum with the reversed": (lambda x: torch.maximum(x, x.flip(0)), EQUAL),
    "minimum with the reversed": (lambda x: x.minimum(x.flip(0) * 1), EQUAL),
    "fmax": (lambda x: torch.fmax(x, 0 * x), POINT),
    "fmin": (lambda x: torch.fmin(x, x**2), POINT),
    "clamp, min": (lambda x: x.clamp(min=0), POINT),
    "clamp": (lambda x: torch.clamp(x, 0, 1), POINT),
    "clip": (lambda x: x.clip(0, 1), POINT),
    "clamp_": (lambda x: overwritten(x, "clamp_", 0, 1), POINT),
    "clamp_min": (lambda x: torch.clamp_min(x, 1.0), POINT),
    "clamp_max_": (lambda x: overwritten(x, "clamp_max_", 1.0), POINT),
    "clamp, tensors": (lambda x: torch.clamp(x, torch.zeros(4).double(), torch.ones(4).double()), POINT),
    "clamp, moving bounds": (lambda x: torch.clamp(x, -x[1], x[3] * x[3]), POINT),
    "clamp, one bound": (lambda x: x.clamp(0, 0) + x, POINT),
    "clamp, crossed bounds": (lambda x: x.clamp(x[1], x[0]), POINT),
    "where(x > 0)": (lambda x: torch.where(x > 0, x, 0.0), POINT),
    "where(x >= 0)": (lambda x: torch.where(x >= 0, x, 0.01 * x), POINT),
    "where(x < 0), of zeros": (lambda x: torch.where(x < 0, torch.zeros_like(x), x), POINT),
    "where(0 < x)": (lambda x: torch.where(torch.tensor(0.0) < x, x, -x), POINT),
    "x.where": (lambda x: x.where(x.gt(0), x.new_zeros(())), POINT),
    "where, nested": (lambda x: torch.where(x < 0, 0.0, torch.where(x > 1, 1.0, x)), POINT),
    "where, both conditions": (lambda x: torch.where((x > 0) & (x < 1), x, x.clamp(0, 1)), POINT),
    "where, not": (lambda x: torch.where(~(x > 0), -x, x), POINT),
    "where, either": (lambda x: torch.where((x < 0) | (x > 1), x - x * x, 0.0), POINT),
    "where, exclusive or": (lambda x: torch.where((x > 0) ^ (x > 1), x, x.clamp(0, 1)), POINT),
    "where, logical_and": (lambda x: torch.where(torch.logical_and(x >= 0, x <= 1), x, x.clamp(0, 1)), POINT),
    "where, logical_not": (lambda x: torch.where(torch.logical_not(torch.relu(x)), -x, x), POINT),
    "where(x == 0), both defined": (lambda x: torch.where(x == 0, 3 * x, x), POINT),
    "where(x != 1)": (lambda x: torch.where(x != 1, x, 2 - x), POINT),
    "x * (x > 0)": (lambda x: x * (x > 0), POINT),
    "x * (x > 0).double()": (lambda x: x * (x > 0).double(), POINT),
    "x * (x > 0).to(x)": (lambda x: x * (x > 0).to(x), POINT),
    "x * x.gt(0).type_as(x)": (lambda x: x * x.gt(0).type_as(x), POINT),
    "relu by bool()": (lambda x: x * torch.relu(x).bool(), POINT),
    "relu by to(bool)": (lambda x: x * torch.relu(x).to(torch.bool), POINT),
    "x[x > 0].sum()": (lambda x: x[x > 0].sum(), POINT),
    "x[x > 0] ** 2": (lambda x: (x[x >= 0] ** 2).sum() + x[x < 0].sum(), POINT),
    "masked_select": (lambda x: x.masked_select(x > 0).sum(), POINT),
    "masked_fill": (lambda x: x.masked_fill(x < 0, 0.0), POINT),
    "masked_fill_": (lambda x: (x * 1).masked_fill_(x < 0, 0.0), POINT),
    "masked_scatter": (lambda x: x.masked_scatter(x < 0, -x[x < 0]), POINT),
    "x[x < 0] = 0": (negatives_by_index, POINT),
    "x[x < 0] = -x[x < 0]": (negated_by_index, POINT),
    "nonzero of a mask": (lambda x: x[(x > 0).nonzero()[:, 0]].sum(), POINT),
    "where of a mask": (lambda x: x[torch.where(x > 0)].sum(), POINT),
    "(x + |x|) / 2": (lambda x: (x + x.abs()) / 2, POINT),
    "x * (1 + sign(x)) / 2": (lambda x: x * (1 + torch.sign(x)) / 2, POINT),
    "abs": (torch.abs, POINT),
    "abs_": (lambda x: overwritten(x, "abs_"), POINT),
    "absolute": (lambda x: torch.absolute(x), POINT),
    "abs() of Python": (lambda x: abs(x), POINT),
    "abs of abs": (lambda x: (x.abs() - 1).abs(), POINT),
    "|x| by relus": (lambda x: torch.relu(x) + torch.relu(-x) - x.abs(), POINT),
    "x.sign() * x": (lambda x: x.sign() * x, POINT),
    "sgn": (lambda x: x.sgn() * x, POINT),
    "x / (|x| + 1)": (lambda x: x / (x.abs() + 1), POINT),
    "x^2 / |x|": (lambda x: torch.where(x == 0, 0.0, x**2 / x.abs()), POINT),
    "sqrt(x^2)": (lambda x: (x**2).sqrt(), POINT),
    "masked.std": (lambda x: torch.masked.std(x, 0, True, mask=torch.tensor([True, True, False, True])), ONES),
    "sin(x) / x": (lambda x: torch.where(x == 0, 1.0, x.sin() / x), POINT),
    "sinc": (torch.sinc, POINT),
    "relu(x)^2.5": (lambda x: torch.relu(x) ** 2.5, POINT),
    "relu(x)^0.5 * relu(x)^2": (lambda x: torch.relu(x) ** 0.5 * torch.relu(x) ** 2, POINT),
    "xlogy": (lambda x: torch.xlogy(torch.relu(x) ** 2, torch.relu(x)), POINT),
    "hypot": (lambda x: torch.hypot(x, torch.zeros_like(x)), POINT),
    "dead zone": (lambda x: torch.sign(x) * torch.relu(x.abs() - 1), POINT),
    "soft threshold by parts": (lambda x: torch.relu(x - 1) - torch.relu(-x - 1), POINT),
    "copysign of ones": (lambda x: x * torch.copysign(torch.ones_like(x), x), POINT),
    "copysign of |x|": (lambda x: torch.copysign(x.abs(), x), POINT),
    "signbit": (lambda x: torch.where(x.signbit(), -x, x), POINT),
    "second order": (lambda x: torch.where(x * x > 0, x, -x), POINT),
    "second order, of relu": (lambda x: torch.where(torch.relu(x) ** 2 > 0, x, 0.0), POINT),
    "angle": (lambda x: torch.angle(x) * torch.relu(-x), POINT),
    "atan2": (lambda x: torch.atan2(x, -torch.ones_like(x)).abs(), POINT),
    "|z| of complex numbers": (lambda x: torch.complex(x, 0 * x).abs(), POINT),
    "nan_to_num": (lambda x: torch.relu(x).nan_to_num(), POINT),
    "lerp by a mask": (lambda x: torch.lerp(-x, x, (x > 0).double()), POINT),
    "addcmul by a mask": (lambda x: torch.addcmul(x, x, (x < 0).double(), value=-2), POINT),
    "isclose": (lambda x: torch.where(torch.isclose(x, torch.ones_like(x), 0.0, 0.0), x, x**2), POINT),
    "prod": (lambda x: torch.relu(x).prod(), POINT),
    "cumprod": (lambda x: x.cumprod(0), POINT),
    # Activations.
    "relu6": (lambda x: F.relu6(6 * x), POINT),
    "hardtanh": (F.hardtanh, POINT),
    "hardtanh_": (lambda x: F.hardtanh_(x * 1, 0.0, 1.0), POINT),
    "hardsigmoid": (lambda x: F.hardsigmoid(3 * x), POINT),
    "hardswish": (lambda x: F.hardswish(3 * x), POINT),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), POINT),
    "leaky_relu_": (lambda x: F.leaky_relu_(x * 1, 0.2), POINT),
    "prelu": (lambda x: F.prelu(x, x[1:2] / 4), POINT),
    "special.i0e": (torch.special.i0e, POINT),
    "rrelu, in evaluation": (lambda x: F.rrelu(x), POINT),
    "elu": (lambda x: F.elu(x, 2.0), POINT),
    "elu_": (lambda x: F.elu_(x * 1, 2.0), POINT),
    "celu": (lambda x: F.celu(x, 2.0), POINT),
    "selu": (F.selu, POINT),
    "softshrink": (lambda x: F.softshrink(x, 1.0), POINT),
    "threshold": (lambda x: F.threshold(x, 1.0, 1.0), POINT),
    "threshold_": (lambda x: F.threshold_(x * 1, 0.0, 0.0), POINT),
    "softplus, past its threshold": (lambda x: F.softplus(x, 20.0, 20.0), POINT),
    "softsign": (F.softsign, POINT),
    "logsigmoid": (F.logsigmoid, POINT),
    "logit, eps": (lambda x: torch.logit((x + 2) / 4, 0.25), [-1.0, 1.0, 0.0, 1.0]),
    "squared relu": (lambda x: F.relu(x).square(), POINT),
    "crelu": (lambda x: torch.cat([F.relu(x), F.relu(-x)]), POINT),
    "maxout": (lambda x: rows(x).max(1).values, EQUAL),
    "glu of relu": (lambda x: F.glu(F.relu(x), 0), POINT),
    # Reductions and orders.
    "amax": (lambda x: x.amax(), EQUAL),
    "amin": (lambda x: torch.amin(x, 0), EQUAL),
    "amax, two axes": (lambda x: x.reshape(2, 2, 1).amax((0, 1)), EQUAL),
    "max": (lambda x: x.max(), EQUAL),
    "min": (lambda x: torch.min(x), EQUAL),
    "max, axis": (lambda x: rows(x).max(dim=0).values, ONES),
    "max, keepdim": (lambda x: torch.max(rows(x), 1, keepdim=True)[0], ONES),
    "min, unpacked": (lambda x: next(iter(rows(x).min(1))), ONES),
    "max of a stack": (lambda x: torch.stack([x, -x, 0 * x]).amax(0), POINT),
    "max of Python": (lambda x: max(x), EQUAL),
    "sorted of Python": (lambda x: torch.stack(sorted(x)), EQUAL),
    "aminmax": (lambda x: torch.subtract(*reversed(torch.aminmax(x))), EQUAL),
    "x[argmax]": (lambda x: x[x.argmax()], EQUAL),
    "x[argmin]": (lambda x: x[torch.argmin(x)], EQUAL),
    "gather by argmax": (lambda x: rows(x).gather(1, rows(x).argmax(1, keepdim=True)), ONES),
    "take_along_dim": (lambda x: torch.take_along_dim(x, x.argsort(), 0)[:2], EQUAL),
    "one_hot of argmax": (lambda x: (F.one_hot(x.argmax(), 4) * x).sum(), EQUAL),
    "x == x.max()": (lambda x: (x * (x == x.max())).sum() / (x == x.max()).sum(), EQUAL),
    "index_select": (lambda x: x.index_select(0, x.argmax(keepdim=True)), EQUAL),
    "unravel_index": (lambda x: rows(x)[torch.unravel_index(x.argmax(), (2, 2))], EQUAL),
    "norm of order inf by max": (lambda x: x.abs().max(), POINT),
    "topk": (lambda x: x.topk(2).values, EQUAL),
    "topk, smallest": (lambda x: torch.topk(x, 3, largest=False)[0], EQUAL),
    "topk, a mask": (lambda x: x.masked_fill(x < x.topk(3).values[-1], 0.0).topk(3)[0], EQUAL),
    "sort": (lambda x: torch.sort(x).values, EQUAL),
    "sort, descending": (lambda x: x.sort(descending=True)[0], EQUAL),
    "argsort": (lambda x: x[x.argsort()], EQUAL),
    "msort": (torch.msort, EQUAL),
    "kthvalue": (lambda x: x.kthvalue(2).values, EQUAL),
    "median": (lambda x: x.median(), EQUAL),
    "median, axis": (lambda x: rows(x).median(1).values, ONES),
    "nanmedian": (lambda x: torch.nanmedian(x), EQUAL),
    "quantile": (lambda x: x.quantile(0.5), ONES),
    "quantile, between": (lambda x: torch.quantile(x, 0.75), EQUAL),
    "nanquantile": (lambda x: x.nanquantile(0.4), EQUAL),
    "mode": (lambda x: x.mode().values, EQUAL),
    "unique": (lambda x: torch.unique(x), EQUAL),
    "cummax": (lambda x: x.cummax(0).values, EQUAL),
    "cummin": (lambda x: torch.cummin(x, 0)[0], EQUAL),
    "logsumexp": (lambda x: torch.logsumexp(x, 0), EQUAL),
    "std": (lambda x: x.std(), ONES),
    "std_mean": (lambda x: torch.stack(torch.std_mean(x)), ONES),
    "var": (lambda x: x.var(), ONES),
    "standardised": (lambda x: (x - x.mean()) / (x.std() + 1), ONES),
    "scatter_reduce": (
        lambda x: torch.zeros(2).double().scatter_reduce(0, torch.tensor([0, 1, 1, 0]), x, "amax"),
        ONES,
    ),
    "scatter_reduce_": (lambda x: (0 * x).scatter_reduce_(0, torch.tensor([0, 1, 1, 0]), x, "amin"), POINT),
    "index_reduce": (lambda x: (0 * x).index_reduce(0, torch.tensor([0, 1, 1, 0]), x, "amax"), POINT),
    "scatter_reduce, prod": (
        lambda x: torch.ones(2).double().scatter_reduce(0, torch.tensor([0, 1, 1, 0]), x, "prod"),
        POINT,
    ),
    "bubble sort": (bubble, EQUAL),
    "a running maximum": (running_maximum, EQUAL),
    "median filter": (median_filter, EQUAL),
    "trimmed mean": (lambda x: x.sort().values[1:-1].mean(), EQUAL),
    "range": (lambda x: x.max() - x.min(), EQUAL),
    "histc": (lambda x: torch.relu(x).sum() * torch.histc(x, 2, -3, 3).sum(), POINT),
    "count_nonzero": (lambda x: torch.count_nonzero(torch.relu(x)) * 0 + torch.relu(x), POINT),
    "any of a mask": (lambda x: x if (x > 1).any() else x.clamp(max=1), POINT),
    "all of a mask": (lambda x: x if (x[1:2] >= 1).all() else x * x[1], POINT),
    # Norms and distances.
    "norm, 1": (lambda x: x.norm(1), POINT),
    "norm, inf": (lambda x: x.norm(math.inf), EQUAL),
    "vector_norm, 1": (lambda x: torch.linalg.vector_norm(x, 1), POINT),
    "vector_norm, -inf": (lambda x: torch.linalg.vector_norm(x, -math.inf), POINT),
    "norm, 2, at 0": (lambda x: x.norm(), ZEROS),
    "norm, 2, half of it 0": (lambda x: rows(x).norm(dim=1), [0.0, 0.0, 1.0, 1.0]),
    "norm, 3": (lambda x: x.norm(3), POINT),
    "matrix_norm, 1": (lambda x: torch.linalg.matrix_norm(rows(x), 1), ONES),
    "matrix_norm, inf": (lambda x: torch.linalg.norm(rows(x), math.inf), ONES),
    "matrix_norm, 2": (lambda x: torch.linalg.matrix_norm(rows(x), 2), [1.0, 0.0, 0.0, 1.0]),
    "matrix_norm, fro, at 0": (lambda x: torch.linalg.matrix_norm(rows(x)), ZEROS),
    "nuclear norm": (lambda x: torch.linalg.matrix_norm(rows(x), "nuc"), [1.0, 1.0, 1.0, 1.0]),
    "normalize, 1": (lambda x: F.normalize(x, p=1, dim=0), POINT),
    "normalize, at eps": (lambda x: F.normalize(x, p=1, dim=0, eps=4.0), POINT),
    "dist, inf": (lambda x: torch.dist(x, 0 * x, math.inf), EQUAL),
    "pairwise_distance": (lambda x: F.pairwise_distance(rows(x), 0 * rows(x), p=1, eps=0.0), POINT),
    "cdist": (lambda x: torch.cdist(x[:, None], x[:, None], p=1), EQUAL),
    "pdist": (lambda x: F.pdist(x[:, None], p=1), EQUAL),
    "cosine_similarity": (lambda x: F.cosine_similarity(F.relu(x), torch.ones_like(x), 0), POINT),
    "renorm": (lambda x: rows(x).renorm(1, 0, 2.0), ONES),
    "clipped by its norm": (clipped_by_norm, POINT),
    "distance to a box": (box_distance, POINT),
    "total variation": (total_variation, EQUAL),
    "distance to the nearest": (lambda x: (x[:, None] - torch.tensor([-1.0, 1.0])).abs().amin(1), POINT),
    # Losses.
    "l1_loss": (lambda x: F.l1_loss(x, torch.ones_like(x)), POINT),
    "l1_loss, none": (lambda x: F.l1_loss(x, torch.zeros_like(x), reduction="none"), POINT),
    "smooth_l1_loss": (lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="sum"), POINT),
    "smooth_l1_loss, beta 0": (lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), beta=0.0), POINT),
    "huber_loss": (lambda x: F.huber_loss(x, torch.zeros_like(x)), POINT),
    "huber by hand": (huber, POINT),
    "pinball loss": (pinball, POINT),
    "insensitive loss": (eps_insensitive, [1.0, 3.0, 2.0, 1.0]),
    "hinge by hand": (lambda x: F.relu(1 - x).sum(), POINT),
    "squared hinge": (lambda x: (1 - x).clamp(min=0) ** 2, POINT),
    "hinge_embedding_loss": (lambda x: F.hinge_embedding_loss(x, torch.tensor([1, -1, 1, -1])), POINT),
    "margin_ranking_loss": (
        lambda x: F.margin_ranking_loss(x[:2], x[2:], torch.ones(2), margin=2.0),
        [0.0, 1.0, -2.0, -1.0],
    ),
    "triplet_margin_loss": (
        lambda x: F.triplet_margin_loss(x[None, :1], x[None, 1:2], x[None, 3:], margin=1.0, eps=0.0, p=1),
        [0.0, 1.0, 2.0, -2.0],
    ),
    "multi_margin_loss": (lambda x: F.multi_margin_loss(rows(x), torch.tensor([0, 1])), POINT),
    "multilabel_margin_loss": (lambda x: F.multilabel_margin_loss(x, torch.tensor([1, -1, 0, 2])), POINT),
    "cosine_embedding_loss": (
        lambda x: F.cosine_embedding_loss(rows(x), rows(x).flip(1), torch.tensor([-1, -1]), margin=1.0),
        ONES,
    ),
    "cross entropy by hand": (stable_cross_entropy, POINT),
    "binary_cross_entropy_with_logits": (lambda x: F.binary_cross_entropy_with_logits(x, 0 * x + 0.3), POINT),
    "cross_entropy at argmax": (lambda x: F.cross_entropy(x[None], x.argmax()[None]), EQUAL),
    "gaussian_nll_loss": (lambda x: F.gaussian_nll_loss(x, 0 * x, x.relu(), eps=1.0), [0.5, 1.0, 2.0, 1.0]),
    "contrastive loss": (lambda x: F.relu(1 - (x[0] - x[1]).abs()) ** 2 + (x[1] - x[3]).abs(), POINT),
    # Pools.
    "max_pool1d": (lambda x: F.max_pool1d(x[None], 2, 1), EQUAL),
    "max_pool2d": (lambda x: F.max_pool2d(x[None], 2), GRID),
    "max_pool2d, all of it": (lambda x: F.max_pool2d(x[None, None], (3, 2), (1, 2), (1, 0), (1, 2), True), GRID),
    "max_pool3d": (lambda x: F.max_pool3d(x[None, None], (1, 2, 2), 1), GRID),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 3), GRID),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x[None], (3, 2)), GRID),
    "max_unpool2d": (unpooled, GRID),
    "fractional_max_pool2d": (
        lambda x: F.fractional_max_pool2d(x[None], 2, 2, _random_samples=x.new_full((1, 1, 2), 0.5)),
        GRID,
    ),
    "lp_pool2d": (lambda x: F.lp_pool2d(x[None], 1.0, 2), GRID),
    "a minimum pool": (lambda x: -F.max_pool2d(-x[None], 2, 1), GRID),
    "unfold and amax": (lambda x: x.unfold(0, 2, 1).unfold(1, 2, 1).amax((-1, -2)), GRID),
    "dilation and erosion": (lambda x: F.max_pool1d(-F.max_pool1d(-x[None], 2, 1), 2, 1), EQUAL),
    "avg_pool of relu": (lambda x: F.avg_pool2d(F.relu(x[None]), 2), GRID),
    "interpolate": (lambda x: F.interpolate(F.relu(x[None, None]), (3, 3), mode="bilinear"), GRID),
    "grid_sample": (lambda x: F.grid_sample(numbers(1, 1, 5, 5), x.reshape(1, 1, 2, 2) / 2, align_corners=True), POINT),
    # Loops, breaks, dynamic programs.
    "if of each element": (by_an_if, POINT),
    "elif": (by_elif, POINT),
    "if of a sum": (lambda x: x if x.sum() > 0 else 2 * x, ZEROS),
    "if of a difference": (lambda x: x[1] if x[1] > x[3] else x[3], POINT),
    "if not": (lambda x: x[0] if not x[0] < 0 else -x[0], POINT),
    "if of item()": (lambda x: x if x.sum().item() >= 0 else 2 * x, ZEROS),
    "a mask under no_grad": (masked_without_grad, POINT),
    "if of detach()": (lambda x: torch.where(x.detach() > 0, x, -x), POINT),
    "a mask of .data": (lambda x: x * (x.data > 0), POINT),
    "water filling": (water_filling, EQUAL),
    "a while loop": (until_settled, POINT),
    "bisection": (bisected, EQUAL),
    "Bellman-Ford": (bellman_ford, POINT),
    "time warping": (time_warping, POINT),
    "Viterbi": (viterbi, EQUAL),
    "spring contact": (spring, POINT),
    "spring energy": (lambda x: 0.5 * torch.relu(-x) ** 2, POINT),
    "friction": (friction, POINT),
    "torch.cond": (lambda x: torch.cond(x.sum() > 0, torch.relu, torch.neg, (x,)), POINT),
    "mse_loss, second": (lambda x: torch.func.grad(F.mse_loss)(x, torch.ones(4)), POINT),
    "aten.mse_loss, second": (lambda x: torch.func.grad(torch.ops.aten.mse_loss)(x, torch.ones(4)), POINT),
    # Projections and proximal steps.
    "simplex": (simplex, [0.5, 0.5, -0.5, 0.0]),
    "sparsemax": (sparsemax, [1.0, 0.0, 0.0, -1.0]),
    "l1 ball": (l1_ball, [0.5, -0.5, 0.0, 0.0]),
    "box": (lambda x: x.clamp(-1, 1), POINT),
    "half-space": (lambda x: x - torch.relu(x.sum()) / 4, POINT),
    "l2 ball": (lambda x: x / torch.clamp(x.norm() / math.sqrt(6), min=1), POINT),
    "group lasso": (group_shrunk, POINT),
    "isotonic": (lambda x: (x.cummax(0).values + x.flip(0).cummin(0).values.flip(0)) / 2, EQUAL),
    # Jumps that cancel, interpolation.
    "triangle wave, floor": (lambda x: (x - 2 * torch.floor(x / 2) - 1).abs(), POINT),
    "triangle wave, round": (lambda x: (x - 2 * (x / 2).round()).abs(), POINT),
    "triangle wave, %": (lambda x: ((x % 2) - 1).abs(), POINT),
    "triangle wave, remainder": (lambda x: 1 - (torch.remainder(x, 2.0) - 1).abs(), POINT),
    "triangle wave, fmod": (lambda x: 1 - (torch.fmod(x.abs(), 2.0) - 1).abs(), POINT),
    "triangle wave, frac": (lambda x: 0.5 - (torch.frac(x.abs()) - 0.5).abs(), POINT),
    "triangle wave, div": (lambda x: (x - 2 * torch.div(x, 2, rounding_mode="floor") - 1).abs(), POINT),
    "triangle wave, //": (lambda x: (x - 2 * (x // 2) - 1).abs(), POINT),
    "triangle wave, trunc": (lambda x: 0.5 - (x.abs() - torch.trunc(x.abs()) - 0.5).abs(), POINT),
    "ceil - floor": (lambda x: (x.ceil() - x) * (x - x.floor()), POINT),
    "floor_": (lambda x: (x - (x * 1).floor_() - 0.5).abs(), POINT),
    "floor of a detached": (lambda x: (x - torch.floor(x.detach()) - 0.5).abs(), POINT),
    "hats": (interpolated, POINT),
    "a table at floor": (looked_up_by_floor, POINT),
    "a table at long()": (looked_up_by_long, POINT),
    "a table at searchsorted": (looked_up_by_moving_searchsorted, POINT),
    "a table at detached searchsorted": (looked_up_by_searchsorted, POINT),
    "a table at bucketize": (looked_up_by_bucketize, POINT),
    "a table by counting": (looked_up_by_counting, POINT),
    # Quantisers.
    "straight through": (straight_through, POINT),
    "straight through, at halves": (straight_through, [0.25, 0.75, -0.25, 0.25]),
    "learned step, straight through": (learned_step, [0.5, -1.0, 0.25, 0.5]),
    "learned step, on a bound, straight through": (learned_step, [1.0, -2.0, 0.0, 1.0]),
    "straight through, then clip": (straight_through_then_clip, POINT),
    "straight through, binarised": (binarised, POINT),
    "fake_quantize": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 0, 0, 2), POINT),
    "autograd.Function, with a jvp": (ReluWithJvp.apply, POINT),
    "autograd.Function, without": (ReluWithoutJvp.apply, POINT),
    # Stable forms.
    "softmax less its maximum": (stable_softmax, EQUAL),
    "logsumexp less its maximum": (stable_logsumexp, EQUAL),
    "sigmoid by sign": (stable_sigmoid, POINT),
    # out=, lists of tensors, operators.
    "clamp, out=": (lambda x: torch.clamp(x, 0, 1, out=torch.empty_like(x)), POINT),
    "maximum, out=": (lambda x: torch.maximum(x, 0 * x, out=torch.empty_like(x)), POINT),
    "foreach_abs": (lambda x: torch._foreach_abs([x, -x])[0], POINT),
    "foreach_clamp_min": (lambda x: torch._foreach_clamp_min([x, 2 * x], 0.0)[1], POINT),
    "foreach_maximum": (lambda x: torch._foreach_maximum([x], [x.flip(0)])[0], EQUAL),
    "foreach_sign": (lambda x: torch._foreach_sign([x])[0] * x, POINT),
    "foreach_norm": (lambda x: torch._foreach_norm([x], 1)[0], POINT),
    "foreach_norm, inf": (lambda x: torch._foreach_norm([x], math.inf)[0], EQUAL),
    "foreach_max": (lambda x: torch._foreach_max([x])[0], EQUAL),
    "aten.relu": (aten.relu, POINT),
    "aten.relu.default": (aten.relu.default, POINT),
    "aten.clamp": (lambda x: aten.clamp(x, 0, 1), POINT),
    "aten.maximum": (lambda x: aten.maximum(x, 0 * x), POINT),
    "aten.abs": (aten.abs.default, POINT),
    "aten.amax": (lambda x: aten.amax(x, [0]), EQUAL),
    "aten.max.dim": (lambda x: aten.max.dim(rows(x), 1)[0], ONES),
    "aten.sort": (lambda x: aten.sort(x)[0], EQUAL),
    "aten.where": (lambda x: aten.where(aten.gt(x, 0), x, aten.neg(x)), POINT),
    "aten.gt.Scalar": (lambda x: x * aten.gt.Scalar(x, 0), POINT),
    "aten.max_pool2d": (lambda x: aten.max_pool2d(x[None], [2, 2]), GRID),
    "aten.max_pool2d_with_indices": (lambda x: aten.max_pool2d_with_indices(x[None], [2, 2])[0], GRID),
    "aten.hardtanh": (lambda x: aten.hardtanh(x), POINT),
    "aten.l1_loss": (lambda x: aten.l1_loss(x, torch.ones_like(x)), POINT),
    "aten.threshold_backward": (lambda x: aten.threshold_backward(x, x, 0), POINT),
    "aten.bitwise_and": (lambda x: x * aten.bitwise_and(x > 0, x < 5), POINT),
    "aten.index_put": (lambda x: aten.index_put(x, [x < 0], x.new_zeros(())), POINT),
    # Modules.
    "nn.ReLU": (module(nn.ReLU()), POINT),
    "nn.ReLU, inplace": (lambda x: nn.ReLU(inplace=True)(x * 1), POINT),
    "nn.ReLU6": (module(nn.ReLU6()), POINT),
    "nn.Hardtanh": (module(nn.Hardtanh(0.0, 1.0)), POINT),
    "nn.PReLU": (module(nn.PReLU()), POINT),
    "nn.Hardswish": (module(nn.Hardswish()), [-3.0, 3.0, 0.0, 3.0]),
    "nn.L1Loss": (lambda x: nn.L1Loss(reduction="sum")(x, torch.ones_like(x)), POINT),
    "nn.MaxPool2d": (module(nn.MaxPool2d(2), 1, 4, 4), GRID),
    "nn.RNN": (recurrent(nn.RNN(1, 3, nonlinearity="relu")), POINT),
    "nn.RNN, two ways": (recurrent(nn.RNN(1, 2, 2, nonlinearity="relu", bidirectional=True)), POINT),
    "rnn_relu_cell": (cell, POINT),
    "nn.GRU of relu": (gated(), POINT),
    "nn.TransformerEncoderLayer": (module(nn.TransformerEncoderLayer(2, 1, 4, 0.0), 2, 1, 2), POINT),
    "layer_norm of relu": (lambda x: F.layer_norm(torch.relu(x), (4,)), POINT),
    "nn.BatchNorm1d": (
        module(nn.Sequential(nn.BatchNorm1d(1), nn.ReLU(), nn.Linear(1, 2), nn.ReLU()), 4, 1),
        [0.5, 1.0, 2.0, 1.0],
    ),
    "Linear and ReLU": (module(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.ReLU()), 4), ZEROS),
    "Conv2d and pool": (
        module(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2)), 1, 1, 4, 4),
        GRID,
    ),
    "local_response_norm": (lambda x: F.local_response_norm(F.relu(x)[None, :, None], 2), POINT),
    "dropout, none dropped": (lambda x: F.dropout(F.relu(x), 0.0), POINT),
    "embedding by argmax": (lambda x: F.embedding(x.argmax(), numbers(4, 1)) * 0 + x.max(), EQUAL),
    "embedding, max_norm": (lambda x: F.embedding(torch.tensor([0, 1]), rows(x), max_norm=2.0, norm_type=1.0), ONES),
    # Attention.
    "attention by relu": (attention, POINT),
    "attention to the nearest": (hard_attention, EQUAL),
    "attention above the median": (masked_attention, EQUAL),
    "scaled_dot_product_attention": (fused_attention, POINT),
    # Transformations within.
    "vmap": (lambda x: torch.func.vmap(torch.relu)(x), POINT),
    "vmap of max": (lambda x: torch.func.vmap(lambda r: r.max())(rows(x)), ONES),
    "vmap of sort": (lambda x: torch.func.vmap(lambda r: r.sort().values)(rows(x)), ONES),
    "vmap of where": (lambda x: torch.vmap(lambda a: torch.where(a > 0, a, -a))(x), POINT),
    "jvp": (forward_inside, POINT),
    "grad": (penalty, POINT),
    "autograd.grad": (penalty_by_autograd, POINT),
    "vjp": (lambda x: torch.func.vjp(lambda x: x.abs() * x, x)[1](x)[0], POINT),
    "jacrev": (lambda x: torch.func.jacrev(lambda x: torch.relu(x) ** 2)(x).sum(0), POINT),
    "jacfwd": (lambda x: torch.func.jacfwd(lambda x: torch.relu(x) ** 2)(x).sum(0), POINT),
    "hessian": (lambda x: torch.func.hessian(lambda x: (torch.relu(x) ** 3).sum())(x).sum(0), POINT),
    "functional_call": (called(), [1.0, -1.0, 2.0, -2.0]),
    "checkpoint": (lambda x: checkpoint(torch.relu, x, use_reentrant=False), POINT),
    "checkpoint, reentrant": (lambda x: checkpoint(torch.relu, x, use_reentrant=True), POINT),
    "interop.relu": (lambda x: interop.relu(x) - interop.relu(-x), POINT),
    "interop.native.amax": (lambda x: interop.native.amax(x, 0), EQUAL),
    "under interop.min_norm": (lambda x: interop.min_norm(torch.relu)(x) - torch.relu(-x), POINT),
    # Linear algebra.
    "solve": (lambda x: torch.linalg.solve(torch.diag(x.relu() + 1) + 0.5, torch.ones_like(x)), POINT),
    "solve, abs on the right": (lambda x: torch.linalg.solve(numbers(4, 4).cos() + 3 * torch.eye(4), x.abs()), POINT),
    "inverse": (lambda x: torch.linalg.inv(torch.diag(x.abs() + 1)), POINT),
    "cholesky": (lambda x: torch.linalg.cholesky(torch.diag(x.abs() + 1) + 0.5), POINT),
    "det": (lambda x: torch.linalg.det(torch.maximum(rows(x), rows(x).T)), EQUAL),
    "det, in absolute value": (lambda x: rows(x).det().abs(), ZEROS[:2] + POINT[:2]),
    "lstsq": (lambda x: torch.linalg.lstsq(numbers(4, 2).square().cos(), torch.relu(x)[:, None]).solution, POINT),
    "solve_triangular": (
        lambda x: torch.linalg.solve_triangular(torch.diag(x.abs() + 1) + 0.5, x.relu()[:, None], upper=True),
        POINT,
    ),
    "matrix_exp": (lambda x: torch.matrix_exp(torch.relu(rows(x))), POINT),
    "eigvalsh, equal": (lambda x: torch.linalg.eigvalsh((rows(x) + rows(x).T) / 2), [1.0, 0.0, 0.0, 1.0]),
    "svdvals, equal": (lambda x: torch.linalg.svdvals(rows(x)), [1.0, 0.0, 0.0, 1.0]),
    "largest eigenvalue": (lambda x: torch.linalg.eigvalsh(torch.diag(x) + 0 * x)[-1], EQUAL),
    "conjugate gradient": (conjugate_gradient, [0.0, 1.0, -2.0, 3.0]),
    "Newton's method": (newton_of_relu, POINT),
    # Dtypes.
    "float32": (lambda x: torch.relu(x.float()).double(), POINT),
    "to(float32)": (lambda x: x.to(torch.float32).clamp(0, 1).to(torch.float64), POINT),
    "a mask as float32": (lambda x: x * (x > 0).float(), POINT),
    "a mask as int": (lambda x: x * (x > 0).int(), POINT),
    "a mask as long": (lambda x: x * (x >= 0).long(), POINT),
    "view_as_real": (lambda x: torch.view_as_real(torch.complex(x.relu(), x.abs())), POINT),
    # Linear operations around.
    "einsum": (lambda x: torch.einsum("i,j->ij", x.relu(), x.abs()), POINT),
    "conv1d": (lambda x: F.conv1d(x.relu()[None, None], numbers(1, 1, 2)), POINT),
    "matmul": (lambda x: torch.relu(numbers(3, 4) @ torch.relu(x)), POINT),
    "cat and split": (lambda x: torch.maximum(*torch.cat([x, x.flip(0)]).split(4)), EQUAL),
    "roll": (lambda x: torch.maximum(x, x.roll(1)), EQUAL),
    "trapezoid": (lambda x: torch.trapezoid(x.abs()), POINT),
    "cumsum": (lambda x: torch.relu(x.cumsum(0)), POINT),
    "a view": (lambda x: overwritten(x, "t_").view(2, 2).relu(), POINT),
    "overwritten through a view": (lambda x: (y := x * 1, y[1:].clamp_(min=1))[0], POINT),
    "+=": (lambda x: over(x, at_1=x[1].abs(), at_3=torch.maximum(x[1], x[3])), POINT),
}


BY_ITS_AUTHOR = {name for name in PROGRAMS if "straight through" in name} | {"gaussian_nll_loss", "embedding, max_norm"}
"""Programs whose gradient is not that of their values."""
COARSE = {"float32", "to(float32)", "renorm", "embedding, max_norm"}
"""Programs with few digits."""

WARNED = ("mode", "matrix_norm, 2", "nuclear norm", "eigvalsh, equal", "svdvals, equal", "largest eigenvalue")
FORWARD = "needs forward mode: write a jvp for your autograd.Function, or avoid this function."
REFUSED = {
    **dict.fromkeys(("unique", "multilabel_margin_loss", "triangle wave, //", "fake_quantize"), FORWARD),
    "nn.TransformerEncoderLayer": "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)",
    "scatter_reduce, prod": "torch has the derivative 0 in forward mode",
    "torch.cond": "write an if or a while in Python, or torch.where",
    "autograd.Function, without": "write them",
    **dict.fromkeys(("clamp, out=", "maximum, out="), "call it without, and copy the result"),
    "aten.threshold_backward": "call torch.threshold",
    "autograd.grad": "call torch.func.grad there",
    "aten.mse_loss, second": "write ((input - target) ** 2).mean()",
    "checkpoint": "call the function without one",
    "checkpoint, reentrant": "call the function without it",
}
"""The cure that the error names."""
if torch.__version__ < "2.15":
    REFUSED["grid_sample"] = FORWARD
else:
    WARNED = (*WARNED, "grid_sample")
DOCUMENTED: dict[str, tuple[str, ...]] = {
    "`sqrt(x) ** 2` at 0 multiplies an infinite slope by 0, which gives NaN.": ("relu(x)^0.5 * relu(x)^2",),
    "Where the branch that is entered is NaN, a `where` takes the one that it takes at the point": ("x^2 / |x|",),
    "Where operands have equal values and equal derivatives along $v$, higher derivatives would decide.": (
        *("second order", "second order, of relu"),
    ),
    "A mask of `x.detach()`, `x.data` or `stop_gradient(x)` is that at the point.": (
        *("if of detach()", "a mask of .data", "floor of a detached", "a table at detached searchsorted"),
    ),
    "Callbacks, numbers that Python took out (`x.item()`), TorchScript.": ("if of item()",),
    "A `torch.autograd.Function` needs a `jvp`, in which no choice is decided.": ("autograd.Function, with a jvp",),
    "Written as `x + stop_gradient(round(x) - x)` a straight-through estimator moves as its gradient says": (
        "straight through, then clip",
    ),
}
"""By the sentence of the documentation that says so: programs whose gradient is not the limit of those nearby."""
QUICK = (
    *("relu(x) - relu(-x)", "clamp, moving bounds", "second order", "hardswish", "x[argmax]", "topk", "spring contact"),
    *("fractional_max_pool2d", "triangle wave, floor", "straight through", "clamp, out=", "foreach_maximum", "jacfwd"),
    "det, in absolute value",
)
EXPECTED = {
    **dict.fromkeys(PROGRAMS, "right"),
    **dict.fromkeys(WARNED, "warned"),
    **dict.fromkeys(REFUSED, "refused"),
    **{name: "wrong" for names in DOCUMENTED.values() for name in names},
}


def verdict(name: str) -> tuple[str, str]:
    """In a word, and what shows it."""
    program, at = PROGRAMS[name]
    x, t = torch.tensor(at, dtype=torch.float64), 1e-3 if name in COARSE else 1e-5
    v = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1))

    def loss(x: Tensor) -> Tensor:
        """A weighted sum of the results, which tells them apart."""
        result = program(x).double()
        return (result * numbers(*result.shape, start=1.0)).sum()

    def unmodified(x: Tensor) -> tuple[Tensor, Tensor]:
        value = loss(x.requires_grad_())
        return value.detach(), torch.autograd.grad(value, x)[0]

    for direction in (v, -v):
        undecided._SHOWN.clear()
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always", jaxclamp.UndecidedWarning)
            try:
                gradient = interop.grad(loss, direction=direction)(x)
                _, derivative = interop.directional_derivative(loss, x, direction)
            except (NotImplementedError, RuntimeError) as error:
                return "refused", "\n".join([str(error), *getattr(error, "__notes__", ())])
        here = loss(x).detach()
        (near, at_near), (far, at_far) = unmodified(x + t * direction), unmodified(x + 2 * t * direction)
        torch.testing.assert_close(at_near, at_far, atol=2e-2, rtol=2e-2)  # nothing is chosen between the two
        limit, quotient = 2 * at_near - at_far, (4 * near - far - 3 * here) / (2 * t)
        is_right = torch.allclose(gradient, limit, rtol=1e-3, atol=1e-3)
        if name not in BY_ITS_AUTHOR:
            torch.testing.assert_close((limit * direction).sum(), quotient, rtol=1e-2, atol=1e-3)
            is_right &= torch.allclose(derivative, quotient, rtol=1e-3, atol=1e-3)
        if not is_right:
            found = f"gradient {gradient}, nearby {limit}; derivative {derivative}, of values {quotient}"
            return "warned" if shown else "wrong", found
    return "right", ""


@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning", r"ignore:index_reduce\(\) is in beta"
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name not in QUICK)) for name in PROGRAMS]
)
def test_no_program_is_wrong_without_a_word(name: str) -> None:
    found, shows = verdict(name)
    assert found == EXPECTED[name], shows
    assert REFUSED.get(name, "") in shows


def test_what_is_wrong_is_documented() -> None:
    documentation = " ".join((TESTS.parent / "docs" / "decided-choices.md").read_text("utf-8").split())
    assert [sentence for sentence in DOCUMENTED if sentence not in documentation] == []
    assert EXPECTED.keys() | {*QUICK} == PROGRAMS.keys()
