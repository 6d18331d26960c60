"""`interop.grad` and `along` of losses that leave out targets or rows: against the loss of those that are there."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import interop

Tensor = torch.Tensor
IS_THERE = torch.tensor([True, False, True])
TARGETS = torch.where(IS_THERE, torch.tensor([1.0, 0.0, 0.5]), math.nan)
WEIGHT, INPUTS = torch.tensor([0.25, -0.5]), torch.tensor([[1.0, 2.0], [0.0, 3.0], [2.0, 1.0]])


def left_out(errors: Tensor) -> Tensor:
    return torch.where(IS_THERE, errors, 0.0)


ERRORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "square": lambda y, t: (y - t) ** 2,
    "mse_loss": lambda y, t: functional.mse_loss(y, t, reduction="none"),
    "smooth_l1_loss": lambda y, t: functional.smooth_l1_loss(y, t, reduction="none"),
    "cross entropy": lambda y, t: functional.binary_cross_entropy_with_logits(y, t, reduction="none"),
    "soft_margin_loss": lambda y, t: functional.soft_margin_loss(y, t, reduction="none"),
    "product": lambda y, t: y * t,
}
"""Functions of a prediction and a target, whose slope is NaN where the target is."""
LEAVING_OUT: dict[str, Callable[[Tensor], Tensor]] = {
    "where": left_out,
    "masked_fill": lambda errors: errors.masked_fill(~IS_THERE, 0.0),
    "mask": lambda errors: errors[IS_THERE],
    "masked_select": lambda errors: errors.masked_select(IS_THERE),
    "index": lambda errors: errors[torch.tensor([2, 0])],
    "index_select": lambda errors: errors.index_select(0, torch.tensor([0, 2])),
    "gather": lambda errors: errors.gather(0, torch.tensor([0, 2])),
    "take": lambda errors: errors.take(torch.tensor([0, 2])),
    "take_along_dim": lambda errors: torch.take_along_dim(errors, torch.tensor([0, 2])),
    "index_fill": lambda errors: errors.index_fill(0, torch.tensor([1]), 0.0),
    "index_put": lambda errors: errors.index_put((torch.tensor([1]),), torch.tensor(0.0)),
    "scatter": lambda errors: errors.scatter(0, torch.tensor([1]), 0.0),
    "fmax": lambda errors: torch.fmax(errors, torch.tensor(0.0)),
    "nansum": lambda errors: errors.nansum(),
    "nanmean": lambda errors: errors.nanmean() * 2,
    "nan_to_num": lambda errors: errors.nan_to_num(0.0),
    "vmap": lambda errors: torch.func.vmap(lambda e, there: torch.where(there, e, 0.0))(errors, IS_THERE),
}


def gradient_in_along(loss: Callable[[Tensor], Tensor]) -> Tensor:
    weight = WEIGHT.clone().requires_grad_()
    with interop.along(weight):
        value = loss(weight)
    value.backward()
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize(
    ("of_it", "leave_out"), [*((name, "where") for name in ERRORS), *(("square", name) for name in LEAVING_OUT)]
)
def test_the_gradient_is_that_of_the_targets_that_are_there(of_it: str, leave_out: str) -> None:
    def loss(weight: Tensor) -> Tensor:
        return LEAVING_OUT[leave_out](ERRORS[of_it](INPUTS @ weight, TARGETS)).sum()

    def behind_a_tie(weight: Tensor) -> Tensor:
        """That the block has tangents from there on; the two halves have a slope of 1."""
        moved = weight - WEIGHT
        return (moved.relu() - (-moved).relu()).sum() + loss(weight)

    weight = WEIGHT.clone().requires_grad_()
    ERRORS[of_it](INPUTS[IS_THERE] @ weight, TARGETS[IS_THERE]).sum().backward()
    expected = weight.grad
    assert expected is not None
    torch.testing.assert_close(interop.grad(loss)(WEIGHT), expected)
    torch.testing.assert_close(gradient_in_along(loss), expected)
    torch.testing.assert_close(gradient_in_along(behind_a_tie), expected + 1)


ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "over a count": lambda errors: errors.sum() / IS_THERE.sum(),
    "times a weight": lambda errors: errors.sum() * torch.tensor(2.0),
    "dot": lambda errors: errors @ torch.ones(3),
    "linear": lambda errors: functional.linear(errors, torch.ones(3)),
    "max": lambda errors: errors.max(),
    "median": lambda errors: errors.median(),
    "kthvalue": lambda errors: errors.kthvalue(2).values,
    "quantile": lambda errors: errors.quantile(0.75),
    "norm": lambda errors: errors.norm(math.inf),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_last_function_of_a_loss_may_be_any(end: str) -> None:
    """In a block what it makes is no view, which could not be settled, with tangents from the beginning or late."""

    def loss(weight: Tensor) -> Tensor:
        return ENDS[end](left_out((INPUTS @ weight - TARGETS) ** 2))

    def behind_a_tie(weight: Tensor) -> Tensor:
        (weight - WEIGHT).relu()
        return loss(weight)

    expected = interop.grad(loss)(WEIGHT)
    assert expected.isfinite().all()
    torch.testing.assert_close(gradient_in_along(loss), expected)
    torch.testing.assert_close(gradient_in_along(behind_a_tie), expected)


def test_numbers_of_16_bits_whose_sum_overflows_cost_no_further_pass() -> None:
    x, passes = torch.ones(100_000, dtype=torch.float16, requires_grad=True), []
    with interop.along(x):
        y = 2 * x
        y.register_hook(passes.append)
        loss = torch.where(x > 0, y, 0.0).float().mean()
    loss.backward()
    assert len(passes) == 1


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_leaves_out_padded_rows(need_weights: bool) -> None:
    layer = torch.nn.MultiheadAttention(4, 2, batch_first=True)
    x, mask = torch.randn(2, 3, 4), torch.tensor([[False] * 3, [True] * 3])

    def loss(x: Tensor, mask: Tensor) -> Tensor:
        result, _ = layer(x, x, x, key_padding_mask=mask, need_weights=need_weights)
        return (result.where(~mask[:, :1, None], 0.0) ** 2).sum()

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), interop.along(layer):
        loss(x, mask).backward()
    expected = torch.autograd.grad(loss(x[:1], mask[:1]), [*layer.parameters()])
    for parameter, gradient in zip(layer.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
