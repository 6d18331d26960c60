"""The gradient on one device, on eight and in two processes: every op, min_norm, grad and ties.

Columns with ties lie across all devices, so that an extremum along the divided axis counts them all.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxclamp
from jaxclamp import OPS, Op
from tests.support.elementwise import ELEMENTWISE, valid_operands
from tests.support.representatives import represented

Function = Callable[[jax.Array], jax.Array]
DEVICES = 8
X = jnp.asarray(np.random.default_rng(0).integers(-1, 3, (DEVICES, 4)), jnp.float32)

OF_REDUCTIONS: dict[str, Callable[[Callable[..., Any]], Function]] = {
    **dict.fromkeys(("amax", "amin"), lambda f: lambda x: f(x, 0) + f(x, 1).sum()),
    **dict.fromkeys(("max_with_indices", "min_with_indices"), lambda f: lambda x: f(x, 0)[0] + f(x, 1)[0].sum()),
    "norm": lambda f: lambda x: f(x, 2, 0) + f(x, 2, 1).sum(),
    "max_pool1d": lambda f: lambda x: f(x, 2),
    "max_pool2d": lambda f: lambda x: f(x[:, None, None], (1, 2)),
    "max_pool3d": lambda f: lambda x: f(x[:, None, None, None], (1, 1, 2)),
}


def of_x(op: Op) -> Function:
    """The op as a function of a matrix, with the parameters of its first tie; a reduction along each of the axes."""
    if op.name in OF_REDUCTIONS:
        return OF_REDUCTIONS[op.name](op.function)
    _, *parameters = valid_operands(op)[0]
    return lambda x: op.function(x, *parameters)


def total(f: Function) -> Function:
    return lambda x: jnp.sum(f(x))


def on_mesh(kind: AxisType) -> tuple[contextlib.AbstractContextManager[Any], jax.Array]:
    """The block in which the devices are a mesh of that kind, and X with a row on each device."""
    mesh = jax.make_mesh((DEVICES,), ("rows",), axis_types=(kind,))
    block = jax.set_mesh(mesh) if kind is AxisType.Explicit else contextlib.nullcontext()
    return block, jax.device_put(X, NamedSharding(mesh, P("rows")))


def collectives(function: Function, x: jax.Array) -> Counter[str]:
    text = jax.jit(function).lower(x).compile().as_text()
    return Counter(re.findall(r"\b(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)\(", text))


@pytest.mark.parametrize(
    "kind", [AxisType.Auto, pytest.param(AxisType.Explicit, marks=pytest.mark.thorough)], ids=lambda kind: kind.name
)
@pytest.mark.parametrize("op", represented(OPS.values()))
def test_the_gradient_of_an_op_on_eight_devices(op: Op, kind: AxisType) -> None:
    f = total(of_x(op))
    block, x = on_mesh(kind)
    with block:
        gradient = jax.jit(jax.grad(f))(x)
    np.testing.assert_allclose(gradient, jax.grad(f)(X), rtol=1e-6)  # sums of norms are rounded in another order


@pytest.mark.parametrize("op", represented(ELEMENTWISE))
def test_an_elementwise_op_does_not_communicate(op: Op) -> None:
    _, x = on_mesh(AxisType.Auto)
    assert not collectives(lambda x: jax.vjp(of_x(op), x)[1](x)[0], x)


@pytest.mark.parametrize("axis", [0, 1])
def test_an_extremum_communicates_as_the_one_of_jax(axis: int) -> None:
    """Along the divided axis: the largest elements, and their number, are reduced over the devices."""
    _, x = on_mesh(AxisType.Auto)
    ours, native = (
        collectives(lambda x, f=f: jax.vjp(lambda x: f(x, axis), x)[1](f(x, axis))[0], x)  # type: ignore[misc]
        for f in (jaxclamp.amax, jnp.max)
    )
    assert ours == native
    assert bool(native) == (axis == 0)


def program(x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.clip(x, 0.0, 2.0)) + jnp.sum(jnp.max(x, axis=0)) - jnp.max(jnp.abs(x))


@pytest.mark.parametrize(
    "kind", [AxisType.Auto, pytest.param(AxisType.Explicit, marks=pytest.mark.thorough)], ids=lambda kind: kind.name
)
def test_programs_on_eight_devices(kind: AxisType) -> None:
    block, x = on_mesh(kind)
    for gradient in (jax.grad(jaxclamp.min_norm(program)), jaxclamp.grad(program)):
        with block:
            divided = jax.jit(gradient)(x)
        np.testing.assert_array_equal(divided, jax.jit(gradient)(X))
    with block:
        _, report = jaxclamp.ties(program)(x)
    assert report.lines == jaxclamp.ties(program)(X)[1].lines
    assert report.tied > 0


def test_two_processes(load: Callable[[str], ModuleType]) -> None:
    load("two_processes").launch(str(Path(__file__).with_name("in_two_processes.py")))
