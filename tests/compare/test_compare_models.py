"""`interop.compare_models`: fifteen bugs named at the right layer, ties told from bugs, mappings, files, libraries."""

import copy
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
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

from interop import ModelComparison, compare_models
from interop.comparison.models.model import JaxModel, Run
from tests.compare.ported import BUGS, Network, Port, bound, images

F32 = np.float32


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="class")
def answered_once() -> Iterator[None]:
    """The network of Flax is the same in all comparisons of a class: what it answers is computed once."""
    answers: dict[Any, Any] = {}
    answer = JaxModel.answer

    def remembered(self: JaxModel, values: Any, orders: Any, run: Run) -> Any:
        arrays = b"".join(np.asarray(value).tobytes() for value in values.values())
        if run.nudges:
            return answer(self, values, orders, run)
        key = self.call.__name__, run._replace(nudges=None), arrays
        if key not in answers:
            answers[key] = answer(self, values, orders, run)
        return copy.deepcopy(answers[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JaxModel, "answer", remembered)
        yield


def in_training(model: Any, x: Any) -> Any:
    return model(x, train=True)


def with_values_of_network(port: Port) -> Port:
    """The port, with the parameters of the network, as a conversion writes them."""
    arrays = {p.second.name: p.to_second(p.first.value) for p in mapping_of_port().pairs if p.first.value is not None}
    port.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in arrays.items()}, strict=False)
    return port


@functools.cache
def mapping_of_port() -> Any:
    return compare_models(bound(), Port().eval(), images()).mapping


def blamed(comparison: ModelComparison) -> tuple[Any, ...]:
    """As in `BUGS`."""
    cause = comparison.cause
    if cause is None:
        return ()
    layer = cause.layer.name if cause.layer.first.path else ""
    ends = [end and end.name for end in (cause.after, cause.before)]
    return (layer, *ends) if cause.is_own_code else (layer,)


@pytest.mark.usefixtures("answered_once")
class TestOfNetworkAndPort:
    def test_they_agree(self) -> None:
        comparison = compare_models(bound(), Port().eval(), images())
        assert comparison.agree, comparison
        comparison.assert_agree()
        assert len(comparison.layers) == 15
        assert {p.second.name: p.first.name for p in comparison.mapping.pairs if "attn" in p.second.name} == {
            f"attn.{theirs}.{leaf}": f"Attention_0.{ours}.{kernel}"
            for theirs, ours in {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}.items()
            for leaf, kernel in {"weight": "kernel", "bias": "bias"}.items()
        }
        # The gradient of a bias before a softmax is 0 to within rounding, and that is no bug.
        (key,) = [pair for pair in comparison.layers if pair.first.path == "Attention_0.key"]
        assert key.finding(gradients=True) == "rounding"

    @pytest.mark.parametrize("bug", BUGS)
    def test_a_bug_is_named_at_its_layer(self, bug: str) -> None:
        port, given = Port(bug).eval(), {}
        if bug == "momentum":
            port.train().drop.eval()
            given = {"calls": (in_training, None)}
        if bug == "initial statistics":
            with_values_of_network(port).bn.running_var.zero_()
            given = {"parameters": "own"}
        comparison = compare_models(bound(), port, images(), **given)  # type: ignore[arg-type]
        assert blamed(comparison) == BUGS[bug], comparison
        assert comparison.cause is not None
        assert comparison.cause.finding == "port"
        assert all(len(line) <= 100 for line in str(comparison).splitlines())
        with pytest.raises(AssertionError, match=r"not\s+explained\s+by\s+ties\s+or\s+rounding"):
            comparison.assert_agree(allow=["ties"])

    @pytest.mark.thorough
    def test_both_directions_and_own_parameters(self) -> None:
        port = with_values_of_network(Port("eps").eval())
        comparison = compare_models(port, Network(), images().transpose(0, 3, 1, 2))
        assert blamed(comparison) == ("norm | LayerNorm_0",)
        assert compare_models(bound(), with_values_of_network(Port().eval()), images(), parameters="own").agree

    def test_unbiased_variance_is_a_matter_of_libraries(self) -> None:
        port = Port().train()
        port.drop.eval()
        comparison = compare_models(bound(), port, images(), calls=(in_training, None))
        assert comparison.agree, comparison
        assert "unbiased variance" in comparison.verdict

    def test_what_the_report_says(self, tmp_path: Path) -> None:
        comparison = compare_models(bound(), Port("pooling kind").eval(), images())
        assert [layer.settings for layer in comparison.cause.between[1]] == [  # type: ignore[union-attr]
            "AvgPool2d(kernel_size=2, stride=2, padding=0)"
        ]
        assert "Only the second model calls there: pool = AvgPool2d" in str(comparison)
        assert "Input 0 of shape (2, 8, 8, 3) was given to the second model as (2, 3, 8, 8)." in str(comparison)
        comparison.plot(tmp_path / "layers.png")
        assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")
        eps = compare_models(bound(), Port("eps").eval(), images())
        assert "epsilon=1e-05" in str(eps)
        assert "eps=0.001" in str(eps)

    @pytest.mark.parametrize(
        "kind",
        ["npz", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("safetensors", "orbax", "state_dict"))],
    )
    def test_parameters_from_files(self, kind: str, tmp_path: Path) -> None:
        variables = jax.tree.map(np.asarray, dict(bound().variables))
        parameters: Any
        if kind == "npz":
            parameters = tmp_path / "parameters.npz"
            leaves = jax.tree.leaves_with_path(variables)
            np.savez(parameters, **{"/".join(key.key for key in path): leaf for path, leaf in leaves})
        elif kind == "safetensors":
            numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
            parameters = tmp_path / "parameters.safetensors"
            state = with_values_of_network(Port()).state_dict()
            numpy.save_file({name: tensor.numpy() for name, tensor in state.items()}, parameters)
        elif kind == "orbax":
            import orbax.checkpoint

            parameters = tmp_path / "checkpoint"
            with orbax.checkpoint.StandardCheckpointer() as checkpointer:
                checkpointer.save(parameters, variables)
        else:
            parameters = with_values_of_network(Port()).state_dict()
        comparison = compare_models(Network(), Port().eval(), images(), parameters=parameters)
        assert comparison.agree, comparison
        # The values are those of the file: with other ones, other values would cross the boundaries.
        expected = compare_models(bound(), Port().eval(), images()).layers[-1].first.outputs[0].value
        np.testing.assert_allclose(comparison.layers[-1].first.outputs[0].value, expected, rtol=1e-6)


class HardTanh(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = jax.nn.hard_tanh(nn.Dense(3)(x))
        return nn.Dense(2)(x)


def test_ties_are_told_from_bugs() -> None:
    """Weights and inputs are small integers, so that many values are exactly on a bound."""
    port = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Hardtanh(), torch.nn.Linear(3, 2))
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for parameter in port.parameters():
            parameter.copy_(torch.from_numpy(rng.integers(-1, 2, parameter.shape).astype(F32)))
    x = rng.integers(-1, 2, (8, 4)).astype(F32)
    comparison = compare_models(port, HardTanh(), x)
    assert comparison.cause is not None
    assert blamed(comparison) == ("", "0 | Dense_0", "2 | Dense_1")
    assert (comparison.cause.is_gradient, comparison.cause.finding) == (True, "ties")
    assert "under min_norm they agree" in comparison.verdict
    on_ties = (np.abs(comparison.layers[1].first.outputs[0].value) == 1).sum()
    assert on_ties > 4
    assert comparison.ties is not None
    assert [report.tied for report in comparison.ties] == [on_ties, on_ties]
    comparison.assert_agree(allow=["ties"])
    with pytest.raises(AssertionError):
        comparison.assert_agree()

    port[1].max_val = 1.5
    assert compare_models(port, HardTanh(), x).cause.finding == "port"  # type: ignore[union-attr]


class WithDropout(nn.Module):
    rate: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Dropout(self.rate, deterministic=False)(jnp.tanh(nn.Dense(4)(x)))
        return nn.Dense(2)(x)


class NnxWithDropout(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first, self.second = nnx.Linear(4, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.second(self.drop(jnp.tanh(self.first(x))))


class EquinoxWithDropout(eqx.Module):
    first: eqx.nn.Linear
    drop: eqx.nn.Dropout
    second: eqx.nn.Linear

    def __call__(self, x: jax.Array, key: jax.Array) -> jax.Array:
        return self.second(self.drop(jnp.tanh(self.first(x)), key=key))


def with_dropout(activation: torch.nn.Module, rate: float) -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), activation, torch.nn.Dropout(rate), torch.nn.Linear(4, 2))


def test_dropout_is_random_and_no_bug() -> None:
    port = with_dropout(torch.nn.Tanh(), 0.5)
    torch.manual_seed(1)  # seeding with the same number would draw the same numbers
    state = torch.get_rng_state()
    evaluated = copy.deepcopy(port).eval()
    keys = jax.random.split(jax.random.key(0), 5)
    of_equinox = EquinoxWithDropout(
        eqx.nn.Linear(4, 4, key=keys[0]), eqx.nn.Dropout(0.5), eqx.nn.Linear(4, 2, key=keys[1])
    )

    def with_keys(model: Any, x: jax.Array) -> jax.Array:
        return jax.vmap(model)(x, keys[2:])

    for first, second, call, sides in (
        (port, WithDropout(0.5), None, (0, 1)),
        (evaluated, WithDropout(0.5), None, (1,)),
        (port, WithDropout(0.0), None, (0,)),
        (evaluated, NnxWithDropout(), None, (1,)),
        (evaluated, of_equinox, with_keys, (1,)),
    ):
        comparison = compare_models(first, second, X, calls=(None, call))
        cause = comparison.cause
        assert cause is not None
        assert (cause.finding, cause.layer.first.path, cause.is_gradient) == ("random", "2", False)
        assert {part.random_in for part in cause.parts} == {sides}
        assert "That is random: with other random numbers," in comparison.verdict
        assert "deterministic=True in linen" in comparison.verdict
        with pytest.raises(AssertionError, match="random"):
            comparison.assert_agree(allow=["ties"])
    assert compare_models(evaluated, WithDropout(0.0), X).agree
    assert compare_models(port, copy.deepcopy(port), X).agree  # both draw the same numbers
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("rate", [0.5, 0.0])
def test_a_bug_before_dropout_is_a_bug(rate: float) -> None:
    comparison = compare_models(with_dropout(torch.nn.Sigmoid(), rate), WithDropout(rate), X)
    assert comparison.cause is not None
    assert comparison.cause.finding == "port"
    assert blamed(comparison) == ("", "0 | Dense_0", "2 | Dropout_0")


class Detached(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.detach())


def test_a_bug_of_the_backward_pass_is_named() -> None:
    port = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), Detached(3, 2))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = jnp.tanh(nn.Dense(3)(x))
            return nn.Dense(2)(x)

    comparison = compare_models(port, Model(), np.eye(4, dtype=F32))
    assert blamed(comparison) == ("2 | Dense_1",)
    assert "Values agree; gradients part" in comparison.verdict
    assert "not explained by ties or rounding" in comparison.verdict


# Libraries.


def port_of_image_model() -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(inplace=True),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 8),
        torch.nn.LayerNorm(8),
        torch.nn.ReLU(inplace=True),
        torch.nn.Linear(8, 2),
    )


def small_images() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(3, 8, 4, 3)).astype(F32)


class OfNnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(3, 4, (3, 3), padding=1, rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(32, 8, rngs=rngs), nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)])
        self.head = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        for layer in self.layers:
            x = layer(x)
        return self.head(nnx.relu(x))


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
        (nnx_upsampling, 1),
        (equinox_upsampling, 2),
        (haiku_upsampling, 1),
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


# The mapping.


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


def dense(*names: str) -> nn.Module:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for name in names:
                x = nn.LayerNorm(name=name)(x) if name.startswith("norm") else jnp.tanh(nn.Dense(4, name=name)(x))
            return x

    return Model()


def port_of(**layers: torch.nn.Module) -> torch.nn.Module:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, layer in layers.items():
                self.add_module(name, layer)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.children():
                x = layer(x) if isinstance(layer, torch.nn.LayerNorm) else torch.tanh(layer(x))
            return x

    return Model()


def linear() -> torch.nn.Linear:
    return torch.nn.Linear(4, 4)


X = np.random.default_rng(0).normal(size=(3, 4)).astype(F32)


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


def test_shortcuts_may_run_before_and_behind_their_blocks() -> None:
    comparison = compare_models(PortedShortcut(), Shortcut(), X)
    assert comparison.agree, comparison
    mapping = comparison.mapping.as_override()
    assert mapping["blocks.1.down.1.weight"] == "LayerNorm_5.scale"


def test_names_before_order() -> None:
    swapped = port_of(b=linear(), a=linear())
    mapping = compare_models(swapped, dense("a", "b"), X).mapping
    assert mapping.as_override()["a.weight"] == "a.kernel"
    assert str(mapping).splitlines()[1].split() == ["b.weight", "4×4", "b.kernel", "4×4", "name"]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"c": "a"}, "mapping names 'c', which is no parameter or module of Model"),
        ({"a": "c"}, "mapping names 'c', which is no parameter or module of Model"),
        ({"a.weight": "a.bias"}, r"mapping makes a.weight of shape \(4, 4\) a.bias of shape \(4,\)"),
    ],
)
def test_bad_mappings(mapping: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare_models(port_of(a=linear()), dense("a"), X, mapping=mapping)


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


def test_bad_arguments() -> None:
    model = port_of(a=linear())
    with pytest.raises(TypeError, match=r"second is a function; pass a module of torch\.nn"):
        compare_models(model, lambda x: x, X)
    with pytest.raises(TypeError, match="input 0 is a dict of arrays"):
        compare_models(model, model, {"x": X})
    with pytest.raises(TypeError, match="calls is None; pass two functions"):
        compare_models(model, model, X, calls=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="layouts is"):
        compare_models(model, model, X, layouts=("NHWC", "NCH"))
    with pytest.raises(ValueError, match="neither model has parameters"):
        compare_models(dense("a"), dense("a"), X)
    with pytest.raises(ValueError, match="result 0 has shape"):
        compare_models(model, model, X, calls=(lambda model, x: model(x).sum(), None))
    with pytest.raises(
        ValueError, match=r"returns floats \(3, 4\); Model .* floats \(3, 4\), floats \(3, 4\)\. Choose"
    ):
        compare_models(model, model, X, calls=(None, lambda model, x: (model(x), model(x))))
    with pytest.raises(TypeError, match="parameters is a int; pass a tree"):
        compare_models(model, model, X, parameters=3)
    with pytest.raises(ValueError, match=r"names of neither model: of Model are missing a\.weight, a\.bias"):
        compare_models(model, dense("a"), X, parameters={"b": X})
    with pytest.raises(ValueError, match=r"parameters is 'none\.bin'; pass the path"):
        compare_models(model, model, X, parameters="none.bin")


def test_an_input_of_float64_beside_parameters_of_float32() -> None:
    """As NumPy makes them unless told otherwise."""
    wide = X.astype(np.float64)
    for first, second in ((port_of(a=linear()), dense("a")), (dense("a"), port_of(a=linear()))):
        with pytest.raises(ValueError, match=r"input 0 is of float64.* of float32; pass input\.astype\('float32'\)"):
            compare_models(first, second, wide)
    doubled = [port_of(a=linear()).double() for _ in range(2)]
    assert compare_models(*doubled, wide).agree


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    file = tmp_path / "parameters.safetensors"
    file.write_bytes(b"")
    with pytest.raises(ModuleNotFoundError, match="pip install safetensors"):
        compare_models(port_of(a=linear()), dense("a"), X, parameters=file)


def test_layouts_of_inputs() -> None:
    """A torch model that takes images as Flax does."""
    model = port_of_image_model()
    x = small_images()
    first = OfNnx(nnx.Rngs(0))
    as_in_flax = (None, lambda model, x: model(x.permute(0, 3, 1, 2)))
    comparison = compare_models(first, model, x, calls=as_in_flax, layouts=("NHWC", "NHWC"))
    assert comparison.agree, comparison
    assert not any("was given to the second model as" in note for note in comparison.notes)


def test_results_are_data() -> None:
    comparison = compare_models(port_of(a=linear()), port_of(a=linear()), X)
    assert dataclasses.is_dataclass(comparison)
    (model, layer) = comparison.layers
    assert (model.parent, layer.parent) == (None, 0)
    assert {(j.what, j.is_gradient) for j in layer.judged} == {
        ("inputs", False),
        ("inputs", True),
        ("outputs", False),
        ("outputs", True),
        ("parameters", True),
    }


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


class Clamped(torch.nn.Module):
    """A batch norm whose result is 0, and so on a bound."""

    def __init__(self, clamp: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        torch.nn.init.zeros_(self.norm.weight)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.clamp = clamp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.clamp(self.norm(x))


def between_0_and_6(x: torch.Tensor) -> torch.Tensor:
    """With half of the gradient at the bounds in every version of torch."""
    return torch.minimum(torch.maximum(x, torch.zeros_like(x)), torch.full_like(x, 6.0))


def test_buffers_stay_as_they_are() -> None:
    models = Clamped(between_0_and_6), Clamped(torch.nn.functional.relu6)
    before = [copy.deepcopy(dict(model.named_buffers())) for model in models]
    comparison = compare_models(*models, X)
    assert comparison.ties is not None
    for model, buffers in zip(models, before, strict=True):
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, buffers[name]), name


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


class Scaled(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.dense, self.factor = linear(), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(x) * self.factor


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
    @nn.compact
    def __call__(self, x: jax.Array) -> Any:
        a = nn.Dense(4)(x)
        return ({"logits": nn.Dense(4)(a), "aux": {"z": 2 * a, "a": a}},)


class PortOfNamed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = linear(), linear()

    def forward(self, x: torch.Tensor) -> Any:
        a = self.first(x)
        return ({"logits": self.second(a), "aux": {"z": 2 * a, "a": a}},)


def test_results_in_dicts_are_paired_by_key() -> None:
    """JAX sorts the keys, torch does not; the model gets its dicts back in its own order."""
    port = torch.nn.ModuleDict({"inner": PortOfNamed()})
    orders = []

    def called(model: Any, x: torch.Tensor) -> Any:
        (result,) = model["inner"](x)
        orders.append([*result, *result["aux"]])
        return (result,)

    comparison = compare_models(port, Named(), X, calls=(called, None))
    assert comparison.agree, comparison
    assert orders
    assert all(order == ["logits", "aux", "z", "a"] for order in orders)


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


class ClampedInJax(nn.Module):
    """The one of torch with relu6, whose gradient on a bound is another than that of maximum."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.relu6(nn.BatchNorm(use_running_average=False, momentum=0.9, name="norm")(x))


def test_ties_are_no_bug_where_a_batch_norm_trains() -> None:
    """Its unbiased variance differs, too; a wrong momentum is graver than ties."""
    port = Clamped(between_0_and_6)
    comparison = compare_models(port, ClampedInJax(), X)
    assert comparison.cause is not None
    assert (comparison.cause.is_gradient, comparison.cause.finding) == (True, "ties")
    assert {j.finding for pair in comparison.layers for j in pair.those("state", gradients=False)} >= {"library"}
    port.norm.momentum = 0.5
    wrong = compare_models(port, ClampedInJax(), X).cause
    assert wrong is not None
    assert (wrong.finding, wrong.layer.name, wrong.parts[0].what) == ("port", "norm", "state")


class Scores(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        q, k = nn.Dense(4, name="q")(x), nn.Dense(4, name="k")(x)
        return q @ k.swapaxes(1, 2)


class PortedScores(torch.nn.Module):
    def __init__(self, *, is_transposed: bool) -> None:
        super().__init__()
        self.q, self.k = linear(), linear()
        self.is_transposed = is_transposed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.q(x) @ self.k(x).mT
        return scores.mT if self.is_transposed else scores


class InLayer(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(Scores(name="0")(x).sum(-1))


class PortInLayer(torch.nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(super().forward(x).sum(-1))


class Convolutions(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Conv(4, (3,))(jnp.tanh(nn.Conv(4, (3,))(x)))


def test_a_transposition_is_not_hidden() -> None:
    """A square of scores has the same shape transposed; so have images as long as they have channels."""
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(F32)
    for is_transposed in (False, True):
        ports = [PortedScores(is_transposed=is_transposed) for _ in range(2)]
        whole, inner = compare_models(Scores(), ports[0], x), compare_models(InLayer(), PortInLayer(ports[1]), x)
        assert whole.agree == inner.agree == (not is_transposed)
        if is_transposed:
            assert whole.cause is not None
            assert not whole.cause.is_gradient
            assert blamed(inner)[0] == "0"
    convolutions = [torch.nn.Conv1d(4, 4, 3, padding=1) for _ in range(2)]
    images = torch.nn.Sequential(convolutions[0], torch.nn.Tanh(), convolutions[1])
    as_in_flax = (None, lambda model, x: model(x.mT).mT)
    assert compare_models(Convolutions(), images, x[:, :4], calls=as_in_flax).agree
