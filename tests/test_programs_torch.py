"""Derivatives of whole torch programs, against differences of values at nearby points and against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import interop
from interop._programs.choices import CHOICES

Function = Callable[..., torch.Tensor]
Tensors = tuple[torch.Tensor, ...]


def tensor(*values: Any, **kwargs: Any) -> torch.Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=torch.float64, **kwargs)


def drawn(inputs: Tensors, seed: int) -> Tensors:
    rng = np.random.default_rng(seed)
    return tuple(torch.from_numpy(rng.normal(size=x.shape)) for x in inputs)


def step(inputs: Tensors, directions: Tensors, size: float) -> Tensors:
    return tuple(x + size * v for x, v in zip(inputs, directions, strict=True))


def of_values(fun: Function, inputs: Tensors, weights: torch.Tensor) -> float:
    """``fun``, which may overwrite its inputs, as a number, by the values alone."""
    return float((fun(*(x.clone() for x in inputs)) * weights).sum())


def difference(fun: Function, inputs: Tensors, directions: Tensors, weights: torch.Tensor) -> float:
    """The one-sided derivative, from values: with Richardson's step for what is curved."""
    whole, half = (
        (of_values(fun, step(inputs, directions, h), weights) - of_values(fun, inputs, weights)) / h
        for h in (2e-5, 1e-5)
    )
    return 2 * half - whole


def nearby_gradient(fun: Function, inputs: Tensors, directions: Tensors) -> Tensors:
    """The gradient a small step along the directions, where there is no tie."""
    near = tuple(x.requires_grad_() for x in step(inputs, directions, 1e-6))
    return torch.autograd.grad(fun(*near), near, materialize_grads=True)


def check(fun: Function, *inputs: torch.Tensor, seeds: int = 3) -> None:
    """The derivative and the gradient along some directions against values at nearby points."""
    value = fun(*(x.clone() for x in inputs))
    weights = torch.from_numpy(np.random.default_rng(7).normal(size=value.shape))

    def weighted(*inputs: torch.Tensor) -> torch.Tensor:
        return (fun(*(x.clone() for x in inputs)) * weights).sum()

    for seed in range(seeds):
        v = drawn(inputs, seed)
        found, derivative = interop.directional_derivative(weighted, inputs, v)
        assert torch.equal(found, weighted(*inputs))
        torch.testing.assert_close(
            derivative.item(), difference(fun, inputs, v, weights), atol=1e-5, rtol=1e-5, equal_nan=False
        )
        gradients = interop.grad(weighted, tuple(range(len(inputs))), direction=v)(*inputs)
        torch.testing.assert_close(gradients, nearby_gradient(weighted, inputs, v), atol=1e-4, rtol=1e-4)
        along = sum(float((gradient * u).sum()) for gradient, u in zip(gradients, v, strict=True))
        assert along == pytest.approx(derivative.item(), abs=1e-9)


# Whole programs.

T = tensor(0.0)
PROGRAMS: dict[str, tuple[Function, float, float]] = {
    "relu(x) - relu(-x)": (lambda x: torch.relu(x) - torch.relu(-x), 0.0, 1.0),
    "relu(relu(x)) - relu(-x)": (lambda x: x.relu().relu() - functional.relu(-x), 0.0, 1.0),
    "relu6(w + 6) + relu6(w)": (lambda w: functional.relu6(w + 6) + functional.relu6(w), 0.0, 1.0),
    "hardsigmoid(w + 3) + hardsigmoid(w - 3)": (
        lambda w: functional.hardsigmoid(w + 3) + functional.hardsigmoid(w - 3),
        0.0,
        1 / 6,
    ),
    "clip below + clip above": (lambda x: x.clip(0, None) + torch.clip(x, max=0), 0.0, 1.0),
    "abs(x) - maximum(x, -x) + 5 x": (lambda x: x.abs() - torch.maximum(x, -x) + 5 * x, 0.0, 5.0),
    "where by hand": (lambda x: torch.where(x > 0, x, 0) + torch.where(x >= 0, 0, x), 0.0, 1.0),
    "masks by hand": (lambda x: x * (x > 0) + x * (x <= 0).to(x), 0.0, 1.0),
    "clamp + min + max": (
        lambda x: x.clamp(0, 6) + torch.minimum(x, tensor(0.0)) + torch.max(x - 6, tensor(0.0)),
        6.0,
        1.0,
    ),
    "seven times": (lambda x: [x := torch.relu(x) - torch.relu(-x) for _ in range(7)][-1], 0.0, 1.0),
    "a Python if": (lambda x: x if x > 0 else 1 * x, 0.0, 1.0),
    "a Python if on both": (lambda x: (x if x > 0 else -x) - (2 * x if x >= 0 else -2 * x) + x.abs(), 0.0, 0.0),
    "max(x, 2 x) + min(x, 2 x)": (
        lambda x: torch.stack([x, 2 * x]).amax() + torch.stack([x, 2 * x]).min(0).values,
        0.0,
        3.0,
    ),
    "median of equal ones": (lambda x: torch.stack([x, x, x]).median(), 0.0, 1.0),
    "fmax + fmin": (lambda x: torch.fmax(x, tensor(0.0)) + torch.fmin(x, tensor(0.0)), 0.0, 1.0),
    "sorted": (
        lambda x: torch.stack([x, -x]).sort().values @ tensor(-1.0, 1.0) - x.abs() - x.neg().abs() + x,
        0.0,
        1.0,
    ),
    "clamp(-5, t, t)": (lambda t: torch.clamp(tensor(-5.0), t, t), 0.0, 1.0),
    "leaky relus": (
        lambda x: functional.leaky_relu(x, 0.25) - functional.leaky_relu(-x, 0.25),
        0.0,
        1.25,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_have_their_true_derivative(name: str) -> None:
    fun, at, true = PROGRAMS[name]
    x = tensor(at)
    for v in (1.0, -1.0, 0.5, -2.0):
        gradient = interop.grad(fun, direction=tensor(v))(x)
        assert gradient.item() == pytest.approx(true, abs=1e-15)
        value, derivative = interop.directional_derivative(fun, x, tensor(v))
        assert value == fun(x)
        assert derivative.item() == pytest.approx(true * v, abs=1e-15)
    assert interop.grad(fun)(x).item() == pytest.approx(true, abs=1e-15)


def test_khan_and_barton() -> None:
    """max(min(x1, -x2), x2 - x1) at 0, whose pieces are x1, -x2 and x2 - x1."""

    def fun(x: torch.Tensor) -> torch.Tensor:
        return torch.maximum(torch.minimum(x[0], -x[1]), x[1] - x[0])

    def closed(x1: float, x2: float) -> float:
        return max(min(x1, -x2), x2 - x1)

    zero = tensor(0.0, 0.0)
    seen = set()
    for v1, v2 in np.random.default_rng(0).normal(size=(50, 2)):
        v = tensor(v1, v2)
        gradient = interop.grad(fun, direction=v)(zero)
        assert interop.directional_derivative(fun, zero, v)[1] == closed(v1, v2) == gradient @ v
        seen.add(tuple(gradient.tolist()))
    assert seen == {(1.0, 0.0), (0.0, -1.0), (-1.0, 1.0)}


def taken_at(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return x.flatten(2).gather(2, indices.flatten(2))


# The functions of torch, each with as many ties as it can have.

X = tensor([[1.0, 0.0, -1.0, 0.0], [2.0, 2.0, -2.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
Y = tensor([[1.0, 0.0, 1.0, -1.0], [2.0, 0.0, -2.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
ROW = tensor(0.0, 2.0, -1.0, 0.0)
LINE, IMAGE, SOLID = X[None, :, :], X.reshape(1, 3, 2, 2).repeat(1, 1, 2, 2), X.reshape(1, 3, 2, 2, 1)
CELLS = torch.tensor([[0, 1, 1, 0], [2, 2, 1, 0], [2, 1, 2, 2]])
SIGNS = tensor(1.0, -1.0, 1.0)
F = functional

FUNCTIONS: dict[str, tuple[Any, ...]] = {
    **{
        f"{name} {place}": (lambda x, name=name, home=home: getattr(home, name)(x), X + shift)
        for name, shift in {"abs": 0.0, "relu": 0.0, "absolute": 0.0}.items()
        for place, home in {"function": torch, "method": torch.Tensor}.items()
        if name != "relu" or home is torch
    },
    "F.relu": (F.relu, X),
    "F.relu6": (F.relu6, 3 * X),
    "F.relu6 inplace": (lambda x: F.relu6(x * 1, True), 3 * X),
    "F.hardtanh": (F.hardtanh, X),
    "F.hardtanh_": (lambda x: F.hardtanh_(x * 2.0, -2.0, 2.0), X),
    "F.hardsigmoid": (F.hardsigmoid, tensor(-3.0, 3.0, 0.0, 4.0, -4.0)),
    "F.hardsigmoid inplace": (lambda x: F.hardsigmoid(x * 1, inplace=True), tensor(-3.0, 3.0, 0.0)),
    "F.hardswish": (F.hardswish, tensor(-3.0, 3.0, 0.0, 4.0, -4.0)),
    "F.leaky_relu": (lambda x: F.leaky_relu(x, -0.5), X),
    "F.leaky_relu_": (lambda x: F.leaky_relu_(x * 1, 2.0), X),
    "F.prelu": (F.prelu, X, tensor(0.25, -0.5, 2.0, 1.0)),
    "F.prelu one": (F.prelu, X, tensor([0.25])),
    "F.elu": (lambda x: F.elu(x, 2.0), X),
    "F.elu_": (lambda x: F.elu_(x * 1, 0.5), X),
    "F.selu": (F.selu, X),
    "torch.selu_": (lambda x: torch.selu_(x * 1), X),
    "F.celu": (lambda x: F.celu(x, 0.5), X),
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
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 3), LINE),
    "torch.adaptive_max_pool1d": (lambda x: torch.adaptive_max_pool1d(x, 3)[0], LINE),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (3, None)), IMAGE),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 1), SOLID),
    "l1_loss": (F.l1_loss, X, Y),
    # torch forgets the weight when it asks a mode
    "l1_loss weighted": (lambda x, y: CHOICES[F.l1_loss](x, y, weight=1 + CELLS), X, Y),
    "l1_loss none": (lambda x, y: F.l1_loss(x, y, reduction="none"), X, Y),
    "smooth_l1_loss": (lambda x, y: F.smooth_l1_loss(x, y, beta=0.0), X, Y),
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
    "norm inf": (lambda x: torch.norm(x, math.inf, dim=1, keepdim=True), X),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x, ord=-math.inf, dim=0) + torch.linalg.vector_norm(x, 1), X),
    "strided": (lambda x: x.t()[::2].amax(1) + F.relu(x[:, 0].expand(2, 3))[0, :2], X),
    "ours": (lambda x, y: interop.native.maximum(x, y) + interop.relu(x) - interop.native.amax(y, 1, True), X, Y),
    "softmax": (lambda x: F.softmax(x, 1) + x.logsumexp(1, keepdim=True), X),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_at_ties(name: str) -> None:
    fun, *inputs = FUNCTIONS[name]
    check(fun, *inputs)
