"""Module boundaries in programs of JAX: marked while a model is traced, opened before it is differentiated."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Primitive, Var, jaxpr_as_fun, jaxprs_in_params
from jax.extend.core import primitives as p
from jax.interpreters import ad, batching, mlir

from interop.comparison.models.layers import Key, Tape
from jaxclamp._jax_versions import closed, with_parts
from jaxclamp._transforms.jaxprs import inlined

boundary_p = Primitive("boundary")
"""The identity, at a boundary of a module; under `jax.vmap` the new axis comes first."""
boundary_p.def_impl(lambda x, *, key: x)
boundary_p.def_abstract_eval(lambda x, *, key: x)
ad.deflinear2(boundary_p, lambda cotangent, x, *, key: [cotangent])
mlir.register_lowering(boundary_p, lambda context, x, *, key: [x])


def _batched(arrays: Any, axes: Any, *, key: Key) -> tuple[Any, int]:
    return boundary_p.bind(jnp.moveaxis(arrays[0], axes[0], 0), key=key), 0


batching.primitive_batchers[boundary_p] = _batched

_INLINED = {p.jit_p: "jaxpr", p.remat_p: "jaxpr", p.closed_call_p: "call_jaxpr"}
"""The equations in whose bodies boundaries are seen, and the names of these; not loops, which run them many times."""


def new_tape() -> Tape:
    """A tape for a model of JAX that is being traced."""

    def mark(key: Key, leaf: Any) -> Any:
        is_marked = isinstance(leaf, jax.Array) and _is_marked(leaf.dtype, key)
        return boundary_p.bind(leaf, key=key) if is_marked else None

    # Modules among the arguments stay the objects that they are.
    return Tape(mark, functools.partial(jax.tree.flatten, is_leaf=callable), jax.tree.unflatten)


def _is_marked(dtype: Any, key: Key) -> bool:
    """Numbers are, and truth values that are returned: those that are taken are masks, which other libraries lack."""
    return jnp.issubdtype(dtype, jnp.number) or (dtype == jnp.bool_ and key.side == "outputs")


@dataclass(frozen=True)
class Opened:
    """A program with zeros to be added at boundaries as its first arguments, and what crosses there as last results."""

    program: Any
    keys: Mapping[Key, int]
    """By crossing, the number among the last results; crossings of one array share it."""
    forms: tuple[Any, ...]
    """Of what crosses."""
    added: tuple[int, ...]
    """The numbers of those to which something is added: the floats."""

    @property
    def zeros(self) -> list[jax.Array]:
        return [jnp.zeros(self.forms[i].shape, self.forms[i].dtype) for i in self.added]

    def nudged(self, nudges: Mapping[Key, Any]) -> list[jax.Array]:
        """The zeros, but for what is to be added at these crossings."""
        by_home = {self.keys[key]: nudge for key, nudge in nudges.items()}
        pairs = zip(self.added, self.zeros, strict=True)
        return [jnp.asarray(by_home[i], zero.dtype) if i in by_home else zero for i, zero in pairs]


def opened(traced: Any) -> Opened:
    """The boundaries of a program, opened.

    What crosses one is a result, and the gradient with respect to what is added to it is its own.
    """
    eqns = list(_with_boundaries_on_top(traced.eqns))
    uses = Counter(var for eqn in eqns for var in eqn.invars if isinstance(var, Var))
    uses.update(var for var in traced.outvars if isinstance(var, Var))
    keys: dict[Key, int] = {}
    homes: dict[Any, int] = {}
    zeros: dict[int, Var] = {}
    crossed: list[Any] = []
    renamed: dict[Any, Any] = {}
    kept: list[JaxprEqn] = []
    for eqn in eqns:
        eqn = eqn.replace(invars=[renamed.get(a, a) if isinstance(a, Var) else a for a in eqn.invars])
        if eqn.primitive is not boundary_p:
            kept.append(eqn)
            continue
        (x,), (y,), key = eqn.invars, eqn.outvars, eqn.params["key"]
        is_known = isinstance(x, Var) and x in homes and uses[x] == 1
        if key in keys or is_known:
            if is_known:
                keys.setdefault(key, homes[x])
            renamed[y] = x
            uses[x] += uses[y] - 1
            continue
        keys[key] = homes[y] = len(crossed)
        if jnp.issubdtype(x.aval.dtype, jnp.floating):
            zeros[len(crossed)] = Var(x.aval)
            kept += inlined(jnp.add, eqn.replace(invars=[x, zeros[len(crossed)]]))
        else:
            kept.append(eqn)
        crossed.append(y)
    results = [renamed.get(a, a) if isinstance(a, Var) else a for a in traced.outvars]
    program = with_parts(
        traced,
        invars=[*zeros.values(), *traced.invars],
        outvars=[*results, *crossed],
        eqns=kept,
        debug_info=traced.debug_info._replace(arg_names=None, result_paths=None),
    )
    forms = tuple(jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in crossed)
    return Opened(program, keys, forms, tuple(zeros))


def _with_boundaries_on_top(eqns: Iterable[JaxprEqn]) -> Iterable[JaxprEqn]:
    """The equations, with bodies that have boundaries in the place of the equations that they belong to."""
    for eqn in eqns:
        if eqn.primitive in _INLINED and _has_boundaries(eqn):
            body = eqn.params[_INLINED[eqn.primitive]]
            yield from _with_boundaries_on_top(inlined(jaxpr_as_fun(closed(body)), eqn))
        else:
            yield eqn


def _has_boundaries(eqn: JaxprEqn) -> bool:
    return any(
        inner.primitive is boundary_p or _has_boundaries(inner)
        for jaxpr in jaxprs_in_params(eqn.params)
        for inner in jaxpr.eqns
    )
