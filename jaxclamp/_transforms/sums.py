"""Gives functions of sums the slope 0 where all terms are 0, in the place of 0 / 0.

`jax.nn.logsumexp` and `jax.numpy.logaddexp` are minus infinity where all operands are, as in a row that is masked as a
whole. A finite step of the operands does not change that. So the function counts as constant there, with the slope 0.
JAX gives NaN, as it divides by the sum, or subtracts infinities.

A norm of an order above 1 is the root of a sum of powers, as `jax.numpy.linalg.vector_norm` computes it, and code that
is written by hand. Where the sum is 0, so is the least of the subgradients. JAX gives NaN, as the root has an infinite
slope.

The 0 is a number, by which cotangents are multiplied. So an infinite slope of the operands still makes NaN of it, as in
``logsumexp(log(x))`` at 0, which is the logarithm of a sum.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal
from jax.extend.core import primitives as p

from jaxclamp._jax_versions import with_parts
from jaxclamp._rules.operands import is_floating
from jaxclamp._transforms.jaxprs import WITH_BODIES, computed, inlined, same, with_bodies
from jaxclamp._transforms.recognition import recognized_euclidean


def with_slopes_of_sums(jaxpr: Any) -> Any:
    """Return the program in which all these functions have the slope 0 there, in its bodies too."""
    return _replaced(jaxpr, _of_exponentials, _of_powers)


def constant_at_minus_infinity(jaxpr: Any) -> Any:
    """Return the program in which `logsumexp` and `logaddexp` have the slope 0 there, in its bodies too."""
    return _replaced(jaxpr, _of_exponentials)


def norms_as_calls(jaxpr: Any) -> Any:
    """Return the program in which norms of several equations are calls, in its bodies too."""
    return _replaced(jaxpr, _as_call)


_Makers: TypeAlias = Mapping[Any, JaxprEqn]
"""Maps a variable of a program to the equation that computes it."""
_InPlace: TypeAlias = Callable[[JaxprEqn, _Makers], list[JaxprEqn] | None]
"""Returns what comes in the place of an equation, or None."""


def _replaced(jaxpr: Any, *rules: _InPlace) -> Any:
    makers = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}

    def replaced(eqn: JaxprEqn) -> list[JaxprEqn]:
        if eqn.params.get("name") == "norm" and recognized_euclidean(eqn):
            return [eqn]  # an op, by its whole body
        if eqn.primitive.name in WITH_BODIES:
            return [with_bodies(eqn, lambda body: _replaced(body, *rules))]
        return next((new for rule in rules if (new := rule(eqn, makers))), [eqn])

    eqns = [new for eqn in jaxpr.eqns for new in replaced(eqn)]
    return jaxpr if same(eqns, jaxpr.eqns) else with_parts(jaxpr, eqns=eqns)


def _of_exponentials(eqn: JaxprEqn, makers: _Makers) -> list[JaxprEqn] | None:
    # The slope of the logarithm is that of the whole: its operand, the sum, is a constant where all are -inf.
    if eqn.primitive is p.log_p and (of_sum := _logarithm_of_logsumexp(eqn, makers)):
        return inlined(_constant_where(lambda total: total == 0, of_sum, _elementwise(of_sum)), of_sum)
    if function := _logaddexp_of(eqn):
        return inlined(_constant_where(lambda x, y: (x == -jnp.inf) & (y == -jnp.inf), eqn, function), eqn)
    return None


def _of_powers(eqn: JaxprEqn, makers: _Makers) -> list[JaxprEqn] | None:
    if not _equations_of_norm(eqn, makers):
        return None
    return inlined(_constant_where(lambda total, *_: total == 0, eqn, _elementwise(eqn)), eqn)


def _as_call(root: JaxprEqn, makers: _Makers) -> list[JaxprEqn] | None:
    """Return a call, by the name `NORM`, that computes a norm in the place of its root alone."""
    if not (eqns := _equations_of_norm(root, makers)):
        return None

    # Not by `jaxpr_as_fun`, which may leave a call in a trace, where the equations are looked for again.
    def norm(operand: jax.Array) -> Any:
        values = {eqns[0].invars[0]: operand}
        for eqn in eqns:
            operands = [atom.val if isinstance(atom, Literal) else values[atom] for atom in eqn.invars]
            values[eqn.outvars[0]] = eqn.primitive.bind(*operands, **eqn.params)
        return values[root.outvars[0]]

    norm.__name__ = NORM
    return inlined(jax.jit(norm), root.replace(invars=eqns[0].invars[:1]))


NORM = "norm of several equations"


def _equations_of_norm(root: JaxprEqn, makers: _Makers) -> list[JaxprEqn]:
    """Return the equations from powers to their root, if only sums and quotients lie between; the order is above 1.

    Of `jax.numpy.linalg.vector_norm` of order 3 they are ``b = abs a;  c = pow b 3.0;  d = reduce_sum c;  pow d 1/3``.
    """
    eqns, power = [root], _maker(root, 0, makers) if 0 < _exponent(root) < 1 else None
    while power and power.primitive.name in (*_RESHAPING, "reduce_sum", "div"):
        if not all(isinstance(atom, Literal) for atom in power.invars[1:]):
            return []
        eqns, power = [power, *eqns], _maker(power, 0, makers)
    order = _exponent(power) if power else 0
    if power is None or order <= 1 or _exponent(root) != np.asarray(1 / order, root.invars[0].aval.dtype):  # type: ignore[attr-defined]
        return []
    absolute = _maker(power, 0, makers)
    if absolute and absolute.primitive is p.abs_p and is_floating(absolute.invars[0].aval):
        return [absolute, power, *eqns]
    return [] if order % 2 else [power, *eqns]  # a sum of odd powers may be 0 where they are not


def _exponent(eqn: JaxprEqn) -> Any:
    """Return the exponent of a power or a root of real numbers, 0 if ``eqn`` is none."""
    # A sum of squares of complex numbers is 0 elsewhere too, as 1 + 1j ** 2.
    if not eqn.invars or not is_floating(eqn.invars[0].aval):
        return 0
    if eqn.primitive is p.pow_p:
        return eqn.invars[1].val if isinstance(eqn.invars[1], Literal) else 0
    if eqn.primitive is p.mul_p:
        return 2 if eqn.invars[0] is eqn.invars[1] else 0
    return {"sqrt": 0.5, "square": 2, "integer_pow": eqn.params.get("y")}.get(eqn.primitive.name, 0)


def _logarithm_of_logsumexp(log: JaxprEqn, makers: _Makers) -> JaxprEqn | None:
    """Return the logarithm of the sum itself, if ``log`` is what `jax.nn.logsumexp` takes, of operands without weights.

    The sum is that of exponentials, ``exp(x - stop_gradient(where(isfinite(largest), largest, 0)))``. So one of them is
    1 unless all operands are minus infinity, and a sum of 0 says that they are. It is not negative, and the absolute
    value that JAX takes of it does nothing.
    """
    # JAX 0.10 traces logsumexp(x) to this program; ``log`` is its line before the last:
    #     b = reduce_max(x);  c = max(-inf, b);  d = is_finite(c);  e = select_n(d, 0, c);  f = stop_gradient(e)
    #     i = exp(sub(x, f));  j = reduce_sum(i);  k = abs(j);  l = log(k);  add(l, f)
    # Only with the guard d is a sum of 0 what it says: a logarithm of another sum of exponentials may underflow.
    absolute = _maker(log, 0, makers)
    of_sum = log.replace(invars=absolute.invars) if absolute and absolute.primitive is p.abs_p else log
    exp = _made_by(of_sum, ("reduce_sum", "exp"), makers)
    difference = exp and _made_by(exp, ("sub",), makers)
    select = difference and _made_by(difference, ("stop_gradient", "select_n"), makers, 1)
    return of_sum if select and _made_by(select, ("is_finite",), makers) else None


def _made_by(eqn: JaxprEqn, names: tuple[str, ...], makers: _Makers, operand: int = 0) -> JaxprEqn | None:
    """Return the last equation behind an operand, if those are of these primitives, each of the first of the next."""
    maker: JaxprEqn | None = eqn
    for name in names:
        maker = _maker_of_numbers(maker, operand, makers) if maker else None
        operand = 0
        if maker and maker.primitive.name != name:
            return None
    return maker


def _maker_of_numbers(eqn: JaxprEqn, operand: int, makers: _Makers) -> JaxprEqn | None:
    """Return the equation that computes an operand; those that change the shape or the dtype alone are passed over."""
    maker = _maker(eqn, operand, makers)
    while maker and maker.primitive.name in _RESHAPING:
        maker = _maker(maker, 0, makers)
    return maker


def _maker(eqn: JaxprEqn, operand: int, makers: _Makers) -> JaxprEqn | None:
    atom = eqn.invars[operand]
    return None if isinstance(atom, Literal) else makers.get(atom)


_RESHAPING = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type", "pvary", "reshard")


def _logaddexp_of(eqn: JaxprEqn) -> Callable[..., jax.Array] | None:
    """Return the function, `jax.numpy.logaddexp` or ``logaddexp2`` of real numbers, that ``eqn`` calls, by its body."""
    # Most calls are ruled out at once; only then are the functions traced for these operands, and compared.
    if eqn.primitive is not p.custom_jvp_call_p or len(eqn.invars) != 2:
        return None
    body = eqn.params["call_jaxpr"]
    if all(inner.primitive is not p.log1p_p for inner in body.eqns):
        return None
    for function in (jnp.logaddexp, jnp.logaddexp2):
        (expected,) = jax.make_jaxpr(function)(*(atom.aval for atom in eqn.invars)).eqns
        if str(expected.params["call_jaxpr"]) == str(body):
            return function
    return None


def _elementwise(eqn: JaxprEqn) -> Callable[..., Any]:
    """Return the function of ``eqn``, of arrays of any shape."""
    return functools.partial(eqn.primitive.bind, **eqn.params)


def _constant_where(
    is_constant: Callable[..., jax.Array], eqn: JaxprEqn, function_of_arrays: Callable[..., Any]
) -> Callable[..., jax.Array]:
    """Return what ``eqn`` computes, with the slope 0 where the function of its operands says so.

    Slopes are those of ``function_of_arrays``, which takes operands of one shape: ``logaddexp(x, 0)``, a softplus, has
    an array and a number.
    """
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
        return function(*operands), jax.jvp(function_of_arrays, elsewhere, moved)[1]

    return function
