"""Equal eigenvalues and singular values: their slopes a small step along a direction."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxclamp

Function = Callable[[jax.Array], jax.Array]
NEAR = 1e-5


def of_symmetric(a: jax.Array) -> jax.Array:
    return jnp.linalg.eigvalsh((a + a.mT.conj()) / 2)


def of_singular(a: jax.Array) -> jax.Array:
    return jnp.linalg.svd(a, compute_uv=False)


def by_eigh(a: jax.Array) -> jax.Array:
    return jnp.linalg.eigh((a + a.T) / 2)[0]


def weighted(function: Function) -> Function:
    """A weighted sum of the values, which tells them apart."""
    return lambda a: jnp.sum(function(a) * jnp.arange(1.0, min(a.shape) + 1) ** 2)


def rotation(size: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(size).normal(size=(size, size)))[0]


def directions(array: np.ndarray, count: int) -> jax.Array:
    drawn = np.random.default_rng(0).normal(size=(2, count, *array.shape))
    return jnp.asarray(drawn[0] + 1j * drawn[1] if np.iscomplexobj(array) else drawn[0])


Q, R = rotation(4), rotation(3)
MATRICES: dict[str, tuple[Function, np.ndarray]] = {
    "the identity": (of_symmetric, np.eye(3)),
    "zeros": (by_eigh, np.zeros((2, 2))),
    "two pairs, but for rounding": (of_symmetric, Q * [2.0, 2.0, -5.0, -5.0] @ Q.T),
    "a pair beside others": (of_symmetric, Q * [2.0, 3.0, 2.0, 4.0] @ Q.T),
    "Hermitian": (of_symmetric, np.diag([1.0, 1.0, 2.0]) + 0j),
    "singular values of zeros": (of_singular, np.zeros((2, 3))),
    "singular values of low rank": (of_singular, Q[:, :3] * [3.0, 3.0, 0.0] @ R),
    "singular values of a rotation": (of_singular, R),
    "singular values of complex numbers": (of_singular, 1j * Q[:2] * [0.0, 1.0, 1.0, 0.0]),
}


QUICK = ("two pairs, but for rounding", "singular values of low rank")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name not in QUICK)) for name in MATRICES]
)
def test_slopes_are_those_nearby(name: str) -> None:
    function, array = MATRICES[name]
    fun, a, vs = weighted(function), jnp.asarray(array), directions(array, 4)

    @jax.jit
    @jax.vmap
    def along(v: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jaxclamp.directional_derivative(fun, (a,), (v,))[1], jaxclamp.grad(fun, direction=v)(a)

    derivatives, gradients = along(vs)
    near, gradients_near = jax.jit(jax.vmap(jax.value_and_grad(fun)))(a + NEAR * vs)
    np.testing.assert_allclose(derivatives, (near - fun(a)) / NEAR, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(derivatives, jnp.sum(gradients * vs, (1, 2)).real, rtol=1e-9)
    np.testing.assert_allclose(gradients, gradients_near, atol=1e-3)


def test_groups_of_equal_eigenvalues_stay_in_their_order() -> None:
    """Even if those of the lower group rise by more than those of the upper: to 1, 3, and to -3, -1."""
    a, v = jnp.diag(jnp.array([1.0, 1.0, 2.0, 2.0])), jnp.diag(jnp.array([3.0, 1.0, -3.0, -1.0]))
    fun = lambda a: jnp.linalg.eigvalsh(a) @ jnp.array([1.0, 2.0, 4.0, 8.0])  # noqa: E731
    assert jaxclamp.directional_derivative(fun, (a,), (v,)) == (27.0, -13.0)


@pytest.mark.parametrize("function", [pytest.param(of_symmetric, marks=pytest.mark.thorough), of_singular])
def test_lanes(function: Function) -> None:
    """Of matrices with ties and without, under vmap; those without have the gradients of JAX."""
    apart, equal = jnp.diag(jnp.arange(1.0, 4.0)), jnp.eye(3)
    fun, (v,) = weighted(function), directions(apart, 1)
    along = jax.jit(lambda a: jaxclamp.grad(fun, direction=v)(a))
    in_lanes = jax.jit(jax.vmap(along))(jnp.stack([equal, apart]))
    np.testing.assert_allclose(in_lanes, [along(equal), along(apart)], atol=1e-5)
    np.testing.assert_array_equal(along(apart), jax.jit(jax.grad(fun))(apart))


@pytest.mark.usefixtures("float64")
def test_beside_vectors_all_slopes_are_those_of_jax() -> None:
    """A matrix made again of its parts moves as itself, which needs slopes of the same vectors."""

    def again(a: jax.Array) -> jax.Array:
        values, vectors = jnp.linalg.eigh(a)
        return jnp.vdot(vectors * values @ vectors.T, weights)

    def again_of_singular(a: jax.Array) -> jax.Array:
        u, values, v = jnp.linalg.svd(a)
        return jnp.vdot(u * values @ v, weights)

    weights = jnp.asarray(Q + Q.T)
    nearly_equal, singular = [2.0, 3.0, 2.0 + 6e-15, 4.0], [1.0, 2.0, 3.0, 0.0]
    for function, values, atol in ((again, nearly_equal, 0.2), (again_of_singular, singular, 1e-9)):
        a = jnp.asarray(Q * values @ Q.T)
        np.testing.assert_allclose(jaxclamp.grad(function)(a), weights, atol=atol)


@pytest.mark.thorough
@pytest.mark.parametrize("function", [of_symmetric, of_singular])
def test_second_derivatives(function: Function) -> None:
    """Where nothing ties they are those of JAX; at ties, where they are infinite nearby, they are no numbers."""
    fun, apart = weighted(function), jnp.diag(jnp.arange(1.0, 4.0))
    hessian = jax.jit(jax.jacfwd(jaxclamp.grad(fun)))
    np.testing.assert_allclose(hessian(apart), jax.hessian(fun)(apart), atol=1e-5)
    assert not jnp.isfinite(hessian(jnp.eye(3))).any()


def test_norms_of_matrices() -> None:
    """The slopes were 2, -1 and -3, those of the diagonal in the order in which LAPACK returns it."""
    v = jnp.diag(jnp.array([2.0, -3.0]))
    for function, a, slope in (
        (lambda a: jnp.linalg.eigvalsh(a)[0], jnp.eye(2), -3),
        (lambda a: jnp.linalg.norm(a, "nuc"), jnp.zeros((2, 2)), 5),
        (lambda a: jnp.linalg.eigh(a)[0].max(), jnp.eye(2), 2),
        (lambda a: jnp.linalg.norm(a, 2), -jnp.eye(2), 3),
    ):
        value, derivative = jax.jit(lambda a, f=function: jaxclamp.directional_derivative(f, (a,), (v,)))(a)
        np.testing.assert_allclose(derivative, slope, rtol=1e-6)
        assert value == function(a)


@pytest.mark.thorough
def test_the_largest_eigenvalue_is_least_norm() -> None:
    """Its subdifferential at the identity is that of the matrices of trace 1 that have no negative eigenvalue."""
    around = jaxclamp.subdifferential(lambda a: of_symmetric(a)[-1])(jnp.eye(2))
    np.testing.assert_allclose(around.min_norm, jnp.eye(2) / 2, atol=1e-6)
    assert around.is_certified
