"""Finds the equations on which no choice depends, and those that stand still, along any path of a program."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Var, jaxprs_in_params
from jax.extend.core import primitives as p

from jaxclamp._jax_versions import scan_sizes, with_parts
from jaxclamp._programs.choices import chooses
from jaxclamp._transforms.jaxprs import WITH_BODIES, same, with_bodies


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
                if chooses(eqn) and not _asks_for_nan(eqn):
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


def _asks_for_nan(eqn: JaxprEqn) -> bool:
    """Return whether a number is compared with itself, as by `jnp.isnan`: the direction decides nothing there."""
    return eqn.primitive in (p.eq_p, p.ne_p) and eqn.invars[0] is eqn.invars[1]


def unread(jaxpr: Any) -> set[Any]:
    """Return the variables of ``jaxpr``, those of bodies too, that no equation reads, and no result that is read.

    The eigenvectors in ``jnp.linalg.eigvalsh`` are one: the inner ``jit`` returns them, and nothing reads that result.
    """
    made: set[Any] = set()
    read: set[Any] = set()

    def follow(jaxpr: Any, results: Iterable[Any]) -> None:
        read.update(atom for atom in results if isinstance(atom, Var))
        for eqn in reversed(jaxpr.eqns):
            made.update(eqn.outvars)
            read.update(atom for atom in eqn.invars if isinstance(atom, Var))
            for body in jaxprs_in_params(eqn.params):
                # Of any other equation all results of a body count as read, as a loop reads them in its next step.
                of_call = itertools.compress(body.outvars, [var in read for var in eqn.outvars])
                follow(body, of_call if eqn.primitive is p.jit_p else body.outvars)

    follow(jaxpr, jaxpr.outvars)
    return made - read


def parted_by_motion(
    jaxpr: Any, moves: Sequence[bool], is_candidate: Callable[[JaxprEqn], bool]
) -> tuple[Any, dict[int, JaxprEqn]]:
    """Return the program, and by their ids the candidates in it, those in bodies too, that read nothing that moves.

    ``moves`` says which inputs do; integers, constants and what ``stop_gradient`` returns do not. A body may stand
    still in one of the equations that share it, and move in the others. So these candidates are copies, in copies of
    the bodies that have them. Say x alone moves, and the body takes an ``abs`` of its second input::

        b = jit[body] x c        b = jit[copy] x c        its ``abs`` is returned
        d = jit[body] x x        d = jit[body] x x
    """
    still: dict[int, JaxprEqn] = {}

    @functools.cache  # a body that occurs twice stays one object, which JAX compiles once
    def parted(jaxpr: Any, moves: tuple[bool, ...]) -> tuple[Any, list[bool]]:
        """Return the program, and which of its results move."""
        moving = {var for var, does in zip(jaxpr.invars, moves, strict=True) if does}

        def move(atoms: Iterable[Any]) -> list[bool]:
            return [isinstance(atom, Var) and atom in moving for atom in atoms]

        eqns = []
        for eqn in jaxpr.eqns:
            reads = move(eqn.invars)
            results = [any(reads) and eqn.primitive.name != "stop_gradient"] * len(eqn.outvars)
            if any(reads):
                # The body of a ``while``, which has no reverse mode, counts as moving.
                if eqn.primitive.name in WITH_BODIES and eqn.primitive is not p.while_p:
                    eqn, results = entered(eqn, reads)
            elif is_candidate(eqn):
                eqn = eqn.replace()
                still[id(eqn)] = eqn
            eqns.append(eqn)
            pairs = zip(eqn.outvars, results, strict=True)
            moving.update(var for var, does in pairs if does and jnp.issubdtype(var.aval.dtype, jnp.inexact))
        return jaxpr if same(eqns, jaxpr.eqns) else with_parts(jaxpr, eqns=eqns), move(jaxpr.outvars)

    def entered(eqn: JaxprEqn, reads: list[bool]) -> tuple[JaxprEqn, list[bool]]:
        """Return ``eqn`` with its bodies parted, and which of its results move."""
        moved_by_body: list[list[bool]] = []

        def change(body: Any) -> Any:
            inputs = reads[len(reads) - len(body.invars) :]  # all but the condition of a ``cond``
            body, moved = parted(body, tuple(inputs))
            moved_by_body.append(moved)
            return body

        new = with_bodies(eqn, change)
        results = [any(in_bodies) for in_bodies in zip(*moved_by_body, strict=True)]
        if eqn.primitive is p.scan_p:
            of_constants, of_carry = scan_sizes(eqn)
            end = of_constants + of_carry
            carry = [a or b for a, b in zip(reads[of_constants:end], results, strict=False)]
            reads_later = [*reads[:of_constants], *carry, *reads[end:]]
            if reads_later != reads:  # what a step makes, the next one reads
                return entered(eqn, reads_later)
        return new, results

    return parted(jaxpr, tuple(moves))[0], still
