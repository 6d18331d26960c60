"""A small network in Flax and its port to torch, into which a bug can be planted."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional

WIDTH = 8


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        q, k, v = (nn.Dense(WIDTH, name=name)(x) for name in ("query", "key", "value"))
        weights = jax.nn.softmax(q @ k.swapaxes(1, 2) / WIDTH**0.5, axis=-1)
        return nn.Dense(WIDTH, name="out")(weights @ v)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        h = nn.relu(nn.Conv(WIDTH, (3, 3), padding=1)(x))
        return nn.relu(x + nn.Conv(WIDTH, (3, 3), padding=1)(h))


class Network(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = nn.Conv(WIDTH, (3, 3), strides=2, padding="SAME", name="stem")(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = jax.nn.relu6(x)
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = Block()(x)
        x = x.reshape(x.shape[0], -1, WIDTH)
        x = x + Attention()(nn.LayerNorm(epsilon=1e-5)(x))
        x = nn.gelu(nn.Dense(WIDTH, name="mix")(x), approximate=False)
        x = nn.Dropout(0.1, deterministic=True)(x)
        return nn.Dense(3)(x.mean(axis=1))


class PortedAttention(torch.nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug = bug
        self.k_proj, self.v_proj = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.q_proj, self.out_proj = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.q_proj(x) @ self.k_proj(x).mT / WIDTH**0.5
        weights = scores.softmax(dim=1 if self.bug == "softmax axis" else -1)
        return self.out_proj(weights @ self.v_proj(x))


class PortedBlock(torch.nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug = bug
        self.conv1 = torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(x)
        if self.bug != "missing activation":
            h = functional.relu(h)
        h = self.conv2(h)
        return x + functional.relu(h) if self.bug == "residual order" else functional.relu(x + h)


class Transposed(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class Reversed(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.mT + self.bias.flip(0)


class OverTokens(torch.nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + self.eps).sqrt()
        return x * self.weight + self.bias


class ScaledDropout(torch.nn.Dropout):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 - self.p)


class Port(torch.nn.Module):
    """The port; ``bug`` says what is wrong with it."""

    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.bug = bug
        # SAME, of an even length with stride 2, pads behind alone.
        padding = 1 if bug == "padding" else 0
        self.conv = torch.nn.Conv2d(3, WIDTH, 3, stride=1 if bug == "stride" else 2, padding=padding)
        self.bn = torch.nn.BatchNorm2d(WIDTH, momentum=0.9 if bug == "momentum" else 0.1)
        self.pool = torch.nn.AvgPool2d(2) if bug == "pooling kind" else torch.nn.MaxPool2d(2)
        self.block = PortedBlock(bug)
        norm = OverTokens if bug == "layer-norm axis" else torch.nn.LayerNorm
        self.norm = norm(WIDTH, eps=1e-3 if bug == "eps" else 1e-5)
        self.attn = PortedAttention(bug)
        self.dense = (Transposed if bug == "transposed kernel" else torch.nn.Linear)(WIDTH, WIDTH)
        self.act = torch.nn.GELU(approximate="tanh" if bug == "gelu's two forms" else "none")
        self.drop = (ScaledDropout if bug == "dropout scale" else torch.nn.Dropout)(0.1)
        self.head = (Reversed if bug == "bias order" else torch.nn.Linear)(WIDTH, 3)
        if bug == "initial statistics":
            self.bn.running_var.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn(self.conv(x if self.bug == "padding" else functional.pad(x, (0, 1, 0, 1))))
        x = self.pool(x.clamp(0.0, 5.0 if self.bug == "bound of a clamp" else 6.0))
        x = self.block(x).flatten(2).mT
        x = x + self.attn(self.norm(x))
        x = self.drop(self.act(self.dense(x)))
        return self.head(x.mean(dim=1))


BUGS = {
    "bound of a clamp": ("", "BatchNorm_0 | bn", "Block_0 | block"),
    "eps": ("LayerNorm_0 | norm",),
    "transposed kernel": ("mix | dense",),
    "padding": ("stem | conv",),
    "momentum": ("BatchNorm_0 | bn",),
    "gelu's two forms": ("", "mix | dense", "Dropout_0 | drop"),
    "bias order": ("Dense_0 | head",),
    "dropout scale": ("Dropout_0 | drop",),
    "stride": ("stem | conv",),
    "missing activation": ("Block_0 | block", "Block_0.Conv_0 | block.conv1", "Block_0.Conv_1 | block.conv2"),
    "softmax axis": ("Attention_0 | attn", "Attention_0.value | attn.v_proj", "Attention_0.out | attn.out_proj"),
    "layer-norm axis": ("LayerNorm_0 | norm",),
    "pooling kind": ("", "BatchNorm_0 | bn", "Block_0 | block"),
    "residual order": ("Block_0 | block", "Block_0.Conv_1 | block.conv2", None),
    "initial statistics": ("BatchNorm_0 | bn",),
}
"""By bug, the layer to blame; if its own code is, the layers before and behind."""


def images() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)


def bound() -> Any:
    """The network with parameters that are all different, and let some values pass 6."""
    shapes = jax.eval_shape(Network().init, jax.random.key(0), images())
    leaves, structure = jax.tree.flatten(shapes)
    rng = np.random.default_rng(1)
    arrays = [jnp.asarray(rng.normal(size=leaf.shape) * 0.4 + 0.1, leaf.dtype) for leaf in leaves]
    variables = jax.tree.unflatten(structure, arrays)
    statistics, params = variables["batch_stats"]["BatchNorm_0"], variables["params"]["BatchNorm_0"]
    statistics["var"], params["scale"] = jnp.abs(statistics["var"]) + 0.5, 4 + params["scale"]
    variables["params"]["mix"]["kernel"] *= 0.1  # both forms of gelu are the same far from 0
    return Network().bind(variables)
