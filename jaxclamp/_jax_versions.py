"""What differs between JAX 0.10 and 0.12 in jaxprs and in how programs enter them, behind one form.

Read alike in all of these versions are ``eqns``, ``invars``, ``outvars``, ``effects``, ``constvars`` and ``consts`` of
a program, closed or not. Made and changed they are by the functions here. `tests/jax/test_jax_versions.py` asks for
each.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax

INLINE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True
"""What ``inline=`` of `jax.jit` takes so that the equations of a function stand among those of its caller.

Until JAX 0.11.0 that is ``True``. Since 0.11.2, ``True`` means ``jax.Inline.JAX_LATE``: the call stays an equation."""


@functools.cache
def warn_of_an_untested_jax(version: str) -> None:
    """Warn, once for each version, where ``version`` of JAX is later than those that the tests were run with."""
    if _release(version) > _release(_NEWEST_TESTED):
        warnings.warn(
            f"jaxclamp rewrites programs of JAX, whose form changes between versions. It was tested with JAX 0.10.0 to "
            f"{_NEWEST_TESTED}, and this is JAX {version}. Compare a gradient with one that you know, or install a "
            f"later jaxclamp, or jax=={_NEWEST_TESTED}.",
            stacklevel=4,
        )


_NEWEST_TESTED = "0.12.0.1"


def _release(version: str) -> tuple[int, ...]:
    """The minor version, of which the releases have jaxprs of one form as far as they were tested."""
    return tuple(map(int, version.split(".")[:2]))


def is_jaxpr(value: Any) -> bool:
    """Whether ``value`` is a program: a Jaxpr, or before JAX 0.11 a ClosedJaxpr, which holds one."""
    return isinstance(value, _types())


def with_parts(jaxpr: Any, **parts: Any) -> Any:
    """``jaxpr`` with its ``eqns``, ``invars``, ``outvars``, ``effects`` or ``debug_info`` replaced.

    Before JAX 0.11 a ClosedJaxpr holds a Jaxpr that has these parts. Since then they are one type, with or without the
    values of its constants, and ``.jaxpr`` is the object itself.
    """
    inner, outer = _types()
    if isinstance(jaxpr, inner):
        return jaxpr.replace(**parts)
    return outer(jaxpr.jaxpr.replace(**parts), jaxpr.consts)


def closed(jaxpr: Any, consts: Sequence[Any] = ()) -> Any:
    """``jaxpr`` with the values of its constants, as `jax.extend.core.jaxpr_as_fun` takes it.

    The body of a ``checkpoint`` or ``shard_map`` is a Jaxpr without constants; that of a ``reduce_window`` has them
    beside it.
    """
    _, outer = _types()
    return jaxpr if isinstance(jaxpr, outer) and not consts else outer(jaxpr, consts)


def high_level(eqn: Any) -> Any:
    """The primitive of `jax.experimental.hijax` that an equation calls, if it does; else None.

    `jax.lax.custom_root` is such a call since JAX 0.11.2; `jax.numpy.searchsorted` and `nonzero` are since JAX 0.12,
    and so `jax.numpy.interp` contains one.
    """
    return eqn.params.get("_prim") if eqn.primitive.name == "call_hi_primitive" else None


def expanded(eqn: Any) -> Callable[..., list[Any]] | None:
    """What an equation computes, in ordinary primitives, if it calls a high-level one; else None."""
    called = high_level(eqn)
    if called is None:
        return None
    return lambda *operands: jax.tree.leaves(called.expand(*called.in_tree.unflatten(operands)))


def manual_axes(eqn: Any) -> Any:
    """The axes of the mesh over which an equation of ``shard_map`` maps; JAX 0.10.2 renamed the parameter."""
    return eqn.params["newly_manual_axes" if "newly_manual_axes" in eqn.params else "manual_axes"]


def _types() -> tuple[Any, Any]:
    # jax.extend takes longer to import than all the ops, which read INLINE alone.
    from jax.extend import core

    return core.Jaxpr, getattr(core, "ClosedJaxpr", core.Jaxpr)
