"""Directions along which whole programs are differentiated: checks those that are given, and draws others.

What is drawn without a key is what `interop` draws without a generator.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jaxclamp._rules.extremum import widened
from jaxclamp._shared.drawn_numbers import mixed, seeds

Tree: TypeAlias = Any


def check_direction(name: str, direction: Tree, active: Tree) -> None:
    """Raise unless a direction has the structure, shapes and dtypes of the arguments that are differentiated.

    Its numbers have to be finite and not all 0, where they are known: under `jax.jit` they are not.
    """
    structures = jax.tree.structure(direction), jax.tree.structure(active)
    if structures[0] != structures[1]:  # type: ignore[operator]  # TreeDefs, for their stub perhaps None
        raise ValueError(
            f"{name}: direction has the structure {structures[0]}; pass one with that of the argument, {structures[1]}."
        )
    for v, x in zip(*map(jax.tree.leaves, (direction, active)), strict=True):
        if jnp.shape(v) != jnp.shape(x):
            raise ValueError(
                f"{name}: direction has an array of shape {jnp.shape(v)}, where the argument has {jnp.shape(x)}."
            )
        # Numbers of Python have no dtype of their own.
        if hasattr(v, "dtype") and (has := jnp.result_type(v)) != (needs := jnp.result_type(x)):
            raise TypeError(
                f"{name}: direction has an array of dtype {has}, where the argument has {needs}; convert it by "
                f'direction.astype("{needs}").'
            )
    leaves = jax.tree.leaves(direction)
    known = [v for v in leaves if not isinstance(v, jax.core.Tracer)]
    with jax.ensure_compile_time_eval():  # also within a program that is being traced
        if not all(jnp.isfinite(v).all() for v in known):
            raise ValueError(f"{name}: direction has NaN or infinity, which point nowhere; pass finite numbers.")
        if len(known) == len(leaves) and any(map(jnp.size, leaves)) and not any(map(jnp.any, leaves)):
            raise ValueError(f"{name}: direction is 0, which points nowhere; pass other numbers, or no direction.")


def drawn_direction(key: jax.Array | None, like: Tree) -> Tree:
    """Return a tree of numbers between -1 and 1 that have nothing to do with each other; without a key, the same ones.

    They take a tenth of the time of numbers from `jax.random`.
    """
    leaves, structure = jax.tree.flatten(like)
    starts = seeds(len(leaves)) if key is None else jax.random.bits(key, (len(leaves),), "uint32")
    drawn = [_drawn(jnp.uint32(start), leaf) for start, leaf in zip(starts, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def _drawn(seed: jax.Array, like: jax.Array) -> jax.Array:
    if jnp.iscomplexobj(like):
        # Of one seed, both parts of a number would be equal.
        return jax.lax.complex(_drawn(seed, jnp.real(like)), _drawn(~seed, jnp.imag(like)))
    numbers = mixed(jax.lax.iota("uint32", math.prod(like.shape)).reshape(like.shape) + seed, jnp.uint32)
    # In float32 at least: of few numbers, many would be equal.
    return (numbers.astype(widened(like.dtype)) * 2.0**-31 - 1).astype(like.dtype)


def varying_as(tangents: Tree, primals: Tree) -> Tree:
    """Return the tangents. In a ``shard_map``, let each vary over the devices as its primal does: JAX requires that.

    Tangents that do not fit their primals stay as they are: `jax.jvp` refuses them.
    """

    def varying(x: Any, v: Any) -> Any:
        fits = jnp.shape(x) == jnp.shape(v) and jnp.result_type(x) == getattr(v, "dtype", jnp.result_type(x))
        return jnp.zeros_like(x) + v if fits else v

    leaves, structure = jax.tree.flatten(tangents)
    points = jax.tree.leaves(primals)
    return jax.tree.unflatten(structure, map(varying, points, leaves)) if len(points) == len(leaves) else tangents
