"""Bad input of the JAX ops: the message names the op, the argument and the cure, before anything is computed."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
        (lambda: jaxclamp.maximum(ONES, None), TypeError, r"maximum: y must be an array or a number"),
        (lambda: jaxclamp.clamp(ONES, jnp.ones(4), 1), ValueError, r"clamp: the shapes .* x \(3,\), min \(4,\), max"),
        (lambda: jaxclamp.hardtanh(ONES, 1, -1), ValueError, r"hardtanh: min_val=1 is greater than max_val=-1; swap"),
        (lambda: jaxclamp.clamp(jnp.uint8([5]), -1, 9), OverflowError, r"clamp: min=-1 does not fit into uint8.*wider"),
        (lambda: jaxclamp.maximum(jnp.int8(5), 300), OverflowError, r"maximum: y=300 does not fit into int8"),
        (lambda: jaxclamp.min_norm(3), TypeError, r"min_norm: fun is 3; pass a function"),
        (lambda: jaxclamp.ties(3), TypeError, r"ties: fun is 3; pass a function"),
        (lambda: jaxclamp.relu(ONES, ties="half"), ValueError, r"ties='half' .* 'min_norm', 'inclusive', 'exclusive'"),
    ],
)
def test_message(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", sorted(name for name, op in OPS.items() if op.family == "selection"))
def test_every_selection_op_checks_its_convention(name: str) -> None:
    arguments = [value for value in OPS[name].tie_points[0] if value is not None]
    with pytest.raises(ValueError, match="choose one of"):
        OPS[name].function(*arguments, ties="none")


def test_bounds_that_are_traced_may_be_in_any_order() -> None:
    """Values cannot be checked under jit; the result is then that of the formula."""
    assert jax.jit(jaxclamp.hardtanh)(0.0, 1.0, -1.0) == -1
