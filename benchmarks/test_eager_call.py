"""What an eager call costs at 1,000 elements: every op beside jnp.clip, which is one dispatch too."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from interop.parity import is_differentiable
from jaxclamp import OPS, Op

X = jnp.linspace(-4.0, 4.0, 1000)


def constants(op: Op) -> list[Any]:
    """The arguments after x at the first tie that gives them all."""
    return list(max(op.ties, key=len)[1:])


def x_for(op: Op) -> jax.Array:
    tied = np.ndim(max(op.ties, key=len)[0])
    assert is_differentiable(op.ties[0][0])
    return X.reshape((1,) * max(0, tied - 2) + ((10, 100) if tied > 1 else (1000,)))


CALLS: dict[str, Callable[[], jax.Array]] = {
    "jax.numpy.clip": lambda: jnp.clip(X, 0.0, 6.0),
    "jax.nn.relu": lambda: jax.nn.relu(X),
    "jax.numpy.maximum": lambda: jnp.maximum(X, 0.0),
    **{name: lambda op=op: op.function(x_for(op), *constants(op)) for name, op in OPS.items()},
}


@pytest.mark.benchmark(group="eager call, 1,000 elements")
@pytest.mark.parametrize("name", CALLS)
def test_eager_call(benchmark: BenchmarkFixture, name: str) -> None:
    benchmark(lambda: jax.block_until_ready(CALLS[name]()))
