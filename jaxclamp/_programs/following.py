"""Which equations a choice depends on, along all paths of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from jax.extend.core import JaxprEqn, Var, jaxprs_in_params
from jax.extend.core import primitives as p

from jaxclamp._programs.choices import chooses


def without_choices_behind(jaxpr: Any, among: Callable[[JaxprEqn], bool]) -> list[JaxprEqn]:
    """The equations for which ``among`` holds, those in bodies too, on whose results no choice depends.

    A body depends in all on what any of its inputs depends on.
    """
    asked: list[JaxprEqn] = []
    chosen_by: set[int] = set()

    def results(jaxpr: Any, inputs: frozenset[int]) -> frozenset[int]:
        """Of which equations the results are, where the inputs are of those that are given."""
        sources: dict[Any, frozenset[int]] = dict.fromkeys(jaxpr.invars, inputs)

        def of(atoms: Iterable[Any]) -> frozenset[int]:
            return frozenset().union(*(sources.get(atom, frozenset()) for atom in atoms if isinstance(atom, Var)))

        for eqn in jaxpr.eqns:
            made_of = of(eqn.invars)
            if among(eqn):
                asked.append(eqn)
                made_of |= {id(eqn)}
            else:
                if chooses(eqn):
                    chosen_by.update(made_of)
                for body in jaxprs_in_params(eqn.params):
                    made_of |= results(body, made_of)
                    if eqn.primitive in (p.scan_p, p.while_p):  # what a step makes, the next one reads
                        made_of |= results(body, made_of)
            sources.update(dict.fromkeys(eqn.outvars, made_of))
        return of(jaxpr.outvars)

    results(jaxpr, frozenset())
    return [eqn for eqn in asked if id(eqn) not in chosen_by]
