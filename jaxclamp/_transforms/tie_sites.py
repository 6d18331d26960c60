"""Finds the equations of a jaxpr that can tie, and says which of the elements they compute are on a tie."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.extend.core import primitives as p

from jaxclamp._jax_versions import with_parts
from jaxclamp._rules.operands import is_floating
from jaxclamp._shared.tie_report import MET_INFINITY, Site
from jaxclamp._transforms.jaxprs import WITH_BODIES, equations
from jaxclamp._transforms.recognition import name_of_jaxclamp_op, recognized
from jaxclamp._transforms.source_lines import is_of_derivative, is_transposed, place, scopes
from jaxclamp._transforms.undecided import UNDECIDED


class Counter(NamedTuple):
    """What is counted at one equation: ``on_tie`` says which elements are tied, by the inputs of ``reads``.

    That is the equation itself, or the comparison by which it selects.
    """

    site: Site
    on_tie: Callable[..., jax.Array]
    reads: JaxprEqn


class TieSites:
    """Finds the counters of a program. Equations are shown to it in their order, those of bodies too."""

    def __init__(self, met_infinity: bool) -> None:
        self._looks_at_products = met_infinity
        self._producers: dict[Any, JaxprEqn] = {}
        """Maps a variable to the equation that computes it."""
        self._counted: set[Any] = set()
        """The operands of calls that were counted: a select by one of them belongs to the derivative of that call."""

    def counter(self, eqn: JaxprEqn) -> Counter | None:
        """Return what is to be counted at ``eqn``, or None; then its bodies are looked into."""
        self._producers.update(dict.fromkeys(eqn.outvars, eqn))
        if is_passed_over(eqn):
            return None
        op = recognized(eqn)
        if name := name_of_jaxclamp_op(eqn) or (op.name if op else ""):
            if eqn.primitive in (p.custom_jvp_call_p, p.jit_p):
                self._counted.update(atom for atom in eqn.invars if isinstance(atom, Var))
            return Counter(_site(eqn, name), op.on_tie if op else _on_tie_of_reduction(eqn), eqn)
        if comparison := self._suspected(eqn):
            return Counter(_site(eqn, "select", suspect=True), jnp.equal, comparison)
        if (on_jump := SUSPECTS.get(eqn.primitive.name)) and not _never_jumps(eqn):
            return Counter(_site(eqn, eqn.primitive.name, suspect=True), on_jump, eqn)
        # An op in a program that is not looked into, as of another library's primitive, cannot be counted.
        if eqn.primitive.name not in _ENTERED and any(map(recognized, equations(eqn))):
            return Counter(_site(eqn, eqn.primitive.name, suspect=True), _nowhere, eqn)
        if self._looks_at_products and (met := _PRODUCTS_WITH_INFINITY.get(eqn.primitive)) and is_transposed(eqn):
            return Counter(_site(eqn, MET_INFINITY, suspect=True), met, eqn)
        return None

    def _suspected(self, eqn: JaxprEqn) -> JaxprEqn | None:
        """Return the comparison by which ``eqn`` selects, if it looks like a kink written by hand.

        Then it compares numbers, and a branch is one of these numbers or is computed of one. ``where(x > 0, x, 0)`` is
        such a select, and ``where(x > 0, -x, 0)``; ``where(x > 0, y, 0)`` is none, since x is in no branch.
        """
        if eqn.primitive is not p.select_n_p and eqn.params.get("name") != "_where":
            return None
        if not eqn.invars:  # what partial evaluation leaves of a select
            return None
        predicate, *branches = eqn.invars
        comparison = None if isinstance(predicate, Literal) else self._producers.get(predicate)
        if comparison is None or comparison.primitive not in (p.gt_p, p.ge_p, p.lt_p, p.le_p):
            return None
        branches = [branch for branch in branches if isinstance(branch, Var)]
        makers = [self._producers[branch] for branch in branches if branch in self._producers]
        # A maker that selects as well is the first half of a select that was differentiated.
        atoms = [atom for maker in makers if maker.params.get("name") != "_where" for atom in maker.invars]
        inputs = {*branches, *(atom for atom in atoms if isinstance(atom, Var))}
        compared: list[Any] = [atom for atom in comparison.invars if isinstance(atom, Var)]
        if self._counted.issuperset(compared):  # the derivative of that function, such as the one of jax.nn.relu
            return None
        compares_floats = all(is_floating(atom.aval) for atom in compared)
        return comparison if compares_floats and not inputs.isdisjoint(compared) else None


def is_passed_over(eqn: JaxprEqn) -> bool:
    """Return whether ``eqn`` and its bodies count nothing: it belongs to an op that was counted, or is a repetition."""
    is_repeated_by_checkpoint = bool(eqn.params.get("differentiated"))  # set where a reverse pass computes again
    return is_repeated_by_checkpoint or is_of_derivative(eqn)


def _site(eqn: JaxprEqn, op: str, *, suspect: bool = False) -> Site:
    """Return where the ties of ``eqn`` are counted: at its line of the source, for this op, in its module."""
    return (*place(eqn), op, suspect, scopes(eqn))


def _on_tie_of_reduction(eqn: JaxprEqn) -> Callable[..., jax.Array]:
    """Return the function of the inputs of ``eqn``, a call of a reduction of jaxclamp, that says where it is on a tie.

    A reduction has parameters that are no inputs: so ties are counted at the reduction in its body.
    """
    body = eqn.params["call_jaxpr"]
    for k, inner in enumerate(body.eqns):
        if inner.primitive in _REDUCTIONS and (reduction := recognized(inner)):
            # Without the reduction itself: nothing would read it, and JAX has no derivative of pmax.
            before = jaxpr_as_fun(with_parts(body, eqns=body.eqns[:k], outvars=inner.invars))
            return lambda *operands: reduction.on_tie(*before(*operands))
    # It reduced a scalar, or integers, where there is nothing to choose.
    return lambda *operands: jnp.zeros(eqn.outvars[0].aval.shape, bool)  # type: ignore[attr-defined]


_REDUCTIONS = (p.reduce_max_p, p.reduce_min_p, p.pmax_p, p.pmin_p)


def _never_jumps(eqn: JaxprEqn) -> bool:
    """Say whether ``eqn`` is of integers, as bits in `jax.random`, or keeps all bits, as `jax.checkpoint` does."""
    operand: Any = eqn.invars[0].aval if eqn.invars else None
    if eqn.primitive is p.reduce_precision_p:
        info = jnp.finfo(operand.dtype)
        return eqn.params == {"exponent_bits": info.nexp, "mantissa_bits": info.nmant}
    return eqn.primitive in (p.bitcast_convert_type_p, p.rem_p) and not is_floating(operand)


def _nowhere(*operands: jax.Array) -> jax.Array:
    """Return False for each element of the first operand: where a suspect jumps is not known."""
    return jnp.zeros(operands[0].shape if operands else (), bool)


_ENTERED = WITH_BODIES | {"custom_jvp_call", "scatter-max", "scatter-min"}
"""Primitives with a program inside that counts, or whose derivative does not come from it."""
_PRODUCTS_WITH_INFINITY: dict[Any, Callable[..., jax.Array]] = {
    p.mul_p: lambda x, y: ((x == 0) & ~jnp.isfinite(y)) | (~jnp.isfinite(x) & (y == 0)),
    p.div_p: lambda x, y: (x == 0) & ((y == 0) | jnp.isnan(y)),
}
"""Maps a product to the function that says where one factor is 0, and the other is not finite.

A quotient is the product of x and 1 / y, which is not finite where y is 0 or NaN."""

SUSPECTS: dict[str, Callable[..., jax.Array]] = {
    "floor": lambda x: x == jnp.floor(x),
    "ceil": lambda x: x == jnp.floor(x),
    "round": lambda x: jnp.abs(x) - jnp.floor(jnp.abs(x)) == 0.5,  # of x itself it rounds to a half just above -0.5
    # At x = 0 the remainder passes through 0.
    "rem": lambda x, y: (lax.rem(x, y) == 0) & (x != 0),
    "atan2": lambda y, x: (y == 0) & (x < 0),
    "bitcast_convert_type": lambda x: x == 0,  # as of jnp.signbit and jnp.copysign
    **dict.fromkeys((*UNDECIDED, "custom_linear_solve"), _nowhere),
}
"""Maps a primitive that jumps, or is not looked into, to the function that says where it jumps, if that is known."""
