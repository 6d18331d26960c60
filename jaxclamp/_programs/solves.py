"""Decides the choices in the operator of a linear solve along a direction.

A solve computes the x of ``A x = b``. If A and b move by dA and db, x moves by the dx of ``A dx = db - dA x``. So its
derivative needs that of the operator A, and A may choose: with ``A v = maximum(d, 1) * v`` at d = 1, dA is dd * v if d
rises, and 0 if d falls. The steps of the solver are not differentiated, so what they choose does not count, unless A
jumps: with ``A v = where(d > 0, 2, 1) * v`` at d = 0, the solver has to divide by 2 if d rises.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, jaxpr_as_fun

from jaxclamp._programs.choices import Arrays, Choice, Piece, chooses, jumps
from jaxclamp._transforms.jaxprs import equations


def operator_jumps(eqn: JaxprEqn) -> bool:
    """Return whether the operator of a `jax.lax.custom_linear_solve` has a choice in it whose result jumps."""
    operator = eqn.params["jaxprs"].matvec
    return any(chooses(inner) and jumps(inner) for outer in operator.eqns for inner in equations(outer))


def solved(eqn: JaxprEqn, decided: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Choice:
    """Return the choice of a `jax.lax.custom_linear_solve`; ``decided`` decides the choices in a program.

    The piece is the solve with another operator: each choice in it is decided as A moves along the tangents, whatever
    vector A is applied to. If A jumps, the functions that solve with it are decided, too; else they need no derivative,
    which one that calls a program of the host has not. JAX differentiates that solve as any.
    """
    parts = {name: part for name, part in eqn.params["jaxprs"]._asdict().items() if part is not None}
    decided_parts = ("matvec", "solve", "transpose_solve") if operator_jumps(eqn) else ("matvec",)
    programs = {name: jaxpr_as_fun(part) for name, part in parts.items()}
    lengths = eqn.params["const_lengths"]._asdict()
    ends = dict(zip(lengths, itertools.accumulate(lengths.values()), strict=True))

    def constants(name: str, operands: Arrays) -> Arrays:
        """Return what the part of that name reads besides the vector."""
        return operands[ends[name] - lengths[name] : ends[name]]

    def choice(_: Arrays, tangents: Arrays) -> Piece:
        def piece(*operands: jax.Array) -> tuple[jax.Array, ...]:
            right = list(operands[ends["transpose_solve"] :])  # b, behind the constants of all parts

            def entered(name: str, vector: Any) -> Any:
                point = (*constants(name, operands), *vector)
                if name not in decided_parts:
                    return list(programs[name](*point))
                # A moves, and the vector it is applied to does not: dA x is the derivative of A at a fixed x.
                direction = (*constants(name, tangents), *map(jnp.zeros_like, vector))
                return list(jax.jvp(decided(programs[name]), point, direction)[0])

            def solver(name: str) -> Callable[..., Any]:
                def solve(_: Any, right: Any) -> Any:
                    results = entered(name, right)
                    return results[: len(right)], results[len(right) :]

                return solve

            x, auxiliary = lax.custom_linear_solve(
                functools.partial(entered, "matvec"),
                right,
                solve=solver("solve"),
                transpose_solve=solver("transpose_solve") if "transpose_solve" in parts else None,
                symmetric=parts.get("vecmat") is parts["matvec"],  # by this alone JAX keeps that it was so
                has_aux=True,
            )
            return (*x, *auxiliary)

        return piece

    return choice
