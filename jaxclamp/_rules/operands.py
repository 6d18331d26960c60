"""Checks of arguments: functions, positions, real numbers and arrays of them, shapes that broadcast, ints that fit."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike


def check_function(name: str, fun: object) -> None:
    """Raise unless ``fun``, to which the transformation of that name is applied, is a function."""
    if not callable(fun):
        raise TypeError(f"{name}: fun is {fun!r}; pass a function.")


def is_floating(x: Any) -> bool:
    """Return whether an array, or the type of one, is of floating point numbers: whether it can be differentiated."""
    return jnp.issubdtype(x.dtype, jnp.floating)


def positions_of(name: str, args: Sequence[Any], argnums: int | Sequence[int]) -> list[int]:
    """Return the positions that ``argnums`` names, counted from 0."""
    try:
        positions = [range(len(args))[number] for number in (argnums if isinstance(argnums, Sequence) else [argnums])]
    except (IndexError, TypeError):
        positions = []
    if not positions or len(set(positions)) < len(positions):
        raise TypeError(
            f"{name}: argnums is {argnums!r}, and the number of positional arguments {len(args)}; pass what to "
            "differentiate with respect to by its position, each once, and not by its name, as in f(x=x)."
        )
    return positions


def check_addressable(name: str, tree: Any) -> None:
    """Raise if an array in ``tree`` has parts in other processes, where its numbers are looked at."""
    for leaf in jax.tree.leaves(tree):
        is_here = not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer) or leaf.is_fully_addressable
        if not (is_here or leaf.is_fully_replicated):
            raise ValueError(
                f"{name}: an array of shape {leaf.shape} has parts in other processes, and {name} looks at its numbers "
                "one by one; pass jax.experimental.multihost_utils.process_allgather(x, tiled=True)."
            )


NUMBER = (int, float, np.integer, np.floating)
"""The types of numbers that can be read, which under `jax.jit` those of arrays cannot."""
NUMERIC = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)  # complex ones have an error of their own


def check_operands(op: str, names: Iterable[str], operands: Iterable[object]) -> None:
    """Raise unless every operand is a real number or an array of them."""
    for name, operand in zip(names, operands, strict=True):
        # Tensors of other frameworks have dtypes that JAX cannot read.
        dtype = getattr(operand, "dtype", np.dtype(int)) if isinstance(operand, NUMERIC) else np.dtype(object)
        is_extended = jnp.issubdtype(dtype, jax.dtypes.extended)  # of random keys, whose dtypes have no kind
        if is_extended or dtype.kind in "OSUMm":  # objects, texts, dates
            raise TypeError(
                f"{op}: {name} must be an array or a number, got {type(operand).__name__} {operand!r}; "
                "convert it first, for example with jnp.asarray."
            )
        dtype = jnp.result_type(operand)
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


def check_shapes(op: str, names: Sequence[str], operands: Sequence[jax.Array]) -> None:
    """Raise unless the shapes of the operands broadcast."""
    try:
        jnp.broadcast_shapes(*map(jnp.shape, operands))
    except ValueError as error:
        shapes = ", ".join(f"{n} {jnp.shape(o)}" for n, o in zip(names, operands, strict=True))
        raise ValueError(f"{op}: the shapes do not broadcast: {shapes}; reshape one so that they do.") from error


def checked_axes(op: str, x: ArrayLike, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the axes of ``x`` that ``axis`` names, all for None; raise unless they are distinct axes, at least one.

    >>> checked_axes("amax", jnp.ones((2, 3)), -1)
    (1,)
    """
    shape = np.shape(x)
    several = range(len(shape)) if axis is None else axis if isinstance(axis, Sequence) else (axis,)
    try:
        named = tuple(map(operator.index, several))
    except TypeError as error:
        raise TypeError(
            f"{op}: axis={axis!r} is no integer; pass one, a tuple of them, or None for all axes."
        ) from error
    if any(not -len(shape) <= a < len(shape) for a in named):
        raise ValueError(f"{op}: axis={axis} is out of range for x of shape {shape}.")
    axes = tuple(a % len(shape) for a in named)
    if len(set(axes)) < len(axes) or (shape and not axes):
        raise ValueError(f"{op}: axis={axis} does not name one or more distinct axes; give None for all.")
    return axes


def checked_ints(op: str, names: Sequence[str], operands: tuple[ArrayLike, ...]) -> tuple[ArrayLike, ...]:
    """Return the operands, with Python ints as floats if the result is of floats: `jax.jit` refuses those over 32 bits.

    Raise for an int that the integer dtype of the result cannot hold: once it is traced, it would wrap around silently.

    >>> checked_ints("maximum", ("x", "y"), (jnp.float32(1), 300))
    (Array(1., dtype=float32), 300.0)
    """
    try:
        # Without masks, which strict promotion joins with no number, and which leave the dtype of numbers as it is.
        dtype = jnp.result_type(*(o for o in operands if getattr(o, "dtype", type(o)) not in (np.bool_, bool)))
    except TypeError:
        return operands  # the call fails, and its error names the operand
    if not jnp.issubdtype(dtype, jnp.integer):
        return tuple(float(operand) if type(operand) is int else operand for operand in operands)
    for name, operand in zip(names, operands, strict=True):
        if type(operand) is int and not jnp.iinfo(dtype).min <= operand <= jnp.iinfo(dtype).max:
            raise OverflowError(
                f"{op}: {name}={operand} does not fit into {dtype}, the dtype of the result; "
                "convert the operands to a wider dtype."
            )
    return operands


def check_narrow(op: str, operands: Iterable[jax.Array]) -> None:
    """Raise for a traced number beside integers of less than 8 bits: its value is unknown, and it may wrap around."""
    operands = list(operands)
    if (dtype := _narrow(operands)) and any(o.weak_type and jnp.issubdtype(o.dtype, jnp.integer) for o in operands):
        raise TypeError(
            f"{op}: the result has the dtype {dtype}, in which a number beside an array may wrap around; "
            "convert the operands to a wider dtype."
        )


def narrowed(op: str, names: Sequence[str], operands: tuple[ArrayLike, ...]) -> tuple[ArrayLike, ...]:
    """Return the operands, with Python ints in the dtype of integers of less than 8 bits, if there are any.

    >>> narrowed("maximum", ("x", "y"), (jnp.int4(1), 7))
    (Array(1, dtype=int4), Array(7, dtype=int4))
    """
    dtype = _narrow(operands)
    if dtype is None or all(type(operand) is not int for operand in operands):
        return operands
    fitting = checked_ints(op, names, operands)
    return tuple(jnp.asarray(operand, dtype) if type(operand) is int else operand for operand in fitting)


def _narrow(operands: Iterable[Any]) -> np.dtype[Any] | None:
    """Return the dtype of integers of less than 8 bits, if an operand has one."""
    dtypes = (getattr(operand, "dtype", np.dtype(int)) for operand in operands)
    return next((d for d in dtypes if jnp.issubdtype(d, jnp.integer) and jnp.iinfo(d).bits < 8), None)
