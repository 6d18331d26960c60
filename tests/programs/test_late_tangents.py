"""A block of `along` that starts without tangents: they are given when a choice first asks, to whatever needs one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

import interop
from interop._programs.late_tangents import Tape
from interop._programs.order import are_late
from jaxclamp import UndecidedWarning

Tensor = torch.Tensor
AT, V = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64), torch.tensor([1.0, -1.0, 2.0, -0.5]).double()
WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 5.0]).double()
TURN = torch.randn(4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
"""It turns V to numbers of both signs."""
OTHER = torch.nn.Parameter(torch.full((4,), 2.0).double())


def kinked(x: Tensor) -> Tensor:
    """A number whose choice is on a tie where elements are 0."""
    return (x.relu() * WEIGHTS[: x.numel()].reshape(x.shape)).sum() - x.square().sum()


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return (2.0 * x).sin() * 3.0


@torch.jit.script
def product(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


class Turned(torch.autograd.Function):
    """A product that the block does not see."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x @ TURN

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return cotangent @ TURN.T

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent @ TURN


class Unseen(Turned):
    """The same, where no function of torch runs that the block could see."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return product(x, TURN)


class OfNumPy(torch.autograd.Function):
    """The same, whose backward pass torch does not differentiate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() @ TURN.numpy())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return torch.from_numpy(cotangent.numpy() @ TURN.T.numpy())

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent @ TURN


class Product(torch.autograd.Function):
    """A function whose ``jvp`` computes with tangents that are made of parameters themselves."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return cotangent * y, cotangent * x

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, dy: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        return dx * y + x * dy


def overwritten(x: Tensor) -> Tensor:
    y = x * 2.0
    y += x @ TURN
    y[0] = x[1] * 3.0
    y[2:].mul_(-1.0)
    return kinked(y)


def written_into_a_buffer(x: Tensor) -> Tensor:
    buffer = torch.zeros(2, 4, dtype=x.dtype)
    buffer[0], buffer[1] = x @ TURN, x
    return kinked(buffer[0]) + kinked(buffer[1])


def in_pieces(x: Tensor) -> Tensor:
    first, second = (x @ TURN).split(2)
    wide = second.unsqueeze(0).expand(2, 2)
    return kinked(first) + kinked(x) + (wide.relu() * WEIGHTS.reshape(2, 2)).sum() + kinked(second.neg())


def masked_without_tape(x: Tensor) -> Tensor:
    y = x @ TURN
    with torch.no_grad():
        doubled = 2 * y
        mask = (doubled > 0).to(y.dtype)
    return (mask * y * WEIGHTS).sum() + (torch.where(doubled > 0, x, -2 * x) * WEIGHTS).sum()


def masked_by_a_view_without_tape(x: Tensor) -> Tensor:
    y = (x @ TURN).unflatten(0, (2, 2))
    with torch.no_grad():
        mask = y.T > 0
    return (mask * y * WEIGHTS.reshape(2, 2)).sum()


def without_the_numbers_of_a_backward_pass(x: Tensor) -> Tensor:
    """No gradient reaches y, as a factor of it is overwritten."""
    factor = torch.ones(4).double()
    y = x * factor
    factor += 1
    return kinked(x @ TURN) + (y > 5).sum()


def measured_in_inference_mode(x: Tensor) -> Tensor:
    y = x @ TURN
    with torch.inference_mode():
        y.relu().sum()
    return kinked(y) + kinked(x)


def hooked(x: Tensor) -> Tensor:
    """The hook changes the gradient, and no tangent: not of what was computed before it either."""
    y = x @ TURN
    z = y * torch.tensor([1.0, -1.0, 1.0, -1.0]).double()
    y.register_hook(lambda gradient: -gradient)
    return kinked(y * 2.0) + kinked(z)


def beside_what_is_not_named(x: Tensor) -> Tensor:
    early = OTHER.sin() * 2.0
    tied = kinked(x)
    return tied + kinked((x * early.cos()).sin() * OTHER)


def functions_across_the_tie(x: Tensor) -> Tensor:
    """Results that were computed before it and used behind it, and functions that the block does not see on either."""
    before, kept = Unseen.apply(x.sin()), x * 3.0
    tied = kinked(x)
    unseen = Unseen.apply(kept)
    of_unseen = [Unseen.apply(unseen), Unseen.apply(unseen)]
    return tied + kinked(before) + sum(map(kinked, of_unseen)) + kinked(Turned.apply(x @ TURN))


def multiplied(x: Tensor) -> Tensor:
    y = x.sin()
    tied = kinked(x)
    return tied + kinked(Product.apply(x * y, x + 1))


def padded(x: Tensor) -> Tensor:
    """The row of ``padding_idx`` gets no gradient, and moves."""
    rows = functional.embedding(torch.tensor([0, 1]), x.unflatten(0, (2, 2)), padding_idx=0)
    return kinked(rows[0] - 0.25 * x[2:]) + kinked(rows[1])


def scripted_across_the_tie(x: Tensor) -> Tensor:
    before, kept = scripted(x), x * 3.0
    tied = kinked(x)
    return tied + kinked(before) + kinked(scripted(kept))


def counted(x: Tensor) -> Tensor:
    with interop.ties() as report:
        loss = kinked(x @ TURN)
    assert report.report.elements == 4
    return loss


def above_a_part_of_a_batch(x: Tensor) -> Tensor:
    part = torch.zeros(2, 4, dtype=x.dtype)[0].requires_grad_()  # a leaf, of which the gradient is of interest, too
    return kinked(torch.maximum(x @ TURN, part.view(4))) + kinked(x)


def pooled_zeros(x: Tensor, zeros: Tensor) -> Tensor:
    image = functional.relu(torch.stack([zeros, zeros * 2.0, x - 3.0, x + 0.5]), inplace=True)[None, None]
    pooled = functional.max_pool2d(image.flatten(0, 1), 2, 1, return_indices=True)[0]
    return (pooled * TURN[:3, :3]).sum() + (functional.relu6(pooled) * TURN[1:, :3]).sum()


def transformed(x: Tensor) -> Tensor:
    y = x @ TURN
    rows = torch.func.vmap(lambda z: (z * y).relu() * 2.0)(torch.eye(4).double() - 0.5)
    slopes = torch.func.grad(lambda z: (z * y.abs()).sum())(torch.ones(4).double())
    slopes = slopes + torch.func.vjp(lambda z: z @ TURN * z, x)[0].relu()
    return (rows * TURN).sum() + (slopes * WEIGHTS).sum() + (torch.func.jacrev(torch.abs)(y) @ y * WEIGHTS).sum()


def through_layers(x: Tensor) -> Tensor:
    image = (x.reshape(1, 1, 2, 2) * torch.arange(1.0, 4).double().reshape(1, 3, 1, 1)).expand(2, 3, 2, 2)
    image = functional.conv2d(image + 0.0, TURN.reshape(1, 1, 4, 4)[..., :2, :2].expand(3, 3, 2, 2), padding=1)
    rows = functional.layer_norm(image.flatten(1) + torch.arange(54.0).double().reshape(2, 27), (27,))
    attended = torch.softmax(rows @ rows.T, -1) @ rows
    loss = functional.cross_entropy(attended[:, :4], torch.tensor([0, 3])) + functional.gelu(attended).mean()
    return loss + kinked(x * loss) + kinked((x - x.mean()) @ TURN)


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "at once": kinked,
    "a product": lambda x: kinked(x @ TURN),
    "two ties": lambda x: kinked((x @ TURN).relu() @ TURN - x) + kinked(torch.maximum(x, x @ TURN)),
    "pieces of a tensor": in_pieces,
    "overwritten": overwritten,
    "written into a buffer": written_into_a_buffer,
    "a function of NumPy": lambda x: kinked(OfNumPy.apply(x.sin()) + x.cos() - 1),
    "no second derivative": lambda x: kinked(functional.hardsigmoid(x @ TURN) - 0.5),
    "an overwritten factor": without_the_numbers_of_a_backward_pass,
    "without a tape": masked_without_tape,
    "a view without a tape": masked_by_a_view_without_tape,
    "a look in inference mode": measured_in_inference_mode,
    "a hook": hooked,
    "parameters that are not named": beside_what_is_not_named,
    "functions that the block does not see": functions_across_the_tie,
    "a function of two operands": multiplied,
    "an embedding with padding": padded,
    "an input that is a part of a batch": above_a_part_of_a_batch,
    "TorchScript": scripted_across_the_tie,
    "a block of min_norm": interop.min_norm(lambda x: kinked(x @ TURN) + torch.clamp(x, 0.0, 1.0) @ WEIGHTS),
    "counted ties": counted,
    "transformations": transformed,
    "layers": through_layers,
    "what jumps": lambda x: kinked(x + torch.round(x * 0.25 + 0.4)) + kinked((x + 0.3).floor() - x),
    "quantiles": lambda x: (
        (x @ TURN + WEIGHTS).quantile(0.3) * (1 + torch.isclose(x, x + 1.0).sum() + (x + 3).signbit().sum())
        + kinked(x @ TURN)
        + (x @ TURN).nanquantile(0.5)
    ),
    "a gradient": lambda x: kinked(torch.autograd.grad((x.sin() ** 2).sum(), x, create_graph=True)[0]),
    "the largest": lambda x: kinked(x) + (x @ TURN).amax() + x.sort().values @ WEIGHTS + x.unflatten(0, (2, 2)).norm(),
    "slopes without bound": lambda x: kinked((x + 4).sqrt() - 2 + x / (x + 1).exp()) + kinked((x + 1).log()),
    "a slope that is infinite": lambda x: kinked(torch.where(WEIGHTS > 0, x, (x**4).sqrt() + (x**4) ** 0.25)),
    "a pool": lambda x: functional.max_pool1d((1.0 - x).relu().reshape(1, 1, 4), 2) @ WEIGHTS[:2] + kinked(x),
    "a pool of zeros": lambda x: pooled_zeros(x, x.relu()),
    "a pool of zeros that stand still": lambda x: pooled_zeros(x, (x - WEIGHTS).relu()) + kinked(x @ TURN),
    "a norm by hand": lambda x: (x * x).sum().sqrt() + 2 * (((y := x @ TURN) * y).sum() * 0.5 + x[0] ** 2) ** 0.5,
    "a norm by hand with weights": lambda x: (((x + 1).exp() + OTHER.exp()) * (x * x) + 0 * OTHER.sin()).sum().sqrt(),
    "a root of squared errors": lambda x: functional.mse_loss(x @ TURN, x * WEIGHTS[0]).sqrt() + kinked(x),
    "norms": lambda x: (x @ TURN).norm() + torch.hypot(x * 2.0, x @ TURN).sum() + (x @ TURN).std(),
    "the largest alone": lambda x: (x + WEIGHTS).amax() + (x.unflatten(0, (2, 2)) @ TURN[:2]).max(1)[0].sum(),
    "the order alone": lambda x: (x + WEIGHTS).sort().values @ WEIGHTS + (x @ TURN).topk(2)[0].sum() + x.median(),
}


def gradient(program: Callable[[Tensor], Tensor], shift: float) -> Tensor:
    w = torch.nn.Parameter(AT + shift * V)
    return torch.autograd.grad(program(w - AT), w)[0]


@pytest.fixture
def pushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For how many tensors each pair of reverse passes looked for tangents."""
    pushed_forward, numbers = Tape._pushed_forward, list[int]()

    def counted(tape: Tape, tensors: Any) -> Any:
        numbers.append(len(tensors))
        return pushed_forward(tape, tensors)

    monkeypatch.setattr(Tape, "_pushed_forward", counted)
    return numbers


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_nearby(name: str) -> None:
    w = torch.nn.Parameter(AT.clone())
    with interop.along(w, direction=V):
        PROGRAMS[name](w - AT).backward()
    torch.testing.assert_close(w.grad, gradient(PROGRAMS[name], 1e-9), atol=1e-5, rtol=1e-5)


def test_what_is_not_named_has_choices_of_torch() -> None:
    w, other = torch.nn.Parameter(AT.clone()), torch.nn.Parameter(AT.clone())
    with interop.along(w):
        y, z = (other - AT) * 2.0, (w - AT) * 2.0
        tied = kinked(z)
        with pytest.warns(UndecidedWarning, match="abs is on a tie"):
            (tied + y.abs().sum() + torch.round(z).abs().sum()).backward()
    assert other.grad.tolist() == [0.0] * 4


def test_without_a_tie_nothing_gets_a_tangent(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Conv2d(2, 2, 1), torch.nn.ReLU6(inplace=True), torch.nn.ReLU(), torch.nn.MaxPool2d(2, 1)),
        *(torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8, 4)),
    )
    given = []
    monkeypatch.setattr("interop._programs.along._give_tangents", given.append)
    with interop.along(model):
        scores = model(torch.rand(2, 1, 8, 8)).clamp(-1.0, 1.0)
        loss = functional.cross_entropy(scores, torch.tensor([0, 3])) + 1e-3 * sum(
            (weight * weight).sum() for weight in model.parameters()
        )
        loss.backward()
        assert loss.item() > 0
    assert not given


@pytest.mark.parametrize("size", [2, 5])  # windows of few elements, and of many
def test_windows_of_zeros_that_stand_still_need_no_tangent(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr("interop._programs.along._give_tangents", given.append)
    w = torch.nn.Parameter(torch.full((1, 1, 6, 6), -1.0))
    with interop.along(w):
        functional.max_pool2d(w.relu(), size).sum().backward()
    assert not given
    assert w.grad.count_nonzero() == 0


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("freeze", [Tensor.requires_grad_, Tensor.requires_grad.__set__])  # type: ignore[attr-defined]
def test_a_parameter_that_is_frozen_stands_still(
    freeze: Callable[[Tensor, bool], Any], is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(x: Tensor, y: Tensor, frozen: Tensor, freeze: Callable[[Tensor, bool], Any]) -> Tensor:
        before = x - y * 2.0
        freeze(y, False)
        between = x - frozen * 2.0
        total = kinked(before) + kinked(between)
        freeze(y, True)
        slopes = torch.func.grad(lambda z: (z * z * between).sum())(x - y + 1.0)
        return total + sum(map(kinked, (before, -between, slopes, x - y * 2.0)))

    def parameters(shift: float) -> list[Tensor]:
        return [torch.nn.Parameter(x) for x in (shift * V, shift * -0.75 * V.flip(0))]

    monkeypatch.setattr(Tape, "begins_late", lambda _: is_late)
    at, nearby = parameters(0.0), parameters(1e-9)
    with interop.along(at, direction=[V, -0.75 * V.flip(0)]):
        program(*at, at[1], freeze).backward()
    expected = torch.autograd.grad(program(*nearby, torch.zeros(4).double(), lambda *_: None), nearby)
    torch.testing.assert_close([x.grad for x in at], [*expected], atol=1e-5, rtol=1e-5)


def test_choices_behind_a_backward_pass_are_left_to_torch(pushes: list[int]) -> None:
    """It has freed the tape, so that no gradient depends on them. What it has not freed has its tangents."""
    w = torch.nn.Parameter(AT.clone())
    with interop.along(w, direction=V):
        scores, kept = (w - AT) @ TURN * w, [(w - AT) @ TURN * i for i in range(1, 9)]
        scores.sum().backward()
        w.grad = None
        best = scores.argmax()
        assert (scores.detach() <= scores.detach()[best]).all()
        asked = len(pushes)
        assert scores.argmax() == best
        assert len(pushes) == asked
        sum(map(kinked, kept)).backward()
    assert len(pushes) <= 8
    of_kept = gradient(lambda x: sum(kinked(x @ TURN * i) for i in range(1, 9)), 1e-9)
    torch.testing.assert_close(w.grad, of_kept, atol=1e-5, rtol=1e-5)


def test_a_tape_that_is_retained_has_tangents() -> None:
    w = torch.nn.Parameter(AT.clone())
    with interop.along(w, direction=V):
        y = (w - AT) * w
        y.sum().backward(retain_graph=True)
        w.grad = None
        kinked(y).backward()
    nearby = torch.nn.Parameter(AT + 1e-7 * V)
    (expected,) = torch.autograd.grad(kinked((nearby - AT) * nearby), nearby)
    torch.testing.assert_close(w.grad, expected, atol=1e-5, rtol=1e-5)


def test_a_function_may_be_what_asks_first() -> None:
    """Torch calls its ``forward`` where no tangents are propagated, and the parameters get theirs all the same."""

    def program(w: Tensor) -> Tensor:
        return OfNumPy.apply(w).sum() + kinked(w - AT)

    w, nearby = torch.nn.Parameter(AT.clone()), torch.nn.Parameter(AT + 1e-9 * V)
    with interop.along(w, direction=V):
        program(w).backward()
    torch.testing.assert_close(w.grad, torch.autograd.grad(program(nearby), nearby)[0], atol=1e-5, rtol=1e-5)


def in_steps(x: Tensor) -> Tensor:
    states = [OTHER * 2.0, x]
    for _ in range(8):
        states.append((states[-1] @ TURN).sin())
    return sum(map(kinked, reversed(states)))


def of_inner_steps(x: Tensor) -> Tensor:
    inner, total = (x @ TURN, x * 2.0, x), kinked(x)
    for _ in range(4):
        loss = torch.stack(inner).sin().square().sum()
        gradients = torch.autograd.grad(loss, inner, create_graph=True)
        inner = tuple(y - 0.1 * slope for y, slope in zip(inner, gradients, strict=True))
        total = total + sum(map(kinked, inner))
    return total


@pytest.mark.parametrize(("program", "most"), [(in_steps, 2), (of_inner_steps, 5)])
def test_what_a_loop_computed_gets_its_tangents_at_once(
    program: Callable[[Tensor], Tensor], most: int, pushes: list[int]
) -> None:
    """Two reverse passes for each of n states would take a time of n squared."""
    w = torch.nn.Parameter(AT.clone())
    with interop.along(w, direction=V):
        program(w - AT).backward()
    torch.testing.assert_close(w.grad, gradient(program, 1e-9), atol=1e-5, rtol=1e-5)
    assert len(pushes) <= most


def test_gradients_that_are_retained_are_those_of_the_program() -> None:
    w = torch.nn.Parameter(AT.clone())
    with interop.along(w, direction=V):
        y = w - AT
        z = y * 2.0
        y.retain_grad()
        loss = kinked(z)
        assert y.grad is None
        loss.backward()
    torch.testing.assert_close(y.grad, w.grad)
    assert not y.grad.requires_grad


def test_an_optimizer_in_the_block_does_not_count_as_a_tie() -> None:
    w = torch.nn.Parameter(AT.clone())
    optimizer = torch.optim.SGD([w], lr=0.1)
    for _ in range(2):
        with interop.along(w):
            optimizer.zero_grad()
            (w * 0.5).relu().sum().backward()
            assert are_late()
            optimizer.step()


def test_a_slope_that_overflows_is_seen() -> None:
    """That of a root in the denominator is the cube of the value."""
    w = torch.nn.Parameter(torch.tensor([4.0, 1e-26]))
    with interop.along(w):
        loss = torch.where(torch.tensor([True, False]), w.rsqrt(), 0.0).sum()
    loss.backward()
    assert w.grad.tolist() == [-0.0625, 0.0]
