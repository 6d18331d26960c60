"""Derives JAX functions of flat arrays: pullback, pushforward and batch are functions of flat arrays again.

Each takes the function, then what it is differentiated by (as a rule which arrays are active), then the arguments of a
flat function: the arrays that come from no tensor together, those from tensors one by one.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

Function: TypeAlias = Callable[..., Any]


def pullback(function: Function, active: Sequence[bool], non_tensors: Any, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Map the arrays and a cotangent of each inexact output to the cotangents of the active arrays."""
    return _pull(linearized(function, active, non_tensors, *arrays[: len(active)])[1], arrays[len(active) :])


def linearized(
    function: Function, active: Sequence[bool], non_tensors: Any, *arrays: jax.Array
) -> tuple[Any, Callable[..., tuple[jax.Array, ...]]]:
    """Return the outputs, and what maps a cotangent of each inexact one to the cotangents of the active arrays."""
    restricted, moving = _restrict(function, active, non_tensors, arrays)

    def of_inexact(*moving: jax.Array) -> tuple[list[jax.Array], Any]:
        outputs = restricted(*moving)
        return list(filter(_is_inexact, jax.tree.leaves(outputs))), outputs

    _, pull, outputs = jax.vjp(of_inexact, *moving, has_aux=True)
    return outputs, pull


def transposed(function: Function, pull: Any, non_tensors: Any, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Map the residuals in ``pull``, a pytree, and cotangents to the cotangents of the arrays that were active."""
    count = pull.num_leaves
    return _pull(jax.tree.unflatten(pull, arrays[:count]), arrays[count:])


def pushforward(
    function: Function, active: Sequence[bool], non_tensors: Any, *arrays: jax.Array
) -> tuple[jax.Array, ...]:
    """Map the arrays and a tangent of each active one to the tangents of the inexact outputs."""
    restricted, moving = _restrict(function, active, non_tensors, arrays[: len(active)])
    # Behind a number, as in x + 1., torch.func gives a tensor without axes a tangent in float64, whatever its dtype.
    tangents = tuple(v.astype(x.dtype) for x, v in zip(moving, arrays[len(active) :], strict=True))
    outputs, tangents = jax.jvp(restricted, moving, tangents)
    pairs = zip(jax.tree.leaves(outputs), jax.tree.leaves(tangents), strict=True)
    return tuple(tangent for output, tangent in pairs if _is_inexact(output))


def batched(function: Function, axes: tuple[int | None, ...], non_tensors: Any, *arrays: jax.Array) -> Any:
    """Return the function of arrays that have a batch axis where ``axes`` says so; the outputs have it in front."""
    return jax.vmap(function, in_axes=(None, *axes))(non_tensors, *arrays)


def _restrict(
    function: Function, active: Sequence[bool], non_tensors: Any, primals: Sequence[jax.Array]
) -> tuple[Function, tuple[jax.Array, ...]]:
    """Return ``function`` as one of the active primals alone, and these."""

    def restricted(*moving: jax.Array) -> Any:
        remaining = iter(moving)
        return function(non_tensors, *(next(remaining) if a else p for a, p in zip(active, primals, strict=True)))

    return restricted, tuple(p for a, p in zip(active, primals, strict=True) if a)


def _pull(pull: Callable[..., tuple[jax.Array, ...]], cotangents: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    # JAX's cotangents are those of the transpose, torch's gradients those of the adjoint: conjugates, if complex. Of
    # z -> i z at the cotangent 1 that is i in JAX, and -i in torch.
    return tuple(map(jnp.conj, pull(list(map(jnp.conj, cotangents)))))


def _is_inexact(output: jax.Array | float) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(output), jnp.inexact))  # a function may return numbers of Python
