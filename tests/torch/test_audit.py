"""`interop.audit`: which lines get another gradient from one version of torch to another."""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint

import interop
from interop import as_of, audit, min_norm
from interop.__main__ import main

Tensor = torch.Tensor
X = np.float32([-1.0, 0.0, 3.0, 6.0, 7.0])
FORWARD = {"before": "torch 2.13", "after": "torch 2.15"}


class Activation(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.clip(x, 0.0, 6.0)


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.ReLU6(), Activation())

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.layers(x)).sum()


def line_of(function: Callable[..., Any], offset: int) -> str:
    return f"{Path(__file__).name}:{function.__code__.co_firstlineno + offset}"


def test_line_module_and_gradients() -> None:
    """At 0 and 6 the slope is 1 before and 0 after; x comes into it."""
    found = audit(Network(), X, **FORWARD)
    (change,) = found.changes
    assert change.line.place.endswith(line_of(Activation.forward, 1))
    assert (change.line.op, change.line.module) == ("clip", "layers.1")
    assert (change.line.tied, change.line.elements) == (4, 5)  # behind the ReLU6, 7 is 6, and -1 is 0
    # The incoming gradient is weighted by the loss, x: at -1, 0, 6 and 7 it is cut off.
    assert change.difference == pytest.approx(np.linalg.norm([-1.0, 0.0, 6.0, 7.0]))
    assert (change.before, change.after) == (pytest.approx(np.linalg.norm(X)), 3.0)
    assert change.largest == 7.0
    assert change.cure == 'interop.native.clip(..., ties="inclusive")'


def test_backwards_the_difference_is_the_same() -> None:
    there, back = audit(Network(), X, **FORWARD), audit(Network(), X, before="torch 2.15", after="torch 2.13")
    assert there.changes[0].largest == back.changes[0].largest
    assert back.changes[0].cure == "interop.native.clip(...)"


CODE: dict[str, tuple[Callable[[Tensor], Tensor], int, int]] = {
    # by name: the function, how many lines may depend on the version, at how many it does
    "in place": (lambda x: (1 * x).clamp_(0.0, 6.0).sum(), 1, 1),
    "away from ties": (lambda x: x.clamp(0.5, 6.5).sum(), 1, 0),
    "as arrays": (lambda x: x.clamp(torch.zeros(5), torch.full((5,), 6.0)).sum(), 1, 1),
    "bounds of NumPy": (lambda x: x.clamp(np.float32(0), np.float32(6)).sum(), 1, 1),
    "a loop": (lambda x: sum(x.clamp(min=bound).sum() for bound in (0.0, 3.0)), 1, 1),
    "inside a loss": (lambda x: functional.hinge_embedding_loss(x, -torch.ones(5), margin=3.0), 1, 1),
    "what is alike in both": (lambda x: functional.relu6(x).sum() + x.amax(), 0, 0),
    "not differentiated": (lambda x: x.sum() + x.detach().clamp(0.0, 6.0).sum(), 0, 0),
    "what does not reach the result": (lambda x: (x.clamp(0.0, 6.0), x.sum())[1], 0, 0),
    "with a convention": (lambda x: interop.native.clamp(x, 0.0, 6.0, ties="inclusive").sum(), 0, 0),
    "in a block": (min_norm(ties="inclusive")(lambda x: x.clamp(0.0, 6.0).sum()), 0, 0),
    "pinned": (as_of("torch 2.13")(lambda x: x.clamp(0.0, 6.0).sum()), 0, 0),
    "in a checkpoint": (lambda x: checkpoint(lambda x: x.clamp(0.0, 6.0).sum(), 1 * x, use_reentrant=False), 1, 1),
}


@pytest.mark.parametrize("name", CODE)
def test_code(name: str) -> None:
    function, lines, changes = CODE[name]
    found = audit(function, X, **FORWARD)
    assert (len(found.lines), len(found.changes)) == (lines, changes)
    text = str(found)
    assert max(map(len, text.splitlines())) <= 100
    assert ("clamp, no tie in this run" in text) == (name == "away from ties")
    same = audit(function, X, before="torch 2.13", after="torch 2.12")
    assert (same.lines, same.changes) == ((), ())


def test_the_gradient_of_a_part_that_is_overwritten() -> None:
    """It comes by the whole, whichever of the two is read."""

    def program(x: Tensor) -> Tensor:
        whole = 2.0 * x
        part = whole[1:]
        part.clamp_(0.0, 6.0)
        return whole.sum() + part.sum()

    found = audit(program, np.float32([0.0, 0.0, 3.0]), **FORWARD)
    assert found.changes[0].difference == pytest.approx(np.linalg.norm([2.0, 2.0]))
    assert found.effect is not None
    assert found.effect.difference == pytest.approx(np.linalg.norm([4.0, 4.0]))


def test_the_cures_keep_the_gradient() -> None:
    """What the report says to write has, under both versions, the gradient of the first."""

    def cured(x: Tensor) -> Tensor:
        return interop.native.clamp(x, 0.0, 6.0, ties="inclusive").sum()

    def gradient(function: Callable[[Tensor], Tensor]) -> list[float]:
        x = torch.tensor(X, requires_grad=True)
        return torch.autograd.grad(function(x), x)[0].tolist()

    with as_of("torch 2.13"):
        before = gradient(lambda x: x.clamp(0.0, 6.0).sum())
    with as_of("torch 2.15"):
        assert gradient(cured) == gradient(as_of("torch 2.13")(lambda x: x.clamp(0.0, 6.0).sum())) == before


def test_of_what_only_the_version_reproduces() -> None:
    """At x < low = high nothing has a gradient in 2.13: that is no convention."""
    bound = torch.full((5,), 10.0, requires_grad=True)
    (change,) = audit(lambda x: x.clamp(bound, bound).sum(), X, **FORWARD).changes
    assert (change.before, change.largest) == (0.0, 1.0)
    assert change.cure == 'a block `with interop.as_of("torch 2.13.0"):`'


def test_a_compiled_function_is_audited_as_it_was_written() -> None:
    """Here Dynamo would break its graph at the rounding, and resume behind it with another tensor."""

    def loss(x: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(x, None, None, training=True).round().clamp(-1, 1).sum()

    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    reports = [audit(f, x, **FORWARD) for f in (loss, torch.compile(loss, backend="eager"))]
    (written, compiled) = ([change[1:5] for change in report.changes] for report in reports)
    assert compiled == written != []


@pytest.mark.parametrize("name", ["clamp", "clamp.Tensor", "clamp_min", "fmax"])
def test_operators_are_seen_which_cannot_name_a_convention(name: str) -> None:
    """Programs of torch.export call them."""
    packet, _, overload = name.partition(".")
    bounds = (torch.zeros(5), torch.full((5,), 6.0)) if overload else (0.0, 6.0) if packet == "clamp" else (0.0,)
    bounds = (torch.zeros(5),) if packet == "fmax" else bounds
    operator = getattr(torch.ops.aten, packet)
    for called in (operator, getattr(operator, overload or "default")):
        (change,) = audit(lambda x, called=called: called(x, *bounds).sum(), X, **FORWARD).changes
        assert change.line.op == packet
        assert change.line.tied == (2 if packet == "clamp" else 1)
        assert change.cure == 'a block `with interop.as_of("torch 2.13.0"):`'


def test_an_exported_program() -> None:
    program = torch.export.export(Network(), (torch.tensor(X),)).module()
    assert [change.line.tied for change in audit(program, X, **FORWARD).changes] == [4]


def test_overwriting_an_operand_without_a_gradient_makes_no_tie() -> None:
    """Each derivative is taken at the numbers before: behind the first, -1 would be on the bound."""
    bound = torch.zeros(2, requires_grad=True)
    found = audit(lambda: torch.tensor([-1.0, 3.0]).clamp_min_(bound).sum(), **FORWARD)
    assert (len(found.lines), found.changes) == (1, ())


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_step_with_a_checkpoint(reentrant: bool) -> None:
    """A reentrant one records the call where it computes again, the other one where it computes first."""

    def step() -> None:
        x = torch.tensor(X, requires_grad=True)
        checkpoint(lambda x: x.clamp(0.0, 6.0), x, use_reentrant=reentrant).sum().backward()

    (change,) = audit(step, **FORWARD).changes
    assert (change.line.tied, change.line.elements) == (2, 5)
    assert not torch.nn.modules.module._global_forward_pre_hooks  # none that the audit has put there is left


@pytest.mark.parametrize("state", [torch.no_grad(), torch.inference_mode()])
def test_whatever_the_state_outside(state: contextlib.AbstractContextManager[None]) -> None:
    with state:
        found = audit(Network(), X, **FORWARD)
    assert found == audit(Network(), X, **FORWARD)


def test_a_step_of_training() -> None:
    """It differentiates by itself, and overwrites the weights; gradients of parameters are left as they were."""
    weight = torch.nn.Parameter(torch.tensor(X))
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def step() -> float:
        optimizer.zero_grad()
        loss = weight.clamp(0.0, 6.0).sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    found = audit(step, **FORWARD)
    assert (found.changes[0].line.tied, found.changes[0].largest) == (2, 1.0)
    assert found.effect is None
    assert "audit one that returns the loss" in found.no_effect
    parameter = torch.nn.Parameter(torch.tensor(X))
    audit(lambda: parameter.clamp(0.0, 6.0).sum(), **FORWARD)
    assert parameter.grad is None


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("returned", ["the loss", "a number", "nothing"])
@pytest.mark.parametrize("backward", [torch.Tensor.backward, torch.autograd.backward])
def test_a_step_may_return_its_loss_and_be_pinned(
    pinned: bool, returned: str, backward: Callable[[Tensor], None]
) -> None:
    """The graph of the loss is gone by then. Where the step is pinned as a whole, no line is left that may change."""
    weight = torch.nn.Parameter(torch.tensor(X))

    def step() -> Any:
        loss = weight.clamp(0.0, 6.0).sum()
        backward(loss)
        return {"the loss": loss, "a number": loss.item(), "nothing": None}[returned]

    found = audit(as_of("torch 2.13")(step) if pinned else step, **FORWARD)
    assert len(found.changes) == len(found.lines) == (not pinned)
    assert ("no gradient changes" in str(found)) == pinned


def test_the_model_is_left_as_it_was() -> None:
    """Whether it is trained already or not, by a step or by a loss alone; what the step itself sees are the changes."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), Activation())
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    within = []

    def loss() -> Tensor:
        return model(x).sum()

    def step() -> None:
        for _ in range(2):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            within.append(flat(model.state_dict()))

    def flat(state: Any) -> list[Any]:
        leaves = jax.tree.leaves(state)
        return [leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    for _ in range(2):
        before = flat(model.state_dict()), flat(optimizer.state_dict())
        for function in (loss, step):
            audit(function, **FORWARD)
            assert (flat(model.state_dict()), flat(optimizer.state_dict())) == before
        assert within[-2] != within[-1] != before[0]
        step()
        assert flat(optimizer.state_dict()) != before[1]


def test_lazy_modules() -> None:
    model = torch.nn.Sequential(torch.nn.LazyBatchNorm1d(), Activation())
    assert len(audit(lambda: model(torch.tensor(X)[:, None] * torch.ones(2)).sum(), **FORWARD).lines) == 1


def test_the_model_is_left_as_it_was_where_the_step_fails() -> None:
    weight = torch.nn.Parameter(torch.tensor(X))
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def step() -> None:
        weight.clamp(0.0, 6.0).sum().backward()
        optimizer.step()
        raise RuntimeError("of the step")

    with pytest.raises(RuntimeError, match="of the step"):
        audit(step, **FORWARD)
    assert weight.tolist() == X.tolist()
    assert not _global_optimizer_pre_hooks


def test_a_penalty_on_a_gradient_is_differentiated() -> None:
    """What asks for a gradient by `torch.autograd.grad` may return a loss that is still to be differentiated."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad((x**2).sum(), x, create_graph=True)
        return (slope * y.clamp(0.0, 6.0)).sum()

    found = audit(loss, X, X, **FORWARD)
    assert [change.line.tied for change in found.changes] == [2]
    assert found.effect is not None


def test_effect_on_the_parameters() -> None:
    """By hand: x w is on the upper bound where w is 2, so that its gradient, x times the slope, is 3, and then 0."""
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    found = audit(lambda x: (x * weight).clamp(0.0, 6.0).sum(), np.float32([3.0, 3.0]), **FORWARD)
    assert found.effect == ("1 parameter", pytest.approx(18**0.5), 3.0, 3.0)
    assert "gradient of the result by 1 parameter: norm 4.243 -> 3, difference 3 (70.7% of it)" in str(found)
    assert json.loads(found.to_json())["effect"]["difference"] == 3.0
    of_inputs = audit(lambda x: x.clamp(0.0, 6.0).sum(), X, **FORWARD)
    assert of_inputs.effect == ("the inputs", pytest.approx(3**0.5), 1.0, pytest.approx(2**0.5))
    assert audit(lambda x: x.clamp(0.5, 6.5).sum(), X, **FORWARD).effect is None


def test_the_second_call_draws_the_same_numbers() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)  # both that are on a bound are kept
        found = audit(lambda x: functional.dropout(x.clamp(0.0, 6.0) + 1.0).sum(), X, **FORWARD)
    assert found.effect is not None
    calls = iter(range(2))
    uneven = audit(lambda x: (x.clamp(0.0, 6.0) * next(calls)).sum() + x.clamp(0.0, 6.0).sum(), X, **FORWARD)
    assert "called again, the function returned something else" in uneven.no_effect
    # A tensor that is made anew in each call is another one in the second: its gradient there would be 0.
    own = audit(lambda: torch.tensor(X, requires_grad=True).clamp(0.0, 6.0).sum(), **FORWARD)
    assert own.effect is None
    assert "the function makes tensors that require grad; pass them as inputs" in own.no_effect


def test_lines_are_counted_once_for_all_modules() -> None:
    twice = torch.nn.Sequential(Activation(), Activation())
    found = audit(twice, X, **FORWARD)
    assert len(found.changes) == 2
    assert "changes at 1 of 1 line " in str(found)


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_report_keeps_to_a_width(width: int) -> None:
    lines = audit(Network(), X, **FORWARD).text(width).splitlines()
    assert max(map(len, lines)) <= width
    assert "the gradient changes at 1" in lines[0]
    assert "to keep all gradients" in " ".join(lines[-2:])


def test_probe() -> None:
    def away(x: Tensor) -> Tensor:
        return x.clamp(0.5, 6.5).sum() + torch.fmax(x, torch.full((5,), 100.0)).sum()

    found = audit(away, X, **FORWARD, probe=True)
    assert found.changes == ()
    clamped, larger = sorted(found.probed, key=lambda change: change.line.op)
    assert (clamped.line.tied, clamped.largest, clamped.after) == (5, 1.0, 0.0)
    assert (larger.line.op, larger.largest) == ("fmax", 0.5)
    assert (clamped.slopes, larger.slopes) == (((1.0, 0.0),), ((1.0, 0.5),))
    assert "where there was no tie, if each element were on the nearest bound that was seen:" in str(found)
    assert audit(Network(), X, **FORWARD, probe=True).probed == ()  # it has ties of its own


def beside_a_tie(x: Tensor) -> Tensor:
    tied = x.clamp(0.0, 6.0)
    untied = (x + 0.5).clamp(0.0, 6.0)
    without_effect = 0 * x.clamp(0.0, 6.0)
    return (tied + untied + without_effect).sum()


def test_lines_without_a_tie_are_named_and_probed_beside_tied_ones() -> None:
    asked, probed = (audit(beside_a_tie, X, **FORWARD, probe=probe) for probe in (False, True))
    for found in (asked, probed):
        assert [change.line.place for change in found.changes] == [found.lines[0].place]
        assert f"{line_of(beside_a_tie, 2)}: clamp, no tie in this run" in str(found)
        assert f"{line_of(beside_a_tie, 3)}: clamp, 2 of 5 on a tie, no change there" in str(found)
    assert [change.line.place for change in probed.probed] == [probed.lines[1].place]
    assert ("probe=True" in str(asked), "probe=True" in str(probed)) == (True, False)
    nothing = audit(lambda x: 0 * x.clamp(0.5, 6.5), X, **FORWARD, probe=True)
    assert "where there was no tie, one would change nothing" in str(nothing)


def test_slopes_at_the_ties() -> None:
    """By hand: between arrays the halves go to x and to the bound; a sum of bounds that broadcast is no slope."""
    bound = torch.full((5,), 3.0, requires_grad=True)
    (both,) = audit(lambda x: 5 * x.clamp(min=bound), X, **FORWARD).changes
    assert both.slopes == ((1.0, 0.5), (0.0, 0.5))
    (alone,) = audit(lambda x: x.clamp(min=bound[:1]), X, **FORWARD).changes
    assert alone.slopes == ((1.0, 0.5),)


def test_names_quantiles() -> None:
    """Of (1, 1, 2) the median has the gradient of another 1 in torch 2.15 than in 2.13, and nobody asks for both."""

    def loss(x: Tensor) -> Tensor:
        return x.quantile(0.5) + torch.nanquantile(x, 0.5)

    found = audit(loss, np.float32([1.0, 1.0, 2.0]), **FORWARD)
    assert found.unwatched == ("nanquantile", "quantile")
    assert "not looked at: nanquantile, quantile" in str(found)
    assert "no gradient changes" not in str(found)
    exported = audit(lambda x: torch.ops.aten.quantile.scalar(x, 0.5), X, **FORWARD)
    assert exported.unwatched == ("quantile",)
    assert not audit(loss, X, before="torch 2.11", after="torch 2.13").unwatched
    assert not audit(lambda x: x.sum() + x.detach().quantile(0.5), X, **FORWARD).unwatched


@pytest.mark.parametrize(
    ("installed", "before", "after", "note"),
    [
        ("2.14.0+cpu", "2.13", "2.14.0", ""),
        ("2.14.1", "2.13", "2.14.1", ""),
        ("2.13.0", "2.13", "2.15.0", ""),  # the upgrade is to come
        ("2.12.0", "2.13", "2.15.0", ""),
        ("2.13.7", "2.12", "2.13.0", "torch 2.13.7 is installed, of which there is no record: torch 2.13.0 stands"),
        ("2.99.0a0+git", "2.13", "2.15.0", "torch 2.99.0a0 is installed, of which there is no record: torch 2.15.0"),
    ],
)
def test_the_later_version_is_the_installed_one(
    installed: str, before: str, after: str, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion(installed))
    found = audit(torch.nn.Sequential(Activation()), X, before=f"torch {before}")
    assert found.after == f"torch {after}"
    assert found.note.startswith(note)
    assert bool(found.note) == bool(note)
    assert found.note in str(found).replace("\n    ", " ")


def test_a_probe_of_a_call_by_keywords() -> None:
    found = audit(lambda x: torch.clamp(input=x, min=0.5, max=6.5), X, **FORWARD, probe=True)
    assert (found.changes, found.probed[0].line.tied) == ((), 5)


@dataclasses.dataclass
class Output:
    loss: Tensor


def test_a_change_at_nan_is_told_once() -> None:
    nan = torch.tensor([float("nan"), 1.0], requires_grad=True)
    report = str(audit(lambda x: torch.fmax(x, x.new_zeros(2)).sum(), nan, before="2.13", after="2.14"))
    assert "fmax, 0 of 2 elements on a tie, slope there 0 -> 1" in report
    assert "no tie in this run" not in report


def test_what_is_nan_on_both_sides_does_not_change() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (x.clamp(0, 6) * torch.tensor([1.0, 1.0, float("nan")])).sum()

    assert audit(loss, np.float32([1, 2, 3]), before="torch 2.13", after="torch 2.15").changes == ()
    report = audit(loss, np.array([0, 2, 3], ">f4"), before="torch 2.13", after="torch 2.15")
    ((change,), effect) = report.changes, report.effect
    assert (change.difference, change.largest, change.slopes) == (1, 1, ((1, 0),))
    assert change.cure == 'interop.native.clamp(..., ties="inclusive")'
    assert effect is not None
    assert effect.difference == 1


def test_an_array_of_bfloat16() -> None:
    x = np.array([0, 2, 6], jnp.bfloat16)
    report = audit(lambda x: x.clamp(0, 6).sum(), x, before="torch 2.13", after="torch 2.15")
    assert [change.line.tied for change in report.changes] == [2]


def test_results_in_a_dataclass() -> None:
    (change,) = audit(lambda x: Output(x.clamp(0.0, 6.0).sum()), X, **FORWARD).changes
    assert change.line.tied == 2


def test_a_probe_of_bounds_that_broadcast() -> None:
    found = audit(
        lambda x: torch.clamp(x[:, None], torch.zeros(2), torch.full((2,), 9.0)), X[2:4], **FORWARD, probe=True
    )
    assert found.changes == ()
    assert found.probed[0].line.tied == 4


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a class": (lambda: audit(Network, X, **FORWARD), TypeError, r"audit: fun is <class .*Network'>; pass a function"),
    "no function": (lambda: audit(3.0, **FORWARD), TypeError, r"audit: fun is 3\.0; pass a function of torch"),
    "texts": (
        lambda: audit(len, {"texts": np.array(["a", "b"])}, **FORWARD),
        TypeError,
        r"audit: argument \[0\]\['texts'\] is an array of dtype <U1, .* pass numbers, and texts as a list",
    ),
    "no record": (lambda: audit(abs, X, before="torch 1", after="torch 2.15"), ValueError, "no record of 'torch 1'"),
    "no gradient": (
        lambda: audit(torch.abs, torch.ones(2), **FORWARD),
        ValueError,
        "nothing that was returned depends",
    ),
    "a loss in parts": (
        lambda: audit(functional.cosine_embedding_loss, *np.float32([[[1, 0]], [[0, 1]]]), -torch.ones(1), **FORWARD),
        NotImplementedError,
        "the versions differentiate torch.nn.functional.cosine_embedding_loss otherwise",
    ),
    "a script": (
        lambda: audit(torch.jit.trace(Activation(), torch.ones(2)), X, **FORWARD),
        NotImplementedError,
        "audit: TorchScript shows its calls to no mode",
    ),
    "a module that is a script": (
        lambda: audit(torch.nn.Sequential(torch.jit.trace(Activation(), torch.ones(2))), X, **FORWARD),
        NotImplementedError,
        "audit: TorchScript shows its calls to no mode",
    ),
    "a function that is a script": (
        lambda: audit(torch.jit.trace(lambda x: x.clamp(0, 6), torch.ones(2)), X, **FORWARD),
        NotImplementedError,
        "audit: TorchScript shows its calls to no mode",
    ),
    "in a compiled function": (
        lambda: torch.compile(lambda x: audit(torch.abs, x, **FORWARD), backend="eager")(torch.ones(2)),
        RuntimeError,
        r"audit cannot run in a compiled function; call it outside of torch\.compile",
    ),
    "a nested tensor": (
        lambda: audit(
            lambda x: torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 3])).clamp(0, 6), X, **FORWARD
        ),
        TypeError,
        "ties of a nested tensor are not counted; call the function with each part of unbind",
    ),
    "within torch.func": (
        lambda: audit(torch.func.vmap(lambda x: x.clamp(0, 6)), X, **FORWARD),
        NotImplementedError,
        "clamp is called within torch.func",
    ),
}


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails where something changes, so that CI can hold it."""
    (tmp_path / "trained.py").write_text(
        "import argparse\nargparse.ArgumentParser().parse_args()\n"
        "def clamped(x):\n    print('a step'); return x.clamp(0.0, 6.0).sum()\n\n\n"
        "def away(x):\n    return x.clamp(0.5, 6.5).sum()\n\n\n"
        "def wrong(x):\n    raise RuntimeError('of the function')\n\n\n"
        "import jax.numpy as jnp\ndef in_jax(x):\n    return jnp.clip(x, 0.0, 6.0).sum()\n\n\n"
        "def refuses(x):\n    raise ValueError('of the function')\n\n\n"
        "def scaled(x, factor):\n    return factor * x.clamp(0.0, 6.0).sum()\n\n\n"
        "def held():\n    import torch\n    return torch.zeros(2, requires_grad=True).clamp(0.0, 6.0).sum()\n\n\n"
        "def flat(x):\n    return x.detach()\n\n\n"
        "def of_dict(named):\n    return named['x'].clamp(0.0, 6.0).sum()\n"
    )
    np.savez(tmp_path / "x.npz", x=X)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trained", raising=False)
    options = ["--inputs", str(tmp_path / "x.npz"), "--before", "torch 2.13", "--after", "torch 2.15"]

    monkeypatch.setattr(sys, "argv", ["jaxclamp", "audit", "--before"])  # which the file above does not parse

    def run(*arguments: str) -> Any:
        # A line that names a file is not wrapped, however long the name of the folder is.
        return CliRunner().invoke(main, ["audit", *arguments, *options], env={"COLUMNS": "200"})

    found = run("trained:clamped")
    assert found.exit_code == 1
    assert (
        "trained.py:4: clamp, 2 of 5 elements on a tie, slope there 1 -> 0\n    gradient passed on: norm 1.7"
        in found.stdout
    )
    written = json.loads(run("trained:clamped", "--json").stdout)
    assert written["changes"][0]["line"]["number"] == 4
    assert written["changes"][0]["largest"] > 0.5
    assert run("trained:away").exit_code == 0
    probed = run("trained:away", "--probe")
    assert probed.exit_code == 0
    assert "5 of 5 elements on a tie" in probed.stdout
    for function in ("wrong", "refuses"):  # which tell nothing of gradients
        wrong = run(f"trained:{function}")
        assert wrong.exit_code == 2
        assert f"in {function}" in wrong.stderr  # the traceback
        assert "Error: of the function" in wrong.stderr
        assert "Usage" not in wrong.stderr
    in_jax = run("trained:in_jax")
    assert in_jax.exit_code == 2
    assert "JAX was called with a tensor" in in_jax.stderr
    flat = run("trained:flat")
    assert flat.exit_code == 2
    assert "Usage" in flat.stderr
    assert "Error: audit: nothing that was returned depends" in flat.stderr
    assert "Traceback" not in flat.stderr
    np.savez(tmp_path / "texts.npz", x=np.array(["a"]))
    options = ["--before", "2.13", "--inputs", str(tmp_path / "texts.npz")]
    texts = run("trained:flat")
    assert "Error: audit: argument [0] is an array of dtype <U1" in texts.stderr
    assert "Traceback" not in texts.stderr
    options = ["--before", "2.13"]  # the newest version, and no arguments
    for place in ("trained", str(tmp_path / "trained.py")):
        held = run(f"{place}:held")
        assert held.exit_code == 1, held.output
        assert "2 of 2 elements on a tie" in held.stdout
    assert "clamped(x), which does not take the arguments: missing" in run("trained:clamped").stderr
    torch.save([torch.tensor(X)], tmp_path / "x.pt")
    torch.save({"x": torch.nn.Parameter(torch.tensor(X))}, tmp_path / "named.pt")
    torch.save([torch.tensor(X), 2.0], tmp_path / "mixed.pt")
    for function, file in (("clamped", "x.pt"), ("of_dict", "named.pt"), ("scaled", "mixed.pt")):
        options = ["--before", "2.13", "--inputs", str(tmp_path / file)]
        assert "2 of 5 elements on a tie" in run(f"trained:{function}").stdout
    options = ["--before", "2.13", "--after", "torch 2.99"]
    refused = run("trained:held")
    assert refused.exit_code == 2
    assert "there is no record of 'torch 2.99'" in refused.stderr
