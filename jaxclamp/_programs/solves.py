"""Decides the choices in the operator of a linear solve along a direction.

A solve computes the x of ``A x = b``. If A and b move by dA and db, x moves by the dx of ``A dx = db - dA x``. So its
derivative needs that of the operator A, and A may choose: with ``A v = maximum(d, 1) * v`` at d = 1, dA is dd * v if d
rises, and 0 if d falls. The steps of the solver are not differentiated, so what they choose does not count.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, jaxpr_as_fun

from jaxclamp._programs.choices import Arrays, Choice, Piece


def solved(eqn: JaxprEqn, decided: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Choice:
    """Return the choice of a `jax.lax.custom_linear_solve`; ``decided`` decides the choices in a program.

    The piece is the solve with another operator, ``entered``: each choice in it is decided as A moves along the
    tangents, whatever vector A is applied to. JAX differentiates that solve as any.
    """
    parts = {name: part for name, part in eqn.params["jaxprs"]._asdict().items() if part is not None}
    operator = decided(jaxpr_as_fun(parts["matvec"]))
    solvers = {name: jaxpr_as_fun(part) for name, part in parts.items() if name in ("solve", "transpose_solve")}
    lengths = eqn.params["const_lengths"]._asdict()
    ends = dict(zip(lengths, itertools.accumulate(lengths.values()), strict=True))

    def constants(name: str, operands: Arrays) -> Arrays:
        """Return what the part of that name reads besides the vector."""
        return operands[ends[name] - lengths[name] : ends[name]]

    def choice(_: Arrays, tangents: Arrays) -> Piece:
        moving = constants("matvec", tangents)

        def piece(*operands: jax.Array) -> tuple[jax.Array, ...]:
            right = list(operands[ends["transpose_solve"] :])  # b, behind the constants of all parts

            def entered(vector: Any) -> Any:
                point = (*constants("matvec", operands), *vector)
                # A moves, and the vector it is applied to does not: dA x is the derivative of A at a fixed x.
                direction = (*moving, *map(jnp.zeros_like, vector))
                return list(jax.jvp(operator, point, direction)[0])

            def solver(name: str) -> Callable[..., Any]:
                def solve(_: Any, right: Any) -> Any:
                    results = solvers[name](*constants(name, operands), *right)
                    return results[: len(right)], results[len(right) :]

                return solve

            x, auxiliary = lax.custom_linear_solve(
                entered,
                right,
                solve=solver("solve"),
                transpose_solve=solver("transpose_solve") if "transpose_solve" in parts else None,
                symmetric=parts.get("vecmat") is parts["matvec"],
                has_aux=True,
            )
            return (*x, *auxiliary)

        return piece

    return choice
