"""Derivatives of whole JAX programs: `directional_derivative`, `grad`, `value_and_grad` and `subdifferential`.

A function is traced, and each choice in it is replaced by one that is decided along a direction. Forward mode then
gives the one-sided derivative. Reverse mode, of the primal result of that, gives the gradient of the piece that the
function enters: for ``relu(x) - relu(-x)`` at 0 along the direction 1 the piece is ``x - 0``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, jaxpr_as_fun
from jax.extend.core import primitives as p
from jax.flatten_util import ravel_pytree

from jaxclamp._jax_versions import expanded, high_level
from jaxclamp._programs.choices import chooses, decided, entering, jumps, norm_along_direction
from jaxclamp._programs.constant_factors import constant_beside_0
from jaxclamp._programs.defined_branches import with_defined_branches
from jaxclamp._programs.dependence import parted_by_motion, without_choices_behind
from jaxclamp._programs.nan_gradients import mended
from jaxclamp._programs.open_primitives import opened
from jaxclamp._programs.ranges import has_slopes_without_bound
from jaxclamp._programs.solves import operator_jumps, solved
from jaxclamp._rules.extremum import widened
from jaxclamp._rules.operands import check_addressable, check_function, is_floating, positions_of
from jaxclamp._shared.subdifferential import Subdifferential, check_directions, explored
from jaxclamp._transforms.jaxprs import (
    WITH_BODIES,
    Descend,
    computed,
    equations,
    inlined,
    moved_on,
    needed,
    split,
    transformed,
)
from jaxclamp._transforms.source_lines import place
from jaxclamp._transforms.sums import constant_at_minus_infinity, norms_as_calls
from jaxclamp._transforms.undecided import ASKS_FOR_ITSELF, NOT_ENTERED, ROUNDING, STRAIGHT_THROUGH, UNDECIDED, warn

P = ParamSpec("P")
R = TypeVar("R")
Tree: TypeAlias = Any


def directional_derivative(fun: Callable[..., R], primals: Sequence[Tree], tangents: Sequence[Tree]) -> tuple[R, R]:
    r"""Return the value and the one-sided derivative :math:`\lim_{t \to 0+} (f(x + t v) - f(x)) / t`.

    It has the form of what `jax.jvp` returns. It is exact at kinks too, however the function is spelled, and not
    linear in v there. It holds for functions that are smooth but for choices, and continuous. The choices are ``max``,
    ``min``, ``clamp``, ``abs``, ``sign``, comparisons, and so ``where``, masks and ``lax.cond``, the reductions,
    cumulative, windowed and scattered forms of ``max`` and ``min``, ``argmax``, ``argmin``, ``sort`` and ``top_k``,
    and what jumps: ``floor``, ``ceil``, ``round``, ``rem``, ``atan2``, conversions to integers, and the sign bit of a
    number. They are decided in all that `min_norm` reaches into, in functions given to `jax.lax.reduce` and
    ``reduce_window``, in the operator of a linear solve, in a ``custom_vmap``, and in the rules of a ``custom_jvp``,
    which are their author's word else. What such a rule asks of the function itself moves as the function does. A
    ``custom_vjp`` is opened. Where the function itself jumps, the derivative is that of the piece beyond the jump.

    Taken as they are at x: ``reduce_precision``, ``frexp`` and the other bits of a number, ``approx_max_k``, callbacks,
    ``stop_gradient``, what is inside ``pallas_call``, ``run_state`` and ``ffi_call``, discrete results of a
    ``custom_jvp``, the order of complex numbers and the side of a branch cut, as of ``sqrt(-1 + 0j)``, and what Python
    decides. A `jaxclamp.UndecidedWarning` names the line where the derivative depends on choices of ``approx_max_k``,
    ``pallas_call`` or ``run_state``, or a choice on a ``custom_vjp`` that rounds, such as a straight-through estimator:
    forward mode sees that it stands still.

    A choice between operands that are equal and move alike is settled by higher derivatives, which are not looked at:
    ``where(x * x > 0, x, -x)`` at 0 goes wrong. Where the slope of one of them is NaN, as of ``sqrt(x) ** 2`` at 0, a
    maximum or minimum takes that one, and a comparison goes by the values, but that ``==`` does not hold. The branch
    that is entered may be NaN at the point, as of ``where(x == 0, 1, sin(x) / x)``, which is ``jnp.sinc``, and of
    ``where(x > 0, x * log(x), 0)``. Then a ``where``, ``cond`` or ``piecewise`` takes the other one, as it does in JAX,
    if it is not NaN too.

    Args:
      fun: a function as for `jax.jvp`.
      primals: the arguments of ``fun``, a tuple or list; arrays of floating point numbers, or trees of them.
      tangents: the direction v, of the same structure, shapes and dtypes.

    Returns:
      The value, that of ``fun``, and the derivative, of the same structure. Where a choice has a discrete result, such
      as a comparison, ``fun`` is evaluated once more for the value.

    Raises:
      TypeError: ``fun`` is not callable; or as `jax.jvp`.
      ValueError: as `jax.jvp`; or ``fun`` writes to its arguments.

    Warns:
      UndecidedWarning: the derivative may depend on a choice that was not decided; once for each line.

    >>> directional_derivative(lambda x: jax.nn.relu(x) - jax.nn.relu(-x), (0.0,), (-2.0,))
    (Array(0., dtype=float32, weak_type=True), Array(-2., dtype=float32, weak_type=True))

    Source: Shapiro, On concepts of directional differentiability (1990); Griewank and Walther, Evaluating Derivatives
    (2008), chapter 14.
    """
    check_function("directional_derivative", fun)
    program = _Program(fun)
    value, derivative = jax.jvp(program.run, primals, _varying(tangents, primals))
    return program.result(value, *primals), derivative


def grad(
    fun: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    direction: Tree = None,
    key: jax.Array | None = None,
) -> Callable[P, Any]:
    r"""Return the gradient of a whole program: the true one where there is one, however the program is spelled.

    At a kink of the program it is the gradient of the piece that ``fun`` enters along a direction v: the limit of its
    gradients at :math:`x + t v` for :math:`t \to 0+`. For all v but a set of measure zero that is an element of the
    B-subdifferential, hence of the Clarke subdifferential. What is decided, and what is not, is said at
    `directional_derivative`. In a ``custom_jvp`` (with the choices in its rule decided) and in a ``custom_vjp``, such
    as a straight-through estimator, the author's rule counts. Where nothing is tied, the result equals that of
    `jax.grad`.

    The signature is that of `jax.grad`, without ``holomorphic`` and ``allow_int``: integers are no part of an argument
    that is differentiated. All of JAX works on the result: ``jit``, ``vmap``, over directions too, sharded arguments; a
    second derivative is that of the piece. The cost does not grow with the number of inputs.

    Args:
      fun, argnums, has_aux: as for `jax.grad`.
      direction: v, of the structure of the argument, or for several ``argnums`` a tuple of such. Without it, v is
        drawn, of numbers between -1 and 1.
      key: for another draw than that of ``jax.random.key(0)``, as on each device of a ``shard_map``.

    Returns:
      A function of the arguments of ``fun``, which returns the gradient, or a pair of it and the auxiliary result.

    Raises:
      TypeError: ``fun`` is not callable; when called, ``argnums`` does not name arguments by position, each once, or as
        `jax.grad`.
      ValueError: both ``direction`` and ``key`` are given; when called, ``direction`` has another structure than the
        argument, or as `jax.grad`.

    >>> def identity(x):
    ...     return jax.nn.relu(x) - jax.nn.relu(-x)
    >>> float(jax.grad(identity)(0.0)), float(grad(identity)(0.0))
    (0.0, 1.0)
    >>> [float(grad(jnp.abs, direction=v)(0.0)) for v in (1.0, -1.0)]
    [1.0, -1.0]

    Source: Khan and Barton, Evaluating an element of the Clarke generalized Jacobian of a composite piecewise
    differentiable function (2013); Kakade and Lee, Provably correct automatic subdifferentiation (2018).
    """
    program, gradient = _gradient("grad", fun, argnums, has_aux, direction, key)

    @functools.wraps(fun)
    def run(*args: Any, **kwargs: Any) -> Any:
        of_arguments, (result, _) = gradient(*args, **kwargs)
        return (of_arguments, program.result(result, *args, **kwargs)[1]) if has_aux else of_arguments

    return run


def value_and_grad(
    fun: Callable[P, R],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    direction: Tree = None,
    key: jax.Array | None = None,
) -> Callable[P, tuple[R, Any]]:
    """Return the value of ``fun``, to the bit, and its gradient as `grad` gives it.

    The signature is that of `jax.value_and_grad`, without what `grad` does not take. Where a choice has a discrete
    result, such as a comparison, ``fun`` is evaluated once more for the value.

    Args:
      fun, argnums, has_aux: as for `jax.value_and_grad`.
      direction, key: as for `grad`.

    Returns:
      A function of the arguments of ``fun``, which returns a pair: what ``fun`` returns, and the gradient.

    Raises:
      TypeError, ValueError: as `grad`.

    >>> value, gradient = value_and_grad(lambda x: jnp.maximum(x, 0.0) + jnp.minimum(x, 0.0))(0.0)
    >>> float(value), float(gradient)
    (0.0, 1.0)
    """
    program, gradient = _gradient("value_and_grad", fun, argnums, has_aux, direction, key)

    @functools.wraps(fun)
    def run(*args: Any, **kwargs: Any) -> Any:
        of_arguments, (result, _) = gradient(*args, **kwargs)
        return program.result(result, *args, **kwargs), of_arguments

    return run


def subdifferential(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, *, directions: int = 16, key: jax.Array | None = None
) -> Callable[..., Subdifferential]:
    r"""Return the gradients of the pieces around a point, the least point of their hull, and what it certifies.

    Half of the directions are drawn from a normal distribution, the others are their opposites. Then the search goes on
    along -p, where p is the least point of the hull found, as long as that finds new gradients, and at most for as many
    directions again. If p is 0, the point is stationary. If the derivative along -p is :math:`-\|p\|^2` and the
    function is convex nearby, p is the point of least norm in all of the Clarke subdifferential. Else there may be more
    pieces: a function may have exponentially many.

    Args:
      fun: a function as for `jax.grad`, with a scalar result.
      argnums: which arguments to differentiate with respect to, as for `jax.grad`.
      directions: along how many directions to ask at first.
      key: for other draws than those of ``jax.random.key(0)``.

    Returns:
      A function of the arguments of ``fun`` that returns a `Subdifferential`. It searches with values, so it runs
      outside of ``jit``, ``vmap`` and ``grad``.

    Raises:
      TypeError: ``fun`` is not callable; when called, it is within another transformation, the argument has complex
        numbers, ``argnums`` does not name arguments by position, each once, or as `jax.grad`.
      ValueError: ``directions`` is not a positive number; when called, a gradient is not finite, or an argument has
        parts in other processes.

    >>> around = subdifferential(lambda x: jnp.max(jnp.abs(x)))(jnp.zeros(2))
    >>> len(around.gradients), around.is_differentiable, around.min_norm.tolist()
    (4, False, [0.0, 0.0])
    >>> around.contains(jnp.array([0.5, -0.5])), around.contains(jnp.array([1.0, 1.0]))
    (True, False)

    Source: Bertsekas and Mitter, A descent numerical method for optimization problems with nondifferentiable cost
    functionals (1973), for the search along -p.
    """
    check_function("subdifferential", fun)
    check_directions(directions)

    @functools.wraps(fun)
    def run(*args: Any, **kwargs: Any) -> Subdifferential:
        check_addressable("subdifferential", (args, kwargs))
        active = tuple(args[position] for position in positions_of("subdifferential", args, argnums))
        x = active if isinstance(argnums, Sequence) else active[0]
        flat, unflatten = ravel_pytree(x)
        if jnp.iscomplexobj(flat):
            raise TypeError("subdifferential: the argument has complex numbers; pass real and imaginary parts.")
        dtypes = map(jnp.result_type, jax.tree.leaves(x))
        # Normal, so that all directions are as likely; numbers from an interval would favour the corners of a cube.
        draws = jax.random.normal(jax.random.key(0) if key is None else key, ((directions + 1) // 2, flat.size))
        _check_values((args, kwargs, draws))

        # Numbers and words, by which the function may branch, stay as they are, as in `jax.grad`.
        leaves, structure = jax.tree.flatten((args, kwargs))
        arrays = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray)}

        @jax.jit
        def derivatives(arrays: dict[int, Any], direction: jax.Array) -> Any:
            args, kwargs = jax.tree.unflatten(structure, [arrays.get(i, leaf) for i, leaf in enumerate(leaves)])
            _, gradient_of = _gradient("subdifferential", fun, argnums, False, unflatten(direction), None)
            gradient, (_, derivative) = gradient_of(*args, **kwargs)
            return derivative, ravel_pytree(gradient)[0]

        def along(direction: Any) -> Any:
            derivative, gradient = derivatives(arrays, jnp.asarray(direction, flat.dtype))
            _check_values(derivative)  # ``fun`` may close over traced values
            return float(derivative), np.asarray(gradient, np.float64)

        return explored(
            along,
            np.asarray(draws, np.float64),
            # The least precise of the arguments decides: they are one vector, in which rounding is told from pieces.
            max((float(jnp.finfo(dtype).eps) for dtype in dtypes if jnp.issubdtype(dtype, jnp.inexact)), default=0.0),
            lambda tree: np.asarray(ravel_pytree(tree)[0], np.float64),
            lambda vector: unflatten(jnp.asarray(vector, flat.dtype)),
        )

    return run


def _check_values(tree: Tree) -> None:
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
        raise TypeError("subdifferential: the search takes values; call it outside of jit, vmap and grad.")


class _Program(Generic[P, R]):
    """A function whose choices are decided by the tangents in forward mode."""

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
        jaxpr = norms_as_calls(constant_at_minus_infinity(jaxpr))
        self._without_choices_behind = without_choices_behind(jaxpr, self._moves_by_its_body)
        # Of finite numbers and slopes no branch is NaN. A derivative rule is linear in its tangents, and a look at them
        # would not be.
        if self.has_slopes_without_bound and not self._within:
            jaxpr = with_defined_branches(jaxpr)
        moves = self.moves or [True] * len(jaxpr.invars)
        jaxpr, self._standing_still = parted_by_motion(jaxpr, moves, _is_replaced)
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
        if id(eqn) in self._standing_still:
            # Another derivative, around this one, may move it: of a choice that is decided here it has no transpose.
            return [eqn]
        # The first that fits counts. A norm, or x log y, may be a custom_jvp: so they come before functions with rules.
        if norm := norm_along_direction(eqn):
            return inlined(norm, eqn)
        if constant := constant_beside_0(eqn):
            return inlined(constant, eqn)
        if self._moves_by_its_body(eqn):
            return inlined(self._moving(eqn), eqn)
        if _has_own_rule(eqn):
            return inlined(_with_own_rule(eqn, self._within | {_function(eqn)}, self._moved), eqn)
        # A condition without equations is the bool that a rewritten loop carries: rewriting that again would not end.
        if eqn.primitive is p.while_p and eqn.params["cond_jaxpr"].eqns:
            carrying_the_condition = inlined(_carrying_the_condition(eqn), eqn)
            return [new for inner in carrying_the_condition for new in self._replace(inner, descend)]
        if self._for_gradient and eqn.primitive in _DIFFERENTIATED_ONCE:
            return inlined(_with_constant_tangent(eqn), eqn)
        if reason := UNDECIDED.get(eqn.primitive.name):
            return inlined(_warned_of(eqn, reason), eqn)
        if eqn.primitive is p.linear_solve_p:
            self._is_discrete |= operator_jumps(eqn)
            # Unless the operator jumps, the piece calls the solver as it is, and its results are those of ``eqn``. To
            # keep these beside it would read the right-hand side as a constant, of which JAX has no transpose where
            # that is a tangent.
            return inlined(entering(eqn, solved(eqn, self._decided), with_jumps=True), eqn)
        if program := opened(eqn):
            decided_inside = self._decided(program)
            self._is_discrete = True  # what is inside may jump
            return inlined(entering(eqn, lambda *_: decided_inside, with_jumps=True), eqn)
        if not chooses(eqn):
            is_entered = eqn.primitive.name in WITH_BODIES or not any(map(chooses, equations(eqn)))
            return descend(eqn) if is_entered else inlined(_warned_of(eqn, NOT_ENTERED), eqn)
        self._is_discrete |= jumps(eqn)
        return inlined(decided(eqn), eqn)

    def _decided(self, program: Callable[..., Any]) -> Callable[..., Any]:
        return transformed(program, self._replace)

    def _moved(self, fun: Callable[..., Any], primals: Any, tangents: Any) -> Any:
        """Return how the result of ``fun`` moves.

        Unless that is a result, it has no derivative: so a kernel, or a callback in a rule, needs no second one.
        """
        if self._for_gradient:
            primals, tangents = jax.lax.stop_gradient((primals, tangents))
        return jax.jvp(fun, primals, tangents)[1]

    def _moving(self, eqn: JaxprEqn) -> Callable[..., Any]:
        """Return a call of a function with its own rule; in forward mode, the function's body is differentiated.

        In reverse mode the author's rule still counts.
        """
        call = computed(eqn)
        body = self._decided(expanded(eqn) or jaxpr_as_fun(eqn.params["call_jaxpr"]))
        moving = jax.custom_jvp(call)
        matters = not any(eqn is candidate for candidate in self._without_choices_behind)

        @moving.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            try:
                moved = self._moved(body, primals, tangents)
            except Exception as error:  # a callback in it, for example
                if _has_own_rule(eqn):
                    if matters:
                        warn(place(eqn), ASKS_FOR_ITSELF)
                    return jax.jvp(call, primals, tangents)
                error.add_note(
                    "jaxclamp decides choices in forward mode, for which a jax.custom_vjp has no rule: the function "
                    "under it is differentiated instead. Give it a rule for forward mode, by jax.custom_jvp."
                )
                raise
            if matters and eqn.primitive is p.custom_vjp_call_p and _rounds(eqn):
                warn(place(eqn), STRAIGHT_THROUGH)
            return call(*primals), moved

        return moving


def _is_replaced(eqn: JaxprEqn) -> bool:
    """Return whether ``eqn``, or an equation in it, may be replaced by one with a rule that depends on a direction."""
    return any(
        chooses(inner) or norm_along_direction(inner) or _has_own_rule(inner) or inner.primitive.name in UNDECIDED
        for inner in equations(eqn)
    )


def _has_own_rule(eqn: JaxprEqn) -> bool:
    """Return whether ``eqn`` calls a function with a rule for forward mode: a high-level primitive may have one too."""
    moves = any(is_floating(var.aval) for var in eqn.outvars)
    return eqn.primitive is p.custom_jvp_call_p or (high_level(eqn) is not None and moves)


def _function(eqn: JaxprEqn) -> str:
    """Return, as text, the function with a rule that ``eqn`` calls: a batched high-level primitive has no hash."""
    return str(high_level(eqn) or eqn.params["call_jaxpr"])


def _rounds(eqn: JaxprEqn) -> bool:
    """Return whether ``eqn`` rounds numbers, by itself or in a program among its parameters."""
    return any(inner.primitive.name in ROUNDING and is_floating(inner.invars[0].aval) for inner in equations(eqn))


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
    @with_rule_decided.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        # Integers have tangents of float0, of which no array can be made: they stay behind, and are put back below.
        tangents_that_move = [jax.lax.stop_gradient(v) for v in tangents if v.dtype != jax.dtypes.float0]

        def of_primals(*primals: Any) -> Any:
            return piece(primals, tangents_that_move)

        return of_primals(*primals), moved(of_primals, primals, tangents)

    @jax.custom_jvp
    def piece(primals: Any, tangents_that_move: Any) -> Any:
        return call(*primals)

    @piece.defjvp
    def _(operands: Any, tangents: Any) -> Any:
        primals, tangents_that_move = operands[0], iter(operands[1])
        along = tuple(v if v.dtype == jax.dtypes.float0 else next(tangents_that_move) for v in tangents[0])
        rule = _Program(lambda *primals: jax.jvp(call, primals, tangents[0])[1], within)
        return piece(*operands), jax.jvp(rule.run, primals, along)[0]

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


def _gradient(
    name: str,
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    direction: Tree,
    key: jax.Array | None,
) -> tuple[_Program[..., Any], Callable[..., Any]]:
    """Return the program, and a function that returns its gradient along a direction, its result and derivative."""
    check_function(name, fun)
    if direction is not None and key is not None:
        raise ValueError(f"{name}: direction and key are both given; pass direction, or a key to draw one.")
    program = _Program(fun, for_gradient=True)
    is_one = not isinstance(argnums, Sequence)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        positions = positions_of(name, args, argnums)
        active = tuple(args[position] for position in positions)

        # Reverse mode over forward mode: what `primal` returns is the value as forward mode computes it, by the pieces
        # that are entered. Its gradient is that of these pieces.
        def primal(*active: Tree) -> Any:
            if direction is None:
                tangents = _drawn(jax.random.key(0) if key is None else key, active)
            else:
                tangents = (direction,) if is_one else tuple(direction) if isinstance(direction, list) else direction
                _check_direction(name, tangents, active)

            def of_active(*active: Tree) -> Any:
                moved = dict(zip(positions, active, strict=True))
                merged = [moved.get(i, arg) for i, arg in enumerate(args)]
                program.moves = [i in moved for i, arg in enumerate([*merged, kwargs]) for _ in split(arg)[0]]
                result = program.run(*merged, **kwargs)
                return result if has_aux else (result, None)

            value, derivative, aux = jax.jvp(of_active, active, _varying(tangents, active), has_aux=True)
            return value, ((value, aux) if has_aux else value, derivative)

        parts, result = jax.grad(primal, range(len(active)), has_aux=True)(*active)
        # This is known only now, as `primal` traces the program. Most programs have no such slope: then a compiled
        # gradient has neither a test for NaN nor the two passes behind it.
        if program.has_slopes_without_bound:
            parts = mended(parts, lambda *active: primal(*active)[0], active)
        return parts[0] if is_one else parts, result

    return program, gradient


def _check_direction(name: str, direction: Tree, active: Tree) -> None:
    """Raise unless a direction has the structure and the shapes of the arguments that are differentiated."""
    structures = jax.tree.structure(direction), jax.tree.structure(active)
    if structures[0] != structures[1]:  # type: ignore[operator]  # TreeDefs, for their stub perhaps None
        raise ValueError(f"{name}: direction has the structure {structures[0]}, and the argument {structures[1]}.")
    for has, needs in zip(*(map(jnp.shape, jax.tree.leaves(tree)) for tree in (direction, active)), strict=True):
        if has != needs:
            raise ValueError(f"{name}: direction has an array of shape {has}, where the argument has {needs}.")


def _drawn(key: jax.Array, like: Tree) -> Tree:
    """Return a tree of numbers between -1 and 1 that have nothing to do with each other.

    A direction need not be random, it must only miss the edges between pieces. So the numbers 0, 1, 2, ... are mixed by
    the last steps of MurmurHash3, which map no two of them to one, in a tenth of the time that `jax.random` takes.
    """
    leaves, structure = jax.tree.flatten(like)
    seeds = jax.random.bits(key, (len(leaves),), "uint32")
    return jax.tree.unflatten(structure, [_mixed(seed, leaf) for seed, leaf in zip(seeds, leaves, strict=True)])


def _mixed(seed: jax.Array, like: jax.Array) -> jax.Array:
    if jnp.iscomplexobj(like):
        return jax.lax.complex(_mixed(seed, jnp.real(like)), _mixed(~seed, jnp.imag(like)))
    mixed = jax.lax.iota("uint32", math.prod(like.shape)).reshape(like.shape) + seed
    # The numbers are those of MurmurHash3's last steps. Its last shift is followed by no factor: hence the 1.
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
    # Mixed in float32 at least: of few numbers, many would be equal. From 0 .. 2^32 they go to -1 .. 1.
    return (mixed.astype(widened(like.dtype)) * 2.0**-31 - 1).astype(like.dtype)


def _varying(tangents: Tree, primals: Tree) -> Tree:
    """Return the tangents. In a ``shard_map``, let each vary over the devices as its primal does: JAX requires that.

    Tangents that do not fit their primals stay as they are: `jax.jvp` refuses them.
    """

    def varying(x: Any, v: Any) -> Any:
        fits = jnp.shape(x) == jnp.shape(v) and jnp.result_type(x) == getattr(v, "dtype", jnp.result_type(x))
        return jnp.zeros_like(x) + v if fits else v

    leaves, structure = jax.tree.flatten(tangents)
    points = jax.tree.leaves(primals)
    return jax.tree.unflatten(structure, map(varying, points, leaves)) if len(points) == len(leaves) else tangents
