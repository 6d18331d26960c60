"""Says by ranges of numbers whether a program has a slope that may be infinite.

Each variable gets a range, from those of the operands. The arguments of the program may be any finite numbers. Say it
is a softmax and the root of a variance::

    m = reduce_max x            the largest of each row of x
    d = sub x m                 at most 0, and 0 somewhere in each row
    e = exp d                   from 0 to 1, and 1 somewhere in each row
    s = reduce_sum e            at least 1
    y = div e s                 the slopes, 1 / s and e / s², are at most 1
    v = reduce_sum (square x)   at least 0
    z = rsqrt (add v 1e-6)      the slope is at most 1e9

So no slope of it is infinite, and a gradient has no NaN by 0 times one. Without ``1e-6`` it may have: at v = 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal, Var, jaxprs_in_params
from jax.extend.core import primitives as p

from jaxclamp._jax_versions import scan_sizes
from jaxclamp._transforms.jaxprs import WITH_BODIES


class View(NamedTuple):
    """An array with its axes in another order, or its largest numbers along some of them.

    Of a of shape (2, 3), ``max(a, axis=1)`` as a row has the order (None, 0), and the ``largest_along`` (1,).
    """

    of: Var
    order: tuple[int | None, ...]
    """For each axis, which one of the array it is; None if it has been added."""
    largest_along: frozenset[int | None] = frozenset()


class Range(NamedTuple):
    """What is known of the numbers of a variable."""

    low: float = -math.inf
    high: float = math.inf
    is_finite: bool = True
    """False if one of the numbers may be infinite or NaN where those that come in are not."""
    moves: bool = True
    """Whether a derivative may depend on it."""
    reached: frozenset[int] = frozenset()
    """Axes along which, taken together, each slice has a number that is ``high``."""
    view: View | None = None
    """Of which array these are the numbers, or the largest ones, if it is known."""

    @property
    def is_one_number(self) -> bool:
        """Whether all elements are the same number, which is known."""
        return self.low == self.high

    def within(self, low: float, high: float) -> Range:
        """Return the range of other numbers, between these two, that come from the same operands."""
        # An end that is NaN, as infinity minus infinity, says nothing.
        return Range(max(-math.inf, low), min(math.inf, high), self.is_finite, self.moves)


def has_slopes_without_bound(jaxpr: Any) -> bool:
    """Return whether a slope in ``jaxpr``, or in a body in it, may be infinite or overflow at moderate numbers."""
    of_constants = dict(zip(jaxpr.constvars, map(_of_constant, jaxpr.consts), strict=True))
    # No derivative depends on integers, such as positions.
    of_inputs = {var: Range(moves=bool(jnp.issubdtype(var.aval.dtype, jnp.inexact))) for var in jaxpr.invars}
    return _evaluated(jaxpr, of_constants | of_inputs)[0]


def _evaluated(jaxpr: Any, ranges: dict[Var, Range]) -> tuple[bool, list[Range]]:
    """Return whether there is such a slope, and the ranges of the results; those of the inputs are in ``ranges``."""

    def of(atom: Any) -> Range:
        return _of_number(atom) if isinstance(atom, Literal) else ranges.get(atom, _CONSTANT)

    without_bound = False
    for eqn in jaxpr.eqns:
        operands = [of(atom) for atom in eqn.invars]
        is_bounded = _is_bounded(eqn, operands)
        inside, results = _of_equation(eqn, operands)
        without_bound |= inside or (any(x.moves for x in operands) and not is_bounded)
        for var, x in zip(eqn.outvars, results, strict=True):
            # Where the slope is infinite, so may the value be: 1 / n at n = 0. That of erf_inv is so at -1 and 1 alone,
            # which random numbers are not.
            is_finite = x.is_finite and (is_bounded or eqn.primitive is p.erf_inv_p)
            ranges[var] = _in_dtype(var.aval.dtype, x._replace(is_finite=is_finite))
    # The variables of a body mean nothing outside of it.
    return without_bound, [of(atom)._replace(view=None) for atom in jaxpr.outvars]


def _length(atom: Any, axis: int) -> float:
    """Return the length of an axis; `jax.export` leaves some open, which may be any."""
    return length if isinstance(length := atom.aval.shape[axis], int) else math.inf


def _in_dtype(dtype: Any, x: Range) -> Range:
    """Return the range of the numbers as the dtype has them: 1 + 1e-9 is 1 in float32."""
    if jnp.issubdtype(dtype, jnp.floating):
        with np.errstate(over="ignore"):  # of float16, say
            low, high = (float(np.float64(end).astype(dtype)) for end in (x.low, x.high))
        return x._replace(low=max(-math.inf, low), high=min(math.inf, high))  # some of 8 bits have NaN for infinities
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return x
    x = x._replace(is_finite=True, moves=False)
    if jnp.issubdtype(dtype, jnp.integer) and not jnp.iinfo(dtype).min <= x.low <= x.high <= jnp.iinfo(dtype).max:
        return x.within(-math.inf, math.inf)  # they wrap around
    return x


def _is_complex(atom: Any) -> bool:
    return bool(jnp.issubdtype(atom.aval.dtype, jnp.complexfloating))


def _of_constant(array: Any) -> Range:
    """Return the range of an array that the function has closed over, such as a mask of minus infinity."""
    can_be_read = not isinstance(array, jax.core.Tracer | jax.Ref) and getattr(array, "is_fully_addressable", True)
    is_finite = not jnp.issubdtype(array.dtype, jnp.inexact) or not can_be_read or np.isfinite(np.asarray(array)).all()
    return Range(is_finite=bool(is_finite), moves=False)


def _of_number(literal: Any) -> Range:
    if np.ndim(literal.val) or literal.aval.dtype == jax.dtypes.float0:
        return _CONSTANT
    if _is_complex(literal):
        return Range(is_finite=bool(np.isfinite(literal.val)), moves=False)
    number = float(literal.val)
    return Range(number, number, math.isfinite(number), moves=False)


def _of_equation(eqn: JaxprEqn, operands: Sequence[Range]) -> tuple[bool, list[Range]]:
    """Return whether the bodies of an equation have such slopes, and the ranges of its results."""
    bodies = list(jaxprs_in_params(eqn.params))
    if not bodies or eqn.primitive.name.startswith("scatter"):  # the body of a scatter adds two numbers, say
        rule = None if any(map(_is_complex, eqn.invars)) else _RULES.get(eqn.primitive.name)
        return False, [rule(eqn, *operands)] if rule else [_made_of(*operands)] * len(eqn.outvars)
    if eqn.primitive is p.scan_p:
        return _of_scan(eqn, bodies[0], operands)
    if eqn.primitive.name == "shard_map":  # a device may have a part without the largest number
        operands = [*map(_of_slices, operands)]
    of_branches = operands[1:] if eqn.primitive is p.cond_p else operands
    if eqn.primitive.name in _RUN_ONCE:
        flags, ranges = zip(*(_of_body(body, of_branches) for body in bodies), strict=True)
        return any(flags), [functools.reduce(_either, results) for results in zip(*ranges, strict=True)]
    of_any = [_of_body(body, [_ANY] * len(body.invars)) for body in bodies]
    return any(without_bound for without_bound, _ in of_any), [_ANY] * len(eqn.outvars)


def _of_body(body: Any, inputs: Sequence[Range]) -> tuple[bool, list[Range]]:
    return _evaluated(body, dict(zip(body.invars, inputs, strict=True)))


def _of_scan(eqn: JaxprEqn, body: Any, operands: Sequence[Range]) -> tuple[bool, list[Range]]:
    constants, carry = scan_sizes(eqn)
    known, first, scanned = operands[:constants], operands[constants : constants + carry], operands[constants + carry :]
    # What a step makes of the carry, the next one reads: any number, and an infinity if one is made.
    carried = [Range(is_finite=x.is_finite) for x in first]
    while True:
        inputs = [*known, *carried, *map(_of_slices, scanned)]
        without_bound, results = _of_body(body, inputs)
        # Behind the carry stand the results that are stacked.
        stays = [x._replace(is_finite=x.is_finite and y.is_finite) for x, y in zip(carried, results, strict=False)]
        if stays == carried:
            return without_bound, [*carried, *map(_of_slices, results[carry:])]
        carried = stays


_RUN_ONCE = (WITH_BODIES | {"custom_jvp_call", "custom_vjp_call"}) - {"scan", "while"}
"""Primitives whose bodies take the operands as inputs, and return the results."""
_ANY = Range(is_finite=False)
"""The range of a variable of which nothing is known."""
_CONSTANT = Range(is_finite=False, moves=False)
"""The range of one of which no more is known than that no derivative depends on it."""


def _made_of(*operands: Range) -> Range:
    """Return the range of a result of which no more is known than its operands."""
    return Range(is_finite=all(x.is_finite for x in operands), moves=any(x.moves for x in operands))


def _of_slices(x: Range) -> Range:
    """Return the range of the numbers of an array, whose axes are others."""
    return x._replace(reached=frozenset(), view=None)


def _either(x: Range, y: Range) -> Range:
    return _made_of(x, y).within(min(x.low, y.low), max(x.high, y.high))


# Which slopes are bounded.


def _is_bounded(eqn: JaxprEqn, operands: Sequence[Range]) -> bool:
    """Return whether the slopes of an equation are finite, and those of a few of its kind together, in its dtype."""
    name = eqn.primitive.name
    if name in _PRODUCTS and any(x.moves and not y.is_finite for x, y in (operands, operands[::-1])):
        return False
    # A divisor that is one number does not move: what counts is the slope by the dividend.
    if name in ("div", "rem") and operands[1].is_one_number and operands[1].low:
        return True
    if name == "integer_pow":
        return bool(eqn.params["y"] >= 0)
    if name not in _WITHOUT_BOUND:
        return True
    slope = _SLOPES.get(name)
    dtype = eqn.outvars[0].aval.dtype  # type: ignore[attr-defined]
    if slope is None or not jnp.issubdtype(dtype, jnp.floating) or not all(x.is_finite for x in operands):
        return False
    try:
        # So the product of two such slopes, one behind the other, does not overflow.
        return slope(*operands) <= math.sqrt(float(jnp.finfo(dtype).max))
    except (OverflowError, ValueError, ZeroDivisionError):
        return False


_PRODUCTS = frozenset(("mul", "div", "dot_general", "conv_general_dilated"))
"""Primitives for which one operand is the slope of the other."""
_WITHOUT_BOUND = frozenset(
    {
        *("pow", "sqrt", "rsqrt", "cbrt", "log", "log1p", "exp", "exp2", "expm1", "sinh", "cosh", "tan", "asin"),
        *("acos", "acosh", "atanh", "atan2", "lgamma", "digamma", "polygamma", "zeta", "igamma", "igammac"),
        *("igamma_grad_a", "regularized_incomplete_beta", "erf_inv", "cumlogsumexp", "cholesky"),
        *("eig", "eigh", "svd", "lu", "qr", "householder_product", "schur", "triangular_solve", "tridiagonal_solve"),
        *("log2", "custom_linear_solve", "div", "rem"),
    }
)
"""Primitives whose slope is infinite, or overflows, at moderate numbers: a root at 0, ``exp`` at 100 in float32, not a
sine."""

_SLOPES: Mapping[str, Callable[..., float]] = {
    "exp": lambda x: math.exp(x.high),
    "exp2": lambda x: 2.0**x.high,
    "expm1": lambda x: math.exp(x.high),
    "log": lambda x: 1 / _positive(x.low),
    "log1p": lambda x: 1 / _positive(1 + x.low),
    "sqrt": lambda x: _positive(x.low) ** -0.5,
    "rsqrt": lambda x: _positive(x.low) ** -1.5,
    # x / y has the slopes 1 / y and x / y², and its remainder 1 and x / y, rounded
    **dict.fromkeys(("div", "rem"), lambda _, y: _positive(y.low) ** -2.0),
    # x ** y has the slopes y x ** y / x and log(x) x ** y
    "pow": lambda x, y: max(_powers(x, y)) * max(1.0, -y.low, y.high) * max(1 / x.low, x.high),
}
"""Maps a primitive of these to a number that none of its slopes exceeds where the operands are in their ranges."""


def _powers(x: Range, y: Range) -> list[float]:
    """Return the powers of the ends, between which all others lie; raise unless all bases are positive."""
    return [_positive(base) ** exponent for base in (x.low, x.high) for exponent in (y.low, y.high)]


def _positive(number: float) -> float:
    if number <= 0:
        raise ValueError
    return number


# The ranges of results.


def _difference(eqn: JaxprEqn, x: Range, y: Range) -> Range:
    """Return the range of x - y: at most 0, and 0 somewhere in each row, if y is the largest number of each row of x.

    Say x is a, of shape (2, 3), and y is ``max(a, axis=1, keepdims=True)``, spread to that shape. The view of y has the
    order (0, None): its axis 0 lies as that of x, and along axis 1 all its numbers are the largest of the row.
    """
    result = _made_of(x, y).within(x.low - y.high, x.high - y.low)
    array, largest = _array(eqn.invars[0], x), y.view
    if largest is None or not largest.largest_along or largest.of is not array.of:
        return result
    along = frozenset(k for k, axis in enumerate(array.order) if axis in largest.largest_along)
    order = largest.order or (None,) * len(array.order)  # a number has to be the largest of all
    lies_alike = all(k in along if axis is None else axis == array.order[k] for k, axis in enumerate(order))
    return result._replace(high=0.0, reached=along) if lies_alike else result


def _array(atom: Any, x: Range) -> View:
    """Return an operand as a view of all numbers of an array: of another one, if it is a transpose, or of itself."""
    if x.view and not x.view.largest_along:
        return x.view
    return View(atom, tuple(range(atom.aval.ndim)))


def _product(eqn: JaxprEqn, x: Range, y: Range) -> Range:
    result = _made_of(x, y)
    if eqn.invars[0] is eqn.invars[1]:
        return result.within(0.0, math.inf)
    # 0 times an infinite end is 0, as of an end that no number reaches; `is_finite` tells where numbers are infinite.
    ends = [0.0 if 0.0 in (a, b) else a * b for a in (x.low, x.high) for b in (y.low, y.high)]
    return result.within(min(ends), max(ends))


def _quotient(eqn: JaxprEqn, x: Range, y: Range) -> Range:
    if y.low <= 0:
        return _made_of(x, y)
    inverse = y.within(1 / y.high, 1 / y.low)
    return _product(eqn, x, inverse) if eqn.invars[0] is not eqn.invars[1] else inverse.within(1.0, 1.0)


def _maximum(eqn: JaxprEqn, x: Range, y: Range) -> Range:
    for operand, rival in ((x, y), (y, x)):
        if rival.high == -math.inf:  # no number is below it
            return operand
    return _made_of(x, y).within(max(x.low, y.low), max(x.high, y.high))


def _minimum(eqn: JaxprEqn, x: Range, y: Range) -> Range:
    return _made_of(x, y).within(min(x.low, y.low), min(x.high, y.high))


def _greater(eqn: JaxprEqn, x: Range, y: Range) -> Range:
    result = _made_of(x, y)
    certainly, possibly = result.is_finite and x.low > y.high, x.high > y.low  # NaN is greater than nothing
    return result.within(float(certainly), float(possibly))


def _any_power(eqn: JaxprEqn, x: Range, y: Range) -> Range:
    result = _made_of(x, y)
    try:
        powers = _powers(x, y)
    except (OverflowError, ValueError):
        return result
    return result.within(min(powers), max(powers))


def _exponential(_: JaxprEqn, x: Range) -> Range:
    return x.within(0.0, math.exp(x.high) if x.high <= _LARGEST_EXPONENT else math.inf)._replace(reached=x.reached)


_LARGEST_EXPONENT = 700.0
"""A number whose exponential float64 still holds: that of 709.8 overflows."""


def _logarithm(_: JaxprEqn, x: Range) -> Range:
    low, high = (
        math.log(end) if 0 < end < math.inf else infinite for end, infinite in ((x.low, -math.inf), (x.high, math.inf))
    )
    return x.within(low, high)


def _added_up(eqn: JaxprEqn, x: Range) -> Range:
    count = math.prod(_length(eqn.invars[0], axis) for axis in eqn.params["axes"])
    if not count:
        return x.within(0.0, 0.0)
    if x.low < 0:
        return _made_of(x)
    # Numbers that are not negative add up to each of them at least: to the largest one, if each sum has it.
    least = x.high if x.reached and x.reached <= set(eqn.params["axes"]) else x.low
    return x.within(least, count * x.high)


def _largest(eqn: JaxprEqn, x: Range) -> Range:
    array, axes = _array(eqn.invars[0], x), eqn.params["axes"]
    remaining = tuple(axis for k, axis in enumerate(array.order) if k not in axes)
    view = View(array.of, remaining, frozenset(array.order[k] for k in axes)) if x.is_finite else None
    return _of_slices(x)._replace(view=view)


def _broadcast(eqn: JaxprEqn, x: Range) -> Range:
    if x.view is None or not x.view.largest_along:
        return _of_slices(x)
    axes = dict(zip(eqn.params["broadcast_dimensions"], x.view.order, strict=True))
    order = tuple(axes.get(k) for k in range(len(eqn.params["shape"])))
    return _of_slices(x)._replace(view=x.view._replace(order=order))


def _transposed(eqn: JaxprEqn, x: Range) -> Range:
    view = x.view or _array(eqn.invars[0], x)
    return _of_slices(x)._replace(view=view._replace(order=tuple(view.order[k] for k in eqn.params["permutation"])))


def _converted(eqn: JaxprEqn, x: Range) -> Range:
    is_rounded = eqn.invars[0].aval.dtype != eqn.params["new_dtype"]  # type: ignore[attr-defined]
    return x._replace(view=None) if is_rounded else x


_RULES: Mapping[str, Callable[..., Range]] = {
    "add": lambda _, x, y: _made_of(x, y).within(x.low + y.low, x.high + y.high),
    "sub": _difference,
    "neg": lambda _, x: x.within(-x.high, -x.low),
    "mul": _product,
    "div": _quotient,
    "max": _maximum,
    "min": _minimum,
    "clamp": lambda eqn, low, x, high: _minimum(eqn, _maximum(eqn, x, low), high),
    "select_n": lambda _, which, *cases: (
        cases[int(which.low)] if which.is_one_number else functools.reduce(_either, cases)
    ),
    "gt": _greater,
    "lt": lambda eqn, x, y: _greater(eqn, y, x),
    "is_finite": lambda _, x: x.within(float(x.is_finite), 1.0),
    "square": lambda _, x: x.within(0.0, math.inf),
    "integer_pow": lambda eqn, x: _made_of(x) if eqn.params["y"] % 2 else x.within(0.0, math.inf),
    "abs": lambda _, x: x.within(max(0.0, x.low), max(-x.low, x.high)),
    "pow": _any_power,
    "exp": _exponential,
    "log": _logarithm,
    "sqrt": lambda _, x: x.within(math.sqrt(max(x.low, 0.0)), math.sqrt(max(x.high, 0.0))),
    "rsqrt": lambda _, x: x.within(0.0, x.low**-0.5 if x.low > 0 else math.inf),
    "reduce_sum": _added_up,
    "reduce_max": _largest,
    "reduce_min": lambda _, x: _of_slices(x),
    "broadcast_in_dim": _broadcast,
    "transpose": _transposed,
    "stop_gradient": lambda _, x: x._replace(moves=False),
    "logistic": lambda _, x: x.within(0.0, 1.0),
    **dict.fromkeys(("tanh", "erf", "sin", "cos", "sign"), lambda _, x: x.within(-1.0, 1.0)),
    # All that is known stays.
    "convert_element_type": _converted,
    **dict.fromkeys(("copy", "sharding_constraint", "pvary", "reshard"), lambda _, x: x),
    # The numbers stay, or some of them.
    **dict.fromkeys(
        ("reshape", "squeeze", "slice", "rev", "dynamic_slice", "tile"),
        lambda _, x, *starts: _of_slices(x),
    ),
    "concatenate": lambda _, *parts: functools.reduce(_either, parts),
    "iota": lambda eqn: Range(0.0, max(0.0, _length(eqn.outvars[0], eqn.params["dimension"]) - 1.0), moves=False),
}
"""Maps the name of a primitive to the range of its result, a function of the equation and of its operands' ranges."""
