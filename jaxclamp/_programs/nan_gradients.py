"""Replaces NaN in a gradient that is there only because a cotangent of 0 met a slope that is not finite.

``where(x > 0, sqrt(x), 0)`` is 0 near -1, and so is its slope. Reverse mode finds NaN: the branch that is not taken
gets the cotangent 0, and multiplies it by the slope of the root at -1, which is NaN. The same happens in
``sqrt(x) ** 2`` at 0, where the cotangent is ``2 * sqrt(0)``, and the slope infinite. But this function is x, and its
slope is 1. So a cotangent is 0 for two reasons. Either nothing reads the number, or it is multiplied by a number that
happens to be 0. Only the first kind of 0 may win.

A gradient is a sum over the paths by which an entry reaches the result, of the products of the slopes along each. A
select cuts the paths through the branch that it does not take. A product cuts none, not even one with 0. Hence the
rule:

    Where the gradient is NaN, and all slopes on the paths that are left are finite, it is the sum over these paths.

Two more reverse passes compute both. The first one passes on 1 for each finite slope, and NaN for any other one. So it
finds 0 for an entry without a path, a positive number where all slopes are finite, and else NaN. The second one takes 0
for the product of a cotangent of 0 and a slope that is not finite. For ``where(x[0] > 0, sqrt(x[0]), 0) + sqrt(x[1]) **
2 + x[2]`` at (-1, 0, 5)::

    the gradient        (NaN, NaN, 1)
    the first pass      (0,   NaN, 1)   no path from x[0]; one from x[1], on which the slope of a root is infinite
    the second pass     (0,   0,   1)
    what is returned    (0,   NaN, 1)

Forward mode tells the two kinds of 0 apart by itself: a select drops the tangent of the branch that is not taken,
however infinite, and 0 times an infinite tangent stays NaN. The first pass is its mirror image, since forward mode
tells it of a direction alone, and not of an entry. Along a direction with a 0 in it, this 0 meets the infinite slopes
of that entry.

The first pass runs only if the gradient has a NaN, and the second only if one of these is to be replaced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.extend.core import JaxprEqn, Var, jaxprs_in_params
from jax.extend.core import primitives as p

from jaxclamp._jax_versions import scan_sizes
from jaxclamp._rules.operands import is_floating
from jaxclamp._transforms.jaxprs import WITH_BODIES, Descend, computed, inlined, transformed

Tree: TypeAlias = Any
Compute: TypeAlias = Callable[..., jax.Array]
"""What an equation computes, of a cotangent and a slope in this order."""


def mended(gradient: Tree, pull: Callable[[jax.Array], Tree], one: jax.Array) -> Tree:
    """Return the gradient, ``pull(one)``, with NaN replaced where the rule has a number."""
    leaves, structure = jax.tree.flatten(gradient)
    is_nan = [jnp.isnan(leaf) for leaf in lax.stop_gradient(leaves)]

    def mend() -> list[jax.Array]:
        # Both passes are other versions of the same reverse pass, so that they meet the same slopes.
        # The certificate says yes or no: to a second derivative it is a constant.
        paths = jax.tree.leaves(lax.stop_gradient(_Paths().of(pull)(one)))
        is_mendable = [nan & ~jnp.isnan(path) for nan, path in zip(is_nan, paths, strict=True)]

        def with_sums() -> list[jax.Array]:
            sums = jax.tree.leaves(_Guarded().of(pull)(one))
            return [jnp.where(*parts) for parts in zip(is_mendable, sums, leaves, strict=True)]

        # In a branch of its own, XLA gives the second pass the memory of the first, of which the flags alone are left.
        return if_any(is_mendable, with_sums, leaves)

    return jax.tree.unflatten(structure, if_any(is_nan, mend, leaves))


def if_any(
    flags: Sequence[jax.Array], compute: Callable[[], list[jax.Array]], leaves: list[jax.Array]
) -> list[jax.Array]:
    """Return what ``compute`` returns if a flag is set, else the leaves."""
    # Outside of jit the flags are known, and Python chooses. Inside, a cond does, so that no pass runs in vain.
    needed = _anywhere(functools.reduce(jnp.logical_or, map(jnp.any, flags), jnp.array(False)))
    if not isinstance(needed, jax.core.Tracer):
        return compute() if needed else leaves
    return lax.cond(needed, compute, lambda: leaves)


def _anywhere(flag: jax.Array) -> jax.Array:
    """Return whether the flag is set in any lane of a ``vmap``, so that a ``cond`` by it stays one, or on any device.

    The devices of a ``shard_map`` have to take the same branch, in which they may communicate.
    """
    if axes := tuple(jax.sharding.get_abstract_mesh().manual_axes):
        flag = lax.pmax(flag.astype(jnp.int32), axes) > 0
    return _in_any_lane(flag)


@custom_vmap
def _in_any_lane(flag: jax.Array) -> jax.Array:
    return flag


@_in_any_lane.def_vmap
def _(_axis_size: int, _is_batched: Any, flags: jax.Array) -> tuple[jax.Array, bool]:
    return _in_any_lane(jnp.any(flags)), False


class _ReversePass:
    """A rewriting of a reverse pass, which is a linear program of a cotangent.

    Whatever operation a slope is of, it occurs in a product, a quotient or the like: of the operands of an equation one
    depends on the cotangent, and the other one is the slope.
    """

    def __init__(self) -> None:
        self._cotangents: set[Var] = set()
        """What depends on the cotangent that the program begins with, in bodies too."""

    def of(self, pull: Callable[[jax.Array], Tree]) -> Callable[[jax.Array], Tree]:
        """Return ``pull``, a function that `jax.vjp` returned, rewritten."""
        # Of where(x > 0, sqrt(x), 0) it is the program c -> mul(b, select_n(a, 0, c)). It reads what the forward pass
        # left, a: x > 0 and b: 1 / (2 sqrt(x)), as constants. The cotangents are c and what is computed of it.
        return transformed(lambda cotangent: pull(cotangent), self._replace, self._prepared)

    def _prepared(self, jaxpr: Any) -> Any:
        self._follow(jaxpr, jaxpr.invars)
        return jaxpr

    def _replace(self, eqn: JaxprEqn, descend: Descend) -> list[JaxprEqn]:
        if not any(map(self.is_cotangent, eqn.invars)):
            return [eqn]
        return descend(eqn) if _passes_inputs_on(eqn) else self.replace_linear(eqn)

    def replace_linear(self, eqn: JaxprEqn) -> list[JaxprEqn]:
        """Return what comes in the place of an equation of cotangents without a body."""
        raise NotImplementedError

    def is_cotangent(self, atom: Any) -> bool:
        return isinstance(atom, Var) and atom in self._cotangents

    def is_product(self, eqn: JaxprEqn) -> bool:
        return eqn.primitive in _PRODUCTS and sum(map(self.is_cotangent, eqn.invars)) == 1

    def any_cotangent(self, eqn: JaxprEqn, operands: Sequence[jax.Array], has: Callable[..., jax.Array]) -> jax.Array:
        """Say whether an entry of a cotangent has a property; of triangular systems, for each matrix."""
        entries = [has(x) for x, atom in zip(operands, eqn.invars, strict=True) if self.is_cotangent(atom)]
        if eqn.primitive is p.triangular_solve_p:
            return jnp.any(entries[0], (-2, -1), keepdims=True)
        return functools.reduce(jnp.logical_or, map(jnp.any, entries))

    def of_cotangent_and_slope(self, eqn: JaxprEqn, rule: Callable[[Compute, Any, Any], Any]) -> list[JaxprEqn]:
        """Return the equations of a rule for two operands, in whichever order ``eqn`` has them."""
        compute = functools.partial(eqn.primitive.bind, **eqn.params)
        # So it is in every division, whose slope is one over the second operand.
        if self.is_cotangent(eqn.invars[0]):
            return inlined(functools.partial(rule, compute), eqn)
        return inlined(lambda slope, ct: rule(lambda ct, slope: compute(slope, ct), ct, slope), eqn)

    def _follow(self, jaxpr: Any, cotangents: Iterable[Any]) -> None:
        self._cotangents.update(cotangents)
        for eqn in jaxpr.eqns:
            if any(map(self.is_cotangent, eqn.invars)):
                for body in jaxprs_in_params(eqn.params) if _passes_inputs_on(eqn) else ():
                    self._follow_into(eqn, body)
                self._cotangents.update(eqn.outvars)

    def _follow_into(self, eqn: JaxprEqn, body: Any) -> None:
        inputs = eqn.invars[len(eqn.invars) - len(body.invars) :]  # a cond has an index before them
        self._follow(body, [var for var, atom in zip(body.invars, inputs, strict=True) if self.is_cotangent(atom)])
        while carried := self._carried(eqn, body):
            self._follow(body, carried)

    def _carried(self, eqn: JaxprEqn, body: Any) -> list[Any]:
        """List inputs of a step of a ``scan`` that are cotangents only since what an earlier step returns is one."""
        if eqn.primitive is not p.scan_p:
            return []
        of_constants, of_carry = scan_sizes(eqn)
        # The results of a step are the new carry, and behind it what is stacked.
        pairs = zip(body.invars[of_constants : of_constants + of_carry], body.outvars, strict=False)
        # In the first step a carry may be a number, as zeros to which each step adds a cotangent. As long as that makes
        # a cotangent of one more carry, the body is followed again.
        return [var for var, result in pairs if self.is_cotangent(result) and not self.is_cotangent(var)]


def _passes_inputs_on(eqn: JaxprEqn) -> bool:
    """Return whether the inputs of the bodies of ``eqn`` are its own, so that they are known from these."""
    # The condition of a while reads constants of its own: its inputs are not the last ones of the equation.
    return eqn.primitive.name in WITH_BODIES and eqn.primitive is not p.while_p


class _Guarded(_ReversePass):
    """A reverse pass in which a cotangent of 0 does not meet a slope that is not finite."""

    def replace_linear(self, eqn: JaxprEqn) -> list[JaxprEqn]:
        if eqn.primitive.name in _SOLVES:
            return inlined(functools.partial(self._solution, eqn), eqn)
        if self.is_product(eqn):
            return self.of_cotangent_and_slope(eqn, _quotient if eqn.primitive is p.div_p else _product)
        return [eqn]

    def _solution(self, eqn: JaxprEqn, *operands: jax.Array) -> list[jax.Array]:
        is_on_path = self.any_cotangent(eqn, operands, lambda cotangent: cotangent != 0)
        return [jnp.where(is_on_path, result, 0) for result in computed(eqn)(*operands)]


_PRODUCTS = (p.mul_p, p.dot_general_p, p.conv_general_dilated_p, p.div_p)
_SOLVES = (p.triangular_solve_p.name, p.linear_solve_p.name)


def _product(compute: Compute, cotangent: jax.Array, slope: jax.Array) -> jax.Array:
    """Return a sum of products, without those of 0 and a number that is not finite."""
    is_finite = jnp.isfinite(slope)
    of_finite = compute(cotangent, jnp.where(is_finite, slope, 0))
    # How many products are of a cotangent that is not 0 and a slope that is not finite: these count.
    singular = compute((cotangent != 0).astype(cotangent.dtype), (~is_finite).astype(slope.dtype))
    return jnp.where(singular == 0, of_finite, compute(cotangent, slope))


def _quotient(compute: Compute, cotangent: jax.Array, divisor: jax.Array) -> jax.Array:
    # Dividing by 1 leaves the 0.
    return compute(cotangent, jnp.where((cotangent == 0) & ~jnp.isfinite(1 / divisor), 1, divisor))


class _Paths(_ReversePass):
    """A reverse pass that finds 0 for an entry without a path, NaN if a slope on a path is not finite, and else more.

    No path cancels another, as all of them count as positive numbers, or NaN.
    """

    def replace_linear(self, eqn: JaxprEqn) -> list[JaxprEqn]:
        if self.is_product(eqn):
            rule = _paths_of_quotient if eqn.primitive is p.div_p else _paths_of_product
            return self.of_cotangent_and_slope(eqn, rule)
        if eqn.primitive.name in _SUMS:
            return inlined(functools.partial(self._sum, eqn), eqn)
        # A custom_vjp may select by its cotangent, where(ct > 0, a, b): then all of the result depends on that.
        if eqn.primitive.name in _MOVES and not (eqn.primitive is p.select_n_p and self.is_cotangent(eqn.invars[0])):
            return [eqn]
        return inlined(functools.partial(self._from_all_to_all, eqn), eqn)

    def _sum(self, eqn: JaxprEqn, *operands: jax.Array) -> jax.Array:
        """Return the sum of the paths, whichever signs their terms have."""
        cotangents = [x for x, atom in zip(operands, eqn.invars, strict=True) if self.is_cotangent(atom)]
        return functools.reduce(jnp.add, cotangents)

    def _from_all_to_all(self, eqn: JaxprEqn, *operands: jax.Array) -> list[jax.Array]:
        """Return a path from each result to each cotangent, for what mixes all of them, such as a linear solve.

        The slopes count as finite where the results are.
        """
        is_on_path = self.any_cotangent(eqn, operands, lambda cotangent: cotangent != 0)
        is_nan = self.any_cotangent(eqn, operands, jnp.isnan)

        def paths(result: jax.Array) -> jax.Array:
            is_finite = jnp.isfinite(result)
            all_finite = jnp.all(is_finite, (-2, -1), keepdims=True) if is_on_path.ndim else jnp.all(is_finite)
            count = jnp.where(all_finite & ~is_nan, jnp.ones_like(result), jnp.nan)
            return jnp.where(is_on_path, count, 0)

        return [paths(result) if is_floating(result) else result for result in computed(eqn)(*operands)]


def _paths_of_product(compute: Compute, cotangent: jax.Array, slope: jax.Array) -> jax.Array:
    # With 1 for each edge of a graph, products of matrices count paths. How many there are does not matter: flags in
    # place of counts, layer by layer, do not overflow.
    def leads(ends: jax.Array, steps: jax.Array) -> jax.Array:
        return compute(ends.astype(cotangent.dtype), steps.astype(slope.dtype)) != 0

    is_on_path, is_finite = cotangent != 0, jnp.isfinite(slope)
    everywhere = jnp.ones_like(is_finite)
    paths = leads(is_on_path, everywhere).astype(compute(cotangent, slope).dtype)
    is_nan = leads(is_on_path, ~is_finite) | leads(jnp.isnan(cotangent), everywhere)
    return jnp.where(is_nan, jnp.nan, paths)


def _paths_of_quotient(_: Compute, cotangent: jax.Array, divisor: jax.Array) -> jax.Array:
    return jnp.where((cotangent == 0) | jnp.isfinite(1 / divisor), cotangent, jnp.nan)


_SUMS = frozenset({"add", "add_any", "sub", "neg"})
_MOVES = frozenset(
    {
        *("reduce_sum", "cumsum", "reduce_window_sum", "select_n", "broadcast_in_dim", "reshape", "transpose"),
        *("squeeze", "slice", "rev", "pad", "concatenate", "split", "stack", "unstack", "tile"),
        *("dynamic_slice", "dynamic_update_slice", "gather", "scatter", "scatter-add", "select_and_scatter_add"),
        *("copy", "convert_element_type", "reduce_precision", "real", "imag", "complex", "conj"),
        *("device_put", "layout_constraint", "sharding_constraint", "reshard", "optimization_barrier", "psum"),
        *("psum_invariant", "pbroadcast", "pvary", "all_gather", "all_gather_invariant", "all_gather_reduced"),
        *("reduce_scatter", "unreduced_psum", "ppermute", "all_to_all"),
    }
)
"""Primitives that move numbers, or add them, and so leave the number of paths what it is."""
