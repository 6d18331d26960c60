"""How the tests look at elementwise ops: which operands they have, and which of them bend between their kinks."""

import inspect

import jax

from jaxclamp import OPS, Op

ELEMENTWISE = [op for op in OPS.values() if op.family != "reduction"]


def operands(op: Op) -> list[str]:
    """The parameters that can be differentiated: those that are floats at some tie."""
    names = list(inspect.signature(op.function).parameters)
    return [
        name for name, *values in zip(names, *op.tie_points, strict=False) if any(isinstance(v, float) for v in values)
    ]


def valid_operands(op: Op) -> list[list[float]]:
    """The ties of ``op`` at which all operands are given."""
    rows = [[value for value in tie if isinstance(value, float)] for tie in op.tie_points]
    return [row for row in rows if len(row) == len(operands(op))]


def is_curved(op: Op) -> bool:
    """Whether the slope depends on x, so that a reverse pass has to keep x as well."""
    _, *parameters = valid_operands(op)[0]
    return float(jax.grad(jax.grad(op.function))(-0.5, *parameters)) != 0
