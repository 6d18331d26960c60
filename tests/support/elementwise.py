"""How the tests look at elementwise ops: which operands they have, and which of them bend between their kinks."""

import functools
import itertools
from collections.abc import Callable

import jax

from jaxclamp import OPS, Op

ELEMENTWISE = [op for op in OPS.values() if op.family != "reduction"]


def operands(op: Op) -> list[str]:
    """Return the parameters that can be differentiated: those that are floats at some tie."""
    return [
        name
        for name, *values in zip(op.signature.parameters, *op.tie_points, strict=False)
        if any(isinstance(v, float) for v in values)
    ]


def valid_operands(op: Op) -> list[list[float]]:
    """Return the operands at the ties of ``op`` at which each has a value."""
    rows = [[value for value in tie if isinstance(value, float)] for tie in op.tie_points]
    return [row for row in rows if len(row) == len(operands(op))]


def active_sets(count: int) -> list[tuple[int, ...]]:
    """List the sets of ``count`` operands that may be active: one, some or all."""
    return [active for size in range(1, count + 1) for active in itertools.combinations(range(count), size)]


def of_numbers(op: Op) -> Callable[..., jax.Array]:
    """Return ``op`` as a function of many points at once, with one array for each operand.

    A vector of weights means channels to prelu, so that goes from point to point.
    """
    return jax.vmap(op.function) if op.name == "prelu" else op.function


def is_curved(op: Op) -> bool:
    """Say whether the slope depends on x, so that a reverse pass has to keep x as well."""
    return op.name in _curved()


@functools.cache
def _curved() -> frozenset[str]:
    """Find the names of curved ops, by one program for all."""

    @jax.jit
    def second_derivatives() -> dict[str, jax.Array]:
        # Not at the ties: at 0, hypot is a line.
        bounds = {op: [bound + 0.25 for bound in valid_operands(op)[0][1:]] for op in ELEMENTWISE}
        return {op.name: jax.grad(jax.grad(op.function))(-0.5, *bounds[op]) for op in ELEMENTWISE}

    return frozenset(name for name, derivative in second_derivatives().items() if derivative != 0)
