"""The transformation `min_norm`, and how it knows the ops of jaxclamp in the equations of a JAX function."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal
from jax.extend.core import primitives as p

from jaxclamp._counterparts import Counterpart
from jaxclamp._jaxprs import Descend, inlined, transformed
from jaxclamp._registry import OPS, Op
from jaxclamp._rules import TIES, Ties, refuse_convention
from jaxclamp._windows import Windows
from jaxclamp.reductions import max_of_windows

P = ParamSpec("P")
R = TypeVar("R")


def min_norm(fun: Callable[P, R], *, ties: Ties = "min_norm") -> Callable[P, R]:
    r"""The same function with the min-norm gradient at every tie: :math:`\max(x, y)` becomes `maximum`, and so on.

    Rewritten are, for real operands, the primitives ``max``, ``min``, ``clamp``, ``abs``, ``reduce_max``,
    ``reduce_min`` and ``reduce_window_max``, whichever functions they come from (`jax.numpy.maximum`, `jax.lax.clamp`,
    pooling layers, ...), and calls of the library functions that hide a kink in a select: `jax.nn.leaky_relu`, ``elu``,
    ``selu``, ``celu``, ``hard_tanh``, `jax.numpy.clip`, ``fmax``, ``fmin``, or in a ``relu6``: ``hard_sigmoid``,
    ``hard_swish``. Those are known by their formula, never by their name alone. It reaches into ``jit``, ``scan``,
    ``while``, ``cond``, ``switch``, ``checkpoint``, ``vmap`` and ``shard_map``, however they are nested. Values,
    effects, shardings, donation and names stay what they are, and so do functions with a derivative of their own
    (``custom_jvp``, ``custom_vjp``), such as `jax.nn.relu`, and what is inside ``custom_linear_solve``, ``custom_root``
    and ``custom_vmap``.

    Apply it to the function that is differentiated: of ``min_norm(grad(fun))`` it sees derivatives that are taken
    already. It cannot see a kink in a select that is written by hand, ``where(x > 0, x, 0)``, nor a choice that Python
    makes. ``sort``, ``top_k``, ``cummax``, ``cummin``, ``reduce_window_min``, ``scatter_max``, ``scatter_min`` and
    their kin stay as in JAX.

    Args:
      fun: a function of any arguments, pure as for `jax.jit`: what it changes, it returns. Leaves that are JAX arrays
        are traced; all others, Python numbers and NumPy arrays among them, are constants, and may steer Python.
      ties: the convention at ties of the ops that take one, as for `maximum`.

    Returns:
      A function with the signature and the results of ``fun``. Each call traces ``fun`` anew, so wrap it in `jax.jit`.

    Raises:
      TypeError: ``fun`` is not callable.
      ValueError: ``ties`` is unknown; or, when called, ``fun`` writes to its arguments.

    >>> def loss(x):
    ...     return jnp.sum(jax.nn.leaky_relu(jnp.abs(x)) + jnp.clip(x, 0.0, 6.0))
    >>> jax.grad(loss)(jnp.zeros(2)).tolist()
    [1.5, 1.5]
    >>> jax.grad(min_norm(loss))(jnp.zeros(2)).tolist()
    [0.0, 0.0]
    """
    if not callable(fun):
        raise TypeError(f"min_norm: fun is {fun!r}; pass a function.")
    if ties not in TIES:
        refuse_convention(ties)

    def replace(eqn: JaxprEqn, descend: Descend) -> list[JaxprEqn]:
        return descend(eqn) if eqn.primitive is p.custom_jvp_call_p else replaced(ties, eqn, descend)

    return transformed(fun, replace)


def replaced(ties: Ties, eqn: JaxprEqn, descend: Descend) -> list[JaxprEqn]:
    """The op of jaxclamp in the place of ``eqn``, one with a derivative of its own too, unless it is taken already."""
    found = recognized(eqn) if len(eqn.outvars) == 1 else None
    return descend(eqn) if found is None else inlined(functools.partial(found.call, ties), eqn)


class Recognized(NamedTuple):
    """The op that an equation computes, by name, and as a function of a convention and of the equation's inputs."""

    name: str
    call: Callable[..., jax.Array]


def recognized(eqn: JaxprEqn) -> Recognized | None:
    """The op of jaxclamp that ``eqn`` computes, if any.

    A primitive is known by itself. An inner jit has to compute the formula that the library function of its name
    computes of scalars of the same types; where the axes of an operand lie in the result, they lie for the op as well.
    Further results are what a derivative that was taken before keeps, and further operands are tangents: they follow
    those that the value is computed of.
    """
    if eqn.primitive is not p.reduce_window_max_p and _key(eqn) not in _keys():
        return None
    operands: list[Any] = [atom.aval for atom in eqn.invars]
    results: list[Any] = [var.aval for var in eqn.outvars]
    if not (
        results
        and jnp.issubdtype(results[0].dtype, jnp.floating)
        and not any(jnp.issubdtype(operand.dtype, jnp.complexfloating) for operand in operands)
        and all(operand.size for operand in operands)
        and eqn.params.get("axes") != ()
    ):
        return None  # without real numbers, or with nothing to choose from, there are no ties
    if eqn.primitive is p.reduce_window_max_p:
        return _max_pool(eqn.params)
    axis = {"axis": eqn.params["axes"]} if "axes" in eqn.params else {}
    value, *_ = _values(_plain(eqn), [_Value(i, {i: tuple(range(operand.ndim))}) for i, operand in enumerate(operands)])
    read = len(value.axes)
    table = _table(tuple((operand.dtype, operand.weak_type) for operand in operands[:read]))
    if (_key(eqn), value.formula) not in table:
        return None
    op, names = table[_key(eqn), value.formula]

    def call(ties: Ties, *operands: jax.Array) -> jax.Array:
        placed = [_placed(operand, value.axes[i], results[0].ndim) for i, operand in enumerate(operands[:read])]
        convention = {} if op.family == "kinked" else {"ties": ties}
        return op.function(**dict(zip(names, placed, strict=True)), **axis, **convention)

    return Recognized(op.name, call)


def _key(eqn: JaxprEqn) -> tuple[Any, Any]:
    return eqn.primitive, eqn.params.get("name")


@functools.cache
def _keys() -> frozenset[Hashable]:
    """The primitives, and the names of inner jits, that may be an op."""
    operand = (np.dtype("float32"), False)
    return frozenset(key for count in (1, 2, 3) for key, _ in _table((operand,) * count))


@functools.cache
def _table(types: tuple[tuple[Any, bool], ...]) -> Mapping[tuple[Hashable, Hashable], tuple[Op, tuple[str, ...]]]:
    """The equations that are an op, for operands of these types: the op, and which of its parameters each operand is.

    They come from the records: each op is traced for scalars, and each counterpart in JAX, that with its arguments in
    any order, as keywords bring them about.
    """
    table: dict[tuple[Hashable, Hashable], tuple[Op, tuple[str, ...]]] = {}
    scalars = [jax.ShapeDtypeStruct((), dtype, weak_type=weak) for dtype, weak in types]
    for op, call, names in _calls(len(types)):

        def of_operands(*operands: jax.Array, call: Any = call, names: tuple[str, ...] = names) -> Any:
            return call(dict(zip(names, operands, strict=True)))

        # What an array cannot be, such as an axis, raises; mixed types are for the caller's own trace to refuse.
        with (
            contextlib.suppress(TypeError, ValueError),
            jax.numpy_dtype_promotion("standard"),
            jax.disable_jit(False),
        ):
            traced = jax.make_jaxpr(of_operands)(*scalars).jaxpr
            if len(traced.eqns) == 1:
                (eqn,) = traced.eqns
                (value,) = _values(_plain(eqn), [_Value(traced.invars.index(atom), {}) for atom in eqn.invars])
                table.setdefault((_key(eqn), value.formula), (op, names))
                if eqn.primitive is p.custom_jvp_call_p:  # differentiated, it leaves the inner jit it consists of
                    (eqn,) = eqn.params["call_jaxpr"].eqns
                    table.setdefault((_key(eqn), value.formula), (op, names))
    return table


def _calls(count: int) -> Iterator[tuple[Op, Callable[[Mapping[str, Any]], Any], tuple[str, ...]]]:
    """Calls of the elementwise ops and of all counterparts in JAX, with ``count`` arguments."""
    for op in OPS.values():
        for native in map(Counterpart, op.counterparts):
            for names in itertools.permutations(native.names, count) if native.framework == "jax" else ():
                yield op, native, names
        if op.family != "reduction":
            names = tuple(inspect.signature(op.function).parameters)[:count]
            yield op, lambda arguments, op=op: op.function(**arguments), names  # type: ignore[misc]


class _Value(NamedTuple):
    """What an elementwise program computes: a formula of scalars, and where in it the axes of each operand lie."""

    formula: Hashable
    axes: Mapping[int, tuple[int, ...]]


def _plain(eqn: JaxprEqn) -> JaxprEqn:
    """``eqn`` without the axes that it reduces, and without the derivative that it brings."""
    plain = eqn
    if eqn.primitive is p.custom_jvp_call_p:
        plain = eqn.replace(primitive=p.jit_p, params={"jaxpr": eqn.params["call_jaxpr"]})
    elif "axes" in eqn.params:
        plain = eqn.replace(params={**eqn.params, "axes": ()})
    return plain


def _values(eqn: JaxprEqn, inputs: Sequence[_Value]) -> list[_Value]:
    """What ``eqn`` computes of ``inputs``; how often values are repeated, or where, is no part of the formula."""
    if eqn.primitive is p.custom_jvp_call_p:
        eqn = _plain(eqn)
    if eqn.primitive is p.jit_p:
        body = eqn.params["jaxpr"].jaxpr
        known: dict[Any, _Value] = dict(zip(body.invars, inputs, strict=True))

        def read(atom: Any) -> _Value:
            if isinstance(atom, Literal):
                number = np.asarray(atom.val)
                return _Value((number.dtype, number.shape, number.tobytes()), {})
            return known.get(atom, _UNKNOWN)  # a constant array

        for inner in body.eqns:
            known.update(zip(inner.outvars, _values(inner, [read(atom) for atom in inner.invars]), strict=True))
        return [read(atom) for atom in body.outvars]
    if eqn.primitive is p.broadcast_in_dim_p:
        return [_moved(inputs[0], eqn.params["broadcast_dimensions"].__getitem__)]
    if eqn.primitive is p.transpose_p:
        return [_moved(inputs[0], eqn.params["permutation"].index)]
    if eqn.primitive.name == "pvary":  # in a shard_map, from one value for all devices to one for each
        return [inputs[0]]
    axes = {operand: places for value in inputs for operand, places in value.axes.items()}
    ranks: set[int] = {atom.aval.ndim for atom in (*eqn.invars, *eqn.outvars)}  # type: ignore[attr-defined]
    elementwise = len(ranks - {0}) <= 1 or eqn.params.get("axes") == ()
    if not elementwise or any(axes[i] != places for value in inputs for i, places in value.axes.items()):
        return [_UNKNOWN] * len(eqn.outvars)
    formula = (eqn.primitive, tuple(sorted(eqn.params.items())), *(value.formula for value in inputs))
    return [_Value((formula, k), axes) for k in range(len(eqn.outvars))]


_UNKNOWN = _Value(object(), {})


def _moved(value: _Value, move: Callable[[int], int]) -> _Value:
    return _Value(value.formula, {operand: tuple(map(move, axes)) for operand, axes in value.axes.items()})


def _placed(operand: jax.Array, axes: tuple[int, ...], ndim: int) -> jax.Array:
    """``operand`` with its axes at these places among ``ndim``; a scalar stays one."""
    if not axes:
        return operand
    ordered = jnp.transpose(operand, sorted(range(len(axes)), key=axes.__getitem__))
    return jnp.expand_dims(ordered, [axis for axis in range(ndim) if axis not in axes])


def _max_pool(params: Mapping[str, Any]) -> Recognized | None:
    sizes, paddings = params["window_dimensions"], params["padding"]
    if set(params["base_dilation"]) != {1} or any(amount < 0 for pair in paddings for amount in pair):
        return None
    windows = Windows(sizes, params["window_strides"], paddings, params["window_dilation"])
    return Recognized("max_pool", lambda ties, x: max_of_windows("max_pool", x, windows, ties))
