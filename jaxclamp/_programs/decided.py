"""Decides the choices of a JAX program: rewrites it so that each is decided by the tangents of forward mode.

Most choices are primitives, for which `jaxclamp._programs.choices` has rules. Here are the calls around them: functions
with rules of their own, loops whose condition chooses, and what is opened, left as it is or warned of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.extend.core import primitives as p

from jaxclamp._jax_versions import expanded, high_level, is_derivative_of_root
from jaxclamp._programs.choices import chooses, decided, entering, has_jumps, jumps, norm_along_direction
from jaxclamp._programs.constant_factors import constant_beside_0
from jaxclamp._programs.defined_branches import with_defined_branches
from jaxclamp._programs.dependence import parted_by_motion, unread, without_choices_behind
from jaxclamp._programs.eigenvalues import values_along_direction
from jaxclamp._programs.open_primitives import opened
from jaxclamp._programs.ranges import has_slopes_without_bound
from jaxclamp._programs.solves import operator_jumps, solved
from jaxclamp._rules.operands import is_floating
from jaxclamp._transforms.jaxprs import (
    WITH_BODIES,
    Descend,
    computed,
    equations,
    inlined,
    moved_on,
    needed,
    transformed,
)
from jaxclamp._transforms.source_lines import place
from jaxclamp._transforms.sums import norms_as_calls, of_logaddexp, with_primitives_of_ops, with_slopes_of_logsumexp
from jaxclamp._transforms.undecided import ASKS_FOR_ITSELF, NOT_ENTERED, STRAIGHT_THROUGH, UNDECIDED, warn

P = ParamSpec("P")
R = TypeVar("R")


def _slope(fun: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """Return how the results of ``fun`` move, by forward mode."""
    return jax.jvp(fun, primals, tangents)[1]


def _slope_by_pullback(fun: Callable[..., Any], tangents: Any, *primals: Any) -> Any:
    """Return how the floats that ``fun`` returns move as its pullback says: the transpose of that is the derivative."""

    def floats(*operands: Any) -> dict[int, Any]:
        return {i: y for i, y in enumerate(fun(*operands)) if jnp.issubdtype(y.dtype, jnp.inexact)}

    results, pull = jax.vjp(floats, *primals)
    (slopes,) = jax.linear_transpose(pull, results)(tuple(tangents))
    return slopes


class DecidedProgram(Generic[P, R]):
    """A function whose choices are decided by the tangents in forward mode, for one ``run``, of which it keeps notes.

    Each call makes its own: another thread, or ``fun`` itself, may ask for the same gradient meanwhile.
    """

    def __init__(self, fun: Callable[P, R], within: frozenset[str] = frozenset(), for_gradient: bool = False) -> None:
        self._fun = fun
        self._for_gradient = for_gradient
        """Whether the tangents only decide choices, so that no derivative of them is needed."""
        self._within = within
        """The functions in whose ``custom_jvp`` rules ``fun`` is called, as text: by these the recursion ends."""
        self.moves: Sequence[bool] = ()
        """Of each array among the arguments, whether it moves; empty if all do."""
        # These are known once ``run`` has been called, since it is then that the function is traced.
        self._is_discrete = False
        self.has_slopes_without_bound = False
        self._without_choices_behind: list[JaxprEqn] = []
        self._standing_still: dict[int, JaxprEqn] = {}
        self._unread: set[Any] = set()
        self.run: Callable[P, R] = transformed(fun, self._replace, self._prepared)

    def result(self, result: R, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what the function returns, where ``run`` has returned ``result``.

        They differ if some choice has a discrete result, by which ``run`` takes another branch.
        """
        return self._fun(*args, **kwargs) if self._is_discrete else result

    def _prepared(self, jaxpr: Any) -> Any:
        """Return the program that is to be rewritten, and note what derivatives of it have to know.

        It lacks the equations that no result needs: in a derivative rule, those that only compute the value. Norms of
        several equations are calls in it.
        """
        jaxpr = needed(jaxpr)
        self.has_slopes_without_bound |= has_slopes_without_bound(jaxpr)
        jaxpr = norms_as_calls(with_slopes_of_logsumexp(with_primitives_of_ops(jaxpr)))
        self._without_choices_behind = without_choices_behind(jaxpr, self._moves_by_its_body)
        # Of finite numbers and slopes no branch is NaN. A derivative rule is linear in its tangents, and a look at them
        # would not be.
        if self.has_slopes_without_bound and not self._within:
            jaxpr = with_defined_branches(jaxpr)
        moves = self.moves or [True] * len(jaxpr.invars)
        jaxpr, self._standing_still = parted_by_motion(jaxpr, moves, _is_replaced)
        self._unread = unread(jaxpr)
        return jaxpr

    def _moves_by_its_body(self, eqn: JaxprEqn) -> bool:
        """Return whether ``eqn`` calls a function with a rule that forward mode cannot take, or that might never end.

        A ``custom_vjp`` has no rule for forward mode. Rules do not end where one calls its own function, or another one
        each time: in JAX 0.12 the rule of the Bessel function ``i0`` asks for ``i1``, and that of ``i1`` for a next
        one. So no rule is taken within itself, nor within a rule that is in a rule.
        """
        if eqn.primitive is p.custom_vjp_call_p:
            return True
        return _has_own_rule(eqn) and (len(self._within) >= 2 or _function(eqn) in self._within)

    def _replace(self, eqn: JaxprEqn, descend: Descend) -> list[JaxprEqn]:
        # It is smooth: what it and its rule choose, for the sake of large numbers and infinities, needs no deciding.
        if smooth := of_logaddexp(eqn):
            return smooth
        if id(eqn) in self._standing_still:
            # Another derivative, around this one, may move it: of a choice that is decided here it has no transpose.
            return [eqn]
        # A condition without equations is the bool that a rewritten loop carries: rewriting that again would not end.
        if eqn.primitive is p.while_p and eqn.params["cond_jaxpr"].eqns:
            carrying_the_condition = inlined(_carrying_the_condition(eqn), eqn)
            return [new for inner in carrying_the_condition for new in self._replace(inner, descend)]
        function = self._along_direction(eqn)
        return descend(eqn) if function is None else inlined(function, eqn)

    def _along_direction(self, eqn: JaxprEqn) -> Callable[..., Any] | None:
        """Return what ``eqn`` computes, with its derivative along the direction; None if its bodies have that alone.

        The first that fits counts. A norm, or x log y, may be a custom_jvp: so they come before functions with rules.
        """
        if function := norm_along_direction(eqn) or constant_beside_0(eqn) or values_along_direction(eqn, self._unread):
            return function
        if self._moves_by_its_body(eqn):
            return self._moving(eqn)
        if _has_own_rule(eqn):
            return _with_own_rule(eqn, self._within | {_function(eqn)}, self._moved)
        if self._for_gradient and eqn.primitive in _DIFFERENTIATED_ONCE:
            return _with_constant_tangent(eqn)
        if reason := UNDECIDED.get(eqn.primitive.name):
            return _warned_of(eqn, reason)
        if eqn.primitive is p.linear_solve_p:
            self._is_discrete |= operator_jumps(eqn)
            # Unless the operator jumps, the piece calls the solver as it is, and its results are those of ``eqn``. To
            # keep these beside it would read the right-hand side as a constant, of which JAX has no transpose where
            # that is a tangent.
            return entering(eqn, solved(eqn, self._decided), with_jumps=True)
        if program := opened(eqn):
            decided_inside = self._decided(program)
            self._is_discrete = True  # what is inside may jump
            return entering(eqn, lambda *_: decided_inside, with_jumps=True)
        if chooses(eqn):
            self._is_discrete |= jumps(eqn)
            return decided(eqn)
        is_entered = eqn.primitive.name in WITH_BODIES or not any(map(chooses, equations(eqn)))
        return None if is_entered else _warned_of(eqn, NOT_ENTERED)

    def _decided(self, program: Callable[..., Any]) -> Callable[..., Any]:
        return transformed(program, self._replace)

    def _moved(self, fun: Callable[..., Any], primals: Any, tangents: Any, slope: Callable[..., Any] = _slope) -> Any:
        """Return how the result of ``fun`` moves, by forward mode or as another ``slope`` says.

        Unless that is a result, it has no derivative: so a kernel, or a callback in a rule, needs no second one.
        """
        if self._for_gradient:
            primals, tangents = jax.lax.stop_gradient((primals, tangents))
        return slope(fun, primals, tangents)

    def _moving(self, eqn: JaxprEqn) -> Callable[..., Any]:
        """Return a call of a function with its own rule; in forward mode, the function's body is differentiated.

        Where that stands still between jumps, as one that rounds or bisects, it moves as the author's rule says. In
        reverse mode the rule counts everywhere.
        """
        call = computed(eqn)
        body = self._decided(expanded(eqn) or jaxpr_as_fun(eqn.params["call_jaxpr"]))
        moving = jax.custom_jvp(call)
        matters = not any(eqn is candidate for candidate in self._without_choices_behind)
        by_rule = self._by_rule(eqn)

        # What stands still gets no tangent, as in JAX: a rule in it may refuse any.
        @functools.partial(moving.defjvp, symbolic_zeros=True)
        def _(primals: Any, tangents: Any) -> Any:
            along = _that_move(tangents)
            active = [primals[i] for i in along]

            def of_active(fun: Callable[..., Any]) -> Callable[..., Any]:
                return lambda *operands: fun(*_merged(primals, along, operands))

            try:
                moved = self._moved(of_active(body), active, list(along.values()))
            except Exception as error:  # a callback in it, for example
                if _has_own_rule(eqn):
                    if matters:
                        warn(place(eqn), ASKS_FOR_ITSELF)
                    return jax.jvp(of_active(call), active, list(along.values()))
                error.add_note(
                    "jaxclamp decides choices in forward mode, for which a jax.custom_vjp has no rule: the function "
                    "under it is differentiated instead. Give it a rule for forward mode, by jax.custom_jvp."
                )
                raise
            if by_rule:
                try:
                    slopes = self._moved(of_active(call), active, list(along.values()), by_rule)
                except Exception:  # the rule is not linear, for example, and so has no transpose
                    if _has_own_rule(eqn):
                        raise
                    opened = transformed(jaxpr_as_fun(eqn.params["call_jaxpr"]), _without_own_vjp)
                    if matters and _stands_still(of_active(opened), active, list(along.values())):
                        warn(place(eqn), STRAIGHT_THROUGH)
                else:
                    moved = [
                        v if v.dtype == jax.dtypes.float0 else jnp.where(v == 0, slopes[i], v)
                        for i, v in enumerate(moved)
                    ]
            return call(*primals), moved

        return moving

    def _by_rule(self, eqn: JaxprEqn) -> Callable[..., Any] | None:
        """Return what the author's rule says of how the results of ``eqn`` move; None if they move by themselves."""
        if _has_own_rule(eqn):
            may_stand_still = high_level(eqn) is not None or has_jumps(eqn)
            return _slope if may_stand_still else None
        if not has_jumps(eqn) or (function := _function(eqn)) in self._within:
            return None

        # What the rule chooses is decided, too: that of a relu may pass the gradient at 0, where x falls.
        def slopes(fun: Callable[..., Any], primals: Any, tangents: Any) -> Any:
            rule = functools.partial(_slope_by_pullback, fun, tangents)
            return jax.jvp(DecidedProgram(rule, self._within | {function}).run, primals, tangents)[0]

        return slopes


def _is_replaced(eqn: JaxprEqn) -> bool:
    """Return whether ``eqn``, or an equation in it, may be replaced by one with a rule that depends on a direction."""
    return any(
        chooses(inner)
        or norm_along_direction(inner)
        or _has_own_rule(inner)
        or inner.primitive.name in (*UNDECIDED, "eigh", "svd")
        for inner in equations(eqn)
    )


def _has_own_rule(eqn: JaxprEqn) -> bool:
    """Return whether ``eqn`` calls a function with a rule for forward mode: a high-level primitive may have one too."""
    moves = any(is_floating(var.aval) for var in eqn.outvars)
    # The derivative of a root's equation has a value that chooses: it is opened.
    may_have_rule = high_level(eqn) is not None and not is_derivative_of_root(eqn)
    return eqn.primitive is p.custom_jvp_call_p or (may_have_rule and moves)


def _function(eqn: JaxprEqn) -> str:
    """Return, as text, the function with a rule that ``eqn`` calls: a batched high-level primitive has no hash."""
    return str(high_level(eqn) or eqn.params["call_jaxpr"])


def _without_own_vjp(eqn: JaxprEqn, descend: Descend) -> list[JaxprEqn]:
    """Return the equations of the function in the place of one with a ``custom_vjp``."""
    if eqn.primitive is not p.custom_vjp_call_p:
        return descend(eqn)
    body = inlined(jaxpr_as_fun(eqn.params["call_jaxpr"]), eqn)
    return [new for inner in body for new in _without_own_vjp(inner, descend)]


def _stands_still(fun: Callable[..., Any], primals: list[Any], tangents: list[Any]) -> bool:
    """Return whether the results of ``fun`` have the slope 0 between its jumps, as a rounded number has.

    All have to: a loop of a library returns the time beside what moves, and chooses by it.
    """
    slopes = jax.make_jaxpr(lambda *tangents: jax.jvp(fun, primals, list(tangents))[1])(*tangents).jaxpr
    moving = set(slopes.invars)
    for eqn in slopes.eqns:
        if any(isinstance(atom, Var) and atom in moving for atom in eqn.invars):
            moving.update(eqn.outvars)
    results = [out for out in slopes.outvars if is_floating(out.aval)]
    return bool(results) and all(isinstance(out, Literal) or out not in moving for out in results)


_DIFFERENTIATED_ONCE = (p.igamma_p, p.igammac_p, p.eig_p)
"""Primitives whose slopes JAX does not differentiate: of an incomplete gamma function by its order, of eigenvalues."""


def _with_constant_tangent(eqn: JaxprEqn) -> Callable[..., Any]:
    """Return what ``eqn`` computes; to a derivative its tangent is a constant."""
    call = computed(eqn)
    with_constant_tangent = jax.custom_jvp(call)

    @with_constant_tangent.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return call(*primals), jax.jvp(call, jax.lax.stop_gradient(primals), tangents)[1]

    return with_constant_tangent


def _that_move(tangents: Sequence[Any]) -> dict[int, Any]:
    """Map the positions of operands that move to their tangents; others, as integers, have a `SymbolicZero`."""
    return {i: v for i, v in enumerate(tangents) if not isinstance(v, SymbolicZero)}


def _merged(operands: Sequence[Any], positions: Iterable[int], at_positions: Sequence[Any]) -> list[Any]:
    """Return the operands with those at the positions replaced."""
    replaced = dict(zip(positions, at_positions, strict=True))
    return [replaced.get(i, x) for i, x in enumerate(operands)]


def _warned_of(eqn: JaxprEqn, reason: str) -> Callable[..., Any]:
    """Return what ``eqn`` computes; who differentiates it is warned."""

    @jax.custom_jvp
    def differentiated(x: jax.Array) -> jax.Array:
        return x

    @differentiated.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        warn(place(eqn), f"{eqn.primitive}: {reason}")
        return primals[0], tangents[0]

    call = computed(eqn)
    return lambda *operands: call(*(differentiated(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x for x in operands))


def _with_own_rule(eqn: JaxprEqn, within: frozenset[str], moved: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call of a ``custom_jvp``, with the choices in its rule decided along the direction.

    The rule is a program as well. That of `jax.nn.relu` selects by ``x > 0``, and so gives the slope a small step away.
    ``moved`` says how the result of a function moves.
    """
    call = computed(eqn)
    with_rule_decided = jax.custom_jvp(call)

    # There are two rules, one around the other. JAX requires a rule to be linear in its tangents, and choices are not:
    # so the outer one hands the tangents in as a direction, among the operands of ``piece``. The rule of that is linear
    # in the tangents, and by the direction alone it decides what the author's rule chooses.
    @functools.partial(with_rule_decided.defjvp, symbolic_zeros=True)
    def _(primals: Any, tangents: Any) -> Any:
        moving = _that_move(tangents)
        along = jax.lax.stop_gradient(moving)

        def of_moving(*operands: Any) -> Any:
            return piece(_merged(primals, moving, operands), along)

        operands = [primals[i] for i in moving]
        return of_moving(*operands), moved(of_moving, operands, list(moving.values()))

    @jax.custom_jvp
    def piece(primals: Any, along: Any) -> Any:
        return call(*primals)

    @functools.partial(piece.defjvp, symbolic_zeros=True)
    def _(operands: Any, tangents: Any) -> Any:
        primals, along = operands
        moving = _that_move(tangents[0])

        def slope(*operands: Any) -> Any:
            def of_moving(*moved: Any) -> Any:
                return call(*_merged(operands, moving, moved))

            return jax.jvp(of_moving, [operands[i] for i in moving], list(moving.values()))[1]

        rule = DecidedProgram(slope, within)

        def decided_slope(*moved: Any) -> Any:
            return rule.run(*_merged(primals, along, moved))

        return piece(*operands), jax.jvp(decided_slope, [primals[i] for i in along], list(along.values()))[0]

    return with_rule_decided


def _carrying_the_condition(eqn: JaxprEqn) -> Callable[..., Any]:
    """Return a loop that computes its condition in the body, where choices in it can be decided.

    JAX evaluates the condition of a loop without tangents.
    """
    of_condition, of_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    condition, body = (jaxpr_as_fun(eqn.params[name]) for name in ("cond_jaxpr", "body_jaxpr"))

    def run(*operands: jax.Array) -> Any:
        known, fixed = operands[:of_condition], operands[of_condition : of_condition + of_body]

        # In the state the condition of each pass was computed by the one before.
        def state_with(carry: list[jax.Array]) -> Any:
            (holds,) = condition(*known, *carry)
            return jnp.any(holds), holds, carry

        def step(state: Any) -> Any:
            _, holds, carry = state
            return state_with(moved_on(holds, body(*fixed, *carry), carry))

        first = list(operands[of_condition + of_body :])
        return jax.lax.while_loop(lambda state: state[0], step, state_with(first))[2]

    return run
