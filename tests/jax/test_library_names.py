"""Functions that bear the names of JAX's own: `min_norm` and `ties` call them as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxclamp

LIBRARY_NAMES = (
    *("clip", "fmax", "fmin", "maximum", "minimum", "absolute", "max", "min", "relu", "relu6", "hard_tanh"),
    *(
        "leaky_relu",
        "elu",
        "selu",
        "celu",
        "hard_sigmoid",
        "hard_swish",
        "norm",
        "_where",
        "_reduce_max",
        "_reduce_min",
    ),
)
BODIES: dict[str, tuple[Callable[..., Any], Any]] = {
    "reduces all axes": (lambda x: jnp.max(x, keepdims=True), jnp.ones((2, 2))),
    "reduces all axes and an operand more": (lambda x, y: jnp.max(x, keepdims=True) * y, (jnp.ones((2, 2)), 2.0)),
    "sums all axes": (lambda x: jnp.sum(x, keepdims=True), jnp.ones((2, 2, 2))),
    "sums one axis of several": (lambda x: jnp.sum(x * x[:, None], axis=2), jnp.ones((2, 2))),
    "takes a random key": (lambda key, x: x + jax.random.uniform(key), (jax.random.key(0), jnp.ones(2))),
    "makes random keys": (lambda x: jax.random.split(jax.random.key(0)), jnp.ones(2)),
    "has no results": (lambda x: jax.debug.callback(lambda x: None, x), jnp.ones(2)),
    "has no operands": (lambda: jnp.zeros(2), ()),
    "has several results": (lambda x: (jnp.max(x, keepdims=True), jnp.maximum(x, 0), x), jnp.ones(2)),
    "is of integers": (lambda i: i + 1, jnp.arange(3)),
    "is of integers and floats": (lambda x, i: x[i], (jnp.arange(3.0), jnp.arange(2))),
    "is of complex numbers": (lambda z: z * 1j, jnp.ones(2, complex)),
    "is of no elements": (lambda x: x * 2, jnp.ones((0, 2))),
    "holds a constant array": (lambda x: x + np.arange(2.0, dtype=np.float32), jnp.ones(2)),
    "contracts axes": (lambda x, y: x @ y, (jnp.ones((2, 2)), jnp.ones((2, 2)))),
    "transposes": (lambda x, y: jnp.maximum(x.T, y), (jnp.ones((2, 2)), jnp.ones((2, 2)))),
    "loops": (lambda x: jax.lax.fori_loop(0, 2, lambda _, x: jnp.maximum(x, 0), x), jnp.ones(2)),
    "is another function inside": (lambda x: jax.jit(lambda x: jnp.max(x, keepdims=True))(x), jnp.ones((2, 2))),
}


QUICK = (
    *("reduces all axes", "sums all axes", "has no results", "has no operands", "is of integers"),
    *("has several results", "is of no elements", "holds a constant array", "is of complex numbers"),
)


@pytest.mark.parametrize(
    "body", [pytest.param(name, marks=[pytest.mark.thorough] * (name not in QUICK)) for name in BODIES]
)
def test_functions_with_the_names_of_a_library(body: str) -> None:
    """Whatever is in them, they are called as they are."""
    function, given = BODIES[body]
    arguments = given if isinstance(given, tuple) else (given,)

    def all_names(*arguments: Any) -> list[Any]:
        results = []
        for name in LIBRARY_NAMES:

            def named(*arguments: Any) -> Any:
                return function(*arguments)

            named.__name__ = named.__qualname__ = name
            results.append(jax.jit(named)(*arguments))
        return results

    expected = jax.jit(all_names)(*arguments)
    for found in (jax.jit(jaxclamp.min_norm(all_names))(*arguments), jaxclamp.ties(jax.jit(all_names))(*arguments)[0]):
        for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert got.dtype == want.dtype
            raw = [jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a for a in (got, want)]
            np.testing.assert_array_equal(*raw)
