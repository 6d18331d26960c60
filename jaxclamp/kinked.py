"""The kinked ops of one variable: smooth pieces that meet at kinks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxclamp._registry import op
from jaxclamp._rules import Kinked

__all__ = ["abs"]

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
