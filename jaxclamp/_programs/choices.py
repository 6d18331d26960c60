"""Decides the choices of a program along a direction: each `Choice` looks at its operands and at how they move.

A program makes choices: which of two numbers is larger, which comes first, whether ``x > 0``. At a tie the values do
not settle a choice. A small step along a direction does, unless the operands move alike, and then the choice does not
matter to first order. So a choice is decided by comparing first the values, then the tangents. What is decided is a
piece, a smooth function of the operands::

    max(x, y) at x = y = 3, where x moves by 1 and y by 2, is the piece (x, y) -> y

The piece of a choice with a discrete result is a constant. At x = 0, where x moves by -1, ``x >= 0`` is the piece
x -> False, though it holds at 0 itself.

Each function below decides one kind of choice. Its first lines compare, and say where which piece is entered; they are
computed from the point and the direction, and are constants to a derivative. What it returns is the piece.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, Primitive
from jax.extend.core import primitives as p

from jaxclamp._rules.differentiate import DERIVATIVE_SCOPE, VALUE_SCOPE
from jaxclamp._rules.extremum import flattened, highest, is_first_device, lowest, ties_with, ties_with_devices
from jaxclamp._rules.operands import is_floating
from jaxclamp._rules.windows import Windows
from jaxclamp._transforms.jaxprs import equations
from jaxclamp._transforms.recognition import recognized_euclidean
from jaxclamp._transforms.sums import NORM, norm_of_call

Arrays: TypeAlias = Sequence[jax.Array]
Piece: TypeAlias = Callable[..., Any]
"""A function of the operands, in which nothing is left to choose."""
Choice: TypeAlias = Callable[..., Piece]
"""Maps the operands, their tangents and the parameters of the primitive to the piece that is entered."""


def chooses(eqn: JaxprEqn) -> bool:
    """Return whether ``eqn`` chooses among numbers that can move."""
    if eqn.primitive not in CHOICES:
        return False
    # A conversion to another float rounds too, but JAX gives it the slope 1: those to bools and integers alone choose.
    if "new_dtype" in eqn.params and jnp.issubdtype(eqn.params["new_dtype"], jnp.inexact):
        return False
    # These four choose among complex numbers too. The others, as a maximum or a sort, go by JAX's order of these, the
    # real part first, and stay as they are.
    takes_complex = eqn.primitive in (p.abs_p, p.sign_p, p.eq_p, p.ne_p)
    return any(is_floating(atom.aval) or (takes_complex and jnp.iscomplexobj(atom.aval)) for atom in eqn.invars)


def jumps(eqn: JaxprEqn) -> bool:
    """Return whether a result of the choice jumps where it falls another way.

    Bools and integers do, signs, rounded numbers, derivatives, and arrays that are sorted by another.
    """
    return eqn.primitive in _JUMPING or len(eqn.outvars) > 1 or not is_floating(eqn.outvars[0].aval)


def has_jumps(eqn: JaxprEqn) -> bool:
    """Return whether ``eqn``, or an equation in it, is a choice whose result jumps."""
    return any(chooses(inner) and jumps(inner) for inner in equations(eqn))


def decided(eqn: JaxprEqn) -> Callable[..., Any]:
    """Return what ``eqn`` computes, with the derivative of the piece that its choice enters."""
    return entering(eqn, functools.partial(CHOICES[eqn.primitive], **eqn.params), with_jumps=jumps(eqn))


def entering(eqn: JaxprEqn, choice: Choice, *, with_jumps: bool = False) -> Callable[..., Any]:
    """Return what ``eqn`` computes, with the derivative of the piece that ``choice`` enters.

    In forward mode results ``with_jumps`` are those of the piece: once ``x > 0`` has been decided at 0 by how x moves,
    a select takes the branch of that side. All other results keep their bits, which may differ in the sign of a zero.
    """

    def plain(*operands: jax.Array) -> Any:
        results = eqn.primitive.bind(*operands, **eqn.params)
        return tuple(results) if eqn.primitive.multiple_results else results

    return along_direction(plain, str(eqn.primitive), choice, with_jumps=with_jumps)


def along_direction(
    function: Callable[..., Any], name: str, choice: Choice, *, with_jumps: bool = False
) -> Callable[..., Any]:
    """Return the function, under that name, with the derivative of the piece that ``choice`` enters, as `entering`."""
    function.__name__ = f"{name} along a direction"
    with_derivative = jax.custom_jvp(function)

    @with_derivative.defjvp
    def _(primals: Arrays, tangents: Arrays) -> Any:
        point, direction = lax.stop_gradient((primals, tangents))  # the choice itself has no derivative
        with jax.named_scope(DERIVATIVE_SCOPE):
            results, moved = jax.jvp(choice(point, direction), tuple(primals), tuple(tangents))
        with jax.named_scope(VALUE_SCOPE):
            return (results if with_jumps else jax.tree.map(_with_value, results, function(*point))), moved

    return with_derivative


def norm_along_direction(eqn: JaxprEqn) -> Callable[..., jax.Array] | None:
    """Return what ``eqn`` computes, if that is a norm, with the derivative of the piece that it enters.

    At 0, where x moves by v, the piece is linear, with the gradient that the norm has at v: of the 2-norm it is
    x -> v . x / |v|. Where nothing moves either, the gradient is 0.
    """
    if eqn.params.get("name") == NORM:
        name, (count, value) = "norm", norm_of_call(eqn)
    elif len(eqn.outvars) == 1 and (recognized := recognized_euclidean(eqn)):
        name, count, value = recognized.name, len(eqn.invars), functools.partial(recognized.value, "min_norm")
    else:
        return None

    def choice(operands: Arrays, tangents: Arrays) -> Piece:
        def of_elements(*elements: jax.Array) -> jax.Array:
            return value(*elements, *operands[count:])

        norm = value(*operands)
        is_zero = norm == 0  # by the number that a slope is computed of: XLA may round another otherwise
        # An integer, as in hypot(x, 1), does not move: its tangent is of float0, of which no norm can be taken.
        v = [
            jnp.zeros(x.shape, norm.dtype) if moved.dtype == jax.dtypes.float0 else moved
            for x, moved in zip(operands[:count], tangents[:count], strict=True)
        ]

        def piece(*operands: jax.Array) -> jax.Array:
            x = [element.astype(moved.dtype) for element, moved in zip(operands[:count], v, strict=True)]
            # The derivative of the norm at v, along x.
            along = jax.jvp(of_elements, v, x)[1]
            return jnp.where(is_zero, along, value(*operands))

        return piece

    return along_direction(value, name, choice)


# Not ``value + (x - stop_gradient(x))``, which is NaN where x is infinite.
@jax.custom_jvp
def _with_value(x: jax.Array, value: jax.Array) -> jax.Array:
    """Return ``value``, with the derivative of ``x``."""
    return value


_with_value.defjvp(lambda primals, tangents: (_with_value(*primals), tangents[0]))


def _holds(comparison: Callable[..., jax.Array], operands: Arrays, tangents: Arrays) -> jax.Array:
    """Return whether the comparison holds a small step along the tangents.

    At x = y = 3, where x moves by 1 and y by 2, ``x >= y`` holds if ``1 >= 2`` does. The values decide where they
    differ, where the tangents are equal, and where a tangent is NaN, as that of a root at 0. So they do at infinities,
    which do not move.
    """
    (x, y), (dx, dy) = operands, tangents
    moves_apart = (dx != dy) & (dx == dx) & (dy == dy)  # no NaN is among them
    return jnp.where((x == y) & jnp.isfinite(x) & moves_apart, comparison(dx, dy), comparison(x, y))


def _comparison(comparison: Callable[..., jax.Array], operands: Arrays, tangents: Arrays, **_: Any) -> Piece:
    holds = _holds(comparison, operands, tangents)
    return lambda *_: holds


def _equality(comparison: Callable[..., jax.Array], operands: Arrays, tangents: Arrays, **_: Any) -> Piece:
    """Decide ``==`` or ``!=``: if one tangent is NaN, the operands are equal at the point alone.

    In ``x != x``, which is `jax.numpy.isnan`, both may be.
    """
    dx, dy = tangents
    apart = jnp.isnan(dx) != jnp.isnan(dy)
    return _comparison(comparison, operands, [jnp.where(apart, 1, dx), jnp.where(apart, 0, dy)])


def _converted(operands: Arrays, tangents: Arrays, *, new_dtype: Any, **_: Any) -> Piece:
    """Decide a conversion to a bool, which asks whether x is 0, or to an integer, which rounds towards 0.

    At x = 2, where x moves by -1, the integer is 1. At 0 it is 0 in either direction.
    """
    (x,), (dx,) = operands, tangents
    if jnp.issubdtype(new_dtype, jnp.bool):
        return _equality(lax.ne, (x, jnp.zeros_like(x)), (dx, jnp.zeros_like(x)))
    number = lax.convert_element_type(x, new_dtype)
    # Moving outwards from an integer, x is rounded back to it; moving inwards, to the next one. Beyond the integers of
    # the dtype, as at 300 for int8, x stays there: so it is compared with the result, and not with its integral part.
    moves_inwards = (x == number.astype(x.dtype)) & (jnp.sign(x) * dx < 0)
    number = jnp.where(moves_inwards, number - jnp.sign(number), number)
    return lambda _: number


def _bits(operands: Arrays, tangents: Arrays, *, new_dtype: Any) -> Piece:
    """Decide the bits of x: at 0 they are those of the zero whose sign is that of its tangent, elsewhere those of x."""
    (x,), (dx,) = operands, tangents
    signed_zero = jnp.where(dx < 0, -jnp.zeros_like(x), jnp.where(dx > 0, jnp.zeros_like(x), x))
    bits = lax.bitcast_convert_type(jnp.where(x == 0, signed_zero, x), new_dtype)
    return lambda _: bits


def _floor(operands: Arrays, tangents: Arrays, **_: Any) -> Piece:
    """Decide a floor: at an integer where x falls, it is the integer below."""
    (x,), (dx,) = operands, tangents
    number = lax.floor(x)
    number = jnp.where((x == number) & (dx < 0), number - 1, number)
    return lambda _: number


def _ceil(operands: Arrays, tangents: Arrays, **_: Any) -> Piece:
    """Decide a ceiling, ``-floor(-x)``."""
    opposite = _floor([-x for x in operands], [-dx for dx in tangents])
    return lambda x: -opposite(x)


def _round(operands: Arrays, tangents: Arrays, *, rounding_method: Any) -> Piece:
    """Decide a rounding: halfway between integers, the one towards which x moves."""
    (x,), (dx,) = operands, tangents
    size = jnp.abs(x)  # ``x - floor(x)`` rounds to a half just above -0.5
    is_halfway = size - lax.floor(size) == 0.5
    number = lax.round(x, rounding_method)
    number = jnp.where(is_halfway & (dx < 0), lax.floor(x), jnp.where(is_halfway & (dx > 0), lax.ceil(x), number))
    return lambda _: number


def _remainder(operands: Arrays, tangents: Arrays, **_: Any) -> Piece:
    """Decide a remainder, which has the sign of x: where x is a multiple of y, and x / y moves towards 0, it is y.

    So ``rem(4, 2)`` is 0, and where x moves by -1, the remainder is 2. The derivative of x / y is that of
    ``(dx * y - x * dy) / y**2``, and only its sign counts.
    """
    (x, y), (dx, dy) = operands, tangents
    remainder = lax.rem(x, y)
    sign = jnp.sign(x) * jnp.sign(y)
    one_less = jnp.where((remainder == 0) & (sign * (dx * y - x * dy) < 0), sign, 0)
    quotient = lax.round((x - remainder) / y) - one_less
    remainder = jnp.where(one_less == 0, remainder, one_less * y)
    # Another remainder in the piece would be decided once more by a derivative around this one.
    return lambda x, y: _with_value(x - quotient * y, remainder)


def _atan2(operands: Arrays, tangents: Arrays, **_: Any) -> Piece:
    """Decide an angle: where x is negative and y is 0, it is pi if y rises, and -pi if y falls."""
    (y, x), (dy, _dx) = operands, tangents
    is_on_cut = (y == 0) & (x < 0)
    half_turn = jnp.copysign(jnp.pi, jnp.where(jnp.abs(dy) > 0, dy, y))
    # On the cut, half a turn away from the angle of the opposite point, around which nothing jumps.
    side = jnp.where(is_on_cut, -1, 1).astype(x.dtype)
    return lambda y, x: lax.atan2(side * y, side * x) + jnp.where(is_on_cut, half_turn, 0)


def _sign(operands: Arrays, tangents: Arrays, **_: Any) -> Piece:
    """Decide a sign, of a complex x that is x / |x|: at 0, that of the tangent, unless this is NaN."""
    (x,), (dx,) = operands, tangents
    at_zero = (x == 0) & ~jnp.isnan(dx)
    return lambda x: jnp.sign(jnp.where(at_zero, dx, x))


def _scaled_bessel(operands: Arrays, tangents: Arrays, **_: Any) -> Piece:
    """Decide i0e, which is exp(-|x|) times 1 + x²/4 + ...: at 0, whether it is exp(-x) or exp(x) times that."""
    (x,), (dx,) = operands, tangents
    at_zero = (x == 0) & ~jnp.isnan(dx)
    side = jnp.where(at_zero, jnp.sign(dx), 0)

    def piece(x: jax.Array) -> jax.Array:
        near = jnp.where(at_zero, x, 0)  # elsewhere the exponential may overflow
        return jnp.where(at_zero, jnp.exp(-side * near) * (1 + near**2 / 4), lax.bessel_i0e(x))

    return piece


def _extremum(comparison: Callable[..., jax.Array], operands: Arrays, tangents: Arrays, **_: Any) -> Piece:
    """Decide which of x and y is larger, or smaller, as ``comparison`` says; NaN is taken, a tangent of it too."""
    (x, y), (_dx, dy) = operands, tangents
    # If y is NaN, no comparison holds, and so y is taken.
    first = _holds(comparison, operands, tangents) | jnp.isnan(x)
    return functools.partial(jnp.where, first & ~((x == y) & jnp.isnan(dy)))


_larger, _smaller = (functools.partial(_extremum, comparison) for comparison in (lax.ge, lax.le))


def _abs(operands: Arrays, tangents: Arrays, **_: Any) -> Piece:
    """Decide an absolute value, the larger of x and -x; of a complex x at 0 that moves by v, it is Re(x v*) / |v|."""
    (x,), (dx,) = operands, tangents
    if jnp.iscomplexobj(x):
        is_zero, unit = x == 0, dx / jnp.where(dx == 0, 1, jnp.abs(dx)).astype(dx.dtype)
        return lambda x: jnp.where(is_zero, (x * unit.conj()).real, jnp.abs(jnp.where(is_zero, 1, x)))
    either = _larger((x, -x), (dx, -dx))
    return lambda x: either(x, -x)


def _clamp(operands: Arrays, tangents: Arrays, **_: Any) -> Piece:
    """Decide a clamp, the smaller of ``high`` and the larger of x and ``low``."""
    (low, x, high), (dlow, dx, dhigh) = operands, tangents
    # In this order, by which ``high`` wins where the bounds are crossed, as in `jax.lax.clamp`.
    above = _larger((x, low), (dx, dlow))
    below = _smaller((above(x, low), high), (above(dx, dlow), dhigh))
    return lambda low, x, high: below(above(x, low), high)


def _reduced(sign: int, operands: Arrays, tangents: Arrays, *, axes: Sequence[int], **_: Any) -> Piece:
    """Decide a largest element, or with ``sign`` -1 a smallest: the piece is the element at one place."""
    # A sum over a mask, since the transpose of a gather is a scatter, which is slow.
    flat = flattened(operands[0], axes)
    chosen = _numbers(flat, -1) == _place(sign, operands, tangents, axes)[..., None]
    # Selected, not multiplied by the mask: 0 times infinity is NaN.
    return lambda x: jnp.sum(jnp.where(chosen, flattened(x, axes), jnp.zeros((), x.dtype)), -1)


def _place(sign: int, operands: Arrays, tangents: Arrays, axes: Sequence[int]) -> jax.Array:
    """Return the place along ``axes``, in row-major order, where ``sign * x`` is largest after a small step.

    Of (3, 5, 5), with the tangents (9, 1, 2), it is place 2: the values leave the last two, and of these the tangent of
    the last is larger. If tangents are equal too, it is the first.
    """
    (x,), (dx,) = operands, tangents
    x, dx = _rounded_once(sign * flattened(x, axes), sign * flattened(dx, axes))
    if not x.shape[-1]:  # `lax.argmax` refuses it; the maximum, -inf, is that of no element
        return jnp.zeros(x.shape[:-1], jnp.int32)
    largest = functools.partial(jnp.max, axis=-1, keepdims=True)
    return lax.argmax(_ahead(ties_with(x, largest(x)), dx, largest), x.ndim - 1, jnp.int32)


def _rounded_once(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the two, each to be compared with the largest of its elements.

    XLA might compute an element once for the largest one and once for the comparison, and round it in two ways.
    """
    rounded: tuple[jax.Array, jax.Array] = lax.optimization_barrier((x, y))
    return rounded


def _ahead(tied: jax.Array, dx: jax.Array, largest: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Return which of the tied elements are the largest after a small step.

    A tangent that is NaN counts as the largest: the gradient is NaN then, and not that of an element that may fall.
    """
    rise = jnp.where(tied, jnp.where(jnp.isnan(dx), highest(dx.dtype), dx), lowest(dx.dtype))
    return tied & (rise == largest(rise))


def _of_devices(
    sign: int, operands: Arrays, tangents: Arrays, *, axes: tuple[Any, ...], axis_index_groups: Any
) -> Piece:
    """Decide a largest element over devices, or with ``sign`` -1 a smallest: the piece is the element of one device."""
    if all(isinstance(axis, int) for axis in axes):  # `jax.vmap` has made the devices an axis of the array
        return _reduced(sign, operands, tangents, axes=axes)
    over = {"axis_name": axes, "axis_index_groups": axis_index_groups}
    x, dx = _rounded_once(sign * operands[0], sign * tangents[0])
    tied = ties_with_devices(x, lax.pmax(x, **over))
    # One device, the first, if tangents are equal as well: its element alone makes up the sum below.
    chosen = is_first_device(_ahead(tied, dx, lambda rise: lax.pmax(rise, **over)), over)
    return lambda x: lax.psum(jnp.where(chosen, x, jnp.zeros((), x.dtype)), **over)


def _index(sign: int, operands: Arrays, tangents: Arrays, *, axes: Sequence[int], index_dtype: Any, **_: Any) -> Piece:
    """Decide an ``argmax``, or with ``sign`` -1 an ``argmin``."""
    index = _place(sign, operands, tangents, axes).astype(index_dtype)
    return lambda *_: index


def _cumulative(
    comparison: Callable[..., jax.Array], operands: Arrays, tangents: Arrays, *, axis: int, reverse: bool, **_: Any
) -> Piece:
    """Decide a running maximum or minimum: a scan that carries the best number so far, its tangent and its place."""
    (x,), (dx,) = operands, tangents

    # Value and tangent decide; the place only follows, and says in the end whose element each result is.
    def best(one: Arrays, next_one: Arrays) -> list[jax.Array]:
        either = _extremum(comparison, (one[0], next_one[0]), (one[1], next_one[1]))
        return [either(a, b) for a, b in zip(one, next_one, strict=True)]

    *_rest, index = lax.associative_scan(best, (x, dx, _numbers(x, axis)), reverse=reverse, axis=axis)
    return lambda x: jnp.take_along_axis(x, index, axis)


def _numbers(x: jax.Array, axis: int) -> jax.Array:
    """Return the place of each element of ``x`` along ``axis``."""
    # Added to zeros, which are sharded as x is.
    return lax.broadcasted_iota(jnp.int32, x.shape, axis % x.ndim) + jnp.zeros_like(x, jnp.int32)


def _sort(operands: Arrays, tangents: Arrays, *, dimension: int, num_keys: int, **_: Any) -> Piece:
    """Decide a sort: all operands are permuted as the keys are a small step along their tangents."""
    order = _order(operands[:num_keys], tangents[:num_keys], dimension)
    return lambda *operands: tuple(jnp.take_along_axis(operand, order, dimension) for operand in operands)


def _order(keys: Arrays, tangents: Arrays, axis: int) -> jax.Array:
    """Return the permutation along ``axis`` that sorts the keys a small step along their tangents.

    They are sorted by their values, then by their tangents: (2, 1, 1) with the tangents (0, 5, 4) in the order 2, 1, 0.
    """
    # Tangents become keys of a lower rank. Integers have none: they do not move.
    pairs = zip(keys, tangents, strict=True)
    compared = [both for x, dx in pairs for both in ((x, dx) if is_floating(x) else (x,))]
    *_sorted, order = lax.sort(
        (*compared, _numbers(keys[0], axis)), dimension=axis, is_stable=True, num_keys=len(compared)
    )
    return order


def _top_k(operands: Arrays, tangents: Arrays, *, k: int, axis: int, **_: Any) -> Piece:
    """Decide which k elements are the largest, and their order."""
    (x,), (dx,) = operands, tangents

    def first_of(x: jax.Array, dx: jax.Array, places: jax.Array) -> jax.Array:
        # From the end, so that of equal elements the one that comes first is taken first.
        x, dx, places = (jnp.flip(array, axis) for array in (x, dx, places))
        order = jnp.flip(_order((x,), (dx,), axis), axis)
        return jnp.take_along_axis(places, lax.slice_in_dim(order, 0, k, axis=axis), axis)

    # To sort all elements takes up to hundreds of times as long. If some that follow the k-th are less, all that tie
    # with it are before those.
    places, some, length = _numbers(x, axis), 2 * k + 8, x.shape[axis]
    # An exported program may have a length, or a k, of any size.
    if not (isinstance(length, int) and isinstance(k, int)) or some >= length:
        index = first_of(x, dx, places)
    else:
        # XLA computes the k largest without a sort only where nothing else is computed of them at once. One barrier for
        # both breaks XLA of JAX 0.10 in a `shard_map`.
        largest, of_largest = map(lax.optimization_barrier, lax.top_k(x, some, axis=axis))
        last, kth = (lax.index_in_dim(largest, i, axis) for i in (some - 1, k - 1))
        among_largest = first_of(largest, jnp.take_along_axis(dx, of_largest, axis), of_largest)
        index = lax.cond(jnp.all(last < kth), lambda: among_largest, lambda: first_of(x, dx, places))
    return lambda x: (jnp.take_along_axis(x, index, axis), index)


def windows_of_padded(
    *,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> tuple[Windows, list[tuple[int, int, int]]]:
    """Return the windows of a `jax.lax.reduce_window` in an operand that was padded, and how `jax.lax.pad` pads it."""
    unpadded = ((0, 0),) * len(padding)
    gaps = [(*ends, dilation - 1) for ends, dilation in zip(padding, base_dilation, strict=True)]
    return Windows(tuple(window_dimensions), tuple(window_strides), unpadded, tuple(window_dilation)), gaps


def _windows(operands: Arrays, tangents: Arrays, *, select_prim: Primitive, **params: Any) -> Piece:
    """Decide the extremum of each window, axis by axis: it is that of the extrema of the window's rows.

    Along an axis, the places of the windows are folded: with three, x0, x1 and x2, the extremum of x0 and x1 is decided
    first, then that of it and x2. The tangents are folded along, each by the choices of the values. The piece repeats
    the folds for other values, with the choices decided.
    """
    windows, gaps = windows_of_padded(**params)
    never_chosen = (lowest if select_prim is p.ge_p else highest)(operands[0].dtype)

    def padded(x: jax.Array, outside: Any) -> jax.Array:
        return lax.pad(x, jnp.asarray(outside, x.dtype), gaps)

    x, dx = padded(operands[0], never_chosen), padded(tangents[0], 0.0)  # padding does not move
    steps: list[list[Piece]] = []
    for axis in range(x.ndim):
        rows = windows.along(axis)
        (best, *further), (rise, *further_rises) = rows.places(x, None), rows.places(dx, None)
        steps.append([])
        for place, place_rise in zip(further, further_rises, strict=True):
            either = _extremum(select_prim.bind, (best, place), (rise, place_rise))
            steps[-1].append(either)
            best, rise = either(best, place), either(rise, place_rise)
        x, dx = best, rise

    def piece(x: jax.Array, outside: Any = never_chosen) -> jax.Array:
        x = padded(x, outside)
        for axis, folds in enumerate(steps):
            x, *further = windows.along(axis).places(x, None)
            for either, place in zip(folds, further, strict=True):
                x = either(x, place)
        return x

    return piece


def _gathered(operands: Arrays, tangents: Arrays, **params: Any) -> Piece:
    """Decide what of an array is gathered: what it has where the windows of another array have their extremum.

    It is what forward mode computes of a pool.
    """
    at_extremum = _windows(operands[1:], tangents[1:], **params)
    return lambda array, _: at_extremum(array, 0.0)  # as JAX has it, where a window is all padding


def _scattered(operands: Arrays, tangents: Arrays, **params: Any) -> Piece:
    """Decide where numbers are scattered to: in its window, where another array has its extremum.

    It is what reverse mode computes of a pool, the transpose of `_gathered`.
    """
    # This primitive has no dilations among its parameters, which `_windows` reads.
    ones = (1,) * operands[1].ndim
    at_extremum = _windows(operands[1:], tangents[1:], **params, base_dilation=ones, window_dilation=ones)
    return lambda source, x: jax.linear_transpose(at_extremum, x)(source)[0]


def _scatter(
    sign: int, operands: Arrays, tangents: Arrays, *, update_jaxpr: Any, update_consts: Any, **where: Any
) -> Piece:
    """Decide which of the old element and its updates is written to each place of a ``scatter_max``.

    There are rounds, each among the candidates that the round before left: first by value, then by tangent, then
    by order, the old element before any update, and of several updates the first. Say x = (2, 7), and the updates 2 and
    1 go to place 0: by value the old 2 and the update 2 are left. If the old one moves by 0 and the update by 1, the
    update is left alone: the piece is (x, updates) -> (updates[0], x[1]).
    """
    (x, indices, updates), (dx, _, dupdates) = operands, tangents

    def best(x: jax.Array, updates: jax.Array, old: jax.Array, new: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return where the old element, and which updates, are the largest of the candidates ``old`` and ``new``."""
        low = lowest(x.dtype)
        x, updates = _rounded_once(jnp.where(old, x, low), jnp.where(new, updates, low))
        result = lax.scatter_max(x, indices, updates, **where)
        read = _read_by_updates(result, indices, updates.shape, **where)
        return old & ties_with(x, result), new & ties_with(updates, read)

    old, new = best(sign * x, sign * updates, jnp.ones(x.shape, bool), jnp.ones(updates.shape, bool))
    # As in `_place`, NaN is taken, among values and among tangents.
    rise, rises = (jnp.where(jnp.isnan(v), highest(v.dtype), sign * v) for v in (dx, dupdates))
    old, new = best(rise, rises, old, new)
    # In the third round they are numbered downwards, so that of those left the first is the largest.
    numbers = jnp.arange(updates.size, 0, -1).reshape(updates.shape)
    old, new = best(jnp.full(x.shape, updates.size + 1, numbers.dtype), numbers, old, new)

    # One number is left for each place, so that adding zeros for all others writes that number.
    def piece(x: jax.Array, _: jax.Array, updates: jax.Array) -> jax.Array:
        x, updates = jnp.where(old, x, jnp.zeros((), x.dtype)), jnp.where(new, updates, jnp.zeros((), x.dtype))
        return lax.scatter_add(x, indices, updates, **where)

    return piece


def _read_by_updates(
    result: jax.Array, indices: jax.Array, shape: tuple[int, ...], *, dimension_numbers: Any, mode: Any, **_: Any
) -> jax.Array:
    """Return what of ``result`` each update, of that shape, is written to: the transpose of a scatter that adds."""
    # By hand: in a `shard_map`, JAX's own transpose of the scatter would sum over the devices.
    lengths = iter([shape[axis] for axis in dimension_numbers.update_window_dims])
    single = {*dimension_numbers.inserted_window_dims, *dimension_numbers.operand_batching_dims}
    return lax.gather(
        result,
        indices,
        lax.GatherDimensionNumbers(
            offset_dims=dimension_numbers.update_window_dims,
            collapsed_slice_dims=dimension_numbers.inserted_window_dims,
            start_index_map=dimension_numbers.scatter_dims_to_operand_dims,
            operand_batching_dims=dimension_numbers.operand_batching_dims,
            start_indices_batching_dims=dimension_numbers.scatter_indices_batching_dims,
        ),
        [1 if axis in single else next(lengths) for axis in range(result.ndim)],
        mode=mode,
        fill_value=0,
    )


# `where` and `cond` are not here: their conditions are, and take the branch of the side that is entered.
CHOICES: Mapping[Primitive, Choice] = {
    p.max_p: _larger,
    p.min_p: _smaller,
    p.clamp_p: _clamp,
    p.abs_p: _abs,
    p.sign_p: _sign,
    p.bessel_i0e_p: _scaled_bessel,
    **{
        primitive: functools.partial(_comparison, primitive.bind)
        for primitive in (p.gt_p, p.ge_p, p.lt_p, p.le_p, p.lt_to_p, p.le_to_p, p.eq_to_p)
    },
    p.eq_p: functools.partial(_equality, lax.eq),
    p.ne_p: functools.partial(_equality, lax.ne),
    p.floor_p: _floor,
    p.ceil_p: _ceil,
    p.round_p: _round,
    p.rem_p: _remainder,
    p.atan2_p: _atan2,
    p.convert_element_type_p: _converted,
    p.bitcast_convert_type_p: _bits,
    p.reduce_max_p: functools.partial(_reduced, 1),
    p.reduce_min_p: functools.partial(_reduced, -1),
    p.pmax_p: functools.partial(_of_devices, 1),
    p.pmin_p: functools.partial(_of_devices, -1),
    p.argmax_p: functools.partial(_index, 1),
    p.argmin_p: functools.partial(_index, -1),
    p.cummax_p: functools.partial(_cumulative, lax.ge),
    p.cummin_p: functools.partial(_cumulative, lax.le),
    p.sort_p: _sort,
    p.top_k_p: _top_k,
    p.reduce_window_max_p: functools.partial(_windows, select_prim=p.ge_p),
    p.reduce_window_min_p: functools.partial(_windows, select_prim=p.le_p),
    p.select_and_gather_add_p: _gathered,
    p.select_and_scatter_add_p: _scattered,
    p.scatter_max_p: functools.partial(_scatter, 1),
    p.scatter_min_p: functools.partial(_scatter, -1),
}
"""Maps a primitive to what decides its choice among floating point numbers; integers do not move."""

# Primitives whose results are floats, and jump all the same.
_JUMPING = (
    *(p.sign_p, p.floor_p, p.ceil_p, p.round_p, p.rem_p, p.atan2_p),
    *(p.select_and_gather_add_p, p.select_and_scatter_add_p),
)
