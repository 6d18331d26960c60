"""The selection ops that skip a NaN beside a number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxclamp._record import op
from jaxclamp._rules.conventions import Convention
from jaxclamp._rules.differentiate import Applied
from jaxclamp._rules.selection import selection

__all__ = ["fmax", "fmin"]

_fmax = selection("fmax", y=jnp.fmax)


@op(
    "selection",
    tie_points=((0.0, 0.0), (-0.0, 0.0), (2.5, 2.5)),
    counterparts=("torch:fmax(x, y, out=out)", "jax.numpy:fmax(x, y)"),
)
def fmax(x: ArrayLike, y: ArrayLike, *, ties: Convention = "min_norm") -> Applied[jax.Array]:
    r"""The larger of two operands, :math:`\max(x, y)`, elementwise; a NaN beside a number is skipped.

    Ties: at ``x == y``, and where both are NaN, each operand gets 1/2 when both are differentiated, and 0 when only one
    is. A NaN that is skipped gets 0.

    Args:
      x, y: real arrays or numbers whose shapes broadcast; dtypes promote as in `jax.numpy`.
      ties: the convention at ties: ``"min_norm"``, or ``"inclusive"`` (all to ``x``), ``"exclusive"`` (all to ``y``),
        ``"balanced"`` (1/2 each, differentiated or not).

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: the shapes do not broadcast, or ``ties`` is unknown.

    Counterparts: `torch.fmax` (``"inclusive"`` up to 2.13, ``"balanced"`` from 2.14 on), `jax.numpy.fmax`
    (``"exclusive"``).

    >>> [float(g) for g in jax.grad(fmax, argnums=(0, 1))(jnp.nan, 3.0)]
    [0.0, 1.0]
    """
    return Applied(_fmax[ties], (x, y))


_fmin = selection("fmin", y=jnp.fmin)


@op(
    "selection",
    tie_points=((0.0, 0.0), (-0.0, 0.0), (2.5, 2.5)),
    counterparts=("torch:fmin(x, y, out=out)", "jax.numpy:fmin(x, y)"),
)
def fmin(x: ArrayLike, y: ArrayLike, *, ties: Convention = "min_norm") -> Applied[jax.Array]:
    r"""The smaller of two operands, :math:`\min(x, y)`, elementwise; a NaN beside a number is skipped.

    Ties: at ``x == y``, and where both are NaN, each operand gets 1/2 when both are differentiated, and 0 when only one
    is. A NaN that is skipped gets 0.

    Args:
      x, y: real arrays or numbers whose shapes broadcast; dtypes promote as in `jax.numpy`.
      ties: the convention at ties: ``"min_norm"``, or ``"inclusive"`` (all to ``x``), ``"exclusive"`` (all to ``y``),
        ``"balanced"`` (1/2 each, differentiated or not).

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: the shapes do not broadcast, or ``ties`` is unknown.

    Counterparts: `torch.fmin` (``"inclusive"`` up to 2.13, ``"balanced"`` from 2.14 on), `jax.numpy.fmin`
    (``"exclusive"``).

    >>> [float(g) for g in jax.grad(fmin, argnums=(0, 1))(jnp.nan, 3.0)]
    [0.0, 1.0]
    """
    return Applied(_fmin[ties], (x, y))
