"""Warns where a function takes derivatives itself, as a training step does: its transformation comes too late.

JAX differentiates while it traces. So the jaxpr of a step that calls `jax.grad` holds a maximum and, beside it, the
comparisons by which JAX shares the gradient among its operands. To replace the maximum changes nothing in them. Such
equations are known by their scope: JAX writes ``jvp(...)`` around the scopes of all that it differentiates.
"""

from collections.abc import Callable
from typing import Any

from jax.extend.core import JaxprEqn, jaxprs_in_params

from jaxclamp._transforms.jaxprs import WITH_BODIES, needed_by_stop_gradient
from jaxclamp._transforms.recognition import recognized
from jaxclamp._transforms.source_lines import SCOPES_OF_JAXCLAMP, located, place
from jaxclamp._transforms.undecided import warn_once


def warn_of_inner_derivatives(transformation: str, stays: Callable[[JaxprEqn], bool], jaxpr: Any) -> None:
    """Warn, once for each line, of the ops in ``jaxpr`` that are differentiated there already.

    ``stays`` says which equations the transformation leaves as they are.

    >>> import warnings, jax, jax.numpy as jnp
    >>> step = jax.make_jaxpr(lambda x: x - 0.1 * jax.grad(lambda x: jnp.maximum(x, 0.0))(x))(0.0)
    >>> with warnings.catch_warnings(record=True, action="always") as shown:
    ...     warn_of_inner_derivatives("min_norm", lambda eqn: False, step)
    >>> "min_norm comes too late for maximum" in str(shown[0].message)
    True
    """
    stopped = needed_by_stop_gradient(jaxpr)
    for eqn in jaxpr.eqns:
        stack = str(eqn.source_info.name_stack)
        is_of_jax = "jvp(" in stack and not any(scope in stack for scope in SCOPES_OF_JAXCLAMP)
        if is_of_jax and stopped.isdisjoint(eqn.outvars) and not stays(eqn) and (op := recognized(eqn)):
            text = (
                f"{transformation} comes too late for {op.name}, as the function takes the derivative itself, by "
                f"jax.grad or its kin; differentiate what {transformation} returns: jax.grad({transformation}(loss))"
            )
            warn_once(place(eqn), text)
        elif eqn.primitive.name in WITH_BODIES:
            for body in jaxprs_in_params(located(eqn).params):  # whose equations have the scopes of ``eqn``, too
                warn_of_inner_derivatives(transformation, stays, body)
