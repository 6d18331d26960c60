"""`pmax` and `pmin` over devices that tie: value, gradient, ties and rewriting are those of one array on one device."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxclamp
from jaxclamp import CONVENTIONS, Convention

DEVICES = 4
X = np.array([[1.0, 0.0, 3.0], [3.0, -0.0, 3.0], [3.0, 0.0, np.nan], [0.0, -1.0, 3.0]])  # a row for each device
WEIGHTS = np.array([1.0, 10.0, 100.0])
OVER_ONE_ARRAY = {lax.pmax: jaxclamp.amax, lax.pmin: jaxclamp.amin}
OURS = {lax.pmax: jaxclamp.pmax, lax.pmin: jaxclamp.pmin}

OnDevice = Callable[[jax.Array], jax.Array]
"""What each device computes of its row, the same on all devices."""


def mapped(kind: str) -> Callable[[OnDevice], OnDevice]:
    """Runs a function of a row on devices: those of a mesh, or the lanes of a ``vmap``."""
    if kind == "vmap":
        return lambda f: jax.vmap(f, axis_name="devices", out_axes=None)
    mesh = jax.make_mesh((DEVICES,), ("devices",), axis_types=(AxisType.Auto,))
    check = kind != "shard_map unchecked"

    def over_mesh(f: OnDevice) -> OnDevice:
        specs = {"mesh": mesh, "in_specs": P("devices"), "out_specs": P(), "check_vma": check}
        return jax.jit(jax.shard_map(lambda rows: f(rows[0]), **specs))

    return over_mesh


KINDS = ("vmap", "shard_map", "shard_map unchecked")


def weighted(reduced: jax.Array) -> jax.Array:
    return jnp.sum(reduced * WEIGHTS.astype(reduced.dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduce", [lax.pmax, lax.pmin], ids=["pmax", "pmin"])
@pytest.mark.parametrize(
    "ties", [pytest.param(t, marks=[pytest.mark.thorough] * (t in ("balanced", "exclusive"))) for t in CONVENTIONS]
)
def test_gradients_are_those_of_one_array(kind: str, reduce: Callable[..., Any], ties: Convention) -> None:
    x = jnp.asarray(X if kind == "vmap" else np.nan_to_num(X, nan=3.0), jnp.float32)

    def of_devices(x: jax.Array) -> jax.Array:
        return mapped(kind)(lambda row: OURS[reduce](row, "devices", ties=ties))(x)

    def of_array(x: jax.Array) -> jax.Array:
        return OVER_ONE_ARRAY[reduce](x, axis=0, ties=ties)

    def existing(x: jax.Array) -> jax.Array:
        return jaxclamp.min_norm(mapped(kind)(lambda row: reduce(row, "devices")), ties=ties)(x)

    np.testing.assert_array_equal(of_devices(x), of_array(x))
    wanted = jax.grad(lambda x: weighted(of_array(x)))(x)
    for function in (of_devices, existing):
        np.testing.assert_allclose(jax.grad(lambda x, f=function: weighted(f(x)))(x), wanted, rtol=1e-6)
    tangent = jnp.asarray(np.random.default_rng(0).normal(size=X.shape), jnp.float32)
    moved, moved_of_array = (jax.jvp(f, (x,), (tangent,))[1] for f in (of_devices, of_array))
    np.testing.assert_allclose(moved, moved_of_array, rtol=1e-6)


@pytest.mark.parametrize("reduce", OURS.values(), ids=["pmax", "pmin"])
def test_counted_beside_a_gradient(reduce: Callable[..., Any]) -> None:
    """Each lane differentiates its own result, beside which it counts."""
    x = jnp.array([2.0, 2.0, 2.0])

    def square(x: jax.Array) -> jax.Array:
        return reduce(x, "devices") ** 2  # type: ignore[no-any-return]

    gradient = jax.vmap(jax.grad(square), axis_name="devices")(x)
    counted = jax.vmap(jax.grad(jaxclamp.count_ties(square), has_aux=True), axis_name="devices")
    found, counts = counted(x)
    np.testing.assert_array_equal(found, gradient)
    assert (counts.report().tied, counts.report().elements) == (3, 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduce", [lax.pmax, pytest.param(lax.pmin, marks=pytest.mark.thorough)], ids=["pmax", "pmin"])
def test_along_a_direction_one_device_gets_all(kind: str, reduce: Callable[..., Any]) -> None:
    """That device whose element is the value a small step along the direction."""
    x = jnp.asarray(X[:, :2], jnp.float32)
    direction = jnp.asarray(np.random.default_rng(1).normal(size=x.shape), jnp.float32)
    nearby = np.asarray(x, np.float64) + 1e-3 * np.asarray(direction, np.float64)
    numpy_reduce = np.argmax if reduce is lax.pmax else np.argmin
    wanted = (np.arange(DEVICES)[:, None] == numpy_reduce(nearby, 0)) * WEIGHTS[:2]
    # Of an op in a `jax.vmap`, JAX keeps a derivative that has lost the axis.
    for function in (reduce,) if kind == "vmap" else (reduce, OURS[reduce]):

        def value(x: jax.Array, function: Callable[..., Any] = function) -> jax.Array:
            return jnp.sum(mapped(kind)(lambda row: function(row, "devices"))(x) * WEIGHTS[:2].astype(np.float32))

        np.testing.assert_array_equal(jaxclamp.grad(value, direction=direction)(x), wanted)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_ties_of_devices_are_counted(kind: str) -> None:
    """Each device counts the elements of its result, as for everything in a ``shard_map``."""
    x = jnp.asarray(X[:, :2], jnp.float32)
    copies = 1 if kind == "vmap" else DEVICES
    for function in (jaxclamp.pmax, lax.pmax):
        _, report = jaxclamp.ties(lambda x, f=function: mapped(kind)(lambda row: f(row, "devices"))(x))(x)
        assert (report.elements, report.tied) == (2 * copies, 2 * copies)
        assert [line.op for line in report.lines] == ["pmax"]


def test_a_device_shares_if_it_holds_the_value() -> None:
    """That of a NaN among devices is XLA's: between CPUs it is left out."""
    x = jnp.array([3.0, np.nan, 3.0, 1.0])
    largest = mapped("shard_map")(lambda row: jaxclamp.pmax(row, "devices"))
    gradient = jax.grad(lambda x: largest(x))(x)
    holds = np.isnan(x) if np.isnan(largest(x)) else np.asarray(x == largest(x))
    np.testing.assert_array_equal(gradient, holds / holds.sum())


def test_groups_of_devices() -> None:
    x = jnp.asarray(X[:, :2], jnp.float32)
    groups = [[0, 1], [2, 3]]

    def halves(row: jax.Array) -> jax.Array:
        return jaxclamp.pmax(row, "devices", axis_index_groups=groups)

    mesh = jax.make_mesh((DEVICES,), ("devices",), axis_types=(AxisType.Auto,))
    specs = {"mesh": mesh, "in_specs": P("devices"), "out_specs": P("devices"), "check_vma": False}
    gradient = jax.grad(lambda x: jnp.sum(jax.shard_map(halves, **specs)(x)))(x)
    of_halves = jax.grad(lambda x: jnp.sum(2 * jaxclamp.amax(x.reshape(2, 2, 2), axis=1)))(x)  # each has two results
    np.testing.assert_array_equal(gradient, of_halves)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_tree_of_each_dtype(dtype: str) -> None:
    x = jnp.asarray(X[:, 0], dtype)
    largest = mapped("vmap")(lambda row: jaxclamp.pmax({"a": row, "b": (row, 2 * row)}, "devices")["b"][1])
    gradient = jax.grad(lambda x: largest(x))(x)
    assert gradient.dtype == x.dtype
    assert gradient.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_second_derivatives() -> None:
    """Those of the elements that tie, shared: of x**3 at 3, that is 18 / 2 on the diagonal."""
    cubed = mapped("vmap")(lambda row: jaxclamp.pmax(row, "devices") ** 3)
    hessian = jax.hessian(lambda x: cubed(x))(jnp.array([1.0, 3.0, 3.0, 0.0]))
    wanted = np.zeros((4, 4))
    wanted[1:3, 1:3] = 18 / 4
    np.testing.assert_allclose(hessian, wanted)


def test_under_explicit_sharding() -> None:
    mesh = jax.make_mesh((DEVICES,), ("devices",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.asarray(X[:, 0], jnp.float32), NamedSharding(mesh, P("devices")))
        largest = jax.shard_map(lambda x: jaxclamp.pmax(x, "devices"), in_specs=P("devices"), out_specs=P())
        assert jax.jit(jax.grad(lambda x: jnp.sum(largest(x))))(x).tolist() == [0.0, 0.5, 0.5, 0.0]


def test_sums_alone_are_communicated() -> None:
    """The operand is not gathered."""
    x = jnp.asarray(X, jnp.float32)
    on_mesh = mapped("shard_map")(lambda row: jaxclamp.pmax(row, "devices"))
    program = jax.jit(jax.grad(lambda x: weighted(on_mesh(x)))).lower(x).compile().as_text()
    collectives = {name for name in re.findall(r"= \S+ ([a-z-]+)\(", program) if "all-" in name or "collective" in name}
    assert collectives == {"all-reduce"}


def test_an_unknown_convention_is_refused() -> None:
    with pytest.raises(ValueError, match="pmax: ties='mean' is not a convention"):
        jaxclamp.pmax(jnp.zeros(3), "devices", ties="mean")  # type: ignore[arg-type]
