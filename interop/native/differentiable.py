"""How a rule of this package is applied: as a `torch.autograd.Function`, as another where `torch.compile` looks in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def differentiable(rule: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``rule.apply``; in a compiled function by a Function that Dynamo looks into.

    That has no ``jvp``. It is not called where no tensor requires grad: Dynamo would pass a context to ``forward``
    then. It gets no tensor twice: a view stands for the second.
    """
    in_graphs: Any = type(
        rule.__name__, (torch.autograd.Function,), {k: v for k, v in vars(rule).items() if k != "jvp"}
    )

    def applied(*args: Any) -> Any:
        if not torch.compiler.is_compiling():
            return rule.apply(*args)
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if not any(tensor.requires_grad for tensor in tensors):
            return rule.forward(*args)
        given: list[Any] = []
        for value in args:
            is_repeated = isinstance(value, torch.Tensor) and any(value is other for other in given)
            given.append(value.view_as(value) if is_repeated else value)
        return in_graphs.apply(*given)

    return applied


def tell_inactive(ctx: Any) -> None:
    """Let tangents that are absent be None, not zeros: an operand without one is not active.

    Dynamo refuses the call, and asks for no tangents.
    """
    if not torch.compiler.is_compiling():
        ctx.set_materialize_grads(False)
