"""What `ties` and `count_ties` say where a number or a gradient is NaN: that it is no tie, and what helps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxclamp
from jaxclamp import TieReport, ties


@pytest.mark.parametrize(
    ("function", "at", "what"),
    [
        (lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0).sum(), -1.0, "NaN"),
        (lambda x: jnp.sqrt(x).sum(), 0.0, "infinite"),
        (lambda x: (jnp.sqrt(x) * jnp.abs(x)).sum(), 0.0, "NaN"),
    ],
)
def test_influence_on_a_gradient_that_is_not_finite(
    function: Callable[[jax.Array], jax.Array], at: float, what: str
) -> None:
    text = str(ties(function, influence=True)(jnp.array([at, 1.0]))[1]).splitlines()[0]
    assert f"how far they move the gradient cannot be said, as it is {what}: docs/nan.md" in text
    assert "nan%" not in text


WITH_NAN = np.float32([np.nan, np.nan, 1.0, 1.0, np.nan, 2.0])
OF_NAN: dict[str, tuple[Callable[[jax.Array], Any], int]] = {
    "maximum": (lambda x: jnp.maximum(x, x), 3),
    "fmax": (lambda x: jnp.fmax(x, x), 3),
    "clamp": (lambda x: jnp.clip(x, x, 9.0), 3),
    "amax": (lambda x: jnp.max(x.reshape(3, 2), axis=1), 1),
    "amin of a mask": (lambda x: jnp.min(x.reshape(3, 2), axis=1, initial=9.0, where=jnp.ones((3, 2), bool)), 1),
    "max_pool": (lambda x: jaxclamp.max_pool1d(x[None, None], 2), 1),
    "windows": (lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2,), (1,), "VALID"), 1),
    "max_with_indices": (lambda x: jaxclamp.max_with_indices(x.reshape(3, 2), axis=1), 1),
    "relu": (jaxclamp.relu, 0),
    "hypot": (lambda x: jaxclamp.hypot(x, x), 0),
}


@pytest.mark.parametrize("name", OF_NAN)
def test_nan_is_on_no_tie(name: str) -> None:
    """Pairs of NaN, of 1, and of NaN with a number. Without NaN in them, the pairs of 1 are left."""
    function, tied = OF_NAN[name]
    assert ties(function)(jnp.asarray(WITH_NAN))[1].tied == tied
    _, counts = jax.jit(jaxclamp.count_ties(function))(jnp.asarray(WITH_NAN))
    assert counts.report().tied == tied


def met_infinity(report: TieReport) -> list[tuple[int, int]]:
    """Return the line, counted from the first, and the count of each place where 0 met infinity."""
    lines = [line for line in report.lines if line.op == "0 met infinity"]
    assert all(line.suspect for line in lines)
    return [(line.number - lines[0].number, line.tied) for line in lines]


def test_where_a_branch_not_taken_makes_a_gradient_nan() -> None:
    """The count is that of the entries that are NaN. A root at 4 is in the same call, and at -1 one in a loop."""

    def loss(x: jax.Array) -> jax.Array:
        roots = jnp.where(x > 0, jnp.sqrt(x), 0.0)
        logarithms = jnp.where(x > 1, jnp.log(x - 1), 0.0)
        return roots.sum() + logarithms.sum()

    x = jnp.array([-1.0, 0.0, 1.0, 4.0])
    gradient, report = ties(jax.jit(jax.grad(loss)))(x)
    assert met_infinity(report) == [(0, 2), (1, 1)]  # the logarithm has the slope 1 / (x - 1), infinite at 1 alone
    assert jnp.isnan(gradient).tolist() == [True, True, True, False]

    constant_first = jax.grad(lambda x: jnp.where(x > 9, jnp.inf * x, 0.0).sum())
    assert met_infinity(ties(constant_first)(x)[1]) == [(0, 4)]

    def looped(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, _: (jnp.where(x > 0, jnp.sqrt(x), carry), None), x, length=3)[0].sum()

    assert met_infinity(ties(jax.grad(looped))(x)[1]) == [(0, 6)]


def test_where_no_gradient_is_nan() -> None:
    """Numbers that are 0, slopes that are finite, infinite gradients that are true; and no gradient at all."""
    x = jnp.array([0.0, 2.0])
    for function in (
        lambda x: (jnp.exp(x) * x).sum(),
        lambda x: jnp.sqrt(x).sum(),
        lambda x: jnp.log(x).sum(),
        lambda x: jnp.where(x > 1, jnp.sqrt(jnp.where(x > 1, x, 1.0)), 0.0).sum(),
    ):
        assert met_infinity(ties(jax.grad(function))(x)[1]) == []
    assert met_infinity(ties(lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0))(x)[1]) == []
