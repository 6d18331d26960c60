"""`ties` against counting in NumPy: the numbers, the lines, what does not count, and the influence on the gradient."""

import inspect
import io
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import equinox
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend.core import check_jaxpr
from jax.sharding import PartitionSpec as P
from rich.console import Console

import jaxclamp
from jaxclamp import OPS, Influence, Line, Op, TieReport, count_ties, min_norm, ties
from tests.support.elementwise import ELEMENTWISE, valid_operands
from tests.support.strict_json import strictly

X = jnp.array([-2.0, -1.0, -0.0, 0.0, 0.0, 1.0, 3.0, 6.0, 6.0])
N = np.asarray(X)
QUICK = ("clamp", "maximum", "elu", "max_with_indices")


def here() -> int:
    """The number of the line that it is called on."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def counts(report: TieReport) -> dict[tuple[int, str], tuple[int, int]]:
    """(line, op): (elements, tied), all of them in this file; suspects with a question mark."""
    assert {line.file for line in report.lines} <= {__file__}
    return {(line.number, line.op + "?" * line.suspect): (line.elements, line.tied) for line in report.lines}


def counted(function: Callable[..., Any], *args: Any) -> dict[tuple[int, str], tuple[int, int]]:
    result, report = ties(function)(*args)
    jax.tree.map(np.testing.assert_array_equal, result, function(*args))
    return counts(report)


@pytest.mark.parametrize(
    ("name", "function", "elements", "tied"),
    [
        ("abs", jnp.abs, 9, (N == 0).sum()),
        ("maximum", lambda x: jnp.maximum(x, 0.0), 9, (N == 0).sum()),
        ("minimum", lambda x: jnp.minimum(x, x[::-1]), 9, (N[::-1] == N).sum()),
        ("fmax", lambda x: jnp.fmax(x, 1.0), 9, (N == 1).sum()),
        ("clamp", lambda x: jnp.clip(x, 0.0, 6.0), 9, ((N == 0) | (N == 6)).sum()),
        ("clamp_min", lambda x: jnp.clip(x, 1.0), 9, (N == 1).sum()),
        ("hardtanh", jax.nn.hard_tanh, 9, (abs(N) == 1).sum()),
        ("leaky_relu", jax.nn.leaky_relu, 9, (N == 0).sum()),
        ("elu", lambda x: jax.nn.elu(x, 2.0), 9, (N == 0).sum()),
        ("elu", jax.nn.elu, 9, 0),  # alpha = 1: the slopes agree
        ("relu", jax.nn.relu, 9, (N == 0).sum()),
        ("relu6", jax.nn.relu6, 9, ((N == 0) | (N == 6)).sum()),
        ("hardsigmoid", jax.nn.hard_sigmoid, 9, (abs(N) == 3).sum()),
        ("hardsigmoid", jaxclamp.hardsigmoid, 9, (abs(N) == 3).sum()),
        ("amax", lambda x: jnp.max(x.reshape(3, 3), axis=1), 3, 1),
        ("amin", lambda x: jnp.min(x), 1, 0),
        ("max_pool", lambda x: jax.lax.reduce_window(x - 6, -jnp.inf, jax.lax.max, (2,), (1,), "SAME"), 9, 3),
    ],
)
def test_counts_of_each_op(name: str, function: Callable[[jax.Array], Any], elements: int, tied: int) -> None:
    min_norm(function, ties="balanced")(X)  # after which there are compiled functions that give values
    _, report = ties(lambda x: function(x))(X)
    (line,) = report.lines
    assert (line.op, line.elements, line.tied) == (name, elements, tied)
    assert line.share == tied / elements
    assert (report.elements, report.tied) == (elements, tied)


@pytest.mark.parametrize(
    "op", [pytest.param(op, id=op.name, marks=[pytest.mark.thorough] * (op.name not in QUICK)) for op in OPS.values()]
)
def test_own_ops_count_once_in_every_context(op: Op) -> None:
    """By themselves, compiled, batched, differentiated, and all of it."""

    def tied_at(x: Any, *others: Any) -> int:
        return int(np.sum(op.on_tie(jnp.asarray(x), *others)))

    arguments = max(op.tie_points, key=lambda tie: tied_at(*tie))
    x, tied = jnp.asarray(arguments[0]), tied_at(*arguments)
    assert tied or op.name == "celu"  # which has no kink

    def value(x: jax.Array) -> Any:
        return jax.tree.leaves(op.function(x, *arguments[1:]))[0]  # the line

    def total(x: jax.Array) -> jax.Array:
        return jnp.exp(value(x)).sum()  # whose derivative needs the value

    def batched(x: jax.Array) -> jax.Array:
        return jax.vmap(total)(jnp.stack([x, x])).sum()

    contexts = (value, jax.jit(value), jax.grad(total), jax.jit(jax.grad(total)), batched, jax.jit(jax.grad(batched)))
    times = 4 + 2 * 2  # a batch is of two
    _, report = ties(lambda x: [context(x) for context in contexts])(x)  # one program, which takes long to compile
    where = (value.__code__.co_firstlineno + 1, op.name)
    assert counts(report) == {where: (times * value(x).size, times * tied)}


def test_other_derivatives_of_their_own_are_not_looked_into() -> None:
    @jax.custom_jvp
    def largest(x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(jnp.max(x, axis=1, keepdims=True), x.shape)

    largest.defjvps(lambda tangent, value, x: tangent)
    assert ties(largest)(jnp.zeros((2, 3)))[1] == TieReport()


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_on_tie_where_the_gradient_is_a_choice(op: Op) -> None:
    """By forward values alone: there is a choice where the slopes to the two sides differ in some direction."""
    step = 2.0**-10
    for operands in valid_operands(op):
        if op.name in ("threshold", "hardshrink"):
            continue  # they jump, so that there are no slopes

        def value(k: int, shift: float) -> float:
            return float(op.function(*(jnp.float32(v + shift * (i == k)) for i, v in enumerate(operands))))  # noqa: B023

        bends = [value(k, step) - 2 * value(k, 0) + value(k, -step) for k in range(len(operands))]
        assert bool(op.on_tie(*map(jnp.float32, operands))) == (max(map(abs, bends)) > step / 50), operands
    x, *parameters = valid_operands(op)[0]
    assert not op.on_tie(x + 0.25, *parameters)


@pytest.mark.parametrize("name", ["abs", "hardswish", "selu", "leaky_relu"])
def test_integers_on_a_kink(name: str) -> None:
    x = jnp.array([-3, 0, 1, 3])
    assert OPS[name].on_tie(x).tolist() == OPS[name].on_tie(x.astype(float)).tolist()


@pytest.mark.parametrize("op", [jaxclamp.maximum, jnp.maximum, jaxclamp.amax], ids=["maximum", "jnp", "amax"])
def test_integers_have_no_gradient_and_so_no_ties(op: Callable[..., jax.Array]) -> None:
    operands = (jnp.arange(3),) * (1 if op is jaxclamp.amax else 2)
    assert ties(op)(*operands)[1].tied == 0


def test_lines_and_control_flow() -> None:
    lines = {}

    def model(x: jax.Array) -> jax.Array:
        def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            lines["scan"] = here() + 1
            return carry, jnp.maximum(row, 0.0)

        def halve(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            lines["while"] = here() + 1
            return state[0] + 1, jnp.abs(state[1]) / 2

        def taken(x: jax.Array) -> jax.Array:
            lines["cond"] = here() + 1
            return jnp.clip(x, 0.0, 6.0)

        def passed(x: jax.Array) -> jax.Array:
            return jax.nn.leaky_relu(x)

        def row(x: jax.Array) -> jax.Array:
            lines["vmap"] = here() + 1
            return jax.nn.hard_tanh(x)

        _, a = jax.lax.scan(step, 0.0, x)
        b = jax.lax.while_loop(lambda state: state[0] < 3, halve, (0, x))[1]
        c = jax.lax.cond(x.sum() > 0, taken, passed, x)
        d = jax.vmap(jax.vmap(row))(x.reshape(3, 3)).ravel()
        lines["jit"] = here() + 1
        return a + b + c + d + jax.jit(jnp.abs)(x) + jax.checkpoint(lambda x: jnp.minimum(x, 1.0))(x)

    def expected() -> dict[tuple[int, str], tuple[int, int]]:
        return {
            (lines["scan"], "maximum"): (9, 3),
            (lines["while"], "abs"): (27, 9),
            (lines["cond"], "clamp"): (9, 5),
            (lines["vmap"], "hardtanh"): (9, 2),
            (lines["jit"], "abs"): (9, 3),
            (lines["jit"], "minimum"): (9, 1),
        }

    assert counted(model, X) == expected()
    assert counted(jax.jit(model), X) == expected()
    check_jaxpr(jax.make_jaxpr(count_ties(jax.jit(model)))(X).jaxpr)


def test_functions_of_jax_are_at_the_line_that_calls_them() -> None:
    """Though they are traced once for all calls."""

    def model(x: jax.Array) -> jax.Array:
        first = jnp.linalg.norm(x, jnp.inf)
        return first + jnp.linalg.norm(x, jnp.inf)

    start = inspect.getsourcelines(model)[1]
    for _ in range(2):
        found = counted(model, X)
        assert {line for line, _ in found} == {start + 1, start + 2}
        assert found[start + 1, "abs"] == found[start + 2, "abs"] == (9, 3)


def test_a_training_step_counts_each_element_once() -> None:
    """Neither the derivative nor what checkpoint computes again for it."""

    def block(x: jax.Array, w: jax.Array) -> jax.Array:
        y = jax.nn.leaky_relu(jnp.maximum(x * w, 0.0))
        return jax.nn.relu(y) + jnp.clip(y, 0.0, 6.0) + jax.nn.hard_tanh(y)

    @jax.jit
    def step(w: jax.Array) -> Any:
        def loss(w: jax.Array) -> jax.Array:
            return sum(jax.checkpoint(block)(X, w) for _ in range(2)).sum()

        return jax.value_and_grad(loss)(w)

    line = inspect.getsourcelines(block)[1] + 1
    zeros = 2 * int((N <= 0).sum())
    assert counted(step, jnp.ones(())) == {
        (line, "leaky_relu"): (18, zeros),
        (line, "maximum"): (18, 6),
        (line + 1, "relu"): (18, zeros),
        (line + 1, "clamp"): (18, zeros + 4),
        (line + 1, "hardtanh"): (18, 2),
    }


@pytest.mark.parametrize(
    ("name", "function", "tied"),
    [
        pytest.param("fmax", lambda x: jnp.fmax(x, 0.0), 3, marks=pytest.mark.thorough),
        pytest.param("clamp", lambda x: jnp.clip(x, 0.0, 6.0), 5, marks=pytest.mark.thorough),
        ("leaky_relu", jax.nn.leaky_relu, 3),
        ("elu", lambda x: jax.nn.elu(x, 2.0), 3),
        pytest.param("selu", jax.nn.selu, 3, marks=pytest.mark.thorough),
        pytest.param("celu", jax.nn.celu, 0, marks=pytest.mark.thorough),
        ("hardtanh", jax.nn.hard_tanh, 2),
        pytest.param("relu", jax.nn.relu, 3, marks=pytest.mark.thorough),
    ],
)
def test_derivatives_inside_count_each_element_once(
    name: str, function: Callable[[jax.Array], jax.Array], tied: int
) -> None:
    """In forward mode, in reverse mode and in both; what they are made of is no suspect."""

    def f(x: jax.Array) -> jax.Array:
        return function(x)

    def total(x: jax.Array) -> jax.Array:
        return (f(x) ** 2).sum()

    derivatives = (
        lambda x: jax.jvp(f, (x,), (x,)),
        jax.jacfwd(f),
        jax.jacfwd(jax.jacfwd(total)),
        jax.grad(lambda x: jax.grad(total)(x).sum()),
        jax.hessian(total),
    )
    contexts = [*derivatives, *map(jax.jit, derivatives)]
    _, report = ties(lambda x: [context(x) for context in contexts])(X)
    assert [line[2:4] + line[5:] for line in report.lines] == [(name, False, 10 * 9, 10 * tied)]


def test_several_devices() -> None:
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jnp.tile(jnp.array([0.0, 1.0]), 8)

    def model(x: jax.Array) -> jax.Array:
        return jnp.abs(x) + jnp.clip(x, 0.0, 1.0)

    line = inspect.getsourcelines(model)[1] + 1
    expected = {(line, "abs"): (16, 8), (line, "clamp"): (16, 16)}
    sharded = jax.device_put(x, jax.sharding.NamedSharding(mesh, P("batch")))
    assert counted(jax.jit(model), sharded) == expected
    over_devices = jax.jit(jax.shard_map(model, mesh=mesh, in_specs=P("batch"), out_specs=P("batch")))
    assert counted(over_devices, x) == expected


def test_suspects() -> None:
    def model(x: jax.Array, mask: jax.Array) -> jax.Array:
        a = jnp.where(x > 0, x, 0.0)
        b = jnp.where(x <= 0, 0.1 * x, jnp.exp(x))
        c = jax.lax.select(x < x[::-1], x, x[::-1])
        d = jnp.where(mask > 0, x, 0.0)
        e = jnp.where(jnp.isnan(x), 0.0, x)
        return a + b + c + d + e + jnp.arange(9)[jnp.where(jnp.arange(9) > 3, jnp.arange(9), 3)]

    start = inspect.getsourcelines(model)[1]
    expected = {
        (start + 1, "select?"): (9, 3),
        (start + 2, "select?"): (9, 3),
        (start + 3, "select?"): (9, int((N[::-1] == N).sum())),
    }
    assert counted(model, X, jnp.ones(9)) == expected
    _, report = ties(lambda x: jax.value_and_grad(lambda x: jnp.where(x > 0, x, 0.0).sum())(x))(X)
    assert [(line.elements, line.tied) for line in report.lines] == [(9, 3)]
    assert (report.elements, report.tied) == (0, 0)
    report.assert_none()


def test_what_is_not_counted() -> None:
    """Functions with a derivative of their own, numbers that are not real, and nothing at all."""
    model: Callable[[jax.Array], Any] = lambda x: (jax.nn.softplus(x), jnp.abs(x.astype(int)), jnp.abs(x + 1j), x + 1)  # noqa: E731
    assert counted(model, X) == {}
    assert ties(model)(X)[1] == TieReport()
    kept = jax.checkpoint(lambda x: jnp.sin(jnp.exp(x) * x).sum(), policy=jax.checkpoint_policies.everything_saveable)
    assert ties(jax.grad(kept))(X)[1] == TieReport()  # JAX rounds what it keeps to the dtype that it has
    takes_both = jax.jit(lambda mask, x: mask + x)  # a call with the operands of a select
    assert ties(lambda x: takes_both(x > 0, x))(X)[1] == TieReport()


def test_what_a_stop_gradient_alone_reads_does_not_count() -> None:
    """No gradient depends on it, in a body and in a derivative either."""

    def fun(x: jax.Array) -> jax.Array:
        largest = jnp.max(x)
        shifted = jnp.exp(x - jax.lax.stop_gradient(jnp.maximum(largest, 0.0)))
        return shifted.sum() + jax.lax.scan(lambda c, x: (c, jax.nn.softmax(x)), largest, X.reshape(3, 3))[0]

    line = inspect.getsourcelines(fun)[1] + 1
    assert counted(fun, jnp.ones(2)) == {(line, "amax"): (1, 1)}
    assert counted(jax.value_and_grad(fun), jnp.ones(2)) == {(line, "amax"): (1, 1)}


def test_many_steps_add_up() -> None:
    model = ties(lambda x: jnp.maximum(x, 0.0))
    reports = [model(X + shift)[1] for shift in range(3)]
    total = sum(reports, TieReport())
    expected = sum(int((N + shift == 0).sum()) for shift in range(3))
    assert [(line.elements, line.tied) for line in total.lines] == [(27, expected)]
    assert total + TieReport() == total
    assert TieReport() + TieReport() == TieReport()


def test_effects_and_static_arguments_pass(capfd: pytest.CaptureFixture[str]) -> None:
    def model(x: jax.Array, mode: str, *, n: int) -> dict[str, Any]:
        jax.debug.print("once")
        return {"y": jnp.maximum(x, 0.0) * len(range(n)), "mode": mode}

    result, report = ties(model)(X, "on", n=2)
    jax.effects_barrier()
    assert capfd.readouterr().out == "once\n"
    assert result["mode"] == "on"
    assert report.tied == 3


@pytest.mark.parametrize("transformation", [jax.jit, jax.grad, jax.vmap])
def test_inside_a_transformation_it_says_what_to_do(transformation: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="call it outside of jit, grad and vmap"):
        transformation(lambda x: ties(lambda x: jnp.abs(x) * 1.0)(x)[0])(
            jnp.zeros(()) if transformation is not jax.vmap else X
        )


def test_influence_by_hand() -> None:
    """Of 2 w x clipped to [0, 6]: at w = 1, x = 0 and 3 are on a bound, where inclusive adds the slope 2 x."""
    x = jnp.array([0.0, 1.0, 3.0, 4.0])

    def loss(parameters: dict[str, Any], x: jax.Array) -> jax.Array:
        return jnp.clip(2 * parameters["w"] * x, 0.0, 6.0).sum()

    parameters = {"w": jnp.ones(()), "name": "layer", "steps": jnp.arange(2)}
    for f in (loss, lambda parameters, x: jax.jit(loss)({"w": parameters["w"]}, x)):
        value, report = ties(f, influence=True)(parameters, x)
        assert value == 14
        assert report.influence == Influence(norm=6.0, gradient_norm=2.0)
        assert report.influence.relative == 3.0
    assert ties(loss)(parameters, x)[1].influence is None
    _, off = ties(loss, influence=True)(parameters, x + 0.25)
    assert off.influence == Influence(0.0, 2 * (0.25 + 1.25))
    total = report + off + TieReport()
    assert total.influence == Influence(6.0, float(np.hypot(2.0, 3.0)))
    assert Influence(0.0, 0.0).relative == 0
    assert Influence(1.0, 0.0).relative == np.inf


@pytest.mark.parametrize(
    ("function", "norm"),
    [
        pytest.param(jnp.abs, 1.0, marks=pytest.mark.thorough),
        (jax.nn.leaky_relu, 0.99),
        (lambda x: jnp.clip(x, 0.0, 6.0), 2**0.5),
        pytest.param(jax.nn.relu, 1.0, marks=pytest.mark.thorough),
        pytest.param(jax.nn.relu6, 2**0.5, marks=pytest.mark.thorough),
        (lambda x: jaxclamp.maximum(x, 0.0), 1.0),
        pytest.param(jaxclamp.relu6, 2**0.5, marks=pytest.mark.thorough),
        (lambda x: jaxclamp.relu6(x, ties="inclusive"), 2**0.5),
        pytest.param(jax.nn.softplus, 0.0, marks=pytest.mark.thorough),
        (jaxclamp.abs, 0.0),  # its one derivative under all conventions
        (lambda x: jaxclamp.amax(x[1:2]), 0.0),
    ],
)
def test_influence_of_each_kind_of_op(function: Callable[[jax.Array], jax.Array], norm: float) -> None:
    """At 0, 1 and 6: against what the function does as it is, and against a rewriting that reaches every op."""
    x = jnp.array([0.0, 1.0, 6.0])
    for f in (function, jax.jit(function), jax.checkpoint(function)):
        _, report = ties(lambda x, f=f: f(x).sum(), influence=True)(x)
        assert report.influence is not None
        assert report.influence.norm == pytest.approx(norm)


def test_influence_is_the_larger_of_two_distances() -> None:
    """jax.numpy.maximum is balanced as it is; abs has 1 there, and no convention."""
    gradients: dict[str | None, Any] = {"min_norm": 3.0, "inclusive": 4.0, None: -4.0}
    assert Influence.of(lambda ties: np.array([gradients[ties]])) == Influence(7.0, 3.0)
    gradients["inclusive"] = 13.0
    assert Influence.of(lambda ties: np.array([gradients[ties]])) == Influence(10.0, 3.0)
    gradients[None] = np.nan
    assert np.isnan(Influence.of(lambda ties: np.array([gradients[ties]])).norm)
    _, report = ties(lambda x: jnp.maximum(x, 0.0).sum() + 2 * jnp.abs(x).sum(), influence=True)(jnp.zeros(1))
    assert report.influence == Influence(2.5, 0.0)


def test_influence_of_numbers_that_are_no_jax_arrays() -> None:
    def loss(parameters: dict[str, Any], x: Any) -> Any:
        return jnp.clip(parameters["w"] * x, 0.0, 6.0).sum() + len(parameters["name"])

    x = np.array([0.0, 1.0, 6.0], "float32")
    for one in (1.0, np.float32(1), np.float64(1), np.ones(3), jnp.ones((), "bfloat16")):
        _, report = ties(loss, influence=True)({"w": one, "name": "layer", "steps": 3}, x)
        assert report.influence is not None
        assert report.influence == Influence(6.0, 1.0)
    assert ties(jnp.abs, influence=True)(0.0)[1].influence == Influence(1.0, 0.0)


def test_influence_of_nothing_says_what_to_do() -> None:
    for args, kwargs in (((), {"x": X}), ((jnp.arange(2), X), {}), (("layer", X), {}), ((1, X), {})):
        with pytest.raises(TypeError, match="first positional argument, in which there are no floating point numbers"):
            ties(lambda *args, x=X: jnp.abs(x).sum(), influence=True)(*args, **kwargs)


def test_influence_of_a_function_that_takes_its_arguments_for_itself() -> None:
    donating = jax.jit(lambda x, y: (jnp.clip(x, 0.0, 6.0), y * 2), donate_argnums=(0, 1))
    x, y = jnp.array([0.0, 1.0, 6.0]), jnp.ones(3)
    _, report = ties(lambda x, y: donating(x, y)[0].sum(), influence=True)(x, y)
    assert report.influence == Influence(pytest.approx(2**0.5), 1.0)  # type: ignore[arg-type]
    assert x.is_deleted()
    key = jax.random.key(0)
    _, report = ties(lambda x, key: jax.random.normal(key) * x, influence=True)(1.0, key)
    assert report.influence is not None
    assert report.influence.norm == 0


REPORT = TieReport(
    (
        Line("/far/model.py", 7, "clamp", False, "", 40, 10),
        Line("/far/model.py", 9, "select", True, "", 8, 8),
        Line("/far/other.py", 1, "abs", False, "", 10, 0),
    ),
    Influence(1.0, 4.0),
)


def test_a_sum_names_the_parameters_of_each_report_once() -> None:
    weights, biases = (TieReport(REPORT.lines, Influence(3.0, 4.0), name) for name in ("the weights", "the biases"))
    assert (weights + weights + TieReport()).differentiated == "the weights"
    total = weights + biases
    assert total.differentiated == "the weights; the biases"
    assert total.influence == Influence(18**0.5, 32**0.5)
    assert total.lines[0] == Line("/far/model.py", 7, "clamp", False, "", 80, 20)


def test_renderings() -> None:
    about = (
        "(suspect) marks a kink or a jump that no convention decides, and that the first line does not count: see "
        "docs/decided-choices.md."
    )
    assert str(REPORT).splitlines() == [
        "10 of 50 elements on a tie; another convention moves the gradient by 1, 25.00% of its norm",
        "line             op                elements  on a tie  share",
        "/far/model.py:7  clamp             40        10        25.00%",
        "/far/model.py:9  select (suspect)  8         8         100.00%",
        "/far/other.py:1  abs               10        0         0.00%",
        about,
    ]
    assert "suspect" not in str(TieReport(REPORT.lines[:1]))
    assert str(TieReport()) == "0 of 0 elements on a tie"
    assert "| /far/model.py:9 | select (suspect) | 8 | 8 | 100.00% |" in REPORT.to_markdown().splitlines()
    assert REPORT.to_markdown().endswith(f"\n\n{about}")
    loaded = json.loads(REPORT.to_json())
    assert loaded["influence"] == {"norm": 1.0, "gradient_norm": 4.0, "relative": 0.25}
    assert loaded["lines"][0] == {
        "file": "/far/model.py",
        "number": 7,
        "op": "clamp",
        "suspect": False,
        "module": "",
        "elements": 40,
        "tied": 10,
        "share": 0.25,
    }
    assert json.loads(TieReport().to_json()) == {"lines": [], "influence": None, "differentiated": ""}
    nothing = TieReport((Line("/far/model.py", 7, "clamp", False, "", 0, 0),), Influence(1.0, 0.0))
    assert nothing.lines[0].share == 0
    assert str(nothing).startswith(
        "0 of 0 elements on a tie; another convention moves the gradient by 1, that of minimum norm is 0\n"
    )
    loaded = strictly(nothing.to_json())
    assert loaded["influence"] == {"norm": 1.0, "gradient_norm": 0.0, "relative": "inf"}
    assert loaded["lines"][0]["share"] == 0
    printed = io.StringIO()
    Console(file=printed, width=100).print(REPORT)
    assert "/far/model.py:7" in printed.getvalue()
    assert "25.00%" in printed.getvalue()


def test_assert_none_names_the_lines() -> None:
    with pytest.raises(AssertionError, match=r"10 of 50 elements are on a tie:\n  /far/model.py:7: clamp, 10 of 40$"):
        REPORT.assert_none()
    ties(jnp.abs)(jnp.ones(3))[1].assert_none()


def test_assert_none_names_the_modules() -> None:
    report = TieReport((Line("/far/model.py", 7, "clamp", False, "Net/Block_0", 40, 10),))
    with pytest.raises(AssertionError, match=r"\n  /far/model.py:7 Net/Block_0: clamp, 10 of 40$"):
        report.assert_none()


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jaxclamp.relu(nn.Dense(3, use_bias=False)(x)) + jnp.abs(x)


class Network(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for block in (Block(name="first"), nn.jit(Block)(name="second"), nn.remat(Block)(name="third")):
            x = block(x)
        return jnp.clip(x, 0.0, 6.0)


def test_modules_of_flax_are_named() -> None:
    """In the derivative, under jit and batched as well."""
    network = Network()
    variables = network.init(jax.random.key(0), jnp.zeros(3))

    def loss(variables: Any) -> jax.Array:
        return jax.vmap(lambda x: network.apply(variables, x))(jnp.zeros((2, 3))).sum()

    blocks = [(f"Network/{name}", op) for name in ("first", "second", "third") for op in ("abs", "relu")]
    for f in (loss, jax.jit(jax.grad(loss))):
        _, report = ties(f)(variables)
        found = sorted((line.module, line.op, line.elements, line.tied) for line in report.lines)
        assert found == sorted((module, op, 6, 6) for module, op in [("Network", "clamp"), *blocks])


def test_a_gradient_of_a_whole_program_has_the_modules_and_counts_of_the_program() -> None:
    @jax.named_scope("Net")
    def loss(x: Any) -> Any:
        return jnp.maximum(x, 0.0).sum() + jnp.max(x)

    x = jnp.array([0.0, 1.0])
    of_gradient = ties(jaxclamp.grad(loss))(x)[1]
    assert [line[2:] for line in of_gradient.lines] == [line[2:] for line in ties(loss)(x)[1].lines]


def test_modules_of_equinox_and_nnx_as_far_as_they_enter_scopes() -> None:
    """`nnx` enters none, and `equinox` for its own layers alone, as the documentation says."""
    mlp = equinox.nn.MLP(3, 3, 3, 1, activation=jax.nn.relu, key=jax.random.key(0))
    graph, state = nnx.split(nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), jax.nn.relu))

    def model(state: Any, x: jax.Array) -> Any:
        return jnp.abs(mlp(x)) + nnx.merge(graph, state, copy=True)(x)

    _, report = ties(model)(state, jnp.ones(3))
    assert {(line.op, line.module) for line in report.lines} == {("relu", "eqx.nn.MLP"), ("abs", ""), ("relu", "")}


def test_named_scopes_reach_into_bodies() -> None:
    def model(x: jax.Array) -> Any:
        @jax.jit
        @jax.named_scope("innermost")
        def activation(x: jax.Array) -> jax.Array:
            return jax.nn.relu6(x)

        with jax.named_scope("outer"):
            x = jax.lax.scan(lambda carry, row: (carry, jnp.abs(row)), 0.0, x)[1]
            with jax.named_scope("inner"):
                x = activation(x)
            return jax.lax.cond(x.sum() > 0, jax.named_scope("taken")(jax.nn.relu), jnp.floor, x)

    _, report = ties(model)(X)
    assert {line.op: line.module for line in report.lines} == {
        "abs": "outer",
        "relu6": "outer/inner/innermost",
        "relu": "outer/taken",
    }


@pytest.mark.thorough  # for it starts a process
def test_rich_is_not_imported() -> None:
    code = "import sys, jaxclamp, jax.numpy as n; str(jaxclamp.ties(n.abs)(n.ones(1))[1]); print('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"


def test_what_programs_take_as_it_is_is_a_suspect() -> None:
    """With the elements at a jump, where that is known."""

    @jax.custom_vjp
    def rounded(x: Any) -> Any:
        return jnp.round(x)

    rounded.defvjp(lambda x: (rounded(x), None), lambda _, cotangent: (cotangent,))

    def fun(x: jax.Array) -> jax.Array:
        y = jnp.floor(x) + jnp.ceil(x) + jnp.round(x / 2) + jax.lax.rem(x, 2.0) + rounded(x)
        y += jax.lax.atan2((x - 1) * (x - 2), x - 1.5)
        whole = x.astype(int)
        return y + jax.pure_callback(np.sin, x, x) + whole % 2 + jax.pure_callback(lambda: np.float32(1), x[0])

    _, report = jaxclamp.ties(fun)(jnp.array([0.0, 1.0, 1.5, 2.0]))
    assert {line.op: (line.suspect, line.elements, line.tied) for line in report.lines} == {
        "floor": (True, 4, 3),
        "ceil": (True, 4, 3),
        "round": (True, 4, 1),
        "rem": (True, 4, 1),  # at 0 it passes through 0
        "custom_vjp_call": (True, 4, 0),
        "atan2": (True, 4, 1),
        "pure_callback": (True, 5, 0),  # without an operand, too
    }


def test_a_number_next_to_a_half_is_on_no_jump() -> None:
    halves = np.float32([-0.5, 0.5, 1.5])
    x = np.concatenate([halves, np.nextafter(halves, np.float32(9)), np.nextafter(halves, np.float32(-9))])
    (line,) = jaxclamp.ties(lambda x: jnp.round(x))(jnp.asarray(x))[1].lines
    assert (line.elements, line.tied) == (9, 3)


def test_influence_of_a_function_with_auxiliary_results() -> None:
    x = jnp.array([-1.0, 0.0, 2.0])
    (value, rest), report = jaxclamp.ties(
        lambda x: (jnp.maximum(x, 0.0).sum(), {"x": x}), influence=True, has_aux=True
    )(x)
    assert (value, rest["x"].tolist(), report.tied) == (2, [-1, 0, 2], 1)
    assert report.influence == jaxclamp.ties(lambda x: jnp.maximum(x, 0.0).sum(), influence=True)(x)[1].influence
    assert report.influence.norm == 1


def test_ties_of_a_select_between_constants() -> None:
    """Partial evaluation leaves a select without operands."""
    x = jnp.array([-1.0, 0.0, 2.0])
    value, report = jaxclamp.ties(lambda x: x * jnp.where(True, 1.0, 0.0))(x)
    assert (value.tolist(), report.lines) == ([-1, 0, 2], ())


def test_flax_scan() -> None:
    from flax import linen

    class Cell(linen.Module):
        @linen.compact
        def __call__(self, carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            carry = linen.leaky_relu(linen.Dense(3, use_bias=False)(carry) + x)
            return carry, carry

    class Model(linen.Module):
        @linen.compact
        def __call__(self, xs: jax.Array) -> jax.Array:
            over = linen.scan(Cell, variable_broadcast="params", split_rngs={"params": False})
            return over()(jnp.zeros(3), xs)[1]

    model, xs = Model(), jnp.array([[0.0, 0.0, -1.0], [0.0, 1.0, 2.0]])
    parameters = model.init(jax.random.key(0), xs)

    def loss(xs: jax.Array) -> jax.Array:
        return model.apply(parameters, xs)[0].sum()

    _, report = jaxclamp.ties(jax.value_and_grad(loss))(xs)
    assert (report.elements, report.tied) == (6, 2)  # of the first step, in which the carry is 0
    np.testing.assert_allclose(jax.grad(jaxclamp.min_norm(loss))(xs), [[0.01, 0.01, 0.01], [0, 0, 0]], rtol=1e-6)
    assert jax.grad(loss)(xs)[0].tolist() == pytest.approx([1, 1, 0.01])


# Counts as arrays: `count_ties`
