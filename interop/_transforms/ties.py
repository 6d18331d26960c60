"""Counts where in torch code ties happen, and measures how far they move a gradient."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import Node

from interop._bridge.ops import IN_PLACE_OPS, TORCH_OPS, TorchOp
from interop._torch.checkpoint_modes import LeftInAnyOrder
from interop._torch.grad_state import is_active
from interop._torch.in_numpy import Mask, readable
from interop._torch.private_api import (
    compiled_within_others_only,
    is_in_old_vmap,
    is_transformed,
    is_without_numbers,
    keywords_of,
    of_a_batch,
    path_as_written,
    running_modules,
    whole_of,
    without_forward_mode,
    without_function_modes,
    without_transformations,
)
from interop._torch.sharding import is_distributed
from interop._transforms.as_of import PINNED
from interop._transforms.jumps import Jump, jump_of, places_of
from interop._transforms.min_norm import is_of_an_op, min_norm, namesakes
from interop._transforms.unbounded import has_slope_without_bound
from interop.native import NATIVE, losses
from interop.native._rules.on_tie import mask_of_adaptive_pool, mask_of_numbers, mask_of_ties, numbers_on_tie
from jaxclamp import OPS, Convention, Op
from jaxclamp._shared.tie_report import MET_INFINITY, Influence, Site, TieReport, Totals
from jaxclamp._transforms.source_lines import innermost

_LIBRARIES = tuple(str(folder) + os.sep for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))


class ties(LeftInAnyOrder):  # noqa: N801  # it is used as a function
    """A context manager that counts the ties in torch code, which runs as usual.

    Counted is what `min_norm` intercepts, but for ``normalize`` and ``triplet_margin_with_distance_loss``, and the ops
    of this package: per line of the source and per module, the elements of the results, and how many of them were on a
    tie or a kink; one that is NaN is on none. A loss has the elements that it reduces. Functions that have ties and no
    convention, which the ``passed`` of `min_norm` counts, such as `torch.sort`, are not counted here.

    Suspects are functions that are no ops here, where a gradient can depend on them: those that jump, such as
    `torch.round`, and norms at 0; and calls in whose backward pass, within the block or behind it, a gradient of 0
    meets a slope that is not finite, "0 met infinity in sqrt". Else a backward pass does not count, nor does what a
    checkpoint computes a second time in it.

    A block holds for the thread that enters it, and may be entered again: counts add up. Calls whose numbers cannot be
    seen (meta and fake tensors, sparse and nested ones, extrema of distributed tensors) are not counted, which a
    warning says. Within torch.func.vmap the whole batch is counted. Of a distributed tensor each process counts its
    part; `sum_over_ranks` adds them up. A compiled function is cut at each call that is counted, of which Dynamo warns:
    rather call the function that was compiled. Enter it within a block of `along`, and within the function of
    `interop.grad`: around them it sees what they compute in the place of torch's functions.

    Raises when called:
      RuntimeError: in a function compiled as one graph, where there is nothing to see.

    >>> with ties() as counted:
    ...     y = torch.nn.ReLU6()(torch.tensor([-1.0, 0.0, 3.0, 6.0]))
    >>> counted.report.elements, counted.report.tied
    (4, 2)
    >>> [(line.op, line.module) for line in counted.report.lines]
    [('hardtanh', 'ReLU6')]
    """

    def __init__(self) -> None:
        super().__init__()
        self._elements: dict[Site, int] = {}
        self._tied: dict[Site, torch.Tensor | int] = {}
        """Numbers; of ties on a CUDA device, tensors there, so that nobody waits for it before a report."""
        self._names: dict[torch.nn.Module, dict[torch.nn.Module, str]] = {}
        """Maps a module that the program calls to the names of those in it."""

    @property
    def report(self) -> TieReport:
        """What was counted up to now."""
        totals = Totals()
        for site, elements in self._elements.items():
            totals[site] += elements, int(self._tied[site])
        return TieReport(totals.lines())

    @compiled_within_others_only
    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = keywords_of(func, kwargs)
        if torch.compiler.is_compiling():
            raise RuntimeError("ties() cannot count in a compiled function; call the function as it is.")
        arguments = (*args, *kwargs.values())
        in_torch = PINNED.get(func, func)
        name, _ = _functions_that_tie().get(in_torch, ("", None))
        is_op = bool(name) and is_of_an_op(in_torch, args, kwargs)
        is_pool = "max_pool" in name
        if is_op and not is_pool:  # before the call, which may be in place
            self._count(name, False, tied_elements, in_torch, args, kwargs)
        elif not is_op and (jump := jump_of(in_torch, kwargs)) and any(map(is_active, _tensors(arguments))):
            self._count(jump[0], True, _elements_on_jumps, jump[1], args, kwargs)
        has_slope = has_slope_without_bound(in_torch, args)
        read = _tensors(arguments) if has_slope else ()
        before = {node for x in read for node in (x.grad_fn, whole_of(x).grad_fn)}
        result = func(*args, **kwargs)
        if is_op and is_pool:
            values = result[0] if isinstance(result, tuple) else result
            self._count(name, False, tied_elements, in_torch, args, {**kwargs, "values": values})
        if has_slope:
            self._watch(name_of(in_torch), before, result)
        return result

    def _watch(self, name: str, before: Collection[Node | None], result: Any) -> None:
        """Let the backward pass count where a gradient of 0 meets a slope of this call that is not finite."""
        file, number, module = self._place()
        site = file, number, f"{MET_INFINITY} in {name}", True, module

        def count(gradients: Sequence[torch.Tensor | None], cotangents: Sequence[torch.Tensor | None]) -> None:
            cotangent = next((cotangent for cotangent in cotangents if cotangent is not None), None)
            for gradient in gradients:
                if gradient is None or cotangent is None or is_transformed() or is_in_old_vmap(gradient):
                    continue
                # On a GPU one would have to wait for the sum.
                if is_without_numbers(gradient) or (gradient.is_cpu and not gradient.sum().isnan()):
                    continue
                is_zero = cotangent == 0
                met = gradient.isnan() & (is_zero if is_zero.shape == gradient.shape else is_zero.any())
                self._add(site, *_counted(met))

        for node in _nodes_of(before, result):
            node.register_hook(count)

    def _add(self, site: Site, elements: int, tied: torch.Tensor | int) -> None:
        before = self._tied.get(site, 0)
        if isinstance(before, torch.Tensor) and isinstance(tied, torch.Tensor):
            before = before.to(tied.device)
        self._elements[site] = self._elements.get(site, 0) + elements
        self._tied[site] = before + tied

    def _count(
        self, name: str, suspect: bool, counted: Callable[..., tuple[int, torch.Tensor | int]], *call: Any
    ) -> None:
        file, number, module = self._place()
        try:
            elements, tied = counted(*call)
        # There may be no numbers to see, or the call fails by itself too.
        except (TypeError, ValueError, IndexError, RuntimeError) as error:
            warnings.warn(f"ties() did not count {name} at {file}:{number}: {error}", stacklevel=3)
            return
        if elements or not suspect:  # a conversion is none unless it is one to integers
            self._add((file, number, name, suspect, module), elements, tied)

    def _place(self) -> tuple[str, int, str]:
        """Return the file and the line of the user's code that is running, and the module."""
        modules = running_modules()
        return (*line_of_user(), self._name(modules[0], modules[-1]) if modules else "")

    def _name(self, module: torch.nn.Module, outermost: torch.nn.Module) -> str:
        """Return the name of a module in the outermost that is running, or that of its class if it has none there."""
        names = self._names.setdefault(outermost, {})
        if module not in names:
            names.update((inner, path_as_written(path)) for path, inner in outermost.named_modules())
            names.setdefault(module, "")  # kept, as several that have no name here may take turns
        return names[module] or type(module).__name__


def _nodes_of(before: Collection[Node | None], result: Any) -> Iterator[Node]:
    """Yield the nodes that a call has added to the graph of autograd; a composed function adds several.

    ``before`` are those that its arguments had, which it may overwrite.
    """
    known = {*before}
    pending = [x.grad_fn for x in _tensors((result,))]
    while pending:
        node = pending.pop()
        if node is None or node in known or not node.next_functions:  # it accumulates the gradient of a leaf
            continue
        known.add(node)
        yield node
        pending += [following for following, _ in node.next_functions]


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


def line_of_user() -> tuple[str, int]:
    """Return the file and the line of the user's code that is running."""
    file, frame = innermost(((frame.f_code.co_filename, frame) for frame in _frames()), *_LIBRARIES)
    return file, frame.f_lineno if frame else 0  # of one frame alone, as Python has to look it up


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def name_of(func: Callable[..., Any]) -> str:
    """Return the name by which users know a function of torch: ``sqrt`` of the operator ``sqrt.default``.

    >>> name_of(torch.ops.aten.sqrt.default), name_of(torch.Tensor.__rtruediv__)
    ('sqrt', 'rdiv')
    """
    return func.__name__.partition(".")[0].strip("_").removeprefix("special_")


def can_tie(func: Callable[..., Any]) -> bool:
    """Return whether elements of the result of the function of torch can tie: what a loss has are not those."""
    return func in _functions_that_tie() and func not in losses.ON_TIE


def tied_elements(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[int, torch.Tensor | int]:
    """Count the elements of the result of a function, or that a loss reduces, and those of them on a tie."""
    _, mask_of = _functions_that_tie()[func]
    with without_function_modes():
        return _counted(mask_of(*args, **kwargs))


def _unrecorded(mask_of: Callable[..., Mask]) -> Callable[..., Mask]:
    """Return the function outside of autograd and of forward mode; it refuses nested tensors."""

    def computed(*args: Any, **kwargs: Any) -> Mask:
        if any(tensor.is_nested for tensor in _tensors((*args, *kwargs.values()))):
            raise TypeError("ties of a nested tensor are not counted; call the function with each part of unbind().")
        with torch.no_grad(), without_forward_mode():
            return mask_of(*args, **kwargs)

    return computed


def _elements_on_jumps(jump: Jump, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, torch.Tensor | int]:
    """Count the elements that a gradient can depend on, and those of them at which the function jumps."""
    with torch.no_grad(), without_forward_mode(), without_function_modes():
        places = places_of(jump, args, kwargs)
    # Asked outside, as nothing is active under no_grad.
    counts = [_counted(at) for operand, at in places if is_active(operand)]
    return sum(elements for elements, _ in counts), sum(tied for _, tied in counts)


def _counted(on_tie: Mask) -> tuple[int, torch.Tensor | int]:
    """Return how many elements there are, and how many of them are on a tie, of the whole batch in a vmap.

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


_PLAIN = (int, float, str, type(None))
"""The types of arguments that are no tensors, and can be looked up."""


def _mask_of(op: Op) -> Callable[..., Mask]:
    """Return `mask_of_ties` of whatever arguments the op has in torch, in any of its forms, else the mask by JAX."""
    tied = TorchOp(op, op.on_tie)

    def slots_of(*args: Any, ties: Any = None, **kwargs: Any) -> list[Any]:  # a tie is one under all conventions
        return tied.signature.without_forms(tied.signature.arranged(args, kwargs))

    @functools.lru_cache(maxsize=256)
    def numbers_of(args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Sequence[float] | None:
        return numbers_on_tie(op, tied.signature.by_jax_name(slots_of(None, *args, **dict(kwargs))))

    def mask_of(*args: Any, **kwargs: Any) -> Mask:
        # In a training the data of other calls push those of Python out of the processor's cache. Then each step in
        # Python takes three times as long, and all of `by_arguments` three quarters of the time of a count.
        x, *further = args or (None,)
        if isinstance(x, torch.Tensor) and all(isinstance(value, _PLAIN) for value in (*further, *kwargs.values())):
            numbers = numbers_of(tuple(further), tuple(kwargs.items()))
            if numbers is not None and (mask := mask_of_numbers(x, numbers)) is not None:
                return mask
        return by_arguments(*args, **kwargs)

    @_unrecorded
    def by_arguments(*args: Any, values: torch.Tensor | None = None, **kwargs: Any) -> Mask:
        slots = slots_of(*args, **kwargs)
        mask = mask_of_ties(op, tied.signature.by_jax_name(slots), values)
        if mask is None:
            mask = tied.of_slots(*(_readable(value, op) for value in slots))
        return mask

    return mask_of


_NO_LIST = "influence: parameters has to be a list of tensors, such as [weight] or model.parameters(), but is {}."


def influence(closure: Callable[[], torch.Tensor], parameters: Iterable[torch.Tensor]) -> Influence:
    """Measure how far another convention moves a gradient from that of minimum norm.

    The others are ``ties="inclusive"`` and torch's own; the one that moves it further counts.

    Args:
      closure: computes a scalar from ``parameters``, the same at each call; it is called three times, each time with
        the same state of torch's random numbers.
      parameters: tensors that require grad, with respect to which to differentiate.

    Returns:
      The norm of the difference and that of the gradient of minimum norm, over all parameters together.

    Raises:
      TypeError: ``closure`` is no function, or ``parameters`` no list of tensors.
      ValueError: there are no parameters, one does not require grad, or the value of ``closure`` is not a scalar that
        depends on one of them.

    >>> x = torch.tensor([-1.0, 0.0, 3.0, 6.0], requires_grad=True)
    >>> found = influence(lambda: x.clamp(0.0, 6.0).sum(), [x])
    >>> round(found.norm, 4), found.gradient_norm
    (1.4142, 1.0)
    """
    if not callable(closure):
        raise TypeError(f"influence: closure is {closure!r}; pass a function that computes it: lambda: loss(model(x)).")
    if isinstance(parameters, torch.Tensor) or not isinstance(parameters, Iterable):
        raise TypeError(_NO_LIST.format(type(parameters).__name__))
    tensors = list(parameters)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(_NO_LIST.format(f"one of {type(tensor).__name__}"))
        if not tensor.requires_grad:
            raise ValueError("influence: one of the parameters does not require grad; pass those alone that do.")
    if not tensors:
        raise ValueError("influence: parameters is empty; pass the tensors with respect to which to differentiate.")
    tensors = list(dict.fromkeys(tensors))  # weights may be tied
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}  # whose random numbers are put back, too

    def gradient(ties: Convention | None) -> np.ndarray[Any, Any]:
        convention = contextlib.nullcontext() if ties is None else min_norm(ties=ties)
        with torch.random.fork_rng(devices), convention:
            value = closure()
        if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
            raise ValueError(
                f"influence: closure returned {value!r}; return a scalar tensor computed from the parameters, outside "
                "of torch.no_grad()."
            )
        gradients = torch.autograd.grad(value, tensors, allow_unused=True)
        if all(gradient is None for gradient in gradients):
            raise ValueError("influence: what closure returned depends on none of the parameters; pass those it uses.")
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(tensors, gradients, strict=True)]
        return np.concatenate([gradient.double().cpu().numpy().ravel() for gradient in flat])

    return Influence.of(gradient)
