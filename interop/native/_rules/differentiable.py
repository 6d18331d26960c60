"""Applies a rule as the torch.autograd.Function that eager mode, torch.func or torch.compile needs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from interop._torch.private_api import is_forward_mode, is_transformed, primal_of, with_forward_mode


def differentiable(rule: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return what applies a rule: by itself in torch.func, elsewhere by a Function made of it that suits better.

    Where a rule has ``tells_inactive``, tangents and cotangents that are absent are None, not zeros: an operand without
    a tangent is not active. Dynamo refuses to be told so, and asks for no tangents.

    Outside of torch.func, ``forward`` and ``setup_context`` are one. Torch asks `inspect` for the signature of a
    ``forward`` beside a ``setup_context`` at each call, which takes longer than all else.

    In a compiled function it is one that Dynamo looks into. That has no ``jvp``. It is not called where nothing is
    recorded: Dynamo would pass a context to ``forward`` then. A tensor that is passed twice, as in ``maximum(x, x)``,
    is a view of itself the second time. Within torch.func this Function is not used (`is_traced_under_transforms`).
    """

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if getattr(rule, "tells_inactive", False):
            ctx.set_materialize_grads(False)
        rule.setup_context(ctx, inputs, output)

    def forward(ctx: Any, *args: Any) -> Any:
        result = rule.forward(*args)
        setup_context(ctx, args, result)
        return result

    derivatives = {name: vars(rule)[name] for name in ("backward", "jvp") if name in vars(rule)}
    eager: Any = type(rule.__name__, (torch.autograd.Function,), {"forward": staticmethod(forward), **derivatives})
    of_func: dict[str, Any] = {"setup_context": staticmethod(setup_context)}
    if "jvp" in derivatives:
        of_func["jvp"] = staticmethod(_of_any_order(rule.jvp))
    transformed: Any = type(rule.__name__, (rule,), of_func)
    in_graphs: Any = type(
        rule.__name__, (torch.autograd.Function,), {k: v for k, v in vars(rule).items() if k != "jvp"}
    )

    def applied(*args: Any) -> Any:
        # Asked in place: behind a graph break, Dynamo would compile a function around it by itself, and answer there.
        if not (torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting()):
            return transformed.apply(*args) if is_transformed() else eager.apply(*args)
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
            if is_forward_mode():
                raise NotImplementedError(
                    "torch.compile cannot look into the forward-mode derivative of what interop puts in the place of a "
                    "function of torch; take torch.func.jvp outside of the compiled function, or reverse mode."
                )
            return rule.forward(*args)
        arguments: list[Any] = []
        for value in args:
            is_repeated = isinstance(value, torch.Tensor) and any(value is earlier for earlier in arguments)
            arguments.append(value.view_as(value) if is_repeated else value)
        return in_graphs.apply(*arguments)

    return applied


def _of_any_order(jvp: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``jvp`` for torch.func, with a result that is no constant to the transformations around.

    Torch calls a ``jvp`` where forward mode is off, so that a second forward mode, around the first, is lost without an
    error. It is on again here. Then what was saved has the tangent of the first forward mode still, and is taken
    without it.
    """

    def pushed(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        with with_forward_mode():
            return jvp(_Primals(ctx), *tangents)

    return pushed


class _Primals:
    """A context of an autograd.Function that gives what was saved without tangents."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    @property
    def saved_tensors(self) -> Sequence[torch.Tensor]:
        return tuple(map(primal_of, self._ctx.saved_tensors))
