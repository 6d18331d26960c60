"""Takes the branch of a `where` that its condition has at the point, if the one that a step enters is NaN there.

A condition that is on a tie holds as it does a small step along the direction. The branch of that side may not be
defined at the point itself. Of ``where(x == 0, 1, sin(y) / y)`` with ``y = where(x == 0, 1, x)``, the double where, a
step from 0 enters ``sin(0) / 0``. Then the other branch counts, as in JAX: 1, of slope 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var
from jax.extend.core import primitives as p

from jaxclamp._jax_versions import with_parts
from jaxclamp._programs.choices import chooses, norm_along_direction
from jaxclamp._rules.operands import is_floating
from jaxclamp._transforms.jaxprs import WITH_BODIES, computed, inlined, mapped_anew, opened_calls, with_bodies


def with_defined_branches(jaxpr: Any) -> Any:
    """Return the program in which a `where` takes the branch of the point if the one that is entered is NaN.

    So do those in bodies of the program, if their condition is computed in the same body.
    """
    made_by: dict[Any, JaxprEqn] = {}
    eqns: list[JaxprEqn] = []
    # The select of a `jnp.where` is in an inner jit, of which the condition comes from outside.
    for eqn in (new for call in jaxpr.eqns for new in opened_calls(call, "_where")):
        if _selects(eqn) and any(map(chooses, conditions := _conditions(eqn.invars[0], made_by))):
            eqns += _with_defined_branch(eqn, conditions)
        elif eqn.primitive.name == "shard_map":
            eqns += mapped_anew(eqn, with_defined_branches)
        # A norm is decided as a whole, and known by its body.
        elif eqn.primitive.name in WITH_BODIES and not norm_along_direction(eqn):
            eqns.append(with_bodies(eqn, with_defined_branches))
        else:
            eqns.append(eqn)
        made_by.update(dict.fromkeys(eqn.outvars, eqn))
    return with_parts(jaxpr, eqns=eqns)


def _selects(eqn: JaxprEqn) -> bool:
    """Return whether ``eqn`` selects real numbers by its first operand, a bool or an index."""
    return eqn.primitive is p.select_n_p and is_floating(eqn.outvars[0].aval)


def _conditions(condition: Any, made_by: Mapping[Any, JaxprEqn]) -> list[JaxprEqn]:
    """Return the equations that make a condition out of floating point numbers, in their order."""
    conditions: list[JaxprEqn] = []
    made: set[Any] = set()

    def follow(atom: Any) -> None:
        eqn = None if isinstance(atom, Literal) or atom in made else made_by.get(atom)
        if eqn is None or eqn.primitive.name in WITH_BODIES or not all(map(_is_discrete, eqn.outvars)):
            return
        for inner in eqn.invars:
            follow(inner)
        conditions.append(eqn)
        made.update(eqn.outvars)

    follow(condition)
    return conditions


def _is_discrete(var: Any) -> bool:
    return jnp.issubdtype(var.aval.dtype, jnp.integer) or var.aval.dtype == bool


def _with_defined_branch(eqn: JaxprEqn, conditions: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """Return ``eqn`` with the branch that the ``conditions`` have at the point, if the one that is entered is NaN."""
    made = {var for condition in conditions for var in condition.outvars}
    atoms = [atom for condition in conditions for atom in condition.invars if isinstance(atom, Var)]
    read = [atom for atom in atoms if atom not in made]
    count = len(eqn.invars)

    def run(holds: jax.Array, *operands: jax.Array) -> jax.Array:
        cases, compared = operands[: count - 1], operands[count - 1 :]
        # Numbers that do not move are compared by their values.
        known: dict[Any, Any] = dict(zip(read, lax.stop_gradient(compared), strict=True))
        for condition in conditions:
            values = [atom.val if isinstance(atom, Literal) else known[atom] for atom in condition.invars]
            known.update(zip(condition.outvars, computed(condition)(*values), strict=True))
        at_the_point = known[eqn.invars[0]]
        # Only the last selection has a derivative.
        is_nan = [jnp.isnan(case) for case in lax.stop_gradient(cases)]
        takes_the_other = lax.select_n(holds, *is_nan) & ~lax.select_n(at_the_point, *is_nan)
        return lax.select_n(jnp.where(takes_the_other, at_the_point, holds), *cases)

    return inlined(run, eqn.replace(invars=[*eqn.invars, *read]))
