"""Derivatives of torch programs, held against differences of values at nearby points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import interop

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


X = tensor([[1.0, 0.0, -1.0, 0.0], [2.0, 2.0, -2.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
Y = tensor([[1.0, 0.0, 1.0, -1.0], [2.0, 0.0, -2.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
ROW = tensor(0.0, 2.0, -1.0, 0.0)
HALVES = torch.full((1, 3, 3), 0.5, dtype=torch.float64)
LINE, IMAGE, SOLID = X[None, :, :], X.reshape(1, 3, 2, 2).repeat(1, 1, 2, 2), X.reshape(1, 3, 2, 2, 1)
CELLS = torch.tensor([[0, 1, 1, 0], [2, 2, 1, 0], [2, 1, 2, 2]])

ZERO = torch.tensor(0.0)
