"""Derivatives of whole JAX programs: `directional_derivative`, `grad`, `value_and_grad` and `subdifferential`.

A function is traced, and each choice in it is replaced by one that is decided along a direction. Forward mode then
gives the one-sided derivative. Reverse mode, of the primal result of that, gives the gradient of the piece that the
function enters: for ``relu(x) - relu(-x)`` at 0 along the direction 1 the piece is ``x - 0``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxclamp._programs.decided import DecidedProgram
from jaxclamp._programs.directions import check_direction, drawn_direction, varying_as
from jaxclamp._programs.nan_gradients import mended
from jaxclamp._rules.operands import check_addressable, check_function, positions_of
from jaxclamp._shared.subdifferential import Subdifferential, check_directions, explored, normal_draws
from jaxclamp._transforms.jaxprs import split

P = ParamSpec("P")
R = TypeVar("R")
Tree: TypeAlias = Any


def directional_derivative(fun: Callable[..., R], primals: Sequence[Tree], tangents: Sequence[Tree]) -> tuple[R, R]:
    r"""Return the value and the one-sided derivative :math:`\lim_{t \to 0+} (f(x + t v) - f(x)) / t`.

    It has the form of what `jax.jvp` returns. It is exact at kinks too, however the function is spelled, and not
    linear in v there. It holds for functions that are smooth but for choices, and continuous. The choices are
    ``max``, ``min``, ``clamp``, ``abs``, ``sign``, comparisons, and so ``where``, masks and ``lax.cond``, the
    reductions, cumulative, windowed and scattered forms of ``max`` and ``min``, ``argmax``, ``argmin``, ``sort``
    and ``top_k``, the order of equal singular values, and of equal eigenvalues of a symmetric matrix, where nothing
    reads their vectors, and what jumps: ``floor``, ``ceil``, ``round``, ``rem``, ``atan2``, conversions to
    integers, and the sign bit of a number. They are decided in all that `min_norm` reaches into, in functions given
    to `jax.lax.reduce` and ``reduce_window``, in the operator of a linear solve, in a ``custom_vmap``, and in the
    rules of a ``custom_jvp``, which are their author's word else. What such a rule asks of the function itself
    moves as the function does. A ``custom_vjp`` is opened; where it stands still between jumps, as one that rounds
    or bisects, it moves as its rule says. Where the function itself jumps, the derivative is that of the piece
    beyond the jump.

    Taken as they are at x: ``reduce_precision``, ``frexp`` and the other bits of a number, ``approx_max_k``, callbacks,
    ``stop_gradient``, what is inside ``pallas_call``, ``run_state`` and ``ffi_call``, discrete results of a
    ``custom_jvp``, the order of complex numbers and the side of a branch cut, as of ``sqrt(-1 + 0j)``, and what Python
    decides. A `jaxclamp.UndecidedWarning` names the line where the derivative depends on choices of ``approx_max_k``,
    ``pallas_call`` or ``run_state``, or a choice on a ``custom_vjp`` whose function is constant between jumps and whose
    rule is not linear, such as a straight-through estimator that clips the gradient.

    A choice between operands that are equal and move alike is settled by higher derivatives, which are not looked at:
    ``where(x * x > 0, x, -x)`` at 0 goes wrong. Where the slope of one of them is NaN, as of ``sqrt(x) ** 2`` at 0, a
    maximum or minimum takes that one, and a comparison goes by the values, but that ``==`` does not hold. The branch
    that is entered may be NaN at the point, as of ``where(x == 0, 1, sin(x) / x)``, which is ``jnp.sinc``, and of
    ``where(x > 0, x * log(x), 0)``. Then a ``where``, ``cond`` or ``piecewise`` takes the other one, as it does in JAX,
    if it is not NaN too.

    Args:
      fun: a function as for `jax.jvp`.
      primals: the arguments of ``fun``, a tuple or list; arrays of floating point numbers, or trees of them.
      tangents: the direction v, of the same structure, shapes and dtypes.

    Returns:
      The value, that of ``fun``, and the derivative, of the same structure. Where a choice has a discrete result, such
      as a comparison, ``fun`` is evaluated once more for the value.

    Raises:
      TypeError: ``fun`` is not callable; or as `jax.jvp`.
      ValueError: as `jax.jvp`; or ``fun`` writes to its arguments.

    Warns:
      UndecidedWarning: the derivative may depend on a choice that was not decided; once for each line.

    >>> directional_derivative(lambda x: jax.nn.relu(x) - jax.nn.relu(-x), (0.0,), (-2.0,))
    (Array(0., dtype=float32, weak_type=True), Array(-2., dtype=float32, weak_type=True))

    Source: Shapiro, On concepts of directional differentiability (1990); Griewank and Walther, Evaluating Derivatives
    (2008), chapter 14.
    """
    check_function("directional_derivative", fun)
    for name, arguments in (("primals", primals), ("tangents", tangents)):
        if not isinstance(arguments, tuple | list):
            raise TypeError(
                f"directional_derivative: {name} is of type {type(arguments).__name__}; pass a tuple, one for each "
                "argument, as (x,)."
            )
    program = DecidedProgram(fun)
    value, derivative = jax.jvp(program.run, primals, varying_as(tangents, primals))
    return program.result(value, *primals), derivative


def grad(
    fun: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    direction: Tree = None,
    key: jax.Array | None = None,
) -> Callable[P, Any]:
    r"""Return the gradient of a whole program: the true one where there is one, however the program is spelled.

    At a kink of the program it is the gradient of the piece that ``fun`` enters along a direction v: the limit of its
    gradients at :math:`x + t v` for :math:`t \to 0+`. For all v but a set of measure zero that is an element of the
    B-subdifferential, hence of the Clarke subdifferential. What is decided, and what is not, is said at
    `directional_derivative`. In a ``custom_jvp`` (with the choices in its rule decided) and in a ``custom_vjp``, such
    as a straight-through estimator, the author's rule counts. Where nothing is tied, the result equals that of
    `jax.grad`.

    The signature is that of `jax.grad`, without ``holomorphic`` and ``allow_int``: integers are no part of an argument
    that is differentiated. All of JAX works on the result: ``jit``, ``vmap``, over directions too, sharded arguments; a
    second derivative is that of the piece. The cost does not grow with the number of inputs.

    Args:
      fun, argnums, has_aux: as for `jax.grad`.
      direction: v, finite numbers, not all 0, in the structure of the argument, or for several ``argnums`` a tuple of
        such. Without it, v has numbers between -1 and 1, always the same: those that `interop.grad` takes too.
      key: a key of `jax.random`, for other numbers, as on each device of a ``shard_map``.

    Returns:
      A function of the arguments of ``fun``, which returns the gradient, or a pair of it and the auxiliary result.

    Raises:
      TypeError: ``fun`` is not callable; when called, ``argnums`` does not name arguments by position, each once,
        ``direction`` has another dtype than the argument, or as `jax.grad`.
      ValueError: both ``direction`` and ``key`` are given; when called, ``direction`` has another structure than the
        argument, or numbers that are not finite, or all 0, where they are known; or as `jax.grad`.

    >>> def identity(x):
    ...     return jax.nn.relu(x) - jax.nn.relu(-x)
    >>> float(jax.grad(identity)(0.0)), float(grad(identity)(0.0))
    (0.0, 1.0)
    >>> [float(grad(jnp.abs, direction=v)(0.0)) for v in (1.0, -1.0)]
    [1.0, -1.0]

    Source: Khan and Barton, Evaluating an element of the Clarke generalized Jacobian of a composite piecewise
    differentiable function (2013); Kakade and Lee, Provably correct automatic subdifferentiation (2018).
    """
    gradient = _gradient("grad", fun, argnums, has_aux, direction, key)

    @functools.wraps(fun)
    def run(*args: Any, **kwargs: Any) -> Any:
        of_arguments, (program, result, _) = gradient(*args, **kwargs)
        return (of_arguments, program.result(result, *args, **kwargs)[1]) if has_aux else of_arguments

    return run


def value_and_grad(
    fun: Callable[P, R],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    direction: Tree = None,
    key: jax.Array | None = None,
) -> Callable[P, tuple[R, Any]]:
    """Return the value of ``fun``, to the bit, and its gradient as `grad` gives it.

    The signature is that of `jax.value_and_grad`, without what `grad` does not take. Where a choice has a discrete
    result, such as a comparison, ``fun`` is evaluated once more for the value.

    Args:
      fun, argnums, has_aux: as for `jax.value_and_grad`.
      direction, key: as for `grad`.

    Returns:
      A function of the arguments of ``fun``, which returns a pair: what ``fun`` returns, and the gradient.

    Raises:
      TypeError, ValueError: as `grad`.

    >>> value, gradient = value_and_grad(lambda x: jnp.maximum(x, 0.0) + jnp.minimum(x, 0.0))(0.0)
    >>> float(value), float(gradient)
    (0.0, 1.0)
    """
    gradient = _gradient("value_and_grad", fun, argnums, has_aux, direction, key)

    @functools.wraps(fun)
    def run(*args: Any, **kwargs: Any) -> Any:
        of_arguments, (program, result, _) = gradient(*args, **kwargs)
        return program.result(result, *args, **kwargs), of_arguments

    return run


def subdifferential(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, *, directions: int = 16, key: jax.Array | None = None
) -> Callable[..., Subdifferential]:
    r"""Return the gradients of the pieces around a point, the least point of their hull, and what it certifies.

    Half of the directions are drawn from a normal distribution, the others are their opposites. Then the search goes on
    along -p, where p is the least point of the hull found, as long as that finds new gradients, and at most for as many
    directions again. If p is 0, the point is stationary. If the derivative along -p is :math:`-\|p\|^2` and the
    function is convex nearby, p is the point of least norm in all of the Clarke subdifferential. Else there may be more
    pieces: a function may have exponentially many.

    Args:
      fun: a function as for `jax.grad`, with a scalar result.
      argnums: which arguments to differentiate with respect to, as for `jax.grad`.
      directions: along how many directions to ask at first.
      key: a key of `jax.random`, for other draws. Without it they are always the same, in `interop` too.

    Returns:
      A function of the arguments of ``fun`` that returns a `Subdifferential`. It searches with values, so it runs
      outside of ``jit``, ``vmap`` and ``grad``.

    Raises:
      TypeError: ``fun`` is not callable; when called, it is within another transformation, the argument has complex
        numbers, ``argnums`` does not name arguments by position, each once, or as `jax.grad`.
      ValueError: ``directions`` is not a positive number; when called, the value or a gradient is not finite, or an
        argument has parts in other processes.

    >>> around = subdifferential(lambda x: jnp.max(jnp.abs(x)))(jnp.zeros(2))
    >>> len(around.gradients), around.is_differentiable, around.min_norm.tolist()
    (4, False, [0.0, 0.0])
    >>> around.contains(jnp.array([0.5, -0.5])), around.contains(jnp.array([1.0, 1.0]))
    (True, False)

    Source: Bertsekas and Mitter, A descent numerical method for optimization problems with nondifferentiable cost
    functionals (1973), for the search along -p.
    """
    check_function("subdifferential", fun)
    check_directions(directions)

    @functools.wraps(fun)
    def run(*args: Any, **kwargs: Any) -> Subdifferential:
        check_addressable("subdifferential", (args, kwargs))
        active = tuple(args[position] for position in positions_of("subdifferential", args, argnums))
        x = active if isinstance(argnums, Sequence) else active[0]
        flat, unflatten = ravel_pytree(x)
        if jnp.iscomplexobj(flat):
            raise TypeError("subdifferential: the argument has complex numbers; pass real and imaginary parts.")
        dtypes = map(jnp.result_type, jax.tree.leaves(x))
        _check_values((args, kwargs, key))
        draws = normal_draws(directions, flat.size)
        if key is not None:
            draws = np.asarray(jax.random.normal(key, draws.shape), np.float64)

        # What is no array of JAX stays as it is, as in `grad`: the function may branch by it, or mask by one of NumPy.
        leaves, structure = jax.tree.flatten((args, kwargs))
        arrays = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}

        @jax.jit
        def derivatives(arrays: dict[int, Any], direction: jax.Array) -> Any:
            args, kwargs = jax.tree.unflatten(structure, [arrays.get(i, leaf) for i, leaf in enumerate(leaves)])
            gradient_of = _gradient("subdifferential", fun, argnums, False, unflatten(direction), None)
            gradient, (_, value, derivative) = gradient_of(*args, **kwargs)
            return value, derivative, ravel_pytree(gradient)[0]

        def along(direction: Any) -> Any:
            value, derivative, gradient = derivatives(arrays, jnp.asarray(direction, flat.dtype))
            _check_values(derivative)  # ``fun`` may close over traced values
            return float(value), float(derivative), np.asarray(gradient, np.float64)

        return explored(
            along,
            draws,
            # The least precise of the arguments decides: they are one vector, in which rounding is told from pieces.
            max((float(jnp.finfo(dtype).eps) for dtype in dtypes if jnp.issubdtype(dtype, jnp.inexact)), default=0.0),
            lambda tree: np.asarray(ravel_pytree(tree)[0], np.float64),
            lambda vector: unflatten(jnp.asarray(vector, flat.dtype)),
        )

    return run


def _check_values(tree: Tree) -> None:
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
        raise TypeError("subdifferential: the search takes values; call it outside of jit, vmap and grad.")


def _gradient(
    name: str,
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    direction: Tree,
    key: jax.Array | None,
) -> Callable[..., Any]:
    """Return a function that returns the gradient along a direction, and its program with the result and derivative."""
    check_function(name, fun)
    if direction is not None and key is not None:
        raise ValueError(f"{name}: direction and key are both given; pass direction, or a key to draw one.")
    is_one = not isinstance(argnums, Sequence)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        program = DecidedProgram(fun, for_gradient=True)
        positions = positions_of(name, args, argnums)
        active = tuple(args[position] for position in positions)
        _refuse_integers(name, active)

        # Reverse mode over forward mode: what `primal` returns is the value as forward mode computes it, by the pieces
        # that are entered. Its gradient is that of these pieces.
        def primal(*active: Tree) -> Any:
            tangents = _tangents(name, is_one, direction, key, active)

            def of_active(*active: Tree) -> Any:
                moved = dict(zip(positions, active, strict=True))
                merged = [moved.get(i, arg) for i, arg in enumerate(args)]
                # The program has the arrays among its arguments in this order, those in keywords last.
                program.moves = [i in moved for i, arg in enumerate([*merged, kwargs]) for _ in split(arg)[0]]
                result = program.run(*merged, **kwargs)
                if not has_aux:
                    return result, None
                if not (isinstance(result, tuple | list) and len(result) == 2):
                    raise TypeError(f"{name}: has_aux=True, and fun returned {type(result).__name__}; return a pair.")
                return result

            value, derivative, aux = jax.jvp(of_active, active, varying_as(tangents, active), has_aux=True)
            return value, ((value, aux) if has_aux else value, derivative)

        def reversible(*_: Tree) -> Any:
            value, pull, result = jax.vjp(primal, *active, has_aux=True)
            return value, (value, pull, result)

        # `jax.grad` is here for what it refuses. It differentiates nothing: `reversible` reads none of its arguments.
        _, (value, pull, result) = jax.grad(reversible, range(len(active)), has_aux=True)(*active)
        one = jnp.ones_like(value)
        parts = pull(one)
        # This is known only now, as `primal` has traced the program. Most programs have no such slope: then a compiled
        # gradient has neither a test for NaN nor the two passes behind it.
        if program.has_slopes_without_bound:
            parts = mended(parts, pull, one)
        return parts[0] if is_one else parts, (program, *result)

    return gradient


def _refuse_integers(name: str, active: Tree) -> None:
    """Raise if the arguments have integers or truth values: `jax.grad` would name a cure of its own."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(active):
        dtype = leaf.dtype if hasattr(leaf, "dtype") else type(leaf)
        if jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_):
            within = jax.tree_util.keystr(path[1:])  # behind the number of the argument
            place = f" at {within}" if within else ""
            cure = (
                "write 1.0 for 1, or pass the floating point numbers of the tree alone, as equinox.partition and "
                "flax.nnx.split part them."
                if within
                else "pass floating point numbers, as 1.0, or name other arguments by argnums."
            )
            raise TypeError(
                f"{name}: the argument has {jnp.result_type(leaf)}{place}, which cannot be differentiated; {cure}"
            )


def _tangents(name: str, is_one: bool, direction: Tree, key: jax.Array | None, active: Tree) -> Tree:
    """Return the direction as a tuple, one for each argument that is differentiated, or draw it."""
    if direction is None:
        return drawn_direction(key, active)
    tangents = tuple(direction) if isinstance(direction, list) and not is_one else direction
    check_direction(name, tangents, active[0] if is_one else active)
    return (tangents,) if is_one else tangents
