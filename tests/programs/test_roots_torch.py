"""Roots of quadratic forms in torch, against the gradient a small step along the direction."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import interop

Program = Callable[[Tensor], Tensor]

V = torch.tensor([0.6, -0.3, 1.0], dtype=torch.float64)
ZEROS = torch.zeros(3, dtype=torch.float64)
TURN = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0], [1.0, 0.0, 1.0]], dtype=torch.float64)
PLACES = torch.tensor([0, 1, 1])

FORMS: dict[str, Program] = {
    "a dot product": lambda x: x @ x,
    "a product of matrices": lambda x: x[None] @ x[:, None],
    "a batched product of matrices": lambda x: torch.bmm(x[None, None], x[None, :, None]),
    "einsum": lambda x: torch.einsum("i,i->", x, x),
    "vecdot": lambda x: torch.linalg.vecdot(x[None], x[None], dim=-1),
    "with a matrix between": lambda x: x @ TURN @ x,
    "of a product with a matrix": lambda x: ((TURN @ x) ** 2).sum(),
    "squares under a matrix": lambda x: TURN.abs() @ (x * x),
    "a layer without bias": lambda x: functional.linear(x * x, TURN.abs()),
    "of two variables": lambda x: x[0] * x[2],
    "a difference": lambda x: x[0] ** 2 - x[1] ** 2,
    "a binomial": lambda x: x[0] ** 2 + 2 * x[0] * x[2] + x[2] ** 2,
    "minus the negative": lambda x: -(-x * x),
    "with an alpha": lambda x: torch.add(x[0] ** 2, x[1] ** 2, alpha=2),
    "lerp": lambda x: torch.lerp(x[0] ** 2, x[1] ** 2, 0.3),
    "absolute values": lambda x: x.abs() * x.abs(),
    "absolute values of two": lambda x: x[0].abs() * x[1].abs(),
    "a variance of moments": lambda x: (x * x).mean() - x.mean() ** 2,
    "inner products of a difference": lambda x: x[:1] @ x[:1] + x[1:2] @ x[1:2] - 2 * x[:1] @ x[1:2],
    "nansum": lambda x: (x * x).nansum(),
    "the trace of an outer product": lambda x: torch.outer(x, x).trace(),
    "split": lambda x: torch.cat((x * x).split(1)[1:]),
    "unbind": lambda x: torch.stack((x * x).unbind()[:2]),
    "single precision": lambda x: (x * x).sum().float(),
    "to single precision": lambda x: (x * x).to(torch.float32),
    "scatter_add": lambda x: torch.zeros(2, dtype=x.dtype).scatter_add(0, PLACES, x * x),
    "index_add": lambda x: torch.zeros(2, dtype=x.dtype).index_add(0, PLACES, x * x),
    "windows": lambda x: functional.avg_pool1d((x * x)[None], 2),
    "a convolution": lambda x: functional.conv1d((x * x)[None], torch.ones(1, 1, 2, dtype=x.dtype)),
    "the smaller of two products": lambda x: torch.minimum(x[0] * x[2], (x * x).sum()),
    "a clamped product": lambda x: (x[0] * x[2]).clamp(-1, 1),
    "a product or -1": lambda x: torch.maximum(torch.tensor(-1.0, dtype=x.dtype), x[0] * x[2]),
    "a clamped difference": lambda x: (x[0] ** 2 - x[1] ** 2).relu(),
    "the larger of a square and a product that falls": lambda x: torch.maximum(x[0] * x[1], x[2] ** 2),
    "nothing below 0": lambda x: (x[0] * x[1]).clamp(min=0) + x[2] ** 2,
}


def nearby(root: Program) -> Tensor:
    """Return the gradient a step along the direction, which torch computes without a tie."""
    return torch.func.grad(root)(1e-7 * V)


@pytest.mark.parametrize("name", FORMS)
def test_roots_of_forms_have_the_gradient_of_a_step(name: str) -> None:
    def root(x: Tensor) -> Tensor:
        return (FORMS[name](x).sqrt() * 2).sum()

    if name == "nothing below 0":  # beyond a sum, what is selected is not known
        assert interop.grad(root, direction=V)(ZEROS).isnan().any()
        return
    expected = nearby(root)
    tolerance = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(interop.grad(root, direction=V)(ZEROS), expected, **tolerance)
    _, slope = interop.directional_derivative(root, ZEROS, V)
    torch.testing.assert_close(slope.double(), expected @ V, **tolerance)
    parameter = torch.nn.Parameter(ZEROS.clone())
    with interop.along(parameter, direction=V):
        FORMS[name](parameter).sqrt_().sum().mul(2).backward()
    torch.testing.assert_close(parameter.grad, expected, **tolerance)


@pytest.mark.parametrize(
    ("form", "at", "direction"),
    [
        (lambda x: x[0] * x[1], [0.0, 0.0], [1.0, -1.0]),  # negative ahead
        (lambda x: x[0] * x[1], [0.0, 0.0], [1.0, 0.0]),  # 0 ahead, where one factor moves
        (lambda x: x[0] * x[1], [0.0, 2.0], [0.0, 1.0]),  # by the factor that stands still the slope is infinite
        (lambda x: x[0] * x[1], [0.0, 1e-300], [1.0, 1.0]),
        (lambda x: x[0] ** 2 - x[1] ** 2, [1.0, 1.0], [1.0, 1.0]),
        (lambda x: torch.minimum(x[0] * x[1], x[0] ** 2), [0.0, 0.0], [1.0, -1.0]),
        (lambda x: (x[0] * x[1]).clamp(-1, 1), [0.0, 0.0], [1.0, -1.0]),
        (lambda x: (x[0] * (x[1] + 1)).relu(), [0.0, 0.0], [1.0, 1.0]),
        (lambda x: x[0] ** 2 + torch.add(x[1] ** 2, other=x[0]), [0.0, 0.0], [1.0, 1.0]),
        (lambda x: torch.add(x[0] ** 2, 1, x[1]), [0.0, 0.0], [1.0, 1.0]),  # an older call, of x[0] ** 2 + 1 * x[1]
        (lambda x: torch.outer(x, x)[0, 1], [0.0, 0.0], [1.0, -1.0]),
        (lambda x: torch.einsum("i,j->ij", x, x)[0, 1], [0.0, 2.0], [1.0, 1.0]),
        (lambda x: torch.zeros(2).double().index_add(0, PLACES[:2], x * x, alpha=-1).sum(), [0.0, 0.0], [1.0, 1.0]),
        (lambda x: torch.lerp(x[0] ** 2, (x[1] + 2) ** 2, x[1]), [0.0, 0.0], [1.0, 1.0]),  # the weight moves
        (lambda x: x[0] * x[1] - x[0] * x[2], [0.0, 1.0, 2.0], [1.0, 1.0, 3.0]),
        (lambda x: (x[0] * x[1] - x[0] * x[2]).clamp(0, 1), [0.0, 1.0, 3.0], [-1.0, 1.0, 3.0]),
        (lambda x: ((x[:2] * x[:2]).mean() - x[:2].mean() ** 2).relu(), [2.0, 2.0], [1.0, -1.0]),
        (lambda x: ((x[:2] * x[:2]).mean() - x[:2].mean() ** 2).clamp_(min=0), [2.0, 2.0], [1.0, -1.0]),
    ],
)
@pytest.mark.filterwarnings("ignore:This overload of add is deprecated")
def test_what_has_no_finite_slope_has_none_here(form: Program, at: list[float], direction: list[float]) -> None:
    x, v = torch.tensor(at, dtype=torch.float64), torch.tensor(direction, dtype=torch.float64)
    assert not interop.grad(lambda x: form(x).sqrt(), direction=v)(x).isfinite().all()
    parameter = torch.nn.Parameter(x.clone())
    with interop.along(parameter, direction=v):
        loss = form(parameter).sqrt()
    loss.backward()
    assert parameter.grad is not None
    assert not parameter.grad.isfinite().all()


def test_a_bound_at_0_of_what_is_negative_counts() -> None:
    """The root was that of the squares."""
    bounded = lambda x: (x * x + torch.tensor([-1.0, 0.0])).relu().sqrt().sum()  # noqa: E731
    assert interop.grad(bounded, direction=torch.tensor([1.0, -1.0]))(torch.zeros(2)).tolist() == [0.0, -1.0]


def test_the_dtype_is_that_of_torch_behind_autocast() -> None:
    """The root was in the dtype of the factors."""
    with interop.along(parameter := torch.nn.Parameter(torch.zeros(2)), direction=torch.tensor([3.0, 4.0])):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            squares = parameter @ parameter
        root = squares.sqrt()
    assert squares.dtype == root.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "square",
    [
        lambda x: torch.square(x1=x),
        lambda x: torch.ops.aten.square.default(self=x),
        lambda x: torch.ops.aten.div.Tensor(self=x * x, other=torch.tensor(1.0)),
        lambda x: torch.ops.aten.reshape.default(self=x * x, shape=[2]),
        lambda x: (x * x).type((x * x).type()),  # a string
        lambda x: x * x + 0 * torch.add(x + 0j, x + 0j, alpha=1j).real.detach(),
    ],
)
def test_calls_of_other_forms(square: Program) -> None:
    """They raised errors of this package."""
    slopes = interop.grad(lambda x: square(x).sqrt().sum(), direction=torch.tensor([3.0, -4.0]))(torch.zeros(2))
    assert slopes.tolist() == [1.0, -1.0]


@pytest.mark.parametrize("second", [1, 2])
def test_a_product_of_products_that_are_0_and_move(second: int) -> None:
    """Each is no weight of the other, since both have a slope: of the second as a weight, the root had the slope 0."""
    root = lambda x: ((x[0] * x[1]) * (x[0] * x[second])).sqrt()  # noqa: E731
    slopes = interop.grad(root, direction=torch.tensor([-1.0, 1.0, 1.0]))(torch.tensor([0.0, 2.0, 8.0]))
    torch.testing.assert_close(slopes, torch.tensor([-2.0 if second == 1 else -4.0, 0.0, 0.0]))


def test_where_nothing_moves_the_slope_is_0() -> None:
    root = lambda x: torch.stack([x[0] * x[1], x[0] ** 2, x[2] ** 2]).sqrt().sum()  # noqa: E731
    slopes = interop.grad(root, direction=torch.tensor([0.0, 0.0, -2.0]))(torch.zeros(3))
    assert slopes.tolist() == [0.0, 0.0, -1.0]


@pytest.mark.parametrize("steps", [5, 300])
def test_a_moment_that_a_loop_adds_up(steps: int) -> None:
    """Of 200 steps it raised a RecursionError."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    moment = torch.zeros(2)
    with interop.along(parameter, direction=torch.tensor([1.0, -2.0])):
        for _ in range(steps):
            moment = 0.9 * moment + 0.1 * parameter * parameter
        loss = moment.sqrt().sum()
    loss.backward()
    size = (1 - 0.9**steps) ** 0.5
    torch.testing.assert_close(parameter.grad, torch.tensor([size, -size]))


def test_a_gradient_between_a_form_and_its_root() -> None:
    """It forgot the form, so that the root was NaN."""

    def program(x: Tensor) -> Tensor:
        squares = (x * x).sum()
        weight = interop.grad(lambda y: y.abs().sum())(torch.ones(1)).sum()
        return weight * squares.sqrt()

    slopes = interop.grad(program, direction=torch.tensor([3.0, -4.0]))(torch.zeros(2))
    torch.testing.assert_close(slopes, torch.tensor([0.6, -0.8]))


@pytest.mark.parametrize(
    "beside_a_square",
    [
        lambda x: x[1] ** 2 + (1 - x[1].cos()),
        lambda x: (x[1:] ** 2).cumprod(0).sum(),
        lambda x: (x[1] ** 2).exp() - 1,
        lambda x: (x * x).sum().clamp(max=0),
    ],
)
def test_a_root_is_no_norm_where_something_beside_the_squares_moves(beside_a_square: Any) -> None:
    """At 0 its tangent is 0, as that of a square is: the root had the slope of the squares alone, 3 along (3, 4)."""
    root = lambda x: (x[0] ** 2 + beside_a_square(x)).sqrt()  # noqa: E731
    assert interop.directional_derivative(root, torch.zeros(2), torch.tensor([3.0, 4.0]))[1].isnan()


@pytest.mark.parametrize(
    "bounded",
    [
        lambda s: s.amin(0, keepdim=True).clamp(0, 2),
        lambda s: functional.relu6(s.msort()),
        lambda s: s.cumprod(0).clamp_min(0),
        lambda s: torch.maximum(s.sort()[0], torch.tensor(0.0)).clamp(max=1),
    ],
)
def test_a_root_of_what_is_made_of_bounded_squares_is_nan_and_not_0(bounded: Any) -> None:
    """A square stands still at the bound 0. The slope 0 beyond that hid the infinite one of the root."""
    x = torch.zeros(2)
    root = lambda x: (bounded(x * x) * 2).sqrt().sum()  # noqa: E731
    assert interop.grad(root, direction=torch.tensor([3.0, 4.0]))(x).isnan().any()
    parameter = torch.nn.Parameter(x)
    with interop.along(parameter, direction=torch.tensor([3.0, 4.0])):
        loss = root(parameter)
    loss.backward()
    assert parameter.grad is not None
    assert parameter.grad.isnan().any()


def test_a_root_of_weighted_squares_at_a_weight_of_0() -> None:
    """Where that moves, the slope is infinite: it was 0. Of two squares, each a weight of the other, one is not 0."""
    weighted = lambda x: ((x[0] + 1) ** 2 * x[1]).sqrt()  # noqa: E731
    assert interop.directional_derivative(weighted, torch.zeros(2), torch.ones(2))[1] == math.inf
    product = lambda x: (x.square().sum() * x[0] ** 2).sqrt()  # noqa: E731
    assert interop.grad(product, direction=torch.ones(2))(torch.tensor([0.0, 2.0])).tolist() == [2.0, 0.0]
    # Where the squares are 0 too, as in attention to what is masked in part, they add nothing.
    attention = lambda x: torch.stack([x[0], x[1], torch.tensor(-math.inf)]).softmax(0)  # noqa: E731
    attended = lambda x: (attention(x) * torch.stack([x[0], x[1], x[1]]) ** 2).sum().sqrt()  # noqa: E731
    assert interop.directional_derivative(attended, torch.zeros(2), torch.tensor([1.0, 7.0]))[1] == 5.0


def nearest_of_many(x: Tensor) -> Tensor:
    squares = x**2
    for i in range(250):
        squares = torch.minimum(squares, (x - i) ** 2)
    return squares


def selected_twice_in_each_step(x: Tensor) -> Tensor:
    squares = x**2
    for _ in range(30):
        squares = torch.minimum(squares, squares.flip(0))
    return squares


@pytest.mark.parametrize(
    ("select", "expected"), [(nearest_of_many, [1.0, -1.0]), (selected_twice_in_each_step, [2.0, 0.0])]
)
def test_roots_of_what_a_loop_selects(select: Any, expected: list[float]) -> None:
    """They raised a RecursionError, and took twice the time for each step that selects of one tensor twice."""
    parameter, direction = torch.nn.Parameter(torch.zeros(2)), torch.tensor([1.0, -2.0])
    with interop.along(parameter, direction=direction):
        loss = select(parameter).sqrt().sum()
    loss.backward()
    assert parameter.grad is not None
    assert parameter.grad.tolist() == expected


@pytest.mark.parametrize(
    ("taken", "read", "overwritten"),
    [
        (lambda x, weight: x * x * weight, torch.tensor([4.0, 4.0]), 9.0),
        (lambda x, mask: torch.where(mask, x * x, 0.0), torch.tensor([True, True]), False),
        (lambda x, index: (x * x)[index,], torch.tensor([0, 1]), 0),
        (lambda x, index: (x * x).clamp(0, 5).index_select(0, index=index), torch.tensor([0, 1]), 0),
        (lambda x, constant: x * x + (constant.copy_(x[0])), torch.tensor([0.0, 0.0]), 0.0),
    ],
)
def test_a_root_does_not_read_what_was_overwritten(taken: Any, read: Tensor, overwritten: float) -> None:
    """It took the slope with what stands there now, as 9 instead of 6 with the weight 9 in the place of 4."""

    def root(x: Tensor) -> Tensor:
        operand = read.clone()
        result = taken(x, operand)
        operand.fill_(overwritten)
        return result.sqrt().sum()

    assert not interop.directional_derivative(root, torch.zeros(2), torch.tensor([1.0, -2.0]))[1].isfinite()


def test_a_root_of_a_clamp_moves_where_that_does() -> None:
    """At its bound, and where it is overwritten."""
    at = torch.tensor([-1.0, 4.0])
    at_its_bound: Program = lambda x: (x - 4).clamp(min=0).sqrt().sum()  # noqa: E731
    overwritten: Program = lambda x: x[:1].relu().add_(x[1:] - 4).sqrt().sum()  # noqa: E731
    for program in (at_its_bound, overwritten):
        assert interop.directional_derivative(program, at, torch.tensor([0.5, 1.0]))[1] == math.inf
    assert interop.directional_derivative(at_its_bound, at, torch.tensor([0.5, -1.0]))[1] == 0


@pytest.mark.parametrize(
    "clamped",
    [
        lambda x: x.clamp_(min=0),
        lambda x: x.relu_(),
        lambda x: functional.relu(x, inplace=True),
        lambda x: torch.nn.ReLU6(inplace=True)(x),
        lambda x: torch.ops.aten.relu_(x),
    ],
)
def test_a_root_of_a_clamp_that_overwrites(clamped: Program) -> None:
    """It stands still below 0 as that of a clamp that does not, so that y is the larger where it rises."""
    larger: Program = lambda x: torch.maximum(clamped(x[0] * 1).sqrt(), x[1])  # noqa: E731
    at = torch.tensor([-1.0, 0.0])
    for y, expected in ((1.0, [0.0, 1.0]), (-1.0, [0.0, 0.0])):
        assert interop.grad(larger, direction=torch.tensor([1.0, y]))(at).tolist() == expected


def test_a_root_of_a_clamp_whose_tangent_is_nan_does_not_stand_still() -> None:
    """Of (x y)^0.3 at 0 the tangent is 0 times infinity, and the root rises as t^0.3 along (1, 1)."""
    root: Program = lambda x: (x[0] * x[1]).pow(0.3).relu().sqrt()  # noqa: E731
    assert interop.directional_derivative(root, torch.zeros(2), torch.ones(2))[1].isnan()


def test_a_clamp_of_another_block_moves_as_a_parameter() -> None:
    x = torch.tensor([-1.0], requires_grad=True)
    with torch.no_grad(), interop.along(x):
        parameter = x.relu()
    parameter.requires_grad_()
    with interop.along(parameter):
        parameter.sqrt().sum().backward()
    assert parameter.grad == math.inf


def test_a_parameter_that_is_clamped_in_the_block_moves() -> None:
    parameter = torch.nn.Parameter(torch.tensor([-1.0]))
    with interop.along(parameter):
        with torch.no_grad():
            parameter.clamp_(min=0)
        parameter.sqrt().sum().backward()
    assert parameter.grad == math.inf
