"""The kinked ops of one variable: smooth pieces that meet at kinks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxclamp._registry import op
from jaxclamp._rules import Kinked

__all__ = ["abs", "leaky_relu"]

_abs = Kinked("abs", ("x",), jnp.abs, pieces=(lambda x: -x, lambda x: x), kinks=lambda: (0.0,))


@op("kinked", ties=((0.0,), (-0.0,)), counterparts=("torch:abs(x)", "jax.numpy:abs(x)", "jax.lax:abs(x)"))
def abs(x: ArrayLike) -> jax.Array:
    r"""The absolute value, :math:`\max(x, -x)`, elementwise.

    Ties: the gradient at 0 is 0, between the slopes -1 and 1. NaN passes through with slope 1.

    Args:
      x: real array or number; shape and dtype are those of the result.

    Raises:
      TypeError: ``x`` is complex or not numeric.

    Counterparts: `torch.abs` (0 at 0), `jax.numpy.abs` (1 at 0).

    >>> jax.vmap(jax.grad(abs))(jnp.array([-2.0, 0.0, 2.0])).tolist()
    [-1.0, 0.0, 1.0]
    """
    return _abs(x)


_leaky_relu = Kinked(
    "leaky_relu",
    ("x", "negative_slope"),
    jax.nn.leaky_relu,
    pieces=(lambda x, slope: slope * x, lambda x, slope: x),
    kinks=lambda slope: (0.0,),
)


@op(
    "kinked",
    ties=((0.0, 0.01), (-0.0, 0.25), (0.0, -0.5), (0.0, 0.0), (0.0, 1.0), (0.0, 2.0)),
    counterparts=("torch.nn.functional:leaky_relu(x, negative_slope)", "jax.nn:leaky_relu(x, negative_slope)"),
)
def leaky_relu(x: ArrayLike, negative_slope: ArrayLike = 0.01) -> jax.Array:
    r"""The leaky rectified linear unit, :math:`x` for :math:`x > 0`, else :math:`negative\_slope \cdot x`, elementwise.

    Ties: the gradient at 0 is ``negative_slope`` kept between 0 and 1, the point nearest to 0 between the slopes. NaN
    passes through with slope 1.

    Args:
      x: real array or number.
      negative_slope: the slope to the left of 0, a number or an array that broadcasts against ``x``.

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: the shapes do not broadcast.

    Counterparts: `torch.nn.functional.leaky_relu` (``negative_slope`` at 0), `jax.nn.leaky_relu` (1 at 0).

    >>> [round(float(jax.grad(leaky_relu)(0.0, slope)), 2) for slope in (-0.5, 0.01, 2.0)]
    [0.0, 0.01, 1.0]
    """
    return _leaky_relu(x, negative_slope)
