"""Says where functions of torch jump, or turn in a way that no rule decides: a gradient there is that of torch.

For each such function there is one here that takes the same arguments. It returns the operands, each with a mask: where
the result jumps, or has no slope, if that operand moves. ``round(x)`` jumps at x = 0.5, and ``fmod(x, y)`` where x is a
multiple of y, whichever of the two moves::

    _at_halves([0.5, 0.7])         [(x, [True, False])]
    _fmod([4.0, 5.0], 2.0)         [(x, [True, False]), (y, [True, False])]

`interop.ties` counts these elements as suspects. Whole programs warn of them, but for those that they decide.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from interop._torch.forms import NUMPY_NAMES, dtypes_named, functions_named, of_each
from interop._torch.private_api import foreach_named

Tensor = torch.Tensor
Places: TypeAlias = Sequence[tuple[Any, Tensor]]
"""Operands, each with where the result jumps if it moves."""
Jump: TypeAlias = Callable[..., Places]
_PARAMETERS = {
    **NUMPY_NAMES,
    **{"self": "input", "elements": "input", "test_elements": "elements", "boundaries": "elements"},
}
"""Maps a further name of a parameter in torch to that of the functions here."""


def _where(mask_of: Callable[[Tensor], Tensor]) -> Jump:
    """Return the jump of a function whose first argument alone says where it jumps."""
    return lambda input, *_, **__: [(input, mask_of(input))]


def _at_halves(input: Tensor, *, decimals: int = 0, **_: Any) -> Places:
    # In its own dtype, as torch does: which decimals are halves depends on that.
    scaled = input * 10.0**decimals if decimals else input
    return [(input, scaled - scaled.floor() == 0.5)]


# Rounding towards 0, all between -1 and 1 becomes 0: there is no jump at 0.
_at_integers_but_0 = _where(lambda x: (x == x.floor()) & (x != 0))
_at_0 = _where(lambda x: x == 0)


def _fmod(input: Any, other: Any) -> Places:
    at = (torch.fmod(input, other) == 0) & (torch.as_tensor(input) != 0)  # at 0 the remainder passes through 0
    return [(input, at), (other, at)]


def _remainder(input: Any, other: Any) -> Places:
    at = torch.remainder(input, other) == 0
    return [(input, at), (other, at)]


def _quotient(input: Tensor, other: Any, *, rounding_mode: str | None = None, **_: Any) -> Places:
    return [] if rounding_mode is None else (_fmod if rounding_mode == "trunc" else _remainder)(input, other)


def _conversion(input: Tensor, *args: Any, **kwargs: Any) -> Places:
    """Handle conversions, which jump if they are to integers; those to truth values are decided as comparisons."""
    dtypes = dtypes_named(*args, **kwargs)
    is_to_integers = not all(d.is_floating_point or d.is_complex or d is torch.bool for d in dtypes)
    return _at_integers_but_0(input) if is_to_integers else []


def _written(values: Any, dtype: torch.dtype) -> Places:
    """Handle values that are written to a tensor of that dtype: they jump if it holds integers or truth values."""
    if dtype.is_floating_point or dtype.is_complex or not isinstance(values, Tensor):
        return []
    return _at_0(values) if dtype is torch.bool else _at_integers_but_0(values)


def _copysign(input: Tensor, other: Any) -> Places:
    # |input| turns at 0, and the sign of the second operand jumps there.
    return [(input, input == 0), (other, torch.as_tensor(other) == 0)]


def _atan2(input: Tensor, other: Tensor, *, is_decided: bool = False) -> Places:
    # The angle jumps by 2 pi where y passes 0 at x < 0; at the origin it has no slope in any direction.
    is_origin = (input == 0) & (other == 0)
    return [(input, is_origin if is_decided else (input == 0) & (other <= 0)), (other, is_origin)]


def _isclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, *_: Any, **__: Any) -> Places:
    at = (input - other).abs() == atol + rtol * other.abs()
    return [(input, at), (other, at)]


def _quantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
    is_decided: bool = False,
) -> Places:
    """Handle quantiles, which turn where elements tie with one next to the quantile.

    The median of [1, 2, 2] falls with either 2, and does not rise with one of them.
    """
    if dim is None or not input.dim():
        input, dim = input.flatten(), 0
    axis = dim if dim < 0 else dim - input.dim()
    # The result is linear in q between two elements. With n of them, those are at the multiples of 1 / (n - 1).
    ranks = torch.as_tensor(q, device=input.device)[..., None] * ((~input.isnan()).sum(dim).flatten() - 1)
    of_q = (ranks == ranks.round()).any(-1)
    if is_decided:  # but for the probability
        return [(q, of_q)]
    # A quantile lies between two elements. It turns if a third one is equal to either, and may take its place.
    # In rows with NaN `torch.quantile` is NaN, and has no place; elsewhere both functions find the same elements.
    sides = [
        input == torch.nanquantile(input, q, dim, keepdim=True, interpolation=side) for side in ("lower", "higher")
    ]
    equal = torch.stack(sides)
    tied = equal & (equal.sum(axis, keepdim=True) > 1)
    # Sides have an axis of their own, in front, as several q have: it is enough to tie next to one of them.
    of_input = tied.flatten(0, -input.dim() - 1).any(0)
    return [(q, of_q), (input, of_input)]


def _equal(input: Tensor, other: Tensor) -> Places:
    # One number that differs decides: only where all are equal may a move of one change the answer.
    return _where_equal(input, other) if torch.equal(input, other) else []


def _where_equal(input: Tensor, other: Tensor, *_: Any, **__: Any) -> Places:
    return [(operand, input == other) for operand in (input, other)]


def _among(input: Any, elements: Any, *_: Any, **__: Any) -> Places:
    device = (input if isinstance(input, Tensor) else elements).device  # either may be a number
    input, elements = torch.as_tensor(input, device=device), torch.as_tensor(elements, device=device)
    return [(input, torch.isin(input, elements)), (elements, torch.isin(elements, input))]


def _norm(input: Tensor, p: Any = 2, dim: Any = None, *_: Any, is_decided: bool = False, **kwargs: Any) -> Places:
    order = kwargs.get("ord", p)
    if order == "nuc":
        return _matrix_norm(input, order, (-2, -1) if dim is None else dim)
    is_extremum = order in (math.inf, -math.inf)
    if order not in ("fro", None) and order < 1 and not is_extremum:
        return [(input, input == 0)]  # at an element of 0 they jump, or have no slope
    if is_decided:  # those of order 1 and infinity are choices, and those between turn at 0 alone
        return []
    axes = tuple(range(input.dim())) if dim is None else dim
    if order == 1:
        return [(input, (input == 0).any(axes, keepdim=True))]
    if not is_extremum:
        return [(input, (input == 0).all(axes, keepdim=True))]
    sizes = input.abs()
    extremum = (sizes.amax if order > 0 else sizes.amin)(axes, keepdim=True)
    return [(input, (extremum == 0) | ((sizes == extremum).sum(axes, keepdim=True) > 1))]


def _distance(input: Tensor, other: Tensor, p: Any = 2) -> Places:
    return [(operand, at) for _, at in _norm(input - other, p) for operand in (input, other)]


def _mode(input: Tensor, dim: int = -1, *_: Any, **__: Any) -> Places:
    # Of numbers that differ the mode is the smallest. Two that are equal are the mode until one of them moves.
    return [(input, (input.sort(dim).values.diff(dim=dim) == 0).any(dim, keepdim=True))]


def _meet(values: Tensor, with_0: bool = False) -> Tensor:
    """Say for each matrix whether two of its ``values`` are equal, but for rounding."""
    size = values.abs().amax(-1, keepdim=True)
    every = torch.cat([values, 0 * size], -1) if with_0 else values
    gaps = (every.unsqueeze(-1) - every.unsqueeze(-2)).abs()
    # LAPACK finds them up to a few units in the last place of the largest.
    close = gaps <= 8 * torch.finfo(values.dtype).eps * size.unsqueeze(-1)
    return (close.sum((-2, -1)) > every.size(-1))[..., None, None]  # each is close to itself


_singular = _where(lambda x: _meet(torch.linalg.svdvals(x), with_0=True))
"""Singular values have no slope where two are equal, and turn at 0."""


def _matrix_norm(
    input: Tensor, ord: Any = "fro", dim: Any = (-2, -1), *_: Any, is_decided: bool = False, **__: Any
) -> Places:
    if ord in (2, -2, "nuc"):
        return _singular(input.movedim(dim, (-2, -1)))
    return _norm(input, ord, dim, is_decided=is_decided) if ord == "fro" else []


def _norm_of_either(
    input: Tensor, ord: Any = None, dim: Any = None, *_: Any, is_decided: bool = False, **__: Any
) -> Places:
    axes = tuple(range(input.dim())) if dim is None else dim
    if ord is None or isinstance(axes, int) or len(axes) != 2:
        return _norm(input, 2 if ord is None else ord, dim, is_decided=is_decided)
    return _matrix_norm(input, ord, axes, is_decided=is_decided)


def _renorm(input: Tensor, p: float, dim: int, maxnorm: float, *, is_decided: bool = False) -> Places:
    if is_decided:
        return []
    # Slices that are longer are scaled down: there the norm turns.
    axes_of_slice = [axis for axis in range(input.dim()) if axis != dim % input.dim()]
    return [(input, torch.linalg.vector_norm(input, p, axes_of_slice, keepdim=True) == maxnorm)]


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    *_: Any,
    **__: Any,
) -> Places:
    return [] if max_norm is None else _renorm(weight, norm_type, 0, max_norm)


def _grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Places:
    if mode == "bicubic":  # it is smooth
        return []
    sizes = torch.tensor(input.shape[:1:-1], dtype=grid.dtype, device=grid.device)  # a point begins with the last axis
    pixels = (grid + 1) / 2 * (sizes - 1) if align_corners else ((grid + 1) * sizes - 1) / 2
    at = pixels - pixels.floor() == (0.5 if mode == "nearest" else 0)
    if padding_mode != "reflection":  # far away from the image nothing changes
        margin = padding_mode == "zeros"
        at &= (pixels >= -margin) & (pixels <= sizes - 1 + margin)
    return [(grid, at)]


def _fake_quantize(input: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Places:
    code = input * (1 / scale)  # as torch has it
    # Half a code beyond the last ones the result does not jump any more, but its gradient does, from 1 to 0.
    is_in_range = (code + zero_point >= quant_min - 0.5) & (code + zero_point <= quant_max + 0.5)
    return [(input, (code - code.floor() == 0.5) & is_in_range)]


def _fake_quantize_channels(
    input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Places:
    shape = [-1 if i == axis % input.dim() else 1 for i in range(input.dim())]
    return _fake_quantize(input, scale.reshape(shape), zero_point.reshape(shape), quant_min, quant_max)


def _rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any, **__: Any
) -> Places:
    return _at_0(input) if training else []


def _softplus(input: Tensor, beta: float = 1, threshold: float = 20) -> Places:
    # Beyond the threshold it is x, which is less by log(1 + exp(-threshold)) / beta: by default, 2e-9.
    return [(input, input * beta == threshold)] if threshold < 20 else []


def _deviation(input: Tensor, dim: Any = None, *_: Any, is_decided: bool = False, **__: Any) -> Places:
    # Complex numbers are left to torch.
    if is_decided and not input.is_complex():
        return []
    # A bool is no axis, but ``unbiased``, as in ``torch.std(x, False)``.
    axes = tuple(range(input.dim())) if dim is None or isinstance(dim, bool) else dim
    # Where all elements are equal the deviation is the root of 0.
    return [(input, input.amax(axes, keepdim=True) == input.amin(axes, keepdim=True))]


_JUMPS: Mapping[str, Jump] = {
    **dict.fromkeys(("floor", "ceil"), _where(lambda x: x == x.floor())),
    **dict.fromkeys(("trunc", "fix", "frac", "int", "long", "short", "byte", "char", "__int__"), _at_integers_but_0),
    **dict.fromkeys(("round", "special_round"), _at_halves),
    **dict.fromkeys(("to", "_to_copy", "type", "type_as"), _conversion),
    **dict.fromkeys(("signbit", "angle"), _at_0),
    # These ask whether numbers are 0.
    **dict.fromkeys(("__bool__", "is_nonzero", "any", "all", "nonzero", "argwhere", "count_nonzero"), _at_0),
    "where": lambda condition, *branches, **named: [] if branches or named else _at_0(condition),
    "copy_": lambda input, src, *_, **__: _written(src, input.dtype),
    "__setitem__": lambda input, index, values: _written(values, input.dtype),
    "grid_sample": _grid_sample,
    "fake_quantize_per_tensor_affine": _fake_quantize,
    "fake_quantize_per_channel_affine": _fake_quantize_channels,
    "rrelu": _rrelu,
    "softplus": _softplus,
    "renorm": _renorm,
    "fmod": _fmod,
    **dict.fromkeys(("remainder", "__mod__", "floor_divide", "__floordiv__", "__ifloordiv__"), _remainder),
    **dict.fromkeys(("__rmod__", "__rfloordiv__"), lambda input, other: _remainder(other, input)),
    **dict.fromkeys(("div", "divide"), _quotient),
    "copysign": _copysign,
    **dict.fromkeys(("atan2", "arctan2"), _atan2),
    # At powers of 2 the exponent jumps, and the mantissa falls from 1 to 1/2.
    "frexp": _where(lambda x: torch.frexp(x).mantissa.abs() == 0.5),
    "nextafter": _where_equal,
    "l1_loss": lambda input, target, *_, **__: _where_equal(input, target),  # whose second operand is no ``other``
    "equal": _equal,
    "isclose": _isclose,
    **dict.fromkeys(("quantile", "nanquantile"), _quantile),
    "mode": _mode,
    **dict.fromkeys(("svd", "svdvals", "linalg_svdvals", "_linalg_svd"), _singular),
    **dict.fromkeys(
        ("eigh", "eigvalsh", "linalg_eigvalsh", "_linalg_eigh"), _where(lambda x: _meet(torch.linalg.eigvalsh(x)))
    ),
    **dict.fromkeys(
        ("eig", "eigvals", "linalg_eig", "linalg_eigvals"), _where(lambda x: _meet(torch.linalg.eigvals(x)))
    ),
    **dict.fromkeys(("matrix_norm", "linalg_matrix_norm"), _matrix_norm),
    **dict.fromkeys(("isin", "bucketize"), _among),
    "searchsorted": lambda sorted_sequence, input, *_, **__: _among(input, sorted_sequence),
    **dict.fromkeys(("std", "std_mean"), _deviation),
    **dict.fromkeys(("norm", "vector_norm", "linalg_vector_norm"), _norm),
    "dist": _distance,
}


def _functions() -> Iterator[tuple[Any, tuple[str, Jump]]]:
    for name, jump in _JUMPS.items():
        for in_torch in functions_named(name):
            yield in_torch, (name, jump)
        for each in (*foreach_named(name), *foreach_named(f"{name}_")):
            yield each, (f"_foreach_{name}", _of_each(jump))


@functools.cache  # so that it is the same function each time, by which `undecided` knows it
def _of_each(jump: Jump) -> Jump:
    return lambda *args, **kwargs: [place for places in of_each(jump, *args, **kwargs) for place in places]


_ALL: Mapping[Any, tuple[str, Jump]] = {
    **dict(_functions()),
    torch.linalg.norm: ("norm", _norm_of_either),
    functional.embedding: ("embedding", _embedding),  # `torch.embedding` has other parameters, and no ``max_norm``
}


def undecided(jump: Jump) -> Jump | None:
    """Return where the function jumps though its choices are decided along a direction; None if all are.

    Of norms, for example, those of an order below 1 remain, and of quantiles the probability.
    """
    in_part = _norm, _of_each(_norm), _matrix_norm, _norm_of_either, _renorm, _deviation, _rrelu, _atan2, _quantile
    return functools.partial(jump, is_decided=True) if jump in in_part else None


def places_of(jump: Jump, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Places:
    """Return the operands of a call with these arguments, whichever names torch takes, each with where it jumps."""
    return jump(*args, **{_PARAMETERS.get(name, name): value for name, value in kwargs.items()})


def jump_of(func: Callable[..., Any], kwargs: Mapping[str, Any]) -> tuple[str, Jump] | None:
    """Return the name of a function and where it jumps, if it does with these keywords: a division may round."""
    jump = _ALL.get(func)
    # `_quotient` would find no places for a division that does not round. It is so frequent that this is faster.
    return None if jump is None or (jump[1] is _quotient and "rounding_mode" not in kwargs) else jump
