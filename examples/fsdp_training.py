"""Weights on a grid, trained under FSDP2 in two processes as in one, with the ties logged.

Run: torchrun --nproc-per-node 2 examples/fsdp_training.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import interop

STEPS, ROWS, WIDTH = 5, 64, 16


class Quantised(torch.nn.Linear):
    """A linear layer with weights rounded to eighths and clamped to [-1, 1]; the gradient ignores the rounding."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        clamped = self.weight.clamp(-1.0, 1.0)
        rounded = clamped + ((clamped * 8).round() / 8 - clamped).detach()
        return torch.nn.functional.linear(x, rounded, self.bias)


def build_model() -> torch.nn.Sequential:
    """A model whose weights begin on the grid, many of them on a bound."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(Quantised(WIDTH, WIDTH), torch.nn.ReLU6(), Quantised(WIDTH, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-8, 9, parameter.shape) / 8)
    interop.nn.convert(model)
    return model


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-2, 3, (ROWS, WIDTH), generator=generator).float()
    return x, x.clamp(0.0, 1.0).sum(1, keepdim=True)


def step(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step of training under the convention; ``inclusive`` lets weights on a bound move back."""
    with interop.min_norm(ties="inclusive"):
        loss = (model(x) - y).square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 2.0**-10 * parameter.grad
            parameter.grad = None
    return loss.detach()


def main() -> None:
    dist.init_process_group("gloo")
    try:
        rank, processes = dist.get_rank(), dist.get_world_size()
        model, alone = build_model(), build_model()
        for layer in (model[0], model[2], model):
            fully_shard(layer)
        x, y = data()
        for number in range(STEPS):
            with interop.ties() as counted:
                step(model, x.chunk(processes)[rank], y.chunk(processes)[rank])
            report = interop.sum_over_ranks(counted.report)
            step(alone, x, y)
            if rank == 0:
                print(f"step {number}: {report.tied} of {report.elements} elements on a tie")
        for sharded, whole in zip(model.parameters(), alone.parameters(), strict=True):
            assert isinstance(sharded, DTensor)
            torch.testing.assert_close(sharded.full_tensor(), whole)
        if rank == 0:
            print(f"{processes} processes, one training: the weights agree after {STEPS} steps")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
