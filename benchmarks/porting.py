"""What `interop.compare_models` costs for a ResNet-18 in Flax and in torch, beside a gradient of each.

``python benchmarks/porting.py`` prints seconds and mebibytes, each from a process of its own: the two runs that a
comparison cannot do without, and the comparison. Both compile in JAX once; ``XLA_FLAGS`` and threads are as usual.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

BATCH, SIZE = 4, 96
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))


def flax_model() -> Any:
    import flax.linen as nn
    import jax

    class Block(nn.Module):
        width: int
        stride: int

        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            h = nn.Conv(self.width, (3, 3), self.stride, padding=1, use_bias=False, name="conv1")(x)
            h = nn.relu(nn.BatchNorm(True, name="bn1")(h))
            h = nn.Conv(self.width, (3, 3), padding=1, use_bias=False, name="conv2")(h)
            h = nn.BatchNorm(True, name="bn2")(h)
            if x.shape[-1] != self.width:
                x = nn.Conv(self.width, (1, 1), self.stride, use_bias=False, name="down")(x)
                x = nn.BatchNorm(True, name="bn3")(x)
            return nn.relu(x + h)

    class ResNet(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = nn.relu(nn.BatchNorm(True)(nn.Conv(64, (7, 7), 2, padding=3, use_bias=False)(x)))
            x = nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
            for width, stride in STAGES:
                x = Block(width, 1)(Block(width, stride)(x))
            return nn.Dense(1000)(x.mean((1, 2)))

    return ResNet()


def torch_model() -> Any:
    import torch
    from torch import nn
    from torch.nn.functional import relu

    class Block(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(width)
            down = [nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)] if inputs != width else []
            self.down = nn.Sequential(*down)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return relu(self.down(x) + self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))))

    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for width, stride in STAGES:
        layers += [Block(inputs, width, stride), Block(width, width, 1)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).eval()


def images() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(BATCH, 3, SIZE, SIZE)).astype(np.float32)


def two_runs() -> None:
    """Compute the gradient of each model with respect to parameters and inputs."""
    import jax
    import torch

    port, x = torch_model(), torch.from_numpy(images()).requires_grad_()
    torch.autograd.grad(port(x).sum(), [x, *port.parameters()])
    model, y = flax_model(), images().transpose(0, 2, 3, 1)
    variables = jax.jit(model.init)(jax.random.key(0), y)

    def loss(params: Any, y: Any) -> Any:
        return model.apply({**variables, "params": params}, y).sum()

    jax.block_until_ready(jax.jit(jax.grad(loss, argnums=(0, 1)))(variables["params"], y))


def comparison() -> None:
    from interop import compare_models

    compared = compare_models(torch_model(), flax_model(), images())
    assert compared.agree, compared


def main() -> None:
    if len(sys.argv) > 1:
        import flax  # noqa: F401  # that neither pays for what both import
        import jax  # noqa: F401
        import torch  # noqa: F401

        import interop.comparison.models.compare_models  # noqa: F401

        start = time.process_time()
        {"runs": two_runs, "comparison": comparison}[sys.argv[1]]()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{time.process_time() - start} {peak}")
        return
    costs = {
        name: [float(number) for number in subprocess.check_output([sys.executable, __file__, name], text=True).split()]
        for name in ("runs", "comparison")
    }
    print(f"ResNet-18, {BATCH} images of {SIZE}x{SIZE}; seconds of CPU time, and the peak of memory in MiB")
    for name, (seconds, peak) in costs.items():
        print(f"{name:12}{seconds:8.1f}{peak:8.0f}")
    print(
        f"{'ratio':12}{costs['comparison'][0] / costs['runs'][0]:8.2f}{costs['comparison'][1] / costs['runs'][1]:8.2f}"
    )


if __name__ == "__main__":
    main()
