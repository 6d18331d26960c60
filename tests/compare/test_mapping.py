"""Which parameters and layers `interop.compare_models` maps to one another, and which mappings it refuses."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from interop import compare_models
from tests.compare.models import OfNnx, X, blamed, dense, linear, port_of, port_of_image_model, small_images

F32 = np.float32

pytestmark = pytest.mark.usefixtures("seeded")


class Heads(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.MultiHeadDotProductAttention(num_heads=2)(x)


def test_fused_and_split_projections() -> None:
    port = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        port.in_proj_bias.uniform_()
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(F32)
    comparison = compare_models(port, Heads(), x, calls=(lambda model, x: model(x, x, x, need_weights=False)[0], None))
    assert comparison.agree, comparison
    assert comparison.mapping.as_override()["query.weight"] == "MultiHeadDotProductAttention_0.query.kernel"


@pytest.mark.parametrize(
    "style", [*(pytest.param(style, marks=pytest.mark.thorough) for style in ("{}_proj", "to_{}")), "w{}"]
)
def test_names_of_projections_tell_in_whichever_order_they_run(style: str) -> None:
    """Their shapes are the same."""
    names = {role: style.format(role[0]) for role in ("value", "query", "key")}
    port = port_of(**{name: linear() for name in names.values()})
    mapping = compare_models(dense("query", "key", "value"), port, X).mapping.as_override()
    assert {role: mapping[f"{role}.kernel"] for role in names} == {
        role: f"{name}.weight" for role, name in names.items()
    }


def test_what_nothing_tells_apart_is_refused_and_can_be_given() -> None:
    """Two layers run first in one model and last in the other, the three that differ in shape the other way."""
    narrow = [torch.nn.Linear(4, n, bias=False) for n in (3, 2)], [torch.nn.Linear(n, 4) for n in (3, 2)]

    def middle(names: str) -> dict[str, torch.nn.Module]:
        layers = copy.deepcopy([narrow[0][0], narrow[1][0], narrow[0][1], narrow[1][1]])
        return dict(zip(names, layers, strict=True))

    first = port_of(a=linear(), b=linear(), **middle("cdef"))
    second = port_of(**middle("tuvw"), x=linear(), y=linear())
    with pytest.raises(ValueError, match=r"neither their names nor the order(.|\n)*  a: x, y(.|\n)*mapping=\{"):
        compare_models(first, second, X)
    comparison = compare_models(first, second, X, mapping={"a": "y", "b": "x"})
    assert not comparison.agree
    assert comparison.mapping.as_override()["a.weight"] == "y.weight"
    assert {pair.reason for pair in comparison.mapping.pairs} == {"given", "order"}


class Shortcut(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in (4, 6, 6):
            h = nn.LayerNorm(epsilon=1e-5)(nn.Dense(width)(jnp.tanh(nn.LayerNorm(epsilon=1e-5)(nn.Dense(width)(x)))))
            x = nn.LayerNorm(epsilon=1e-5)(nn.Dense(width, use_bias=False)(x)) + h
        return x


class PortedShortcut(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks = []
        for inputs, width in ((4, 4), (4, 6), (6, 6)):
            layers = torch.nn.Linear(inputs, width), torch.nn.LayerNorm(width), torch.nn.Tanh()
            main = torch.nn.Sequential(*layers, torch.nn.Linear(width, width), torch.nn.LayerNorm(width))
            down = torch.nn.Sequential(torch.nn.Linear(inputs, width, bias=False), torch.nn.LayerNorm(width))
            blocks.append(torch.nn.ModuleDict({"main": main, "down": down}))
        self.blocks = torch.nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block["down"](x) + block["main"](x)
        return x


@pytest.mark.thorough
def test_shortcuts_may_run_before_and_behind_their_blocks() -> None:
    comparison = compare_models(PortedShortcut(), Shortcut(), X)
    assert comparison.agree, comparison
    mapping = comparison.mapping.as_override()
    assert mapping["blocks.1.down.1.weight"] == "LayerNorm_5.scale"


def test_a_word_of_several_names_is_none_of_one() -> None:
    comparison = compare_models(port_of(att_out=linear(), mlp_proj=linear()), dense("attn_out", "mlp_out"), X)
    assert comparison.agree, comparison
    assert comparison.mapping.as_override()["mlp_proj.weight"] == "mlp_out.kernel"


def test_names_before_order() -> None:
    swapped = port_of(b=linear(), a=linear())
    mapping = compare_models(swapped, dense("a", "b"), X).mapping
    assert mapping.as_override()["a.weight"] == "a.kernel"
    assert str(mapping).splitlines()[1].split() == ["b.weight", "4×4", "b.kernel", "4×4", "name"]


def test_names_that_are_numbered_from_another_number() -> None:
    comparison = compare_models(port_of(fc1=linear(), fc2=linear()), dense("Dense_0", "Dense_1"), X)
    assert comparison.agree, comparison
    assert comparison.mapping.as_override()["fc1.weight"] == "Dense_0.kernel"


def test_names_that_are_spelled_alike() -> None:
    comparison = compare_models(port_of(a_1=linear(), a1=linear()), dense("a_1", "a1"), X)
    assert comparison.agree, comparison


class Gated(torch.nn.Module):
    def __init__(self, *names: str, gate_is_last: bool, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleDict(dict(zip(names, (torch.nn.Linear(width, 4), linear()), strict=True)))
        self.parts = [lambda x: self.layers[names[0]](x[:, :width]).sigmoid(), self.layers[names[1]]]
        self.parts = self.parts[:: -1 if gate_is_last else 1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.parts[0](x) * self.parts[1](x)
        return result.tanh()


@pytest.mark.parametrize("width", [3, 4])
def test_a_report_says_where_the_order_alone_has_paired(width: int) -> None:
    """A gate that runs last in one model is taken for the other layer, unless its shape tells it."""
    first, second = Gated("a", "b", gate_is_last=False, width=width), Gated("u", "v", gate_is_last=True, width=width)
    comparison = compare_models(first, second, X)
    assert comparison.agree == (width == 3)
    said = "Paired by the order in which they run alone, among several of the same shapes: layers.b | layers.u. If"
    assert (said in " ".join(str(comparison).split())) == (width == 4)
    assert compare_models(first, second, X, mapping={"layers.a": "layers.u", "layers.b": "layers.v"}).agree
    wrong = compare_models(first, second, X, calls=(None, lambda model, x: model(x) + 1))
    assert ("alone" in str(wrong)) == (width == 4)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"c": "a"}, "mapping names 'c', which is no parameter of Model"),
        ({"a": "c"}, "mapping names 'c', which is no parameter of Model"),
        ({"c": None}, "mapping names 'c', which is no parameter of Model"),
        ({"a.weight": "a.bias"}, r"mapping makes a.weight of shape \(4, 4\) a.bias of shape \(4,\)"),
        ({"a.weight": ("a.kernel", (-1, 0))}, r"give the order of axes .*: \(\"a.kernel\", \(1, 0\)\)\}"),
        ({"a.weight": ("a.kernel", (0, 0))}, "give the order of axes"),
        ({"a": ("a", (1, 0))}, r"mapping makes a.bias of shape \(4,\)"),
        ({"b": "a"}, "mapping pairs 'b' with 'a', which have no parameter of one kind: b.weight_ih_l0, .*; a.b"),
        ({"a.weight": 3}, "mapping has 3 for 'a.weight'; pass a name, or"),
        (["a"], r"mapping is \['a'\]; pass a dict"),
    ],
)
def test_bad_mappings(mapping: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        compare_models(port_of(a=linear(), b=torch.nn.GRU(4, 4)), dense("a"), X, mapping=mapping)


def test_parameters_without_counterpart() -> None:
    first = port_of(a=torch.nn.Linear(4, 4, bias=False))
    with pytest.raises(ValueError, match=r"no counterpart:\n  Model a.bias \[4\]: no candidate of its shape"):
        compare_models(first, dense("a"), X)
    with pytest.raises(ValueError, match=r"has no values for a\.bias; bind it"):
        compare_models(first, dense("a"), X, mapping={"a.bias": None})
    model = dense("a")
    with_bias = model.bind(model.init(jax.random.key(0), X))
    assert compare_models(with_bias, first, X, mapping={"a.bias": None}).agree
    order = compare_models(with_bias, first, X, mapping={"a.bias": None, "a.kernel": ("a.weight", (0, 1))})
    assert blamed(order) == ("a",)


def test_a_module_without_counterpart() -> None:
    """Not that whose name begins alike."""
    first, second = port_of(a=linear(), a2=linear()), port_of(a2=linear())
    comparison = compare_models(first, second, X, mapping={"a": None})
    assert [pair.first.name for pair in comparison.mapping.pairs] == ["a2.weight", "a2.bias"]


def test_layouts_of_inputs() -> None:
    """A torch model that takes images as Flax does."""
    model = port_of_image_model()
    x = small_images()
    first = OfNnx(nnx.Rngs(0))
    as_in_flax = (None, lambda model, x: model(x.permute(0, 3, 1, 2)))
    comparison = compare_models(first, model, x, calls=as_in_flax, layouts=("NHWC", "NHWC"))
    assert comparison.agree, comparison
    assert not any("was given to the second model as" in note for note in comparison.notes)


def test_images_of_integers_in_layouts_that_are_said() -> None:
    """Truth values are masks, and stay."""
    conv = nnx.Conv(3, 4, (3, 3), padding="VALID", rngs=nnx.Rngs(0))
    image = np.random.default_rng(0).integers(0, 255, (2, 6, 5, 3), np.uint8)
    mask = image[:, :3, :3, :1] > 100
    calls = (
        lambda model, x, mask: model(x / F32(255)) * mask.mean(),
        lambda model, x, mask: model(x / 255) * mask.float().mean() * (mask.shape == (2, 3, 3, 1)),
    )
    port = torch.nn.Conv2d(3, 4, 3)
    assert compare_models(conv, port, image, mask, calls=calls, layouts=("NHWC", "NCHW")).agree


class TakesChannelsFirst(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Conv(4, (3, 3), name="0")(jnp.moveaxis(x, 1, -1)).mean((1, 2))


@pytest.mark.thorough
def test_layouts_of_inputs_that_are_usual_in_the_other_library() -> None:
    """The gradient of the input alone tells the bug."""
    port = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1))
    x = np.moveaxis(small_images(), -1, 1)
    for slope in (1, 0):

        def call(model: Any, x: torch.Tensor, slope: int = slope) -> torch.Tensor:
            x = slope * x + (1 - slope) * x.detach()
            return model(x.permute(0, 3, 1, 2)).mean((2, 3))

        comparison = compare_models(TakesChannelsFirst(), port, x, calls=(None, call), layouts=("NCHW", "NHWC"))
        assert blamed(comparison) == (() if slope else ("", None, "0")), comparison


class Inner(nn.Module):
    """A module that has one layer, so that no other is near it."""

    layer: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x: jax.Array) -> Any:
        return self.layer(name="0")(x)


class OfOneShape(nn.Module):
    """As many places as channels, so that shapes do not tell which axis has these."""

    axes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = jnp.tanh(Inner(functools.partial(nn.Conv, 4, (3,) * self.axes), name="0")(x))
        if self.axes == 2:
            x = Inner(functools.partial(nn.Dropout, 0.5, deterministic=True), name="1")(x)
        return Inner(functools.partial(nn.Dense, 4), name="2")(x).mean((1, 2)[: self.axes])


@pytest.mark.parametrize("jax_first", [True, False])
@pytest.mark.parametrize("axes", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_as_many_places_as_channels(axes: int, jax_first: bool) -> None:
    """A convolution with a window of 1 is a dense layer."""
    convolution = (torch.nn.Conv1d, torch.nn.Conv2d)[axes - 1]
    between = torch.nn.Dropout() if axes == 2 else torch.nn.Identity()
    layers = convolution(4, 4, 3, padding=1), between, convolution(4, 4, 1)
    port = torch.nn.Sequential(*map(torch.nn.Sequential, layers)).eval()
    x = np.random.default_rng(0).normal(size=(2, 4, 4, 4)[: axes + 2]).astype(F32)

    def call(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m[2](m[1](torch.tanh(m[0](x)))).mean((2, 3)[:axes])

    arguments = (OfOneShape(axes), port), (None, call), (("NLC", "NCL"), ("NHWC", "NCHW"))[axes - 1]
    models, calls, layouts = (pair if jax_first else pair[::-1] for pair in arguments)
    comparison = compare_models(*models, x, calls=calls, layouts=layouts)
    assert comparison.agree, comparison


class ReturnsSequences(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(nn.Conv(5, (3,), name="0")(x))


def test_results_with_the_channels_on_another_axis() -> None:
    port = torch.nn.Sequential(torch.nn.Conv1d(5, 5, 3, padding=1))
    x = np.random.default_rng(0).normal(size=(2, 6, 5)).astype(F32)
    calls = None, lambda model, x: model(x).tanh()
    assert compare_models(ReturnsSequences(), port, x, calls=calls, layouts=("NLC", "NCL")).agree
    assert blamed(compare_models(ReturnsSequences(), port, x, layouts=("NLC", "NCL"))) == ("", "0", None)


class ReturnsImages(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Conv(4, (3, 3), name="0")(x)


def test_images_as_results_with_as_many_places_as_channels() -> None:
    port = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, padding=1))
    comparison = compare_models(ReturnsImages(), port, np.random.default_rng(0).normal(size=(2, 4, 4, 4)).astype(F32))
    assert comparison.agree, comparison


class OfEquinox(eqx.Module):
    cell: eqx.nn.LSTMCell

    def __call__(self, x: jax.Array) -> jax.Array:
        zeros = jnp.zeros(5, x.dtype)
        return self.cell(x, (zeros, zeros))[0]


class OfTorch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.LSTMCell(6, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.cell(x)[0]


def test_the_two_biases_of_an_lstm_of_torch() -> None:
    """What the error says makes right ports agree."""
    first, second = OfEquinox(eqx.nn.LSTMCell(6, 5, key=jax.random.key(0))), OfTorch()
    x = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    with pytest.raises(ValueError, match="map bias_ih, fill bias_hh with zeros, and map it to None"):
        compare_models(first, second, x)
    torch.nn.init.zeros_(second.cell.bias_hh)
    comparison = compare_models(first, second, x, mapping={"cell.bias": "cell.bias_ih", "cell.bias_hh": None})
    assert comparison.agree, comparison
