"""Training steps of whole models under the convention beside unmodified ones, in torch and in JAX.

Prints two tables: microseconds of a step, medians in turns in one process, and the ratios to the unmodified step: that
of a converted model, that under the convention, that in which ties are counted, and that with the least that counts
them.
The environment variables of the Makefile keep glibc from returning pages between the steps.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from native import Call, medians, normal, row
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import interop
import jaxclamp
from interop import min_norm


class Residual(nn.Module):
    """An inverted residual of MobileNetV2."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.layers = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


def mobile_net() -> nn.Module:
    blocks = [Residual(16) for _ in range(4)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU6(), *blocks, *head)


def vgg() -> nn.Module:
    """Convolutions with ReLU, and five pools of 2 x 2, as VGG-11 has."""
    layers: list[nn.Module] = []
    channels = 3
    for wide, depth in ((16, 1), (32, 1), (64, 2), (64, 2), (64, 2)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU()]
            channels = wide
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))


class Shortcut(nn.Module):
    """A basic block of ResNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.layers(x))


def resnet() -> nn.Module:
    """The stem of ResNet, with its pool of 3 x 3 and stride 2, and four blocks."""
    stem = (nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    blocks = [Shortcut(32) for _ in range(4)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def multilayer() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.Hardtanh())))


class Clamps(nn.Module):
    """Each layer is clamped by a call of the function."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).clamp(-1.0, 1.0)
        return x


class LeastThatCounts(TorchFunctionMode):
    """Adds up the elements at the kinks of activations, and does nothing else; pools are not counted."""

    KINKS: Mapping[Any, Sequence[float]] = {
        functional.relu: (0.0,),
        torch.relu: (0.0,),
        functional.relu6: (0.0, 6.0),
        functional.hardtanh: (-1.0, 1.0),
        torch.Tensor.clamp: (-1.0, 1.0),
    }

    def __init__(self) -> None:
        super().__init__()
        self.tied = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for kink in self.KINKS.get(func, ()):
            self.tied += np.count_nonzero(args[0].detach().numpy() == kink)
        return func(*args, **(kwargs or {}))


Block = Callable[[], contextlib.AbstractContextManager[Any]]


def training(model: nn.Module, x: torch.Tensor, block: Block = contextlib.nullcontext) -> Call:
    """Return a step with a block around the forward pass, where autocast would be."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def run() -> None:
        optimizer.zero_grad()
        with block():
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()

    return run


def inference(model: nn.Module, x: torch.Tensor, block: Block = contextlib.nullcontext) -> Call:
    model.eval()

    def run() -> None:
        with torch.inference_mode(), block():
            model(x)

    return run


def in_torch() -> None:
    """Time models of torch: unmodified, converted, and with a block around the forward pass."""
    cases: list[tuple[str, Callable[[], nn.Module], torch.Tensor]] = [
        ("MobileNet-like, batch 16", mobile_net, normal(16, 3, 32, 32)),
        ("VGG-like, five pools, batch 16", vgg, normal(16, 3, 32, 32)),
        ("ResNet-like, batch 16", resnet, normal(16, 3, 64, 64)),
        ("six Linear and Hardtanh, batch 32", multilayer, normal(32, 256)),
        ("six Linear and clamp, batch 32", Clamps, normal(32, 256)),
        ("six Linear and clamp, batch 1024", Clamps, normal(1024, 256)),
    ]
    for name, make, x in cases:
        for kind, run, seconds in (("training", training, 4.0), ("inference", inference, 2.0)):
            plain, converted, blocked, counted, least = (make() for _ in range(5))
            interop.nn.convert(converted)
            blocks = [run(blocked, x, min_norm), run(counted, x, interop.ties), run(least, x, LeastThatCounts)]
            times = medians([run(plain, x), run(converted, x), *blocks], seconds)
            ratios = {} if make is Clamps else {"converted": times[1] / times[0]}  # which has no modules to convert
            ratios |= {"block": times[2] / times[0], "ties": times[3] / times[0], "least": times[4] / times[0]}
            row(f"{kind}: {name}", "", *times, **ratios)


Parameters = list[tuple[jax.Array, jax.Array]]


def weights(*shapes: tuple[int, ...]) -> Parameters:
    """Draw a kernel of each shape, outputs first, and its bias."""
    keys = jax.random.split(jax.random.key(0), len(shapes))
    scales = [(2 / math.prod(shape[1:])) ** 0.5 for shape in shapes]
    return [
        (scale * jax.random.normal(key, shape), jnp.zeros(shape[0]))
        for key, shape, scale in zip(keys, shapes, scales, strict=True)
    ]


def convolved(parameters: Parameters, x: jax.Array) -> jax.Array:
    """Apply seven convolutions, ReLU6 behind each, and a pool of windows of 2 behind each second."""
    for k, (kernel, bias) in enumerate(parameters):
        x = jax.nn.relu6(jax.lax.conv(x, kernel, (1, 1), "SAME") + bias[:, None, None])
        if k % 2:
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return x


def layered(activation: Callable[[jax.Array], jax.Array]) -> Callable[[Parameters, jax.Array], jax.Array]:
    def model(parameters: Parameters, x: jax.Array) -> jax.Array:
        for kernel, bias in parameters:
            x = activation(x @ kernel.T + bias)
        return x

    return model


def stepped(
    model: Callable[[Parameters, jax.Array], jax.Array], parameters: Parameters, x: jax.Array, counts: bool = False
) -> Call:
    @jax.jit
    def step(parameters: Parameters, x: jax.Array) -> Any:
        def loss(parameters: Parameters) -> jax.Array:
            return (model(parameters, x) ** 2).mean()

        counting = jaxclamp.count_ties(loss) if counts else lambda parameters: (loss(parameters), None)
        gradients, counted = jax.grad(counting, has_aux=True)(parameters)
        moved = jax.tree.map(lambda value, gradient: value - 1e-4 * gradient, parameters, gradients)
        return moved, counted

    return lambda: jax.block_until_ready(step(parameters, x))


def in_jax() -> None:
    """Time models of JAX: unmodified, and under `jaxclamp.min_norm`."""
    six = weights(*[(256, 256)] * 6)
    channels = weights((16, 3, 3, 3), *[(16, 16, 3, 3)] * 6)
    clamped = layered(lambda x: jnp.clip(x, -1.0, 1.0))
    cases = [
        ("seven convolutions with ReLU6 and pools, batch 16", convolved, channels, (16, 3, 32, 32)),
        ("six Linear and hard_tanh, batch 32", layered(jax.nn.hard_tanh), six, (32, 256)),
        ("six Linear and clip, batch 32", clamped, six, (32, 256)),
        ("six Linear and clip, batch 1024", clamped, six, (1024, 256)),
    ]
    for name, model, parameters, shape in cases:
        x = jax.random.normal(jax.random.key(1), shape)
        steps = [stepped(f, parameters, x) for f in (model, jaxclamp.min_norm(model))]
        times = medians([*steps, stepped(model, parameters, x, counts=True)], 4.0)
        row(f"training: {name}", "", *times, ratio=times[1] / times[0], ties=times[2] / times[0])


def main() -> None:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} threads: unmodified, converted, in a block, counted, the least")
    in_torch()
    print(f"jax {jax.__version__}: unmodified, under jaxclamp.min_norm, counted")
    in_jax()


if __name__ == "__main__":
    main()
