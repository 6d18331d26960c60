"""Measures how far another convention than the minimum norm moves a gradient of torch code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from interop._transforms.min_norm import min_norm
from jaxclamp import Convention
from jaxclamp._shared.tie_report import Influence

_NO_LIST = "influence: parameters has to be a list of tensors, such as [weight] or model.parameters(), but is {}."


def influence(closure: Callable[[], torch.Tensor], parameters: Iterable[torch.Tensor]) -> Influence:
    """Measure how far another convention moves a gradient from that of minimum norm.

    The others are ``ties="inclusive"`` and torch's own; the one that moves it further counts.

    Args:
      closure: computes a scalar from ``parameters``, the same at each call; it is called three times, each time with
        the same state of torch's random numbers.
      parameters: tensors that require grad, with respect to which to differentiate.

    Returns:
      The norm of the difference and that of the gradient of minimum norm, over all parameters together.

    Raises:
      TypeError: ``closure`` is no function, or ``parameters`` no list of tensors.
      ValueError: there are no parameters, one does not require grad, or the value of ``closure`` is not a scalar that
        depends on one of them.

    >>> x = torch.tensor([-1.0, 0.0, 3.0, 6.0], requires_grad=True)
    >>> found = influence(lambda: x.clamp(0.0, 6.0).sum(), [x])
    >>> round(found.norm, 4), found.gradient_norm
    (1.4142, 1.0)
    """
    if not callable(closure):
        raise TypeError(f"influence: closure is {closure!r}; pass a function that computes it: lambda: loss(model(x)).")
    if isinstance(parameters, torch.Tensor) or not isinstance(parameters, Iterable):
        raise TypeError(_NO_LIST.format(type(parameters).__name__))
    tensors = list(parameters)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(_NO_LIST.format(f"one of {type(tensor).__name__}"))
        if not tensor.requires_grad:
            raise ValueError("influence: one of the parameters does not require grad; pass those alone that do.")
    if not tensors:
        raise ValueError("influence: parameters is empty; pass the tensors with respect to which to differentiate.")
    tensors = list(dict.fromkeys(tensors))  # weights may be tied
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}  # whose random numbers are put back, too

    def gradient(ties: Convention | None) -> np.ndarray[Any, Any]:
        convention = contextlib.nullcontext() if ties is None else min_norm(ties=ties)
        with torch.random.fork_rng(devices), convention:
            value = closure()
        if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
            raise ValueError(
                f"influence: closure returned {value!r}; return a scalar tensor computed from the parameters, outside "
                "of torch.no_grad()."
            )
        gradients = torch.autograd.grad(value, tensors, allow_unused=True)
        if all(gradient is None for gradient in gradients):
            raise ValueError("influence: what closure returned depends on none of the parameters; pass those it uses.")
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(tensors, gradients, strict=True)]
        return np.concatenate([gradient.double().cpu().numpy().ravel() for gradient in flat])

    return Influence.of(gradient)
