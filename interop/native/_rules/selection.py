"""Differentiates ops whose value is one of their operands, around torch's own function: the selection rule.

The order of the operands, the steps from one to the next and the convention come from the rule of jaxclamp. In a
version of torch, the weights of the operands come from the formulas in `jaxclamp/_shared/version_derivatives.py`; the
answers in `interop/answers` only test them.

C is the set of operands that are equal to the value. ``clamp(x, min=0, max=6)`` at x = 0, for example, folds
``maximum(x, min)`` and ``minimum(..., max)``: C is {x, min}. If both are active, each gets half of the gradient. If x
alone is active, min is in C and inactive, so x gets 0.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from interop._torch.grad_state import outside_of_modes
from interop.native._rules.differentiable import differentiable
from jaxclamp import OPS, Convention
from jaxclamp._rules.differentiate import Rule
from jaxclamp._rules.selection import Affine, Selection
from jaxclamp._shared.version_derivatives import Version, Weights

Operand: TypeAlias = torch.Tensor | float
Mask: TypeAlias = torch.Tensor

_LOSES_OR_TIES: Mapping[Any, Callable[[Any, Any], Any]] = {
    torch.maximum: operator.le,
    torch.fmax: operator.le,
    torch.minimum: operator.ge,
    torch.fmin: operator.ge,
}
_SKIPS_NAN = (torch.fmax, torch.fmin)
# One comparison of torch says it. Beside a NaN that is skipped the operand is the value, which none of these says.
_WINS: Mapping[Any, Callable[[Any, Any], Any]] = {torch.maximum: operator.gt, torch.minimum: operator.lt}


def select(
    name: str,
    in_torch: Callable[..., torch.Tensor],
    ties: Convention | Version,
    active: bool | list[int],
    *arguments: Operand | None,
) -> torch.Tensor:
    """Return the value of torch's function, with the gradient of the op of that name by its rule, or in a version.

    In a version the operands are the arguments, since every function with another gradient there has weights.

    Args:
      name: the name of the op.
      in_torch: torch's function of the arguments.
      ties: the convention or the version.
      active: which of the arguments are differentiated, as `activity` says it.
      *arguments: those of the op.
    """
    if isinstance(ties, Version):
        # Beside a number, torch takes a tensor without axes as a number too.
        has_numbers = any(not isinstance(argument, torch.Tensor) for argument in arguments)
        return _selected(in_torch, ties.weights(name, has_numbers), *arguments)
    recorded = active if isinstance(active, list) and ties in ("min_norm", "balanced") else None
    if recorded and (value := _by_calls(in_torch, ties, recorded, arguments)) is not None:
        return value
    rule, operands = OPS[name].applied(*arguments, ties=ties)
    if recorded and (value := _by_comparison(rule, in_torch, recorded, operands)) is not None:
        return value
    return _selected(in_torch, rule, *operands)


def _by_calls(
    in_torch: Callable[..., torch.Tensor], ties: Convention, active: Sequence[int], operands: Sequence[Any]
) -> torch.Tensor | None:
    """Compute the op by calls of torch that together have its gradient; None if none have it.

    A single active operand gets nothing at a tie, and neither do the bounds of torch's clamps. So the active operand
    takes the place of a bound: ``maximum(x, y)`` is ``clamp_min(y, x)``, and ``clamp(x, low, high)`` is
    ``clamp(low, x, high)``, for an active x. An active bound has such a place already.
    """
    if len(active) == 2:
        # Two active operands that tie get half each, under both conventions.
        return in_torch(*operands) if in_torch in _HALVING else None
    clamp = _CLAMPS.get(in_torch) if BOUNDS_LOSE else None
    if len(active) != 1 or clamp is None or ties != "min_norm" or not _can_swap(operands):
        return None
    first, second, *second_bound = operands
    value: torch.Tensor = clamp(second, first, *second_bound) if active[0] == 0 else clamp(*operands)
    # Torch's clamp by two bounds fails in its backward pass if both x and the active bound are broadcast to the other.
    return value if not second_bound or value.shape == first.shape else None


def _by_comparison(
    rule: Rule, in_torch: Callable[..., torch.Tensor], active: Sequence[int], operands: Sequence[Any]
) -> torch.Tensor | None:
    """Compute an op of one active operand without a Function; None if that takes longer, or for another rule.

    The operand is selected where it alone is the value, and elsewhere stands what torch computes of the operands,
    detached: ``where(x > y, x, maximum(x, y))``. A NaN wins no comparison: its gradient is 0 either way.
    """
    if type(rule) is not Selection or rule.convention != "min_norm" or len(active) != 1:
        return None
    (index,) = active
    if operands[index].numel() > _SMALL or not _lie_alike(operands):
        return None
    # A comparison records nothing, so that the active operand alone is detached.
    known = [*operands[:index], operands[index].detach(), *operands[index + 1 :]]
    return torch.where(_alone(_steps(rule), operands, index), operands[index], in_torch(*known))


_SMALL = 2**15
"""The elements up to which two calls of torch, or `torch.where`, take less time than a Function in Python."""


def _lie_alike(operands: Sequence[Any]) -> bool:
    """Return whether the result lies in memory the same way, whichever of the operands torch gets first."""
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    first = tensors[0]
    return all(tensor.is_contiguous() for tensor in tensors) or all(
        tensor.shape == first.shape and tensor.stride() == first.stride() for tensor in tensors
    )


def _can_swap(operands: Sequence[Any]) -> bool:
    """Return whether torch's clamps take the operands in any order, with the same result, which lies so too."""
    first = operands[0]
    dtype, device, are_contiguous = first.dtype, first.device, first.is_contiguous()
    for operand in operands[1:]:
        if not isinstance(operand, torch.Tensor) or operand.dtype is not dtype or operand.device != device:
            return False
        are_contiguous = are_contiguous and operand.is_contiguous()
    return are_contiguous or _lie_alike(operands)


def _at_tie(in_torch: Callable[..., torch.Tensor], *operands: float) -> list[float]:
    """Return the gradients that torch gives to operands that tie.

    >>> _at_tie(torch.maximum, 0.0, 0.0)
    [0.5, 0.5]
    """
    tensors = [torch.tensor(operand, device="cpu", requires_grad=True) for operand in operands]
    return [part.item() for part in torch.autograd.grad(in_torch(*tensors), tensors)]


def _bounds_lose() -> bool:
    ties: list[tuple[Callable[..., torch.Tensor], Sequence[float]]] = [
        (torch.clamp_min, (0.0, 0.0)),
        (torch.clamp_max, (0.0, 0.0)),
        (torch.clamp, (0.0, 0.0, 1.0)),
        (torch.clamp, (0.0, -1.0, 0.0)),
        (torch.clamp, (0.0, 1.0, 1.0)),
    ]
    return not any(gradient for clamp, operands in ties for gradient in _at_tie(clamp, *operands)[1:])


_HALVING = outside_of_modes(lambda: {f for f in (torch.maximum, torch.minimum) if _at_tie(f, 0.0, 0.0) == [0.5, 0.5]})
"""The functions of two tensors whose gradient torch halves at a tie."""
BOUNDS_LOSE = outside_of_modes(_bounds_lose)
"""Whether a bound that ties with another operand gets nothing: up to torch 2.13."""
_CLAMPS: Mapping[Callable[..., torch.Tensor], Callable[..., torch.Tensor]] = {
    torch.maximum: torch.clamp_min,
    torch.minimum: torch.clamp_max,
    torch.clamp_min: torch.clamp_min,
    torch.clamp_max: torch.clamp_max,
    torch.clamp: torch.clamp,
}
"""Maps a function of torch to its clamp by tensors that has the same value."""


class _Selected(torch.autograd.Function):
    generate_vmap_rule = True
    tells_inactive = True

    @staticmethod
    def forward(in_torch: Callable[..., torch.Tensor], rule: Selection | Weights, *operands: Operand) -> torch.Tensor:
        return in_torch(*operands)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, ctx.rule, *operands = inputs
        tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
        ctx.numbers = [None if isinstance(operand, torch.Tensor) else operand for operand in operands]
        ctx.dtype = output.dtype
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        operands = _operands(ctx)
        if cotangent is None:
            return None, None, *[None] * len(operands)
        weighted = _weighted(ctx.rule, operands, [cotangent if active else None for active in ctx.needs_input_grad[2:]])
        return None, None, *map(as_operand, weighted, operands)

    @staticmethod
    def jvp(ctx: Any, _in_torch: None, _rule: None, *tangents: torch.Tensor | None) -> torch.Tensor:
        moving = [None if tangent is None else tangent.to(ctx.dtype) for tangent in tangents]
        weighted = [part for part in _weighted(ctx.rule, _operands(ctx), moving) if part is not None]
        return functools.reduce(operator.add, weighted)


_selected: Callable[..., torch.Tensor] = differentiable(_Selected)


def _operands(ctx: Any) -> list[Any]:
    tensors = iter(ctx.saved_tensors)
    return [next(tensors) if number is None else number for number in ctx.numbers]


def as_operand(part: torch.Tensor | None, operand: Any) -> torch.Tensor | None:
    """Return the gradient of an operand, which may have been broadcast and promoted."""
    if part is None or (part.shape == operand.shape and part.dtype == operand.dtype):
        return part
    return part.sum_to_size(operand.shape).to(operand.dtype)


def _weighted(
    rule: Selection | Weights, operands: Sequence[Any], vectors: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Return each vector times the weight of its operand, by selection; None stands for an operand that is not active.

    The weights map tangents to the tangent of the value, and its cotangent to those of the operands.
    """
    if isinstance(rule, Weights):
        return [
            None if vector is None else weighed(conditions, operands, vector)
            for conditions, vector in zip(rule.of, vectors, strict=False)  # numbers have no weights
        ] + [None] * (len(operands) - len(rule.of))
    if isinstance(rule, Affine):
        vectors = [None if vector is None else rule.scale * vector for vector in vectors]
    active = [vector is not None for vector in vectors]
    steps = _steps(rule)
    if rule.convention == "min_norm" and sum(active) == 1:
        alone = _alone(steps, operands, active.index(True))
        return [None if vector is None else torch.where(alone, vector, 0.0) for vector in vectors]
    members, _ = _members(steps, operands)
    chosen = _sharing(rule, members, active)
    shares = _counted(chosen).clamp(min=1)
    return [
        None if vector is None else torch.where(mask, vector / shares, 0.0)
        for mask, vector in zip(chosen, vectors, strict=True)
    ]


def weighed(conditions: Sequence[Callable[..., Mask]], operands: Sequence[Any], vector: torch.Tensor) -> torch.Tensor:
    """Return the vector times the weight of an operand, as `Weights` has it."""
    gets, *halves = conditions
    for half in halves:
        vector = torch.where(half(*operands), vector / 2, vector)
    return torch.where(gets(*operands), vector, 0.0)


def _steps(rule: Selection) -> list[Callable[..., Any]]:
    """Return torch's functions for the steps, by name, as Dynamo of torch 2.11 hashes no function of JAX."""
    return [getattr(torch, step.__name__) for step in rule.steps]


def _alone(steps: Sequence[Callable[..., Any]], operands: Sequence[Any], index: int) -> Mask:
    """Return where the operand at ``index`` is the value and no other is in C, which alone gives it a gradient.

    What is folded before it is one rival, and each operand behind it another.
    """
    operand, value = operands[index], operands[0]
    alone: Any = None
    for k, (step, rival) in enumerate(zip(steps, operands[1:], strict=True), 1):
        if k < index:
            value = _folded(step, value, rival)
        else:
            beats = _beats(step, operand, value if k == index else rival)
            alone = beats if alone is None else alone & beats
    return alone


def _beats(step: Callable[..., Any], operand: Operand, rival: Operand) -> Mask:
    """Return where ``operand`` alone is the value of ``step(operand, rival)``: nowhere where that is NaN."""
    wins = _WINS.get(step)
    return ~_reaches(step, rival, operand) if wins is None else wins(operand, rival)


def _members(steps: Sequence[Callable[..., Any]], operands: Sequence[Any]) -> tuple[list[Mask], Any]:
    """Return for each operand where it is in C, and the value."""
    members: list[Mask] = []
    value = operands[0]
    for step, operand in zip(steps, operands[1:], strict=True):
        keeps = _reaches(step, value, operand)
        members = [member & keeps for member in members] or [keeps]  # before the first step there is one operand
        members.append(_reaches(step, operand, value))
        value = _folded(step, value, operand)
    return members, value


def number_of_members(rule: Selection, operands: Sequence[Any]) -> torch.Tensor:
    """Return how many operands are in C; none are where the value is NaN."""
    members, value = _members(_steps(rule), operands)
    return torch.where(value.isnan(), 0, _counted(members))


def _sharing(rule: Selection, members: Sequence[Mask], active: Sequence[bool]) -> list[Mask]:
    """Return for each operand where it gets a share."""
    match rule.convention:
        case "min_norm":
            # A constant that ties can take the whole share: then 0 is among the subgradients of all others.
            inactive = [member for member, is_active in zip(members, active, strict=True) if not is_active]
            if not inactive:
                return list(members)
            has_none = ~functools.reduce(operator.or_, inactive)
            return [member & has_none for member in members]
        case "balanced":
            return list(members)
    first = [member & ~functools.reduce(operator.or_, members[:k]) if k else member for k, member in enumerate(members)]
    if rule.convention == "inclusive":
        return first
    tied = _counted(members) > 1
    return [member & ~(leads & tied) for member, leads in zip(members, first, strict=True)]


def _counted(masks: Sequence[Mask]) -> torch.Tensor:
    """Count the masks that hold at each element."""
    return functools.reduce(operator.add, [mask.to(torch.int8) for mask in masks])


def _folded(step: Callable[..., torch.Tensor], value: Operand, operand: Operand) -> torch.Tensor:
    # The steps are functions of two tensors. A number beside one does not promote it.
    like = next(x for x in (value, operand) if isinstance(x, torch.Tensor))
    first, second = (
        torch.as_tensor(x, dtype=x.dtype if isinstance(x, torch.Tensor) else like.dtype, device=like.device)
        for x in (value, operand)
    )
    return step(first, second)


def _reaches(step: Callable[..., torch.Tensor], operand: Operand, rival: Operand) -> Mask:
    """Return where ``operand`` is the value of ``step(operand, rival)``, alone or tied with the rival."""
    reaches: Mask = _LOSES_OR_TIES[step](rival, operand)
    deciding = rival if step in _SKIPS_NAN else operand
    if isinstance(deciding, torch.Tensor) or deciding != deciding:
        reaches = reaches | (deciding != deciding)
    return reaches
