"""A convolutional network on digits, in Equinox, its training, and its ties as NumPy counts them.

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
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.datasets import load_digits

import jaxclamp

Arrays = dict[str, np.ndarray]
STEPS, RATE, GRID = 4, 0.1, 4
SHAPES = {"first": (4, 1, 3, 3), "second": (8, 4, 2, 2), "dense": (16, 32), "head": (10, 16)}


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
    """The same network, its ops replaced by hand by those of jaxclamp."""

    def __call__(self, x: jax.Array) -> jax.Array:
        h = jaxclamp.hardtanh(self.first(x))
        h = jaxclamp.max_pool2d(h, 2)
        h = jaxclamp.clip(self.second(h), 0.0, 1.0)
        h = jaxclamp.relu6(self.dense(h.ravel()))
        return self.head(h)


def loss_of(template: Network) -> Callable[..., jax.Array]:
    """Return the cross entropy as a function of parameters under the names and in the layouts of torch."""

    def leaves(network: Network) -> list[jax.Array]:
        return [leaf for name in SHAPES for leaf in (getattr(network, name).weight, getattr(network, name).bias)]

    def loss(params: dict[str, jax.Array], x: jax.Array, labels: jax.Array) -> jax.Array:
        of_torch = [params[f"{name}.{kind}"] for name in SHAPES for kind in ("weight", "bias")]
        shaped = [array.reshape(leaf.shape) for array, leaf in zip(of_torch, leaves(template), strict=True)]
        logits = jax.vmap(eqx.tree_at(leaves, template, shaped))(x)
        log_probabilities = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1).mean()

    return loss


in_jax, by_hand = (loss_of(eqx.filter_eval_shape(network)) for network in (Network, Rewritten))  # shapes are enough


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
    """Yield the parameters, the loss and the gradient of each step."""
    params = initial()
    for _ in range(STEPS):
        value, gradient = value_and_grad(rounded(params), *data())
        gradient = {name: np.asarray(g) for name, g in gradient.items()}
        yield rounded(params), np.asarray(value), gradient
        params = {name: value - RATE * gradient[name] for name, value in params.items()}


def apart(first: Arrays, second: Arrays) -> float:
    """Return the largest difference, relative to the largest number."""
    largest = max(abs(g).max() for g in first.values())
    return max(float(abs(first[name] - second[name]).max() / largest) for name in first)


def activations(params: Arrays) -> Iterator[np.ndarray]:
    """Compute in NumPy what goes into the bounds and, by window, into the pooling."""

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
    yield dense(h.clip(0, 1).reshape(len(x), -1), "dense")


def counts(params: Arrays) -> np.ndarray:
    """Count the elements, and those on a tie, of each of the `activations`."""
    first, windows, second, hidden = activations(params)

    def several(choices: np.ndarray) -> np.ndarray:
        """Say whether more than one along the last axis is the largest."""
        return (choices == choices.max(axis=-1, keepdims=True)).sum(axis=-1) > 1

    tied = (np.isin(first, (-1, 1)), several(windows), np.isin(second, (0, 1)), np.isin(hidden, (0, 6)))
    return np.array([(mask.size, mask.sum()) for mask in tied])


def by_code(report: jaxclamp.TieReport, file: str) -> dict[tuple[str, str], list[int]]:
    """Map each line of code and op to its elements, and those on a tie; all of them are in that file."""
    assert {line.file for line in report.lines} == {file}
    code = Path(file).read_text().splitlines()
    return {(code[line.number - 1].strip(), line.op): [line.elements, line.tied] for line in report.lines}
