"""Function modes that may be left in any order, and are entered again when a checkpoint recomputes."""

import contextlib
from collections.abc import Callable
from typing import Any, Self

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from interop._torch.private_api import checkpoint_that_switches, function_modes, top_hooks


class LeftInAnyOrder(TorchFunctionMode):
    """A function mode that may be left before those that were entered in it, as generators leave theirs."""

    def __exit__(self, *exception: Any) -> None:
        # Torch would take away the innermost mode, whichever it is. Dynamo cannot trace the question for the modes.
        if torch.compiler.is_compiling() or (entered := function_modes())[-1:] == [self]:
            super().__exit__(*exception)
            return
        if self not in entered:
            raise RuntimeError(f"{type(self).__name__}: leave the block once, and in the thread that entered it.")
        TorchFunctionMode.__exit__(entered[-1], *exception)
        self.__exit__(*exception)
        TorchFunctionMode.__enter__(entered[-1])


class Block(LeftInAnyOrder):
    """A function mode that is entered again where a checkpoint within it computes again.

    With ``use_reentrant=False``, a checkpoint puts hooks on the tape, and the one that unpacks computes again. The
    first call within the checkpoint replaces it by one that enters the block. Tensors that were saved before that call
    do not depend on the block. A reentrant checkpoint turns the tape off, and the block is asked about that call too.
    """

    def __enter__(self) -> Self:
        if not torch.compiler.is_compiling():  # Dynamo cannot trace the question for the hooks
            _replace_hooks()  # what a checkpoint around the block computes again enters the block by itself
        super().__enter__()
        return self

    def again(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context to enter where a checkpoint computes again."""
        return self

    def reach_checkpoints(self, func: Callable[..., Any]) -> None:
        """Have the checkpoints within the block that are around the call of ``func`` compute again in the block."""
        _replace_hooks(self)
        checkpoint = checkpoint_that_switches(func)
        if checkpoint is not None and not isinstance(checkpoint.run_function, _Again):
            checkpoint.run_function = _Again(checkpoint.run_function, self)


class _Again:
    """A function of torch that computes again, called within the blocks that are around the current call.

    Args:
      function: what torch would call.
      handling: the block that is handling the current call, if one is. It is the innermost then, and torch does
        not count it as entered in the meantime.
    """

    def __init__(self, function: Callable[..., Any], *handling: Block) -> None:
        self.function = function
        self.blocks = [*(mode for mode in function_modes() if isinstance(mode, Block)), *handling]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as entered:
            for block in self.blocks:
                entered.enter_context(block.again())
            return self.function(*args, **kwargs)


def _replace_hooks(*handling: Block) -> None:
    """Replace the hooks that were put on the tape since the last call of this by some that unpack within the blocks."""
    # Hooks can be seen and taken away at the top alone. So those that are not replaced yet are taken away one by one,
    # down to the first that is, and put back in their order. Those below it were replaced before.
    hooks = top_hooks()
    if hooks is None or isinstance(hooks[1], _Again):
        return
    pack, unpack = hooks
    replacing = saved_tensors_hooks(pack, _Again(unpack, *handling))
    replacing.__exit__()  # it takes away the hooks on top, whichever they are
    _replace_hooks(*handling)
    replacing.__enter__()
