"""Shares and copies single arrays between torch and JAX, and refuses those that neither would leave as they are.

JAX takes its arrays to be immutable, and nothing marks memory as shared. XLA may still read what `lend` gives away when
a call has returned. So nobody may write to it before all results computed from it are finished; the results that
`FlatFunction.compute` in `flat.py` returns are finished. What `adopt` takes must have no other owner. Each result of a
compiled program has memory of its own, even one that is an argument.

On CPU, XLA reads memory in place that is aligned to 64 bytes, as torch allocates it, and copies any other. On a GPU it
refuses memory that is not aligned to 16 bytes, which is copied here. Each view keeps its memory alive: that of `lend`
has the tensor as its base, and that of `adopt` the buffer of XLA.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

from interop._bridge.private_jax import has_started
from interop._torch.in_numpy import as_numpy
from interop._torch.private_api import forbid_resizing, written_out

HostArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Order: TypeAlias = tuple[int, ...] | None

# NumPy has no name of its own for these: they travel as integers of the same width.
_BY_BITS = {
    getattr(torch, name): (torch.int16 if name == "bfloat16" else torch.int8, np.dtype(getattr(ml_dtypes, name)))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
}
_FROM_BITS = {dtype: (np.dtype(f"i{dtype.itemsize}"), in_torch) for in_torch, (_, dtype) in _BY_BITS.items()}
_X64 = ("float64", "int64", "complex128", "uint64")
X64 = frozenset({*(getattr(torch, name) for name in _X64), *map(np.dtype, _X64)})
"""The dtypes, of torch and of NumPy, that JAX would truncate silently unless its 64-bit mode is on."""
_ALIGNMENT_ON_GPU = 16
"""The bytes of which an address on a GPU has to be a multiple: ``kEntryParameterAlignBytes`` of XLA."""

with warnings.catch_warnings():
    # Torch warns once in a process of memory that NumPy marks as read-only, as it does that of outputs of XLA. These
    # have no other owner, and the warning says nothing: it is used up here, on an array that is read-only as well.
    warnings.simplefilter("ignore")
    torch.from_numpy(np.broadcast_to(np.zeros(1), (1,)))


def torch_to_jax(tensor: torch.Tensor, *, copy: bool = True) -> jax.Array:
    """Return the JAX array with the values of ``tensor``.

    Args:
      tensor: a dense tensor of any shape and strides; its dtype stays as it is, bfloat16 and float8 included.
      copy: with False the array shares the tensor's memory. JAX takes arrays to be immutable: do not write to the
        tensor while the array or work on it lives. Refused where XLA would have to copy (strided or not aligned to 64
        bytes).

    Raises:
      TypeError: not a tensor, or one with no plain memory (sparse, quantized, fake, inside a transform, ...) or of a
        dtype that JAX lacks or, with its 64-bit mode off, would truncate.
      ValueError: ``copy=False`` where the memory cannot be shared.
      RuntimeError: the tensor requires grad while torch records, which would end here; or the process was forked after
        JAX had started.

    >>> torch_to_jax(torch.tensor([1.0, 2.0]))
    Array([1., 2.], dtype=float32)
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"torch_to_jax: tensor is a {type(tensor).__name__}; pass a torch.Tensor, and a tree of them by "
            "jax.tree.map(torch_to_jax, tree)."
        )
    if tensor.dtype in X64 and jax.dtypes.canonicalize_dtype(np.int64) != np.int64:
        raise TypeError(
            f"torch_to_jax: JAX would truncate {tensor.dtype} to 32 bits; enable its 64-bit mode, for example "
            "with jax.enable_x64(True), or convert the tensor first."
        )
    refuse_after_fork()
    lent = lend(tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "torch_to_jax: the tensor requires grad, and no gradient would come back through the array; pass "
            "tensor.detach(), or call the JAX function by interop.wrap_for_torch(function), which has gradients."
        )
    if copy:
        return jnp.array(lent, copy=True).block_until_ready()  # XLA copies in a thread, after the call has returned
    array: jax.Array = jax.device_put(lent)
    if array.size and array.unsafe_buffer_pointer() != tensor.data_ptr():
        raise ValueError(
            f"torch_to_jax: a tensor with strides {tensor.stride()} at address {tensor.data_ptr():#x} cannot be "
            "shared, since XLA needs row-major memory aligned to 64 bytes; pass copy=True."
        )
    if array.size and tensor.is_cpu:
        forbid_resizing(tensor)  # which would free what the array reads
    return array


def jax_to_torch(array: jax.Array, *, copy: bool = True) -> torch.Tensor:
    """Return the tensor with the values of ``array``.

    Args:
      array: a JAX array on one device; its dtype stays as it is.
      copy: with False the tensor shares the array's memory. Torch cannot mark it read-only: writing to it changes the
        array and all that was made from it.

    Raises:
      TypeError: not a JAX array, a dtype that torch lacks, or a value that is traced.
      RuntimeError: the process was forked after JAX had started.

    >>> jax_to_torch(jnp.arange(3.0))
    tensor([0., 1., 2.])
    """
    if isinstance(array, jax.core.Tracer):
        raise TypeError("jax_to_torch: the array is traced and has no values; convert outside jit, grad and vmap.")
    if not isinstance(array, jax.Array):
        raise TypeError(
            f"jax_to_torch: array is a {type(array).__name__}; pass a jax.Array (torch.as_tensor takes arrays of "
            "NumPy), and a tree of them by jax.tree.map(jax_to_torch, tree)."
        )
    refuse_after_fork()
    tensor = adopt(array, next(iter(array.devices())).platform == "cpu")
    return tensor.clone() if copy else tensor


def lend(tensor: torch.Tensor) -> HostArray | jax.Array:
    """Lend the tensor's memory to JAX while the caller waits; a copy if it is expanded.

    The caller has to await the result before anyone may write to the tensor.
    """
    return (lend_from_gpu if tensor.is_cuda else lend_from_host)(tensor)


def to_host(leaf: Any) -> np.ndarray[Any, Any]:
    """Return a leaf of numbers as an array of NumPy; a tensor lends its memory."""
    array = np.asarray(lend(leaf) if isinstance(leaf, torch.Tensor) else leaf)
    # FITS and HDF5 files may have big-endian arrays, which JAX and torch both refuse.
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def lend_from_host(tensor: torch.Tensor, order: Order = None) -> HostArray:
    """Lend a tensor on CPU, its axes in ``order``, as a NumPy view.

    DLPack would let XLA's threads release torch memory, for which they need the GIL: that deadlocks, and aborts the
    process at exit.
    """
    via = _BY_BITS.get(tensor.dtype)
    try:
        plain = tensor.detach() if tensor.requires_grad else tensor
        host: HostArray = as_numpy(plain if via is None else plain.view(via[0]))
        flags = host.flags
        # A view of the tensor does not own its memory. Of a tensor without memory, as one whose storage FSDP has freed,
        # `as_numpy` makes an array that does, of whatever numbers.
        if flags.owndata and host.size:
            raise TypeError("it has none")
        if not flags.forc and is_expanded(host.shape, host.strides):
            # The gradient of a sum is expanded. NumPy takes five times as long as torch to write it out for JAX.
            return lend_from_host(plain.contiguous(), order)
        if order is not None:
            host = host.transpose(order)
        return host if via is None else host.view(via[1])
    except (TypeError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and (written := written_out(tensor)) is not tensor:
            return lend_from_host(written, order)
        raise _unreadable(tensor, error) from error


def lend_from_gpu(tensor: torch.Tensor, order: Order = None) -> jax.Array:
    """Lend a tensor on a GPU, through DLPack, by which JAX's stream waits for torch's."""
    written = written_out(tensor)  # DLPack would pass the memory without the sign
    try:
        if type(written).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # a fake tensor, say
            raise TypeError("its subclass computes by itself")
        dense = (written if order is None else written.permute(order)).detach().contiguous()
        address = dense.data_ptr()
        if dense.numel() and not address:
            raise TypeError("it has none")
        if address % _ALIGNMENT_ON_GPU:  # as a view that begins in the middle of a tensor
            dense = dense.clone()
        with jax.enable_x64(True) if dense.dtype in X64 else contextlib.nullcontext():  # else JAX halves the width
            shared: jax.Array = jax.dlpack.from_dlpack(dense)
        return shared
    except (BufferError, TypeError, RuntimeError) as error:
        raise _unreadable(tensor, error) from error


def _unreadable(tensor: torch.Tensor, error: Exception) -> TypeError:
    return TypeError(
        f"JAX cannot read the memory of a {type(tensor).__name__} of dtype {tensor.dtype} and layout "
        f"{tensor.layout} on {tensor.device} ({error}); pass a dense tensor with data and of a dtype that JAX has."
    )


def adopt(array: jax.Array, on_cpu: bool, axes: Order = None) -> torch.Tensor:
    """Make a tensor over the memory of ``array``, once that is computed; the array must have no other owner.

    Axis i of the tensor is axis ``axes[i]`` of the array. An array with another number of axes is taken as it is.
    """
    if axes is not None and array.ndim != len(axes):
        axes = None
    if on_cpu:
        host = np.asarray(array)  # waits, with the GIL released
        return tensor_over(host if axes is None else host.transpose(axes))
    try:
        tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(array)
    except (BufferError, RuntimeError) as error:
        raise _lacking(array.dtype) from error
    # No view, which torch might refuse to change in place.
    return tensor if axes is None else torch.utils.dlpack.from_dlpack(tensor.permute(axes))


def memory_orders(tensors: Sequence[torch.Tensor]) -> tuple[Order, ...] | None:
    """Return the axes of each tensor as they lie in memory, the outermost first, or None for their own order.

    None in place of all where each tensor is in its own order.

    >>> memory_orders([torch.zeros(2, 3).T, torch.zeros(3, 2)]), memory_orders([torch.zeros(3, 2)])
    (((1, 0), None), None)
    """
    for tensor in tensors:
        if not tensor.is_contiguous():
            orders = tuple(map(_memory_order, tensors))
            return orders if any(orders) else None
    return None


def _memory_order(tensor: torch.Tensor) -> Order:
    strides = tensor.stride()
    # Expanded tensors are written out for JAX in the order of their axes.
    if tensor.is_contiguous() or is_expanded(tensor.shape, strides):
        return None
    order = tuple(sorted(range(len(strides)), key=strides.__getitem__, reverse=True))
    return None if order == tuple(range(len(order))) else order


def is_expanded(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether elements share memory along an axis."""
    return 0 in strides and any(stride == 0 and size > 1 for size, stride in zip(shape, strides, strict=True))


def tensor_over(host: HostArray) -> torch.Tensor:
    """Return the tensor over the memory of ``host``."""
    bits = _FROM_BITS.get(host.dtype)
    try:
        return torch.from_numpy(host) if bits is None else torch.from_numpy(host.view(bits[0])).view(bits[1])
    except TypeError as error:
        raise _lacking(host.dtype) from error


def _lacking(dtype: np.dtype[Any]) -> TypeError:
    return TypeError(f"torch has no dtype for {dtype}; convert the array first.")


@functools.cache
def host_device() -> jax.Device | None:
    """Return the device on which tensors on CPU are computed; None where JAX takes it without being told."""
    return None if jax.default_backend() == "cpu" else jax.local_devices(backend="cpu")[0]


def jax_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return JAX's dtype of the same name."""
    return jnp.dtype(str(dtype).removeprefix("torch."))


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return torch's dtype of the same name."""
    return getattr(torch, dtype.name)


_STARTED_BEFORE_FORKS: list[bool] = []
"""Whether XLA's threads ran before each fork that led to this process; they do not survive one."""
os.register_at_fork(after_in_child=lambda: _STARTED_BEFORE_FORKS.append(has_started()))


def refuse_after_fork() -> None:
    """Raise in a process where XLA would hang."""
    if True in _STARTED_BEFORE_FORKS:
        raise RuntimeError(
            "JAX was already in use when this process was forked, and its threads do not survive a fork: any larger "
            "computation would hang. Start the process by 'spawn' or 'forkserver' (for a DataLoader: "
            "multiprocessing_context='spawn')."
        )
