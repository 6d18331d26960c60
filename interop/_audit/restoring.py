"""`restoring`: lets code that takes steps of training run again, from the same parameters."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_pre_hook

from interop._torch.private_api import refuse_compiled


@contextlib.contextmanager
def restoring() -> Iterator[None]:
    """Put back, at the end, what optimizers and modules write: parameters, the states of optimizers, and buffers."""
    refuse_compiled("audit")  # here, as Dynamo cannot trace what registers the hooks
    tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    states: dict[torch.optim.Optimizer, dict[str, Any]] = {}

    def keep(tensor: torch.Tensor) -> None:
        # The first time alone: what is written later overwrites numbers of this run. A lazy one has no numbers yet.
        if id(tensor) not in tensors and not is_lazy(tensor):
            tensors[id(tensor)] = tensor, tensor.detach().clone()

    def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer not in states:
            states[optimizer] = copy.deepcopy(optimizer.state_dict())  # which holds the tensors that a step overwrites
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    keep(parameter)

    def before_forward(module: torch.nn.Module, args: Any) -> None:
        for buffer in module.buffers(recurse=False):  # the hook is called for each module inside, too
            keep(buffer)

    try:
        with register_optimizer_step_pre_hook(before_step), register_module_forward_pre_hook(before_forward):
            yield
    finally:
        with torch.no_grad():
            for tensor, value_before in tensors.values():
                tensor.copy_(value_before)
        for optimizer, state in states.items():
            optimizer.load_state_dict(state)
