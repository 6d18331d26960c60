"""The ops and their derivatives straight from the definition, in NumPy: what `by_definition` expects of compositions.

One scalar after the other, with dense Jacobians and the chain rule by hand. Nothing of the package is used here.

An operand is active if it depends on an input that is differentiated. A selection has the set C of the operands that
become the value somewhere in every neighbourhood: its members get 1/|C| each, or 0 if one of them is inactive. A kink
has the slope between the one-sided slopes that is nearest to 0.

Frameworks round, and whether there is a tie can depend on how. So each value knows which of its elements are exact, and
what would compare two numbers that are close and not exact raises `UndecidedError`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Shape: TypeAlias = tuple[int, ...]

DTYPES = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


class UndecidedError(Exception):
    """The derivative is not told: whether there is a tie depends on rounding, a kink is near, a number is too large."""


@dataclass(frozen=True)
class Value:
    """A value and its derivative with respect to the active inputs."""

    value: Array
    jacobian: Array
    """A row for each element of ``value``, a column for each element of an active input."""
    magnitude: Array
    """The same with the absolute values of all factors, to which errors of rounding are relative."""
    active: bool
    exact: Array
    """Which elements no rounding can change."""
    tied: int = 0
    """How many elements of it are on a tie or a kink."""


def inputs_of(points: Sequence[Array], active: Sequence[bool]) -> list[Value]:
    """The inputs of a composition, at these points."""
    width = sum(point.size for point, is_active in zip(points, active, strict=True) if is_active)
    values, start = [], 0
    for point, is_active in zip(points, active, strict=True):
        jacobian = np.zeros((point.size, width))
        if is_active:
            jacobian[:, start : start + point.size] = np.eye(point.size)
            start += point.size
        values.append(Value(point, jacobian, jacobian, is_active, np.ones(point.shape, bool)))
    return values


def constant(value: Array | float, beside: Value) -> Value:
    value = np.asarray(value, np.float64)
    jacobian = np.zeros((value.size, beside.jacobian.shape[1]))
    return Value(value, jacobian, jacobian, False, np.ones(value.shape, bool))


# Scalars.


@dataclass(frozen=True)
class Scalar:
    """What an op makes of scalars: the value, the partial derivatives, whether it may be rounded, or be on a tie."""

    value: float
    partials: tuple[float, ...]
    is_exact: bool = True
    is_tied: bool = False


@dataclass(frozen=True)
class Point:
    """The operands of an elementwise op at one element: their values, which are active, which are exact."""

    values: tuple[float, ...]
    active: tuple[bool, ...]
    exact: tuple[bool, ...]
    closeness: float
    """How near numbers that may be rounded have to be to count as tied, relative to their size."""

    def decide(self, first: int, other: float, is_exact: bool = True) -> None:
        """Raise if it depends on rounding whether the operand ``first`` ties with ``other``."""
        is_certain = self.exact[first] and is_exact
        if not is_certain and not abs(self.values[first] - other) > self.closeness * (1 + abs(other)):
            raise UndecidedError


@functools.lru_cache(maxsize=4096)
def tied_for(fold: tuple[str, ...], values: tuple[float, ...]) -> frozenset[int]:
    """C: which of the operands of a fold of maxima and minima are its value somewhere in every neighbourhood.

    Move the operands by infinitesimal amounts, in every order: the one that is the value then is in C.

    >>> tied_for(("max", "min"), (2.0, 2.0, 5.0))
    frozenset({0, 1})
    >>> tied_for(("max", "min"), (4.0, 2.0, 2.0))
    frozenset({2})
    """
    unknown = frozenset(i for i, value in enumerate(values) if math.isnan(value))
    if unknown and (fold[0] in ("max", "min") or len(unknown) == len(values)):
        return unknown
    candidates = [i for i in range(len(values)) if i not in unknown]  # fmax and fmin skip NaN
    found = set()
    for ranks in itertools.permutations(candidates):
        best = candidates[0]
        for i in candidates[1:]:
            better = max if fold[i - 1] in ("max", "fmax") else min
            best = better(best, i, key=lambda k: (values[k], ranks.index(k)))
        found.add(best)
    return frozenset(found)


def shares(members: Sequence[int], are_active: bool, ties: str) -> dict[int, float]:
    """What each of the members of C gets, by the convention ``ties``. Only min_norm asks whether all are active."""
    first, *others = members
    if ties == "min_norm" and not are_active:
        return {}
    chosen = {"inclusive": [first], "exclusive": others or [first]}.get(ties, members)
    return dict.fromkeys(chosen, 1 / len(chosen))


def select(fold: tuple[str, ...], point: Point, ties: str = "min_norm") -> Scalar:
    """A fold of maxima and minima, such as ``("max", "min")`` for clamp."""
    for i, j in itertools.permutations(range(len(point.values)), 2):
        point.decide(i, point.values[j], point.exact[j])
    members = sorted(tied_for(fold, point.values))
    chosen = members[0]
    share_of = shares(members, all(point.active[i] for i in members), ties)
    partials = tuple(share_of.get(i, 0.0) for i in range(len(point.values)))
    return Scalar(point.values[chosen], partials, point.exact[chosen], len(members) > 1)


@dataclass(frozen=True)
class Kinked:
    """A function of one variable with parameters, by its value and its slope to the left or right of a point."""

    value: Callable[..., float]
    slope: Callable[..., float]
    """Of x, the side (-1 or 1) and the parameters."""
    kinks: Callable[..., Iterable[float]] = lambda *parameters: (0.0,)
    rounds: Callable[..., bool] = lambda x, *parameters: False
    """Whether the arithmetic of a framework may round the value, where x is exact."""
    of_parameters: Callable[..., tuple[float, ...]] = lambda x, *parameters: (0.0,) * len(parameters)
    """The derivatives with respect to the parameters."""

    def __call__(self, point: Point) -> Scalar:
        x, *parameters = point.values
        if not all(map(math.isfinite, point.values)):  # 0 times infinity is no matter of ties
            raise UndecidedError
        for kink in self.kinks(*parameters):
            point.decide(0, kink, all(point.exact[1:]))
        left, right = (self.slope(x, side, *parameters) for side in (-1, 1))
        nearest = max(min(left, right), min(max(left, right), 0.0))
        of_parameters = self.of_parameters(x, *parameters)
        is_exact = all(point.exact) and not self.rounds(x, *parameters)
        return Scalar(self.value(x, *parameters), (nearest, *of_parameters), is_exact, left != right)


def beyond(x: float, kink: float, side: int) -> bool:
    """Whether the points next to x, on that side of it, are to the right of the kink."""
    return x > kink or (x == kink and side > 0)


def _softshrink(point: Point) -> Scalar:
    """Its flat part comes near also where it has no width, if the width may grow."""
    scalar = _SOFTSHRINK(point)
    is_flat = point.active[1] and abs(point.values[0]) == point.values[1]
    return dataclasses.replace(scalar, partials=(0.0, 0.0), is_tied=True) if is_flat else scalar


_SCALE, _ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717  # arXiv 1706.02515
_SOFTSHRINK = Kinked(
    lambda x, b: x - b if x > b else x + b if x < -b else 0.0,
    lambda x, side, b: 1.0 if beyond(x, b, side) or not beyond(x, -b, side) else 0.0,
    kinks=lambda b: (-b, b),
    of_parameters=lambda x, b: (-1.0 if x > b else 1.0 if x < -b else 0.0,),
)
_LEAKY_RELU = Kinked(
    lambda x, s: x if x > 0 else s * x,
    lambda x, side, s: 1.0 if beyond(x, 0, side) else s,
    of_parameters=lambda x, s: (min(x, 0.0),),
)

KINKED: Mapping[str, Callable[[Point], Scalar]] = {
    "abs": Kinked(abs, lambda x, side: 1.0 if beyond(x, 0, side) else -1.0),
    "leaky_relu": _LEAKY_RELU,
    "prelu": _LEAKY_RELU,
    "elu": Kinked(
        lambda x, a: x if x > 0 else a * math.expm1(x),
        lambda x, side, a: 1.0 if beyond(x, 0, side) else a * math.exp(x),
        rounds=lambda x, a: x < 0,
        of_parameters=lambda x, a: (math.expm1(min(x, 0.0)),),
    ),
    "selu": Kinked(
        lambda x: _SCALE * (x if x > 0 else _ALPHA * math.expm1(x)),
        lambda x, side: _SCALE * (1.0 if beyond(x, 0, side) else _ALPHA * math.exp(x)),
        rounds=lambda x: x != 0,
    ),
    "celu": Kinked(
        lambda x, a: x if x > 0 else a * math.expm1(x / a),
        lambda x, side, a: 1.0 if beyond(x, 0, side) else math.exp(x / a),
        rounds=lambda x, a: x < 0,
    ),
    "hardsigmoid": Kinked(
        lambda x: min(max(x + 3, 0.0), 6.0) / 6,
        lambda x, side: 1 / 6 if beyond(x, -3, side) and not beyond(x, 3, side) else 0.0,
        kinks=lambda: (-3.0, 3.0),
        rounds=lambda x: x > -3,
    ),
    "hardswish": Kinked(
        lambda x: x * min(max(x + 3, 0.0), 6.0) / 6,
        lambda x, side: 1.0 if beyond(x, 3, side) else (2 * x + 3) / 6 if beyond(x, -3, side) else 0.0,
        kinks=lambda: (-3.0, 3.0),
        rounds=lambda x: x > -3 and x != 0,
    ),
    "softshrink": _softshrink,
    # These two jump, where the slope is that of the branch which the value takes.
    "hardshrink": Kinked(
        lambda x, b: 0.0 if abs(x) <= b else x,
        lambda x, side, b: 0.0 if abs(x) <= b and b > 0 else 1.0,
        kinks=lambda b: (-b, b),
    ),
    "threshold": Kinked(
        lambda x, t, v: v if x <= t else x,
        lambda x, side, t, v: 0.0 if x <= t else 1.0,
        kinks=lambda t, v: (t,),
        of_parameters=lambda x, t, v: (0.0, 1.0 if x <= t else 0.0),
    ),
}

FOLDS = {
    "clamp": ("max", "min"),
    "clamp_min": ("max",),
    "clamp_max": ("min",),
    "maximum": ("max",),
    "minimum": ("min",),
    "relu": ("max",),
    "relu6": ("max", "min"),
    "hardtanh": ("max", "min"),
    "fmax": ("fmax",),
    "fmin": ("fmin",),
}
_IMPLICIT = {"relu": (0.0,), "relu6": (0.0, 6.0)}

SMOOTH: Mapping[str, Callable[[float, float], tuple[float, tuple[float, float]]]] = {
    "add": lambda x, y: (x + y, (1.0, 1.0)),
    "subtract": lambda x, y: (x - y, (1.0, -1.0)),
    "multiply": lambda x, y: (x * y, (y, x)),
}


def _smooth(op: str, point: Point) -> Scalar:
    value, partials = SMOOTH[op](*point.values)
    return Scalar(value, partials, all(point.exact))


# Arrays.

REDUCTIONS: Mapping[str, Callable[..., float]] = {
    **{"amax": max, "amin": min},
    **{"max_with_indices": max, "min_with_indices": min},
}
POOLS = {"max_pool1d": 1, "max_pool2d": 2, "max_pool3d": 3}
REARRANGED: Mapping[str, Callable[[Array], Array]] = {
    "transpose": lambda x: x.T,
    "flip": lambda x: np.flip(x, -1),
    "halve": lambda x: x[..., : max(1, x.shape[-1] // 2)],
}


def evaluate(op: str, operands: Sequence[Value | None], static: Mapping[str, Any], dtype: str) -> Value:
    """What ``op`` makes of its operands, of which None is a bound that is absent.

    Raises:
      UndecidedError: where it cannot be said.
    """
    x, *others = given = [operand for operand in operands if operand is not None]
    ties, static = static.get("ties", "min_norm"), {name: v for name, v in static.items() if name != "ties"}
    if op == "stop_gradient":
        return dataclasses.replace(x, jacobian=0 * x.jacobian, magnitude=0 * x.jacobian, active=False, tied=0)
    if op in REARRANGED:
        return _rearranged(x, REARRANGED[op])
    if op in REDUCTIONS:
        return _extrema(*_reduced(x.value.shape, **static), REDUCTIONS[op], given, ties, dtype)
    if op in POOLS:
        return _extrema(*_pooled(x.value.shape, POOLS[op], **static), max, given, ties, dtype)
    if op == "scan":
        return _scanned(x, others[0], static["op"], dtype)
    if op == "prelu":  # a vector of weights lies along axis 1
        weight = others[0].value
        channels = (1, -1, *(1,) * (x.value.ndim - 2)) if weight.size > 1 else ()
        given = [x, _rearranged(others[0], lambda w: w.reshape(channels))]
    if op in FOLDS:
        given += [constant(number, x) for number in _IMPLICIT.get(op, ())]
        bounds = operands[1:] if op == "clamp" else given[1:]
        fold = tuple(step for step, bound in zip(FOLDS[op], bounds, strict=True) if bound is not None)
        return _elementwise(functools.partial(select, fold, ties=ties), given, dtype)
    return _elementwise(KINKED[op] if op in KINKED else functools.partial(_smooth, op), given, dtype)


def _closeness(dtype: str) -> float:
    return 1e-3 if dtype in ("float32", "float64") else 0.1


def _elementwise(function: Callable[[Point], Scalar], operands: Sequence[Value], dtype: str) -> Value:
    shape = np.broadcast_shapes(*(operand.value.shape for operand in operands))
    active = tuple(operand.active for operand in operands)
    values, exact = (
        zip(*(np.broadcast_to(array, shape).ravel().tolist() for array in arrays), strict=True)
        for arrays in ([operand.value for operand in operands], [operand.exact for operand in operands])
    )
    found = [function(Point(v, active, e, _closeness(dtype))) for v, e in zip(values, exact, strict=True)]
    partials = []
    for k, operand in enumerate(operands):
        places = np.broadcast_to(np.arange(operand.value.size).reshape(operand.value.shape), shape).ravel()
        partial = np.zeros((len(found), operand.value.size))
        partial[np.arange(len(found)), places] = [scalar.partials[k] for scalar in found]
        partials.append(partial)
    value = np.reshape([scalar.value for scalar in found], shape)
    is_exact = np.reshape([scalar.is_exact for scalar in found], shape)
    return _chained(value, is_exact, partials, operands, sum(scalar.is_tied for scalar in found), dtype)


def _chained(
    value: Array, exact: Array, partials: Sequence[Array], operands: Sequence[Value], tied: int, dtype: str
) -> Value:
    """The chain rule."""
    with np.errstate(over="ignore"):
        representable = (value == value.astype(DTYPES[dtype]).astype(np.float64)) | np.isnan(value)
    pairs = [(partial, operand) for partial, operand in zip(partials, operands, strict=True) if operand.active]
    if not all(np.isfinite(partial).all() for partial in partials):
        raise UndecidedError
    none = np.zeros((value.size, operands[0].jacobian.shape[1]))
    jacobian = sum((partial @ operand.jacobian for partial, operand in pairs), none)
    magnitude = sum((np.abs(partial) @ operand.magnitude for partial, operand in pairs), none)
    if np.abs(value[np.isfinite(value)]).max(initial=0) > 100 or not magnitude.max(initial=0) < 100:
        raise UndecidedError
    return Value(value, jacobian, magnitude, any(o.active for o in operands), exact & representable, tied)


def _rearranged(x: Value, rearrange: Callable[[Array], Array]) -> Value:
    flat = rearrange(np.arange(x.value.size).reshape(x.value.shape)).ravel()
    return Value(rearrange(x.value), x.jacobian[flat], x.magnitude[flat], x.active, rearrange(x.exact))


def _extrema(
    groups: Sequence[Sequence[int]],
    shape: Shape,
    best: Callable[..., float],
    given: Sequence[Value],
    ties: str,
    dtype: str,
) -> Value:
    """The extremum of each group of elements of the first value, with the number ``initial`` if there is a second."""
    value, exact, tied = np.zeros(len(groups)), np.zeros(len(groups), bool), 0
    partials = [np.zeros((len(groups), operand.value.size)) for operand in given]
    for out, group in enumerate(groups):
        members = [(0, i) for i in group] + [(1, 0) for _ in given[1:]]
        if not members:  # a window of nothing but padding
            raise UndecidedError
        values = [float(given[k].value.flat[i]) for k, i in members]
        certain = [bool(given[k].exact.flat[i]) for k, i in members]
        extreme = math.nan if any(map(math.isnan, values)) else best(values)
        chosen = [m for m, v in enumerate(values) if v == extreme or (math.isnan(v) and math.isnan(extreme))]
        margin = _closeness(dtype)
        near = [m for m, v in enumerate(values) if v == extreme or abs(v - extreme) < margin * (1 + abs(v))]
        if len(near) > 1 and not all(certain[m] for m in near):
            raise UndecidedError
        for m, share in shares(chosen, all(given[members[m][0]].active for m in chosen), ties).items():
            k, i = members[m]
            partials[k][out, i] = share
        value[out], exact[out] = extreme, all(certain[m] for m in chosen)
        tied += len(chosen) > 1
    return _chained(value.reshape(shape), exact.reshape(shape), partials, given, tied, dtype)


Groups: TypeAlias = tuple[list[list[int]], Shape]
"""The numbers of the elements of which each element of a result is the extremum, and the shape of the result."""


def _reduced(shape: Shape, axis: Any = None, keepdims: bool = False, where: Any = True) -> Groups:
    if axis is None:
        axis = range(len(shape))
    axes = [a % len(shape) for a in ([axis] if isinstance(axis, int) else axis)]
    kept = [a for a in range(len(shape)) if a not in axes]
    places = np.arange(math.prod(shape)).reshape(shape).transpose([*kept, *axes])
    takes_part = np.broadcast_to(where, shape)
    lines = places.reshape(math.prod(shape[a] for a in kept), -1).tolist()
    left = tuple(n if a in kept else 1 for a, n in enumerate(shape) if a in kept or keepdims)
    return [[i for i in line if takes_part.flat[i]] for line in lines], left


def _pooled(
    shape: Shape, dims: int, kernel_size: Shape, stride: int | None, padding: int, dilation: int, ceil_mode: bool
) -> Groups:
    batch, lengths = shape[: len(shape) - dims], shape[len(shape) - dims :]
    along = [
        windows_along(n, k, k if stride is None else stride, padding, dilation, ceil_mode)
        for n, k in zip(lengths, kernel_size, strict=True)
    ]
    places = np.arange(math.prod(shape)).reshape(-1, *lengths)
    groups = [block[np.ix_(*windows)].ravel().tolist() for block in places for windows in itertools.product(*along)]
    return groups, (*batch, *map(len, along))


def windows_along(
    length: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> list[list[int]]:
    """Which elements are in each window along one axis, by the formula in torch's documentation."""
    room = length + 2 * padding - dilation * (kernel - 1) - 1
    count = (math.ceil(room / stride) if ceil_mode else room // stride) + 1
    if ceil_mode and (count - 1) * stride >= length + padding:  # "sliding windows that would start in the right pad"
        count -= 1
    starts = [stride * k - padding for k in range(count)]
    return [[i for i in range(s, s + dilation * kernel, dilation) if 0 <= i < length] for s in starts]


def _scanned(carry: Value, xs: Value, op: str, dtype: str) -> Value:
    """A fold over the first axis. A carry that takes an active value in is active from the start."""
    carry = _rearranged(carry, lambda value: np.broadcast_to(value, xs.value.shape[1:]))
    carry = dataclasses.replace(carry, active=carry.active or xs.active)
    for t in range(len(xs.value)):
        tied = carry.tied
        carry = evaluate(op, [carry, _rearranged(xs, lambda value: value[t])], {}, dtype)  # noqa: B023  # called here
        carry = dataclasses.replace(carry, tied=carry.tied + tied)
    return carry
