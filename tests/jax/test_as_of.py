"""`jaxclamp.as_of`: JAX functions with the gradients of recorded versions of torch and of JAX.

`test_as_of_records.py` asks them at each recorded tie.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxclamp import as_of, min_norm

X = jnp.array([-1.0, 0.0, 3.0, 6.0, jnp.nan])


def loss(x: jax.Array) -> jax.Array:
    def step(total: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return total + jax.checkpoint(lambda y: jnp.clip(y, 0.0, 6.0))(y), jnp.minimum(y, 6.0)

    total, rest = lax.scan(step, jnp.zeros(()), x)
    return total + rest.sum()


def test_under_transformations() -> None:
    """Both ways, compiled, in loops and checkpoints; NaN gets what it gets in torch."""
    expected = {"torch 2.13": [1, 2, 2, 1.5, 1], "torch 2.15": [1, 1, 2, 0.5, 1]}
    for version, weights in expected.items():
        under = as_of(version)(loss)
        assert jax.grad(under)(X).tolist() == jax.jit(jax.grad(under))(X).tolist() == weights
        pushed = [jax.jvp(under, (X,), (one,))[1] for one in jnp.eye(5)]
        np.testing.assert_array_equal(jnp.stack(pushed), weights)
        decorated = as_of(version)(loss)
        assert decorated.__name__ == "loss"


def test_largest_of_windows_and_its_own_ops() -> None:
    """A pool gives all to the first. The ops of jaxclamp keep their convention, within min_norm too."""

    def pooled(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, -jnp.inf, lax.max, (2,), (2,), "VALID").sum()

    x = jnp.zeros(4)
    assert jax.grad(as_of("torch 2.13")(pooled))(x).tolist() == [1, 0, 1, 0]
    assert jax.grad(min_norm(pooled))(x).tolist() == [0.5] * 4
    own = as_of("torch 2.13")(min_norm(lambda x: jnp.maximum(x, 0.0)))
    assert jax.grad(own)(0.0) == 0.0


def test_the_name_of_the_framework_may_be_left_out() -> None:
    assert jax.grad(as_of("2.13")(loss))(X).tolist() == jax.grad(as_of("torch 2.13")(loss))(X).tolist()
    assert jax.grad(as_of("0.10.2")(loss))(X).tolist() == jax.grad(as_of("jax 0.10.2")(loss))(X).tolist()


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no record": (
        lambda: as_of("jax 0.9"),
        ValueError,
        "as_of: there is no record of 'jax 0.9'; choose one of 'torch 2",
    ),
    "a function": (
        lambda: as_of(loss),
        TypeError,
        "as_of: version is <function loss.*; name a framework and its version",
    ),  # type: ignore[arg-type]
    "no function": (lambda: as_of("torch 2.13")(3.0), TypeError, r"as_of: fun is 3\.0; pass a function"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()
