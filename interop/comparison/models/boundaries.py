"""Module boundaries in programs of JAX: marked while a model is traced, opened before it is differentiated.

A gradient at a boundary is that with respect to a zero added there. So a model that calls ``a`` on ``x`` is traced to

    y = boundary[a, inputs] x        z = sin y        w = boundary[a, outputs] z        return w

and opened to a program that takes the zeros first, and returns what crossed last:

    0a, 0b, x:        y = x + 0a        z = sin y        w = z + 0b        return w, y, w
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Primitive, Var, jaxpr_as_fun, jaxprs_in_params
from jax.extend.core import primitives as p
from jax.interpreters import ad, batching, mlir

from interop.comparison.leaves import eps_of
from interop.comparison.models.layers import CallRecorder, Direction, Key, Layer, Moment, Span, is_result_of_numbers
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
        if is_result_of_numbers(key, leaf):
            leaf = jnp.asarray(leaf)
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
    positions: Mapping[Key, int]
    """Maps crossings, in the order in which they happen, to the number of the equation before which they are."""
    shapes: Mapping[Key, jax.ShapeDtypeStruct]
    """The shape and dtype of each of the last results."""

    @property
    def floats(self) -> list[Key]:
        """The crossings of floats, to which a zero is added."""
        return [key for key, shape in self.shapes.items() if jnp.issubdtype(shape.dtype, jnp.floating)]

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
        return [
            jnp.broadcast_to(jnp.asarray(nudges.get(key, 0.0), self.shapes[key].dtype), self.shapes[key].shape)
            for key in self.floats
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
    """Open the boundaries of a program: add a zero to each array of floats that crosses one."""
    # First all boundaries are brought to the top, out of bodies: only there can a zero be an argument of the program.
    opened_eqns: list[JaxprEqn] = []
    positions: dict[Key, int] = {}
    crossed: list[Any] = []
    zeros: list[Var] = []
    for eqn in _with_boundaries_on_top(traced.eqns):
        new = [eqn]
        # A key that is met again is that of a body that is inlined twice.
        if eqn.primitive is boundary_p and eqn.params["key"] not in positions:
            x: Any = eqn.invars[0]
            positions[eqn.params["key"]] = len(opened_eqns)
            if jnp.issubdtype(x.aval.dtype, jnp.floating):
                zeros.append(Var(x.aval))
                new = inlined(jnp.add, eqn.replace(invars=[x, zeros[-1]]))
            crossed += eqn.outvars
        opened_eqns += new
    program = with_parts(
        traced,
        invars=[*zeros, *traced.invars],
        outvars=[*traced.outvars, *crossed],
        eqns=opened_eqns,
        # The names are one for each argument and result, of which there are more now.
        debug_info=traced.debug_info._replace(arg_names=None, result_paths=None),
    )
    shapes = {
        key: jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for key, var in zip(positions, crossed, strict=True)
    }
    return Opened(program, positions, shapes)


def _with_boundaries_on_top(eqns: Iterable[JaxprEqn]) -> Iterable[JaxprEqn]:
    """Yield the equations, those whose bodies have boundaries replaced by these bodies."""
    for eqn in eqns:
        if eqn.primitive in _INLINED and any(inner.primitive is boundary_p for inner in equations(eqn)):
            body = eqn.params[_INLINED[eqn.primitive]]
            yield from _with_boundaries_on_top(inlined(jaxpr_as_fun(closed(body)), eqn))
        else:
            yield eqn
