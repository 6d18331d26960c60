"""Decides 2-norms along a direction: at 0, where they have no gradient, they are linear along it."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from jaxclamp._programs.choices import Arrays, Piece, along_direction
from jaxclamp._transforms.recognition import recognized_euclidean


def norm_along_direction(eqn: JaxprEqn) -> Callable[..., jax.Array] | None:
    """Return what ``eqn`` computes, if that is a 2-norm, with the derivative of the piece that it enters.

    At 0, where x moves by v, that is the piece x -> v . x / |v|, whose gradient is the limit of those at t v. Where
    nothing moves either, the gradient is 0.
    """
    if len(eqn.outvars) != 1 or (norm := recognized_euclidean(eqn)) is None:
        return None

    def value(*operands: jax.Array) -> jax.Array:
        return norm.value("min_norm", *operands)

    def choice(operands: Arrays, tangents: Arrays) -> Piece:
        is_zero = norm.on_tie(*operands)

        def piece(*operands: jax.Array) -> jax.Array:
            along = jax.jvp(value, tuple(tangents), operands)[1]  # the derivative of the norm at v, along x
            return jnp.where(is_zero, along, value(*operands))

        return piece

    return along_direction(value, norm.name, choice)
