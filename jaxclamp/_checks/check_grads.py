"""The check of the derivatives of a JAX function: `check_grads`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxclamp._rules.operands import NUMERIC, check_addressable, check_function
from jaxclamp._shared.gradient_check import Scale, check, names_of_entries
from jaxclamp._shared.slopes import Array, Function, largest_beside
from jaxclamp._shared.verdict import GradientReport, Names
from jaxclamp._transforms.ties import ties

_CHUNK = 512
"""The points in one call. All calls have as many, so that one program does: the last one is padded."""


def check_grads(
    fun: Callable[..., Any],
    args: Sequence[Any],
    *,
    modes: Sequence[Literal["fwd", "rev"]] = ("fwd", "rev"),
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
    scale: Scale = None,
) -> GradientReport:
    r"""Check the derivatives of a function against its values, as `jax.test_util.check_grads`, but at kinks too.

    Where the function is differentiable, there is one gradient. At a kink right is each member of the Clarke
    subdifferential, the convex hull of the gradients at nearby points: any number from 0 to 1 for relu at 0, and the
    four shares of 1/4 for the largest of four equal numbers. Values of ``fun`` at nearby points alone say which of the
    two it is, and what the set is; so ``fun`` may have any derivative, ``custom_jvp`` and ``custom_vjp`` included. The
    verdicts:

    - *right*, *wrong*: the function is differentiable, and the gradient is the derivative, or is not;
    - *least norm*, *member*, *not a member*: at a kink, the gradient is the point of least norm in the Clarke
      subdifferential, another of its points, or none;
    - *jump*, *off the branch*: the function jumps, so that there is no such set; but the gradient may be one of the
      branch that the value takes, as it is for a step, or not;
    - *not checkable*: the value, or one nearby, is infinite or NaN, slopes grow without bound, or values are not
      precise enough to tell an error of 1 %, or of ``rtol``; the report says why, and which ``scale`` may help;
    - *modes differ*: forward mode is not the transpose of reverse mode.

    Each entry of the output is checked by itself, with respect to all entries of the input. The function is computed
    some ten times as often as there are entries, and a hundred times as often where kinks depend on several of them: it
    is meant for some hundred. Values are computed in float64, whatever the dtype of ``args``, if ``fun`` allows it
    and draws no random numbers, which would be others. The noise of values is measured, and how far the function is
    followed depends on it. A kink counts as one at the point if it is too near to be told from one. Pieces of a hundred
    dimensions, or of less than 1 / 500 of the points nearby, cannot all be found; a gradient is no member if a search
    in its direction finds none that reaches as far.

    There is no ``order``: a gradient jumps at the kinks of its function. Elsewhere, check ``jax.grad(fun)``.

    Args:
      fun: a function of arrays, or pytrees of them, with such a result.
      args: its arguments. Leaves that are no floating point numbers are constants.
      modes: what to check: ``"rev"``, `jax.vjp`; ``"fwd"``, `jax.jvp`; or that both are right and agree.
      atol: absolute tolerance; by default none but the error of the derivative that the values tell, and rounding.
      rtol: relative tolerance; by default 1e-5 for float64, 2e-3 for float32, 1e-2 for float16 and 1e-1 for bfloat16.
      eps: how far away nearby points are, in units of ``scale``; by default the precision of the values decides, each
        time anew.
      scale: how far each input moves before slopes change much: a number, or for each argument a number, an array of
        them or None. By default it is the size of each entry; that of the largest in its array, if it is 0; or 1.

    Returns:
      A report of all verdicts but *right*. It prints as a short table.

    Raises:
      AssertionError: a verdict is *wrong*, *not a member*, *off the branch* or *modes differ*, or nothing can be
        checked. There is a line for each, with the path of the entries, and the line of code where `ties` knows it.
      TypeError: ``fun`` is no function, or ``args`` no tuple; ``args`` is traced, has no floating point numbers or has
        complex ones, or so has the result of ``fun``.
      ValueError: ``modes`` is empty or unknown, or a tolerance, ``eps`` or ``scale`` is negative; or an
        argument has parts in other processes.

    >>> print(check_grads(jnp.max, (jnp.zeros(4),)))
    4 derivatives: 4 least norm
    verdict     output  input                  gradient               nearest                away  line
    least norm  out     args[0][0] and 3 more  [0.25 0.25 0.25 0.25]  [0.25 0.25 0.25 0.25]  0     amax
    >>> check_grads(lambda x: jax.nn.relu(x) - jax.nn.relu(-x), (0.0,))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: check_grads: 1 derivative: 1 wrong
      out by args[0]: differentiable and wrong; the gradient is 0, the derivative is 1, which is 1 away (...: relu)
    """
    if not modes or not {"fwd", "rev"}.issuperset(modes):
        raise ValueError(f"check_grads: modes is {modes!r}; pass one or both of 'fwd' and 'rev' in a list.")
    check_function("check_grads", fun)
    if not isinstance(args, Sequence):
        raise TypeError(f"check_grads: args is {args!r}; pass a tuple of the arguments, of one too: (x,).")
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
        raise TypeError("check_grads: args have to have values; call it outside of jit, grad and vmap.")
    check_addressable("check_grads", args)
    function, settings = _Flat(fun, tuple(args)), {"atol": atol, "rtol": rtol, "eps": eps}
    report = check(function, "check_grads", forward="fwd" in modes, reverse="rev" in modes, scale=scale, **settings)
    __tracebackhide__ = True  # pytest shows the line of the test
    if not report:
        raise AssertionError(report.failure("check_grads"))
    return report


class _Flat:
    """A function of arrays as one of a vector, its floating point inputs, whose value is a vector too."""

    names: Names

    def __init__(self, fun: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._fun = fun
        paths, self._structure = jax.tree_util.tree_flatten_with_path(args)
        self._leaves = [leaf for _, leaf in paths]
        self._active = [i for i, leaf in enumerate(self._leaves) if _is_real("args", leaf)]
        if not any(np.size(self._leaves[i]) for i in self._active):
            raise TypeError(
                "check_grads: args has no floating point numbers; pass for example jnp.asarray(..., float)."
            )
        self._arrays = [jnp.asarray(self._leaves[i]) for i in self._active]
        self.point = np.concatenate([np.asarray(array, np.float64).ravel() for array in self._arrays])
        # On a copy of the structure: a module of flax.nnx may write to its state.
        results, _ = jax.tree_util.tree_flatten_with_path(fun(*jax.tree.unflatten(self._structure, self._leaves)))
        numbers = [(path, jnp.asarray(leaf)) for path, leaf in results if _is_real("the result of fun", leaf)]
        if not any(array.size for _, array in numbers):
            raise TypeError("check_grads: the result of fun has no floating point numbers, so there is no derivative.")
        dtypes = [array.dtype for array in [*self._arrays, *(array for _, array in numbers)]]
        self.largest = largest_beside([np.asarray(array, np.float64) for array in self._arrays])
        # One tolerance holds for all numbers, that of the coarsest.
        coarsest = max(dtypes, key=lambda dtype: float(jnp.finfo(dtype).eps))
        self.dtype, self.epsilon = coarsest.name, float(jnp.finfo(coarsest).eps)
        self._ends = np.cumsum([array.size for array in self._arrays])[:-1]
        # The first key on the path of a leaf is the number of its argument.
        active_paths = [paths[i][0] for i in self._active]
        self.arguments = np.repeat([path[0].idx for path in active_paths], [array.size for array in self._arrays])
        outputs = [(f"out{jax.tree_util.keystr(path)}", array.shape) for path, array in numbers]
        inputs = [
            (f"args{jax.tree_util.keystr(path)}", array.shape)
            for path, array in zip(active_paths, self._arrays, strict=True)
        ]
        self.names = names_of_entries(outputs), names_of_entries(inputs)

    def forward(self, point: Array, wide: bool = False) -> Array:
        with _in_float64(wide):
            arrays = self._split(point, np.dtype(np.float64) if wide else None)
            parts = np.split(np.eye(self.point.size), self._ends, axis=1)
            # Not -1, which an array without elements leaves open.
            n = self.point.size
            tangents = [jnp.asarray(p, a.dtype).reshape(n, *a.shape) for p, a in zip(parts, arrays, strict=True)]
            try:
                columns = jax.vmap(lambda tangent: jax.jvp(self._value, (arrays,), (tangent,))[1])(tangents)
            except Exception as error:
                error.add_note('check_grads: forward mode raised it; a jax.custom_vjp has none: pass modes=["rev"].')
                raise
            return np.asarray(columns, np.float64).T

    def reverse(self, point: Array, wide: bool = False) -> Array:
        with _in_float64(wide):
            arrays = self._split(point, np.dtype(np.float64) if wide else None)
            value, pull = jax.vjp(self._value, arrays)
            (rows,) = jax.jit(jax.vmap(pull))(jnp.eye(value.size, dtype=value.dtype))
            return np.concatenate([np.asarray(row, np.float64).reshape(value.size, -1) for row in rows], axis=1)

    def values(self, wide: bool = True) -> tuple[Function, float]:
        dtype = np.dtype(np.float64)
        with jax.enable_x64(True):
            # Tried, since a function may convert to a dtype of its own, and then values are no more precise than that.
            try:
                is_wide = wide and not self._draws() and self._value(self._split(self.point, dtype)).dtype == dtype
            except Exception:  # whatever keeps it from float64
                is_wide = False

        def value(point: Any) -> jax.Array:
            return self._value(self._split(point, dtype if is_wide else None))

        def one_by_one(points: Array) -> Array:
            return np.stack([np.asarray(value(point), np.float64) for point in points])

        def at_once(points: Array) -> Array:
            """Evaluate the points in chunks of one size, so that one program does."""
            padding = np.broadcast_to(points[:1], (-len(points) % _CHUNK, points.shape[1]))
            padded = np.concatenate([points, padding]).reshape(-1, _CHUNK, points.shape[1])
            return np.concatenate([np.asarray(batched(part), np.float64) for part in padded])[: len(points)]

        batched = jax.jit(jax.vmap(value))
        with _in_float64(is_wide):
            try:
                batched(np.broadcast_to(self.point, (_CHUNK, self.point.size)))
                evaluate = at_once
            except Exception:  # it looks at numbers, or leaves JAX
                evaluate = one_by_one

        def values(points: Array) -> Array:
            with _in_float64(is_wide):
                return evaluate(points)

        return values, float(jnp.finfo(dtype if is_wide else self.dtype).eps)

    def ties_at(self, point: Array) -> dict[str, int]:
        try:
            _, report = ties(self._fun)(*self._arguments(self._split(point)))
        except Exception:  # it cannot be traced
            return {}
        texts = {line: line.op if line.file == "unknown" else f"{line.place}: {line.op}" for line in report.lines}
        return {text: line.tied for line, text in texts.items() if line.tied}

    def _value(self, arrays: Sequence[jax.Array]) -> jax.Array:
        """Return the vector of the results at these arrays."""
        leaves = jax.tree.leaves(self._fun(*self._arguments(arrays)))
        return jnp.concatenate([jnp.ravel(leaf) for leaf in leaves if _is_real("the result of fun", leaf)])

    def _split(self, point: Any, dtype: np.dtype[Any] | None = None) -> list[jax.Array]:
        """Return the arrays of the vector, with this dtype or their own."""
        parts = jnp.split(jnp.asarray(point), self._ends)
        return [p.reshape(a.shape).astype(dtype or a.dtype) for p, a in zip(parts, self._arrays, strict=True)]

    def _arguments(self, arrays: Sequence[jax.Array]) -> tuple[Any, ...]:
        leaves = list(self._leaves)
        for i, array in zip(self._active, arrays, strict=True):
            leaves[i] = array
        return jax.tree.unflatten(self._structure, leaves)

    def _draws(self) -> bool:
        """Return whether the function draws random numbers; in float64 it would draw others."""
        try:
            return "random_bits" in str(jax.make_jaxpr(self._value)(self._split(self.point)))
        except Exception:  # it cannot be traced
            return False


def _in_float64(wide: bool) -> contextlib.AbstractContextManager[Any]:
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


def _is_real(place: str, leaf: Any) -> bool:
    if not isinstance(leaf, NUMERIC):  # a word, say, by which the function branches
        return False
    dtype = jnp.result_type(leaf)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"check_grads: {place} has complex numbers; pass a function of real and imaginary parts.")
    return bool(jnp.issubdtype(dtype, jnp.floating))
