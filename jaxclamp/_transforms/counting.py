"""The transformation `count_ties`: a program that returns, beside its result, how often it was on a tie, line by line.

The counts are computed inside of the program, as its results are, so that all of JAX works on it. Behind each equation
that can tie stands another one, which counts. For ``maximum(x, 0)`` with x of shape (3,)::

    b = maximum a 0.0           b = maximum a 0.0
                                n = sum(a == 0.0)

At the end, the numbers become an array of rows, ``[[1, 0, n]]``. A body, such as that of a ``scan``, returns its array
as one more result, and the equation that runs the body passes their sum on. So the program returns one array, with a
row for each counter.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Var, jaxpr_as_fun
from jax.extend.core import primitives as p

from jaxclamp._jax_versions import (
    closed,
    manual_axes,
    scan_sizes,
    unspecified_results,
    warn_of_an_untested_jax,
    with_parts,
)
from jaxclamp._rules.differentiate import DERIVATIVE_SCOPE
from jaxclamp._rules.operands import check_function
from jaxclamp._shared.tie_report import Site, TieReport, Totals
from jaxclamp._transforms.jaxprs import WITH_BODIES, inlined_with_more, moved_on, needed_by_stop_gradient, traced
from jaxclamp._transforms.source_lines import located
from jaxclamp._transforms.tie_sites import Counter, TieSites, is_passed_over

P = ParamSpec("P")
R = TypeVar("R")

Counters: TypeAlias = tuple[tuple[Site, int], ...]
"""For each counter where it counts, and of how many elements each time."""
Counts: TypeAlias = jax.Array
"""A row for each counter: how often it ran, and the ties in two digits of base ``_BASE``, the higher one first.

One number would overflow: a loop over a dataset can meet more ties than 32 bits count, and JAX has 64 only if asked.
"""
Counted: TypeAlias = tuple[list[JaxprEqn], list[Var], Counters] | None
"""What takes the place of an equation with bodies, and counts in these; the variable of the counts; the counters.

None if nothing in the bodies can tie.
"""
_BITS = 20
_BASE = 2**_BITS  # so that the lower digits of up to 2048 devices or terms add up without overflow


@functools.partial(jax.tree_util.register_dataclass, data_fields=["counts"], meta_fields=["counters"])
@dataclass(frozen=True)
class TieCounts:
    """How often lines of a program were on a tie: an array, which can be a result of ``jit``, ``scan`` or ``vmap``.

    Such a result has more axes; `TieCounts.report` adds up along them. Counts of the same program, at arguments of the
    same shapes, add up: ``a + b``.
    """

    counts: Counts
    counters: Counters
    """What each row of ``counts`` counts."""

    @property
    def elements(self) -> jax.Array:
        """For each counter, the elements that were computed, as floats of the shape ``(..., counters)``."""
        return self.counts[..., 0].astype(float) * jnp.array([float(size) for _, size in self.counters])

    @property
    def tied(self) -> jax.Array:
        """For each counter, the elements of them that were on a tie, as floats of the shape ``(..., counters)``."""
        return self.counts[..., 1].astype(float) * _BASE + self.counts[..., 2].astype(float)

    def __add__(self, other: TieCounts) -> TieCounts:
        if self.counters != other.counters:  # a row of one would be added to that of another line
            raise ValueError("TieCounts: the two are of other lines, or of other shapes; add up their reports instead.")
        return dataclasses.replace(self, counts=_added(self.counts, other.counts))

    def __str__(self) -> str:
        return repr(self) if isinstance(self.counts, jax.core.Tracer) else str(self.report())

    def report(self) -> TieReport:
        """Return the counts as numbers, line by line, as `ties` does. It runs outside of ``jit``."""
        if isinstance(self.counts, jax.core.Tracer):
            raise TypeError("TieCounts.report: a report takes values; return the counts from jit, grad or vmap first.")
        rows = np.asarray(self.counts, np.int64).sum(axis=tuple(range(self.counts.ndim - 2)))
        totals = Totals()
        for (site, size), (runs, high, low) in zip(self.counters, rows, strict=True):
            if runs:  # a line that never ran, as in the branch not taken, is in no report
                totals[site] += runs * size, high * _BASE + low
        return TieReport(totals.lines())


def count_ties(fun: Callable[P, R]) -> Callable[P, tuple[R, TieCounts]]:
    """Return the same function, which adds to its result how often it was on a tie, line by line: ``(result, counts)``.

    It counts the ties that `ties` does, by arrays that are computed beside the result. So all of JAX works on it: a
    training step under ``jit``, ``jax.grad(..., has_aux=True)``, ``vmap``, ``scan``, ``checkpoint``, ``shard_map``.

    Args:
      fun: a function of any arguments, as for `min_norm`.

    Returns:
      A function of the same arguments. The counts are a `TieCounts`, whose `TieCounts.report` is a `TieReport`.

    Raises:
      TypeError: ``fun`` is not callable.
      ValueError: ``fun`` writes to its arguments.

    >>> @jax.jit
    ... def value_and_slope(x):
    ...     loss = count_ties(lambda x: jnp.maximum(x, 0.0).sum())
    ...     return jax.value_and_grad(loss, has_aux=True)(x)
    >>> (value, counts), slope = value_and_slope(jnp.array([-1.0, 0.0, 0.0, 3.0]))
    >>> counts.tied.tolist(), counts.elements.tolist()
    ([2.0], [4.0])
    >>> (counts + counts).report().tied
    4
    """
    check_function("count_ties", fun)
    return counting(fun, met_infinity=False)


def counting(fun: Callable[P, R], *, met_infinity: bool) -> Callable[P, tuple[R, TieCounts]]:
    """Return the same function with its counts; with those of reverse passes in it, of 0 that met infinity, or without.

    A reverse pass has a product for each slope, of which most are finite. To look at each is too slow for a training.
    """
    warn_of_an_untested_jax(jax.__version__)

    @functools.wraps(fun)
    def run(*args: P.args, **kwargs: P.kwargs) -> tuple[R, TieCounts]:
        program = traced(fun, *args, **kwargs)
        jaxpr, counters = _Counting(met_infinity).of(program.jaxpr)
        results = jaxpr_as_fun(jaxpr)(*program.arrays)
        counts = results[len(program.jaxpr.outvars)] if counters else _nothing(())
        return program.join_results(results), TieCounts(counts, counters)

    return run


class _Counting:
    """Rewrites a program so that it returns its counts behind its results."""

    def __init__(self, met_infinity: bool) -> None:
        self._sites = TieSites(met_infinity)
        self.of = functools.cache(self._of)  # a body that occurs twice stays one object, which JAX compiles once
        self._count_in = {
            **dict.fromkeys(WITH_BODIES, self._call),
            p.scan_p.name: self._scan,
            p.while_p.name: self._while,
            p.cond_p.name: self._cond,
            "shard_map": self._shard_map,
        }

    def _of(self, jaxpr: Any) -> tuple[Any, Counters]:
        """Return ``jaxpr`` with its counts as one more result, and its counters; without any it stays as it is.

        Of a program with a maximum of 3 elements, and a scan whose body has 2 counters::

            b = maximum a 0.0         b = maximum a 0.0
                                      n = sum(a == 0.0)
            c = scan[body] b          c, rows = scan[counting body] b     2 rows
            return c                  return c, [[1, 0, n], *rows]        3 rows, for the 3 counters
        """
        eqns: list[JaxprEqn] = []
        here: list[tuple[Var, tuple[Site, int]]] = []  # the number of ties at an equation, and its counter
        in_bodies: list[tuple[Var, Counters]] = []  # the rows from the bodies of an equation, and their counters
        stopped = needed_by_stop_gradient(jaxpr)
        for eqn in jaxpr.eqns:
            new = [eqn]
            if not stopped.isdisjoint(eqn.outvars):
                pass  # no gradient depends on it
            elif counter := self._sites.counter(eqn):
                counting, (number,), size = _number_on_tie(counter)
                new += counting
                here.append((number, (counter.site, size)))
            elif counted := self._counted_body(eqn):
                new, (rows,), counters_in_body = counted
                in_bodies.append((rows, counters_in_body))
            eqns += new
        # In the order in which `_joined` puts their rows.
        counters = (*(counter for _, counter in here), *(counter for _, of_body in in_bodies for counter in of_body))
        if not counters:
            return jaxpr, ()
        joining, total = _joined([number for number, _ in here], [rows for rows, _ in in_bodies], eqns[-1])
        return with_parts(jaxpr, eqns=[*eqns, *joining], outvars=[*jaxpr.outvars, *total]), counters

    def _counted_body(self, eqn: JaxprEqn) -> Counted:
        """Count in the bodies of ``eqn``, unless they belong to an op that was counted already."""
        count = self._count_in.get(eqn.primitive.name)
        return count(located(eqn)) if count and not is_passed_over(eqn) else None

    def _call(self, eqn: JaxprEqn) -> Counted:
        """Count in a body that runs once."""
        name = "jaxpr" if "jaxpr" in eqn.params else "call_jaxpr"
        body, counters = self.of(eqn.params[name])
        if not counters:
            return None
        params = {**eqn.params, name: body}
        if eqn.primitive is p.jit_p:
            # Shardings and layouts are listed by result, and there is one result more.
            params |= {name: (*eqn.params[name], *one) for name, one in unspecified_results().items()}
        if eqn.primitive.name == "compute_on":  # so are the memories that results are in
            params["out_memory_spaces"] = (*eqn.params["out_memory_spaces"], jax.memory.Space.Device)
        counts = Var(body.outvars[-1].aval)
        return [eqn.replace(params=params, outvars=[*eqn.outvars, counts])], [counts], counters

    def _scan(self, eqn: JaxprEqn) -> Counted:
        """Count in each step, and carry the sum: stacked, the counts would grow with the number of steps."""
        body, counters = self.of(eqn.params["jaxpr"])
        if not counters:
            return None
        of_constants, of_carry = scan_sizes(eqn)
        settings = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}

        def run(*operands: jax.Array) -> list[jax.Array]:
            fixed, first = operands[:of_constants], operands[of_constants : of_constants + of_carry]

            def step(state: Any, slices: Any) -> Any:
                total, carry = state
                *results, counts = jaxpr_as_fun(body)(*fixed, *carry, *slices)
                return (_added(total, counts), results[:of_carry]), results[of_carry:]

            begin = _nothing(counters), list(first)
            (total, last), stacked = lax.scan(step, begin, operands[of_constants + of_carry :], **settings)
            return [*last, *stacked, total]

        return *inlined_with_more(run, eqn), counters

    def _while(self, eqn: JaxprEqn) -> Counted:
        """Count in a loop, and in each test of its condition.

        JAX takes nothing from a condition but its bool. So each pass computes the next test, and carries its counts.
        """
        of_condition, of_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        (condition, in_condition), (body, in_body) = map(self.of, (eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]))
        counters = in_condition + in_body
        if not counters:
            return None

        def run(*operands: jax.Array) -> list[jax.Array]:
            known, fixed = operands[:of_condition], operands[of_condition : of_condition + of_body]

            def test(carry: Any) -> tuple[jax.Array, Counts]:
                holds, *counts = jaxpr_as_fun(condition)(*known, *carry)
                return holds, _placed(counts, 0, counters)

            def step(state: Any) -> Any:
                _, held, total, carry = state
                results = jaxpr_as_fun(body)(*fixed, *carry)
                carry, counts = moved_on(held, results[: len(carry)], carry), results[len(carry) :]
                holds, tested = test(carry)
                return jnp.any(holds), holds, _added(total, _placed(counts, len(in_condition), counters), tested), carry

            first = list(operands[of_condition + of_body :])
            holds, total = test(first)
            *_, total, last = lax.while_loop(lambda state: state[0], step, (jnp.any(holds), holds, total, first))
            return [*last, total]

        return *inlined_with_more(run, eqn), counters

    def _cond(self, eqn: JaxprEqn) -> Counted:
        """Count in each branch; the rows of all others are 0, as all branches must return arrays of one shape."""
        branches = [self.of(branch) for branch in eqn.params["branches"]]
        counters = tuple(counter for _, of_branch in branches for counter in of_branch)
        if not counters:
            return None

        def running(branch: Any, before: int) -> Callable[..., list[jax.Array]]:
            def run(*operands: jax.Array) -> list[jax.Array]:
                results = jaxpr_as_fun(branch)(*operands)
                count = len(eqn.outvars)  # behind these are the counts
                return [*results[:count], _placed(results[count:], before, counters)]

            return run

        starts = itertools.accumulate((len(of_branch) for _, of_branch in branches), initial=0)  # the end, too
        runs = [running(branch, before) for (branch, _), before in zip(branches, starts, strict=False)]
        return *inlined_with_more(lambda which, *operands: lax.switch(which, runs, *operands), eqn), counters

    def _shard_map(self, eqn: JaxprEqn) -> Counted:
        """Count in a body that runs on each device, and add up over the devices."""
        axes = manual_axes(eqn)
        counters: Counters = ()

        def on_device(*operands: jax.Array) -> list[jax.Array]:
            nonlocal counters
            body, counters = self.of(eqn.params["jaxpr"])  # here, as the types inside exist in this context alone
            results = jaxpr_as_fun(closed(body))(*operands)
            # Whether there is anything to count is known only now: if not, the array of counts is empty.
            counts = results[-1] if counters else _nothing(())
            return [*results[: len(eqn.outvars)], _carried(lax.psum(counts, tuple(axes)))]

        mapped = {name: eqn.params[name] for name in ("mesh", "in_specs", "check_vma")}
        out_specs = [*eqn.params["out_specs"], jax.P()]
        run = jax.shard_map(on_device, **mapped, out_specs=out_specs, axis_names=axes)
        return *inlined_with_more(run, eqn), counters


def _joined(numbers: Sequence[Var], arrays: Sequence[Var], last: JaxprEqn) -> tuple[list[JaxprEqn], list[Var]]:
    """Return equations that make a row of each number and stack these on the arrays, and the variable of that.

    What is inlined takes its line and its mesh from an equation: from ``last``, which it follows.
    """

    def joined(*operands: jax.Array) -> Counts:
        here = [*map(_in_context, operands)]
        rows = [_rows(here[: len(numbers)])] if numbers else []
        return jnp.concatenate([*rows, *here[len(numbers) :]])

    return inlined_with_more(joined, last.replace(invars=[*numbers, *arrays], outvars=[]))


def _number_on_tie(counter: Counter) -> tuple[list[JaxprEqn], list[Var], int]:
    """Return equations that count the tied elements at one equation, the variable of their number, and that of all."""
    size = 0  # known once `number` is traced

    def number(*operands: jax.Array) -> jax.Array:
        nonlocal size
        with jax.named_scope(DERIVATIVE_SCOPE):  # so that another count does not count the maxima in here
            on_tie = counter.on_tie(*operands)
            size = on_tie.size
            return jnp.sum(on_tie, dtype=jnp.int32)

    counting, variable = inlined_with_more(number, counter.reads.replace(outvars=[]))
    return counting, variable, size


@jax.jit  # one program, where the rest runs operation by operation
def _rows(numbers: Sequence[jax.Array]) -> Counts:
    """Return the counts of counters that ran once, from their numbers of ties."""
    tied = jnp.stack([*map(_varying, numbers)])
    return _carried(jnp.stack([jnp.ones_like(tied), jnp.zeros_like(tied), tied], axis=-1))


def _nothing(counters: Counters) -> Counts:
    return _varying(jnp.zeros((len(counters), 3), jnp.int32))


def _placed(counts: Sequence[Counts], before: int, counters: Counters) -> Counts:
    """Return rows for all ``counters``: ``counts`` from the row ``before`` on, if there are any, and else nothing."""
    if not counts:
        return _nothing(counters)
    # Padded rather than set by `.at`, whose empty array of indices crashes XLA in a `shard_map` of JAX 0.11.2.
    return jnp.pad(counts[0], ((before, len(counters) - before - len(counts[0])), (0, 0)))


def _added(*counts: Counts) -> Counts:
    return _carried(functools.reduce(jnp.add, counts))


def _carried(counts: Counts) -> Counts:
    """Return the counts with what is above the lower digit added to the higher one.

    >>> _carried(jnp.array([1, 0, 2**20 + 3])).tolist()
    [1, 1, 3]
    """
    runs, high, low = (counts[..., column] for column in range(3))
    # Shifted and masked, as no count is negative: a division that rounds down would compile to a dozen operations.
    return jnp.stack([runs, high + (low >> _BITS), low & (_BASE - 1)], axis=-1)


def _in_context(counts: Counts) -> Counts:
    """Return the counts as those of the mesh in this context; `jax.sharding.auto_axes` computes in another one."""
    of_counts, here = jax.typeof(counts).sharding.mesh, jax.sharding.get_abstract_mesh()
    return counts if of_counts == here or of_counts.empty or here.empty else jax.sharding.reshard(counts, jax.P())


def _varying(counts: Counts) -> Counts:
    """Return the counts as those of this device, in a ``shard_map``, so that those of all branches are of one type."""
    axes = set(jax.sharding.get_abstract_mesh().manual_axes) - jax.typeof(counts).manual_axis_type.varying
    return lax.pcast(counts, tuple(axes), to="varying") if axes else counts
