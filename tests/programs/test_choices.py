"""Every choice of a JAX program, and rules of its own, against differences of values."""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.experimental import pallas

import jaxclamp

relu, relu6 = jax.nn.relu, jax.nn.relu6

Scalar = Callable[[Any], Any]


# Every choice, against differences of values alone

ROWS = jnp.array([0, 1, 0]), jnp.array([1, 7, 1])  # to two places twice, and to one that does not exist
WINDOWS: dict[str, Any] = {
    "2x2": ((2, 2), (1, 1), "VALID"),
    "2x2, stride 2, same": ((2, 2), (2, 2), "SAME"),
    "1x2, dilated": ((1, 2), (1, 1), [(0, 0), (1, 1)], (1, 1), (1, 2)),
    "1x3 over gaps": ((1, 3), (1, 2), [(0, 0), (1, 1)], (1, 2)),
}
CHOICES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "max": lambda x: lax.max(x[0], x[1]),
    "min": lambda x: lax.min(x[0], x[1]),
    "max with a number": lambda x: lax.max(x, jnp.ones_like(x)),
    "clamp": lambda x: lax.clamp(x[0], x[1], x[0] - x[1]),  # the bounds may be crossed
    "clamp, scalar bounds": lambda x: lax.clamp(x[0, 0], x[1], x[0, 1]),
    "abs": jnp.abs,
    "sign": lambda x: x * jnp.sign(x),
    "mask": lambda x: x * (x > 0),
    "conversion to bool": lambda x: x * x.astype(bool),
    "eq": lambda x: jnp.where(x[0] == x[1], 3 * x[0] - 2 * x[1], x[0]),
    "eq of complex": lambda x: jnp.where(x[0] + 1j * x[1] == 0, 5 * x[0], x[0] - x[1]),
    "ne of complex": lambda x: jnp.where(x[0] != 1j * x[1], x[0] - x[1], 5 * x[0]),
    "ne": lambda x: jnp.where(x[0] != x[1], x[0], 3 * x[0] - 2 * x[1]),
    "gt": lambda x: jnp.where(x[0] > x[1], x[0], x[1]),
    "ge": lambda x: jnp.where(x[0] >= x[1], x[0], x[1]),
    "lt": lambda x: jnp.where(x[0] < x[1], x[0], x[1]),
    "le": lambda x: jnp.where(x[0] <= x[1], x[0], x[1]),
    "select": lambda x: jnp.select([x < 0, (x >= 0) & (x < 1)], [jnp.zeros_like(x), x], 2 * x - 1),
    "cond": lambda x: lax.cond(x.sum() > 0, lambda x: x.sum(), lambda x: -2 * x.sum(), x),
    "fori": lambda x: lax.fori_loop(0, 2, lambda _, c: jnp.where(c < 0, -2 * c, c), x),
    "reduce_max": lambda x: jnp.max(x),
    "reduce_max, axis 0": lambda x: jnp.max(x, 0),
    "reduce_min, axis 1": lambda x: jnp.min(x, 1),
    "argmax": lambda x: jnp.take_along_axis(x, jnp.argmax(x, 1, keepdims=True), 1),
    "argmin": lambda x: x.ravel()[jnp.argmin(x)],
    "cummax": lambda x: lax.cummax(x, 1),
    "cummax, reverse": lambda x: lax.cummax(x, 1, reverse=True),
    "cummin, axis 0": lambda x: lax.cummin(x, 0),
    "sort": lambda x: jnp.sort(x, 1),
    "sort, descending": lambda x: jnp.sort(x, None, descending=True),
    "argsort": lambda x: jnp.take_along_axis(x, jnp.argsort(x, 0), 0),
    "sort by two keys": lambda x: lax.sort((jnp.round(x[0] / 8), x[1]), num_keys=2)[1],
    "sort by an integer": lambda x: lax.sort((jnp.array([2, 0, 2]), x[0], x[1]), num_keys=2)[1],
    "lexsort": lambda x: x[0][jnp.lexsort((x[0], jnp.array([1, 0, 1])))],
    "top_k": lambda x: lax.top_k(x, 2)[0],
    "top_k's index": lambda x: x.ravel()[lax.top_k(x.ravel(), 4)[1]],
    "top_k of many": lambda x: lax.top_k(jnp.concatenate([x, -x, 2 * x, x + 1, x - 1, x, x]), 2, axis=0)[0],
    "top_k of many that tie": lambda x: lax.top_k(jnp.outer(jnp.arange(1.0, 5.0), x).ravel(), 3)[0],
    "median": jnp.median,
    "quantile": lambda x: jnp.quantile(x, 0.3, axis=1),
    "interp": lambda x: jnp.interp(x, jnp.arange(-2.0, 2.0), jnp.array([0.0, 3.0, 1.0, 2.0])),
    "norm of order 1": lambda x: jnp.linalg.norm(x, 1),
    "scatter_max": lambda x: x[0].at[ROWS[0]].max(x[1]),
    "scatter_min, out of bounds": lambda x: x[0].at[ROWS[1]].min(x[1]),
    "scatter_max of rows": lambda x: x.at[jnp.array([1, 1])].max(x[::-1]),
    "segment_max": lambda x: jax.ops.segment_max(x.T, jnp.array([1, 0, 1]), num_segments=2),
    "relu": relu,
    "relu6": lambda x: relu6(3 * x),
    "hard_sigmoid": lambda x: jax.nn.hard_sigmoid(3 * x),
    "leaky_relu": jax.nn.leaky_relu,
    "clip": lambda x: jnp.clip(x, -1.0, x[0]),
}


@jax.custom_jvp
def pooled(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 1), [(0, 0), (1, 0)])


pooled.defjvp(lambda primals, tangents: jax.jvp(pooled.fun, primals, tangents))
CHOICES["a pool in the rule of a custom_jvp"] = pooled


@jax.custom_batching.custom_vmap
def batched_by_hand(x: jax.Array) -> jax.Array:
    return relu(x) - jnp.minimum(-x, 0) + jnp.abs(x)


batched_by_hand.def_vmap(lambda size, batched, x: (batched_by_hand(x), batched[0]))


def larger(x: Any, y: Any) -> Any:
    return jnp.where(x > y, x, y)


def later(x: Any, y: Any) -> Any:
    """Of pairs of a number and its place, that with the larger number."""
    return jax.tree.map(partial(jnp.where, x[0] >= y[0]), x, y)


def by_a_reducer(x: jax.Array, axis: int) -> jax.Array:
    places = lax.broadcasted_iota("int32", x.shape, axis)
    best, place = lax.reduce((x, places), (jnp.array(-jnp.inf, x.dtype), jnp.int32(-1)), later, (axis,))
    return best + 2 * jnp.take_along_axis(x, jnp.expand_dims(place, axis), axis).squeeze(axis)


CHOICES |= {
    "custom_vmap": lambda x: batched_by_hand(x),
    "reduce": lambda x: lax.reduce(x, jnp.array(0.5, x.dtype), larger, (1,)),
    "reduce, all axes": lambda x: lax.reduce(x, jnp.array(-9.0, x.dtype), larger, (1, 0)),
    "reduce, of pairs": lambda x: by_a_reducer(x, 1),
} | {
    f"reduce_window, {which}": partial(
        lambda window, x: lax.reduce_window(x, jnp.array(-9.0, x.dtype), larger, *window), window
    )
    for which, window in WINDOWS.items()
}
CHOICES |= {
    f"reduce_window_{name}, {which}": partial(
        lambda init, op, window, x: lax.reduce_window(x, init, op, *window), init, op, window
    )
    for name, init, op in (("max", -jnp.inf, lax.max), ("min", jnp.inf, lax.min))
    for which, window in WINDOWS.items()
    if name == "max" or len(window) == 3
}


def by_its_result(function: Scalar, rule: Callable[[Any, Any, Any], Any]) -> Any:
    """A ``custom_jvp`` whose rule gets the result of the function, as well as the primals and tangents."""
    with_rule = jax.custom_jvp(function)

    @with_rule.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        result = with_rule(*primals)
        return result, rule(result, primals, tangents)

    return with_rule


def in_equal_parts(y: Any, primals: Any, tangents: Any) -> Any:
    is_y = [(x == y).astype(y.dtype) for x in primals]
    return sum(map(jnp.multiply, is_y, tangents)) / sum(is_y)


relu_by_result = by_its_result(lambda x: jnp.maximum(x, 0), lambda y, _, v: jnp.where(y > 0, v[0], 0))
maximum_by_result = by_its_result(jnp.maximum, in_equal_parts)
absolute_by_result = by_its_result(
    lambda x: lax.fori_loop(0, 2, lambda _, y: jnp.abs(y), x), lambda y, x, v: jnp.where(y == x[0], v[0], -v[0])
)
force = by_its_result(lambda gap: jnp.where(gap < 0, -3 * gap, 0), lambda y, _, v: jnp.where(y > 0, -3 * v[0], 0))
CHOICES |= {
    "relu by its result": lambda x: relu_by_result(relu_by_result(x)) - relu_by_result(-x),
    "maximum by its result": lambda x: maximum_by_result(maximum_by_result(x[0], x[1]), jnp.zeros_like(x[0])),
    "abs by its result": absolute_by_result,
    "a rule in the rule": by_its_result(force, lambda y, x, v: jax.jvp(force, x, v)[1] * (y > 0)),
    "a spring that is touched": lambda x: lax.scan(lambda q, _: (q + force(q) / 4, q), x, None, 3)[1],
    "projection_simplex": optax.projections.projection_simplex,
    "projection_l1_ball": lambda x: optax.projections.projection_l1_ball(x[0] * np.array([2.0, 1.0, 1.0])),
}


def wave(rest: Any, period: Any = 1.0) -> Any:
    """Of what is left of a number above a multiple of the period. That jumps to 0; the wave does not jump."""
    return jnp.minimum(rest, period - rest)


def outwards(x: jax.Array, rest: jax.Array) -> jax.Array:
    return jnp.where(x < 0, -rest, rest)


def at_nodes(x: jax.Array) -> jax.Array:
    """Linear between values at whole numbers, by the index of the one below."""
    values, below = jnp.array([0.0, 3.0, 1.0, 2.0]), jnp.clip(jnp.floor(x), -1, 1).astype("int32") + 1
    return values[below] + (values[below + 1] - values[below]) * (x + 1 - below)


NUMBERS = np.array([2.0, 1.0, 5.0])


def pool_by_its_gradient(x: jax.Array, limit: float, extremum: Any, *window: Any) -> jax.Array:
    return jnp.vdot(x, jax.grad(lambda x: jnp.sum(lax.reduce_window(x, limit, extremum, *window)))(x))


CHOICES |= {
    "floor": lambda x: wave(x / 2 - jnp.floor(x / 2)),
    "ceil": lambda x: wave(jnp.ceil(x / 2) - x / 2),
    "round to even": lambda x: jnp.abs(x / 2 - jnp.round(x / 2)),
    "round away from zero": lambda x: jnp.abs(x / 2 - lax.round(x / 2)),
    "trunc": lambda x: wave(outwards(x, x - jnp.trunc(x))),
    "rem": lambda x: wave(outwards(x[0], lax.rem(x[0], x[1] + 2)), x[1] + 2),
    "mod": lambda x: wave(-jnp.mod(x[0], x[1] - 2), 2 - x[1]),
    "conversion to int": lambda x: wave(outwards(x, x - x.astype("int32"))),
    "conversion to unsigned": lambda x: wave(x + 2 - (x + 2).astype("uint8")),
    "floor as an index": at_nodes,
    "signbit": lambda x: jnp.where(jnp.signbit(x), -2 * x, x),
    "copysign": lambda x: x * jnp.copysign(2, x),
    "atan2": lambda x: x * jnp.sign(jnp.arctan2(x, -1)),
    "angle": lambda x: x[0] * jnp.sign(jnp.angle(-jnp.exp(1j * x[0]))),
    "sort of pairs": lambda x: jnp.vdot(lax.sort_key_val(x[0], NUMBERS)[1], jnp.sort(x[0])),
    "reduce, of numbers with numbers": lambda x: jnp.sum(
        jnp.where(lax.reduce((x[0], NUMBERS), (-9.0, 0.0), later, (0,))[1] == NUMBERS, x[0], 0)
    ),
    "a pool by its gradient": lambda x: pool_by_its_gradient(x, -jnp.inf, lax.max, (2, 2), (1, 1), "SAME"),
    "a pool of the smallest by its gradient": lambda x: pool_by_its_gradient(
        x, jnp.inf, lax.min, (1, 2), (1, 1), "VALID"
    ),
}
CHOICES["while"] = lambda x: lax.fori_loop(0, 2, lambda _, c: jnp.where(c < 0, -2 * c, c), x)
STEP = 2.0**-16  # to a nearby point, and from there
NEARER = 2.0**-30


def weighted(choices: dict[str, Any], xs: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Of each choice a sum of its results, each with another whole number."""
    results = {name: jnp.ravel(choice(xs[name])) for name, choice in choices.items()}
    return {name: y @ jnp.arange(1.0, y.size + 1) for name, y in results.items()}


ALIKE = (
    *("clamp, scalar bounds", "ne of complex", "reduce_min, axis 1", "argmin", "cummax, reverse", "cummin, axis 0"),
    *("sort, descending", "argsort", "sort by two keys", "lexsort", "top_k's index", "top_k of many", "quantile"),
    *("scatter_max of rows", "scatter_min, out of bounds", "segment_max", "relu6", "hard_sigmoid", "leaky_relu"),
    *("clip", "while", "abs by its result", "a spring that is touched", "projection_l1_ball", "reduce, all axes"),
    *(f"reduce_window, {which}" for which in WINDOWS if which != "1x3 over gaps"),
    *(f"reduce_window_max, {which}" for which in WINDOWS if which != "1x2, dilated"),
    *("reduce_window_min, 2x2", "a pool of the smallest by its gradient"),
)
"""Those that are as others are, which are thorough."""


@pytest.mark.usefixtures("float64")
# Programs of a few choices each, since one of all takes long to compile.
@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.thorough) for part in (2, 3))])
def test_every_choice_falls_as_its_values_do_nearby(part: int) -> None:
    """At points of small integers, nearly all of them tied: the value, and the gradient along a direction.

    It is the gradient at a point a small step away, where nothing is tied, and times the direction it is the one-sided
    derivative. Both are found by differences of values.
    """
    names = [name for name in CHOICES if (name in ALIKE) == (part > 1)][part % 2 :: 2]
    choices = {name: CHOICES[name] for name in names}
    rng = np.random.default_rng(0)
    points = np.concatenate([np.zeros((1, 2, 3)), -np.zeros((1, 2, 3)), rng.integers(-1, 2, (38, 2, 3))])
    directions = rng.normal(size=points.shape)

    @jax.jit
    @jax.vmap
    def values(x: jax.Array) -> dict[str, jax.Array]:
        return weighted(choices, dict.fromkeys(choices, x))

    @jax.jit
    @jax.vmap
    def ours(x: jax.Array, v: jax.Array) -> Any:
        def total(xs: dict[str, jax.Array]) -> Any:
            each = weighted(choices, xs)
            return sum(each.values()), each

        along = jaxclamp.value_and_grad(total, has_aux=True, direction=dict.fromkeys(choices, v))
        return along(dict.fromkeys(choices, x))

    there = points + STEP * directions
    units = NEARER * np.eye(6).reshape(6, 1, 2, 3)
    stencil = np.concatenate([points[None], there[None], there + units, there - units])
    (_, found), gradients = ours(points, directions)
    for name, asked in values(stencil.reshape(-1, 2, 3)).items():
        here, near, *around = np.asarray(asked).reshape(14, 40)
        gradient = np.asarray(gradients[name]).reshape(40, 6)
        np.testing.assert_array_equal(found[name], here, err_msg=name)
        wanted = (np.array(around[:6]) - around[6:]).T / (2 * NEARER)
        np.testing.assert_allclose(gradient, wanted, atol=1e-4, err_msg=name)
        derivative = np.sum(gradient * directions.reshape(40, 6), 1)
        np.testing.assert_allclose(derivative, (near - here) / STEP, atol=1e-8, err_msg=name)


@pytest.mark.usefixtures("float64")
def test_bessel_functions() -> None:
    """i0 is smooth, and i0e is exp(-|x|) times it: with the slope -1 or 1 at 0, and the second derivative 3/2."""
    i0, i0e = jax.scipy.special.i0, jax.scipy.special.i0e

    @jax.jit
    def at(zero: jax.Array, v: jax.Array) -> Any:
        slope = jaxclamp.grad(i0e, direction=v)
        moved = jaxclamp.directional_derivative(i0e, (zero,), (v,))
        return moved, slope(zero), jax.grad(slope)(zero), jaxclamp.grad(i0, direction=v)(zero)

    for zero in (0.0, -0.0):
        for v in (1.0, -2.0):
            assert at(zero, v) == ((1, -abs(v)), -np.sign(v), 1.5, 0)
    for function in (jnp.i0, jax.scipy.special.i1):  # of slopes without bound, with a `where` in the rule of some JAX
        np.testing.assert_allclose(jaxclamp.grad(function)(0.7), jax.grad(function)(0.7), rtol=1e-12)
    x = jnp.array([-2.0, 0.0, 3.0, 800.0])
    elsewhere = np.array([True, False, True, True])
    np.testing.assert_array_equal(
        jaxclamp.grad(lambda x: i0e(x).sum())(x)[elsewhere], jax.grad(lambda x: i0e(x).sum())(x)[elsewhere]
    )


# Rules of their own


def test_rules_of_their_own() -> None:
    """In a custom_jvp the choices of its rule are decided, those of the function are the author's. Several results."""

    @jax.custom_jvp
    def stepped(x: Any, n: Any) -> Any:
        return relu(x), x, jnp.asarray(np.arange(2.0, dtype="float32")), 1.0, n

    @stepped.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        x, v, integer = primals[0], tangents[0], np.zeros((), jax.dtypes.float0)
        return stepped(*primals), (jnp.where(x > 0, v, 0 * v), 5 * v, jnp.zeros(2), 0.0, integer)

    @jax.custom_jvp
    def rounded(x: Any) -> Any:
        return jnp.round(x)

    rounded.defjvp(lambda primals, tangents: (rounded(*primals), tangents[0]))

    def fun(x: Any) -> Any:
        return stepped(x, 2)[0] - stepped(-x, 2)[0] + stepped(x, 2)[1] * stepped(x, 2)[2][1] + 2 * rounded(x)

    assert jaxclamp.grad(fun)(0.0) == jax.jit(jaxclamp.grad(fun))(0.0) == 1.0 + 5.0 + 2.0
    assert jaxclamp.directional_derivative(fun, (0.0,), (-2.0,)) == (0.0, -16.0)
    batched = jax.vmap(lambda x, v: jaxclamp.grad(lambda x: stepped(x, 2)[0], direction=v)(x))
    np.testing.assert_array_equal(batched(jnp.zeros(2), jnp.array([1.0, -1.0])), [1.0, 0.0])


@jax.custom_jvp
def root(x: Any) -> Any:
    return lax.while_loop(lambda y: jnp.abs(y * y - x) > 1e-3, lambda y: (y + x / y) / 2, x)


root.defjvp(lambda primals, tangents: (root(*primals), tangents[0] / (2 * root(*primals))))


@jax.custom_jvp
def on_the_host(x: Any) -> Any:
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")


on_the_host.defjvp(lambda primals, tangents: (on_the_host(*primals), jnp.cos(primals[0]) * tangents[0]))


def test_rules_are_needed_where_the_function_has_no_derivative() -> None:
    """Loops, callbacks, and decompositions at equal or zero singular values: the gradients of JAX, as nothing ties."""

    def fun(x: jax.Array) -> jax.Array:
        matrix = jnp.diag(x)
        return jnp.sum(jnp.linalg.pinv(matrix)) + jnp.linalg.det(matrix - 2) + root(x[0]) + on_the_host(x[1])

    x = jnp.array([2.0, 2.0, 2.0])
    np.testing.assert_allclose(jax.jit(jaxclamp.grad(fun))(x), jax.jit(jax.grad(fun))(x), rtol=1e-6)


SYMMETRIC = pytest.mark.parametrize("symmetric", [pytest.param(True, marks=pytest.mark.thorough), False])


@SYMMETRIC
def test_an_operator_that_jumps_is_solved_with_on_that_side(symmetric: bool) -> None:
    """By x / 2 above 0 and x below, also where a comparison reads the solution; and by conjugate gradients."""

    def scale(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.jit(lambda y: jnp.where(x > 0, 2.0, 1.0) * y)(y)

    def solved(x: jax.Array, b: jax.Array) -> jax.Array:
        divide = lambda operator, b: b / operator(jnp.ones(3))  # noqa: E731
        return lax.custom_linear_solve(functools.partial(scale, x), b, divide, divide, symmetric=symmetric)

    def compared(x: jax.Array) -> jax.Array:
        return jnp.where(solved(x, jnp.ones(3)).sum() > 2, x, -3 * x)

    def iterated(x: jax.Array) -> jax.Array:
        return jax.scipy.sparse.linalg.cg(functools.partial(scale, x), x * jnp.ones(3))[0].sum()

    for fun in (lambda x: solved(x, x * jnp.ones(3)).sum(), compared, iterated):
        along = lambda v: jaxclamp.grad(fun, direction=v)(jnp.float32(0.0))  # noqa: B023, E731  # called here
        assert along(1.0) == jax.jit(along)(1.0)
        for v in (1.0, -1.0):
            assert jax.jit(along)(v) == jax.jit(jax.grad(fun))(1e-3 * v)


@pytest.mark.usefixtures("float64")
@SYMMETRIC
def test_choices_in_the_operator_of_a_linear_solve(symmetric: bool) -> None:
    """Of a solver that is given, of conjugate gradients, and of a root; the solution is b / (|x| + 1)."""
    x, v, b = jnp.array([0.0, 0.0, -2.0]), jnp.array([1.0, -1.0, 1.0]), jnp.array([1.0, 2.0, 3.0])

    def solved(x: jax.Array) -> jax.Array:
        scale = lambda y: jnp.where(x > 0, x, -x) * y + y  # noqa: E731
        divide = lambda _, y: y / (jnp.abs(x) + 1)  # noqa: E731
        return lax.custom_linear_solve(scale, jnp.maximum(b, x), divide, divide, symmetric=symmetric)

    def iterated(x: jax.Array) -> jax.Array:
        return jax.scipy.sparse.linalg.cg(lambda y: y * (jnp.abs(x) + 1), b, tol=1e-15)[0]

    def rooted(x: jax.Array) -> jax.Array:
        solve = lambda _, guess: guess / (jnp.abs(x) + 1)  # noqa: E731
        return lax.custom_root(lambda y: y * (jnp.abs(x) + 1) - b, b, solve, lambda f, y: y / f(jnp.ones(3)))

    wanted = -b / (jnp.abs(x) + 1) ** 2 * jnp.array([1.0, -1.0, -1.0])

    def derivatives(form: Callable[[jax.Array], jax.Array]) -> tuple[jax.Array, ...]:
        gradient = jaxclamp.grad(lambda x: jnp.sum(form(x)), direction=v)(x)
        return gradient, *jaxclamp.directional_derivative(form, (x,), (v,)), form(x)

    for solution in (solved, iterated, rooted):
        forms = solution, jax.jit(solution), lambda x: jax.vmap(solution)(x[None])[0]  # noqa: B023  # called here
        for gradient, value, derivative, own in jax.jit(lambda: list(map(derivatives, forms)))():  # noqa: B023
            np.testing.assert_allclose(gradient, wanted, atol=1e-12)
            np.testing.assert_array_equal(value, own)
            np.testing.assert_allclose(derivative, wanted * v, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_a_linear_solve_of_tangents() -> None:
    """The rule of `slogdet` solves for its tangent, and reverse mode transposes that."""

    def matrix(x: jax.Array) -> jax.Array:
        return jnp.diag(jnp.abs(x) + 1) + 0.5  # of four rows, since JAX has formulas for fewer

    def logarithm(x: jax.Array) -> jax.Array:
        return jnp.linalg.slogdet(matrix(x))[1]

    x, v = jnp.array([0.0, 0.0, -1.0, 2.0]), jnp.array([1.0, -1.0, 1.0, 1.0])
    value, gradient = jaxclamp.value_and_grad(logarithm, direction=v)(x)
    inverse = jnp.diag(jnp.linalg.inv(matrix(x)))
    np.testing.assert_allclose(gradient, inverse * jnp.array([1.0, -1.0, -1.0, 1.0]), rtol=1e-12)
    assert value == logarithm(x)


def test_a_safe_norm_at_0_and_on_its_bound() -> None:
    """With the bound 0 it is the norm, whose gradients near 0 tend to v / |v| along v; its author chose 0 there."""
    assert jnp.linalg.norm(jaxclamp.grad(lambda x: optax.safe_norm(x, 0.0))(jnp.zeros(2))) == pytest.approx(1.0)
    touched = jnp.array([0.6, 0.8])
    gradients = jaxclamp.subdifferential(lambda x: optax.safe_norm(x, 1.0))(touched).gradients
    np.testing.assert_allclose(sorted(g.tolist() for g in gradients), [[0.0, 0.0], [0.6, 0.8]], rtol=1e-6)


def test_a_rule_asks_for_a_result_from_the_host() -> None:
    """It cannot be opened, and so it moves as its rule says: there the values at the point decide."""
    from_host = by_its_result(on_the_host.fun, lambda y, x, v: jnp.where(y < 1, jnp.cos(x[0]), 0) * v[0])
    with pytest.warns(jaxclamp.UndecidedWarning, match="the rule of a jax.custom_jvp asks for the result"):
        np.testing.assert_allclose(jaxclamp.grad(from_host)(2.0), np.cos(2.0), rtol=1e-6)


def test_second_derivatives_of_a_function_are_those_of_its_rule() -> None:
    """Also of what the rule asks of the function, where the body has others."""
    flat = by_its_result(lambda x: lax.stop_gradient(jnp.exp(x)), lambda y, _, v: y * v[0])
    third = jax.jit(jaxclamp.grad(jaxclamp.grad(jaxclamp.grad(flat))))
    assert third(0.0) == jax.jit(jaxclamp.grad(jax.grad(flat)))(0.0) == 1.0


def test_rules_within_rules() -> None:
    """The rule of ``twice`` has that of `jax.nn.relu` in it; that of ``power`` calls the function itself."""
    identity = lambda x: jax.nn.relu(x) - jax.nn.relu(-x)  # noqa: E731
    twice = jax.custom_jvp(lambda x: identity(identity(x)))
    twice.defjvp(lambda primals, tangents: jax.jvp(lambda x: identity(identity(x)), primals, tangents))
    power = jax.custom_jvp(jnp.exp)
    power.defjvp(lambda primals, tangents: (power(*primals), power(*primals) * tangents[0]))
    for v in (1.0, -1.0):
        assert jaxclamp.grad(lambda x: power(twice(x)), direction=v)(0.0) == 1.0
        assert jaxclamp.directional_derivative(lambda x: power(twice(x)), (0.0,), (v,)) == (1.0, v)


def test_a_rule_that_differentiates_a_cumulative_maximum() -> None:
    """Mapped over rows it is right, at ties too. Mapped over columns it is that of the compiled function in JAX.

    That confuses the axes of the maximum, whose gradient is wrong then in both, until it is mended in JAX.
    """
    largest = jax.custom_jvp(lambda x: lax.cummax(x))
    largest.defjvp(lambda primals, tangents: jax.jvp(lax.cummax, primals, tangents))
    x, weights = jnp.array([[2.0, 1.0], [2.0, 3.0]]), jnp.array([[1.0, 2.0], [3.0, 4.0]])
    over_columns = lambda x: jnp.vdot(weights, jax.vmap(largest, 1, 1)(x))  # noqa: E731
    over_rows = lambda x: jnp.vdot(weights, jax.vmap(largest)(x.T).T)  # noqa: E731
    along = jax.jit(lambda v: jaxclamp.grad(over_rows, direction=v)(x))
    for v, right in ((jnp.eye(2), [[4.0, 2.0], [0.0, 4.0]]), (jnp.eye(2)[::-1], [[1.0, 2.0], [3.0, 4.0]])):
        assert along(v).tolist() == right
    untied = x.at[1, 0].set(0.0)
    compiled = jax.jit(over_columns)
    np.testing.assert_array_equal(*(jax.jit(take(compiled))(untied) for take in (jaxclamp.grad, jax.grad)))


def sine_of_turned(quarters: int) -> Callable[[jax.Array], jax.Array]:
    """A function whose rule asks for the next one, as those of Bessel functions do in JAX 0.12, without end."""
    turned = jax.custom_jvp(lambda x: jnp.sin(x + quarters * jnp.pi / 2))

    @turned.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return turned(*primals), sine_of_turned(quarters + 1)(*primals) * tangents[0]

    return turned


def test_rules_that_ask_for_further_ones_without_end() -> None:
    gradient = jaxclamp.grad(lambda x: sine_of_turned(0)(relu(x) - relu(-x)))(0.0)
    assert gradient == pytest.approx(1.0)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.scipy.special.gammainc(x, 2.0),
        pytest.param(lambda x: jax.scipy.special.gammaincc(x, x), marks=pytest.mark.thorough),
        pytest.param(jax.jit(lambda x: jax.scipy.stats.chi2.cdf(2.0, x)), marks=pytest.mark.thorough),
        lambda x: jnp.max(jnp.linalg.eigvals(x * jnp.array([[0.0, 2.0], [1.0, 1.0]])).real),
    ],
    ids=["gammainc", "gammaincc", "chi2", "eigvals"],
)
def test_functions_whose_slopes_jax_does_not_differentiate(function: Scalar) -> None:
    """They have a gradient, and decide choices; their second derivatives are refused, as by JAX."""
    slope, value = jax.grad(function)(1.5), function(1.5)
    np.testing.assert_allclose(jaxclamp.grad(function)(1.5), slope, rtol=1e-12)
    for v in (1.0, -1.0):
        gradient = jaxclamp.grad(lambda x: jnp.abs(function(x) - value), direction=v)(1.5)
        np.testing.assert_allclose(gradient, v * jnp.abs(slope), rtol=1e-12)
    for derivative in (
        jaxclamp.grad(function),
        lambda x: jaxclamp.directional_derivative(function, (x,), (jnp.ones_like(x),))[1],
    ):
        with pytest.raises(NotImplementedError):
            jax.grad(derivative)(1.5)


def test_pullbacks_of_their_own() -> None:
    """A custom_vjp is its author's word; forward mode opens it, and takes its word where the function stands still."""

    @jax.custom_vjp
    def rounded(x: Any) -> Any:
        return jnp.round(x)

    rounded.defvjp(lambda x: (rounded(x), None), lambda _, cotangent: (cotangent,))
    assert jaxclamp.grad(lambda x: 2 * rounded(x) + relu(x) - relu(-x))(0.0) == 3.0

    @jax.custom_vjp
    def cleaned(x: Any) -> Any:
        return jnp.where(jnp.isnan(x), 0.0, lax.stop_gradient(x))

    cleaned.defvjp(lambda x: (cleaned(x), None), lambda _, cotangent: (cotangent,))
    assert jaxclamp.grad(lambda x: jnp.abs(cleaned(x)), direction=-1.0)(0.0) == -1.0
    straight_through = lambda x: x + lax.stop_gradient(jnp.round(x) - x)  # noqa: E731
    assert jaxclamp.value_and_grad(straight_through)(0.25) == (0.0, 1.0)
    for function in (rounded, straight_through):
        assert jaxclamp.directional_derivative(function, (0.25,), (1.0,)) == (0.0, 1.0)
        assert jaxclamp.grad(lambda x, function=function: relu(function(x)), direction=1.0)(0.25) == 1.0


@pytest.mark.filterwarnings("ignore:.*pallas_call")
def test_a_kernel_with_a_pullback() -> None:
    """Forward mode takes its derivative; to reverse mode, which would have no second one, that is a constant."""

    @jax.custom_vjp
    def cube(x: jax.Array) -> jax.Array:
        def kernel(x_ref: Any, result_ref: Any) -> None:
            result_ref[...] = x_ref[...] ** 3

        result: jax.Array = pallas.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)
        return result

    cube.defvjp(lambda x: (cube(x), x), lambda x, cotangent: (3 * x**2 * cotangent,))
    x = jnp.array([-2.0, 1.0, 2.0])
    gradient = jaxclamp.grad(lambda x: jnp.abs(cube(x) - 1).sum(), direction=jnp.array([1.0, -1.0, 1.0]))
    assert jax.jit(gradient)(x).tolist() == [-12, -3, 12]


def test_a_callback_under_a_custom_vjp_names_the_cure() -> None:
    @jax.custom_vjp
    def outside(x: jax.Array) -> jax.Array:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), x.dtype), x)

    outside.defvjp(lambda x: (outside(x), x), lambda x, g: (g * jnp.cos(x),))
    with pytest.raises(ValueError, match="do not support JVP") as error:
        jaxclamp.grad(outside)(jnp.zeros(()))
    assert "Give it a rule for forward mode, by jax.custom_jvp." in error.value.__notes__[0]


@pytest.mark.thorough  # for its 16 million numbers
def test_more_updates_of_one_place_than_float32_has_integers() -> None:
    """All are equal and move alike. So one of them is written, and its gradient is 1."""
    updates = jnp.ones(2**24 + 4)  # 2**24 + 3 is rounded to the same number

    def largest(updates: jax.Array) -> jax.Array:
        return jnp.zeros(1).at[jnp.zeros(updates.size, int)].max(updates).sum()

    gradient = jaxclamp.grad(largest, direction=updates)(updates)
    assert int(jnp.count_nonzero(gradient)) == 1
    assert gradient.max() == 1


def test_a_number_next_to_a_half_is_not_rounded_as_a_half() -> None:
    for x in (np.nextafter(half, toward) for half in np.float32([-0.5, 0.5, 1.5]) for toward in np.float32([-9, 9])):
        for v in np.float32([-1, 1]):
            assert jaxclamp.directional_derivative(jnp.round, (x,), (v,))[0] == jnp.round(x)
            assert jaxclamp.grad(lambda x: x * jnp.round(x), direction=v)(x) == jnp.round(x)


@pytest.mark.parametrize(("x", "falling"), [(127.0, 126), (128.0, 127), (300.0, 127), (np.inf, 127), (-128.0, -128)])
def test_beyond_the_integers_of_its_dtype_a_conversion_stays(x: float, falling: int) -> None:
    # As a factor, the integer is the slope of what stands beside it.
    def product(y: Any) -> Any:
        return (y + x).astype("int8") * (y + 1)

    assert jaxclamp.grad(product, direction=-1.0)(0.0) == falling


def test_nan_decides_a_scattered_maximum_as_it_does_others() -> None:
    places = jnp.array([0, 0, 1])
    largest = lambda x: jnp.zeros(2).at[places].max(x).sum()  # noqa: E731
    direction = jnp.array([1.0, 2.0, -1.0])
    np.testing.assert_array_equal(jaxclamp.grad(largest, direction=direction)(jnp.zeros(3)), [0.0, 1.0, 0.0])
    at_nan = jnp.array([jnp.nan, 1.0, jnp.nan])
    np.testing.assert_array_equal(jaxclamp.grad(largest, direction=direction)(at_nan), [1.0, 0.0, 1.0])
    # The tangent of this root squared is 0 times infinity: it must not become a slope of 0.
    slopes = jaxclamp.grad(lambda x: largest(jnp.sqrt(x) ** 2 + 1.0))(jnp.zeros(3))
    np.testing.assert_array_equal(slopes, [np.nan, 0.0, np.nan])  # one for each place


def test_a_tangent_of_nan_leaves_the_choice_to_the_value() -> None:
    root = lambda x: jnp.sqrt(x) ** 2  # noqa: E731  # its tangent at 0 is 0 times infinity
    for choice in (lambda x: x * jnp.sign(root(x)), lambda x: x * (jnp.arctan2(root(x), -1.0) < 0)):
        assert jaxclamp.directional_derivative(choice, (0.0,), (1.0,)) == (0.0, 0.0)


@pytest.mark.parametrize("is_zero", [lambda x: x == 0, lambda x: ~(x != 0), lambda x: ~x.astype(bool)])
def test_an_equality_of_a_number_with_a_tangent_of_nan_holds_at_the_point_alone(is_zero: Scalar) -> None:
    """The root squared is 0 at 0 alone, so the slope is 5; with one that is NaN itself it is NaN, not 1."""
    root = lambda x: jnp.sqrt(x) ** 2  # noqa: E731
    assert jaxclamp.grad(lambda x: jnp.where(is_zero(root(x)), x, 5 * x), direction=1.0)(0.0) == 5
    assert jnp.isnan(jaxclamp.grad(lambda x: jnp.where(is_zero(root(x)), x, 5 * root(x)), direction=1.0)(0.0))
    assert jaxclamp.grad(lambda x: jnp.where(jnp.isnan(root(x)), x, 5 * x), direction=1.0)(0.0) == 5


@pytest.mark.parametrize("reverse", [pytest.param(False, marks=pytest.mark.thorough), True])
@pytest.mark.parametrize(
    "largest",
    [
        jnp.max,
        lambda x: -jnp.min(-x),
        lambda x: jnp.maximum(x[0], x[1]),
        lambda x: -jnp.minimum(-x[0], -x[1]),
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), "VALID")[0],
        lambda x: lax.cummax(x)[1],
        lambda x: jnp.full(1, -1.0).at[jnp.zeros(2, int)].max(x)[0],
        lambda x: lax.top_k(x, 1)[0][0],
    ],
    ids=["max", "min", "maximum", "minimum", "pool", "cummax", "scatter", "top_k"],
)
def test_of_equal_numbers_one_with_a_tangent_of_nan_is_the_largest(largest: Scalar, reverse: bool) -> None:
    """The larger of -x and a root squared, which rises, rises itself: -1, the slope of -x, would be wrong."""

    def either(x: jax.Array) -> jax.Array:
        return largest(jnp.stack([-x, jnp.sqrt(x) ** 2][:: -1 if reverse else 1]))

    assert jnp.isnan(jaxclamp.grad(either, direction=1.0)(0.0))


def test_a_dtype_without_infinities() -> None:
    """Away from ties: nothing is less than its least number, and -inf is NaN."""
    x = jnp.array([0.0, 1.0, -1.0, 2.0], "float8_e4m3fn")
    functions: list[Callable[[jax.Array], jax.Array]] = [
        jnp.max,
        jnp.min,
        lambda x: x[jnp.argmax(x)],
        lambda x: lax.reduce_window(x, jnp.finfo(x.dtype).min, lax.max, (2,), (1,), "SAME"),
        lambda x: jnp.full(2, -3, x.dtype).at[jnp.array([0, 0, 1, 1])].max(x),
    ]
    for function in functions:
        total = lambda x, function=function: jnp.sum(function(x).astype("float32"))  # noqa: E731
        both = jax.jit(lambda x: [take(total)(x).astype("float32") for take in (jaxclamp.grad, jax.grad)])  # noqa: B023
        np.testing.assert_array_equal(*both(x))


def test_the_maximum_of_no_elements_stands_still() -> None:
    def with_others(x: jax.Array) -> jax.Array:
        return jnp.max(x[:0], initial=0.0) + jnp.min(x[:0], initial=5.0) + x.sum()

    np.testing.assert_array_equal(jaxclamp.grad(with_others)(jnp.ones(2)), [1.0, 1.0])


def test_a_window_of_padding_alone_passes_no_tangent_on() -> None:
    def moved(x: jax.Array) -> jax.Array:
        pool = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1,), (1,), ((2, 0),))  # noqa: E731
        return (jax.jvp(pool, (x,), (x,))[1] ** 2).sum()

    assert jaxclamp.directional_derivative(moved, (jnp.ones(3),), (jnp.ones(3),)) == (3.0, 6.0)


@pytest.mark.parametrize(
    "size",
    [jnp.abs, pytest.param(lambda z: (z * jnp.sign(z).conj()).real, marks=pytest.mark.thorough)],
    ids=["abs", "sign"],
)
def test_the_size_of_a_complex_number_at_0_is_linear_along_its_direction(
    size: Callable[[jax.Array], jax.Array],
) -> None:
    """As of a spectrum without any part of a frequency: its size there is that of what comes in."""

    def sizes(x: jax.Array) -> jax.Array:
        return size(jnp.fft.fft(x)).sum()

    v = jnp.array([1.0, 2.0, 3.0, -4.0])
    with jax.numpy_dtype_promotion("strict"):
        value, derivative = jaxclamp.directional_derivative(sizes, (jnp.zeros(4),), (v,))
    np.testing.assert_allclose((value, derivative), (0.0, sizes(v)), rtol=1e-6)
    near = jax.grad(sizes)(1e-6 * v)
    np.testing.assert_allclose(jaxclamp.grad(sizes, direction=v)(jnp.zeros(4)), near, rtol=1e-5)
    assert jaxclamp.directional_derivative(size, (0j,), (0j,))[1] == 0  # nothing moves
