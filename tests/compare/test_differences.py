"""How `interop.compare` measures a difference, and when it is rounding, a tie or the port."""

import dataclasses
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
from interop import Comparison, Recording, compare
from interop.comparison.leaves import apart_of, is_rounding_alone, largest_of
from interop.comparison.models.judgements import _Compared, _explained
from interop.comparison.models.layers import Moment
from interop.comparison.models.places import Place
from tests.compare.clipped import AT, difference, findings, recording

F32 = np.float32


@pytest.mark.parametrize(
    ("dtype", "a", "b", "absolute", "relative", "ulps"),
    [
        ("float32", 1.0, 1.5, 0.5, 1 / 3, 2**22),
        ("float32", 1.0, 1 + 2**-23, 2**-23, 2**-23 / (1 + 2**-23), 1),
        ("float32", 1.0, 1 - 2**-24, 2**-24, 2**-24, 1),
        ("float32", -2.0, 2.0, 4.0, 2.0, 2**31),
        ("float32", 0.0, -0.0, 0, 0, 0),
        ("float32", 2**-149, -(2**-149), 2**-148, 2.0, 2),
        ("float32", (2 - 2**-23) * 2**127, np.inf, np.inf, np.inf, 1),
        ("float32", np.inf, np.inf, 0, 0, 0),
        ("float32", np.inf, -np.inf, np.inf, np.inf, 2 * (255 << 23)),
        ("float32", np.nan, np.nan, 0, 0, 0),
        ("float32", np.nan, 1.0, np.inf, np.inf, np.inf),
        ("float32", 1.0, np.nan, np.inf, np.inf, np.inf),
        ("float64", 1.0, 1 + 2**-52, 2**-52, 2**-52 / (1 + 2**-52), 1),
        ("float64", -1e308, 1e308, np.inf, np.inf, None),
        ("float16", 1.0, 1 + 2**-10, 2**-10, 2**-10 / (1 + 2**-10), 1),
        ("bfloat16", -1.0, -1 - 2**-7, 2**-7, 2**-7 / (1 + 2**-7), 1),
        ("int8", -128, 127, 255, 255 / 128, 255),
        ("int64", 2**53, 2**53 + 1, 1, 2**-53, 1),
        ("uint64", 2**64 - 1, 0, 2.0**64, 1, 2.0**64),
        ("bool", True, False, 1, 1, 1),
        ("complex64", 1 + 1j, 1 + 1.5j, 0.5, 1 / 3, 2**22),
    ],
)
def test_hand_computed(dtype: str, a: Any, b: Any, absolute: float, relative: float, ulps: float | None) -> None:
    # Beside an equal number, so that the index is tested too.
    found = difference(np.array([0, a], jnp.dtype(dtype)), np.array([0, b], jnp.dtype(dtype)))
    turned = difference(np.array([0, b], jnp.dtype(dtype)), np.array([0, a], jnp.dtype(dtype)))
    assert repr(found) == repr(dataclasses.replace(turned, numbers=turned.numbers[::-1]))  # NaN is not equal to itself
    assert found.absolute.amount == absolute
    assert found.relative.amount == pytest.approx(relative, rel=1e-15)
    assert ulps is None or found.ulps.amount == ulps
    if absolute:
        at = (1, 1) if dtype == "complex64" else (1,)
        assert repr(found.numbers) == repr(tuple(np.array(n, jnp.dtype(dtype)).item() for n in (a, b))) or len(at) == 2
        assert found.absolute.index == found.relative.index == found.ulps.index == at


@pytest.mark.parametrize(
    ("a", "b", "absolute"), [(10**12, 10**12 + 1, 1), (2**53, 2**53 + 1, 1), (-1, 2**64 - 1, 1), (5, 5, 0)]
)
def test_integers_of_two_kinds(a: int, b: int, absolute: int) -> None:
    """NumPy promotes the two to float64, by which these would agree."""
    for found in (difference(np.int64(a), np.uint64(b)), difference(np.uint64(b), np.int64(a))):
        assert (found.absolute.amount, found.beyond) == (absolute, bool(absolute))


def test_each_largest_difference_has_its_own_index() -> None:
    a = np.array([[1000.0, 1.0], [1.0, 2.0**-140]], F32)
    b = np.array([[1004.0, 1.5], [1.0, 2.0**-100]], F32)
    found = difference(a, b)
    assert (found.absolute.amount, found.absolute.index) == (4.0, (0, 0))
    assert (found.relative.amount, found.relative.index) == (pytest.approx(1 - 2**-40), (1, 1))
    assert found.ulps.index == (1, 1)
    assert (found.beyond, found.size) == (2, 4)


def test_scalars_and_nothing() -> None:
    assert difference(F32(1.0), F32(3.0)).absolute == interop.comparison.leaves.Largest(2.0, ())
    assert difference(np.zeros((0, 3)), np.zeros((0, 3))).absolute == interop.comparison.leaves.Largest(0.0, ())
    assert Comparison(recording(np.zeros(0)), recording(np.zeros(0))).agree


@pytest.mark.parametrize(
    ("a", "b", "tolerance", "beyond"),
    [
        ([1.0, 0.0], [1.0, 2e-5], {}, 0),  # 2 ** (-23 * 2 / 3) of the largest: 2.4e-5
        ([1.0, 0.0], [1.0, 3e-5], {}, 1),
        ([1.0, 0.0], [1.0, 2e-5], {"atol": 0.0}, 1),
        ([1.0, 0.0], [1.0, 2e-5], {"rtol": 1e-6}, 1),
        ([4.0], [3.0], {"rtol": 0.25, "atol": 0.0}, 0),
        ([3.0], [4.0], {"rtol": 0.25, "atol": 0.0}, 0),
        ([4.0], [3.0], {"rtol": 0.2, "atol": 0.0}, 1),
        ([4.0], [3.0], {"rtol": 0.0, "atol": 1.0}, 0),
        ([4.0], [3.0], {"rtol": 0.0, "atol": 0.9}, 1),
        ([np.inf, 1.0], [1.0, 1.0], {"rtol": 0.5}, 1),
        ([np.inf, np.nan, 1.0], [np.inf, np.nan, 1.0], {"rtol": 0.0, "atol": 0.0}, 0),
        ([np.nan, 1.0], [1.0, 1.0], {"atol": 100.0}, 1),
        ([np.inf, 1.0], [np.inf, 2.0], {}, 1),  # nothing is small beside infinity, nor beside NaN
        ([np.nan, 1.0], [np.nan, 2.0], {}, 1),
    ],
)
def test_tolerance(a: list[float], b: list[float], tolerance: dict[str, float], beyond: int) -> None:
    assert difference(F32(a), F32(b), **tolerance).beyond == beyond


@pytest.mark.parametrize(
    ("small", "other", "finding"),
    [
        (1e-7, -1e-7, "rounding"),
        (1e-7, -1e-4, "rounding"),  # 2 ** (-23 * 2 / 3) * 8 is 1.9e-4
        (1e-7, -3e-4, "port"),
        (3e-4, 1e-7, "port"),
        (1e-7, np.nan, "port"),
        (1e-7, 1e-7, "agrees"),
    ],
)
def test_a_gradient_that_cancels_is_left_with_rounding(small: float, other: float, finding: str) -> None:
    """The mean of x does not matter after it was subtracted."""
    first, second = (
        Recording("f", "by hand", {}, answers, answers)
        for answers in (
            {"value": AT, "gradient[0]": F32([8.0, 1.0]), "gradient[1]": F32([number])} for number in (small, other)
        )
    )
    comparison = Comparison(first, second)
    assert findings(comparison) == {"value": "agrees", "gradient[0]": "agrees", "gradient[1]": finding}
    assert comparison.agree == (finding != "port")
    if finding == "rounding":
        assert comparison.verdict == (
            "by against by: they agree, but for rounding. gradient[1] differs by no more than rounding explains."
        )
        with pytest.raises(AssertionError, match="To let that pass: assert_agree"):
            comparison.assert_agree(allow=())
        assert findings(Comparison(first, second, atol=0.0))["gradient[1]"] == "port"
        assert findings(Comparison(first, second, rtol=1e-9))["gradient[1]"] == "port"


def test_a_bias_before_a_normalization() -> None:
    def of_jax(w: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(jax.nn.standardize(x @ w + b, axis=0, epsilon=1e-5))

    def of_torch(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(functional.batch_norm(x @ w + b, None, None, training=True))

    rng = np.random.default_rng(0)
    w, b, x = (rng.normal(size=shape).astype(F32) for shape in ((32, 32), (32,), (64, 32)))
    comparison = compare(of_jax, of_torch, w, b, x)
    assert comparison.agree
    assert findings(comparison)["gradient[1]"] == "rounding"


@pytest.mark.parametrize("dtype", [jnp.bfloat16, pytest.param(np.float16, marks=pytest.mark.thorough), F32])
@pytest.mark.parametrize(
    ("of_jax", "of_torch", "b", "finding"),
    [
        (lambda b: 0.3 * b, lambda b: 0.6 * b.detach() - 0.3 * b, 1.0, "port"),
        (lambda b: 0.3 * b, lambda b: 0.6 * b, 1.0, "port"),
        (lambda b: 1e-3 * jnp.maximum(b, 0), lambda b: 1e-3 * torch.relu(b), 0.0, "ties"),
        # What is left of the gradient is no rounding, but it differs by that.
        (
            lambda b: 11.1 * b + 22.2 * b - 33.3 * b + 0.01 * b,
            lambda b: 0.01 * b - 33.3 * b + 22.2 * b + 11.1 * b,
            1.0,
            "rounding",
        ),
        # A tie multiplies by 1/2 or 0 what is 0 but for rounding.
        (
            lambda b: jnp.maximum(0.1 * b + 0.2 * b - 0.3 * b, 0),
            lambda b: torch.relu(0.1 * b + 0.2 * b - 0.3 * b),
            0.0,
            "rounding",
        ),
    ],
)
def test_a_small_gradient_is_rounding_if_it_vanishes_in_float64(
    of_jax: Callable[[Any], Any], of_torch: Callable[[Any], Any], b: float, finding: str, dtype: Any, tmp_path: Path
) -> None:
    functions = (lambda a, b: 100 * a + of_jax(b)), (lambda a, b: 100 * a + of_torch(b))
    comparison = compare(*functions, *np.array([1.0, b], dtype), frameworks=("jax", "torch"))
    assert findings(comparison)["gradient[1]"] == finding, comparison.to_markdown()
    comparison.save(tmp_path / "comparison.npz")
    assert findings(Comparison.load(tmp_path / "comparison.npz")) == findings(comparison)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, F32])
def test_a_part_in_float32_leaves_its_rounding_in_float64(dtype: Any) -> None:
    def of_jax(b: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(jax.nn.softmax((x + b).astype(jnp.float32), axis=0).astype(x.dtype))

    def of_torch(b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.softmax((x + b).float(), 0).to(x.dtype))

    b, x = (np.random.default_rng(0).normal(size=shape).astype(dtype) for shape in ((3,), (64, 3)))
    assert findings(compare(of_jax, of_torch, b, x))["gradient[0]"] == "rounding"


def test_a_loose_tolerance_is_told() -> None:
    x = np.array([1.0, 2.0], jnp.bfloat16)
    told = "The tolerance is that of bfloat16, rtol=0.039: pass float32 arrays to see smaller differences."
    assert told in compare(jnp.sin, lambda x: torch.sin(x) * 1.02, x).verdict
    assert "tolerance" not in compare(jnp.sin, torch.sin, x, rtol=0.1).verdict
    assert "tolerance" not in compare(jnp.sin, torch.sin, x.astype(F32)).verdict


def test_what_is_not_finite_is_no_rounding() -> None:
    assert not is_rounding_alone(np.inf, 1.0, np.dtype(F32))
    assert np.isnan(largest_of([F32([1.0]), F32([np.nan])]))


FRAMEWORKS = ("jax", "torch")
CANCELLING = (lambda x: 0.1 * x + 0.2 * x - 0.3 * x), (lambda x: 0.2 * x - 0.3 * x + 0.1 * x)


def test_rounding_beside_an_infinity_on_both_sides() -> None:
    of_jax, of_torch = CANCELLING
    comparison = compare(
        lambda x: jnp.stack([1 / x[0], of_jax(x[1])]),
        lambda x: torch.stack([1 / x[0], of_torch(x[1])]),
        F32([0.0, 1.0]),
    )
    assert findings(comparison)["value"] == "rounding"


def test_results_that_have_another_form_in_float64() -> None:
    """Both raised an error: fewer of them in both functions, and another shape in one."""
    of_jax, of_torch = CANCELLING
    x, copies = F32([1.0, 2.0]), lambda x: 8 // x.dtype.itemsize
    fewer = compare(lambda x: [of_jax(x)] * copies(x), lambda x: [of_torch(x)] * copies(x), x, frameworks=FRAMEWORKS)
    assert findings(fewer)["value[0]"] == "rounding"
    assert findings(compare(of_jax, lambda x: of_torch(x)[: copies(x)], x, frameworks=FRAMEWORKS))["value"] == "port"


def test_integers_have_to_be_equal() -> None:
    assert difference(np.array([10**9]), np.array([10**9 + 1])).beyond == 1
    assert difference(np.array([10**9]), np.array([10**9 + 1]), atol=1.0).beyond == 0


@pytest.mark.parametrize(
    ("apart", "apart_under_min_norm", "finding", "agree"),
    [
        (False, False, "agrees", True),
        (True, False, "ties", False),
        (True, True, "port", False),
        (False, True, "hidden tie", True),
    ],
)
def test_finding(apart: bool, apart_under_min_norm: bool, finding: str, agree: bool) -> None:
    one = recording(F32([1.0]), label="gradient[0]")
    other = recording(F32([1.0 + apart]), F32([1.0 + apart_under_min_norm]), label="gradient[0]")
    comparison = Comparison(one, other)
    assert findings(comparison) == {"gradient[0]": finding}
    assert comparison.agree == agree


def test_a_difference_of_dtypes_is_measured_in_the_coarser() -> None:
    (leaf,) = Comparison(recording(F32([1.0])), recording(np.array([1 + 2**-23 + 2**-40]))).leaves
    assert (leaf.finding, leaf.unmodified.beyond, leaf.unmodified.ulps.amount) == ("port", 0, 1)
    assert leaf.unmodified.absolute.amount == 2**-23 + 2**-40
    # bfloat16 has three digits fewer, in as many bits.
    pair = np.array([1.0], jnp.bfloat16), np.array([1 + 2**-7], np.float16)
    assert [difference(*sides).ulps.amount for sides in (pair, pair[::-1])] == [1, 1]


def test_a_complex_number_and_a_float() -> None:
    pair = np.complex64([1.0 + 2.0j]), F32([1.0])
    assert [difference(*sides).absolute.amount for sides in (pair, pair[::-1])] == [2.0, 2.0]


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        ([-4.0, 1.0], [-3.0, 1.0], 0.25),
        ([4.0, 1j], [4.0, -1j], 0.5),
        ([0.0], [0.0], 0.0),
        ([np.nan, np.inf, 2.0], [np.nan, np.inf, 1.0], 0.5),
        ([np.nan], [1.0], np.inf),
        ([np.inf], [-np.inf], np.inf),
        ([[1.0], [1.0]], [[1.0, 1.0]], np.inf),
        ([], [], 0.0),
    ],
)
def test_apart(a: list[Any], b: list[Any], apart: float) -> None:
    """What a table of models shows."""
    assert apart_of(np.array(a), np.array(b)) == apart_of(np.array(b), np.array(a)) == apart


def normalized(x: Any) -> Any:
    return (x - x.mean(0)) / (((x - x.mean(0)) ** 2).mean(0) + 1e-5) ** 0.5


def normalized_otherwise(x: Any) -> Any:
    scale = 1 / ((x * x).mean(0) - x.mean(0) ** 2 + 1e-5) ** 0.5
    return x * scale - x.mean(0) * scale


def shifted(x: Any) -> Any:
    return normalized_otherwise(x) + 1e-6


@pytest.mark.parametrize(
    "length", [7, pytest.param(8, marks=pytest.mark.thorough)]
)  # 6 rows JAX 0.10.0 rounds in another way under min_norm
def test_values_that_are_rounding_alone(length: int, tmp_path: Path) -> None:
    x = np.full((length, 3), 0.1, F32)
    frameworks: Any = ("jax", "torch")
    comparison = compare(normalized, normalized_otherwise, x, frameworks=frameworks)
    assert findings(comparison)["value"] == "rounding", comparison
    assert not comparison.disagreeing()
    assert comparison.disagreeing(())
    comparison.save(tmp_path / "comparison.npz")
    assert findings(Comparison.load(tmp_path / "comparison.npz")) == findings(comparison)
    assert findings(dataclasses.replace(comparison, atol=0.0))["value"] == "port"
    assert findings(dataclasses.replace(comparison, rtol=1e6))["value"] == "agrees"
    wrong = compare(normalized, shifted, x, frameworks=frameworks)
    assert findings(wrong)["value"] == "port"
    small = compare(lambda x: x * F32(1e-12), lambda x: x * F32(1.01e-12), x, frameworks=frameworks)
    assert findings(small)["value"] == "port"
    double = compare(lambda x: x * 1e-12, lambda x: x * 1.01e-12, x.astype(np.float64), frameworks=frameworks)
    assert findings(double)["value"] == "port"


@pytest.mark.parametrize(("under_min_norm", "judgement"), [(2e-9, "rounding"), (np.nan, "port")])
def test_a_small_gradient_of_models_is_rounding_if_it_stays_small(under_min_norm: float, judgement: str) -> None:
    end = Moment(0, "outputs")
    small, large = (Place(0, "inputs", name, True, (vars, vars), (end, end)) for name in "01")  # type: ignore[arg-type]

    def compared(first: float) -> dict[Place, _Compared]:
        return {small: _Compared.of(F32([first]), F32([0.0]), 0.0), large: _Compared.of(AT, AT, 0.0)}

    assert _explained(compared(1e-9), compared(under_min_norm)) == {small: judgement, large: "agrees"}


@pytest.mark.parametrize("name", ["rtol", "atol"])
def test_bad_tolerances(name: str) -> None:
    """Before a function is called."""
    comparison = Comparison(recording(AT), recording(AT))
    for call in (
        lambda **tolerance: compare(None, None, **tolerance),  # type: ignore[arg-type]
        lambda **tolerance: Comparison(recording(AT), recording(AT), **tolerance),
        comparison.assert_agree,
    ):
        for number in (-1, float("nan"), F32(-1.0)):
            with pytest.raises(ValueError, match=f"compare: {name} is .*; pass a number from 0 on"):
                call(**{name: number})
        for no_number in ("1e-3", True):
            with pytest.raises(TypeError, match=f"compare: {name} is {no_number!r}, a .*; pass a number"):
                call(**{name: no_number})  # type: ignore[arg-type]


def test_tolerances_of_a_call() -> None:
    assert not compare(jnp.sin, lambda x: torch.sin(x) * 1.001, AT).agree
    loose = compare(jnp.sin, lambda x: torch.sin(x) * 1.001, AT, rtol=0.002, atol=0)
    assert loose.agree
    assert (loose.rtol, loose.atol) == (0.002, 0)
