"""Of every primitive of JAX, what derivatives of whole programs make of it."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import compute_on, pallas
from jax.experimental.scheduling_groups import scheduling_group
from jax.extend.core import primitives

import jaxclamp
from jaxclamp._programs.choices import CHOICES
from jaxclamp._programs.open_primitives import PROGRAMS
from jaxclamp._transforms.jaxprs import WITH_BODIES
from jaxclamp._transforms.tie_sites import SUSPECTS
from jaxclamp._transforms.undecided import UNDECIDED
from tests.support.pinned import of_pinned

DECIDED = {primitive.name for primitive in CHOICES}
OPENED = {*WITH_BODIES, *PROGRAMS, "custom_jvp_call", "custom_linear_solve"}
NUMBERS_THAT_DO_NOT_MOVE = """
    after_all and axis_index clz create_token empty2 iota is_finite mulhi not or
    population_count random_bits random_fold_in random_seed random_split reduce_and reduce_or reduce_xor
    rng_bit_generator rng_uniform shift_left shift_right_arithmetic shift_right_logical stop_gradient threefry2x32
    xor"""
"""Integers, bools and what is constant between jumps."""
SMOOTH = """
    acos acosh add add_any all_gather all_to_all asin asinh atan atanh bessel_i1e
    broadcast_in_dim cbrt cholesky complex concatenate conj conv_general_dilated copy cos cosh cumlogsumexp
    cumprod cumsum dce_sink device_put digamma div dot_general dynamic_slice dynamic_update_slice eig eigh erf
    erf_inv erfc exp exp2 expm1 fft gather get igamma igammac imag integer_pow lgamma log log1p log2 logistic lu
    mul name neg one_minus_square optimization_barrier pad polygamma polynomial pow ppermute psum qr
    ragged_all_to_all random_gamma real reduce_prod reduce_sum reduce_window_sum regularized_incomplete_beta
    reshape rev rsqrt scatter scatter-add scatter-mul scatter-sub select_n sharding_constraint sin sinh slice
    split sqrt square squeeze stack stage sub svd swap tan tanh tile transpose triangular_solve
    tridiagonal_solve unstack"""
"""What these choose, as select_n does and the pivots of lu, they are told, or it does not show in the value."""
WITHOUT_A_DERIVATIVE = """
    call custom_lin hessenberg householder_product igamma_grad_a nextafter schur select_and_scatter
    tridiagonal zeta"""
"""In JAX itself, which raises an error; or not made by functions of the user's."""
NOT_IN_ALL_VERSIONS = "call dce_sink log2 one_minus_square polynomial"
"""JAX 0.10 has the first two, JAX 0.12 the others."""


def named() -> Iterator[str]:
    for module in (lax, primitives):
        yield from (getattr(module, name).name for name in dir(module) if name.endswith("_p"))


@of_pinned
def test_every_primitive_is_in_one_list() -> None:
    written = [set(names.split()) for names in (NUMBERS_THAT_DO_NOT_MOVE, SMOOTH, WITHOUT_A_DERIVATIVE)]
    lists = [DECIDED, OPENED, set(UNDECIDED), *written]
    counts = {name: sum(name in names for names in lists) for name in named()}
    assert {name: count for name, count in counts.items() if count != 1} == {}
    assert counts.keys() >= set().union(*written) - set(NOT_IN_ALL_VERSIONS.split())


def kernel(x_ref: Any, o_ref: Any) -> None:
    x = x_ref[...]
    o_ref[...] = jnp.where(x > 0, x, 0.0) - jnp.where(x < 0, -x, 0.0)


def in_a_kernel(x: jax.Array) -> jax.Array:
    result: jax.Array = pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)
    return result


Function = Callable[[jax.Array], jax.Array]
ON_HOST = {"compute_type": "device_host", "out_memory_spaces": jax.memory.Space.Device}
# In JAX 0.10 ``compute_on`` is a context manager, and since 0.10.2 the function is beside it.
computed_on: Any = getattr(compute_on, "compute_on2", compute_on.compute_on)
CALLS: dict[str, Callable[[Function], Function]] = {
    "compute_on": lambda function: computed_on(function, **ON_HOST),
    "xla_metadata_call": scheduling_group("group"),
    "program_order": lambda function: pytest.importorskip("jax.experimental.overlap").program_order(
        function, enforce=True
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_say_where_or_when_to_compute_are_entered(name: str) -> None:
    if name == "compute_on" and jax.__version_info__ < (0, 10, 2):
        pytest.skip("JAX 0.10.0 has the context manager alone")
    call, x = CALLS[name], jnp.array([-1.0, 0.0, 4.0])
    assert [eqn.primitive.name for eqn in jax.make_jaxpr(call(jnp.abs))(x).eqns] == [name]

    def total(function: Function) -> Function:
        return lambda x: call(function)(x).sum()

    identity = total(lambda x: jax.nn.relu(x) - jax.nn.relu(-x))
    guarded_root = total(lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0))
    assert jax.jit(jaxclamp.grad(identity))(x).tolist() == [1, 1, 1]
    assert jax.jit(jaxclamp.grad(guarded_root, direction=-x - 1))(x).tolist() == [0, 0, 0.25]
    assert jax.jit(jax.grad(jaxclamp.min_norm(total(jnp.abs))))(x).tolist() == [-1, 0, 1]
    assert jax.jit(jaxclamp.count_ties(total(jnp.abs)))(x)[1].report().tied == 1


TAKEN: dict[str, Function] = {
    "pallas_call": in_a_kernel,
    "reduce_precision": lambda x: lax.reduce_precision(x, 8, 7),
    "approx_top_k": lambda x: lax.approx_max_k(x, 1)[0],
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken_as_it_is_is_a_suspect(name: str) -> None:
    _, report = jaxclamp.ties(TAKEN[name])(jnp.zeros(3))
    assert [line.op for line in report.lines if line.suspect] == [name]


def test_a_kernel_is_taken_as_it_is() -> None:
    """The identity in it has slope 1; were it decided, the documentation would say too little."""
    with pytest.warns(jaxclamp.UndecidedWarning, match="pallas_call: choices in a kernel"):
        _, derivative = jaxclamp.directional_derivative(in_a_kernel, (jnp.zeros(3),), (jnp.ones(3),))
    assert not np.array_equal(derivative, np.ones(3))


def test_what_is_not_looked_into_is_a_suspect() -> None:
    assert UNDECIDED.keys() <= SUSPECTS.keys()
