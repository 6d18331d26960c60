"""Opens operations with a program inside, such as the reducer of `jax.lax.reduce`, so that its choices are decided."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, jaxpr_as_fun

from jaxclamp._jax_versions import closed, expanded
from jaxclamp._programs.choices import Arrays, windows_of_padded
from jaxclamp._rules.extremum import flattened

Program: TypeAlias = Callable[..., list[jax.Array]]


def opened(eqn: JaxprEqn) -> Callable[..., tuple[jax.Array, ...]] | None:
    """Return what ``eqn`` computes, as a program of smaller operations, if choices that can be decided are inside."""
    by_name = PROGRAMS.get(eqn.primitive.name)
    program = by_name(**eqn.params) if by_name else expanded(eqn)
    return None if program is None else lambda *operands: tuple(program(*operands))


def _reduced(*, jaxpr: Any, dimensions: Sequence[int], **_: Any) -> Program:
    """Open a reduction: it scans the elements, and combines each with the result so far."""

    def run(*operands: jax.Array) -> list[jax.Array]:
        arrays, first = _halves(operands)
        rows = [jnp.moveaxis(flattened(x, dimensions), -1, 0) for x in arrays]
        combined = _elementwise(jaxpr_as_fun(jaxpr), rows[0].ndim - 1)
        carry = [jnp.broadcast_to(value, row.shape[1:]) for value, row in zip(first, rows, strict=True)]
        # The first step is taken before the scan, so that in a shard_map the carry varies over devices as the rows do.
        if len(rows[0]):
            carry = combined(*carry, *(row[0] for row in rows))
        carry, _ = lax.scan(lambda carry, row: (combined(*carry, *row), None), carry, [row[1:] for row in rows])
        return carry

    return run


def _windowed(*, jaxpr: Any, consts: Sequence[Any], **params: Any) -> Program:
    """Open a reduction of windows: it goes axis by axis, since the order in which a window is reduced is free."""
    windows, gaps = windows_of_padded(**params)
    combined = _elementwise(jaxpr_as_fun(closed(jaxpr, consts)), len(gaps))

    def run(*operands: jax.Array) -> list[jax.Array]:
        arrays, first = _halves(operands)
        arrays = [lax.pad(x, value, gaps) for x, value in zip(arrays, first, strict=True)]
        for axis in range(len(gaps)):
            places = zip(*(windows.along(axis).places(x, None) for x in arrays), strict=True)
            arrays = functools.reduce(lambda combination, place: combined(*combination, *place), places)
        return combined(*(jnp.broadcast_to(v, x.shape) for v, x in zip(first, arrays, strict=True)), *arrays)

    return run


def _halves(operands: Arrays) -> tuple[Arrays, Arrays]:
    """Return the arrays, and for each the value that the reduction begins with."""
    return operands[: len(operands) // 2], operands[len(operands) // 2 :]


def _elementwise(reducer: Program, ndim: int) -> Program:
    """Return the reducer of scalars as one of arrays with ``ndim`` axes."""
    # It may be any program of scalars, with a cond in it for example, so that it is batched axis by axis.
    for _ in range(ndim):
        reducer = jax.vmap(reducer)
    return reducer


PROGRAMS: Mapping[str, Callable[..., Program]] = {
    "reduce": _reduced,
    "reduce_window": _windowed,
    "custom_vmap_call": lambda *, call, **_: jaxpr_as_fun(call),
}
"""Maps a primitive to how it is opened, by its name: that of `jax.custom_batching.custom_vmap` is not public."""
