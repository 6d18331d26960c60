"""`interop.compare`: ties told from bugs, for functions, modules and results of every kind."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

import interop
from interop import Comparison, compare, record
from tests.compare.clipped import AT, findings, in_jax, jax_clip, jax_hard, printed, torch_clamp

F32 = np.float32

WEIGHTS = np.array([[108, 111, 181, 128, 131], [101, 171, 76, 136, 191]]) / 128
"""Of the first numbers in the first two leaves."""
UNREACHED = "a tie that min_norm does not reach (as in a hand-written where, or in a block of another convention)"


def by_label(comparison: Comparison) -> dict[str, Any]:
    return {leaf.label: leaf for leaf in comparison.leaves}


def torch_clip_with_a_wrong_bound(x: torch.Tensor) -> torch.Tensor:
    return torch.clamp(x, 0.0, 5.0)


def torch_clip_with_a_wrong_gradient(x: torch.Tensor) -> torch.Tensor:
    return torch.clamp(x.detach(), 0.0, 6.0) + 0.0 * x


def jax_where(x: jax.Array) -> jax.Array:
    return jnp.where(x >= 0.0, jnp.where(x <= 6.0, x, 6.0), 0.0)


def jax_steep(x: jax.Array) -> jax.Array:
    return jnp.where(x > 0.0, x, 2.0 * x)


def torch_steep(x: torch.Tensor) -> torch.Tensor:
    return functional.leaky_relu(x, 2.0)


@pytest.mark.parametrize(
    ("f", "g", "value", "gradient", "largest", "index"),
    [
        (jax_clip, torch_clamp, "agrees", "ties", 0.5, (3,)),
        (jax.jit(jax_clip), torch_clamp, "agrees", "ties", 0.5, (3,)),
        (jax_clip, torch_clip_with_a_wrong_bound, "port", "ties", 0.5, (3,)),
        (jax_clip, torch_clip_with_a_wrong_gradient, "agrees", "port", WEIGHTS[0][2], (2,)),
        (jax_steep, torch_steep, "agrees", "hidden tie", 0.0, (0,)),
        (jax_clip, jax_where, "agrees", "port", 0.5, (3,)),
        (jax.nn.relu6, functional.relu6, "agrees", "agrees", 0.0, (0,)),
        (functional.relu6, jax_hard, "agrees", "ties", 1.0, (3,)),
        (jax.nn.relu6, jax_clip, "agrees", "ties", 0.5, (3,)),
        (interop.relu6, functional.relu6, "agrees", "agrees", 0.0, (0,)),
    ],
)
def test_ties_are_told_from_bugs(
    f: Callable[..., Any], g: Callable[..., Any], value: str, gradient: str, largest: float, index: tuple[int, ...]
) -> None:
    comparison = compare(f, g, AT)
    assert findings(comparison) == {"value": value, "gradient[0]": gradient}
    absolute = by_label(comparison)["gradient[0]"].unmodified.absolute
    assert (absolute.amount, absolute.index) == (largest, index)


@pytest.mark.parametrize(
    ("f", "g", "says"),
    [
        (jax.nn.relu6, functional.relu6, "they agree."),
        (
            jax_clip,
            torch_clamp,
            "they disagree because of ties alone. gradient[0] differs by convention alone: under min_norm both agree.",
        ),
        (
            jax_clip,
            torch_clip_with_a_wrong_bound,
            "they disagree, and not by convention alone: under min_norm too they differ in value. Look at the code of "
            "both. gradient[0] differs by convention alone: under min_norm both agree.",
        ),
        (
            jax_clip,
            torch_clip_with_a_wrong_gradient,
            "they disagree, and not by convention alone: under min_norm too they differ in gradient[0]. Look at the "
            f"code of both, or for {UNREACHED}.",
        ),
        (
            jax_steep,
            torch_steep,
            f"they agree. Only under min_norm they differ in gradient[0]. That is {UNREACHED}.",
        ),
        (
            jax_clip,
            interop.min_norm(ties="balanced")(torch_clamp),
            f"they agree. Only under min_norm they differ in gradient[0]. That is {UNREACHED}.",
        ),
    ],
)
def test_verdict(f: Callable[..., Any], g: Callable[..., Any], says: str) -> None:
    assert compare(f, g, AT).verdict == f"jax against torch: {says}"


def test_pytrees_keywords_integers_and_what_is_static() -> None:
    params = {"w": np.arange(6, dtype=F32).reshape(2, 3), "layers": [F32([1, 2]), (F32([3.0]),)], "none": None}
    rows = np.array([1, 0, 1])

    def in_jax(params: Any, rows: Any, power: int, *, scale: Any, kind: str) -> Any:
        assert (power, kind) == (2, "sum")
        assert isinstance(scale, jax.Array)
        assert params["none"] is None
        return (
            jnp.sum(params["w"][rows] ** power) * scale,
            {"b": params["layers"][0] * params["layers"][1][0], "n": rows + 1},
        )

    def in_torch(params: Any, rows: Any, power: int, *, scale: Any, kind: str) -> Any:
        assert (power, kind) == (2, "sum")
        assert isinstance(scale, torch.Tensor)
        return [
            torch.sum(params["w"][rows] ** power) * scale,
            {"b": params["layers"][0] * params["layers"][1][0], "n": rows + 1},
        ]

    comparison = compare(in_jax, in_torch, params, rows, 2, scale=F32(0.5), kind="sum")
    labels = ["value[0]", "value[1]['b']", "value[1]['n']", "gradient[0]['layers'][0]", "gradient[0]['layers'][1][0]"]
    assert findings(comparison) == dict.fromkeys([*labels, "gradient[0]['w']", "gradient['scale']"], "agrees")
    native = comparison.first.unmodified
    # By hand: the sum of squares is weighted by how often a row is taken; the rest is a product with weights.
    np.testing.assert_array_equal(native["gradient[0]['w']"], params["w"] * F32([[1], [2]]))
    np.testing.assert_array_equal(native["gradient[0]['layers'][0]"], 3 * WEIGHTS[1][:2])
    np.testing.assert_array_equal(native["gradient[0]['layers'][1][0]"], [WEIGHTS[1][:2] @ [1, 2]])
    assert native["gradient['scale']"] == 2 * (3**2 + 4**2 + 5**2) + 1 + 2**2
    assert native["value[1]['n']"].dtype.kind == "i"
    for label, array in native.items():
        np.testing.assert_array_equal(comparison.second.unmodified[label], array)


def test_results_of_any_kind() -> None:
    def in_jax(x: jax.Array) -> Any:
        return jnp.max(x, axis=1), jnp.argmax(x, axis=1), x > 1, 3, None

    def in_torch(x: torch.Tensor) -> Any:
        return *torch.max(x, dim=1), x > 1, 3, None

    x = F32([[1, 2], [4, 3]])
    comparison = compare(in_jax, in_torch, x)
    assert findings(comparison) == dict.fromkeys(
        ["value[0]", "value[1]", "value[2]", "value[3]", "gradient[0]"], "agrees"
    )
    assert [array.dtype.kind for array in comparison.first.unmodified.values()] == ["f", "i", "b", "i", "f"]

    def as_torch_names_it(x: torch.Tensor) -> Any:
        return torch.max(x, dim=1)

    assert list(record(as_torch_names_it, x).unmodified) == ["value[0]", "value[1]", "gradient[0]"]


def test_arrays_of_any_strides() -> None:
    turned = compare(jax_clip, torch_clamp, np.broadcast_to(AT, (2, 5))[:, ::-1])
    assert by_label(turned)["gradient[0]"].unmodified.absolute.index == (1, 1)


def test_no_floats() -> None:
    comparison = compare(lambda n: jnp.add(n, 1), lambda n: torch.add(n, 1), np.array([1, 2]))
    assert findings(comparison) == {"value": "agrees"}
    assert comparison.verdict.endswith("they agree. Values alone are compared, as no argument is an array of floats.")
    unrelated = compare(lambda x: jnp.argmax(x), lambda x: torch.argmax(x), AT)
    assert findings(unrelated) == {"value": "agrees", "gradient[0]": "agrees"}
    assert "alone" not in unrelated.verdict
    forgotten = compare(lambda x: None, lambda x: None, AT, frameworks=("jax", "torch"))
    assert forgotten.verdict.endswith("they agree. No values are compared, as neither function returns any.")
    np.testing.assert_array_equal(unrelated.second.unmodified["gradient[0]"], np.zeros(5))


def test_arrays_without_elements_are_named() -> None:
    verdict = compare(jnp.tanh, torch.sin, F32([])).verdict
    assert verdict.endswith("they agree. Without elements, and compared in shape alone: value, gradient[0].")


def test_nan_in_the_same_places_agrees() -> None:
    x = F32([-1.0, 4.0])
    agreeing = compare(jnp.sqrt, torch.sqrt, x)
    assert agreeing.agree
    assert agreeing.verdict.endswith("they agree. Both answer NaN, which counts as equal and hides what differs.")
    (value, _) = compare(jnp.sqrt, lambda x: torch.sqrt(x.abs()), x).leaves
    assert (value.finding, value.unmodified.beyond, value.unmodified.absolute.index) == ("port", 1, (0,))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_dtypes_stay_what_they_are(dtype: str) -> None:
    comparison = compare(jax_clip, torch_clamp, AT.astype(jnp.dtype(dtype)))
    assert findings(comparison) == {"value": "agrees", "gradient[0]": "ties"}
    for side in (comparison.first, comparison.second):
        assert {array.dtype.name for array in (*side.unmodified.values(), *side.min_norm.values())} == {dtype}


def test_integers_of_64_bits_keep_their_value() -> None:
    large = np.array([2**40])
    assert compare(lambda n: jnp.add(n, 1), lambda n: torch.add(n, 1), large).agree
    small = record(lambda n, x: (jnp.add(n, 1), jnp.zeros(3) + x), np.array([2]), F32([1.0]))
    assert small.unmodified["value[1]"].dtype == F32  # as without a comparison


@pytest.mark.parametrize(
    ("g", "label", "mismatch"),
    [
        (lambda x: {"y": torch.relu(x)[:2]}, "value['y']", "shape (5,) against (2,)"),
        (lambda x: {"y": torch.relu(x)[None]}, "value['y']", "shape (5,) against (1, 5)"),
        (lambda x: {"y": torch.relu(x).double()}, "value['y']", "dtype float32 against float64"),
        (lambda x: {"y": torch.relu(x).int()}, "value['y']", "dtype float32 against int32"),
        (lambda x: {"y": torch.relu(x) + 0j}, "value['y']", "dtype float32 against complex64"),
        (lambda x: {"y": torch.relu(x), "z": x}, "value['z']", "only <lambda> (torch "),
        (lambda x: {"z": torch.relu(x)}, "value['y']", "only in_jax (jax "),
        (lambda x: torch.relu(x), "value", "only <lambda> (torch "),
    ],
)
def test_mismatches_are_reported(g: Callable[..., Any], label: str, mismatch: str) -> None:
    def in_jax(x: jax.Array) -> Any:
        return {"y": jax.nn.relu(x)}

    comparison = compare(in_jax, g, AT)
    leaf = by_label(comparison)[label]
    assert leaf.finding == "port"
    assert leaf.mismatch.startswith(mismatch)
    assert not comparison.agree
    assert f"{label} ({mismatch}" in comparison.verdict
    for text in (str(comparison), comparison.to_markdown(), comparison.to_json(), printed(comparison)):
        assert mismatch in text


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.norm = torch.nn.BatchNorm1d(2)
        with torch.no_grad():
            self.linear.weight.copy_(torch.arange(6.0).view(2, 3))
            self.linear.bias.copy_(torch.tensor([0.25, -0.5]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.hardtanh(self.norm(self.linear(x)))


def test_a_module_is_a_function_of_its_parameters() -> None:
    network = Network()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(F32)
    comparison = compare(in_jax, network, dict(network.named_parameters()), x)
    assert comparison.agree, comparison
    assert comparison.second.name == "Network"
    assert {f"gradient[0]['{name}']" for name, _ in network.named_parameters()} < set(comparison.second.unmodified)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name])  # the running statistics too
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_module_wants_its_parameters() -> None:
    network = Network()
    parameters = dict(network.named_parameters())
    with pytest.raises(
        TypeError, match=r"record: f is a torch.nn.Module, Network,.*named_parameters.*ndarray; to.*compare_models"
    ):
        record(network, np.ones((2, 3), F32))
    with pytest.raises(TypeError, match="is a NoneType"):
        record(network)
    with pytest.raises(ValueError, match=r"has unknown \['norm.num_batches.*buffers stay the module's own"):
        record(network, network.state_dict(), np.ones((2, 3), F32))
    del parameters["norm.bias"]
    with pytest.raises(ValueError, match=r"lacks \['norm.bias'\] and has unknown \['bias'\]"):
        record(network, parameters | {"bias": np.zeros(2, F32)}, np.ones((2, 3), F32))


def test_torch_code_may_overwrite_its_input() -> None:
    x = AT.copy()
    assert findings(compare(jax_clip, lambda x: x.clamp_(0.0, 6.0), x)) == {"value": "agrees", "gradient[0]": "ties"}
    np.testing.assert_array_equal(x, AT)
    with torch.no_grad():
        assert record(torch_clamp, x).unmodified["gradient[0]"].any()


def test_the_gradient_is_that_of_the_sum_with_all_inputs_active() -> None:

    def product(x: Any, y: Any) -> Any:
        return jnp.multiply(x, y), jnp.maximum(x, y)

    x, y = F32([2.0, 5.0]), F32([2.0, 4.0])
    answers = record(product, x, y)
    first, second = (weights[:2] for weights in WEIGHTS)
    np.testing.assert_array_equal(answers.unmodified["gradient[0]"], first * y + second * [0.5, 1.0])
    np.testing.assert_array_equal(answers.min_norm["gradient[1]"], first * x + second * [0.5, 0.0])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "complex64"])
def test_weights(dtype: str) -> None:
    """The same in both frameworks, and in every version: recordings are compared with those of others."""
    leaves = [np.zeros(shape, jnp.dtype(dtype)) for shape in ((5,), (5,), (1, 1), ())]
    expected = [*WEIGHTS, np.ones((1, 1)), np.ones(())]
    if dtype == "complex64":
        leaves, expected = [np.zeros(2, dtype)], [WEIGHTS[0][:4].reshape(2, 2)]
    for convert in (jnp.asarray, interop._bridge.arrays.tensor_over):
        with jax.enable_x64(True):
            moved = [interop.frameworks.base._as_floats(convert(leaf)) for leaf in leaves]
            found = [interop.frameworks.base._weights(i, leaf) * (leaf * 0 + 1) for i, leaf in enumerate(moved)]
        for weights, wanted in zip(found, expected, strict=True):
            if isinstance(weights, torch.Tensor):
                weights = interop._bridge.arrays.lend(weights)
            np.testing.assert_array_equal(np.asarray(weights).astype(np.float64), wanted)


def bounded_softmax_in_jax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(jax.nn.hard_tanh(x))


def bounded_softmax_in_torch(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(functional.hardtanh(x), -1)


@pytest.mark.parametrize(
    ("f", "g"),
    [
        (lambda x: jax.nn.softmax(x), lambda x: torch.softmax(x, -1)),
        (lambda x: jax.nn.standardize(x, epsilon=1e-5), lambda x: functional.layer_norm(x, (4,))),
        (
            lambda x: jax.nn.standardize(x, axis=0, epsilon=1e-5),
            lambda x: functional.batch_norm(x, None, None, training=True),
        ),
        (lambda x: jnp.stack([x[:, 0], 1 - x[:, 0]]), lambda x: torch.stack([x[:, 0], 1 - x[:, 0]])),
    ],
)
def test_results_of_constant_sum(f: Callable[..., Any], g: Callable[..., Any]) -> None:
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(F32)
    comparison = compare(f, g, x)
    assert set(findings(comparison).values()) == {"agrees"}
    assert abs(comparison.first.unmodified["gradient[0]"]).max() > 0.05
    wrong = compare(f, lambda x: g(x.detach()) + 0 * x.sum(), x)
    assert findings(wrong)["gradient[0]"] == "port"


def test_ties_below_a_softmax() -> None:
    x = np.round(np.random.default_rng(0).normal(size=(5, 4))).astype(F32)
    assert (
        "they disagree because of ties alone." in compare(bounded_softmax_in_jax, bounded_softmax_in_torch, x).verdict
    )


def test_complex_results_count_in_the_gradient() -> None:
    x = F32([1.0, 2.0, 4.0])
    assert compare(lambda x: jnp.fft.fft(x), lambda x: torch.fft.fft(x), x).agree
    for wrong in (
        lambda x: torch.complex(torch.fft.fft(x).real, torch.fft.fft(x.detach()).imag),
        lambda x: torch.complex(torch.fft.fft(x.detach()).real, torch.fft.fft(x).imag),
    ):
        assert findings(compare(lambda x: jnp.fft.fft(x), wrong, x)) == {"value": "agrees", "gradient[0]": "port"}


def test_gradients_of_complex_arguments() -> None:
    """They are conjugate in JAX and in torch; a bug in them alone shows."""
    z = np.complex64([1 + 2j, -0.5j, 3])
    assert compare(lambda z: jnp.sum((z**3).real), lambda z: (z**3).real.sum(), z).agree
    wrong = compare(lambda z: jnp.sum((z**3).real), lambda z: (z.detach() ** 2 * z).real.sum(), z)
    assert findings(wrong) == {"value": "agrees", "gradient[0]": "port"}
    assert wrong.gradient_scale == pytest.approx(27)  # 3 z^2 at z = 3: a modulus


def test_random_numbers_of_torch_are_the_same_in_each_call() -> None:
    def dropped(x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(torch.clamp(x, 0.0, 6.0), 0.5)

    state = torch.get_rng_state()
    x = np.linspace(1.0, 5.0, 64, dtype=F32)
    assert compare(dropped, dropped, x).agree
    assert torch.equal(torch.get_rng_state(), state)


def test_a_side_that_does_not_answer_the_same_twice() -> None:
    calls: list[None] = []

    def drifting(x: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return torch.relu(x) * len(calls)

    comparison = compare(jax.nn.relu, drifting, AT)
    assert not comparison.agree
    assert comparison.verdict.startswith(
        "jax against torch: not comparable: value is random, or a derivative: called again under min_norm, with other "
        f"random numbers, other values came from {comparison.second}. Turn off"
    )


def test_a_function_that_differentiates_is_compared_by_what_it_differentiates() -> None:
    def of_maxima(x: torch.Tensor) -> torch.Tensor:
        return (torch.maximum(x, torch.zeros_like(x)) * x.exp()).sum()  # torch takes a half of the slope at 0

    comparison = compare(lambda x: jnp.where(x > 0, x, 0.0), torch.func.grad(of_maxima), AT)
    assert findings(comparison)["value"] == "unsteady"
    assert comparison.verdict.endswith("In place of a derivative, compare the function that is differentiated.")


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("rate", [0.5, pytest.param(0.0, marks=pytest.mark.thorough)])
def test_random_numbers_of_both_frameworks_are_told_from_bugs(rate: float) -> None:
    """A draw that changes nothing makes nothing random."""

    def in_torch(x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, rate)

    def in_jax(x: jax.Array) -> jax.Array:
        kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate))(jax.random.split(jax.random.key(0), x.size))
        return jnp.where(kept, x / (1 - rate), 0.0)

    for f, g in ((in_jax, torch.clone), (in_torch, jnp.copy), (in_jax, in_torch), (jnp.copy, in_jax)):
        comparison = compare(f, g, AT)
        assert findings(comparison)["value"] == ("unsteady" if rate else "agrees"), comparison
        random = [side for side in (comparison.first, comparison.second) if "in_" in side.name]
        assert f"came from {', '.join(map(str, random))}. Turn off" in comparison.verdict or not rate
    wrong = compare(in_jax, torch.neg, AT)
    assert findings(wrong)["value"] == ("unsteady" if rate else "port")


def test_keys_of_random_numbers_are_passed_on() -> None:
    def in_jax(x: jax.Array, key: Any) -> jax.Array:
        return jnp.maximum(x, 0.0) + 0.0 * jax.random.normal(key)

    comparison = compare(in_jax, lambda x, _: torch.relu(x), AT, jax.random.key(0))
    assert findings(comparison) == {"value": "agrees", "gradient[0]": "ties"}
    assert list(comparison.first.inputs) == ["[0]"]


def test_bad_arguments() -> None:
    x = F32([1.0])
    recorded = record(jnp.sin, x)
    with pytest.raises(TypeError, match=r"both sides are recorded.*leave out arguments and case"):
        compare(recorded, recorded, x)
    with pytest.raises(TypeError, match=r"both sides are recorded.*leave out arguments and case"):
        compare(recorded, recorded, case="case.npz")
    with pytest.raises(TypeError, match="compare: f is 3, a int; pass a function"):
        compare(3, jnp.sin, x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"compare: g is .*, a ndarray; pass a function"):
        compare(jnp.sin, np.zeros(1000), torch.sin)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="record: f is None, a NoneType; pass a function"):
        record(None, x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"neither JAX arrays \(.*\) nor torch tensors \(.*\); pass a function of one"):
        record(lambda x: jnp.dot(x, jnp.ones(7)), x)
    with pytest.raises(TypeError, match=r"neither JAX arrays .*'str'.* nor torch tensors"):
        record(lambda x: "sine", x)
    with pytest.raises(TypeError, match=r"record: argument \[0\]\['name'\] is an array of dtype <U4; pass numbers"):
        record(jnp.sin, {"name": np.array(["sine"])})
    with pytest.raises(TypeError, match=r"compare: argument \[0\] is an array of dtype <U4; pass numbers"):
        compare(jnp.sin, torch.sin, np.array(["sine"]))


def test_a_module_without_parameters() -> None:
    """Its first argument is an input; an empty mapping, which may stand for its parameters, is not passed on."""
    for parameters in ((), ({},)):
        comparison = compare(lambda *args: jax.nn.relu6(args[-1]), torch.nn.ReLU6(), *parameters, AT)
        assert findings(comparison) == {"value": "agrees", f"gradient[{len(parameters)}]": "agrees"}


@pytest.mark.parametrize(
    ("f", "g"),
    [
        (lambda x: jnp.maximum(x, 0.0), lambda x: torch.relu(x)),
        # The value is a number, so that the NaN is seen in the arguments alone.
        (lambda x: jnp.fmax(x, jnp.zeros(())).sum(), lambda x: torch.fmax(x, torch.zeros(())).sum()),
    ],
)
def test_nan_is_not_called_a_tie(f: Callable[..., Any], g: Callable[..., Any]) -> None:
    x = F32([np.nan, 0.0, 1.0])
    for live in (compare(f, g, x), compare(record(f, x), g, x)):
        assert "they disagree by convention alone, at ties or at NaN. gradient[0]" in live.verdict
    assert "they disagree because of ties alone." in compare(f, g, x[1:]).verdict


def test_example() -> None:
    file = Path(__file__).parents[2] / "examples" / "port_check.py"
    spec = importlib.util.spec_from_file_location("port_check", file)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    right, transposed, slope = (
        compare(example.in_jax, in_torch, *example.arguments()) for in_torch in example.PORTS.values()
    )
    assert findings(right)["value['loss']"] == "agrees"
    assert set(findings(right).values()) == {"agrees", "ties"}
    for planted in (transposed, slope):
        assert findings(planted)["value['loss']"] == "port"
        assert findings(planted)["gradient[0]['w2']"] == "port"
