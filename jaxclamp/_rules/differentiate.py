"""How JAX learns the derivative of an op from its rule: the one `jax.custom_jvp` of the package.

A rule is a static object. Its ``value`` computes the op. Its ``code`` looks at the primals and writes down, in one byte
per element, whose slope counts. Its ``linear`` maps tangents to the tangent of the result, given that code. Its
``on_tie`` says where there was a choice. Forward mode is code, then linear. Reverse mode is JAX's transpose of
``linear``, so the two cannot disagree. Since that runs under `jax.checkpoint`, a reverse pass keeps the code alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike

from jaxclamp._jax_versions import INLINE
from jaxclamp._rules.operands import check_narrow, check_operands, check_shapes, checked_ints, is_floating, narrowed

R = TypeVar("R")
Arrays: TypeAlias = Sequence[jax.Array]
Tangents: TypeAlias = Sequence[jax.Array | None]
"""None for an operand that is not active."""

OP_SCOPE = "jaxclamp."
"""Begins the name of the `jax.named_scope` around an op, ``jaxclamp.clamp``, by which `jaxclamp.ties` knows it."""
ROOT_SCOPE = "jaxclamp root"
"""The name of the `jax.named_scope` around a root of a sum of powers, to which `jaxclamp.min_norm` gave the slope 0."""
DERIVATIVE_SCOPE = "jaxclamp derivative"
"""The name of the `jax.named_scope` around the derivative of an op, and of a choice in a derivative of a program."""
VALUE_SCOPE = "jaxclamp value"
"""The name of the `jax.named_scope` around the value of such a choice."""


class Rule(Protocol):
    """The methods by which `differentiable` knows an op; the module docstring says what the last four do."""

    @property
    def name(self) -> str: ...
    def __hash__(self) -> int: ...
    @property
    def operands(self) -> tuple[str, ...]: ...
    @property
    def compares_with_value(self) -> bool: ...  # whether code compares operands with the value, not with each other
    def value(self, *primals: jax.Array) -> jax.Array: ...
    def code(self, primals: Arrays, active: Sequence[bool]) -> Any: ...
    def linear(self, code: Any, primals: Arrays, tangents: Tangents, like: jax.ShapeDtypeStruct) -> jax.Array: ...
    def on_tie(self, primals: Arrays) -> jax.Array: ...


class Applied(NamedTuple, Generic[R]):
    """A rule and its operands. An op makes this of its arguments: it has checked them, and computed nothing."""

    rule: Rule
    operands: tuple[ArrayLike, ...]

    def value(self) -> R:
        """Compute the result of the op."""
        return differentiable(self.rule, *self.operands)  # type: ignore[return-value]

    def on_tie(self) -> jax.Array:
        """Compute where the elements of the result are on a tie or a kink; those that are NaN are on none."""
        # A gradient may be taken around the count, and JAX has no derivative of what `pmax` computes its value by.
        operands = [jax.lax.stop_gradient(jnp.asarray(operand)) for operand in self.operands]
        return self.rule.on_tie(operands) & ~jnp.isnan(self.rule.value(*operands))


def differentiable(rule: Rule, *primals: ArrayLike) -> jax.Array:
    """Compute the value of ``rule`` at ``primals``, in one dispatch, with the derivative that the rule declares."""
    for primal in primals:
        # Any dtype of 8 bits or more holds 0 to 127, so that there is nothing to check about these. In narrower ones
        # `check_narrow` raises while the program is traced, so that other calls do not take the time to look for one.
        if type(primal) is int and not 0 <= primal <= 127:
            primals = checked_ints(rule.name, rule.operands, primals)
            break
    try:
        return _program(rule)(*primals)
    except TypeError:
        # JAX refuses what is no array, such as a text, before it traces the checks in the program.
        check_operands(rule.name, rule.operands, primals)
        converted = narrowed(rule.name, rule.operands, primals)
        if converted is primals:
            raise
    return _program(rule)(*converted)


# Reductions have a rule for each choice of axes. This is more than the caches of such rules hold together, five times
# 1024, so that no rule in use is compiled twice.
@lru_cache(maxsize=8192)
def _program(rule: Rule) -> Callable[..., jax.Array]:
    """Return the op of ``rule`` with its derivative, compiled, under the name that jaxprs, errors and profiles show."""

    def value(*primals: jax.Array) -> jax.Array:
        check_operands(rule.name, rule.operands, primals)
        check_narrow(rule.name, primals)
        check_shapes(rule.name, rule.operands, primals)
        return rule.value(*primals)

    value.__name__ = value.__qualname__ = rule.name
    op = jax.custom_jvp(value)
    # With symbolic zeros, since a tangent that is a plain 0 does not say whether the operand is active.
    op.defjvp(partial(_jvp, rule, op), symbolic_zeros=True)  # type: ignore[arg-type]  # its stub lacks SymbolicZero

    def program(*primals: jax.Array) -> jax.Array:
        with jax.named_scope(OP_SCOPE + rule.name):
            return op(*primals)

    program.__name__ = program.__qualname__ = rule.name
    return jax.jit(program, inline=INLINE)


def _jvp(
    rule: Rule, op: Callable[..., jax.Array], primals: Arrays, tangents: Sequence[jax.Array | SymbolicZero]
) -> tuple[jax.Array, jax.Array | SymbolicZero]:
    """Compute the value, and its tangent from those of the primals: forward mode, as `jax.custom_jvp` asks for it."""
    if rule.compares_with_value:
        # XLA might compute an operand once for the value and once for the comparison, and round it in two ways.
        primals = jax.lax.optimization_barrier(primals)
    # Not rule.value: JAX differentiates this again in second derivatives, and would do so by rules of its own.
    value = op(*primals)
    if not is_floating(value):  # of integers, with a float as ``initial``: they do not move with it
        return value, SymbolicZero.from_primal_value(value)
    active = [not isinstance(t, SymbolicZero) for t in tangents]
    like = jax.ShapeDtypeStruct(value.shape, value.dtype)
    moving = [None if isinstance(t, SymbolicZero) else t for t in tangents]
    with jax.named_scope(DERIVATIVE_SCOPE):
        code = rule.code(primals, active)
        # Without the checkpoint, partial evaluation saves every zero branch of a select as a float array. What it keeps
        # it does not compute again, so that JAX need not put a barrier around the code against merging the two.
        linear = jax.checkpoint(
            lambda code, primals, moving: rule.linear(code, primals, moving, like), prevent_cse=False
        )
        return value, linear(code, primals, moving)
