"""Networks on which the chain rule goes wrong: in JAX, in each convention, and as whole programs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxclamp
from tests.support.lemmas import PARAMS, TRUE, Network, distance, loss, mean_of_the_sides, slopes


def lemma_2(w: jax.Array) -> jax.Array:
    """No bias: relu(w) - relu(-w) is w."""
    return jax.nn.relu(w[0]) - jax.nn.relu(-w[0])


def lemma_3(w: jax.Array) -> jax.Array:
    """A bias, and a batch of two numbers, one on each kink: 1 + w / 6."""
    return jax.nn.hard_sigmoid(jnp.array([3.0, -3.0]) + w).sum()


def lemma_7(w: jax.Array) -> jax.Array:
    """A bias, and two pools: max(u + b, b) - max(-u + b, b) is u."""
    u, b = w
    return jnp.max(jnp.array([u + b, b])) - jnp.max(jnp.array([-u + b, b]))


def uneven_pools(w: jax.Array) -> jax.Array:
    """The same function, with b in the second pool twice: where tied elements share, lemma 7 needs this."""
    u, b = w
    return jnp.max(jnp.array([u + b, b])) - jnp.max(jnp.array([-u + b, b, b]))


CHAIN_RULE: dict[str, tuple[Network, dict[str, list[float]]]] = {
    "lemma 2": (lemma_2, {"min_norm": [0], "inclusive": [2], "exclusive": [0], "balanced": [1]}),
    "lemma 3": (lemma_3, {"min_norm": [0], "inclusive": [1 / 3], "exclusive": [0], "balanced": [1 / 6]}),
    "lemma 7": (lemma_7, {"min_norm": [1, 0], "inclusive": [2, 0], "exclusive": [0, 0], "balanced": [1, 0]}),
    "uneven pools": (
        uneven_pools,
        {"min_norm": [5 / 6, 0], "inclusive": [2, 0], "exclusive": [0, 0], "balanced": [5 / 6, 0]},
    ),
}
"""The networks, and what the chain rule gives at 0 in each convention."""


def test_networks_of_the_lemmas() -> None:
    """They are affine. No convention is right on all of them; as whole programs they are, along any direction."""

    @jax.jit
    def asked(keys: jax.Array) -> Any:
        by_convention, along = {}, {}
        for name, (network, _) in CHAIN_RULE.items():
            at = jnp.zeros(len(TRUE[name]))
            by_convention[name] = {
                ties: jax.grad(jaxclamp.min_norm(network, ties=ties))(at) for ties in jaxclamp.CONVENTIONS
            }
            along[name] = jax.vmap(lambda key, f=network, at=at: jaxclamp.grad(f, key=key)(at))(keys)
        return by_convention, along

    by_convention, along = asked(jax.random.split(jax.random.key(0), 8))
    for name, (network, wanted) in CHAIN_RULE.items():
        assert slopes(jax.jit(network), len(TRUE[name])) == pytest.approx(TRUE[name])
        assert {ties: gradient.tolist() for ties, gradient in by_convention[name].items()} == {
            ties: pytest.approx(gradient) for ties, gradient in wanted.items()
        }
        np.testing.assert_allclose(along[name], [TRUE[name]] * 8, rtol=1e-6)
    for ties in jaxclamp.CONVENTIONS:
        assert any(wanted[ties] != TRUE[name] for name, (_, wanted) in CHAIN_RULE.items())


def test_balanced_meets_theorem_6() -> None:
    @jax.jit
    def asked(params: Any) -> Any:
        return {ties: jax.grad(jaxclamp.min_norm(loss, ties=ties))(params) for ties in jaxclamp.CONVENTIONS}

    with jax.enable_x64(True):
        wanted, found = mean_of_the_sides(PARAMS), asked(PARAMS)
    assert distance(found["balanced"], wanted) <= 1e-6
    assert min(distance(found[ties], wanted) for ties in ("min_norm", "inclusive", "exclusive")) > 0.1
