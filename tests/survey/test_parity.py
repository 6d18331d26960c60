"""The parity matrix: that it covers what it claims, and what it measures."""

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import interop
import jaxclamp
from interop.frameworks.base import Question, Refusal
from interop.survey import matrix as parity
from interop.survey.changes import Changes
from interop.survey.matrix import PACKAGES, UNMODIFIED, Row, matrix
from interop.survey.records import Record, choices, recorded
from interop.survey.show.render import at
from jaxclamp import OPS
from jaxclamp._shared.counterparts import Counterpart
from jaxclamp._shared.oracle import least_norm
from jaxclamp._shared.tie_cases import DTYPES, is_differentiable
from tests.support.representatives import thorough
from tools import record_frameworks


def is_inclusive() -> bool:
    """Whether the clamps of the torch that is installed let the gradient through at a bound, as they did below 2.14."""
    x = torch.zeros((), requires_grad=True)
    return bool(torch.autograd.grad(torch.clamp(x, 0.0, 6.0), x)[0])


@functools.cache
def rows(op: str) -> tuple[Row, ...]:
    return tuple(matrix([OPS[op]], ["float32"]))


@pytest.fixture(scope="module", params=[pytest.param(name, marks=thorough(name)) for name in OPS])
def op(request: pytest.FixtureRequest) -> str:
    """Of module scope, so that the tests of one op run together: with several workers few then ask the same twice."""
    name: str = request.param
    return name


def test_ours_agree_with_the_definition(op: str) -> None:
    for row in rows(op):
        ours = [answer for answer in row.answers if answer.framework in PACKAGES]
        assert [answer.spelling for answer in ours][:2] == [f"jaxclamp.{op}", f"interop.{op}"], row
        for answer in ours:
            np.testing.assert_allclose(answer.gradient, row.definition, rtol=1e-6, atol=1e-3, err_msg=str(row))


def test_kernels_answer_wherever_torch_does(op: str) -> None:
    """They take the forms of arguments that torch takes, and give the gradients of the programs of JAX to the bit."""
    same = f"torch.{op}", f"torch.nn.functional.{op}", f"torch.{op.removesuffix('_with_indices')}"
    for row in rows(op):
        gradients = {answer.spelling: answer.gradient for answer in row.answers}
        assert (f"interop.native.{op}" in gradients) == (not gradients.keys().isdisjoint(same)), row
        if f"interop.native.{op}" in gradients:
            tolerance = 4e-7 if op in ("elu", "selu", "celu", "hardswish", "hardsigmoid") else 0
            np.testing.assert_allclose(
                gradients[f"interop.native.{op}"], gradients[f"interop.{op}"], rtol=tolerance, err_msg=str(row)
            )


def test_agrees_says_whether_the_numbers_are_equal(op: str) -> None:
    for row in rows(op):
        equal = [np.allclose(answer.gradient, row.definition, rtol=1e-6, atol=1e-3) for answer in row.answers]
        assert [answer.agrees for answer in row.answers] == equal, row
        assert row.agrees == all(equal), row


def test_every_tie_and_every_set_of_active_inputs_occurs(op: str) -> None:
    expected = []
    for tie in OPS[op].tie_points:
        differentiable = [i for i, value in enumerate(tie) if is_differentiable(value)]
        for chosen in itertools.product([False, True], repeat=len(differentiable)):
            active = tuple(i for i, is_active in zip(differentiable, chosen, strict=True) if is_active)
            if not active:
                continue
            forms = ["none"] if all(chosen) else ["arrays"]
            if isinstance(tie[0], float) and active == (0,) and not all(chosen):
                forms.append("numbers")
            # repr tells -0.0 from 0.0
            expected += [(repr(tie), active, form, "float32") for form in forms]
    found = [
        (
            repr(tuple(row.arguments.values())),
            tuple(map(list(row.arguments).index, row.active)),
            row.inactive,
            row.dtype,
        )
        for row in rows(op)
    ]
    assert sorted(found) == sorted(expected)


def test_every_counterpart_answers_somewhere(op: str) -> None:
    """One that is misspelt in the record would raise TypeError everywhere, and be left out of every row."""
    spellings = {answer.spelling for row in rows(op) for answer in row.answers if answer.framework in UNMODIFIED}
    assert spellings == {c.name for c in parity.counterparts(OPS[op]) if c.framework not in parity.absent()}


def spellings(row: Row) -> set[str]:
    return {answer.spelling for answer in row.answers}


def test_a_counterpart_without_bounds_is_asked_only_at_its_own() -> None:
    """`jax.nn.hard_tanh` has the bounds -1 and 1 built in, so nothing can be asked about them either."""
    for row in matrix([OPS["hardtanh"]], ["float32"], ["jax"]):
        own = (row.arguments["min_val"], row.arguments["max_val"]) == (-1.0, 1.0) and row.active == ("x",)
        assert ("jax.nn.hard_tanh" in spellings(row)) == own, row


def test_a_counterpart_that_cannot_leave_a_bound_out_is_not_asked_to() -> None:
    for row in rows("clamp"):
        assert ("jax.lax.clamp" in spellings(row)) == (None not in row.arguments.values()), row


# The op and its arguments, the active ones, how the others are given, the gradient.
DEFINITIONS = [
    ("relu", (0.0,), "x", "none", (0,)),
    ("maximum", (0.0, 0.0), "x", "arrays", (0,)),
    ("fmax", (0.0, 0.0), "x", "arrays", (0,)),
    ("clamp_min", (0.0, 0.0), "x", "numbers", (0,)),
    ("clamp_min", (0.0, 0.0), "x", "arrays", (0,)),
    ("clamp", (0.0, 0.0, 6.0), "x", "numbers", (0,)),
    ("clamp", (6.0, 0.0, 6.0), "x", "numbers", (0,)),
    ("clamp", (2.0, 2.0, 2.0), "x", "numbers", (0,)),
    ("clamp", (2.0, 2.0, 2.0), "x min max", "none", (1 / 3, 1 / 3, 1 / 3)),
    ("clamp", (-1.0, 2.0, 2.0), "x min max", "none", (0, 0.5, 0.5)),
    ("clamp", (-5.0, 2.0, -5.0), "max", "arrays", (1,)),
    ("relu6", (0.0,), "x", "none", (0,)),
    ("relu6", (6.0,), "x", "none", (0,)),
    ("hardtanh", (-1.0, -1.0, 1.0), "x", "numbers", (0,)),
    ("hardtanh", (1.0, -1.0, 1.0), "x", "numbers", (0,)),
    ("abs", (0.0,), "x", "none", (0,)),
    ("leaky_relu", (0.0, 0.01), "x", "numbers", (0.01,)),
    ("leaky_relu", (0.0, -0.5), "x", "numbers", (0,)),
    ("elu", (0.0, 2.0), "x", "numbers", (1,)),
    ("selu", (0.0,), "x", "none", (1.0507,)),
]


def name_of(fact: tuple[Any, ...]) -> str:
    op, point, active, inactive, _ = fact
    return f"{op}{point} {active}, {inactive}"


@pytest.mark.parametrize(
    ("op", "point", "active", "inactive", "expected"), [pytest.param(*d, id=name_of(d)) for d in DEFINITIONS]
)
def test_definition(op: str, point: tuple[float, ...], active: str, inactive: str, expected: tuple[float, ...]) -> None:
    (row,) = (
        row
        for row in its_rows("torch")
        if (row.op, repr(tuple(row.arguments.values()))) == (op, repr(point))
        and (" ".join(row.active), row.inactive) == (active, inactive)
    )
    np.testing.assert_allclose(row.definition, expected, atol=1e-4)


def the_record(framework: str) -> Record:
    """That of the installed version."""
    if framework in parity.absent():
        pytest.skip(parity.absent()[framework])
    version = parity.load(framework).version.partition(" ")[2]
    found = [record for record in recorded().get(framework, []) if record.version == version]
    if not found:
        pytest.skip(f"no record of {framework} {version}; `make answers` writes one")
    return found[0]


@functools.cache
def its_rows(framework: str) -> tuple[Row, ...]:
    """The rows with the answers of one framework alone."""
    return tuple(matrix(dtypes=["float32"], frameworks=[framework]))


QUICK_IN_TORCH = [pytest.param(name, marks=[pytest.mark.thorough] * (name != "torch")) for name in UNMODIFIED]


@pytest.mark.parametrize("framework", QUICK_IN_TORCH)
def test_native_answers_are_those_recorded(framework: str) -> None:
    before = the_record(framework)
    found = record_frameworks.records(its_rows(framework), modes=["reverse"])[framework]
    asked = {cell.op for cell in before.answers}  # an older record may be of fewer ops
    found = replace(found, answers={cell: modes for cell, modes in found.answers.items() if cell.op in asked})
    assert before.answers.keys() == found.answers.keys()
    modes = {cell: {"reverse": modes["reverse"]} for cell, modes in before.answers.items()}
    changed = Changes(replace(before, answers=modes), found)
    assert not changed.lines, str(changed)


@pytest.mark.parametrize("framework", QUICK_IN_TORCH)
def test_native_answers_in_forward_mode_are_those_recorded(framework: str) -> None:
    before = the_record(framework)
    changed = Changes(before, record_frameworks.records(its_rows(framework))[framework])
    assert not changed.lines, str(changed)


def test_the_recorded_choices_have_the_definition(op: str) -> None:
    for row in rows(op):
        known = choices()[f"{op}({at(row)}), {' '.join(row.active)}"]
        np.testing.assert_allclose(known.conventions["min_norm"], row.definition, rtol=1e-4, atol=1e-3)
        nearest = least_norm(np.array(known.corners))
        np.testing.assert_allclose(nearest, row.definition, rtol=1e-4, atol=1e-3)


@pytest.mark.thorough
def test_the_recorded_choices_are_fresh(op: str) -> None:
    found = record_frameworks.choices(OPS[op])
    recorded_choices = {case: known for case, known in choices().items() if case.startswith(f"{op}(")}
    assert found.keys() == recorded_choices.keys()
    for case, known in recorded_choices.items():
        assert found[case].conventions == known.conventions, case
        np.testing.assert_allclose(found[case].corners, known.corners, atol=1e-3)


def test_another_function_is_not_asked() -> None:
    """With min and max exchanged the values agree on the first tie, not on the second."""
    op = replace(
        OPS["clamp"],
        tie_points=((2.0, 2.0, 2.0), (1.0, 2.0, -5.0)),
        counterparts=(Counterpart("jax.numpy:clip(x, max, min)"),),
    )
    same, other = (row for row in matrix([op], ["float32"], ["jax"]) if row.inactive == "none")
    assert spellings(same) == {"jax.numpy.clip"}
    assert spellings(other) == set()


def test_unknown_names_are_refused() -> None:
    """Rows that nobody answers would all agree."""
    for frameworks, name in (("jax", "j"), (("jax", "tourch"), "tourch")):
        with pytest.raises(ValueError, match=f"{name!r} is no framework; choose among jaxclamp, interop, native, jax"):
            next(matrix(frameworks=frameworks))
    with pytest.raises(ValueError, match="'int32' is no dtype; choose among float32"):
        next(matrix(dtypes=["int32"]))


def test_a_default_is_known_in_every_dtype() -> None:
    op = replace(OPS["leaky_relu"], counterparts=(Counterpart("jax.nn:leaky_relu(x)"),))
    slopes = {row.arguments["negative_slope"] for row in matrix([op], DTYPES, ["jax"]) if row.answers}
    dtypes = [row.dtype for row in matrix([op], DTYPES, ["jax"]) if row.answers and row.inactive == "numbers"]
    assert slopes == {0.01}
    assert dtypes == list(DTYPES)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_questions_asked_together_are_answered_as_each_alone(dtype: str) -> None:
    """Also where one is refused, and for numbers that are equal and not the same."""
    zero, six = np.zeros(()), np.full((), 6.0)
    clip, narrow = Counterpart("jax.numpy:clip(x, min, max)"), Counterpart("jax.lax:clamp(min, x, max)")

    def signed(given: Mapping[str, Any]) -> Any:
        return given["x"] * float(np.copysign(1.0, given["y"]))

    questions = [
        Question(clip, {"x": zero, "min": zero, "max": six}, ("x",)),
        Question(clip, {"x": six, "min": zero, "max": six}, ("x",)),
        Question(clip, {"x": six, "min": zero, "max": six}, ("x", "max")),
        Question(clip, {"x": zero, "min": -0.0, "max": 6.0}, ("x",)),
        Question(signed, {"x": six, "y": 0.0}, ("x",)),
        Question(signed, {"x": six, "y": -0.0}, ("x",)),
        Question(narrow, {"x": zero, "min": None, "max": 6.0}, ("x",)),
        Question(narrow, {"x": np.zeros(3), "min": zero, "max": six}, ("x",)),
    ]
    jax_ = parity.load("jax")
    together = jax_.gradients(questions, dtype)
    assert [isinstance(answer, Refusal) for answer in together] == [False] * 6 + [True, False]
    for question, answer in zip(questions, together, strict=True):
        (alone,) = jax_.gradients([question], dtype)
        assert isinstance(answer, Refusal) or repr(answer) == repr(alone)


def abs_with_slope_1(x: jax.Array) -> jax.Array:
    return jnp.abs(x)


def abs_with_nan(x: jax.Array) -> jax.Array:
    return jnp.sqrt(x * x)


def abs_with_slope_almost_0(x: jax.Array) -> jax.Array:
    return jaxclamp.abs(x) + 0.01 * (x - jax.lax.stop_gradient(x))


WRONG = [
    pytest.param("abs", abs_with_slope_1, id="abs with slope 1 at 0"),
    pytest.param("abs", abs_with_nan, id="abs with slope NaN at 0"),
    pytest.param("abs", abs_with_slope_almost_0, id="abs with slope 0.01 at 0"),
    pytest.param("relu", functools.partial(jaxclamp.relu, ties="inclusive"), id="relu, inclusive"),
    pytest.param("maximum", functools.partial(jaxclamp.maximum, ties="balanced"), id="maximum, balanced"),
    pytest.param("clamp", functools.partial(jaxclamp.clamp, ties="inclusive"), id="clamp, inclusive"),
]


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_a_wrong_rule_is_seen(name: str, wrong: Callable[..., jax.Array]) -> None:
    """The values are right; only the gradient at the tie is not."""

    @functools.wraps(OPS[name].function)
    def function(*args: Any, **kwargs: Any) -> jax.Array:
        return wrong(*args, **kwargs)

    op = replace(OPS[name], function=function, tie_points=OPS[name].tie_points[:1])
    row = next(matrix([op], ["float32"], ["jaxclamp"]))
    assert [(answer.framework, answer.agrees) for answer in row.answers] == [("jaxclamp", False)]
    assert not row.agrees
    right = next(row for row in its_rows("torch") if row.op == name)
    np.testing.assert_allclose(row.definition, right.definition, atol=1e-4)


def test_a_wrong_torch_wrapper_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = interop.abs
    monkeypatch.setitem(parity.TORCH_OPS, "abs", lambda x: 0.5 * x + right(x) - 0.5 * x.detach())
    for row in matrix([OPS["abs"]], ["float32"], PACKAGES):
        assert [answer.framework for answer in row.answers if not answer.agrees] == ["interop"]
        assert not row.agrees


def test_a_wrong_kernel_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(parity.NATIVE, "maximum", torch.maximum)
    found = list(matrix([OPS["maximum"]], ["float32"], PACKAGES))
    for row in found:
        assert [answer.framework for answer in row.answers if not answer.agrees] in ([], ["native"])
    assert not all(row.agrees for row in found)


def test_conventions_that_reproduce_native_answers() -> None:
    """torch gives the whole gradient to x at a bound, and from 2.14 none of it; jax.numpy gives half of it."""
    rows = matrix([OPS["clamp_min"]], ["float32"], [*PACKAGES, "torch", "jax"])
    row = next(row for row in rows if row.active == ("x",) and row.inactive == "numbers")
    conventions = {answer.spelling: answer.conventions for answer in row.answers}
    assert conventions == {
        "jaxclamp.clamp_min": (),
        "interop.clamp_min": (),
        "interop.native.clamp_min": (),
        "torch.clamp_min": ("inclusive",) if is_inclusive() else (),
        "jax.numpy.clip": ("balanced",),
    }
