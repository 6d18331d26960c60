"""The frameworks beside JAX and torch: what holds for each of them, where it is installed, and what where it is not."""

import importlib
import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

from interop.__main__ import main
from interop.cli.names import FORMATS
from interop.frameworks.base import Framework, Function, Gradient, Question, Refusal
from interop.frameworks.registry import ADAPTERS
from interop.survey import matrix as parity
from interop.survey.show.report import page, picture
from jaxclamp import OPS
from jaxclamp._shared.counterparts import Counterpart
from jaxclamp._shared.tie_cases import DTYPES, round_to
from tools.forward_mode import forward_gradient


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> Framework:
    for reason in parity.absent([request.param]).values():
        pytest.skip(reason)
    return parity.load(request.param)


@pytest.fixture(params=parity.UNMODIFIED)
def framework(request: pytest.FixtureRequest) -> Framework:
    for reason in parity.absent([request.param]).values():
        pytest.skip(reason)
    return parity.load(request.param)


@pytest.mark.parametrize("name", ADAPTERS)
def test_counterparts_are_of_known_ops_and_of_the_framework(name: str) -> None:
    assert ADAPTERS[name].counterparts.keys() <= OPS.keys()
    for op in ADAPTERS[name].counterparts:
        for counterpart in ADAPTERS[name].counterparts_of(op):
            assert counterpart.framework == name
            assert "x" in counterpart.parameters
            assert counterpart.parameters.keys() <= inspect.signature(OPS[op].function).parameters.keys()


def test_version_is_the_name_and_the_number(adapter: Framework) -> None:
    name, number, *_ = adapter.version.split(" ")
    assert name == adapter.name
    assert number[0].isdigit()


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_pass_unrounded_or_not_at_all(adapter: Framework, dtype: str) -> None:
    """1 and a bit more, the next number that the dtype has; its square has a gradient of twice that."""
    x = np.asarray(1 + jnp.finfo(dtype).eps, jnp.dtype(dtype))
    try:
        answer = adapter.differentiate(lambda given: given["x"] * given["x"], {"x": x}, ("x",))
    except TypeError:
        assert dtype == "bfloat16"
        assert adapter.name == "autograd"
        return
    assert answer.by_argument["x"].astype(np.float64) == 2 * x.astype(np.float64)
    assert answer.value.astype(x.dtype) == x * x
    assert answer.value.shape == answer.by_argument["x"].shape == ()


@pytest.mark.parametrize("active", [("x",), ("y",), ("x", "y"), ("y", "x")])
def test_gradients_keep_to_their_arguments(adapter: Framework, active: tuple[str, ...]) -> None:
    """Equal arguments are still two, and those that are not active have no gradient."""
    arguments = {"x": np.asarray(2, np.float32), "y": np.asarray(2, np.float32), "z": 3.0}
    answer = adapter.differentiate(lambda given: given["x"] * given["z"] - given["y"], arguments, active)
    assert answer.value.tolist() == 4
    assert {name: g.tolist() for name, g in answer.by_argument.items()} == {n: {"x": 3, "y": -1}[n] for n in active}
    assert tuple(answer.by_argument) == active


@pytest.mark.parametrize("active", [("x",), ("y",), ("x", "y"), ("y", "x")])
def test_forward_mode_is_asked_for_each_element(framework: Framework, active: tuple[str, ...]) -> None:
    """Of x y z: the product of the others, element by element; or it is not there."""
    arguments = {"x": np.asarray([2, 5], np.float32), "y": np.asarray([3, 4], np.float32), "z": 3.0}

    def product(given: Mapping[str, Any]) -> Any:
        return given["x"] * given["y"] * given["z"]

    if framework.name in ("tinygrad", "paddle"):
        with pytest.raises(NotImplementedError, match=f"{framework.name} has no forward mode"):
            forward_gradient(framework.name, product, arguments, active)
    else:
        gradient = forward_gradient(framework.name, product, arguments, active)
        assert {name: g.tolist() for name, g in gradient.items()} == {
            n: {"x": [9, 12], "y": [6, 15]}[n] for n in active
        }
        assert {g.dtype for g in gradient.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("name", ["jax", "torch", "autograd"])
def test_forward_mode_does_not_round(name: str) -> None:
    x = np.float64([1 + 1e-12])
    gradient = forward_gradient(name, lambda given: given["x"] * given["x"], {"x": x}, ["x"])
    assert gradient["x"].tolist() == [2 + 2e-12]


def away_from_ties(op: str, dtype: str) -> Iterator[dict[str, Any]]:
    """For each tie of ``op`` its arguments, with distinct values of x that are none of the numbers among the others."""
    for tie in OPS[op].tie_points:
        arguments = dict(zip(inspect.signature(OPS[op].function).parameters, tie, strict=False))
        given = round_to(dtype, arguments)
        shape = given["x"].shape or (40,)
        x = np.random.default_rng(0).permutation(np.prod(shape)) * 0.3125 - 6.1
        yield arguments | given | {"x": x.reshape(shape)}


COUNTERPARTS = [
    pytest.param(op, counterpart, id=f"{op}-{counterpart.name}")
    for adapter in ADAPTERS.values()
    for op in adapter.counterparts
    for counterpart in adapter.counterparts_of(op)
]


@pytest.mark.thorough
@pytest.mark.parametrize(("op", "counterpart"), COUNTERPARTS)
def test_counterparts_are_the_same_function_away_from_ties(op: str, counterpart: Counterpart) -> None:
    for reason in parity.absent([counterpart.framework]).values():
        pytest.skip(reason)
    parameters = inspect.signature(OPS[op].function).parameters
    compared = 0
    for arguments in away_from_ties(op, "float64"):
        unknown = arguments.keys() - counterpart.parameters
        low, high = arguments.get("min"), arguments.get("max")
        if any(arguments[name] != parameters[name].default for name in unknown) or (low and high and low > high):
            continue
        numbers = {
            n: v.item() if n != "x" and isinstance(v, np.ndarray) and not v.shape else v for n, v in arguments.items()
        }
        for given in (arguments, numbers):
            try:
                answer = parity.load(counterpart.framework).differentiate(counterpart, given, ("x",))
            except TypeError:
                continue
            expected = parity.load("jax").differentiate(lambda given: OPS[op].function(**given), given, ("x",))
            # tinygrad and MLX have five digits of the constants of selu.
            np.testing.assert_allclose(answer.value, expected.value, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(answer.by_argument["x"], expected.by_argument["x"], rtol=1e-5, atol=1e-5)
            compared += 1
    assert compared


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_has_its_answers(adapter: Framework, form: str) -> None:
    options = ["--op", "maximum", "--dtype", "float32", "--framework", adapter.name, "--format", form]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 0
    assert "not asked" not in result.stderr
    assert adapter.version in result.stdout
    assert "0.5" in result.stdout  # by definition, where both are active


def test_the_report_has_its_answers(adapter: Framework) -> None:
    ours, all_of_them = (
        page(list(parity.matrix([OPS["maximum"]], ["float32"], names)), {"maximum": ""})
        for names in (parity.PACKAGES, [*parity.PACKAGES, adapter.name])
    )
    assert adapter.version not in ours
    assert f"<b>{adapter.name}</b>  {adapter.version.split(' ')[1]}" in all_of_them
    assert ("--editable '.[plot]'" in ours, "--editable '.[plot,frameworks]'" in all_of_them) == (True, True)


def test_pictures_leave_it_out(adapter: Framework) -> None:
    rows = list(parity.matrix([OPS["maximum"]], ["float32"], ["torch", adapter.name]))
    assert any(answer.framework == adapter.name for row in rows for answer in row.answers)
    drawn = picture(OPS["maximum"], rows)
    assert "torch.maximum" in drawn
    assert f"{adapter.name}." not in drawn


class Narrow(Framework):
    """JAX, but for rounding to float32."""

    name = "narrow"
    version = "narrow 1.0"

    def differentiate(self, function: Function, arguments: Mapping[str, Any], active: Collection[str]) -> Gradient:
        answer = parity.load("jax").differentiate(function, arguments, active)
        return Gradient(answer.value, {name: g.astype(np.float32) for name, g in answer.by_argument.items()})


def test_an_answer_in_a_narrower_dtype_is_refused() -> None:
    question = Question(lambda arguments: arguments["x"], {"x": np.zeros(())}, ("x",))
    for dtype in ("float32", "bfloat16", "float16"):
        assert isinstance(Narrow().gradients([question], dtype)[0], Gradient)
    assert Narrow().gradients([question], "float64") == [
        Refusal("narrow answers in float32, which is narrower than float64.")
    ]


QUICK = ("autograd", "keras")


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.thorough] * (name not in QUICK)) for name in ADAPTERS])
def absent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name: str = request.param
    for module in {name, *(module for module in sys.modules if module.startswith(f"{name}."))}:
        monkeypatch.setitem(sys.modules, module, None)
    parity.load.cache_clear()
    yield name
    parity.load.cache_clear()


def test_an_absent_framework_is_skipped_and_named(absent: str) -> None:
    result = CliRunner().invoke(main, ["--op", "maximum", "--dtype", "float32", "--format", "csv"])
    assert result.exit_code == 0
    assert "jax.numpy.maximum" in result.stdout
    assert f"{absent}." not in result.stdout
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("not installed, so not asked: "))
    assert absent in line.partition(": ")[2].split(", ")


def test_keras_without_its_backend_says_how_to_choose_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> NoReturn:
        raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")

    monkeypatch.setattr(importlib, "import_module", find)
    with pytest.raises(ImportError, match=r"run on tensorflow, .*; set KERAS_BACKEND to one of jax, torch, tensorflow"):
        ADAPTERS["keras"]()


def test_to_ask_only_an_absent_framework_is_bad_usage(absent: str) -> None:
    result = CliRunner().invoke(main, ["--framework", absent])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"Invalid value for '--framework': {absent} cannot be asked (" in result.stderr
    assert f"pip install {ADAPTERS[absent].requirement})" in result.stderr
