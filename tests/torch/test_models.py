"""Whole JAX models in torch: their parameters are torch's, trained by a torch optimizer."""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import interop
import jaxclamp

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # flax and what it imports
    import flax.linen

STEPS, RATE = 20, 0.05


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.integers(-2, 3, (32, 4)).astype(np.float32)
    return x, (x[:, :1] * x[:, 1:2]).clip(0, 2)


def of_equinox() -> tuple[Any, Callable[..., jax.Array]]:
    model = eqx.nn.MLP(4, 1, 16, 2, activation=jaxclamp.relu6, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((jax.vmap(eqx.combine(params, static))(x) - y) ** 2)

    return params, loss


class Network(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = jaxclamp.hardtanh(flax.linen.Dense(16)(x), 0.0, 3.0)
        return flax.linen.Dense(1)(jaxclamp.leaky_relu(flax.linen.Dense(16)(x)))


def of_flax() -> tuple[Any, Callable[..., jax.Array]]:
    params = Network().init(jax.random.key(0), jnp.ones((1, 4)))

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((Network().apply(params, x) - y) ** 2)

    return params, loss


@pytest.mark.parametrize("make", [pytest.param(of_equinox, marks=pytest.mark.thorough), of_flax])
def test_trained_by_a_torch_optimizer(make: Callable[[], tuple[Any, Callable[..., jax.Array]]]) -> None:
    """Every leaf goes the way that optax takes it."""
    params, loss = make()
    x, y = data()

    expected, optimizer = params, optax.sgd(RATE, momentum=0.9)
    state = optimizer.init(expected)
    losses = []

    @jax.jit
    def step(params: Any, state: Any) -> tuple[Any, Any, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    for _ in range(STEPS):
        expected, state, value = step(expected, state)
        losses.append(float(value))

    in_torch = jax.tree.map(lambda leaf: torch.nn.Parameter(interop.jax_to_torch(leaf)), params)
    wrapped = interop.wrap_for_torch(loss)
    sgd = torch.optim.SGD(jax.tree.leaves(in_torch), RATE, momentum=0.9)
    for number in range(STEPS):
        sgd.zero_grad()
        value = wrapped(in_torch, torch.from_numpy(x), torch.from_numpy(y))
        value.backward()
        sgd.step()
        assert value.item() == pytest.approx(losses[number], rel=1e-4)

    assert losses[-1] < losses[0] / 2
    for leaf, want in zip(jax.tree.leaves(in_torch), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf.detach().numpy(), want, rtol=1e-3, atol=1e-4)
