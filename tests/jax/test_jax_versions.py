"""`jaxclamp._jax_versions`: what differs between versions of JAX in jaxprs has one form in the installed one."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Jaxpr, jaxpr_as_fun
from jax.sharding import PartitionSpec

import jaxclamp
from jaxclamp._jax_versions import INLINE, closed, expanded, is_jaxpr, manual_axes, warn_of_an_untested_jax, with_parts

pytestmark = pytest.mark.each_jax

CONSTANT = np.array([1.0, 2.0], np.float32)
X = jnp.array([3.0, 5.0])


def shifted(x: jax.Array) -> jax.Array:
    return x + jnp.asarray(CONSTANT)


def body_of(fun: Any, parameter: str) -> Any:
    """The program in the parameters of the one equation of ``fun``."""
    jaxpr: Any = jax.make_jaxpr(fun)(X)
    (eqn,) = jaxpr.eqns
    return eqn.params[parameter]


def test_what_is_read_alike() -> None:
    """Of a program with a constant, and of bodies with and without."""
    jaxpr: Any = jax.make_jaxpr(shifted)(X)
    assert [str(eqn.primitive) for eqn in jaxpr.eqns] == ["add"]
    assert len(jaxpr.constvars) == len(jaxpr.consts) == len(jaxpr.invars) == len(jaxpr.outvars) == 1
    np.testing.assert_array_equal(jaxpr.consts[0], CONSTANT)
    for body in (body_of(jax.jit(jnp.sin), "jaxpr"), body_of(jax.checkpoint(jnp.sin), "jaxpr")):
        assert is_jaxpr(body)
        assert [str(eqn.primitive) for eqn in body.eqns] == ["sin"]
        assert jaxpr_as_fun(closed(body))(X)[0].tolist() == jnp.sin(X).tolist()
    assert not is_jaxpr(jaxpr.eqns)


@pytest.mark.parametrize("name", ["a function", "jit", "checkpoint"])
def test_parts_are_replaced(name: str) -> None:
    """The equation of a program, as those of it are that computes another function of the same constants."""
    program: Any = jax.make_jaxpr(shifted)(X)
    if name != "a function":
        wrapped = {"jit": jax.jit, "checkpoint": jax.checkpoint}[name]
        program = body_of(wrapped(lambda x: x + 1.0), "jaxpr")
    (eqn,) = program.eqns
    doubled = with_parts(program, eqns=[eqn.replace(invars=[eqn.invars[0], eqn.invars[0]])])
    assert type(doubled) is type(program)
    assert jaxpr_as_fun(closed(doubled))(X)[0].tolist() == (2 * X).tolist()
    assert len(doubled.constvars) == len(program.constvars)


def test_constants_that_lie_beside_a_program() -> None:
    """As those of `jax.lax.reduce_window` do; a program that has its constants keeps them."""
    jaxpr: Any = jax.make_jaxpr(shifted)(X)
    open_jaxpr = jaxpr.jaxpr if not isinstance(jaxpr, Jaxpr) else jaxpr
    for program in (closed(open_jaxpr, jaxpr.consts), closed(jaxpr)):
        assert jaxpr_as_fun(program)(X)[0].tolist() == [4.0, 7.0]


def test_an_inlined_function_stands_among_the_equations_of_its_caller() -> None:
    def names(inline: Any) -> list[str]:
        jaxpr: Any = jax.make_jaxpr(jax.jit(jnp.sin, inline=inline))(X)
        return [str(eqn.primitive) for eqn in jaxpr.eqns]

    assert names(INLINE) == ["sin"]
    assert names(False) == ["jit"]
    jaxpr: Any = jax.make_jaxpr(jaxclamp.relu)(X)
    assert [str(eqn.primitive) for eqn in jaxpr.eqns] == ["custom_jvp_call"]


@pytest.mark.parametrize("inline", [True, INLINE])
def test_a_norm_is_known_through_an_inlined_function(inline: Any) -> None:
    def norm(x: jax.Array) -> jax.Array:
        squares = jax.jit(jnp.square, inline=inline)(x)
        return jnp.sqrt(squares.sum())

    np.testing.assert_array_equal(jax.grad(jaxclamp.min_norm(norm))(jnp.zeros(2)), 0.0)


def test_a_call_of_a_high_level_primitive_is_expanded() -> None:
    """Where JAX has one for searchsorted, it computes the same in ordinary primitives; before, there is none."""

    def eqns_in(jaxpr: Any) -> list[Any]:
        return [
            inner for eqn in jaxpr.eqns for inner in (eqns_in(eqn.params["jaxpr"]) if "jaxpr" in eqn.params else [eqn])
        ]

    keys = jnp.array([3.0, 4.0, 5.0])
    eqns = eqns_in(jax.make_jaxpr(lambda x: jnp.searchsorted(x, keys))(X))
    programs = [program for eqn in eqns if (program := expanded(eqn))]
    has_one = jax.__version_info__ >= (0, 12)
    assert len(programs) == has_one
    for program in programs:
        assert program(X, keys)[0].tolist() == [0, 1, 1]
        inside: Any = jax.make_jaxpr(program)(X, keys)
        assert not [eqn for eqn in eqns_in(inside) if expanded(eqn)]


def test_interpolation_is_decided_at_its_knots() -> None:
    """It searches a sorted array: the slope is that of the side to which x moves."""

    def line(x: jax.Array) -> jax.Array:
        return jnp.interp(x, jnp.array([-1.0, 0.0, 1.0]), jnp.array([2.0, 1.0, 3.0]))

    for direction, slope in ((1.0, 2.0), (-1.0, -1.0)):
        assert jaxclamp.grad(line, direction=direction)(0.0) == slope


def test_axes_of_shard_map() -> None:
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = PartitionSpec("rows")
    jaxpr: Any = jax.make_jaxpr(
        jax.shard_map(lambda x: x + lax.axis_index("rows"), mesh=mesh, in_specs=rows, out_specs=rows)
    )(X)
    (eqn,) = jaxpr.eqns
    assert set(manual_axes(eqn)) == {"rows"}


def test_an_untested_version_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    jaxclamp.min_norm(jnp.abs)  # this one does not: warnings are errors
    monkeypatch.setattr(jax, "__version__", "0.99.1")
    with pytest.warns(
        UserWarning, match=r"tested with JAX 0\.10\.0 to 0\.12\.0\.1, and this is JAX 0\.99\.1"
    ) as warned:
        under = jaxclamp.min_norm(jnp.abs)
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jaxclamp.min_norm(jnp.abs)
    assert jax.grad(under)(0.0) == 0.0
    warn_of_an_untested_jax.cache_clear()
