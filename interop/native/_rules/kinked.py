"""Differentiates kinked ops by torch's own derivative, but for the slope at kinks: the kink rule.

Which slope counts there follows from the pieces and kinks in the rule of jaxclamp.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from interop._torch.grad_state import outside_of_modes
from interop._torch.private_api import constant_in_graphs, is_forward_mode, is_transformed, takes_hooks
from interop.native._rules.differentiable import differentiable
from interop.native._rules.windows_stage import is_on_gpu, is_plain
from jaxclamp import OPS
from jaxclamp._rules.kinked import Piece

Kink: TypeAlias = tuple[float, float]
"""A place where pieces meet, and the slope that counts there. Dynamo of torch 2.11 unpacks no constant NamedTuple."""

_KEEP_X_ALONE = frozenset(("elu", "leaky_relu", "selu"))
"""The functions for whose backward pass torch keeps x and nothing else."""


# The smallest normal number moves 0 to the piece above. Besides 0, only subnormal numbers change sides, which XLA takes
# for 0 too. A smaller number would move fewer, but is subnormal itself: processors take ten times as long for its
# products. In float16 subnormal numbers begin at 6e-5. The number is a tensor: one of Python takes torch twice as long.
def _saved_moved_up(dtype: torch.dtype) -> torch.autograd.graph.saved_tensors_hooks:
    smallest = torch.tensor(torch.finfo(dtype).tiny, dtype=dtype, device="cpu")
    return torch.autograd.graph.saved_tensors_hooks(lambda x: x + smallest, lambda moved: moved)


_SAVED_MOVED_UP = outside_of_modes(
    lambda: {dtype: _saved_moved_up(dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)}
)
"""Maps a dtype to a block in which torch keeps x for its backward pass moved up by the smallest normal number."""


# Apart from the cached function, since Dynamo passes over caches and looks into what is in them.
@constant_in_graphs
def kinks_of(name: str, *parameters: float) -> tuple[Kink, ...]:
    """Return the kinks of the op of that name with these parameters.

    >>> kinks_of("elu", 2.0)
    ((0.0, 1.0),)
    """
    return _kinks_of(name, *parameters)


@functools.lru_cache(maxsize=1024)
def _kinks_of(name: str, *parameters: float) -> tuple[Kink, ...]:
    kinks = []
    for place, before, after in pieces_that_meet(name, *parameters):
        left, right = (_slope(piece, place, parameters) for piece in (before, after))
        # Between slopes of different signs lies 0.
        least = min(left, right, key=abs) if left * right > 0 else 0.0
        kinks.append((place, least))
    return tuple(kinks)


def pieces_that_meet(name: str, *parameters: float) -> Iterator[tuple[float, Piece, Piece]]:
    """Return the places of the kinks of the op of that name, and the pieces to the left and to the right of each."""
    rule: Any = OPS[name].applied(0.0, *parameters).rule
    places = [float(place) for place in rule.kinks(np, *parameters)]
    for place in dict.fromkeys(places):
        # Kinks may coincide: then the pieces to either side of all of them meet.
        yield (
            place,
            rule.pieces[sum(kink < place for kink in places)],
            rule.pieces[sum(kink <= place for kink in places)],
        )


@functools.lru_cache(maxsize=1024)
def places_of_ties(name: str, *parameters: float) -> tuple[float, ...]:
    """Return the kinks at which the slopes of the op of that name differ.

    >>> places_of_ties("elu", 2.0), places_of_ties("elu", 1.0)
    ((0.0,), ())
    """
    return tuple(
        place
        for place, before, after in pieces_that_meet(name, *parameters)
        if _slope(before, place, parameters) != _slope(after, place, parameters)
    )


@functools.lru_cache(maxsize=1024)
def _has_slope_above_at_0(name: str, *parameters: float) -> bool:
    """Return whether the slope at the only kink, which is at 0, is that of the piece above.

    >>> _has_slope_above_at_0("elu", 2.0), _has_slope_above_at_0("elu", 0.5)
    (True, False)
    """
    ((place, _, above),) = pieces_that_meet(name, *parameters)
    ((_, slope),) = _kinks_of(name, *parameters)
    return slope == _slope(above, place, parameters)


def _slope(piece: Piece, place: float, parameters: Sequence[float]) -> float:
    """Return the derivative of an analytic piece to the last digit, by a complex step: Im f(x + ih) / h.

    For x², that is Im((x² - h²) + 2ixh) / h = 2x.
    """
    # Nothing is subtracted, so that nothing cancels. The square of the step, which the slope is off by, is far below
    # its last digit.
    step = 2.0**-300
    return float(np.imag(piece(np, place + 1j * step, *parameters)) / step)


def bend(
    name: str,
    in_torch: Callable[..., torch.Tensor],
    derivative: Callable[..., torch.Tensor],
    x: torch.Tensor,
    *parameters: float,
) -> torch.Tensor:
    """Return the value of torch's function, with the gradient of the op of that name.

    Args:
      name: the name of the op.
      in_torch: torch's function of x and the parameters.
      derivative: from a vector, x and the parameters to the vector times torch's slopes.
    """
    if is_forward_mode() or is_transformed():
        return _spelled_out(in_torch, kinks_of(name, *parameters), x, *parameters)
    # Neither holds in graphs: Dynamo passes over the cache of `_has_slope_above_at_0`, and cannot trace what is in it.
    can_move = name in _KEEP_X_ALONE and (is_plain(x) or is_on_gpu(x)) and takes_hooks()
    moved_up = _SAVED_MOVED_UP.get(x.dtype) if can_move else None
    if moved_up is not None and _has_slope_above_at_0(name, *parameters):
        with moved_up:
            return in_torch(x, *parameters)
    kinks = kinks_of(name, *parameters)

    def sloped(vector: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the vector, a cotangent, times the slopes."""
        result = derivative(vector, x, *parameters)
        for place, slope in kinks:
            # The slopes 0 and 1 take no product, and 0 times infinity would be NaN.
            there = slope * vector if slope not in (0.0, 1.0) else vector if slope else 0.0
            result = torch.where(x == place, there, result)
        return result

    return _bent(lambda x: in_torch(x, *parameters), sloped, x)


def _spelled_out(
    in_torch: Callable[..., torch.Tensor], kinks: Sequence[Kink], x: torch.Tensor, *parameters: float
) -> torch.Tensor:
    """Compute what `bend` does without a Function, whose ``jvp`` torch does not differentiate a second time."""
    value = in_torch(x, *parameters)
    # At a kink stands a line through it: its value is the same there, and so is its slope to every transformation.
    for place, slope in kinks:
        there = in_torch(torch.full_like(x, place), *parameters)
        value = torch.where(x == place, there + slope * (x - place), value)
    return value


class _Bent(torch.autograd.Function):
    """The function of `bend` in reverse mode; what forward mode and torch.func ask for is spelled out there."""

    @staticmethod
    def forward(in_torch: Callable[..., torch.Tensor], sloped: Any, x: torch.Tensor) -> torch.Tensor:
        return in_torch(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, ctx.sloped, x = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, None, ctx.sloped(cotangent, *ctx.saved_tensors)


_bent: Callable[..., torch.Tensor] = differentiable(_Bent)


class _BentByWeight(torch.autograd.Function):
    generate_vmap_rule = True
    tells_inactive = True

    @staticmethod
    def forward(in_torch: Callable[..., torch.Tensor], x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return in_torch(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if cotangent is None:
            return None, None, None
        x, weight = ctx.saved_tensors
        _, of_x, of_weight = ctx.needs_input_grad
        return (
            None,
            _slope_at(x, weight) * cotangent if of_x else None,
            torch.where(x < 0, x * cotangent, 0.0).sum_to_size(aligned(weight, x).shape).reshape(weight.shape)
            if of_weight
            else None,
        )

    @staticmethod
    def jvp(ctx: Any, _in_torch: None, of_x: torch.Tensor | None, of_weight: torch.Tensor | None) -> torch.Tensor:
        x, weight = ctx.saved_tensors
        moved = torch.zeros_like(x) if of_x is None else _slope_at(x, weight) * of_x
        return moved if of_weight is None else moved + torch.where(x < 0, x * aligned(of_weight, x), 0.0)


bend_by_weight: Callable[..., torch.Tensor] = differentiable(_BentByWeight)
"""`bend` for a slope that is a tensor: that of the values below 0, which broadcasts against x."""


def _slope_at(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the slope at each element: at 0 the number nearest to 0 between the slopes of both sides, weight and 1."""
    below = aligned(weight, x)
    return torch.where(x < 0, below, torch.where(x == 0, below.clamp(0.0, 1.0), 1.0))


def aligned(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the weight of each channel along axis 1 of x; one weight for all has no axes."""
    return weight.reshape(()) if weight.numel() == 1 else weight.reshape(1, -1, *[1] * (x.dim() - 2))
