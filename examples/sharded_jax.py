"""A gradient over eight devices of one CPU is that of one device, and its elementwise part does not communicate.

Of small integers, whose sums are exact, it is the same to the bit, by `jit` with shardings and by `shard_map`. Of other
numbers sums come in another order and are rounded differently; elementwise ops are the same to the bit there too.

Run: python examples/sharded_jax.py
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.table import Table

import jaxclamp

DEVICES, ROWS, WIDTH = 8, 64, 16

Params: TypeAlias = dict[str, jax.Array]
Gradient: TypeAlias = Callable[[Params, jax.Array], tuple[Params, jax.Array]]


def activation(x: jax.Array) -> jax.Array:
    return jaxclamp.leaky_relu(jaxclamp.clamp(x, -2.0, 2.0), 0.5)


@jax.jit
def activation_backward(x: jax.Array) -> jax.Array:
    """The backward pass of ``activation`` alone."""
    y, pull_back = jax.vjp(activation, x)
    return pull_back(y)[0]


def loss(params: Params, x: jax.Array) -> jax.Array:
    h = activation(x @ params["w"] + params["b"])
    return jnp.sum(jaxclamp.abs(jaxclamp.relu6(h @ params["v"]) - 3.0))


single = jax.jit(jax.grad(loss, (0, 1)))


def by_jit(mesh: Mesh) -> Gradient:
    """JAX divides the work: the batch lies on all devices, the parameters on each."""
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))
    return jax.jit(jax.grad(loss, (0, 1)), in_shardings=(whole, rows), out_shardings=(whole, rows))


def by_shard_map(mesh: Mesh) -> Gradient:
    """The program says who does what, and where the losses are summed."""

    def of_shard(params: Params, x: jax.Array) -> jax.Array:
        return jax.lax.psum(loss(params, x), "batch")

    return jax.jit(jax.grad(jax.shard_map(of_shard, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P()), (0, 1)))


def draws(draw: Callable[[tuple[int, ...]], Any]) -> tuple[Params, jax.Array]:
    """Parameters and inputs."""
    shapes = {"w": (WIDTH, WIDTH), "b": (WIDTH,), "v": (WIDTH, WIDTH)}
    params = {name: jnp.asarray(draw(shape), jnp.float32) for name, shape in shapes.items()}
    return params, jnp.asarray(draw((ROWS, WIDTH)), jnp.float32)


def integers() -> tuple[Params, jax.Array]:
    """So that sums are exact, and often on a bound."""
    generator = np.random.default_rng(0)
    return draws(lambda shape: generator.integers(-1, 2, shape))


def normals() -> tuple[Params, jax.Array]:
    generator = np.random.default_rng(0)
    return draws(lambda shape: generator.normal(0.0, 0.5, shape))


def difference(first: Any, second: Any) -> float:
    """The largest, relative to the largest number of its array."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(a).max()) for a, b in pairs)


def collectives(function: Any, *arguments: Any) -> set[str]:
    """The communication in the program that ``function``, a result of ``jit``, is compiled to."""
    text = function.lower(*arguments).compile().as_text()
    return set(re.findall(r"\b(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)\b", text))


def mesh() -> Mesh:
    return jax.make_mesh((DEVICES,), ("batch",), axis_types=(AxisType.Auto,))


def main() -> None:
    devices = mesh()
    shown = Table("numbers", "computed by", "difference", "communication", title="Against one device")
    for numbers, (params, x) in {"integers": integers(), "normals": normals()}.items():
        expected = single(params, x)
        for name, gradient in {"jit": by_jit(devices), "shard_map": by_shard_map(devices)}.items():
            apart = difference(expected, gradient(params, x))
            shown.add_row(numbers, name, f"{apart:.2g}", ", ".join(collectives(gradient, params, x)))
        divided = jax.device_put(x, NamedSharding(devices, P("batch")))
        apart = difference(activation_backward(x), activation_backward(divided))
        elementwise = collectives(activation_backward, divided)
        shown.add_row(numbers, "jit, elementwise part", f"{apart:.2g}", ", ".join(elementwise) or "none")
    Console().print(shown)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    main()
