"""What differs between JAX 0.10 and 0.12 in jaxprs and in how programs enter them, behind one form.

In all of these versions a program, closed or not, has ``eqns``, ``invars``, ``outvars``, ``effects``, ``constvars`` and
``consts``, which may be read directly. To make or change a program, call the functions here.
`tests/jax/test_jax_versions.py` checks each of them.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax

INLINE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True
"""The value of ``inline=`` of `jax.jit` that puts the equations of a function among those of its caller.

Until JAX 0.11.0 that is ``True``. Since 0.11.2, ``True`` means ``jax.Inline.JAX_LATE``: the call stays an equation."""


def is_inlined_late(call: Any) -> bool:
    """Return whether ``call``, an equation of ``jit``, is of ``inline=True``, which is no call before JAX 0.11.2."""
    return call.params["inline"] is getattr(getattr(jax, "Inline", None), "JAX_LATE", True)


@functools.cache
def warn_of_an_untested_jax(version: str) -> None:
    """Warn, once for each version, if ``version`` of JAX is later than those that the tests were run with."""
    if _minor_version(version) > _minor_version(_NEWEST_TESTED):
        warnings.warn(
            f"jaxclamp rewrites programs of JAX, whose form changes between versions. It was tested with JAX 0.10.0 to "
            f"{_NEWEST_TESTED}, and this is JAX {version}. Compare a gradient with one that you know, or install a "
            f"later jaxclamp, or jax=={_NEWEST_TESTED}.",
            stacklevel=4,  # this function, `transformed`, the public transformation, and its caller
        )


_NEWEST_TESTED = "0.12.0.1"


def _minor_version(version: str) -> tuple[int, ...]:
    """Return the first two numbers, (0, 12) of 0.12.0.1: a later patch is taken to have jaxprs of the same form."""
    return tuple(map(int, version.split(".")[:2]))


def is_jaxpr(value: Any) -> bool:
    """Return whether ``value`` is a program: a Jaxpr, or before JAX 0.11 a ClosedJaxpr, which holds one."""
    return isinstance(value, _types())


def with_parts(jaxpr: Any, **parts: Any) -> Any:
    """Return ``jaxpr`` with its ``eqns``, ``invars``, ``outvars`` or ``debug_info`` replaced.

    Before JAX 0.11 a ClosedJaxpr holds a Jaxpr that has these parts. Since then they are one type, with or without the
    values of its constants, and ``.jaxpr`` is the object itself.
    """
    inner, outer = _types()
    if isinstance(jaxpr, inner):
        return jaxpr.replace(**parts)
    return outer(jaxpr.jaxpr.replace(**parts), jaxpr.consts)


def closed(jaxpr: Any, consts: Sequence[Any] = ()) -> Any:
    """Return ``jaxpr`` with the values of its constants, as `jax.extend.core.jaxpr_as_fun` takes it.

    The body of a ``checkpoint`` or ``shard_map`` is a Jaxpr without constants; the constants of a
    ``reduce_window`` are a parameter of their own.
    """
    _, outer = _types()
    return jaxpr if isinstance(jaxpr, outer) and not consts else outer(jaxpr, consts)


def high_level(eqn: Any) -> Any:
    """Return the primitive of `jax.experimental.hijax` that an equation calls, or None if it calls none.

    `jax.lax.custom_root` is such a call since JAX 0.11.2; `jax.numpy.searchsorted` and `nonzero` are since JAX 0.12,
    and so `jax.numpy.interp` contains one.
    """
    return eqn.params.get("_prim") if eqn.primitive.name == "call_hi_primitive" else None


def is_derivative_of_root(eqn: Any) -> bool:
    """Return whether an equation calls the derivative of a root's equation, as the rule of `jax.lax.custom_root` does.

    JAX 0.12 has no public name for it.
    """
    return type(high_level(eqn)).__name__ == "_RootLinearMap"


def expanded(eqn: Any) -> Callable[..., list[Any]] | None:
    """Return what an equation computes, in ordinary primitives, if it calls a high-level one; else None."""
    called = high_level(eqn)
    if called is None:
        return None
    return lambda *operands: jax.tree.leaves(called.expand(*called.in_tree.unflatten(operands)))


def manual_axes(eqn: Any) -> Any:
    """Return the axes of the mesh over which an equation of ``shard_map`` maps; JAX 0.10.2 renamed the parameter."""
    return eqn.params["newly_manual_axes" if "newly_manual_axes" in eqn.params else "manual_axes"]


def scan_sizes(eqn: Any) -> tuple[int, int]:
    """Return how many inputs of an equation of ``scan`` are constants, and how many the carry; the rest is scanned."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    constants, carry, _ = eqn.params["ft_in"].unpack()  # since JAX 0.12
    return len(constants), len(carry)


@functools.cache
def unspecified_results() -> dict[str, Any]:
    """Return the parameters of an equation of ``jit`` that say of one result that its layout is left to XLA."""
    params = jax.make_jaxpr(jax.jit(lambda: 0))().eqns[0].params
    return {name: params[name] for name in ("out_shardings", "out_layouts")}


def _types() -> tuple[Any, Any]:
    """Return the types of a program without and with values for its constants: one and the same since JAX 0.11."""
    # jax.extend takes longer to import than all the ops, which read INLINE alone.
    from jax.extend import core

    return core.Jaxpr, getattr(core, "ClosedJaxpr", core.Jaxpr)
