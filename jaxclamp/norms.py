"""The norms, of the elements along axes and of two operands."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxclamp._record import op
from jaxclamp._rules.differentiate import Applied
from jaxclamp._rules.norms import ORDERS, Hypotenuse, norm_of_order
from jaxclamp._rules.operands import checked_axes

__all__ = ["hypot", "norm"]


@op(
    "reduction",
    tie_points=(
        ((0.0, 0.0, 0.0),),
        ((-0.0, 0.0),),
        (((0.0, 0.0), (3.0, 4.0)), 2, 1),
        (((0.0, 0.0), (0.0, 0.0)), "fro", (0, 1)),
        ((0.0, -2.0, 3.0), 1),
        ((0.0, -0.0), 1, 0, True),
        ((3.0, -3.0, 1.0), math.inf),
        ((0.0, 0.0), math.inf, 0),
    ),
    counterparts=(
        "torch:norm(x, p=ord, dim=axis, keepdim=keepdims, dtype=dtype, out=out)",
        "jax.numpy.linalg:norm(x, ord=ord, axis=axis, keepdims=keepdims)",
    ),
)
def norm(
    x: ArrayLike, ord: float | str | None = 2, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> Applied[jax.Array]:
    r"""The size of a vector, :math:`\sqrt{\sum_i x_i^2}`, or :math:`\sum_i |x_i|`, or :math:`\max_i |x_i|`, along axes.

    Ties: where all elements are 0 the gradient is 0, the least element of the unit ball. In the 1-norm an element that
    is 0 gets 0; in the infinity norm each of k elements of the largest size gets 1/k with its sign, and 0 at 0. Second
    derivatives at these points are 0: those of the 2-norm are a selection, as it has none at 0. NaN makes the gradient
    of the 2-norm NaN, and has slope 1 in the others. Of infinite elements, k share as equal ones, and the others get 0.

    Args:
      x: real array.
      ord: 2, 1 or ``jnp.inf``; ``"fro"`` and None are 2.
      axis: the axis or axes along which a vector lies, negative ones counted from the end; None for all. It is the norm
        of a vector always, that of Frobenius for two axes.
      keepdims: whether reduced axes stay, with size 1.

    Raises:
      TypeError: ``x`` is complex or not numeric.
      ValueError: an axis is out of range or repeated; ``axis=()`` names none; or ``ord`` is another number.

    The value is that of `jax.numpy.linalg.vector_norm`, which is infinite where the sum of squares overflows. The
    gradient is right there, too.

    Counterparts: `torch.norm`, `torch.linalg.vector_norm` (0 at 0, with second derivatives that are NaN),
    `jax.numpy.linalg.norm` of vectors, ``vector_norm`` (NaN at 0).

    >>> jax.grad(norm)(jnp.zeros(2)).tolist(), jax.grad(norm)(jnp.array([0.0, -4.0])).tolist()
    ([0.0, 0.0], [0.0, -1.0])
    """
    order = 2 if ord == "fro" or ord is None else ord
    if order not in ORDERS:
        raise ValueError(f"norm: ord={ord!r} is none of 1, 2 and inf; for others take the norms of JAX or torch.")
    return Applied(norm_of_order(order, checked_axes("norm", x, axis), bool(keepdims)), (x,))


_hypot = Hypotenuse("hypot", jnp.hypot)


@op(
    "kinked", tie_points=((0.0, 0.0), (-0.0, 0.0)), counterparts=("torch:hypot(x, y, out=out)", "jax.numpy:hypot(x, y)")
)
def hypot(x: ArrayLike, y: ArrayLike) -> Applied[jax.Array]:
    r"""The hypotenuse of a right triangle, :math:`\sqrt{x^2 + y^2}`, elementwise.

    Ties: at (0, 0) both gradients are 0, the least element of the unit disc, and so are second derivatives there, by
    selection. An infinite operand beside a number gets its sign, and two of them share as equal ones. NaN makes the
    gradient NaN.

    Args:
      x, y: real arrays or numbers whose shapes broadcast; dtypes promote as in `jax.numpy`. No square overflows.

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: the shapes do not broadcast.

    Counterparts: `torch.hypot` (NaN at (0, 0)), `jax.numpy.hypot` (1/2 each at (0, 0)).

    >>> [float(g) for g in jax.grad(hypot, argnums=(0, 1))(0.0, 0.0)]
    [0.0, 0.0]
    """
    return Applied(_hypot, (x, y))
