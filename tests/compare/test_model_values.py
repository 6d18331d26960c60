"""Which values `interop.compare_models` compares: rounding, buffers, what is overwritten, results of every kind."""

import copy
import dataclasses
import functools
import operator
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from interop import compare, compare_models
from tests.compare.models import Clamped, X, between_0_and_6, blamed, dense, linear, port_of

F32 = np.float32

pytestmark = pytest.mark.usefixtures("seeded")


def test_an_input_of_float64_beside_parameters_of_float32() -> None:
    """As NumPy makes them unless told otherwise."""
    wide = X.astype(np.float64)
    for first, second in ((port_of(a=linear()), dense("a")), (dense("a"), port_of(a=linear()))):
        with pytest.raises(ValueError, match=r"input 0 is of float64.* of float32; pass input\.astype\('float32'\)"):
            compare_models(first, second, wide)
    doubled = [port_of(a=linear()).double() for _ in range(2)]
    assert compare_models(*doubled, wide).agree


def test_layers_may_run_in_inference_mode() -> None:
    """Torch does not count the writes to what is made there."""

    class Frozen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.trained = linear(), linear()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():
                features = self.frozen(x)
            return self.trained(features.clone())

    model = Frozen()
    assert compare_models(model, copy.deepcopy(model), X).agree


def chaotic() -> torch.nn.Sequential:
    """A network that makes a difference of rounding some times larger in each layer."""
    layers: list[torch.nn.Module] = [torch.nn.Embedding(50, 32)]
    for _ in range(8):
        layers += [torch.nn.Linear(32, 32), torch.nn.Tanh()]
    network = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(8)
    return network


def test_one_side_in_float64_and_the_other_in_float32() -> None:
    """Each keeps its own parameters, which are equal. What the coarser side rounds is no bug, in whichever order."""
    narrow = chaotic()
    wide = copy.deepcopy(narrow).double()
    for first, second in ((wide, narrow), (narrow, wide)):
        comparison = compare_models(first, second, np.arange(40).reshape(4, 10), parameters="own")
        assert comparison.agree, comparison.verdict
        assert any(judged.finding == "rounding" for pair in comparison.layers for judged in pair.judged)


@pytest.mark.parametrize("dtypes", [("float64", "float32"), ("float32", "bfloat16"), ("float16", "bfloat16")])
def test_parameters_rounded_to_another_dtype(dtypes: tuple[str, str]) -> None:
    """The coarser side has the other's parameters, rounded. That is no bug, in whichever order; another number is."""
    wide, narrow = (torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 4)) for _ in dtypes)
    wide.to(getattr(torch, dtypes[0]))
    for parameter in wide.parameters():
        torch.nn.init.normal_(parameter)
    narrow.load_state_dict(wide.state_dict())
    narrow.to(getattr(torch, dtypes[1]))
    x = np.arange(40).reshape(4, 10)
    for models in ((wide, narrow), (narrow, wide)):
        comparison = compare_models(*models, x, parameters="own")
        assert comparison.agree, comparison.verdict
    with torch.no_grad():
        narrow[1].weight[0, 0] += 0.1
    for models in ((wide, narrow), (narrow, wide)):
        assert "The parameters first differ at 1: 1.weight" in compare_models(*models, x, parameters="own").verdict


def test_parameters_one_rounding_apart() -> None:
    first, second = port_of(a=linear()), port_of(a=linear())
    with torch.no_grad():
        second.a.weight.copy_(torch.nextafter(first.a.weight, torch.tensor(9.0)))
        second.a.bias.copy_(first.a.bias)
    assert compare_models(first, second, X, parameters="own").agree


class Rotation(nn.Module):
    """A layer with a complex parameter."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.abs(x * self.param("w", nn.initializers.ones, x.shape[-1:], jnp.complex64) + 1)


def test_complex_parameters_that_differ_in_the_imaginary_part() -> None:
    turned = [Rotation().bind({"params": {"w": np.full(4, 1 + angle * 1j, np.complex64)}}) for angle in (0, 1)]
    assert "The parameters first differ at Rotation: w" in compare_models(*turned, X, parameters="own").verdict


class Turned(torch.nn.Module):
    """A layer that names the dtype of its complex numbers."""

    def __init__(self, angle: float) -> None:
        super().__init__()
        self.w, self.angle = torch.nn.Parameter(torch.ones(4, dtype=torch.complex64)), angle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.zeros(x.shape, dtype=torch.complex64)
        spectrum[:] = self.w * x.to(torch.complex64)
        return (spectrum * (1 + self.angle * 1j)).abs() + spectrum.imag


def test_complex_numbers_are_wider_in_float64() -> None:
    comparison = compare_models(Turned(0.0), Turned(0.0), X)
    assert comparison.agree, comparison
    assert not comparison.notes
    assert not compare_models(Turned(0.0), Turned(5e-4), X).agree  # 1e-7 of the value: float64 tells it from rounding


class Tempered(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.a, self.temperature, self.factor = linear(), torch.nn.Parameter(torch.tensor(2.0)), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) * self.temperature * self.factor


def test_a_parameter_without_axes_is_wider_in_float64() -> None:
    assert compare_models(Tempered(1.0), Tempered(1.0), X).agree
    assert not compare_models(Tempered(1.0), Tempered(1 + 1e-6), X).agree


class WithConstant(torch.nn.Module):
    """It passes a constant that is no buffer to a module, and returns one."""

    def __init__(self, constant: Any) -> None:
        super().__init__()
        self.layer, self.add, self.constant = linear(), Added(), constant

    def forward(self, x: torch.Tensor) -> Any:
        return self.add(self.layer(x), torch.as_tensor(self.constant)), self.constant


class Added(torch.nn.Module):
    def forward(self, x: torch.Tensor, constant: torch.Tensor) -> torch.Tensor:
        return x + constant


class WithConstantInJax(nn.Module):
    constant: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> Any:
        return nn.Dense(4)(x) + self.constant, self.constant


@pytest.mark.parametrize("one", [1.0, np.ones(4, F32), torch.ones(4)])
def test_constants_are_compared_in_float64_too(one: Any) -> None:
    port = WithConstant(one)
    in_numpy = one.numpy() if isinstance(one, torch.Tensor) else one
    for model in (WithConstant(one), WithConstantInJax(in_numpy)):
        comparison = compare_models(port, model, X)
        assert comparison.agree, comparison
        assert not comparison.notes
    assert not compare_models(WithConstant(one), WithConstant(one * (1 + 1e-5)), X).agree


def test_an_array_may_be_returned_twice() -> None:
    def twice(model: Any, x: Any) -> Any:
        return [model(x)] * 2

    for model in (port_of(a=linear()), dense("a")):
        assert compare_models(port_of(a=linear()), model, X, calls=(twice, twice)).agree


def test_results_of_two_dtypes_are_noted() -> None:
    calls = (None, lambda model, x: model(x).bfloat16())
    comparison = compare_models(model := linear(), model, X, calls=calls)
    assert comparison.agree
    assert comparison.notes == ("Result 0 is of float32 in the first model, and of bfloat16 in the second.",)


def test_arrays_of_another_byte_order() -> None:
    """As FITS has them."""
    swapped = X.astype(">f4")
    assert compare_models(port_of(a=linear()), dense("a"), swapped).agree


class Indexed(torch.nn.Module):
    def __init__(self, index: list[int] | None = None, *, mask: bool = True) -> None:
        super().__init__()
        self.a, self.norm = torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)
        for name, numbers in {"index": index, "mask": [mask] * 3}.items():
            self.register_buffer(name, None if numbers is None else torch.tensor(numbers), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.a(x))


def test_integers_that_models_keep() -> None:
    """They are compared by name, whether these inputs show a difference or not; counts of batches are not."""
    model = Indexed([0, 1])
    model.norm.num_batches_tracked += 1  # type: ignore[operator]
    same = compare_models(model, Indexed([0, 1]), X)
    assert same.agree
    assert not same.notes
    for port, name in ((Indexed([0, 2]), "index"), (Indexed([0]), "index"), (Indexed([0, 1], mask=False), "mask")):
        assert f"The parameters first differ at Indexed: {name} (integers)" in compare_models(model, port, X).verdict
    assert compare_models(Indexed(), model, X).notes == (
        "Integers of the second model are not compared, as the first has none by that name: index.",
    )


class Recurrent(nn.Module):
    """Its state is of float32, whatever it gets."""

    eps: float = 1e-6

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.LayerNorm(self.eps, name="norm")(nn.RNN(nn.SimpleCell(4))(nn.Dense(4, name="dense")(x)))


class Strict(torch.nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.dense, self.norm = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4, eps)

    def forward(self, x: torch.Tensor) -> Any:
        if x.dtype != torch.float32:
            raise TypeError("float32 alone")
        return self.norm(self.dense(x))


@pytest.mark.parametrize("model", [pytest.param(Recurrent, marks=pytest.mark.thorough), Strict])
def test_a_model_that_cannot_be_run_in_float64(model: Any) -> None:
    x = np.stack([X, 2 * X])
    first = model()
    first = first.bind(first.init(jax.random.key(0), x)) if model is Recurrent else first
    comparison = compare_models(first, model(), x)
    assert comparison.agree, comparison
    assert any("cannot be run in another precision" in note for note in comparison.notes)
    assert blamed(compare_models(first, model(eps=0.1), x)) == ("norm",)


class NaiveSoftmax(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        e = x.exp()
        return e / e.sum(-1, keepdim=True)


def test_nan_is_no_rounding() -> None:
    """The exponential overflows in float32, and not in float64."""
    layer = linear()
    first = torch.nn.Sequential(layer, torch.nn.Softmax(dim=-1))
    second = torch.nn.Sequential(copy.deepcopy(layer), NaiveSoftmax())
    assert compare_models(first, second, X).agree
    comparison = compare_models(first, second, 300 * X)
    assert np.isnan(second(torch.from_numpy(300 * X)).detach().numpy()).any()
    assert comparison.cause is not None
    assert (comparison.cause.is_gradient, comparison.cause.finding) == (False, "port")


def test_buffers_stay_as_they_are() -> None:
    models = Clamped(between_0_and_6), Clamped(torch.nn.functional.relu6)
    before = [copy.deepcopy(dict(model.named_buffers())) for model in models]
    comparison = compare_models(*models, X)
    assert comparison.ties is not None
    for model, buffers in zip(models, before, strict=True):
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, buffers[name]), name


class Checkpointed(torch.nn.Module):
    """A batch norm and an activation that the backward pass computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = torch.nn.BatchNorm1d(4), linear()
        torch.nn.init.normal_(self.norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(lambda x: self.norm(x).tanh(), x, use_reentrant=False)
        return self.head(hidden)


def test_a_checkpoint_computes_with_the_parameters_of_the_call() -> None:
    models = Checkpointed(), Checkpointed()
    comparison = compare_models(*models, X)
    assert comparison.agree, comparison
    assert not comparison.notes
    module, parameters = models[0], dict(models[1].named_parameters())
    assert compare(module, Checkpointed(), parameters, X).agree
    for model in models:
        assert not model.norm.num_batches_tracked


class InJax(nn.Module):
    f: Callable[[jax.Array, jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(4)(self.f(nn.Dense(4)(x), x))


class InPlace(torch.nn.Module):
    def __init__(self, f: Callable[[torch.nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.f = linear(), linear(), f
        self.relu = torch.nn.Sequential(torch.nn.ReLU(inplace=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.f(self.relu, self.first(x), x))


def dropped_result(relu: torch.nn.Module, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    relu(h)
    return h


def both_names(relu: torch.nn.Module, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = relu(h)
    y += x
    return h * y


def overwritten_later(relu: torch.nn.Module, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h += x
    return relu(h)


@pytest.mark.parametrize(
    ("in_torch", "in_jax"),
    [
        (dropped_result, lambda h, x: jax.nn.relu(h)),
        (both_names, lambda h, x: (jax.nn.relu(h) + x) ** 2),
        (overwritten_later, lambda h, x: jax.nn.relu(h + x)),
    ],
)
def test_what_is_overwritten(in_torch: Any, in_jax: Any) -> None:
    """A module under hooks overwrites what it does without, and values at boundaries are those of that moment."""
    port = InPlace(in_torch)
    comparison = compare_models(port, InJax(in_jax), X)
    assert comparison.agree, comparison
    points = {layer.path: layer for layer in comparison.all_layers[0]}
    with torch.no_grad():
        h = port.first(torch.from_numpy(X.copy()))
        np.testing.assert_array_equal(points["first"].outputs[0].value, h)
        np.testing.assert_array_equal(points[""].outputs[0].value, port(torch.from_numpy(X.copy())))
    before = h.numpy() + X if in_torch is overwritten_later else h.numpy()
    np.testing.assert_array_equal(points["relu.0"].inputs[0].value, before)
    np.testing.assert_array_equal(points["relu.0"].outputs[0].value, np.maximum(before, 0))


class Cell(torch.nn.Module):
    """Returns what it keeps, and overwrites it at the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kept.mul_(2)


class Cells(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.cell = linear(), Cell()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.cell(x) * self.cell(x)


def test_what_a_module_keeps_and_overwrites() -> None:
    layers = compare_models(Cells(), Cells(), X).all_layers[0]
    returned = [layer.outputs[0].value for layer in layers if layer.path == "cell"]
    np.testing.assert_array_equal(returned, [[2.0] * 4, [4.0] * 4])


class WrittenOut(torch.nn.BatchNorm1d):
    """A batch norm that rounds otherwise."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = (x * x).mean(0) - x.mean(0) ** 2
        scale = self.weight / (variance.clamp(min=0) + self.eps).sqrt()
        return x * scale + (self.bias - x.mean(0) * scale)


class ShiftedTanh(torch.nn.Tanh):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", [6, 7])
def test_values_that_are_rounding_alone(dtype: Any, length: int) -> None:
    """Behind a batch norm, a constant is 0, and so is the gradient before it; a bug beside that is found."""
    x = np.full((length, 4), 0.1, dtype)
    layers = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    model = torch.nn.Sequential(*layers)

    def port_with(i: int, layer: torch.nn.Module) -> torch.nn.Sequential:
        port = copy.deepcopy(model)
        port[i] = layer
        return port.to(torch.from_numpy(x).dtype)

    model.to(torch.from_numpy(x).dtype)
    statistics = {"1.running_mean": None, "1.running_var": None}
    comparison = compare_models(model, port_with(1, WrittenOut(4)), x, mapping=statistics)
    assert comparison.agree, comparison
    (norm,) = [pair for pair in comparison.layers if pair.first.path == "1"]
    assert norm.apart(gradients=False) > 0.1
    assert (norm.finding(gradients=False), norm.finding(gradients=True)) == ("rounding", "rounding")
    for layer, path, is_gradient in (
        (torch.nn.BatchNorm1d(4, eps=1e-3), "1", True),
        (ShiftedTanh(), "2", False),
    ):
        wrong = compare_models(model, port_with(int(path), layer), x)
        assert wrong.cause is not None
        assert (wrong.cause.finding, wrong.cause.layer.first.path) == ("port", path)
        assert wrong.cause.is_gradient == is_gradient


class Centred(torch.nn.Module):
    def __init__(self, mean: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layers, self.mean = torch.nn.Sequential(torch.nn.Identity(), linear()), mean

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x - self.mean(x))


def test_rounding_of_float64_that_is_0_in_float32() -> None:
    x = np.full((6, 4), 0.1, F32)
    models = Centred(lambda x: x.mean(0)), Centred(lambda x: (x / 6).sum(0))
    differences = [[(x - m.mean(x)).abs().max() for m in models] for x in map(torch.tensor, (x, x.astype(float)))]
    assert differences[0] == [0, 0]
    assert differences[1][0] != differences[1][1]
    comparison = compare_models(*models, x)
    assert comparison.agree, comparison


class Scaled(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.dense, self.factor = linear(), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(x) * self.factor


@pytest.mark.parametrize("rows", [[[1.0], [0.5]], [[1.0]]], ids=["one of two rows", "all"])
def test_ties_in_the_given_precision_alone(rows: list[list[float]]) -> None:
    """The sum is on the bound in float32, and beyond it in float64, where all gradients of the layer may be 0."""
    layer = torch.nn.Linear(1, 1)
    with torch.no_grad():
        layer.weight.fill_(6.0)
        layer.bias.fill_(1e-8)
    calls = (lambda model, x: between_0_and_6(model(x)), lambda model, x: torch.nn.functional.relu6(model(x)))
    comparison = compare_models(layer, copy.deepcopy(layer), np.array(rows, F32), calls=calls)
    assert comparison.cause is not None
    assert comparison.cause.finding == "ties"


def test_small_numbers_are_no_rounding() -> None:
    for factor in (1e-12, 1e-20):
        assert compare_models(Scaled(factor), Scaled(factor), X).agree
        wrong = compare_models(Scaled(factor), Scaled(1.01 * factor), X)
        assert wrong.cause is not None
        assert wrong.cause.finding == "port"
        assert not wrong.cause.is_gradient


class Spectrum(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> Any:
        h = nn.Dense(4)(x)
        return h, jnp.fft.fft(h), h > 0, h.argmax(-1)


RESULTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "alike": lambda h: (h, torch.fft.fft(h), h > 0, h.argmax(-1)),
    "complex": lambda h: (h, torch.fft.ifft(h), h > 0, h.argmax(-1)),
    "truth values": lambda h: (h, torch.fft.fft(h), h < 0, h.argmax(-1)),
    "integers": lambda h: (h, torch.fft.fft(h), h > 0, h.argmin(-1)),
}


def test_all_results_are_compared() -> None:
    """Complex numbers, truth values and integers, too."""
    port = torch.nn.Sequential(linear())
    found = {
        kind: compare_models(port, Spectrum(), X, calls=(lambda model, x, f=f: f(model(x)), None))
        for kind, f in RESULTS.items()
    }
    assert {kind: comparison.agree for kind, comparison in found.items()} == {kind: kind == "alike" for kind in RESULTS}
    results = [[j for j in c.layers[0].judged if j.what == "outputs" and not j.agrees] for c in found.values()]
    assert [[j.name for j in judged] for judged in results] == [[], ["1"], ["2"], ["3"]]

    with pytest.raises(ValueError, match=r"returns floats \(3, 4\), integers \(3,\); Sequential .* floats \(3, 4\)\."):
        compare_models(port, port, X, calls=(lambda model, x: (model(x), model(x).argmax(-1)), None))
    with pytest.raises(ValueError, match=r"result 1 is of floats in .* and of truth values in"):
        compare_models(port, port, X, calls=(lambda m, x: (m(x), m(x)), lambda m, x: (m(x), m(x) > 0)))


class Named(nn.Module):
    kind: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> Any:
        a = nn.Dense(4)(x)
        return (self.kind(logits=nn.Dense(4)(a), aux=self.kind(logits=2 * a, aux=a)),)


class PortOfNamed(torch.nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second = linear(), linear()

    def forward(self, x: torch.Tensor) -> Any:
        a = self.first(x)
        return (self.kind(logits=self.second(a), aux=self.kind(logits=2 * a, aux=a)),)


@dataclasses.dataclass(frozen=True)
class Fields:
    logits: Any
    aux: Any


@flax.struct.dataclass
class FieldsOfJax:
    logits: Any
    aux: Any
    size: int = flax.struct.field(pytree_node=False, default=1)


@dataclasses.dataclass
class Output(OrderedDict[str, Any]):
    """A dict and a dataclass, as the results of transformers are."""

    logits: Any = None
    aux: Any = None

    def __post_init__(self) -> None:
        for name in ("logits", "aux"):
            self[name] = getattr(self, name)


THOROUGH = [
    pytest.param(kind, marks=pytest.mark.thorough) for kind in (OrderedDict, functools.partial(defaultdict, list))
]
KINDS = [dict, *THOROUGH, Fields, Output]


@pytest.mark.parametrize("of_jax", [dict, pytest.param(OrderedDict, marks=pytest.mark.thorough), FieldsOfJax])
@pytest.mark.parametrize("kind", KINDS)
def test_results_with_names_are_paired_by_name(kind: Any, of_jax: Any) -> None:
    """JAX sorts the keys of a dict and of no other; torch sorts none. The model gets what it returned, in its order."""
    port = torch.nn.ModuleDict({"inner": PortOfNamed(kind)})
    returned = []

    def called(model: Any, x: torch.Tensor) -> Any:
        (result,) = model["inner"](x)
        returned.append(result)
        return (result,)

    comparison = compare_models(port, Named(of_jax), X, calls=(called, None))
    assert comparison.agree, comparison
    assert returned
    for result in returned:
        assert type(result) is type(kind(logits=None, aux=None))
        assert list(result if isinstance(result, dict) else vars(result)) == ["logits", "aux"]


class AttributeDict(dict[str, Any]):
    def __init__(self, **entries: Any) -> None:
        super().__init__(**entries)
        self.__dict__ = self


class Reading(torch.nn.Module):
    def __init__(self, kind: Any, read: Callable[[Any, str], Any]) -> None:
        super().__init__()
        self.inner, self.head, self.read = PortOfNamed(kind), linear(), read

    def forward(self, x: torch.Tensor) -> Any:
        (result,) = self.inner(x)
        return self.head(self.read(result, "logits")) + self.read(self.read(result, "aux"), "aux")


@pytest.mark.parametrize("kind", [Output, AttributeDict])
def test_a_result_is_read_by_name_or_as_an_attribute(kind: Any) -> None:
    """Where an attribute kept what is not marked, no gradient would come back to the boundary."""
    comparison = compare_models(Reading(kind, operator.getitem), Reading(kind, getattr), X)
    assert comparison.agree, comparison


class Normalizing(nn.Module):
    momentum: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.BatchNorm(use_running_average=False, momentum=self.momentum, epsilon=1e-5)(x)


@pytest.mark.parametrize("jax_first", [True, False])
@pytest.mark.parametrize("momentum", [pytest.param(0.9, marks=pytest.mark.thorough), 0.8])
def test_one_library_keeps_the_unbiased_variance(momentum: float, jax_first: bool) -> None:
    """Whichever is first; with another momentum it is a bug all the same."""
    port, model = torch.nn.BatchNorm1d(4), Normalizing(momentum)
    port.running_var.fill_(3.0)
    comparison = compare_models(*((model, port) if jax_first else (port, model)), X)
    assert comparison.agree == (momentum == 0.9), comparison
    assert ("unbiased variance" in comparison.verdict) == comparison.agree


class Averaging(torch.nn.BatchNorm1d):
    """Averages a variance that is ``factor`` times too large."""

    def __init__(self, features: int, factor: float) -> None:
        super().__init__(features)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = super().forward(x)
        self.running_var.data.mul_(self.factor)  # past autograd, which keeps it
        return result


@pytest.mark.parametrize(("features", "factor"), [(4, 1.1), (1, 3.0)])
def test_another_variance_is_not_that_of_a_library(features: int, factor: float) -> None:
    comparison = compare_models(Normalizing(0.9), Averaging(features, factor), X[:, :features])
    assert comparison.cause is not None
    assert [(part.what, part.finding, part.name) for part in comparison.cause.parts] == [
        ("state", "port", "BatchNorm_0.var")
    ]


class Gate(torch.nn.Module):
    def __init__(self, mask: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.dense, self.mask = linear(), mask

    def forward(self, x: torch.Tensor) -> Any:
        h = self.dense(x)
        return h, self.mask(h)


class Gated(torch.nn.Module):
    def __init__(self, mask: Any, masked: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.gate, self.head, self.masked = Gate(mask), linear(), masked

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.masked(*self.gate(x)))


def test_a_layer_may_return_truth_values_in_one_model_and_floats_in_the_other() -> None:
    """Masks may be what is kept, or what is added."""
    of_truth = Gated(lambda h: h > 0, lambda h, keep: h.where(keep, torch.zeros_like(h)))
    of_floats = Gated(lambda h: (h <= 0).to(h.dtype), lambda h, drop: h * (1 - drop))
    comparison = compare_models(of_truth, of_floats, X)
    assert comparison.agree, comparison


class InHeads(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).unflatten(-1, (2, 2))


def test_an_axis_of_heads_may_be_split_in_one_model() -> None:
    """The layer is compared all the same, whichever model is first."""
    split = torch.nn.Sequential(InHeads(4, 4), torch.nn.Flatten(-2), linear())
    models = split, torch.nn.Sequential(linear(), torch.nn.Identity(), linear())
    for first, second in (models, models[::-1]):
        comparison = compare_models(first, second, X)
        assert comparison.agree, comparison
        assert len(comparison.layers[1].select("outputs", gradients=False)) == 1
