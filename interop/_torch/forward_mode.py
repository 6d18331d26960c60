"""Forward mode around forward mode: lets the ``jvp`` of an autograd.Function be differentiated, as torch does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from interop._torch.private_api import primal_of, with_forward_mode


def of_any_order(jvp: Callable[..., Any]) -> Callable[..., Any]:
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
