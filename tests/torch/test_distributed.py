"""Are gradients of parts that lie in several processes those of the whole, or refused?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh

import interop
from interop.native import NATIVE
from tests.torch import engines, placements


@pytest.fixture
def one_process() -> Iterator[None]:
    """A group of processes that is this one alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))


def in_units(keeps_originals: bool) -> torch.nn.Module:
    return FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=keeps_originals)


def in_shards() -> torch.nn.Module:
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


SHARDED: dict[str, tuple[Callable[[], torch.nn.Module], str]] = {
    "FSDP1": (lambda: in_units(False), "FullyShardedDataParallel has cut into parts"),
    "FSDP1 with the original parameters": (lambda: in_units(True), "FullyShardedDataParallel has cut into parts"),
    "FSDP2": (in_shards, "it is a DTensor"),
}


@pytest.mark.filterwarnings("ignore:FSDP is switching")  # with one process it cuts nothing
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("name", SHARDED)
def test_along_refuses_parts(name: str) -> None:
    sharded, reason = SHARDED[name]
    model = sharded()
    for parameters in (model, list(model.parameters())):
        with pytest.raises(TypeError, match=reason), interop.along(parameters):
            raise AssertionError("the block was entered")


@pytest.mark.usefixtures("one_process")
def test_functions_of_parts_are_refused() -> None:
    x = distribute_tensor(torch.zeros(4), init_device_mesh("cpu", (1,)), [Shard(0)])
    for call in (
        lambda: interop.grad(lambda x: x.abs().sum())(x),
        lambda: interop.directional_derivative(torch.abs, x, x),
        lambda: interop.subdifferential(lambda x: x.abs().sum())(x),
    ):
        with pytest.raises(TypeError, match=r"it is a DTensor.*in one process or in DistributedDataParallel"):
            call()


@pytest.mark.usefixtures("one_process")
def test_a_module_in_shards_is_converted_and_back() -> None:
    """It has parameters, so that `fully_shard` gives it a class of its own."""
    module = torch.nn.PReLU(init=2.0)
    fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    kind, x = type(module), torch.zeros(3, requires_grad=True)
    conversion = interop.nn.convert(module)
    assert conversion.replaced == {"": "PReLU"}
    assert isinstance(module, interop.nn.PReLU)
    assert isinstance(module, FSDPModule)
    assert torch.autograd.grad(module(x).sum(), x)[0].tolist() == [1.0] * 3  # of the slopes 2 and 1
    conversion.undo()
    assert type(module).__bases__ == kind.__bases__
    assert torch.autograd.grad(module(x).sum(), x)[0].tolist() == [2.0] * 3


@pytest.mark.usefixtures("one_process")
def test_a_sum_of_parts_is_not_overwritten() -> None:
    x = DTensor.from_local(torch.zeros(3), init_device_mesh("cpu", (1,)), [Partial()]).requires_grad_()
    with interop.min_norm(), pytest.raises(RuntimeError, match=r"clamp_: input is a sum .* use clamp, which"):
        (x * 1.0).clamp_(0.0, 1.0)


@pytest.mark.usefixtures("one_process")
def test_counts_are_summed_over_ranks() -> None:
    x = distribute_tensor(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), init_device_mesh("cpu", (1,)), [Shard(0)])
    with interop.ties() as counted, interop.min_norm() as block:
        x.requires_grad_().clamp(0.0, 2.0)
        torch.zeros(3, requires_grad=True).cummax(0)
    report = interop.sum_over_ranks(counted.report)
    assert (report.lines, report.tied) == (counted.report.lines, 3)
    assert interop.sum_over_ranks(block.passed) == block.passed == {"torch.Tensor.cummax": 1}
    with pytest.raises(TypeError, match="counts is 3; pass the report"):
        interop.sum_over_ranks(3)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="this process is not in the group"):
        interop.sum_over_ranks(block.passed, torch.distributed.GroupMember.NON_GROUP_MEMBER)


EXTREMA: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "amax of all": lambda x: x.amax(),
    "amax of axes": lambda x: x.amax((0, 1)),
    "amin of an axis": lambda x: (-x).amin(0),
    "max": lambda x: x.max(),
    "max of an axis": lambda x: x.max(0).values,
    "aminmax": lambda x: x.aminmax().max,
    "norm": lambda x: x.norm(torch.inf),
    "vector_norm": lambda x: torch.linalg.vector_norm(4 - x, -torch.inf),
    "linalg.norm": lambda x: torch.linalg.norm(x.flatten(), torch.inf),
}


POOLS: dict[str, tuple[torch.nn.Module, list[float]]] = {
    "a window of a pool": (torch.nn.MaxPool2d((1, 4)), [0.0, 0.5, 0.5, 0.0]),
    "windows in a row": (torch.nn.MaxPool2d((1, 2)), [0.0, 1.0, 1.0, 0.0]),
    "all of an image": (torch.nn.AdaptiveMaxPool2d(1), [0.0, 0.125, 0.125, 0.0]),
}
"""By the name: a pool, and the gradient of each row of `IMAGES`."""
IMAGES = torch.tensor([1.0, 3.0, 3.0, 0.0]).expand(2, 2, 4, 4)


def share(rank: int, group: str, answers: str) -> None:
    """In one of two processes: the gradients of extrema and of converted pools along the axis that is cut, and ties."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{group}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    found = {}
    for name, function in EXTREMA.items():
        for axis in (0, 1):
            x = distribute_tensor(torch.tensor([[1.0, 3.0], [3.0, 0.0]]), mesh, [Shard(axis)]).requires_grad_()
            interop.min_norm()(function)(x).sum().backward()
            found[name, axis] = x.grad.full_tensor()
    for name, (pool, _) in POOLS.items():
        converted = torch.nn.Sequential(pool)
        interop.nn.convert(converted)
        for axis in range(IMAGES.dim()):
            x = distribute_tensor(IMAGES.clone(), mesh, [Shard(axis)]).requires_grad_()
            converted(x).sum().backward()
            found[name, axis] = x.grad.full_tensor()
    # One of the processes alone has an infinite number: both look at the gradient, or one would wait for the other.
    x = DTensor.from_local(torch.tensor([1.0, torch.inf if rank else 2.0]), mesh, [Shard(0)])
    divisor = DTensor.from_local(torch.tensor(1.0), mesh, [Replicate()]).requires_grad_()
    with interop.ties() as counted:
        (x / divisor * 0.0).sum().backward()
    assert [line.op for line in counted.report.lines if line.tied] == ["0 met infinity in div"]
    if rank == 0:
        torch.save(found, answers)
    torch.distributed.destroy_process_group()


@pytest.mark.thorough
def test_ties_are_counted_over_all_shards(tmp_path: Path) -> None:
    """By the definition: of four elements in two processes two tie, and of each column one is the largest.

    In each row of an image the second and the third tie, and so do eight in all of it.
    """
    torch.multiprocessing.spawn(share, (str(tmp_path / "group"), str(tmp_path / "answers")), nprocs=2)
    shared, alone = [[0.0, 0.5], [0.5, 0.0]], [[0.0, 1.0], [1.0, 0.0]]
    for (name, _), gradient in torch.load(tmp_path / "answers").items():
        if name in POOLS:
            expected = torch.tensor(POOLS[name][1]).expand_as(IMAGES)
        else:
            expected = torch.tensor(alone if "an axis" in name else shared)
        assert torch.equal(gradient.abs(), expected), name


QUICK = {
    *(
        "clamp_",
        "maximum",
        "amax",
        "max_with_indices",
        "max_pool2d",
    ),  # one of each kind
    "hardsigmoid",  # of which torch differentiates no parts
}


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    "name",
    [
        *("hardsigmoid", "hardswish", "hardtanh", "relu6", "softshrink"),
        *["hardshrink"] * (torch.__version__ >= "2.12"),  # before, torch refuses its values, too
    ],
)
def test_on_both_sides_of_each_kink_parts_have_the_gradient_of_the_whole(name: str) -> None:
    """Torch's own derivatives of these refuse parts, and are replaced."""
    x = torch.arange(-7.0, 7.25, 0.25)  # with all kinks
    expected = placements.differentiated(name, NATIVE[name], x, lambda t: t)
    parts = distribute_tensor(x, init_device_mesh("cpu", (1,)), [Shard(0)])
    assert all(map(torch.equal, placements.differentiated(name, NATIVE[name], parts, lambda t: t), expected))


@pytest.mark.parametrize(
    ("processes", "names"),
    [
        pytest.param(2, QUICK, id="two, quick"),
        pytest.param(2, NATIVE, id="two", marks=pytest.mark.thorough),
        pytest.param(4, NATIVE, id="two by two", marks=pytest.mark.thorough),
    ],
)
def test_all_placements_have_the_gradient_of_one_process(processes: int, names: set[str]) -> None:
    outcomes, collectives = placements.measured(processes, sorted(names))
    is_old = torch.__version__ < "2.12"
    assert {name for name, _, _ in outcomes} == set(names)
    for (name, way, placed), outcome in outcomes.items():
        if way != "torch":
            # A sum of which each process has a part cannot be overwritten by an op that is not linear.
            is_refused = name.endswith("_") and "Partial" in placed and outcome.startswith("RuntimeError")
            # Torch 2.11 has no rule for the values of hardshrink, and none for the derivatives of some others.
            is_refused |= is_old and outcome.startswith("NotImplementedError")
            # Nor does it differentiate its own extremum of an axis, which is the gradient under another convention.
            is_refused |= is_old and way == "inclusive" and "mixed torch.Tensor and DTensor" in outcome
            assert outcome == "right" or is_refused, (name, way, placed, outcome)
    counted = {name for name, way in collectives if way == "mode"}
    assert counted >= ({"amax", "clamp"} if is_old else {"amax", "max", "aminmax", "clamp", "max_pool2d"})
    for (name, way), counts in collectives.items():
        of_torch = collectives[name, "torch"]
        # The operand, which would be gathered in one call, stays where it is, but where torch gathers it for indices.
        gathered, by_torch = (sum(n for kind, n in c.items() if "gather" in kind) for c in (counts, of_torch))
        assert gathered <= by_torch, (name, way)
        assert sum(counts.values()) <= sum(of_torch.values()) + (name == "max"), (name, way)


@pytest.mark.thorough
def test_engines_have_the_gradient_of_one_process(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(engines.work, (str(tmp_path),), nprocs=2)
    assert torch.load(tmp_path / "different") == []
    # The convention matters for this model, and so does the direction.
    of_ways = [engines.gradients(way, lambda model: model, engines.data()) for way in ("mode", "taken back")]
    along = engines.along_a_direction(lambda model: model, engines.data())
    for first, second in itertools.combinations((*of_ways, along), 2):
        assert not all(map(torch.equal, first, second))
