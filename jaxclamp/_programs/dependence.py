"""Finds the equations on which no choice depends, and those that stand still, along any path of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Var, jaxprs_in_params
from jax.extend.core import primitives as p

from jaxclamp._jax_versions import scan_sizes
from jaxclamp._programs.choices import chooses
from jaxclamp._transforms.jaxprs import WITH_BODIES


def without_choices_behind(jaxpr: Any, is_candidate: Callable[[JaxprEqn], bool]) -> list[JaxprEqn]:
    """Return the equations for which ``is_candidate`` holds, those in bodies too, on whose results no choice depends.

    Say f and g are candidates in ``y = f(x); z = g(x); w = max(y, 0) + z``. Each variable is followed back to the
    candidates that it comes from: y to f, z to g. The choice ``max`` reads y, so f is out, and g is returned.

    All of a body counts as coming from what any of its inputs comes from.
    """
    candidates: list[JaxprEqn] = []
    decisive: set[int] = set()  # the ids of candidates on which a choice depends; equations are not hashable

    def results(jaxpr: Any, inputs: frozenset[int]) -> frozenset[int]:
        """Return the candidates that the results of ``jaxpr`` come from, where its inputs come from ``inputs``."""
        sources: dict[Any, frozenset[int]] = dict.fromkeys(jaxpr.invars, inputs)

        def of(atoms: Iterable[Any]) -> frozenset[int]:
            return frozenset().union(*(sources.get(atom, frozenset()) for atom in atoms if isinstance(atom, Var)))

        for eqn in jaxpr.eqns:
            comes_from = of(eqn.invars)
            if is_candidate(eqn):
                candidates.append(eqn)
                comes_from |= {id(eqn)}
            else:
                if chooses(eqn):
                    decisive.update(comes_from)
                for body in jaxprs_in_params(eqn.params):
                    comes_from |= results(body, comes_from)
                    # What a step makes, the next one reads. Twice is enough: by then the inputs come from all of it.
                    if eqn.primitive in (p.scan_p, p.while_p):
                        comes_from |= results(body, comes_from)
            sources.update(dict.fromkeys(eqn.outvars, comes_from))
        return of(jaxpr.outvars)

    results(jaxpr, frozenset())
    return [eqn for eqn in candidates if id(eqn) not in decisive]


def standing_still(jaxpr: Any, moves: Sequence[bool]) -> dict[int, JaxprEqn]:
    """Return the equations, by their ids, that read nothing that moves, those in bodies too.

    ``moves`` says which inputs do; integers and constants do not. Where a loop reads what moves, all that it carries
    does. A body that several equations share moves if it does in one of them.
    """
    seen: dict[int, JaxprEqn] = {}
    moving: set[int] = set()

    def look(jaxpr: Any, moves: Sequence[bool]) -> None:
        moved = {var for var, does in zip(jaxpr.invars, moves, strict=True) if does}
        for eqn in jaxpr.eqns:
            seen[id(eqn)] = eqn
            reads = [isinstance(atom, Var) and atom in moved for atom in eqn.invars]
            if any(reads):
                moving.add(id(eqn))
                moved.update(var for var in eqn.outvars if jnp.issubdtype(var.aval.dtype, jnp.inexact))
            for body in jaxprs_in_params(eqn.params):
                inputs = [any(reads)] * len(body.invars)
                if eqn.primitive.name in WITH_BODIES and eqn.primitive is not p.while_p:
                    inputs = reads[len(reads) - len(body.invars) :]  # all but the condition of a ``cond``
                if eqn.primitive is p.scan_p:
                    known, carried = scan_sizes(eqn)
                    inputs[known : known + carried] = [any(reads)] * carried
                look(body, inputs)

    look(jaxpr, moves)
    return {key: eqn for key, eqn in seen.items() if key not in moving}
