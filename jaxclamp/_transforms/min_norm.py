"""The transformation `min_norm`: the same function with the gradients of jaxclamp.

The function is traced, and each equation that computes an op is replaced by that op. A jaxpr before and after::

    { lambda ; a:f32[]. let b:f32[] = max a 0.0:f32[] in (b,) }

    { lambda ; a:f32[]. let
        b:f32[] = custom_jvp_call[name=maximum ...] a 0.0:f32[]
      in (b,) }
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from jax.extend.core import JaxprEqn
from jax.extend.core import primitives as p

from jaxclamp._rules.conventions import Convention, check_convention
from jaxclamp._rules.operands import check_function
from jaxclamp._transforms.inner_derivatives import warn_of_inner_derivatives
from jaxclamp._transforms.jaxprs import Descend, inlined, transformed
from jaxclamp._transforms.recognition import name_of_jaxclamp_op, recognized
from jaxclamp._transforms.sums import with_slopes_of_sums

P = ParamSpec("P")
R = TypeVar("R")


@overload
def min_norm(fun: Callable[P, R], *, ties: Convention = "min_norm") -> Callable[P, R]: ...
@overload
def min_norm(*, ties: Convention = "min_norm") -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def min_norm(fun: Any = None, *, ties: Convention = "min_norm") -> Any:
    r"""Return the function with the min-norm gradient at every tie: :math:`\max(x, y)` becomes `maximum`, and so on.

    Rewritten are, for real operands, the primitives ``max``, ``min``, ``clamp``, ``abs``, ``reduce_max``,
    ``reduce_min`` and ``reduce_window_max``, whichever functions they come from (`jax.numpy.maximum`, `jax.lax.clamp`,
    pooling layers, ...), and calls of the library functions that hide a kink in a select: `jax.nn.leaky_relu`, ``elu``,
    ``selu``, ``celu``, ``hard_tanh``, `jax.numpy.clip`, ``fmax``, ``fmin``, or in a ``relu6``: ``hard_sigmoid``,
    ``hard_swish``, or that have a slope without bound at 0: `jax.numpy.linalg.norm` of order 2 and `jax.numpy.hypot`.
    Those are known by their formula, never by their name alone. Where all operands of `jax.nn.logsumexp` or
    `jax.numpy.logaddexp` are minus infinity, these have the gradient 0, instead of NaN, and so has the root of a sum of
    powers where all are 0, as in `jax.numpy.linalg.vector_norm`. It reaches into ``jit``, ``scan``, ``while``,
    ``cond``, ``switch``, ``checkpoint``, ``vmap``, ``shard_map``, ``compute_on``, ``xla_metadata_call`` and
    ``program_order``, however they are nested. Values, effects, shardings, donation and names stay what they are, and
    so do functions with a derivative of their own (``custom_jvp``, ``custom_vjp``), and what is inside
    ``custom_linear_solve``, ``custom_root`` and ``custom_vmap``. `jax.nn.relu` and ``relu6``, which have one, are
    rewritten all the same under another convention.

    Apply it to the function that is differentiated. A derivative that ``fun`` takes itself, as a training step does by
    `jax.grad`, stays that of JAX, with a warning. It cannot see a kink in a select that is written by hand,
    ``where(x > 0, x, 0)``, nor a choice that Python makes. ``sort``, ``top_k``, ``cummax``, ``cummin``,
    ``reduce_window_min``, ``scatter_max``, ``scatter_min`` and their kin stay as in JAX.

    Args:
      fun: a function of any arguments, pure as for `jax.jit`: what it changes, it returns. Leaves that are JAX arrays
        are traced; all others, Python numbers and NumPy arrays among them, are constants, and may steer Python. Without
        it the result is a decorator, ``@min_norm(ties="inclusive")``.
      ties: the convention at ties of the ops that take one, as for `maximum`.

    Returns:
      A function with the signature and the results of ``fun``. Each call traces ``fun`` anew, so wrap it in `jax.jit`.

    Raises:
      TypeError: ``fun`` is not callable.
      ValueError: ``ties`` is unknown; or, when called, ``fun`` writes to its arguments.

    >>> import jax, jax.numpy as jnp
    >>> def loss(x):
    ...     return jnp.sum(jax.nn.leaky_relu(jnp.abs(x)) + jnp.clip(x, 0.0, 6.0))
    >>> jax.grad(loss)(jnp.zeros(2)).tolist()
    [1.5, 1.5]
    >>> jax.grad(min_norm(loss))(jnp.zeros(2)).tolist()
    [0.0, 0.0]
    """
    check_convention("min_norm", ties)
    if fun is None:
        return functools.partial(min_norm, ties=ties)
    check_function("min_norm", fun)

    def stays(eqn: JaxprEqn) -> bool:
        # jax.nn.relu and relu6 have the gradient of minimum norm as they are.
        return eqn.primitive is p.custom_jvp_call_p and (ties == "min_norm" or not _is_of_jax(eqn))

    def replace(eqn: JaxprEqn, descend: Descend) -> list[JaxprEqn]:
        return descend(eqn) if stays(eqn) else replaced(ties, eqn, descend)

    def prepare(jaxpr: Any) -> Any:
        warn_of_inner_derivatives("jaxclamp.min_norm", stays, jaxpr)
        return with_slopes_of_sums(jaxpr)

    return transformed(fun, replace, prepare)


def _is_of_jax(eqn: JaxprEqn) -> bool:
    """Return whether a call with a derivative of its own is of JAX, such as `jax.nn.relu`, which is an inner jit."""
    body = eqn.params["call_jaxpr"].eqns
    return len(body) == 1 and body[0].primitive is p.jit_p and not name_of_jaxclamp_op(eqn)


def replaced(ties: Convention, eqn: JaxprEqn, descend: Descend) -> list[JaxprEqn]:
    """Return what takes the place of ``eqn``: the op of jaxclamp that it is, or ``eqn`` with its bodies rewritten.

    So ``c = max a b`` becomes ``c = custom_jvp_call[name=maximum] a b``. Functions with a derivative of their own, such
    as `jax.nn.relu`, are replaced too. An equation with several results has been differentiated already, and stays.
    """
    op = recognized(eqn) if len(eqn.outvars) == 1 else None
    return descend(eqn) if op is None else inlined(functools.partial(op.value, ties), eqn)
