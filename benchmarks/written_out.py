"""`interop.relu6` of one tensor as straight-line code: each check that it makes, as often, and no structure.

It bounds what a call costs, so what two passes have in common stands here twice: a function for it would be structure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch.overrides import has_torch_function

import jaxclamp
from interop._arrays import _BY_BITS, _FROM_BITS, WIDE, _Forked, host_device, is_expanded
from interop._function import FlatFunction, Task
from interop._ops import _PLAIN_TENSORS
from interop._private import is_forward_mode, is_in_old_vmap, is_transformed
from jaxclamp import WithIndices

FLAT = FlatFunction(lambda traced, x: jaxclamp.relu6(x), "relu6", ["x"], is_elementwise=True)
FORWARD: Callable[..., Any] = FLAT.compiled
BACKWARD: Callable[..., Any] = FLAT.pullback((True,)).compiled
_prepared: dict[Any, tuple[FlatFunction, bool]] = {}


def relu6(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The op, for one plain tensor of float32 or float64 in its own order, on a CPU that is JAX's default."""
    if torch.compiler.is_compiling() or kwargs or len(args) > 1:
        raise NotImplementedError
    (x,) = args
    if type(x) not in _PLAIN_TENSORS:
        raise NotImplementedError
    key = x.dtype, x.dim() > 0
    if has_torch_function(args):
        raise NotImplementedError
    known = _prepared.get(key)
    if known is None:
        known = _prepared[key] = FLAT, x.dtype in WIDE
    flat, wide = known
    wide = wide or jax.config.jax_enable_x64
    if torch.compiler.is_compiling() or x.is_meta:
        raise NotImplementedError
    if torch.is_grad_enabled() and x.requires_grad:
        if is_transformed() or (flat.save == "residuals" and not is_forward_mode()):
            raise NotImplementedError
        task = Task(flat, (), wide)
        (output,) = _WrittenOut.apply(task, x)
        if isinstance(output, WithIndices):
            raise NotImplementedError
        return output
    if is_forward_mode() or is_transformed():
        raise NotImplementedError

    if _Forked.inherited or torch.jit.is_tracing() or x.is_cuda or not x.is_contiguous():
        raise NotImplementedError
    if _BY_BITS.get(x.dtype) is not None:
        raise NotImplementedError
    try:
        plain = x.detach() if x.requires_grad else x
        host = plain.numpy()
        flags = host.flags
        if (flags.owndata and host.size) or (not flags.forc and is_expanded(host.shape, host.strides)):
            raise NotImplementedError
    except TypeError as error:
        raise NotImplementedError from error
    if host_device() is not None or wide != jax.config.jax_enable_x64:
        raise NotImplementedError
    result = FORWARD((), host)
    if not isinstance(result, jax.Array):
        raise NotImplementedError
    host = np.asarray(result)
    if _FROM_BITS.get(host.dtype) is not None:
        raise NotImplementedError
    output = torch.from_numpy(host)
    if isinstance(output, WithIndices):
        raise NotImplementedError
    return output


class _WrittenOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, task: Task, x: torch.Tensor) -> tuple[torch.Tensor]:
        if _Forked.inherited or torch.jit.is_tracing() or x.is_cuda or not x.is_contiguous():
            raise NotImplementedError
        if _BY_BITS.get(x.dtype) is not None:
            raise NotImplementedError
        try:
            plain = x.detach() if x.requires_grad else x
            host = plain.numpy()
            flags = host.flags
            if (flags.owndata and host.size) or (not flags.forc and is_expanded(host.shape, host.strides)):
                raise NotImplementedError
        except TypeError as error:
            raise NotImplementedError from error
        if host_device() is not None or task.wide != jax.config.jax_enable_x64:
            raise NotImplementedError
        result = FORWARD((), host)
        if not isinstance(result, jax.Array):
            raise NotImplementedError
        host = np.asarray(result)
        if _FROM_BITS.get(host.dtype) is not None:
            raise NotImplementedError
        output = torch.from_numpy(host)
        ctx.task = task
        ctx.save_for_backward(x)
        ctx.set_materialize_grads(False)
        if not (output.is_floating_point() or output.is_complex()) or is_forward_mode():
            raise NotImplementedError
        return (output,)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[None, torch.Tensor]:
        active, task = ctx.needs_input_grad[1:], ctx.task
        derivative = task.flat.derived.get(("gradient", active))
        if gradient is None or derivative is None or not all(active) or is_in_old_vmap(gradient):
            raise NotImplementedError
        (x,) = ctx.saved_tensors
        if torch.compiler.is_compiling() or x.is_meta:
            raise NotImplementedError
        if torch.is_grad_enabled() and (x.requires_grad or gradient.requires_grad):
            raise NotImplementedError
        if is_forward_mode() or is_transformed() or _Forked.inherited or torch.jit.is_tracing() or x.is_cuda:
            raise NotImplementedError
        if not x.is_contiguous() or not gradient.is_contiguous():
            raise NotImplementedError
        if _BY_BITS.get(x.dtype) is not None or _BY_BITS.get(gradient.dtype) is not None:
            raise NotImplementedError
        try:
            plain = x.detach() if x.requires_grad else x
            host = plain.numpy()
            flags = host.flags
            if (flags.owndata and host.size) or (not flags.forc and is_expanded(host.shape, host.strides)):
                raise NotImplementedError
            plain = gradient.detach() if gradient.requires_grad else gradient
            cotangent = plain.numpy()
            flags = cotangent.flags
            if (flags.owndata and cotangent.size) or (
                not flags.forc and is_expanded(cotangent.shape, cotangent.strides)
            ):
                raise NotImplementedError
        except TypeError as error:
            raise NotImplementedError from error
        if host_device() is not None or task.wide != jax.config.jax_enable_x64:
            raise NotImplementedError
        (result,) = BACKWARD((), host, cotangent)
        host = np.asarray(result)
        if _FROM_BITS.get(host.dtype) is not None:
            raise NotImplementedError
        return None, torch.from_numpy(host)
