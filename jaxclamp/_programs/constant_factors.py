"""Gives powers, and products with a logarithm, the slope 0 at a singular point if they are constant around it.

``xlogy(0, y)`` is 0 for all y, and ``y ** 0.0`` is 1. So the slope by y is 0, at y = 0 too, where JAX computes it as 0
times infinity, which is NaN. Densities of few events are made of these: that of ``poisson.logpmf(0, mu)`` is -mu.

A constant is what JAX knows to depend on nothing that is differentiated. ``xlogy(t, y)`` at t = y = 0 has an infinite
slope by t, and stays as it is where t moves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import JaxprEqn, Literal
from jax.extend.core import primitives as p
from jax.scipy import special

from jaxclamp._rules.operands import is_floating
from jaxclamp._transforms.recognition import calls


class _Product(NamedTuple):
    """A function of a factor and x that is constant in x where the factor is 0."""

    of_factor: Callable[..., jax.Array]
    end: float
    """The x at which the slope by x is 0 times infinity. At 1 it is 0."""


_LOGARITHMS: Mapping[str, _Product] = {"log": _Product(special.xlogy, 0.0), "log1p": _Product(special.xlog1py, -1.0)}
"""Maps the primitive of a logarithm to its product with a factor."""
_POWER = _Product(lambda exponent, base: lax.pow(base, exponent), 0.0)


def constant_beside_0(eqn: JaxprEqn) -> Callable[..., jax.Array] | None:
    """Return what ``eqn`` computes, if that is a power or a product with a logarithm, with the slope 0 as above."""
    if len(eqn.invars) != 2 or not all(is_floating(atom.aval) for atom in eqn.invars):
        return None  # JAX gives the power 0, if it is an integer, the slope 0
    if eqn.primitive is p.pow_p:
        exponent = eqn.invars[1]
        if isinstance(exponent, Literal) and exponent.val != 0:
            return None
        power = _differentiable(_POWER)
        return lambda base, exponent: power(exponent, base)
    if eqn.primitive is not p.custom_jvp_call_p:
        return None
    for inner in eqn.params["call_jaxpr"].eqns:
        product = _LOGARITHMS.get(inner.primitive.name)
        if product and calls(eqn, product.of_factor):
            return _differentiable(product)
    return None


def _differentiable(product: _Product) -> Callable[..., jax.Array]:
    differentiable = jax.custom_jvp(lambda factor, x: product.of_factor(factor, x))

    def beside_constant(factor: jax.Array, x: jax.Array) -> jax.Array:
        is_constant = (factor == 0) & (x == product.end)
        return product.of_factor(jnp.where(is_constant, 0.0, factor), jnp.where(is_constant, 1.0, x))

    def rule(primals: Sequence[jax.Array], tangents: Sequence[Any]) -> tuple[jax.Array, jax.Array]:
        factor, x = primals
        # A constant is bound, and not differentiated: a slope of NaN times a tangent of 0 would be NaN.
        match tangents:
            case (SymbolicZero(), _):
                moved = jax.jvp(functools.partial(beside_constant, factor), (x,), tangents[1:])[1]
            case (_, SymbolicZero()):
                moved = jax.jvp(lambda factor: product.of_factor(factor, x), (factor,), tangents[:1])[1]
            case _:
                moved = jax.jvp(product.of_factor, primals, tangents)[1]
        return differentiable(*primals), moved

    differentiable.defjvp(rule, symbolic_zeros=True)
    return differentiable
