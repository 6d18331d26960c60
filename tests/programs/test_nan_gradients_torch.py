"""`interop.grad` and its kin where 0 meets infinity: against the same program with the branch removed, by hand."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import tensor
from torch.nn import functional

import interop
from interop._programs import nan_gradients
from tests.support.representatives import parts

pytestmark = pytest.mark.filterwarnings("ignore::jaxclamp.UndecidedWarning")  # of norms at 0
Tensor = torch.Tensor
Program = Callable[..., Tensor]
INF, NAN = math.inf, math.nan


def where_positive(of_it: Program) -> Program:
    return lambda x: torch.where(x > 0, of_it(x), 0.0).sum()


def only_first(of_rows: Program) -> Program:
    """Of two rows, the first one is read."""

    def program(x: Tensor) -> Tensor:
        result = of_rows(x)
        is_read = tensor([True, False]).reshape(2, *[1] * (result.dim() - 1))
        return (result.where(is_read, 0.0) ** 2).sum()

    return program


def written(x: Tensor) -> Tensor:
    roots = x.sqrt() + 0
    roots[x <= 0] = 0.0
    return roots.sum()


def quotient_written_over(x: Tensor) -> Tensor:
    y = x.expm1() / x
    y[x == 0] = 1.0
    return y.sum()


def by_a_mask_that_is_overwritten(x: Tensor) -> Tensor:
    mask = x == 0
    mask &= x > 5
    return torch.where(mask, 1.0, x.expm1() / x).sum()


def written_where_positive(x: Tensor) -> Tensor:
    result, mask = 3 * x, x > 0
    result[mask] = x[mask] * x[mask].log()
    return result.sum()


def overwritten_in_part(x: Tensor) -> Tensor:
    x = x.clone()
    x[:1].sqrt_()
    return torch.where(tensor([False, True]), x, 0.0).sum()


def masked_attention(x: Tensor) -> Tensor:
    """No key is there for the second query."""
    scores = (x @ x.mT).masked_fill(tensor([[False], [True]]), -INF)
    return scores.softmax(-1) @ x


def beside(still: Tensor, moving: Tensor) -> Tensor:
    """Return the larger plus the smaller of two equal numbers."""
    return still.maximum(moving) + still.minimum(moving)


PAIR, ROWS = tensor([-1.0, 4.0]), tensor([[1.0, 2.0], [0.0, 0.0]])
PROGRAMS: dict[str, tuple[Program, Tensor, Any]] = {
    "where, sqrt": (where_positive(torch.sqrt), PAIR, [0.0, 0.25]),
    "where, method in place": (where_positive(lambda x: x.clone().sqrt_()), PAIR, [0.0, 0.25]),
    "where, copy of sqrt": (where_positive(lambda x: torch.zeros_like(x).copy_(x.sqrt())), PAIR, [0.0, 0.25]),
    "where, xlog1py": (where_positive(lambda x: torch.special.xlog1py(2.0, x)), PAIR, [0.0, 0.4]),
    "where, entr": (where_positive(torch.special.entr), tensor([-1.0, 1.0]), [0.0, -1.0]),
    "where, ndtri": (where_positive(torch.special.ndtri), tensor([-1.0, 0.5]), [0.0, math.sqrt(2 * math.pi)]),
    "one of two results": (
        lambda x: torch.where(tensor(False), torch.var_mean(x.sqrt())[0], x.sum()),
        PAIR,
        [1.0, 1.0],
    ),
    "where, sqrt of a product with float64": (
        lambda x: torch.where(x > -0.5, (x * tensor([2.0, 3.0]).double()).sqrt() ** 2, 0.0).sum(),
        tensor([-1.0, 0.0]),
        [0.0, NAN],
    ),
    "where, log of 0": (lambda x: torch.where(x > 1, x.log(), x).sum(), tensor([0.0, 4.0]), [1.0, 0.25]),
    "where, exp along no axis": (lambda x: torch.where(x < 10, x.exp().logsumexp(-1), 1.0), tensor(200.0), 0.0),
    "clamp, exp": (lambda x: x.exp().clamp(max=1), tensor(1000.0), 0.0),
    "minimum, exp": (lambda x: torch.minimum(x.exp(), tensor(1.0)), tensor(1000.0), 0.0),
    "maximum, norm": (lambda x: torch.maximum(x.norm(), tensor(1e-6)), tensor([0.0, 0.0]), [0.0, 0.0]),
    "norm, squared": (lambda x: x.norm() ** 2, tensor([0.0, 0.0]), [0.0, 0.0]),
    "pow 0": (lambda x: x.pow(0.0), tensor(0.0), 0.0),
    "norm by hand": (only_first(lambda x: x.pow(2).sum(-1).sqrt()), ROWS, [[2.0, 4.0], [0.0, 0.0]]),
    "where, atan2": (lambda x: torch.where(x > 0, torch.atan2(x, x), 0.0).sum(), tensor([0.0, 1.0]), [0.0, 0.0]),
    "masked by writing": (written, PAIR, [0.0, 0.25]),
    "masked_fill": (lambda x: x.sqrt().masked_fill(x < 0, 0.0).sum(), PAIR, [0.0, 0.25]),
    "masked by an index": (lambda x: functional.hardshrink(x.sqrt())[x > 0].sum(), PAIR, [0.0, 0.25]),
    "quotient of a broadcast": (
        lambda x: only_first(lambda x: tensor([[1.0], [1.0]]) / (x * tensor([[1.0], [0.0]])))(x),
        tensor([1.0, 2.0]),
        [-2.0, -0.25],
    ),
    "logsumexp": (
        only_first(lambda x: (x + tensor([[0.0], [-INF]])).logsumexp(-1, keepdim=True).exp()),
        tensor([[0.0, 0.0], [0.0, 0.0]]),
        [[4.0, 4.0], [0.0, 0.0]],
    ),
    "std of equal elements": (only_first(lambda x: x.std(-1)), ROWS, [[-1.0, 1.0], [0.0, 0.0]]),
    "over the std": (
        only_first(lambda x: x.sum(-1) / x.std(-1)),
        tensor([[1.0, 3.0], [2.0, 2.0]]),
        [[12.0, -4.0], [0.0, 0.0]],
    ),
    "normalize": (
        only_first(lambda x: functional.normalize(x, dim=-1, eps=0.0)[:, :1]),
        tensor([[3.0, 4.0], [0.0, 0.0]]),
        [[0.1536, -0.1152], [0.0, 0.0]],
    ),
    "a function of interop.native": (
        lambda x: torch.where(x > 0, x, interop.native.logaddexp(x + INF, x + INF)).sum(),
        tensor([1.0, 4.0]),
        [1.0, 1.0],
    ),
    "a function of interop": (
        lambda x: torch.where(x > 0, x, interop.hypot(x + INF, x + INF)).sum(),
        tensor([1.0, 4.0]),
        [1.0, 1.0],
    ),
    "hypot in a block": (
        interop.as_of("torch 2.13")(lambda x: torch.where(x > 0, x, torch.hypot(x + INF, x)).sum()),
        tensor([1.0, 4.0]),
        [1.0, 1.0],
    ),
    "acos behind clamp": (
        lambda x: torch.where(x.abs() < 1, x.clamp(-1, 1).acos(), 0.0).sum(),
        tensor([2.0, 0.0]),
        [0.0, -1.0],
    ),
    "matrix and vector": (
        only_first(lambda x: x.log() @ tensor([1.0, 2.0])),
        tensor([[1.0, 1.0], [0.0, 1.0]]),
        [[0.0] * 2] * 2,
    ),
    "times a complex number": (
        lambda x: (torch.where(x > 0, x.sqrt(), 0.0) * torch.tensor(1 + 2j)).imag.sum(),
        tensor([-1.0, 4.0]),
        [0.0, 0.5],
    ),
    # Its density is exp(-mu) where nothing happens, and that of the other one 2 (1 - x).
    "Poisson": (lambda mu: torch.distributions.Poisson(mu, False).log_prob(tensor(0.0)), tensor(0.0), -1.0),
    "Beta": (lambda x: torch.distributions.Beta(1.0, 2.0, False).log_prob(x), tensor(0.0), -1.0),
    "xlogy": (lambda x: torch.xlogy(tensor([0.0, 2.0]), x).sum(), tensor([0.0, 1.0]), [0.0, 2.0]),
    "xlog1py": (lambda x: torch.special.xlog1py(0, x).sum(), tensor([-1.0, 1.0]), [0.0, 0.0]),
    "a root beside an equal number": (lambda x: beside(x[0].relu().sqrt(), x[1] - 4), PAIR, [0.0, 1.0]),
    "nan_to_num beside one": (lambda x: beside(x[0].sqrt().nan_to_num(), x[1] - 4), PAIR, [0.0, 1.0]),
    # The branch that a step enters is NaN at 0, and 0 is on the other one.
    "quotient": (lambda x: torch.where(x == 0, 1 + x / 2, x.expm1() / x), tensor(0.0), 0.5),
    "double where": (
        lambda x: torch.where(x == 0, 1 + x / 2, (y := torch.where(x == 0, 1.0, x)).expm1() / y),
        tensor(0.0),
        0.5,
    ),
    "conditions": (
        lambda x: torch.where(~((x > 0) & (x[:, None] < 9))[:1], 3 * x, x * x.log()).sum(),
        tensor([0.0, 1.0]),
        [3.0, 1.0],
    ),
    "masked_fill, where a step enters NaN": (
        lambda x: (x * x.log()).masked_fill(x <= 0, 2.0).sum(),
        tensor([0.0, 1.0]),
        [0.0, 1.0],
    ),
    "quotient written over": (quotient_written_over, tensor([0.0, 1.0]), [0.0, 1.0]),
    "written where positive": (written_where_positive, tensor([0.0, 1.0]), [3.0, 1.0]),
    # What stays as it is.
    "both undefined": (lambda x: torch.where(x == 0, x * x.log(), x / x), tensor(0.0), NAN),
    "a mask that is overwritten": (by_a_mask_that_is_overwritten, tensor([0.0, 1.0]), [NAN, 1.0]),
    "indices where x is 0": (lambda x: x[torch.where(x == 0)[0]].sum(), tensor([0.0, 2.0]), [0.0, 0.0]),
    "xlogy of a 0 that moves": (lambda x: torch.xlogy(x, x), tensor(0.0), NAN),
    "sqrt at 0": (torch.sqrt, tensor(0.0), INF),
    "Geometric": (lambda p: torch.distributions.Geometric(p, None, False).log_prob(tensor(0.0)), tensor(1.0), NAN),
    "a zero that is a number": (lambda x: x.sqrt() ** 2, tensor(0.0), NAN),
    "two factors": (lambda x: x.sqrt() * x.sqrt(), tensor(0.0), NAN),
    "log and exp": (lambda x: x.log().exp(), tensor(0.0), NAN),
    "norm of roots": (lambda x: x.sqrt().pow(2).sum().sqrt(), tensor([0.0, 0.0]), [NAN, NAN]),
    "a part overwritten": (overwritten_in_part, PAIR, [NAN, 1.0]),
    "a number that is not finite": (lambda x: (x.sqrt() + 0 * x).sum(), PAIR, [NAN, 0.25]),
}


def gradient_in_along(program: Program, *points: Tensor) -> list[Tensor]:
    moving = [point.clone().requires_grad_() for point in points]
    with interop.along(moving):
        loss = program(*moving)
    loss.backward()
    return [x.grad if x.grad is not None else torch.zeros_like(x) for x in moving]


def same(found: Tensor, expected: Any) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected), equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    program, x, expected = PROGRAMS[name]
    same(interop.grad(program)(x), expected)
    same(gradient_in_along(program, x)[0], expected)
    if name not in (
        "masked by writing",
        "Geometric",
        "masked by an index",
        "indices where x is 0",
        "written where positive",
        "quotient written over",
    ):  # of which torch.func.vmap has no batches
        same(torch.func.vmap(interop.grad(program))(torch.stack([x, x])), [expected, expected])


@pytest.mark.parametrize("name", [name for name, case in PROGRAMS.items() if torch.isfinite(tensor(case[2])).all()])
def test_subdifferential(name: str) -> None:
    program, x, expected = PROGRAMS[name]
    found = interop.subdifferential(program, directions=2)(x)
    assert all(torch.allclose(gradient, tensor(expected)) for gradient in found.gradients)


def test_values_and_finite_gradients_are_those_without_the_rule() -> None:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weight = torch.ones(3, requires_grad=True)

    def program(x: Tensor, weight: Tensor) -> Tensor:
        return (where_positive(torch.sqrt)(x) + x.softmax(-1).log() @ weight).sum()

    found = interop.grad(program, 1)(x.detach(), weight.detach())
    plain = torch.autograd.grad(program(x, weight), (x, weight))
    assert torch.equal(found, plain[1])
    of_x = interop.grad(program, 0)(x.detach(), weight.detach())
    assert plain[0].isnan().any()
    assert torch.equal(of_x[x > 0], plain[0][x > 0])


def test_attention() -> None:
    """The values, too, get their gradient from the rows that are read: of a product of matrices."""
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    expected = torch.func.grad(lambda x: ((x[:1] @ x.mT).softmax(-1) @ x).square().sum())(x)

    def program(x: Tensor) -> Tensor:
        return (masked_attention(x).where(tensor([[True], [False]]), 0.0) ** 2).sum()

    for batch in (x, torch.stack([x, x])):
        assert torch.func.grad(program)(batch).isnan().all()
        torch.testing.assert_close(interop.grad(program)(batch), expected.expand(batch.shape))
        torch.testing.assert_close(gradient_in_along(program, batch)[0], expected.expand(batch.shape))


def root(x: Tensor) -> Tensor:
    return where_positive(torch.sqrt)(x)


def test_a_true_nan_hides_no_other_entry() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return x[:1].sqrt().sum() ** 2 + root(x[1:]) + root(y)

    x = tensor([0.0, -1.0, 4.0])
    of_x, of_y = [NAN, 0.0, 0.25], [0.0, 0.25]
    for found in (interop.grad(program, (0, 1))(x, PAIR), gradient_in_along(program, x, PAIR)):
        same(found[0], of_x), same(found[1], of_y)
    found = interop.grad(lambda tree: program(tree["x"], tree["y"]))({"x": x, "y": PAIR})
    same(found["x"], of_x), same(found["y"], of_y)
    batch = torch.func.vmap(interop.grad(program, (0, 1)))(torch.stack([x, x + 2]), torch.stack([PAIR, PAIR]))
    same(batch[0], [of_x, [1.0, 0.5, 0.20412415]]), same(batch[1], [of_y, of_y])
    same(interop.grad(lambda x: x[0].sqrt() + root(x[1:]))(x), [INF, 0.0, 0.25])


ROW = tensor([1.0, 2.0])
READ: dict[str, Program] = {
    "sum": lambda h: h.sum(),
    "product": lambda h: (h * ROW).prod(),
    "softmax": lambda h: (h.softmax(0) * ROW).sum() - h.softmax(0)[0] - 2 * h.softmax(0)[1],
    "logsumexp": lambda h: h.logsumexp(0) * (h.sum() - h.sum()),
    "matrix": lambda h: h @ tensor([[0.0, 1.0], [0.0, 0.0]]) @ ROW,
    "norm": lambda h: h.norm() ** 2,
    "sinc": lambda h: h.sinc().sum(),
    "std": lambda h: h.std() ** 2,
    "own": lambda h: Own.apply(h + 1).sum() * 0,
    "broadcast": lambda h: (h * tensor([[0.0], [0.0]])).sum(),
    "a part": lambda h: h.clone()[:1].mul_(0.0).sum() + h.clone().mul_(0).sum(),
    "layer norm": lambda h: functional.layer_norm(h, (2,)).sum(),
    "loss": lambda h: functional.cross_entropy(h, tensor(0)) * 0,
    "index": lambda h: (h * 0)[tensor([1, 0])].reshape(2, 1).expand(2, 3).mean(),
}


@pytest.mark.parametrize("name", READ)
def test_no_way_of_reading_a_number_is_a_cut(name: str) -> None:
    """Whatever multiplies by 0 what was read; that there are no paths would make NaN a 0."""

    def program(x: Tensor, factor: float) -> Tensor:
        return READ[name](x.sqrt()) * factor + root(x - 1)

    for factor in (0.0, 1.0):
        assert not (interop.grad(program)(tensor([0.0, 0.0]), factor) == 0).any()


UNREAD: dict[str, tuple[Program, Any]] = {
    "fmod": (lambda y: torch.fmod(tensor(1.0), y), 0.0),
    "%": (lambda y: tensor(1.0) % y, 0.0),
    "ldexp": (lambda x: torch.ldexp(x, tensor(1e9)), 0.0),
    "i0": (torch.i0, 1e9),
    "i1": (torch.special.i1, 1e9),
    "erfcx": (torch.special.erfcx, -1e30),
    "gelu": (lambda x: functional.gelu(x, approximate="tanh"), 1e30),
    "soft_margin_loss": (lambda x: functional.soft_margin_loss(x, tensor(1.0)), -1e30),
    "corrcoef": (torch.corrcoef, [1.0, 1.0]),
    "vander": (torch.linalg.vander, [1e200, 1e200, 1e200]),
    "local_response_norm": (lambda x: functional.local_response_norm(x, 2, k=0.0), [[[0.0, 0.0]]]),
    "inv_ex": (lambda x: torch.linalg.inv_ex(x).inverse, [[0.0, 0.0], [0.0, 0.0]]),
    "solve_triangular": (
        lambda x: torch.linalg.solve_triangular(x, torch.eye(2), upper=True),
        [[0.0, 0.0], [0.0, 0.0]],
    ),
    "nanmean": (torch.nanmean, NAN),
    "lu_factor_ex": (lambda x: torch.linalg.lu_factor_ex(x).LU, [[0.0, 0.0], [0.0, 0.0]]),
    "foreach_sqrt": (lambda x: torch._foreach_sqrt([x])[0], -1.0),
    "foreach_sqrt_": (lambda x: torch._foreach_sqrt_([1 * x])[0], -1.0),
    "foreach_div": (lambda x: torch._foreach_div([x], [x])[0], 0.0),
}
if torch.__version__ >= "2.15":
    UNREAD["matrix_sqrth"] = torch.linalg.matrix_sqrth, [[0.0, 0.0], [0.0, 0.0]]
    UNREAD["polar"] = lambda x: torch.linalg.polar(x)[0], [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("name", UNREAD)
def test_functions_that_nothing_reads(name: str) -> None:
    """Each of them has NaN as the gradient of a result of which no element is taken."""
    function, x = UNREAD[name]

    def program(x: Tensor) -> Tensor:
        return torch.where(tensor(False), function(x), 0.0).sum()

    assert torch.func.grad(program)(tensor(x)).isnan().any()
    for gradient in (interop.grad(program)(tensor(x)), *gradient_in_along(program, tensor(x))):
        same(gradient, torch.zeros_like(gradient))


def test_slopes_that_are_not_recorded_cost_no_further_pass() -> None:
    """The loss has NaN for another reason, which no pass would find; a hook sees how many passes there are."""
    x, passes = tensor(-1.0).requires_grad_(), []
    with interop.along(x):
        with torch.no_grad():
            x.sqrt()
        y = x * tensor(NAN)
        y.register_hook(passes.append)
        loss = y.sum()
    loss.backward()
    assert len(passes) == 1


def test_other_leaves_are_as_they_are() -> None:
    """A derivative along some parameters certifies nothing of others."""
    x, other = PAIR.clone().requires_grad_(), tensor(0.0, requires_grad=True)
    with interop.along(x):
        loss = root(x) + other.sqrt() ** 2
    loss.backward()
    same(x.grad, [0.0, 0.25]), same(other.grad, NAN)


def test_backward_passes() -> None:
    """In the block and behind it, of parts and sums, scaled, kept for another one."""
    x = PAIR.clone().requires_grad_()
    with interop.along(x):
        root(x).backward()
        (gradient,) = torch.autograd.grad(root(x), x)
        behind, again = root(x) * 2, torch.func.vmap(lambda x: torch.where(x > 0, x.sqrt(), 0.0))(x).sum()
    same(gradient, [0.0, 0.25])
    (behind * 8 + again + x.sum()).backward(retain_graph=True)
    same(x.grad, [1.0, 5.5])
    behind.backward()
    same(x.grad, [1.0, 6.0])


def test_what_else_reads_a_number_has_no_guard() -> None:
    """Behind the block a root is squared, which no path in the block shows."""
    x = tensor([4.0, 0.0]).requires_grad_()
    with interop.along(x):
        roots = x.sqrt()
        loss = torch.where(x > 1, roots, 0.0).sum()
    (loss + (roots**2).sum()).backward()
    same(x.grad, [1.25, NAN])


def test_a_loss_stays_what_it_is() -> None:
    """Its value, its tangent, and what was computed of it before."""
    x = PAIR.clone().requires_grad_()
    with interop.along(x, direction=[tensor([1.0, 2.0])]):
        loss = root(x)
        squared = loss * loss
        (gradient,) = torch.autograd.grad(loss, x)
        same(torch.autograd.forward_ad.unpack_dual(loss).tangent, 0.5)
        tie = torch.relu(loss - 2) - torch.relu(2 - loss)
    same(gradient, [0.0, 0.25]), same(loss.detach(), 2.0)
    (squared + 8 * tie).backward()
    same(x.grad, [0.0, 3.0])


def test_a_normalization_of_an_infinite_row() -> None:
    """Of the weight, to which each row adds, NaN stays."""
    x, weight = tensor([[INF, 1.0, 1.0], [1.0, 2.0, 4.0]]).requires_grad_(), tensor([1.0, 2.0, 3.0]).requires_grad_()
    with interop.along([x, weight]):
        loss = torch.where(tensor([[False], [True]]), functional.layer_norm(x, (3,), weight), 0.0)[:, 0].sum()
    loss.backward()
    row = x[1].detach().requires_grad_()
    (of_row,) = torch.autograd.grad(functional.layer_norm(row, (3,), weight)[0], row)
    same(x.grad, torch.stack([torch.zeros(3), of_row])), same(weight.grad, [NAN] * 3)


def test_a_convolution_of_rows_of_which_one_is_not_read() -> None:
    """By hand: a window of two adds, so that the middle of a row is read twice, with the slope 1 / (2 sqrt(x))."""
    x = tensor([[-1.0, 1.0, 4.0], [1.0, 4.0, 9.0]]).requires_grad_()
    with interop.along(x):
        sums = functional.conv1d(x.sqrt()[:, None], torch.ones(1, 1, 2))[:, 0]
        loss = torch.where(tensor([[False], [True]]), sums, 0.0).sum()
    loss.backward()
    same(x.grad, [[0.0, 0.0, 0.0], [0.5, 0.5, 1 / 6]])


def test_a_product_with_a_row_that_is_not_read() -> None:
    """By hand: nothing reads the first row; of the roots of the second one is multiplied by 2, the other by 3."""

    def program(rows: Tensor, vector: Tensor) -> Tensor:
        return torch.where(tensor([False, True]), rows.sqrt() @ vector, 0.0).sum()

    rows, vector = tensor([[-1.0, 4.0], [1.0, 9.0]]), tensor([2.0, 3.0])
    of_rows, of_vector = interop.grad(program, (0, 1))(rows, vector)
    same(of_rows, [[0.0, 0.0], [1.0, 0.5]]), same(of_vector, [1.0, 3.0])


def test_a_number_that_overflows_is_read() -> None:
    """Infinity meets the slope 0 of the variance at its mean, beside a mean that has the slope 1/3."""

    def program(x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x)
        return variance * 1e30 * 1e30 + mean

    same(interop.grad(program)(tensor([1.0, 2.0, 3.0])), [-INF, NAN, INF])


def test_a_number_whose_graph_is_gone_is_left_alone() -> None:
    x = PAIR.clone().requires_grad_()
    with interop.along(x):
        roots = torch.where(x > 0, x.sqrt(), 0.0)
        roots.backward(torch.ones(2))
        mean = roots.mean()  # for a log
    same(mean.detach(), 1.0)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        mean.backward()


def test_a_loss_of_one_element() -> None:
    """Not of a number without axes alone: ``keepdim`` and losses of a batch of one have such."""
    x = PAIR.clone().requires_grad_()
    with interop.along(x):
        loss = torch.where(x > 1, x.sqrt(), 0.0).reshape(1, 2).sum(1, keepdim=True)
    (2 * loss).backward()
    same(x.grad, [0.0, 0.5])


def test_a_view_is_as_it_is() -> None:
    x = PAIR.clone().requires_grad_()
    with interop.along(x):
        loss = root(x).reshape(1)[0]
    loss.backward()
    same(x.grad, [NAN, 0.25])


def test_a_number_that_a_function_leaves_out_itself_is_not_seen_in_along() -> None:
    """The logarithm of a target of 0, which the loss has above 1 alone; up to there it falls by the input."""

    def program(target: Tensor) -> Tensor:
        return functional.poisson_nll_loss(ROW, target, full=True, reduction="sum")

    same(interop.grad(program)(tensor([0.0, 0.5])), -ROW)
    same(gradient_in_along(program, tensor([0.0, 0.5]))[0], [NAN, -2.0])


def test_second_derivative() -> None:
    same(interop.grad(lambda x: interop.grad(root)(x).sum())(PAIR), [0.0, -1 / 32])


class Own(torch.autograd.Function):
    """A root, which says nothing about which element is made of which."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sqrt()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output), ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return cotangent / (2 * ctx.saved_tensors[0])

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent / (2 * ctx.saved_tensors[0])


def test_what_does_not_say_its_elements() -> None:
    """It contributes nothing where all its cotangents are 0; else NaN stays."""
    program = where_positive(Own.apply)
    assert interop.grad(program)(tensor(-1.0)) == 0
    same(interop.grad(program)(PAIR), [NAN, 0.25])


# Random programs.

INSIDE = {
    "sqrt": (torch.sqrt, lambda u: u > 0.25, (1.0, 2.5), (-1.0, 0.0)),
    "rsqrt": (torch.rsqrt, lambda u: u > 0.25, (1.0, 2.5), (-1.0, 0.0)),
    "log": (torch.log, lambda u: u > 0.25, (1.5, 2.5), (-1.0, 0.0)),
    "log1p": (torch.log1p, lambda u: u > -0.5, (1.5, 0.5), (-1.0, -2.0)),
    "exp": (torch.exp, lambda u: u < 3, (0.5, -1.0), (1000.0, 2000.0)),
    "power": (lambda u: u**1.5, lambda u: u > 0.25, (1.0, 2.0), (-1.0, -0.5)),
    "inverse power": (lambda u: torch.pow(u, -2), lambda u: u.abs() > 0.25, (1.0, -2.0), (0.0,)),
    "quotient": (lambda u: 1 / u, lambda u: u.abs() > 0.25, (1.0, -2.0), (0.0,)),
    "quotient by rows": (
        lambda u: u / u[..., :1],
        lambda u: u[..., :1].expand(u.shape).abs() > 0.25,
        (1.0, 2.0),
        (0.0,),
    ),
    "acos": (torch.acos, lambda u: u.abs() < 0.75, (0.5, -0.25), (1.5, -2.0)),
    "atanh": (torch.atanh, lambda u: u.abs() < 0.75, (0.5, -0.25), (1.5, -2.0)),
    "norm": (
        lambda u: u * u.pow(2).sum(-1, keepdim=True).rsqrt(),
        lambda u: (u.detach().abs().sum(-1, keepdim=True) > 0.25).expand(u.shape),
        (1.0, 2.0),
        (0.0,),
    ),
}
"""Functions, where they are taken, and numbers within and outside of that."""

IDENTITIES: dict[str, tuple[Program, float]] = {
    "square of a root": (lambda u: u.sqrt() ** 2, 0.0),
    "product of roots": (lambda u: u.sqrt() * u.sqrt(), 0.0),
    "exp of log": (lambda u: u.log().exp(), 0.0),
    "cube of a root": (lambda u: u.pow(1 / 3) ** 3, 0.0),
    "cos of acos": (lambda u: u.acos().cos(), 1.0),
    "inverse of an inverse": (lambda u: 1 / (1 / u), 0.0),
}
"""Functions that are their argument, by numbers that are 0 and slopes that are infinite at a point."""

SHAPE = (2, 3)


def forms(draws: random.Random) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """How a program takes one of two branches."""

    def by_writing(is_taken: Tensor, taken: Tensor, other: Tensor) -> Tensor:
        return (taken + 0).masked_fill_(~is_taken, 0.0) + other.masked_fill(is_taken, 0.0)

    return draws.choice(
        [
            torch.where,
            lambda is_taken, taken, other: other.where(~is_taken, taken),
            lambda is_taken, taken, other: torch.stack([other, taken]).gather(0, is_taken.long()[None])[0],
            by_writing,
        ]
    )


def drawn(seed: int, has_numbers: bool) -> tuple[Program, Program, list[Tensor]]:
    """A program, the same with what it does not take removed by hand, and a point.

    Each step mixes and shifts its argument so that it has the numbers that are wanted there.
    """
    draws = random.Random(seed)
    steps: list[tuple[Any, ...]] = []

    def numbers(*shape: int) -> Tensor:
        return tensor([draws.choice((-0.5, 0.25, 0.5, 1.0)) for _ in range(math.prod(shape))]).double().reshape(shape)

    point = [numbers(*SHAPE), numbers(*SHAPE)]

    def run(by_hand: bool, *x: Tensor) -> Tensor:
        u, other = x
        for matrix, shift, step in steps:
            u = u @ matrix + other + shift
            u = step(by_hand, u)
        return (u**2 + u).sum()

    def select_step() -> tuple[Any, Any]:
        function, is_inside, within, outside = INSIDE[draws.choice([*INSIDE])]
        rows = function in (INSIDE["norm"][0], INSIDE["quotient by rows"][0])
        kinds = [draws.random() < 0.5 for _ in range(SHAPE[0] if rows else math.prod(SHAPE))]
        targets = [draws.choice(within if kind else outside) for kind in kinds for _ in range(SHAPE[1] if rows else 1)]
        form = forms(draws)
        has_cap = function is torch.exp and draws.random() < 0.5

        def step(by_hand: bool, u: Tensor) -> Tensor:
            is_taken = is_inside(u)
            if not by_hand:
                if has_cap:
                    return (
                        torch.minimum(function(u), tensor(30.0).double())
                        if len(steps) % 2
                        else function(u).clamp(max=30.0)
                    )
                return form(is_taken, function(u), 0.5 * u)
            safe = torch.where(is_taken, u, tensor(within[0]).double())
            return torch.where(is_taken, function(safe), 30.0 if has_cap else 0.5 * u)

        return tensor(targets).double().reshape(SHAPE), step

    def number_step() -> tuple[Any, Any]:
        function, place = IDENTITIES[draws.choice([*IDENTITIES])]
        targets = [place if draws.random() < 0.3 else 0.5 for _ in range(math.prod(SHAPE))]
        return tensor(targets).double().reshape(SHAPE), lambda by_hand, u: u if by_hand else function(u)

    kinds = [select_step for _ in range(draws.randint(1, 3))]
    if has_numbers:
        kinds.insert(draws.randrange(len(kinds) + 1), number_step)
    for kind in kinds:
        matrix = numbers(SHAPE[1], SHAPE[1])
        u, other = point
        for earlier, shift, step in steps:
            u = step(True, u @ earlier + other + shift)
        wanted, new = kind()
        steps.append((matrix, wanted - (u @ matrix + other), new))
    return (lambda *x: run(False, *x)), (lambda *x: run(True, *x)), point


def gradients_of(program: Program, point: Sequence[Tensor], seed: int) -> list[Tensor]:
    if seed % 3 == 0:
        return gradient_in_along(program, *point)
    if seed % 3 == 1:
        return list(interop.grad(program, (0, 1))(*point))
    batch = torch.func.vmap(interop.grad(program, (0, 1)))(*(torch.stack([x, x]) for x in point))
    return [gradient[1] for gradient in batch]


def close(found: Tensor, expected: Tensor) -> Tensor:
    return torch.isclose(found, expected, rtol=1e-7, atol=1e-7 * expected.abs().max().item())


@parts(range(1000), 20, quick=20)
def test_branches_not_taken(seeds: range) -> None:
    for seed in seeds:
        program, by_hand, point = drawn(seed, has_numbers=False)
        expected = torch.func.grad(by_hand, (0, 1))(*point)
        for gradient, true in zip(gradients_of(program, point, seed), expected, strict=True):
            assert close(gradient, true).all(), (seed, gradient, true)


def wrong(seeds: range) -> list[int]:
    """The seeds at which a number is finite and wrong."""
    found = []
    for seed in seeds:
        program, by_hand, point = drawn(seed, has_numbers=True)
        expected = torch.func.grad(by_hand, (0, 1))(*point)
        for gradient, true in zip(gradients_of(program, point, seed), expected, strict=True):
            if not (close(gradient, true) | ~gradient.isfinite()).all():
                found.append(seed)
    return found


def test_the_nodes_are_called_as_torch_calls_them() -> None:
    """A node of another name counts as one of which nothing is known, and its NaN stays."""
    listed = nan_gradients._SELECTIONS | nan_gradients._ELEMENTWISE | nan_gradients._IN_ROWS
    of_torch = {name.rpartition("Backward")[0] for name in dir(torch._C._functions)}
    assert {name for name in listed if not name.startswith("torch::")} <= of_torch


@parts(range(1000), 20, quick=20)
def test_zeros_that_are_numbers(seeds: range) -> None:
    assert not wrong(seeds)


def test_the_draws_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both happen, and a 0 that wins without a certificate is seen."""
    is_nan = 0
    for seed in range(12):
        program, _, point = drawn(seed, has_numbers=False)
        is_nan += any(gradient.isnan().any() for gradient in torch.func.grad(program, (0, 1))(*point))
    assert is_nan > 6
    monkeypatch.setattr(nan_gradients, "_path", lambda node, i, gradient, cotangents: torch.zeros_like(gradient))
    assert len(wrong(range(12))) > 3
