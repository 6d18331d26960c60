"""Tensors on CUDA: nothing is copied, streams are kept in order, and devices are not mixed."""

from typing import Any

import jax
import pytest
import torch

import interop
from interop import TORCH_OPS, wrap_for_torch
from interop._bridge.arrays import adopt, lend
from jaxclamp import OPS, Op
from tests.support.calls import arguments


def cuda_devices() -> int:
    """How many CUDA devices both frameworks see."""
    seen_by_jax = sum(device.platform == "gpu" for device in jax.devices())
    return min(seen_by_jax, torch.cuda.device_count())


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_devices() == 0, reason="no CUDA device that both JAX and torch see"),
]
several = pytest.mark.skipif(cuda_devices() < 2, reason="one CUDA device at most")


def value_and_gradient(op: Op, x: torch.Tensor, rest: list[Any]) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    result = TORCH_OPS[op.name](x, *rest)
    value = result[0] if isinstance(result, tuple) else result
    return [value.detach(), torch.autograd.grad(value.sum(), x)[0]]


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_ops_as_on_cpu(op: Op) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        x, *rest = arguments(op, dtype)
        there = [a.cuda() if isinstance(a, torch.Tensor) else a for a in rest]
        for got, want in zip(value_and_gradient(op, x.cuda(), there), value_and_gradient(op, x, rest), strict=True):
            assert got.is_cuda
            torch.testing.assert_close(got.cpu(), want)


def test_nothing_is_copied() -> None:
    x = torch.arange(1024.0, device="cuda")
    lent = lend(x)
    assert lent.unsafe_buffer_pointer() == x.data_ptr()
    doubled = jax.jit(lambda a: 2 * a)(lent)
    pointer = doubled.unsafe_buffer_pointer()
    assert adopt(doubled, on_cpu=False).data_ptr() == pointer


@pytest.mark.parametrize("size", [1_000, 10_000_000])
def test_streams_are_kept_in_order(size: int) -> None:
    """Work that torch has queued comes before JAX's, and what torch queues next comes after, on any stream."""
    wrapped = wrap_for_torch(lambda x: x + 1)
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            for i in range(20):
                x = torch.zeros(size, device="cuda")
                torch.cuda._sleep(5_000_000)
                x += i
                y = wrapped(x)
                x.fill_(-1.0)
                assert (y == i + 1).all()


class Marked(torch.Tensor):
    """A subclass that changes nothing."""


def test_layouts() -> None:
    base = torch.arange(24.0, device="cuda").reshape(4, 6)
    parts = base.T, base[:, ::2], base[1:, 1:], base[0].expand(3, 6), torch._neg_view(base), base[:0]
    misaligned = base[0, 1:], base[1, 1]
    for x in (*parts, *misaligned, base.as_subclass(Marked)):
        ours, native = (clamp(x, -5.0, 5.0) for clamp in (interop.clamp, torch.clamp))
        assert torch.equal(ours, native)
        assert ours.stride() == native.stride()
        assert not ours._is_view() or type(x) is Marked  # torch gives it its type by a view
        leaf = x.detach().requires_grad_()
        interop.relu(leaf).sum().backward()
        assert torch.equal(leaf.grad, (x > 0).float())


def test_tensors_on_cpu_stay_there() -> None:
    x = torch.tensor([0.0, 3.0, 6.0], requires_grad=True)
    y = interop.clamp(x, 0.0, 6.0)
    y.sum().backward()
    assert y.device == x.grad.device == x.device


def test_devices_are_not_mixed() -> None:
    with pytest.raises(
        ValueError, match="maximum: the tensors are on different devices: input on cuda:0, other on cpu"
    ):
        interop.maximum(torch.ones(2, device="cuda"), torch.ones(2))


@several
def test_second_device() -> None:
    x = torch.tensor([0.0, 3.0, 6.0], device="cuda:1", requires_grad=True)
    y = interop.clamp(x, 0.0, 6.0)
    y.sum().backward()
    assert y.device == x.grad.device == x.device
    assert x.grad.tolist() == [0, 1, 0]
