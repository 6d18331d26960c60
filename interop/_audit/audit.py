"""`audit`: finds the lines of torch code whose gradient depends on the version of torch, and what keeps it.

The code runs once, under a mode that keeps each call of a function with other derivatives in the later version, such
as ``x.clamp(0, 6)``: copies of its arguments and, after the backward pass, the gradient with respect to its result.
Each of these calls is then differentiated twice, as in either version. At x = 0 the gradient of this one is 1 in torch
2.13 and 0 in torch 2.15. The differences are gathered by line, and the cure is the convention that gives the earlier
gradient.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch

from interop._audit.calls import WatchedCall, Watching, difference_of, flat, refuse_script
from interop._audit.report import Audit, ChangedLine, Effect
from interop._audit.restoring import restoring
from interop._bridge.arrays import tensor_over
from interop._torch.grad_state import leaves_behind
from interop._torch.private_api import flattened
from interop._transforms.as_of import as_of, differentiated_by, uncovered_losses
from interop.frameworks.base import weighted_total
from jaxclamp import CONVENTIONS, Convention
from jaxclamp._shared.tie_report import Line, Site, Totals
from jaxclamp._shared.version_derivatives import VERSIONS, Version, version_of


@restoring()
@torch.inference_mode(False)
def audit(
    fun: Callable[..., Any], /, *inputs: Any, before: str, after: str | None = None, probe: bool = False
) -> Audit:
    """Find the lines of torch code whose gradient changes from one version of torch to another, on these inputs.

    The code runs once, under `as_of` of the version ``before``. Each call of a function with other derivatives in the
    version ``after`` is kept. It is then differentiated as in either version, with the gradient with respect to its
    result. If one of them changes, the code runs a second time, with the gradients of ``after``, which says how the
    gradient of the parameters changes. A call that names a convention, as
    ``interop.native.clamp(..., ties="inclusive")``, or that is in a block of its own, depends on no version.

    The code runs for real, as it was written even if it is compiled. What its optimizers write, parameters and states
    of their own, is put back at the end, and so are the buffers of modules, as the averages of a batch norm. Whatever
    else it writes stays, as gradients in ``.grad``, schedulers, and weights that it moves by hand. Calls in other
    threads are not seen, nor are those in the ``backward`` of a `torch.autograd.Function`, nor functions of lists of
    tensors, as ``_foreach_clamp_min``. Quantiles are named, and not looked at.

    Args:
      fun: a function of torch, or a module. Its result, a tree of tensors or a dataclass, is differentiated; if it has
        several numbers, their weighted sum, as for `interop.compare`. If ``fun`` differentiates by itself, as a step of
        training does, those gradients are audited; if it calls ``backward``, those alone.
      inputs: its arguments. Tensors stay as they are: those that require grad are differentiated. Arrays of NumPy
        become tensors, and those of floats require grad.
      before: a version, as for `as_of`. It need not be installed.
      after: another; by default that of the installed torch, or the newest recorded if the installed one is not newer
        than ``before``. A version without a record is taken for the newest one before it, which the report says.
      probe: whether to say, for lines without a tie, what would change if all elements were on the nearest bound. A
        loss that clamps inside is not probed.

    Returns:
      An `Audit`: per line of the source and module the elements on a tie, the gradient before and after, and a cure.

    Raises:
      TypeError: ``fun`` is not callable, an array is not of numbers, or a version is no text.
      ValueError: there is no record of a version; or nothing that ``fun`` returned, or did, has a gradient.
      NotImplementedError: ``fun`` calls a loss that clamps inside, and cannot be called in parts; or the audit is in a
        transformation of `torch.func`; or ``fun``, or a module in it, is TorchScript, whose calls nobody sees. A
        scripted function that ``fun`` calls is not noticed.
      RuntimeError: called in a compiled function.

    >>> report = audit(lambda x: x.clamp(0, 6).sum(), np.float32([0, 3, 6]), before="torch 2.13", after="torch 2.15")
    >>> [(change.line.tied, change.line.elements, round(change.difference, 3)) for change in report.changes]
    [(2, 3, 1.414)]
    >>> report.changes[0].cure
    'interop.native.clamp(..., ties="inclusive")'
    """
    if not callable(fun) or isinstance(fun, type):
        raise TypeError(f"audit: fun is {fun!r}; pass a function of torch, or a module.")
    refuse_script(fun)
    old = version_of("audit", before, "torch")
    new, note = (version_of("audit", after, "torch"), "") if after else _later_than(old)
    before, after = str(old), str(new)
    # Only these ops are watched: a call of another one has the same gradient in both versions.
    changed = [op for op in old.ops if old.differs(op, new)]
    watching = Watching(differentiated_by(changed), uncovered_losses(changed))
    leaves, structure = jax.tree_util.tree_flatten_with_path(inputs)
    arguments = jax.tree.unflatten(structure, [_to_tensor(jax.tree_util.keystr(keys), leaf) for keys, leaf in leaves])
    on_cpu, on_gpus = torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    total = _total(fun, arguments, before, watching)
    gradients = _gradients(total, watching)
    calls = [call for call in watching.calls if call.cotangents]
    lines, changes = _compared(calls, before, after)
    untied = {line.site for line in lines if not line.tied}
    probed = _compared([call.moved() for call in calls if call.site in untied], before, after)[1] if probe else ()
    if not changes:
        effect, no_effect = None, ""
    elif total is None or gradients is None:
        effect, no_effect = None, "the function differentiates by itself; audit one that returns the loss"
    else:
        with torch.random.fork_rng(range(len(on_gpus))):  # with the random numbers of the first run
            torch.set_rng_state(on_cpu)
            torch.cuda.set_rng_state_all(on_gpus)
            again = _total(fun, arguments, after, contextlib.nullcontext())
        effect, no_effect = _effect(total, gradients, again, arguments)
    unwatched = tuple(sorted(watching.unwatched)) if changed else ()
    return Audit(before, after, changes, lines, probed, effect, no_effect, probe, note, unwatched)


def _gradients(total: torch.Tensor | None, watching: Watching) -> dict[torch.Tensor, torch.Tensor] | None:
    """Differentiate the total, by which the watched calls get the gradients with respect to their results.

    It returns the gradients, unless the function has differentiated by itself, as a step of training does.
    """
    # What has called backward is a step: its graph is gone, and the loss that it returns is for a log.
    is_step = not watching.derivatives.isdisjoint((torch.Tensor.backward, torch.autograd.backward))
    by_itself = is_step or any(call.cotangents for call in watching.calls)
    if total is not None and not is_step:
        variables = leaves_behind(total)
        gradients = dict(zip(variables, torch.autograd.grad(total, variables), strict=True))
        return None if by_itself else gradients
    if by_itself or watching.derivatives:
        return None
    raise ValueError(
        "audit: nothing that was returned depends on a tensor that requires grad, and nothing was differentiated; "
        "return a loss, or pass inputs that require grad."
    )


def _effect(
    total: torch.Tensor, gradients: Mapping[torch.Tensor, torch.Tensor], again: torch.Tensor | None, arguments: Any
) -> tuple[Effect | None, str]:
    """Return how the gradient of the parameters changes, or None and why that cannot be said.

    The leaves of ``gradients``, those of ``total`` in the version before, are parameters unless they are ``arguments``.
    In the version after, ``again`` is differentiated.
    """
    if again is None or not torch.allclose(again, total, rtol=0, atol=0, equal_nan=True):
        return None, "called again, the function returned something else; audit one that is not random"
    # A tensor that the function makes anew in each call is another one in the second: its gradient there would be 0.
    first, second = ({id(variable) for variable in leaves} for leaves in (gradients, leaves_behind(again)))
    if first - second and second - first:  # if one side alone has more, a version may cut off the rest
        return None, "the function makes tensors that require grad; pass them as inputs"
    passed = {id(leaf) for leaf in jax.tree.leaves(arguments)}
    parameters = [variable for variable in gradients if id(variable) not in passed]
    of = f"{len(parameters)} parameter{'s' * (len(parameters) > 1)}" if parameters else "the inputs"
    variables = parameters or list(gradients)
    new_gradients = torch.autograd.grad(again, variables, materialize_grads=True)
    return Effect(of, *_norms(flat(gradients[variable] for variable in variables), flat(new_gradients))), ""


def _later_than(old: Version) -> tuple[Version, str]:
    """Return a version later than ``old``: that of the installed torch, or, if it is not later, the newest recorded.

    Where the installed version has no record, the newest one before it stands for it, and a note says so.
    """
    recorded = list(dict.fromkeys(VERSIONS["torch"].values()))  # the newest last
    # A `TorchVersion` compares as a version, not as text: 2.9 is less than "2.13".
    new = next((version for version in reversed(recorded) if torch.__version__ >= version.number), old)
    if recorded.index(new) <= recorded.index(old):  # the upgrade is still to come
        return recorded[-1], ""
    installed = torch.__version__.partition("+")[0]
    note = f"torch {installed} is installed, of which there is no record: {new} stands for it"
    return new, "" if installed == new.number else note


def _total(
    fun: Callable[..., Any], arguments: Sequence[Any], version: str, watching: contextlib.AbstractContextManager[Any]
) -> torch.Tensor | None:
    """Call ``fun`` with the gradients of a version, and add up what of its results is differentiable, if any is."""
    # What `torch.compile` made is called as it was written: compiled code shows its calls to no mode.
    with torch.compiler.set_stance("force_eager"), as_of(version), watching:
        try:
            result = fun(*arguments)
        except TypeError as error:
            if "torch.Tensor" in str(error) or "jaxlib" in str(error):
                error.add_note("audit: JAX was called with a tensor, as it seems; pass a function of torch.")
            raise
    leaves, _ = flattened(vars(result) if dataclasses.is_dataclass(result) else result)
    differentiable = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return weighted_total(differentiable) if differentiable else None


def _to_tensor(label: str, argument: Any) -> Any:
    if not isinstance(argument, np.ndarray | np.generic):
        return argument
    try:
        tensor = tensor_over(np.array(argument, argument.dtype.newbyteorder("=")))  # a copy, which may be overwritten
    except TypeError as error:
        raise TypeError(
            f"audit: argument {label} is an array of dtype {argument.dtype}, which torch does not have; pass numbers, "
            "and texts as a list."
        ) from error
    return tensor.requires_grad_(tensor.is_floating_point())


def _norms(old: torch.Tensor, new: torch.Tensor) -> tuple[float, float, float]:
    """Return the norms of two gradients and of their difference."""
    before, after, difference = (torch.linalg.vector_norm(v).item() for v in (old, new, difference_of(old, new)))
    return before, after, difference


def _compared(
    calls: Iterable[WatchedCall], before: str, after: str
) -> tuple[tuple[Line, ...], tuple[ChangedLine, ...]]:
    """Return the lines of the calls, and those where a gradient changes, over all calls from there."""
    totals = Totals()
    by_site = defaultdict[Site, list[tuple[WatchedCall, torch.Tensor, torch.Tensor]]](list)
    for call in calls:
        old, new = call.gradient(before), call.gradient(after)
        # Of a loss the entries of the gradient count, and those that change.
        totals[call.site] += call.tied or (old.numel(), int(torch.count_nonzero(difference_of(old, new))))
        by_site[call.site].append((call, old, new))
    changes = []
    for line in totals.lines():
        calls_there, olds, news = zip(*by_site[line.site], strict=True)
        old, new = torch.cat(olds), torch.cat(news)
        difference = difference_of(old, new)
        if difference.any():
            slopes = [torch.cat([call.slopes(version) for call in calls_there]) for version in (before, after)]
            pairs = torch.stack(slopes, 1)[difference_of(*slopes) != 0].unique(dim=0)  # sorted, the steepest last
            keeping = [c for c in CONVENTIONS if all(call.has(c, g) for call, g in zip(calls_there, olds, strict=True))]
            steepest = tuple((old_slope, new_slope) for old_slope, new_slope in pairs.flip(0)[:3].tolist())
            largest, cure = difference.abs().max().item(), _cure(line.op, before, keeping)
            changes.append(ChangedLine(line, *_norms(old, new), largest, steepest, cure))
    return totals.lines(), tuple(changes)


def _cure(op: str, before: str, conventions: Sequence[Convention]) -> str:
    if not conventions:
        return f'a block `with interop.as_of("{before}"):`'
    ties = "" if conventions[0] == "min_norm" else f', ties="{conventions[0]}"'
    return f"interop.native.{op}(...{ties})"
