"""Logarithms of sums of exponentials where all terms are 0: there their slope is 0, and not 0 / 0.

`jax.nn.logsumexp` and `jax.numpy.logaddexp` are minus infinity where all operands are, as in a row that is masked as a
whole. A finite step of the operands does not change that. So the function counts as constant there, with the slope 0.
JAX gives NaN, as it divides by the sum, or subtracts infinities.

The 0 is a number, by which cotangents are multiplied. So an infinite slope of the operands still makes NaN of it, as in
``logsumexp(log(x))`` at 0, which is the logarithm of a sum.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Literal
from jax.extend.core import primitives as p

from jaxclamp._jax_versions import with_parts
from jaxclamp._transforms.jaxprs import WITH_BODIES, computed, inlined, same, with_bodies


def constant_at_minus_infinity(jaxpr: Any) -> Any:
    """Return the program in which these functions have the slope 0 there, in its bodies too."""
    makers = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}

    def replaced(eqn: JaxprEqn) -> list[JaxprEqn]:
        if eqn.primitive in WITH_BODIES or eqn.primitive.name == "shard_map":
            return [with_bodies(eqn, constant_at_minus_infinity)]
        if eqn.primitive is p.log_p and (of_sum := _logarithm_of_logsumexp(eqn, makers)):
            return inlined(_constant_where(lambda total: total == 0, of_sum), of_sum)
        if _is_logaddexp(eqn):
            return inlined(_constant_where(lambda x, y: (x == -jnp.inf) & (y == -jnp.inf), eqn), eqn)
        return [eqn]

    eqns = [new for eqn in jaxpr.eqns for new in replaced(eqn)]
    return jaxpr if same(eqns, jaxpr.eqns) else with_parts(jaxpr, eqns=eqns)


def _logarithm_of_logsumexp(log: JaxprEqn, makers: Mapping[Any, JaxprEqn]) -> JaxprEqn | None:
    """Return the logarithm of the sum itself, if ``log`` is what `jax.nn.logsumexp` takes, of operands without weights.

    The sum is that of exponentials, ``exp(x - stop_gradient(where(isfinite(largest), largest, 0)))``. So one of them is
    1 unless all operands are minus infinity, and a sum of 0 says that they are. It is not negative, and the absolute
    value that JAX takes of it does nothing.
    """
    absolute = _maker(log, 0, makers)
    of_sum = log.replace(invars=absolute.invars) if absolute and absolute.primitive is p.abs_p else log
    exp = _made_by(of_sum, ("reduce_sum", "exp"), makers)
    difference = exp and _made_by(exp, ("sub",), makers)
    select = difference and _made_by(difference, ("stop_gradient", "select_n"), makers, 1)
    return of_sum if select and _made_by(select, ("is_finite",), makers) else None


def _made_by(
    eqn: JaxprEqn, names: tuple[str, ...], makers: Mapping[Any, JaxprEqn], operand: int = 0
) -> JaxprEqn | None:
    """Return the last equation behind an operand, if those are of these primitives, each of the first of the next.

    Equations that change the shape or the dtype alone are passed over.
    """
    found: JaxprEqn | None = eqn
    for name in names:
        found = _maker(found, operand, makers) if found else None
        operand = 0
        while found and found.primitive.name in _RESHAPING:
            found = _maker(found, 0, makers)
        if found and found.primitive.name != name:
            return None
    return found


def _maker(eqn: JaxprEqn, operand: int, makers: Mapping[Any, JaxprEqn]) -> JaxprEqn | None:
    atom = eqn.invars[operand]
    return None if isinstance(atom, Literal) else makers.get(atom)


_RESHAPING = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type", "pvary", "reshard")


def _is_logaddexp(eqn: JaxprEqn) -> bool:
    """Return whether ``eqn`` is a call of `jax.numpy.logaddexp` or ``logaddexp2`` of real numbers, by its body."""
    if eqn.primitive is not p.custom_jvp_call_p:
        return False
    body = eqn.params["call_jaxpr"]
    function = _logaddexp_by_primitives().get(_primitives(body))
    if function is None or len(eqn.invars) != 2:
        return False
    (own,) = jax.make_jaxpr(function)(*(atom.aval for atom in eqn.invars)).eqns
    return str(own.params["call_jaxpr"]) == str(body)


@functools.cache
def _logaddexp_by_primitives() -> Mapping[Any, Callable[..., jax.Array]]:
    functions: tuple[Any, ...] = (jnp.logaddexp, jnp.logaddexp2)
    calls = [jax.make_jaxpr(function)(1.0, 1.0).eqns[0] for function in functions]
    return {_primitives(call.params["call_jaxpr"]): f for call, f in zip(calls, functions, strict=True)}


def _primitives(jaxpr: Any) -> tuple[Any, ...]:
    return tuple(eqn.primitive for eqn in jaxpr.eqns)


def _constant_where(is_constant: Callable[..., jax.Array], eqn: JaxprEqn) -> Callable[..., jax.Array]:
    """Return what ``eqn`` computes, with the slope 0 where the function of its operands says so."""
    call = computed(eqn)

    @jax.custom_jvp
    def function(*operands: jax.Array) -> jax.Array:
        (value,) = call(*operands)
        return value  # type: ignore[no-any-return]

    @function.defjvp
    def _(operands: Any, tangents: Any) -> Any:
        is_flat = is_constant(*operands)
        elsewhere = [jnp.where(is_flat, 1, x) for x in operands]  # there the slope is a number, which the 0 meets
        moved = [jnp.where(is_flat, 0, 1).astype(v.dtype) * v for v in tangents]
        return function(*operands), jax.jvp(call, elsewhere, moved)[1][0]

    return function
