"""Do derivatives of whole torch programs say where they depend on a choice that was not decided?"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import interop
import jaxclamp
from jaxclamp._transforms import undecided

aten = torch.ops.aten
ONES = torch.ones(3, dtype=torch.float64)
ROTATION = torch.linalg.qr(torch.arange(9.0, dtype=torch.float64).reshape(3, 3) + ONES.diag()).Q
Function = Callable[[torch.Tensor], Any]


@pytest.fixture(autouse=True)
def nothing_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undecided, "_SHOWN", set())


def assigned_to_truth_values(x: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(3, dtype=torch.bool)
    mask[:] = x
    return x * mask


def copied_to_integers(x: torch.Tensor) -> torch.Tensor:
    integers = torch.zeros(3).long()
    torch._foreach_copy_([integers, 1 * x], src=[x, x])
    return x * integers


# By the function: a call, a point where it jumps or turns, and one where it does not.
JUMPS: dict[str, tuple[Function, list[float], list[float]]] = {
    "isin, by names": (lambda x: torch.isin(elements=x, test_elements=ONES) * x, [0.5, 1.0, 1.5], [0.5, 0.7, 1.5]),
    "atan2, at the origin": (lambda x: torch.atan2(x, x - x), [0.0, 1.0, 2.0], [-1.0, 1.0, 2.0]),
    "norms of order 0.5 of many": (lambda x: sum(torch._foreach_norm([x, x], 0.5)), [1.0, 0.0, 2.0], [1.0, 1.0, 2.0]),
    "norm of order 0": (lambda x: torch.linalg.vector_norm(x, 0), [1.0, 0.0, 2.0], [1.0, 1.0, 2.0]),
    "norm of order 0.5": (lambda x: x.norm(0.5), [1.0, 0.0, 2.0], [1.0, 1.0, 2.0]),
    "norm of order -1": (lambda x: torch.linalg.norm(x, -1), [1.0, 0.0, 2.0], [1.0, 1.0, 2.0]),
    "quantile, of a probability": (
        lambda q: torch.arange(4.0).double().exp().quantile(q / 3),
        [1.0, 0.5, 0.5],
        [0.5] * 3,
    ),
    "nanquantile, of a probability": (
        lambda q: torch.tensor([0.0, 1.0, 4.0, torch.nan]).double().nanquantile(q / 2),
        [1.0, 0.5, 0.5],
        [0.5] * 3,
    ),
    "mode": (lambda x: x.mode().values, [1.0, 2.0, 2.0], [1.0, 2.0, 3.0]),
    "modes of columns": (lambda x: torch.stack([x, ONES]).mode(0).values, [1.0, 2.0, 3.0], [2.0, 2.0, 3.0]),
    "svdvals": (lambda x: torch.linalg.svdvals(x.diag()), [1.0, 2.0, 1.0], [1.0, 2.0, 3.0]),
    "svd, at 0": (lambda x: torch.linalg.svd(x.diag())[1], [1.0, 2.0, 0.0], [1.0, 2.0, 3.0]),
    "eigvalsh": (lambda x: torch.linalg.eigvalsh(x.diag()), [1.0, 2.0, 1.0], [1.0, 2.0, 0.0]),
    "eigvals": (lambda x: torch.linalg.eigvals(x.diag().roll(1, 0)).real, [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]),
    "svdvals that are equal but for rounding": (
        lambda x: torch.linalg.svdvals(ROTATION @ x.diag() @ ROTATION.T),
        [1.0, 2.0, 1.0],
        [1.0, 2.0, 3.0],
    ),
    "largest singular values, along the first axes": (
        lambda x: torch.linalg.matrix_norm(torch.stack([x.diag(), 2 * x.diag()], -1), 2, (0, 1)),
        [1.0, 2.0, 2.0],
        [1.0, 2.0, 3.0],
    ),
    "largest singular value": (lambda x: torch.linalg.norm(x.diag(), 2), [1.0, 2.0, 2.0], [1.0, 2.0, 3.0]),
    "nuclear norm": (lambda x: torch.linalg.matrix_norm(x.diag(), "nuc"), [1.0, 2.0, 0.0], [1.0, 2.0, 3.0]),
    "nuclear norm, by torch.norm": (lambda x: torch.norm(x.diag(), "nuc"), [1.0, 2.0, 0.0], [1.0, 2.0, 3.0]),
    "renorm, of order 0.5": (lambda x: x[None].renorm(0.5, 0, 4.0), [1.0, 0.0, 2.0], [1.0, -1.0, 2.0]),
    "embedding": (
        lambda x: functional.embedding(torch.tensor([0]), x[None] * 1, max_norm=4.0, norm_type=1.0),
        [1.0, -1.0, 2.0],
        [1.0, -1.0, 1.0],
    ),
    "rrelu, in training": (lambda x: functional.rrelu(x, training=True), [0.0, 1.0, 2.0], [1.0, 1.0, 2.0]),
    "softplus": (lambda x: functional.softplus(x, 2.0, threshold=3.0), [1.5, 1.0, 2.0], [1.4, 1.0, 2.0]),
    "frexp": (lambda x: torch.frexp(x).mantissa, [0.5, 3.0, 3.0], [3.0, 3.0, 3.0]),
    "where of one tensor": (lambda x: x[torch.where(x)], [0.0, 1.0, 2.0], [1.0, 1.0, 2.0]),
    "copied to integers": (lambda x: x * torch.zeros(3).long().copy_(x), [1.0, 0.0, 0.5], [1.5, 0.0, 0.5]),
    "copies of many to integers": (copied_to_integers, [1.0, 0.0, 0.5], [1.5, 0.0, 0.5]),
    "assigned to truth values": (assigned_to_truth_values, [0.0, 1.0, 2.0], [1.0, 0.5, 2.0]),
    "in a vmap": (torch.func.vmap(lambda x: torch.frexp(x).mantissa), [0.5, 3.0, 3.0], [3.0, 3.0, 3.0]),
}


def directional(fun: Function, at: list[float]) -> None:
    x = torch.tensor(at, dtype=torch.float64)
    interop.directional_derivative(fun, x, ONES)


@pytest.mark.parametrize("name", JUMPS)
def test_a_jump_warns_once_and_a_value_beside_it_does_not(name: str) -> None:
    fun, on, beside = JUMPS[name]
    directional(fun, beside)  # a warning would be an error
    with pytest.warns(jaxclamp.UndecidedWarning, match=r"\.py:\d+: .* jumps") as shown:
        directional(fun, on)
    assert [warning.filename for warning in shown] == [__file__]
    directional(fun, on)


def test_what_does_not_move_is_no_jump() -> None:
    directional(lambda x: x + torch.round(0.5 * ONES), [0.0, 1.0, 2.0])
    directional(lambda x: x * torch.relu(-x).floor(), [0.5, 1.0, 2.0])
    directional(lambda x: torch.round(x.detach()) + x, [0.5, 1.0, 2.0])
    directional(lambda x: torch.copysign(x, 0 * ONES), [0.5, 1.0, 2.0])


@pytest.mark.parametrize("order", [2, 3])
def test_at_0_norms_are_decided(order: int) -> None:
    directional(lambda x: sum(torch._foreach_norm([x, x], order)) + torch.linalg.vector_norm(x, order), [0.0, 0.0, 0.0])


def test_beside_a_jump_of_another_form_of_the_function_is_none() -> None:
    """Integers are no jump of conversions to floats, nor a y of 0 one for the x of an angle."""
    directional(lambda x: x.to(torch.float32) + x.to(torch.complex128).real + x * x.to(torch.bool), [1.0, 2.0, 3.0])
    directional(lambda x: torch.atan2(0 * ONES, x), [1.0, 2.0, -3.0])


def test_a_call_that_torch_refuses_has_the_error_of_torch() -> None:
    with pytest.raises(RuntimeError, match=r"^quantile\(\) q must be in the range"):
        directional(lambda x: x.quantile(2.0), [0.0, 1.0, 2.0])


def test_gradients_and_blocks_warn_at_the_line() -> None:
    def softened(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return functional.softplus(x * step, 2.0, threshold=3.0).sum()

    line = softened.__code__.co_firstlineno + 1
    x, step = torch.tensor([1.5, 0.25, 2.0]), torch.tensor(1.0)
    for call in (
        lambda: interop.grad(softened, (0, 1))(x, step),
        lambda: torch.func.vmap(lambda x: interop.grad(softened, (0, 1))(x, step))(x[:, None]),
    ):
        undecided._SHOWN.clear()
        with pytest.warns(jaxclamp.UndecidedWarning, match="softplus") as shown:
            call()
        assert [warning.lineno for warning in shown] == [line]
    undecided._SHOWN.clear()
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(layer.weight)
    with pytest.warns(jaxclamp.UndecidedWarning) as shown, interop.along(layer):
        softened(layer(x[:, None]), step).backward()
    assert [warning.lineno for warning in shown] == [line]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        interop.grad(softened, (0, 1))(x + 0.1, step)


def test_ties_lists_the_jumps_that_a_gradient_can_depend_on() -> None:
    x = torch.tensor([0.5, 1.5, 2.0], requires_grad=True)
    with interop.ties() as counted:
        x.round()
        x.detach().round()
        torch.copysign(torch.ones(3), x)
        x.clamp(0.5, 2.0)
        torch._foreach_norm([0 * x, x])
        torch._foreach_copy_([torch.zeros(3).long()], [x])
    assert [(line.op, line.suspect, line.tied, line.elements) for line in counted.report.lines] == [
        ("round", True, 2, 3),
        ("copysign", True, 0, 3),
        ("clamp", False, 2, 3),
        ("_foreach_norm", True, 1, 2),
        ("_foreach_copy_", True, 1, 3),
    ]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_ties_lists_where_a_sampled_image_turns_or_jumps(mode: str, padding_mode: str, align_corners: bool) -> None:
    """Judged by the values at both sides of points at pixels and between them, inside of the image and out of it."""
    size = 5 if align_corners else 4  # for which all points below are exact
    image = torch.randn(1, 1, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pixels = torch.arange(-3, 8, 0.25, dtype=torch.float64)
    pixels = pixels[(pixels + 0.5) % size != 0]  # a mirror, at which the nearest pixel of both sides is one
    at = pixels / 2 - 1 if align_corners else (2 * pixels + 1) / size - 1

    def sampled(at: torch.Tensor) -> torch.Tensor:
        points = torch.stack([at, torch.full_like(at, 0.1)], -1)[None, None]
        return functional.grid_sample(image, points, mode, padding_mode, align_corners)

    turns = (sampled(at + 1e-6) - 2 * sampled(at) + sampled(at - 1e-6)).abs() > 1e-9
    with interop.ties() as counted:
        sampled(at.requires_grad_())
    tied = [(line.op, line.suspect, line.tied) for line in counted.report.lines]
    assert tied == ([] if mode == "bicubic" else [("grid_sample", True, turns.sum())])
    assert turns.any() == bool(tied)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 2 * cotangent


RNN, PACKED = torch.nn.RNN(1, 1).double(), torch.nn.utils.rnn.pack_sequence([ONES[:, None]])
REFUSED: dict[str, tuple[Function, str]] = {
    "torch.cond": (lambda x: torch.cond(x.sum() > 0, torch.relu, torch.abs, (x,)), "write an if"),
    "a checkpoint": (lambda x: checkpoint(torch.relu, x, use_reentrant=False), "call the function without one"),
    "a reentrant checkpoint": (lambda x: checkpoint(torch.relu, x, use_reentrant=True), "without it"),
    "an autograd.Function": (Doubled.apply, "write them"),
    "an RNN of packed sequences": (
        lambda x: torch.func.functional_call(RNN, {"weight_ih_l0": x[:1, None]}, (PACKED,))[0].data,
        "in a block of along",
    ),
    "torch.autograd.grad": (lambda x: torch.autograd.grad(x.sum(), x)[0], "call torch.func.grad"),
}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_has_a_cure(name: str) -> None:
    fun, cure = REFUSED[name]
    if name == "a checkpoint" and torch.__version__ < "2.12":
        pytest.skip("torch 2.11 has no forward mode of checkpoints, and refuses them by another error")
    with pytest.raises(RuntimeError) as refused:
        interop.grad(lambda x: fun(x).sum())(ONES)
    assert [cure in note for note in refused.value.__notes__] == [True]


def test_what_torch_refuses_by_itself_is_refused_so() -> None:
    """It called itself without end: the function of this package left the call to torch's, which was replaced by it."""
    row = ONES[None]
    with pytest.raises(ValueError, match="margin"):
        interop.grad(lambda x: functional.triplet_margin_loss(x * row, row, row, margin=0.0))(ONES)
    with pytest.raises(RuntimeError, match="dimension"):
        interop.grad(lambda x: functional.margin_ranking_loss(x, row, torch.ones(3)))(ONES)
    with pytest.raises(RuntimeError, match="number k out of range"):  # the last element was taken
        interop.grad(lambda x: x.kthvalue(0).values)(ONES)
    with pytest.raises(IndexError, match="Dimension out of range"):
        interop.grad(lambda x: x.sum().topk(1, 1).values.sum())(ONES)
    with pytest.raises(ValueError, match="only p == 1 and p == 2"):
        interop.grad(lambda x: functional.multi_margin_loss(x, torch.tensor(0), p=3))(ONES)
    with pytest.raises(RuntimeError, match="inconsistent weight size"):
        interop.grad(lambda x: functional.multi_margin_loss(x, torch.tensor(0), weight=torch.ones(4)))(ONES)
    with pytest.raises(RuntimeError, match="different dtypes"):
        interop.grad(lambda x: torch.heaviside(x, ONES.float()).sum())(ONES)
    index = torch.tensor([0, 1, 2])
    with pytest.raises(RuntimeError, match="must have the same scalar type"):
        interop.grad(lambda x: x.index_reduce(0, index, ONES.float(), "amax").sum())(ONES)
    with pytest.raises(RuntimeError, match=r"Expected self\.dtype to be equal to src\.dtype"):
        interop.grad(lambda x: x.scatter_reduce(0, index, ONES.float(), "amin").sum())(ONES)
    with pytest.raises(NotImplementedError, match="not implemented for 'ComplexDouble'"):
        interop.grad(lambda x: functional.mse_loss(x + 1j, x + 0j).real)(ONES)
    with pytest.raises(RuntimeError, match="must be a 2-tuple"):
        interop.grad(lambda x: torch.linalg.matrix_norm(x * row, dim=(0,)).sum())(ONES)
