"""The reductions over devices that JAX does not differentiate, `pmax` and `pmin`: the value is that of one device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
from jax import lax

from jaxclamp._rules.conventions import Convention, check_convention
from jaxclamp._rules.differentiate import differentiable
from jaxclamp._rules.extremum import extremum_of_devices

__all__ = ["pmax", "pmin"]

Tree = TypeVar("Tree")
Groups: TypeAlias = Sequence[Sequence[int]]


def pmax(
    x: Tree,
    axis_name: Hashable | tuple[Hashable, ...],
    *,
    axis_index_groups: Groups | None = None,
    ties: Convention = "min_norm",
) -> Tree:
    r"""The largest element over the devices of a mapped axis, :math:`\max_d x_d`: `jax.lax.pmax` with a derivative.

    Ties: each of k devices whose elements tie gets 1/k. Where the value is NaN, those that hold NaN share the gradient;
    between CPUs, XLA leaves NaN out.

    Args:
      x: real arrays, or a tree of them.
      axis_name: the axis of a `jax.shard_map`, or of a `jax.vmap` with ``axis_name``; or a tuple of axes.
      axis_index_groups: the groups of devices within which to reduce, as for `jax.lax.pmax`; None for one of all.
      ties: the convention at ties: ``"min_norm"`` and ``"balanced"`` (1/k each), ``"inclusive"`` (all to the first
        device), ``"exclusive"`` (to the other tied ones).

    Raises:
      NameError: as `jax.lax.pmax`, the axis is not mapped; or it is that of a `jax.vmap`, and between this and the
        gradient is a `jax.jit` or another transformation that traces: JAX has lost the axis then.
      ValueError: ``ties`` is unknown.

    Counterparts: `jax.lax.pmax`, which has no derivative.

    >>> largest = lambda x: pmax(x, "devices")
    >>> jax.grad(lambda x: jax.vmap(largest, axis_name="devices", out_axes=None)(x))(jax.numpy.array([1.0, 3.0, 3.0]))
    Array([0. , 0.5, 0.5], dtype=float32)

    Source: the reduction over devices, :math:`\partial \max` as for `amax`; jax-ml/jax#7167 asks for a derivative.
    """
    return _of_leaves("pmax", lax.pmax, x, axis_name, axis_index_groups, ties)


def pmin(
    x: Tree,
    axis_name: Hashable | tuple[Hashable, ...],
    *,
    axis_index_groups: Groups | None = None,
    ties: Convention = "min_norm",
) -> Tree:
    r"""The smallest element over the devices of a mapped axis, :math:`\min_d x_d`: `jax.lax.pmin` with a derivative.

    Ties: each of k devices whose elements tie gets 1/k, as for `pmax`.

    Args:
      x: real arrays, or a tree of them.
      axis_name: the axis of a `jax.shard_map`, or of a `jax.vmap` with ``axis_name``; or a tuple of axes.
      axis_index_groups: the groups of devices within which to reduce; None for one of all.
      ties: the convention at ties, as for `pmax`.

    Raises:
      NameError: the axis is not mapped.
      ValueError: ``ties`` is unknown.

    Counterparts: `jax.lax.pmin`, which has no derivative.

    >>> smallest = lambda x: pmin(x, "devices", ties="inclusive")
    >>> jax.grad(lambda x: jax.vmap(smallest, axis_name="devices", out_axes=None)(x))(jax.numpy.array([1.0, 3.0, 1.0]))
    Array([1., 0., 0.], dtype=float32)

    Source: as `pmax`.
    """
    return _of_leaves("pmin", lax.pmin, x, axis_name, axis_index_groups, ties)


def _of_leaves(
    name: str, function: Callable[..., Any], tree: Tree, axis_name: Any, groups: Groups | None, ties: Convention
) -> Tree:
    check_convention(name, ties)
    # As tuples, which the cache of rules can hash.
    rule = extremum_of_devices(name, function, axis_name, groups and tuple(map(tuple, groups)), ties)
    return jax.tree.map(lambda leaf: differentiable(rule, leaf), tree)
