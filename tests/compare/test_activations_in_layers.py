"""`interop.compare_models` where a layer of one model applies the activation that the other model applies behind it."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from interop import ModelComparison, compare_models
from tests.compare.models import F32, X, blamed

pytestmark = pytest.mark.usefixtures("seeded")

IMAGES = np.random.default_rng(0).normal(size=(3, 4, 5, 2)).astype(F32)
Activation: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


class Network(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = jax.nn.relu(nn.Conv(3, (3, 3), padding=1, name="conv")(x))
        x = jnp.tanh(nn.Dense(4, name="dense")(x.reshape(x.shape[0], -1)))
        x = jax.nn.relu(nn.LayerNorm(epsilon=1e-5, name="norm")(x))
        return jax.nn.softmax(nn.Dense(3, name="head")(x))


def active(layer: torch.nn.Module, activation: Activation) -> torch.nn.Module:
    """Return the layer with the activation in it, as those of Keras have one; it stays a layer without others in it."""

    class Active(type(layer)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return activation(super().forward(x))

    layer.__class__ = Active
    return layer


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


ACTIVATIONS: Mapping[str, Activation] = {
    "conv": torch.relu,
    "dense": torch.tanh,
    "norm": torch.relu,
    "head": softmax,
}


class Port(torch.nn.Module):
    def __init__(self, eps: float = 1e-5, **activations: Activation) -> None:
        super().__init__()
        each = {**ACTIVATIONS, **activations}
        self.conv = active(torch.nn.Conv2d(2, 3, 3, padding=1), each["conv"])
        self.dense = active(torch.nn.Linear(60, 4), each["dense"])
        self.norm = active(torch.nn.LayerNorm(4, eps=eps), each["norm"])
        self.head = active(torch.nn.Linear(4, 3), each["head"])

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.norm(self.dense(self.conv(x).flatten(1))))


def compared(port: torch.nn.Module, *, jax_first: bool) -> ModelComparison:
    network = Network()
    network = network.bind(network.init(jax.random.key(0), IMAGES))
    return compare_models(network, port, IMAGES) if jax_first else compare_models(port, network, of_torch(IMAGES))


def of_torch(images: Any) -> Any:
    return images.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("jax_first", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_a_right_port_agrees(jax_first: bool) -> None:
    comparison = compared(Port(), jax_first=jax_first)
    assert comparison.agree, comparison
    conv = next(pair for pair in comparison.layers if pair.first.path == "conv")
    assert {j.what for j in conv.judged} == {"inputs", "parameters"}  # what it returns is another array
    assert next(line for line in str(comparison).splitlines() if line.split()[:1] == ["conv"]).split()[2] == "–"


def with_other_gradient(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x).detach() + x - x.detach()


BUGS: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
    # Here both models end the layer at the same place, and only one has an activation behind it.
    "no activation": ({"conv": lambda x: x}, ("", "conv", "dense")),
    "another activation": ({"dense": torch.sin}, ("dense",)),
    "another bias": ({"dense": lambda x: torch.tanh(x + 0.5)}, ("dense",)),
    "epsilon": ({"eps": 1e-3}, ("norm",)),
    "the last activation": ({"head": torch.sigmoid}, ("head",)),
    "a gradient": ({"conv": with_other_gradient}, ("conv",)),
}


QUICK = ("no activation", "another activation", "a gradient")


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=[pytest.mark.thorough] * (bug not in QUICK)) for bug in BUGS])
def test_a_bug_is_named_where_it_is(bug: str) -> None:
    changed, place = BUGS[bug]
    comparison = compared(Port(**changed), jax_first=True)
    assert blamed(comparison) == place, comparison
    assert comparison.cause is not None
    assert (comparison.cause.is_gradient, comparison.cause.finding) == (bug == "a gradient", "port")


class Around(torch.nn.Module):
    """A layer around another one, which may apply an activation."""

    def __init__(self, activation: Activation | None = None) -> None:
        super().__init__()
        self.inner, self.activation = torch.nn.Linear(4, 4), activation

    def forward(self, x: torch.Tensor) -> Any:
        x = self.inner(x)
        return x if self.activation is None else self.activation(x)


def test_layers_with_others_in_them() -> None:
    def against(*behind: torch.nn.Module) -> ModelComparison:
        first = torch.nn.Sequential(Around(torch.relu), torch.nn.Identity(), torch.nn.Linear(4, 2))
        return compare_models(first, torch.nn.Sequential(Around(), *behind, torch.nn.Linear(4, 2)), X)

    assert against(torch.nn.ReLU()).agree
    assert blamed(against(torch.nn.GELU())) == ("0", "0.inner", None)


@pytest.mark.thorough
def test_ties_within_a_layer_are_ties() -> None:
    integers = np.random.default_rng(0).integers(-1, 2, (8, 4)).astype(F32)
    first = torch.nn.Sequential(active(torch.nn.Linear(4, 4), torch.nn.functional.hardtanh), torch.nn.Linear(4, 2))
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.copy_(torch.from_numpy(np.random.default_rng(1).integers(-1, 2, parameter.shape)))
    cause = compare_models(first, nn.Sequential([nn.Dense(4), jax.nn.hard_tanh, nn.Dense(2)]), integers).cause
    assert cause is not None
    assert (cause.finding, cause.layer.name) == ("ties", "0 | layers_0")


class Hidden(torch.nn.Module):
    """Nothing of what ``a`` returns is left in the end."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.a, self.b = active(torch.nn.Linear(4, 4), activation), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.b(torch.relu(self.a(x) - 100))


def test_a_bug_whose_difference_dies_behind_the_layer_is_named() -> None:
    assert blamed(compare_models(Hidden(torch.tanh), Hidden(torch.sin), X)) == ("a",)
