"""Counts in a call of torch's function the elements of its result, and those of them that are on a tie or a jump."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from interop._bridge.ops import IN_PLACE_OPS, TORCH_OPS, TorchOp
from interop._torch.grad_state import is_active
from interop._torch.in_numpy import Mask, readable
from interop._torch.private_api import of_a_batch, without_forward_mode, without_function_modes, without_transformations
from interop._torch.sharding import is_distributed
from interop._transforms.jumps import Jump, places_of
from interop._transforms.min_norm import namesakes
from interop.native import NATIVE, losses
from interop.native._rules.on_tie import can_be_compared, mask_by_numbers, mask_of_adaptive_pool, mask_of_ties
from jaxclamp import OPS, Op


def name_if_tying(func: Callable[..., Any]) -> str:
    """Return the name of a function of torch or of this package that can tie, as a loss can, else an empty one."""
    name, _ = _functions_that_tie().get(func, ("", None))
    return name


def can_tie(func: Callable[..., Any]) -> bool:
    """Return whether elements of the result of the function of torch can tie: what a loss has are not those."""
    return func in _functions_that_tie() and func not in losses.ON_TIE


def tied_elements(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[int, torch.Tensor | int]:
    """Count the elements of the result of a function, or that a loss reduces, and those of them on a tie."""
    _, mask_of = _functions_that_tie()[func]
    with without_function_modes():
        return size_and_count(mask_of(*args, **kwargs))


def _unrecorded(mask_of: Callable[..., Mask]) -> Callable[..., Mask]:
    """Return the function outside of autograd and of forward mode; it refuses nested tensors."""

    def computed(*args: Any, **kwargs: Any) -> Mask:
        if any(tensor.is_nested for tensor in tensors_in((*args, *kwargs.values()))):
            raise TypeError("ties of a nested tensor are not counted; call the function with each part of unbind().")
        with torch.no_grad(), without_forward_mode():
            return mask_of(*args, **kwargs)

    return computed


def elements_on_jumps(jump: Jump, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, torch.Tensor | int]:
    """Count the elements that a gradient can depend on, and those of them at which the function jumps."""
    with torch.no_grad(), without_forward_mode(), without_function_modes():
        places = places_of(jump, args, kwargs)
    # Asked outside, as nothing is active under no_grad.
    counts = [size_and_count(at) for operand, at in places if is_active(operand)]
    return sum(elements for elements, _ in counts), sum(tied for _, tied in counts)


def size_and_count(on_tie: Mask) -> tuple[int, torch.Tensor | int]:
    """Return how many elements a mask has, and how many of them are true, of the whole batch in a vmap.

    On a CUDA device the latter stays there, so that nobody waits for it. Elsewhere it is read at once, which raises
    where there are no numbers to see.
    """
    if isinstance(on_tie, torch.Tensor):
        with without_transformations():
            on_tie = readable(of_a_batch(on_tie))
            if isinstance(on_tie, torch.Tensor):
                tied = torch.count_nonzero(on_tie)
                return on_tie.numel(), tied if tied.is_cuda else int(tied)
    return on_tie.size, int(np.count_nonzero(on_tie))


@functools.cache
def _functions_that_tie() -> Mapping[Callable[..., Any], tuple[str, Callable[..., Mask]]]:
    """Map each function that can tie to its name, and to the function that says where it does."""
    masks = {name: _mask_of(op) for name, op in OPS.items()}
    by_name = {name: masks[op.__name__] for name, op in TORCH_OPS.items()}  # clip has the mask of clamp
    for name in NATIVE:
        if name.startswith("adaptive_max_pool"):
            by_name[name] = _unrecorded(functools.partial(mask_of_adaptive_pool, name))
    by_name |= {name: by_name[name.removesuffix("_")] for name in IN_PLACE_OPS}
    in_torch = {
        torch_function: (name.rpartition(".")[2].removesuffix("_with_indices").strip("_"), function)
        for name, torch_function, function in namesakes(by_name)
    }
    ops = itertools.chain((TORCH_OPS | IN_PLACE_OPS).items(), NATIVE.items())
    of_losses = {loss: (loss.__name__, _unrecorded(on_tie)) for loss, on_tie in losses.ON_TIE.items()}
    here = {op: (op.__name__.strip("_"), by_name[name]) for name, op in ops if name in by_name}
    return in_torch | here | of_losses


def _readable(x: Any, op: Op) -> Any:
    """Return an operand as JAX can read it.

    Of a distributed tensor, but for a reduction, that is the part of this process. A parameter is copied: memory that
    JAX reads cannot be resized any more, as `torch.distributed.fsdp.fully_shard` does with that of parameters.
    """
    if is_distributed(x):
        is_cut = op.family != "reduction" and not any(placement.is_partial() for placement in x.placements)
        return x.to_local() if is_cut else x
    return x.detach().clone() if isinstance(x, torch.nn.Parameter) else x


_LOOKED_UP = (int, float, str, type(None))
"""The types of arguments, other than tensors, by which the numbers at which an op ties are looked up."""


def _mask_of(op: Op) -> Callable[..., Mask]:
    """Return `mask_of_ties` of whatever arguments the op has in torch, in any of its forms, else the mask by JAX."""
    tied = TorchOp(op, op.on_tie)

    def slots_of(*args: Any, ties: Any = None, **kwargs: Any) -> list[Any]:  # a tie is one under all conventions
        return tied.signature.without_forms(tied.signature.arranged(args, kwargs))

    @functools.lru_cache(maxsize=256)
    def known(args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Callable[..., Mask] | None:
        return mask_by_numbers(op, tied.signature.by_jax_name(slots_of(None, *args, **dict(kwargs))))

    def mask_of(*args: Any, values: torch.Tensor | None = None, **kwargs: Any) -> Mask:
        # In a training the data of other calls push those of Python out of the processor's cache. Then each step in
        # Python takes three times as long, and all of `by_arguments` three quarters of the time of a count.
        x, *further = args or (None,)
        if isinstance(x, torch.Tensor) and all(isinstance(value, _LOOKED_UP) for value in (*further, *kwargs.values())):
            of_x = known(tuple(further), tuple(kwargs.items()))
            if of_x is not None and can_be_compared([x]):
                return of_x(x, values)
        return by_arguments(*args, values=values, **kwargs)

    @_unrecorded
    def by_arguments(*args: Any, values: torch.Tensor | None = None, **kwargs: Any) -> Mask:
        slots = slots_of(*args, **kwargs)
        mask = mask_of_ties(op, tied.signature.by_jax_name(slots), values)
        if mask is None:
            mask = tied.of_slots(*(_readable(value, op) for value in slots))
        return mask

    return mask_of


def tensors_in(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among the values, and in their tuples and lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)
