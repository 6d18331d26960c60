"""Derivatives of whole torch programs, against differences of values at nearby points and against closed forms."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import threading
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode, get_overridable_functions
from torch.utils.checkpoint import checkpoint

import interop
import jaxclamp
from interop._programs.choices import CHOICES
from tests.support.calls import of_aminmax

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


def check(fun: Function, *inputs: torch.Tensor, seeds: int = 2) -> None:
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
W = X[[0, 1, 2, 1]]
CELLS = torch.tensor([[0, 1, 1, 0], [2, 2, 1, 0], [2, 1, 2, 2]])
SIGNS = tensor(1.0, -1.0, 1.0)
F = functional

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
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 3), LINE),
    "torch.adaptive_max_pool1d": (lambda x: torch.adaptive_max_pool1d(x, 3)[0], LINE),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (3, None)), IMAGE),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 1), SOLID),
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
    "linalg.norm": (lambda x: torch.linalg.norm(x[0] * 0, 1) + torch.linalg.norm(x, math.inf, 1) + x.norm(), X),
    "linalg.norm of matrices": (lambda x: torch.linalg.norm(x, 1, keepdim=True) + torch.linalg.norm(x, -math.inf), X),
    "matrix_norm": (
        lambda x: torch.linalg.matrix_norm(x, -1, (0, -1)).sum() + torch.linalg.matrix_norm(x[1:], math.inf).sum(),
        IMAGE[0],
    ),
    "dist": (lambda x, y: torch.dist(x, y, 1) + x.dist(y, math.inf), X, Y),
    "pairwise_distance": (lambda x, y: F.pairwise_distance(x, y, 1.0, 0.0), X, ROW),
    "triplet_margin_loss of 1-norms": (lambda x, y: F.triplet_margin_loss(x, y, -y, p=1.0, eps=0.0), X, Y),
    "logit": (lambda x: torch.logit(x, 0.25) - x.logit(eps=0.25) / 2, tensor(0.25, 0.75, 0.5, 0.0)),
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
    "nn.RNN packed": (
        lambda x, w: torch.rnn_relu(
            x, torch.tensor([2, 1]), 0 * LINE.repeat(2, 1, 1)[:, :2], [w, w, -w, w], False, 1, 0.0, False, True
        )[0],
        X,
        W,
    ),
    "softmax": (lambda x: F.softmax(x, 1) + x.logsumexp(1, keepdim=True), X),
}


POSITIVE = tensor([[2.0, 1.0], [1.0, 2.0]])
UNDECIDED: dict[str, tuple[Function, torch.Tensor]] = {
    **{
        name: (getattr(torch, name), X / 2)
        for name in (
            "floor",
            "ceil",
            "round",
            "trunc",
            "fix",
            "frac",
            "signbit",
            "angle",
            "nonzero",
            "argwhere",
        )
    },
    **{
        name: (lambda x, own=own: own(x, torch.ones_like(x)), X)
        for name, own in {"fmod": torch.fmod, "remainder": torch.remainder, "%": operator.mod}.items()
    },
    "rounding_mode": (lambda x: torch.div(x, 1, rounding_mode="floor"), X),
    "conversions to integers": (lambda x: x.long(), X),
    "frexp": (lambda x: torch.frexp(x).mantissa, X),
    "nextafter": (lambda x: torch.nextafter(x, torch.zeros_like(x)), X),
    "copysign": (lambda x: torch.copysign(torch.ones_like(x), x), X),
    "atan2": (lambda x: torch.atan2(x, -torch.ones_like(x)), X),
    "isclose": (lambda x: torch.isclose(x, torch.zeros_like(x)), X),
    "equal": (lambda x: torch.tensor(torch.equal(x, X)), X),
    "isin": (lambda x: torch.isin(x, ROW), X),
    "bucketize": (lambda x: torch.bucketize(x, torch.arange(3.0)), X),
    "searchsorted": (lambda x: torch.searchsorted(x, tensor([[0.5], [2.0], [0.0]])), X.sort().values),
    "histc": (lambda x: torch.histc(x, 2, -1, 1), X),
    "matrix_rank": (torch.linalg.matrix_rank, 0 * POSITIVE),
    "if x": (lambda x: torch.tensor(1.0 if x else 0.0), T),
    "any": (torch.any, 0 * X),
    "all": (torch.all, 0 * X),
    "count_nonzero": (torch.count_nonzero, X),
    "quantiles": (lambda x: torch.quantile(x, 0.3, 1), X),
    "modes": (lambda x: x.mode(1).values, X),
    "fractional": (
        lambda x: F.fractional_max_pool2d(x, 2, 2, _random_samples=0.5 + tensor(np.zeros((1, 3, 2)))),
        0 * IMAGE,
    ),
    "power-average": (lambda x: F.lp_pool1d(x, 1.0, 1), 0 * LINE),
    "rrelu": (F.rrelu, X),
    "linalg.cond": (lambda x: torch.linalg.cond(x, 1), POSITIVE),
    "special.i0e": (torch.special.i0e, X),
    "renorm": (lambda x: torch.renorm(x, 2, 0, 2.0), tensor([[2.0, 0.0]])),
    "max_norm": (lambda x: F.embedding(torch.tensor([0]), x * 1, max_norm=2.0), tensor([[2.0, 0.0]])),
    "cosine_similarity": (lambda x: F.cosine_similarity(x, 1 + 0 * x, eps=2.0), tensor([[2.0, 0.0]])),
    "gaussian_nll_loss": (lambda x: F.gaussian_nll_loss(T + 3, T, x, eps=1.0), tensor(1.0)),
    "item()": (lambda x: x * (1.0 if x.item() > 0 else -1.0), T),
    "detach()": (lambda x: torch.where(x.detach() > 0, x, -x), T),
    "complex": (lambda x: torch.abs(x * 1j), X),
    "norms": (torch.norm, 0 * X),
    "standard deviations": (torch.std, 0 * X),
    "singular": (torch.linalg.svdvals, 0 * X),
    "eigenvalues": (torch.linalg.eigvalsh, 0 * POSITIVE),
}
"""What the documentation says is not decided, each at a tie."""


def differences(fun: Function, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor | None:
    """The one-sided derivative, from values; none where the shapes differ."""
    with torch.random.fork_rng():
        values = []
        for step in (0.0, 1e-5, 5e-6):
            torch.manual_seed(0)
            value = fun((x + step * v).clone())
            values.append(value[0].double() if isinstance(value, tuple) else value.double())
    if len({value.shape for value in values}) > 1:
        return None
    whole, half = ((value - values[0]) / step for value, step in zip(values[1:], (1e-5, 5e-6), strict=True))
    return 2 * half - whole


def is_right(fun: Function, x: torch.Tensor) -> bool:
    """Whether the derivative is that of the values, as far as both are finite, along a direction and its opposite."""
    (v,) = drawn((x,), 0)
    for direction in (v, -v):
        wanted = differences(fun, x, direction)
        torch.manual_seed(0)
        found = interop.directional_derivative(fun, x, direction)[1]
        found = found[0] if isinstance(found, tuple) else found
        if wanted is None:
            return False
        finite = found.isfinite() & wanted.isfinite()
        if not torch.allclose(found[finite].double(), wanted[finite], atol=1e-4, rtol=1e-3):
            return False
    return True


@pytest.mark.filterwarnings("ignore::jaxclamp.UndecidedWarning")
@pytest.mark.parametrize("name", UNDECIDED)
def test_the_undecided_are_listed(name: str) -> None:
    assert interop.directional_derivative.__doc__ is not None
    assert name in interop.directional_derivative.__doc__
    try:
        is_decided = is_right(*UNDECIDED[name])
    except NotImplementedError:
        pytest.skip("the installed torch has no forward mode of it")
    assert not is_decided


WITHOUT_FORWARD_MODE: dict[str, tuple[Function, torch.Tensor]] = {
    "unique": (torch.unique, X),
    "floor_divide": (lambda x: torch.floor_divide(x, 1), X),
    "//": (lambda x: x // 1, X),
    "histogram": (lambda x: torch.histogram(x, 2).hist, X),
    "cdist": (lambda x: torch.cdist(x, Y, 1), X),
    "pdist": (F.pdist, X),
    "segment_reduce": (lambda x: torch.segment_reduce(x, "max", lengths=torch.tensor([1, 3])), ROW),
    "embedding_bag": (lambda x: F.embedding_bag(torch.tensor([[0, 1]]), x, mode="max"), X),
    "grid_sample": (lambda x: F.grid_sample(IMAGE, x, align_corners=True), tensor([[[[0.0, 0.0]]]])),
    "multilabel_margin_loss": (lambda x: F.multilabel_margin_loss(x, torch.tensor([1, 0, -1, 0])), ROW),
    "fake_quantize_per_tensor_affine": (lambda x: torch.fake_quantize_per_tensor_affine(x.float(), 1.0, 0, 0, 3), X),
}


def test_what_has_no_forward_mode_is_listed() -> None:
    for name, (fun, x) in WITHOUT_FORWARD_MODE.items():
        assert name in (interop.directional_derivative.__doc__ or "")
        try:
            interop.directional_derivative(fun, x, x)
        except NotImplementedError:
            continue
        assert (name, torch.__version__ >= "2.15") == ("grid_sample", True)


def listed_as(name: str) -> str:
    """What the documentation calls a function of torch."""
    name = name.removeprefix("special_")
    words = {
        "conversions to integers": ("int", "long", "short", "byte", "char"),
        "quantiles": ("quantile", "nanquantile"),
        "modes": ("mode",),
        "norms": ("norm", "vector_norm", "linalg_vector_norm", "linalg_norm", "norm_except_dim"),
        "standard deviations": ("std", "std_mean"),
        "``unique``": ("unique_consecutive",),
        "special.i0e": ("i0e",),
        "``atan2``": ("arctan2",),
    }
    return next((word for word, names in words.items() if name in names), f"``{name}``")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_all_the_undecided_are_listed() -> None:
    """Of the functions of torch that take a tensor, or a number or a tensor more, those that are right but at ties."""
    document = interop.directional_derivative.__doc__ or ""
    homes = {torch, torch.Tensor, functional, torch.special, torch.linalg}
    others = {torch.where, torch.hinge_embedding_loss}  # where(x) is nonzero; the loss is what functional's calls
    missing, asked = [], 0
    for home, functions in get_overridable_functions().items():
        for own in functions if home in homes else ():
            name = getattr(own, "__name__", "_")
            if (
                own in CHOICES
                or own in others
                or name.startswith("_")
                or name.endswith("_")
                or listed_as(name) in document
            ):
                continue
            calls: list[Function] = [own, lambda x, own=own: own(x, 1.0), lambda x, own=own: own(x, Y.flatten())]
            for fun in calls:
                with contextlib.suppress(Exception):  # other arguments or results, or no forward mode
                    if is_right(fun, X.flatten() + 0.3):
                        asked += 1
                        if not is_right(fun, X.flatten() / 2):
                            missing.append(name)
    assert asked > 200
    assert set(missing) == set()


def parts(rule: Any) -> set[Any]:
    """The functions that a rule is made of, such as those of the three forms of torch.max."""
    return set().union(*map(parts, rule.args)) if isinstance(rule, functools.partial) and rule.args else {rule}


class Called(TorchFunctionMode):
    """What takes the place of the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.rules: set[Any] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.rules |= parts(CHOICES.get(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_every_choice_is_among_the_functions() -> None:
    with Called() as called:
        for fun, *inputs in FUNCTIONS.values():
            fun(*(x.clone() for x in inputs))
    assert not [own for own, rule in CHOICES.items() if not parts(rule) <= called.rules]


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[of_aminmax] if name == "torch.aminmax" else []) for name in FUNCTIONS]
)
def test_functions_at_ties(name: str) -> None:
    fun, *inputs = FUNCTIONS[name]
    check(fun, *inputs)


@pytest.mark.parametrize("seed", range(8))
def test_random_networks_at_ties(seed: int) -> None:
    """Piecewise linear ones with small whole numbers, against their gradients at points nearby."""
    rng = np.random.default_rng(seed)
    for _ in range(25):
        first, second = (torch.from_numpy(rng.integers(-2, 3, shape).astype(float)) for shape in ((6, 4), (6, 6)))
        third = torch.from_numpy(rng.integers(-2, 3, 6).astype(float))
        steps = rng.permutation(5)

        def network(x: torch.Tensor) -> torch.Tensor:
            h = first @ x  # noqa: B023  # called in this turn of the loop
            for number in steps:  # noqa: B023
                h = [
                    lambda h: torch.maximum(second @ h.relu(), (second @ h).abs() - h.relu()),  # noqa: B023
                    lambda h: h.sort().values - h.cummax(0).values,
                    lambda h: torch.where(h > h.flip(0), h, -h) + h.clamp(-1, 1),
                    lambda h: h.topk(3).values.repeat(2) - functional.leaky_relu(h, -0.5),
                    lambda h: functional.max_pool1d(h[None], 3, 1, 1)[0] + h * (h <= 0),
                ][number](h)
            return third @ h  # noqa: B023

        x = torch.from_numpy(rng.integers(-1, 2, 4).astype(float)) * (seed % 3 > 0)
        v = torch.from_numpy(rng.normal(size=4))
        near = (x + 1e-8 * v).requires_grad_()
        (true,) = torch.autograd.grad(network(near), near)
        assert torch.equal(interop.grad(network, direction=v)(x), true)


def test_second_derivatives_are_those_of_the_piece() -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        return (functional.relu(x) ** 3 - functional.relu(-x) ** 2 + functional.elu(x, 2.0) + x * x.abs()).sum()

    x, v = tensor(0.0, 0.0, 2.0, -1.0), tensor(1.0, -1.0, 1.0, 1.0)
    true = tensor(2.0, -2.0 - 2.0 + 2.0, 6 * 2.0 + 2.0, -2.0 - 2.0 + 2 * math.exp(-1.0))
    gradient = interop.grad(fun, direction=v)
    torch.testing.assert_close(torch.func.jacrev(gradient)(x), torch.diag(true))
    torch.testing.assert_close(torch.func.grad(lambda x: gradient(x).sum())(x), true)
    torch.testing.assert_close(torch.func.jvp(gradient, (x,), (torch.ones_like(x),))[1], true)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(gradient(leaf).sum(), leaf)[0], true)
    with interop.along([leaf], direction=[v]):
        (first,) = torch.autograd.grad(fun(leaf), leaf, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), leaf)[0], true)


def test_infinities_do_not_move() -> None:
    """What is compared with an infinity keeps its outcome, as in JAX."""
    functions: list[Function] = [
        lambda xp, x: xp.where(x == math.inf, 0.0, x),
        lambda xp, x: xp.where(x > -math.inf, 2 * x[2], 3 * x[2]),
        lambda xp, x: xp.maximum(x[:-1], x[1:]),
    ]
    at = [math.inf, math.inf, 1.0, -math.inf, -math.inf]
    for fun in functions:
        for v in ([1.0, 2.0, 3.0, 4.0, 5.0], [-1.0, -2.0, -3.0, -4.0, -5.0]):
            found = interop.grad(lambda x: fun(torch, x).sum(), direction=torch.tensor(v))(torch.tensor(at))  # noqa: B023
            expected = jaxclamp.grad(lambda x: fun(jnp, x).sum(), direction=jnp.array(v))(jnp.array(at))  # noqa: B023
            assert found.tolist() == expected.tolist()


def test_batches_of_points_and_of_directions() -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        return x.abs().sum() + x.amax() + functional.relu(x).sort().values[0] + torch.maximum(x, x.flip(0))[1]

    x, v = torch.zeros(5, 3), torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    found = torch.func.vmap(lambda x, v: interop.grad(fun, direction=v)(x))(x, v)
    alone = [interop.grad(fun, direction=v)(x) for x, v in zip(x, v, strict=True)]
    torch.testing.assert_close(found, torch.stack(alone))
    drawn_once = torch.func.vmap(interop.grad(fun))(x)  # one direction for the whole batch
    torch.testing.assert_close(drawn_once, interop.grad(fun)(x[0]).expand(5, 3))
    overwritten = torch.func.vmap(interop.grad(lambda x: (x * 1).mul_(x).sum()))(x + 1)
    torch.testing.assert_close(overwritten, 2 * (x + 1))


def rows(x: torch.Tensor) -> torch.Tensor:
    """Of a batch of rows of four, by functions that choose in different ways."""

    def of_row(row: torch.Tensor) -> torch.Tensor:
        largest, places = row.max(0)
        masked = torch.where(row > row.flip(0), row, 3 * row) * (row >= 0)
        pooled = functional.max_pool1d(row[None], 2)[0].sum() + row.scatter_reduce(0, CELLS[0], row.flip(0), "amax")
        return (row * 1).relu_() * row[places] + largest - masked + pooled + row.sort().values * 2 + row.clamp(-1, 1)

    return torch.func.vmap(lambda row: of_row(row) + functional.layer_norm(row + ROW, (4,)) * row.abs())(x)


def cubes(x: torch.Tensor) -> torch.Tensor:
    return (x.relu() - (-x).relu() + x.amax() + torch.maximum(x, 2 * x)) * x * x


LAYER = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.ReLU()).double()
WITHIN: dict[str, Function] = {
    "vmap": rows,
    "vmap of vmap": lambda x: torch.func.vmap(torch.func.vmap(lambda a: a.abs() * a.relu()))(x),
    "vmap along the second axis": lambda x: torch.func.vmap(torch.amax, in_dims=1)(x),
    "vmap of a constant": lambda x: torch.func.vmap(lambda a: torch.maximum(a, x.abs()))(Y) + 0 * x,
    "grad": lambda x: torch.func.grad(lambda x: cubes(x).sum())(x),
    "vmap of grad": lambda x: torch.func.vmap(torch.func.grad(lambda x: cubes(x).sum()))(x),
    "jvp": lambda x: torch.func.jvp(cubes, (x,), (-1 - Y,))[1],
    "vjp": lambda x: torch.func.vjp(cubes, x)[1](x + 1)[0],
    "jacrev": lambda x: torch.func.jacrev(cubes)(x[0]),
    "jacfwd": lambda x: torch.func.jacfwd(cubes)(x[0]),
    "hessian": lambda x: torch.func.hessian(lambda x: cubes(x).sum())(x[0]),
    "functional_call": lambda x: torch.func.functional_call(LAYER, {"0.weight": x.expand(3, 4)}, (1 + Y,)),
}


@pytest.mark.parametrize("name", WITHIN)
def test_transformations_within_the_function(name: str) -> None:
    """What is in them is decided by the direction outside, not by tangents of their own."""
    x, v = X, drawn((X,), 3)[0]
    weights = torch.from_numpy(np.random.default_rng(7).normal(size=WITHIN[name](x).shape))

    def weighted(x: torch.Tensor) -> torch.Tensor:
        return (WITHIN[name](x) * weights).sum()

    true = torch.func.grad(weighted)(x + 1e-7 * v)
    torch.testing.assert_close(interop.grad(weighted, direction=v)(x), true, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        interop.directional_derivative(weighted, x, v)[1], (true * v).sum(), atol=1e-5, rtol=1e-5
    )
    leaf = x.clone().requires_grad_()
    is_forward = name in ("jvp", "jacfwd", "hessian")
    with interop.along(leaf, direction=[v]):
        if is_forward:
            with pytest.raises(RuntimeError, match="Nested forward mode"):
                weighted(leaf)
        else:
            weighted(leaf).backward()
            torch.testing.assert_close(leaf.grad, true, atol=1e-5, rtol=1e-5)


def test_checkpoints_within_the_function() -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: (x.relu() - (-x).relu()).sum(), x, use_reentrant=False)

    try:
        torch.func.jvp(fun, (torch.zeros(2),), (torch.ones(2),))
    except NotImplementedError:
        pytest.skip("the installed torch has no forward mode of checkpoints")
    assert interop.directional_derivative(fun, torch.zeros(2), torch.ones(2))[1] == 2.0
    with pytest.raises(RuntimeError, match="saved tensor hooks"):  # by torch.func.grad
        interop.grad(fun)(torch.zeros(2))


def test_functions_that_overwrite() -> None:
    """Their inputs, here the same one twice, and running averages are what one run makes of them."""
    x, v = torch.tensor([1.0, 2.0]), torch.ones(2)
    value, derivative = interop.directional_derivative(lambda x, y: (x.mul_(2) * y).sum(), (x, x), (v, v))
    assert x.tolist() == [2.0, 4.0]
    assert v.tolist() == [1.0, 1.0]
    assert (value, derivative) == (20.0, 24.0)
    with pytest.raises(RuntimeError, match="mutate a captured Tensor"):
        interop.subdifferential(lambda x, y: (x * y.mul_(2)).sum())(v, x)
    assert x.tolist() == [2.0, 4.0]

    def loss(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        normal = functional.batch_norm(x, mean, torch.ones(2), training=True)
        return functional.instance_norm(normal[None], mean, torch.ones(2)).square().sum()

    at, once, asked = torch.eye(2), torch.zeros(2), torch.zeros(2)
    loss(at, once)
    assert once.count_nonzero()
    for ask, wanted in (
        (lambda: interop.directional_derivative(lambda x: loss(x, asked), at, at), once),
        (lambda: interop.grad(loss)(at, asked), once),
        (lambda: interop.grad(lambda x: (loss(x, asked), 0.0), has_aux=True)(at), once),
        (lambda: interop.subdifferential(loss, directions=4)(at, asked), torch.zeros(2)),
    ):
        asked.zero_()
        ask()
        assert torch.equal(asked, wanted)


def test_trees_auxiliary_results_and_random_numbers() -> None:
    def fun(scale: float, given: dict[str, torch.Tensor], *, shift: float) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.rand(4) > 0.5
        return ((given["z"].relu() - (-given["z"]).relu()) * given["a"] * scale + shift).sum(), mask

    given = {"z": torch.zeros(3), "a": torch.ones(3)}
    torch.manual_seed(0)
    gradient, mask = interop.grad(fun, 1, has_aux=True)(2.0, given, shift=1.0)
    after = torch.rand(())
    torch.manual_seed(0)
    assert torch.equal(mask, fun(2.0, given, shift=1.0)[1])
    assert torch.equal(after, torch.rand(()))
    assert {name: part.tolist() for name, part in gradient.items()} == {"z": [2.0] * 3, "a": [0.0] * 3}
    assert list(gradient) == ["z", "a"]
    _, derivative = interop.directional_derivative(
        lambda tree: fun(2.0, tree, shift=0.0)[0], (given,), ({"z": torch.ones(3), "a": torch.ones(3)},)
    )
    assert derivative == 6.0
    pair = interop.grad(lambda x, y: torch.maximum(x, y), (0, -1), direction=(torch.tensor(0.0), torch.tensor(1.0)))
    assert pair(torch.tensor(1.0), torch.tensor(1.0)) == (0.0, 1.0)


def test_draws() -> None:
    found = {
        interop.grad(torch.abs, generator=torch.Generator().manual_seed(k))(torch.tensor(0.0)).item() for k in range(9)
    }
    assert found == {1.0, -1.0}
    assert len({interop.grad(torch.abs)(torch.tensor(0.0)).item() for _ in range(3)}) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_are_those_of_torch(dtype: torch.dtype) -> None:
    """NaN, infinities, zeros of both signs and bounds that the dtype rounds; the dtype stays."""
    values = [math.nan, math.inf, -math.inf, 0.0, -0.0, 0.1, -0.1, 1.0, 3.0, -3.0, 6.0]
    x = torch.tensor(values, dtype=dtype)
    y = x.roll(1)
    functions: dict[str, Function] = {
        "clamp": lambda x: x.clamp(-0.1, 0.1),
        "of tensors": lambda x: x.clamp(y, y + 1),
        **{name: getattr(functional, name) for name in ("relu", "relu6", "hardtanh", "hardsigmoid", "hardswish")},
        **{name: getattr(functional, name) for name in ("leaky_relu", "elu", "selu", "softshrink", "hardshrink")},
        "binary": lambda x: torch.stack([op(x, y) for op in (torch.maximum, torch.minimum, torch.fmax, torch.fmin)]),
        "unary": lambda x: torch.stack([x.abs(), x.cummax(0).values, x.cummin(0).values, x.sort().values]),
        "reduced": lambda x: torch.stack([x.max(), x.amin(), x[1:].max(), x[3:].median(), x.median(), x.nanmedian()]),
        "selected": lambda x: torch.cat([x.topk(3).values, x.kthvalue(2).values[None], x[:0].sort().values]),
        "pooled": lambda x: functional.max_pool1d(x[None], 3, 2, 1),
        "compared": lambda x: torch.where(x[[0, 1, 5]] < x[[1, 2, 6]], 1.0, x[:3]),
    }
    if torch.zeros(()).clamp(min=math.nan).isnan():  # torch 2.11 takes it for no bound
        functions["of NaN"] = lambda x: x.clamp(min=math.nan)
    for name, fun in functions.items():
        outputs = []
        with interop.along(leaf := x.clone().requires_grad_()):
            outputs.append(fun(leaf).detach())
        outputs.append(fun(x))
        torch.testing.assert_close(*outputs, rtol=0, atol=0, equal_nan=True, msg=lambda told, name=name: name + told)


def test_along_always_the_same_direction() -> None:
    """It is kept from step to step; what overwrites a parameter, its dtype too, does not touch it."""
    x = torch.zeros(40, requires_grad=True)

    def signs() -> torch.Tensor:
        with interop.along(x):
            (gradient,) = torch.autograd.grad(x.abs().sum(), x)
        return gradient

    first = signs()
    assert {-1.0, 1.0} == set(first.tolist())
    with interop.along(x):
        x.abs().sum().backward()
        with torch.no_grad():
            x.mul_(-2.0).sub_(1.0)
    with torch.no_grad():
        x.zero_()
    assert torch.equal(signs(), first)
    with torch.inference_mode(), interop.along(x):
        pass
    x.data = x.data.double()
    assert signs().dtype is torch.float64
    x.data = x.data.float()
    assert torch.equal(signs(), first)


def test_what_does_not_move_is_left_to_torch() -> None:
    x = torch.zeros(3, requires_grad=True)
    numbers, waves = torch.tensor([3, 1, 2]), torch.tensor([1j, 2.0])
    with interop.along([x]):
        assert torch.equal(numbers.clamp(2, 2), torch.full((3,), 2))
        assert torch.equal(numbers.sort().indices, torch.tensor([1, 2, 0]))
        assert torch.equal(waves.abs(), torch.tensor([1.0, 2.0]))
        assert (torch.zeros(3) > 0).tolist() == [False] * 3
        assert x[:0].relu().shape == (0,)
        with pytest.raises((RuntimeError, IndexError)):
            x[:0].amax()


# Training.


def trained(steps: int) -> tuple[torch.nn.Module, list[float]]:
    """A network on data with ties: of whole numbers, with equal rows of weights and zeros as biases."""
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 4),
        torch.nn.ReLU(inplace=True),
        torch.nn.Linear(4, 4),
        torch.nn.Hardtanh(),
        torch.nn.Linear(4, 1),
    )
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 0.5 if parameter.dim() > 1 else 0.0)
    x = torch.tensor([[0.0, 0.0], [1.0, -1.0], [1.0, 0.0], [0.0, 1.0]])
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    source, losses = torch.Generator().manual_seed(0), []
    for _ in range(steps):
        optimizer.zero_grad()
        with interop.along(model, generator=source):
            loss = functional.l1_loss(model(x), x[:, :1])
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def test_training_on_ties() -> None:
    model, losses = trained(150)
    assert losses[-1] < 0.1 * losses[0]
    names = dict(model.named_parameters())
    assert all(type(parameter) is torch.nn.Parameter and parameter.is_leaf for parameter in names.values())


def test_gradients_of_modules_are_those_nearby() -> None:
    torch.manual_seed(0)
    shared = torch.nn.Linear(3, 3)
    model = torch.nn.Sequential(
        shared, torch.nn.LeakyReLU(-0.5), shared, torch.nn.ReLU6(), torch.nn.BatchNorm1d(3)
    ).double()
    with torch.no_grad():
        for parameter in shared.parameters():
            parameter.copy_(parameter.sign().floor())
    x = tensor([[0.0, 0.0, 0.0], [1.0, 1.0, -2.0], [0.0, 1.0, 0.0], [2.0, 2.0, 0.0]])
    parameters = list(model.parameters())
    direction = [torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(1)) for p in parameters]
    before, seen = [parameter.detach().clone() for parameter in parameters], []
    hook = shared.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    with interop.along(model, direction=direction):
        assert all(map(operator.is_, model.parameters(), parameters))
        loss = (model(x) ** 2 * torch.arange(12.0).reshape(4, 3)).sum()
    loss.backward()
    hook.remove()
    assert torch.equal(seen[0], shared.weight.grad)
    found = [parameter.grad for parameter in parameters]
    assert all(torch.equal(a, b) for a, b in zip(before, parameters, strict=True))
    model.zero_grad()
    with torch.no_grad():
        for parameter, v in zip(parameters, direction, strict=True):
            parameter.add_(1e-9 * v)
    (model(x) ** 2 * torch.arange(12.0).reshape(4, 3)).sum().backward()
    for gradient, parameter in zip(found, parameters, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Using backward")  # a cycle of references, which the test leaves behind
def test_gradients_of_gradients_move() -> None:
    """What is computed of a gradient, such as a penalty, is decided as well."""
    w, v = torch.zeros(3, requires_grad=True), torch.tensor([1.0, -1.0, 2.0])
    with interop.along(w, direction=[v]):
        x = torch.ones(3, requires_grad=True)
        (gradient,) = torch.autograd.grad((x * w).sum(), x, create_graph=True)  # it is w
        (gradient.relu() - (-gradient).relu()).sum().backward()
        (x * w).sum().backward(create_graph=True, inputs=[x])
        penalty = (x.grad.relu() - (-x.grad).relu()).sum()
    assert w.grad.tolist() == [1.0, 1.0, 1.0]
    assert torch.autograd.grad(penalty, w)[0].tolist() == [1.0, 1.0, 1.0]


def test_losses_of_several_blocks_are_differentiated_together() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1))
    before = model(torch.ones(1, 2)).sum()
    for _ in range(2):
        with interop.along(model):
            before = before + model(torch.ones(1, 2)).sum()
    before.backward()
    together = model[0].weight.grad.clone()
    model.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    torch.testing.assert_close(together, 3 * model[0].weight.grad)


def test_losses_of_half_precision() -> None:
    """Under autocast torch computes these in float32."""
    scores = torch.zeros(2, 3, requires_grad=True)
    for loss in (lambda x: functional.multi_margin_loss(x, torch.tensor([0, 2])), lambda x: functional.l1_loss(x, -x)):
        with torch.autocast("cpu", torch.bfloat16):
            usual = loss(scores.bfloat16())
            with interop.along(scores):
                decided = loss(scores.bfloat16())
        assert decided.dtype == usual.dtype
        assert torch.equal(decided, usual)


def test_an_optimizer_may_step_in_the_block() -> None:
    for make in (lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.AdamW(p, foreach=True)):
        layer = torch.nn.Linear(2, 2)
        optimizer = make(layer.parameters())
        before = layer.weight.detach().clone()
        with interop.along(layer):
            torch.nn.utils.clip_grad_norm_([p for p in layer.parameters() if p.grad is not None], 1.0)
            functional.mse_loss(layer(torch.ones(1, 2)).abs(), torch.zeros(1, 2)).backward()
            torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        assert not torch.equal(before, layer.weight)
        assert set(layer.state_dict()) == {"weight", "bias"}


def test_a_block_ends_with_an_exception() -> None:
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(KeyError), interop.along(x):
        raise KeyError
    assert torch.autograd.grad((x.relu() - (-x).relu()).sum(), x)[0].tolist() == [0.0, 0.0]
    with interop.along([x, x]):
        (x.relu() - (-x).relu()).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0]


def test_one_block_at_a_time() -> None:
    x, told = torch.zeros(2, requires_grad=True), []

    def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="in this thread or in another"), interop.along(x):
            pass
        told.append(True)

    with interop.along(x):
        with pytest.raises(RuntimeError, match="Leave the other block"), interop.along(x):
            pass
        with pytest.raises(RuntimeError, match="grad: forward mode is at work already"):
            interop.grad(torch.abs)(torch.tensor(0.0))
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert told


def test_checkpoints_are_refused() -> None:
    layer, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    with interop.along(layer):
        loss = checkpoint(lambda x: layer(x).relu(), x, use_reentrant=False).sum()
    with pytest.raises(RuntimeError, match="call the function without a checkpoint"):
        loss.backward()


class WithoutJvp(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
        return cotangent * 2


ZERO = torch.tensor(0.0)
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no function": (lambda: interop.grad(3), TypeError, "grad: fun is 3"),
    "both": (
        lambda: interop.grad(torch.abs, direction=ZERO, generator=torch.Generator()),
        ValueError,
        "direction and generator are both given",
    ),
    "integers": (lambda: interop.grad(torch.abs)(torch.tensor(1)), TypeError, "torch.int64"),
    "a number": (lambda: interop.directional_derivative(torch.abs, 1.0, 1.0), TypeError, "float"),
    "shape": (
        lambda: interop.directional_derivative(torch.abs, ZERO, torch.zeros(2)),
        ValueError,
        r"shape torch.Size\(\[2\]\)",
    ),
    "dtype": (lambda: interop.grad(torch.abs, direction=ZERO.double())(ZERO), ValueError, "float64"),
    "structure": (lambda: interop.grad(torch.abs, direction=(ZERO,))(ZERO), ValueError, "structure"),
    "out": (
        lambda: interop.grad(lambda x: torch.maximum(x, x, out=torch.zeros(())))(ZERO),
        NotImplementedError,
        "out= has no derivative",
    ),
    "not a scalar": (lambda: interop.grad(torch.abs)(torch.zeros(2)), RuntimeError, "scalar"),
    "no parameters": (lambda: interop.along(torch.nn.ReLU()).__enter__(), ValueError, "none of the parameters"),
    "no tensors": (lambda: interop.along([1]).__enter__(), TypeError, "one of the parameters is 1"),
    "neither": (lambda: interop.along(1).__enter__(), TypeError, "parameters is 1"),
    "too few": (
        lambda: interop.along(torch.nn.Linear(1, 1), direction=[torch.zeros(1, 1)]).__enter__(),
        ValueError,
        "structure",
    ),
    "directions": (lambda: interop.subdifferential(torch.abs, directions=0), ValueError, "directions=0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


def test_functions_without_forward_mode_name_the_cure() -> None:
    with pytest.raises(NotImplementedError) as raised:
        interop.directional_derivative(WithoutJvp.apply, ZERO, ZERO)
    assert "write a jvp" in raised.value.__notes__[0]
    with pytest.raises(NotImplementedError) as raised, interop.along(x := torch.zeros((), requires_grad=True)):
        WithoutJvp.apply(x)
    assert "along needs forward mode" in raised.value.__notes__[0]
    with pytest.raises(NotImplementedError, match="derivative of products for 0"):
        interop.grad(lambda x: x.scatter_reduce(0, torch.tensor([0, 0]), x, "prod").sum())(torch.ones(2))


@pytest.mark.filterwarnings("ignore:TF32")  # torch asks about Intel's GPUs
def test_the_cures_for_attention_and_lstm() -> None:
    attention, lstm = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), torch.nn.LSTM(4, 2)
    x = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))
    gradients = []
    for block in (contextlib.nullcontext, lambda: interop.along([*attention.parameters(), *lstm.parameters()])):
        with block(), sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            lstm(attention(x))[0].square().sum().backward()
        gradients.append([parameter.grad for parameter in (*attention.parameters(), *lstm.parameters())])
        attention.zero_grad()
        lstm.zero_grad()
    torch.testing.assert_close(*gradients)


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")  # torch 2.11, of a Generator
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # for which Dynamo asks tensors of torch.func
def test_compiled() -> None:
    """One graph is refused; else Dynamo leaves the call to Python."""

    def fun(x: torch.Tensor) -> torch.Tensor:
        return (x.relu() - (-x).relu()).sum()

    x = torch.zeros(3)
    assert torch.compile(lambda x: interop.grad(fun)(x), backend="eager")(x).tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(Exception, match="cannot run in a compiled function"):
        torch.compile(lambda x: interop.grad(fun)(x), backend="eager", fullgraph=True)(x)
    assert interop.grad(torch.compile(fun, backend="eager"))(x).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_and_along(backend: str) -> None:
    """Neither works in the other, and both say so, also where Dynamo leaves the block to Python."""
    layer, x = torch.nn.Linear(2, 2), torch.ones(1, 2)

    def step(x: torch.Tensor) -> torch.Tensor:
        with interop.along(layer):
            return layer(x).relu().sum()

    with pytest.raises(
        RuntimeError, match=r"along cannot run in a compiled function; call it outside of torch\.compile"
    ):
        torch.compile(step, backend=backend)(x)
    compiled = torch.compile(lambda x: layer(x).relu().sum(), backend=backend)
    compiled(x)
    for fun in (compiled, lambda x: torch.compile(layer, backend=backend)(x)):
        with interop.along(layer), pytest.raises(RuntimeError, match="call the function that was compiled"):
            fun(x)


def test_subdifferential() -> None:
    """A LASSO at its minimiser, which is 0: the hull has 0 in it; and a maximum whose hull has not."""
    a, b = tensor([[2.0, 1.0], [0.0, 1.0]]), tensor(0.25, -0.5)

    def lasso(x: torch.Tensor) -> torch.Tensor:
        return ((a @ x - b) ** 2).sum() / 2 + x.abs().sum()

    found = interop.subdifferential(lasso)(tensor(0.0, 0.0))
    assert found.is_certified
    assert not found.is_differentiable
    assert found.min_norm.tolist() == [0.0, 0.0]
    lines = interop.subdifferential(lambda p: torch.maximum(p["x"] + p["y"], p["x"] - p["y"]))({"x": ZERO, "y": ZERO})
    assert {name: pytest.approx(part.item(), abs=1e-6) for name, part in lines.min_norm.items()} == {"x": 1.0, "y": 0.0}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_each_entry_of_a_gradient_has_its_own_rounding(dtype: torch.dtype) -> None:
    """A small slope beside a steep kink is not taken for 0, and a small kink beside a steep slope not for smooth."""
    slope = torch.tensor(0.2, dtype=dtype)
    found = interop.subdifferential(lambda x: 1000 * x[0].abs() + slope * x[1])(torch.zeros(2, dtype=dtype))
    assert found.min_norm.tolist() == [0.0, slope]
    assert found.is_certified
    kink = interop.subdifferential(lambda x: 1000 * x[0] + slope * x[1].abs())(torch.zeros(2, dtype=dtype))
    assert not kink.is_differentiable
    assert not kink.contains(torch.tensor([1000.0, 1.0], dtype=dtype))
