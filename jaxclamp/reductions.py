"""The reductions of the selection family: the value is one of the elements along some axes or in a window."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxclamp._record import op
from jaxclamp._rules.conventions import Convention, check_convention
from jaxclamp._rules.differentiate import Applied, differentiable
from jaxclamp._rules.extremum import Extremum, extremum, ties_with
from jaxclamp._rules.operands import check_operands, checked_axes
from jaxclamp._rules.windows import largest_of_windows, windows_of

__all__ = [
    "WithIndices",
    "amax",
    "amin",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_with_indices",
    "min_with_indices",
]

_SQUARE = ((1.0, 3.0), (3.0, 3.0))  # one tie of three elements in all of it, or of two in its last row and column


@op(
    "reduction",
    tie_points=(((2.0, 5.0, 5.0),), ((-0.0, 0.0, 0.0, -1.0),), (_SQUARE, 0), (_SQUARE, -1, True), (_SQUARE, (0, 1))),
    counterparts=(
        "torch:amax(x, dim=axis, keepdim=keepdims, out=out)",
        "jax.numpy:max(x, axis=axis, keepdims=keepdims, initial=initial, where=where)",
    ),
)
def amax(
    x: ArrayLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    *,
    ties: Convention = "min_norm",
) -> Applied[jax.Array]:
    r"""The largest element along axes, :math:`\max_i x_i`.

    Ties: each of k tied elements gets 1/k, and 0 where ``initial`` ties with them and is not differentiated. NaN
    elements are the value and share the gradient.

    Args:
      x: real array.
      axis: the axis or axes to reduce, negative ones counted from the end; None for all.
      keepdims: whether reduced axes stay, with size 1.
      initial: a number that counts as one more element, behind the others, or None.
      where: a mask of the elements that take part, which broadcasts against ``x``; it needs ``initial``.
      ties: the convention at ties: ``"min_norm"`` and ``"balanced"`` (1/k each), ``"inclusive"`` (all to the first in
        row-major order), ``"exclusive"`` (to the other tied ones).

    Raises:
      TypeError: ``x`` is complex or not numeric, or ``where`` is no mask of bools.
      ValueError: an axis is out of range, repeated, or of size 0 without ``initial``; ``axis=()`` names none;
        ``initial`` is no single number, or missing beside ``where``; or ``ties`` is unknown.

    Counterparts: `torch.amax`, `jax.numpy.max` (both 1/k each).

    >>> jax.grad(amax)(jnp.array([1.0, 3.0, 3.0])).tolist()
    [0.0, 0.5, 0.5]
    """
    return _of_elements("amax", jnp.max, x, axis, keepdims, initial, where, ties)


@op(
    "reduction",
    tie_points=(
        ((2.0, 2.0, 5.0),),
        ((-0.0, 0.0, 0.0, 1.0),),
        (_SQUARE, 0),
        (_SQUARE, -1, True),
        (((1.0, 1.0), (3.0, 1.0)), (0, 1)),
    ),
    counterparts=(
        "torch:amin(x, dim=axis, keepdim=keepdims, out=out)",
        "jax.numpy:min(x, axis=axis, keepdims=keepdims, initial=initial, where=where)",
    ),
)
def amin(
    x: ArrayLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    *,
    ties: Convention = "min_norm",
) -> Applied[jax.Array]:
    r"""The smallest element along axes, :math:`\min_i x_i`.

    Ties: each of k tied elements gets 1/k, and 0 where ``initial`` ties with them and is not differentiated. NaN
    elements are the value and share the gradient.

    Args:
      x: real array.
      axis: the axis or axes to reduce, negative ones counted from the end; None for all.
      keepdims: whether reduced axes stay, with size 1.
      initial: a number that counts as one more element, behind the others, or None.
      where: a mask of the elements that take part, which broadcasts against ``x``; it needs ``initial``.
      ties: the convention at ties: ``"min_norm"`` and ``"balanced"`` (1/k each), ``"inclusive"`` (all to the first in
        row-major order), ``"exclusive"`` (to the other tied ones).

    Raises:
      TypeError: ``x`` is complex or not numeric, or ``where`` is no mask of bools.
      ValueError: an axis is out of range, repeated, or of size 0 without ``initial``; ``axis=()`` names none;
        ``initial`` is no single number, or missing beside ``where``; or ``ties`` is unknown.

    Counterparts: `torch.amin`, `jax.numpy.min` (both 1/k each).

    >>> jax.grad(amin)(jnp.array([1.0, 1.0, 3.0])).tolist()
    [0.5, 0.5, 0.0]
    """
    return _of_elements("amin", jnp.min, x, axis, keepdims, initial, where, ties)


class WithIndices(NamedTuple):
    """The extreme elements along an axis, and where the first of each is."""

    values: jax.Array
    indices: jax.Array


@op(
    "reduction",
    tie_points=((_SQUARE, 0), (_SQUARE, -1, True), ((4.0, 4.0, 4.0), 0)),
    counterparts=("torch:max(x, dim=axis, keepdim=keepdims, out=out)",),
)
def max_with_indices(
    x: ArrayLike, axis: int, keepdims: bool = False, *, ties: Convention = "min_norm"
) -> Applied[WithIndices]:
    r"""The largest element along one axis, :math:`\max_i x_i`, and the index of the first that is equal to it.

    Ties: each of k tied elements gets 1/k of the gradient of the values, not only the one at the index. The indices
    have no gradient.

    Args:
      x: real array.
      axis: the axis to reduce; negative ones count from the end.
      keepdims: whether the reduced axis stays, with size 1.
      ties: the convention at ties, as for `amax`; ``"inclusive"`` gives all to the element at the index.

    Raises:
      TypeError: ``x`` is complex or not numeric.
      ValueError: the axis is out of range or of size 0, or ``ties`` is unknown.

    Counterpart: ``torch.max(input, dim)`` (all to the element at the index).

    >>> max_with_indices(jnp.array([3.0, 1.0, 3.0]), 0).indices.item()
    0
    >>> jax.grad(lambda x: max_with_indices(x, 0).values)(jnp.array([3.0, 1.0, 3.0])).tolist()
    [0.5, 0.0, 0.5]
    """
    rule = _extremum("max_with_indices", jnp.max, x, operator.index(axis), keepdims, ties)
    return ValuesAndIndices(rule, (x,))


@op(
    "reduction",
    tie_points=((((2.0, 1.0), (1.0, 1.0)), 0), (((2.0, 1.0), (1.0, 1.0)), -1, True), ((4.0, 4.0, 4.0), 0)),
    counterparts=("torch:min(x, dim=axis, keepdim=keepdims, out=out)",),
)
def min_with_indices(
    x: ArrayLike, axis: int, keepdims: bool = False, *, ties: Convention = "min_norm"
) -> Applied[WithIndices]:
    r"""The smallest element along one axis, :math:`\min_i x_i`, and the index of the first that is equal to it.

    Ties: each of k tied elements gets 1/k of the gradient of the values, not only the one at the index. The indices
    have no gradient.

    Args:
      x: real array.
      axis: the axis to reduce; negative ones count from the end.
      keepdims: whether the reduced axis stays, with size 1.
      ties: the convention at ties, as for `amin`; ``"inclusive"`` gives all to the element at the index.

    Raises:
      TypeError: ``x`` is complex or not numeric.
      ValueError: the axis is out of range or of size 0, or ``ties`` is unknown.

    Counterpart: ``torch.min(input, dim)`` (all to the element at the index).

    >>> min_with_indices(jnp.array([3.0, 1.0, 1.0]), 0).indices.item()
    1
    >>> jax.grad(lambda x: min_with_indices(x, 0).values)(jnp.array([3.0, 1.0, 1.0])).tolist()
    [0.0, 0.5, 0.5]
    """
    rule = _extremum("min_with_indices", jnp.min, x, operator.index(axis), keepdims, ties)
    return ValuesAndIndices(rule, (x,))


@op(
    "reduction",
    tie_points=(
        (((1.0, 1.0, 0.0, 0.0),), 2),
        (((1.0, 2.0, 2.0, 0.0),), 2, 2, 1),
        (((4.0, 1.0, 4.0, 0.0),), 2, 3, 0, 2),
        (((4.0, 4.0, 1.0),), 2, 2, 0, 1, True),
    ),
    counterparts=(
        "torch.nn.functional:max_pool1d(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)",
    ),
)
def max_pool1d(
    x: ArrayLike,
    kernel_size: int,
    stride: int | None = None,
    padding: int = 0,
    dilation: int = 1,
    ceil_mode: bool = False,
    *,
    ties: Convention = "min_norm",
) -> Applied[jax.Array]:
    r"""The largest element of each window along the last axis, :math:`\max_k x_{s i + d k - p}`.

    Ties: each of k tied elements of a window gets 1/k. NaN elements are the value and share the gradient.

    Args:
      x: real array; all axes but the last are batch axes.
      kernel_size, stride, padding, dilation: the windows, as in torch: s, p and d in the formula, in which k is below
        ``kernel_size``; ``stride=None`` means ``kernel_size``.
      ceil_mode: whether a last window that begins inside reaches over the end.
      ties: the convention at ties, as for `amax`.

    Raises:
      TypeError: ``x`` is complex or not numeric.
      ValueError: a window does not fit, or ``ties`` is unknown.

    Counterpart: `torch.nn.functional.max_pool1d` (all to the first).

    >>> jax.grad(lambda x: max_pool1d(x, 2).sum())(jnp.array([1.0, 1.0, 0.0, 2.0])).tolist()
    [0.5, 0.5, 0.0, 1.0]
    """
    return _max_pool("max_pool1d", x, 1, ties, kernel_size, stride, padding, dilation, ceil_mode)


@op(
    "reduction",
    tie_points=(
        ((_SQUARE,), 2),
        ((((1.0, 1.0, 0.0), (0.0, 1.0, 1.0)),), (2, 1), (2, 1)),
        ((((1.0, 1.0, 0.0), (1.0, 2.0, 2.0)),), 2, 2, (0, 1)),
    ),
    counterparts=(
        "torch.nn.functional:max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)",
    ),
)
def max_pool2d(
    x: ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    *,
    ties: Convention = "min_norm",
) -> Applied[jax.Array]:
    r"""The largest element of each window over the last two axes, :math:`\max_{k, l} x_{s i + d k - p, s j + d l - p}`.

    Ties: each of k tied elements of a window gets 1/k. NaN elements are the value and share the gradient.

    Args:
      x: real array; all axes but the last two are batch axes.
      kernel_size, stride, padding, dilation: the windows, as in torch, one number or one per axis; ``stride=None``
        means ``kernel_size``.
      ceil_mode: whether a last window that begins inside reaches over the end.
      ties: the convention at ties, as for `amax`.

    Raises:
      TypeError: ``x`` is complex or not numeric.
      ValueError: a window does not fit, or ``ties`` is unknown.

    Counterpart: `torch.nn.functional.max_pool2d` (all to the first).

    >>> jax.grad(lambda x: max_pool2d(x, 2).sum())(jnp.array([[3.0, 3.0], [3.0, 1.0]])).round(3).tolist()
    [[0.3330000042915344, 0.3330000042915344], [0.3330000042915344, 0.0]]
    """
    return _max_pool("max_pool2d", x, 2, ties, kernel_size, stride, padding, dilation, ceil_mode)


@op(
    "reduction",
    tie_points=(
        (((_SQUARE, ((0.0, 3.0), (1.0, 2.0))),), 2),
        (((((1.0, 1.0), (0.0, 1.0)), ((1.0, 1.0), (2.0, 2.0))),), (1, 2, 1), (1, 2, 1)),
    ),
    counterparts=(
        "torch.nn.functional:max_pool3d(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)",
    ),
)
def max_pool3d(
    x: ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    *,
    ties: Convention = "min_norm",
) -> Applied[jax.Array]:
    r"""The largest element of each window over the last three axes, :math:`\max_k x_{s i + d k - p}` along each.

    Ties: each of k tied elements of a window gets 1/k. NaN elements are the value and share the gradient.

    Args:
      x: real array; all axes but the last three are batch axes.
      kernel_size, stride, padding, dilation: the windows, as in torch, one number or one per axis; ``stride=None``
        means ``kernel_size``.
      ceil_mode: whether a last window that begins inside reaches over the end.
      ties: the convention at ties, as for `amax`.

    Raises:
      TypeError: ``x`` is complex or not numeric.
      ValueError: a window does not fit, or ``ties`` is unknown.

    Counterpart: `torch.nn.functional.max_pool3d` (all to the first).

    >>> x = jnp.array([[[3.0, 3.0], [1.0, 0.0]], [[0.0, 0.0], [0.0, 2.0]]])
    >>> jax.grad(lambda x: max_pool3d(x, 2).sum())(x).tolist()
    [[[0.5, 0.5], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]
    """
    return _max_pool("max_pool3d", x, 3, ties, kernel_size, stride, padding, dilation, ceil_mode)


def _of_elements(
    name: str,
    function: Callable[..., jax.Array],
    x: ArrayLike,
    axis: int | Sequence[int] | None,
    keepdims: bool,
    initial: ArrayLike | None,
    where: ArrayLike | None,
    ties: Convention,
) -> Applied[jax.Array]:
    """Check the arguments of `amax` or `amin`; return the rule for them, with its operands."""
    if initial is None:
        if where is not None:
            raise ValueError(
                f"{name}: where may leave no element, so it needs initial, the value there; give that too."
            )
        return Applied(_extremum(name, function, x, axis, keepdims, ties), (x,))
    if np.ndim(initial):
        raise ValueError(f"{name}: initial has the shape {np.shape(initial)}; give one number.")
    mask = True if where is None else where
    check_operands(name, ("where",), (mask,))
    if jnp.result_type(mask) != np.bool_:
        raise TypeError(
            f"{name}: where has the dtype {jnp.result_type(mask)}; give a mask of bools, such as where != 0."
        )
    rule = _extremum(name, function, x, axis, keepdims, ties, has_initial=True)
    return Applied(rule, (x, initial, mask))


def _extremum(
    name: str,
    function: Callable[..., jax.Array],
    x: ArrayLike,
    axis: int | Sequence[int] | None,
    keepdims: bool,
    ties: Convention,
    has_initial: bool = False,
) -> Extremum:
    """Check the axes; return the rule of the reduction over them."""
    check_convention(name, ties)
    shape, axes = np.shape(x), checked_axes(name, x, axis)
    if any(shape[a] == 0 for a in axes) and not has_initial:
        raise ValueError(f"{name}: axis={axis} of x of shape {shape} has no elements, so no extremum; choose another.")
    return extremum(name, function, axes, bool(keepdims), ties, has_initial)


class ValuesAndIndices(Applied[WithIndices]):
    """An `Extremum` along one axis, applied: the result has the index of the first element that is the value, too."""

    def value(self) -> WithIndices:
        return _with_indices(self.rule, *self.operands)


@partial(jax.jit, static_argnums=0)
def _with_indices(rule: Extremum, x: ArrayLike) -> WithIndices:
    """Return the extreme elements, and for each the smallest index along the axis at which x is equal to it."""
    # XLA might compute an element once for the values and once for the comparison, and round it in two ways.
    elements = jax.lax.optimization_barrier(jnp.asarray(x))
    values = differentiable(rule, elements)
    # A second plain reduction: XLA on CPU does not vectorise the one of pairs that is behind jnp.argmax.
    (axis,) = rule.axes
    against = values if rule.keepdims else jnp.expand_dims(values, axis)
    positions = jax.lax.broadcasted_iota(int, elements.shape, axis)
    beyond = elements.shape[axis]
    indices = jnp.min(jnp.where(ties_with(elements, against), positions, beyond), axis, keepdims=rule.keepdims)
    return WithIndices(values, indices)


# Its checks take longer than the dispatch. Without ``typed``, 2.0 would be taken for a 2 that was seen before.
_windows_of = lru_cache(maxsize=1024, typed=True)(windows_of)


def _max_pool(
    name: str, x: ArrayLike, dims: int, ties: Convention, *window: int | Sequence[int] | None
) -> Applied[jax.Array]:
    """Check the arguments of a pool; return its rule with x. ``window`` is what follows ``dims`` in `windows_of`."""
    check_convention(name, ties)
    if not isinstance(x, jax.Array):  # a list has a shape for NumPy, too
        check_operands(name, ("x",), (x,))
    hashable = [tuple(value) if isinstance(value, list | np.ndarray) else value for value in window]
    shape = np.shape(x)
    return Applied(largest_of_windows(name, _windows_of(name, shape, dims, *hashable), shape, ties), (x,))
