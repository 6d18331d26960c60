"""Every op, at every tie, for every set of active inputs, under every transformation: against the oracle."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from interop.parity import DTYPES, cases, definition, is_differentiable, round_to
from jaxclamp import OPS, Op

Arrays = dict[str, jax.Array]


def reverse(function: Callable[[Arrays], jax.Array], at: Arrays) -> Arrays:
    return jax.grad(function)(at)


def jitted(function: Callable[[Arrays], jax.Array], at: Arrays) -> Arrays:
    return jax.jit(jax.grad(jax.jit(function)))(at)


def forward(function: Callable[[Arrays], jax.Array], at: Arrays) -> Arrays:
    return jax.jacfwd(function)(at)


def batched(function: Callable[[Arrays], jax.Array], at: Arrays) -> Arrays:
    twice = jax.tree.map(lambda leaf: jnp.stack([leaf + 1, leaf]), at)
    return jax.tree.map(lambda leaf: leaf[1], jax.vmap(jax.grad(function))(twice))


def through_batch(function: Callable[[Arrays], jax.Array], at: Arrays) -> Arrays:
    def total(stacked: Arrays) -> jax.Array:
        return jax.vmap(function)(stacked)[0]

    twice = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1]), at)
    return jax.tree.map(lambda leaf: leaf[0], jax.grad(total)(twice))


def linearized(function: Callable[[Arrays], jax.Array], at: Arrays) -> Arrays:
    _, push = jax.linearize(function, at)
    (gradient,) = jax.linear_transpose(push, at)(jnp.ones((), jax.eval_shape(function, at).dtype))
    return gradient


TRANSFORMATIONS = (reverse, jitted, forward, batched, through_batch, linearized)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transformation", TRANSFORMATIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_definition_at_ties(op: Op, transformation: Callable[..., Arrays], dtype: str) -> None:
    wrong = []
    for arguments, active, inactive in cases(op):
        rounded = round_to(dtype, arguments)
        expected = definition(op, rounded, active)
        with jax.enable_x64(dtype == "float64"):
            given = {name: as_given(value, dtype, inactive) for name, value in rounded.items()}
            at = {name: jnp.asarray(rounded[name], dtype) for name in active}
            gradient = transformation(lambda at: op.function(**{**given, **at}).sum(), at)  # noqa: B023  # called here
        found = np.concatenate([np.asarray(gradient[name], np.float64).ravel() for name in active])
        if not np.allclose(found, expected, rtol=4 * float(jnp.finfo(dtype).eps), atol=1e-3):
            wrong.append(f"{arguments}, active {active}, inactive as {inactive}: {found}, by definition {expected}")
    assert not wrong, "\n".join(wrong)


def as_given(value: object, dtype: str, inactive: str) -> object:
    if not isinstance(value, np.ndarray):
        return value
    return value.item() if inactive == "numbers" else jnp.asarray(value, dtype)


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_second_derivative_at_ties_is_finite(op: Op) -> None:
    for arguments, active, _ in cases(op):
        at = {name: jnp.asarray(arguments[name]) for name in active}
        hessian = jax.hessian(lambda at: op.function(**{**arguments_as_arrays(arguments), **at}).sum())(at)  # noqa: B023
        assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(hessian)), (arguments, active)


def arguments_as_arrays(arguments: Mapping[str, object]) -> dict[str, object]:
    return {n: jnp.asarray(v) if is_differentiable(v) else v for n, v in arguments.items()}
