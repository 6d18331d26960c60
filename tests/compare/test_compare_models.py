"""`interop.compare_models`: fifteen bugs named at the right layer, ties and random numbers told from bugs."""

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
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
from interop.comparison.models.model import JaxModel, Run
from tests.compare.models import Clamped, X, between_0_and_6, blamed, dense, linear, port_of
from tests.compare.ported import BUGS, Network, Port, bound, images

F32 = np.float32

pytestmark = pytest.mark.usefixtures("seeded")

QUICK = (
    *("momentum", "initial statistics", "missing activation", "bound of a clamp", "dropout scale"),
    *("layer-norm axis", "transposed kernel"),
)
"""Bugs in numbers that are kept, in a function, in its settings, in axes and in parameters."""


@pytest.fixture(scope="class")
def answered_once() -> Iterator[None]:
    """The network of Flax is the same in all comparisons of a class: what it answers is computed once."""
    answers: dict[Any, Any] = {}
    answer = JaxModel._run

    def remembered(self: JaxModel, run: Run) -> Any:
        arrays = b"".join(np.asarray(value).tobytes() for value in self.values.values())
        if run.nudges:
            return answer(self, run)
        key = self.call.__name__, run._replace(nudges=None), arrays
        if key not in answers:
            answers[key] = answer(self, run)
        return copy.deepcopy(answers[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JaxModel, "_run", remembered)
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

    @pytest.mark.parametrize(
        "bug", [pytest.param(bug, marks=[pytest.mark.thorough] * (bug not in QUICK)) for bug in BUGS]
    )
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
        marked, meaning = (line for line in str(comparison).splitlines() if line.startswith(">"))
        assert marked.split()[1] == comparison.cause.marked_pair.first.name
        where = "the code" if comparison.cause.is_own_code else "this layer"
        assert meaning.startswith(f"> they first differ in {where}")
        assert ("0.9 in torch is 0.1 in the other model" in comparison.verdict) == (bug == "momentum")

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

    def test_one_model_in_training_mode(self) -> None:
        """In either order: the mode of a module of torch is seen by what it does to its statistics."""
        port = Port().train()
        port.drop.eval()
        first = compare_models(bound(), port, images())
        assert first.verdict.startswith("Values first differ at BatchNorm_0 | bn.")
        assert first.verdict.endswith(
            "The second model is in training mode there, the first uses its running averages."
        )
        second = compare_models(port, bound(), images().transpose(0, 3, 1, 2))
        assert second.verdict.endswith(
            "The first model is in training mode there, the second uses its running averages."
        )

    def test_what_the_report_says(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        for width in (60, 80, 140):
            monkeypatch.setenv("COLUMNS", str(width))
            lines = f"{comparison}\n{eps}\n{comparison.mapping}".splitlines()
            assert max(map(len, lines)) <= min(width, 100)

    @pytest.mark.parametrize(
        "kind",
        ["npz", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("safetensors", "orbax", "state_dict"))],
    )
    def test_parameters_from_files(self, kind: str, tmp_path: Path) -> None:
        variables = jax.tree.map(np.asarray, dict(bound().variables))
        parameters: Any
        if kind == "npz":
            parameters = tmp_path / "parameters.npz"
            wide = jax.tree.map(np.float64, variables)  # which the model takes in its own dtype
            leaves = jax.tree.leaves_with_path(wide)
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
    for allow in (["tie"], "ties"):
        with pytest.raises(ValueError, match=r"pass a list of these: 'ties', 'near ties'"):
            comparison.assert_agree(allow=allow)

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


def assert_random(first: Any, second: Any, call: Any, sides: tuple[int, ...]) -> None:
    comparison = compare_models(first, second, X, calls=(None, call))
    cause = comparison.cause
    assert cause is not None
    assert (cause.finding, cause.layer.first.path, cause.is_gradient) == ("random", "2", False)
    assert {part.random_in for part in cause.parts} == {sides}
    assert "It cannot be judged, as it is random there: with other random numbers," in comparison.verdict
    assert "deterministic=True in linen" in comparison.verdict
    with pytest.raises(AssertionError, match="random"):
        comparison.assert_agree(allow=["ties"])


@pytest.mark.thorough
def test_dropout_of_nnx_and_of_equinox_is_random() -> None:
    port = with_dropout(torch.nn.Tanh(), 0.5).eval()
    keys = jax.random.split(jax.random.key(0), 5)
    of_equinox = EquinoxWithDropout(
        eqx.nn.Linear(4, 4, key=keys[0]), eqx.nn.Dropout(0.5), eqx.nn.Linear(4, 2, key=keys[1])
    )

    def with_keys(model: Any, x: jax.Array) -> jax.Array:
        return jax.vmap(model)(x, keys[2:])

    assert_random(port, NnxWithDropout(), None, (1,))
    assert_random(port, of_equinox, with_keys, (1,))


def test_dropout_is_random_and_no_bug() -> None:
    port = with_dropout(torch.nn.Tanh(), 0.5)
    torch.manual_seed(1)  # seeding with the same number would draw the same numbers
    state = torch.get_rng_state()
    evaluated = copy.deepcopy(port).eval()
    assert_random(port, WithDropout(0.5), None, (0, 1))
    assert_random(evaluated, WithDropout(0.5), None, (1,))
    assert_random(port, WithDropout(0.0), None, (0,))
    assert compare_models(evaluated, WithDropout(0.0), X).agree
    assert compare_models(port, copy.deepcopy(port), X).agree  # both draw the same numbers
    assert torch.equal(torch.get_rng_state(), state)


def test_nan_on_both_sides_is_named() -> None:
    """It is equal, and hides that the last activations differ."""

    class Rooted(torch.nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self[1](self[0](x)).sqrt().clamp(max=self.bound)

    first, second = (Rooted(torch.nn.Linear(4, 4), torch.nn.Identity()) for _ in range(2))
    first.bound, second.bound = 1.0, 2.0
    for parameter in first.parameters():
        torch.nn.init.constant_(parameter, -1.0)
    comparison = compare_models(first, second, np.ones((2, 4), np.float32))
    assert "At 3 of the layers both have NaN, which counts as equal" in comparison.verdict
    assert "NaN" not in compare_models(first[0], second[0], np.ones((2, 4), np.float32)).verdict


@pytest.mark.parametrize("rate", [0.5, pytest.param(0.0, marks=pytest.mark.thorough)])
def test_a_bug_before_dropout_is_a_bug(rate: float) -> None:
    comparison = compare_models(with_dropout(torch.nn.Sigmoid(), rate), WithDropout(rate), X)
    assert comparison.cause is not None
    assert comparison.cause.finding == "port"
    assert blamed(comparison) == ("", "0 | Dense_0", "2 | Dropout_0")


class Detached(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.detach())


class Skipping(torch.nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self:
            x = layer(x) if torch.rand(()) < 0.5 else x
        return x


def test_a_model_that_calls_layers_at_random_is_refused() -> None:
    layers = [torch.nn.Linear(4, 4) for _ in range(8)]
    with pytest.raises(
        ValueError, match=r"Skipping .* calls other layers when it is run again. Turn off what is random"
    ):
        compare_models(Skipping(*layers), torch.nn.Sequential(*layers), np.eye(4, dtype=F32))


def test_a_bug_of_the_backward_pass_is_named() -> None:
    port = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), Detached(3, 2))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = jnp.tanh(nn.Dense(3)(x))
            return nn.Dense(2)(x)

    comparison = compare_models(port, Model(), np.eye(4, dtype=F32))
    assert blamed(comparison) == ("2 | Dense_1",)
    assert "Values agree; gradients first differ" in comparison.verdict
    assert "not explained by ties or rounding" in comparison.verdict
    port = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    detached = compare_models(port, Model(), np.eye(4, dtype=F32), calls=(lambda m, x: m[2](m[:2](x).detach()), None))
    assert blamed(detached) == ("", "0 | Dense_0", "2 | Dense_1")


class Scaled(torch.nn.Module):
    def __init__(self, learns: bool) -> None:
        super().__init__()
        self.scale, self.layer, self.learns = torch.nn.Parameter(torch.ones(4)), torch.nn.Linear(4, 3), learns

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * (self.scale if self.learns else self.scale.detach()))


def test_a_parameter_that_a_models_own_code_reads_is_named() -> None:
    verdict = compare_models(Scaled(learns=True), Scaled(learns=False), np.eye(4, dtype=F32)).verdict
    assert verdict.startswith("Values agree; gradients first differ in the models' own code, before layer: scale. That")


def test_hooks_of_parameters_change_gradients() -> None:
    first = linear()
    second = copy.deepcopy(first)
    second.bias.register_hook(lambda gradient: 2 * gradient)
    assert "gradients first differ at Linear: bias" in compare_models(first, second, X).verdict
    first.bias.register_hook(lambda gradient: 2 * gradient)
    assert compare_models(first, second, X).agree
    overwritten = torch.nn.Embedding(3, 2, max_norm=0.5)
    hooked = copy.deepcopy(overwritten)
    hooked.weight.register_hook(lambda gradient: 2 * gradient)
    assert not compare_models(overwritten, hooked, np.array([0, 1])).agree


@pytest.mark.parametrize("context", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_hooks_of_what_a_model_computes_change_gradients(context: Any) -> None:
    class Hooked(torch.nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.layer, self.factor = linear(), factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            y.register_hook(lambda gradient: self.factor * gradient)
            return y.tanh()

    with context():
        assert compare_models(Hooked(1.0), Hooked(1.0), X).agree
        assert blamed(compare_models(Hooked(1.0), Hooked(2.0), X)) == ("layer",)


def test_gradients_may_be_sparse() -> None:
    first, second = (torch.nn.Embedding(3, 2, sparse=sparse) for sparse in (False, True))
    assert compare_models(first, second, np.array([0, 1])).agree


def test_a_parameter_that_one_model_freezes_is_noted() -> None:
    first = torch.nn.Sequential(linear(), linear())
    second = copy.deepcopy(first)
    second[0].requires_grad_(False)
    (note,) = compare_models(first, second, X).notes
    assert note.startswith("In Sequential (torch ")
    assert "requires_grad is False for 0.weight, 0.bias, and the counterpart is trained" in note
    assert not compare_models(second, second, X).notes


def test_bad_arguments() -> None:
    model = port_of(a=linear())
    with pytest.raises(TypeError, match=r"first is the class ReLU; pass a module of torch\.nn"):
        compare_models(torch.nn.ReLU, torch.nn.ReLU(), X)
    with pytest.raises(TypeError, match=r"second is a function; pass a module of torch\.nn"):
        compare_models(model, lambda x: x, X)
    dense_and_variables = nn.Dense(2), nn.Dense(2).init(jax.random.key(0), X)
    with pytest.raises(TypeError, match=r"second is a tuple; .* of linen module\.bind\(variables\)"):
        compare_models(model, dense_and_variables, X)
    with pytest.raises(TypeError, match="input 0 is a dict of arrays"):
        compare_models(model, model, {"x": X})
    with pytest.raises(TypeError, match="calls is None; pass two functions"):
        compare_models(model, model, X, calls=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="layouts is"):
        compare_models(model, model, X, layouts=("NHWC", "NCH"))
    with pytest.raises(ValueError, match="neither model has parameters"):
        compare_models(dense("a"), dense("a"), X)
    with pytest.raises(
        ValueError, match=r"what Model .* returns has no elements, .*; input 0 has shape \(0, 4\)\. Pass"
    ):
        compare_models(model, model, X[:0])
    with pytest.raises(ValueError, match=r"Model .* has no numbers yet in a\.weight, a\.bias; call a lazy module once"):
        compare_models(model, port_of(a=torch.nn.LazyLinear(4)), X)
    with pytest.raises(ValueError, match=r"Linear .* has no numbers yet in weight, bias; .* on the device meta"):
        compare_models(linear().to("meta"), linear(), X)
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
    with pytest.raises(ValueError, match=r"parameters has a\.weight of shape \(3, 4\); Model has \(4, 4\)"):
        compare_models(model, dense("a"), X, parameters={"a.weight": X, "a.bias": X[0]})
    with pytest.raises(ValueError, match=r"parameters is 'none\.bin'; pass the path"):
        compare_models(model, model, X, parameters="none.bin")


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


class ClampedInJax(nn.Module):
    """The one of torch with relu6, whose gradient on a bound is another than that of maximum."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.relu6(nn.BatchNorm(use_running_average=False, momentum=0.9, name="norm")(x))


@pytest.mark.thorough
def test_ties_are_no_bug_where_a_batch_norm_trains() -> None:
    """Its unbiased variance differs, too; a wrong momentum is graver than ties."""
    port = Clamped(between_0_and_6)
    comparison = compare_models(port, ClampedInJax(), X)
    assert comparison.cause is not None
    assert (comparison.cause.is_gradient, comparison.cause.finding) == (True, "ties")
    assert {j.finding for pair in comparison.layers for j in pair.select("state", gradients=False)} >= {"library"}
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


@pytest.mark.thorough
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


class TrainsScale(nn.Module):
    """Trains its scale, which the port has as a buffer."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3, name="dense")(x) * self.param("scale", nn.initializers.ones, (3,))


class KeepsScale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(4, 3)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Any) -> Any:
        return self.dense(x) * self.scale


@pytest.mark.parametrize("is_first", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_a_parameter_that_one_model_trains_is_noted(is_first: bool) -> None:
    models = (TrainsScale(), KeepsScale()) if is_first else (KeepsScale(), TrainsScale())
    comparison = compare_models(*models, np.linspace(-1, 1, 20, dtype=F32).reshape(5, 4))
    assert comparison.agree, comparison
    (note,) = comparison.notes
    assert note.startswith("scale is trained in TrainsScale (")
    assert "scale is not in KeepsScale (" in note


class RectifiedInEquinox(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(self.second(jax.nn.hard_tanh(jax.nn.relu(self.first(x)))))


class RectifiedInLinen(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(nn.Dense(2)(jax.nn.hard_tanh(jax.nn.relu(nn.Dense(3)(x)))))


class Rectified(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.hardtanh(self.first(x).relu())
        return self.second(hidden).relu()


@pytest.mark.parametrize("library", [pytest.param("equinox", marks=pytest.mark.thorough), "linen"])
def test_ties_are_those_of_the_cause(library: str) -> None:
    """The relu behind the second layer is on ties too, in both models, and is no part of the cause."""
    port, rng = Rectified(), np.random.default_rng(0)
    with torch.no_grad():
        for parameter in port.parameters():
            parameter.copy_(torch.from_numpy(rng.integers(-1, 2, parameter.shape).astype(F32)))
    keys = jax.random.split(jax.random.key(0))
    original = {
        "equinox": RectifiedInEquinox(eqx.nn.Linear(4, 3, key=keys[0]), eqx.nn.Linear(3, 2, key=keys[1])),
        "linen": RectifiedInLinen(),
    }[library]
    x = rng.integers(-1, 2, (8, 4)).astype(F32)
    comparison = compare_models(port, original, x)
    assert comparison.cause is not None
    assert comparison.cause.finding == "ties"
    assert comparison.cause.is_own_code

    first = port.first(torch.from_numpy(x))
    second = port.second(torch.nn.functional.hardtanh(first.relu()))
    assert (second == 0).any()
    expected = {"relu": (first == 0).sum().item(), "hardtanh": (first == 1).sum().item()}
    assert comparison.ties is not None
    assert [{line.op: line.tied for line in report.lines} for report in comparison.ties] == [expected, expected]


def test_a_compiled_model_is_run_as_it_was_written() -> None:
    """Dynamo could not trace the hooks that mark boundaries."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Hardtanh(), torch.nn.Linear(4, 2))
    compiled_in_place = copy.deepcopy(model)
    compiled_in_place.compile(backend="eager")
    x = np.linspace(-1, 1, 15, dtype=F32).reshape(5, 3)
    for compiled in (torch.compile(model, backend="eager"), compiled_in_place):
        assert compare_models(model, compiled, x).verdict.startswith("They agree")
    other = torch.compile(torch.nn.Sequential(model[0], torch.nn.Tanh(), model[2]), backend="eager")
    assert not compare_models(model, other, x).verdict.startswith("They agree")


def test_a_module_of_torch_script_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    scripted = torch.jit.script(model)
    for wrong, where in ((scripted, ""), (torch.nn.Sequential(torch.nn.Identity(), scripted), " at 1")):
        message = rf"is made by torch\.jit\.script{where}, and takes no hooks.*; pass the module that it was made of"
        with pytest.raises(TypeError, match=message):
            compare_models(model, wrong, X)


class Fails(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, x: torch.Tensor) -> Any:
        raise RuntimeError(f"not for {self.inner(x).shape}")


class Catches(torch.nn.Module):
    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.fails, self.a, self.b, self.activation = Fails(), linear(), linear(), activation

    def forward(self, x: torch.Tensor) -> Any:
        with contextlib.suppress(RuntimeError):
            x = self.fails(x)
        return self.b(self.activation(self.a(x)))


class FailsInLinen(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        raise RuntimeError(f"not for {nn.Dense(4, name='inner')(x).shape}")


class CatchesInLinen(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        with contextlib.suppress(RuntimeError):
            x = FailsInLinen(name="fails")(x)
        return nn.Dense(4, name="b")(jnp.tanh(nn.Dense(4, name="a")(x)))


@pytest.mark.parametrize("other", [lambda: Catches(torch.tanh), CatchesInLinen], ids=["torch", "linen"])
def test_an_error_that_a_model_catches(other: Any) -> None:
    """The layer that raised has ended."""
    comparison = compare_models(Catches(torch.tanh), other(), X)
    assert comparison.agree, comparison
    assert [layer.path for layer in comparison.all_layers[1] if layer.parent == 0] == ["fails", "a", "b"]
    assert blamed(compare_models(Catches(torch.sin), other(), X)) == ("", "a", "b")
