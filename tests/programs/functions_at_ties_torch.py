"""Functions of the sweep of torch programs that need more than an expression, and the points at which choices tie."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

Tensor = torch.Tensor
Program = Callable[[Tensor], Any]
aten = torch.ops.aten

POINT = [0.0, 1.0, -2.0, 1.0]
"""With a zero, and with two that are equal, on the bound of many of the programs."""
ZEROS, ONES, HALVES, EQUAL = [0.0] * 4, [1.0] * 4, [0.5, 1.5, 0.5, -2.5], [1.0, 2.0, 2.0, 1.0]
GRID = [[0.0, 2.0, 2.0, 1.0], [2.0, -1.0, 2.0, 0.0], [0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, -1.0]]


def numbers(*size: int, start: float = -1.0, step: float = 0.375) -> Tensor:
    """Weights that differ."""
    return (start + step * torch.arange(math.prod(size), dtype=torch.float64)).reshape(size)


def rows(x: Tensor) -> Tensor:
    return x.reshape(2, -1)


def over(x: Tensor, **values: Any) -> Tensor:
    """A copy of ``x`` with entries overwritten."""
    copy = x.clone()
    for number, value in values.items():
        copy[int(number.removeprefix("at_"))] = value
    return copy


def overwritten(x: Tensor, name: str, *args: Any) -> Tensor:
    copy = x * 1
    getattr(copy, name)(*args)
    return copy


def negatives_by_index(x: Tensor) -> Tensor:
    copy = x.clone()
    copy[copy < 0] = 0.0
    return copy


def negated_by_index(x: Tensor) -> Tensor:
    copy = x.clone()
    copy[x < 0] = -x[x < 0]
    return copy


def by_an_if(x: Tensor) -> Tensor:
    return torch.stack([a if a > 0 else -a for a in x])


def by_elif(x: Tensor) -> Tensor:
    result = []
    for a in x:
        if a < -1:
            result.append(a * 0 - 1)
        elif a > 1:
            result.append(a * 0 + 1)
        else:
            result.append(a)
    return torch.stack(result)


def bubble(x: Tensor) -> Tensor:
    a = list(x)
    for i, j in itertools.combinations(range(len(a)), 2):
        if a[i] > a[j]:
            a[i], a[j] = a[j], a[i]
    return torch.stack(a)


def running_maximum(x: Tensor) -> Tensor:
    best = x[0]
    for a in x[1:]:
        if a > best:
            best = a
    return best


def masked_without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        mask = x > 0
    return torch.where(mask, x, -x)


def water_filling(x: Tensor) -> Tensor:
    """The largest of averages of the first elements, found by a loop with a break."""
    ordered, best = torch.sort(x, descending=True).values, x.max()
    for k in range(1, len(x)):
        if ordered[k] <= best - 1:
            break
        best = (ordered[: k + 1].sum() - 1) / (k + 1)
    return best


def until_settled(x: Tensor) -> Tensor:
    """A loop whose number of steps is chosen by the values."""
    y = x.sum()
    while y > 1:
        y = y - (y - 1)
    return y


def bisected(x: Tensor) -> Tensor:
    """The bound that leaves a sum of 1, by bisection and a step of Newton's method."""
    low, high = x.min().detach() - 1, x.max().detach()
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if (x - middle).relu().sum() > 1 else (low, middle)
    active = (x > high).double()
    return (x - ((x * active).sum() - 1) / active.sum()) * active


def simplex(x: Tensor) -> Tensor:
    ordered = torch.sort(x, descending=True).values
    excess = ordered.cumsum(0) - 1
    count = (ordered * torch.arange(1, len(x) + 1) > excess).sum()
    return torch.relu(x - excess[count - 1] / count)


def sparsemax(x: Tensor) -> Tensor:
    ordered, _ = x.sort(descending=True)
    k = torch.arange(1, len(x) + 1, dtype=x.dtype)
    support = 1 + k * ordered > ordered.cumsum(0)
    size = support.sum(0)
    threshold = (torch.where(support, ordered, 0.0).sum() - 1) / size
    return torch.clamp(x - threshold, min=0)


def l1_ball(x: Tensor) -> Tensor:
    return x if x.abs().sum() <= 1 else x.sign() * simplex(x.abs())


def group_shrunk(x: Tensor) -> Tensor:
    size = x.norm()
    return x * torch.where(size > math.sqrt(6), 1 - math.sqrt(6) / size, 0.0)


def huber(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 1, 0.5 * x * x, x.abs() - 0.5)


def eps_insensitive(x: Tensor) -> Tensor:
    return torch.clamp((x - 2).abs() - 1, min=0)


def pinball(x: Tensor) -> Tensor:
    return torch.max(0.3 * x, -0.7 * x)


def stable_cross_entropy(x: Tensor) -> Tensor:
    return x.clamp(min=0) - 0.3 * x + torch.log1p(torch.exp(-x.abs()))


def stable_softmax(x: Tensor) -> Tensor:
    e = torch.exp(x - x.max())
    return e / e.sum()


def stable_logsumexp(x: Tensor) -> Tensor:
    m = x.amax()
    return m + torch.log(torch.exp(x - m).sum())


def stable_sigmoid(x: Tensor) -> Tensor:
    z = torch.exp(-x.abs())
    return torch.where(x >= 0, 1 / (1 + z), z / (1 + z))


def spring(x: Tensor) -> Tensor:
    """Masses that touch: forces while they overlap, in a few steps of time."""
    position, velocity = x, torch.zeros_like(x)
    for _ in range(3):
        force = torch.where(position < 0, -4.0 * position, torch.zeros_like(position)) - 1
        velocity = velocity + 0.1 * force
        position = position + 0.1 * velocity
    return position


def friction(x: Tensor) -> Tensor:
    stick = -3.0 * x
    return torch.minimum(torch.maximum(stick, torch.full_like(x, -3.0)), torch.full_like(x, 3.0))


def bellman_ford(x: Tensor) -> Tensor:
    lengths = x.abs() + 1
    distance = torch.stack([lengths[0] * 0, lengths[0], lengths[1], lengths[2]])
    for _ in range(3):
        distance = torch.minimum(distance, distance.roll(1) + lengths)
    return distance


def time_warping(x: Tensor) -> Tensor:
    cost = (x[:, None] - torch.tensor([1.0, 0.0, 1.0])).abs()
    table = [[cost[0, 0] + 9] * 4 for _ in range(5)]
    table[0][0] = cost[0, 0] * 0
    for i, j in itertools.product(range(4), range(3)):
        table[i + 1][j + 1] = cost[i, j] + min(table[i][j], table[i + 1][j], table[i][j + 1])
    return table[4][3]


def viterbi(x: Tensor) -> Tensor:
    score = x
    for _ in range(3):
        score = (score[:, None] + numbers(4, 4, step=0.0)).max(0).values + x
    return score.max()


def conjugate_gradient(x: Tensor) -> Tensor:
    """Of a matrix with absolute values, by a loop with a tolerance."""
    matrix = torch.diag(x.abs() + 2) + 0.25
    b = torch.ones_like(x)
    y, r = torch.zeros_like(x), b
    p = r
    for _ in range(6):
        step = (r @ r) / (p @ matrix @ p)
        y, new = y + step * p, r - step * matrix @ p
        if new @ new < 1e-26:
            break
        p = new + (new @ new) / (r @ r) * p
        r = new
    return y


def newton_of_relu(x: Tensor) -> Tensor:
    """The root of a piecewise linear function, by Newton's method until it stands."""
    y = torch.zeros_like(x)
    for _ in range(8):
        residual = y + torch.relu(y) - x
        y = y - residual / (1 + (y > 0).double())
    return y


def interpolated(x: Tensor) -> Tensor:
    """In a table, at knots, with weights and hats."""
    knots = torch.arange(-3.0, 4.0, dtype=x.dtype)
    return (torch.relu(1 - (x[:, None] - knots).abs()) * knots.cos()).sum(1)


def looked_up_by_floor(x: Tensor) -> Tensor:
    table = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, 0.25, 3.0], dtype=x.dtype)
    left = torch.floor(x)
    place = left.detach().long() + 3
    return table[place] + (x - left) * (table[place + 1] - table[place])


def looked_up_by_long(x: Tensor) -> Tensor:
    table = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5], dtype=x.dtype)
    y = x.abs()
    place = y.long()
    return table[place] + (y - place) * (table[place + 1] - table[place])


def looked_up_by_searchsorted(x: Tensor) -> Tensor:
    knots, table = torch.tensor([-3.0, -2.0, 0.0, 1.0, 4.0]), torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5])
    place = torch.searchsorted(knots, x.detach().float(), right=True) - 1
    slope = (table[place + 1] - table[place]) / (knots[place + 1] - knots[place])
    return table[place] + (x - knots[place]) * slope


def looked_up_by_moving_searchsorted(x: Tensor) -> Tensor:
    knots = torch.tensor([-3.0, -2.0, 0.0, 1.0, 4.0], dtype=x.dtype)
    table = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5], dtype=x.dtype)
    place = torch.searchsorted(knots, x, right=True) - 1
    return table[place] + (x - knots[place]) * (table[place + 1] - table[place]) / (knots[place + 1] - knots[place])


def looked_up_by_bucketize(x: Tensor) -> Tensor:
    knots = torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype)
    slopes, offsets = torch.tensor([-1.0, 0.0, 2.0, 1.0]), torch.tensor([-1.0, 0.0, 0.0, 1.0])
    place = torch.bucketize(x, knots)
    return slopes[place] * x + offsets[place]


def looked_up_by_counting(x: Tensor) -> Tensor:
    knots = torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype)
    slopes, offsets = torch.tensor([-1.0, 0.0, 2.0, 1.0]), torch.tensor([-1.0, 0.0, 0.0, 1.0])
    place = (x[:, None] > knots).sum(1)
    return slopes[place] * x + offsets[place]


def straight_through(x: Tensor) -> Tensor:
    q = (x / 0.5).clamp(-4, 2)
    return (q + (q.round() - q).detach()) * 0.5


def learned_step(x: Tensor) -> Tensor:
    """LSQ: the last entry of ``x`` is the step."""
    step = x[3]
    q = (x[:3] / step).clamp(-2, 1)
    return (q + (q.round() - q).detach()) * step


def straight_through_then_clip(x: Tensor) -> Tensor:
    return (x + (x.round() - x).detach()).clamp(0, 1)


def binarised(x: Tensor) -> Tensor:
    """Weights of -1 and 1, with the gradient of hardtanh."""
    y = F.hardtanh(x)
    return y + (torch.where(x >= 0, 1.0, -1.0) - y).detach()


class ReluWithJvp(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clamp(min=0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return cotangent * (x > 0)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return tangent * (x > 0)


class ReluWithoutJvp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return cotangent * (x > 0)


def module(layer: nn.Module, *shape: int) -> Program:
    """A module with weights that differ, of an input of that shape."""
    layer = layer.double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(numbers(*parameter.shape, start=-0.5, step=0.25))
    return lambda x: layer(x.reshape(shape) if shape else x)


def recurrent(layer: nn.Module) -> Program:
    """From a zero state, with weights of small integers: there preactivations tie with 0."""
    layer = layer.double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(numbers(*parameter.shape, step=1.0).remainder(3) - 1)
    return lambda x: layer(x.reshape(4, 1, 1))[0]


def cell(x: Tensor) -> Tensor:
    w = torch.tensor([[1.0], [-1.0]], dtype=x.dtype)
    u = torch.eye(2, dtype=x.dtype)
    state = x.new_zeros(1, 2)
    for a in x:
        state = torch.rnn_relu_cell(a.reshape(1, 1), state, w, u, x.new_zeros(2), x.new_zeros(2))
    return state


def attention(x: Tensor) -> Tensor:
    """With relu in the place of softmax."""
    q, k = x[:, None] * numbers(3), x[:, None] * numbers(3, start=0.5)
    return torch.relu(q @ k.T) @ k


def hard_attention(x: Tensor) -> Tensor:
    scores = x[:, None] - x
    values, index = scores.abs().neg().topk(3, dim=1)
    return (values.softmax(1) * x[index]).sum(1)


def masked_attention(x: Tensor) -> Tensor:
    """A query sees the keys at or above the median, which have weights that fade to 0 there."""
    gate = torch.relu(x - x.median())
    q = x.reshape(1, 4, 1)
    return torch.softmax(q @ q.mT, -1) * gate


def fused_attention(x: Tensor) -> Tensor:
    q = torch.relu(x).reshape(1, 1, 4, 1)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, q + 1, q)


def unpooled(x: Tensor) -> Tensor:
    pooled, index = F.max_pool2d(x[None, None], 2, return_indices=True)
    return F.max_unpool2d(pooled, index, 2).sum()


def clipped_by_norm(x: Tensor) -> Tensor:
    return x * torch.clamp(math.sqrt(6) / (x.norm() + 0.0), max=1.0)


def box_distance(x: Tensor) -> Tensor:
    q = x.abs() - 1
    return torch.where(q.max() > 0, q.relu().amax(), q.amax())


def total_variation(x: Tensor) -> Tensor:
    return torch.diff(x).abs().sum()


def median_filter(x: Tensor) -> Tensor:
    return F.pad(x[None, None], (1, 1), mode="reflect")[0, 0].unfold(0, 3, 1).median(1).values


def forward_inside(x: Tensor) -> Tensor:
    value, tangent = torch.func.jvp(lambda x: torch.relu(x) ** 2, (x,), (torch.ones_like(x),))
    return value + tangent


def penalty(x: Tensor) -> Tensor:
    return torch.func.grad(lambda x: (torch.relu(x) ** 3).sum())(x)


def penalty_by_autograd(x: Tensor) -> Tensor:
    return torch.autograd.grad((torch.relu(x) ** 2).sum(), x, create_graph=True)[0]


def called() -> Program:
    layer = nn.Sequential(nn.Linear(4, 1, bias=False), nn.ReLU()).double()
    return lambda x: torch.func.functional_call(layer, {"0.weight": x[None]}, x.new_ones(4))


def gated() -> Program:
    layer = nn.GRU(1, 2).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(numbers(*parameter.shape))
    return lambda x: layer(torch.relu(x).reshape(4, 1, 1))[0]
