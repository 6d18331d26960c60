"""Recognizes which op of jaxclamp an equation of a jaxpr computes.

A primitive is known by itself. A library function such as `jax.nn.leaky_relu` is an inner jit in a jaxpr, or a function
with a derivative of its own. It is known by its name and by its formula, what it computes of scalars:

    jit[name=leaky_relu] a b        with the body  c = ge a 0.0;  d = mul b a;  e = select_n c d a

has the formula ``select_n(ge(0th, 0.0), mul(1st, 0th), 0th)``, the same for scalars as for a batch of images. The table
of formulas comes from the records: each op of jaxclamp is traced for scalars, and each of its counterparts in JAX. So
no function of JAX is named here: ``jnp.clip`` is a counterpart in the record of `clamp`, in `jaxclamp/selection.py`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Primitive
from jax.extend.core import primitives as p

from jaxclamp._record import OPS, Op
from jaxclamp._rules.conventions import Convention
from jaxclamp._rules.differentiate import OP_SCOPE, Applied, Rule
from jaxclamp._rules.extremum import extremum, extremum_of_devices
from jaxclamp._rules.norms import ORDERS, norm_of_order
from jaxclamp._rules.operands import is_floating
from jaxclamp._rules.windows import Windows, largest_of_windows


class Recognized(NamedTuple):
    """The op that an equation computes: its name, and ``applied(ties, *operands)``, its rule for that equation."""

    name: str
    applied: Callable[..., Applied[jax.Array]]

    def value(self, ties: Convention, *operands: jax.Array) -> jax.Array:
        """Compute the result of the op."""
        return self.applied(ties, *operands).value()

    def on_tie(self, *operands: jax.Array) -> jax.Array:
        """Compute where the elements of the result are on a tie or a kink."""
        return self.applied("min_norm", *operands).on_tie()  # the same under all conventions


def recognized(eqn: JaxprEqn) -> Recognized | None:
    """Return the op of jaxclamp that ``eqn`` computes, if any.

    An equation that was differentiated has further results, what its derivative reads, and further operands, the
    tangents. Both come last.
    """
    # A norm is several equations, and has no formula of scalars: squares are summed, and the root is taken of the sum.
    if norm := _norm(eqn):
        return norm
    # Most equations end here, before a formula is computed.
    unlisted = _UNLISTED.get(eqn.primitive)
    if unlisted is None and _key(eqn) not in _calls_by_key():
        return None
    operands: list[Any] = [atom.aval for atom in eqn.invars]
    results: list[Any] = [var.aval for var in eqn.outvars]
    if not (
        results
        and all(map(_is_real_array, operands))
        and _is_real_array(results[0])
        and is_floating(results[0])
        and all(operand.size for operand in operands)
        and eqn.params.get("axes") != ()
    ):
        return None  # without real numbers, or with nothing to choose from, there are no ties
    if unlisted is not None:
        return unlisted(eqn.params)
    # The formula of a reduction is that of scalars, where it has no axes; they are passed to the op besides.
    axis = {"axis": eqn.params["axes"]} if "axes" in eqn.params else {}
    value, *_ = _values(
        _of_scalars(eqn), [_Value(i, {i: tuple(range(operand.ndim))}) for i, operand in enumerate(operands)]
    )
    read = len(value.axes)  # the tangents, which come last, are in no formula of the value
    table = _table(_key(eqn), tuple((operand.dtype, operand.weak_type) for operand in operands[:read]))
    if value.formula not in table:
        return None
    op, _, names = table[value.formula]

    def applied(ties: Convention, *operands: jax.Array) -> Applied[jax.Array]:
        placed = [_placed(operand, value.axes[i], results[0].ndim) for i, operand in enumerate(operands[:read])]
        convention = {"ties": ties} if op.has_conventions else {}
        return op.applied(**dict(zip(names, placed, strict=True)), **axis, **convention)

    return Recognized(op.name, applied)


def _is_real_array(aval: Any) -> bool:
    """Return whether ``aval`` is that of an array of real numbers or bools: no reference, no token, no random key."""
    dtype = getattr(aval, "dtype", None)
    return hasattr(aval, "size") and isinstance(dtype, np.dtype) and not jnp.issubdtype(dtype, jnp.complexfloating)


def name_of_jaxclamp_op(eqn: JaxprEqn) -> str:
    """Return the name of the op of jaxclamp that ``eqn`` calls, or "" if it calls none."""
    if eqn.primitive is not p.custom_jvp_call_p:
        return ""
    scopes = re.findall(rf"{re.escape(OP_SCOPE)}(\w+)", str(eqn.source_info.name_stack))
    return scopes[-1] if scopes else ""


def _key(eqn: JaxprEqn) -> tuple[Any, Any]:
    """Return by what an equation is looked up before its formula is computed: its primitive, and the name of a jit."""
    return eqn.primitive, eqn.params.get("name")


class _Call(NamedTuple):
    """A call that computes an op: of a counterpart in JAX, or of the op itself."""

    op: Op
    function: Callable[[Mapping[str, Any]], Any]
    names: tuple[str, ...]
    """The parameters of the op that are operands of the equation, in the order of these."""


Types: TypeAlias = tuple[tuple[Any, bool], ...]
"""The dtype of each operand, and whether it is weak."""


@functools.cache
def _calls_by_key() -> Mapping[tuple[Hashable, Hashable], Sequence[_Call]]:
    """Map the key of an equation to the calls that have such an equation."""
    calls: dict[tuple[Hashable, Hashable], list[_Call]] = {}
    for count in (1, 2, 3):  # clamp has the most operands, three
        for call in _calls(count):
            # The types decide the formula, and not the key: any will do.
            for key, _ in _equations(call, ((np.dtype("float32"), False),) * count):
                calls.setdefault(key, []).append(call)
    return calls


# By types, since a formula has the conversions that JAX puts in for them.
@functools.lru_cache(maxsize=1024)
def _table(key: tuple[Hashable, Hashable], types: Types) -> Mapping[Hashable, _Call]:
    """Map a formula, for operands of these types, to the call that has it; ``key`` is that of the equation."""
    table: dict[Hashable, _Call] = {}
    for call in _calls_by_key()[key]:
        if len(call.names) == len(types):  # ``jnp.clip`` has one key with one bound and with two
            for key_of_call, formula in _equations(call, types):
                if key_of_call == key:
                    table.setdefault(formula, call)  # of several calls the first counts: `_calls` orders them
    return table


def _equations(call: _Call, types: Types) -> list[tuple[tuple[Hashable, Hashable], Hashable]]:
    """Return the key and the formula of the equation of a call, and of its body, which differentiation leaves.

    A call that makes several equations, or none, has no formula.
    """

    def of_operands(*operands: jax.Array) -> Any:
        return call.function(dict(zip(call.names, operands, strict=True)))

    scalars = [jax.ShapeDtypeStruct((), dtype, weak_type=weak) for dtype, weak in types]
    # A parameter that cannot be an array, such as an axis, raises. The settings of the user count nothing here: whether
    # types may be mixed, whether jit is disabled.
    with contextlib.suppress(TypeError, ValueError), jax.numpy_dtype_promotion("standard"), jax.disable_jit(False):
        traced: Any = jax.make_jaxpr(of_operands)(*scalars)
        if len(traced.eqns) == 1:
            (eqn,) = traced.eqns
            (value,) = _results(traced, [_Value(i, {}) for i in range(len(types))])
            # `jax.nn.relu` is a custom_jvp around ``jit[name=relu]``: in a differentiated scan the jit is left.
            inner = eqn.params["call_jaxpr"].eqns if eqn.primitive is p.custom_jvp_call_p else []
            return [(_key(part), value.formula) for part in ([eqn, *inner] if len(inner) == 1 else [eqn])]
    return []


def _calls(count: int) -> Iterator[_Call]:
    """Yield calls of all counterparts in JAX, and of the elementwise ops, with ``count`` arguments.

    Several ops may have the same formula. Those with ``count`` operands come first: ``jnp.clip(x, 0.0)`` is
    `clamp_min`. The arguments of a counterpart come in every order, because keywords may bring the operands of its
    inner jit into any.
    """
    for op in sorted(OPS.values(), key=lambda op: len(op.arrays) != count):
        for counterpart in op.counterparts_in("jax"):
            for names in itertools.permutations(counterpart.parameters, count):
                yield _Call(op, counterpart, names)
    for op in OPS.values():
        if op.family != "reduction" and len(op.arrays) == count:
            yield _Call(op, lambda arguments, op=op: op.function(**arguments), op.arrays)  # type: ignore[misc]


class _Value(NamedTuple):
    """A value that an elementwise program computes: a formula of scalars, and where the axes of each operand are in it.

    A vector that is the last axis of a matrix, for example, has its one axis at place 1.
    """

    formula: Hashable
    axes: Mapping[int, tuple[int, ...]]


class _Constant(NamedTuple):
    """The formula of a number in the program: what it is to the bit, so that formulas can be looked up."""

    # By its bits, NaN equals itself, and 0.0 is not -0.0.
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    bits: bytes

    @classmethod
    def of(cls, number: np.ndarray[Any, Any]) -> _Constant:
        return cls(number.dtype, number.shape, number.tobytes())

    @property
    def number(self) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.bits, self.dtype).reshape(self.shape)


def _of_scalars(eqn: JaxprEqn) -> JaxprEqn:
    """Return ``eqn`` as it would be for scalars: it reduces no axes, and brings no derivative."""
    if eqn.primitive is p.custom_jvp_call_p:
        return eqn.replace(primitive=p.jit_p, params={"jaxpr": eqn.params["call_jaxpr"]})
    if "axes" in eqn.params:
        return eqn.replace(params={**eqn.params, "axes": ()})
    return eqn


def _values(eqn: JaxprEqn, inputs: Sequence[_Value]) -> list[_Value]:
    """Return what ``eqn`` computes of ``inputs``.

    A broadcast changes the places of axes, and not the formula. Say b is a vector, and c is b broadcast to the rows of
    a matrix: ``c = broadcast_in_dim[broadcast_dimensions=(1,)] b``. Then c has the formula of b, with its axis at place
    1. And ``max a c`` has the formula ``max(0th, 1st)``, with the axes of a at (0, 1) and that of b at (1,).
    """
    if eqn.primitive is p.custom_jvp_call_p:
        eqn = _of_scalars(eqn)
    if eqn.primitive is p.jit_p:
        return _results(eqn.params["jaxpr"], inputs)
    if eqn.primitive is p.broadcast_in_dim_p:
        return [_moved(inputs[0], eqn.params["broadcast_dimensions"].__getitem__)]
    if eqn.primitive is p.transpose_p:
        return [_moved(inputs[0], eqn.params["permutation"].index)]
    if eqn.primitive.name in _SPREADING:
        return [inputs[0]]
    if eqn.primitive is p.convert_element_type_p:
        operand: Any = eqn.invars[0].aval
        dtype = eqn.params["new_dtype"]
        if operand.dtype == dtype:  # it ends a weak dtype, in programs of arrays alone
            return [inputs[0]]
        if isinstance(constant := inputs[0].formula, _Constant):
            # Elsewhere JAX converts a number before it is traced. In a shard_map of JAX 0.12 a pvary comes first.
            return [_Value(_Constant.of(constant.number.astype(dtype)), {})]
    # ``max(b[:, None], b[None, :])`` meets b at two places: that is no elementwise function of b.
    axes = {operand: places for value in inputs for operand, places in value.axes.items()}
    meets_elsewhere = any(axes[i] != places for value in inputs for i, places in value.axes.items())
    if not _is_elementwise(eqn) or meets_elsewhere:
        return [_UNKNOWN] * len(eqn.outvars)
    formula = (eqn.primitive, tuple(sorted(eqn.params.items())), *(value.formula for value in inputs))
    try:
        hash(formula)
    except TypeError:  # a parameter that no op of the table has
        return [_UNKNOWN] * len(eqn.outvars)
    return [_Value((formula, k), axes) for k in range(len(eqn.outvars))]


def _results(program: Any, inputs: Sequence[_Value]) -> list[_Value]:
    """Return what ``program`` computes of ``inputs``, equation by equation."""
    known: dict[Any, _Value] = dict(zip(program.invars, inputs, strict=True))

    def read(atom: Any) -> _Value:
        if isinstance(atom, Literal):
            return _Value(_Constant.of(np.asarray(atom.val, atom.aval.dtype)), {})  # type: ignore[attr-defined]
        return known.get(atom, _UNKNOWN)  # unknown is a constant array

    for eqn in program.eqns:
        known.update(zip(eqn.outvars, _values(eqn, [read(atom) for atom in eqn.invars]), strict=True))
    return [read(atom) for atom in program.outvars]


_UNKNOWN = _Value(object(), {})  # this object equals nothing else, so that no formula with it is in a table
_SPREADING = ("pvary", "reshard")
"""Primitives that give each device its copy of a value, in a `shard_map` or under explicit sharding.

They are known by name, since they are not public."""


def _is_elementwise(eqn: JaxprEqn) -> bool:
    """Return whether all results have as many axes as the operands, apart from operands that are scalars."""
    if eqn.params.get("axes") == ():  # a reduction, made one of scalars by `_of_scalars`
        return True
    results, operands = ({getattr(atom.aval, "ndim", None) for atom in atoms} for atoms in (eqn.outvars, eqn.invars))
    return len(results) == 1 and operands <= results | {0}


def _moved(value: _Value, move: Callable[[int], int]) -> _Value:
    """Return ``value`` with each axis at the place to which ``move`` maps its place."""
    return _Value(value.formula, {operand: tuple(map(move, axes)) for operand, axes in value.axes.items()})


def _placed(operand: jax.Array, axes: tuple[int, ...], ndim: int) -> jax.Array:
    """Return ``operand`` with its axes at these places among ``ndim``; a scalar stays one."""
    if not axes:
        return operand
    ordered = jnp.transpose(operand, sorted(range(len(axes)), key=axes.__getitem__))
    return jnp.expand_dims(ordered, [axis for axis in range(ndim) if axis not in axes])


def recognized_euclidean(eqn: JaxprEqn) -> Recognized | None:
    """Return the 2-norm that ``eqn`` computes, of elements or of two operands, if any."""
    if eqn.params.get("name") != "hypot" and name_of_jaxclamp_op(eqn) != "hypot":
        return _norm(eqn, (2,))
    return recognized(eqn)


def _norm(eqn: JaxprEqn, orders: Iterable[float] = ORDERS) -> Recognized | None:
    """Return the 2-norm that an inner jit of `jax.numpy.linalg.norm` computes, or the norm of a call of `norm`."""
    rule = None
    if eqn.primitive is p.jit_p and eqn.params["name"] == "norm":
        rule = _norm_of_program(eqn.params["jaxpr"], (2,))
    elif name_of_jaxclamp_op(eqn) == "norm":
        rule = _norm_of_program(eqn.params["call_jaxpr"], orders)
    return None if rule is None else Recognized("norm", lambda _ties, x: Applied(rule, (x,)))


def _norm_of_program(program: Any, orders: Iterable[float]) -> Rule | None:
    """Return the rule of the norm, of one of these orders, that ``program`` computes, if any.

    It is the one whose value is computed by the same program.
    """
    # Most programs cannot be norms by their equations alone; only of others one of each order is traced to compare.
    reductions = [inner for inner in program.eqns if inner.primitive in (p.reduce_sum_p, p.reduce_max_p)]
    if len(program.invars) != 1 or len(program.outvars) != 1 or len(reductions) != 1:
        return None
    (x,), (result,), (reduction,) = program.invars, program.outvars, reductions
    if not is_floating(x.aval) or reduction.invars[0].aval.shape != x.aval.shape:
        return None
    axes, keepdims = tuple(map(int, reduction.params["axes"])), result.aval.ndim == x.aval.ndim
    for order in orders:
        rule = norm_of_order(order, axes, keepdims)
        if _text(jax.make_jaxpr(rule.value)(x.aval)) == _text(program):
            return rule
    return None


def calls(eqn: JaxprEqn, function: Callable[..., Any]) -> bool:
    """Return whether ``eqn`` calls the function, which is a ``custom_jvp``: whether their bodies are the same."""
    # Of a number beside an array, a conversion may come before the call.
    call = jax.make_jaxpr(function)(*(atom.aval for atom in eqn.invars)).eqns[-1]
    return _text(call.params["call_jaxpr"]) == _text(eqn.params["call_jaxpr"])


def _text(program: Any) -> str:
    """Return a program as text, in which `jax.vmap` writes the number of an axis as ``np.int64(1)``."""
    return re.sub(r"np\.int64\((\d+)\)", r"\1", str(program.jaxpr))


def _max_pool(params: Mapping[str, Any]) -> Recognized | None:
    """Return the pool that a ``reduce_window_max`` computes, unless it dilates its operand or crops it."""
    sizes, paddings = params["window_dimensions"], params["padding"]
    # `Windows` has neither.
    if set(params["base_dilation"]) != {1} or any(amount < 0 for pair in paddings for amount in pair):
        return None
    windows = Windows(sizes, params["window_strides"], paddings, params["window_dilation"])

    def applied(ties: Convention, x: jax.Array) -> Applied[jax.Array]:
        return Applied(largest_of_windows("max_pool", windows, x.shape, ties), (x,))

    return Recognized("max_pool", applied)


def _of_devices(
    name: str, of_array: Callable[..., jax.Array], of_devices: Callable[..., jax.Array], params: Mapping[str, Any]
) -> Recognized:
    """Return the reduction over devices, or, where `jax.vmap` has made these an axis of the array, along that axis."""
    over, groups = params["axes"], params["axis_index_groups"]

    def applied(ties: Convention, x: jax.Array) -> Applied[jax.Array]:
        if all(isinstance(axis, int) for axis in over):
            return Applied(extremum(name, of_array, over, False, ties), (x,))
        return Applied(extremum_of_devices(name, of_devices, over, groups, ties), (x,))

    return Recognized(name, applied)


_UNLISTED: Mapping[Primitive, Callable[[Mapping[str, Any]], Recognized | None]] = {
    p.reduce_window_max_p: _max_pool,
    p.pmax_p: functools.partial(_of_devices, "pmax", jnp.max, lax.pmax),
    p.pmin_p: functools.partial(_of_devices, "pmin", jnp.min, lax.pmin),
}
"""Maps a primitive that no op lists as a counterpart to a function from its parameters to the op it computes."""
