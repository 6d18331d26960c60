"""The check of the derivatives of a JAX function: `check_grads`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxclamp._checks.clarke import Array, Indices, Neighbourhood
from jaxclamp._checks.verdict import GradientReport, differing, judged
from jaxclamp._transforms.ties import ties

TOLERANCES = {"float64": 1e-5, "float32": 2e-3, "float16": 1e-2, "bfloat16": 1e-1}
"""Of derivatives, by the least precise dtype that takes part: those of `jax.test_util.check_grads`."""
_CHUNK = 512  # points in one call
_MOVES = 8  # calls of `ties`, to find out which line a kink is on


def check_grads(
    fun: Callable[..., Any],
    args: Sequence[Any],
    *,
    modes: Sequence[Literal["fwd", "rev"]] = ("fwd", "rev"),
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
) -> GradientReport:
    r"""Check the derivatives of a function against its values, at kinks too: `jax.test_util.check_grads` that holds there.

    Where the function is differentiable, there is one gradient. At a kink right is each member of Clarke's set, the
    convex hull of the gradients at nearby points: any number from 0 to 1 for relu at 0, and the four shares of 1/4 for
    the largest of four equal numbers. Values of ``fun`` at nearby points alone say which of the two it is, and what the
    set is; so ``fun`` may have any derivative, ``custom_jvp`` and ``custom_vjp`` included. The verdicts:

    - *right*, *wrong*: the function is differentiable, and the gradient is the derivative, or is not;
    - *least norm*, *member*, *not a member*: at a kink, the gradient is the point of least norm in Clarke's set, another
      of its points, or none;
    - *jump*, *off the branch*: the function jumps, so that there is no such set; but the gradient may be one of the
      branch that the value takes, as it is for a step, or not;
    - *not checkable*: the value, or one nearby, is infinite or NaN, or slopes grow without bound;
    - *modes differ*: forward mode is not the transpose of reverse mode.

    Each entry of the output is checked by itself, with respect to all entries of the input. The function is computed
    some ten times as often as there are entries, and a hundred times as often where kinks depend on several of them: it
    is meant for some hundred. Values are computed in float64, whatever the dtype of ``args``, if ``fun`` allows it.
    A kink that is nearer than ``eps`` counts as one at the point. Pieces of a hundred dimensions cannot all be found;
    a gradient is no member if a search in its direction finds none that reaches as far.

    There is no ``order``: a gradient jumps at the kinks of its function. Elsewhere, check ``jax.grad(fun)``.

    Args:
      fun: a function of arrays, or pytrees of them, with such a result.
      args: its arguments. Leaves that are no floating point numbers are constants.
      modes: what to check: ``"rev"``, `jax.vjp`; ``"fwd"``, `jax.jvp`; or that both are right and agree.
      atol: absolute tolerance; by default 1e-5 for float64, 2e-3 for float32, 1e-2 for float16 and 1e-1 for bfloat16.
      rtol: relative tolerance, with the same default.
      eps: how far away nearby points are, relative to the size of each entry or 1; by default the precision of the
        values decides, 1.5e-5 for float64.

    Returns:
      A report of all verdicts but *right*. It prints as a short table.

    Raises:
      AssertionError: a verdict is *wrong*, *not a member*, *off the branch* or *modes differ*, or nothing can be
        checked. There is a line for each, with the path of the entries, and the line of code where `ties` knows it.
      TypeError: ``args`` has no floating point numbers or has complex ones, or so has the result of ``fun``.
      ValueError: ``modes`` is empty or unknown, or a tolerance or ``eps`` is negative.

    >>> print(check_grads(lambda x: jnp.max(x), (jnp.zeros(4),)))
    """
    _refuse_settings(modes, atol=atol, rtol=rtol, eps=eps)
    function = _Flat(fun, tuple(args))
    forward, reverse = (getattr(function, mode)() if mode in modes else None for mode in ("fwd", "rev"))
    tolerance = TOLERANCES.get(function.dtype.name, 0.5)
    atol, rtol = (tolerance if given is None else given for given in (atol, rtol))
    values, unit = function.precisely()
    nearby = Neighbourhood(values, function.point, unit, eps)
    names = function.names
    lines = _Lines(function, nearby.radius * nearby.scale)
    verdicts = list(judged(nearby, forward if reverse is None else reverse, names, atol, rtol, lines))
    if forward is not None and reverse is not None:
        verdicts += differing(forward, reverse, names, atol, rtol)
    report = GradientReport(nearby.kinked.size, tuple(verdicts))
    report.raise_if_failed("check_grads")
    return report


def _refuse_settings(modes: Sequence[str], **numbers: float | None) -> None:
    if not modes or not {"fwd", "rev"}.issuperset(modes):
        raise ValueError(f"check_grads: modes is {modes!r}; pass one or both of 'fwd' and 'rev' in a list.")
    for name, number in numbers.items():
        if number is not None and not number >= 0 or name == "eps" and number == 0:
            raise ValueError(f"check_grads: {name} is {number!r}; pass a positive number, or None.")


class _Flat:
    """A function of arrays as one of a vector, its floating point inputs, whose value is a vector too."""

    def __init__(self, fun: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.fun = fun
        paths, self._structure = jax.tree_util.tree_flatten_with_path(args)
        self._leaves = [leaf for _, leaf in paths]
        self._active = [i for i, leaf in enumerate(self._leaves) if _is_real("args", leaf)]
        if not self._active:
            raise TypeError("check_grads: args has no floating point numbers; pass for example jnp.asarray(..., float).")
        self._arrays = [jnp.asarray(self._leaves[i]) for i in self._active]
        self.point = np.concatenate([np.asarray(array, np.float64).ravel() for array in self._arrays])
        results, _ = jax.tree_util.tree_flatten_with_path(fun(*args))
        numbers = [(path, jnp.asarray(leaf)) for path, leaf in results if _is_real("the result of fun", leaf)]
        if not numbers:
            raise TypeError("check_grads: the result of fun has no floating point numbers, so there is no derivative.")
        self.dtype = max(
            (array.dtype for array in [*self._arrays, *(array for _, array in numbers)]),
            key=lambda dtype: float(jnp.finfo(dtype).eps),
        )
        inputs = [(paths[i][0], array) for i, array in zip(self._active, self._arrays, strict=True)]
        self.names = (_named("out", numbers), _named("args", inputs))

    def arguments(self, vector: Any, dtype: Any = None) -> tuple[Any, ...]:
        """The arguments with these numbers, of this dtype or their own."""
        ends = np.cumsum([array.size for array in self._arrays])[:-1]
        leaves = list(self._leaves)
        for i, array, part in zip(self._active, self._arrays, jnp.split(vector, ends), strict=True):
            leaves[i] = part.reshape(array.shape).astype(dtype or array.dtype)
        return self._structure.unflatten(leaves)  # type: ignore[no-any-return]

    def _values(self, arrays: Sequence[jax.Array]) -> jax.Array:
        """The values at arrays in the place of the floating point inputs."""
        leaves = list(self._leaves)
        for i, array in zip(self._active, arrays, strict=True):
            leaves[i] = array
        return _vector(self.fun(*self._structure.unflatten(leaves)))

    def rev(self) -> Array:
        value, pull = jax.vjp(self._values, self._arrays)
        (rows,) = jax.jit(jax.vmap(pull))(jnp.eye(value.size, dtype=value.dtype))
        return np.concatenate([np.asarray(row, np.float64).reshape(value.size, -1) for row in rows], axis=1)

    def fwd(self) -> Array:
        ends = np.cumsum([array.size for array in self._arrays])[:-1]
        parts = np.split(np.eye(self.point.size), ends, axis=1)
        tangents = [jnp.asarray(part, a.dtype).reshape(-1, *a.shape) for part, a in zip(parts, self._arrays, strict=True)]
        columns = jax.vmap(lambda tangent: jax.jvp(self._values, (self._arrays,), (tangent,))[1])(tangents)
        return np.asarray(columns, np.float64).T

    def precisely(self) -> tuple[Callable[[Array], Array], float]:
        """The function of many points at once, in float64 if it allows that, and the precision of its values."""

        def value(vector: jax.Array) -> jax.Array:
            return _vector(self.fun(*self.arguments(vector, dtype)))

        dtype: Any = jnp.float64
        with jax.enable_x64(True):
            try:
                is_wide = value(jnp.asarray(self.point)).dtype == jnp.float64
            except Exception:  # whatever keeps it from float64
                is_wide = False
        dtype = jnp.float64 if is_wide else None
        batched = jax.jit(jax.vmap(value))

        def values(points: Array) -> Array:
            with jax.enable_x64(True):
                try:
                    return _in_chunks(batched, points)
                except Exception:  # it looks at numbers, or leaves JAX; one that fails by itself fails below, too
                    return np.stack([np.asarray(value(jnp.asarray(point)), np.float64) for point in points])

        return values, float(jnp.finfo(jnp.float64 if is_wide else self.dtype).eps)


def _in_chunks(batched: Callable[[Array], Any], points: Array) -> Array:
    """The values at the points, by calls of one size, so that one program does."""
    padding = -len(points) % _CHUNK
    padded = np.concatenate([points, np.broadcast_to(points[:1], (padding, points.shape[1]))])
    parts = [np.asarray(batched(part), np.float64) for part in np.split(padded, len(padded) // _CHUNK)]
    return np.concatenate(parts)[: len(points)]


def _vector(results: Any) -> jax.Array:
    numbers = [jnp.asarray(leaf) for leaf in jax.tree.leaves(results)]
    return jnp.concatenate([leaf.ravel() for leaf in numbers if jnp.issubdtype(leaf.dtype, jnp.floating)])


def _is_real(place: str, leaf: Any) -> bool:
    dtype = jnp.result_type(leaf)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"check_grads: {place} has complex numbers; pass a function of real and imaginary parts.")
    return bool(jnp.issubdtype(dtype, jnp.floating))


def _named(root: str, leaves: Sequence[tuple[Any, jax.Array]]) -> list[str]:
    """The name of each number: the path of its array and its index, such as ``args[0]['w'][2, 1]``."""
    return [
        root + jax.tree_util.keystr(path) + (str(list(index)) if index else "")
        for path, array in leaves
        for index in np.ndindex(array.shape)
    ]


class _Lines:
    """Which line of the code has the kink: the one with a tie, or the one with fewer if the entries move."""

    def __init__(self, function: _Flat, reach: Array) -> None:
        self._function = function
        self._moves = _MOVES
        self._random_move = reach * np.random.default_rng(0).uniform(-1.0, 1.0, reach.shape)

    def __call__(self, entries: Indices) -> str:
        tied = self._tied
        if len(tied) > 1 and self._moves:
            self._moves -= 1
            moved = self._function.point.copy()
            moved[entries] += self._random_move[entries]
            left = self._ties_at(moved)
            tied = {site: count for site, count in tied.items() if left.get(site, 0) < count}
        return next(iter(tied)) if len(tied) == 1 else ""

    @functools.cached_property
    def _tied(self) -> dict[str, int]:
        return self._ties_at(self._function.point)

    def _ties_at(self, point: Array) -> dict[str, int]:
        try:
            _, report = ties(self._function.fun)(*self._function.arguments(jnp.asarray(point)))
        except Exception:  # `ties` traces; a function that cannot be traced has no lines
            return {}
        return {f"{line.place}: {line.op}": line.tied for line in report.lines if line.tied}
