"""The transformation `as_of`: the same function with the gradients of a version of torch, or of JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
from jax.extend.core import JaxprEqn, Literal
from jax.extend.core import primitives as p

from jaxclamp._rules.differentiate import Applied
from jaxclamp._rules.kinked import Kinked, sided
from jaxclamp._rules.operands import check_function
from jaxclamp._rules.selection import Selection, versioned
from jaxclamp._shared.version_derivatives import VERSIONS, Version, version_of
from jaxclamp._transforms.inner_derivatives import warn_of_inner_derivatives
from jaxclamp._transforms.jaxprs import Descend, inlined, transformed
from jaxclamp._transforms.recognition import Recognized, recognized

P = ParamSpec("P")
R = TypeVar("R")


def as_of(version: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    r"""Return a transformation that gives a JAX function the gradients of a version of torch, or of JAX.

    It is for a port that has to reproduce a training. Under ``as_of("torch 2.13")``, :math:`\min(\max(x, 0), 6)` by
    `jax.numpy.clip` has the gradient that `torch.clamp` has in that version, `jax.nn.leaky_relu` that of
    `torch.nn.functional.leaky_relu`, and so on: each function that `min_norm` rewrites gets the gradient of its
    counterpart, which the record of the op names. Under ``as_of("jax 0.10.2")`` a later version of JAX has the
    gradients of 0.10.2. If the installed JAX is recorded with the same gradients, the function stays as it is.

    Ties: as in that version in reverse mode, also where that is no subgradient; forward mode has the same weights. A
    bound that is a number in the traced function counts as a number in torch, any other bound as a tensor. At NaN a
    selection op has the gradient of that version.

    It reaches into what `min_norm` reaches into, and leaves what that leaves: ``sort``, ``cummax``, selects written by
    hand, derivatives that the function takes itself, of which it warns, and the ops of jaxclamp, which have a
    convention of their own.

    Args:
      version: ``"torch 2.11"`` to ``"torch 2.15"``, or ``"jax 0.10.0"`` to ``"jax 0.12.0.1"``; ``"torch 2.13"``, or
        ``"2.13"``, is the newest 2.13 that is recorded.

    Returns:
      A function of a function, and a decorator. What it returns has the signature and the results of that function.

    Raises:
      TypeError: ``version`` is no text, or what is decorated is not callable.
      ValueError: there is no record of that version.

    >>> import jax, jax.numpy as jnp
    >>> def loss(x):
    ...     return jnp.sum(jnp.clip(x, 0.0, 6.0))
    >>> x = jnp.array([0.0, 3.0, 6.0])
    >>> for version in ("torch 2.13", "torch 2.15", "jax 0.10.2"):
    ...     print(jax.grad(as_of(version)(loss))(x).tolist())
    [1.0, 1.0, 1.0]
    [0.0, 1.0, 0.0]
    [0.5, 1.0, 0.5]
    """
    target = version_of("as_of", version, "torch", "jax")

    def prepare(jaxpr: Any) -> Any:
        warn_of_inner_derivatives(f'jaxclamp.as_of("{version}")', functools.partial(_stays, target), jaxpr)
        return jaxpr

    def decorate(fun: Callable[P, R]) -> Callable[P, R]:
        check_function("as_of", fun)
        if target.framework == "jax" and f"jax {jax.__version__}" in VERSIONS["jax"]:
            return fun  # all recorded versions of JAX have the same gradients
        return transformed(fun, functools.partial(_replaced, target), prepare)

    return decorate


def _stays(version: Version, eqn: JaxprEqn) -> bool:
    """Return whether ``eqn`` stays as it is, apart from its bodies."""
    # A version of JAX is known by its primitives, so its library functions are looked into. Those with a derivative of
    # their own, jax.nn.relu and relu6, are the same in all versions.
    is_library_function = eqn.primitive is p.jit_p and version.framework == "jax"
    return is_library_function or eqn.primitive is p.custom_jvp_call_p


def _replaced(version: Version, eqn: JaxprEqn, descend: Descend) -> list[JaxprEqn]:
    """Return the equations that take the place of ``eqn``, as `replaced` of `min_norm` does."""
    op = None if _stays(version, eqn) or len(eqn.outvars) != 1 else recognized(eqn)
    if op is None:
        return descend(eqn)
    # x is an array, and a number in the program a literal.
    has_numbers = sum(not isinstance(atom, Literal) for atom in eqn.invars) == 1
    return inlined(lambda *operands: _applied(version, op, has_numbers, *operands).value(), eqn)


def _applied(version: Version, op: Recognized, has_numbers: bool, *operands: jax.Array) -> Applied[Any]:
    """Return the op with its derivative in ``version``, where its bounds are numbers or not."""
    if op.name == "max_pool":
        return op.applied("inclusive", *operands)  # the first of the tied elements is the one at the index
    rule, arranged = op.applied("min_norm", *operands)
    if isinstance(rule, Selection) and op.name in version.ops:
        rule = versioned(rule, version.weights(op.name, has_numbers))
    elif isinstance(rule, Kinked) and (side := version.side(op.name)) is not None:
        rule = sided(rule, side)
    return Applied(rule, arranged)
