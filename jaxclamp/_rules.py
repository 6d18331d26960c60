"""The two min-norm rules, selection and kink, and the one place where JAX learns a derivative; no op lives here.

A rule is a static object with four methods. ``value`` computes the op. ``code`` looks at the primals and writes down,
in one byte per element, whose slope counts. ``linear`` maps tangents to the output tangent given that code. Forward
mode is the composition; reverse mode is JAX's transpose of ``linear``, so the two cannot disagree, and since ``linear``
runs under `jax.checkpoint` the code is all that a reverse pass has to keep. ``on_tie`` says where there was a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, NoReturn, Protocol, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike, DTypeLike

Ties: TypeAlias = Literal["min_norm", "inclusive", "exclusive", "balanced"]
TIES: tuple[Ties, ...] = get_args(Ties)
_NUMERIC = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


class Rule(Protocol):
    """What `differentiable` needs to know of an op."""

    @property
    def name(self) -> str: ...
    def __hash__(self) -> int: ...
    @property
    def operands(self) -> tuple[str, ...]: ...
    def value(self, *primals: jax.Array) -> jax.Array: ...
    def code(self, primals: Sequence[jax.Array], active: Sequence[bool]) -> jax.Array: ...
    def on_tie(self, primals: Sequence[jax.Array]) -> jax.Array: ...
    def linear(
        self,
        code: jax.Array,
        primals: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
        like: jax.ShapeDtypeStruct,
    ) -> jax.Array: ...


@cache
def _program(rule: Rule) -> Callable[..., jax.Array]:
    """The op of ``rule`` with its derivative, compiled, and called by its name in jaxprs, errors and profiles."""

    def value(*primals: jax.Array) -> jax.Array:
        for name, primal in zip(rule.operands, primals, strict=True):
            check_operand(rule.name, name, primal)
        try:
            jnp.broadcast_shapes(*map(jnp.shape, primals))
        except ValueError as error:
            shapes = ", ".join(f"{n} {jnp.shape(p)}" for n, p in zip(rule.operands, primals, strict=True))
            raise ValueError(
                f"{rule.name}: the shapes do not broadcast: {shapes}; reshape one so that they do."
            ) from error
        return rule.value(*primals)

    value.__name__ = value.__qualname__ = rule.name
    op = jax.custom_jvp(value)
    op.defjvp(partial(_jvp, rule, op), symbolic_zeros=True)  # type: ignore[arg-type]  # its stub lacks SymbolicZero
    return jax.jit(op, inline=True)


def _jvp(
    rule: Rule,
    op: Callable[..., jax.Array],
    primals: Sequence[jax.Array],
    tangents: Sequence[jax.Array | SymbolicZero],
) -> tuple[jax.Array, jax.Array | SymbolicZero]:
    value = op(*primals)
    active = [not isinstance(t, SymbolicZero) for t in tangents]
    if not any(active):  # integers and bools: JAX asks for a rule, yet nothing can be differentiated
        return value, SymbolicZero.from_primal_value(value)
    like = jax.ShapeDtypeStruct(value.shape, value.dtype)
    moving = [None if isinstance(t, SymbolicZero) else t for t in tangents]
    # Without the checkpoint, partial evaluation saves every zero branch of a select as a float array.
    linear = jax.checkpoint(lambda code, primals, moving: rule.linear(code, primals, moving, like), prevent_cse=False)
    return value, linear(rule.code(primals, active), primals, moving)


_asked_for_ties = ContextVar("_asked_for_ties", default=False)


def on_tie(op: Callable[..., jax.Array], *operands: ArrayLike) -> jax.Array:
    """Where the elements of ``op(*operands)`` are on a tie or a kink."""
    token = _asked_for_ties.set(True)
    try:
        with jax.disable_jit():  # an op that is compiled as a whole would answer from its cache
            return op(*operands)
    finally:
        _asked_for_ties.reset(token)


def differentiable(rule: Rule, *primals: ArrayLike) -> jax.Array:
    """The value of ``rule`` at ``primals``, in one dispatch, with the derivative that the rule declares."""
    if _asked_for_ties.get():
        return rule.on_tie([jnp.asarray(primal) for primal in primals])
    for primal in primals:
        if type(primal) is int and not 0 <= primal <= 127:
            primals = _fitting(rule, primals)
            break
    try:
        return _program(rule)(*primals)
    except TypeError:
        for name, primal in zip(rule.operands, primals, strict=True):
            check_operand(rule.name, name, primal)
        raise


@dataclass(frozen=True, eq=False)
class Selection:
    """An op whose value is one of its operands: a fold of maxima and minima over them.

    C is the set of operands tied for the value. Under ``min_norm`` an inactive member of C takes all gradient with it;
    else each member gets 1/|C|. The other conventions ignore who is active: ``balanced`` gives each member 1/|C|,
    ``inclusive`` gives all to the first member, ``exclusive`` shares it among the others.
    """

    name: str
    operands: tuple[str, ...]
    steps: tuple[Callable[[jax.Array, jax.Array], jax.Array], ...]
    ties: Ties

    def value(self, *primals: jax.Array) -> jax.Array:
        value = primals[0]
        for step, operand in zip(self.steps, primals[1:], strict=True):
            value = step(value, operand)
        return value

    def code(self, primals: Sequence[jax.Array], active: Sequence[bool]) -> jax.Array:
        """Bit i is set where operand i gets a share of the gradient."""
        if self.ties == "min_norm":
            return self._members(primals, active)
        code = self._members(primals, [True] * len(primals))
        first = code & -code
        match self.ties:
            case "balanced":
                return code
            case "inclusive":
                return first
            case "exclusive":
                return jnp.where(code == first, code, code ^ first)

    def _members(self, primals: Sequence[jax.Array], active: Sequence[bool]) -> jax.Array:
        """Bit i is set where operand i is in C; none is set where C has an inactive member."""
        value = primals[0]
        code: jax.Array = jnp.int8(active[0])
        for i, (step, operand) in enumerate(zip(self.steps, primals[1:], strict=True), 1):
            entered = bit = jnp.int8(active[i] << i)
            if active[i]:  # XLA would not see that else it is 0 either way
                tie = jnp.where(code == 0, jnp.int8(0), code | bit)
                entered = jnp.where(_wins(step, value, operand), tie, bit)
            code = jnp.where(_wins(step, operand, value), entered, code)
            value = step(value, operand)
        return code

    def on_tie(self, primals: Sequence[jax.Array]) -> jax.Array:
        members = self._members(primals, [True] * len(primals))
        return (members & -members) != members

    def linear(
        self,
        code: jax.Array,
        primals: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
        like: jax.ShapeDtypeStruct,
    ) -> jax.Array:
        # Alone under min_norm, an operand has all or nothing; under inclusive, whoever is active.
        alone = self.ties == "min_norm" and sum(t is not None for t in tangents) == 1
        shared = self.ties != "inclusive" and not alone
        shares = sum((code >> i) & 1 for i in range(len(tangents))) if shared else None
        terms = []
        for i, tangent in enumerate(tangents):
            if tangent is not None:
                term = jnp.broadcast_to(tangent.astype(like.dtype), like.shape)
                if shares is not None:
                    term = term / jnp.maximum(shares, 1).astype(like.dtype)
                has_share = (code if alone else code & (1 << i)) != 0
                terms.append(jnp.where(has_share, term, jnp.zeros((), like.dtype)))
        return sum(terms[1:], terms[0])


def selection(
    name: str, first: str, **steps: Callable[[jax.Array, jax.Array], jax.Array]
) -> Mapping[str, Callable[..., jax.Array]]:
    """The selection op ``name`` under each convention: start with operand ``first``, fold each further one in."""
    return _Conventions(
        (ties, partial(differentiable, Selection(name, (first, *steps), tuple(steps.values()), ties))) for ties in TIES
    )


class _Conventions(dict[str, Callable[..., jax.Array]]):
    def __missing__(self, ties: object) -> NoReturn:
        refuse_convention(ties)


def refuse_convention(ties: object) -> NoReturn:
    """Raise, for something that is not one of `TIES`."""
    raise ValueError(f"ties={ties!r} is not a convention; choose one of {', '.join(map(repr, TIES))}.")


@dataclass(frozen=True, eq=False)
class Extremum:
    """The largest or smallest element along axes: a selection among elements, all of them active or none.

    Each of k tied elements gets 1/k (``min_norm`` and ``balanced``); ``inclusive`` gives all to the first along the
    axes in row-major order, ``exclusive`` shares it among the others.
    """

    name: str
    function: Callable[..., jax.Array]
    axes: tuple[int, ...]
    keepdims: bool
    ties: Ties
    operands: tuple[str, ...] = ("x",)

    def value(self, *primals: jax.Array) -> jax.Array:
        (x,) = primals
        return self.function(x, axis=self.axes, keepdims=self.keepdims)

    def code(self, primals: Sequence[jax.Array], active: Sequence[bool]) -> jax.Array:
        """1 where an element gets a share of the gradient; a bool XLA on CPU would write to memory and read again."""
        return of_tied(self._tied(primals), self.axes, self.ties).astype(jnp.int8)

    def _tied(self, primals: Sequence[jax.Array]) -> jax.Array:
        (x,) = primals
        return same(x, self.function(x, axis=self.axes, keepdims=True))

    def on_tie(self, primals: Sequence[jax.Array]) -> jax.Array:
        return jnp.sum(self._tied(primals), self.axes, dtype=jnp.int32, keepdims=self.keepdims) > 1

    def linear(
        self,
        code: jax.Array,
        primals: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
        like: jax.ShapeDtypeStruct,
    ) -> jax.Array:
        (tangent,) = tangents
        assert tangent is not None
        wide = widened(like.dtype)
        shares = jnp.sum(code, axis=self.axes, keepdims=True, dtype=jnp.int32).astype(wide)
        weighted = jnp.where(code == 1, tangent.astype(wide) / shares, jnp.zeros((), wide))
        return jnp.sum(weighted, axis=self.axes, keepdims=self.keepdims).astype(like.dtype)


def of_tied(tied: jax.Array, axes: tuple[int, ...], ties: Ties) -> jax.Array:
    """Which of the tied elements along ``axes`` share the gradient."""
    if ties in ("min_norm", "balanced"):
        return tied
    last = tuple(range(-len(axes), 0))
    lines = jnp.moveaxis(tied, axes, last)
    flat = lines.reshape(*lines.shape[: last[0]], -1)
    first = (jnp.cumsum(flat, axis=-1, dtype=jnp.int32) == 1) & flat
    alone = jnp.sum(flat, axis=-1, keepdims=True, dtype=jnp.int32) == 1
    chosen = first if ties == "inclusive" else jnp.where(alone, first, flat & ~first)
    return jnp.moveaxis(chosen.reshape(lines.shape), last, axes)


def widened(dtype: np.dtype[Any]) -> DTypeLike:
    """The dtype to share in: small ones can hold neither a large k nor 1/k."""
    return jnp.float32 if jnp.finfo(dtype).bits < 32 else dtype


@dataclass(frozen=True, eq=False)
class Kinked:
    """An op of one variable, made of smooth pieces that meet at kinks.

    ``pieces[k]`` holds between kink k-1 and kink k; every piece is finite at 0. Of the one-sided slopes at a kink, the
    point of the interval between them that lies nearest to 0 is the gradient: the slope of the flatter piece, or 0
    where the signs differ. NaN passes through with slope 1. Where the function jumps, the flatter piece has to be the
    one that the value takes.
    """

    name: str
    operands: tuple[str, ...]
    function: Callable[..., jax.Array]
    pieces: tuple[Callable[..., jax.Array], ...]
    kinks: Callable[..., tuple[ArrayLike, ...]]

    def __call__(self, *primals: ArrayLike) -> jax.Array:
        return differentiable(self, *primals)

    def value(self, *primals: jax.Array) -> jax.Array:
        return self.function(*primals)

    def code(self, primals: Sequence[jax.Array], active: Sequence[bool]) -> jax.Array:
        """The index in ``_branches`` of the slope that counts; one past the last for slope 0."""
        x, kinks, meeting = self._pieces_that_meet(primals)
        code = _count(~(x <= kink) for kink in kinks)
        for here, left, right, before, after in meeting:
            flatter = jnp.where(jnp.abs(before) <= jnp.abs(after), left, right)
            opposite = jnp.sign(before) * jnp.sign(after) < 0
            if any(active[1:]):  # then the pieces in between come near as well
                opposite |= right - left > 1
            code = jnp.where(here, jnp.where(opposite, jnp.int8(len(self._branches)), flatter), code)
        if self._branches == self.pieces:
            return code  # NaN is counted as past every kink
        return jnp.where(jnp.isnan(x), jnp.int8(len(self.pieces)), code)

    @property
    def _branches(self) -> tuple[Callable[..., jax.Array], ...]:
        """The pieces and, where the last of them is another one, the identity for NaN."""
        return self.pieces if self.pieces[-1] is identity else (*self.pieces, identity)

    def on_tie(self, primals: Sequence[jax.Array]) -> jax.Array:
        _, _, meeting = self._pieces_that_meet(primals)
        return _count(here & (before != after) for here, _, _, before, after in meeting) > 0

    def _pieces_that_meet(
        self, primals: Sequence[jax.Array]
    ) -> tuple[jax.Array, list[jax.Array], Iterator[tuple[jax.Array, ...]]]:
        """x, the kinks, and for each of them: where x is, the pieces to the left and right, and their slopes."""
        x, *parameters = _promote(primals, jnp.result_type(*primals))
        kinks = [jnp.asarray(kink, x.dtype) for kink in self.kinks(*parameters)]

        def meeting() -> Iterator[tuple[jax.Array, ...]]:
            for kink in kinks:  # kinks may coincide: then the pieces to either side of all of them meet
                left = _count(other < kink for other in kinks)
                right = _count(other <= kink for other in kinks)
                slopes = [_slope(piece, kink, *parameters) for piece in self.pieces]
                yield x == kink, left, right, _choose(left, slopes), _choose(right, slopes)

        return x, kinks, meeting()

    def linear(
        self,
        code: jax.Array,
        primals: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
        like: jax.ShapeDtypeStruct,
    ) -> jax.Array:
        x, *parameters = _promote(primals, like.dtype)
        moving = [None if t is None else t.astype(like.dtype) for t in tangents]
        if moving[0] is not None:  # x itself takes the shape of the code below
            moving[0] = jnp.broadcast_to(moving[0], like.shape)
        zero = jnp.zeros((), like.dtype)
        total = zero
        for k, piece in enumerate(self._branches):
            # Elsewhere x becomes 0: a slope that overflows outside its piece would turn a zero cotangent into NaN.
            term = _directional(piece, (jnp.where(code == k, x, zero), *parameters), moving)
            total = total + jnp.where(code == k, term, zero)
        return total


def same(operand: jax.Array, value: jax.Array) -> jax.Array:
    """Where an operand ties with the value, which is NaN if any operand is."""
    return (operand == value) | (operand != operand)


_PAST_NAN = (jnp.fmax, jnp.fmin)
_IS_BEHIND = {
    jnp.maximum: jnp.less_equal,
    jnp.fmax: jnp.less_equal,
    jnp.minimum: jnp.greater_equal,
    jnp.fmin: jnp.greater_equal,
}


def _wins(step: Callable[[jax.Array, jax.Array], jax.Array], operand: jax.Array, other: jax.Array) -> jax.Array:
    """Where ``operand`` is the value of ``step`` of the two, or ties with it; XLA need not keep that value for it."""
    deciding = other if step in _PAST_NAN else operand
    return _IS_BEHIND[step](other, operand) | (deciding != deciding)


def _promote(primals: Sequence[jax.Array], dtype: DTypeLike) -> list[jax.Array]:
    return [jnp.asarray(primal, dtype) for primal in primals]


def identity(x: jax.Array, *_: jax.Array) -> jax.Array:
    """The piece of slope 1, whatever the parameters."""
    return x


def _count(conditions: Iterable[jax.Array]) -> jax.Array:
    first, *rest = (condition.astype(jnp.int8) for condition in conditions)
    return sum(rest, first)


def _choose(index: jax.Array, options: Sequence[jax.Array]) -> jax.Array:
    chosen = options[0]
    for k, option in enumerate(options[1:], 1):
        chosen = jnp.where(index == k, option, chosen)
    return chosen


def _slope(piece: Callable[..., jax.Array], x: jax.Array, *parameters: jax.Array) -> jax.Array:
    return _directional(piece, (x, *parameters), (jnp.ones_like(x), *[None] * len(parameters)))


def _directional(
    piece: Callable[..., jax.Array], primals: Sequence[jax.Array], tangents: Sequence[jax.Array | None]
) -> jax.Array:
    """The derivative of ``piece`` along the tangents that are not None."""

    def restricted(*moving: jax.Array) -> jax.Array:
        remaining = iter(moving)
        return piece(*(p if t is None else next(remaining) for p, t in zip(primals, tangents, strict=True)))

    moving = [(p, t) for p, t in zip(primals, tangents, strict=True) if t is not None]
    derivative: jax.Array = jax.jvp(restricted, tuple(p for p, _ in moving), tuple(t for _, t in moving))[1]
    return derivative


def check_operand(op: str, name: str, primal: object) -> None:
    """Raise unless ``primal`` is a real number or an array of them."""
    if not isinstance(primal, _NUMERIC) or np.dtype(getattr(primal, "dtype", int)).kind in "OSUMm":
        raise TypeError(
            f"{op}: {name} must be an array or a number, got {type(primal).__name__} {primal!r}; "
            "convert it first, for example with jnp.asarray."
        )
    dtype = jnp.result_type(primal)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(
            f"{op}: {name} has the complex dtype {dtype}, and the ordering of complex numbers is undefined; "
            "apply the op to the real and the imaginary part, or to jnp.abs(...)."
        )
    if dtype == jnp.float8_e8m0fnu:
        raise TypeError(
            f"{op}: {name} has the dtype {dtype}, which holds powers of two alone, neither 0 nor a gradient of 0; "
            "convert it first, for example with .astype('float32')."
        )


def _fitting(rule: Rule, primals: tuple[ArrayLike, ...]) -> tuple[ArrayLike, ...]:
    """``primals`` with Python ints that the result can hold: traced as they are, they would wrap around silently."""
    try:
        dtype = jnp.result_type(*primals)
    except TypeError:
        return primals  # the bad operand is named when the call fails
    if not jnp.issubdtype(dtype, jnp.integer):
        return tuple(float(primal) if type(primal) is int else primal for primal in primals)
    for name, primal in zip(rule.operands, primals, strict=True):
        if type(primal) is int and not jnp.iinfo(dtype).min <= primal <= jnp.iinfo(dtype).max:
            raise OverflowError(
                f"{rule.name}: {name}={primal} does not fit into {dtype}, the dtype of the result; "
                "convert the operands to a wider dtype."
            )
    return primals
