"""Networks on which the chain rule goes wrong, by Park, Chun and Lee: in each convention, and as whole programs.

"What does automatic differentiation compute for neural networks?", ICLR 2024, openreview.net/forum?id=8vKknbgXxf.
Theorems 4 and 6: if each layer has biases and mixes the slopes left and right of all its kinks in one ratio, and
nothing is pooled, the chain rule gives an element of the Clarke subdifferential. Lemmas 2, 3 and 7: none of this can be
left out.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Network = Callable[[Any], Any]
"""Of the parameters, a vector."""


def slopes(network: Network, size: int) -> list[float]:
    """Compute the gradient of an affine function by its values."""
    steps = np.eye(size, dtype="float32")
    return [(float(network(step)) - float(network(-step))) / 2 for step in steps]


TRUE = {"lemma 2": [1], "lemma 3": [1 / 6], "lemma 7": [1, 0], "uneven pools": [1, 0]}
"""The gradients of the networks, which are affine."""

# Theorem 6, for two layers of a batch of small integers

RNG = np.random.default_rng(0)
X = RNG.integers(-6, 7, (5, 3)).astype(float)
SHAPES = {"a": (3, 4), "b": (4,), "c": (4, 3), "d": (3,)}
PARAMS = {name: RNG.integers(-1, 2, shape).astype(float) for name, shape in SHAPES.items()}


def two_layers(relu6: Any, matmul: Any, params: Any, x: Any) -> Any:
    hidden = relu6(matmul(x, params["a"]) + params["b"])
    return relu6(matmul(hidden, params["c"]) + params["d"]).sum()


def loss(params: Any) -> jax.Array:
    return two_layers(jax.nn.relu6, jnp.matmul, params, X)


@jax.jit
def mean_of_the_sides(params: Any) -> Any:
    """Average the gradients where each layer is moved to one side of all its kinks, which are in the set."""
    sides = [
        # The first layer moves by less, so that it does not move the second one over a kink.
        jax.grad(loss)({**params, "b": params["b"] + 1e-9 * first, "d": params["d"] + 1e-6 * second})
        for first, second in itertools.product((-1.0, 1.0), repeat=2)
    ]
    return jax.tree.map(lambda *leaves: sum(leaves) / 4, *sides)


def distance(first: Any, second: Any) -> float:
    return max(float(np.abs(np.asarray(first[name]) - np.asarray(second[name])).max()) for name in SHAPES)
