"""`interop.along`: a block in which torch's own backward pass differentiates along a direction, and training in it."""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional

import interop
from jaxclamp import UndecidedWarning
from tests.programs.nearby import tensor


def test_along_always_the_same_direction() -> None:
    """It is kept from step to step; what overwrites a parameter, its dtype too, does not touch it."""
    x = torch.zeros(40, requires_grad=True)

    def signs() -> torch.Tensor:
        with interop.along(x):
            (gradient,) = torch.autograd.grad(x.abs().sum(), x)
        return gradient

    first = signs()
    assert {-1.0, 1.0} == set(first.tolist())
    with interop.along(x):
        x.abs().sum().backward()
        with torch.no_grad():
            x.mul_(-2.0).sub_(1.0)
    with torch.no_grad():
        x.zero_()
    assert torch.equal(signs(), first)
    with torch.inference_mode(), interop.along(x):
        pass
    x.data = x.data.double()
    assert signs().dtype is torch.float64
    x.data = x.data.float()
    assert torch.equal(signs(), first)
    x.data = torch.zeros(50)
    assert len(signs()) == 50


def test_what_does_not_move_is_left_to_torch() -> None:
    x = torch.zeros(3, requires_grad=True)
    numbers, waves = torch.tensor([3, 1, 2]), torch.tensor([1j, 2.0])
    with interop.along([x]):
        assert torch.equal(numbers.clamp(2, 2), torch.full((3,), 2))
        assert torch.equal(numbers.sort().indices, torch.tensor([1, 2, 0]))
        assert torch.equal(waves.abs(), torch.tensor([1.0, 2.0]))
        assert (torch.zeros(3) > 0).tolist() == [False] * 3
        assert x[:0].relu().shape == (0,)
        with pytest.raises((RuntimeError, IndexError)):
            x[:0].amax()


@pytest.mark.parametrize("sign", [torch.sign, torch.Tensor.sgn, lambda x: torch._foreach_sign([x])[0]])
def test_a_sign_has_the_gradient_0(sign: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Not none, which would be an error in the backward pass."""
    x = torch.zeros(2, requires_grad=True)
    with interop.along(x):
        sign(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0]


def test_ties_of_what_needs_a_gradient_and_has_no_tangent_are_warned_of() -> None:
    """A weight that was computed before the block, a copy made in it, and a tensor that is not named."""
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    early, other = model.weight * 1.0, torch.zeros(2, requires_grad=True)
    with interop.along(model):
        with pytest.warns(UndecidedWarning, match="relu is on a tie, and .* has no tangent"):
            torch.relu(early)
        with pytest.warns(UndecidedWarning, match="relu is on a tie"):
            copy.deepcopy(model)(torch.ones(1, 2)).relu()
        with pytest.warns(UndecidedWarning, match="maximum is on a tie"):
            torch.maximum(torch.zeros(2), other)
        assert torch.relu(early + 1).requires_grad  # without a tie, or a gradient, torch is right
        with torch.no_grad():
            torch.relu(early)


def test_a_block_ends_with_an_exception() -> None:
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(KeyError), interop.along(x):
        raise KeyError
    assert torch.autograd.grad((x.relu() - (-x).relu()).sum(), x)[0].tolist() == [0.0, 0.0]
    with interop.along([x, x]):
        (x.relu() - (-x).relu()).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0]


def test_one_block_at_a_time() -> None:
    x, told = torch.zeros(2, requires_grad=True), []

    def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="in this thread or in another"), interop.along(x):
            pass
        told.append(True)

    with interop.along(x):
        with pytest.raises(RuntimeError, match="Leave the other block"), interop.along(x):
            pass
        with pytest.raises(RuntimeError, match="grad: forward mode is at work already"):
            interop.grad(torch.abs)(torch.tensor(0.0))
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert told


def test_a_block_may_be_entered_again_and_around_each_call() -> None:
    layer = torch.nn.Linear(3, 3)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    block = interop.along(layer.parameters())  # an iterator, which has them once

    def step() -> list[float]:
        layer.zero_grad()
        y = layer(torch.ones(3))
        (y.relu() - (-y).relu()).sum().backward()
        return layer.bias.grad.tolist()

    for _ in range(2):
        with block:
            assert step() == [1.0, 1.0, 1.0]
        assert block(step)() == [1.0, 1.0, 1.0]
    with block, pytest.raises(RuntimeError, match="Leave the other block"), block:
        pass
    assert step() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ["a class", "a generator", "a coroutine"])
def test_what_runs_behind_the_call_cannot_be_decorated(kind: str) -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def coroutine() -> None: ...

    decorated = {"a class": torch.nn.ReLU, "a generator": generator, "a coroutine": coroutine}[kind]
    with pytest.raises(TypeError, match=rf"along\(\) cannot decorate (the class )?{decorated.__name__}"):
        interop.along(torch.ones(1, requires_grad=True))(decorated)


def test_of_two_blocks_that_are_entered_at_once_one_is_refused() -> None:
    x, entered, refused = torch.zeros(2, requires_grad=True), threading.Event(), threading.Event()

    def elsewhere() -> None:
        with interop.along(x):
            entered.set()
            refused.wait(10)

    thread = threading.Thread(target=elsewhere)

    class Parameters:
        def __iter__(self) -> Iterator[torch.Tensor]:
            """Let the other thread enter between the look for its block and the entry."""
            thread.start()
            entered.wait(10)
            yield x

    with pytest.raises(RuntimeError, match="in this thread or in another"), interop.along(Parameters()):
        pass
    refused.set()
    thread.join()


def trained(steps: int) -> tuple[torch.nn.Module, list[float]]:
    """A network on data with ties: of whole numbers, with equal rows of weights and zeros as biases."""
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 4),
        torch.nn.ReLU(inplace=True),
        torch.nn.Linear(4, 4),
        torch.nn.Hardtanh(),
        torch.nn.Linear(4, 1),
    )
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 0.5 if parameter.dim() > 1 else 0.0)
    x = torch.tensor([[0.0, 0.0], [1.0, -1.0], [1.0, 0.0], [0.0, 1.0]])
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    source, losses = torch.Generator().manual_seed(0), []
    for _ in range(steps):
        optimizer.zero_grad()
        with interop.along(model, generator=source):
            loss = functional.l1_loss(model(x), x[:, :1])
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def test_training_on_ties() -> None:
    model, losses = trained(150)
    assert losses[-1] < 0.1 * losses[0]
    names = dict(model.named_parameters())
    assert all(type(parameter) is torch.nn.Parameter and parameter.is_leaf for parameter in names.values())


def test_gradients_of_modules_are_those_nearby() -> None:
    shared = torch.nn.Linear(3, 3)
    model = torch.nn.Sequential(
        shared, torch.nn.LeakyReLU(-0.5), shared, torch.nn.ReLU6(), torch.nn.BatchNorm1d(3)
    ).double()
    with torch.no_grad():
        for parameter in shared.parameters():
            parameter.copy_(parameter.sign().floor())
    x = tensor([[0.0, 0.0, 0.0], [1.0, 1.0, -2.0], [0.0, 1.0, 0.0], [2.0, 2.0, 0.0]])
    parameters = list(model.parameters())
    direction = [torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(1)) for p in parameters]
    before, seen = [parameter.detach().clone() for parameter in parameters], []
    hook = shared.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    with interop.along(model, direction=direction):
        assert all(map(operator.is_, model.parameters(), parameters))
        loss = (model(x) ** 2 * torch.arange(12.0).reshape(4, 3)).sum()
    loss.backward()
    hook.remove()
    assert torch.equal(seen[0], shared.weight.grad)
    found = [parameter.grad for parameter in parameters]
    assert all(torch.equal(a, b) for a, b in zip(before, parameters, strict=True))
    model.zero_grad()
    with torch.no_grad():
        for parameter, v in zip(parameters, direction, strict=True):
            parameter.add_(1e-9 * v)
    (model(x) ** 2 * torch.arange(12.0).reshape(4, 3)).sum().backward()
    for gradient, parameter in zip(found, parameters, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Using backward")  # a cycle of references, which the test leaves behind
def test_gradients_of_gradients_move() -> None:
    """What is computed of a gradient, such as a penalty, is decided as well."""
    w, v = torch.zeros(3, requires_grad=True), torch.tensor([1.0, -1.0, 2.0])
    with interop.along(w, direction=[v]):
        x = torch.ones(3, requires_grad=True)
        (gradient,) = torch.autograd.grad((x * w).sum(), x, create_graph=True)  # it is w
        (gradient.relu() - (-gradient).relu()).sum().backward()
        (x * w).sum().backward(create_graph=True, inputs=[x])
        penalty = (x.grad.relu() - (-x.grad).relu()).sum()
    assert w.grad.tolist() == [1.0, 1.0, 1.0]
    assert torch.autograd.grad(penalty, w)[0].tolist() == [1.0, 1.0, 1.0]


def test_losses_of_several_blocks_are_differentiated_together() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1))
    before = model(torch.ones(1, 2)).sum()
    for _ in range(2):
        with interop.along(model):
            before = before + model(torch.ones(1, 2)).sum()
    before.backward()
    together = model[0].weight.grad.clone()
    model.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    torch.testing.assert_close(together, 3 * model[0].weight.grad)


def test_losses_of_half_precision() -> None:
    """Under autocast torch computes these in float32."""
    scores = torch.zeros(2, 3, requires_grad=True)
    for loss in (lambda x: functional.multi_margin_loss(x, torch.tensor([0, 2])), lambda x: functional.l1_loss(x, -x)):
        with torch.autocast("cpu", torch.bfloat16):
            usual = loss(scores.bfloat16())
            with interop.along(scores):
                decided = loss(scores.bfloat16())
        assert decided.dtype == usual.dtype
        assert torch.equal(decided, usual)


def test_an_optimizer_may_step_in_the_block() -> None:
    for make in (lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.AdamW(p, foreach=True)):
        layer = torch.nn.Linear(2, 2)
        optimizer = make(layer.parameters())
        before = layer.weight.detach().clone()
        with interop.along(layer):
            torch.nn.utils.clip_grad_norm_([p for p in layer.parameters() if p.grad is not None], 1.0)
            functional.mse_loss(layer(torch.ones(1, 2)).abs(), torch.zeros(1, 2)).backward()
            torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        assert not torch.equal(before, layer.weight)
        assert set(layer.state_dict()) == {"weight", "bias"}


def _set_an_element(layer: torch.nn.Linear) -> None:
    with torch.no_grad():
        layer.weight[0, 0] = 0.0


def _set_a_column(layer: torch.nn.Linear) -> None:
    with torch.no_grad():
        layer.weight.T[0].fill_(0.0)


def _write_to_out(layer: torch.nn.Linear) -> None:
    with torch.no_grad():
        layer.weight.fill_(-1.0)
        torch.maximum(torch.zeros(1, 1), layer.weight, out=layer.weight)


def _step_with_lists(layer: torch.nn.Linear) -> None:
    """A weight decay of 1 takes all of the weight."""
    layer.weight.grad = torch.zeros(1, 1)
    torch.optim.AdamW(layer.parameters(), lr=1.0, weight_decay=1.0, foreach=True).step()
    layer.zero_grad()


@pytest.mark.parametrize("overwrite", [
    lambda layer: torch.nn.init.zeros_(layer.weight),
    lambda layer: torch.nn.init.uniform_(layer.weight, 0.0, 0.0),
    lambda layer: layer.load_state_dict({"weight": torch.zeros(1, 1)}),
    _set_an_element,
    _set_a_column,
    _write_to_out,
    _step_with_lists,
    lambda layer: torch.no_grad()(torch._foreach_copy_)([layer.weight], [torch.zeros(1, 1)]),
], ids=["init", "another init", "load_state_dict", "an element", "a view", "out", "an optimizer", "many"])  # fmt: skip
def test_parameters_that_are_overwritten_in_the_block_move(overwrite: Callable[[torch.nn.Linear], object]) -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    with interop.along(layer):
        overwrite(layer)
        y = layer(torch.ones(1, 1))
        (torch.relu(y) - torch.relu(-y)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.item() == 1.0


def test_what_shows_a_part_of_an_overwritten_tensor_moves() -> None:
    flat = torch.ones(3)
    x = flat[1:].requires_grad_()
    with interop.along([x, x], direction=torch.tensor([1.0, -1.0])):  # weights may be tied
        with torch.no_grad():
            x.zero_()
        x.abs().sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, -1.0]


def test_what_the_program_overwrites_moves_as_it_says() -> None:
    x = torch.tensor([1.0, -1.0], requires_grad=True).clone()
    with interop.along(x, direction=torch.tensor([1.0, 1.0])):
        with torch.no_grad():
            x.zero_().add_(torch.tensor([1.0, -1.0]))  # which is no part of it
        x.sub_(x.detach().clone()).neg_()
        assert x.abs().sum().item() == 0.0
        (gradient,) = torch.autograd.grad(x.abs().sum(), x)
    assert gradient.tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("make", [functools.partial(torch.optim.Adam, amsgrad=True), torch.optim.Adamax])
def test_an_optimizer_may_write_its_largest_moments_to_out(make: Callable[..., torch.optim.Optimizer]) -> None:
    """They move with a weight decay: of equal ones, what is written is decided, with the value that it has outside."""
    ends = []
    for block in (interop.along, contextlib.nullcontext):
        x = torch.tensor([0.0, 1.0, -2.0], requires_grad=True)
        optimizer = make([x], lr=0.5, weight_decay=0.5, foreach=False)
        for _ in range(3):
            optimizer.zero_grad()
            with block(x):
                (x**2).sum().backward()
                optimizer.step()
        ends.append(x.detach().clone())
    assert torch.equal(*ends)


def test_what_is_written_to_out_moves() -> None:
    """|w| at 0 grows along -1, so that it is positive a small step on; what was in its place becomes smaller."""
    w = torch.zeros(1, requires_grad=True)
    with interop.along(w, direction=-torch.ones(1)):
        with torch.no_grad():
            torch.abs(w, out=(buffer := 5 * w))
            torch.abs(w, out=(empty := torch.empty(0)))  # which torch makes as large as the result
        torch.where((buffer > 0) & (empty > 0), 2 * w, w).sum().backward()
    assert w.grad.item() == 2


def test_weights_that_autocast_has_cast_before_move() -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    x = torch.ones(1, 1)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x).sum()
        with interop.along(layer):
            y = layer(x)
            (torch.relu(y) - torch.relu(-y)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.item() == 1.0


@pytest.mark.parametrize("target", [torch.tensor([1]), torch.tensor(1)])
def test_the_loss_of_one_row_has_the_axes_of_its_target(target: torch.Tensor) -> None:
    x = torch.ones(3, requires_grad=True)
    with interop.along(x):
        loss = functional.multi_margin_loss(x, target, reduction="none")
    assert loss.shape == target.shape


POOLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "max_pool2d": lambda x: functional.max_pool2d(x[0], 2),
    "max_pool3d": lambda x: functional.max_pool3d(x, 2),
    "max_pool3d with indices": lambda x: functional.max_pool3d(x, 2, return_indices=True)[0],
    "adaptive_max_pool3d": lambda x: functional.adaptive_max_pool3d(x, 1),
    "fractional_max_pool3d": lambda x: functional.fractional_max_pool3d(x[None], 1, 1),
}


@pytest.mark.parametrize("name", POOLS)
def test_autocast_has_pools_in_the_dtype_of_torch(name: str) -> None:
    """Some are in float32, though their operand has 16 bits."""
    x = torch.ones(1, 2, 2, 2, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        in_torch = POOLS[name](x)
        with interop.along(x):
            decided = POOLS[name](x)
    decided.sum().backward()
    assert decided.dtype == in_torch.dtype
    assert x.grad is not None
    assert x.grad.count_nonzero() == decided.numel()  # one element of each window


def test_a_gradient_that_is_differentiated_again_is_not_settled() -> None:
    """A settled loss can be differentiated once."""
    x, y = torch.tensor([-1.0, 4.0], requires_grad=True), torch.tensor(2.0, requires_grad=True)
    with interop.along([x, y]):
        loss = torch.where(x > 0, x.sqrt(), 0.0).sum() + y**3
        (slope,) = torch.autograd.grad(loss, y, create_graph=True)
        (second,) = torch.autograd.grad(slope, y)
    assert (slope.item(), second.item()) == (12.0, 12.0)
