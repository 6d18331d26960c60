"""Gives existing torch code the gradients of another version of torch, by a mode that replaces its functions.

torch hands a method to a mode as it does a function: ``x.clamp_(0.0)`` comes as `torch.Tensor.clamp_`. `namesakes` in
`min_norm.py` finds all of one name, methods and operators too; `_table` says what replaces each for a version.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, final

import torch
from torch.overrides import handle_torch_function

from interop._torch.grad_state import is_recorded, outside_of_modes
from interop._torch.private_api import is_overridden
from interop._transforms.min_norm import (
    OF_OTHER_ARGUMENTS,
    UNCOVERED,
    Intercepting,
    Replacements,
    in_block,
    namesakes,
    operators,
)
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
      version: ``"torch 2.11"`` to ``"torch 2.15"``; ``"torch 2.13"``, or ``"2.13"``, is the newest 2.13 that is
        recorded.

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
    """The functions that are called in the place of torch's, for the gradients of one version."""

    version: Version
    replacements: Replacements
    right_in_torch: Collection[Callable[..., Any]]
    functions: Mapping[Callable[..., Any], Callable[..., Any]]
    """Maps a function of `interop.native` to what is called in the place of its namesake in torch."""
    covered: Mapping[Callable[..., Any], str]
    """Maps a function of torch with another gradient in this version, which is replaced, to its name."""
    uncovered: Mapping[Callable[..., Any], str]
    """Maps a function of torch with another gradient in this version, which is not replaced, to its name."""


def _table(version: Version) -> Table:
    changed = {op for op in version.ops if not _has(op, version)}
    covered, uncovered = differentiated_by(changed), uncovered_losses(changed)
    # Torch's own function stands where the gradient is the same; the others are pinned, or refuse to be differentiated.
    replaced = {**covered, **uncovered}
    in_native = {in_torch: op for _, in_torch, op in namesakes(NATIVE)}
    names = {in_torch: name for name, in_torch, _ in namesakes(NATIVE)}
    right = {in_torch: _not_replaced(name, in_torch) for in_torch, name in names.items() if in_torch not in replaced}
    pinned: Replacements = {in_torch: functools.partial(in_native[in_torch], ties=version) for in_torch in covered}
    refusing = {in_torch: _refusing(in_torch, name, version) for in_torch, name in uncovered.items()}
    replacements: Replacements = {**right, **pinned, **refusing}
    return Table(
        version,
        {in_block: lambda: True, **replacements, **dict(operators(pinned))},
        frozenset(right.values()),
        # Of the namesakes in torch the last counts, that of torch.nn.functional, which modules call.
        {op: replacements[in_torch] for _, in_torch, op in namesakes(NATIVE)},
        covered,
        uncovered,
    )


def differentiated_by(ops: Collection[str]) -> dict[Callable[..., Any], str]:
    """Map each function of torch whose derivative comes from those ops to its dotted name."""
    return {in_torch: dotted for dotted, in_torch, op in namesakes(NATIVE) if not set(ops).isdisjoint(_ops_of(op))}


def uncovered_losses(ops: Collection[str]) -> dict[Callable[..., Any], str]:
    """Map each loss whose derivative comes from those ops, but that is not replaced, to its dotted name."""
    return {} if _OPS_OF_LOSSES.isdisjoint(ops) else _UNCOVERED_LOSSES


_UNCOVERED_LOSSES = {
    in_torch: name
    for in_torch, name in UNCOVERED.items()
    if name in OF_OTHER_ARGUMENTS or name.endswith("cosine_embedding_loss")
}
# torch computes its losses with a margin by clamp_min, and the swap of a triplet loss by minimum.
_OPS_OF_LOSSES = frozenset(("clamp_min", "minimum"))


def _ops_of(function: Callable[..., Any]) -> Collection[str]:
    """Return the names of the ops whose derivatives a function of `interop.native` has."""
    name = getattr(function, "__name__", "")
    return _OPS_OF_LOSSES if inspect.unwrap(function).__module__ == losses.__name__ else (name.rstrip("_"),)


def _refusing(in_torch: Callable[..., Any], name: str, version: Version) -> Callable[..., Any]:
    """Return torch's function, which raises where it is recorded for a gradient that is not that of the version."""
    # Formatted out here: Dynamo of torch 2.11 cannot format the message of an error that it traces.
    message = (
        f"as_of: torch {torch.__version__} gives {name} another gradient than {version}, which cannot be "
        "changed from outside; write its formula with torch.clamp_min, or call it outside of the block."
    )

    @functools.wraps(in_torch)
    def function(*args: Any, **kwargs: Any) -> Any:
        if is_recorded([value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]):
            raise NotImplementedError(message)
        return in_torch(*args, **kwargs)

    return function


_NOT_REPLACED: dict[str, Callable[..., Any]] = {}
"""Maps the dotted name of a function of torch to what `_not_replaced` returns for it."""


def _not_replaced(name: str, in_torch: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch's function of that name in a form that blocks around do not replace."""

    @functools.wraps(in_torch)
    def function(*args: Any, **kwargs: Any) -> Any:
        arguments = (*args, *kwargs.values())
        if is_overridden(arguments):  # modes that are no blocks, and subclasses of tensors, see the call
            # By its name: Dynamo cannot look up the function itself in an outer block.
            return handle_torch_function(_NOT_REPLACED[name], arguments, *args, **kwargs)
        return in_torch(*args, **kwargs)

    return _NOT_REPLACED.setdefault(name, function)


def _has(op: str, version: Version) -> bool:
    """Return whether the installed version of torch gives the op of that name the gradients of ``version``."""
    return all(_has_weights(op, version.weights(op, numbers), numbers) for numbers in _KINDS.get(op, (False,)))


_KINDS = dict.fromkeys(("clamp", "clamp_min", "clamp_max"), (False, True))
"""Maps an op to the kinds of calls it has: whether its bounds are numbers, for which torch has another formula."""
# Three numbers have each order and each tie of the three operands of a clamp.
_VALUES = (0.0, 1.0, 2.0, math.nan)


@functools.cache
def _has_weights(op: str, weights: Weights, numbers: bool) -> bool:
    """Differentiate torch's op at all orders and ties of its operands, and compare with the weights there.

    At ``fmax(1, 1)`` the weights of torch 2.15 are (0.5, 0.5). Torch 2.13 has the gradients (1, 0), so not these.
    """
    in_torch = getattr(torch, op)
    operands = 3 if op == "clamp" else 2
    if numbers:
        x = torch.tensor(_VALUES, requires_grad=True)
        points = [(x, *bounds) for bounds in itertools.product(_VALUES, repeat=operands - 1)]
    else:
        columns = zip(*itertools.product(_VALUES, repeat=operands), strict=True)
        points = [tuple(torch.tensor(column, requires_grad=True) for column in columns)]
    for point in points:
        active = [operand for operand in point if isinstance(operand, torch.Tensor)]
        value = in_torch(*point)
        gradients = torch.autograd.grad(value, active, torch.ones_like(value))
        expected = [weighed(masks, point, torch.ones_like(value)) for masks in weights.of]
        if not all(map(torch.equal, gradients, expected)):
            return False
    return True


def _tables() -> dict[str, Table]:
    tables = {version: _table(version) for version in VERSIONS["torch"].values()}
    return {text: tables[version] for text, version in VERSIONS["torch"].items()}


# At import, as a module may look a version up while its graph is traced. It takes 20 ms.
AS_OF = outside_of_modes(_tables)
"""Maps a name of a version, such as "torch 2.13", to its table."""

PINNED: Mapping[Callable[..., Any], Callable[..., Any]] = {
    pinned: in_torch for table in AS_OF.values() for in_torch, pinned in table.replacements.items()
}
"""Maps what blocks around a block of `as_of` see of a call, where torch has the gradient, to the function of torch."""
