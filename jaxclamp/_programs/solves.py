"""Linear solves, whose derivative is that of their operator: the choices in it are decided along a direction."""

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
    """How the choices in the operator of a `jax.lax.custom_linear_solve` fall; ``decided`` makes them in a program.

    The steps of the solver are not differentiated, so what they choose does not count.
    """
    parts = {name: part for name, part in eqn.params["jaxprs"]._asdict().items() if part is not None}
    operator = decided(jaxpr_as_fun(parts["matvec"]))
    solvers = {name: jaxpr_as_fun(part) for name, part in parts.items() if name in ("solve", "transpose_solve")}
    lengths = eqn.params["const_lengths"]._asdict()
    ends = dict(zip(lengths, itertools.accumulate(lengths.values()), strict=True))

    def known(name: str, operands: Arrays) -> Arrays:
        """What the part of that name reads beside the vector."""
        return operands[ends[name] - lengths[name] : ends[name]]

    def choice(_: Arrays, tangents: Arrays) -> Piece:
        moving = known("matvec", tangents)

        def piece(*operands: jax.Array) -> tuple[jax.Array, ...]:
            right = list(operands[ends["transpose_solve"] :])

            def entered(vector: Any) -> Any:
                at, along = (*known("matvec", operands), *vector), (*moving, *map(jnp.zeros_like, vector))
                return list(jax.jvp(operator, at, along)[0])

            def by(name: str) -> Callable[..., Any]:
                def solve(_: Any, right: Any) -> Any:
                    results = solvers[name](*known(name, operands), *right)
                    return results[: len(right)], results[len(right) :]

                return solve

            x, beside = lax.custom_linear_solve(
                entered,
                right,
                solve=by("solve"),
                transpose_solve=by("transpose_solve") if "transpose_solve" in parts else None,
                symmetric=parts.get("vecmat") is parts["matvec"],
                has_aux=True,
            )
            return (*x, *beside)

        return piece

    return choice
