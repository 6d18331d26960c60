"""Networks on which the chain rule goes wrong, by Park, Chun and Lee: in each convention, and as whole programs.

"What does automatic differentiation compute for neural networks?", ICLR 2024, openreview.net/forum?id=8vKknbgXxf.
Theorems 4 and 6: if each layer has biases and mixes the slopes left and right of all its kinks in one ratio, and
nothing is pooled, the chain rule gives an element of Clarke's subdifferential. Lemmas 2, 3 and 7: none of this can be
left out.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

import interop
import jaxclamp

Network = Callable[[Any], Any]
"""Of the parameters, a vector."""


def lemma_2(w: jax.Array) -> jax.Array:
    """No bias: relu(w) - relu(-w) is w."""
    return jax.nn.relu(w[0]) - jax.nn.relu(-w[0])


def lemma_2_in_torch(w: torch.Tensor) -> torch.Tensor:
    return torch.relu(w[0]) - torch.relu(-w[0])


def lemma_3(w: jax.Array) -> jax.Array:
    """A bias, and a batch of two numbers, one on each kink: 1 + w / 6."""
    return jax.nn.hard_sigmoid(jnp.array([3.0, -3.0]) + w).sum()


def lemma_3_in_torch(w: torch.Tensor) -> torch.Tensor:
    return functional.hardsigmoid(torch.tensor([3.0, -3.0]) + w).sum()


def lemma_7(w: jax.Array) -> jax.Array:
    """A bias, and two pools: max(u + b, b) - max(-u + b, b) is u."""
    u, b = w
    return jnp.max(jnp.array([u + b, b])) - jnp.max(jnp.array([-u + b, b]))


def lemma_7_in_torch(w: torch.Tensor) -> torch.Tensor:
    u, b = w
    return torch.stack([u + b, b]).max(0).values - torch.stack([-u + b, b]).max(0).values


def uneven_pools(w: jax.Array) -> jax.Array:
    """The same function, with b in the second pool twice: where tied elements share, lemma 7 needs this."""
    u, b = w
    return jnp.max(jnp.array([u + b, b])) - jnp.max(jnp.array([-u + b, b, b]))


def uneven_pools_in_torch(w: torch.Tensor) -> torch.Tensor:
    u, b = w
    return torch.stack([u + b, b]).max(0).values - torch.stack([-u + b, b, b]).max(0).values


# The chain rule at 0: that of torch, which is that of the proofs, and that of JAX functions in each convention.
CHAIN_RULE: dict[str, tuple[Network, Network, dict[str, list[float]]]] = {
    "lemma 2": (
        lemma_2,
        lemma_2_in_torch,
        {"torch": [0], "min_norm": [0], "inclusive": [2], "exclusive": [0], "balanced": [1]},
    ),
    "lemma 3": (
        lemma_3,
        lemma_3_in_torch,
        {"torch": [0], "min_norm": [0], "inclusive": [1 / 3], "exclusive": [0], "balanced": [1 / 6]},
    ),
    "lemma 7": (
        lemma_7,
        lemma_7_in_torch,
        {"torch": [2, 0], "min_norm": [1, 0], "inclusive": [2, 0], "exclusive": [0, 0], "balanced": [1, 0]},
    ),
    "uneven pools": (
        uneven_pools,
        uneven_pools_in_torch,
        {"torch": [2, 0], "min_norm": [5 / 6, 0], "inclusive": [2, 0], "exclusive": [0, 0], "balanced": [5 / 6, 0]},
    ),
}


def slopes(network: Network, size: int) -> list[float]:
    """The gradient of an affine function, by its values."""
    steps = np.eye(size, dtype="float32")
    return [(float(network(step)) - float(network(-step))) / 2 for step in steps]


TRUE = {"lemma 2": [1], "lemma 3": [1 / 6], "lemma 7": [1, 0], "uneven pools": [1, 0]}


def test_networks_of_the_lemmas() -> None:
    """They are affine. No convention is right on all of them; as whole programs they are, along any direction."""

    @jax.jit
    def asked(keys: jax.Array) -> Any:
        by_convention, along = {}, {}
        for name, (network, _, _) in CHAIN_RULE.items():
            at = jnp.zeros(len(TRUE[name]))
            by_convention[name] = {
                ties: jax.grad(jaxclamp.min_norm(network, ties=ties))(at) for ties in jaxclamp.CONVENTIONS
            }
            along[name] = jax.vmap(lambda key, f=network, at=at: jaxclamp.grad(f, key=key)(at))(keys)
        return by_convention, along

    by_convention, along = asked(jax.random.split(jax.random.key(0), 8))
    for name, (network, in_torch, wanted) in CHAIN_RULE.items():
        size = len(TRUE[name])
        true, tensor = pytest.approx(TRUE[name]), torch.zeros(size)
        assert slopes(jax.jit(network), size) == true
        assert slopes(lambda w, f=in_torch: f(torch.from_numpy(w)), size) == true

        found = by_convention[name] | {"torch": torch.func.grad(in_torch)(tensor)}
        assert {ties: gradient.tolist() for ties, gradient in found.items()} == {
            ties: pytest.approx(gradient) for ties, gradient in wanted.items()
        }
        np.testing.assert_allclose(along[name], [TRUE[name]] * 8, rtol=1e-6)
        for seed in range(8):
            generator = torch.Generator().manual_seed(seed)
            assert interop.grad(in_torch, generator=generator)(tensor).tolist() == true
    for ties in ("torch", *jaxclamp.CONVENTIONS):
        assert any(wanted[ties] != TRUE[name] for name, (_, _, wanted) in CHAIN_RULE.items())


# Theorem 6, for two layers of a batch of small integers

RNG = np.random.default_rng(0)
X = RNG.integers(-6, 7, (5, 3)).astype(float)
SHAPES = {"a": (3, 4), "b": (4,), "c": (4, 3), "d": (3,)}
PARAMS = {name: RNG.integers(-1, 2, shape).astype(float) for name, shape in SHAPES.items()}


def two_layers(relu6: Any, matmul: Any, params: Any, x: Any) -> Any:
    hidden = relu6(matmul(x, params["a"]) + params["b"])
    return relu6(matmul(hidden, params["c"]) + params["d"]).sum()


def test_balanced_meets_theorem_6() -> None:
    """It is the mean of the gradients where each layer is moved to one side of all its kinks, which are in the set."""

    def loss(params: Any) -> jax.Array:
        return two_layers(jax.nn.relu6, jnp.matmul, params, X)

    @jax.jit
    def asked(params: Any) -> Any:
        sides = [
            # The first layer moves by less, so that it does not move the second one over a kink.
            jax.grad(loss)({**params, "b": params["b"] + 1e-9 * first, "d": params["d"] + 1e-6 * second})
            for first, second in itertools.product((-1.0, 1.0), repeat=2)
        ]
        found = {ties: jax.grad(jaxclamp.min_norm(loss, ties=ties))(params) for ties in jaxclamp.CONVENTIONS}
        return jax.tree.map(lambda *leaves: sum(leaves) / 4, *sides), found

    with jax.enable_x64(True):
        wanted, found = asked(PARAMS)

    tensors = {name: torch.from_numpy(value) for name, value in PARAMS.items()}

    def in_torch(params: Any) -> torch.Tensor:
        return two_layers(functional.relu6, torch.matmul, params, torch.from_numpy(X))

    with interop.min_norm(ties="balanced"):
        of_torch = torch.func.grad(in_torch)(tensors)

    def distance(gradient: Any) -> float:
        return max(float(np.abs(np.asarray(gradient[name]) - np.asarray(wanted[name])).max()) for name in SHAPES)

    assert distance(found["balanced"]) <= 1e-6
    assert distance(of_torch) <= 1e-6
    assert min(distance(found[ties]) for ties in ("min_norm", "inclusive", "exclusive")) > 0.1
