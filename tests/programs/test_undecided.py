"""`UndecidedWarning`: that it names the line where a gradient depends on what is not decided, and nothing else."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.experimental import pallas
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad

import jaxclamp
from jaxclamp._transforms import undecided

Function = Callable[[jax.Array], Any]
X = jnp.array([0.0, 1.0, 1.0, -2.0])


@pytest.fixture(autouse=True)
def nothing_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undecided, "_SHOWN", set())


def warned(call: Callable[[], object]) -> list[tuple[str, int]]:
    """The places of the warnings of two calls, between which a filter changes."""
    with warnings.catch_warnings(record=True) as caught:
        for _ in range(2):
            warnings.simplefilter("always", jaxclamp.UndecidedWarning)
            call()
    assert {warning.category for warning in caught} <= {jaxclamp.UndecidedWarning}
    for warning in caught:
        assert str(warning.message).startswith(f"{warning.filename}:{warning.lineno}: ")
    return [(warning.filename, warning.lineno) for warning in caught]


@jax.custom_vjp
def rounded(x: jax.Array) -> jax.Array:
    """A straight-through estimator whose rule is not linear, so that it does not say how the result moves."""
    return jnp.round(jnp.clip(x, -4.0, 4.0))


rounded.defvjp(lambda x: (rounded(x), None), lambda _, cotangent: (jnp.clip(cotangent, -1.0, 1.0),))


@jax.custom_jvp
def from_host(x: jax.Array) -> jax.Array:
    return jax.pure_callback(np.abs, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")


@from_host.defjvp
def _(primals: Any, tangents: Any) -> Any:
    y = from_host(*primals)
    return y, jnp.where(y == primals[0], tangents[0], -tangents[0])


def kernel(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.maximum(x_ref[...], 0.0)


def in_a_kernel(x: jax.Array) -> Any:
    return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


def line_of(function: Callable[..., Any], text: str) -> int:
    """The line of ``function`` that has ``text``."""
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def several(x: jax.Array) -> jax.Array:
    clipped = jnp.clip(rounded(x), 0.0, 1.0)
    largest = lax.approx_max_k(clipped * x, 2)[0]
    return jnp.sum(largest) + jnp.sum(from_host(x))


def in_bodies(x: jax.Array) -> jax.Array:
    def step(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
        return rounded(jax.nn.relu(carry)), None

    return jax.jit(lambda x: lax.scan(step, x, None, 2)[0])(x).sum()


FORMS: dict[str, Callable[[Function], object]] = {
    "grad": lambda fun: jaxclamp.grad(fun)(X),
    "value_and_grad": lambda fun: jax.jit(jaxclamp.value_and_grad(fun))(X),
    "directional_derivative": lambda fun: jaxclamp.directional_derivative(fun, (X,), (X,)),
    "subdifferential": lambda fun: jaxclamp.subdifferential(fun, directions=1)(X),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_line_is_named_once(form: str) -> None:
    found = warned(lambda: FORMS[form](several))
    assert sorted(found) == [(__file__, line_of(several, text)) for text in ("rounded", "approx_max_k", "from_host")]


def test_in_bodies_and_kernels() -> None:
    found = warned(lambda: jaxclamp.grad(in_bodies)(X))
    assert found == [(__file__, line_of(in_bodies, "rounded("))]
    found = warned(lambda: jaxclamp.directional_derivative(in_a_kernel, (X,), (X,)))
    assert found == [(__file__, line_of(in_a_kernel, "pallas_call"))]


@jax.custom_vjp
def spike(x: jax.Array) -> jax.Array:
    return (x > 0).astype(x.dtype)


spike.defvjp(lambda x: (spike(x), x), lambda x, cotangent: (jnp.tanh(cotangent) / (1 + jnp.abs(x)) ** 2,))


@jax.custom_vjp
def halved_until_near(x: jax.Array) -> jax.Array:
    """A root of y = x, by bisection, as `jaxopt.Bisection` takes it."""

    def step(_: Any, bounds: Any) -> Any:
        middle = sum(bounds) / 2
        return jnp.where(middle < x, middle, bounds[0]), jnp.where(middle < x, bounds[1], middle)

    return sum(lax.fori_loop(0, 9, step, (jnp.full_like(x, -8.0), jnp.full_like(x, 8.0)))) / 2


halved_until_near.defvjp(lambda x: (halved_until_near(x), None), lambda _, cotangent: (jnp.clip(cotangent, -1.0, 1.0),))


@pytest.mark.parametrize("function", [pytest.param(spike, marks=pytest.mark.thorough), halved_until_near])
def test_functions_that_are_constant_between_jumps(function: Any) -> None:
    def largest(x: jax.Array) -> jax.Array:
        return jnp.max(function(x))

    assert warned(lambda: jaxclamp.grad(largest)(X)) == [(__file__, line_of(largest, "max"))]
    assert warned(lambda: jaxclamp.grad(lambda x: jnp.sum(function(x)))(X)) == []
    # No line of the user's calls it there: so its own is named.
    bare = jax.jit(function)
    (place,) = warned(lambda: jaxclamp.grad(lambda x: jnp.max(bare(x)))(X))
    assert place == (__file__, inspect.getsourcelines(function.fun)[1])


@jax.custom_vjp
def partly_rounded(x: jax.Array) -> Any:
    return jnp.concatenate([jnp.round(x[:1]), 2 * x[1:]]), jnp.floor(x).astype(int)


partly_rounded.defvjp(
    lambda x: (partly_rounded(x), None), lambda _, cotangents: (cotangents[0] * jnp.array([1.0, 2.0]),)
)


@jax.custom_vjp
def root_and_error(x: jax.Array) -> Any:
    """The root of y = x, with what it leaves, which moves as x does."""
    root = bisected(lambda y: y - x)
    return root, root - x


root_and_error.defvjp(lambda x: (root_and_error(x), None), lambda _, cotangents: (cotangents[0],))


def bisected(function: Any, _: Any = None) -> jax.Array:
    def step(_: int, bounds: Any) -> Any:
        is_low = function(sum(bounds) / 2) < 0
        return jnp.where(is_low, sum(bounds) / 2, bounds[0]), jnp.where(is_low, bounds[1], sum(bounds) / 2)

    return lax.fori_loop(0, 9, step, (jnp.float32(-8.0), jnp.float32(8.0)))[1]


def implicit_root(x: jax.Array) -> jax.Array:
    """The y of y + jax.nn.relu(y) = x, whose slope is 1/2 above 0."""
    root: jax.Array = lax.custom_root(
        lambda y: y + jax.nn.relu(y) - x, jnp.float32(0.0), bisected, lambda slope, y: y / slope(1.0)
    )
    return root


@jax.custom_vjp
def relu_by_where(x: jax.Array) -> jax.Array:
    """At 0 its rule passes the gradient, also where x falls, and the function stands still."""
    return jnp.where(x > 0, x, 0.0)


relu_by_where.defvjp(lambda x: (relu_by_where(x), x), lambda x, cotangent: (jnp.where(x >= 0, cotangent, 0.0),))


def test_what_stands_still_moves_as_its_rule_says() -> None:
    def parts(x: jax.Array) -> jax.Array:
        return jax.nn.relu(partly_rounded(x)[0]).sum()

    for v in (1.0, -1.0):
        direction, moves = jnp.array([v, v]), max(v, 0.0)
        assert jaxclamp.directional_derivative(relu_by_where, (0.0,), (v,))[1] == moves
        assert jaxclamp.directional_derivative(parts, (jnp.zeros(2),), (direction,))[1] == 3 * moves
        assert jaxclamp.grad(parts, direction=direction)(jnp.zeros(2)).tolist() == [moves, 2 * moves]
        for function, slope in ((lambda x: root_and_error(x)[0], 1.0), (implicit_root, 0.5)):
            program = lambda x, function=function: jax.nn.relu(function(x))  # noqa: E731
            _, derivative = jaxclamp.directional_derivative(program, (0.0,), (v,))
            assert derivative == jaxclamp.grad(program, direction=v)(0.0) == slope * moves
    twice = lambda x: jaxclamp.directional_derivative(lambda x: partly_rounded(x)[0] ** 3, (x,), (x,))[1]  # noqa: E731
    assert jaxclamp.directional_derivative(twice, (jnp.ones(2),), (jnp.ones(2),))[1].tolist() == [9.0, 72.0]


library_call = Primitive("library_call")
"""Calls a program, as the linear solve of lineax calls its operator."""
library_call.def_abstract_eval(lambda x, program: x)
library_call.def_impl(lambda x, program: jaxpr_as_fun(program)(x)[0])
ad.primitive_jvps[library_call] = lambda primals, tangents, program: jax.jvp(
    lambda x: jaxpr_as_fun(program)(x)[0], primals, tangents
)


def called(function: Function, x: jax.Array) -> jax.Array:
    return jnp.sum(library_call.bind(x, program=jax.make_jaxpr(function)(x)))


def of_a_library(x: jax.Array) -> jax.Array:
    return called(lambda x: jax.jit(jnp.abs)(x) * 2, x)


def test_a_program_that_a_library_calls() -> None:
    place = (__file__, line_of(called, "bind"))
    assert warned(lambda: jaxclamp.grad(of_a_library)(X)) == [place]
    assert warned(lambda: jaxclamp.grad(lambda x: of_a_library(lax.stop_gradient(x)) + x[0])(X)) == []
    _, report = jaxclamp.ties(of_a_library)(X)
    assert [(line.file, line.number, line.op, line.suspect) for line in report.lines] == [
        (*place, "library_call", True)
    ]


def kept_on_the_way(x: jax.Array) -> Any:
    """A training step as it is written: what rounds, drops, counts and looks up, and is not decided wrongly."""
    labels = jax.nn.one_hot(jnp.argmax(x), 4)
    hidden = jax.nn.relu(x) * jax.random.bernoulli(jax.random.key(0), 0.5, x.shape)
    quantised = hidden + lax.stop_gradient(jnp.round(hidden * 8) / 8 - hidden)
    loss = jnp.sum(optax.losses.softmax_cross_entropy(jnp.clip(quantised, 0.0, 6.0), labels))
    rate = optax.cosine_decay_schedule(1.0, 10)(jnp.floor(x.size / 3.0))
    return loss * rate + jnp.sum(jnp.abs(x).astype("bfloat16").astype("float32")), jnp.mean(jnp.argmax(x) == 1)


QUIET: dict[str, Function] = {
    "a training step": lambda x: kept_on_the_way(x)[0],
    "jumps": lambda x: jnp.sum(jnp.floor(x) + jnp.copysign(x, -x) + x % 2 + lax.reduce_precision(x, 8, 7)),
    "no choice behind it": lambda x: jnp.sum(rounded(jnp.abs(x)) ** 2) + jnp.sum(jax.nn.relu(x)),
    "not differentiated": lambda x: jnp.sum(jnp.abs(rounded(lax.stop_gradient(x)) + in_a_kernel(jnp.ones(4)) - x)),
    "no part of the result": lambda x: (in_a_kernel(x), lax.approx_max_k(x, 1), jnp.sum(jnp.abs(x)))[2],
    "what the rule does not ask": lambda x: jnp.sum(sine_on_host(x)),
    "whether the result is NaN": lambda x: jnp.sum(nan_as_on_host(x)),
    "a program without choices that a library calls": lambda x: jnp.sum(jnp.abs(called(jnp.sin, x))),
    "whole numbers under a custom_vjp": lambda x: jnp.sum(jnp.abs(every_second(x))),
    "a remainder under a custom_vjp": lambda x: jnp.sum(jnp.abs(remainder(x))),
    "a number beside what moves": lambda x: jnp.sum(jnp.abs(with_time(x)[1])),
    "an author's word": lambda x: jnp.sum(jnp.abs(optax.scale_gradient(x, 0.5))),
}


@jax.custom_vjp
def every_second(x: jax.Array) -> jax.Array:
    return x[jnp.arange(4) // 2 * 2]


every_second.defvjp(lambda x: (every_second(x), None), lambda _, ct: (ct * jnp.array([2.0, 0.0, 2.0, 0.0]),))


@jax.custom_vjp
def remainder(x: jax.Array) -> jax.Array:
    return x - jnp.floor(x)


remainder.defvjp(lambda x: (remainder(x), None), lambda _, cotangent: (cotangent,))


@jax.custom_vjp
def with_time(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.ones(()), x / 2


with_time.defvjp(lambda x: (with_time(x), None), lambda _, cotangents: (cotangents[1] / 2,))


@jax.custom_jvp
def sine_on_host(x: jax.Array) -> jax.Array:
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")


sine_on_host.defjvp(lambda x, v: (sine_on_host(*x), jnp.cos(x[0]) * v[0]))


@jax.custom_jvp
def nan_as_on_host(x: jax.Array) -> jax.Array:
    """Its slope is NaN where the result is, as the rule of `jax.scipy.special.zeta` has it in JAX 0.12."""
    return sine_on_host.fun(x)


@nan_as_on_host.defjvp
def _(primals: Any, tangents: Any) -> Any:
    y = nan_as_on_host(*primals)
    return y, jnp.where(jnp.isnan(y), jnp.nan, jnp.cos(primals[0])) * tangents[0]


@pytest.mark.parametrize("name", QUIET)
def test_nothing_to_warn_of(name: str) -> None:
    assert warned(lambda: jaxclamp.grad(QUIET[name])(X)) == []
    assert warned(lambda: jax.jit(jaxclamp.value_and_grad(QUIET[name]))(X)) == []


def test_suspects_of_ties() -> None:
    """They have lines in the report, with how often they jump where that is known."""
    _, report = jaxclamp.ties(lambda x: (jnp.copysign(x, -x), rounded(x), jnp.floor(x)))(X)
    assert [(line.op, line.suspect, line.tied) for line in report.lines if line.suspect] == [
        ("bitcast_convert_type", True, 1),
        ("custom_vjp_call", True, 0),
        ("floor", True, 4),
    ]
    _, report = jaxclamp.ties(lambda key: jax.random.normal(key, 4))(jax.random.key(0))
    assert not [line for line in report.lines if line.suspect]
