"""What torch keeps private and the bridge cannot do without: one function for each, with the reason."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.utils._python_dispatch
import torch.utils._pytree
from torch.autograd import forward_ad
from torch.overrides import get_overridable_functions, has_torch_function

F = TypeVar("F", bound=Callable[..., Any])


def is_transformed() -> bool:
    """Whether a transformation of torch.func is at work, which wants another kind of autograd.Function."""
    return torch._C._are_functorch_transforms_active()


def is_forward_mode() -> bool:
    """Whether forward-mode derivatives may be asked for: a dual tensor does not say that it is one."""
    return forward_ad._current_level >= 0


def without_forward_mode() -> contextlib.AbstractContextManager[Any]:
    """A block in which tangents are not propagated.

    A backward pass would take those of the tensors that it has kept along, and fails for some functions.
    """
    return forward_ad._set_fwd_grad_enabled(False)


def without_transformations() -> contextlib.AbstractContextManager[Any]:
    """A block outside of the transformations of torch.func: random numbers drawn in it are the same for a whole batch.

    `torch.func.vmap` refuses to draw random numbers unless it is told how.
    """
    return torch._C._DisableFuncTorch() if is_transformed() else contextlib.nullcontext()  # Dynamo cannot trace the one


def with_old_versions(tensors: Iterable[torch.Tensor]) -> contextlib.AbstractContextManager[Any]:
    """A block in which what overwrites the tensors does not count as a change, as it leaves their values as they are.

    A backward pass that needs their values, of a loss computed before, would refuse them.
    """
    return torch.autograd.grad_mode._unsafe_preserve_version_counter(tuple(tensors))


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


def is_overridden(arguments: Sequence[Any]) -> bool:
    """Whether subclasses of tensors or function modes want to see a call: `torch.overrides.has_torch_function`.

    In a compiled function that one overlooks the modes.
    """
    return torch._C._is_torch_function_mode_enabled() or has_torch_function(arguments)


def make_overridable(functions: Iterable[Callable[..., Any]]) -> None:
    """Let Dynamo ask function modes about these functions, as eager calls do.

    It asks about those that `torch.overrides.get_overridable_functions` lists, and that misses forms that overwrite.
    The list is made once in a process, and Dynamo's copy of it with the first compiled function.
    """
    listed = get_overridable_functions()
    known = {function for of_namespace in listed.values() for function in of_namespace}
    missing = [function for function in functions if function not in known]
    listed[torch].extend(missing)
    if dynamo := sys.modules.get("torch._dynamo.variables.torch"):
        dynamo.get_overridable_functions().update(missing)


def constant_in_graphs(function: F) -> F:
    """``function``, which Dynamo calls while it traces, instead of looking into it; the result is a constant then.

    `torch.compiler.assume_constant_result` does the same, and loads Dynamo, which takes a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def flattened(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a tree as torch.func sees it, and its structure; `jax.tree` would sort the keys of dicts."""
    return torch.utils._pytree.tree_flatten(tree)


def unflattened(structure: Any, leaves: Iterable[Any]) -> Any:
    """The tree of that structure with these leaves."""
    return torch.utils._pytree.tree_unflatten(leaves, structure)


def is_constant(number: float) -> bool:
    """Whether the graph that is being made has ``number`` as it is, not a symbol that stands for it."""
    if not torch.compiler.is_compiling():
        return True
    from torch.fx.experimental.symbolic_shapes import has_static_value  # it takes a second to load

    return has_static_value(number)


def constant_of(number: float) -> float:
    """``number``, which becomes a constant of the graph that is being made if it was a symbol.

    Raises torch's error about data-dependent expressions if nothing but running the graph can tell the number.
    """
    if not torch.compiler.is_compiling():
        return number
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    constant: float = guard_scalar(number)
    return constant


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


def named_reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """What the arguments of a loss ask for, "none", "mean" or "sum", with torch's warnings and error for old ones."""
    if size_average is not None or reduce is not None:
        reduction = torch.nn._reduction.legacy_get_string(size_average, reduce)
    return ("none", "mean", "sum")[torch.nn._reduction.get_enum(reduction)]


def entering_frame() -> FrameType:
    """The frame whose ``with`` calls the ``__enter__`` that calls this, be it by way of `contextlib.ExitStack`."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__") == "contextlib" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def carry_into_recomputation(
    decorate: Callable[[Callable[..., Any]], Callable[..., Any]], entered_by: FrameType | None
) -> None:
    """Decorate, once, what the checkpoints around the current call will run again.

    `torch.utils.checkpoint` restores autocast for the recomputation, but no function modes, and offers no way to. What
    a checkpoint runs enters a mode anew if it has entered it: then the frame ``entered_by`` comes first.
    """
    if torch.is_grad_enabled() and torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return  # a checkpoint either hooks the tape or turns it off
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame is not entered_by:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            for owner, attribute in _recomputed(frame):
                function = getattr(owner, attribute)
                if getattr(function, "carries", None) is not decorate:
                    decorated: Any = decorate(function)
                    decorated.carries = decorate
                    setattr(owner, attribute, decorated)
        frame = frame.f_back


def _recomputed(frame: FrameType) -> Iterator[tuple[Any, str]]:
    """Where a frame of `torch.utils.checkpoint` keeps the function that it will run again: in whom, by which name."""
    if frame.f_code.co_name == "forward" and "ctx" in frame.f_locals:
        yield frame.f_locals["ctx"], "run_function"
    elif frame.f_code.co_name == "checkpoint" and "gen" in frame.f_locals:
        yield frame.f_locals["gen"].gi_frame.f_locals["new_frame"], "recompute_fn"
