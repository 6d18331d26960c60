"""Takes the branch of a `where` or `cond` that its condition has at the point, if the one entered is NaN there.

A condition that is on a tie holds as it does a small step along the direction. The branch of that side may not be
defined at the point itself. Of ``where(x == 0, 1, sin(y) / y)`` with ``y = where(x == 0, 1, x)``, the double where, a
step from 0 enters ``sin(0) / 0``. Then the other branch counts, as in JAX: 1, of slope 0.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var
from jax.extend.core import primitives as p

from jaxclamp._jax_versions import with_parts
from jaxclamp._programs.choices import chooses, jumps, norm_along_direction
from jaxclamp._rules.operands import is_floating
from jaxclamp._transforms.jaxprs import (
    WITH_BODIES,
    computed,
    equations,
    inlined,
    mapped_anew,
    opened_calls,
    with_bodies,
)


def with_defined_branches(jaxpr: Any) -> Any:
    """Return the program in which a `where` or `cond` takes the branch of the point if the one entered is NaN.

    So do those in bodies of the program, if their condition is computed in the same body.
    """
    made_by: dict[Any, JaxprEqn] = {}
    eqns: list[JaxprEqn] = []
    # The select of a `jnp.where` is in an inner jit, of which the condition comes from outside.
    for eqn in (new for call in jaxpr.eqns for new in opened_calls(call, "_where", "_piecewise")):
        as_it_is = eqn
        # A norm is decided as a whole, and known by its body.
        if eqn.primitive.name in WITH_BODIES - {"shard_map"} and not norm_along_direction(eqn):
            eqn = with_bodies(eqn, with_defined_branches)
        if _selects(eqn) and any(map(chooses, conditions := _conditions(eqn.invars[0], made_by))):
            eqns += _with_defined_branch(eqn, as_it_is, conditions, _is_guard(eqn, made_by))
        elif eqn.primitive.name == "shard_map":
            eqns += mapped_anew(eqn, with_defined_branches)
        else:
            eqns.append(eqn)
        made_by.update(dict.fromkeys(eqn.outvars, eqn))
    return with_parts(jaxpr, eqns=eqns)


def _selects(eqn: JaxprEqn) -> bool:
    """Return whether ``eqn`` selects by its first operand, a bool or an index, and one of its results is real."""
    # A branch of a ``cond`` is computed once more, which may have no effects, nor vary over devices.
    once = not eqn.effects and not jax.sharding.get_abstract_mesh().manual_axes
    selects = eqn.primitive is p.select_n_p or (eqn.primitive is p.cond_p and once)
    return selects and any(is_floating(var.aval) for var in eqn.outvars)


def _conditions(condition: Any, made_by: Mapping[Any, JaxprEqn]) -> list[JaxprEqn]:
    """Return the equations that make a condition out of floating point numbers, in their order."""
    conditions: list[JaxprEqn] = []
    made: set[Any] = set()

    def follow(atom: Any) -> None:
        eqn = None if isinstance(atom, Literal) or atom in made else made_by.get(atom)
        # A sign or a rounded number is discrete, too, though its dtype is not.
        if eqn is None or eqn.effects or not (all(map(_is_discrete, eqn.outvars)) or (chooses(eqn) and jumps(eqn))):
            return
        if eqn.primitive.name in WITH_BODIES and eqn.primitive is not p.jit_p:
            return
        for inner in eqn.invars:
            follow(inner)
        conditions.append(eqn)
        made.update(eqn.outvars)

    follow(condition)
    return conditions


def _is_discrete(var: Any) -> bool:
    return jnp.issubdtype(var.aval.dtype, jnp.integer) or var.aval.dtype == bool


def _is_guard(eqn: JaxprEqn, made_by: Mapping[Any, JaxprEqn]) -> bool:
    """Return whether ``eqn`` makes an operand of one branch of a mapped ``cond``: a constant in the other branches."""
    _, *cases = eqn.invars
    maker = made_by.get(cases[0]) if eqn.primitive is p.select_n_p and isinstance(cases[0], Var) else None
    return maker is not None and maker.primitive.name == "stop_gradient" and maker.invars == cases[1:]


def _with_defined_branch(
    eqn: JaxprEqn, as_it_is: JaxprEqn, conditions: Sequence[JaxprEqn], is_guard: bool
) -> list[JaxprEqn]:
    """Return ``eqn`` with the branch that the ``conditions`` have at the point, if the one that is entered is NaN.

    Say ``a = gt x 0;  c = select_n a 0 b`` with b = x log x, where x rises from 0. The step enters b, which is NaN. At
    the point ``gt x 0`` is False, and its branch 0 a number: so that is taken.

    A guard lets the gradient into both of these branches. Whether a branch is NaN is asked of ``as_it_is``, the
    equation before its bodies were rewritten. Else each nested ``cond`` would triple them.
    """
    made = {var for condition in conditions for var in condition.outvars}
    atoms = [atom for condition in conditions for atom in condition.invars if isinstance(atom, Var)]
    read = [atom for atom in atoms if atom not in made]
    has_jumps = any(chooses(inner) and jumps(inner) for inner in equations(eqn))

    def by_values(*compared: jax.Array) -> jax.Array:
        """Compute the condition at the point: numbers that do not move are compared by their values."""
        known: dict[Any, Any] = dict(zip(read, lax.stop_gradient(compared), strict=True))
        for maker in conditions:
            values = [atom.val if isinstance(atom, Literal) else known[atom] for atom in maker.invars]
            known.update(zip(maker.outvars, computed(maker)(*values), strict=True))
        condition: jax.Array = known[eqn.invars[0]]
        return condition

    def run(entered: jax.Array, *operands: jax.Array) -> list[jax.Array]:
        cases, compared = operands[: len(operands) - len(read)], operands[len(operands) - len(read) :]
        at_point = by_values(*compared)
        if is_guard:
            return _selected(eqn, entered | at_point, cases)
        still = lax.stop_gradient(cases)  # the last selection alone has a derivative

        def takes_the_other() -> jax.Array:
            entered_is_nan = _is_nan(as_it_is, entered, still)
            if has_jumps:  # a choice in the branch falls as at the point, or as a step from it, whichever is a number
                entered_is_nan &= _is_nan(as_it_is, entered, cases)
            return entered_is_nan & ~_is_nan(as_it_is, at_point, still)

        if eqn.primitive is p.select_n_p:
            takes = takes_the_other()
        else:  # a branch may be large
            takes = lax.cond(entered != at_point, takes_the_other, lambda: jnp.array(False))
        return _selected(eqn, jnp.where(takes, at_point, entered), cases)

    return inlined(run, eqn.replace(invars=[*eqn.invars, *read]))


def _selected(eqn: JaxprEqn, which: jax.Array, cases: Sequence[jax.Array]) -> list[jax.Array]:
    results = eqn.primitive.bind(which, *cases, **eqn.params)
    return results if eqn.primitive.multiple_results else [results]


def _is_nan(eqn: JaxprEqn, which: jax.Array, cases: Sequence[jax.Array]) -> jax.Array:
    """Return where a select is NaN, or whether a result of a ``cond`` has a NaN."""
    results = _selected(eqn, which, cases)
    if eqn.primitive is p.select_n_p:
        return jnp.isnan(results[0])
    return functools.reduce(jnp.logical_or, (jnp.any(jnp.isnan(x)) for x in results if is_floating(x)))
