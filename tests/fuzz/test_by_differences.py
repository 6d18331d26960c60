"""Random programs with many ties, under random transformations of JAX, against differences of their values.

More of them than here: python -m tests.fuzz programs-jax --programs 1000
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import jaxclamp
from tests.fuzz import by_differences, differences, programs
from tests.fuzz.by_differences import PROGRAMS, TARGETS, JaxForm, failures
from tests.fuzz.definition import UndecidedError
from tests.fuzz.differences import expected
from tests.fuzz.programs import ROWS, Program, Step, draw_program
from tests.fuzz.running import mesh
from tests.fuzz.steps import KINDS, SHAPE
from tests.support.representatives import parts


# Ten at a time, so that one program of JAX is not too large.
@parts(PROGRAMS, 10, quick=10)
def test_jax(seeds: range) -> None:
    assert not (found := failures(seeds, TARGETS["jax"])), "\n".join(found)


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 30), marks=pytest.mark.thorough)], ids=str)
def test_jax_op_by_op(seeds: range) -> None:
    assert not (found := failures(seeds, TARGETS["jax op by op"])), "\n".join(found)


def test_what_is_drawn() -> None:
    """Every step, every form, and kinks in most programs."""
    drawn = [draw_program(seed)[0] for seed in range(200)]
    assert {step.kind for program in drawn for step in program.steps} == KINDS.keys()
    assert {len(program.steps) * program.repeats for program in drawn} == {*range(1, programs.DEPTH + 1)}
    forms = [by_differences.drawn_in_jax(program) for program in drawn]
    assert {form.mode for form in forms} == {*by_differences.MODES}
    assert {form.batch for form in forms} == {*by_differences.BATCHES}
    assert {form.loop for form in forms} == by_differences.LOOPS.keys()
    assert {name for form in forms for name in form.around} == by_differences.WRAPPERS.keys()
    assert {name for form in forms for name in form.around_steps.values()} == by_differences.WRAPPERS.keys()
    assert sum(map(has_kink, range(200))) > 130


def has_kink(seed: int) -> bool:
    """Whether the two gradients along a direction and its opposite differ somewhere."""
    program, forward = draw_program(seed)
    x, y = program.directions
    backward = expected(dataclasses.replace(program, directions=(-x, -y)))
    return any(not np.allclose(a, b, atol=1e-3) for a, b in zip(forward.gradients, backward.gradients, strict=True))


def program(*steps: Step, repeats: int = 1) -> Program:
    """From zeros and from ones, along two directions."""
    source = np.random.default_rng(0)
    x, v = np.zeros((ROWS, *SHAPE)), source.normal(size=(ROWS, *SHAPE))
    x[ROWS // 2 :] = 1.0
    return Program(0, steps, repeats, np.ones(SHAPE), (x, x), (0,), (v, np.zeros_like(v)))


def test_the_differences() -> None:
    """They are the derivatives at kinks, at ties that are none, and of what is curved."""
    x, v = program().points[0], program().directions[0]
    kink = expected(program(Step("abs", (0,), (), 0)))
    np.testing.assert_allclose(kink.gradients[0], np.where(x == 0, np.sign(v), 1), atol=1e-6)
    np.testing.assert_allclose(kink.derivative, np.where(x == 0, np.abs(v), v).sum((-1, -2)), atol=1e-6)
    both = Step("maximum", (0, 0), (), 0)
    np.testing.assert_allclose(expected(program(both)).gradients[0], 1, atol=1e-6)
    np.testing.assert_allclose(expected(program(Step("square", (0,), (), 0))).gradients[0], 2 * x, atol=1e-6)


def test_what_differences_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A jump, which no step has, and a kink that is near."""
    jump = dataclasses.replace(KINDS["abs"], definition=lambda x: (x > 0).astype(float))
    monkeypatch.setattr(programs, "KINDS", {"jump": jump, "shift": KINDS["shift"], "abs": KINDS["abs"]})
    with pytest.raises(UndecidedError):
        expected(program(Step("jump", (0,), (), 0)))
    near = 1.5 * differences._NEAR * np.abs(program().directions[0][0])
    with pytest.raises(UndecidedError):
        expected(program(Step("shift", (0,), (near,), 0), Step("abs", (2,), (), 0)))


@pytest.mark.parametrize(
    ("mode", "wrong"),
    [
        ("grad", jax.grad),
        ("value_and_grad", jax.value_and_grad),
    ],
)
def test_a_wrong_derivative_is_found(monkeypatch: pytest.MonkeyPatch, mode: str, wrong: Any) -> None:
    """JAX's own gradient of relu(x) - relu(-x) at 0 is 0."""
    identity = program(Step("identity", (0,), (), 0))
    monkeypatch.setattr(by_differences, "draw_program", lambda _: (identity, expected(identity)))
    monkeypatch.setattr(by_differences, "drawn_in_jax", lambda _: JaxForm(mode, False, "scan", {}, (), "map"))
    assert failures([0], TARGETS["jax"]) == []

    def planted(fun: Any, argnums: Any, has_aux: bool, **_: Any) -> Any:
        return wrong(fun, argnums, has_aux)

    monkeypatch.setattr(jaxclamp, mode, planted)
    (text,) = failures([0], TARGETS["jax"])
    assert "wrong derivative, in rows [0, 1, 2, 3]" in text


def test_a_wrong_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit."""
    one = program(Step("abs", (0,), (), 0))
    monkeypatch.setattr(by_differences, "draw_program", lambda _: (one, expected(one)))
    form = JaxForm("value_and_grad", False, "scan", {}, (), "vmap")
    monkeypatch.setattr(by_differences, "drawn_in_jax", lambda _: form)
    own = jaxclamp.value_and_grad

    def planted(*args: Any, **kwargs: Any) -> Any:
        def run(*args: Any) -> Any:
            value, gradient = of_own(*args)
            return jnp.nextafter(value, jnp.inf), gradient

        of_own = own(*args, **kwargs)
        return run

    monkeypatch.setattr(jaxclamp, "value_and_grad", planted)
    (text,) = failures([0], TARGETS["jax"])
    assert "wrong value" in text


def test_scattered_maxima_over_devices() -> None:
    """Each device has its own; random programs found that they were added up."""

    def loss(x: jax.Array) -> jax.Array:
        return jax.ops.segment_max(x, jnp.array([0, 0, 1, 1]), 2).sum()

    along = over_devices(jax.vmap(jaxclamp.grad(loss, direction=jnp.array([1.0, 2.0, 2.0, 1.0]))))
    x = jnp.arange(1.0, 9.0)[:, None] + jnp.zeros(4)
    np.testing.assert_array_equal(along(x), jnp.broadcast_to(jnp.array([0.0, 1.0, 1.0, 0.0]), (8, 4)))


def test_a_direction_that_is_the_same_on_all_devices() -> None:
    """As one that is drawn, and as a constant; JAX wants tangents that vary as the primals do."""

    def steps(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.where(x > 0, x, 0.0) - jnp.maximum(-x, 0.0) + 0.0 * jax.lax.cummax(jnp.abs(x)), None

    def loss(x: jax.Array) -> jax.Array:
        return jax.lax.scan(steps, x, None, 3)[0].sum()

    x = jnp.zeros((8, 4))
    np.testing.assert_array_equal(over_devices(jaxclamp.grad(loss))(x), jnp.ones((8, 4)))
    v = jnp.full((1, 4), -2.0)
    slopes = over_devices(lambda x: jaxclamp.directional_derivative(loss, (x,), (v,))[1][None])
    np.testing.assert_array_equal(slopes(x), jnp.full(8, -8.0))


def over_devices(function: Any) -> Any:
    rows = PartitionSpec("rows")
    return jax.jit(jax.shard_map(function, mesh=mesh(), in_specs=rows, out_specs=rows))
