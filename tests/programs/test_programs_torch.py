"""Derivatives of whole torch programs, against differences of values at nearby points and against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import interop
import jaxclamp
from tests.programs.nearby import CELLS, ROW, X, Y, drawn, tensor

Function = Callable[..., torch.Tensor]

PROGRAMS: dict[str, tuple[Function, float, float]] = {
    "relu(x) - relu(-x)": (lambda x: torch.relu(x) - torch.relu(-x), 0.0, 1.0),
    "relu(relu(x)) - relu(-x)": (lambda x: x.relu().relu() - functional.relu(-x), 0.0, 1.0),
    "relu6(w + 6) + relu6(w)": (lambda w: functional.relu6(w + 6) + functional.relu6(w), 0.0, 1.0),
    "hardsigmoid(w + 3) + hardsigmoid(w - 3)": (
        lambda w: functional.hardsigmoid(w + 3) + functional.hardsigmoid(w - 3),
        0.0,
        torch.tensor(1 / 6).item(),  # torch has it in float32
    ),
    "clip below + clip above": (lambda x: x.clip(0, None) + torch.clip(x, max=0), 0.0, 1.0),
    "abs(x) - maximum(x, -x) + 5 x": (lambda x: x.abs() - torch.maximum(x, -x) + 5 * x, 0.0, 5.0),
    "a number first": (lambda x: interop.maximum(0.0, x) + interop.minimum(0.0, x), 0.0, 1.0),
    "where by hand": (lambda x: torch.where(x > 0, x, 0) + torch.where(x >= 0, 0, x), 0.0, 1.0),
    "masks by hand": (lambda x: x * (x > 0) + x * (x <= 0).to(x), 0.0, 1.0),
    "clamp + min + max": (
        lambda x: x.clamp(0, 6) + torch.minimum(x, tensor(0.0)) + torch.max(x - 6, tensor(0.0)),
        6.0,
        1.0,
    ),
    "seven times": (lambda x: [x := torch.relu(x) - torch.relu(-x) for _ in range(7)][-1], 0.0, 1.0),
    "a Python if": (lambda x: x if x > 0 else 1 * x, 0.0, 1.0),
    "a Python if on both": (lambda x: (x if x > 0 else -x) - (2 * x if x >= 0 else -2 * x) + x.abs(), 0.0, 0.0),
    "max(x, 2 x) + min(x, 2 x)": (
        lambda x: torch.stack([x, 2 * x]).amax() + torch.stack([x, 2 * x]).min(0).values,
        0.0,
        3.0,
    ),
    "median of equal ones": (lambda x: torch.stack([x, x, x]).median(), 0.0, 1.0),
    "fmax + fmin": (lambda x: torch.fmax(x, tensor(0.0)) + torch.fmin(x, tensor(0.0)), 0.0, 1.0),
    "sorted": (
        lambda x: torch.stack([x, -x]).sort().values @ tensor(-1.0, 1.0) - x.abs() - x.neg().abs() + x,
        0.0,
        1.0,
    ),
    "clamp(-5, t, t)": (lambda t: torch.clamp(tensor(-5.0), t, t), 0.0, 1.0),
    "leaky relus": (
        lambda x: functional.leaky_relu(x, 0.25) - functional.leaky_relu(-x, 0.25),
        0.0,
        1.25,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_have_their_true_derivative(name: str) -> None:
    fun, at, true = PROGRAMS[name]
    x = tensor(at)
    for v in (1.0, -1.0, 0.5, -2.0):
        gradient = interop.grad(fun, direction=tensor(v))(x)
        assert gradient.item() == pytest.approx(true, abs=1e-15)
        value, derivative = interop.directional_derivative(fun, x, tensor(v))
        assert value == fun(x)
        assert derivative.item() == pytest.approx(true * v, abs=1e-15)
    assert interop.grad(fun)(x).item() == pytest.approx(true, abs=1e-15)


def test_khan_and_barton() -> None:
    """max(min(x1, -x2), x2 - x1) at 0, whose pieces are x1, -x2 and x2 - x1."""

    def fun(x: torch.Tensor) -> torch.Tensor:
        return torch.maximum(torch.minimum(x[0], -x[1]), x[1] - x[0])

    def closed(x1: float, x2: float) -> float:
        return max(min(x1, -x2), x2 - x1)

    zero = tensor(0.0, 0.0)
    seen = set()
    for v1, v2 in np.random.default_rng(0).normal(size=(50, 2)):
        v = tensor(v1, v2)
        gradient = interop.grad(fun, direction=v)(zero)
        assert interop.directional_derivative(fun, zero, v)[1] == closed(v1, v2) == gradient @ v
        seen.add(tuple(gradient.tolist()))
    assert seen == {(1.0, 0.0), (0.0, -1.0), (-1.0, 1.0)}


@pytest.mark.parametrize("seed", range(8))
def test_random_networks_at_ties(seed: int) -> None:
    """Piecewise linear ones with small whole numbers, against their gradients at points nearby."""
    rng = np.random.default_rng(seed)
    for _ in range(25):
        first, second = (torch.from_numpy(rng.integers(-2, 3, shape).astype(float)) for shape in ((6, 4), (6, 6)))
        third = torch.from_numpy(rng.integers(-2, 3, 6).astype(float))
        steps = rng.permutation(5)

        def network(x: torch.Tensor) -> torch.Tensor:
            h = first @ x  # noqa: B023  # called in this turn of the loop
            for number in steps:  # noqa: B023
                h = [
                    lambda h: torch.maximum(second @ h.relu(), (second @ h).abs() - h.relu()),  # noqa: B023
                    lambda h: h.sort().values - h.cummax(0).values,
                    lambda h: torch.where(h > h.flip(0), h, -h) + h.clamp(-1, 1),
                    lambda h: h.topk(3).values.repeat(2) - functional.leaky_relu(h, -0.5),
                    lambda h: functional.max_pool1d(h[None], 3, 1, 1)[0] + h * (h <= 0),
                ][number](h)
            return third @ h  # noqa: B023

        x = torch.from_numpy(rng.integers(-1, 2, 4).astype(float)) * (seed % 3 > 0)
        v = torch.from_numpy(rng.normal(size=4))
        near = (x + 1e-8 * v).requires_grad_()
        (true,) = torch.autograd.grad(network(near), near)
        assert torch.equal(interop.grad(network, direction=v)(x), true)


def test_second_derivatives_are_those_of_the_piece() -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        return (functional.relu(x) ** 3 - functional.relu(-x) ** 2 + functional.elu(x, 2.0) + x * x.abs()).sum()

    x, v = tensor(0.0, 0.0, 2.0, -1.0), tensor(1.0, -1.0, 1.0, 1.0)
    true = tensor(2.0, -2.0 - 2.0 + 2.0, 6 * 2.0 + 2.0, -2.0 - 2.0 + 2 * math.exp(-1.0))
    gradient = interop.grad(fun, direction=v)
    torch.testing.assert_close(torch.func.jacrev(gradient)(x), torch.diag(true))
    torch.testing.assert_close(torch.func.grad(lambda x: gradient(x).sum())(x), true)
    torch.testing.assert_close(torch.func.jvp(gradient, (x,), (torch.ones_like(x),))[1], true)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(gradient(leaf).sum(), leaf)[0], true)
    with interop.along([leaf], direction=[v]):
        (first,) = torch.autograd.grad(fun(leaf), leaf, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), leaf)[0], true)


def test_infinities_do_not_move() -> None:
    """What is compared with an infinity keeps its outcome, as in JAX."""
    functions: list[Function] = [
        lambda xp, x: xp.where(x == math.inf, 0.0, x),
        lambda xp, x: xp.where(x > -math.inf, 2 * x[2], 3 * x[2]),
        lambda xp, x: xp.maximum(x[:-1], x[1:]),
    ]
    at = [math.inf, math.inf, 1.0, -math.inf, -math.inf]
    for fun in functions:
        for v in ([1.0, 2.0, 3.0, 4.0, 5.0], [-1.0, -2.0, -3.0, -4.0, -5.0]):
            found = interop.grad(lambda x: fun(torch, x).sum(), direction=torch.tensor(v))(torch.tensor(at))  # noqa: B023
            expected = jaxclamp.grad(lambda x: fun(jnp, x).sum(), direction=jnp.array(v))(jnp.array(at))  # noqa: B023
            assert found.tolist() == expected.tolist()


def test_batches_of_points_and_of_directions() -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        return x.abs().sum() + x.amax() + functional.relu(x).sort().values[0] + torch.maximum(x, x.flip(0))[1]

    x, v = torch.zeros(5, 3), torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    found = torch.func.vmap(lambda x, v: interop.grad(fun, direction=v)(x))(x, v)
    alone = [interop.grad(fun, direction=v)(x) for x, v in zip(x, v, strict=True)]
    torch.testing.assert_close(found, torch.stack(alone))
    drawn_once = torch.func.vmap(interop.grad(fun))(x)  # one direction for the whole batch
    torch.testing.assert_close(drawn_once, interop.grad(fun)(x[0]).expand(5, 3))
    overwritten = torch.func.vmap(interop.grad(lambda x: (x * 1).mul_(x).sum()))(x + 1)
    torch.testing.assert_close(overwritten, 2 * (x + 1))
    along_one = torch.func.vmap(interop.grad(lambda x: (x * 1).relu_().sum(), direction=torch.ones(3)))(x)
    torch.testing.assert_close(along_one, torch.ones(5, 3))


def rows(x: torch.Tensor) -> torch.Tensor:
    """Of a batch of rows of four, by functions that choose in different ways."""

    def of_row(row: torch.Tensor) -> torch.Tensor:
        largest, places = row.max(0)
        masked = torch.where(row > row.flip(0), row, 3 * row) * (row >= 0)
        pooled = functional.max_pool1d(row[None], 2)[0].sum() + row.scatter_reduce(0, CELLS[0], row.flip(0), "amax")
        return (row * 1).relu_() * row[places] + largest - masked + pooled + row.sort().values * 2 + row.clamp(-1, 1)

    return torch.func.vmap(lambda row: of_row(row) + functional.layer_norm(row + ROW, (4,)) * row.abs())(x)


def cubes(x: torch.Tensor) -> torch.Tensor:
    return (x.relu() - (-x).relu() + x.amax() + torch.maximum(x, 2 * x)) * x * x


LAYER = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.ReLU()).double()
WITHIN: dict[str, Function] = {
    "vmap": rows,
    "vmap of vmap": lambda x: torch.func.vmap(torch.func.vmap(lambda a: a.abs() * a.relu()))(x),
    "vmap along the second axis": lambda x: torch.func.vmap(torch.amax, in_dims=1)(x),
    "vmap of a constant": lambda x: torch.func.vmap(lambda a: torch.maximum(a, x.abs()))(Y) + 0 * x,
    "grad": lambda x: torch.func.grad(lambda x: cubes(x).sum())(x),
    "vmap of grad": lambda x: torch.func.vmap(torch.func.grad(lambda x: cubes(x).sum()))(x),
    "jvp": lambda x: torch.func.jvp(cubes, (x,), (-1 - Y,))[1],
    "vjp": lambda x: torch.func.vjp(cubes, x)[1](x + 1)[0],
    "jacrev": lambda x: torch.func.jacrev(cubes)(x[0]),
    "jacfwd": lambda x: torch.func.jacfwd(cubes)(x[0]),
    "hessian": lambda x: torch.func.hessian(lambda x: cubes(x).sum())(x[0]),
    "functional_call": lambda x: torch.func.functional_call(LAYER, {"0.weight": x.expand(3, 4)}, (1 + Y,)),
}


@pytest.mark.parametrize("name", WITHIN)
def test_transformations_within_the_function(name: str) -> None:
    """What is in them is decided by the direction outside, not by tangents of their own."""
    x, v = X, drawn((X,), 3)[0]
    weights = torch.from_numpy(np.random.default_rng(7).normal(size=WITHIN[name](x).shape))

    def weighted(x: torch.Tensor) -> torch.Tensor:
        return (WITHIN[name](x) * weights).sum()

    true = torch.func.grad(weighted)(x + 1e-7 * v)
    torch.testing.assert_close(interop.grad(weighted, direction=v)(x), true, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        interop.directional_derivative(weighted, x, v)[1], (true * v).sum(), atol=1e-5, rtol=1e-5
    )
    leaf = x.clone().requires_grad_()
    is_forward = name in ("jvp", "jacfwd", "hessian")
    with interop.along(leaf, direction=[v]):
        if is_forward:
            with pytest.raises(RuntimeError, match="Nested forward mode"):
                weighted(leaf)
        else:
            weighted(leaf).backward()
            torch.testing.assert_close(leaf.grad, true, atol=1e-5, rtol=1e-5)


def test_tangents_are_found_behind_a_gradient_within_the_function() -> None:
    relu = torch.func.vmap(torch.relu)

    def fun(x: torch.Tensor) -> torch.Tensor:
        slope = interop.grad(lambda x: x.square().sum())(x)  # which has more transformations around its own tangents
        return (relu(x) - relu(-x) + slope).sum()

    assert interop.grad(fun)(torch.zeros(2)).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("fold", [torch.relu, torch.abs, lambda x: x.clamp(-1, 2), functional.hardtanh])
def test_a_gradient_within_the_function_is_decided_by_both_directions(fold: Any) -> None:
    """The one inside decides first, where both are on a tie: so it has the slopes, and the other moves along them."""
    square = lambda x: fold(x).square().sum()  # noqa: E731
    x, v = torch.tensor([0.0, -1.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, -1.0, -1.0])
    slope = interop.grad(lambda x: (interop.grad(square, direction=v)(x) * x).sum(), direction=v)(x)
    assert torch.equal(slope, torch.func.grad(lambda x: (torch.func.grad(square)(x) * x).sum())(x + v / 1024).round())


@pytest.mark.parametrize("fold", [torch.relu, torch.abs, lambda x: torch.maximum(x, torch.zeros(2)), torch.sort])
def test_what_stands_still_in_a_gradient_within_the_function_moves_around_it(fold: Any) -> None:
    piece = lambda x: fold(x)[0].sum() + torch.where(x > 0, x, 5 * x).sum()  # noqa: E731
    x, v = torch.zeros(2), torch.tensor([1.0, -1.0])
    inner = lambda x: interop.grad(lambda y: piece(x) * y, direction=torch.tensor(-1.0))(torch.tensor(1.0))  # noqa: E731
    assert torch.equal(interop.grad(inner, direction=v)(x), interop.grad(piece, direction=v)(x))


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_an_absolute_value_has_no_sign_where_it_is_0(value: float) -> None:
    x = torch.full((2,), value, requires_grad=True)
    with interop.along(x, direction=torch.tensor([1.0, -1.0])):
        assert (1 / x.abs()).tolist() == [math.inf, math.inf]


class Marked(torch.Tensor):
    """Is a subclass of tensors, which torch's functions return too."""


@pytest.mark.parametrize("fold", [torch.relu, torch.abs])
def test_subclasses_of_tensors_remain(fold: Any) -> None:
    x = torch.zeros(2).as_subclass(Marked).requires_grad_()
    with interop.along([x]):
        assert isinstance(fold(x), Marked)


def test_the_size_of_a_complex_number_at_0_has_derivatives_of_all_orders() -> None:
    """It is that of one which moves alike, and is not 0: with x = y = t, the piece is the root of 2, times t."""
    size = lambda x: torch.complex(x, x).abs().sum() * (1 + x.sum()) ** 3  # noqa: E731
    here = torch.zeros(2, dtype=torch.float64)
    slope = interop.grad(size, direction=here + 1)
    for derivative in (slope, torch.func.jacrev(slope), torch.func.hessian(slope)):
        torch.testing.assert_close(derivative(here), derivative(here + 1e-6), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        functional.celu,
        functional.softsign,
        lambda x: functional.smooth_l1_loss(x - 0.5, 0 * x.detach(), beta=0.5),
        lambda x: functional.huber_loss(torch.ones_like(x), x, delta=1.0),
        lambda x: functional.huber_loss(-x, torch.full_like(x, 2.0), "sum", 2.0, torch.arange(2.0)),
    ],
)
def test_second_derivatives_where_slopes_agree(function: Any) -> None:
    total = lambda x: (function(x) * (1 + x)).sum()  # noqa: E731
    here = torch.zeros(2, dtype=torch.float64)
    for direction in (torch.tensor([1.0, 2.0]).double(), torch.tensor([-1.0, -2.0]).double()):
        slope = interop.grad(total, direction=direction)
        nearby = torch.func.hessian(total)(here + 1e-4 * direction)
        torch.testing.assert_close(torch.func.jacrev(slope)(here), nearby, atol=1e-3, rtol=1e-3)
        _, turn = interop.directional_derivative(torch.func.grad(total), here, direction)
        torch.testing.assert_close(turn, nearby @ direction, atol=1e-3, rtol=1e-3)


BLOCKS = [
    *(interop.as_of(version) for version in ("torch 2.13", "torch 2.15")),
    *(interop.min_norm(backend=backend) for backend in ("torch", "jax")),
    interop.min_norm(ties="inclusive"),
]


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_within_the_function(block: Any) -> None:
    """The directions decide, not the block, which would cut ``x`` to 0 at the tie; nor does one around it."""

    def identity(x: torch.Tensor) -> torch.Tensor:
        pair = torch.stack([x, 0 * x])
        ends = pair.max(0).values + pair.min(0).values + (x.max() + x.min() - x.sum())
        return (x.relu() - functional.relu(-x) + x.clamp(min=0) + torch.minimum(x, torch.zeros(2)) + ends).sum() / 3

    x = torch.zeros(2, requires_grad=True)
    with interop.along(x), block:
        identity(x).backward()
    assert interop.grad(block(identity))(torch.zeros(2)).tolist() == x.grad.tolist() == [1.0, 1.0]
    with block:
        assert interop.grad(identity)(torch.zeros(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("ties", [None, "inclusive", "torch 2.13", "torch 2.15"])
def test_converted_modules_within_the_function(ties: str | None) -> None:
    relu = torch.nn.ReLU()
    interop.nn.convert(relu, ties=ties)
    assert interop.grad(lambda x: relu(x) - relu(-x))(torch.tensor(0.0)) == 1.0


def test_checkpoints_within_the_function() -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: (x.relu() - (-x).relu()).sum(), x, use_reentrant=False)

    try:
        torch.func.jvp(fun, (torch.zeros(2),), (torch.ones(2),))
    except NotImplementedError:
        pytest.skip("the installed torch has no forward mode of checkpoints")
    assert interop.directional_derivative(fun, torch.zeros(2), torch.ones(2))[1] == 2.0
    with pytest.raises(RuntimeError, match="saved tensor hooks"):  # by torch.func.grad
        interop.grad(fun)(torch.zeros(2))


def test_a_subdifferential_of_several_arguments() -> None:
    """In the order of ``argnums``; what is between them is passed on."""
    fun = lambda x, factor, y: (x - y[0]).abs() + factor * y[1]  # noqa: E731
    around = interop.subdifferential(fun, (2, 0))(torch.tensor(1.0), 3, torch.tensor([1.0, 2.0]))
    found = sorted((of_y.tolist(), of_x.item()) for of_y, of_x in around.gradients)
    assert found == [([-1.0, 3.0], 1.0), ([1.0, 3.0], -1.0)]
    assert [tensor.tolist() for tensor in around.min_norm] == [[0.0, 3.0], 0.0]
    assert around.contains((torch.tensor([0.5, 3.0]), torch.tensor(-0.5)))
    assert not around.contains((torch.tensor([0.5, 3.0]), torch.tensor(0.5)))


def test_functions_that_overwrite() -> None:
    """Their inputs, here the same one twice, and running averages are what one run makes of them."""
    x, v = torch.tensor([1.0, 2.0]), torch.ones(2)
    value, derivative = interop.directional_derivative(lambda x, y: (x.mul_(2) * y).sum(), (x, x), (v, v))
    assert x.tolist() == [2.0, 4.0]
    assert v.tolist() == [1.0, 1.0]
    assert (value, derivative) == (20.0, 24.0)
    with pytest.raises(RuntimeError, match="mutate a captured Tensor"):
        interop.subdifferential(lambda x, y: (x * y.mul_(2)).sum())(v, x)
    assert x.tolist() == [2.0, 4.0]

    def loss(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        normal = functional.batch_norm(x, mean, torch.ones(2), training=True)
        return functional.instance_norm(normal[None], mean, torch.ones(2)).square().sum()

    at, once, asked = torch.eye(2), torch.zeros(2), torch.zeros(2)
    loss(at, once)
    assert once.count_nonzero()
    for ask, wanted in (
        (lambda: interop.directional_derivative(lambda x: loss(x, asked), at, at), once),
        (lambda: interop.grad(loss)(at, asked), once),
        (lambda: interop.grad(lambda x: (loss(x, asked), 0.0), has_aux=True)(at), once),
        (lambda: interop.grad_and_value(loss)(at, asked), once),
        (lambda: interop.subdifferential(loss, directions=4)(at, asked), torch.zeros(2)),
    ):
        asked.zero_()
        ask()
        assert torch.equal(asked, wanted)


def test_trees_auxiliary_results_and_random_numbers() -> None:
    def fun(scale: float, given: dict[str, torch.Tensor], *, shift: float) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.rand(4) > 0.5
        return ((given["z"].relu() - (-given["z"]).relu()) * given["a"] * scale + shift).sum(), mask

    given = {"z": torch.zeros(3), "a": torch.ones(3)}
    torch.manual_seed(0)
    gradient, mask = interop.grad(fun, 1, has_aux=True)(2.0, given, shift=1.0)
    after = torch.rand(())
    torch.manual_seed(0)
    assert torch.equal(mask, fun(2.0, given, shift=1.0)[1])
    assert torch.equal(after, torch.rand(()))
    assert {name: part.tolist() for name, part in gradient.items()} == {"z": [2.0] * 3, "a": [0.0] * 3}
    assert list(gradient) == ["z", "a"]
    _, derivative = interop.directional_derivative(
        lambda tree: fun(2.0, tree, shift=0.0)[0], (given,), ({"z": torch.ones(3), "a": torch.ones(3)},)
    )
    assert derivative == 6.0
    pair = interop.grad(lambda x, y: torch.maximum(x, y), (0, -1), direction=(torch.tensor(0.0), torch.tensor(1.0)))
    assert pair(torch.tensor(1.0), torch.tensor(1.0)) == (0.0, 1.0)


def test_a_gradient_and_the_value() -> None:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.relu() - (-x).relu()).sum() * (y / 3).exp().sum() + torch.rand(())

    x, y = torch.zeros(3), torch.linspace(0.0, 1.0, 4)
    torch.manual_seed(0)
    expected = interop.grad(loss)(x, y)
    torch.manual_seed(0)
    value = loss(x, y)
    after = torch.rand(())
    torch.manual_seed(0)
    gradient = interop.grad_and_value(loss)(x, y)
    assert torch.rand(()) == after
    assert gradient[0].equal(expected)
    assert gradient[1].equal(value)
    # In the order of torch, with an auxiliary result and several arguments too.
    with_aux = lambda x, y: ((x * y).sum(), x - y)  # noqa: E731
    for argnums in (1, (0, 1)):
        one, two = (
            transformed(with_aux, argnums, has_aux=True)(x + 2, y[:3])
            for transformed in (interop.grad_and_value, torch.func.grad_and_value)
        )
        assert str(one) == str(two)
    # Another gradient differentiates within the piece.
    slope = interop.grad(lambda x: interop.grad_and_value(lambda x: x.abs() * x)(x)[1])(torch.tensor(-3.0))
    assert slope == 6.0


def test_a_loss_of_what_does_not_move_has_its_weight() -> None:
    ones = torch.ones(2)
    value, derivative = interop.directional_derivative(
        lambda x: x * functional.l1_loss(ones, -ones, reduction="sum", weight=3 * ones), ones, ones
    )
    assert value.tolist() == derivative.tolist() == [12.0, 12.0]


def test_forward_derivatives_of_a_determinant_may_be_differentiated() -> None:
    """As those of reverse mode, which torch differentiates rightly."""

    def program(derivative: Callable[..., Any]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: (derivative(torch.linalg.det)(x.relu() + x) ** 2).sum()

    x = tensor([[2.0, 1.0, 0.5], [-1.0, 3.0, 1.0], [0.5, 2.0, 1.0]])
    of_reverse = torch.func.grad(program(torch.func.jacrev))(x)
    found = interop.grad(program(torch.func.jacfwd))(x)
    torch.testing.assert_close(found, of_reverse)
    (v,) = drawn((x,), seed=0)
    _, derivative = interop.directional_derivative(program(torch.func.jacfwd), x, v)
    torch.testing.assert_close(derivative, (of_reverse * v).sum())


def test_draws() -> None:
    found = {
        interop.grad(torch.abs, generator=torch.Generator().manual_seed(k))(torch.tensor(0.0)).item() for k in range(9)
    }
    assert found == {1.0, -1.0}
    assert len({interop.grad(torch.abs)(torch.tensor(0.0)).item() for _ in range(3)}) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_are_those_of_torch(dtype: torch.dtype) -> None:
    """NaN, infinities, zeros of both signs and bounds that the dtype rounds; the dtype stays."""
    values = [math.nan, math.inf, -math.inf, 0.0, -0.0, 0.1, -0.1, 1.0, 3.0, -3.0, 6.0]
    x = torch.tensor(values, dtype=dtype)
    y = x.roll(1)
    functions: dict[str, Function] = {
        "clamp": lambda x: x.clamp(-0.1, 0.1),
        "of tensors": lambda x: x.clamp(y, y + 1),
        **{name: getattr(functional, name) for name in ("relu", "relu6", "hardtanh", "hardsigmoid", "hardswish")},
        **{name: getattr(functional, name) for name in ("leaky_relu", "elu", "selu", "softshrink", "hardshrink")},
        "binary": lambda x: torch.stack([op(x, y) for op in (torch.maximum, torch.minimum, torch.fmax, torch.fmin)]),
        "unary": lambda x: torch.stack([x.abs(), x.cummax(0).values, x.cummin(0).values, x.sort().values]),
        "reduced": lambda x: torch.stack([x.max(), x.amin(), x[1:].max(), x[3:].median(), x.median(), x.nanmedian()]),
        "selected": lambda x: torch.cat([x.topk(3).values, x.kthvalue(2).values[None], x[:0].sort().values]),
        "pooled": lambda x: functional.max_pool1d(x[None], 3, 2, 1),
        "compared": lambda x: torch.where(x[[0, 1, 5]] < x[[1, 2, 6]], 1.0, x[:3]),
    }
    if torch.zeros(()).clamp(min=math.nan).isnan():  # torch 2.11 takes it for no bound
        functions["of NaN"] = lambda x: x.clamp(min=math.nan)
    for name, fun in functions.items():
        outputs = []
        with interop.along(leaf := x.clone().requires_grad_()):
            outputs.append(fun(leaf).detach())
        outputs.append(fun(x))
        torch.testing.assert_close(*outputs, rtol=0, atol=0, equal_nan=True, msg=lambda told, name=name: name + told)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_random_windows_are_those_that_torch_draws(dtype: torch.dtype) -> None:
    x = torch.arange(150.0).reshape(1, 1, 10, 15).to(dtype).requires_grad_()
    pool = torch.nn.FractionalMaxPool2d((3, 2), (6, 11), return_indices=True)
    torch.manual_seed(0)
    values, indices = pool(x)
    after = torch.rand(())
    torch.manual_seed(0)
    with interop.along(x):
        decided = pool(x)
    assert torch.equal(decided[0], values)
    assert torch.equal(decided[1], indices)
    assert torch.equal(torch.rand(()), after)


@pytest.mark.parametrize("x", [[math.inf, 0.5], [-math.inf, 0.5]], ids=str)
@pytest.mark.parametrize("bound", ["min", "max", "both"])
def test_where_no_element_is_at_a_bound_the_slope_is_that_of_the_piece(bound: str, x: list[float]) -> None:
    low, high = -1.0 if bound != "max" else None, 1.0 if bound != "min" else None
    passes = (low if x[0] < 0 else high) is None  # an infinity does where no bound is on its side
    gradient = interop.grad(lambda x: x.clamp(low, high).sum())(tensor(*x))
    assert gradient.tolist() == [float(passes), 1.0]


def test_one_element_of_a_batch_at_a_bound() -> None:
    gradient = interop.grad(lambda x: functional.relu6(x) - functional.relu6(-x))
    assert torch.func.vmap(gradient)(tensor(1.0, 0.0, 2.0)).tolist() == [1.0, 1.0, 1.0]


def test_functions_of_nothing_and_something() -> None:
    """No element is at a kink where there is none."""
    for function in (torch.hypot, torch.maximum, functional.prelu):
        gradient = interop.grad(lambda x, y, function=function: function(x, y).sum(), (0, 1))
        assert [part.tolist() for part in gradient(torch.ones(0, 2), torch.ones(2))] == [[], [0.0, 0.0]]


def test_adaptive_pools_without_windows_are_not_differentiated_by_torch() -> None:
    gradient = interop.grad(lambda x: functional.adaptive_max_pool2d(x, (0, 2)).sum() + x.sum())
    with pytest.raises(RuntimeError, match="adaptive_max_pool2d_backward"):
        gradient(torch.ones(1, 1, 4, 4))


def test_what_is_detached_is_a_constant() -> None:
    """Torch detaches from the innermost transformation alone."""
    x = torch.tensor([1.0, -2.0])
    for constant in (lambda x: x.data, lambda x: torch.inference_mode()(torch.abs)(x).clone()):
        program = lambda x, constant=constant: constant(x).abs().max() * x.sum()  # noqa: E731
        assert interop.grad(program)(x).tolist() == [2.0, 2.0]
        assert interop.directional_derivative(program, x, x + 1)[1] == 2
    with pytest.raises(NotImplementedError, match=r"call detach\(\)"):
        interop.grad(lambda x: x.clone().detach_().max() * x.sum())(x)
    assert interop.directional_derivative(lambda x: x.clone().detach_().max() * x.sum(), x, x + 1)[1] == 1


CLAMPED: dict[str, tuple[torch.dtype, Sequence[float], Sequence[float], Sequence[float], Sequence[float]]] = {
    "a bound that is rounded": (torch.bfloat16, (0.1, 5.0), (0.1, 0.1, 0.1), (1, -1, 0), (1, 0, 0)),
    "equal bounds": (torch.float32, (2.0, 2.0), (2, 2, 2, 1), (1, -1, 0, 1), (0, 0, 0, 0)),
    "bounds that cross": (torch.float32, (2.0, 1.0), (2, 1, 1.5, 3), (1, -1, 1, 1), (0, 0, 0, 0)),
    "no bounds": (torch.float32, (-math.inf, math.inf), (math.inf, -math.inf, 0), (1, -1, 3), (1, -1, 3)),
    "bounds without a number beyond": (torch.float16, (-65504, 65504), (65504, 65504, -65504), (1, -1, 1), (0, -1, 1)),
    "infinities": (torch.float64, (0.0, 6.0), (math.inf, -math.inf, 6, 0), (1, 1, -1, -1), (0, 0, -1, 0)),
    "infinite and unknown speeds": (torch.float64, (0.0, 6.0), (-1, 7, 0), (math.inf, math.nan, -math.inf), (0, 0, 0)),
    "the least numbers": (torch.float32, (0.0, 6.0), (1e-45, -1e-45, -0.0), (1, 1, 1), (1, 0, 1)),
}


@pytest.mark.parametrize("name", CLAMPED)
def test_bounds_at_the_ends_of_a_dtype(name: str) -> None:
    dtype, (low, high), at, speeds, expected = CLAMPED[name]
    x, v = torch.tensor(at, dtype=dtype), torch.tensor(speeds, dtype=dtype)
    value, derivative = interop.directional_derivative(lambda x: x.clamp(low, high), x, v)
    assert torch.equal(value, x.clamp(low, high))
    assert derivative.tolist() == list(expected)
