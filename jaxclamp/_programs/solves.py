"""Decides the choices in the operator of a linear solve along a direction.

A solve computes the x of ``A x = b``. If A and b move by dA and db, x moves by the dx of ``A dx = db - dA x``. So its
derivative needs that of the operator A, and A may choose: with ``A v = maximum(d, 1) * v`` at d = 1, dA is dd * v if d
rises, and 0 if d falls. The steps of the solver are not differentiated, so what they choose does not count, unless A
jumps: with ``A v = where(d > 0, 2, 1) * v`` at d = 0, the solver has to divide by 2 if d rises.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, jaxpr_as_fun

from jaxclamp._programs.choices import Arrays, Choice, Piece, has_jumps


def operator_jumps(eqn: JaxprEqn) -> bool:
    """Return whether the operator of a `jax.lax.custom_linear_solve` has a choice in it whose result jumps."""
    return any(map(has_jumps, eqn.params["jaxprs"].matvec.eqns))


def solved(eqn: JaxprEqn, decided: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Choice:
    """Return the choice of a `jax.lax.custom_linear_solve`; ``decided`` decides the choices in a program.

    The piece is the solve with another operator: each choice in it is decided as A moves along the tangents, whatever
    vector A is applied to. If A jumps, the functions that solve with it are decided, too; else they need no derivative,
    which one that calls a program of the host has not. JAX differentiates that solve as any.

    The equation has A and the solver as programs, its parts. Its operands are the constants of each, and then b. Say
    ``A v = maximum(d, 1) * v`` is symmetric, and is solved by ``b / maximum(d, 1)``::

        matvec d v      vecmat d v      solve d b      transpose_solve d b           operands d d d d b
    """
    parts = {name: part for name, part in eqn.params["jaxprs"]._asdict().items() if part is not None}
    decided_parts = ("matvec", "solve", "transpose_solve") if operator_jumps(eqn) else ("matvec",)
    lengths = eqn.params["const_lengths"]._asdict()
    ends = [*itertools.accumulate(lengths.values())]
    constants = {name: slice(end - lengths[name], end) for name, end in zip(lengths, ends, strict=True)}

    def entered(name: str, operands: Arrays, tangents: Arrays) -> Callable[[Arrays], list[Any]]:
        """Return the part of that name as a function of the vector, with the choices in it decided."""
        program, at, along = jaxpr_as_fun(parts[name]), operands[constants[name]], tangents[constants[name]]

        def of_vector(vector: Arrays) -> list[Any]:
            if name not in decided_parts:
                return list(program(*at, *vector))
            # A moves, and the vector it is applied to does not: dA x is the derivative of A at a fixed x.
            return list(jax.jvp(decided(program), (*at, *vector), (*along, *map(jnp.zeros_like, vector)))[0])

        return of_vector

    def choice(_: Arrays, tangents: Arrays) -> Piece:
        def piece(*operands: jax.Array) -> tuple[jax.Array, ...]:
            functions = {name: entered(name, operands, tangents) for name in parts}
            x, auxiliary = lax.custom_linear_solve(
                functions["matvec"],
                list(operands[ends[-1] :]),
                solve=_solver(functions["solve"]),
                transpose_solve=_solver(functions["transpose_solve"]) if "transpose_solve" in functions else None,
                symmetric=parts.get("vecmat") is parts["matvec"],  # by this alone JAX keeps that it was so
                has_aux=True,
            )
            return (*x, *auxiliary)

        return piece

    return choice


def _solver(function: Callable[[Arrays], list[Any]]) -> Callable[..., Any]:
    """Return the function of b as JAX takes it: it gets the operator, too, and returns x and the auxiliary results."""

    def solve(_: Any, right: Arrays) -> tuple[list[Any], list[Any]]:
        results = function(right)
        return results[: len(right)], results[len(right) :]

    return solve
