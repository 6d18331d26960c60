"""Directions along which whole programs are differentiated: checks those that are given, and draws others."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jaxclamp._rules.extremum import widened

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


def random_direction(key: jax.Array, like: Tree) -> Tree:
    """Return a tree of numbers between -1 and 1 that have nothing to do with each other.

    A direction need not be random, it must only miss the edges between pieces. So the numbers 0, 1, 2, ... are mixed by
    the last steps of MurmurHash3, which map no two of them to one, in a tenth of the time that `jax.random` takes.
    """
    leaves, structure = jax.tree.flatten(like)
    seeds = jax.random.bits(key, (len(leaves),), "uint32")
    return jax.tree.unflatten(structure, [_mixed(seed, leaf) for seed, leaf in zip(seeds, leaves, strict=True)])


def _mixed(seed: jax.Array, like: jax.Array) -> jax.Array:
    if jnp.iscomplexobj(like):
        # Of one seed, both parts of a number would be equal.
        return jax.lax.complex(_mixed(seed, jnp.real(like)), _mixed(~seed, jnp.imag(like)))
    mixed = jax.lax.iota("uint32", math.prod(like.shape)).reshape(like.shape) + seed
    # The numbers are those of MurmurHash3's last steps. Its last shift is followed by no factor: hence the 1.
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
    # Mixed in float32 at least: of few numbers, many would be equal. From 0 .. 2^32 they go to -1 .. 1.
    return (mixed.astype(widened(like.dtype)) * 2.0**-31 - 1).astype(like.dtype)


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
