"""`count_ties`: counts as arrays, under transformations, over devices and in sums."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxclamp
from jaxclamp import TieReport, count_ties, ties

X = jnp.array([-2.0, -1.0, -0.0, 0.0, 0.0, 1.0, 3.0, 6.0, 6.0])
N = np.asarray(X)


def layers(x: jax.Array) -> jax.Array:
    """Ties at a zero of x outside, at each element in each of two steps, and at a zero in the branch that is taken."""
    y = jnp.maximum(x, 0.0)
    _, z = jax.lax.scan(lambda carry, _: (2 * carry, jnp.abs(carry)), y - y, length=2)
    return jax.lax.cond(y[0] > -1, jnp.abs, jnp.exp, x) + z.sum(0)


LAYERS = {"maximum": int((N == 0).sum()), "scan": 2 * N.size, "cond": int((N == 0).sum())}


def summed(x: jax.Array) -> jax.Array:
    return layers(x).sum()


def twice(x: jax.Array) -> tuple[jaxclamp.TieCounts, jaxclamp.TieCounts]:
    return count_ties(layers)(x)[1], count_ties(layers)(-x)[1]


def steps(x: jax.Array) -> jaxclamp.TieCounts:
    """The counts of three steps of a training."""
    return jax.lax.scan(lambda x, _: (x, count_ties(layers)(x)[1]), x, length=3)[1]


@pytest.mark.parametrize("function", [lambda x: jnp.clip(x, 0.0, 6.0), layers])
def test_counting_is_not_counted(function: Callable[[jax.Array], jax.Array]) -> None:
    assert ties(count_ties(function))(X)[1] == ties(function)(X)[1]


@pytest.mark.parametrize(
    ("run", "times"),
    [
        pytest.param(lambda x: count_ties(layers)(x)[1], 1, id="eager"),
        pytest.param(jax.jit(lambda x: count_ties(layers)(x)[1]), 1, id="jit"),
        pytest.param(
            jax.jit(lambda x: count_ties(jax.checkpoint(layers))(x)[1]),
            1,
            id="checkpoint inside",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            lambda x: jax.grad(count_ties(summed), has_aux=True)(x)[1], 1, id="grad", marks=pytest.mark.thorough
        ),
        pytest.param(lambda x: jax.grad(jax.checkpoint(count_ties(summed)), has_aux=True)(x)[1], 1, id="checkpoint"),
        pytest.param(lambda x: count_ties(jax.grad(summed))(x)[1], 1, id="grad inside"),
        pytest.param(lambda x: jax.vmap(count_ties(layers))(jnp.stack([x, x]))[1], 2, id="vmap"),
        pytest.param(lambda x: jax.jit(steps)(x), 3, id="scan"),
        pytest.param(
            lambda x: sum(jax.jit(twice)(x), start=count_ties(layers)(x)[1]), 3, id="sum", marks=pytest.mark.thorough
        ),
    ],
)
def test_counts_as_arrays(run: Callable[[jax.Array], jaxclamp.TieCounts], times: int) -> None:
    tie_counts = run(X)
    report = tie_counts.report()
    assert report.tied == times * sum(LAYERS.values())
    assert report.elements == times * (N.size + 2 * N.size + N.size)
    with jax.numpy_dtype_promotion("strict"):
        assert tie_counts.tied.dtype == tie_counts.elements.dtype == "float32"
    axes = tuple(range(tie_counts.tied.ndim - 1))
    assert sorted(np.asarray(tie_counts.tied).sum(axes)) == sorted(times * count for count in LAYERS.values())
    assert ties(layers)(X)[1].tied * times == report.tied


def test_counts_in_a_loop_over_lanes() -> None:
    """The first lane is on the tie in its first pass, and takes three; the last one takes none."""
    lanes = jax.vmap(lambda x: jax.lax.while_loop(lambda c: c < 3, lambda c: jnp.maximum(c, 0.0) + 1, x))
    x = jnp.array([0.0, 1.0, 2.5, 5.0])
    result, tie_counts = jax.jit(count_ties(lanes))(x)
    np.testing.assert_array_equal(result, [3.0, 3.0, 3.5, 5.0])
    assert tie_counts.report().tied == ties(lanes)(x)[1].tied == 1


def test_counts_of_devices_are_those_of_all() -> None:
    """The branch that is taken, and how long a loop runs, differs between the devices."""
    mesh = jax.make_mesh((3,), ("batch",))

    def on_device(x: jax.Array) -> jax.Array:
        def step(state: Any) -> Any:
            return state[0] + 1, jnp.abs(state[1])

        _, y = jax.lax.while_loop(lambda state: state[0] < x[0], step, (-2 * x[0] / x[0], x))
        return jax.lax.cond(x[0] > 0, lambda y: jnp.maximum(y, 1.0), jnp.exp, y)

    x = jax.device_put(jnp.array([1.0, 0.0, -1.0, 0.0, 2.0, 1.0]), jax.NamedSharding(mesh, P("batch")))
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=P("batch"), out_specs=P("batch"))
    report = jax.jit(count_ties(mapped))(x)[1].report()
    counted_here = {line.op: (line.elements, line.tied) for line in report.lines}
    # abs runs 3, 1 and 4 times on two elements, one of which is 0 on the first two; maximum on the first and the third.
    assert counted_here == {"abs": (2 * (3 + 1 + 4), 3 + 1), "maximum": (4, 2)}


def test_counts_are_printed_line_by_line() -> None:
    """Not where they have no numbers yet."""
    printed = []

    @jax.jit
    def traced(x: jax.Array) -> jaxclamp.TieCounts:
        counts = count_ties(layers)(x)[1]
        printed.append(str(counts))
        return counts

    assert str(traced(X)) == str(ties(layers)(X)[1])
    assert printed[0].startswith("TieCounts(")


def test_counts_do_not_overflow() -> None:
    """More than 32 bits hold."""
    _, tie_counts = jax.jit(count_ties(lambda x: jnp.abs(x)))(jnp.zeros(2**20))
    for _ in range(13):
        tie_counts = tie_counts + tie_counts
    assert tie_counts.report().tied == 2**33


def test_counts_of_two_programs_do_not_add_up() -> None:
    counted = count_ties(jnp.abs)
    for other in (count_ties(lambda x: jnp.maximum(x, 0.0))(X), counted(X[:3])):
        with pytest.raises(ValueError, match="add up their reports"):
            counted(X)[1] + other[1]
    assert (counted(X)[1].report() + counted(X[:3])[1].report()).elements == X.size + 3


def test_without_ties_there_are_no_lines() -> None:
    value, tie_counts = jax.jit(count_ties(lambda x: x + 1))(X)
    np.testing.assert_array_equal(value, X + 1)
    assert tie_counts.report() == TieReport()


def test_counts_become_a_report_outside_of_jit() -> None:
    with pytest.raises(TypeError, match="return the counts from jit"):
        jax.jit(lambda x: count_ties(jnp.abs)(x)[1].report().tied)(X)


def test_shardings_of_an_inner_jit_stay() -> None:
    mesh = jax.make_mesh((3,), ("batch",))
    sharded = jax.NamedSharding(mesh, P("batch"))
    result, _ = count_ties(jax.jit(jnp.abs, out_shardings=sharded))(X)
    assert result.sharding == sharded


@pytest.mark.parametrize("of_mesh", [AxisType.Explicit, AxisType.Auto], ids=["auto_axes", "explicit_axes"])
def test_a_part_with_axes_of_another_type(of_mesh: AxisType) -> None:
    """There JAX gives arrays another mesh, and adds none of them to those of the rest."""

    def in_part(x: jax.Array) -> jax.Array:
        return jnp.maximum(x, 0.0) + jax.lax.scan(lambda carry, _: (jnp.abs(carry), None), x, length=2)[0]

    with jax.set_mesh(jax.make_mesh((3,), ("batch",), axis_types=(of_mesh,))):
        if of_mesh is AxisType.Explicit:
            part = jax.sharding.auto_axes(in_part, out_sharding=P("batch"))
        else:
            part = jax.sharding.explicit_axes(in_part, in_sharding=P("batch"))
        _, tie_counts = jax.jit(count_ties(lambda x: part(x) + jnp.abs(x)))(jax.device_put(X, P("batch")))
    assert tie_counts.report().tied == 4 * (N == 0).sum()
