"""`interop.compare_models` of faithful ports: whatever the inputs, no verdict that blames the port."""

from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from interop import compare_models

F32 = np.float32
IMAGES = np.random.default_rng(0).normal(size=(2, 3, 6, 5)).astype(F32)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class Flattening(nn.Module):
    """A convolution, an image that is flattened, and a dense layer."""

    between: Callable[[Any], Any]
    permuted: tuple[int, ...] | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.between(nn.Conv(4, (3, 3), padding=1, name="conv")(x))
        x = x if self.permuted is None else x.transpose(self.permuted)
        return nn.Dense(5, name="fc")(x.reshape(x.shape[0], -1))


class FlatteningPort(torch.nn.Module):
    def __init__(
        self, between: Callable[[Any], Any], permuted: tuple[int, ...] | None = None, features: int = 4 * 6 * 5
    ) -> None:
        super().__init__()
        self.between, self.permuted = between, permuted
        self.conv, self.fc = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Linear(features, 5)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.between(self.conv(x))
        return self.fc((x if self.permuted is None else x.permute(self.permuted)).flatten(1))


CONSTANTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "dead": (lambda x: torch.relu(x - 1000), lambda x: nn.relu(x - 1000)),
    "clipped": (lambda x: (x + 1000).clamp(0, 6), lambda x: jnp.clip(x + 1000, 0, 6)),
    "times zero, plus a half": (lambda x: x * 0 + 0.5, lambda x: x * 0 + 0.5),
    "times zero": (lambda x: x * 0, lambda x: x * 0),
}


@pytest.mark.parametrize("kind", CONSTANTS)
def test_a_constant_that_is_flattened_does_not_tell_the_order_of_axes(kind: str) -> None:
    """The kernel behind does, by the order by which it was mapped."""
    in_torch, in_jax = CONSTANTS[kind]
    comparison = compare_models(FlatteningPort(in_torch), Flattening(in_jax), IMAGES)
    assert comparison.agree, comparison
    wrong = compare_models(FlatteningPort(lambda x: 0.5 + in_torch(x)), Flattening(in_jax), IMAGES)
    assert wrong.cause is not None
    assert not wrong.cause.is_gradient


class Normed(nn.Module):
    """Behind the norm, whose scale is 0, all is constant but the gradient."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(4, (3, 3), padding=1, name="conv")(x)
        x = nn.BatchNorm(use_running_average=True, name="norm")(x)
        x = nn.Dropout(0.5, deterministic=True)(x.reshape(x.shape[0], -1))
        return nn.Dense(5, name="fc")(x)


class NormedPort(torch.nn.Module):
    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        self.order = order
        self.conv, self.norm, self.drop = (
            torch.nn.Conv2d(3, 4, 3, padding=1),
            torch.nn.BatchNorm2d(4),
            torch.nn.Dropout(),
        )
        self.fc = torch.nn.Linear(4 * 6 * 5, 5)
        torch.nn.init.zeros_(self.norm.weight)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(self.drop(self.norm(self.conv(x)).permute(self.order).flatten(1)))


def test_gradients_tell_the_order_of_axes_of_a_constant() -> None:
    """Behind dropout, the boundary is not that of a layer with a kernel."""
    assert compare_models(NormedPort((0, 1, 2, 3)).eval(), Normed(), IMAGES).agree
    wrong = compare_models(NormedPort((0, 1, 3, 2)).eval(), Normed(), IMAGES).cause
    assert wrong is not None
    assert (wrong.finding, wrong.is_gradient, wrong.before and wrong.before.name) == ("port", True, "drop | Dropout_0")


@pytest.mark.parametrize("side", ["torch", "flax"])
def test_a_model_may_permute_before_it_flattens(side: str) -> None:
    """As ports do, to keep the kernel as it was; what enters the layer tells that it has one order on both sides."""
    orders = ((0, 2, 3, 1), None) if side == "torch" else (None, (0, 3, 1, 2))
    models = FlatteningPort(torch.tanh, orders[0]), Flattening(jnp.tanh, orders[1])
    comparison = compare_models(*models, IMAGES)
    assert comparison.agree, comparison
    (kernel,) = [pair for pair in comparison.mapping.pairs if pair.first.name == "fc.weight"]
    weight = np.arange(600, dtype=F32).reshape(5, 120)
    np.testing.assert_array_equal(kernel.to_second(weight), weight.T)


def test_images_are_flattened_behind_pools_of_any_shape() -> None:
    """6x5 becomes 3x3, which is not of the same proportions; and names may be given."""
    models = (
        FlatteningPort(lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1), features=4 * 3 * 3),
        Flattening(lambda x: nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))),
    )
    assert compare_models(*models, IMAGES).agree
    assert compare_models(*models, IMAGES, mapping={"fc": "fc"}).agree


class Sequence(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = jnp.tanh(nn.Conv(4, (3,), padding=1)(x))
        return nn.Dense(5)(x.reshape(x.shape[0], -1))


def test_sequences_are_flattened_too() -> None:
    port = torch.nn.Sequential(
        torch.nn.Conv1d(3, 4, 3, padding=1), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(28, 5)
    )
    x = np.random.default_rng(0).normal(size=(2, 3, 7)).astype(F32)
    assert compare_models(port, Sequence(), x, layouts=("NCL", "NLC")).agree
