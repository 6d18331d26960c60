"""The modules of `interop.nn`, and models that `convert` gives them."""

import copy
import inspect
import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint_sequential

import interop
from interop import min_norm
from interop._transforms.as_of import AS_OF
from interop._transforms.modules import MODULES
from interop.native import NATIVE, RIGHT_IN_TORCH

Tensor = torch.Tensor
TIED = torch.tensor([-1.0, 0.0, 0.0, 3.0, 6.0, 6.0])
X = TIED.reshape(1, 1, 1, 1, 6)
ROWS = TIED.reshape(2, 3)

ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "AdaptiveMaxPool1d": [{"output_size": 2}, {"output_size": 4, "return_indices": True}],
    "AdaptiveMaxPool2d": [{"output_size": (1, 2)}],
    "AdaptiveMaxPool3d": [{"output_size": (1, 1, 4)}],
    "CELU": [{}, {"alpha": 2.0, "inplace": True}],
    "ELU": [{}, {"alpha": 2.0}, {"alpha": 2.0, "inplace": True}],
    "Hardshrink": [{}, {"lambd": 3.0}, {"lambd": 0.0}],
    "Hardtanh": [{}, {"min_val": 0.0, "max_val": 6.0}, {"inplace": True}],
    "HingeEmbeddingLoss": [{}, {"margin": 6.0, "reduction": "sum"}],
    "LeakyReLU": [{}, {"negative_slope": 2.0}, {"negative_slope": -1.0, "inplace": True}],
    "MarginRankingLoss": [{}, {"margin": 3.0, "reduction": "none"}],
    "MaxPool1d": [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}],
    "MaxPool2d": [{"kernel_size": (1, 2), "return_indices": True}],
    "MaxPool3d": [{"kernel_size": (1, 1, 3)}],
    "PReLU": [{}, {"num_parameters": 1, "init": 2.0}],
    "ReLU": [{}, {"inplace": True}],
    "ReLU6": [{}, {"inplace": True}],
    "Softshrink": [{}, {"lambd": 3.0}, {"lambd": 0.0}],
    "Threshold": [{"threshold": 0.0, "value": 0.0}, {"threshold": 3.0, "value": 1.0}],
    "TripletMarginLoss": [{}, {"margin": 2.0, "swap": True}],
    "TripletMarginWithDistanceLoss": [{"distance_function": lambda x, y: (x - y).abs().sum(-1), "swap": True}],
}
"""How a module is made; one that is not named, without arguments."""


def operands(name: str) -> list[Tensor]:
    """What the module of that name takes; the first is differentiated."""
    match name:
        case "HingeEmbeddingLoss":
            return [TIED, torch.tensor([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0])]
        case "MarginRankingLoss":
            return [TIED, TIED.flip(0), torch.ones(6)]
        case "TripletMarginLoss" | "TripletMarginWithDistanceLoss":
            return [ROWS, ROWS.flip(0), ROWS + 1]
    dims = {"1d": 3, "2d": 4, "3d": 5}.get(name[-2:], 5)
    return [X.reshape(X.shape[-dims:])]


def gradient(function: Callable[..., Any], x: Tensor, *rest: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    y = function(1 * x, *rest)
    return torch.autograd.grad((y[0] if isinstance(y, tuple) else y).sum(), x)[0]


def test_there_is_a_module_for_each_function() -> None:
    """Where torch has one, other than Module itself."""
    known = {name.lower() for name in vars(torch.nn)}
    assert {name.replace("_", "") for name in NATIVE} & known == {name.lower() for name in MODULES}
    assert set(ARGUMENTS) <= set(MODULES) == {name for name in interop.nn.__all__ if hasattr(torch.nn, name)}


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    """It has the form and the state of torch's, and the gradients of the mode."""
    for given in ARGUMENTS.get(name, [{}]):
        ours, native = getattr(interop.nn, name)(**given), getattr(torch.nn, name)(**given)
        signature = inspect.signature(type(ours))
        *parameters, ties = signature.parameters.values()
        assert signature.replace(parameters=parameters) == inspect.signature(type(native))
        assert ties.name == "ties"
        assert repr(ours) == repr(native)
        assert ours.state_dict().keys() == native.state_dict().keys()
        native.load_state_dict(ours.state_dict())
        with min_norm():
            expected = gradient(native, *operands(name))
        copies = [ours, copy.deepcopy(ours)] + ([] if "distance_function" in given else [pickled(ours)])
        for module in copies:
            assert type(module) is type(ours)
            assert torch.equal(gradient(module, *operands(name)), expected)


def pickled(module: torch.nn.Module) -> Any:
    return pickle.loads(pickle.dumps(module))


@pytest.mark.parametrize("name", [name for name, module in MODULES.items() if module._function in RIGHT_IN_TORCH])
def test_what_torch_has_right_is_called_without_a_detour(name: str) -> None:
    """The module then is torch's own but for its class."""
    given = ARGUMENTS.get(name, [{}])[0]
    ours, native = getattr(interop.nn, name)(**given), getattr(torch.nn, name)(**given)
    x = TIED.clone().requires_grad_()
    assert ours(x).grad_fn.name() == native(x).grad_fn.name()


def test_ties_of_a_module() -> None:
    """The block around decides, unless the module has a convention of its own."""
    module = interop.nn.Hardtanh(0.0, 6.0)
    assert gradient(module, TIED).tolist() == [0, 0, 0, 1, 0, 0]
    with min_norm(ties="inclusive"):
        assert gradient(module, TIED).tolist() == [0, 1, 1, 1, 1, 1]
    module.ties = "balanced"
    assert repr(module) == "Hardtanh(min_val=0.0, max_val=6.0, ties='balanced')"
    for block in (min_norm(), min_norm(ties="inclusive"), min_norm(backend="jax")):
        with block:
            assert gradient(module, TIED).tolist() == [0, 0.5, 0.5, 1, 0.5, 0.5]


def test_ties_as_an_argument() -> None:
    """As `convert` takes them; a subclass may pass them on."""

    class Capped(interop.nn.ReLU6):
        def __init__(self) -> None:
            super().__init__(inplace=True, ties="inclusive")

    assert gradient(Capped(), TIED).tolist() == [0, 1, 1, 1, 1, 1]
    assert repr(pickled(interop.nn.Hardtanh(0.0, 6.0, ties="balanced"))).endswith("max_val=6.0, ties='balanced')")
    assert interop.nn.ELU(ties="torch 2.13").ties == "torch 2.13"
    with pytest.raises(TypeError, match="ELU: there is no convention to choose; leave out ties='inclusive'"):
        interop.nn.ELU(ties="inclusive")
    with pytest.raises(ValueError, match="ties='inklusive' is not a convention"):
        interop.nn.ReLU(ties="inklusive")


# Conversion.


class OwnReLU(torch.nn.ReLU):
    pass


class Clipped(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(x.clamp(0.0, 6.0).cummax(-1).values)


class Plain(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x).exp()


def model() -> torch.nn.Sequential:
    shared = torch.nn.Hardtanh(0.0, 6.0)
    branches = torch.nn.ModuleDict({"a": shared, "b": OwnReLU()})
    return torch.nn.Sequential(torch.nn.Linear(6, 6), shared, branches, torch.nn.PReLU(), Clipped(), Plain())


def test_convert_and_undo() -> None:
    network = model()
    before, weight = repr(network), network[3].weight
    report = interop.nn.convert(network)
    assert dict(report.replaced) == {"1": "Hardtanh", "2.a": "Hardtanh", "3": "PReLU"}
    assert [type(m).__module__ for m in network.modules()].count("interop.nn") == 2
    assert network[1] is network[2]["a"]
    assert network[3].weight is weight
    assert type(network[2]["b"]) is OwnReLU
    assert repr(network) == before
    assert gradient(network[1], TIED).tolist() == [0, 0, 0, 1, 0, 0]
    assert interop.nn.convert(network).replaced == {}
    with pytest.raises(TypeError, match=r"convert: the model was changed in place, .* call the model itself"):
        report(torch.zeros(2))
    report.undo()
    assert [type(m) for m in network.modules()] == [type(m) for m in model().modules()]


def test_convert_says_what_it_left_and_why() -> None:
    assert str(interop.nn.convert(model())).splitlines() == [
        "1    Hardtanh",
        "2.a  Hardtanh",
        "3    PReLU",
        "2.b  left: OwnReLU is a subclass of torch.nn.ReLU; make it one of interop.nn.ReLU",
        "4    left: Clipped calls clamp, normalize; run the model under interop.min_norm() and calls cummax, without a "
        "counterpart here",
    ]
    assert "nothing to replace" in str(interop.nn.convert(torch.nn.Linear(1, 1)))
    assert str(interop.nn.convert(torch.nn.ReLU6())) == "(the model)  ReLU6"
    kept = torch.nn.ReLU()
    assert not interop.nn.convert(kept, ties="exclusive").left
    assert interop.nn.convert(kept).left == {"": "ReLU keeps ties='exclusive', which it has already"}
    bags = torch.nn.ModuleList([torch.nn.EmbeddingBag(2, 1, mode=mode) for mode in ("sum", "mean", "max")])
    assert list(interop.nn.convert(bags).left) == ["2"]
    averages = torch.nn.ModuleList([torch.nn.LPPool1d(order, 2) for order in (2.0, math.inf)])
    assert list(interop.nn.convert(averages).left) == ["1"]
    assert list(interop.nn.convert(torch.nn.FractionalMaxPool2d(2, 1)).left) == [""]


def test_convert_a_module_itself() -> None:
    module = torch.nn.ReLU6()
    seen = []
    module.register_forward_hook(lambda module, args, output: seen.append(type(module)))
    interop.nn.convert(module)
    module(TIED)
    assert seen == [interop.nn.ReLU6]


def test_convert_to_another_convention_and_back() -> None:
    network = torch.nn.Sequential(torch.nn.Hardtanh(0.0, 6.0), torch.nn.LeakyReLU())
    first = interop.nn.convert(network, ties="inclusive")
    assert gradient(network[0], TIED).tolist() == [0, 1, 1, 1, 1, 1]
    assert "ties" not in vars(network[1])  # there is nothing to choose
    second = interop.nn.convert(network, ties="balanced")
    assert gradient(network[0], TIED).tolist() == [0, 0.5, 0.5, 1, 0.5, 0.5]
    second.undo()
    assert gradient(network[0], TIED).tolist() == [0, 1, 1, 1, 1, 1]
    first.undo()
    assert vars(network[0]).keys() == vars(torch.nn.Hardtanh(0.0, 6.0)).keys()
    with pytest.raises(ValueError, match="ties='nearest' is not a convention"):
        interop.nn.convert(network, ties="nearest")


def test_converted_modules_in_checkpoint_sequential() -> None:
    network = torch.nn.Sequential(torch.nn.Hardtanh(0.0, 6.0), torch.nn.ReLU6())
    interop.nn.convert(network)
    x = TIED.clone().requires_grad_()
    checkpoint_sequential(network, 2, x, use_reentrant=False).sum().backward()
    assert x.grad.tolist() == [0, 0, 0, 1, 0, 0]


class Bilinear(torch.nn.Module):
    mode = "bilinear"

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(0.0, 1.0)


clamped = torch.clamp


class WithHelper(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.helper(x)

    def helper(self, x: Tensor) -> Tensor:
        return clamped(x, 0.0, 1.0) + self.helper(x)


class WithFunction(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.activation = torch.nn.functional.elu

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x)


class WithLambda(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.activation = lambda x: x.clamp(0.0, 6.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x)


class WithParameter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.Identity()
        self.inner = torch.nn.ModuleDict({"norm": torch.nn.Identity()})
        self.scale = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.inner.norm(x)) * self.scale.clamp(0.5)


class OfParameter(WithParameter):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def squashed(x: Tensor) -> Tensor:
    return x if x.dim() else squashed(x[None]).hardtanh()


class WithFunctionOfTheFile(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return squashed(x)


class Decorated(torch.nn.Module):
    @torch.enable_grad()
    def forward(self, x: Tensor) -> Tensor:
        return squashed(x)


def with_closure(activation: Callable[[Tensor], Tensor]) -> torch.nn.Module:
    class WithClosure(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return activation(x)

    return WithClosure()


class WithCall(torch.nn.Module):
    def __call__(self, x: Tensor) -> Tensor:
        return torch.cummax(x, 0).values

    def forward(self, x: Tensor) -> Tensor:
        return np.maximum(x, 0)


def test_what_else_convert_left() -> None:
    scripted = torch.jit.script(torch.nn.ReLU())
    network = torch.nn.Sequential(scripted, Bilinear(), WithHelper(), WithFunction(), WithCall(), WithLambda())
    network.extend([WithFunctionOfTheFile(), WithParameter(), OfParameter(), Decorated(), with_closure(functional.elu)])
    left = interop.nn.convert(network).left
    assert left["0"] == "RecursiveScriptModule is a program of TorchScript, which cannot be looked into"
    assert left["1"] == "Bilinear calls clamp; run the model under interop.min_norm()"
    assert left["2"] == "WithHelper calls clamp; run the model under interop.min_norm()"
    assert left["3"] == "WithFunction calls elu; run the model under interop.min_norm()"
    assert left["4"] == "WithCall calls cummax, without a counterpart here"
    assert left["5"] == "WithLambda calls clamp; run the model under interop.min_norm()"
    assert left["7"] == "WithParameter calls clamp; run the model under interop.min_norm()"
    assert left["8"] == "OfParameter calls clamp; run the model under interop.min_norm()"
    assert left["6"] == "WithFunctionOfTheFile calls hardtanh; run the model under interop.min_norm()"
    assert left["9"] == "Decorated calls hardtanh; run the model under interop.min_norm()"
    assert left["10"] == "WithClosure calls elu; run the model under interop.min_norm()"


class Helped(torch.nn.Module):
    """Has helpers of each kind that a class may have."""

    builtin = staticmethod(torch.clamp)

    @staticmethod
    def static(x: Tensor) -> Tensor:
        return x.clamp(0.0)

    @classmethod
    def of_class(cls, x: Tensor) -> Tensor:
        return cls.static(x)

    @property
    def scale(self) -> Tensor:
        return self.static(TIED)

    def method(self, x: Tensor) -> Tensor:
        return x.clamp(0.0)


TABLE = {"clamp": torch.clamp}


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: self.builtin(x, 0.0),
        lambda self, x: self.of_class(x),
        lambda self, x: x * self.scale,
        lambda self, x: Helped.static(x),
        lambda self, x: TABLE["clamp"](x, 0.0),
    ],
)
def test_functions_that_a_forward_looks_up(forward: Callable[..., Tensor]) -> None:
    module = type("Calling", (Helped,), {"forward": forward})()
    assert interop.nn.convert(module).left == {"": "Calling calls clamp; run the model under interop.min_norm()"}


@pytest.mark.parametrize("held", [partial(torch.clamp, min=0.0), TABLE, [torch.Tensor.clamp], Helped().method])
def test_functions_that_a_module_holds(held: Any) -> None:
    module = torch.nn.Identity()
    module.held = held  # type: ignore[assignment]
    assert interop.nn.convert(module).left == {"": "Identity calls clamp; run the model under interop.min_norm()"}


def test_a_module_with_a_forward_of_its_own_is_left() -> None:
    """As `accelerate` sets it."""
    module = torch.nn.ReLU6()
    module.forward = lambda x: x.clamp(0.0, 6.0)  # type: ignore[method-assign]
    assert interop.nn.convert(module).left == {
        "": "ReLU6 has a forward of its own beside that of its class; convert the model before it is set"
    }


def test_a_module_without_source() -> None:
    """As one that is typed at a prompt."""
    made: dict[str, Any] = {"torch": torch}
    exec("class Typed(torch.nn.Module):\n    def forward(self, x): return x.clamp(0.0)", made)
    assert interop.nn.convert(made["Typed"]()).left == {"": "Typed has code whose source cannot be read"}


def test_the_gradients_of_the_installed_version_are_there_already() -> None:
    installed = torch.__version__.partition("+")[0]
    if f"torch {installed}" not in AS_OF:
        pytest.skip("it has no record")
    conversion = interop.nn.convert(Bilinear(), ties=f"torch {installed}")
    assert str(conversion) == "nothing to do: the installed torch has these gradients"
    conversion.undo()


def test_the_modules_of_torch_that_call_no_op_are_not_left() -> None:
    layer = torch.nn.TransformerEncoderLayer(2, 1)
    encoder = torch.nn.TransformerEncoder(layer, 1, norm=torch.nn.LayerNorm(2), enable_nested_tensor=False)
    network = torch.nn.ModuleList([
        torch.nn.Linear(1, 1), torch.nn.LSTM(1, 1), torch.nn.MultiheadAttention(2, 1), torch.nn.BatchNorm1d(2),
        encoder, torch.nn.Embedding(1, 1), torch.nn.Softmax(0), torch.nn.Conv2d(1, 1, 1),
    ])  # fmt: skip
    assert interop.nn.convert(network).left == {}


def test_undo_after_a_parametrization_says_so() -> None:
    network = torch.nn.Sequential(torch.nn.PReLU())
    conversion = interop.nn.convert(network)
    torch.nn.utils.parametrize.register_parametrization(network[0], "weight", torch.nn.Identity())
    with pytest.raises(RuntimeError, match="ParametrizedPReLU since it was converted, as by a parametrization"):
        conversion.undo()
    torch.nn.utils.parametrize.remove_parametrizations(network[0], "weight")
    conversion.undo()
    assert type(network[0]) is torch.nn.PReLU
    torch.nn.utils.parametrize.register_parametrization(network[0], "weight", torch.nn.Identity())
    left = interop.nn.convert(network).left
    assert left == {"0": "ParametrizedPReLU is parametrized; convert the model before it is"}


def test_conversions_are_undone_the_latest_first() -> None:
    module = torch.nn.ReLU6()
    first, second = (interop.nn.convert(module, ties=ties) for ties in ("inclusive", "balanced"))
    first.undo()
    with pytest.raises(RuntimeError, match=r"torch.nn.modules.activation.ReLU6 since .* take back the latest first"):
        second.undo()
