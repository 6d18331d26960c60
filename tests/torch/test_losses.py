"""The functions of `interop.native` that clamp on the way, such as losses: beside torch, and at their ties."""

from typing import Any

import pytest
import torch
from torch.nn import functional

import interop
from interop.native import NATIVE
from tests.torch.natively import Tensor

ANCHOR, POSITIVE, NEGATIVE = (
    torch.tensor(rows) for rows in ([[0.0, 1.0], [2.0, 2.0]], [[3.0, 1.0], [2.0, 1.0]], [[0.0, 5.0], [0.0, 2.0]])
)
LOSSES: dict[str, tuple[list[Tensor], dict[str, Any], int]] = {
    "margin_ranking_loss": (
        [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 1.0, 2.0]), torch.tensor([1.0, -1.0, 1.0])],
        {"margin": 0.7},
        2,
    ),
    "hinge_embedding_loss": ([torch.tensor([1.0, 0.5, 2.0]), torch.tensor([-1.0, -1.0, 1.0])], {"margin": 0.7}, 1),
    "triplet_margin_loss": ([ANCHOR, POSITIVE, NEGATIVE], {"margin": 1.7}, 3),
    "triplet_margin_with_distance_loss": ([ANCHOR, POSITIVE, NEGATIVE], {"margin": 1.7, "swap": True}, 3),
}
"""(arguments, further ones, how many of the first are differentiated)"""
OTHER_ARGUMENTS: dict[str, tuple[list[Tensor], dict[str, Any], int]] = {
    "hinge_embedding_loss": ([torch.tensor([0.5, 2.0, 0.5]), torch.tensor([0.0, 0.0, 3.0])], {}, 1),
    "triplet_margin_loss": ([ANCHOR, POSITIVE, NEGATIVE], {"margin": 1.7, "eps": 0.5, "swap": True}, 3),
}
"""Targets that are neither 1 nor -1, for which both terms count, and another eps."""


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_where_nothing_ties(name: str, reduction: str) -> None:
    """Values and gradients are torch's."""
    for given, further, count in (calls[name] for calls in (LOSSES, OTHER_ARGUMENTS) if name in calls):
        results = []
        for function in (NATIVE[name], getattr(functional, name)):
            active = [x.clone().requires_grad_() for x in given[:count]]
            y = function(*active, *given[count:], **further, reduction=reduction)
            results.append((y.detach(), *torch.autograd.grad(y.sum(), active)))
        for found, expected in zip(*results, strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "older",
    [{"size_average": False}, {"reduce": False}, {"size_average": True}, {"reduction": "elementwise_mean"}],
    ids=str,
)
@pytest.mark.parametrize("name", ["margin_ranking_loss", "hinge_embedding_loss", "triplet_margin_loss"])
def test_older_arguments_of_losses(name: str, older: dict[str, Any]) -> None:
    """They warn as torch's own do."""
    given, further, _ = LOSSES[name]
    results = []
    for function in (NATIVE[name], getattr(functional, name)):
        with pytest.warns(UserWarning, match="deprecated"):
            results.append(function(given[0].clone().requires_grad_(), *given[1:], **further, **older))
    assert torch.equal(*results)


def test_an_unknown_reduction() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="average is not a valid value for reduction"):
        NATIVE["hinge_embedding_loss"](x, torch.ones(2), reduction="average")


def test_normalize_of_zeros_is_linear() -> None:
    """Behind a norm below eps it is x / eps: torch's second derivative there is NaN."""
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(NATIVE["normalize"](x)[:, 0].sum(), x, create_graph=True)
    (of_native,) = torch.autograd.grad(gradient.square().sum(), x)
    assert of_native[0].tolist() == [0, 0]
    y = x[1:].detach().requires_grad_()
    (gradient,) = torch.autograd.grad(functional.normalize(y)[:, 0].sum(), y, create_graph=True)
    torch.testing.assert_close(of_native[1:], torch.autograd.grad(gradient.square().sum(), y)[0])


def test_normalize_where_nothing_ties() -> None:
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4]], requires_grad=True)
    found, expected = (torch.autograd.grad(f(x)[:, 0].sum(), x)[0] for f in (NATIVE["normalize"], functional.normalize))
    assert torch.equal(found, expected)


def test_losses_at_their_ties() -> None:
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    target = torch.tensor([1.0, -1.0])
    loss = NATIVE["margin_ranking_loss"](x, torch.tensor([2.0, 4.0]), target, margin=-1.0, reduction="sum")
    assert torch.autograd.grad(loss, x)[0].tolist() == [0.0, 0.0]  # -(1 - 2) - 1 = 0; (3 - 4) - 1 < 0
    loss = NATIVE["hinge_embedding_loss"](x, -torch.ones(2), reduction="sum")
    assert torch.autograd.grad(loss, x)[0].tolist() == [0.0, 0.0]
    anchor = torch.tensor([[0.0]], requires_grad=True)
    positive, negative = torch.tensor([[1.0]]), torch.tensor([[2.0]])
    loss = NATIVE["triplet_margin_loss"](anchor, positive, negative, eps=0.0)
    assert torch.autograd.grad(loss, anchor)[0].tolist() == [[0.0]]  # 1 + 1 - 2 = 0
    short = torch.tensor([[0.5]], requires_grad=True)
    (found,) = torch.autograd.grad(NATIVE["normalize"](short, eps=0.5).sum(), short)
    assert found.tolist() == [[2.0]]  # the eps counts: x / 0.5


def test_what_torch_has_right_in_multi_margin_loss() -> None:
    """It gives 0: the mode leaves it alone."""
    scores = torch.tensor([[1.0, 0.0]], requires_grad=True)
    loss = functional.multi_margin_loss(scores, torch.tensor([0]))
    assert torch.autograd.grad(loss, scores)[0].tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("name", LOSSES)
def test_losses_under_autocast(name: str) -> None:
    given, further, count = LOSSES[name]
    half = [x.bfloat16() for x in given]
    with torch.autocast("cpu", torch.bfloat16):
        expected = getattr(functional, name)(*half, **further)
        found = NATIVE[name](*[x.requires_grad_() for x in half[:count]], *half[count:], **further)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("block", [interop.min_norm, interop.ties, lambda: interop.as_of("torch 2.13")])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_weight_of_l1_loss(block: Any, reduction: str) -> None:
    """Torch hands it to no mode: with ``torch.device("cpu")`` around it, it is lost."""
    x, y, weight = torch.tensor([1.0, 2.0, 7.0], requires_grad=True), torch.zeros(3), torch.tensor([1.0, 1.0, 2.0])
    expected = functional.l1_loss(x, y, reduction=reduction, weight=weight)
    with block(), interop.min_norm():
        found = functional.l1_loss(x, y, reduction=reduction, weight=weight)
        unweighted = functional.l1_loss(x, y)
    assert torch.equal(found, expected)
    assert torch.equal(unweighted, functional.l1_loss(x, y))
    assert torch.equal(*(torch.autograd.grad(loss.sum(), x)[0] for loss in (found, expected)))
