"""Traces a function, replaces equations of its jaxpr, those in bodies too, and evaluates what results."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun, jaxprs_in_params
from jax.extend.core import primitives as p

from jaxclamp._jax_versions import closed, is_inlined_late, is_jaxpr, manual_axes, warn_of_an_untested_jax, with_parts

P = ParamSpec("P")
R = TypeVar("R")

Descend: TypeAlias = Callable[[JaxprEqn], list[JaxprEqn]]
"""Maps an equation to itself, with the equations in its bodies replaced."""
Replace: TypeAlias = Callable[[JaxprEqn, Descend], list[JaxprEqn]]
"""Maps an equation, and how to descend into it, to the equations that take its place."""

# Equations in bodies are replaced in these alone: not in functions with a derivative of their own (custom_jvp,
# custom_vjp), whose derivative does not come from their body, and not in the combiners of scatter and sort, which stay
# as in JAX.
# In JAX 0.12 a ``closed_call`` is also what a function of `jaxpr_as_fun` leaves in a trace. The last four are listed by
# name, as their primitives are not public. Those behind ``shard_map`` are of `jax.experimental.compute_on`,
# ``scheduling_groups`` and ``overlap``.
WITH_BODIES = frozenset(
    {
        *(primitive.name for primitive in (p.jit_p, p.scan_p, p.while_p, p.cond_p, p.remat_p, p.closed_call_p)),
        *("shard_map", "compute_on", "xla_metadata_call", "program_order"),
    }
)

_READS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_CURE = (
    "jaxclamp traces the function, as jax.jit does: Python cannot read values of its arrays, whether by if, float() or "
    "NumPy.\nWrite a choice as jnp.where or jax.lax.cond. If Python has to choose, fix what it chooses by beforehand: "
    "functools.partial(fun, flag=True)."
)


def transformed(
    fun: Callable[P, R], replace: Replace, prepare: Callable[[Any], Any] = lambda jaxpr: jaxpr
) -> Callable[P, R]:
    """Return ``fun`` with its equations replaced; leaves that are not JAX arrays pass into it, and out, as they are.

    ``prepare`` maps the traced program to the one in which equations are replaced.
    """
    warn_of_an_untested_jax(jax.__version__)

    @functools.wraps(fun)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        program = traced(fun, *args, **kwargs)
        rewritten = _rewritten(replace)(prepare(program.jaxpr))
        return program.join_results(jaxpr_as_fun(rewritten)(*program.arrays))

    return run


class Traced(NamedTuple, Generic[R]):
    """A function as a program of the arrays among its arguments."""

    jaxpr: Any
    arrays: list[jax.Array]
    """The arguments of the program."""
    join_results: Callable[[Iterable[jax.Array]], R]
    """Puts the results of the program into the places that they have in what the function returns."""


def traced(fun: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Traced[R]:
    """Trace ``fun`` at these arguments, as `jax.jit` does; library functions in it are inner jits."""
    arrays, join = split((args, kwargs))
    join_results: Callable[[Iterable[jax.Array]], R]

    @functools.wraps(fun)  # errors of JAX name fun and its arguments
    def of_arrays(*args: P.args, **kwargs: P.kwargs) -> list[jax.Array]:
        nonlocal join_results
        args, kwargs = join(jax.tree.leaves((args, kwargs)))
        before = _leaves(args, kwargs)
        results, join_results = split(fun(*args, **kwargs))
        _refuse_writes(before, _leaves(args, kwargs))
        return results

    # None is no leaf: so the trace has the arrays as its arguments, under the paths that errors name.
    traced_arguments: Any = jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else None, (args, kwargs))
    try:
        with jax.disable_jit(False):  # library functions of JAX are recognized as inner jits
            jaxpr = jax.make_jaxpr(of_arrays)(*traced_arguments[0], **traced_arguments[1])
    except _READS_VALUES as error:
        if _CURE not in getattr(error, "__notes__", ()):  # of a transformation inside
            error.add_note(_CURE)
        raise
    return Traced(jaxpr, arrays, join_results)


def split(tree: Any) -> tuple[list[jax.Array], Callable[[Iterable[jax.Array]], Any]]:
    """Return the JAX arrays among the leaves of ``tree``, and the function that puts arrays in their places."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    # In tuples, since a leaf may be None itself.
    static = [None if isinstance(leaf, jax.Array) else (leaf,) for leaf in leaves]

    def join(arrays: Iterable[jax.Array]) -> Any:
        remaining = iter(arrays)
        return jax.tree.unflatten(structure, [next(remaining) if leaf is None else leaf[0] for leaf in static])

    return arrays, join


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Map the path of each leaf of the arguments, ``args[0]['w']``, to the leaf."""
    return {
        name + jax.tree_util.keystr(path): leaf
        for name, tree in (("args", args), ("kwargs", kwargs))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _refuse_writes(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Raise if a leaf was replaced: the traced function sees copies of the containers, so that the caller would not."""
    for path in before | after:
        if before.get(path) is not after.get(path):
            raise ValueError(
                f"the function writes to its argument, {path}, and what it writes would be lost; change a copy and "
                "return that. A module of flax.nnx: nnx.split outside, nnx.merge(..., copy=True) inside, return the "
                "state."
            )


def needed(jaxpr: Any) -> Any:
    """Return ``jaxpr`` without the equations that no result and no effect depends on."""

    def variables(atoms: Iterable[Any]) -> set[Any]:
        return {atom for atom in atoms if isinstance(atom, Var)}

    read = variables(jaxpr.outvars)
    eqns = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not read.isdisjoint(eqn.outvars):
            eqns.append(eqn)
            read |= variables(eqn.invars)
    return with_parts(jaxpr, eqns=eqns[::-1])


def needed_by_stop_gradient(jaxpr: Any) -> set[Any]:
    """Return the variables that a ``stop_gradient`` alone needs, as the maximum in `jax.nn.softmax`.

    No derivative depends on them. They are what is needed of the program, but not without its ``stop_gradient``: in
    ``m = max x; s = stop_gradient m; y = x - s``, where s is without a maker then, these are m and s.
    """

    def variables(eqns: list[JaxprEqn]) -> set[Any]:
        return {var for eqn in needed(with_parts(jaxpr, eqns=eqns)).eqns for var in eqn.outvars}

    without_stops = [eqn for eqn in jaxpr.eqns if eqn.primitive.name != "stop_gradient"]
    return variables(jaxpr.eqns) - variables(without_stops)


def _rewritten(replace: Replace) -> Callable[[Any], Any]:
    """Return the function of a jaxpr that replaces its equations, and by ``descend`` those in its bodies."""

    @functools.cache  # a body that occurs twice stays one object, which JAX compiles once
    def rewritten(jaxpr: Any) -> Any:
        eqns = [new for eqn in jaxpr.eqns for new in replace(eqn, descend)]
        # No replacement has effects that the equation has not, so that those of the program stay.
        return jaxpr if same(eqns, jaxpr.eqns) else with_parts(jaxpr, eqns=eqns)

    def descend(eqn: JaxprEqn) -> list[JaxprEqn]:
        if eqn.primitive.name == "shard_map":
            return mapped_anew(eqn, rewritten)
        return [with_bodies(eqn, rewritten) if eqn.primitive.name in WITH_BODIES else eqn]

    return rewritten


def mapped_anew(eqn: JaxprEqn, change: Callable[[Any], Any]) -> list[JaxprEqn]:
    """Return the ``shard_map`` with ``change`` applied to its body.

    It is traced anew, since the types inside exist in its context alone.
    """

    def run(*args: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(jaxpr_as_fun(closed(change(eqn.params["jaxpr"])))(*args))

    mapped = {name: eqn.params[name] for name in ("mesh", "in_specs", "out_specs", "check_vma")}
    return inlined(jax.shard_map(run, **mapped, axis_names=manual_axes(eqn)), eqn)


def with_bodies(eqn: JaxprEqn, change: Callable[[Any], Any]) -> JaxprEqn:
    """Return ``eqn`` with ``change`` applied to each jaxpr among its parameters.

    If nothing changes, that is ``eqn`` itself: JAX does not compile the same object twice.
    """

    def changed(value: Any) -> Any:
        if is_jaxpr(value):
            return change(value)
        if type(value) is not tuple:
            return value
        # Those of a cond; another tuple stays the same object.
        branches = tuple(map(changed, value))
        return value if same(branches, value) else branches

    params = {name: changed(value) for name, value in eqn.params.items()}
    return eqn if same(params.values(), eqn.params.values()) else eqn.replace(params=params)


def same(new: Collection[Any], old: Collection[Any]) -> bool:
    """Return whether two collections hold the same objects."""
    return len(new) == len(old) and all(map(operator.is_, new, old))


def inlined(fun: Callable[..., Any], eqn: JaxprEqn) -> list[JaxprEqn]:
    """Return equations that compute ``fun`` in the place of ``eqn``: they read its inputs, and write its outputs.

    ``fun`` is traced at the types of the inputs. Say ``eqn`` is ``c = max a b``, and the trace of ``fun`` is
    ``lambda x y. let d = custom_jvp_call[name=maximum] x y in (d,)``. Renamed, that is
    ``c = custom_jvp_call[name=maximum] a b``. The equations get the line of ``eqn`` in the source, and its scopes
    before those that ``fun`` enters. ``fun`` may also return nothing.
    """
    return inlined_with_more(fun, eqn)[0]


def inlined_with_more(fun: Callable[..., Any], eqn: JaxprEqn) -> tuple[list[JaxprEqn], list[Var]]:
    """Return what `inlined` does, and the variables of what ``fun`` returns behind the outputs of ``eqn``."""
    place = eqn.source_info

    def traced(fun: Callable[..., Any]) -> tuple[Jaxpr, dict[Any, Any]]:
        with eqn.ctx.manager, jax.disable_jit(False):  # the mesh, among others; and a call stays one
            jaxpr: Any = jax.make_jaxpr(fun)(*(atom.aval for atom in eqn.invars))
        constants = [Literal(value, var.aval) for var, value in zip(jaxpr.constvars, jaxpr.consts, strict=True)]
        return jaxpr, dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *eqn.invars], strict=True))

    jaxpr, atoms = traced(fun)
    outvars = [atom for atom in jaxpr.outvars if not isinstance(atom, Literal)]
    # A result that is an operand, a literal, or another result has no variable of its own that could be renamed to the
    # output: then each result is copied.
    if len(atoms.keys() | outvars) < len(atoms) + len(jaxpr.outvars):
        jaxpr, atoms = traced(lambda *operands: jax.tree.map(p.copy_p.bind, fun(*operands)))
    more = [Var(atom.aval) for atom in jaxpr.outvars[len(eqn.outvars) :]]
    atoms.update(zip(jaxpr.outvars, [*eqn.outvars, *more], strict=False))  # if ``fun`` returns nothing, there are fewer

    def renamed(atoms_of: Sequence[Any]) -> list[Any]:
        return [atom if isinstance(atom, Literal) else atoms.get(atom, atom) for atom in atoms_of]

    equations = [
        new.replace(
            invars=renamed(new.invars),
            outvars=renamed(new.outvars),
            source_info=place.replace(name_stack=place.name_stack + new.source_info.name_stack),
        )
        for new in jaxpr.eqns
    ]
    return equations, more


def opened_calls(eqn: JaxprEqn, *names: str) -> list[JaxprEqn]:
    """Return the equations of a function of `jax.numpy` in place of its call, if ``eqn`` calls one of these ``names``.

    Within it, calls of `where` are opened too: ``var`` makes its result NaN by one, where it has no elements. So is any
    function that JAX is to inline.
    """
    is_opened = eqn.primitive is p.jit_p and (eqn.params["name"] in names or is_inlined_late(eqn))
    body = eqn.params["jaxpr"] if is_opened else None
    made = {var for inner in body.eqns for var in inner.outvars} if body else set()
    # A result that no equation in the body makes has no variable that could be renamed to the output.
    if body is None or body.constvars or any(isinstance(atom, Literal) or atom not in made for atom in body.outvars):
        return [eqn]
    return [new for inner in in_place_of(eqn, body) for new in opened_calls(inner, *names, "_where")]


def in_place_of(eqn: JaxprEqn, body: Any) -> list[JaxprEqn]:
    """Return the equations of ``body``, which has no constants and makes each result, in the place of its call ``eqn``.

    They are not traced anew: the axes of a shard_map, over which they may reduce, have no name outside of it.
    """
    scopes, atoms = eqn.source_info.name_stack, dict(zip(body.invars, eqn.invars, strict=True))
    atoms.update(zip(body.outvars, eqn.outvars, strict=True))
    return [
        inner.replace(
            invars=[atom if isinstance(atom, Literal) else atoms[atom] for atom in inner.invars],
            outvars=[atoms.setdefault(var, Var(var.aval)) for var in inner.outvars],
            source_info=inner.source_info.replace(name_stack=scopes + inner.source_info.name_stack),
        )
        for inner in body.eqns
    ]


def moved_on(holds: jax.Array, new: Sequence[jax.Array], old: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the carry of a loop behind a pass, ``new`` where its condition held before.

    Under `jax.vmap` each lane has a condition, along the first axes of all arrays. A lane that is done stays as it is.
    """
    return [
        jnp.where(jnp.expand_dims(holds, range(holds.ndim, b.ndim)), a, b) if holds.ndim else a
        for a, b in zip(new, old, strict=True)
    ]


def equations(eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    """Yield ``eqn``, and the equations of all programs among its parameters, of those in these too."""
    yield eqn
    for program in jaxprs_in_params(eqn.params):
        for inner in program.eqns:
            yield from equations(inner)


def computed(eqn: JaxprEqn) -> Callable[..., list[Any]]:
    """Return the function of the inputs of ``eqn`` that returns its outputs."""
    # Not by ``eqn.primitive.bind``: that of a custom_jvp takes functions, where its parameters have a jaxpr.
    like: Any = jax.make_jaxpr(lambda *operands: operands)(*(atom.aval for atom in eqn.invars))
    outvars = [Var(atom.aval) for atom in eqn.outvars]
    alone = eqn.replace(invars=like.invars, outvars=outvars)
    return jaxpr_as_fun(with_parts(like, eqns=[alone], outvars=outvars))
