"""Counts where in torch code ties happen, by line and module."""

from __future__ import annotations

import cmath
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import Node

from interop._torch.checkpoint_modes import LeftInAnyOrder
from interop._torch.grad_state import is_active
from interop._torch.private_api import (
    compiled_within_others_only,
    is_in_old_vmap,
    is_transformed,
    is_without_numbers,
    keywords_of,
    path_as_written,
    running_modules,
    whole_of,
)
from interop._torch.sharding import is_distributed
from interop._transforms.as_of import PINNED
from interop._transforms.jumps import jump_of
from interop._transforms.min_norm import is_of_an_op
from interop._transforms.source_lines import line_of_user, name_of
from interop._transforms.tied_elements import (
    elements_on_jumps,
    name_if_tying,
    size_and_count,
    tensors_in,
    tied_elements,
)
from interop._transforms.unbounded import has_slope_without_bound
from jaxclamp._shared.tie_report import MET_INFINITY, Site, TieReport, Totals


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
    seen (meta and fake tensors, sparse and nested ones, extrema of distributed tensors, adaptive pools within
    torch.func.vmap) are not counted, which a warning says. Of other calls within torch.func.vmap the whole batch is
    counted. Of a distributed tensor each process counts its part; `sum_over_ranks` adds them up. A compiled function is
    cut at each call that is counted, of which Dynamo warns: rather call the function that was compiled. Enter it within
    a block of `along`, and within the function of `interop.grad`: around them it sees what they compute in the place of
    torch's functions.

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
        if torch.compiler.is_compiling():
            raise RuntimeError("ties() cannot count in a compiled function; call the function as it is.")
        in_torch = PINNED.get(func, func)
        name = name_if_tying(in_torch)
        has_slope = has_slope_without_bound(in_torch, args)
        kwargs = kwargs or {}
        jump = jump_of(in_torch, kwargs)
        if not (name or has_slope or jump):  # the frequent case, as `x.dim()`
            return func(*args, **kwargs)
        kwargs = keywords_of(func, kwargs)
        arguments = (*args, *kwargs.values())
        is_op = bool(name) and is_of_an_op(in_torch, args, kwargs)
        is_pool = "max_pool" in name
        if is_op and not is_pool:  # before the call, which may be in place
            self._count(name, False, tied_elements, in_torch, args, kwargs)
        elif not is_op and jump and any(map(is_active, tensors_in(arguments))):
            self._count(jump[0], True, elements_on_jumps, jump[1], args, kwargs)
        read = tensors_in(arguments) if has_slope else ()
        before = {node for x in read for node in (x.grad_fn, whole_of(x).grad_fn)}
        result = func(*args, **kwargs)
        if is_op and is_pool:
            values = result[0] if isinstance(result, tuple) else result
            self._count(name, False, tied_elements, in_torch, args, {**kwargs, "values": values})
        # To look at the result takes less than to look at gradients.
        if has_slope and not (name_of(in_torch) in _NORMALIZATIONS and _is_finite(result)):
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
                if is_without_numbers(gradient) or _is_finite(gradient):
                    continue
                is_zero = cotangent == 0
                met = gradient.isnan() & (is_zero if is_zero.shape == gradient.shape else is_zero.any())
                self._add(site, *size_and_count(met))

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


def _is_finite(x: torch.Tensor) -> bool:
    """Return whether a tensor is known to be finite: on a GPU one would have to wait for the sum."""
    if not x.is_cpu or is_transformed() or is_without_numbers(x):
        return False
    total = x.sum()
    # Of a distributed tensor each process has a part of the sum, and torch's function asks all of them. Of any other
    # tensor Python knows it in a quarter of the time.
    return bool(total.isfinite()) if is_distributed(x) else cmath.isfinite(total.item())


_NORMALIZATIONS = frozenset(("batch_norm", "instance_norm", "layer_norm", "group_norm", "rms_norm"))
"""The functions whose result is not finite where they have a slope that is not."""


def _nodes_of(before: Collection[Node | None], result: Any) -> Iterator[Node]:
    """Yield the nodes that a call has added to the graph of autograd; a composed function adds several.

    ``before`` are those that its arguments had, which it may overwrite.
    """
    known = {*before}
    pending = [x.grad_fn for x in tensors_in((result,))]
    while pending:
        node = pending.pop()
        if node is None or node in known or not node.next_functions:  # it accumulates the gradient of a leaf
            continue
        known.add(node)
        yield node
        pending += [following for following, _ in node.next_functions]
