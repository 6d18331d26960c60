"""How a rule of this package is applied: as a `torch.autograd.Function`, as another where `torch.compile` looks in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def differentiable(rule: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``rule.apply``; in a compiled function without the ``jvp``, since Dynamo looks into no Function that has one."""
    in_graphs: Any = type(
        rule.__name__, (torch.autograd.Function,), {k: v for k, v in vars(rule).items() if k != "jvp"}
    )

    def applied(*args: Any) -> Any:
        return in_graphs.apply(*args) if torch.compiler.is_compiling() else rule.apply(*args)

    return applied


def tell_inactive(ctx: Any) -> None:
    """Let tangents that are absent be None, not zeros: an operand without one is not active.

    Dynamo refuses the call, and asks for no tangents.
    """
    if not torch.compiler.is_compiling():
        ctx.set_materialize_grads(False)
