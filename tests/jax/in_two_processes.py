"""Run in each of two processes by test_devices.py: what jaxclamp says of arrays of which each process has one half."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxclamp

ROOT = Path(__file__).parents[2]
X = np.array([[0.0, 1.0, 2.0, 0.0], [3.0, 0.0, 1.0, 2.0]], np.float32)
"""Elements of both halves lie on the bounds 0 and 2, and the largest of the second column is in the first half."""


def loss(x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.clip(x, 0.0, 2.0)) + jnp.sum(jnp.max(x, axis=0)) - jnp.max(jnp.abs(x))


def refusal(function: object) -> str:
    try:
        function()  # type: ignore[operator]
    except ValueError as error:
        return str(error)
    return ""


def work(rank: int, address: str) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(address, 2, rank, coordinator_bind_address=address if rank == 0 else None)
    sys.path.insert(0, str(ROOT))
    from tests.jax import test_devices  # it makes an array, which may not be before the processes have met

    mesh = jax.make_mesh((2,), ("half",), axis_types=(AxisType.Auto,))
    x = jax.make_array_from_process_local_data(NamedSharding(mesh, P("half")), X[rank : rank + 1])
    rows = test_devices.X
    divided = jax.make_array_from_process_local_data(NamedSharding(mesh, P("half")), np.split(rows, 2)[rank])
    # One of each kind, as it takes a quarter of a minute to compile all of them.
    ops = [jaxclamp.OPS[name] for name in ("clamp", "leaky_relu", "elu", "max_with_indices")]
    functions = [test_devices.total(test_devices.of_x(op)) for op in ops]

    @jax.jit
    def of_each_op(x: jax.Array) -> list[jax.Array]:
        return [jax.grad(function)(x) for function in functions]

    for op, ours, whole in zip(ops, of_each_op(divided), of_each_op(rows), strict=True):
        part = np.concatenate([shard.data for shard in ours.addressable_shards])
        np.testing.assert_allclose(part, np.split(whole, 2)[rank], rtol=1e-6, err_msg=op.name)
    for gradient in (jax.grad(jaxclamp.min_norm(loss)), jaxclamp.grad(loss)):
        (half,) = np.asarray(jax.jit(gradient)(x).addressable_data(0))
        np.testing.assert_array_equal(half, jax.jit(gradient)(jnp.asarray(X))[rank])
    (_, report), (_, whole) = (jaxclamp.ties(loss)(operand) for operand in (x, jnp.asarray(X)))
    assert report.lines == whole.lines
    assert report.tied > 0
    for function in (jaxclamp.subdifferential(loss), lambda x: jaxclamp.check_grads(loss, (x,))):
        assert "has parts in other processes" in refusal(lambda f=function: f(x))
    jax.distributed.shutdown()


if __name__ == "__main__":
    work(int(sys.argv[1]), sys.argv[2])
