"""Decides the order of equal eigenvalues, and of equal singular values, along a direction.

Say k eigenvalues of a symmetric matrix A are equal, the columns of V are eigenvectors of them, and A moves by dA. Then
they move by the eigenvalues of the k x k matrix ``V^T dA V``, in ascending order. The eigenvectors ``U = V R`` to which
a small step leads are those with which ``U^T dA U`` is diagonal. At ``A = I``, which moves by ``diag(2, -3)``, the
smaller eigenvalue moves by -3, with the eigenvector (0, 1), and its slope is that by the second number on the diagonal.

Singular values of A are the largest eigenvalues of ``[[0, A], [A^T, 0]]``, which has them with both signs, and 0 as
often as A has more rows than columns, or fewer. So one rule holds for them, at 0 too.

Numbers are equal here if they are so up to rounding, and all others keep the slope that JAX gives them. So do all where
something reads the vectors, which turn without bound where eigenvalues are equal: slopes of ``V diag(w) V^T`` are right
only if those of w belong to the same V.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn
from jax.extend.core import primitives as p

from jaxclamp._programs.choices import Arrays, Piece, entering
from jaxclamp._programs.nan_gradients import if_any


def values_along_direction(eqn: JaxprEqn, unread: Collection[Any]) -> Callable[..., Any] | None:
    """Return what ``eqn`` computes, if that is eigenvalues or singular values alone, with their slopes a small step on.

    ``unread`` has the variables that nothing reads, as may be that of the eigenvectors.
    """
    if eqn.primitive is p.eigh_p and eqn.outvars[0] in unread:
        return entering(eqn, functools.partial(_of_symmetric, **eqn.params))
    if eqn.primitive is p.svd_p and not eqn.params["compute_uv"]:
        return entering(eqn, functools.partial(_of_singular, **eqn.params))
    return None


def _of_symmetric(_: Arrays, tangents: Arrays, **params: Any) -> Piece:
    """Decide an ``eigh``, which returns the eigenvectors, and the eigenvalues in ascending order."""

    def piece(a: jax.Array) -> tuple[jax.Array, jax.Array]:
        vectors, values = p.eigh_p.bind(a, **params)
        tied = _is_tied(lax.stop_gradient(values))
        return vectors, _where_tied(tied, lambda: _moving_apart(a, tangents[0]), values)

    return piece


def _of_singular(_: Arrays, tangents: Arrays, **params: Any) -> Piece:
    """Decide an ``svd`` that returns the singular values alone, in descending order."""

    def piece(a: jax.Array) -> tuple[jax.Array]:
        (values,) = p.svd_p.bind(a, **params)
        known, zeros = lax.stop_gradient(values), [(0, 0)] * values.ndim
        zeros[-1] = (0, abs(a.shape[-1] - a.shape[-2]))
        of_symmetric = jnp.concatenate([jnp.pad(-known, zeros), jnp.flip(known, -1)], -1)

        def largest(ascending: jax.Array) -> jax.Array:
            return jnp.flip(ascending, -1)[..., : values.shape[-1]]

        def moving_apart() -> jax.Array:
            return largest(_moving_apart(_symmetric(a), _symmetric(tangents[0])))

        return (_where_tied(largest(_is_tied(of_symmetric)), moving_apart, values),)

    return piece


def _symmetric(a: jax.Array) -> jax.Array:
    """Return the matrix ``[[0, A], [A^H, 0]]``."""
    rows, columns = a.shape[-2:]
    above = jnp.pad(a, [(0, 0)] * (a.ndim - 2) + [(0, columns), (rows, 0)])
    return above + _adjoint(above)


def _where_tied(tied: jax.Array, compute: Callable[[], jax.Array], values: jax.Array) -> jax.Array:
    """Return the values, those that are tied as computed; that takes a further decomposition, if there are any."""
    return if_any([tied], lambda: [jnp.where(tied, compute(), values)], [values])[0]


@jax.custom_jvp
def _moving_apart(a: jax.Array, da: jax.Array) -> jax.Array:
    """Return the eigenvalues of a symmetric A, with the slopes that they have a small step along dA."""
    return lax.linalg.eigh(a)[1]


@_moving_apart.defjvp
def _(primals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    a, da = primals
    vectors, values = lax.linalg.eigh(a)
    turned = _product(vectors, lax.stop_gradient(_turn(vectors, values, da)))
    return _moving_apart(a, da), jnp.diagonal(_between(turned, tangents[0]), axis1=-2, axis2=-1).real


def _turn(vectors: jax.Array, values: jax.Array, da: jax.Array) -> jax.Array:
    """Return the rotation of the eigenvectors of equal eigenvalues to those a small step along ``da``."""
    group = jnp.cumsum(~_meets_previous(values), -1)
    moved = jnp.where(group[..., None, :] == group[..., :, None], _between(vectors, da), 0)
    size = jnp.linalg.norm(moved, axis=(-2, -1), keepdims=True)
    # Scaled, its eigenvalues are between -1 and 1. So those of each group can be set apart, in the order of the groups.
    apart = 3 * group[..., None] * jnp.eye(values.shape[-1])
    return lax.linalg.eigh(moved / jnp.where(size == 0, 1, size) + apart.astype(moved.dtype))[0]


def _is_tied(values: jax.Array) -> jax.Array:
    """Return which of the ascending numbers equal a neighbour."""
    meets = _meets_previous(values)
    return meets | jnp.roll(meets, -1, -1)  # the first meets none


def _meets_previous(values: jax.Array) -> jax.Array:
    """Return which of the ascending numbers equal the one before, up to rounding."""
    size = jnp.max(jnp.abs(values), -1, keepdims=True, initial=0)
    # LAPACK finds them up to a few units in the last place of the largest.
    return jnp.diff(values, prepend=-jnp.inf) <= 8 * jnp.finfo(values.dtype).eps * size


_product = functools.partial(jnp.matmul, precision="highest")


def _adjoint(a: jax.Array) -> jax.Array:
    """Return ``A^H``."""
    return a.mT.conj()


def _between(vectors: jax.Array, a: jax.Array) -> jax.Array:
    """Return ``V^H A V``."""
    return _product(_adjoint(vectors), _product(a, vectors))
