"""Gives functions of sums the slope 0 where all terms are 0, in the place of 0 / 0.

`jax.nn.logsumexp` and `jax.numpy.logaddexp` are minus infinity where all operands are, as in a row that is masked as a
whole. A finite step of the operands does not change that. So the function counts as constant there, with the slope 0.
JAX gives NaN, as it divides by the sum, or subtracts infinities.

A norm of an order above 1 is the root of a sum of powers, as `jax.numpy.linalg.vector_norm` computes it, and code that
is written by hand, as ``sqrt(x**2 + y**2)``. Where the sum is 0, so is the least of the subgradients. JAX gives NaN, as
the root has an infinite slope. Of several such sums s and t, ``sqrt(min(s, t))`` is rewritten to
``min(sqrt(s), sqrt(t))``.

Cotangents are multiplied by the slope 0. So an infinite slope of the operands still makes NaN of it, as in
``logsumexp(log(x))`` at 0, which is the logarithm of a sum.
"""

from __future__ import annotations

import functools
import graphlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.extend.core import primitives as p

from jaxclamp._jax_versions import with_parts
from jaxclamp._rules.differentiate import ROOT_SCOPE
from jaxclamp._rules.operands import is_floating
from jaxclamp._transforms.jaxprs import (
    WITH_BODIES,
    computed,
    equations,
    in_place_of,
    inlined,
    opened_calls,
    same,
    with_bodies,
)
from jaxclamp._transforms.recognition import calls, name_of_jaxclamp_op, recognized_euclidean


def with_slopes_of_sums(jaxpr: Any) -> Any:
    """Return the program in which all these functions have the slope 0 there, in its bodies too."""
    return _replaced(_replaced(jaxpr, _selection_of_roots), _of_logsumexp, of_logaddexp, _of_powers)


def with_slopes_of_logsumexp(jaxpr: Any) -> Any:
    """Return the program in which `logsumexp` has the slope 0 there, in its bodies too."""
    return _replaced(jaxpr, _of_logsumexp)


def with_primitives_of_ops(jaxpr: Any) -> Any:
    """Return the program with a primitive for each op of jaxclamp that is one, as `abs`, and for roots with that slope.

    So a norm is known where `jaxclamp.min_norm` has replaced its root, or its absolute values.
    """
    return _replaced(jaxpr, _primitive_of_op)


def norms_as_calls(jaxpr: Any) -> Any:
    """Return the program in which norms of several equations are calls, and roots stand still behind a clamp."""
    return _replaced(_replaced(jaxpr, _selection_of_roots, _still_below_0), _as_call)


_Makers: TypeAlias = Mapping[Any, JaxprEqn]
"""Maps a variable of a program to the equation that computes it."""
_InPlace: TypeAlias = Callable[[JaxprEqn, _Makers], list[JaxprEqn] | None]
"""Returns what comes in the place of an equation, or None."""


def _replaced(jaxpr: Any, *rules: _InPlace) -> Any:
    # The equations of a norm may lie in several of these calls.
    opened = [new for eqn in jaxpr.eqns for new in opened_calls(eqn, "_std", "_var", "nanstd", "nanvar")]
    makers = {var: eqn for eqn in opened for var in eqn.outvars}

    def replaced(eqn: JaxprEqn) -> list[JaxprEqn]:
        if eqn.params.get("name") == "norm" and recognized_euclidean(eqn):
            return [eqn]  # an op, by its whole body
        if new := next((new for rule in rules if (new := rule(eqn, makers))), None):
            return new
        return [with_bodies(eqn, lambda body: _replaced(body, *rules)) if eqn.primitive.name in WITH_BODIES else eqn]

    eqns = [new for eqn in opened for new in replaced(eqn)]
    return jaxpr if same(eqns, jaxpr.eqns) else with_parts(jaxpr, eqns=eqns)


def _of_logsumexp(eqn: JaxprEqn, makers: _Makers) -> list[JaxprEqn] | None:
    # The slope of the logarithm is that of the whole: its operand, the sum, is a constant where all are -inf.
    if eqn.primitive is p.log_p and (of_sum := _logarithm_of_logsumexp(eqn, makers)):
        return inlined(_constant_where(lambda total: total == 0, of_sum, _elementwise(of_sum)), of_sum)
    return None


def of_logaddexp(eqn: JaxprEqn, _: _Makers | None = None) -> list[JaxprEqn] | None:
    """Return the equations of `logaddexp` with the slope 0 there, if ``eqn`` calls it."""
    if function := _logaddexp_of(eqn):
        return inlined(_constant_where(lambda x, y: (x == -jnp.inf) & (y == -jnp.inf), eqn, function), eqn)
    return None


def _selection_of_roots(root: JaxprEqn, makers: _Makers) -> list[JaxprEqn] | None:
    """Return equations that select among norms, if ``root`` is that of what is selected among sums of powers.

    A root keeps the order, so ``sqrt(min(s, t))`` is ``min(sqrt(s), sqrt(t))``. Of sums that are 0 only the roots tell
    which is smaller a step away.
    """
    if not 0 < _exponent(root, makers) < 1:
        return None
    selected = _before_adding_0(root.invars[0], makers)
    selection = _maker(selected, makers)
    if selection is None or _equations_of_norm(root, makers):
        return None
    exponent = [atom.val for atom in root.invars[1:] if isinstance(atom, Literal)]
    if len(exponent) + 1 < len(root.invars) or not _operands(selection, (*_PLACING, *_SELECTING), makers):
        return None
    among, root_of = computed(selection), _elementwise(root)

    def root_of_operand(x: jax.Array) -> jax.Array:
        # In its dtype, too: the selection may convert what it takes.
        return root_of(x, *(np.asarray(number, x.dtype) for number in exponent)) if is_floating(x) else x

    def among_roots(*operands: jax.Array) -> jax.Array:
        results = among(*map(root_of_operand, operands))
        return dict(zip(selection.outvars, results, strict=True))[selected]

    eqns: list[JaxprEqn] = []
    for eqn in inlined(among_roots, selection.replace(outvars=root.outvars)):
        stays = eqn.primitive is not root.primitive or _is_number(eqn.invars[0], makers, lambda _: True)
        if not (new := [eqn] if stays or _equations_of_norm(eqn, makers) else _selection_of_roots(eqn, makers)):
            return None
        eqns += new
    return eqns


def _still_below_0(root: JaxprEqn, makers: _Makers) -> list[JaxprEqn] | None:
    """Return equations by which a root of ``max(x, 0)`` is that of a constant where x is below 0.

    It stands still there. But its infinite slope makes NaN of a tangent of 0, by which choices behind it go wrong.
    """
    bounded = _maker(root.invars[0], makers) if 0 < _exponent(root, makers) < 1 else None
    operands = _bounded_by_0(bounded, makers) if bounded else []
    if not operands or operands[0].aval != root.invars[0].aval or _equations_of_norm(root, makers):
        return None
    root_of = _elementwise(root)

    def root_or_constant(x: jax.Array, bounded: jax.Array, *exponent: jax.Array) -> jax.Array:
        constant = root_of(jax.lax.stop_gradient(bounded), *exponent)
        return jnp.where(x < bounded, constant, root_of(bounded, *exponent))

    return inlined(root_or_constant, root.replace(invars=[*operands, *root.invars]))


def _of_powers(eqn: JaxprEqn, makers: _Makers) -> list[JaxprEqn] | None:
    if _equations_of_norm(eqn, makers):
        return inlined(jax.named_scope(ROOT_SCOPE)(_constant_at_0(eqn)), eqn)
    return None


def _primitive_of_op(eqn: JaxprEqn, _: _Makers) -> list[JaxprEqn] | None:
    is_op = name_of_jaxclamp_op(eqn) or ROOT_SCOPE in str(eqn.source_info.name_stack)
    if eqn.primitive is p.custom_jvp_call_p and is_op and len(eqn.params["call_jaxpr"].eqns) == 1:
        return in_place_of(eqn, eqn.params["call_jaxpr"])
    return None


def _as_call(root: JaxprEqn, makers: _Makers) -> list[JaxprEqn] | None:
    """Return a call, by the name `NORM`, that computes a norm in the place of its root alone.

    Its operands are first the arrays whose norm it is, then divisors and constants.
    """
    if root.params.get("name") == NORM:
        return [root]  # an inner `jaxclamp.grad` has left it, in which it stands still
    eqns = _equations_of_norm(root, makers)
    if not (elements := _elements(eqns)):
        return None
    made = {var for eqn in eqns for var in eqn.outvars}
    read = dict.fromkeys(atom for eqn in eqns for atom in eqn.invars if isinstance(atom, Var) and atom not in made)
    operands: list[Any] = list(dict.fromkeys([*elements, *read]))

    def norm(*operands: jax.Array) -> jax.Array:
        return jnp.zeros(root.outvars[0].aval.shape, root.outvars[0].aval.dtype)  # type: ignore[attr-defined]

    norm.__name__ = NORM
    # Its body is put in, not traced: the axes of a shard_map, over which it may add up, have no name here.
    (call,) = inlined(jax.jit(norm), root.replace(invars=operands))
    body = with_parts(call.params["jaxpr"], invars=operands, eqns=eqns, outvars=root.outvars)
    return [call.replace(params={**call.params, "jaxpr": body})]


def norm_of_call(call: JaxprEqn) -> tuple[int, Callable[..., jax.Array]]:
    """Return what a call by the name `NORM` computes, with the slope 0 at 0, and how many operands have elements."""
    body = call.params["jaxpr"]
    *eqns, root = body.eqns
    # The types of a shard_map are not in the call: so its root is not traced at those, but called.
    operands_of_root = jaxpr_as_fun(with_parts(body, eqns=eqns, outvars=root.invars))
    return len(_elements(eqns)), lambda *operands: _constant_at_0(root)(*operands_of_root(*operands))


NORM = "norm of several equations"


def _elements(eqns: Sequence[JaxprEqn]) -> list[Var]:
    """Return the variables of whose elements the equations take powers."""
    makers = {var: eqn for eqn in eqns for var in eqn.outvars}

    def base(eqn: JaxprEqn) -> Any:
        if eqn.primitive is not p.mul_p:
            return None if eqn.primitive.name in _LINEAR else eqn.invars[0]
        x, y = ((maker.invars[0] if (maker := _maker(atom, makers)) else atom) for atom in eqn.invars)
        return x if x is y else None  # of x * x, and of (x * c) * x

    return [atom for atom in dict.fromkeys(map(base, eqns)) if isinstance(atom, Var) and atom not in makers]


def _equations_of_norm(root: JaxprEqn, makers: _Makers) -> list[JaxprEqn]:
    """Return the equations from powers to their root, if only sums, weights, masks and quotients lie between.

    The order is above 1. A divisor that is computed lies behind the sums: a sum of quotients, of both signs, may be 0
    where no power is.

    Of `jax.numpy.linalg.vector_norm` of order 3 they are ``b = abs a;  c = pow b 3.0;  d = reduce_sum c;  pow d 1/3``.
    """
    exponent = _exponent(root, makers)
    if not 0 < exponent < 1 or not (behind := _behind(root.invars[0], exponent, makers)):
        return []
    reads = {var: [atom for atom in eqn.invars if not isinstance(atom, Literal)] for var, eqn in behind.items()}
    in_order = [behind[var] for var in graphlib.TopologicalSorter(reads).static_order() if var in behind]
    return [] if _adds_up_quotients(in_order, makers) else [*in_order, root]


def _adds_up_quotients(eqns: Iterable[JaxprEqn], makers: _Makers) -> bool:
    """Return whether there is a sum behind a divisor that is computed."""

    def divides(eqn: JaxprEqn) -> bool:
        return eqn.primitive is p.div_p and not _is_number(eqn.invars[1], makers, _is_weight)

    behind_divisor = itertools.dropwhile(lambda eqn: not divides(eqn), eqns)
    return any(eqn.primitive.name in _SUMS or len(_terms(eqn, makers)) > 1 for eqn in behind_divisor)


def _behind(total: Any, exponent: float, makers: _Makers) -> dict[Any, JaxprEqn]:
    """Map the variables from powers, of which ``exponent`` takes the root, to ``total`` to their equations.

    It is empty if ``total`` is no sum of powers. Of ``s = x * x;  t = y * y;  u = add s t`` the terms of u are s and t,
    which are the powers of x and y. So these three are mapped, and x and y are the bases.
    """
    pending: list[Any] = [total]
    behind: dict[Any, JaxprEqn] = {}
    bases: set[Any] = set()
    while pending:
        atom = pending.pop()
        if not (eqn := _maker(atom, makers)) or len(eqn.outvars) > 1:
            return {}
        if atom in behind:
            continue
        if terms := _terms(eqn, makers):
            behind.update(dict.fromkeys(eqn.outvars, eqn))
            pending += terms
        elif eqns := _equations_of_power(eqn, exponent, makers):
            behind.update((var, new) for new in eqns for var in new.outvars)
            bases.add(eqns[0].invars[0])
        else:
            return {}
    # Else it is a sum of powers of several orders, as ``s + s * s`` of ``s = x * x``.
    return behind if bases.isdisjoint(behind) else {}


def _equations_of_power(power: JaxprEqn, exponent: float, makers: _Makers) -> list[JaxprEqn]:
    """Return the equations of a power, or of a sum of powers, that is 0 only where all elements are, if it is one.

    ``exponent`` takes its root.
    """
    if power.primitive in (p.mul_p, p.dot_general_p) and _are_same(power.invars, makers):
        power = power.replace(invars=power.invars[:1] * 2)  # x[0] * x[0] has two slices of x
    squared = _squared_size(power, makers) or _scaled(power, makers)
    order = 2 if squared else _exponent(power, makers)
    if order <= 1 or exponent != np.asarray(1 / order, power.outvars[0].aval.dtype):  # type: ignore[attr-defined]
        return []
    absolute = _maker(power.invars[0], makers)
    if not squared and absolute and absolute.primitive is p.abs_p:
        return [absolute, power]
    return [] if order % 2 else [*squared, power]  # a sum of odd powers may be 0 where they are not


def _terms(eqn: JaxprEqn, makers: _Makers) -> list[Any]:
    """Return the operands that ``eqn`` adds up, scales, divides, places or bounds by 0, if it does no more than that.

    Of each of these it is x, or x and y. As sums of powers are not negative, the bound changes none::

        add x y        add x 0        mul x 0.5        div x n        reduce_sum x        where(mask, x, y)
        max x 0        relu x         reshape x        gather x i     concatenate x y     where(mask, x, 0)
    """
    if eqn.primitive is p.add_p:  # Python's sum begins with 0, and so do the moments of an optimizer
        return [atom for atom in eqn.invars if not _is_0(atom, makers)]
    if eqn.primitive is p.mul_p:
        pairs = zip(eqn.invars, eqn.invars[::-1], strict=True)
        return [x for x, factor in pairs if _is_number(factor, makers, _is_weight)]
    if eqn.primitive.name in (*_SUMS, "div"):
        return eqn.invars[:1]
    return _bounded_by_0(eqn, makers) or _operands(eqn, _PLACING, makers)


def _operands(eqn: JaxprEqn, names: Sequence[str], makers: _Makers) -> list[Any]:
    """Return the floats that ``eqn`` reads, but for numbers, if only primitives of these ``names`` make floats in it.

    No number in it is negative. NaN is none of these: `jax.numpy.var` masks by it.
    """
    making = [each for each in equations(eqn) if any(is_floating(var.aval) for var in each.outvars)]
    # A gather that fills has a number of its own, which stays as it is.
    if any(each.primitive.name not in (*names, p.jit_p.name) or each.params.get("fill_value") for each in making):
        return []
    floats = [atom for each in making for atom in each.invars if is_floating(atom.aval)]
    if any(_is_number(atom, makers, lambda number: number < 0) for atom in floats):
        return []
    operands = [atom for atom in eqn.invars if is_floating(atom.aval)]
    return [atom for atom in operands if not _is_number(atom, makers, lambda _: True)]


def _bounded_by_0(eqn: JaxprEqn, makers: _Makers) -> list[Any]:
    """Return what ``eqn``, or the call that it is, as of `jax.nn.relu`, takes the maximum of with a number up to 0."""
    computing = [each for each in equations(eqn) if each.primitive.name not in (*_RESHAPING, *_CALLS)]
    if [each.primitive for each in computing] != [p.max_p]:
        return []
    within = [] if computing[0] is eqn else computing[0].invars
    numbers = [atom for atom in (*eqn.invars, *within) if _is_number(atom, makers, lambda number: number <= 0)]
    operands = [atom for atom in eqn.invars if not _is_number(atom, makers, lambda _: True)]
    return operands if len(operands) == len(numbers) == 1 else []


def _is_0(atom: Any, makers: _Makers) -> bool:
    """Return whether ``atom`` is the number 0, a product with it, or a power, as of the imaginary part of a number."""
    product = _maker(atom, makers)
    multiplies = (p.mul_p, p.square_p, p.integer_pow_p)
    factors = product.invars if product and product.primitive in multiplies else [atom]
    return any(_is_number(factor, makers, lambda number: number == 0) for factor in factors)


def _is_weight(number: Any) -> bool:
    return bool(number > 0)


def _is_number(atom: Any, makers: _Makers, condition: Callable[[Any], bool]) -> bool:
    """Return whether ``atom`` is a number, for all elements one, for which the condition holds."""
    number = _before_reshaping(atom, makers)
    return isinstance(number, Literal) and bool(condition(number.val))


def _are_same(atoms: Sequence[Any], makers: _Makers) -> bool:
    """Return whether two operands are the same part of one variable."""
    while atoms[0] is not atoms[1]:
        first, second = (_maker(atom, makers) for atom in atoms)
        if not (first and second and first.primitive.name in _PARTS):
            return False
        if first.primitive is not second.primitive or first.params != second.params:
            return False
        atoms = [first.invars[0], second.invars[0]]
    return True


def _squared_size(real: JaxprEqn, makers: _Makers) -> list[JaxprEqn]:
    """Return the equations of ``x * conj(x)``, of complex numbers, if ``real`` takes the real part of that."""
    product = _maker(real.invars[0], makers) if real.primitive is p.real_p else None
    if product is None or product.primitive is not p.mul_p:
        return []
    for conjugate, x in (product.invars, product.invars[::-1]):
        conj = _maker(conjugate, makers)
        if conj and conj.primitive is p.conj_p and conj.invars[0] is x:
            return [conj, product]
    return []


def _scaled(square: JaxprEqn, makers: _Makers) -> list[JaxprEqn]:
    """Return the equations of ``c * x``, x as their first operand, if ``square`` is ``(c * x) * x`` or has two such."""
    if square.primitive is not p.mul_p or square.invars[0] is square.invars[1]:
        return []

    def readings(factor: Any) -> list[tuple[Any, list[Any]]]:
        """Return ``factor``, and if it is ``c * x`` for a number c, the x, with the equation and c."""
        scaling = _maker(factor, makers)
        pairs = (scaling.invars, scaling.invars[::-1]) if scaling and scaling.primitive is p.mul_p else ()
        weighted = [(x, [(scaling, number)]) for number, x in pairs if _is_number(number, makers, _is_weight)]
        return [(factor, []), *weighted]

    for (x, first), (y, second) in itertools.product(*map(readings, square.invars)):
        if isinstance(x, Var) and _are_same((x, y), makers):
            return [scaling.replace(invars=[y if first else x, number]) for scaling, number in first + second]
    return []


def _exponent(eqn: JaxprEqn, makers: _Makers) -> Any:
    """Return the exponent of a power or a root of real variables, 0 if ``eqn`` is none."""
    # A sum of squares of complex numbers is 0 elsewhere too, as 1 + 1j ** 2.
    if not eqn.invars or isinstance(eqn.invars[0], Literal) or not is_floating(eqn.invars[0].aval):
        return 0
    if eqn.primitive is p.pow_p:
        exponent = _before_reshaping(eqn.invars[1], makers)
        return exponent.val if isinstance(exponent, Literal) else 0
    if eqn.primitive in (p.mul_p, p.dot_general_p) and eqn.invars[0] is not eqn.invars[1]:
        return 0
    if eqn.primitive is p.dot_general_p:  # where all axes are in it, each result is a sum of squares
        (summed, summed_of_second), (batch, batch_of_second) = eqn.params["dimension_numbers"]
        is_of_squares = (summed, batch) == (summed_of_second, batch_of_second)
        number_of_axes = eqn.invars[0].aval.ndim  # type: ignore[attr-defined]
        return 2 if is_of_squares and len(summed) + len(batch) == number_of_axes else 0
    if eqn.primitive is p.mul_p:
        return 2
    return {"sqrt": 0.5, "square": 2, "integer_pow": eqn.params.get("y")}.get(eqn.primitive.name, 0)


def _logarithm_of_logsumexp(log: JaxprEqn, makers: _Makers) -> JaxprEqn | None:
    """Return the logarithm of the sum itself, if ``log`` is what `jax.nn.logsumexp` takes, of operands without weights.

    The sum is that of exponentials, ``exp(x - stop_gradient(where(isfinite(largest), largest, 0)))``. So one of them is
    1 unless all operands are minus infinity, and a sum of 0 says that they are. It is not negative, and the absolute
    value that JAX takes of it does nothing.
    """
    # JAX 0.10 traces logsumexp(x) to this program; ``log`` is its line before the last:
    #     b = reduce_max(x);  c = max(-inf, b);  d = is_finite(c);  e = select_n(d, 0, c);  f = stop_gradient(e)
    #     i = exp(sub(x, f));  j = reduce_sum(i);  k = abs(j);  l = log(k);  add(l, f)
    # Only with the guard d is a sum of 0 what it says: a logarithm of another sum of exponentials may underflow.
    absolute = _maker(log.invars[0], makers)
    of_sum = log.replace(invars=absolute.invars) if absolute and absolute.primitive is p.abs_p else log
    difference = _made_by(of_sum.invars[0], ("reduce_sum", "exp", "sub"), makers)
    guard = difference and _made_by(difference.invars[1], ("stop_gradient", "select_n", "is_finite"), makers)
    return of_sum if guard else None


def _made_by(atom: Any, names: Sequence[str], makers: _Makers) -> JaxprEqn | None:
    """Follow ``atom`` back, by first operands, through equations of these names; return the last, if all are so."""
    for name in names:
        maker = _maker(_before_reshaping(atom, makers), makers)
        if maker is None or maker.primitive.name != name:
            return None
        atom = maker.invars[0]
    return maker


def _before_reshaping(atom: Any, makers: _Makers) -> Any:
    while (maker := _maker(atom, makers)) and maker.primitive.name in _RESHAPING:
        (atom,) = maker.invars
    return atom


def _before_adding_0(atom: Any, makers: _Makers) -> Any:
    while (maker := _maker(atom, makers)) and maker.primitive is p.add_p and len(terms := _terms(maker, makers)) == 1:
        if terms[0].aval.shape != atom.aval.shape:
            break
        (atom,) = terms
    return atom


def _maker(atom: Any, makers: _Makers) -> JaxprEqn | None:
    return None if isinstance(atom, Literal) else makers.get(atom)


_SUMS = ("reduce_sum", "reduce_window_sum", "psum", "psum_invariant")
_RESHAPING = ("broadcast_in_dim", "reshape", "squeeze", "transpose", "convert_element_type", "pvary", "reshard")
_PARTS = (*_RESHAPING, "slice")
_PLACING = (*_PARTS, "concatenate", "dynamic_slice", "gather", "pad", "rev", "select_n", "stack", "tile")
_SELECTING = ("max", "min", "reduce_max", "reduce_min", "cummax", "cummin", "sort", "top_k")
_CALLS = (p.jit_p.name, p.custom_jvp_call_p.name)
_LINEAR = (*_PLACING, *_SUMS, *_CALLS, "add", "mul", "div", "max")
"""What lies between the powers and the root. Products and maxima have a number. Calls place, or are of a maximum."""


def _logaddexp_of(eqn: JaxprEqn) -> Callable[..., jax.Array] | None:
    """Return the function, `jax.numpy.logaddexp` or ``logaddexp2`` of real numbers, that ``eqn`` calls, by its body."""
    # Most calls are ruled out at once, and for the others the functions are traced.
    avals = [atom.aval for atom in eqn.invars]
    if eqn.primitive is not p.custom_jvp_call_p or len(avals) != 2:
        return None
    if not all(map(is_floating, avals)) or avals[0].dtype != avals[1].dtype:  # type: ignore[attr-defined]
        return None  # both functions convert their operands before this call
    if all(inner.primitive is not p.log1p_p for inner in eqn.params["call_jaxpr"].eqns):
        return None
    return next((function for function in (jnp.logaddexp, jnp.logaddexp2) if calls(eqn, function)), None)


def _elementwise(eqn: JaxprEqn) -> Callable[..., Any]:
    """Return the function of ``eqn``, of arrays of any shape."""
    return functools.partial(eqn.primitive.bind, **eqn.params)


def _constant_at_0(root: JaxprEqn) -> Callable[..., jax.Array]:
    return _constant_where(lambda total, *_: total == 0, root, _elementwise(root))


def _constant_where(
    is_constant: Callable[..., jax.Array], eqn: JaxprEqn, function_of_arrays: Callable[..., Any]
) -> Callable[..., jax.Array]:
    """Return what ``eqn`` computes, with the slope 0 where the function of its operands says so.

    Slopes are those of ``function_of_arrays``, which takes operands of one shape: ``logaddexp(x, 0)``, a softplus, has
    an array and a number.
    """
    call = computed(eqn)

    @jax.custom_jvp
    def function(*operands: jax.Array) -> jax.Array:
        (value,) = call(*operands)
        return value

    @function.defjvp
    def _(operands: Any, tangents: Any) -> Any:
        is_flat = is_constant(*operands)
        elsewhere = [jnp.where(is_flat, 1, x) for x in operands]  # there the slope is a number, which the 0 meets
        moved = [jnp.where(is_flat, 0, 1).astype(v.dtype) * v for v in tangents]
        return function(*operands), jax.jvp(function_of_arrays, elsewhere, moved)[1]

    return function
