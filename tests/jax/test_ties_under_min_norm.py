"""That `ties` and `count_ties` count what `min_norm` made as they count what it was, whichever is within."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxclamp
from jaxclamp import OPS, Op, min_norm, ties
from jaxclamp._shared.tie_cases import is_differentiable


def calls_at_ties(op: Op) -> tuple[Callable[..., Any], list[list[jax.Array]]]:
    """The op and its counterparts in JAX as one function of the arrays at each of the op's ties, and these arrays."""
    points = [dict(zip(op.signature.parameters, tie, strict=False)) for tie in op.tie_points]

    def function(*arrays: list[jax.Array]) -> list[Any]:
        results = []
        for point, values in zip(points, arrays, strict=True):
            given = dict(zip([name for name in point if is_differentiable(point[name])], values, strict=True))
            results += [op.function(**point | given)]
            takes = op.counterparts_in("jax") if op.family == "reduction" or None not in point.values() else ()
            results += [native(point | given) for native in takes if point.keys() <= native.parameters.keys()]
        return results

    return function, [[jnp.asarray(v, "float32") for v in point.values() if is_differentiable(v)] for point in points]


QUICK = ("clamp", "leaky_relu", "max_with_indices")


@pytest.mark.parametrize(
    "op", [pytest.param(op, id=op.name, marks=[pytest.mark.thorough] * (op.name not in QUICK)) for op in OPS.values()]
)
def test_what_min_norm_made_counts_as_before(op: Op) -> None:
    function, arrays = calls_at_ties(op)
    (_, before), (_, after) = ties(function)(*arrays), ties(min_norm(function))(*arrays)
    assert after == before
    assert before.tied or op.name == "celu"


def test_pools_that_min_norm_made_count_as_before() -> None:
    """With padding, with gaps, and with windows that are reduced as axes."""

    def pools(x: jax.Array) -> jax.Array:
        def largest(*window: Any) -> jax.Array:
            return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, *window).sum()

        several = [largest((2, 3), (1, 2), "SAME"), largest((1, 2), (1, 1), "VALID", None, (1, 3))]
        return several[0] + several[1] + largest((6, 6), (6, 6), "VALID")

    x = jnp.asarray(np.random.default_rng(0).integers(0, 3, (6, 6)), "float32")
    for form in (pools, jax.jit(pools)):
        (_, before), (_, after) = ties(form)(x), ties(min_norm(form))(x)
        assert after == before
        assert before.tied == 16


@pytest.mark.parametrize("transformed", [lambda f: f, jax.jit])
def test_min_norm_may_be_within_or_around_the_counting(transformed: Callable[..., Any]) -> None:
    """By hand: of the clip at 0 and of the slopes at 0 the smallest, of the two that tie for the maximum a half."""

    def loss(x: jax.Array) -> jax.Array:
        return jnp.clip(x, 0.0, 6.0).sum() + jax.nn.leaky_relu(x, 0.25).sum() + jnp.max(x)

    x = jnp.array([0.0, 1.0, 6.0, 6.0])
    orders = (jaxclamp.count_ties(min_norm(loss)), min_norm(jaxclamp.count_ties(loss)))
    for order in orders:
        gradient, counts = transformed(jax.grad(order, has_aux=True))(x)
        np.testing.assert_array_equal(gradient, [0.25, 2.0, 1.5, 1.5])
        assert [(line.op, line.tied) for line in counts.report().lines] == [
            ("amax", 1),
            ("clamp", 3),
            ("leaky_relu", 1),
        ]
