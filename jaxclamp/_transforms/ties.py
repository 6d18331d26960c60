"""The transformation `ties`: where in a function ties happen, how often, and how far they move its gradient."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxclamp._rules.conventions import Convention
from jaxclamp._rules.operands import check_function, is_floating
from jaxclamp._shared.tie_report import Influence, TieReport
from jaxclamp._transforms.counting import counting
from jaxclamp._transforms.jaxprs import transformed
from jaxclamp._transforms.min_norm import replaced

P = ParamSpec("P")
R = TypeVar("R")


def ties(fun: Callable[P, R], *, influence: bool = False, has_aux: bool = False) -> Callable[P, tuple[R, TieReport]]:
    r"""Return the same function, which adds to its result a report of the ties that happened: ``(result, report)``.

    Counted is whatever `min_norm` rewrites, the ops of jaxclamp, and `jax.nn.relu` and ``relu6``: per line of the
    source and per module, the elements of the results, and how many of them were on a tie or a kink; one that is NaN is
    on none, and what `jax.lax.stop_gradient` alone reads, such as the maximum in `jax.nn.softmax`, does not count. Nor
    do norms but `jax.numpy.hypot` and, where ``fun`` takes no derivative of it, `jax.numpy.linalg.norm` of order 2. A
    loop counts in every step, a branch when it is taken, a function under ``shard_map`` once per device; what
    ``checkpoint`` computes a second time does not count. In a `jax.vmap` within ``fun`` JAX computes all branches, and
    loops of all elements as long as the longest: they count. `count_ties` inside of the ``vmap`` leaves them out. A
    select that looks like a kink written by hand, ``where(x > 0, x, 0)``, is listed as a suspect, in this plain form
    only: of a comparison itself, not of ``~``, ``&`` or ``|`` of it, nor of arithmetic inside it; neither is
    ``jnp.select``, nor a product with a mask. Suspects too are ``floor``, ``ceil``, ``round``, ``rem``, ``atan2`` and
    the bits of a number, which ``jnp.signbit`` and ``copysign`` read, with the elements at which they jump; products in
    a gradient that ``fun`` computes, where 0 meets a number that is not finite, "0 met infinity"; and, not looked into,
    ``reduce_precision``, ``approx_max_k``, calls of a ``custom_vjp``, callbacks, ``custom_linear_solve``,
    ``pallas_call``, ``run_state`` and ``ffi_call``. Other functions with a derivative of their own are not looked into
    either, and what `jax.random` compares inside counts too.

    The module is known by the scopes of `jax.named_scope`. Flax linen enters one for each module, ``Net/Block_0``, and
    the layers of ``equinox.nn`` one with the name of their class. Modules of Flax nnx, and one's own of Equinox, enter
    none: decorate their methods, ``@jax.named_scope("Block")``.

    Counting changes what XLA fuses, so that a compiled result may be rounded differently.

    Args:
      fun: a function of any arguments, as for `min_norm`: what NumPy computes of arrays of NumPy does not count. It may
        contain transformations, such as a whole training step under ``jit``; ``ties`` itself runs outside of them, and
        `count_ties` inside.
      influence: whether to compute how far another convention moves the gradient of ``fun``, with respect to the
        floating point numbers in its first positional argument. The result of ``fun`` has to be a scalar. The
        gradient of minimum norm, here that of `jax.nn.relu`, ``relu6`` and the elementwise ops of jaxclamp too, is
        compared with that under ``ties="inclusive"`` and with that of ``fun`` as it is; the larger distance counts.
        The reductions of jaxclamp stay what they are.
      has_aux: whether ``fun`` returns a pair, as for `jax.grad`: the scalar, and whatever else.

    Raises:
      TypeError: ``fun`` is not callable; or, when called, it is within another transformation, or there is nothing to
        differentiate with respect to, or no scalar.
      ValueError: ``fun`` writes to its arguments.

    >>> value, report = ties(lambda x: jnp.maximum(x, 0.0).sum(), influence=True)(jnp.array([-1.0, 0.0, 0.0, 3.0]))
    >>> report.elements, report.tied
    (4, 2)
    >>> round(report.influence.norm, 4), round(report.influence.relative, 4)
    (1.4142, 1.4142)
    """
    check_function("ties", fun)

    @functools.wraps(fun)
    def run(*args: P.args, **kwargs: P.kwargs) -> tuple[R, TieReport]:
        copies = _copied((args, kwargs)) if influence else None  # the run may donate the arguments
        result, counts = counting(fun, met_infinity=True)(*args, **kwargs)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((result, counts))):
            raise TypeError(
                "ties: a report takes values; call it outside of jit, grad and vmap, with those inside fun, or call "
                "jaxclamp.count_ties inside of them."
            )
        if influence:
            _refuse_unless_scalar(result, has_aux)
        report = counts.report()
        return result, dataclasses.replace(report, influence=_influence(fun, has_aux, *copies)) if copies else report

    return run


def _refuse_unless_scalar(result: Any, has_aux: bool) -> None:
    """Raise unless ``result`` is a scalar, or with ``has_aux`` a pair that begins with one."""
    if has_aux and not (isinstance(result, tuple) and len(result) == 2):
        raise TypeError(f"ties: has_aux=True, and fun returned {type(result).__name__}; return (scalar, auxiliary).")
    value = result[0] if has_aux else result
    if not jax.tree_util.all_leaves([value]) or jnp.shape(value):
        what = f"an array of shape {jnp.shape(value)}" if hasattr(value, "shape") else f"a {type(value).__name__}"
        raise TypeError(
            f"ties: influence=True differentiates a scalar, and fun returned {what}; return a scalar, or with "
            "has_aux=True a pair of it and whatever else."
        )


def _influence(fun: Callable[..., Any], has_aux: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Influence:
    """Compute how far another convention moves the gradient of ``fun`` by the floats in its first argument."""
    leaves, structure = jax.tree.flatten((args, kwargs))
    active = [i for i, leaf in enumerate(jax.tree.leaves(args[:1])) if _can_move(leaf)]
    if not active:
        raise TypeError(
            "ties: influence=True differentiates with respect to the first positional argument, in which there are no "
            "floating point numbers; pass there what the gradient is of, for example as jnp.asarray(..., float)."
        )

    def gradient(ties: Convention | None) -> np.ndarray[Any, Any]:
        under = fun if ties is None else transformed(fun, functools.partial(replaced, ties))
        leaves_of_run = _copied(leaves)  # as this run, too, may donate them

        def restricted(at: list[jax.Array]) -> jax.Array:
            moved = dict(zip(active, at, strict=True))
            args, kwargs = jax.tree.unflatten(structure, [moved.get(i, leaf) for i, leaf in enumerate(leaves_of_run)])
            return under(*args, **kwargs)[0] if has_aux else under(*args, **kwargs)

        gradients = jax.grad(restricted)([jnp.asarray(leaves_of_run[i]) for i in active])
        return np.concatenate([np.asarray(g, np.float64).ravel() for g in gradients])

    return Influence.of(gradient)


def _can_move(leaf: Any) -> bool:
    """Return whether a leaf of the arguments is an array of floats, or a float."""
    return isinstance(leaf, float) or (isinstance(leaf, jax.Array | np.ndarray | np.generic) and is_floating(leaf))


def _copied(tree: Any) -> Any:
    """Return ``tree`` with its JAX arrays copied, so that donating one leaves the copy alive."""
    return jax.tree.map(lambda leaf: jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf, tree)
