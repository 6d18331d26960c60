"""Bad input of the JAX ops: the message names the op, the argument and the cure, before anything is computed."""

import functools
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import jet

import jaxclamp
from jaxclamp import OPS

ONES = jnp.ones(3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: jaxclamp.clamp(1j, 0, 1), TypeError, r"clamp: x has the complex dtype complex64.*undefined.*jnp\.abs"),
        (lambda: jaxclamp.clamp(ONES, 0, ONES * 1j), TypeError, r"clamp: max has the complex dtype"),
        (lambda: jaxclamp.abs(ONES * 1j), TypeError, r"abs: x has the complex dtype"),
        (lambda: jax.jit(jaxclamp.relu)(ONES * 1j), TypeError, r"relu: x has the complex dtype"),
        (lambda: jaxclamp.relu("1.0"), TypeError, r"relu: x must be an array or a number, got str '1\.0'; convert"),
        (lambda: jaxclamp.relu(np.array(["a"])), TypeError, r"relu: x must be an array or a number, got ndarray"),
        (lambda: jaxclamp.relu([1.0, 2.0]), TypeError, r"relu: x must be .* got list .*jnp\.asarray"),
        (lambda: jaxclamp.relu(None), TypeError, r"relu: x must be an array or a number, got NoneType"),
        # A tensor of torch has a dtype, too.
        (
            lambda: jaxclamp.relu(SimpleNamespace(dtype="torch.float32")),
            TypeError,
            r"relu: x must be .* SimpleNamespace",
        ),
        (lambda: jaxclamp.maximum(ONES, None), TypeError, r"maximum: y must be an array or a number"),
        (lambda: jaxclamp.clamp(ONES, jnp.ones(4), 1), ValueError, r"clamp: the shapes .* x \(3,\), min \(4,\), max"),
        (lambda: jaxclamp.hardtanh(ONES, 1, -1), ValueError, r"hardtanh: min_val=1 is greater than max_val=-1; swap"),
        (lambda: jaxclamp.clamp(jnp.uint8([5]), -1, 9), OverflowError, r"clamp: min=-1 does not fit into uint8.*wider"),
        (lambda: jaxclamp.maximum(jnp.int8(5), 300), OverflowError, r"maximum: y=300 does not fit into int8"),
        (lambda: jaxclamp.maximum(jnp.int4(5), 100), OverflowError, r"maximum: y=100 does not fit into int4"),
        (lambda: jaxclamp.clamp(jnp.uint4(5), -1, 3), OverflowError, r"clamp: min=-1 does not fit into uint4"),
        (
            lambda: jax.jit(jaxclamp.maximum)(jnp.int4(5), 100),
            TypeError,
            r"maximum: the result has the dtype int4.*wrap.*wider",
        ),
        (lambda: jaxclamp.relu(jax.random.key(0)), TypeError, r"relu: x must be an array or a number"),
        (lambda: jaxclamp.softshrink(ONES, np.float32(-1)), ValueError, r"softshrink: lambd=-1\.0 is negative"),
        (lambda: jaxclamp.celu(ONES, np.float32(0)), ValueError, r"celu: alpha=0 would divide by 0"),
        (lambda: jaxclamp.amax(ONES, initial=0, where=jnp.arange(3)), TypeError, r"amax: where has the dtype int32;"),
        (lambda: jaxclamp.min_norm(3), TypeError, r"min_norm: fun is 3; pass a function"),
        (lambda: jaxclamp.ties(3), TypeError, r"ties: fun is 3; pass a function"),
        (lambda: jaxclamp.relu(ONES, ties="half"), ValueError, r"ties='half' .* 'min_norm', 'inclusive', 'exclusive'"),
    ],
)
def test_message(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("dtype", ["int2", "int4", "uint2", "uint4"])
@pytest.mark.parametrize("transform", [lambda fun: fun, jax.jit, jax.vmap])
def test_numbers_that_fit_beside_integers_of_few_bits(
    transform: Callable[[Callable[[jax.Array], jax.Array]], Callable[[jax.Array], jax.Array]], dtype: str
) -> None:
    x = jnp.array([0, 1, jnp.iinfo(dtype).min, jnp.iinfo(dtype).max], dtype)
    for function, expected in (
        (jaxclamp.relu, [0, 1, 0, jnp.iinfo(dtype).max]),
        (lambda x: jaxclamp.clamp(x, 0, 1), [0, 1, 0, 1]),
    ):
        result = transform(function)(x)
        assert (result.dtype, result.tolist()) == (x.dtype, expected)
    assert jaxclamp.amax(x[:2], initial=0, where=jnp.array([True, False])) == jnp.zeros((), dtype)


def test_strict_promotion_takes_masks_and_norms_of_integers() -> None:
    """The operands of a masked maximum are of dtypes that strict promotion does not join, and need not be joined."""
    mask = jnp.array([True, False, True])
    with jax.numpy_dtype_promotion("strict"):
        for dtype in ("float32", "bfloat16", "float8_e4m3fn", "int8"):
            largest = jaxclamp.amax(jnp.array([1, 3, 2], dtype), initial=0, where=mask)
            assert (largest.dtype, int(largest)) == (jnp.dtype(dtype), 2)
        with pytest.raises(OverflowError, match="initial=300 does not fit into int8"):
            jaxclamp.amax(jnp.array([1, 3, 2], "int8"), initial=300, where=mask)
        assert jaxclamp.norm(jnp.array([3, 4], "int8")) == 5
        assert OPS["abs"].applied(jnp.array([0, 1], "int8")).on_tie().tolist() == [True, False]
    with_float32 = jaxclamp.amax(jnp.array([1, 3, 2], "float8_e4m3fn"), initial=jnp.float32(0), where=mask)
    assert (with_float32.dtype, float(with_float32)) == (jnp.float8_e4m3fn, 2)


@pytest.mark.parametrize("name", sorted(name for name, op in OPS.items() if op.family == "selection"))
def test_every_selection_op_checks_its_convention(name: str) -> None:
    arguments = [value for value in OPS[name].tie_points[0] if value is not None]
    with pytest.raises(ValueError, match="choose one of"):
        OPS[name].function(*arguments, ties="none")


def test_bounds_that_are_traced_may_be_in_any_order() -> None:
    """Values cannot be checked under jit; the result is then that of the formula."""
    assert jax.jit(jaxclamp.hardtanh)(0.0, 1.0, -1.0) == -1


def branching(params: dict[str, Any], positive: Any = None) -> jax.Array:
    """Python decides by a value, unless it is told."""
    decision = bool(params["w"].sum() > 0) if positive is None else positive
    return jnp.abs(params["w"]).sum() if decision else params["w"].sum()


TRACING: dict[str, Callable[..., Any]] = {
    "min_norm": lambda fun, at: jaxclamp.min_norm(fun)(at),
    "min_norm within min_norm": lambda fun, at: jaxclamp.min_norm(jax.grad(jaxclamp.min_norm(fun)))(at),
    "ties": lambda fun, at: jaxclamp.ties(fun)(at),
    "grad": lambda fun, at: jaxclamp.grad(fun)(at),
    "value_and_grad": lambda fun, at: jaxclamp.value_and_grad(fun)(at),
    "directional_derivative": lambda fun, at: jaxclamp.directional_derivative(fun, (at,), (at,)),
    "subdifferential": lambda fun, at: jaxclamp.subdifferential(fun, directions=1)(at),
}


@pytest.mark.parametrize("name", TRACING)
def test_python_that_reads_traced_values(name: str) -> None:
    """The message names the function and the argument of the user, and says once what to do, which helps."""
    at = {"b": 3.0 * ONES, "w": ONES}
    with pytest.raises(jax.errors.TracerBoolConversionError) as raised:
        TRACING[name](branching, at)
    shown = "".join(traceback.format_exception_only(raised.value))
    assert f"tracing the function branching at {__file__}" in shown
    assert "depends on the value of the argument params['w']" in shown
    assert "jaxprs.py" not in shown
    assert shown.count("Write a choice as jnp.where or jax.lax.cond.") == 1
    assert shown.count("functools.partial(fun, flag=True)") == 1
    TRACING[name](functools.partial(branching, positive=True), at)


@pytest.mark.parametrize(
    ("fun", "error"),
    [
        (lambda x: float(x[0]), jax.errors.ConcretizationTypeError),
        (lambda x: [1.0, 2.0][x[0].astype(int)], jax.errors.TracerIntegerConversionError),
        (np.sin, jax.errors.TracerArrayConversionError),
        (lambda x: x[x > 0], jax.errors.NonConcreteBooleanIndexError),
    ],
)
def test_other_ways_to_read_a_traced_value(fun: Callable[..., Any], error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        jaxclamp.min_norm(fun)(ONES)
    assert "jaxclamp traces the function" in "".join(raised.value.__notes__)


def test_influence_wants_a_scalar() -> None:
    cases: list[tuple[Callable[..., Any], bool, str]] = [
        (lambda x: x, False, r"fun returned an array of shape \(3,\); return a scalar"),
        (lambda x: (x.sum(), x), False, r"fun returned a tuple; .*has_aux=True a pair"),
        (lambda x: x.sum(), True, r"has_aux=True, and fun returned .*; return \(scalar, auxiliary\)"),
    ]
    for fun, has_aux, message in cases:
        with pytest.raises(TypeError, match=message):
            jaxclamp.ties(fun, influence=True, has_aux=has_aux)(ONES)


@pytest.mark.parametrize("op", [jaxclamp.relu, jaxclamp.leaky_relu, jaxclamp.amax], ids=lambda op: op.__name__)
def test_jet_is_refused(op: Callable[[jax.Array], jax.Array]) -> None:
    """It does not ask functions for a derivative of their own, and would take another.

    JAX itself refuses such a function under ``jit``, `jax.nn.relu` too; since 0.11.2 by an error of its own code.
    """
    ones = jnp.ones(2)
    with pytest.raises((jax.errors.UnexpectedTracerError, AttributeError)):
        jet.jet(op, (ones,), ((ones, ones),))
