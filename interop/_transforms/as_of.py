"""Existing torch code as of another version of torch: a mode in which its functions have the gradients of that."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, final

import torch
from torch.overrides import handle_torch_function

from interop._torch.grad_state import is_recorded
from interop._torch.private_api import is_overridden
from interop._transforms.min_norm import OF_OTHER_ARGUMENTS, UNCOVERED, Intercepting, Replacements, in_block, namesakes
from interop.native import NATIVE, losses
from interop.native._rules.selection import weighed
from jaxclamp._shared.version_derivatives import VERSIONS, Version, Weights, version_of


@final
class as_of(Intercepting):  # noqa: N801  # it is used as a function
    r"""A context manager and decorator in which torch code has the gradients that a version of torch gives it.

    It keeps a training as it was, which a new version of torch would change. With torch 2.15 installed,
    ``as_of("torch 2.13")`` gives :math:`\min(\max(x, 0), 6)` the slope 1 at 0 and at 6, as torch had it up to 2.13. If
    the installed version has the gradients of ``version``, torch's own function is called. Else torch's own kernel
    computes the value, and the backward pass has the weights of ``version``. Which of the two holds is found by calling
    the installed version at ties.

    It intercepts the calls that `interop.min_norm` intercepts, and works like it in checkpoints, in nested blocks and
    in compiled functions. For modules, without a block, there is ``interop.nn.convert(model, ties="torch 2.13")``.

    Ties: as in that version, also where that is no subgradient, and at NaN. Forward mode has the weights of that
    version's reverse mode. Up to 2.13 its own forward mode has others at a tie of ``fmax`` and of
    ``clamp(x, min=tensor)``, and with ``x < min = max``.

    Args:
      version: ``"torch 2.11"`` to ``"torch 2.15"``; ``"torch 2.13"`` is the newest 2.13 that is recorded.

    Raises:
      TypeError: ``version`` is not such a text; or what is decorated is a class, or a generator or coroutine function.
      ValueError: there is no record of that version.

    Raises when called:
      NotImplementedError: a function in ``not_reproduced`` is called, and recorded for a gradient.

    >>> x = torch.tensor([-1.0, 0.0, 3.0, 6.0], requires_grad=True)
    >>> for version in ("torch 2.13", "torch 2.15"):
    ...     with as_of(version):
    ...         y = x.clamp(0.0, 6.0)
    ...     print(torch.autograd.grad(y.sum(), x)[0].tolist())
    [0.0, 1.0, 1.0, 1.0]
    [0.0, 0.0, 1.0, 0.0]
    """

    not_reproduced: tuple[str, ...]
    """The names of the functions that the installed version of torch gives another gradient, and this cannot change."""

    def __init__(self, version: str) -> None:
        super().__init__()
        self.version = version_of("as_of", version, "torch")
        table = AS_OF[str(self.version)]
        self._replacements = table.replacements
        self._right_in_torch = table.right_in_torch
        self.not_reproduced = tuple(sorted(table.uncovered.values()))


class Table(NamedTuple):
    """What is known of a version."""

    version: Version
    replacements: Replacements
    right_in_torch: Collection[Callable[..., Any]]
    functions: Mapping[Callable[..., Any], Callable[..., Any]]
    """By the function of `interop.native`, what is called in the place of its namesake in torch."""
    covered: Mapping[Callable[..., Any], str]
    """The functions of torch that the installed version gives another gradient, and their names: those replaced."""
    uncovered: Mapping[Callable[..., Any], str]
    """And those that are not."""


def _table(version: Version) -> Table:
    changed = {op for op in version.ops if not _has(op, version)}
    covered = differentiated_by(changed)
    functions, own_of = {}, {}
    for _, own, op in namesakes(NATIVE):  # those of torch.nn.functional last
        own_of[op] = own
        functions[own] = functools.partial(op, ties=version) if own in covered else _unknown_to_blocks(own)
    uncovered = uncovered_losses(changed)
    functions |= {own: _refusing(own, name, version) for own, name in uncovered.items()}
    return Table(
        version,
        {in_block: lambda: True, **functions},
        frozenset(functions[own] for own in functions if own not in covered and own not in uncovered),
        {op: functions[own] for op, own in own_of.items()},
        covered,
        uncovered,
    )


def differentiated_by(ops: Collection[str]) -> dict[Callable[..., Any], str]:
    """The functions of torch whose derivatives come from those ops, and their dotted names."""
    return {own: dotted for dotted, own, op in namesakes(NATIVE) if not set(ops).isdisjoint(_ops_of(op))}


def uncovered_losses(ops: Collection[str]) -> dict[Callable[..., Any], str]:
    """The losses whose derivatives come from those ops, but that are not replaced, and their dotted names."""
    if _LOSSES.isdisjoint(ops):
        return {}
    return {own: name for own, name in UNCOVERED.items() if name in OF_OTHER_ARGUMENTS or "cosine_emb" in name}


_LOSSES = frozenset(("clamp_min", "minimum"))


def _ops_of(function: Callable[..., Any]) -> Collection[str]:
    """The names of the ops whose derivatives a function of `interop.native` has."""
    name = getattr(function, "__name__", "")
    return _LOSSES if inspect.unwrap(function).__module__ == losses.__name__ else (name.rstrip("_"),)


def _refusing(own: Callable[..., Any], name: str, version: Version) -> Callable[..., Any]:
    """Torch's own function, which raises where it is recorded for a gradient that it does not have in the version."""
    # Dynamo of torch 2.11 raises what it does not format.
    message = (
        f"as_of: torch {torch.__version__} gives {name} another gradient than {version}, which cannot be "
        "changed from outside; write its formula with torch.clamp_min, or call it outside of the block."
    )

    @functools.wraps(own)
    def function(*args: Any, **kwargs: Any) -> Any:
        if is_recorded([value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]):
            raise NotImplementedError(message)
        return own(*args, **kwargs)

    return function


def _unknown_to_blocks(own: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's own function, which blocks around do not replace."""

    @functools.wraps(own)
    def function(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if is_overridden(given):  # modes that are no blocks, and subclasses of tensors, see the call
            return handle_torch_function(function, given, *args, **kwargs)
        return own(*args, **kwargs)

    return function


def _has(op: str, version: Version) -> bool:
    """Whether the installed version of torch gives the op of that name the gradients of ``version``."""
    return all(_has_weights(op, version.weights(op, numbers), numbers) for numbers in _KINDS.get(op, (False,)))


_KINDS = dict.fromkeys(("clamp", "clamp_min", "clamp_max"), (False, True))
"""Whether operands may be numbers."""
_ASKED = (0.0, 1.0, 2.0, math.nan)


@functools.cache
def _has_weights(op: str, weights: Weights, numbers: bool) -> bool:
    own = getattr(torch, op)
    operands = 3 if op == "clamp" else 2
    if numbers:
        x = torch.tensor(_ASKED, dtype=torch.float32, requires_grad=True)
        points = [(x, *bounds) for bounds in itertools.product(_ASKED, repeat=operands - 1)]
    else:
        columns = zip(*itertools.product(_ASKED, repeat=operands), strict=True)
        points = [tuple(torch.tensor(column, dtype=torch.float32, requires_grad=True) for column in columns)]
    for point in points:
        active = [operand for operand in point if isinstance(operand, torch.Tensor)]
        value = own(*point)
        found = torch.autograd.grad(value, active, torch.ones_like(value))
        expected = [weighed(masks, point, torch.ones_like(value)) for masks in weights.of]
        if not all(map(torch.equal, found, expected)):
            return False
    return True


def _tables() -> dict[str, Table]:
    found = {version: _table(version) for version in VERSIONS["torch"].values()}
    return {text: found[version] for text, version in VERSIONS["torch"].items()}


with ThreadPoolExecutor(1) as _thread:  # in which no mode of torch is on
    AS_OF = _thread.submit(_tables).result()
"""By what a version may be called, what is known of it."""
