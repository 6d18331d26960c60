"""The functions of torch that choose, written with choices that are decided by values and then by tangents.

What is chosen is a piece, a smooth function of the operands, which torch applies to dual tensors::

    maximum(x, y) at x = y = 3, where x moves by 1 and y by 2, is y

so that forward mode gives the one-sided derivative, and reverse mode the gradient of the piece. Each function has the
signature of its namesake in torch, and its values, but for those that jump: ``x > 0`` at 0 is what it is a small step
on.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from interop import native
from interop._bridge.ops import IN_PLACE_OPS, TORCH_OPS
from interop._programs.dual_fast_paths import FASTER
from interop._programs.operators import operators_of, overwriting
from interop._programs.order import (
    holds,
    moves,
    negated,
    order,
    place_of_largest,
    rank,
    value_and_tangent,
)
from interop._programs.recurrent import rnn_relu, rnn_relu_cell
from interop._programs.undecided import warn_on_jump
from interop._programs.windows import Places, elements_of, elements_of_adaptive
from interop._torch.autocast import autocast, in_full_precision
from interop._torch.checkpoint_modes import Block
from interop._torch.forms import NUMPY_NAMES, overwrite
from interop._torch.private_api import without_forward_mode
from interop._transforms.jumps import jump_of
from interop._transforms.min_norm import namesakes
from interop.native._rules.kinked import pieces_that_meet
from interop.native.losses import reduced
from jaxclamp._rules.windows import windows_of

Tensor = torch.Tensor
Operand = torch.Tensor | float
Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)

_RULES: dict[str, Rule] = {}


def _choice(rule: R) -> R:
    _RULES[rule.__name__] = rule
    return rule


class Decided(Block):
    """A block in which the choices of torch's functions are decided by the tangents of their operands."""

    def __torch_function__(
        self, func: Rule, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not torch.compiler.is_compiling():
            self.hold(func)
        if func in BACKWARD and not kwargs.get("create_graph"):  # else the gradients move, and may be chosen from
            with without_forward_mode():
                return func(*args, **kwargs)
        rule, jump = DECIDED.get(func), jump_of(func, kwargs)
        if not (rule or jump) or not any(
            moves(value) and value.numel() for value in _operands(*args, *kwargs.values())
        ):
            return FASTER.get(func, func)(*args, **kwargs)
        if jump:
            warn_on_jump(*jump, args, kwargs)
        if rule is None:
            return FASTER.get(func, func)(*args, **kwargs)
        if kwargs.get("out") is not None:
            raise NotImplementedError(f"{func.__name__}: out= has no derivative; call it without, and copy the result.")
        return rule(*args, **{NUMPY_NAMES.get(name, name): v for name, v in kwargs.items() if name not in _IGNORED})

    def again(self) -> TorchFunctionMode:
        return _Undecided()


def _operands(*values: Any) -> Iterator[Any]:
    for value in values:
        yield from value if isinstance(value, Sequence) else (value,)


class _Undecided(TorchFunctionMode):
    """A block without tangents, in which choices might fall in another way than they did with them."""

    def __torch_function__(
        self, func: Rule, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # A hook that keeps tensors elsewhere brings them back by a conversion, which chooses if it is one to bools.
        if func in DECIDED and (func not in _CONVERSIONS or _is_to_bools(*args[1:], **(kwargs or {}))):
            raise RuntimeError(
                "torch.utils.checkpoint computes again, without tangents, what was decided by tangents; "
                "call the function without a checkpoint in along and interop.grad."
            )
        return func(*args, **(kwargs or {}))


class _SpelledOut(Decided):
    """The block around a function of this package that leaves what torch refuses to torch's function of that name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_function__(
        self, func: Rule, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", None) == self._name:
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def _spelled_out(function: Rule) -> Rule:
    """A function of this package whose choices are calls of others."""

    @functools.wraps(function)
    def seen(*args: Any, **kwargs: Any) -> Any:
        with _SpelledOut(function.__name__):
            return function(*args, **kwargs)

    return seen


BACKWARD = {torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad}
_IGNORED = {"out", "ties"}


# Comparisons.


def _comparison(comparison: Callable[[Any, Any], Any]) -> Rule:
    def compared(input: Operand, other: Operand) -> Tensor:
        return holds(comparison, input, other)

    return compared


_COMPARISONS = {
    "eq": ("__eq__",),
    "ne": ("__ne__", "not_equal"),
    "gt": ("__gt__", "greater"),
    "ge": ("__ge__", "greater_equal"),
    "lt": ("__lt__", "less"),
    "le": ("__le__", "less_equal"),
}
for _name, _aliases in _COMPARISONS.items():
    _RULES |= dict.fromkeys((_name, *_aliases), _comparison(getattr(operator, _name)))


def _is_not_zero(input: Tensor) -> Tensor:
    return holds(operator.ne, input, 0)


_RULES["bool"] = _is_not_zero


def _is_to_bools(*args: Any, **kwargs: Any) -> bool:
    """Whether these arguments of a conversion say that its result has truth values."""
    kinds = [kind.dtype if isinstance(kind, Tensor) else kind for kind in (*args, *kwargs.values())]
    return torch.bool in kinds


def _converted(own: Rule) -> Rule:
    def converted(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return own(_is_not_zero(input) if _is_to_bools(*args, **kwargs) else input, *args, **kwargs)  # type: ignore[no-any-return]

    return converted


_CONVERSIONS = {torch.Tensor.to, torch.Tensor.type, torch.Tensor.type_as}
_RULES |= {name: _converted(getattr(torch.Tensor, name)) for name in ("to", "type", "type_as")}


@_choice
def logical_not(input: Tensor) -> Tensor:
    return ~_is_not_zero(input)


@_choice
def logical_and(input: Tensor, other: Tensor) -> Tensor:
    return _is_not_zero(input) & _is_not_zero(other)


@_choice
def logical_or(input: Tensor, other: Tensor) -> Tensor:
    return _is_not_zero(input) | _is_not_zero(other)


@_choice
def logical_xor(input: Tensor, other: Tensor) -> Tensor:
    return _is_not_zero(input) ^ _is_not_zero(other)


@_choice
def sign(input: Tensor) -> Tensor:
    value, tangent = value_and_tangent(input)
    return torch.sign(torch.where(value == 0, tangent, value))


_RULES["sgn"] = sign


@_choice
def heaviside(input: Tensor, values: Tensor) -> Tensor:
    return torch.where(holds(operator.eq, input, 0), values, holds(operator.gt, input, 0).to(values.dtype))


# Selections. NaN is larger and smaller than anything, but for fmax and fmin.


def _selection(gives_way: Callable[[Any, Any], Any], nan_wins: bool) -> Callable[[Tensor, Operand], Tensor]:
    def selected(input: Tensor, other: Operand) -> Tensor:
        unknown = other if nan_wins else input
        of_other = holds(gives_way, input, other)
        if isinstance(unknown, Tensor) or unknown != unknown:
            of_other = of_other | (unknown != unknown)
        return torch.where(of_other, other, input)

    return selected


maximum, minimum = _selection(operator.lt, nan_wins=True), _selection(operator.gt, nan_wins=True)
_RULES |= {
    "maximum": maximum,
    "minimum": minimum,
    "fmax": _selection(operator.lt, nan_wins=False),
    "fmin": _selection(operator.gt, nan_wins=False),
}


@_choice
def clamp_min(input: Tensor, min: Operand) -> Tensor:
    return maximum(input, min)


@_choice
def clamp_max(input: Tensor, max: Operand) -> Tensor:
    return minimum(input, max)


@_choice
def clamp(input: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    if min is None and max is None:
        return torch.clamp(input, min, max)  # which refuses that
    if isinstance(min, int | float) and isinstance(max, int | float) and min <= max:
        beyond = holds(operator.lt, input, min) | holds(operator.gt, input, max)
        return torch.where(beyond, input.detach().clamp(min, max), input)
    above = input if min is None else maximum(input, min)
    return above if max is None else minimum(above, max)


def _in_form(inplace: bool, name: str, function: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
    return overwrite(name, function, input) if inplace else function(input)


@_choice
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    return _in_form(inplace, "relu_", lambda x: maximum(x, 0.0), input)


@_choice
def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    return _in_form(inplace, "relu6_", lambda x: clamp(x, 0.0, 6.0), input)


@_choice
def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    return _in_form(inplace, "hardtanh_", lambda x: clamp(x, min_val, max_val), input)


@_choice
def abs(input: Tensor) -> Tensor:
    return torch.where(holds(operator.ge, input, 0), input, -input)


# Kinks: torch's own function, but for the piece that is entered there.

_Kinks = Sequence[tuple[float, Callable[[Tensor], Operand], Callable[[Tensor], Operand]]]
"""Places, and the pieces to the left and to the right of each."""


def _at_kinks(own: Callable[[Tensor], Tensor], kinks: _Kinks, x: Tensor) -> Tensor:
    result = own(x)
    value, tangent = value_and_tangent(x)
    for place, left, right in kinks:
        here = (value == place) & (tangent != 0)
        near = torch.where(here, x, place)  # a piece may overflow elsewhere
        with Decided():
            entered = torch.where(tangent > 0, right(near), left(near))
        result = torch.where(here, entered, result)
    return result


def _kinks_of(name: str, *parameters: float) -> _Kinks:
    """The kinks of the op of jaxclamp of that name."""

    def of_torch(piece: Callable[..., Any]) -> Callable[[Tensor], Operand]:
        return lambda x: piece(torch, x, *parameters)

    return [(place, of_torch(left), of_torch(right)) for place, left, right in pieces_that_meet(name, *parameters)]


@_choice
def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    def rising(x: Tensor) -> Tensor:
        return (x + 3) / 6

    kinks: _Kinks = [(-3.0, torch.zeros_like, rising), (3.0, rising, torch.ones_like)]
    return _in_form(inplace, "hardsigmoid_", lambda x: _at_kinks(functional.hardsigmoid, kinks, x), input)


@_choice
def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    kinks = _kinks_of("hardswish")
    return _in_form(inplace, "hardswish_", lambda x: _at_kinks(functional.hardswish, kinks, x), input)


@_choice
def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    def own(x: Tensor) -> Tensor:
        return functional.leaky_relu(x, negative_slope)

    kinks = _kinks_of("leaky_relu", negative_slope)
    return _in_form(inplace, "leaky_relu_", lambda x: _at_kinks(own, kinks, x), input)


@_choice
def rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    if training:
        return functional.rrelu(input, lower, upper, training, inplace)
    return leaky_relu(input, (lower + upper) / 2, inplace)


@_choice
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    kinks = _kinks_of("elu", alpha)
    return _in_form(inplace, "elu_", lambda x: _at_kinks(lambda x: functional.elu(x, alpha), kinks, x), input)


@_choice
def selu(input: Tensor, inplace: bool = False) -> Tensor:
    kinks = _kinks_of("selu")
    return _in_form(inplace, "selu_", lambda x: _at_kinks(functional.selu, kinks, x), input)


@_choice
def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    def own(x: Tensor) -> Tensor:
        return functional.threshold(x, threshold, value)

    kinks = _kinks_of("threshold", threshold, value)
    return _in_form(inplace, "threshold_", lambda x: _at_kinks(own, kinks, x), input)


@_choice
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return _at_kinks(lambda x: functional.softshrink(x, lambd), _kinks_of("softshrink", lambd), input)


@_choice
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return _at_kinks(lambda x: functional.hardshrink(x, lambd), _kinks_of("hardshrink", lambd), input)


@_choice
def logit(input: Tensor, eps: float | None = None) -> Tensor:
    return torch.logit(input if eps is None else clamp(input, eps, 1 - eps))


@_choice
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    input, weight = autocast(input, weight)
    slope = weight.reshape(()) if weight.numel() == 1 else weight.reshape(1, -1, *[1] * (input.dim() - 2))
    kinks: _Kinks = [(0.0, lambda x: slope * x, lambda x: x)]
    return _at_kinks(lambda x: functional.prelu(x, weight), kinks, input)


# Reductions.


def _taken(input: Tensor, dim: int, index: Tensor, keepdim: bool) -> tuple[Tensor, Tensor]:
    """The elements at ``index``, which has one along ``dim``, and their index."""
    values = input.gather(dim, index)
    return (values, index) if keepdim else (values.squeeze(dim), index.squeeze(dim))


def _with_indices(name: str, largest: Callable[..., Any]) -> Rule:
    def along_an_axis(input: Tensor, dim: int, keepdim: bool = False) -> Any:
        return getattr(torch.return_types, name)(
            _taken(input, dim, place_of_largest(largest(value_and_tangent(input)), dim), keepdim)
        )

    return along_an_axis


def _reduction(largest: Callable[..., Any]) -> Rule:
    def reduced(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        axes = (dim,) if isinstance(dim, int) else tuple(dim or range(input.dim()))  # no axes are all axes
        if input.dim() == 0:
            return input.clone()
        axes = tuple(axis % input.dim() for axis in axes)
        flat = input.movedim(axes, tuple(range(-len(axes), 0))).flatten(-len(axes))
        result, _ = _taken(flat, -1, place_of_largest(largest(value_and_tangent(flat)), -1), False)
        for axis in sorted(axes) if keepdim else ():
            result = result.unsqueeze(axis)
        return result

    return reduced


def _index(largest: Callable[..., Any]) -> Rule:
    def place(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is not None:
            index = place_of_largest(largest(value_and_tangent(input)), dim)
            return index if keepdim else index.squeeze(dim)
        index = place_of_largest(largest(value_and_tangent(input.flatten())), 0)
        return index.reshape([1] * input.dim() if keepdim else [])

    return place


def _itself(pair: Any) -> Any:
    return pair


for _extremum, _largest in (("max", _itself), ("min", negated)):
    _RULES |= {
        f"{_extremum}_with_indices": _with_indices(_extremum, _largest),
        f"a{_extremum}": _reduction(_largest),
        f"arg{_extremum}": _index(_largest),
    }


@_choice
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    return torch.return_types.aminmax((_RULES["amin"](input, dim, keepdim), _RULES["amax"](input, dim, keepdim)))


def _norm(own: Rule, default: Any) -> Rule:
    def norm(input: Tensor, p: Any = default, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
        order = kwargs.pop("ord", p)
        if order not in (1, math.inf, -math.inf):
            return own(input, order, dim, keepdim, **kwargs)
        size = abs(input.to(kwargs.get("dtype")))
        return size.sum(dim, keepdim) if order == 1 else _RULES["amax" if order > 0 else "amin"](size, dim, keepdim)

    return norm


_RULES["norm"] = _norm(torch.norm, "fro")
_vector_norm = _norm(torch.linalg.vector_norm, 2)


def _matrix_norm(input: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, **kwargs: Any) -> Tensor:
    if ord not in (1, -1, math.inf, -math.inf):
        own: Tensor = torch.linalg.matrix_norm(input, ord, dim, keepdim, **kwargs)
        return own
    summed, over = dim if ord in (1, -1) else dim[::-1]
    sums = abs(input.to(kwargs.get("dtype"))).sum(summed, keepdim=True)
    result: Tensor = _RULES["amax" if ord > 0 else "amin"](sums, over, True)
    return result if keepdim else result.squeeze(dim)


def _norm_of_either(input: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Tensor:
    axes: Any = (dim,) if isinstance(dim, int) else tuple(range(input.dim()) if dim is None else dim)
    norm: Rule
    if ord is None or len(axes) > 2:
        norm, axes = torch.linalg.norm, dim
    else:
        norm = _matrix_norm if len(axes) == 2 else _vector_norm
    result: Tensor = norm(input, ord, axes, keepdim, **kwargs)
    return result


_plus, _minus = FASTER[torch.add], FASTER[torch.sub]


@_choice
def dist(input: Tensor, other: Tensor, p: float = 2.0) -> Tensor:
    return _vector_norm(_minus(input, other), p)  # type: ignore[no-any-return]


@_choice
def pairwise_distance(input: Tensor, other: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    return _vector_norm(_plus(_minus(input, other), eps), p, -1, keepdim)  # type: ignore[no-any-return]


# Orders.


def _sort(input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Any:
    index = order(value_and_tangent(input), dim, descending)
    return torch.return_types.sort((input.gather(dim, index), index))


def _argsort(input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Tensor:
    return order(value_and_tangent(input), dim, descending)


_RULES |= {"sort": _sort, "argsort": _argsort}


@_choice
def msort(input: Tensor) -> Tensor:
    return input.gather(0, order(value_and_tangent(input), 0))


@_choice
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not input.dim():
        return torch.topk(input, k)
    index = order(value_and_tangent(input), dim, largest).narrow(dim, 0, k)
    return torch.return_types.topk((input.gather(dim, index), index))


@_choice
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if not input.dim():
        return torch.kthvalue(input, k)
    index = order(value_and_tangent(input), dim).narrow(dim, k - 1, 1)
    return torch.return_types.kthvalue(_taken(input, dim, index, keepdim))


def _median(name: str) -> Rule:
    def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is None:
            return median(input.flatten(), 0)[0]
        unknown = torch.isnan(input).sum(dim, keepdim=True)
        length = input.size(dim) if input.dim() else 1
        middle = (length - 1 - unknown).clamp(min=0) // 2
        if name == "median":  # what is NaN in part is NaN, which is sorted to the end
            middle = torch.where(unknown > 0, length - 1, middle)
        index = order(value_and_tangent(input), dim).gather(dim, middle)
        return getattr(torch.return_types, name)(_taken(input, dim, index, keepdim))

    return median


_RULES |= {name: _median(name) for name in ("median", "nanmedian")}


def _cumulative(name: str, largest: Callable[..., Any]) -> Rule:
    def cumulative(input: Tensor, dim: int) -> Any:
        places = rank(largest(value_and_tangent(input)), dim)
        index = torch.cummax(places, dim).indices
        return getattr(torch.return_types, name)((input.gather(dim, index), index))

    return cumulative


_RULES |= {"cummax": _cumulative("cummax", _itself), "cummin": _cumulative("cummin", negated)}


def _scattered(name: str) -> Rule:
    own: Rule = getattr(torch, name)

    def scattered(
        input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
    ) -> Tensor:
        if reduce == "prod":
            raise NotImplementedError(f"{name}: torch takes the derivative of products for 0 in forward mode.")
        if reduce not in ("amax", "amin"):
            return own(input, dim, index, source, reduce, include_self=include_self)  # type: ignore[no-any-return]
        # The rank of each element among all takes its place; that of the result says which element it is.
        every = torch.cat([input.flatten(), source.flatten()])
        pair = value_and_tangent(every)
        sorting = order(pair if reduce == "amax" else negated(pair), 0)
        old, new = sorting.argsort(0).split([input.numel(), source.numel()])
        best = own(
            old.view(input.shape), dim, index, new.view(source.shape), "amax", include_self=include_self
        ).flatten()
        return every[sorting[best]].view(input.shape)

    return scattered


_RULES["index_reduce"] = _scattered("index_reduce")


_scatter_reduce = _scattered("scatter_reduce")


@_choice
def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return _scatter_reduce(input, dim, index, src, reduce, include_self=include_self)  # type: ignore[no-any-return]


# Windows.


def _max_pool(name: str) -> Rule:
    own: Rule = getattr(functional, name)
    dims = int(name[-2])

    def pool(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        window = (kernel_size, stride, padding, dilation, ceil_mode)
        counts = own(input.detach()[:1], *window).shape[-dims:]
        windows = windows_of(name, tuple(input.shape), dims, *window)
        places = elements_of(windows, input.shape[-dims:], counts)
        return _largest_of_windows(input, counts, places, return_indices)

    return pool


def _adaptive_max_pool(name: str) -> Rule:
    own: Rule = getattr(functional, name)
    dims = int(name[-2])

    def pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        counts = own(input.detach()[:1], output_size).shape[-dims:]
        places = elements_of_adaptive(input.shape[-dims:], counts)
        return _largest_of_windows(input, counts, places, return_indices)

    return pool


def _largest_of_windows(
    input: Tensor, counts: Sequence[int], places: Places, return_indices: bool
) -> tuple[Tensor, Tensor] | Tensor:
    flat = input.flatten(-len(counts)).flatten(0, -2)  # torch selects fastest from rows
    elements = torch.from_numpy(places).to(input.device)
    seen = [x.index_select(1, elements.flatten()).unflatten(1, elements.shape) for x in value_and_tangent(flat)]
    place = place_of_largest((seen[0], seen[1]), 1)
    index = elements.expand(len(flat), -1, -1).gather(1, place).squeeze(1)
    shape = (*input.shape[: -len(counts)], *counts)
    result = flat.gather(1, index).reshape(shape)
    return (result, index.reshape(shape)) if return_indices else result


def _fractional_max_pool(name: str) -> Rule:
    own: Rule = getattr(functional, name)
    dims = int(name[-2])

    def pool(
        input: Tensor, kernel_size: Any, output_size: Any = None, *, return_indices: bool = False, **kwargs: Any
    ) -> Any:
        # The windows are random, and torch alone knows them: it is shown the rank of each element.
        flat = input.flatten(-dims)
        places = rank(value_and_tangent(flat), -1).double().reshape(input.shape)
        if (samples := kwargs.get("_random_samples")) is not None:
            kwargs["_random_samples"] = samples.double()
        index = own(places, kernel_size, output_size, return_indices=True, **kwargs)[1]
        result = flat.gather(-1, index.flatten(-dims)).reshape(index.shape)
        return (result, index) if return_indices else result

    return pool


for _dims in (1, 2, 3):
    if _dims > 1:
        _RULES[f"fractional_max_pool{_dims}d"] = _fractional_max_pool(f"fractional_max_pool{_dims}d")
    _RULES[f"max_pool{_dims}d"] = _max_pool(f"max_pool{_dims}d")
    _RULES[f"adaptive_max_pool{_dims}d"] = _adaptive_max_pool(f"adaptive_max_pool{_dims}d")


# Functions that choose on the way.


_RULES |= {
    name: _spelled_out(native.NATIVE[name].__wrapped__)  # type: ignore[attr-defined]
    for name in (
        "normalize",
        "margin_ranking_loss",
        "hinge_embedding_loss",
        "triplet_margin_loss",
        "triplet_margin_with_distance_loss",
    )
}


@_choice
@_spelled_out
def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    input, target = in_full_precision(input, target)
    loss = abs(input - target)
    if weight is None:
        return reduced(loss, size_average, reduce, reduction)
    return (
        reduced(loss * weight, None, None, "sum") / weight.sum()
        if reduction == "mean"
        else reduced(loss * weight, size_average, reduce, reduction)
    )


@_choice
def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    if beta == 0:
        return l1_loss(input, target, size_average, reduce, reduction)  # type: ignore[no-any-return]
    return functional.smooth_l1_loss(input, target, size_average, reduce, reduction, beta)


@_choice
@_spelled_out
def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    (scores,), targets = in_full_precision(torch.atleast_2d(input)), target.reshape(-1, 1)
    beyond = maximum(margin - scores.gather(1, targets) + scores, 0.0) ** p
    if weight is not None:
        beyond = beyond * weight[targets]
    loss = beyond.scatter(1, targets, 0.0).mean(1)
    return reduced(loss if input.dim() == 2 else loss.squeeze(0), size_average, reduce, reduction)


@_choice
def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    similar = functional.cosine_embedding_loss(input1, input2, torch.ones_like(target), reduction="none")
    loss = torch.where(target == 1, similar, maximum(1 - similar - margin, 0.0).where(target == -1, 0.0))
    return reduced(loss, size_average, reduce, reduction)


_RULES |= {"rnn_relu": _spelled_out(rnn_relu), "rnn_relu_cell": _spelled_out(rnn_relu_cell)}


# The table.

_RULES |= {"__abs__": abs, "absolute": abs, "clip": clamp}


_RULES |= {
    f"{name}_": overwriting(f"{name}_", rule)
    for name, rule in _RULES.items()
    if not name.endswith("_") and any(hasattr(home, f"{name}_") for home in (torch, torch.Tensor, functional))
}

CHOICES: Mapping[Rule, Rule] = {
    torch.linalg.vector_norm: _vector_norm,
    torch.linalg.matrix_norm: _matrix_norm,
    torch.linalg.norm: _norm_of_either,
    torch.special.logit: logit,
    **{
        op: _RULES[name]
        for ops in (native.NATIVE, TORCH_OPS | IN_PLACE_OPS)
        for name, op in ops.items()
        if name in _RULES
    },
    **{own: rule for _, own, rule in namesakes(_RULES)},
}
"""By a function of torch or of this package, what is called in its place."""

DECIDED: Mapping[Rule, Rule] = {**CHOICES, **dict(operators_of(CHOICES))}
"""The same, and the operators behind these functions."""
