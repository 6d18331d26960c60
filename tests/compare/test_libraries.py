"""`interop.compare_models` of models of Flax, Equinox, Haiku, Keras and torch, and of two of one library."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from interop import compare_models
from tests.compare.models import OfNnx, X, dense, linear, port_of, port_of_image_model, small_images

F32 = np.float32

pytestmark = pytest.mark.usefixtures("seeded")


class OfEquinox(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    pool: eqx.nn.MaxPool2d
    rest: eqx.nn.Sequential

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        self.conv = eqx.nn.Conv2d(3, 4, 3, padding=1, key=keys[0])
        self.norm = eqx.nn.BatchNorm(4, "batch", momentum=0.9, mode="batch")
        self.pool = eqx.nn.MaxPool2d(2, 2)
        dense = eqx.nn.Linear(32, 8, key=keys[1]), eqx.nn.Linear(8, 2, key=keys[2])
        self.rest = eqx.nn.Sequential([dense[0], eqx.nn.LayerNorm(8), eqx.nn.Lambda(jax.nn.relu), dense[1]])

    def __call__(self, x: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        x, state = self.norm(self.conv(x), state)
        return self.rest(self.pool(jax.nn.relu(x)).ravel()), state


def of_haiku() -> Any:
    hk = pytest.importorskip("haiku", reason="Haiku is not installed: it is in the extra test")

    def function(x: jax.Array) -> Any:
        x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(hk.Conv2D(4, 3)(x), is_training=True))
        x = hk.Linear(8)(hk.Flatten()(hk.MaxPool((2, 2, 1), (2, 2, 1), "VALID")(x)))
        return hk.Linear(2)(jax.nn.relu(hk.LayerNorm(-1, True, True)(x)))

    return hk.transform_with_state(function)


def imported_keras() -> Any:
    keras = pytest.importorskip(
        "keras", reason="Keras is not installed: as it is large, it is in the extra frameworks alone"
    )
    if keras.backend.backend() != "jax":
        pytest.skip("Keras runs on another backend; set KERAS_BACKEND=jax")
    return keras


def of_keras() -> Any:
    keras = imported_keras()
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 4, 3)),
            layers.Conv2D(4, 3, padding="same"),
            layers.BatchNormalization(epsilon=1e-5, momentum=0.9),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(8),
            layers.LayerNormalization(epsilon=1e-5),
            layers.ReLU(),
            layers.Dense(2),
        ]
    )


LIBRARIES: dict[str, Callable[[], Any]] = {
    "nnx": lambda: OfNnx(nnx.Rngs(0)),
    "equinox": lambda: eqx.nn.make_with_state(OfEquinox)(jax.random.key(0)),
    "haiku": of_haiku,
    "keras": of_keras,
}
CALLS = {"keras": lambda model, x: model(x, training=True)}


@pytest.mark.parametrize("library", LIBRARIES)
def test_models_of_all_libraries(library: str) -> None:
    """In training; the dense layer takes the image flattened, in another order."""
    model = LIBRARIES[library]()
    x = small_images() if library != "equinox" else small_images().transpose(0, 3, 1, 2)
    comparison = compare_models(model, port_of_image_model(), x, calls=(CALLS.get(library), None))
    assert comparison.agree, comparison
    assert not [note for note in comparison.notes if "precision" in note], comparison
    assert len(comparison.layers) >= 6
    assert len(comparison.mapping.pairs) == 12


def port_of_upsampling(groups: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(4, 8, 3, padding=1, groups=4),
        torch.nn.Tanh(),
        torch.nn.ConvTranspose2d(8, 6, (3, 2), stride=2, groups=groups),
        torch.nn.ConvTranspose2d(6, 4, (2, 3), groups=groups),
    )


class LinenUpsampling(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = jnp.tanh(nn.Conv(8, (3, 3), padding=1, feature_group_count=4)(x))
        x = nn.ConvTranspose(6, (3, 2), strides=(2, 2), padding="VALID")(x)
        return nn.ConvTranspose(4, (2, 3), padding="VALID", transpose_kernel=True)(x)


def nnx_upsampling() -> nnx.Module:
    rngs = nnx.Rngs(0)
    return nnx.Sequential(
        nnx.Conv(4, 8, (3, 3), padding=1, feature_group_count=4, rngs=rngs),
        jnp.tanh,
        nnx.ConvTranspose(8, 6, (3, 2), strides=(2, 2), padding="VALID", rngs=rngs),
        nnx.ConvTranspose(6, 4, (2, 3), padding="VALID", transpose_kernel=True, rngs=rngs),
    )


def equinox_upsampling() -> eqx.Module:
    keys = jax.random.split(jax.random.key(0), 3)
    return eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(4, 8, 3, padding=1, groups=4, key=keys[0]),
            eqx.nn.Lambda(jnp.tanh),
            eqx.nn.ConvTranspose2d(8, 6, (3, 2), stride=2, groups=2, key=keys[1]),
            eqx.nn.ConvTranspose2d(6, 4, (2, 3), groups=2, key=keys[2]),
        ]
    )


def haiku_upsampling() -> Any:
    hk = pytest.importorskip("haiku", reason="Haiku is not installed: it is in the extra test")

    def function(x: jax.Array) -> Any:
        x = jnp.tanh(hk.DepthwiseConv2D(2, 3, padding="SAME")(x))
        x = hk.Conv2DTranspose(6, (3, 2), stride=2, padding="VALID", name="up")(x)
        return hk.Conv2DTranspose(4, (2, 3), padding="VALID")(x)

    return hk.transform(function)


def keras_upsampling() -> Any:
    keras = imported_keras()
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((4, 3, 4)),
            layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2),
            layers.Activation("tanh"),
            layers.Conv2DTranspose(6, (3, 2), strides=2),
            layers.Conv2DTranspose(4, (2, 3)),
        ]
    )


@pytest.mark.parametrize(
    ("model", "groups"),
    [
        (LinenUpsampling, 1),
        pytest.param(nnx_upsampling, 1, marks=pytest.mark.thorough),
        (equinox_upsampling, 2),
        pytest.param(haiku_upsampling, 1, marks=pytest.mark.thorough),
        (keras_upsampling, 1),
    ],
)
def test_depthwise_and_transposed_convolutions(model: Callable[[], Any], groups: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, 4, 4, 3)).astype(F32)
    comparison = compare_models(port_of_upsampling(groups), model(), x)
    assert comparison.agree, comparison
    assert len(comparison.mapping.pairs) == 6
    for pair in comparison.mapping.pairs:
        assert pair.first.value is not None
        np.testing.assert_array_equal(pair.to_first(pair.to_second(pair.first.value)), pair.first.value)


class Noisy(nn.Module):
    """Its kernel is in a box that says how it is sharded, and its random numbers have a name of their own."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        sharded = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
        return nn.Dense(3, kernel_init=sharded)(x) + 0.0 * jax.random.normal(self.make_rng("noise"))


@pytest.mark.parametrize("is_bound", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_boxes_and_names_of_random_numbers_in_linen(is_bound: bool) -> None:
    model, port = Noisy(), torch.nn.Linear(4, 3)
    models = (model.bind(model.init(jax.random.key(0), X)), port) if is_bound else (port, model)
    comparison = compare_models(*models, X)
    assert comparison.agree, comparison
    assert len(comparison.mapping.pairs) == 2


class Sowing(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        self.sow("losses", "size", jnp.abs(x).sum())
        return nn.Dense(3)(x)


def test_what_a_module_of_linen_sows_is_no_parameter() -> None:
    model, port = Sowing(), torch.nn.Linear(4, 3)
    variables = model.init(jax.random.key(0), X)
    assert "losses" in variables
    assert compare_models(model.bind(variables), port, X).agree
    assert compare_models(port, model, X).agree


class Permuted(nn.Module):
    """The order of its columns, and how often it is called, are variables."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        order = self.variable("constants", "order", lambda: jnp.array([2, 0, 1]))
        calls = self.variable("counts", "calls", lambda: jnp.zeros((), jnp.int32))
        calls.value += 1
        return nn.Dense(3)(x)[:, order.value] * calls.value.astype(x.dtype)


@pytest.mark.parametrize("is_bound", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_integers_among_the_variables_of_linen(is_bound: bool) -> None:
    """They are no parameters: a model that is not bound has those that it is initialized to."""
    model, port = Permuted(), torch.nn.Linear(4, 3)
    variables: Any = {"constants": {"order": np.array([1, 2, 0])}, "counts": {"calls": np.int32(4)}}
    model = model.bind(model.init(jax.random.key(0), X) | variables) if is_bound else model
    order, calls = ([1, 2, 0], 5) if is_bound else ([2, 0, 1], 2)

    def permuted(port: Any, x: torch.Tensor) -> Any:
        return port(x)[:, order] * calls

    comparison = compare_models(port, model, X, calls=(permuted, None))
    assert comparison.agree, comparison
    assert len(comparison.mapping.pairs) == 2
    if is_bound:
        assert compare_models(model, model, X, parameters="own").agree


def test_a_layer_that_haiku_makes_in_a_constructor() -> None:
    """Haiku calls it ``net/~/layer``."""
    hk = pytest.importorskip("haiku", reason="Haiku is not installed: it is in the extra test")

    class Net(hk.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = hk.Linear(3, name="layer")

        def __call__(self, x: jax.Array) -> Any:
            return self.layer(x)

    comparison = compare_models(hk.transform(lambda x: Net()(x)), torch.nn.Linear(4, 3), X)
    assert [pair.first.name for pair in comparison.mapping.pairs] == ["net.layer.b", "net.layer.w"]


@pytest.mark.parametrize("is_bound", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_what_a_function_of_haiku_keeps(is_bound: bool) -> None:
    hk = pytest.importorskip("haiku", reason="Haiku is not installed: it is in the extra test")

    def function(x: jax.Array) -> Any:
        scale, count = hk.get_state("scale", (), init=jnp.ones), hk.get_state("count", (), jnp.int32, init=jnp.ones)
        hk.set_state("scale", 2 * scale)
        return hk.Linear(3, name="layer")(x) * scale * count

    class Port(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)
            self.register_buffer("scale", torch.tensor(5.0))

        def forward(self, x: torch.Tensor) -> Any:
            self.scale *= 2
            return self.layer(x) * (self.scale / 2) * (7 if is_bound else 1)

    model: Any = hk.transform_with_state(function)
    if is_bound:
        parameters, _ = model.init(jax.random.key(0), X)
        model = model, parameters, {"~": {"scale": jnp.float32(3.0), "count": jnp.int32(7)}}
    for models in ((model, Port()), (Port(), model)):
        comparison = compare_models(*models, X)
        assert comparison.agree, comparison
        assert len(comparison.mapping.pairs) == 3


@pytest.mark.parametrize("with_state", [True, False])
def test_a_function_of_haiku_without_random_numbers(with_state: bool) -> None:
    hk = pytest.importorskip("haiku", reason="Haiku is not installed: it is in the extra test")
    transform = hk.transform_with_state if with_state else hk.transform
    model = hk.without_apply_rng(transform(lambda x: hk.Linear(3)(x)))
    comparison = compare_models(torch.nn.Linear(4, 3), model, X)
    assert comparison.agree, comparison


def turned(h: Any, angle: Any) -> Any:
    return abs(h * angle + angle**2)


class TurnedInLinen(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return turned(nn.Dense(4, name="layer")(x), self.param("angle", nn.initializers.ones, 4, jnp.complex64))


class TurnedInNnx(nnx.Module):
    def __init__(self) -> None:
        self.layer, self.angle = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), nnx.Param(jnp.ones(4, jnp.complex64))

    def __call__(self, x: jax.Array) -> jax.Array:
        return turned(self.layer(x), self.angle[...])


class TurnedInEquinox(eqx.Module):
    layer: eqx.nn.Linear
    angle: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return turned(self.layer(x), self.angle)


class TurnedInTorch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.angle = linear(), torch.nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> Any:
        return turned(self.layer(x), self.angle)


@pytest.mark.parametrize(
    "make",
    [
        TurnedInLinen,
        TurnedInNnx,
        lambda: TurnedInEquinox(eqx.nn.Linear(4, 4, key=jax.random.key(0)), jnp.ones(4, jnp.complex64)),
        TurnedInTorch,
    ],
    ids=["linen", "nnx", "equinox", "torch"],
)
def test_complex_parameters(make: Callable[[], Any]) -> None:
    """They get values too; of their gradients, JAX has the conjugate of those of torch."""
    comparison = compare_models(TurnedInTorch(), make(), X)
    assert comparison.agree, comparison
    assert len(comparison.mapping.pairs) == 3


class Keeps(nn.Module):
    @nn.compact
    def __call__(self, keep: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.where(keep, nn.Dense(4)(x), 0.0)


class Drops(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(4, 4)

    def forward(self, drop: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.dense(x).masked_fill(drop, 0.0)


class Masking(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return Keeps()(x > 0, x)


class MaskingPort(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Drops()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x <= 0, x)


def test_masks_are_no_inputs_as_other_libraries_may_mean_the_opposite() -> None:
    comparison = compare_models(Masking(), MaskingPort(), X)
    assert comparison.agree, comparison
    assert [judged.name for judged in comparison.layers[1].select("inputs", gradients=False)] == ["0"]


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_both_kinds_of_averages_of_equinox(mode: Any) -> None:
    """Of a batch norm in evaluation; a mean of 3 is subtracted."""
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "batch", mode=mode)
    port = torch.nn.BatchNorm1d(4).eval()
    port.running_mean.fill_(3.0)
    comparison = compare_models(port, (eqx.nn.inference_mode(norm), state), X)
    assert comparison.agree, comparison
    assert len(comparison.mapping.pairs) == 4


class InBfloat16(eqx.Module):
    """Its statistics stay in float32, as usual in mixed precision."""

    layer: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self, key: jax.Array) -> None:
        self.layer = eqx.nn.Linear(4, 4, dtype=jnp.bfloat16, key=key)
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch")

    def __call__(self, x: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        return self.norm(self.layer(x).astype(jnp.float32), state)


def test_statistics_of_another_dtype_than_the_parameters() -> None:
    """A ValueError of Equinox, about a state in bfloat16."""
    port = torch.nn.Sequential(torch.nn.Linear(4, 4, dtype=torch.bfloat16), torch.nn.BatchNorm1d(4, momentum=0.01))
    calls = None, lambda model, x: model[1](model[0](x.bfloat16()).float())
    assert compare_models(eqx.nn.make_with_state(InBfloat16)(jax.random.key(0)), port, X, calls=calls).agree


def test_a_module_of_equinox_without_parameters() -> None:
    """A StopIteration."""
    assert compare_models(eqx.nn.Lambda(jax.nn.relu), torch.nn.ReLU(), X).agree


class TakesKey(eqx.Module):
    layer: eqx.nn.Linear

    def __call__(self, x: jax.Array, scale: jax.Array, key: jax.Array) -> jax.Array:
        return scale * self.layer(x) + 0.0 * jax.random.normal(key)


def test_numbers_and_keys_are_the_same_for_all_samples_of_equinox() -> None:
    model, port = TakesKey(eqx.nn.Linear(4, 3, key=jax.random.key(0))), torch.nn.Linear(4, 3)
    calls = None, lambda model, x, scale, key: scale * model(x)
    assert compare_models(model, port, X, F32(2.0), jax.random.key(0), calls=calls).agree


def test_two_models_of_one_library() -> None:
    first, second = port_of_image_model(), port_of_image_model()
    x = small_images().transpose(0, 3, 1, 2)
    assert compare_models(first, second, x).agree
    second[3] = torch.nn.AvgPool2d(2)
    assert "AvgPool2d" in str(compare_models(first, second, x))


class OfLayers(eqx.Module):
    """A layer in a vmap of its own, and one in a jit."""

    inner: eqx.nn.Linear
    outer: eqx.nn.Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        return eqx.filter_jit(self.outer)(jnp.tanh(jax.vmap(self.inner)(x)).sum(axis=0))


def test_boundaries_within_vmap() -> None:
    keys = jax.random.split(jax.random.key(0))
    model = OfLayers(eqx.nn.Linear(3, 4, key=keys[0]), eqx.nn.Linear(4, 2, key=keys[1]))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.outer(torch.tanh(self.inner(x)).sum(dim=1))

    comparison = compare_models(model, Model(), np.random.default_rng(0).normal(size=(2, 5, 3)).astype(F32))
    assert comparison.agree, comparison
    inner = next(pair for pair in comparison.layers if pair.first.path == "inner")
    assert inner.first.outputs[0].value.shape == inner.second.outputs[0].value.shape == (2, 5, 4)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    file = tmp_path / "parameters.safetensors"
    file.write_bytes(b"")
    with pytest.raises(ModuleNotFoundError, match="pip install safetensors"):
        compare_models(port_of(a=linear()), dense("a"), X, parameters=file)


class Doubled(nnx.Linear):
    def __call__(self, *args: Any) -> jax.Array:
        return 2 * super().__call__(*args)


class DoubledInLinen(nn.Dense):
    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        return 2 * super().__call__(inputs)


class DoubledInTorch(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "model",
    [
        lambda: nnx.Sequential(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), Doubled(4, 4, rngs=nnx.Rngs(0))),
        lambda: nn.Sequential([nn.Dense(4), DoubledInLinen(4)]),
    ],
)
def test_a_method_that_calls_that_of_its_base_class(model: Callable[[], Any]) -> None:
    """It is one call of one module, though modules of the base class are recorded, too."""
    comparison = compare_models(torch.nn.Sequential(linear(), DoubledInTorch(4, 4)), model(), X)
    assert comparison.agree, comparison
    assert len(comparison.all_layers[1]) == 3


class Pair(NamedTuple):
    a: eqx.nn.Linear
    b: eqx.nn.Linear


class InPair(eqx.Module):
    pair: Pair

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.pair.b(jnp.tanh(self.pair.a(x)))


def test_one_array_in_two_places_of_equinox() -> None:
    keys = jax.random.split(jax.random.key(0))
    model = InPair(Pair(eqx.nn.Linear(4, 4, key=keys[0]), eqx.nn.Linear(4, 4, key=keys[1])))
    zeros = jnp.zeros(4)
    model = eqx.tree_at(lambda m: (m.pair.a.bias, m.pair.b.bias), model, (zeros, zeros))
    comparison = compare_models(torch.nn.Sequential(linear(), torch.nn.Tanh(), linear()), model, X)
    assert comparison.agree, comparison
    assert comparison.mapping.as_override()["0.bias"] == "pair.a.bias"
