"""The selection ops: the value is one of the operands."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxclamp._record import op
from jaxclamp._rules.conventions import Convention
from jaxclamp._rules.differentiate import Applied
from jaxclamp._rules.operands import NUMBER
from jaxclamp._rules.selection import selection

__all__ = ["clamp", "clamp_max", "clamp_min", "clip", "hard_tanh", "hardtanh", "maximum", "minimum", "relu", "relu6"]

_clamp = selection("clamp", min=jnp.maximum, max=jnp.minimum)
_clamp_from_below = selection("clamp", min=jnp.maximum)
_clamp_from_above = selection("clamp", max=jnp.minimum)
_unclamped = selection("clamp")


@op(
    "selection",
    tie_points=(
        (0.0, 0.0, 6.0),
        (-0.0, 0.0, 6.0),
        (6.0, 0.0, 6.0),
        (2.0, 2.0, 2.0),
        (-1.0, 2.0, 2.0),
        (4.0, 2.0, 2.0),
        (1.0, 2.0, -5.0),
        (-5.0, 2.0, -5.0),
        (2.0, 2.0, -5.0),
        (0.0, 0.0, None),
        (6.0, None, 6.0),
    ),
    counterparts=("torch:clamp(x, min, max, out=out)", "jax.numpy:clip(x, min, max)", "jax.lax:clamp(min, x, max)"),
)
def clamp(
    x: ArrayLike, min: ArrayLike | None = None, max: ArrayLike | None = None, *, ties: Convention = "min_norm"
) -> Applied[jax.Array]:
    r"""``x`` kept between two bounds, :math:`\min(\max(x, min), max)`, elementwise; with ``min > max`` it is ``max``.

    Ties: the operands tied for the value share the gradient evenly (1/2 or 1/3 each) when all of them are
    differentiated; when one of them is not, such as a bound given as a number, every gradient is 0. NaN operands are
    the value and take the gradient.

    Args:
      x: real array or number.
      min, max: bounds, or None for no bound; they broadcast against ``x``; dtypes promote as in `jax.numpy`. Without
        any bound the result is ``x``.
      ties: the convention at ties: ``"min_norm"``, or ``"inclusive"`` (all to the first tied operand in the order x,
        min, max), ``"exclusive"`` (to the other tied ones), ``"balanced"`` (evenly, differentiated or not).

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: the shapes do not broadcast, or ``ties`` is unknown.
      OverflowError: an integer bound does not fit the integer dtype of ``x``.

    Counterparts: `torch.clamp` (numbers as bounds: ``"inclusive"`` up to 2.13, ``"exclusive"`` from 2.14 on),
    `jax.numpy.clip`, `jax.lax.clamp` (which has the bounds around ``x``). Also called ``clip``.

    >>> jax.vmap(jax.grad(lambda x: clamp(x, 0.0, 6.0)))(jnp.array([-1.0, 0.0, 3.0, 6.0])).tolist()
    [0.0, 0.0, 1.0, 0.0]
    >>> [round(float(g), 3) for g in jax.grad(clamp, argnums=(0, 1, 2))(2.0, 2.0, 2.0)]
    [0.333, 0.333, 0.333]
    """
    if min is None:
        return Applied(_unclamped[ties], (x,)) if max is None else Applied(_clamp_from_above[ties], (x, max))
    if max is None:
        return Applied(_clamp_from_below[ties], (x, min))
    return Applied(_clamp[ties], (x, min, max))


clip = clamp


_relu = selection("relu", zero=jnp.maximum)


@op("selection", tie_points=((0.0,), (-0.0,)), counterparts=("torch.nn.functional:relu(x, inplace)", "jax.nn:relu(x)"))
def relu(x: ArrayLike, *, ties: Convention = "min_norm") -> Applied[jax.Array]:
    r"""The rectified linear unit, :math:`\max(x, 0)`, elementwise.

    Ties: the gradient at 0 is 0. At NaN, which is the value, it is 1.

    Args:
      x: real array or number; shape and dtype are those of the result.
      ties: the convention at 0: ``"min_norm"`` and ``"exclusive"`` 0, ``"inclusive"`` 1, ``"balanced"`` 1/2.

    Raises:
      TypeError: ``x`` is complex or not numeric.
      ValueError: ``ties`` is unknown.

    Counterparts: `torch.relu`, `jax.nn.relu`. Source: Bertoin et al. 2021, arXiv 2106.12915, on the choice of relu'(0).

    >>> jax.vmap(jax.grad(relu))(jnp.array([-1.0, 0.0, 1.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    # An int and not 0.0, so that integers stay integers.
    return Applied(_relu[ties], (x, 0))


_maximum = selection("maximum", y=jnp.maximum)


@op(
    "selection",
    tie_points=((0.0, 0.0), (-0.0, 0.0), (2.5, 2.5)),
    counterparts=("torch:maximum(x, y, out=out)", "jax.numpy:maximum(x, y)", "jax.lax:max(x, y)"),
)
def maximum(x: ArrayLike, y: ArrayLike, *, ties: Convention = "min_norm") -> Applied[jax.Array]:
    r"""The larger of two operands, :math:`\max(x, y)`, elementwise.

    Ties: at ``x == y`` each operand gets 1/2 when both are differentiated, and 0 when only one is. A NaN operand is the
    value and takes the gradient.

    Args:
      x, y: real arrays or numbers whose shapes broadcast; dtypes promote as in `jax.numpy`.
      ties: the convention at ties: ``"min_norm"``, or ``"inclusive"`` (all to ``x``), ``"exclusive"`` (all to ``y``),
        ``"balanced"`` (1/2 each, differentiated or not).

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: the shapes do not broadcast, or ``ties`` is unknown.

    Counterparts: `torch.maximum`, `jax.numpy.maximum` (both ``"balanced"``).

    >>> float(jax.grad(maximum)(0.0, 0.0))  # like relu
    0.0
    >>> [float(g) for g in jax.grad(maximum, argnums=(0, 1))(0.0, 0.0)]
    [0.5, 0.5]
    """
    return Applied(_maximum[ties], (x, y))


_minimum = selection("minimum", y=jnp.minimum)


@op(
    "selection",
    tie_points=((0.0, 0.0), (-0.0, 0.0), (2.5, 2.5)),
    counterparts=("torch:minimum(x, y, out=out)", "jax.numpy:minimum(x, y)", "jax.lax:min(x, y)"),
)
def minimum(x: ArrayLike, y: ArrayLike, *, ties: Convention = "min_norm") -> Applied[jax.Array]:
    r"""The smaller of two operands, :math:`\min(x, y)`, elementwise.

    Ties: at ``x == y`` each operand gets 1/2 when both are differentiated, and 0 when only one is. A NaN operand is the
    value and takes the gradient.

    Args:
      x, y: real arrays or numbers whose shapes broadcast; dtypes promote as in `jax.numpy`.
      ties: the convention at ties: ``"min_norm"``, or ``"inclusive"`` (all to ``x``), ``"exclusive"`` (all to ``y``),
        ``"balanced"`` (1/2 each, differentiated or not).

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: the shapes do not broadcast, or ``ties`` is unknown.

    Counterparts: `torch.minimum`, `jax.numpy.minimum` (both ``"balanced"``).

    >>> [float(g) for g in jax.grad(minimum, argnums=(0, 1))(3.0, 3.0)]
    [0.5, 0.5]
    """
    return Applied(_minimum[ties], (x, y))


_clamp_min = selection("clamp_min", min=jnp.maximum)


@op(
    "selection",
    tie_points=((0.0, 0.0), (-0.0, 0.0), (2.5, 2.5)),
    counterparts=("torch:clamp_min(x, min, out=out)", "jax.numpy:clip(x, min)"),
)
def clamp_min(x: ArrayLike, min: ArrayLike, *, ties: Convention = "min_norm") -> Applied[jax.Array]:
    r"""``x`` bounded from below, :math:`\max(x, min)`, elementwise.

    Ties: at ``x == min`` the gradient of ``x`` is 0 when the bound is not differentiated, and 1/2 for each when it is.
    A NaN operand is the value and takes the gradient.

    Args:
      x, min: real arrays or numbers whose shapes broadcast; dtypes promote as in `jax.numpy`.
      ties: the convention at ties: ``"min_norm"``, or ``"inclusive"`` (all to ``x``), ``"exclusive"`` (all to ``min``),
        ``"balanced"`` (1/2 each, differentiated or not).

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: the shapes do not broadcast, or ``ties`` is unknown.
      OverflowError: an integer bound does not fit the integer dtype of ``x``.

    Counterparts: `torch.clamp_min`; ``jnp.clip(x, min)``.

    >>> jax.vmap(jax.grad(lambda x: clamp_min(x, 0.0)))(jnp.array([-1.0, 0.0, 1.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    return Applied(_clamp_min[ties], (x, min))


_clamp_max = selection("clamp_max", max=jnp.minimum)


@op(
    "selection",
    tie_points=((0.0, 0.0), (-0.0, 0.0), (6.0, 6.0)),
    counterparts=("torch:clamp_max(x, max, out=out)", "jax.numpy:clip(x, max=max)"),
)
def clamp_max(x: ArrayLike, max: ArrayLike, *, ties: Convention = "min_norm") -> Applied[jax.Array]:
    r"""``x`` bounded from above, :math:`\min(x, max)`, elementwise.

    Ties: at ``x == max`` the gradient of ``x`` is 0 when the bound is not differentiated, and 1/2 for each when it is.
    A NaN operand is the value and takes the gradient.

    Args:
      x, max: real arrays or numbers whose shapes broadcast; dtypes promote as in `jax.numpy`.
      ties: the convention at ties: ``"min_norm"``, or ``"inclusive"`` (all to ``x``), ``"exclusive"`` (all to ``max``),
        ``"balanced"`` (1/2 each, differentiated or not).

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: the shapes do not broadcast, or ``ties`` is unknown.
      OverflowError: an integer bound does not fit the integer dtype of ``x``.

    Counterparts: `torch.clamp_max`; ``jnp.clip(x, max=max)``.

    >>> jax.vmap(jax.grad(lambda x: clamp_max(x, 6.0)))(jnp.array([5.0, 6.0, 7.0])).tolist()
    [1.0, 0.0, 0.0]
    """
    return Applied(_clamp_max[ties], (x, max))


_relu6 = selection("relu6", zero=jnp.maximum, six=jnp.minimum)


@op(
    "selection",
    tie_points=((0.0,), (-0.0,), (6.0,)),
    counterparts=("torch.nn.functional:relu6(x, inplace)", "jax.nn:relu6(x)"),
)
def relu6(x: ArrayLike, *, ties: Convention = "min_norm") -> Applied[jax.Array]:
    r"""The rectified linear unit capped at 6, :math:`\min(\max(x, 0), 6)`, elementwise.

    Ties: the gradient at 0 and at 6 is 0. At NaN, which is the value, it is 1.

    Args:
      x: real array or number; shape and dtype are those of the result.
      ties: the convention at 0 and 6: ``"min_norm"`` and ``"exclusive"`` 0, ``"inclusive"`` 1, ``"balanced"`` 1/2.

    Raises:
      TypeError: ``x`` is complex or not numeric.
      ValueError: ``ties`` is unknown.

    Counterparts: `torch.nn.functional.relu6`, `jax.nn.relu6`.

    >>> jax.vmap(jax.grad(relu6))(jnp.array([0.0, 3.0, 6.0])).tolist()
    [0.0, 1.0, 0.0]
    """
    return Applied(_relu6[ties], (x, 0, 6))


_hardtanh = selection("hardtanh", min_val=jnp.maximum, max_val=jnp.minimum)


@op(
    "selection",
    tie_points=((-1.0, -1.0, 1.0), (1.0, -1.0, 1.0), (0.5, 0.5, 0.5)),
    counterparts=("torch.nn.functional:hardtanh(x, min_val, max_val, inplace)", "jax.nn:hard_tanh(x)"),
)
def hardtanh(
    x: ArrayLike, min_val: ArrayLike = -1.0, max_val: ArrayLike = 1.0, *, ties: Convention = "min_norm"
) -> Applied[jax.Array]:
    r"""The hard tanh, :math:`\min(\max(x, min\_val), max\_val)`, elementwise.

    Ties: as `clamp`; with numbers as bounds the gradient at both bounds is 0.

    Args:
      x: real array or number.
      min_val, max_val: the ends of the linear region, numbers or arrays that broadcast against ``x``.
      ties: the convention at the bounds, as for `clamp`.

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: ``min_val > max_val`` (checked for numbers), the shapes do not broadcast, or ``ties`` is unknown.

    Counterparts: `torch.nn.functional.hardtanh`, `jax.nn.hard_tanh` (bounds -1 and 1). Also called ``hard_tanh``.

    >>> jax.vmap(jax.grad(hardtanh))(jnp.array([-1.0, 0.0, 1.0])).tolist()
    [0.0, 1.0, 0.0]
    """
    if isinstance(min_val, NUMBER) and isinstance(max_val, NUMBER) and min_val > max_val:
        raise ValueError(f"hardtanh: min_val={min_val} is greater than max_val={max_val}; swap them.")
    return Applied(_hardtanh[ties], (x, min_val, max_val))


hard_tanh = hardtanh
