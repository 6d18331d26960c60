"""What a checkpoint computes again, after the block that it was in: as it computed it first, or not at all."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import (
    CheckpointError,
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import interop
from interop import min_norm
from interop._torch import checkpoint_modes
from interop._torch.private_api import function_modes, top_hooks

pytestmark = [
    # of a reentrant checkpoint in another
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning"),
    # of a selective one in or around hooks
    pytest.mark.filterwarnings("ignore:A saved_tensors_hooks context:FutureWarning"),
]
Tensor = torch.Tensor
Again = Callable[..., Any]
"""A checkpoint, or a plain call: of a function and its arguments."""

ZEROS = torch.zeros(4)
INCLUSIVE = min_norm(ties="inclusive")


def tied(x: Tensor) -> Tensor:
    """Two functions with ties; under each convention they keep another number of tensors for the backward pass."""
    return torch.maximum(x.exp() * x, ZEROS) + x.clamp(0.0, 6.0).cos()


class Doubled(torch.autograd.Function):
    """It calls nothing of torch that a mode would see, and saves a tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        with torch._C.DisableTorchFunction():
            return 2 * x

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return cotangent * (2 + 0 * ctx.saved_tensors[0])


def within(block: Any, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def entered(x: Tensor) -> Tensor:
        with block:
            return function(x)

    return entered


def taped(x: Tensor) -> Tensor:
    with torch.enable_grad():
        return tied(x)


PROGRAMS: dict[str, Callable[[Again, Tensor], Tensor]] = {
    "in a block": lambda again, x: within(min_norm(), lambda x: again(tied, x))(x),
    "in JAX": lambda again, x: within(min_norm(backend="jax"), lambda x: again(tied, x))(x),
    "in two blocks": lambda again, x: within(min_norm(), within(INCLUSIVE, lambda x: again(tied, x)))(x),
    "in one block twice": lambda again, x: within(INCLUSIVE, within(INCLUSIVE, lambda x: again(tied, x)))(x),
    "around a block": lambda again, x: again(lambda x: within(min_norm(), tied)(x) + 10 * tied(x), x),
    "around a block that began earlier": lambda again, x: within(
        min_norm(), lambda x: again(lambda x: tied(x) * within(INCLUSIVE, tied)(x) + tied(x), x)
    )(x),
    "behind a block": lambda again, x: within(
        min_norm(), lambda x: again(tied, x) + within(INCLUSIVE, lambda x: again(tied, x))(x) * again(tied, x)
    )(x),
    "of a checkpoint": lambda again, x: within(min_norm(), lambda x: again(lambda x: again(tied, x), x))(x),
    "of a checkpoint, with more around": lambda again, x: within(
        min_norm(), lambda x: again(lambda x: again(tied, x.exp()) * tied(x), x)
    )(x),
    "of a block of a checkpoint": lambda again, x: within(
        min_norm(), lambda x: again(lambda x: within(INCLUSIVE, lambda x: again(tied, x * x))(x) + tied(x), x)
    )(x),
    "around a block around a checkpoint": lambda again, x: again(
        lambda x: tied(x) + within(min_norm(), lambda x: again(tied, x))(x) ** 2, x
    ),
    "that turns the tape on": lambda again, x: within(min_norm(), lambda x: again(taped, x))(x),
    "that saves before the block sees a call": lambda again, x: within(
        min_norm(), lambda x: again(lambda x: tied(Doubled.apply(x)), x)
    )(x),
    "in hooks": lambda again, x: within(save_on_cpu(), within(min_norm(), lambda x: again(tied, x)))(x),
    "in hooks in a block": lambda again, x: within(min_norm(), within(save_on_cpu(), lambda x: again(tied, x)))(x),
    "around hooks": lambda again, x: within(
        min_norm(), lambda x: again(lambda x: within(save_on_cpu(), tied)(x) * tied(x), x)
    )(x),
    "of converted modules": lambda again, x: again(
        lambda x: tied(interop.nn.Hardtanh(0.0, 6.0)(x)) + interop.nn.LeakyReLU(2.0)(x), x
    ),
}


def selective(function: Callable[..., Any], x: Tensor) -> Any:
    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        saved = op is torch.ops.aten.exp.default
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return checkpoint(function, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy))


FORMS: dict[str, Again] = {
    "not reentrant": lambda function, x: checkpoint(function, x, use_reentrant=False),
    "reentrant": lambda function, x: checkpoint(function, x, use_reentrant=True),
    "without early stop": lambda function, x: checkpoint(function, x, use_reentrant=False, early_stop=False),
    "selective": selective,
    "one of each": lambda function, x: checkpoint(
        lambda x: checkpoint(function, x, use_reentrant=False), x, use_reentrant=True
    ),
    "the other way": lambda function, x: checkpoint(
        lambda x: checkpoint(function, x, use_reentrant=True), x, use_reentrant=False
    ),
}


def gradient(program: Callable[[Again, Tensor], Tensor], again: Again, afterwards: Any = None) -> list[float]:
    x = torch.tensor([-1.0, 0.0, 3.0, 6.0], requires_grad=True)
    y = program(again, x)
    with afterwards or contextlib.nullcontext():
        y.sum().backward()
    assert (top_hooks(), function_modes()) == (None, [])
    return x.grad.tolist()


@pytest.mark.parametrize("form", FORMS)
def test_as_if_it_were_no_checkpoint(form: str) -> None:
    for name, program in PROGRAMS.items():
        plain = gradient(program, lambda function, x: function(x))
        found = gradient(program, FORMS[form])
        assert found == pytest.approx(plain, rel=1e-6), name


@pytest.mark.parametrize("form", ["not reentrant", "reentrant"])
def test_that_test_can_fail(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch's checkpoints are not found, the gradient is another, or torch raises an error."""
    monkeypatch.setattr(checkpoint_modes, "top_hooks", lambda: None)
    monkeypatch.setattr(checkpoint_modes, "checkpoint_that_switches", lambda func: None)
    right = set()
    for name, program in PROGRAMS.items():
        with contextlib.suppress(CheckpointError):
            if gradient(program, FORMS[form]) == gradient(program, lambda function, x: function(x)):
                right.add(name)
    assert right == {"around a block", "of converted modules"}


@pytest.mark.parametrize("form", ["not reentrant", "reentrant"])
def test_backward_pass_in_another_block(form: str) -> None:
    program = PROGRAMS["in two blocks"]
    plain = gradient(program, lambda function, x: function(x))
    assert gradient(program, FORMS[form], afterwards=min_norm()) == plain
    assert gradient(program, FORMS[form], afterwards=interop.ties()) == plain


def test_backward_pass_through_what_was_saved_earlier() -> None:
    """Nothing that the block replaced is among it, but it is computed again with the rest."""
    x = torch.tensor([-1.0, 0.0, 3.0, 6.0], requires_grad=True)
    with min_norm():
        first, _ = checkpoint(lambda x: (x.exp(), tied(x)), x, use_reentrant=False)
    first.sum().backward()
    assert torch.equal(x.grad, x.exp())


def test_function_without_tensors() -> None:
    x = torch.tensor([-1.0, 0.0, 3.0, 6.0], requires_grad=True)
    with min_norm():
        y = checkpoint(lambda: checkpoint(lambda: tied(x), use_reentrant=False), use_reentrant=False)
    y.sum().backward()
    assert x.grad.tolist() == gradient(PROGRAMS["in a block"], lambda function, x: function(x))


class OfAnotherLibrary(torch.autograd.Function):
    """A reentrant checkpoint as other libraries have it."""

    @staticmethod
    def forward(ctx: Any, run_function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        ctx.run_function = run_function
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run_function(x)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[None, Tensor]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run_function(x)
        y.backward(cotangent)
        return None, x.grad


def test_checkpoint_of_another_library() -> None:
    program = PROGRAMS["around a block that began earlier"]
    plain = gradient(program, lambda function, x: function(x))
    assert gradient(program, OfAnotherLibrary.apply) == plain


MOVED = """
class Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):
        ctx.function = function
        with torch.no_grad():
            return function(x)
"""


def test_checkpoint_of_a_torch_that_is_not_known() -> None:
    """An error, in the place of torch's own gradients."""
    home: dict[str, Any] = {"torch": torch, "__name__": "torch.utils.checkpoint"}
    exec(MOVED, home)
    x = torch.zeros(2, requires_grad=True)
    with min_norm(), pytest.raises(RuntimeError, match="where interop does not find it"):
        home["Moved"].apply(tied, x)
    assert home["Moved"].apply(torch.sin, x).tolist() == [0, 0]


@pytest.mark.parametrize("reentrant", [False, True])
def test_refused_where_tangents_decide(reentrant: bool) -> None:
    """A reentrant checkpoint gave a gradient of 0, silently, where that of relu(y) - relu(-y) is 1."""
    weight, x = torch.zeros(1, requires_grad=True), torch.ones(1, requires_grad=True)
    with interop.along(weight):
        y = checkpoint(lambda x: torch.relu(weight * x) - torch.relu(-weight * x), x, use_reentrant=reentrant)
    with pytest.raises(RuntimeError, match="call the function without a checkpoint"):
        y.sum().backward()
    assert weight.grad is None


def test_other_hooks_where_tangents_decide() -> None:
    weight = torch.zeros(1, requires_grad=True)
    with interop.along(weight), save_on_cpu():
        (torch.relu(weight.exp() - 1) - torch.relu(1 - weight.exp())).sum().backward()
    assert weight.grad.tolist() == [1]


def test_checkpoint_around_a_gradient_along_a_direction() -> None:
    """It computes the tangents again, too."""

    def function(x: Tensor) -> Tensor:
        return interop.directional_derivative(lambda y: (y * torch.relu(y)).exp(), x, torch.ones(4))[0]

    x = torch.tensor([-1.0, 0.0, 3.0, 0.5], requires_grad=True)
    plain = torch.autograd.grad(function(x).sum(), x)[0]
    assert torch.equal(torch.autograd.grad(checkpoint(function, x, use_reentrant=False).sum(), x)[0], plain)


of_each_backend = pytest.mark.parametrize("backend", ["torch", "jax"])


def gradient_at(function: Callable[[Tensor], Tensor], at: list[float]) -> list[float]:
    x = torch.tensor(at, requires_grad=True)
    function(x).sum().backward()
    return x.grad.tolist()


def inclusive_inside(x: Tensor) -> Tensor:
    with min_norm(ties="inclusive"):
        inner = x.clamp(0.0, 6.0)
    return inner + 10 * x.clamp(0.0, 6.0)


@pytest.mark.parametrize("reentrant", [False, True])
@of_each_backend
def test_checkpoint_of_two_conventions(backend: Any, reentrant: bool) -> None:
    """The reentrant one recomputed all of it as inclusive."""

    def function(x: Tensor) -> Tensor:
        with min_norm(backend=backend):
            return checkpoint(inclusive_inside, x, use_reentrant=reentrant)

    assert gradient_at(function, [0.0, 3.0, 6.0]) == [1, 11, 1]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", ["torch", "jax", "nn"])
def test_checkpoint_sequential(inside: Any, reentrant: bool) -> None:
    """A KeyError 'ctx', where it was looked for in a frame that has none."""
    layers = torch.nn.Sequential(*[torch.nn.Hardtanh(0.0, 6.0), torch.nn.Hardtanh(-6.0, 3.0)] * 2)
    if inside == "nn":
        interop.nn.convert(layers)

    def function(x: Tensor) -> Tensor:
        with torch.no_grad() if inside == "nn" else min_norm(backend=inside), torch.enable_grad():
            return checkpoint_sequential(layers, 2, x, use_reentrant=reentrant)

    assert gradient_at(function, [0.0, 1.0, 3.0, 6.0]) == [0, 1, 0, 0]
