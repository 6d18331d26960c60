"""Module boundaries in programs of JAX: marked while a model is traced, opened before it is differentiated.

A gradient at a boundary is that with respect to a zero added there. So a model that calls ``a`` on ``x`` is traced to

    y = boundary[a, inputs] x        z = sin y        w = boundary[a, outputs] z        return w

and opened to a program that takes the zeros first, and returns what crossed last:

    0a, 0b, x:        y = x + 0a        z = sin y        w = z + 0b        return w, y, w
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Primitive, Var, jaxpr_as_fun, jaxprs_in_params
from jax.extend.core import primitives as p
from jax.interpreters import ad, batching, mlir

from interop.comparison.leaves import eps_of
from interop.comparison.models.layers import CallRecorder, Direction, Key, Layer, Moment, Span
from jaxclamp._jax_versions import closed, with_parts
from jaxclamp._transforms.jaxprs import equations, inlined

boundary_p = Primitive("boundary")
"""The identity, at a boundary of a module; under `jax.vmap` the new axis comes first."""
boundary_p.def_impl(lambda x, *, key: x)  # those of integers stay in programs, which `ties` runs
boundary_p.def_abstract_eval(lambda x, *, key: x)
ad.deflinear2(boundary_p, lambda cotangent, x, *, key: [cotangent])
mlir.register_lowering(boundary_p, lambda context, x, *, key: [x])


def _batched(arrays: Any, axes: Any, *, key: Key) -> tuple[Any, int]:
    # Axis 0 is that of the samples in the libraries that need no vmap, with whose arrays these are compared.
    return boundary_p.bind(jnp.moveaxis(arrays[0], axes[0], 0), key=key), 0


batching.primitive_batchers[boundary_p] = _batched

_INLINED = {p.jit_p: "jaxpr", p.remat_p: "jaxpr", p.closed_call_p: "call_jaxpr"}
"""Primitives whose body is inlined, and the parameter that holds it; loops are not, as their body runs many times."""


def new_recorder() -> CallRecorder:
    """Return a recorder for a model of JAX that is being traced."""

    def mark(key: Key, leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return None
        # Truth values that are taken are masks, which other libraries lack.
        is_result = leaf.dtype == jnp.bool_ and key.direction == "outputs"
        is_marked = is_result or jnp.issubdtype(leaf.dtype, jnp.number)
        return boundary_p.bind(leaf, key=key) if is_marked else None

    return CallRecorder(mark)


@dataclass(frozen=True)
class Opened:
    """A program with zeros to be added at boundaries as its first arguments, and what crosses there as last results."""

    program: Any
    numbers: Mapping[Key, int]
    """Maps crossings to their numbers among the last results; crossings of one array share one."""
    shapes: tuple[Any, ...]
    """The shape and dtype of each of these results."""
    floats: tuple[int, ...]
    """The numbers of those of floats, to which a zero is added."""
    positions: Mapping[Key, int]
    """Maps crossings to the number of the equation before which they are."""

    def split(self, span: Span) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return two functions: from the arguments to what a span of the program reads, and on to what it computes."""
        begin, end = span
        eqns = self.program.eqns[self._position(begin, 0) : self._position(end, len(self.program.eqns))]
        computed = [var for eqn in eqns for var in eqn.outvars]
        read = {atom for eqn in eqns for atom in eqn.invars if isinstance(atom, Var)}.difference(computed)
        return (
            jaxpr_as_fun(with_parts(self.program, outvars=list(read))),
            jaxpr_as_fun(with_parts(self.program, invars=list(read), eqns=eqns, outvars=computed)),
        )

    def eps(self, layers: Sequence[Layer]) -> dict[Moment, float]:
        """Map the moments of the layers to the largest epsilon of dtypes that were converted before."""
        up_to = list(itertools.accumulate(map(_eps, self.program.eqns), max, initial=0.0))
        moments = [Moment(i, direction) for i in range(len(layers)) for direction in get_args(Direction)]
        return {moment: up_to[self._position(moment, len(up_to) - 1)] for moment in moments}

    def _position(self, moment: Moment, default: int) -> int:
        """Return the number of the first equation behind a moment; the default if nothing crosses a boundary then."""
        # The arrays of one moment cross one behind the other, and the last of them is looked for.
        return max((n for key, n in self.positions.items() if key.moment == moment), default=default)

    def added(self, nudges: Mapping[Key, Any]) -> list[jax.Array]:
        """Return the zeros, but for what is to be added at these crossings."""
        by_number = {self.numbers[key]: nudge for key, nudge in nudges.items()}
        return [
            jnp.broadcast_to(jnp.asarray(by_number.get(i, 0.0), self.shapes[i].dtype), self.shapes[i].shape)
            for i in self.floats
        ]


def _eps(eqn: JaxprEqn) -> float:
    """Return the largest epsilon of the floats from which an equation computes those of another dtype, else 0.

    An array that stays in one dtype says by that how it is rounded. A mask of float32, as
    `flax.linen.make_causal_mask` makes it, becomes truth values, and takes no digits from what it masks.
    """
    if bodies := list(jaxprs_in_params(eqn.params)):
        return max((_eps(inner) for jaxpr in bodies for inner in jaxpr.eqns), default=0.0)
    dtypes = {getattr(atom.aval, "dtype", None) for atom in (*eqn.invars, *eqn.outvars)}
    floats = {dtype for dtype in dtypes if dtype and jnp.issubdtype(dtype, jnp.inexact)}
    return max(map(eps_of, floats)) if len(floats) > 1 else 0.0


def opened(traced: Any) -> Opened:
    """Open the boundaries of a program: add a zero to each array of floats that crosses one.

    Where a model calls ``b(a(x))``, what leaves a is what enters b. It has one number, and one zero:

        y = boundary[a, inputs] x      y = x + 0a          number 0
        z = sin y                      z = sin y
        u = boundary[a, outputs] z     u = z + 0b          number 1
        v = boundary[b, inputs] u      v = boundary u      number 1
    """
    # First all boundaries are brought to the top, out of bodies: only there can a zero be an argument of the program.
    eqns = list(_with_boundaries_on_top(traced.eqns))
    numbers = _numbers(eqns, traced.outvars)
    opened_eqns: list[JaxprEqn] = []
    positions: dict[Key, int] = {}
    crossed: list[Any] = []
    zeros: dict[int, Var] = {}  # from the number of an array to what is added to it
    for eqn in eqns:
        new = [eqn]
        if eqn.primitive is boundary_p:
            key: Key = eqn.params["key"]
            x: Any = eqn.invars[0]
            positions.setdefault(key, len(opened_eqns))
            is_first = numbers[key] == len(crossed)  # of the boundaries that this array crosses
            if is_first and jnp.issubdtype(x.aval.dtype, jnp.floating):
                zero = zeros[numbers[key]] = Var(x.aval)
                new = inlined(jnp.add, eqn.replace(invars=[x, zero]))
            crossed += eqn.outvars if is_first else []
        opened_eqns += new
    program = with_parts(
        traced,
        invars=[*zeros.values(), *traced.invars],
        outvars=[*traced.outvars, *crossed],
        eqns=opened_eqns,
        # The names are one for each argument and result, of which there are more now.
        debug_info=traced.debug_info._replace(arg_names=None, result_paths=None),
    )
    shapes = tuple(jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in crossed)
    return Opened(program, numbers, shapes, tuple(zeros), positions)


def _numbers(eqns: Sequence[JaxprEqn], results: Iterable[Any]) -> dict[Key, int]:
    """Number the arrays that cross boundaries, and map each crossing to the number of its array."""
    uses = Counter(atom for atom in (*(a for eqn in eqns for a in eqn.invars), *results) if isinstance(atom, Var))
    numbers: dict[Key, int] = {}
    number_of: dict[Any, int] = {}  # from the result of a boundary
    unused = itertools.count()
    for eqn in eqns:
        if eqn.primitive is boundary_p:
            (x,), (y,), key = eqn.invars, eqn.outvars, eqn.params["key"]
            # What leaves one module and enters the next has one gradient at both. With other uses of it, these differ.
            if isinstance(x, Var) and x in number_of and uses[x] == 1:
                number_of[y] = number_of[x]
                numbers.setdefault(key, number_of[x])
            elif key not in numbers:  # a key that is met again is that of a body that is inlined twice
                numbers[key] = number_of[y] = next(unused)
    return numbers


def _with_boundaries_on_top(eqns: Iterable[JaxprEqn]) -> Iterable[JaxprEqn]:
    """Yield the equations, those whose bodies have boundaries replaced by these bodies."""
    for eqn in eqns:
        if eqn.primitive in _INLINED and any(inner.primitive is boundary_p for inner in equations(eqn)):
            body = eqn.params[_INLINED[eqn.primitive]]
            yield from _with_boundaries_on_top(inlined(jaxpr_as_fun(closed(body)), eqn))
        else:
            yield eqn
