"""The dtype and the device of a result: what torch promotes to, whatever was called before."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

import interop
from jaxclamp import CONVENTIONS
from tests.torch.bridged import FLOATS, INTEGERS, ONES, points

pytestmark = pytest.mark.usefixtures("float32")

QUICK = (torch.bool, torch.uint8, torch.int32, torch.float16, torch.bfloat16, torch.float32)
PROMOTED = [
    pytest.param(dtype, marks=[pytest.mark.thorough] * (dtype not in QUICK))
    for dtype in (torch.bool, *INTEGERS, *FLOATS)
]
SWAPPED_OR_ALIKE = [pytest.param(dims, marks=pytest.mark.thorough) for dims in ((0, 1), (0, 0))]


@pytest.mark.parametrize("dims", [(1, 1), (1, 0), *SWAPPED_OR_ALIKE], ids=str)
@pytest.mark.parametrize("second", PROMOTED, ids=str)
@pytest.mark.parametrize("first", PROMOTED, ids=str)
def test_promotion_of_tensors(first: torch.dtype, second: torch.dtype, dims: tuple[int, int]) -> None:
    x, y = torch.tensor([0.0, 1.0, 3.0]).to(first), torch.tensor([2.0, 1.0, 0.0]).to(second)
    x, y = (t if dim else t[0] for t, dim in zip((x, y), dims, strict=True))
    ours, native = interop.maximum(x, y), torch.maximum(x, y)
    assert ours.dtype == native.dtype
    assert torch.equal(ours, native)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param((1, 2), marks=pytest.mark.thorough),
        pytest.param((0.5, 2.5), marks=pytest.mark.thorough),
        (1, 2.5),
        (0.5, None),
        pytest.param((None, 2), marks=pytest.mark.thorough),
        pytest.param((True, None), marks=pytest.mark.thorough),
        (torch.tensor(1.0), None),
        (torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64), None),
        (torch.tensor(1), torch.tensor([2.0, 2.0, 1.0], dtype=torch.float16)),
        (np.float64(0.5), None),
        (np.float32(0.5), 2.5),
    ],
    ids=str,
)
def test_promotion_of_bounds(bounds: tuple[Any, Any], dim: int) -> None:
    for dtype in (*INTEGERS, *FLOATS):
        x = torch.tensor([0.0, 1.0, 3.0]).to(dtype)
        x = x if dim else x[2]
        ours, native = interop.clamp(x, *bounds), torch.clamp(x, *bounds)
        assert ours.dtype == native.dtype, dtype
        assert torch.equal(ours, native), dtype


@pytest.mark.parametrize("bounds", [(3, 3.0), (3.0, 3), (1, True, 1.0)], ids=str)
def test_promotion_does_not_depend_on_earlier_calls(bounds: tuple[Any, ...]) -> None:
    x = torch.arange(5)
    assert [interop.clamp(x, b).dtype for b in bounds] == [torch.clamp(x, b).dtype for b in bounds]


def test_promotion_follows_the_default_dtype() -> None:
    x = torch.arange(5, dtype=torch.int32)
    assert interop.clamp(x, 0.5).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert interop.clamp(x, 0.5).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("ties", CONVENTIONS)
def test_promotion_under_each_convention(ties: Any) -> None:
    """JAX promoted where one was named."""
    half, double, ints = torch.ones(3, dtype=torch.float16), torch.tensor(0.5, dtype=torch.float64), torch.arange(3)
    assert interop.maximum(half, double, ties=ties).dtype == torch.float16
    assert interop.clamp(ints, 0.5, ties=ties).dtype == torch.float32
    assert torch.equal(interop.hardtanh(ints, -0.5, 1.5, ties=ties), functional.hardtanh(ints, -0.5, 1.5))


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_array_as_a_bound_beside_a_number(array: Callable[..., Any]) -> None:
    bound = array([0.0, 1.0, 2.0], "float32")
    assert interop.clamp(points(3), bound).tolist() == [0.0, 1.0, 2.0]
    assert interop.clamp(points(3), bound, 1.5).tolist() == [0.0, 1.0, 1.5]


def test_large_int_as_the_bound_of_a_float() -> None:
    assert torch.equal(interop.clamp(ONES, 2**40), torch.clamp(ONES, 2**40))


def test_promoted_operands_get_gradients_of_their_own_dtype() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float16, requires_grad=True)
    other = torch.tensor([2.5, 1.5, 0.5], dtype=torch.float64, requires_grad=True)
    ours = torch.autograd.grad(interop.maximum(x, other).sum(), (x, other))
    native = torch.autograd.grad(torch.maximum(x, other).sum(), (x, other))
    assert [g.dtype for g in ours] == [torch.float16, torch.float64]
    for mine, theirs in zip(ours, native, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("ours", "native"),
    [
        (lambda x: interop.hardtanh(x), lambda x: functional.hardtanh(x)),
        (lambda x: interop.threshold(x, 0.0, 2.5), lambda x: functional.threshold(x, 0.0, 2.5)),
        (lambda x: interop.clamp(x, 0.5), lambda x: torch.clamp(x, 0.5)),
        (lambda x: interop.clamp(x, max=1.5), lambda x: torch.clamp(x, max=1.5)),
    ],
    ids=["hardtanh", "threshold", "clamp", "clamp from above"],
)
def test_integers_with_float_parameters_as_in_torch(ours: Callable[..., Any], native: Callable[..., Any]) -> None:
    x = torch.tensor([-3, 0, 2], dtype=torch.int32)
    assert ours(x).dtype == native(x).dtype
    assert torch.equal(ours(x), native(x))


def test_jax_told_to_be_strict() -> None:
    """Torch broadcasts and promotes, whatever JAX has been told."""
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        assert interop.maximum(torch.ones(2, 3), torch.zeros(3)).tolist() == [[1, 1, 1]] * 2
        half, x = torch.ones(3, dtype=torch.float16), torch.zeros(2, 3, requires_grad=True)
        clamped = interop.clamp(x, half, 2.0)
        clamped.sum().backward()
        assert interop.leaky_relu(half, 0.5).dtype == torch.float16
        assert interop.prelu(torch.ones(2, 3), torch.ones(3)).shape == (2, 3)
    assert clamped.dtype == torch.float32
    assert x.grad.tolist() == [[0, 0, 0]] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_numbers_leave_the_dtype_of_the_tensor(dtype: torch.dtype) -> None:
    """Where torch takes tensors alone: a number there is none of the default dtype."""
    x = torch.tensor(-1.0, dtype=dtype)
    assert torch.equal(interop.prelu(x, 0.25), torch.tensor(-0.25, dtype=dtype))
    assert torch.equal(interop.maximum(x, 0.25), torch.tensor(0.25, dtype=dtype))


def test_a_float_beside_integers_is_not_truncated() -> None:
    assert interop.maximum(torch.tensor([0, 1]), 0.5).tolist() == [0.5, 1.0]


def test_two_dtypes_where_torch_takes_one() -> None:
    x, weight = torch.tensor([-2.0], dtype=torch.float64), torch.tensor([0.25])
    assert torch.equal(interop.prelu(x, weight), torch.tensor([-0.5], dtype=torch.float64))


@pytest.mark.parametrize("home", [interop, interop.native], ids=lambda home: home.__name__)
def test_number_on_cpu_beside_a_tensor_elsewhere(home: Any) -> None:
    x, number = torch.ones(2, 3, device="meta"), torch.tensor(1.0)
    for call in (
        lambda home: home.maximum(x, number),
        lambda home: home.maximum(number, x),
        lambda home: home.fmin(x, number),
        lambda home: home.clamp(x, number, torch.tensor(2.0)),
        lambda home: home.clamp(x, max=number),
    ):
        found, expected = call(home), call(torch)
        assert (found.device, found.shape, found.dtype) == (expected.device, expected.shape, expected.dtype)


def test_tensors_on_two_devices_are_refused() -> None:
    with pytest.raises((RuntimeError, ValueError), match="different devices"):
        interop.maximum(torch.ones(2, 3, device="meta"), torch.ones(3))
