"""How torch spells the steps of random programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.fuzz.steps import SHAPE, Spelling, median

KNOTS = torch.arange(-200.0, 201.0, dtype=torch.float64)

# What takes more than an expression.


def _windows_in_torch(x: torch.Tensor, window: tuple[int, int]) -> torch.Tensor:
    flat = x.reshape(-1, 1, *SHAPE)
    return functional.max_pool2d(flat, window, stride=1, padding=(window[0] // 2, window[1] // 2)).reshape(x.shape)


def _index_like(x: torch.Tensor, rows: Sequence[int], axis: int) -> torch.Tensor:
    column = torch.tensor(rows)
    return (column[:, None] if axis == -2 else column).expand(x.shape)


def _segments_in_torch(x: torch.Tensor, columns: Sequence[int]) -> torch.Tensor:
    index = _index_like(x, columns, -1)
    largest = x.new_zeros(x.shape).scatter_reduce(-1, index, x, "amax", include_self=False)
    return largest.gather(-1, index)


def _branch_in_torch(x: torch.Tensor, above: float, below: float) -> torch.Tensor:
    first = x[..., :1, :1]
    return x + torch.where(first >= 0, above * first, below * first)


def _in_place(name: str) -> Spelling:
    return lambda x, *constants: getattr(x.clone(), name)(*constants)


def _clamp_in_torch(x: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
    if isinstance(low, float) and isinstance(high, float):
        return torch.clamp(x, low, high)
    return x.clamp(torch.as_tensor(low), torch.as_tensor(high))


def written(x: torch.Tensor) -> torch.Tensor:
    """The positive part, by writing to where the mask says."""
    x = x.clone()
    x[x < 0] = 0.0
    return x


def by_table(x: torch.Tensor) -> torch.Tensor:
    """The triangle wave, between its values at integers."""
    left = torch.bucketize(x, KNOTS, right=True).clamp(1, len(KNOTS) - 1) - 1
    values = (KNOTS % 2 - 1).abs()
    return values[left] + (x - KNOTS[left]) * (values[left + 1] - values[left])


SPELLINGS: Mapping[str, Sequence[Spelling]] = {
    "mix rows": [lambda x, m: m @ x],
    "mix columns": [lambda x, m: x @ m, lambda x, m: functional.linear(x, m.T)],
    "add": [torch.add, lambda x, y: x.clone().add_(y)],
    "subtract": [torch.sub, lambda x, y: x.clone().sub_(y)],
    "scale": [torch.mul, _in_place("mul_")],
    "shift": [torch.add, _in_place("add_")],
    "flip": [lambda x, axis: x.flip(axis)],
    "relu": [
        torch.relu,
        functional.relu,
        nn.ReLU(inplace=False),
        _in_place("relu_"),
        written,
        lambda x: x * (x > 0),
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.masked_fill(x < 0, 0.0),
    ],
    "identity": [
        lambda x: torch.relu(x) - torch.relu(-x),
        lambda x: x.clamp(min=0.0) + x.clamp(max=0.0),
        lambda x: torch.sign(x) * x.abs(),
        lambda x: x.abs() - torch.maximum(x, -x) + x,
        lambda x: x.floor() + x % 1,
        lambda x: x.long() + x.frac(),
        lambda x: torch.copysign(x, -x).neg(),
    ],
    "triangle wave": [
        lambda x: (x - 2 * torch.floor(x / 2) - 1).abs(),
        lambda x: (torch.remainder(x, 2) - 1).abs(),
        lambda x: 1 - (x - 2 * (x / 2).round()).abs(),
        lambda x: (torch.fmod(x.abs(), 2) - 1).abs(),
        lambda x: (x - 2 * torch.div(x, 2, rounding_mode="floor") - 1).abs(),
        lambda x: (x - 2 * torch.div(x + 100, 2, rounding_mode="trunc") + 99).abs(),
        by_table,
    ],
    "abs": [torch.abs, _in_place("abs_"), lambda x: torch.sign(x) * x, lambda x: torch.where(x < 0, -x, x)],
    "relu6": [functional.relu6, nn.ReLU6(), lambda x: functional.hardtanh(x, 0.0, 6.0)],
    "clamp": [_clamp_in_torch],
    "leaky_relu": [functional.leaky_relu],
    "kink by hand": [
        lambda x, above, below: torch.where(x >= 0, above * x, below * x),
        lambda x, above, below: above * x * (x > 0) + below * x * (x <= 0),
        lambda x, above, below: x * torch.where(x.lt(0), below, above),
    ],
    "branch": [_branch_in_torch],
    "hard_sigmoid": [functional.hardsigmoid, nn.Hardsigmoid()],
    "hard_swish": [functional.hardswish, nn.Hardswish()],
    "root beyond 1": [
        lambda x: torch.where(x > 1, x.sqrt(), x),
        lambda x: torch.where(x >= 1, x**0.5, x),
        lambda x: torch.where(x <= 1, x, (x.log() / 2).exp()),
    ],
    "maximum": [
        torch.maximum,
        torch.fmax,
        torch.max,
        lambda x, y: torch.where(x > y, x, y),
        lambda x, y: torch.stack([x, y]).amax(0),
    ],
    "minimum": [torch.minimum, torch.fmin, lambda x, y: torch.where(x < y, x, y)],
    "median": [
        lambda x, y, z: median(x, y, z, torch),
        lambda x, y, z: torch.clamp(z, torch.minimum(x, y), torch.maximum(x, y)),
        lambda x, y, z: torch.stack([x, y, z]).sort(0).values[1],
        lambda x, y, z: torch.stack([x, y, z]).median(0).values,
        lambda x, y, z: torch.stack([x, y, z]).quantile(0.5, 0),
    ],
    "less the largest": [
        lambda x, y, axis: y - x.amax(axis, keepdim=True),
        lambda x, y, axis: y - x.max(axis, keepdim=True).values,
        lambda x, y, axis: y - x.gather(axis, x.argmax(axis, keepdim=True)),
    ],
    "less the smallest": [
        lambda x, y: y - x.amin((-1, -2), keepdim=True),
        lambda x, y: y - x.aminmax(dim=-1, keepdim=True).min.amin(-2, keepdim=True),
        lambda x, y: y - x.min(-2, keepdim=True)[0].min(-1, keepdim=True)[0],
    ],
    "less the norm": [
        lambda x, y: y - torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True),
        lambda x, y: y - x.abs().amax(-1, keepdim=True),
    ],
    "less the length": [
        lambda x, y: y - torch.linalg.vector_norm(x, dim=-1, keepdim=True),
        lambda x, y: y - x.norm(2, -1, True),
    ],
    "less the two largest": [
        lambda x, y: y - x.topk(2, -1).values.sum(-1, keepdim=True),
        lambda x, y: y - x.gather(-1, x.topk(2, -1).indices).sum(-1, keepdim=True),
        lambda x, y: y - x.kthvalue(4, -1, keepdim=True).values - x.kthvalue(3, -1, keepdim=True).values,
    ],
    "sort": [
        lambda x, axis: x.sort(axis).values,
        lambda x, axis: torch.sort(x, dim=axis, descending=True)[0].flip(axis),
        lambda x, axis: x.gather(axis, x.argsort(axis)),
    ],
    "cumulative maximum": [lambda x, axis: x.cummax(axis).values],
    "cumulative minimum": [lambda x, axis: x.flip(axis).cummin(axis).values.flip(axis)],
    "windows": [_windows_in_torch],
    "scatter": [
        lambda x, y, rows: x.scatter_reduce(-2, _index_like(y, rows, -2), y, "amax"),
        lambda x, y, rows: x.clone().scatter_reduce_(-2, _index_like(y, rows, -2), y, "amax"),
        lambda x, y, rows: -(-x).index_reduce(-2, torch.tensor(rows), -y, "amin"),
    ],
    "segments": [_segments_in_torch],
    "product": [torch.mul, lambda x, y: x.clone().mul_(y)],
    "square": [torch.square, lambda x: x**2],
}
"""By the kind of step."""
