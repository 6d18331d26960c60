"""Kinked functions of torch at kinks: values to the bit, and both derivatives of the piece that is entered."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import interop

Tensor = torch.Tensor
KINKED: dict[str, tuple[Callable[[Tensor], Tensor], float, tuple[float, float], tuple[float, float]]] = {
    "relu": (torch.relu, 0.0, (0, 1), (0, 0)),
    "clamp_max": (lambda x: torch.clamp_max(x, -2.5), -2.5, (1, 0), (0, 0)),
    "clamp": (lambda x: x.clamp(0.1, 0.7), 0.7, (1, 0), (0, 0)),
    "relu6": (functional.relu6, 6.0, (1, 0), (0, 0)),
    "leaky_relu": (lambda x: functional.leaky_relu(x, 0.25), 0.0, (0.25, 1), (0, 0)),
    "prelu": (lambda x: functional.prelu(x, x.new_full((), 0.25)), 0.0, (0.25, 1), (0, 0)),
    "elu": (lambda x: functional.elu(x, 2.0), 0.0, (2, 1), (2, 0)),
    "celu": (lambda x: functional.celu(x, 2.0), 0.0, (1, 1), (0.5, 0)),
    "hardsigmoid": (functional.hardsigmoid, 3.0, (torch.tensor(1 / 6).item(), 0), (0, 0)),
    "hardswish": (functional.hardswish, 3.0, (1.5, 1), (1 / 3, 0)),
    "hardswish, at its other kink": (functional.hardswish, -3.0, (0, -0.5), (0, 1 / 3)),
    "softshrink": (functional.softshrink, -0.5, (1, 0), (0, 0)),
    "threshold": (lambda x: functional.threshold(x, 1.0, 1.0), 1.0, (0, 1), (0, 0)),
    "softsign": (functional.softsign, 0.0, (1, 1), (2, -2)),
    "i0e": (torch.special.i0e, 0.0, (1, -1), (1.5, 1.5)),
    "smooth_l1_loss": (
        lambda x: functional.smooth_l1_loss(x, torch.zeros_like(x), reduction="none", beta=0.5),
        *(0.5, (1, 1), (2, 0)),
    ),
    "huber_loss": (
        lambda x: functional.huber_loss(torch.zeros_like(x), x, reduction="none", delta=0.5),
        *(-0.5, (-0.5, -0.5), (0, 1)),
    ),
}
"""Each has a kink, and the slopes and second derivatives to its left and to its right.

The slope of `hardsigmoid` is 1/6 in float32 in any dtype of torch."""


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [name for name in KINKED if name != "i0e"])  # of 0 torch has 0.992 in bfloat16
def test_values_are_those_of_torch_to_the_bit(name: str, dtype: torch.dtype) -> None:
    function, kink, *_ = KINKED[name]
    at = torch.tensor([kink, -kink, 0.0, -0.0, 1.0, -8.0, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    expected = function(at)
    for speed in (1.0, -1.0, 0.0):
        x, moving = torch.nn.Parameter(at.clone()), torch.nn.Parameter(torch.ones(1))  # something has to move
        with interop.along([x, moving], direction=[torch.full_like(at, speed), torch.ones(1)]):
            value = function(x).detach()
        torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)
        is_number = ~at.isnan()
        assert torch.equal(value.signbit()[is_number], expected.signbit()[is_number])


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", KINKED)
def test_slopes_are_those_of_the_piece_that_is_entered(name: str, dtype: torch.dtype, is_batch: bool) -> None:
    """But for rounding: torch takes them at a neighbour of the kink."""
    function, kink, slopes, _ = KINKED[name]
    transform = torch.func.vmap if is_batch else lambda function: function
    for speed, expected in zip((-1.0, 1.0), slopes, strict=True):
        for x in (torch.tensor([kink], dtype=dtype), torch.tensor([kink, 40.0, -40.0], dtype=dtype)):
            direction = torch.full_like(x[0] if is_batch else x, speed)
            slope = transform(interop.grad(lambda x: function(x).sum(), direction=direction))(x)[0]
            assert slope.item() == pytest.approx(expected, rel=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", [name for name in KINKED if name != "hardsigmoid"])
def test_second_derivatives_are_those_of_the_piece_that_is_entered(name: str) -> None:
    function, kink, _, bends = KINKED[name]
    x = torch.tensor(kink, dtype=torch.float64)
    for speed, expected in zip((-1.0, 1.0), bends, strict=True):
        slope = interop.grad(function, direction=torch.full_like(x, speed))
        assert torch.func.grad(slope)(x).item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("function", "at", "squared_slopes"),
    [
        (functional.hardshrink, 0.5, (0.0, 1.0)),
        (functional.hardshrink, -0.5, (-1.0, 0.0)),
        (lambda x: functional.threshold(x, 1.0, 5.0), 1.0, (0.0, 2.0)),
    ],
)
def test_behind_a_jump_is_the_value_of_the_piece_that_is_entered(
    function: Callable[[Tensor], Tensor], at: float, squared_slopes: tuple[float, float]
) -> None:
    """So the square of ``threshold(x, 1, 5)`` has the slope 2 at x = 1, where x moves up, and not that of 5."""
    x = torch.tensor(at)
    for speed, expected in zip((-1.0, 1.0), squared_slopes, strict=True):
        assert interop.grad(lambda x: function(x) ** 2, direction=torch.tensor(speed))(x).item() == expected


def test_third_derivatives_of_i0e() -> None:
    """It is exp(-|x|) (1 + x^2 / 4 + ...): to the right of 0 with the third derivative -1 - 3/2."""
    x = torch.tensor(0.0, dtype=torch.float64)
    for speed in (-1.0, 1.0):
        slope = interop.grad(torch.special.i0e, direction=torch.full_like(x, speed))
        assert torch.func.grad(torch.func.grad(slope))(x).item() == pytest.approx(-2.5 * speed)


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bounds_that_the_dtype_rounds_to_a_power_of_two(dtype: torch.dtype, is_batch: bool) -> None:
    """The floats above 1 are sparser than those below: half of their distance led from 1 to 1 again."""
    bound, x = 1 - torch.finfo(dtype).eps / 16, torch.tensor([1.0, 1.0], dtype=dtype)
    transform = torch.func.vmap if is_batch else lambda function: function
    for function in (lambda x: x.clamp(min=bound), lambda x: functional.softshrink(x, bound)):
        slope = interop.grad(
            lambda x, function=function: transform(function)(x).sum(), direction=x * torch.tensor([1, -1]).to(dtype)
        )
        assert slope(x).tolist() == [1.0, 0.0]


def test_a_weight_gets_next_to_nothing_of_zeros_in_float16() -> None:
    """It was the smallest normal number of each, 1.2 for 20,000 of them."""
    x, weight = torch.zeros(20000, dtype=torch.float16), torch.tensor([0.25], dtype=torch.float16)
    gradient = interop.grad(lambda x, w: functional.prelu(x, w).sum(), (0, 1), direction=(x - 1, weight))
    assert abs(gradient(x, weight)[1].item()) < 2e-3


@pytest.mark.parametrize("function", [functional.celu, functional.elu, functional.hardshrink, functional.softshrink])
def test_a_parameter_may_be_a_tensor(function: Callable[..., Tensor]) -> None:
    """For celu it raised "Cannot access data pointer of Tensor that doesn't have storage"."""
    x, direction = torch.tensor([0.0, 0.5]), torch.tensor([-1.0, 1.0])
    slopes = [
        interop.grad(lambda x, number=number: function(x, number).sum(), direction=direction)(x)
        for number in (0.5, torch.tensor(0.5))
    ]
    assert torch.equal(*slopes)
