"""A convolutional network on digits, in Equinox and in torch: rewritten, searched for ties, trained and compared.

Pixels and the weights of the forward pass are multiples of 1/4 (master weights are rounded, and move by the gradient of
the rounded ones), so sums are exact in float64 up to the logits, whatever their order, and often exactly on a bound.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.datasets import load_digits
from torch.nn import functional

import interop
import jaxclamp

Arrays = dict[str, np.ndarray]
STEPS, RATE, GRID = 4, 0.1, 4
SHAPES = {"first": (4, 1, 3, 3), "second": (8, 4, 2, 2), "dense": (16, 32), "head": (10, 16)}


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


class Network(eqx.Module):
    first: eqx.nn.Conv2d
    second: eqx.nn.Conv2d
    dense: eqx.nn.Linear
    head: eqx.nn.Linear
    pool: eqx.nn.MaxPool2d

    def __init__(self) -> None:
        keys = jax.random.split(jax.random.key(0), 4)
        self.first = eqx.nn.Conv2d(1, 4, 3, key=keys[0])
        self.second = eqx.nn.Conv2d(4, 8, 2, key=keys[1])
        self.dense = eqx.nn.Linear(32, 16, key=keys[2])
        self.head = eqx.nn.Linear(16, 10, key=keys[3])
        self.pool = eqx.nn.MaxPool2d(2, 2)

    def __call__(self, x: jax.Array) -> jax.Array:
        h = jax.nn.hard_tanh(self.first(x))
        h = self.pool(h)
        h = jnp.clip(self.second(h), 0.0, 1.0)
        h = jax.nn.relu6(self.dense(h.ravel()))
        return self.head(h)


class Rewritten(Network):
    """By hand, with the ops of jaxclamp."""

    def __call__(self, x: jax.Array) -> jax.Array:
        h = jaxclamp.hardtanh(self.first(x))
        h = jaxclamp.max_pool2d(h, 2)
        h = jaxclamp.clip(self.second(h), 0.0, 1.0)
        h = jaxclamp.relu6(self.dense(h.ravel()))
        return self.head(h)


class Ported(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(1, 4, 3), torch.nn.Conv2d(4, 8, 2)
        self.dense, self.head = torch.nn.Linear(32, 16), torch.nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.hardtanh(self.first(x))
        h = functional.max_pool2d(h, 2)
        h = self.second(h).clamp(0.0, 1.0)
        h = functional.relu6(self.dense(h.flatten(1)))
        return self.head(h)


def loss_of(template: Network) -> Callable[..., jax.Array]:
    """The cross entropy as a function of parameters under the names and in the layouts of torch."""

    def leaves(network: Network) -> list[jax.Array]:
        return [leaf for name in SHAPES for leaf in (getattr(network, name).weight, getattr(network, name).bias)]

    def loss(params: dict[str, jax.Array], x: jax.Array, labels: jax.Array) -> jax.Array:
        given = [params[f"{name}.{kind}"] for name in SHAPES for kind in ("weight", "bias")]
        shaped = [new.reshape(old.shape) for new, old in zip(given, leaves(template), strict=True)]
        logits = jax.vmap(eqx.tree_at(leaves, template, shaped))(x)
        log_probabilities = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1).mean()

    return loss


in_jax, by_hand = (loss_of(eqx.filter_eval_shape(network)) for network in (Network, Rewritten))  # shapes are enough
PORTED = Ported()


def in_torch(params: dict[str, torch.Tensor], x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(torch.func.functional_call(PORTED, params, (x,)), labels)


def torch_value_and_grad(params: Arrays, x: np.ndarray, labels: np.ndarray) -> tuple[float, Arrays]:
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in params.items()}
    value = in_torch(leaves, torch.from_numpy(x), torch.from_numpy(labels))
    gradients = torch.autograd.grad(value, list(leaves.values()))
    return value.item(), {name: g.numpy() for name, g in zip(leaves, gradients, strict=True)}


def data() -> tuple[np.ndarray, np.ndarray]:
    pixels, labels = load_digits(return_X_y=True)
    return np.floor(pixels[:64] / 4).reshape(-1, 1, 8, 8) / GRID, labels[:64]


def initial() -> Arrays:
    generator = np.random.default_rng(0)
    params = {}
    for name, shape in SHAPES.items():
        params[f"{name}.weight"] = generator.normal(0.0, 0.4, shape)
        params[f"{name}.bias"] = generator.normal(0.0, 0.2, shape[:1])
    return params


def rounded(params: Arrays) -> Arrays:
    return {name: np.round(value * GRID) / GRID for name, value in params.items()}


def training(value_and_grad: Callable[..., tuple[Any, Any]]) -> Iterator[tuple[Arrays, Any, Arrays]]:
    """Parameters, loss and gradient of each step."""
    params = initial()
    for _ in range(STEPS):
        value, gradient = value_and_grad(rounded(params), *data())
        gradient = {name: np.asarray(g) for name, g in gradient.items()}
        yield rounded(params), np.asarray(value), gradient
        params = {name: value - RATE * gradient[name] for name, value in params.items()}


def apart(first: Arrays, second: Arrays) -> float:
    """The largest difference, relative to the largest number."""
    largest = max(abs(g).max() for g in first.values())
    return max(float(abs(first[name] - second[name]).max() / largest) for name in first)


def test_rewritten_as_by_hand() -> None:
    native, rewritten, expected = (
        jax.jit(jax.value_and_grad(loss)) for loss in (in_jax, jaxclamp.min_norm(in_jax), by_hand)
    )
    losses = []
    for params, value, gradient in training(rewritten):
        native_value, native_gradient = native(params, *data())
        np.testing.assert_array_equal(value, native_value)
        assert apart(gradient, native_gradient) > 0.01
        expected_value, expected_gradient = expected(params, *data())
        np.testing.assert_array_equal(value, expected_value)
        assert apart(gradient, expected_gradient) < 1e-14  # XLA fuses, and so sums, in its own order
        losses.append(value)
    assert losses[-1] < losses[0]


def activations(params: Arrays) -> Iterator[np.ndarray]:
    """What goes into the bounds, the pooling (by window) and the softmax, in NumPy."""

    def convolved(h: np.ndarray, name: str) -> np.ndarray:
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        windows = sliding_window_view(h, weight.shape[2:], axis=(2, 3))
        return np.einsum("ncijkl,ockl->noij", windows, weight) + bias[:, None, None]

    def dense(h: np.ndarray, name: str) -> np.ndarray:
        return h @ params[f"{name}.weight"].T + params[f"{name}.bias"]

    x, _ = data()
    yield (h := convolved(x, "first"))
    yield (h := h.clip(-1, 1).reshape(-1, 4, 3, 2, 3, 2).swapaxes(3, 4).reshape(-1, 4, 3, 3, 4))
    yield (h := convolved(h.max(axis=-1), "second"))
    yield (h := dense(h.clip(0, 1).reshape(len(x), -1), "dense"))
    yield dense(h.clip(0, 6), "head")


def counts(params: Arrays) -> np.ndarray:
    """Elements, and elements on a tie, of each."""
    first, windows, second, hidden, logits = activations(params)

    def several(choices: np.ndarray) -> np.ndarray:
        """Whether more than one of the last axis is the largest."""
        return (choices == choices.max(axis=-1, keepdims=True)).sum(axis=-1) > 1

    tied = (np.isin(first, (-1, 1)), several(windows), np.isin(second, (0, 1)), np.isin(hidden, (0, 6)))
    return np.array([(found.size, found.sum()) for found in (*tied, several(logits))])


def by_code(report: jaxclamp.TieReport) -> dict[tuple[str, str], list[int]]:
    """Elements, and elements on a tie, by line of code and op; all of them are in this file."""
    assert {line.file for line in report.lines} == {__file__}
    code = Path(__file__).read_text().splitlines()
    return {(code[line.number - 1].strip(), line.op): [line.elements, line.tied] for line in report.lines}


def test_ties_in_jax() -> None:
    """Those of all steps of training, within jit and with the gradient."""
    step = jaxclamp.ties(jax.jit(jax.value_and_grad(in_jax)))
    reports = []

    def counting(*args: Any) -> Any:
        result, report = step(*args)
        reports.append(report)
        return result

    bounded, pooled, clipped, hidden, softmax = sum(counts(params) for params, _, _ in training(counting)).tolist()
    assert min(tied for _, tied in (bounded, pooled, clipped, hidden)) > 0
    in_softmax = "log_probabilities = jax.nn.log_softmax(logits)"
    assert by_code(sum(reports, jaxclamp.TieReport())) == {
        ("h = jax.nn.hard_tanh(self.first(x))", "hardtanh"): bounded,
        ("h = self.pool(h)", "max_pool"): pooled,
        ("h = jnp.clip(self.second(h), 0.0, 1.0)", "clamp"): clipped,
        ("h = jax.nn.relu6(self.dense(h.ravel()))", "relu6"): hidden,
        (in_softmax, "amax"): softmax,
        (in_softmax, "maximum"): [softmax[0], 0],  # with minus infinity
    }


def test_ties_in_torch() -> None:
    with interop.ties() as counted:
        steps = list(training(torch_value_and_grad))
    bounded, pooled, clipped, hidden, _ = sum(counts(params) for params, _, _ in steps).tolist()
    assert by_code(counted.report) == {
        ("h = functional.hardtanh(self.first(x))", "hardtanh"): bounded,
        ("h = functional.max_pool2d(h, 2)", "max_pool2d"): pooled,
        ("h = self.second(h).clamp(0.0, 1.0)", "clamp"): clipped,
        ("h = functional.relu6(self.dense(h.flatten(1)))", "relu6"): hidden,
    }


@pytest.mark.parametrize("convention", ["min_norm", "native"])
def test_training_in_both_frameworks(convention: str) -> None:
    """Under the convention they stay together to rounding; natively each step takes them apart."""
    if convention == "min_norm":
        in_jax_steps = training(jax.jit(jax.value_and_grad(jaxclamp.min_norm(in_jax))))
        in_torch_steps = training(interop.min_norm()(torch_value_and_grad))
    else:
        in_jax_steps, in_torch_steps = training(jax.jit(jax.value_and_grad(in_jax))), training(torch_value_and_grad)
    for (params, value, gradient), (ported_params, ported_value, ported_gradient) in zip(
        in_jax_steps, in_torch_steps, strict=True
    ):
        if convention == "min_norm":
            jax.tree.map(np.testing.assert_array_equal, params, ported_params)
            np.testing.assert_allclose(value, ported_value, rtol=1e-14)
            assert apart(gradient, ported_gradient) < 1e-14
        else:
            assert apart(gradient, ported_gradient) > 0.01


@pytest.mark.thorough
def test_compare_names_ties_as_the_cause() -> None:
    arguments = (rounded(initial()), *data())
    comparison = interop.compare(in_jax, in_torch, *arguments)
    assert comparison.verdict.startswith("jax against torch: they disagree because of ties alone.")
    # Above the bounds that the frameworks differentiate differently, nothing differs.
    affected = [f"gradient[0]['{name}.{kind}']" for name in ("first", "second") for kind in ("bias", "weight")]
    assert [leaf.label for leaf in comparison.leaves if leaf.finding == "ties"] == [*affected, "gradient[1]"]
    assert {leaf.finding for leaf in comparison.leaves} == {"agrees", "ties"}
