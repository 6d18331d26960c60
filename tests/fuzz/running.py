"""How random programs are run: transformed by JAX, for many rows, many at once; and which of them fail."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
from jax import lax
from jax.sharding import PartitionSpec

from tests.fuzz.programs import ROWS

Tree: TypeAlias = Any
Case = TypeVar("Case")


def _with_its_own_rule(function: Callable[..., Any]) -> Callable[..., Any]:
    """As a ``custom_jvp`` whose rule is that of JAX, in which ties are comparisons with the largest."""
    wrapped = jax.custom_jvp(function)
    wrapped.defjvp(lambda primals, tangents: jax.jvp(function, primals, tangents))
    return wrapped


WRAPPERS: Mapping[str, Callable[..., Callable[..., Any]]] = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "checkpoint of all": lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.everything_saveable),
    "cond": lambda f: lambda *xs: lax.cond(xs[0].ravel()[0] > 0, f, f, *xs),
    "switch": lambda f: lambda *xs: lax.switch((xs[0].ravel()[:2] > 0).sum(), [f, f, f], *xs),
    "scan": lambda f: lambda *xs: lax.scan(lambda _, x: (None, f(*x)), None, [x[None] for x in xs])[1][0],
    "vmap": lambda f: lambda *xs: jax.vmap(f, in_axes=-1, out_axes=-1)(*(x[..., None] for x in xs))[..., 0],
    "custom_jvp": _with_its_own_rule,
}
"""What may be around a function in JAX."""


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((ROWS,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))


def over_rows(how: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of one row, for all of them."""
    rows = PartitionSpec("rows")
    match how:
        case "map":
            return lambda *arguments: lax.map(lambda row: function(*row), arguments)
        case "shard_map":
            return jax.shard_map(jax.vmap(function), mesh=mesh(), in_specs=rows, out_specs=rows)
    return jax.vmap(function)


def together(functions: Sequence[Callable[..., Tree]], arguments: Any, compiled: bool) -> list[Tree]:
    """What each returns of its arguments; compiled as one program, which takes less time than one for each."""

    def run(arguments: Any) -> list[Tree]:
        return [function(*own) for function, own in zip(functions, arguments, strict=True)]

    return (jax.jit(run) if compiled else run)(arguments)


Answers: TypeAlias = Callable[[Sequence[Case]], Sequence[Tree]]
Judge: TypeAlias = Callable[[Case, Tree], str]
"""How an answer differs from what is expected; empty if it does not."""


def failure(case: Case, answers: Answers[Case], disagreement: Judge[Case]) -> str:
    """Why a case fails by itself; empty if it does not."""
    try:
        (answer,) = answers([case])
    except Exception as error:
        return f"raises {type(error).__name__}\n{traceback.format_exc(limit=-3, chain=False)}"
    return disagreement(case, answer)


def failures(
    cases: Sequence[Case], answers: Answers[Case], disagreement: Judge[Case], described: Callable[[Case, str], str]
) -> list[str]:
    """A description of each case that disagrees or raises."""
    try:
        pairs = [*zip(cases, answers(cases), strict=True)]
    except Exception:  # of which one it was, each by itself will tell
        reasons = [(case, failure(case, answers, disagreement)) for case in cases]
        texts = [described(case, reason) for case, reason in reasons if reason]
        return texts or [f"raises together, not one by one:\n{traceback.format_exc()}"]
    wrong = [case for case, answer in pairs if disagreement(case, answer)]
    alone = "fails beside others, not by itself"
    return [described(case, failure(case, answers, disagreement) or alone) for case in wrong]
