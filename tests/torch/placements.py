"""Calls each function of interop.native on tensors that lie in several processes, beside the same call in one.

Run: python -m tests.torch.placements, which writes the table of docs/devices.md.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional

import interop
from interop.native import NATIVE
from jaxclamp._shared.tables import markdown_table

Tensor = torch.Tensor
Call: TypeAlias = Callable[..., Any]
Outcome: TypeAlias = str
"""``"right"``, ``"wrong"``, or the error."""
Outcomes: TypeAlias = Mapping[tuple[str, str, str], Outcome]
"""Maps a function, a way to call it and a placement to the outcome."""

PLACEMENTS: Mapping[int, Mapping[str, Sequence[Placement]]] = {
    2: {
        "Replicate": [Replicate()],
        "Shard(0)": [Shard(0)],  # the first axis of a matrix and the second of images have odd lengths
        "Shard(1)": [Shard(1)],
        "Shard(-1)": [Shard(-1)],
        "Partial": [Partial()],
    },
    4: {
        "Shard(0) × Shard(1)": [Shard(0), Shard(1)],
        "Shard(0) × Shard(0)": [Shard(0), Shard(0)],
        "Replicate × Shard(-1)": [Replicate(), Shard(-1)],
        "Partial × Shard(0)": [Partial(), Shard(0)],
    },
}
"""By the number of processes, in a row or as a mesh of two by two: the placements of the first argument."""
_MESHES = {2: (2,), 4: (2, 2)}
_SHAPES = {"1d": (2, 3, 6), "2d": (2, 3, 4, 6), "3d": (2, 3, 4, 4, 4)}
_NUMBERS: Mapping[str, tuple[Any, ...]] = {
    "clamp": (-1.0, 2.0),
    "clip": (-1.0, 2.0),
    "clamp_min": (0.0,),
    "clamp_max": (1.0,),
    "leaky_relu": (0.1,),
    "threshold": (0.0, 0.0),
    "elu": (2.0,),
    "celu": (2.0,),
    "amax": (1,),
    "amin": (1,),
    "max_with_indices": (1,),
    "min_with_indices": (1,),
    "normalize": (float("inf"), 1),
    "logsumexp": (1,),
}
_OF_TENSORS: Mapping[str, int] = {
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin", "hypot", "logaddexp", "hinge_embedding_loss"), 1),
    **dict.fromkeys(("margin_ranking_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss"), 2),
}
"""How many further tensors a function takes."""


def drawn(shape: Sequence[int], seed: int) -> Tensor:
    """Small integers, so that many elements tie, in one process and across them."""
    return torch.randint(-1, 3, tuple(shape), generator=torch.Generator().manual_seed(seed)).double()


def argument(name: str) -> Tensor:
    return drawn(_SHAPES.get(name[-2:], (5, 6)), 0)


def operands(name: str, lift: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
    """The arguments of a function behind the first; those that are tensors lie as that one."""
    name = name.rstrip("_")
    if count := _OF_TENSORS.get(name):
        others = [drawn(argument(name).shape, seed) for seed in range(1, 1 + count)]
        if name in ("margin_ranking_loss", "hinge_embedding_loss"):
            others[-1] = torch.where(others[-1] > 0, 1.0, -1.0).double()
        return tuple(map(lift, others))
    if name == "prelu":
        return (torch.tensor([0.5]).double(),)
    return (2,) if "pool" in name else _NUMBERS.get(name, ())


def in_torch(name: str) -> Call:
    known = NATIVE[name].__name__.removesuffix("_with_indices").removeprefix("linalg_")
    homes = (torch.linalg,) if name == "linalg_norm" else (functional, torch, torch.Tensor, torch.linalg)
    return next(getattr(home, known) for home in homes if hasattr(home, known))


def converted(name: str, *parameters: Any) -> torch.nn.Module | None:
    """The module with the name of the function, converted."""
    kinds = {kind.lower(): getattr(torch.nn, kind) for kind in vars(interop.nn) if hasattr(torch.nn, kind)}
    kind = kinds.get(name.replace("_", ""))
    if kind is None or name.endswith("_") or name in _OF_TENSORS or name == "prelu":
        return None
    model = torch.nn.Sequential(kind(*parameters))
    interop.nn.convert(model)
    return model


def ways(name: str) -> dict[str, Call]:
    """How the function is called: torch's own, and by each way of the package."""
    found = {"torch": in_torch(name), "mode": interop.min_norm()(in_torch(name)), "native": NATIVE[name]}
    # Pools under the convention inclusive are torch's own, which differentiates most of them in one process alone.
    if "ties" in inspect.signature(NATIVE[name]).parameters and "pool" not in name:
        found |= {ties: functools.partial(NATIVE[name], ties=ties) for ties in ("inclusive", "exclusive")}
    if converted(name, *operands(name, lambda t: t)):
        found["converted"] = lambda x, *parameters: converted(name, *parameters)(x)  # type: ignore[misc]
    return found


def differentiated(name: str, function: Call, x: Tensor, lift: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The value and the gradient of a call, each as a whole."""
    x = x.detach().requires_grad_()
    value = function(x * 1.0 if name.endswith("_") else x, *operands(name, lift))
    value = value[0] if isinstance(value, tuple) else value
    value.sum().backward()
    assert x.grad is not None
    return whole(value), whole(x.grad)


def whole(x: Tensor) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def outcome(name: str, function: Call, mesh: Any, placements: Sequence[Placement]) -> Outcome:
    x = argument(name)
    axes = [Shard(p.dim % x.dim()) if isinstance(p, Shard) else p for p in placements]
    summed = [Replicate() if placement.is_partial() else placement for placement in axes]

    def lift(t: Tensor) -> Tensor:
        return distribute_tensor(t, mesh, summed)

    parts = 2 ** sum(placement.is_partial() for placement in axes)
    distributed = DTensor.from_local(lift(x / parts).to_local(), mesh, axes, shape=x.shape, stride=x.stride())  # type: ignore[attr-defined]
    expected = differentiated(name, function, x, lambda t: t)
    try:
        result = differentiated(name, function, distributed, lift)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    pairs = zip(result, expected, strict=True)  # sums are rounded in another order
    return "right" if all(torch.allclose(*pair, equal_nan=True) for pair in pairs) else "wrong"


def communicated(mesh: Any) -> dict[tuple[str, str], dict[str, int]]:
    """The collectives of a call and its backward pass, where the first axis is cut, by torch and under the mode."""
    matrix, images = drawn((8, 8), 0), drawn((4, 3, 4, 6), 0)
    calls: dict[str, tuple[Tensor, Call]] = {
        "amax": (matrix, lambda x: x.amax(0)),
        "max": (matrix, lambda x: x.max(0).values),
        "aminmax": (matrix, lambda x: x.aminmax(dim=0).max),
        "clamp": (matrix, lambda x: x.clamp(0.0, 1.0)),
        "max_pool2d": (images, lambda x: functional.max_pool2d(x, 2)),
    }
    counts = {}
    for name, (tensor, call) in calls.items():
        with contextlib.suppress(RuntimeError):  # of torch 2.11, which differentiates no max and no pool of parts
            counts[name, "torch"] = _collectives(call, tensor, mesh)
            counts[name, "mode"] = _collectives(interop.min_norm()(call), tensor, mesh)
    return counts


def _collectives(call: Call, tensor: Tensor, mesh: Any) -> dict[str, int]:
    x = distribute_tensor(tensor.clone(), mesh, [Shard(0)]).requires_grad_()
    with CommDebugMode() as communication:
        call(x).sum().backward()
    return {str(kind): count for kind, count in communication.get_comm_counts().items()}


def work(rank: int, processes: int, names: Collection[str], folder: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    meeting = f"file://{folder}/group"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    mesh = init_device_mesh("cpu", _MESHES[processes])
    outcomes = {
        (name, way, placed): outcome(name, function, mesh, placements)
        for name in names
        for way, function in ways(name).items()
        for placed, placements in PLACEMENTS[processes].items()
    }
    counts = communicated(init_device_mesh("cpu", (processes,)))
    if rank == 0:
        torch.save((outcomes, counts), f"{folder}/answers")
    torch.distributed.destroy_process_group()


def measured(processes: int, names: Collection[str]) -> tuple[Outcomes, dict[tuple[str, str], dict[str, int]]]:
    """The outcomes in so many processes, and the collectives with these in a row."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (processes, names, folder), nprocs=processes)
        return torch.load(f"{folder}/answers")  # type: ignore[no-any-return]


def table() -> str:
    """The outcomes of all functions, a line for all that have the same."""
    results: dict[str, dict[str, dict[str, Outcome]]] = {}
    for processes in PLACEMENTS:
        outcomes, _ = measured(processes, sorted(NATIVE))
        for (name, way, placed), result in outcomes.items():
            short = result if result in ("right", "wrong") else "refused"
            results.setdefault(name, {}).setdefault(way, {})[placed] = short
    lines: dict[tuple[str, str], list[str]] = {}
    for name, by_way in results.items():
        torch_alone = summary(by_way.pop("torch"))
        (ours,) = {summary(of_way) for of_way in by_way.values()}
        lines.setdefault((torch_alone, ours), []).append(f"`{name}`")
    rows = [[", ".join(names), *columns] for columns, names in sorted(lines.items(), key=lambda line: -len(line[1]))]
    return markdown_table(["function", f"torch {torch.__version__.partition('+')[0]}", "jaxclamp"], rows) + "\n"


def summary(outcomes: Mapping[str, str]) -> str:
    """``"right"``, or what else comes of which placements.

    >>> summary({"Replicate": "right", "Shard(0)": "wrong", "Partial": "refused"})
    'wrong: Shard(0); refused: Partial'
    """
    kinds = set(outcomes.values())
    if len(kinds) == 1:
        return kinds.pop()
    return "; ".join(
        f"{kind}: {', '.join(placed for placed, result in outcomes.items() if result == kind)}"
        for kind in ("wrong", "refused")
        if kind in kinds
    )


if __name__ == "__main__":
    page = Path(__file__).parents[2] / "docs" / "devices.md"
    block = re.compile(r"(<!-- placements: .*? -->\n).*?(<!-- end -->)", re.DOTALL)
    written = table()
    page.write_text(block.sub(lambda match: match[1] + written + match[2], page.read_text("utf-8")), "utf-8")
