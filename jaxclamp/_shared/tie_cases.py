"""The ties at which the gradients of each op are compared, and the gradients that the definition gives there.

A tie point of a record is ``(3.0, 3.0)`` for `maximum`. It makes three cases: x alone is differentiated, y alone, and
both. `jaxclamp._shared.oracle` computes the definition from values of the op.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxclamp._record import Op
from jaxclamp._rules.operands import is_floating
from jaxclamp._shared.oracle import min_norm_of_values, points_near

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Query: TypeAlias = tuple[Mapping[str, Any], tuple[str, ...]]
"""The arguments of an op, float64 arrays or static ones (None, ints, ...), and the names of those differentiated."""

DTYPES = ("float32", "float64", "bfloat16", "float16")


def cases(op: Op) -> Iterator[tuple[dict[str, Any], tuple[str, ...], str]]:
    """Yield (arguments, active arguments, form of the inactive ones) for every tie and every set of active inputs."""
    names = list(op.signature.parameters)
    for tie in op.tie_points:
        arguments = dict(zip(names, tie, strict=False))  # a tie has no defaults, which come last
        differentiable = [name for name, value in arguments.items() if is_differentiable(value)]
        for size in range(1, len(differentiable) + 1):
            for active in itertools.combinations(differentiable, size):
                if size == len(differentiable):
                    yield arguments, active, "none"
                # A framework may have one derivative for bounds that are numbers, and another for arrays.
                elif active == (names[0],):
                    yield arguments, active, "numbers"
                    yield arguments, active, "arrays"
                else:
                    yield arguments, active, "arrays"


def is_differentiable(value: Any) -> bool:
    """Return whether an argument of a tie stands for an array of floats, rather than for a size, an axis or a flag.

    Infinity is the order of a norm.
    """
    return isinstance(value, float | tuple) and np.asarray(value).dtype.kind == "f" and value != math.inf


def round_to(dtype: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``arguments`` with floats and tuples rounded to ``dtype``, as float64 arrays."""
    return {
        name: np.asarray(value, jnp.dtype(dtype)).astype(np.float64) if is_differentiable(value) else value
        for name, value in arguments.items()
    }


def in_form(arguments: Mapping[str, Any], active: Collection[str], inactive: str) -> dict[str, Any]:
    """Return ``arguments``; if ``inactive`` is "numbers", arrays that are not ``active`` become numbers."""
    return {
        name: value.item() if inactive == "numbers" and name not in active and isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }


def total(result: Any) -> Any:
    """Return the sum of the floats in a pytree of JAX arrays."""
    leaves = jax.tree.leaves(result)
    return sum((leaf.sum() for leaf in leaves if is_floating(leaf)), start=0.0)


def definitions(op: Op, queries: Sequence[Query]) -> list[tuple[float, Array]]:
    """Compute for each query the sum of the outputs, and the gradient of that sum by the definition.

    The gradient is flattened over the active arguments; in float64, since the oracle knows no rounding. The rule of an
    op holds for each output by itself. So no two outputs may depend on one argument at a tie, as they do in overlapping
    windows.
    """
    keys = [repr(_described(query, np.ndarray.tolist)) for query in queries]
    different = dict(zip(keys, queries, strict=True))  # many are equal: each is computed once
    near = zip(different, values_near(op, list(different.values())), strict=True)
    defined = {key: (float(values[0]), min_norm_of_values(point, values)) for key, (point, values) in near}
    return [defined[key] for key in keys]


def values_near(op: Op, queries: Sequence[Query]) -> list[tuple[Array, Array]]:
    """Return for each query its active arguments as a point, and the values, sums of outputs, that the oracle reads."""
    batches: dict[str, list[int]] = {}  # maps the shapes and static arguments to the queries that have them
    for i, query in enumerate(queries):
        batches.setdefault(repr(_described(query, np.shape)[0]), []).append(i)
    results: dict[int, tuple[Array, Array]] = {}
    for batch in batches.values():
        results |= zip(batch, _values_of_batch(op, [queries[i] for i in batch]), strict=True)
    return [results[i] for i in range(len(queries))]


def _described(query: Query, describe: Callable[[Array], Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the query with what describes each array in its place."""
    arguments, active = query
    return {name: describe(v) if isinstance(v, np.ndarray) else v for name, v in arguments.items()}, active


def _values_of_batch(op: Op, queries: Sequence[Query]) -> Iterator[tuple[Array, Array]]:
    """Yield `values_near` of queries that differ in numbers alone: one program, as their arguments are stacked."""
    points = [np.concatenate([arguments[name].ravel() for name in active]) for arguments, active in queries]
    near = [points_near(point) for point in points]
    parts = [_columns(*query, points) for query, points in zip(queries, near, strict=True)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    static = {name: v for name, v in queries[0][0].items() if name not in columns}
    with jax.enable_x64(True):
        values = jax.jit(jax.vmap(lambda arrays: total(op.function(**arrays, **static))))(columns)
    return zip(points, np.split(np.asarray(values), np.cumsum([len(points) for points in near])[:-1]), strict=True)


def _columns(arguments: Mapping[str, Any], active: tuple[str, ...], near: Array) -> dict[str, Array]:
    """Return the arrays among the arguments, each stacked over the points ``near``; those not active are repeated."""
    ends = np.cumsum([arguments[name].size for name in active])[:-1]
    moved = dict(zip(active, np.split(near, ends, axis=1), strict=True))
    return {
        name: moved[name].reshape(-1, *v.shape) if name in moved else np.broadcast_to(v, (len(near), *v.shape))
        for name, v in arguments.items()
        if isinstance(v, np.ndarray)
    }
