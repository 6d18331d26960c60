"""Functions that take derivatives themselves, as a training step does: `min_norm` and `as_of` are late, and warn."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.custom_derivatives import SymbolicZero
from jax.sharding import PartitionSpec as P

import jaxclamp
from jaxclamp._transforms import undecided


@pytest.fixture(autouse=True)
def nothing_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undecided, "_SHOWN", set())


X = jnp.array([0.0, 3.0, 6.0])


def loss(x: jax.Array) -> jax.Array:
    return jnp.clip(x, 0.0, 6.0).sum()


TOO_LATE: dict[str, Callable[[jax.Array], Any]] = {
    "grad": jax.grad(loss),
    "value and grad, in a step": lambda x: x - 0.1 * jax.value_and_grad(loss)(x)[1],
    "jvp": lambda x: jax.jvp(loss, (x,), (x,)),
    "a hessian": jax.hessian(lambda x: loss(x) ** 2),
    "of a reduction": jax.grad(lambda x: jnp.max(x)),
    "in a jit": jax.jit(jax.grad(loss)),
    "of a jit": jax.grad(jax.jit(lambda x: jnp.maximum(x, 0.0).sum())),
    "of each row": lambda x: jax.vmap(jax.grad(loss))(x[:, None]),
    "of a checkpoint": jax.grad(jax.checkpoint(loss)),
    "in a scan": lambda x: jax.lax.scan(lambda x, _: (x - jax.grad(loss)(x), None), x, length=2)[0],
    "of a scan": jax.grad(lambda x: jax.lax.scan(lambda x, _: (jnp.maximum(x, 0.0), None), x, length=2)[0].sum()),
    "in a branch": lambda x: jax.lax.cond(x[0] > 0, jax.grad(loss), lambda x: x, x),
    "in a shard_map": jax.shard_map(
        jax.grad(loss),
        mesh=jax.make_mesh((1,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,)),
        in_specs=P("batch"),
        out_specs=P("batch"),
    ),
}


@pytest.mark.parametrize("step", TOO_LATE.values(), ids=TOO_LATE)
def test_a_derivative_that_the_function_takes_itself_is_warned_of(step: Callable[[jax.Array], Any]) -> None:
    text = r"(?s)test_inner_derivatives.py:\d+: jaxclamp.min_norm comes too late for"
    with pytest.warns(jaxclamp.UndecidedWarning, match=text):
        jax.jit(jaxclamp.min_norm(step)).lower(X)


def test_the_cure_of_the_warning_is_one() -> None:
    with pytest.warns(jaxclamp.UndecidedWarning, match=r"jax.grad\(jaxclamp.min_norm\(loss\)\)"):
        assert jaxclamp.min_norm(jax.grad(loss))(X).tolist() == [0.5, 1.0, 0.5]
    assert jax.grad(jaxclamp.min_norm(loss))(X).tolist() == [0.0, 1.0, 0.0]


SILENT: dict[str, Callable[[jax.Array], Any]] = {
    "no derivative": lambda x: x - 0.1 * loss(x),
    "the cure, in a step": lambda x: jnp.maximum(x - 0.1 * jax.grad(jaxclamp.min_norm(loss))(x), 0.0),
    "an op of jaxclamp": jax.grad(lambda x: jaxclamp.clamp(x, 0.0, 6.0).sum()),
    "a derivative of the whole program": jaxclamp.grad(loss),
    "the same of a reduction": jaxclamp.grad(lambda x: jnp.max(x)),
    "a function that has the gradient of minimum norm in JAX": jax.grad(lambda x: jax.nn.relu(x).sum()),
    "a maximum without a derivative": jax.grad(lambda x: jax.nn.log_softmax(x)[0] + jax.nn.softmax(x)[0]),
    "a clipped gradient": lambda x: jnp.clip(jax.grad(lambda x: jnp.sum(x * x))(x), -1.0, 1.0),
}


@pytest.mark.parametrize("step", SILENT.values(), ids=SILENT)
def test_other_functions_are_not_warned_of(step: Callable[[jax.Array], Any]) -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        jax.jit(jaxclamp.min_norm(step)).lower(X)
        jax.jit(jaxclamp.as_of("torch 2.13")(step)).lower(X)
    assert not shown


def test_a_derivative_of_minimum_norm_is_too_late_for_another_convention() -> None:
    with pytest.warns(jaxclamp.UndecidedWarning, match="too late for relu"):
        jaxclamp.min_norm(jax.grad(lambda x: jax.nn.relu(x).sum()), ties="inclusive")(X)


def test_as_of_is_too_late_too() -> None:
    with pytest.warns(jaxclamp.UndecidedWarning, match=r'as_of\("torch 2.13"\) comes too late for clamp') as shown:
        jaxclamp.as_of("torch 2.13")(jax.grad(loss))(X)
    assert 'jax.grad(jaxclamp.as_of("torch 2.13")(loss))' in str(shown[0].message)


def test_a_line_is_warned_of_once() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(2):
            jaxclamp.min_norm(jax.grad(lambda x: jnp.minimum(x, 6.0).sum()))(X)
    assert len(shown) == 1


def test_what_stands_still_has_no_tangent() -> None:
    """As the time of a differential equation: JAX gives the rule none, and the rule refuses any."""

    @jax.custom_jvp
    def still(time: jax.Array) -> jax.Array:
        return time

    @partial(still.defjvp, symbolic_zeros=True)
    def _(primals: Any, tangents: Any) -> Any:
        assert isinstance(tangents[0], SymbolicZero)
        return primals[0], tangents[0]

    @jax.custom_jvp
    def scaled(x: jax.Array, time: jax.Array) -> jax.Array:
        return x * still(time)

    @scaled.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return scaled(*primals), tangents[0] * still(primals[1])

    @jax.custom_vjp
    def solved(x: jax.Array, time: jax.Array) -> jax.Array:
        return scaled(x, time) * still(time)

    solved.defvjp(lambda x, time: (solved(x, time), time), lambda time, cotangent: (cotangent * time**2, None))
    assert jaxclamp.grad(lambda x: jnp.abs(solved(x, jnp.array(2.0))), direction=-1.0)(0.0) == -4
