"""`interop.as_of`: the gradients of each recorded version of torch, on the installed one, by the records."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import interop
from interop import as_of, min_norm
from interop._transforms.as_of import AS_OF
from interop.native import NATIVE
from interop.survey.records import record_of
from interop.survey.show.render import as_in_a_call
from jaxclamp import OPS
from jaxclamp._shared.tie_cases import cases, is_differentiable
from jaxclamp._shared.version_derivatives import VERSIONS, _release

Tensor = torch.Tensor
TEXTS = list(dict.fromkeys(map(str, VERSIONS["torch"].values())))
INSTALLED = f"torch {torch.__version__.partition('+')[0]}"
"""Of torch."""
OTHER = "torch 2.15" if AS_OF["torch 2.13"].covered == {} else "torch 2.13"
"""A version that has other gradients."""
TIED = torch.tensor([-1.0, 0.0, 3.0, 6.0, 7.0])
OF = {"torch 2.13": [0, 1, 1, 1, 0], "torch 2.15": [0, 0, 1, 0, 0]}
"""The gradient of clamp(x, 0, 6) there."""


def clamped(x: Tensor) -> Tensor:
    return x.clamp(0.0, 6.0)


def gradient(function: Callable[[Tensor], Tensor], x: Tensor = TIED) -> list[float]:
    x = x.detach().clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0].tolist()


def answers(text: str) -> dict[str, list[float]]:
    """What torch's counterparts answer in every cell, in a block of that version."""
    found = {}
    for op in OPS.values():
        (native,) = op.counterparts_in("torch")
        for arguments, active, inactive in cases(op):
            given, tensors = dict(arguments), []
            for name, value in arguments.items():
                is_number = inactive == "numbers" and name not in active
                if is_differentiable(value) and not is_number:
                    given[name] = torch.tensor(value, dtype=torch.float32, requires_grad=name in active)
                    tensors += [given[name]] if name in active else []
            try:
                with as_of(text):
                    result = native(given)
            except (TypeError, RuntimeError):
                continue  # torch does not take the arguments in this form
            total = sum(
                part.sum()
                for part in (result if isinstance(result, tuple) else [result])
                if part.dtype.is_floating_point
            )
            gradients = torch.autograd.grad(total, tensors, allow_unused=True, materialize_grads=True)
            cell = f"{op.name}({as_in_a_call(arguments)}), {' '.join(active)}, {inactive}: {native.name}"
            found[cell] = np.concatenate([g.numpy().ravel() for g in gradients]).tolist()
    return found


def recorded(text: str) -> dict[str, list[float]]:
    """The answers in reverse mode, by the cell."""
    cells = record_of(*text.split(" ")).answers
    return {str(cell): list(modes["reverse"]) for cell, modes in cells.items()}


@pytest.mark.parametrize("text", TEXTS)
def test_every_recorded_cell(text: str) -> None:
    record = recorded(text)
    found = answers(text)
    assert len(record.keys() & found.keys()) > 200
    wrong = {
        cell: (found[cell], record[cell])
        for cell in record.keys() & found.keys()
        if not np.allclose(found[cell], record[cell], rtol=1e-6, equal_nan=True)
    }
    assert wrong == {}


def test_all_recorded_cells_are_asked() -> None:
    assert recorded("torch 2.13.0").keys() <= answers("torch 2.13").keys()


@pytest.mark.skipif(INSTALLED not in AS_OF, reason=f"no record of {INSTALLED}")
def test_the_installed_version_is_itself() -> None:
    """Torch's own functions are called, each with its own backward pass."""
    assert AS_OF[INSTALLED].covered == {}
    with as_of(INSTALLED) as block:
        y = clamped(TIED.clone().requires_grad_())
    assert type(y.grad_fn).__name__ == type(clamped(TIED.clone().requires_grad_()).grad_fn).__name__
    assert block.not_reproduced == ()
    assert AS_OF[OTHER].covered  # the check can fail


# The detour, taken for the installed version too, beside torch's own backward pass: bit for bit.

SPECIAL = (-math.inf, -1.0, -0.0, 0.0, 0.1, 2.0, math.inf, math.nan)
OF_TWO = ("clamp_min", "clamp_max", "maximum", "minimum", "fmax", "fmin")


def bits(tensor: Tensor) -> list[int]:
    """As integers, but for NaN, of which there are many."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.nan_to_num(nan=12345.0, posinf=math.inf, neginf=-math.inf).contiguous().view(whole).flatten().tolist()


@pytest.mark.skipif(INSTALLED not in AS_OF, reason=f"no record of {INSTALLED}")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_weights_are_those_of_torch(dtype: torch.dtype) -> None:
    """At ties, NaN and infinities, with NaN and infinities coming in, broadcast, with bounds of both kinds."""
    version = VERSIONS["torch"][INSTALLED]
    axis = torch.tensor(SPECIAL, dtype=dtype)
    grid = torch.meshgrid(axis, axis, axis, indexing="ij")  # torch 2.13 does not broadcast in its backward pass
    calls = [("clamp", grid), *((name, (axis[:, None], axis)) for name in OF_TWO)]
    calls += [("clamp", (axis, a, b)) for a in SPECIAL[:2] + SPECIAL[4:] for b in SPECIAL]
    calls += [(name, (axis, bound)) for name in ("clamp_min", "clamp_max") for bound in SPECIAL]
    calls += [("clamp", (axis, None, 2.0)), ("clamp", (axis, 0.1, None)), ("clamp", (axis[:, None], None, axis))]
    for name, arguments in calls:
        leaves = [a.clone().requires_grad_() if isinstance(a, Tensor) else a for a in arguments]
        active = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        theirs = getattr(torch, name)(*leaves)
        ours = NATIVE[name](*leaves, ties=version)
        assert bits(ours) == bits(theirs), name
        assert "Selected" in type(ours.grad_fn).__name__
        for cotangent in (1.0, math.inf, math.nan):
            vector = torch.full_like(theirs, cotangent)
            expected = torch.autograd.grad(theirs, active, vector, retain_graph=True)
            found = torch.autograd.grad(ours, active, vector, retain_graph=True)
            assert [bits(g) for g in found] == [bits(g) for g in expected], (name, arguments, cotangent)


def neighbours(bound: float, dtype: torch.dtype) -> list[float]:
    at = torch.tensor(bound, dtype=dtype)
    return [at.item(), *(torch.nextafter(at, torch.tensor(end, dtype=dtype)).item() for end in (-math.inf, math.inf))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("text", TEXTS)
def test_clamps_with_numbers_by_their_formula(text: str, dtype: torch.dtype) -> None:
    """At the bounds and at the numbers beside them."""
    bounds = (0.0, -0.0, 0.1, 6.0, -2.5, 1e-38, 3e38, math.inf, -math.inf)
    at = torch.tensor([n for bound in bounds for n in neighbours(bound, dtype)] + [math.nan], dtype=dtype)
    calls = [("clamp", (low, high)) for low in bounds for high in bounds]
    calls += [(name, (bound,)) for name in ("clamp_min", "clamp_max") for bound in bounds]
    is_closed = text < "torch 2.14"
    for name, given in calls:
        x = at.clone().requires_grad_()
        y = NATIVE[name](x, *given, ties=VERSIONS["torch"][text])
        assert bits(y.detach()) == bits(getattr(torch, name)(at, *given)), (name, given)
        low, high = (torch.tensor(b, dtype=dtype) for b in {1: (*given, *given), 2: given}[len(given)])
        above, below = (at >= low, at <= high) if is_closed else (at > low, at < high)
        inside = {"clamp": above & below, "clamp_min": above, "clamp_max": below}[name]
        (found,) = torch.autograd.grad(y, x, torch.full_like(y, 2.0), create_graph=True)
        assert found.tolist() == (2.0 * inside).tolist(), (name, given)


def test_a_bound_that_the_dtype_does_not_hold() -> None:
    with pytest.raises(RuntimeError, match="without overflow"):
        NATIVE["clamp"](TIED.clone().requires_grad_(), 0.0, 1e300, ties=VERSIONS["torch"][OTHER])


def test_wrong_weights_are_noticed() -> None:
    """That of the other version is not torch's own gradient."""
    x = TIED.clone().requires_grad_()
    (other,) = torch.autograd.grad(NATIVE["clamp"](x, 0.0, 6.0, ties=VERSIONS["torch"][OTHER]).sum(), x)
    assert other.tolist() == OF[OTHER] != gradient(clamped)


# As `interop.min_norm` is.


def test_each_version_as_a_block_and_decorator() -> None:
    for text, expected in OF.items():
        decorated = as_of(text)(clamped)
        assert decorated.__name__ == "clamped"
        assert gradient(decorated) == expected
        with as_of(text):
            assert gradient(clamped) == expected
            assert gradient(lambda x: (1 * x).clamp_(0.0, 6.0)) == expected
            assert gradient(lambda x: torch.clip(x, max=6.0, min=0.0)) == expected
    assert gradient(clamped) == OF["torch 2.13" if OTHER == "torch 2.15" else "torch 2.15"]


def test_nesting() -> None:
    """The innermost block decides, about functions that its version leaves as they are too."""
    for text, expected in OF.items():
        with min_norm(), as_of(text):
            assert gradient(clamped) == expected
            assert gradient(lambda x: functional.leaky_relu(x, 2.0)) == [2, 2, 1, 1, 1]
        for other in OF:
            with as_of(other), as_of(text):
                assert gradient(clamped) == expected
        with as_of(text), min_norm(ties="inclusive"):
            assert gradient(clamped) == [0, 1, 1, 1, 0]


def test_modules_of_interop_follow_the_block() -> None:
    module = interop.nn.LeakyReLU(2.0)
    with as_of(OTHER):
        assert gradient(module) == [2, 2, 1, 1, 1]
    assert gradient(module) == [2, 1, 1, 1, 1]


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "normalize": lambda x: functional.normalize(x, dim=0, eps=TIED.norm().item()),
    "margin_ranking_loss": lambda x: functional.margin_ranking_loss(x, torch.zeros(5), torch.ones(5)),
    "hinge_embedding_loss": lambda x: functional.hinge_embedding_loss(x, torch.full((5,), -1.0), margin=3.0),
    "triplet_margin_loss": lambda x: functional.triplet_margin_loss(
        x[:, None], TIED[:, None] + 1, TIED[:, None] - 2, eps=0.0
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_what_clamps_on_the_way(name: str) -> None:
    """At the bound all of the gradient is let through up to 2.13, and nothing from 2.14 on."""
    found = {}
    for text in OF:
        with as_of(text):
            found[text] = gradient(LOSSES[name])
    installed = "torch 2.13" if OTHER == "torch 2.15" else "torch 2.15"
    assert found[installed] == gradient(LOSSES[name])
    assert found[OTHER] != found[installed]
    with as_of(OTHER):  # to the last bit where nothing ties
        beside = gradient(lambda x: LOSSES[name](1.7 * x + 0.3).sin())
    assert beside == gradient(lambda x: LOSSES[name](1.7 * x + 0.3).sin())


def test_what_cannot_be_reproduced() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    with as_of(OTHER) as block:
        assert "torch.nn.functional.cosine_embedding_loss" in block.not_reproduced
        with pytest.raises(NotImplementedError, match=r"gives torch.nn.functional.cosine_embedding_loss another grad"):
            functional.cosine_embedding_loss(x, x, torch.ones(2))
        functional.cosine_embedding_loss(x.detach(), x.detach(), torch.ones(2))


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_by_a_checkpoint(reentrant: bool) -> None:
    x = TIED.clone().requires_grad_()
    with as_of(OTHER):
        y = checkpoint(lambda x: x * clamped(x), x, use_reentrant=reentrant)
    y.sum().backward()
    assert x.grad.tolist() == [
        a * b + c for a, b, c in zip(TIED.tolist(), OF[OTHER], clamped(TIED).tolist(), strict=True)
    ]


def test_derivatives_of_other_kinds() -> None:
    """Forward mode has the weights of reverse mode; the second derivative is 0."""
    low, high = torch.zeros(5), torch.full((5,), 6.0)
    for text, expected in OF.items():
        with as_of(text):
            assert torch.func.vmap(torch.func.grad(clamped))(TIED).tolist() == expected
            assert torch.func.jvp(clamped, (TIED,), (torch.ones(5),))[1].tolist() == expected
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(TIED, torch.ones(5))
                pushed = forward_ad.unpack_dual(torch.clamp(dual, low, high)).tangent
            pulled = gradient(lambda x: torch.clamp(x, low, high))
            if text == OTHER:
                assert pushed.tolist() == pulled
            x = TIED.clone().requires_grad_()
            (first,) = torch.autograd.grad((clamped(x) ** 2).sum(), x, create_graph=True)
            assert torch.autograd.grad(first.sum(), x)[0].tolist() == [2.0 * weight for weight in expected]


def test_what_is_not_reproduced_raises_in_a_compiled_function() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(x: Tensor) -> Tensor:
        with as_of(OTHER):
            return torch.nn.functional.cosine_embedding_loss(x, torch.tensor([[0.0, 1.0]]), -torch.ones(1))

    with pytest.raises(Exception, match="cosine_embedding_loss another gradient"):  # of torch, or ours within it
        loss(torch.tensor([[1.0, 0.0]], requires_grad=True))


def test_an_installed_version_may_be_a_build() -> None:
    for version in ("torch 2.13.0+cpu", "2.13.0+cpu", "2.13"):
        assert as_of(version).version == as_of("torch 2.13").version


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled() -> None:
    """Around the compiled function, and in it."""

    @torch.compile(backend="aot_eager", fullgraph=True)
    def inside(x: Tensor) -> Tensor:
        with as_of("torch 2.13"):
            y = x.clamp(0.0, 6.0)
        with as_of("torch 2.15"):
            return y + 10 * x.clamp(torch.zeros(5), torch.full((5,), 6.0)) + 100 * torch.fmax(x, torch.zeros(5))

    assert gradient(inside) == [0, 1 + 5 + 50, 111, 1 + 5 + 100, 100]
    modules = torch.nn.Sequential(torch.nn.ReLU6(), torch.nn.LeakyReLU(2.0))
    interop.nn.convert(modules, ties=OTHER)
    assert gradient(torch.compile(modules, backend="aot_eager", fullgraph=True)) == gradient(modules) == [0, 0, 1, 0, 0]
    around = torch.compile(lambda x: clamped(x), backend="aot_eager", fullgraph=True)
    for text, expected in OF.items():
        with as_of(text):
            assert gradient(around) == expected


def test_made_where_other_modes_are_on() -> None:
    """What the installed version answers is asked once, outside of them."""
    from interop._transforms.as_of import _tables

    with torch.no_grad(), torch.device("meta"), min_norm():
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as thread:
            again = thread.submit(_tables).result()
    assert {text: set(table.covered) for text, table in again.items()} == {
        text: set(table.covered) for text, table in AS_OF.items()
    }


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "no record": (
        "torch 2.10",
        ValueError,
        "as_of: there is no record of 'torch 2.10'; choose one of 'torch 2.11.0', ",
    ),
    "another framework": ("jax 0.10.2", ValueError, "no record of 'jax 0.10.2'"),
    "a number": (2.13, TypeError, "as_of: version is 2.13; name a framework and its version, one of 'torch 2.11.0'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    version, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        as_of(version)


def test_versions_are_ordered_as_numbers() -> None:
    old, new = (VERSIONS["torch"][text].weights("clamp", True) for text in ("torch 2.14", "torch 2.15"))
    assert old is new
    assert _release("2.9.1") < _release("2.11") < _release("2.11.0")


# For good.


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.ReLU6(), torch.nn.LeakyReLU(2.0))
        self.loss = torch.nn.HingeEmbeddingLoss(margin=3.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.loss(self.layers(x).clamp(max=7.0), torch.full((5,), -1.0))


def test_converted() -> None:
    model = Network()
    found = {}
    for text in OF:
        conversion = interop.nn.convert(model, ties=text)
        found[text] = gradient(lambda x: 5 * model(x))
        with min_norm(ties="inclusive" if text == "torch 2.15" else "exclusive"):  # the modules do not ask the block
            inside = gradient(lambda x: 5 * model(x))
        assert inside[:4] == found[text][:4]
        assert conversion.replaced.keys() == {"layers.0", "layers.1", "loss"}
        assert f"ties='{text}'" in repr(model)
        expected = {"": f'Network calls clamp; run the model under interop.as_of("{text}.0")'} if text == OTHER else {}
        assert conversion.left == expected
        conversion.undo()
    assert found == {"torch 2.13": [0, 0, -1, 0, 0], "torch 2.15": [0, 0, 0, 0, 0]}
    interop.nn.convert(model, ties=OTHER)
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert gradient(lambda x, copied=copied: 5 * copied(x)) == found[OTHER]
    with pytest.raises(
        ValueError, match=r"convert: ties='torch 2\.1' is not a convention, nor a version of torch; choose one of 'min"
    ):
        interop.nn.convert(model, ties="torch 2.1")
