"""Which conventions torch's own functions follow at ties: asked of the torch that is installed, as versions differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn import functional

from interop.native._rules.kinked import kinks_of
from interop.native._rules.selection import select
from jaxclamp import CONVENTIONS, OPS, Convention, Op

Own = Callable[..., torch.Tensor]

_OWN: Mapping[str, Own] = {
    **{name: getattr(torch, name) for name in ("clamp", "clamp_min", "clamp_max", "abs")},
    **{
        name: getattr(functional, name)
        for name in (
            *("relu", "relu6", "hardtanh", "hardsigmoid", "leaky_relu", "elu", "celu", "hardswish"),
            *("softshrink", "hardshrink", "threshold"),
        )
    },
}
_LEFT_OUT: Mapping[str, Callable[[float], bool]] = {
    "leaky_relu": lambda slope: not 0 <= slope <= 1,
    "elu": lambda alpha: not 0 <= alpha <= 1,
    "softshrink": lambda lambd: lambd == 0,
    "hardshrink": lambda lambd: lambd == 0,
}
"""The parameters for which torch's own function is not called where it is differentiated."""


def _asked(name: str) -> frozenset[Convention]:
    """The conventions that give the gradient of torch's function of that name at each tie of the op.

    It is asked in reverse mode, for a tensor and numbers.
    """
    own, op = _OWN[name], OPS[name]
    leaves_out = _LEFT_OUT.get(name, lambda parameter: False)
    followed = set(CONVENTIONS if op.has_conventions else ("min_norm",))
    for at, *parameters in op.tie_points:
        if any(parameter is None or leaves_out(parameter) for parameter in parameters):
            continue
        x = torch.tensor(at, dtype=torch.float32, device="cpu", requires_grad=True)
        found = _gradient(own(x, *parameters), x)
        followed = {ties for ties in followed if torch.equal(found, _defined(op, own, x, parameters, ties))}
    return frozenset(followed)


def _gradient(value: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, x)[0]


def _defined(op: Op, own: Own, x: torch.Tensor, parameters: Sequence[float], ties: Convention) -> torch.Tensor:
    if op.has_conventions:
        return _gradient(select(op.name, lambda x, *_: own(x, *parameters), ties, x, *parameters), x)
    return torch.tensor(dict(kinks_of(op.name, *parameters))[x.item()])


# A thread of its own is in no mode or transformation of torch.
with ThreadPoolExecutor(1) as thread:
    FOLLOWED: Mapping[str, frozenset[Convention]] = dict(zip(_OWN, thread.map(_asked, _OWN), strict=True))
    """By the name of a function of torch of a tensor and numbers, the conventions that its own gradient follows."""
