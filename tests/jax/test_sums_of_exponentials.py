"""`logsumexp` and `logaddexp` where all operands are minus infinity: gradient 0, unless their slopes are infinite."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn import logsumexp

import jaxclamp
from jaxclamp import min_norm

Function = Callable[..., Any]
INF, NAN = float("inf"), float("nan")
X = jnp.array([[-INF, -INF], [-INF, 2.0], [1.0, 1.0], [0.0, np.log(3.0)]])
SOFTMAX = np.array([[0, 0], [0, 1], [0.5, 0.5], [0.25, 0.75]])
"""The gradient of each row of X: a softmax, and 0 where all is minus infinity."""

CALLS: dict[str, Function] = {
    "logsumexp": lambda x: logsumexp(x, axis=1),
    "jax.scipy": lambda x: jax.scipy.special.logsumexp(x, axis=-1, keepdims=True),
    "vmap": jax.vmap(logsumexp),
    "compiled": jax.jit(lambda x: logsumexp(x, axis=1)),
    "scan": lambda x: jax.lax.scan(lambda carry, row: (carry, logsumexp(row)), 0.0, x)[1],
    "logaddexp": lambda x: jnp.logaddexp(x[:, 0], x[:, 1]),
    "reduction by logaddexp": lambda x: jnp.logaddexp.reduce(x, axis=1),
    "logaddexp2": lambda x: jnp.logaddexp2(*(x.T / np.log(2.0))) * np.log(2.0),
}
GRADIENTS: dict[str, Callable[[Function], Function]] = {
    "min_norm": lambda fun: jax.grad(min_norm(fun)),
    "min_norm, in forward mode": lambda fun: jax.jacfwd(min_norm(fun)),
    "grad": jaxclamp.grad,
}


def of_finite(fun: Function) -> Function:
    """The sum of those results that are finite, and of exponentials."""
    return lambda x: jnp.where(jnp.isfinite(y := fun(x)), y, jnp.exp(y)).sum()


QUICK = ("logsumexp", "logaddexp", "vmap")


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize(
    "call", [pytest.param(name, marks=[pytest.mark.thorough] * (name not in QUICK)) for name in CALLS]
)
def test_rows(call: str, gradient: str) -> None:
    """Beside rows of numbers, whose values stay to the bit."""
    fun = CALLS[call]
    # Both compiled: what XLA fuses rounds otherwise than one op after the other.
    assert jax.jit(min_norm(fun))(X).tobytes() == jax.jit(fun)(X).tobytes()
    np.testing.assert_allclose(GRADIENTS[gradient](of_finite(fun))(X), SOFTMAX, rtol=1e-6)


@pytest.mark.parametrize(
    "dtype", ["bfloat16", *(pytest.param(dtype, marks=pytest.mark.thorough) for dtype in ("float16", "float64"))]
)
def test_dtypes(dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        x = jnp.full(2, -INF, dtype)
        for fun in (logsumexp, lambda x: jnp.logaddexp(*x)):
            found = jax.grad(min_norm(fun))(x), jaxclamp.grad(fun)(x)
            assert [(g.dtype, g.tolist()) for g in found] == [(x.dtype, [0, 0])] * 2


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize(
    "fun",
    [pytest.param(logsumexp, marks=pytest.mark.thorough), lambda x: jnp.logaddexp(*x)],
    ids=["logsumexp", "logaddexp"],
)
def test_programs(fun: Function, gradient: str) -> None:
    """0 for operands that are masked by an infinity; NaN, and no wrong number, where their slopes are infinite.

    ``exp(logsumexp(log(x)))`` is the sum of x, and has the gradient 1.
    """
    of = GRADIENTS[gradient]
    for masked in (lambda x: fun(x - INF), lambda x: jnp.exp(fun(x - INF)), lambda x: fun(jnp.where(x > 5, x, -INF))):
        assert of(masked)(jnp.ones(2)).tolist() == [0, 0]
    for singular in (lambda x: fun(jnp.log(x)), lambda x: jnp.exp(fun(jnp.log(x)))):
        np.testing.assert_array_equal(of(singular)(jnp.zeros(2)), [NAN, NAN])


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_an_array_beside_a_number_or_another_shape(gradient: str) -> None:
    """As in a softplus, ``logaddexp(x, 0)``; and in all pairs, of which one is of two infinities."""
    x = jnp.array([-INF, 0.0, 40.0])
    sigmoid = [0, 0.5, 1]
    for fun in (jax.nn.softplus, lambda x: jnp.logaddexp(x, 0.0), lambda x: jnp.logaddexp(0.0, x)):
        np.testing.assert_allclose(GRADIENTS[gradient](lambda x: fun(x).sum())(x), sigmoid, rtol=1e-6)  # noqa: B023
    y = jnp.array([-INF, 0.0])

    def pairs(x: jax.Array) -> jax.Array:
        return of_finite(lambda x: jnp.logaddexp(x[:, None], y))(x)

    np.testing.assert_allclose(GRADIENTS[gradient](pairs)(x[:2]), [0, 1 + 0.5], rtol=1e-6)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("first", [jnp.array(2), jax.random.key(0)], ids=["an integer", "a random key"])
def test_another_function_with_such_a_logarithm(first: jax.Array, gradient: str) -> None:
    """A function of two operands with a rule of its own, of which one is no number that moves."""

    @jax.custom_jvp
    def function(first: jax.Array, x: jax.Array) -> jax.Array:
        return 2 * jnp.log1p(x)

    function.defjvps(None, lambda v, value, first, x: 2 * v / (1 + x))
    assert GRADIENTS[gradient](lambda x: function(first, x))(1.0) == 1


def test_whole_programs_decide_nothing_within_logaddexp() -> None:
    """Its rule calls it again, so that decided rules lie in decided rules: 26 times the lines of `jax.grad`, not 5."""
    lines = [len(str(jax.make_jaxpr(grad(jax.nn.softplus))(0.5)).splitlines()) for grad in (jax.grad, jaxclamp.grad)]
    assert lines[1] < 8 * lines[0]


def test_second_derivatives() -> None:
    """Those of a softmax elsewhere, and 0 where all is minus infinity."""
    for fun in (logsumexp, lambda x: jnp.logaddexp(*x)):
        hessian = jax.jit(jax.hessian(min_norm(fun)))
        np.testing.assert_allclose(hessian(jnp.zeros(2)), [[0.25, -0.25], [-0.25, 0.25]], rtol=1e-6)
        np.testing.assert_array_equal(hessian(jnp.full(2, -INF)), np.zeros((2, 2)))


def test_under_shard_map() -> None:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    fun = jax.shard_map(CALLS["logsumexp"], mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))
    for gradient in (jax.grad(min_norm(of_finite(fun))), jaxclamp.grad(of_finite(fun))):
        np.testing.assert_allclose(jax.jit(gradient)(X), SOFTMAX, rtol=1e-6)


def test_other_logarithms_keep_their_slope() -> None:
    """That of a sum which is 0, of exponentials which underflow, and of those with weights that cancel."""
    x = jnp.full(2, -1e4)
    others: list[tuple[Function, jax.Array]] = [
        (lambda x: jnp.log(jnp.sum(x)), jnp.zeros(2)),
        (lambda x: jnp.log(jnp.sum(jnp.exp(x))), x),
        (lambda x: logsumexp(x, b=jnp.array([1.0, -1.0])), x),
        (lambda x: jnp.log(jnp.abs(jnp.sum(jnp.exp(x - jax.lax.stop_gradient(x[0]) - 1e4)))), x),
    ]
    for fun, at in others:
        assert not jnp.isfinite(jaxclamp.grad(fun)(at)).any()


def test_a_custom_jvp_of_the_same_name_is_left_alone() -> None:
    @jax.custom_jvp
    def logaddexp(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.logaddexp(x, y)

    logaddexp.defjvp(lambda primals, tangents: (logaddexp(*primals), 5 * tangents[0]))
    assert jax.grad(min_norm(logaddexp))(-INF, -INF) == 5
