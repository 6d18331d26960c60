"""The functions of torch that choose, each with as many ties as it can have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import interop
from tests.programs.nearby import CELLS, HALVES, IMAGE, LINE, ROW, SOLID, X, Y, tensor

Function = Callable[..., torch.Tensor]

F = functional


def taken_at(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return x.flatten(2).gather(2, indices.flatten(2))


def seeded(function: Callable[..., Any], *args: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return function(*args)


W = X[[0, 1, 2, 1]]
SIGNS = tensor(1.0, -1.0, 1.0)

MASKS_IN_PLACE: list[Function] = [
    *(
        torch.no_grad()(lambda x, name=name: getattr(x.clone(), f"{name}_")(0.0))
        for name in ("eq", "ne", "not_equal", "gt", "greater", "ge", "greater_equal", "lt", "less", "le", "less_equal")
    ),
    *(
        torch.no_grad()(lambda x, name=name: getattr(x.clone(), f"{name}_")())
        for name in ("sign", "sgn", "logical_not")
    ),
    *(
        torch.no_grad()(lambda x, name=name: getattr(x.clone(), f"{name}_")(x.abs()))
        for name in ("logical_and", "logical_or", "logical_xor", "heaviside")
    ),
]

WHOLE = Y.long()
PAIR = tensor([0.0, 2.0])
FIRST = torch.zeros(1, 1, dtype=torch.int64)
TWO = 2 * torch.ones_like(X)
KNOTS, LAST = torch.arange(-2.0, 3.0, dtype=torch.float64), torch.arange(4, -1, -1)
STEPS: tuple[Function, ...] = (
    *(torch.floor, torch.ceil, torch.trunc, torch.fix, torch.frac),
    *(torch.Tensor.int, torch.Tensor.long, torch.Tensor.short, torch.Tensor.char, lambda x: x.abs().byte()),
    lambda x: torch.tensor([int(one) for one in x.flatten()]).view_as(x),
    *(lambda x: x.to(torch.int32), lambda x: x.type(torch.LongTensor), lambda x: x.type_as(WHOLE)),
    *(lambda x: torch.fmod(x, 1.0), lambda x: x % 1, lambda x: torch.div(x, 1, rounding_mode="trunc")),
)
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    **{
        f"{name} {place}": (lambda x, name=name, home=home: getattr(home, name)(x), X + shift)
        for name, shift in {"abs": 0.0, "relu": 0.0, "absolute": 0.0}.items()
        for place, home in {"function": torch, "method": torch.Tensor}.items()
        if name != "relu" or home is torch
    },
    "F.relu": (F.relu, X),
    "root of mse_loss": (lambda x, y: F.mse_loss(x, y).sqrt(), X, X),
    "root of mse_loss, summed": (lambda x: F.mse_loss(input=X, target=x, reduction="sum") ** 0.5, X),
    "F.relu6": (F.relu6, 3 * X),
    "F.relu6 inplace": (lambda x: F.relu6(x * 1, True), 3 * X),
    "F.hardtanh": (F.hardtanh, X),
    "F.hardtanh_": (lambda x: F.hardtanh_(x * 2.0, -2.0, 2.0), X),
    "F.hardsigmoid": (F.hardsigmoid, tensor(-3.0, 3.0, 0.0, 4.0, -4.0)),
    "F.hardsigmoid inplace": (lambda x: F.hardsigmoid(x * 1, inplace=True), tensor(-3.0, 3.0, 0.0)),
    "F.hardswish": (F.hardswish, tensor(-3.0, 3.0, 0.0, 4.0, -4.0)),
    "F.leaky_relu": (lambda x: F.leaky_relu(x, -0.5), X),
    "F.leaky_relu_": (lambda x: F.leaky_relu_(x * 1, 2.0), X),
    "F.rrelu, in evaluation": (lambda x: F.rrelu(x, 0.25, 0.75) + F.rrelu(x * 2, inplace=True), X),
    "F.rrelu_": (lambda x: F.rrelu_(x * 1), X),
    "F.prelu": (F.prelu, X, tensor(0.25, -0.5, 2.0, 1.0)),
    "F.prelu one": (F.prelu, X, tensor([0.25])),
    "F.elu": (lambda x: F.elu(x, 2.0), X),
    "F.elu_": (lambda x: F.elu_(x * 1, 0.5), X),
    "F.selu": (F.selu, X),
    "torch.selu_": (lambda x: torch.selu_(x * 1), X),
    "F.celu": (lambda x: F.celu(x, 0.5) + torch.celu_(x * 1, 2.0), X),
    "special.i0e": (torch.special.i0e, X),
    "F.softsign": (F.softsign, X),
    "F.softshrink": (lambda x: F.softshrink(x, 1.0), X),
    "F.softshrink of 0": (lambda x: F.softshrink(x, 0.0), X),
    "F.hardshrink of 0": (lambda x: F.hardshrink(x, 0.0), X),
    "F.threshold": (lambda x: F.threshold(x, 1.0, 1.0), X),
    "F.threshold_": (lambda x: F.threshold_(x * 1, 0.0, 0.0), X),
    "torch.clamp": (lambda x: torch.clamp(x, -1.0, 1.0), X),
    "torch.clamp equal": (lambda x: torch.clamp(x, 2.0, 2.0), X),
    "torch.clamp crossed": (lambda x: torch.clamp(x, 2.0, 0.0), X),
    "torch.clamp of tensors": (torch.clamp, X, Y, ROW),
    "torch.clamp max": (lambda x, y: x.clamp(max=y), X, ROW),
    "torch.clip of NumPy's names": (lambda x, y: torch.clip(x, min=y), X, Y),
    "clamp_": (lambda x, y: (x * 1).clamp_(y, x.abs()), X, Y),
    "clamp_min_": (lambda x: (x * 1).clamp_min_(0.0), X),
    "torch.clamp_max": (lambda x, y: torch.clamp_max(x, y), X, Y),
    "torch.maximum": (torch.maximum, X, Y),
    "torch.minimum": (lambda x, y: x.minimum(other=y), X, ROW),
    "torch.fmax": (torch.fmax, X, Y),
    "torch.fmin": (torch.fmin, X, ROW),
    "torch.max of two": (torch.max, X, Y),
    "torch.min of two": (lambda x, y: x.min(y), X, ROW),
    "torch.max": (torch.max, X),
    "x.min()": (lambda x: x.min(), X),
    "torch.max of an axis": (lambda x: torch.max(x, 1)[0], X),
    "x.min(dim, keepdim)": (lambda x: x.min(dim=0, keepdim=True).values, X),
    "x.max(axis)": (lambda x: x.max(axis=-1, keepdims=True).values, X),
    "taken at indices": (lambda x, y: y.gather(1, x.min(1, True).indices) * 0 + x.min(1, True).values, X, Y),
    "torch.amax": (lambda x: torch.amax(x, (0, 1)), X),
    "x.amin()": (lambda x: x.amin(), X),
    "x.amax(axes, keepdim)": (lambda x: x.amax((0, -1), keepdim=True), IMAGE),
    "amin of a scalar": (lambda x: x.amin() + x.max(0).values + x.max(), tensor(0.0)),
    "orders of a scalar": (lambda x: x.topk(1).values + x.kthvalue(1).values + x.sort().values, tensor(0.0)),
    "torch.aminmax": (lambda x: torch.stack(torch.aminmax(x, dim=1)), X),
    "argmax": (lambda x: x.gather(1, x.argmax(1, keepdim=True)), X),
    "argmin": (lambda x: x.flatten()[torch.argmin(x)], X),
    "x.sort": (lambda x: x.sort(descending=True).values, X),
    "torch.sort": (lambda x: torch.sort(x, dim=0, stable=True)[0], X),
    "torch.sort stable first": (lambda x: torch.sort(x, stable=True, dim=0)[0], X),
    "argsort": (lambda x: x.gather(0, x.argsort(0, True)), X),
    "torch.msort": (torch.msort, X),
    "topk": (lambda x: x.topk(2).values, X),
    "torch.topk smallest": (lambda x: torch.topk(x, 2, dim=0, largest=False)[0], X),
    "kthvalue": (lambda x: x.kthvalue(2, 0)[0], X),
    "torch.kthvalue": (lambda x: torch.kthvalue(x, 3, keepdim=True).values, X),
    "median": (lambda x: x.median(), X),
    "torch.median": (lambda x: torch.median(x, 1, True).values, X),
    "nanmedian": (lambda x: x.nanmedian(0).values, X),
    "cummax": (lambda x: x.cummax(1).values, X),
    "torch.cummin": (lambda x: torch.cummin(x, 0)[0], X),
    "scatter_reduce amax": (lambda x, y: x.scatter_reduce(0, CELLS, y, "amax"), X, Y),
    "scatter_reduce amin": (lambda x, y: torch.scatter_reduce(x, 0, CELLS, y, "amin", include_self=False), X, Y),
    "scatter_reduce_": (lambda x, y: (x * 1).scatter_reduce_(0, CELLS, y, reduce="amax"), X, Y),
    "scatter_reduce sum": (lambda x, y: x.scatter_reduce(0, CELLS, y, "sum"), X, Y),
    "where": (lambda x, y: torch.where(x > y, x, y), X, Y),
    "where of numbers": (lambda x: torch.where(torch.tensor(1) >= x, x, 1), X),
    "ge": (lambda x, y: torch.where(torch.ge(x, y), x, y), X, Y),
    "lt": (lambda x, y: torch.where(x.lt(y), x, y), X, Y),
    "less_equal": (lambda x, y: torch.where(torch.less_equal(x, y), x, y), X, ROW),
    "eq": (lambda x: torch.where(x == 0, 2 * x, x) + torch.where(x != 0, x, -x), X),
    "masked writes": (lambda x: torch.Tensor.__setitem__(y := x * 1, y < 0, 0) or y, X),
    "masked_fill": (lambda x: (-x).masked_fill(x > 0, 0), X),
    "masks of masks": (lambda x: x * (~(x > 0) | (x > 1)) + ((x > 0) & (x <= 1)) * x**2 * 1.0, X.clamp(max=0.0)),
    "sign": (lambda x: x * x.sign(), X),
    "sgn": (lambda x: x * torch.sgn(x), X),
    "heaviside": (lambda x: x * torch.no_grad()(torch.heaviside)(x, tensor(0.5)), X),
    "logical": (lambda x: x.relu() * torch.logical_not(x.relu()) + x.abs() * torch.logical_and(x, x), X),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), LINE),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 1, padding=1, dilation=2), IMAGE),
    "max_pool2d overlapping": (lambda x: F.max_pool2d(x, (3, 2), stride=(2, 1), ceil_mode=True), IMAGE),
    "max_pool2d with indices": (lambda x: taken_at(x, F.max_pool2d(x, 2, return_indices=True)[1]), IMAGE),
    "max_pool2d of one image": (lambda x: torch.max_pool2d(x, 2, 2), IMAGE[0]),
    "max_pool3d": (lambda x: F.max_pool3d(x, (1, 2, 1), 1), SOLID),
    "fractional_max_pool2d": (lambda x: F.fractional_max_pool2d(x, 2, 2, _random_samples=HALVES[:, :, :2]), IMAGE),
    "fractional_max_pool2d with indices": (
        lambda x: taken_at(
            x,
            F.fractional_max_pool2d(
                x, 2, output_ratio=(0.5, 0.5), return_indices=True, _random_samples=HALVES[:, :, :2]
            )[1],
        ),
        IMAGE,
    ),
    "fractional_max_pool3d": (
        lambda x: F.fractional_max_pool3d(x.repeat(1, 1, 2, 1, 3), (2, 1, 2), (2, 1, 1), _random_samples=HALVES),
        SOLID,
    ),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 3), LINE),
    "torch.adaptive_max_pool1d": (lambda x: torch.adaptive_max_pool1d(x, 3)[0], LINE),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (3, None)), IMAGE),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 1), SOLID),
    "lp_pool1d": (lambda x: F.lp_pool1d(x, 1.0, 2) + F.lp_pool1d(x, 2.0, 2), 0 * LINE),
    "lp_pool1d of order 1, of -2 and 2": (lambda x: F.lp_pool1d(x, 1.0, 2), LINE),
    "lp_pool2d": (lambda x: F.lp_pool2d(x, 4, (2, 1), 1, ceil_mode=True), 0 * IMAGE),
    "lp_pool3d": (lambda x: F.lp_pool3d(x, 2, (2, 1, 1)), SOLID),
    "lp_pools of orders below 1": (lambda x: F.lp_pool1d(x, 0.5, 2) + F.lp_pool2d(x, -1.0, (1, 2)), LINE.abs() + 1),
    "bool": (lambda x: x.relu() * x.relu().bool() + x * torch.logical_or(x, x), X),
    "to, type": (lambda x: x * x.relu().to(torch.bool) + x * (2 * x.relu()).type(torch.bool) - x.to(x.dtype), X),
    "type_as": (lambda x: x * x.relu().type_as(CELLS > 0), X),
    "logical_xor": (lambda x: x * x.logical_xor(torch.zeros(4)), X),
    "clamp_min": (torch.clamp_min, X, ROW),
    "relu_ and abs_": (lambda x: torch.relu_(x * 1) + (x * 2).abs_() - (x * 3).absolute_(), X),
    "clamp_max_ and clip_": (lambda x, y: (x * 1).clamp_max_(y) + (x * 1).clip_(min=y), X, Y),
    "masks in place": (lambda x: sum(x * mask(x) for mask in MASKS_IN_PLACE), X),
    "index_reduce": (lambda x, y: x.index_reduce(0, CELLS[0, :3], y, "amax"), X, Y),
    "index_reduce_": (lambda x, y: (x * 1).index_reduce_(0, CELLS[0, :3], y, "amin", include_self=False), X, Y),
    "triplet_margin_with_distance_loss": (
        lambda x, y, z: F.triplet_margin_with_distance_loss(x, y, z, distance_function=F.l1_loss),
        *(tensor(k, 0.0) for k in (0.0, 1.0, 3.0)),
    ),
    "l1_loss": (F.l1_loss, X, Y),
    "l1_loss weighted": (lambda x, y: F.l1_loss(x, y, weight=1 + CELLS), X, Y),
    "l1_loss weighted, sum": (lambda x, y: F.l1_loss(x, y, reduction="sum", weight=1 + CELLS), X, Y),
    "l1_loss none": (lambda x, y: F.l1_loss(x, y, reduction="none"), X, Y),
    "smooth_l1_loss": (lambda x, y: F.smooth_l1_loss(x, y, beta=0.0), X, Y),
    "smooth_l1_loss of integers": (lambda x: F.smooth_l1_loss(x, WHOLE) + F.smooth_l1_loss(x, target=WHOLE > 0), X),
    "smooth_l1_loss, bent": (lambda x, y: F.smooth_l1_loss(x, y, beta=1.0) + F.smooth_l1_loss(x, y, beta=2.0), X, Y),
    "huber_loss": (lambda x, y: F.huber_loss(x, y), X, Y),
    "hinge by hand": (lambda x, w: (1 - SIGNS * (x @ w)).clamp(min=0).mean(), X, tensor(1.0, 0.0, 0.0, 0.0)),
    "hinge_embedding_loss": (lambda x: F.hinge_embedding_loss(x, CELLS.sign() * 2 - 1), X),
    "margin_ranking_loss": (lambda x, y: F.margin_ranking_loss(x, y, SIGNS[:, None], 1.0, reduction="sum"), X, Y),
    "triplet_margin_loss": (
        lambda x, y, z: F.triplet_margin_loss(x, y, z, swap=True, eps=0.0),
        tensor([[0.0, 0.0]]),
        tensor([[1.0, 0.0]]),
        tensor([[2.0, 0.0]]),
    ),
    "multi_margin_loss": (lambda x: F.multi_margin_loss(x, torch.tensor([1, 0, 3])), X),
    "multi_margin_loss of one": (lambda x: F.multi_margin_loss(x, torch.tensor(1), weight=2 + ROW), X[0]),
    "cosine_embedding_loss": (
        lambda x, y: F.cosine_embedding_loss(x, y, -SIGNS[:2], 0.0, reduction="none"),
        tensor([[1.0, 0.0], [1.0, 1.0]]),
        tensor([[0.0, 1.0], [1.0, -1.0]]),
    ),
    "normalize": (lambda x: F.normalize(x, eps=2.0), tensor([[2.0, 0.0], [0.0, -2.0]])),
    "normalize of 1-norms": (lambda x: F.normalize(x, p=1.0), tensor([[2.0, 0.0], [0.0, -2.0]])),
    "norm 1": (lambda x: x.norm(1), X),
    "norms of rows": (lambda x: torch.linalg.vector_norm(x, dim=1) + x.norm(dim=1), tensor([[0.0, 0.0], [3.0, 4.0]])),
    "norms of order 3": (lambda x: torch.linalg.norm(x, 3, dim=1) + x.norm(3), tensor([[0.0, 0.0], [0.0, 0.0]])),
    "norms of order 1.5": (
        lambda x: torch.linalg.vector_norm(x, 1.5, 1, True) + torch.norm(x[0], 1.5),
        tensor([[0.0, 0.0], [3.0, -4.0]]),
    ),
    "hypot": (lambda x: torch.hypot(x[0], x[1]) + (x[0] * 1).hypot_(x[1]), tensor([[0.0, 3.0, 0.0], [0.0, 4.0, 1.0]])),
    "hypot, integers": (lambda x: torch.hypot(x, torch.tensor([0, 1, 0])), tensor([0.0, 3.0, 0.0])),
    "norms by hand": (
        lambda x: (
            sum(
                squares.sum(-1).sqrt() + torch.pow(squares.mean(-1), 0.5)
                for squares in (
                    x**2,
                    x * x,
                    x.square() / 4,
                    torch.where(x < 9, 2 * (x * x), 0.0),
                    x.pow(2).masked_fill(x > 9, 0),
                )
            )
            + (x * x).sum(-1).clamp(min=0).sqrt()
            + torch.max(torch.tensor(0.0), (x * x).sum(-1)).sqrt()
            + torch.maximum((x**2).mean(-1), torch.tensor(-1.0)).clamp_(0, None).sqrt()
            + (F.relu(x.square()) + interop.native.relu(x * x)).sum(-1).sqrt()
            + torch.sqrt((x[:, 0] ** 2 + 0 + x[:, 1].pow(2)).view(-1))
            + torch.sqrt(x[0] @ x[0] + x[0, 0] * x[0, 0])
            + ((2 * x * x).sum(-1) + 3 * x[:, 0] * x[:, 0] + x.mul(x * 0.5).sum(-1)).sqrt()
            + ((1 + x * x).sqrt_() * 1).pow_(2).sum()
        ),
        tensor([[0.0, 0.0], [3.0, -4.0]]),
    ),
    "norms by hand, moved about": (
        lambda x: sum(
            i * (moved((x**2).sum(-1, keepdim=True)).sqrt() * torch.tensor([1.0, 2.0])).sum()
            for i, moved in enumerate(
                (
                    *(lambda s: s.T, lambda s: s.mT, torch.t, lambda s: s.transpose(0, 1), lambda s: s.permute(1, 0)),
                    *(lambda s: s.movedim(0, 1), lambda s: s.swapaxes(0, 1), lambda s: s.t().contiguous(), torch.clone),
                    *(lambda s: s.expand(2, 2), lambda s: s.repeat(1, 2), lambda s: s.flip(0)),
                    *(lambda s: s.select(0, 0), lambda s: s.narrow(0, 0, 1), torch.diagonal),
                    *(
                        lambda s: s.gather(0, FIRST),
                        lambda s: s.index_select(0, FIRST[0]),
                        lambda s: s.unflatten(0, (1, 2)),
                    ),
                    *(lambda s: s.take_along_dim(FIRST, 0), lambda s: s.masked_select(s < 9)),
                    *(lambda s: torch.cat([s, 2 * s], 1), lambda s: torch.stack([s[0], 3 * s[0], s[1]]).view(3, 1)),
                ),
                1,
            )
        ),
        tensor([[0.0, 0.0], [3.0, -4.0]]),
    ),
    "norms by hand, of what is selected": (
        lambda x, y: sum(
            i * (selected(((x[:, None] - y) ** 2).sum(-1)).sqrt() * tensor([1.0, 2.0])).sum()
            for i, selected in enumerate(
                (
                    *(lambda s: s.amin(1), lambda s: s.min(1).values, lambda s: s.min(), lambda s: s.amax((0, 1))),
                    *(lambda s: s.sort(1)[0], lambda s: s.msort()[:1], lambda s: s.topk(1, largest=False).values),
                    *(lambda s: s.kthvalue(1).values, torch.median, lambda s: s.nanmedian(0)[0]),
                    *(lambda s: s.cummin(1)[0], lambda s: s.max(1, keepdim=True)[0].T, lambda s: s.amin(0).amax()),
                    *(lambda s: s.clamp(max=2.0), lambda s: s.clip(-1, 2), lambda s: s.clamp_max(torch.tensor(2.0))),
                    *(lambda s: torch.minimum(s, s.T), lambda s: torch.max(s, s.T), lambda s: torch.fmin(s, 2 * s)),
                    *(F.relu6, F.hardtanh, torch.nn.ReLU(inplace=True), lambda s: F.hardtanh(1 * s, 0, 9, True)),
                    *(
                        lambda s: F.threshold(s, 0.0, 0.0),
                        lambda s: 3 * s.clamp(0, 9),
                        lambda s: (1 * s).clamp_(-1, 2),
                        lambda s: torch.minimum(3 * s, s + 1),
                    ),
                    *(lambda s: torch.maximum(s.amin(0), torch.tensor(-1.0)), lambda s: s.amin(1).reshape(1, 2)),
                ),
                1,
            )
        ),
        tensor([[0.0, 0.0], [3.0, -4.0]]),
        tensor([[0.0, 0.0], [0.0, 0.0]]),
    ),
    "distances": (
        lambda x, y: torch.cdist(x, y).sum() + torch.cdist(x, x, 1).sum() + F.pdist(x).sum() + F.pdist(x, math.inf),
        tensor([[0.0, 0.0], [3.0, -4.0], [0.0, 0.0]]),
        tensor([[0.0, 0.0], [3.0, 0.0]]),
    ),
    "weight_norm": (
        lambda x, g: (
            sum(torch._weight_norm(x, g, dim) + torch.norm_except_dim(0 * x, 2, dim) * g for dim in (0, -1, -2))
            + torch._weight_norm(x, x[0, 0], -1)
        ),
        tensor([[0.5, 2.0], [3.0, -4.0]]),
        tensor([[1.0], [-2.0]]),
    ),
    "deviations": (
        lambda x: (
            x.std(1) + torch.std(x, dim=1, correction=0) + torch.var(x, 1).sqrt() + torch.std_mean(x, 1, False)[0]
        ),
        tensor([[1.0, 1.0], [3.0, -4.0]]),
    ),
    "det": (lambda x: torch.linalg.det(x) + x.det(), tensor([[[1.0, 2.0], [2.0, 4.0]], [[0.0, 0.0], [1.0, 1.0]]])),
    "cholesky_inverse": (
        lambda x: torch.cholesky_inverse(x.tril()) + x.triu().cholesky_inverse(True),
        X[:, :3] + 3 * torch.eye(3),
    ),
    "nan_to_num": (lambda x: (x + ROW * math.inf).nan_to_num_(posinf=2.0).relu() + torch.nan_to_num(x).abs(), X),
    "to_dense": (lambda x: x.to_dense().relu() + x.to_dense(torch.float64).abs(), X),
    "polar": (lambda x: torch.view_as_real(torch.polar(x.abs(), x.flip(1))), X),
    "xlogy": (
        lambda x: torch.xlogy(PAIR, x) + (PAIR * 2).xlogy_(x) + torch.special.xlog1py(PAIR, x - 1),
        tensor([0.0, 1.0]),
    ),
    "logsumexp": (lambda x: torch.logsumexp(x, 1) + torch.logaddexp(x[0], x[1]).sum(), X),
    "sizes of complex numbers": (lambda x: torch.fft.fft(x).abs() + torch.ops.aten.abs(x * 1j), X),
    "signs of complex numbers": (
        lambda x: ((z := torch.fft.fft(x)) * z.sgn().conj()).real + torch.complex(x, 1 + x).sgn().imag,
        X,
    ),
    "an equality of complex numbers": (lambda x: torch.where((1j * x == x) | (1j * x == 0), 5 * x, x**2 - x), X),
    "norms of complex numbers": (
        lambda x: sum(
            of_order(torch.fft.fft(x))
            for of_order in (
                *(torch.norm, torch.linalg.norm, lambda z: z.norm(1), lambda z: z.norm(3)),
                *(lambda z: torch.linalg.matrix_norm(z).amax(), lambda z: torch.linalg.vector_norm(z, math.inf)),
            )
        ),
        0 * X,
    ),
    "norm inf": (lambda x: torch.norm(x, math.inf, dim=1, keepdim=True), X),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x, ord=-math.inf, dim=0) + torch.linalg.vector_norm(x, 1), X),
    "linalg.norm": (lambda x: torch.linalg.norm(x[0] * 0, 1) + torch.linalg.norm(x, math.inf, 1) + x.norm(), X),
    "linalg.norm of matrices": (lambda x: torch.linalg.norm(x, 1, keepdim=True) + torch.linalg.norm(x, -math.inf), X),
    "matrix_norm": (
        lambda x: torch.linalg.matrix_norm(x, -1, (0, -1)).sum() + torch.linalg.matrix_norm(x[1:], math.inf).sum(),
        IMAGE[0],
    ),
    "renorm": (lambda x: torch.renorm(x, 1, 0, 1.5) + (x * 1).renorm_(p=2, dim=-1, maxnorm=1.0), X),
    "dist": (lambda x, y: torch.dist(x, y, 1) + x.dist(y, math.inf), X, Y),
    "dist of order 3": (lambda x: torch.dist(x, ROW, 3), ROW),
    "pairwise_distance": (lambda x, y: F.pairwise_distance(x, y, 1.0, 0.0), X, ROW),
    "triplet_margin_loss of 1-norms": (lambda x, y: F.triplet_margin_loss(x, y, -y, p=1.0, eps=0.0), X, Y),
    "logit": (lambda x: torch.logit(x, 0.25) - x.logit(eps=0.25) / 2, tensor(0.25, 0.75, 0.5, 0.0)),
    "logit, crossed": (lambda x: x * torch.logit(x, 0.9) - x.logit(eps=0.5), tensor(0.25, 0.75, 0.5, 0.0)),
    "logit_": (lambda x: torch.logit_(x * 1, 0.25) + torch.special.logit(x, 0.25), tensor(0.25, 0.75, 0.5, 0.0)),
    "strided": (lambda x: x.t()[::2].amax(1) + F.relu(x[:, 0].expand(2, 3))[0, :2], X),
    "ours": (lambda x, y: interop.native.maximum(x, y) + interop.relu(x) - interop.native.amax(y, 1, True), X, Y),
    "rnn_relu_cell": (
        lambda x, w: torch.rnn_relu_cell(x, 0 * x, w[:, :4], w[:, :4]),
        X,
        X[:, [1, 0, 2, 3]][[0, 1, 2, 0]],
    ),
    "nn.RNN": (
        lambda x, w: torch.rnn_relu(x[None], 0 * x[None], [w, w.t()], False, 1, 0.0, False, False, True)[0],
        X,
        W,
    ),
    "nn.RNN, dropout": (
        lambda x, w: seeded(
            torch.rnn_relu, x[:, None], 0 * x[:2, None], [w, w.t(), w, -w], False, 2, 0.5, True, False, False
        )[0],
        X,
        W,
    ),
    "nn.RNN packed": (
        lambda x, w: torch.rnn_relu(
            x, torch.tensor([2, 1]), 0 * LINE.repeat(2, 1, 1)[:, :2], [w, w, -w, w], False, 1, 0.0, False, True
        )[0],
        X,
        W,
    ),
    "softmax": (lambda x: F.softmax(x, 1) + x.logsumexp(1, keepdim=True), X),
    # Jumps, times what is 0 there, so that the product is continuous.
    "steps at integers": (lambda x: sum(i * f(x) for i, f in enumerate(STEPS, 2)) * torch.sin(math.pi * x), X),
    "steps at integers, in place": (
        lambda x: (
            sum(getattr(x.clone(), f"{name}_")() for name in ("floor", "ceil", "trunc", "fix", "frac"))
            * torch.sin(math.pi * x)
        ),
        X,
    ),
    "steps at halves": (
        lambda x: (
            (x.round() + 2 * (1 * x).round_() + torch.round(x / 2, decimals=1) * torch.cos(10 * math.pi / 2 * x))
            * torch.cos(math.pi * x)
        ),
        X + 0.5,
    ),
    "steps at 0": (
        lambda x: x * (x.signbit() + x.angle() + sum(torch.copysign(y, x) for y in (x + 1, -2 * x))),
        X,
    ),
    "copysign": (lambda x, y: torch.copysign(x, y) * y + torch.copysign(x, -1.0) + (1 * x).copysign_(y) * y, X, Y),
    "angles": (
        lambda x: (
            x * (torch.atan2(x, x - 5) + torch.arctan2(1 * x, -TWO) + (1 * x).atan2_(-TWO) + (1 * x).arctan2_(-TWO))
        ),
        X,
    ),
    "remainders": (
        lambda x, y: (
            (
                torch.remainder(x, d := 1 + y.abs())
                + 2 * (x % d)
                + 3 * torch.fmod(x, d)
                + (1 * x).fmod_(d)
                + (1 * x).remainder_(d)
            )
            * torch.sin(math.pi * x / d)
        ),
        X,
        Y,
    ),
    "rounded quotients": (
        lambda x, y: (
            (
                sum(
                    i * torch.div(x, d := 1 + y.abs(), rounding_mode=mode) + (1 * x).div_(d, rounding_mode=mode)
                    for i, mode in enumerate(("floor", "trunc", None))
                )
            )
            * torch.sin(math.pi * x / (1 + y.abs()))
        ),
        X,
        Y,
    ),
    "places": (
        lambda x, y: (
            (
                torch.bucketize(x, KNOTS)
                + 2 * torch.bucketize(input=x, boundaries=KNOTS, right=True)
                + torch.searchsorted(KNOTS.repeat(3, 1), x, side="right")
                + torch.searchsorted(KNOTS.flip(0), x, sorter=LAST)
            )
            * torch.sin(math.pi * x)
            + torch.searchsorted(y[1, 1:3], x, sorter=y[1, 1:3].argsort()) * (x - y[1, 1]) * (x - y[1, 2])
            + torch.searchsorted(y[2].sort().values, x[2]) * x[2]
            + torch.searchsorted(x[2].sort().values, x[2], side="right") * x[2]
        ),
        X,
        Y,
    ),
    "isclose": (lambda x: x * (x - 2) * torch.isclose(x, torch.ones_like(x), 0.0, 1.0), X),
    "whether it is 0": (
        lambda x: (
            x[2].sum()
            * sum(
                (
                    *(
                        float(torch.equal(x[2], 0 * x[2])),
                        float(torch.allclose(x[2], 0 * x[2], 0.0, 0.0)),
                        float(bool(x[2, 0])),
                        float(torch.is_nonzero(x[2, 0])),
                    ),
                    *(x[2].any(), x[2].all(), x[2].count_nonzero()),
                    *(x[2].nonzero().sum(), torch.argwhere(x[2]).sum()),
                )
            )
        ),
        X,
    ),
    **{
        f"quantiles, {interpolation}": (
            lambda x, kind=interpolation: (
                x.quantile(0.3, interpolation=kind)
                + torch.quantile(x, 0.25, 1, True, interpolation=kind)
                + torch.nanquantile(x, tensor(0.75, 0.3), 0, interpolation=kind).sum(0)
                + torch.where(x > 1.5, torch.nan, x).nanquantile(0.5, 1, interpolation=kind).sum()
            ),
            X,
        )
        for interpolation in ("linear", "lower", "higher", "nearest", "midpoint")
    },
}
if torch.__version__ >= "2.13":  # torch 2.11 has no derivative of it
    FUNCTIONS["mse_loss of integers"] = lambda x: F.mse_loss(x, WHOLE) + F.mse_loss(x, target=WHOLE > 0), X
    FUNCTIONS["root of mse_loss of integers"] = lambda x: F.mse_loss(x, WHOLE).sqrt(), WHOLE.double()
if hasattr(F, "linear_cross_entropy"):  # from torch 2.13 on
    from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

    IN_CHUNKS, CLASSES = LinearCrossEntropyOptions(batch_chunk_size=1), torch.tensor([0, 1, 2])
    FUNCTIONS["linear_cross_entropy"] = (lambda x, w: F.linear_cross_entropy(x, w, CLASSES, options=IN_CHUNKS), X, Y)
if F.lp_pool1d(LINE, math.inf, 1).max() == 2:  # in torch 2.11 it is 1, whatever the numbers are
    FUNCTIONS["lp_pool1d inf"] = lambda x: F.lp_pool1d(x, math.inf, 2) - F.lp_pool1d(x, -math.inf, 2), LINE
