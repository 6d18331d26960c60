"""What `ties` and `count_ties` say where a number or a gradient is NaN: that it is no tie, and what helps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxclamp
from jaxclamp import ties


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
