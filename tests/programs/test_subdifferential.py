"""`jaxclamp.subdifferential`: which gradients are found around a point, and what is certified."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxclamp
from jaxclamp._shared.subdifferential import Along, Subdifferential, explored

relu = jax.nn.relu


def test_gradients_around_a_point() -> None:
    """Khan and Barton's example: of its three pieces at 0 one is smooth sailing, and each is found."""
    around = jaxclamp.subdifferential(lambda x: jnp.maximum(jnp.minimum(x[0], -x[1]), x[1] - x[0]))(jnp.zeros(2))
    assert sorted(map(tuple, np.round(around.points).tolist())) == [(-1.0, 1.0), (0.0, -1.0), (1.0, 0.0)]
    assert not around.is_differentiable
    assert around.is_certified
    np.testing.assert_array_equal(around.min_norm, jnp.zeros(2))
    assert all(around.contains(gradient) for gradient in around.gradients)
    assert around.contains(jnp.array([0.0, 0.3]))
    assert not around.contains(jnp.array([1.0, 1.0]))
    assert not around.contains(jnp.array([0.0, jnp.inf]))
    with pytest.raises(ValueError, match="the gradient has 3 numbers, and not 2"):
        around.contains(jnp.zeros(3))
    assert str(around).startswith("found        3 gradients, of 16 directions asked\n")


def test_descent_finds_what_draws_do_not() -> None:
    """Of a function with a piece that few directions enter, the least gradient."""
    slopes = jnp.array([[1.0, 30.0], [1.0, -30.0], [0.25, 0.0]])
    fun = lambda x: jnp.max(slopes @ x)  # noqa: E731
    around = jaxclamp.subdifferential(fun, directions=4)(jnp.zeros(2))
    np.testing.assert_allclose(around.min_norm, [0.25, 0.0], atol=1e-3)
    assert around.is_certified
    assert "certified: the derivative along -min_norm is -0.0625" in str(around)
    # Along the opposite of that gradient itself, the relus would be entered at their edge, with the slope 2.
    zero = lambda x: relu(x) - relu(-x) - x  # noqa: E731
    beside = jaxclamp.subdifferential(lambda x: fun(x[:2]) + zero(x[2]), directions=4)(jnp.zeros(3))
    assert all(gradient[2] == 0 for gradient in beside.gradients)


def test_arguments_that_are_no_arrays() -> None:
    """Python branches and loops by them."""

    def function(x: jax.Array, scale: jax.Array, how: str, *, times: int) -> jax.Array:
        for _ in range(times):
            x = scale * jnp.abs(x)
        return x.sum() if how == "sum" else x.max()

    around = jaxclamp.subdifferential(function)(jnp.zeros(1), jnp.full(1, 2.0), "sum", times=2)
    assert sorted(gradient.item() for gradient in around.gradients) == [-4.0, 4.0]


def test_arrays_of_numpy_stay_what_they_are() -> None:
    """NumPy selects by a mask, and counts by numbers, as in `jaxclamp.grad`."""
    fun = lambda x, mask, groups: jax.ops.segment_sum(jnp.abs(x[mask]), groups, int(groups.max()) + 1).max()  # noqa: E731
    arguments = np.zeros(3, np.float32), np.array([True, False, True]), np.array([0, 1])
    gradients = jaxclamp.subdifferential(fun)(*arguments).gradients
    assert sorted(gradient.tolist() for gradient in gradients) == [[-1, 0, 0], [0, 0, -1], [0, 0, 1], [1, 0, 0]]


def test_several_arguments() -> None:
    """In the order of ``argnums``; what is between them is passed on."""
    fun = lambda x, factor, y: jnp.abs(x - y[0]) + factor * y[1]  # noqa: E731
    around = jaxclamp.subdifferential(fun, (2, 0))(jnp.ones(()), 3, jnp.array([1.0, 2.0]))
    found = sorted((of_y.tolist(), of_x.item()) for of_y, of_x in around.gradients)
    assert found == [([-1.0, 3.0], 1.0), ([1.0, 3.0], -1.0)]
    assert jax.tree.map(np.ndarray.tolist, jax.tree.map(np.asarray, around.min_norm)) == ([0.0, 3.0], 0.0)
    assert around.contains((jnp.array([0.5, 3.0]), -0.5))
    assert not around.contains((jnp.array([0.5, 3.0]), 0.5))


def test_differentiable_points() -> None:
    """However they are spelled; there is one gradient, and it is certified."""
    params = {"w": jnp.zeros(2), "b": jnp.asarray(0.5)}
    fun = lambda x, params: jnp.sum(relu(params["w"]) - relu(-params["w"])) * x + params["b"] ** 2  # noqa: E731
    around = jaxclamp.subdifferential(fun, 1, key=jax.random.key(1))(3.0, params)
    assert around.is_differentiable
    assert around.is_certified
    assert jax.tree.map(jnp.ndim, around.min_norm) == {"w": 1, "b": 0}
    assert around.contains({"w": jnp.array([3.0, 3.0]), "b": 1.0})
    assert "1 gradient, in all directions, of 17 directions asked" in str(around)


def test_minimisers_are_stationary() -> None:
    """LASSO, and a support vector machine: at the minimum neither the native gradient is 0 nor that of min_norm."""
    rng = np.random.default_rng(0)
    a = jnp.asarray(rng.integers(-3, 4, (8, 4)), "float32")

    def lasso(x: jax.Array) -> jax.Array:
        return 0.5 * jnp.sum((a @ x - b) ** 2) + 4.0 * jnp.sum(jnp.abs(x))

    # b is such that x = (1, -2, 0, 0) is the minimum: the residual has the products 4 s with the columns of a.
    x = jnp.array([1.0, -2.0, 0.0, 0.0])
    residual = a @ jnp.linalg.solve(a.T @ a, 4.0 * jnp.array([1.0, -1.0, 0.5, -0.25]))
    b = a @ x + residual
    points = jnp.array([[2.0, 0.0], [0.0, 2.0], [-2.0, 0.0], [0.0, -2.0]])
    labels = jnp.array([1.0, 1.0, -1.0, -1.0])

    def machine(w: jax.Array) -> jax.Array:
        return 0.5 * jnp.sum(w**2) + jnp.sum(jnp.maximum(0.0, 1.0 - labels * (points @ w)))

    for fun, minimum in ((lasso, x), (machine, jnp.array([0.5, 0.5]))):
        around = jaxclamp.subdifferential(fun, directions=32)(minimum)
        assert np.linalg.norm(around.min_norm) <= 2e-3
        assert around.is_certified
        for gradient in (jax.grad(fun), jax.grad(jaxclamp.min_norm(fun))):
            assert np.linalg.norm(gradient(minimum)) > 0.1


SIZES = [(1e3, 1.0, 1e-3), (1.0, 1e-3, 1e3), (1e-3, 1e3, 1.0)]


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.thorough), "bfloat16"])
@pytest.mark.parametrize(
    "sizes", [SIZES[0], *(pytest.param(s, marks=pytest.mark.thorough) for s in SIZES[1:])], ids=str
)
def test_each_entry_has_its_own_rounding(sizes: tuple[float, ...], dtype: str) -> None:
    """Kinks and slopes whose sizes differ by up to 1e6; the certificate is what the derivative along -p says."""
    with jax.enable_x64(dtype == "float64"):
        steep, slope, kink = (jnp.asarray(size, dtype) for size in sizes)

        def fun(x: jax.Array) -> jax.Array:
            # Of the last term 0 is in the subdifferential, not in the middle.
            return steep * jnp.abs(x[0]) + slope * x[1] + kink * (jnp.abs(x[2]) + x[2] / 4)

        around = jaxclamp.subdifferential(fun)(jnp.zeros(3, dtype))
        assert len(around.gradients) == 4
        np.testing.assert_allclose(np.asarray(around.min_norm, float), [0.0, float(slope), 0.0], rtol=1e-14)
        assert around.is_certified
        inside = jnp.stack([steep / 2, slope, kink / 2])
        assert around.contains(inside)
        for entry in range(3):
            assert not around.contains(inside.at[entry].multiply(4.0))


def test_what_is_not_stationary() -> None:
    """By a small slope beside a steep kink, a small kink beside a steep slope, or rules that contradict each other."""
    beside = jaxclamp.subdifferential(lambda x: 300 * jnp.abs(x[0]) + (x[1] - 1) ** 2)(jnp.array([0.0, 0.98]))
    np.testing.assert_allclose(beside.min_norm, [0.0, -0.04], rtol=1e-5)
    assert beside.is_certified
    small = jaxclamp.subdifferential(lambda x: 1000 * x[0] + 0.1 * jnp.abs(x[1]))(jnp.zeros(2))
    assert not small.is_differentiable
    assert not small.contains(jnp.array([1000.0, 0.2]))

    @jax.custom_vjp
    def reversed_gradient(x: jax.Array) -> jax.Array:
        return x

    reversed_gradient.defvjp(lambda x: (x, None), lambda _, cotangent: (-cotangent,))
    contradictory = jaxclamp.subdifferential(reversed_gradient)(0.25)
    assert (contradictory.is_certified, contradictory.directions) == (False, 16 + 2)  # and the search ends


def test_what_is_not_convex() -> None:
    """The derivative along -p is lower than -|p|: no gradient is missing, and p need not be the least subgradient."""
    around = jaxclamp.subdifferential(lambda x: jnp.minimum(x, 2 * x))(0.0)
    assert (around.min_norm, around.is_certified, around.directions) == (1, False, 16 + 1)


def test_a_constant_is_stationary() -> None:
    around = jaxclamp.subdifferential(lambda x: 0.0 * x)(1.0)
    assert around.is_certified
    assert around.contains(0.0)
    assert not around.contains(1e-9)


def test_rounding_that_cancels() -> None:
    """Of a LASSO with unequal penalties at its minimum: where terms cancel, the gradient is rounding, and no slope."""
    penalties = jnp.array([400.0, 0.4, 4.0, 40.0])
    x, shares = jnp.array([1.0, -2.0, 0.0, 0.0]), jnp.array([1.0, -1.0, 0.5, -0.25])
    for seed in range(3):
        a = jnp.asarray(np.random.default_rng(seed).normal(size=(8, 4)), "float32")
        b = a @ x + a @ jnp.linalg.solve(a.T @ a, penalties * shares)

        def lasso(x: jax.Array) -> jax.Array:
            return 0.5 * jnp.sum((a @ x - b) ** 2) + penalties @ jnp.abs(x)  # noqa: B023

        around = jaxclamp.subdifferential(lasso)(x)
        assert around.is_certified
        assert np.linalg.norm(around.min_norm) < 1e-3


def test_pieces_and_slopes_are_told_from_rounding() -> None:
    """In float32: gradients a unit apart are one piece, and 2e-6 beside 1, which is computed anew as 1.2e-6, is 0."""

    def around(along: Along) -> Subdifferential:
        return explored(along, np.array([[1.0, 0.5]]), 2.0**-23, np.asarray, np.asarray)

    units = around(lambda v: (0.0, float(v[0]), np.array([1 + (v[0] > 0) * 2.0**-23, 0.0])))
    assert units.is_differentiable
    slope = around(lambda v: (0.0, float(abs(v[0]) + 1.2e-6 * v[1]), np.array([np.copysign(1, v[0]), 2e-6])))
    assert slope.is_certified
    assert slope.min_norm.tolist() == [0, 0]


@pytest.mark.parametrize(("size", "is_shortened"), [(6, False), (7, True)])
def test_long_vectors_are_shortened(size: int, is_shortened: bool) -> None:
    around = explored(lambda v: (0.0, 0.0, 0 * v), np.ones((1, size)), 0.0, np.asarray, np.asarray)
    assert ("..." in str(around)) == is_shortened
