"""What torch keeps private and the bridge cannot do without: one function for each, with the reason."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._python_dispatch
from torch.autograd import forward_ad


def is_transformed() -> bool:
    """Whether a transformation of torch.func is at work, which wants another kind of autograd.Function."""
    return torch._C._are_functorch_transforms_active()


def is_forward_mode() -> bool:
    """Whether forward-mode derivatives may be asked for: a dual tensor does not say that it is one."""
    return forward_ad._current_level >= 0


def is_dispatch_mode_active() -> bool:
    """Whether a mode watches what torch dispatches to its kernels: one that fakes tensors, records a graph, counts."""
    return torch._C._len_torch_dispatch_stack() > 0


def without_dispatch_modes() -> contextlib.AbstractContextManager[Any]:
    """A block in which no such mode watches: what is asked of tensors without data belongs in no graph."""
    return torch.utils._python_dispatch._disable_current_modes()


def nonstrict_trace(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which Dynamo does not look into; `torch.compiler.allow_in_graph` would refuse dicts and functions.

    It loads Dynamo, which takes a second.
    """
    import torch._dynamo

    traced: Callable[..., Any] = torch._dynamo.nonstrict_trace(function)
    return traced


def is_in_old_vmap(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a batch of the vmap, older than torch.func's, behind ``is_grads_batched=True``."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor)


def old_vmap_level() -> int:
    """How many of these vmaps are around the current call."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    return level


def out_of_old_vmap(tensor: torch.Tensor) -> torch.Tensor:
    """The whole batch of ``tensor``, along its first axis."""
    return torch._remove_batch_dim(tensor, 1, 1, 0)  # the second 1 is a size for tensors that are no batch


def into_old_vmap(tensor: torch.Tensor) -> torch.Tensor:
    """A batch of the vmap, of all that lies along the first axis of ``tensor``."""
    return torch._add_batch_dim(tensor, 0, 1)


def carry_into_recomputation(key: object, decorate: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Decorate, once for each ``key``, what the checkpoints around the current call will run again.

    `torch.utils.checkpoint` restores autocast for the recomputation, but no function modes, and offers no way to.
    """
    if torch.compiler.is_compiling():
        return
    if torch.is_grad_enabled() and torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return  # a checkpoint either hooks the tape or turns it off
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") != "torch.utils.checkpoint":
            continue
        if frame.f_code.co_name == "forward":
            owner, attribute = frame.f_locals["ctx"], "run_function"
        elif frame.f_code.co_name == "checkpoint" and "gen" in frame.f_locals:
            owner, attribute = frame.f_locals["gen"].gi_frame.f_locals["new_frame"], "recompute_fn"
        else:
            continue
        function = getattr(owner, attribute)
        if getattr(function, "carries", None) is not key:
            decorated: Any = decorate(function)
            decorated.carries = key
            setattr(owner, attribute, decorated)
