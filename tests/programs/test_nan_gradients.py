"""Gradients where a branch that is not taken has no finite slope: numbers there, and NaN where a zero is a number."""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import jaxclamp
from jaxclamp._programs import nan_gradients
from jaxclamp._transforms.jaxprs import equations

Function = Callable[..., Any]

MASK = jnp.array([[True, True], [False, False]])


def root(x: jax.Array) -> jax.Array:
    return jnp.where(x > 0, jnp.sqrt(x), 0.0)


def attention(x: jax.Array, mask: jax.Array = MASK) -> jax.Array:
    weights = jax.nn.softmax(jnp.where(mask, x @ x.T, -jnp.inf), axis=-1)
    return jnp.where(mask[:, :1], weights @ x, 0.0).sum()


def convolved(x: jax.Array) -> jax.Array:
    products = jnp.convolve(x, jnp.log(x))  # x[0] * log(x[0]), and two that log(x[1]) makes infinite or NaN
    return jnp.where(jnp.array([True, False, False]), products, 0.0).sum()


def adam(gradient: jax.Array) -> jax.Array:
    optimizer, x = optax.adam(0.5, eps=0.125), jnp.array(1.0)
    state = optimizer.init(x)
    for gradients in (gradient, 2 * gradient):
        updates, state = optimizer.update(gradients, state)
        x += updates
    return x


NAN, INF = float("nan"), float("inf")
QUOTIENT = (lambda x: 1 + x / 2, lambda x: jnp.expm1(x) / x)
TABLE: dict[str, tuple[Function, Any, float, Any]] = {
    "where and sqrt": (root, -1.0, 1.0, 0.0),
    "where and sqrt, at 0 from the left": (root, 0.0, -1.0, 0.0),
    "where and exp": (lambda x: jnp.where(x < 10, jnp.exp(x), 1.0), 200.0, 1.0, 0.0),
    "minimum of exp": (lambda x: jnp.minimum(jnp.exp(x), 1.0), 1000.0, 1.0, 0.0),
    "maximum of a norm": (lambda x: jnp.maximum(jnp.linalg.norm(x), 1e-6), [0.0, 0.0], 1.0, [0.0, 0.0]),
    "maximum beside a root that stands still": (
        lambda x: jnp.maximum(jnp.sqrt(jax.nn.relu(x[0])), x[1]) + jnp.minimum(jnp.maximum(x[2], 0.0) ** 0.4, x[1]),
        [-1.0, 0.0, 0.0],
        -1.0,
        [0.0, 1.0, 0.0],
    ),
    "where and arctan2": (lambda x: jnp.where(MASK[1], jnp.arctan2(x, x), 0.0).sum(), [0.0, 0.0], 1.0, [0.0, 0.0]),
    "where and arccos": (lambda x: jnp.where(jnp.abs(x) < 1, jnp.arccos(x), x), 2.0, 1.0, 1.0),
    "where and a quotient": (lambda x: jnp.where(x > 1, x / (x - x), x).sum(), [0.0, 1.0], -1.0, [1.0, 1.0]),
    "where and x log(x)": (lambda x: jnp.where(x > 0, x * jnp.log(x), 0.0), -1.0, 1.0, 0.0),
    "attention, a row masked": (attention, [[1.0, 1.0], [1.0, 1.0]], 1.0, [[0.5, 0.5], [0.5, 0.5]]),
    "convolution": (convolved, [2.0, 0.0], 1.0, [1 + np.log(2.0), 0.0]),
    "cholesky": (lambda x: jnp.where(x < 0, x, jnp.linalg.cholesky(x * jnp.eye(2))[0, 0]), -1.0, 1.0, 1.0),
    "solve": (lambda x: jnp.where(x > 0, jnp.linalg.solve(x * jnp.eye(2), jnp.ones(2))[0], x), 0.0, -1.0, 1.0),
    "behind a solve": (
        lambda x: jnp.linalg.solve(2 * jnp.eye(2), jnp.where(x > 1, jnp.log(x), x)).sum(),
        [-1.0, 0.0],
        1.0,
        [0.5, 0.5],
    ),
    # The density is exp(-mu) where nothing happens.
    "poisson.logpmf": (lambda mu: jax.scipy.stats.poisson.logpmf(jnp.array([0, 2]), mu).sum(), 0.5, 1.0, 2.0),
    "poisson.logpmf, at 0": (lambda mu: jax.scipy.stats.poisson.logpmf(0, mu), 0.0, 1.0, -1.0),
    # The chance of no success of five is (1 - p)^5.
    "binom.logpmf, at 0": (lambda p: jax.scipy.stats.binom.logpmf(0, 5, p), 0.0, 1.0, -5.0),
    "binom.logpmf, at 1": (lambda p: jax.scipy.stats.binom.logpmf(5, 5, p), 1.0, -1.0, 5.0),
    "xlogy of a 0 that moves": (lambda x: jax.scipy.special.xlogy(x, x), 0.0, 1.0, NAN),
    "xlogy of a 0 that moves beside a constant": (lambda x: jax.scipy.special.xlogy(x, 0.0), 0.0, 1.0, -INF),
    "xlog1py": (lambda x: jax.scipy.special.xlog1py(jnp.array([0.0, 2.0]), x).sum(), [-1.0, 1.0], 1.0, [0.0, 1.0]),
    "xlog1py, of a number": (lambda x: jax.scipy.special.xlog1py(x, 1.0).sum(), [0.0, 2.0], 1.0, [np.log(2)] * 2),
    "a power of 0": (lambda x: x**0.0 + x**2.5, 0.0, 1.0, 0.0),
    "powers of 0": (lambda x: (x[:, None] ** jnp.arange(3.0)).sum(), [0.0, 2.0], 1.0, [1.0, 5.0]),
    "0 to a power that moves": (lambda y: (jnp.zeros(2) ** y).sum(), [0.0, 2.0], 1.0, [0.0, 0.0]),
    "behind an fft": (lambda x: jnp.fft.irfft(jnp.fft.rfft(root(x)))[0], [4.0, -1.0], 1.0, [0.25, 0.0]),
    "one matrix of two": (
        lambda x: jnp.where(x < 0, x, jnp.linalg.cholesky(x[:, None, None] * jnp.eye(2))[:, 0, 0]).sum(),
        [-1.0, 4.0],
        1.0,
        [1.0, 0.25],
    ),
    "where, log2": (lambda x: jnp.where(x > 0, jnp.log2(x), 0.0), 0.0, -1.0, 0.0),
    "custom_jvp": (lambda x: jnp.where(x < 0, x, jax.nn.silu(jnp.log(x))), -1.0, 1.0, 1.0),
    # The branch that a step enters is NaN at 0, and 0 is on the other one.
    "sinc": (jnp.sinc, 0.0, 1.0, 0.0),
    "quotient": (lambda x: jnp.where(x == 0, 1 + x / 2, jnp.expm1(x) / x), 0.0, 1.0, 0.5),
    "quotient, by a sign": (lambda x: jnp.where(jnp.sign(x) == 0, 1 + x / 2, jnp.expm1(x) / x), 0.0, 1.0, 0.5),
    "double where": (
        lambda x: jnp.where(x == 0, 1 + x / 2, jnp.expm1(y := jnp.where(x == 0, 1, x)) / y),
        0.0,
        1.0,
        0.5,
    ),
    "conditions": (
        lambda x: jnp.where(~((x > 0) & (x[:, None] < 9)), 3 * x, x * jnp.log(x)).sum(),
        [0.0, 1.0],
        1.0,
        [6.0, 2.0],
    ),
    "sinc, in a scan": (
        lambda x: lax.scan(lambda c, y: (c + jnp.sinc(y), y), 0.0, x)[0],
        [0.0, 0.5],
        1.0,
        [0.0, -4 / np.pi],
    ),
    "select": (lambda x: jnp.select([x == 0, x > 9], [1 + x, x], jnp.expm1(x) / x).sum(), [0.0, 1.0], 1.0, [1.0, 1.0]),
    "cond": (lambda x: lax.cond(x == 0, *QUOTIENT, x), 0.0, 1.0, 0.5),
    "cond in a cond": (
        lambda x: lax.cond(x > 0, lambda x: lax.cond(x == 0, *QUOTIENT, x), jnp.negative, x),
        0.0,
        1.0,
        0.5,
    ),
    "cond in a cond, a number on one side": (
        lambda x: lax.cond(x > 0, lambda x: lax.cond(x > 0, lambda x: 3 * x, lambda x: x / x, x), jnp.negative, x),
        0.0,
        1.0,
        3.0,
    ),
    "where in a cond, a number on one side": (
        lambda x: lax.cond(x > 0, lambda x: jnp.where(x > 0, 3 * x, x / x), jnp.negative, x),
        0.0,
        1.0,
        3.0,
    ),
    "cond, undefined at the point": (
        lambda x: lax.cond(x < 0, QUOTIENT[1], lambda x: lax.cond(x != 0, lambda x: 2 * x, lambda x: x / x, x), x),
        0.0,
        -1.0,
        NAN,
    ),
    "piecewise": (lambda x: jnp.piecewise(x, [x == 0], QUOTIENT), 0.0, 1.0, 0.5),
    "piecewise, of an array": (lambda x: jnp.piecewise(x, [x == 0], QUOTIENT).sum(), [0.0, 1.0], 1.0, [0.5, 1.0]),
    "both undefined": (lambda x: jnp.where(x > 0, x * jnp.log(x), x / x), 0.0, 1.0, NAN),
    "a value that is NaN": (lambda x: jnp.where(x < 0, jnp.log(x) * jnp.sqrt(x), 0.0), -1.0, 1.0, NAN),
    # Zeros that are numbers, and true infinities, stay.
    "sqrt squared": (lambda x: jnp.sqrt(x) ** 2, 0.0, 1.0, NAN),
    "exp of log": (lambda x: jnp.exp(jnp.log(x)), 0.0, 1.0, NAN),
    "norm squared, by hand": (lambda x: jnp.sqrt(jnp.sum(x * x)) ** 2, [0.0, 0.0], 1.0, [0.0, 0.0]),
    "variance, by a deviation": (lambda x: jnp.std(x) ** 2, [0.0, 0.0], 1.0, [0.0, 0.0]),
    "norm squared": (lambda x: jnp.linalg.norm(x) ** 2, [0.0, 0.0], 1.0, [0.0, 0.0]),
    "two steps of Adam": (adam, 0.0, 1.0, -4.0 * (1 + 0.29 / 0.19)),
    "the eighth root of x**2, to the fourth": (lambda x: ((x**2) ** 0.125) ** 4, 0.0, 1.0, NAN),
    "sqrt": (jnp.sqrt, 0.0, 1.0, INF),
    "where and sqrt, at 0 from the right": (root, 0.0, 1.0, INF),
    "sqrt, where the result is masked by a product": (lambda x: jnp.sqrt(x) * (x > 0), -1.0, 1.0, NAN),
    # Each entry by itself.
    "of all kinds": (
        lambda x: root(x[0]) + jnp.sqrt(x[1]) ** 2 + jnp.sqrt(x[2]) + x[3],
        [-1.0, 0.0, 0.0, 5.0],
        1.0,
        [0.0, NAN, INF, 1.0],
    ),
    "a row each": (
        lambda x: (root(x[:, 0]) * x[:, 1]).sum() + (jnp.sqrt(x[:, 0] + 1) ** 2).sum(),
        [[-1.0, 2.0], [4.0, 3.0], [-2.0, 1.0]],
        1.0,
        [[NAN, 0.0], [1.75, 2.0], [NAN, 0.0]],
    ),
}


SLOW = (
    *("maximum of a norm", "maximum beside a root that stands still", "cholesky", "one matrix of two"),
    *("poisson.logpmf", "behind an fft", "sinc, in a scan", "cond in a cond", "cond in a cond, a number on one side"),
    *("where in a cond, a number on one side", "two steps of Adam", "a row each"),
)
"""Beside each of them is a shorter program of its kind."""


@pytest.mark.parametrize("case", [pytest.param(name, marks=[pytest.mark.thorough] * (name in SLOW)) for name in TABLE])
def test_table(case: str) -> None:
    fun, at, along, expected = TABLE[case]
    x = jnp.array(at)
    value, gradient = jaxclamp.value_and_grad(fun, direction=jnp.full(x.shape, along))(x)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    np.testing.assert_array_equal(value, fun(x))
    if np.isfinite(expected).all():
        derivative = jaxclamp.directional_derivative(fun, (x,), (jnp.full(x.shape, along),))[1]
        np.testing.assert_allclose(derivative, np.sum(expected) * along, rtol=1e-6)


def test_a_constant_factor_may_move_in_another_derivative() -> None:
    """The slope of a log(y) by y is a / y, of which the slope by a is 1 / y, at a = 0 too."""

    def slope(a: jax.Array, y: float) -> jax.Array:
        return jaxclamp.grad(lambda y: jax.scipy.special.xlogy(a, y))(y)

    assert jax.jacfwd(slope)(0.0, 2.0) == 0.5
    assert slope(jnp.array(0.0), 0.0) == 0


def test_a_program_is_traced_once() -> None:
    """The passes that mend a NaN are of the same reverse pass."""
    traces = []

    def traced(x: jax.Array) -> jax.Array:
        traces.append(x)
        return root(x)

    assert jaxclamp.grad(traced)(-1.0) == 0
    jax.jit(jaxclamp.grad(traced)).lower(-1.0)
    assert len(traces) == 2


# Under transformations

POINTS = jnp.array([-1.0, 4.0, 0.25])
SLOPES = np.array([0.0, 0.25, 1.0])


def total(x: jax.Array) -> jax.Array:
    return root(x).sum()


def by_cond(x: jax.Array) -> jax.Array:
    return lax.cond(x.sum() > 0, lambda x: root(x).sum(), lambda x: x.sum(), x)


def by_scan(x: jax.Array) -> jax.Array:
    return lax.scan(lambda sum, x: (sum + root(x), root(x)), jnp.zeros(()), x)[0]


def by_carry(x: jax.Array) -> jax.Array:
    """Results of all steps but the last, which reach the product with the slope through the carry alone."""

    def step(carry: Any, _: Any) -> Any:
        return (jnp.where(carry > 0, jnp.sqrt(carry), carry), carry)

    return (
        lax.scan(step, x, None, length=2)[1].sum() + total(x) - 2 * x.sum() + jnp.where(x > 0, x - jnp.sqrt(x), 0).sum()
    )


def by_loop(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 3, lambda i, sum: sum + root(x[i]), 0.0)


PROGRAMS: dict[str, Function] = {
    "checkpoint": jax.checkpoint(total),
    "jit": jax.jit(total),
    "vmap": lambda x: jax.vmap(root)(x).sum(),
    "cond": by_cond,
    "scan": by_scan,
    "scan, of what it carries": by_carry,
    "fori_loop": by_loop,
    "checkpoint of a step": lambda x: lax.scan(jax.checkpoint(lambda c, x: (c + root(x), None)), 0.0, x)[0],
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("compiled", [False, True], ids=["", "compiled"])
def test_inside_of_the_program(name: str, compiled: bool) -> None:
    gradient = jaxclamp.grad(PROGRAMS[name])
    np.testing.assert_allclose((jax.jit(gradient) if compiled else gradient)(POINTS), SLOPES)


def test_under_vmap_each_point_and_direction_by_itself() -> None:
    points = jnp.array([-1.0, 0.0, 4.0])

    def squared(x: Any) -> Any:
        return jnp.sqrt(x) ** 2 + root(x)

    np.testing.assert_allclose(jax.vmap(jaxclamp.grad(squared))(points + 0.0), [NAN, NAN, 1.25])

    def along(v: Any) -> Any:
        return jaxclamp.grad(root, direction=v)(0.0)

    np.testing.assert_allclose(jax.vmap(along)(jnp.array([-1.0, 1.0])), [0.0, INF])


def test_in_loops_of_the_caller() -> None:
    gradients = lax.map(jaxclamp.grad(root), POINTS)
    np.testing.assert_allclose(gradients, SLOPES)

    def step(state: Any) -> Any:
        return (state[0] + 1, state[1] + jaxclamp.grad(total)(POINTS))

    np.testing.assert_allclose(lax.while_loop(lambda state: state[0] < 2, step, (0, jnp.zeros(3)))[1], 2 * SLOPES)


@pytest.mark.parametrize("check_vma", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_under_shard_map(check_vma: bool) -> None:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded, whole = jax.P("d"), jax.P()
    x = jnp.array([-1.0, 4.0, 0.25, 1.0])  # the NaN is on one device alone
    expected = [0.0, 0.25, 1.0, 0.5]
    shard = functools.partial(jax.shard_map, mesh=mesh, check_vma=check_vma)
    inside = shard(lambda x: lax.psum(total(x), "d"), in_specs=sharded, out_specs=whole)
    np.testing.assert_allclose(jax.jit(jaxclamp.grad(inside))(x), expected)
    outside = shard(jaxclamp.grad(total), in_specs=sharded, out_specs=sharded)
    np.testing.assert_allclose(jax.jit(outside)(x), expected)
    # The branch that a step enters is NaN at 0.
    x_log_x = shard(lambda x: jnp.where(x > 0, x * jnp.log(x), 0.0), in_specs=sharded, out_specs=sharded)
    gradient = jaxclamp.grad(lambda x: x_log_x(x).sum(), direction=jnp.ones(2))
    np.testing.assert_allclose(jax.jit(gradient)(jnp.array([0.0, 1.0])), [0.0, 1.0])


def test_several_arguments_and_auxiliary_results() -> None:
    def fun(tree: Any, x: Any) -> Any:
        return (root(tree["a"]) * tree["b"][0] + jnp.sqrt(x) ** 2, x)

    tree = {"a": jnp.array(-1.0), "b": [jnp.array(2.0)]}
    (gradient, other), _aux = jaxclamp.grad(fun, (0, 1), has_aux=True)(tree, jnp.array(0.0))
    assert (gradient["a"], gradient["b"]) == (0.0, [0.0])
    assert jnp.isnan(other)


def test_second_derivatives_within_a_piece() -> None:
    def fun(x: Any) -> Any:
        return x**3 + root(x)

    second = jax.jit(lambda at: [derivative(jaxclamp.grad(fun))(at) for derivative in (jaxclamp.grad, jax.jacfwd)])
    for at, expected in ((-1.0, -6.0), (4.0, 24 - 1 / 32)):
        np.testing.assert_allclose(second(at), [expected] * 2, rtol=1e-6)

    # The program of a reverse pass has calls of `where` with several results, and with literals.
    np.testing.assert_allclose(jax.jit(jaxclamp.grad(jax.grad(fun)))(4.0), 24 - 1 / 32, rtol=1e-6)
    of_sinc = jax.jit(lambda x: [grad(jax.grad(jnp.sinc))(x) for grad in (jaxclamp.grad, jax.grad)])
    np.testing.assert_allclose(*of_sinc(0.5), rtol=1e-6)

    # A cotangent that is 0, and moves: (sqrt(x) - 2)**2 at 4.
    def square(x: Any) -> Any:
        return (root(x[0]) - 2) ** 2 + root(x[1])

    expected_rows = [[1 / 8, 0.0], [0.0, 0.0]]
    rows = jax.jit(jax.jacfwd(jaxclamp.grad(square)))(jnp.array([4.0, -1.0]))
    np.testing.assert_allclose(rows, expected_rows, atol=1e-6)


def test_subdifferential() -> None:
    around = jaxclamp.subdifferential(lambda x: jnp.abs(x[0]) + root(x[1]))(jnp.array([0.0, -1.0]))
    assert around.min_norm.tolist() == [0.0, 0.0]
    assert sorted(gradient.tolist() for gradient in around.gradients) == [[-1.0, 0.0], [1.0, 0.0]]


def test_a_custom_vjp_keeps_its_word() -> None:
    @jax.custom_vjp
    def rounded(x: jax.Array) -> jax.Array:
        return jnp.round(x)

    rounded.defvjp(lambda x: (rounded(x), None), lambda _, cotangent: (cotangent,))
    np.testing.assert_allclose(jaxclamp.grad(lambda x: rounded(x) + root(x))(-1.2), 1.0)


def test_programs_with_bounded_slopes_are_left_alone() -> None:
    def fun(x: Any) -> Any:
        return (jax.nn.relu(x) * jnp.sin(x / 2)).sum()

    assert "cond" not in str(jax.make_jaxpr(jaxclamp.grad(fun))(POINTS))
    assert "cond" in str(jax.make_jaxpr(jaxclamp.grad(total))(POINTS))


def test_conds_around_a_branch_do_not_multiply_it() -> None:
    def nested(depth: int, x: jax.Array) -> jax.Array:
        return lax.cond(x > 0.5, functools.partial(nested, depth - 1), jnp.negative, x) if depth else jnp.sqrt(x)

    def size(depth: int) -> int:
        program = jax.make_jaxpr(jaxclamp.grad(functools.partial(nested, depth)))(0.7)
        return sum(1 for eqn in program.eqns for _ in equations(eqn))

    assert size(5) - size(3) < 2 * (size(3) - size(1))


# Random programs, against the same programs with the branches that are not taken removed by hand

LENGTH = 3
"""How many numbers a program is a function of, in each step as well."""


@dataclass(frozen=True)
class Branches:
    """A function with a branch that is not taken, or not defined there, and what is left of it on either side."""

    spelled: Function
    taken: Function
    otherwise: Function
    regular: tuple[float, ...]
    """Numbers at which ``taken`` is the branch, with a finite slope."""
    singular: tuple[float, ...]
    """Numbers at which it is not, and its slope is not finite, or its value."""


def _selected(branch: Function, above: bool = True) -> Function:
    def spelled(u: jax.Array) -> jax.Array:
        return jnp.where(u > 0.5 if above else u < 0.5, branch(u), 3 * u)

    return spelled


def _by_cond(u: jax.Array) -> jax.Array:
    return jnp.stack([lax.cond(x > 0.5, lambda x: jnp.log(x - 0.25), lambda x: 3 * x, x) for x in u])


KINDS = {
    "where, sqrt": Branches(_selected(jnp.sqrt), jnp.sqrt, lambda u: 3 * u, (1.0, 2.0), (0.0, -1.0)),
    "where, log": Branches(_selected(jnp.log), jnp.log, lambda u: 3 * u, (1.0, 2.0), (0.0, -1.0)),
    "where, quotient": Branches(_selected(lambda u: 1 / u), lambda u: 1 / u, lambda u: 3 * u, (1.0, 2.0), (0.0,)),
    "where, pow": Branches(_selected(lambda u: u**0.7), lambda u: u**0.7, lambda u: 3 * u, (1.0, 2.0), (0.0, -1.0)),
    "where, pow of a number": Branches(
        _selected(lambda u: jnp.power(u, u)), lambda u: u**u, lambda u: 3 * u, (1.0, 2.0), (-1.0, 0.0)
    ),
    "where, exp": Branches(_selected(jnp.exp, above=False), jnp.exp, lambda u: 3 * u, (0.0, -1.0), (200.0, 1000.0)),
    "where, acos": Branches(_selected(jnp.acos, above=False), jnp.acos, lambda u: 3 * u, (0.25, -0.5), (1.0, 2.0)),
    "where, root and logarithm of a root": Branches(
        _selected(lambda u: jnp.log(jnp.sqrt(u)) * u),
        lambda u: u * jnp.log(u) / 2,
        lambda u: 3 * u,
        (1.0, 2.0),
        (0.0, -1.0),
    ),
    "minimum, exp": Branches(lambda u: jnp.minimum(jnp.exp(u), 2.0), jnp.exp, lambda u: 2.0 + 0 * u, (0.0,), (200.0,)),
    "maximum, sqrt": Branches(
        lambda u: jnp.maximum(jnp.sqrt(u), 0.5), jnp.sqrt, lambda u: 0.5 + 0 * u, (1.0, 2.0), (0.0,)
    ),
    "clamp, exp": Branches(lambda u: jnp.clip(jnp.exp(u), 0.0, 3.0), jnp.exp, lambda u: 3.0 + 0 * u, (1.0,), (500.0,)),
    "clamp, log": Branches(
        lambda u: lax.clamp(-2.0, jnp.log(u), 4.0), jnp.log, lambda u: -2.0 + 0 * u, (1.0, 2.0), (0.0,)
    ),
    "cond, log": Branches(_by_cond, lambda u: jnp.log(u - 0.25), lambda u: 3 * u, (1.0, 2.0), (0.25, -1.0)),
    # Where a zero is a number the gradient may be NaN, and nothing else but right.
    "sqrt squared": Branches(lambda u: jnp.sqrt(u) ** 2, lambda u: u, lambda u: u, (1.0,), (0.0,)),
    "exp of log": Branches(lambda u: jnp.exp(jnp.log(u)), lambda u: u, lambda u: u, (1.0,), (0.0,)),
    "quotient of a quotient": Branches(lambda u: 1 / (1 / u), lambda u: u, lambda u: u, (1.0,), (0.0,)),
    "root of a square, squared": Branches(
        lambda u: jnp.sqrt(u**2) ** 2, lambda u: u**2, lambda u: u**2, (1.0,), (0.0,)
    ),
    "eighth root, to the eighth": Branches(lambda u: (u**0.125) ** 8, lambda u: u, lambda u: u, (1.0,), (0.0,)),
    "root times 0, where": Branches(
        lambda u: jnp.where(u > -0.5, jnp.sqrt(u) * jnp.sqrt(u), u), lambda u: u, lambda u: u, (1.0, -1.0), (0.0,)
    ),
}
WITH_ZEROS = list(KINDS)[-6:]


@dataclass(frozen=True)
class Step:
    kind: str
    at: tuple[float, ...]
    mixing: np.ndarray[Any, Any]

    def joined(self, x: jax.Array, apply: Function) -> jax.Array:
        u = x - lax.stop_gradient(x) + jnp.array(self.at)  # at these numbers exactly, with the slopes of x
        return jnp.asarray(self.mixing, x.dtype) @ apply(u)

    def spelled(self, x: jax.Array) -> jax.Array:
        return self.joined(x, KINDS[self.kind].spelled)

    def by_hand(self, x: jax.Array) -> jax.Array:
        kind = KINDS[self.kind]
        parts = [kind.taken if number in kind.regular else kind.otherwise for number in self.at]
        return self.joined(x, lambda u: jnp.stack([part(one) for part, one in zip(parts, u, strict=True)]))


def random_program(seed: int, with_zeros: bool) -> list[Step]:
    """Steps, of which each one is at numbers of its own. Where zeros are numbers, they do not mix all entries."""
    draw = random.Random(seed)
    steps = []
    for _ in range(draw.randint(1, 3)):
        kind = draw.choice(WITH_ZEROS if with_zeros and draw.random() < 0.6 else list(KINDS)[:-6])
        numbers = KINDS[kind].regular + 2 * KINDS[kind].singular
        mixing = np.diag([draw.choice([-2.0, 1.0, 3.0]) for _ in range(LENGTH)])
        if not with_zeros:
            mixing = mixing + np.array([[draw.choice([-1.0, 1.0]) for _ in range(LENGTH)] for _ in range(LENGTH)])
        steps.append(Step(kind, tuple(draw.choice(numbers) for _ in range(LENGTH)), mixing))
    return steps


def gradients(seed: int, with_zeros: bool) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Of the program as it is spelled by jaxclamp, and of what is left of it by JAX."""
    steps = random_program(seed, with_zeros)
    x, weights = jnp.ones(LENGTH), jnp.array([1.0, 2.0, -1.0])
    wrap = random.Random(-seed).choice([lambda f: f, jax.checkpoint, jax.jit])

    def run(x: jax.Array, name: str) -> jax.Array:
        for step in steps:
            x = wrap(getattr(step, name))(x)
        return weights @ x

    spelled, by_hand = (functools.partial(run, name=name) for name in ("spelled", "by_hand"))
    return np.asarray(jaxclamp.grad(spelled)(x)), np.asarray(jax.grad(by_hand)(x))


QUICK = 4
SEEDS = [*range(QUICK), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(QUICK, 1000))]


@pytest.mark.parametrize("seed", SEEDS)
def test_branches_that_are_not_taken_do_not_matter(seed: int) -> None:
    spelled, by_hand = gradients(seed, with_zeros=False)
    assert np.isfinite(by_hand).all()
    np.testing.assert_allclose(spelled, by_hand, rtol=1e-4, atol=1e-4 * np.abs(by_hand).max())


@pytest.mark.parametrize("seed", SEEDS)
def test_no_finite_gradient_is_wrong_where_zeros_are_numbers(seed: int) -> None:
    spelled, by_hand = gradients(seed, with_zeros=True)
    finite = np.isfinite(spelled)
    np.testing.assert_allclose(spelled[finite], by_hand[finite], rtol=1e-4, atol=1e-4 * np.abs(by_hand).max())


@pytest.mark.thorough
def test_a_zero_that_wins_always_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pass alone, believed wherever it finds a number."""
    monkeypatch.setattr(nan_gradients, "_Paths", nan_gradients._Guarded)
    wrong = 0
    for seed in range(10):
        spelled, by_hand = gradients(seed, with_zeros=True)
        finite = np.isfinite(spelled)
        wrong += not np.allclose(spelled[finite], by_hand[finite], rtol=1e-4, atol=1e-4)
    assert wrong >= 3
