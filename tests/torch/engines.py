"""Gradients of one model by torch's engines for many processes, each put under the convention in its own way."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import interop

Gradients = list[torch.Tensor]
WAYS = ("converted before", "converted after", "mode", "taken back")


def network() -> nn.Sequential:
    """Weights of small integers, so that many activations lie on a kink."""
    torch.manual_seed(0)
    layers = nn.Linear(4, 8, bias=False), nn.ReLU6(), nn.Linear(8, 4, bias=False), nn.PReLU(4), nn.Hardswish()
    model = nn.Sequential(*layers, nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-2, 3, parameter.shape).float())
    return model


def data() -> torch.Tensor:
    return torch.randint(-1, 2, (8, 4), generator=torch.Generator().manual_seed(1)).float()


def fsdp2(model: nn.Sequential) -> nn.Module:
    for layer in (model[0], model[2], model[3], model[5], model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    return model


def tensor_parallel(model: nn.Sequential) -> nn.Module:
    """With distributed activations, on which the functions between the layers work."""
    plan = {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cpu", (2,)), plan)


ENGINES: dict[str, Callable[[nn.Sequential], nn.Module]] = {
    "DistributedDataParallel": DistributedDataParallel,
    "FullyShardedDataParallel": lambda model: FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), use_orig_params=True
    ),
    "fully_shard": fsdp2,
    "tensor parallel": tensor_parallel,
}


def gradients(way: str, wrap: Callable[[nn.Sequential], nn.Module], x: torch.Tensor) -> Gradients:
    model = network()
    conversion = interop.nn.convert(model) if way in ("converted before", "taken back") else None
    wrapped = wrap(model)
    if way == "converted after":
        interop.nn.convert(wrapped)
    if way == "taken back" and conversion:
        conversion.undo()
    with interop.min_norm() if way == "mode" else contextlib.nullcontext():
        loss = wrapped(x).square().mean()
    loss.backward()
    if isinstance(wrapped, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(wrapped, with_grads=True):
            return [whole(parameter.grad).clone() for parameter in wrapped.parameters()]
    return [whole(parameter.grad) for parameter in wrapped.parameters()]


def along_a_direction(wrap: Callable[[nn.Sequential], nn.Module], x: torch.Tensor) -> Gradients:
    model = wrap(network())
    with interop.along(model):
        model(x).square().mean().backward()
    return [whole(parameter.grad) for parameter in model.parameters()]


def whole(gradient: Any) -> torch.Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient  # type: ignore[no-any-return]


def work(rank: int, folder: str) -> None:
    """In one of two processes: those engine and way whose gradients are not those of one process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    share = data().chunk(2)[rank]
    different = []
    for engine, wrap in ENGINES.items():
        x = data() if engine == "tensor parallel" else share
        for way in WAYS[:-1] if engine == "tensor parallel" else WAYS:  # of whose activations torch has no relu6
            pairs = zip(gradients(way, wrap, x), gradients(way, lambda model: model, data()), strict=True)
            if not all(torch.allclose(*pair) for pair in pairs):
                different.append((engine, way))
    pairs = zip(along_a_direction(DistributedDataParallel, share), along_a_direction(lambda m: m, data()), strict=True)
    if not all(torch.allclose(*pair) for pair in pairs):
        different.append(("DistributedDataParallel", "along"))
    if rank == 0:
        torch.save(different, f"{folder}/different")
    torch.distributed.destroy_process_group()
