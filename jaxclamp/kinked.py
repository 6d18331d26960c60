"""The kinked ops of one variable: smooth pieces that meet at kinks."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxclamp._record import op
from jaxclamp._rules.conventions import Convention
from jaxclamp._rules.differentiate import Applied
from jaxclamp._rules.kinked import Kinked, identity
from jaxclamp._rules.operands import NUMBER
from jaxclamp._rules.selection import affine, selection

__all__ = [
    "abs",
    "absolute",
    "celu",
    "elu",
    "hard_sigmoid",
    "hard_swish",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "prelu",
    "selu",
    "softshrink",
    "threshold",
]

# With these, numbers of mean 0 and variance 1 keep both from layer to layer. The digits are those that Klambauer et al.
# publish.
SELU_SCALE, SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717


def _zero(xp: Any, x: Any, *_: Any) -> Any:
    """Return 0, the piece of slope 0."""
    return xp.zeros_like(x)


_abs = Kinked("abs", ("x",), jnp.abs, pieces=(lambda xp, x: -x, identity), kinks=lambda xp: (0.0,))


@op(
    "kinked", tie_points=((0.0,), (-0.0,)), counterparts=("torch:abs(x, out=out)", "jax.numpy:abs(x)", "jax.lax:abs(x)")
)
def abs(x: ArrayLike) -> Applied[jax.Array]:
    r"""The absolute value, :math:`\max(x, -x)`, elementwise.

    Ties: the gradient at 0 is 0, between the slopes -1 and 1. NaN passes through with slope 1.

    Args:
      x: real array or number; shape and dtype are those of the result.

    Raises:
      TypeError: ``x`` is complex or not numeric.

    Counterparts: `torch.abs` (0 at 0), `jax.numpy.abs` (1 at 0). Also called ``absolute``.

    >>> jax.vmap(jax.grad(abs))(jnp.array([-2.0, 0.0, 2.0])).tolist()
    [-1.0, 0.0, 1.0]
    """
    return Applied(_abs, (x,))


absolute = abs


_leaky_relu = Kinked(
    "leaky_relu",
    ("x", "negative_slope"),
    jax.nn.leaky_relu,
    pieces=(lambda xp, x, slope: slope * x, identity),
    kinks=lambda xp, slope: (0.0,),
)


@op(
    "kinked",
    tie_points=((0.0, 0.01), (-0.0, 0.25), (0.0, -0.5), (0.0, 0.0), (0.0, 1.0), (0.0, 2.0)),
    counterparts=("torch.nn.functional:leaky_relu(x, negative_slope, inplace)", "jax.nn:leaky_relu(x, negative_slope)"),
)
def leaky_relu(x: ArrayLike, negative_slope: ArrayLike = 0.01) -> Applied[jax.Array]:
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
    return Applied(_leaky_relu, (x, negative_slope))


_prelu = dataclasses.replace(_leaky_relu, name="prelu", operands=("x", "weight"))


@op(
    "kinked",
    tie_points=((0.0, 0.25), (-0.0, 0.25), (0.0, -0.5), (0.0, 2.0)),
    counterparts=("torch.nn.functional:prelu(x, weight)",),
)
def prelu(x: ArrayLike, weight: ArrayLike) -> Applied[jax.Array]:
    r"""The leaky rectified linear unit with a learned slope, :math:`x` for :math:`x > 0`, else :math:`weight \cdot x`.

    Ties: the gradient of ``x`` at 0 is ``weight`` kept between 0 and 1, that of ``weight`` is 0. NaN passes through
    with slope 1.

    Args:
      x: real array or number; its channels lie along axis 1.
      weight: one number, or a vector with one per channel.

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: ``weight`` is neither one number nor a vector with one number per channel.

    Counterpart: `torch.nn.functional.prelu` (``weight`` at 0). Source: He et al. 2015, arXiv 1502.01852.

    >>> x = jnp.array([[-2.0, 0.0], [3.0, -1.0]])
    >>> jax.grad(lambda weight: prelu(x, weight).sum())(jnp.array([0.25, 0.5])).tolist()
    [-2.0, -1.0]
    """
    if np.size(weight) == 1:
        return Applied(_prelu, (x, jnp.reshape(weight, ()) if np.ndim(weight) else weight))
    channels = np.shape(x)[1] if np.ndim(x) > 1 else 1
    if np.shape(weight) != (channels,):
        raise ValueError(
            f"prelu: weight has shape {np.shape(weight)}, but x of shape {np.shape(x)} has {channels} channels "
            "along axis 1; give one number, or a vector with one per channel."
        )
    return Applied(_prelu, (x, jnp.reshape(weight, (1, channels, *(1,) * (np.ndim(x) - 2)))))


_elu = Kinked(
    "elu",
    ("x", "alpha"),
    jax.nn.elu,
    pieces=(lambda xp, x, alpha: alpha * xp.expm1(x), identity),
    kinks=lambda xp, alpha: (0.0,),
)


@op(
    "kinked",
    tie_points=((0.0, 1.0), (0.0, 2.0), (-0.0, 0.5), (0.0, -1.0), (0.0, 0.0)),
    counterparts=("torch.nn.functional:elu(x, alpha, inplace)", "jax.nn:elu(x, alpha)"),
)
def elu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Applied[jax.Array]:
    r"""The exponential linear unit, :math:`x` for :math:`x > 0`, else :math:`alpha\,(e^x - 1)`, elementwise.

    Ties: the gradient at 0 is ``alpha`` kept between 0 and 1. NaN passes through with slope 1.

    Args:
      x: real array or number.
      alpha: a number or an array that broadcasts against ``x``.

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: the shapes do not broadcast.

    Counterparts: `torch.nn.functional.elu`, `jax.nn.elu` (both ``alpha`` at 0). Source: Clevert et al. 2015, arXiv
    1511.07289.

    >>> [float(jax.grad(elu)(0.0, alpha)) for alpha in (-1.0, 0.5, 2.0)]
    [0.0, 0.5, 1.0]
    """
    return Applied(_elu, (x, alpha))


_selu = Kinked(
    "selu",
    ("x",),
    jax.nn.selu,
    pieces=(lambda xp, x: SELU_SCALE * SELU_ALPHA * xp.expm1(x), lambda xp, x: SELU_SCALE * x),
    kinks=lambda xp: (0.0,),
)


@op("kinked", tie_points=((0.0,), (-0.0,)), counterparts=("torch.nn.functional:selu(x, inplace)", "jax.nn:selu(x)"))
def selu(x: ArrayLike) -> Applied[jax.Array]:
    r"""The scaled exponential linear unit, :math:`1.0507\ldots \cdot elu(x, 1.6732\ldots)`, elementwise.

    Ties: the gradient at 0 is 1.0507..., the smaller of the two slopes. NaN passes through with slope 1.

    Args:
      x: real array or number; shape and dtype are those of the result.

    Raises:
      TypeError: ``x`` is complex or not numeric.

    Counterparts: `torch.nn.functional.selu`, `jax.nn.selu` (both 1.7580... at 0). Source: Klambauer et al. 2017, arXiv
    1706.02515.

    >>> round(float(jax.grad(selu)(0.0)), 4)
    1.0507
    """
    return Applied(_selu, (x,))


_celu = Kinked(
    "celu",
    ("x", "alpha"),
    jax.nn.celu,
    pieces=(lambda xp, x, alpha: alpha * xp.expm1(x / alpha), identity),
    kinks=lambda xp, alpha: (0.0,),
)


@op(
    "kinked",
    tie_points=((0.0, 1.0), (-0.0, 2.0), (0.0, 0.5)),
    counterparts=("torch.nn.functional:celu(x, alpha, inplace)", "jax.nn:celu(x, alpha)"),
)
def celu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Applied[jax.Array]:
    r"""The continuously differentiable elu, :math:`x` for :math:`x > 0`, else :math:`alpha\,(e^{x/alpha} - 1)`.

    Ties: none, the slopes at 0 agree: 1. NaN passes through with slope 1.

    Args:
      x: real array or number.
      alpha: a number or an array that broadcasts against ``x``, not 0.

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: ``alpha`` is the number 0, or the shapes do not broadcast.

    Counterparts: `torch.nn.functional.celu`, `jax.nn.celu`. Source: Barron 2017, arXiv 1704.07483.

    >>> float(jax.grad(celu)(0.0, 2.0))
    1.0
    """
    if isinstance(alpha, NUMBER) and alpha == 0:
        raise ValueError("celu: alpha=0 would divide by 0; give another number, or use relu.")
    return Applied(_celu, (x, alpha))


# The sigmoid is clamp(x, -3, 3), shifted to [0, 6] and scaled to [0, 1]: by 1/6.
_hardsigmoid = affine(selection("hardsigmoid", low=jnp.maximum, high=jnp.minimum), jax.nn.hard_sigmoid, 1 / 6)


@op(
    "kinked",
    tie_points=((-3.0,), (3.0,)),
    counterparts=("torch.nn.functional:hardsigmoid(x, inplace)", "jax.nn:hard_sigmoid(x)"),
)
def hardsigmoid(x: ArrayLike, *, ties: Convention = "min_norm") -> Applied[jax.Array]:
    r"""The piecewise linear sigmoid, :math:`(\min(\max(x, -3), 3) + 3) / 6`, elementwise.

    Ties: the gradient at -3 and at 3 is 0, at NaN 1/6.

    Args:
      x: real array or number; shape and dtype are those of the result.
      ties: the convention at -3 and 3: ``"min_norm"`` and ``"exclusive"`` 0, ``"inclusive"`` 1/6, ``"balanced"`` 1/12.

    Raises:
      TypeError: ``x`` is complex or not numeric.
      ValueError: ``ties`` is unknown.

    Counterparts: `torch.nn.functional.hardsigmoid`, `jax.nn.hard_sigmoid`. Also called ``hard_sigmoid``.

    >>> [round(float(jax.grad(hardsigmoid)(x)), 4) for x in (-3.0, 0.0, 3.0)]
    [0.0, 0.1667, 0.0]
    """
    return Applied(_hardsigmoid[ties], (x, -3.0, 3.0))


hard_sigmoid = hardsigmoid

_hardswish = Kinked(
    "hardswish",
    ("x",),
    jax.nn.hard_swish,
    pieces=(_zero, lambda xp, x: x * (x + 3) / 6, identity),
    kinks=lambda xp: (-3.0, 3.0),
)


@op(
    "kinked",
    tie_points=((-3.0,), (3.0,)),
    counterparts=("torch.nn.functional:hardswish(x, inplace)", "jax.nn:hard_swish(x)"),
)
def hardswish(x: ArrayLike) -> Applied[jax.Array]:
    r"""The piecewise quadratic swish, :math:`x \min(\max(x + 3, 0), 6) / 6`, elementwise.

    Ties: the gradient at -3, between -1/2 and 0, is 0; at 3, between 1 and 3/2, it is 1. NaN passes through with slope
    1.

    Args:
      x: real array or number; shape and dtype are those of the result.

    Raises:
      TypeError: ``x`` is complex or not numeric.

    Counterparts: `torch.nn.functional.hardswish`, `jax.nn.hard_swish`. Also called ``hard_swish``. Source: Howard et
    al. 2019, arXiv 1905.02244.

    >>> [float(jax.grad(hardswish)(x)) for x in (-3.0, 0.0, 3.0)]
    [0.0, 0.5, 1.0]
    """
    return Applied(_hardswish, (x,))


hard_swish = hardswish


def _ends(xp: Any, lambd: Any) -> tuple[Any, Any]:
    """Return the ends of the flat part, which is empty with a negative ``lambd``: both are 0 then."""
    half = xp.maximum(lambd, 0)
    return -half, half


_softshrink = Kinked(
    "softshrink",
    ("x", "lambd"),
    lambda x, lambd: jnp.where(jnp.abs(x) <= lambd, jnp.zeros_like(x), x - jnp.sign(x) * lambd),
    pieces=(lambda xp, x, lambd: x + lambd, _zero, lambda xp, x, lambd: x - lambd),
    kinks=_ends,
)


@op(
    "kinked",
    tie_points=((0.5, 0.5), (-0.5, 0.5), (2.0, 2.0), (0.0, 0.0)),
    counterparts=("torch.nn.functional:softshrink(x, lambd, out=out)",),
)
def softshrink(x: ArrayLike, lambd: ArrayLike = 0.5) -> Applied[jax.Array]:
    r"""The soft threshold, :math:`\operatorname{sign}(x) \max(|x| - lambd, 0)`, elementwise.

    Ties: the gradient at ``-lambd`` and ``lambd`` is 0; with ``lambd = 0`` the op is the identity, with slope 1 at 0.
    NaN passes through with slope 1.

    Args:
      x: real array or number.
      lambd: half the width of the flat part, a number or an array that broadcasts against ``x``, not negative.

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: ``lambd`` is a negative number, or the shapes do not broadcast.

    Counterpart: `torch.nn.functional.softshrink` (0 at both ends).

    >>> [float(jax.grad(softshrink)(x)) for x in (-1.0, -0.5, 0.0, 0.5)]
    [1.0, 0.0, 0.0, 0.0]
    """
    if isinstance(lambd, NUMBER) and lambd < 0:
        raise ValueError(f"softshrink: lambd={lambd} is negative; give 0 or more.")
    return Applied(_softshrink, (x, lambd))


_hardshrink = Kinked(
    "hardshrink",
    ("x", "lambd"),
    lambda x, lambd: jnp.where(jnp.abs(x) <= lambd, jnp.zeros_like(x), x),
    pieces=(identity, _zero, identity),
    kinks=_ends,
)


@op(
    "kinked",
    tie_points=((0.5, 0.5), (-0.5, 0.5), (2.0, 2.0), (0.0, 0.0)),
    counterparts=("torch.nn.functional:hardshrink(x, lambd, out=out)",),
)
def hardshrink(x: ArrayLike, lambd: ArrayLike = 0.5) -> Applied[jax.Array]:
    r"""The hard threshold, 0 for :math:`|x| \le lambd`, else :math:`x`, elementwise.

    Ties: the function jumps at ``-lambd`` and ``lambd``; the gradient there is 0, the slope of the branch that the
    value takes. With ``lambd <= 0`` the op is the identity, with slope 1 at 0. NaN passes through with slope 1.

    Args:
      x: real array or number.
      lambd: half the width of the flat part, a number or an array that broadcasts against ``x``; its gradient is 0.

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: the shapes do not broadcast.

    Counterpart: `torch.nn.functional.hardshrink` (0 at both ends).

    >>> [float(jax.grad(hardshrink)(x)) for x in (-1.0, -0.5, 0.0, 0.5)]
    [1.0, 0.0, 0.0, 0.0]
    """
    return Applied(_hardshrink, (x, lambd))


_threshold = Kinked(
    "threshold",
    ("x", "threshold", "value"),
    lambda x, threshold, value: jnp.where(x <= threshold, value, x),
    pieces=(lambda xp, x, threshold, value: value, identity),
    kinks=lambda xp, threshold, value: (threshold,),
)


@op(
    "kinked",
    tie_points=((1.0, 1.0, 5.0), (0.0, 0, 0), (-0.0, 0.0, 20.0)),
    counterparts=("torch.nn.functional:threshold(x, threshold, value, inplace, out=out)",),
)
def threshold(x: ArrayLike, threshold: ArrayLike, value: ArrayLike) -> Applied[jax.Array]:
    r"""The identity above a threshold, :math:`x` for :math:`x > threshold`, else :math:`value`, elementwise.

    Ties: at ``x == threshold`` the result is ``value``, so the gradient of ``x`` is 0 and that of ``value`` 1. NaN
    passes through with slope 1.

    Args:
      x: real array or number.
      threshold, value: numbers or arrays that broadcast against ``x``; the gradient of ``threshold`` is 0.

    Raises:
      TypeError: an operand is complex or not numeric.
      ValueError: the shapes do not broadcast.

    Counterpart: `torch.nn.functional.threshold`.

    >>> [float(jax.grad(threshold)(x, 1.0, 20.0)) for x in (0.0, 1.0, 2.0)]
    [0.0, 0.0, 1.0]
    """
    return Applied(_threshold, (x, threshold, value))
