"""Functions made to draw other random numbers: a value that changes then is random, and no difference of a port."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import torch
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params
from jax.extend.core import primitives as p

from jaxclamp._transforms.jaxprs import Descend, computed, inlined, transformed

CURE = (
    "Turn off what is random, such as dropout: eval() in torch and nnx, deterministic=True in linen, inference=True in "
    "Equinox, training=False in Keras; or draw the same numbers on both sides."
)
# All of jax.random draws by one of these; splitting a key is no draw.
_DRAWS = frozenset({p.random_bits_p, p.random_gamma_p})


def reseeded_in_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """Fold 1 into the key of each draw of ``function``."""

    def replace(eqn: JaxprEqn, descend: Descend) -> list[JaxprEqn]:
        if eqn.primitive not in _DRAWS:
            return descend(eqn)

        def draw_with_folded_keys(keys: jax.Array, *operands: jax.Array) -> Any:
            # By one key each, as `fold_in` takes no array of keys.
            folded = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys.ravel()).reshape(keys.shape)
            return computed(eqn)(folded, *operands)

        return inlined(draw_with_folded_keys, eqn)

    return transformed(function, replace)


def draws(jaxpr: Jaxpr) -> bool:
    """Say whether a program of JAX draws random numbers."""
    return any(eqn.primitive in _DRAWS or any(map(draws, jaxprs_in_params(eqn.params))) for eqn in jaxpr.eqns)


def reseeded_in_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Seed the generator of the CPU by another number before each call of ``function``; it stays so."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # Another seed than the last, and known: a random one would make verdicts that cannot be repeated.
        torch.default_generator.manual_seed(torch.default_generator.initial_seed() ^ 1)
        return function(*args, **kwargs)

    return call
