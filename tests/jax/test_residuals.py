"""What a reverse pass keeps: one byte per element, whatever is active and wherever `jax.vjp` is called."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxclamp import Op
from tests.support.elementwise import ELEMENTWISE, is_curved, valid_operands
from tests.support.representatives import thorough

N = 1024
CASES = [
    pytest.param(op, active, id=f"{op.name}-{''.join(map(str, active))}")
    for op in ELEMENTWISE
    if not is_curved(op)
    for size in range(1, len(valid_operands(op)[0]) + 1)
    for active in itertools.combinations(range(len(valid_operands(op)[0])), size)
    if op.family == "selection" or active == (0,)
]


def kept(function: Callable[..., Any], *arrays: jax.Array) -> tuple[int, set[str]]:
    """Bytes that the pullback of ``function`` holds, and their dtypes."""
    leaves = jax.tree.leaves(jax.vjp(function, *arrays)[1])
    return sum(leaf.nbytes for leaf in leaves), {str(leaf.dtype) for leaf in leaves if leaf.size > 1}


def restricted(op: Op, active: tuple[int, ...]) -> Callable[..., Any]:
    def of_active(*moving: jax.Array) -> Any:
        operands: list[Any] = valid_operands(op)[0]
        if op.family == "selection":
            operands = [jnp.full(moving[0].shape, value) for value in operands]
        for index, value in zip(active, moving, strict=True):
            operands[index] = value
        return op.function(*operands)

    return of_active


@pytest.mark.parametrize(
    "wrap",
    [
        *(pytest.param(wrap, marks=pytest.mark.thorough) for wrap in (lambda f: f, jax.jit, jax.vmap)),
        lambda f: jax.jit(jax.vmap(f)),
    ],
)
@pytest.mark.parametrize(("op", "active"), CASES)
def test_one_byte_per_element(op: Op, active: tuple[int, ...], wrap: Callable[..., Any]) -> None:
    arrays = [jnp.linspace(-2, 2, N)] * len(active)
    size, dtypes = kept(wrap(restricted(op, active)), *arrays)
    assert dtypes == {"int8"}
    assert size <= N + 4  # a parameter is a number


@pytest.mark.parametrize("op", [op for op in ELEMENTWISE if is_curved(op)], ids=lambda op: op.name)
def test_curved_ops_keep_their_input_too(op: Op) -> None:
    size, dtypes = kept(lambda x: op.function(x, *valid_operands(op)[0][1:]), jnp.linspace(-2, 2, N))
    assert dtypes == {"int8", "float32"}
    assert size <= 5 * N + 4


@pytest.mark.parametrize(
    ("op", "active"), [pytest.param(*c.values, id=c.id, marks=thorough(c.values[0].name)) for c in CASES]
)
def test_one_byte_per_element_and_layer_of_a_scan(op: Op, active: tuple[int, ...]) -> None:
    layers = 5
    function = restricted(op, active)

    def network(*arrays: jax.Array) -> jax.Array:
        def layer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return function(x, *arrays[1:]), None

        return jax.lax.scan(layer, arrays[0], None, length=layers)[0]

    size, dtypes = kept(network, *[jnp.linspace(-2, 2, N)] * len(active))
    assert "int8" in dtypes
    assert size <= layers * (N + 4)


def test_native_spellings_keep_floats() -> None:
    """The comparison that the figures above are for; it also shows that `kept` can see a float."""
    x = jnp.linspace(-2, 2, N)
    assert kept(lambda x: jnp.clip(x, -1.0, 1.0), x)[0] == 8 * N
    assert kept(jax.nn.relu, x) == (5 * N, {"bool", "float32"})
