"""What an eager call costs at 1,000 elements: every op beside jnp.clip, which is one dispatch too."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from jaxclamp import OPS, Op

X = jnp.linspace(-4.0, 4.0, 1000)


def call(op: Op) -> Callable[[], jax.Array]:
    """Return a call of ``op`` at 1,000 elements, with the other arguments of its fullest tie."""
    first, *constants = max(op.tie_points, key=len)
    x = X.reshape({0: (1000,), 1: (1000,), 2: (10, 100), 3: (1, 10, 100)}[np.ndim(first)])
    return lambda: op.function(x, *constants)


CALLS: dict[str, Callable[[], jax.Array]] = {
    "jax.numpy.clip": lambda: jnp.clip(X, 0.0, 6.0),
    "jax.nn.relu": lambda: jax.nn.relu(X),
    "jax.numpy.maximum": lambda: jnp.maximum(X, 0.0),
    "jax.numpy.max": lambda: jnp.max(X),
    **{name: call(op) for name, op in OPS.items()},
}


@pytest.mark.benchmark(group="eager call, 1,000 elements")
@pytest.mark.parametrize("name", CALLS)
def test_eager_call(benchmark: BenchmarkFixture, name: str) -> None:
    benchmark.pedantic(lambda: jax.block_until_ready(CALLS[name]()), rounds=200, iterations=50, warmup_rounds=10)
