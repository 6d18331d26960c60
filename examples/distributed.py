"""DistributedDataParallel over two processes on CPU: the gradients are those of one process with all the data.

Run: python examples/distributed.py
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import interop

PROCESSES = 2


def build_model() -> torch.nn.Module:
    """Weights of small integers, so that many activations sit exactly on a bound."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), interop.nn.Hardtanh(0.0, 3.0), torch.nn.Linear(8, 2), interop.nn.ReLU6()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-2, 3, parameter.shape))
    return model


def data() -> torch.Tensor:
    return torch.randint(-1, 2, (64, 4), generator=torch.Generator().manual_seed(1)).float()


def gradients(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model(x).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


def work(rank: int, meeting_point: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=PROCESSES)
    try:
        share = data().chunk(PROCESSES)[rank]
        ours = gradients(DistributedDataParallel(build_model()), share)
        for got, expected in zip(ours, gradients(build_model(), data()), strict=True):
            torch.testing.assert_close(got, expected)
        if rank == 0:
            print(f"{PROCESSES} processes, one gradient: {sum(g.numel() for g in ours)} entries agree")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        # Processes that are forked would inherit XLA without its threads.
        mp.start_processes(work, (os.path.join(folder, "meeting"),), nprocs=PROCESSES, start_method="spawn")
