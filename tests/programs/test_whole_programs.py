"""Derivatives of whole JAX programs: identities, transformations, structures, dtypes, promises, misuse."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import jaxclamp

relu, relu6 = jax.nn.relu, jax.nn.relu6

Scalar = Callable[[Any], Any]


# Identities, in which the ties of several ops cancel

IDENTITIES: dict[str, tuple[Scalar, float, float]] = {  # at a point, the slope
    "relu(x) - relu(-x)": (lambda x: relu(x) - relu(-x), 0.0, 1.0),
    "relu(relu(x)) - relu(-x)": (lambda x: relu(relu(x)) - relu(-x), 0.0, 1.0),
    "relu6(w + 6) + relu6(w)": (lambda w: relu6(w + 6) + relu6(w), 0.0, 1.0),
    "hard_sigmoid(w + 3) + hard_sigmoid(w - 3)": (
        lambda w: jax.nn.hard_sigmoid(w + 3) + jax.nn.hard_sigmoid(w - 3),
        0.0,
        1 / 6,
    ),
    "both halves of a clip": (lambda x: jnp.clip(x, 0, None) + jnp.clip(x, None, 0), 0.0, 1.0),
    "abs(x) - maximum(x, -x) + 5 x": (lambda x: jnp.abs(x) - jnp.maximum(x, -x) + 5 * x, 0.0, 5.0),
    "by hand": (lambda x: jnp.where(x > 0, x, 0) + jnp.where(x >= 0, 0, x), 0.0, 1.0),
    "a clamp and what it cuts off": (
        lambda x: lax.clamp(0.0, x, 6.0) + jnp.minimum(x, 0) + jnp.maximum(x - 6, 0),
        6.0,
        1.0,
    ),
    "masks": (lambda x: x * (x > 0) + x * (x <= 0), 0.0, 1.0),
    "branches": (
        lambda x: lax.cond(x > 0, lambda x: x, jnp.zeros_like, x) + lax.cond(x > 0, jnp.zeros_like, lambda x: x, x),
        0.0,
        1.0,
    ),
    "the ops of jaxclamp": (lambda x: jaxclamp.relu(x) - jaxclamp.relu(-x), 0.0, 1.0),
    "the ops of jaxclamp, inclusive": (
        lambda x: jaxclamp.clamp_min(x, 0.0, ties="inclusive") + jaxclamp.clamp_max(x, 0.0, ties="inclusive"),
        0.0,
        1.0,
    ),
    "largest and smallest": (lambda x: jnp.max(jnp.stack([x, -x])) + jnp.min(jnp.stack([x, -x])) + x, 0.0, 1.0),
    "the first and the second": (lambda x: jnp.sum(lax.top_k(jnp.stack([3 * x, -x, 2 * x]), 3)[0]), 0.0, 4.0),
}


def step(c: Any, _: Any = None) -> Any:
    return relu(c) - relu(-c), None


def doubled(c: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, step(c[1])[0]), (0, c))[1]


@jax.custom_jvp
def by_rule(x: Any) -> Any:
    return step(x)[0]


by_rule.defjvp(lambda primals, tangents: (by_rule(*primals), ((primals[0] > 0) * 1 + (primals[0] < 0)) * tangents[0]))
CONTEXTS: dict[str, Scalar] = {
    "scan": lambda x: lax.scan(step, x, None, length=7)[0],
    "fori": lambda x: lax.fori_loop(0, 7, lambda _, c: step(c)[0], x),
    "checkpoint": lambda x: jax.checkpoint(lambda x: step(x)[0])(x),
    "cond": lambda x: lax.cond(True, lambda x: step(x)[0], lambda x: x, x),
    "switch": lambda x: lax.switch(1, [lambda x: 0 * x, lambda x: step(x)[0]], x),
    "jit": lambda x: jax.jit(lambda x: step(x)[0])(x),
    "vmap": lambda x: jax.vmap(lambda x: step(x)[0])(jnp.stack([x, x])).mean(),
    "custom_jvp": lambda x: by_rule(x),
    "shard_map": lambda x: jax.shard_map(
        lambda x: step(x)[0],
        mesh=jax.make_mesh((8,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,)),
        in_specs=PartitionSpec("batch"),
        out_specs=PartitionSpec("batch"),
    )(jnp.full(8, x)).mean(),
}
PROGRAMS = IDENTITIES | {name: (context, 0.0, 1.0) for name, context in CONTEXTS.items()}


def test_identities() -> None:
    """The true slope along every direction, the one-sided derivatives, and the value to the bit."""
    functions = {name: fun for name, (fun, _, _) in PROGRAMS.items()}
    at = {name: jnp.asarray(x) for name, (_, x, _) in PROGRAMS.items()}
    slopes = {name: slope for name, (_, _, slope) in PROGRAMS.items()}

    def together(at: dict[str, Any]) -> dict[str, Any]:
        return {name: fun(at[name]) for name, fun in functions.items()}

    @jax.jit
    def asked(at: dict[str, Any], v: dict[str, Any]) -> Any:
        gradient = jaxclamp.grad(lambda at: sum(together(at).values()), direction=v)(at)
        return jaxclamp.directional_derivative(together, (at,), (v,)), gradient

    values = jax.jit(together)(at)
    for sign in (1.0, -1.0):
        (found, derivatives), gradients = asked(at, dict.fromkeys(at, jnp.float32(sign)))
        for name, slope in slopes.items():
            assert found[name] == values[name], name
            assert derivatives[name] == pytest.approx(sign * slope), name
            assert gradients[name] == pytest.approx(slope), name


def test_identities_are_wrong_elsewhere() -> None:
    """The test above can fail."""
    native, min_norm = (
        {
            name: float(jax.grad(transform(fun))(x)) == pytest.approx(slope)
            for name, (fun, x, slope) in PROGRAMS.items()
            if name in ("relu(x) - relu(-x)", "by hand", "masks", "both halves of a clip")
        }
        for transform in (lambda fun: fun, jaxclamp.min_norm)
    )
    assert native == {
        "relu(x) - relu(-x)": False,
        "by hand": False,
        "masks": True,
        "both halves of a clip": True,
    }
    assert not any(right for name, right in min_norm.items() if name != "masks")


def test_while_is_pushed_forward() -> None:
    """Also where the loop ends by a comparison, which is decided along the direction."""
    absolute = lambda x: lax.while_loop(lambda c: c < 0, lambda c: -c, x)  # noqa: E731
    for v in (1.0, -2.0):
        assert jaxclamp.directional_derivative(absolute, (0.0,), (v,)) == (0.0, abs(v))
        assert jaxclamp.directional_derivative(doubled, (0.0,), (v,)) == (0.0, v)
    batched = jax.vmap(lambda x, v: jaxclamp.directional_derivative(absolute, (x,), (v,)))
    np.testing.assert_array_equal(batched(jnp.array([0.0, -1.0]), jnp.array([-3.0, 1.0])), [[0.0, 1.0], [3.0, -1.0]])


def test_a_loop_over_lanes_leaves_those_that_are_done_as_they_are() -> None:
    """Each lane has its own number of passes; the third, -3, is doubled at the bound along -1 alone."""
    doubled_once = jax.vmap(lambda x: lax.while_loop(lambda c: jnp.all(jnp.abs(c) < 3), lambda c: 2 * c, x))
    x = jnp.array([[1.0, -1.0], [2.0, 0.5], [-3.0, 2.0], [5.0, 0.0]])
    for v, factors in ((1.0, [4.0, 2.0, 2.0, 1.0]), (-1.0, [4.0, 2.0, 1.0, 1.0])):
        value, derivative = jaxclamp.directional_derivative(doubled_once, (x,), (jnp.full_like(x, v),))
        np.testing.assert_array_equal(value, x * jnp.array([4.0, 2.0, 1.0, 1.0])[:, None])
        np.testing.assert_array_equal(derivative, v * jnp.broadcast_to(jnp.array(factors)[:, None], x.shape))
    constant = lambda x: jnp.sum((relu(x) - relu(-x)) * doubled_once(lax.stop_gradient(x)))  # noqa: E731
    np.testing.assert_array_equal(jaxclamp.grad(constant)(x), doubled_once(x))


# All of JAX on the outcome


def both_sides(x: jax.Array) -> jax.Array:
    return jnp.sum(relu(x) ** 2 - relu(-x) + jnp.abs(x - 1))


def test_transformations_of_the_gradient() -> None:
    """jit, vmap over points and over directions, and derivatives of second order, which are those of the piece."""
    x, v = jnp.array([0.0, 1.0, -2.0]), jnp.array([-1.0, 1.0, 1.0])
    along = jaxclamp.grad(both_sides, direction=v)
    wanted = jnp.array([0.0, 3.0, 0.0])  # left of 0, right of 1, left of 0
    for gradient in (along, jax.jit(along), jax.jit(jax.checkpoint(along))):
        np.testing.assert_array_equal(gradient(x), wanted)
    np.testing.assert_array_equal(jax.jit(jax.vmap(along))(jnp.stack([x, x + 1])), [wanted, [1.0, 5.0, 0.0]])
    by_direction = jax.jit(jax.vmap(lambda v: jaxclamp.grad(both_sides, direction=v)(x)))(jnp.stack([v, -v]))
    np.testing.assert_array_equal(by_direction, [wanted, [-1.0, 1.0, 0.0]])
    curvature = jnp.diag(jnp.array([0.0, 2.0, 0.0]))
    for second in (jax.jacfwd(along), jax.jacrev(along)):
        np.testing.assert_array_equal(jax.jit(second)(x), curvature)
    kink_of_second_order = lambda x: relu(x) ** 2 - relu(-x) ** 2  # noqa: E731
    assert jax.jit(jaxclamp.grad(jaxclamp.grad(kink_of_second_order)))(0.0) == 2.0
    for jumping in (lambda x: lax.rem(x + 1, 1.0) ** 3, lambda x: jnp.arctan2(x, -1.0) ** 3):
        of_piece = jaxclamp.grad(jaxclamp.grad(jumping, direction=-1.0), direction=-1.0)
        np.testing.assert_allclose(jax.jit(of_piece)(0.0), jax.jit(jax.grad(jax.grad(jumping)))(-1e-6), rtol=1e-5)
    scanned = lax.scan(lambda c, x: (c, jaxclamp.grad(step_value)(x)), 0.0, jnp.zeros(3))[1]
    np.testing.assert_array_equal(scanned, jnp.ones(3))


def step_value(x: Any) -> Any:
    return step(x)[0]


@jax.jit
def product_of_sizes(x: Any, y: Any) -> Any:
    return jnp.abs(x) * jnp.abs(y), y


@pytest.mark.parametrize(
    "program",
    [
        lambda y, c: jnp.abs(c) * jnp.abs(y),
        pytest.param(
            lambda y, c: lax.scan(lambda s, _: ((s[0] + jnp.abs(s[1]) * y, jnp.abs(s[1])), 0), (0.0, c), length=2)[0][
                0
            ],
            marks=pytest.mark.thorough,
        ),
        lambda y, c: lax.cond(y > 0, lambda y, c: jnp.abs(c) * y, lambda y, c: jnp.maximum(y, c), y, c),
        pytest.param(
            lambda y, c: product_of_sizes(c, y)[0] + y * jnp.abs(product_of_sizes(y, c)[1]), marks=pytest.mark.thorough
        ),
        lambda y, c: y * jnp.abs(lax.stop_gradient(y) * c),
        pytest.param(lambda y, c: y * jnp.sqrt(c * c), marks=pytest.mark.thorough),
    ],
    ids=["abs", "scan", "cond", "jit", "stop_gradient", "norm"],
)
def test_a_derivative_around_moves_what_stands_still(program: Callable[[Any, Any], Any]) -> None:
    """Of ``c``, an argument or closed over, in the derivative with respect to ``y``: it is the slope of ``|c|``."""
    slope = 2.0 if program(1.0, 3.0) == 6.0 else 1.0
    of_argument, closed_over = jaxclamp.grad(program), lambda c: jaxclamp.grad(lambda y: program(y, c))(1.0)
    for inner in (lambda c: of_argument(1.0, c), closed_over):
        assert jax.grad(inner)(-2.0) == -slope
        assert [jaxclamp.grad(inner, direction=v)(0.0) for v in (1.0, -1.0)] == [slope, -slope]


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit], ids=lambda k: k.name)
def test_sharded_arguments(kind: jax.sharding.AxisType) -> None:
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(kind,))
    x = jax.device_put(jnp.zeros((8, 4)), NamedSharding(mesh, PartitionSpec("batch")))

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(relu(x) - relu(-x) + jnp.max(x, 1, keepdims=True) - jnp.sort(x, 1)[:, -1:])

    with jax.set_mesh(mesh):
        gradient = jax.jit(jaxclamp.grad(loss))(x)
    np.testing.assert_array_equal(gradient, jnp.ones((8, 4)))
    assert gradient.sharding.is_equivalent_to(x.sharding, 2)


@pytest.mark.parametrize("mapped", ["shard_map", "vmap", "scan"])
def test_the_first_of_many_that_tie(mapped: str) -> None:
    """In the first row few tie, in the second all, in parts of the program that have one of them."""
    x = jnp.stack([jnp.arange(40.0) // 2, jnp.zeros(40)])
    v = jnp.stack([jnp.tile(jnp.array([1.0, 2.0]), 20), jnp.sin(jnp.arange(40.0))])

    def largest(row: jax.Array) -> jax.Array:
        return lax.top_k(row, 3)[0] @ jnp.array([1.0, 10.0, 100.0])

    def total(x: jax.Array) -> jax.Array:
        if mapped == "shard_map":
            mesh = jax.make_mesh((2,), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
            at = PartitionSpec("device")
            return jax.shard_map(lambda part: largest(part[0])[None], mesh=mesh, in_specs=at, out_specs=at)(x).sum()
        return (jax.vmap if mapped == "vmap" else lambda f: functools.partial(lax.map, f))(largest)(x).sum()

    expected = np.zeros((2, 40))
    expected[0, [39, 38, 37]] = expected[1, np.argsort(-v[1])[:3]] = [1, 10, 100]
    np.testing.assert_array_equal(jax.jit(jaxclamp.grad(total, direction=v))(x), expected)


@pytest.mark.parametrize("mapped", ["shard_map", "vmap"])
def test_devices_draw_one_direction_unless_a_key_parts_them(mapped: str) -> None:
    """So copies of a parameter move alike; parts of one that are compared need directions of their own."""

    def difference(x: jax.Array) -> jax.Array:  # first x - second x, on the first device
        y = x - lax.ppermute(x, "device", [(0, 1), (1, 0)])
        return jnp.sum(jnp.where(lax.axis_index("device") == 0, relu(y) - relu(-y), 0.0))

    def by_devices(function: Callable[[jax.Array], jax.Array]) -> jax.Array:
        if mapped == "vmap":
            return jax.jit(jax.vmap(function, axis_name="device"))(jnp.zeros((2, 1))).ravel()
        mesh = jax.make_mesh((2,), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
        at = PartitionSpec("device")
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=at, out_specs=at))(jnp.zeros(2))

    def of_its_own(x: jax.Array) -> Any:
        return jaxclamp.grad(difference, key=jax.random.fold_in(jax.random.key(0), lax.axis_index("device")))(x)

    np.testing.assert_array_equal(by_devices(jaxclamp.grad(difference)), [0.0, 0.0])
    np.testing.assert_array_equal(by_devices(of_its_own), [1.0, -1.0])


def test_export_with_a_batch_of_any_size() -> None:
    (batch,) = jax.export.symbolic_shape("batch", constraints=["batch >= 2"])

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        rows = relu(x @ w) - relu(-(x @ w))  # x @ w
        weights = jax.nn.softmax(jnp.arange(x.shape[0]) * rows)
        return jnp.sum(weights * rows) + jnp.mean(rows) + 0 * lax.top_k(rows, 2)[0].sum()

    w, batches = jnp.zeros(2), [jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.ones((3, 2))]
    shapes = jax.ShapeDtypeStruct(w.shape, w.dtype), jax.ShapeDtypeStruct((batch, 2), w.dtype)
    exported = jax.export.export(jax.jit(jaxclamp.grad(loss)))(*shapes)
    for x in batches:  # of equal weights
        np.testing.assert_allclose(exported.call(w, x), 2 * jnp.mean(x, 0), rtol=1e-6)


def test_export_with_a_top_k_of_any_k() -> None:
    (k,) = jax.export.symbolic_shape("k", constraints=["k <= 40"])
    x = jnp.arange(40.0)

    def gradient(x: jax.Array, like: jax.Array) -> jax.Array:
        return jaxclamp.grad(lambda x: lax.top_k(x, like.shape[0])[0].sum())(x)

    shapes = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((k,), x.dtype)
    exported = jax.export.export(jax.jit(gradient))(*shapes)
    np.testing.assert_array_equal(exported.call(x, x[:3]), x > 36)


def in_a_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


@pytest.mark.parametrize("meanwhile", [lambda call: call(), in_a_thread], ids=["in the function", "in a thread"])
def test_a_call_while_another_traces(meanwhile: Callable[[Callable[[], object]], None]) -> None:
    """They have arguments of two structures, so that another leaf of them moves."""
    zero = jnp.float32(0.0)

    def of_second_leaf(x: Any, data: Any) -> Any:
        if isinstance(x, tuple):
            meanwhile(lambda: gradient(zero, (zero, zero)))
        return step(jax.tree.leaves((x, data))[1])[0]

    for gradient in (jaxclamp.grad(of_second_leaf), jaxclamp.value_and_grad(of_second_leaf)):
        assert jax.tree.leaves(gradient((zero, zero), zero))[-2:] == [0.0, 1.0]


def test_structures_and_numbers_of_arguments() -> None:
    """Trees, several arguments by number, keywords, auxiliary results, Python numbers, integers beside."""

    def fun(params: Any, x: Any, scale: Any, *, negate: bool = False) -> Any:
        y = jnp.maximum(params["w"], x) + jnp.minimum(params["w"], x)
        return (-y if negate else y) * scale, {"y": y, "name": "fun"}

    params = {"w": jnp.asarray(1.0)}
    (found, aux) = jaxclamp.grad(fun, (0, -2), has_aux=True)(params, 1.0, 3, negate=True)
    assert found == ({"w": -3.0}, -3.0)
    assert aux == {"y": 2.0, "name": "fun"}
    value, gradient = jaxclamp.value_and_grad(fun, 1, has_aux=True, direction=jnp.asarray(1.0))(params, 1.0, 2)
    assert (value, gradient) == ((4.0, {"y": 2.0, "name": "fun"}), 2.0)
    assert jaxclamp.grad(lambda x: jnp.abs(x), key=jax.random.key(7))(0.0) in (1.0, -1.0)
    assert jaxclamp.directional_derivative(lambda x: x["a"] * 2, [{"a": 1.0}], [{"a": 3.0}]) == (2.0, 6.0)


@pytest.mark.parametrize(
    "dtype", ["float8_e5m2", *(pytest.param(d, marks=pytest.mark.thorough) for d in ("float16", "bfloat16")), "float32"]
)
def test_dtypes(dtype: str) -> None:
    """The direction is drawn in the dtype of each leaf; gradients have it too."""
    x = {"a": jnp.zeros(3, dtype), "b": jnp.zeros((), "float32")}
    gradient = jaxclamp.grad(lambda x: jnp.sum(relu(x["a"]) - relu(-x["a"])).astype("float32") + jnp.abs(x["b"]))(x)
    assert gradient["a"].dtype == dtype
    np.testing.assert_array_equal(gradient["a"].astype("float32"), np.ones(3))
    assert abs(gradient["b"]) == 1.0


def test_complex_arguments_move_in_both_parts() -> None:
    def identities(z: jax.Array) -> jax.Array:
        return jnp.sum(relu(z.real) - relu(-z.real) + 2 * (relu(z.imag) - relu(-z.imag)))

    for z in (jnp.zeros(3, complex), 0j):
        np.testing.assert_array_equal(jaxclamp.grad(identities)(z), jax.grad(identities)(z + 1 + 1j))


def test_values_keep_their_bits() -> None:
    """Signs of zeros, infinities and NaN included, where the piece would have others."""
    numbers = jnp.array([0.0, -0.0, 1.0, -1.0, jnp.inf, -jnp.inf, jnp.nan])
    x, y = (a.ravel() for a in jnp.meshgrid(numbers, numbers))

    def together(x: jax.Array, y: jax.Array) -> Any:
        window = lax.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), "SAME")
        several = jnp.maximum(x, y), jnp.minimum(x, y), lax.clamp(x, y, -x), jnp.abs(x), jnp.max(x[1:7]), window
        ordered = lax.cummax(x), jnp.sort(x), jnp.where(x > y, x, -y), relu(x), jnp.sign(x), lax.top_k(x, 5)
        return jnp.sum(jnp.nan_to_num(x)), (several, ordered)

    @jax.jit
    def asked(x: jax.Array, y: jax.Array, along: jax.Array) -> Any:
        return jaxclamp.value_and_grad(together, (0, 1), True, direction=(along, -along))(x, y)[0]

    for along in (jnp.ones_like(x), -jnp.ones_like(x)):
        found, wanted = asked(x, y, along), jax.jit(together)(x, y)
        for mine, own in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            assert np.asarray(mine).tobytes() == np.asarray(own).tobytes()


def test_infinities_do_not_move() -> None:
    x = jnp.array([jnp.inf, -jnp.inf, 1.0])
    for fun in (jnp.nan_to_num, lambda x: jnp.where(jnp.isinf(x), 0.0, x), lambda x: jnp.where(x < jnp.inf, x, 0.0)):
        for v in (jnp.ones(3), -jnp.ones(3)):
            gradient = jaxclamp.grad(lambda x: jnp.sum(fun(x) * jnp.isfinite(fun(x))), direction=v)(x)  # noqa: B023
            np.testing.assert_array_equal(gradient, [0.0, 0.0, 1.0])


# Misuse


def of_surroundings(slope: jax.Array) -> jax.Array:
    return jaxclamp.subdifferential(lambda x: slope * jnp.abs(x))(np.float32(0.0)).min_norm


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: jaxclamp.grad(3.0), TypeError, r"grad: fun is 3.0; pass a function"),
        (lambda: jaxclamp.directional_derivative("f", (1.0,), (1.0,)), TypeError, r"fun is 'f'; pass a function"),
        (lambda: jaxclamp.directional_derivative(jnp.abs, 0.0, 1.0), TypeError, r"primals is of type float; .* \(x,\)"),
        (lambda: jaxclamp.grad(jnp.abs)(1), TypeError, r"grad: the argument has int\d+, .* as 1.0, or .* argnums"),
        (
            lambda: jaxclamp.value_and_grad(jnp.sum)([1.0, jnp.array(True)]),
            TypeError,
            r"value_and_grad: the argument has bool at \[1\], .* equinox.partition",
        ),
        (
            lambda: jaxclamp.value_and_grad(jnp.abs, direction=1.0, key=jax.random.key(0)),
            ValueError,
            r"value_and_grad: direction and key are both given; pass direction, or a key to draw one",
        ),
        (
            lambda: jaxclamp.grad(lambda x: x["a"], direction=1.0)({"a": 1.0}),
            ValueError,
            r"grad: direction has the structure PyTreeDef\(\*\); pass one with that of .* PyTreeDef\(\{'a': \*\}\)",
        ),
        (
            lambda: jaxclamp.grad(jnp.sum, direction=jnp.ones(2))(jnp.ones(3)),
            ValueError,
            r"grad: direction has an array of shape \(2,\), where the argument has \(3,\)",
        ),
        (
            lambda: jaxclamp.value_and_grad(jnp.sum, direction=jnp.array([1, -1]))(jnp.ones(2)),
            TypeError,
            r'value_and_grad: direction has an array of dtype int32, .* float32; convert it by .*astype\("float32"\)',
        ),
        *(
            (call, ValueError, r"grad: direction has NaN or infinity, .* pass finite numbers")
            for call in (
                lambda: jaxclamp.grad(jnp.abs, direction=np.float32("nan"))(0.0),
                lambda: jax.jit(jaxclamp.value_and_grad(jnp.sum, direction=jnp.array([1.0, -jnp.inf])))(jnp.ones(2)),
            )
        ),
        *(
            (call, ValueError, r"grad: direction is 0, which points nowhere; pass other numbers, or no direction")
            for call in (
                lambda: jaxclamp.grad(jnp.abs, direction=0.0)(0.0),
                lambda: jax.jit(jaxclamp.value_and_grad(jnp.sum, direction=jnp.zeros(2)))(jnp.ones(2)),
            )
        ),
        *(
            (
                lambda call=call: call(lambda x: 2 * x, has_aux=True)(jnp.ones(2)),
                TypeError,
                r"fun returned .*; return a",
            )
            for call in (jaxclamp.grad, jaxclamp.value_and_grad)
        ),
        (lambda: jaxclamp.grad(lambda x: x)(jnp.ones(2)), TypeError, r"scalar-output functions"),
        (lambda: jaxclamp.grad(jnp.add, (0, 0))(0.0, 0.0), TypeError, r"grad: argnums is \(0, 0\), .* each once"),
        (lambda: jaxclamp.value_and_grad(jnp.add, (1, -1))(0.0, 0.0), TypeError, r"argnums is \(1, -1\), .* each once"),
        (lambda: jaxclamp.grad(jnp.abs, 1)(0.0), TypeError, r"argnums is 1, and the number of positional arguments 1"),
        (lambda: jaxclamp.grad(jnp.abs)(x=0.0), TypeError, r"by its position, each once, and not by its name, as in f"),
        (lambda: jaxclamp.grad(jnp.abs, ())(0.0), TypeError, r"grad: argnums is \(\), and the number"),
        (lambda: jaxclamp.grad(jnp.abs, "x")(0.0), TypeError, r"grad: argnums is 'x', and the number"),
        (
            lambda: jaxclamp.subdifferential(jnp.add, (0, 0))(0.0, 0.0),
            TypeError,
            r"argnums is \(0, 0\), and the number",
        ),
        (lambda: jaxclamp.subdifferential(jnp.abs, directions=0), ValueError, r"directions=0; pass how many to ask"),
        (lambda: jax.jit(jaxclamp.subdifferential(jnp.abs))(0.0), TypeError, r"call it outside of jit, vmap and grad"),
        (lambda: jax.jit(of_surroundings)(1.0), TypeError, r"call it outside of jit, vmap and grad"),
        (lambda: jax.grad(of_surroundings)(1.0), TypeError, r"call it outside of jit, vmap and grad"),
        (lambda: jax.vmap(of_surroundings)(jnp.ones(2)), TypeError, r"call it outside of jit, vmap and grad"),
        (lambda: jaxclamp.subdifferential(jnp.abs)(1j), TypeError, r"pass real and imaginary parts"),
        (lambda: jaxclamp.subdifferential(jnp.sqrt)(0.0), ValueError, r"the value is 0.0, and the gradient .* \[inf\]"),
        (lambda: jaxclamp.subdifferential(jnp.log)(-1.0), ValueError, r"the value is nan, .* \[-1\]; pass a point"),
    ],
)
def test_misuse(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_linear_solve_without_a_transpose() -> None:
    """Forward mode needs none; A has the choice, at which it rises: dx is -A^-1 dA x."""
    b = jnp.array([2.0, 3.0])

    def function(d: jax.Array) -> jax.Array:
        diagonal = jnp.maximum(d, 1.0)
        return jax.lax.custom_linear_solve(lambda v: diagonal * v, b, lambda _, right: right / diagonal)

    for rise, expected in ((1.0, -b), (-1.0, 0 * b)):
        value, derivative = jaxclamp.directional_derivative(function, (jnp.ones(2),), (jnp.full(2, rise),))
        assert (value.tolist(), derivative.tolist()) == (b.tolist(), expected.tolist())


@pytest.mark.parametrize("tangent", [jnp.ones(2), jnp.ones(3, int), (jnp.ones(3),) * 2], ids=["shape", "dtype", "tree"])
def test_directions_that_do_not_fit_are_refused_as_by_jax(tangent: Any) -> None:
    for differentiate in (jax.jvp, jaxclamp.directional_derivative):
        with pytest.raises((TypeError, ValueError), match="primal and tangent"):
            differentiate(jnp.abs, (jnp.zeros(3),), (tangent,))
