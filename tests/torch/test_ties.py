"""`interop.ties`: the counts are those of NumPy, at the lines and in the modules where they belong."""

import contextlib
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import interop
from interop import TORCH_OPS
from jaxclamp import OPS, Op
from tests.support.calls import arguments

Tensor = torch.Tensor
X = torch.randint(-2, 8, (4, 6), generator=torch.Generator().manual_seed(0)).float()
X[0] = torch.tensor([0.0, 0.0, 6.0, 1.0, 2.0, 3.0])  # every bound below is met
N = X.numpy()


def counts(function: Callable[[], Any]) -> list[tuple[str, int, int]]:
    """Op, elements and ties of each line that was counted."""
    with interop.ties() as counted:
        function()
    return [(line.op, line.elements, line.tied) for line in counted.report.lines]


def tied_rows(x: np.ndarray, extreme: np.ndarray) -> int:
    return int((np.sum(x == extreme, axis=1) > 1).sum())


WINDOWS = N.reshape(4, 3, 2)
CODE: dict[str, tuple[Callable[[], Any], tuple[str, int, int]]] = {
    "function": (lambda: torch.clamp(X, 0.0, 6.0), ("clamp", 24, int(np.isin(N, (0, 6)).sum()))),
    "method": (lambda: X.clamp_min(1.0), ("clamp_min", 24, int((N == 1).sum()))),
    "method in place": (lambda: X.clone().clamp_(max=3.0), ("clamp", 24, int((N == 3).sum()))),
    "inplace=True": (lambda: functional.relu6(X.clone(), inplace=True), ("relu6", 24, int(np.isin(N, (0, 6)).sum()))),
    "out=": (lambda: torch.maximum(X, torch.ones(6), out=torch.empty(0)), ("maximum", 24, int((N == 1).sum()))),
    "torch.max of two": (lambda: torch.max(X, torch.full((), 2.0)), ("max", 24, int((N == 2).sum()))),
    "torch.max along an axis": (lambda: torch.max(X, 1), ("max", 4, tied_rows(N, N.max(1, keepdims=True)))),
    "torch.min of all": (lambda: torch.min(X), ("min", 1, int((N.min() == N).sum() > 1))),
    "builtin abs": (lambda: abs(X), ("abs", 24, int((N == 0).sum()))),
    "pool": (lambda: functional.max_pool1d(X, 2), ("max_pool1d", 12, int((WINDOWS[..., 0] == WINDOWS[..., 1]).sum()))),
    "pool with indices": (
        lambda: functional.max_pool1d(X, 2, return_indices=True),
        ("max_pool1d", 12, int((WINDOWS[..., 0] == WINDOWS[..., 1]).sum())),
    ),
    "adaptive pool": (
        lambda: functional.adaptive_max_pool2d(X[None], (1, 2)),
        ("adaptive_max_pool2d", 2, sum(int((half == half.max()).sum() > 1) for half in (N[:, :3], N[:, 3:]))),
    ),
    "adaptive pool with windows of two widths": (  # they overlap
        lambda: functional.adaptive_max_pool1d(X, 4, return_indices=True),
        (
            "adaptive_max_pool1d",
            16,
            sum(tied_rows(part, part.max(1, keepdims=True)) for part in np.split(N[:, [0, 1, 1, 2, 3, 4, 4, 5]], 4, 1)),
        ),
    ),
    "ranking": (
        lambda: functional.margin_ranking_loss(X, torch.ones_like(X), -torch.ones_like(X), margin=2.0),
        ("margin_ranking_loss", 24, int((N == -1).sum())),
    ),
    "hinge": (  # of the targets that are -1, every other one
        lambda: torch.nn.HingeEmbeddingLoss(2.0)(X, torch.tensor([1.0, -1.0] * 3)),
        ("hinge_embedding_loss", 24, int((N[:, 1::2] == 2).sum())),
    ),
    "triplet": (  # distances are those of one coordinate
        lambda: functional.triplet_margin_loss(X[..., None], torch.ones(4, 6, 1), torch.zeros(4, 6, 1), 1.0, eps=0.0),
        ("triplet_margin_loss", 24, int((1 + abs(N - 1) == abs(N)).sum())),
    ),
    "triplet, swapped": (
        lambda: functional.triplet_margin_loss(
            torch.zeros(1, 1), torch.ones(1, 1), torch.full((1, 1), 0.5), eps=0.0, swap=True
        ),
        ("triplet_margin_loss", 1, 1),
    ),
    "triplet, swapped, of a loss below 0": (
        lambda: functional.triplet_margin_loss(
            torch.zeros(1, 1), torch.zeros(1, 1), torch.full((1, 1), 5.0), eps=0.0, swap=True
        ),
        ("triplet_margin_loss", 1, 0),
    ),
    "loss of interop.native": (
        lambda: interop.native.hinge_embedding_loss(X, -torch.ones(6)),
        ("hinge_embedding_loss", 24, int((N == 1).sum())),
    ),
    "op of interop": (lambda: interop.relu(X), ("relu", 24, int((N == 0).sum()))),
    "smooth where a parameter makes it so": (lambda: functional.leaky_relu(X, 1.0), ("leaky_relu", 24, 0)),
}


@pytest.mark.parametrize("name", CODE)
def test_counts(name: str) -> None:
    function, expected = CODE[name]
    assert counts(function) == [expected]


NAN = torch.tensor([[torch.nan, torch.nan], [1.0, 1.0], [torch.nan, 2.0]])
OF_NAN: dict[str, tuple[Callable[[], Any], int]] = {
    "maximum": (lambda: torch.maximum(NAN, NAN), 3),
    "fmin": (lambda: torch.fmin(NAN, NAN), 3),
    "clamp": (lambda: NAN.clamp(NAN, torch.tensor(9.0)), 3),
    "amax": (lambda: NAN.amax(1), 1),
    "max": (lambda: NAN.max(1), 1),
    "of all": (lambda: NAN.max(), 0),
    "pool": (lambda: functional.max_pool1d(NAN, 2), 1),
    "relu": (lambda: functional.relu(NAN), 0),
    "op of interop": (lambda: interop.maximum(NAN, NAN), 3),
}


@pytest.mark.parametrize("name", OF_NAN)
def test_nan_is_on_no_tie(name: str) -> None:
    """Of pairs of NaN, of 1, and of NaN with a number, those of 1 alone tie."""
    function, tied = OF_NAN[name]
    assert [number for _, _, number in counts(function)] == [tied]


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_every_op_is_counted(op: Op) -> None:
    """At a tie of its record; in a block too, which replaces the call, whichever of the two is entered first."""
    native = getattr(functional, op.name, getattr(torch, op.name, TORCH_OPS[op.name]))
    plain, within, around = interop.ties(), interop.ties(), interop.ties()
    of_versions = {interop.as_of(version): interop.ties() for version in ("torch 2.13", "torch 2.15")}
    for tie in op.tie_points:
        x, *rest = arguments(op, tie=tie)
        with plain:
            native(x, *rest)
        with interop.min_norm(), within:
            native(x, *rest)
        with around, interop.min_norm():
            native(x, *rest)
        for version, counted in of_versions.items():
            with counted, version:
                native(x, *rest)
    every = (plain, within, around, *of_versions.values())
    totals = {(counted.report.elements, counted.report.tied) for counted in every}
    assert len(totals) == 1
    assert (totals.pop()[1] > 0) == (op.name != "celu")  # which has one slope at 0, whatever alpha


def test_values_and_gradients_stay_what_they_are() -> None:
    def clamped(block: Any) -> tuple[Tensor, Tensor]:
        x = X.clone().requires_grad_()
        with block:
            y = x.clamp(0.0, 6.0)
        return y, torch.autograd.grad(y.sum(), x)[0]

    for found, expected in zip(clamped(interop.ties()), clamped(contextlib.nullcontext()), strict=True):
        assert torch.equal(found, expected)


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.ReLU6(), torch.nn.MaxPool1d(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).clamp(min=2.0)


def test_lines_and_modules() -> None:
    network = Network()
    with interop.ties() as counted:
        for _ in range(3):
            network(X)
        torch.abs(X)
    lines = {(line.op, line.module): line for line in counted.report.lines}
    assert set(lines) == {("hardtanh", "layers.0"), ("max_pool1d", "layers.1"), ("clamp", "Network"), ("abs", "")}
    assert lines["clamp", "Network"].elements == 3 * 12
    assert {Path(line.file).name for line in lines.values()} == {"test_ties.py"}
    source, first = inspect.getsourcelines(Network.forward)
    assert lines["hardtanh", "layers.0"].number == lines["clamp", "Network"].number == first + 1
    assert "return self.layers" in source[1]
    assert f"test_ties.py:{first + 1} layers.0  hardtanh" in str(counted.report)


@pytest.mark.filterwarnings("ignore:Using `torch.compile", "ignore:Dynamo does not know how to trace")  # of the block
@pytest.mark.parametrize("whole", [True, False])
def test_compiled_modules_have_their_names(whole: bool) -> None:
    relu = torch.nn.ReLU()
    network = torch.nn.Sequential(torch.nn.Identity(), relu if whole else torch.compile(relu, backend="eager"))
    with interop.ties() as counted:
        (torch.compile(network, backend="eager") if whole else network)(X)
    assert [(line.op, line.module) for line in counted.report.lines] == [("relu", "1")]


def test_counting_again_adds_up_and_ends_with_the_block() -> None:
    counted = interop.ties()
    for _ in range(2):
        with counted:
            torch.relu(X)
        torch.relu(X)
    assert counted.report.elements == 48
    with pytest.raises(IndexError), counted:
        X[99]
    with pytest.raises(RuntimeError, match="At least one of 'min' or 'max'"), interop.ties():
        torch.clamp(X)
    with (
        pytest.warns(UserWarning, match="amax"),
        pytest.raises(RuntimeError, match="dim to be specified"),
        interop.ties(),
    ):
        torch.amax(X[:0])
    torch.relu(X)
    Network()(X)
    assert counted.report.elements == 48
    with pytest.raises(AssertionError, match=r"test_ties.py:\d+: relu"):
        counted.report.assert_none()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_a_checkpoint_computes_again_does_not_count(use_reentrant: bool) -> None:
    x = X.clone().requires_grad_()
    with interop.ties() as counted:
        checkpoint(torch.relu, x, use_reentrant=use_reentrant).sum().backward()
    assert (counted.report.elements, counted.report.tied) == (24, int((N == 0).sum()))


def test_other_threads_do_not_count() -> None:
    with interop.ties() as counted:
        thread = threading.Thread(target=lambda: Network()(X))
        thread.start()
        thread.join()
    assert counted.report.lines == ()


def test_modules_of_other_threads_name_no_line() -> None:
    """Neither while they run nor when they have ended."""
    is_inside, may_end = threading.Event(), threading.Event()

    class There(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            is_inside.set()
            may_end.wait(60)
            return x

    class Here(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=lambda: There()(x))
            thread.start()
            is_inside.wait(60)
            y = torch.relu(x)
            may_end.set()
            thread.join()
            return torch.abs(y)

    with interop.ties() as counted:
        Here()(X)
    assert [(line.op, line.module) for line in counted.report.lines] == [("relu", "Here"), ("abs", "Here")]


def test_a_block_may_begin_in_a_module_and_end_behind_it() -> None:
    counted = interop.ties()

    class Begins(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            counted.__enter__()
            return torch.relu(x)

    Begins()(X)
    torch.abs(X)
    counted.__exit__(None, None, None)
    assert {(line.op, line.module) for line in counted.report.lines} == {("relu", "Begins"), ("abs", "")}


def test_modules_that_are_replaced_and_repeated() -> None:
    """A module that comes in later has its name, one beside those of the outermost that of its class."""
    searches = []

    class Network(torch.nn.Sequential):
        def named_modules(self, *args: Any, **kwargs: Any) -> Any:
            searches.append(self)
            return super().named_modules(*args, **kwargs)

    network = Network(torch.nn.ReLU())
    beside, another = torch.nn.ReLU6(), torch.nn.Softshrink()
    network.register_forward_hook(lambda module, args, result: another(beside(result)))
    with interop.ties() as counted:
        network(X)
        network[0] = torch.nn.Hardtanh(-2.0, 2.0)
        network(X)
    found = {(line.op, line.module): line.elements for line in counted.report.lines}
    beside_it = {("hardtanh", "ReLU6"): 48, ("softshrink", "Softshrink"): 48}
    assert found == {("relu", "0"): 24, **beside_it, ("hardtanh", "0"): 24}
    assert len(searches) == 4  # one for each module


def test_what_has_no_gradient_does_not_count() -> None:
    assert counts(lambda: X.clone().requires_grad_().to(torch.float64)) == []  # which is a suspect if to integers
    assert counts(lambda: torch.tensor([1, 2]).clamp(max=2)) == []
    assert counts(lambda: torch.abs(torch.tensor([3 + 4j]))) == []


def test_compiled_functions_are_refused() -> None:
    function = torch.compile(lambda x: x.clamp(0.0, 6.0), fullgraph=True, backend="eager")
    with interop.ties(), pytest.raises(Exception, match=r"ties\(\) cannot count in a compiled function"):
        function(X)


def test_influence() -> None:
    """By hand: of the six entries between the bounds, and of those on them, which the other convention lets through."""
    x = torch.tensor([-1.0, 0.0, 3.0, 6.0, 5.0], requires_grad=True)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    unused = torch.ones(2, requires_grad=True)
    found = interop.influence(lambda: (weights * x.clamp(0.0, 6.0)).sum(), [x, unused, x])  # weights may be tied
    assert found.norm == pytest.approx(np.hypot(2, 4))
    assert found.gradient_norm == pytest.approx(np.hypot(3, 5))
    assert found.relative == pytest.approx(np.hypot(2, 4) / np.hypot(3, 5))


def test_influence_of_random_code_is_not_that_of_the_dice() -> None:
    x = torch.ones(100, requires_grad=True)
    state = torch.random.get_rng_state()
    assert interop.influence(lambda: functional.dropout(2 * x, 0.5).sum(), [x]).norm == 0
    assert torch.equal(torch.random.get_rng_state(), state)


def test_influence_of_nothing() -> None:
    with pytest.raises(ValueError, match="parameters is empty"):
        interop.influence(lambda: torch.ones(()), [])
    with pytest.raises(TypeError, match="but is Tensor"):
        interop.influence(lambda: torch.ones(()), torch.ones(1, requires_grad=True))


def _slopes_without_numbers() -> Tensor:
    x = torch.zeros(4, device="meta", requires_grad=True)
    return torch.autograd.grad(x.sqrt().abs().sum(), x)[0]


@pytest.mark.parametrize(
    "function",
    [
        _slopes_without_numbers,
        lambda: torch.zeros(4).to_sparse().abs(),
    ],
    ids=["meta", "sparse"],
)
def test_code_whose_numbers_cannot_be_seen_runs_as_usual(function: Callable[[], Tensor]) -> None:
    expected = function()
    with interop.ties() as counted, pytest.warns(UserWarning, match=r"did not count abs at .*test_ties.py:\d+: "):
        found = function()
    assert (found.shape, found.dtype, found.layout) == (expected.shape, expected.dtype, expected.layout)
    assert counted.report.lines == ()


def _many_kinds(x: Tensor) -> Tensor:
    rows = x.view(1, 2, 2)
    reduced = rows.amax(-1).sum() + x.max(0).values + functional.max_pool1d(rows, 2).sum() + torch.quantile(x, 0.5)
    return reduced + (x.clamp(0.0, 6.0) + torch.maximum(x, -x) + x.floor()).sum() + torch.linalg.norm(x)


@pytest.mark.parametrize(
    "transformed",
    [
        torch.func.vmap,
        lambda fun: torch.func.vmap(torch.func.grad(fun)),
        lambda fun: lambda x: torch.func.vmap(fun, in_dims=1)(x.T),
    ],
    ids=["vmap", "gradients of examples", "another axis"],
)
def test_a_batch_has_the_ties_of_its_lanes(transformed: Callable[..., Any]) -> None:
    lanes = torch.tensor([[0.0, 6.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [7.0, 2.0, 3.0, 0.5], [6.0, 6.0, 0.0, -1.0]])

    def program(x: Tensor) -> Tensor:
        rows = x.view(1, 2, 2)
        reduced = rows.amax(-1).sum() + x.max(0).values + functional.max_pool1d(rows, 2).sum()
        return reduced + (x.clamp(0.0, 6.0) + torch.maximum(x, -x) + functional.prelu(x, x.new_ones(1))).sum()

    with interop.ties() as of_batch:
        transformed(program)(lanes)
    with interop.ties() as of_lanes:
        for lane in lanes:
            program(lane)
    counts = [[(line.op, line.elements, line.tied) for line in block.report.lines] for block in (of_batch, of_lanes)]
    assert counts[0] == counts[1]


@pytest.mark.filterwarnings("ignore::jaxclamp.UndecidedWarning")  # of what jumps
def test_blocks_around_and_tangents_change_no_count() -> None:
    x = torch.zeros(4, requires_grad=True)
    alone = counts(lambda: _many_kinds(x))
    assert ("maximum", 4, 4) in alone
    assert counts(lambda: counts(lambda: _many_kinds(x))) == alone
    with interop.min_norm():
        assert counts(lambda: _many_kinds(x)) == alone
    with interop.along(x):
        assert counts(lambda: _many_kinds(x)) == alone
    with forward_ad.dual_level():
        assert counts(lambda: _many_kinds(forward_ad.make_dual(x.detach(), torch.ones(4)))) == alone


def test_nothing_to_count() -> None:
    with interop.ties() as counted:
        torch.zeros(0, 3).abs()
        torch.zeros(0, 3).amax(1)
    assert counted.report.tied == 0
    assert "0.00%" in str(counted.report)


def test_quotients_that_are_rounded_down() -> None:
    x = torch.tensor([1.0, 1.5, 2.0], requires_grad=True)
    with interop.ties() as counted:
        x // 1
        4 // x
        torch.floor_divide(x, 1)
        torch.embedding(x[:, None], torch.tensor([0]), -1, False, False)  # which has no norm to renew
    assert [(line.tied, line.elements) for line in counted.report.lines] == [(2, 3)] * 3


def test_errors_of_0() -> None:
    x = torch.tensor([[1.0, 1.5], [2.0, 1.0]], requires_grad=True)
    with interop.ties() as counted:
        torch.nn.L1Loss()(x, torch.tensor([[1.0, 2.0], [1.0, 2.0]]))
        functional.l1_loss(input=x, target=torch.zeros(2, 2), reduction="none")
    assert [(line.op, line.tied, line.elements) for line in counted.report.lines] == [
        ("l1_loss", 1, 4),
        ("l1_loss", 0, 4),
    ]
    assert all(line.suspect for line in counted.report.lines)


@pytest.mark.parametrize(
    ("order", "tied"), [(1, 2), (2, 1), (torch.inf, 2), (-torch.inf, 3)], ids=["1", "2", "infinity", "minus infinity"]
)
def test_where_norms_turn(order: float, tied: int) -> None:
    """At rows of zeros, and by the order at those with a zero or with two extrema."""
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, -1.0], [1.0, 2.0]], requires_grad=True)
    with interop.ties() as counted:
        torch.linalg.vector_norm(x, order, dim=1)
        torch.dist(x[0], torch.zeros(2), order)
        torch.dist(x[3], torch.zeros(2), order)
    lines = [(line.op, line.tied, line.elements) for line in counted.report.lines]
    assert lines == [("vector_norm", tied, 4), ("dist", 1, 1), ("dist", 0, 1)]


def test_codes_of_a_fake_quantisation() -> None:
    """Halves between codes, and half a code beyond the last ones, where the gradient jumps; not further out."""
    x = torch.tensor([[-1.5, -0.5, 0.25, 1.0], [0.5, 1.0, 3.5, 4.5]], requires_grad=True)
    with interop.ties() as counted:
        torch.fake_quantize_per_tensor_affine(x, 1.0, 1, 1, 4)
        torch.fake_quantize_per_channel_affine(x, torch.tensor([1.0, 2.0]), torch.tensor([0, 0]).int(), 0, 0, 3)
    assert [(line.tied, line.elements) for line in counted.report.lines] == [(3, 8), (2, 8)]


def test_next_to_several_quantiles_an_element_is_counted_once() -> None:
    x = torch.tensor([2.0, 0.0, 2.0, 2.0], requires_grad=True)
    with interop.ties() as counted:
        x.quantile(torch.tensor([0.5, 0.75]))
    assert [(line.tied, line.elements) for line in counted.report.lines] == [(3, 4)]


def met_infinity(counted: interop.ties) -> list[tuple[int, str, int]]:
    """Return the line, counted from the first, the function and the count of each place where 0 met infinity."""
    words = "0 met infinity in "
    lines = [line for line in counted.report.lines if line.op.startswith(words)]
    assert all(line.suspect for line in lines)
    return [(line.number - lines[0].number, line.op.removeprefix(words), line.tied) for line in lines]


def test_where_a_branch_not_taken_makes_a_gradient_nan() -> None:
    """The count is that of the entries that are NaN, also in functions that torch composes of others."""
    x = torch.tensor([-1.0, 0.0, 1.0, 4.0], requires_grad=True)
    with interop.ties() as counted:
        roots = torch.where(x > 0, x.sqrt(), 0.0)
        logarithms = torch.where(x > 1, torch.log(x - 1), 0.0)
        softmax = torch.softmax(torch.full((2, 2), -torch.inf) * x[2], -1).where(torch.tensor(False), 0.0)
        y = x[:2].exp()  # whose gradient is NaN, which comes from the next line
        behind = torch.where(y > 9, (y * 0).sqrt(), 0.0)
    assert met_infinity(counted) == []
    (roots.sum() + logarithms.sum() + softmax.sum() + behind.sum()).backward()
    assert met_infinity(counted) == [(0, "sqrt", 2), (1, "log", 1), (2, "softmax", 4), (4, "sqrt", 2)]
    assert x.grad is not None
    assert x.grad.isnan().tolist() == [True, True, True, False]


def test_slopes_of_complex_numbers_may_be_finite_or_not() -> None:
    z = torch.tensor([1 + 1j, 0.0], requires_grad=True)
    with interop.ties() as counted:
        rotated = (1j * z).exp().real
        roots = torch.where(z.abs() > 0, (1 * z).sqrt(), 0.0).abs()
    (rotated.sum() + roots.sum()).backward()
    assert met_infinity(counted) == [(0, "sqrt", 1)]


def test_each_call_is_at_its_own_line() -> None:
    """Behind what was computed before, of several tensors, with a function that leaves constants out, and in place."""
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    with interop.ties() as counted:
        roots = x.sqrt()
        exponentials = roots.exp()
        (of_list,) = torch._foreach_sqrt([x * 1])
        normal = torch.nn.functional.layer_norm((x * 0).expand(1, 2), (2,), eps=0.0)
        in_place, whole = (x * 1).sqrt_(), x * 1
        whole[:1].sqrt_()
    torch.where(x > 0, exponentials + of_list + normal[0] * 0 + in_place + whole, 0.0).sum().backward()
    found = [(0, "sqrt", 1), (2, "foreach_sqrt", 1), (3, "layer_norm", 2), (4, "sqrt", 1), (5, "sqrt", 1)]
    assert met_infinity(counted) == found


def test_where_0_met_infinity_the_cotangent_is_0() -> None:
    """That of the entry; of a function that reduces axes, any; and of the results that are used."""
    x = torch.tensor([-1.0, 0.0], requires_grad=True)
    rows = torch.full((2, 3), -torch.inf, requires_grad=True)
    singular = torch.ones(2, 2, requires_grad=True)
    weights = torch.tensor([1.0, 0.0])
    with interop.ties() as counted:
        roots = x.sqrt()
        logarithms = rows.logsumexp(1)
        determinant = torch.linalg.slogdet(singular)[1]
        torch.func.vmap(torch.func.grad(torch.sqrt))(x.detach())  # batches are not looked into
    torch.autograd.grad(roots, x, torch.eye(2), retain_graph=True, is_grads_batched=True)
    ((roots + logarithms) * weights).sum().backward()
    torch.autograd.grad(determinant, singular, torch.zeros(()))
    assert met_infinity(counted) == [(0, "sqrt", 1), (1, "logsumexp", 6), (2, "linalg_slogdet", 4)]


def test_a_normalization_has_a_slope_without_bound() -> None:
    """If eps is 0, and if a number in its row is infinite."""
    x = torch.tensor([[1.0, 1.0, 1.0], [torch.inf, 1.0, 1.0]], requires_grad=True)
    with interop.ties() as counted:
        for eps in (0.0, 1e-5):
            torch.where(x < 0, torch.nn.functional.layer_norm(x, (3,), eps=eps), 0.0).sum().backward()
    assert met_infinity(counted) == [(0, "layer_norm", 9)]
    tiny = torch.tensor([1e-25, 2e-25], requires_grad=True)
    with interop.ties() as counted:
        results = torch.nn.functional.rms_norm(tiny, (2,), eps=0.0)  # whose squares are 0
    assert results.isinf().all()
    torch.where(tiny < 0, results, 0.0).sum().backward()
    assert [name for _, name, _ in met_infinity(counted)] == ["rms_norm"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.clamp(torch.ones(4), 1.0, 1.0 + 1e-9),
        lambda: torch.clamp(torch.ones(4, dtype=torch.bfloat16), 1.0, 1.001),
        lambda: torch.nn.functional.softshrink(torch.zeros(4, dtype=torch.float16), 1e-9),
        lambda: torch.nn.functional.hardshrink(torch.zeros(4), 1e-50),
        lambda: torch.clamp(torch.full((4,), torch.inf), torch.inf, torch.inf),
    ],
)
def test_an_element_on_two_places_that_are_one_in_its_dtype_counts_once(call: Callable[[], Tensor]) -> None:
    with interop.ties() as counted:
        call()
    assert (counted.report.tied, counted.report.elements) == (4, 4)


def test_more_ties_than_float32_has_integers() -> None:
    elements = 2**24 + 1
    with interop.ties() as counted:
        torch.relu(torch.zeros(elements, dtype=torch.bfloat16))
    assert counted.report.tied == counted.report.elements == elements


def test_where_no_gradient_is_nan() -> None:
    """Numbers that are 0, slopes that are finite, infinite gradients that are true, and functions of leaves alone."""
    x = torch.tensor([0.0, 2.0], requires_grad=True)
    with interop.ties() as counted:
        products = x.exp() * x
        roots = x.sqrt()
        doubled = torch.where(x > 1, torch.where(x > 1, x, 1.0).sqrt(), 0.0)
        constant = torch.ones(2).sqrt()
    (products + roots + doubled + constant).sum().backward()
    assert met_infinity(counted) == []
