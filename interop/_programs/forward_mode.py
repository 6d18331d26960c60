"""Enters the one level of forward mode that torch has, and names the cure of what torch refuses there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping

import torch

from interop._programs.choices import quadratic_forms
from interop._torch.private_api import COMPILED, is_forward_mode, is_transformed

_WITHOUT_FORWARD_MODE = (
    "{} needs forward mode: write a jvp for your autograd.Function, or avoid this function. In the place of a module's "
    "full backward hook take a hook of a tensor. For attention "
    "there is torch.nn.attention.sdpa_kernel(SDPBackend.MATH), for an LSTM "
    "torch.backends.mkldnn.flags(enabled=False), and on a GPU torch.backends.cudnn.flags(enabled=False)."
)
CURES = {
    "more than one element of the written-to": "{} gives each element a tangent of its own: of an argument whose "
    "elements share memory, as of expand(), pass a clone().",
    "saved tensor hooks": "{} cannot compute again, as a checkpoint does: call the function without one.",
    "setup_context": "{} needs setup_context and a jvp of an autograd.Function: write them. "
    "checkpoint(use_reentrant=True) has neither: call the function without it.",
    "Nested forward mode AD": "{} takes the one level of forward mode that torch has: within it, call jacrev in "
    "the place of jacfwd, jacrev twice in the place of hessian, and neither jvp nor another along.",
    "higher order operator": "{} does not reach into torch.cond, while_loop and their kin, which compile their "
    "branches: write an if or a while in Python, or torch.where.",
}
"""Maps words in the message of a RuntimeError of torch to what to do about it."""
CURES_OF_FUNCTIONS = {
    **CURES,
    "ZeroTensors are immutable": "{} needs forward mode of the gradient of aten.mse_loss, which fails in torch: write "
    "((input - target) ** 2).mean().",
    "Cannot access data pointer": "{} does not reach into a function that reads memory, as an RNN of packed sequences "
    "does: call it in a block of along.",
    **dict.fromkeys(
        ("cannot register a hook", "can't retain_grad"),
        "{} does not reach hooks and gradients of tensors within the function: call it in a block of along.",
    ),
    "does not have a grad_fn": "{} does not reach torch.autograd.grad and backward() within the function: call "
    "torch.func.grad there.",
}
"""The same where a function is differentiated; a block has backward passes in it."""


@contextlib.contextmanager
def named_cure(name: str, cures: Mapping[str, str]) -> Iterator[None]:
    """Add to an error of torch in the block what the caller of the function called ``name`` can do about it."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, NotImplementedError):  # others are of the program itself, or name their cure
            cures = dict.fromkeys(("forward AD", "forward mode", "jvp"), _WITHOUT_FORWARD_MODE)
        notes = [cure for words, cure in cures.items() if words in str(error)]
        for note in {note.format(name) for note in notes}.difference(getattr(error, "__notes__", ())):
            error.add_note(note)  # which an inner call may have added
        raise


def refuse_here(name: str) -> None:
    """Raise in a compiled function, and where forward mode is at work already, outside of torch.func."""
    if torch.compiler.is_compiling():
        raise RuntimeError(COMPILED.format(name))
    if is_forward_mode() and not is_transformed():  # the levels of torch.func nest
        raise RuntimeError(_AT_WORK.format(name))


_AT_WORK = (
    "{}: forward mode is at work already, in this thread or in another; torch has one level of it in a process. Leave "
    "the other block of along or of forward_ad.dual_level first; for torch.func.linearize, call torch.func.jvp."
)
_LEVEL = threading.RLock()
_DEPTH = 0
"""How many blocks are entered, each within the one before."""


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Let no other thread enter, which torch would give the same tangents: of two that come at once, refuse one."""
    global _DEPTH
    if not _LEVEL.acquire(blocking=False):
        raise RuntimeError(_AT_WORK.format(name))
    _DEPTH += 1
    try:
        yield
    finally:
        _DEPTH -= 1
        if not _DEPTH:  # a block around this one may still take the root of a form
            quadratic_forms.forget()
        _LEVEL.release()
