"""Every op, at every tie, for every set of active inputs, under every transformation: against the oracle."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxclamp import OPS, Op
from jaxclamp._shared.tie_cases import DTYPES, cases, definitions, in_form, is_differentiable, round_to, total
from tests.support.representatives import represented, thorough

Arrays = dict[str, jax.Array]


def eager(function: Callable[[Arrays], jax.Array], at: Arrays) -> Arrays:
    return jax.grad(function)(at)


def reverse(function: Callable[[Arrays], jax.Array], at: Arrays) -> Arrays:
    return jax.grad(jax.jit(function))(at)


def forward(function: Callable[[Arrays], jax.Array], at: Arrays) -> Arrays:
    return jax.jacfwd(function)(at)


def batched(function: Callable[[Arrays], jax.Array], at: Arrays) -> Arrays:
    twice = jax.tree.map(lambda leaf: jnp.stack([leaf + 1, leaf]), at)
    return jax.tree.map(lambda leaf: leaf[1], jax.vmap(jax.grad(function))(twice))


def through_batch(function: Callable[[Arrays], jax.Array], at: Arrays) -> Arrays:
    def first(stacked: Arrays) -> jax.Array:
        return jax.vmap(function)(stacked)[0]

    twice = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1]), at)
    return jax.tree.map(lambda leaf: leaf[0], jax.grad(first)(twice))


def linearized(function: Callable[[Arrays], jax.Array], at: Arrays) -> Arrays:
    value, push = jax.linearize(function, at)
    (gradient,) = jax.linear_transpose(push, at)(jnp.ones_like(value))
    return gradient


@functools.cache
def expectations(op: Op, dtype: str) -> list[tuple[dict[str, Any], tuple[str, ...], np.ndarray]]:
    """(arguments, active ones, the gradient by definition) for every tie. Elementwise ties go in one array each."""
    groups: dict[Any, list[tuple[dict[str, Any], np.ndarray]]] = {}
    asked = [(round_to(dtype, arguments), active, inactive) for arguments, active, inactive in cases(op)]
    defined = definitions(op, [(arguments, active) for arguments, active, _ in asked])
    for (arguments, active, inactive), (_, gradient) in zip(asked, defined, strict=True):
        given = {n: v for n, v in in_form(arguments, active, inactive).items() if v is not None}
        constants = tuple((n, v) for n, v in given.items() if not isinstance(v, np.ndarray))
        shape = given["x"].shape
        groups.setdefault((active, tuple(given), constants, shape), []).append((given, gradient))
    found = []
    for (active, names, _, shape), members in groups.items():
        # An op on numbers maps over all its ties at once; but for prelu, in which a vector of weights means channels.
        together = shape == () and op.name != "prelu"
        for batch in [members] if together else [[member] for member in members]:
            first, _ = batch[0]
            arrays = [name for name in names if isinstance(first[name], np.ndarray)]
            stacked = {n: np.stack([given[n] for given, _ in batch]) if together else first[n] for n in arrays}
            expected = np.stack([gradient for _, gradient in batch], axis=-1)
            found.append(({**first, **stacked}, active, expected.ravel()))
    return found


EAGER = ("maximum", "elu", "max_with_indices")
"""Of each kind of rule the op whose steps take the least time to compile one by one."""
FORMS = [
    *((t, "float32") for t in (eager, reverse, forward, batched, through_batch, linearized)),
    *((t, dtype) for t in (reverse, forward) for dtype in DTYPES if dtype != "float32"),
]


def marks(op: Op, transformation: Callable[..., Arrays], dtype: str) -> list[pytest.MarkDecorator]:
    """What other files ask too is thorough: survey/test_parity.py all dtypes, test_transformations.py the rest."""
    if dtype != "float32" or transformation in (through_batch, linearized):
        return [pytest.mark.thorough]
    if transformation is eager and op.name not in EAGER:
        return [pytest.mark.thorough]
    return thorough(op.name) if transformation in (batched, reverse) else []


def at_ties(op: Op, dtype: str, transformation: Callable[..., Arrays]) -> list[Arrays]:
    """What ``transformation`` makes of ``op``, for each of the expectations; in one program, but for `eager`.

    Each by itself would take longer to compile than to run.
    """
    points = expectations(op, dtype)

    def all_at_once(arrays: list[Arrays]) -> list[Arrays]:
        found = []
        for (arguments, active, _), array in zip(points, arrays, strict=True):
            given = {**arguments, **array}
            at = {name: given[name] for name in active}
            found.append(transformation(lambda at: total(op.function(**{**given, **at})), at))  # noqa: B023  # called here
        return found

    with jax.enable_x64(dtype == "float64"):
        # As arguments of the program: XLA would compute with constants by itself, at compile time.
        arrays = [{n: jnp.asarray(v, dtype) for n, v in p[0].items() if isinstance(v, np.ndarray)} for p in points]
        return (all_at_once if transformation is eager else jax.jit(all_at_once))(arrays)


@pytest.mark.parametrize(
    ("op", "transformation", "dtype"),
    [
        pytest.param(op, *form, id=f"{op.name}-{form[0].__name__}-{form[1]}", marks=marks(op, *form))
        for op in OPS.values()
        for form in FORMS
    ],
)
def test_definition_at_ties(op: Op, transformation: Callable[..., Arrays], dtype: str) -> None:
    wrong = []
    gradients = at_ties(op, dtype, transformation)
    for (arguments, active, expected), gradient in zip(expectations(op, dtype), gradients, strict=True):
        found = np.concatenate([np.asarray(gradient[name], np.float64).ravel() for name in active])
        if not np.allclose(found, expected, rtol=4 * float(jnp.finfo(dtype).eps), atol=1e-3):
            wrong.append(f"{arguments}, active {active}: {found}, by definition {expected}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("op", represented(OPS.values()))
def test_second_derivative_at_ties_is_finite(op: Op) -> None:
    hessians = at_ties(op, "float32", lambda function, at: jax.hessian(function)(at))
    for (arguments, active, _), hessian in zip(expectations(op, "float32"), hessians, strict=True):
        assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(hessian)), (arguments, active)


def test_every_tie_is_asked_for() -> None:
    """The grouping above loses none."""
    for op in OPS.values():
        floats = [sum(is_differentiable(value) for value in tie) for tie in op.tie_points]
        sets = sum(2**count - 1 for count in floats)
        asked = list(cases(op))
        assert len({(str(arguments), active) for arguments, active, _ in asked}) == sets
        assert sum(len(expected) // len(active) for arguments, active, expected in expectations(op, "float32")) >= sets
