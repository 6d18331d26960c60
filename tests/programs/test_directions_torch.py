"""The direction of a gradient whose caller names none: the same in JAX and in torch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import interop
import jaxclamp

SHAPES = [(), (1,), (3,), (2, 0), (2, 3), (1001,)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_gradient_without_a_direction_is_that_of_the_other_framework(dtype: str) -> None:
    def loss(x, y):  # its slopes at 0 are the signs of the direction in y, and of that in x minus twice that in y
        return sum((abs(a - 2 * b) + abs(b)).sum() for a, b in zip(x, y, strict=True))

    with jax.enable_x64(dtype == "float64"):
        zeros = [jnp.zeros(shape, dtype) for shape in SHAPES]
        in_jax = [gradient.tolist() for gradient in jax.tree.leaves(jax.jit(jaxclamp.grad(loss, (0, 1)))(zeros, zeros))]
    zeros = [torch.zeros(shape, dtype=getattr(torch, dtype)) for shape in SHAPES]
    x, y = interop.grad(loss, (0, 1))(zeros, zeros)
    assert [gradient.tolist() for gradient in (*x, *y)] == in_jax

    parameters = [torch.nn.Parameter(zero) for zero in (*zeros, *zeros)]
    with interop.along(parameters):
        loss(parameters[: len(zeros)], parameters[len(zeros) :]).backward()
    assert [parameter.grad.tolist() for parameter in parameters] == in_jax


def test_the_direction_has_the_same_numbers_to_the_bit() -> None:
    # Sorting says which of two entries of the direction is larger, however close they are.
    weights = np.arange(999.0, dtype="float32")
    in_jax = jaxclamp.grad(lambda x: (jnp.sort(x) * weights).sum())(jnp.zeros(999))
    in_torch = interop.grad(lambda x: (torch.sort(x).values * torch.tensor(weights)).sum())(torch.zeros(999))
    np.testing.assert_array_equal(in_jax, in_torch)
    # Torch makes the direction of a large tensor in parts.
    size = 2**17 + 64
    in_jax = jaxclamp.grad(lambda x: jnp.abs(x).sum())(jnp.zeros(size))
    np.testing.assert_array_equal(in_jax, interop.grad(lambda x: x.abs().sum())(torch.zeros(size)))


def test_the_leaves_of_dicts_are_in_the_order_of_jax() -> None:
    """It sorts the keys, which torch does not."""

    def loss(tree):
        return abs(tree["b"][0]).sum() + 2 * abs(tree["a"]).sum() + 3 * abs(tree["b"][1]["c"]).sum()

    in_jax, in_torch = ({"b": [zeros(20), {"c": zeros(20)}], "a": zeros(20)} for zeros in (jnp.zeros, torch.zeros))
    expected, gradient = jaxclamp.grad(loss)(in_jax), interop.grad(loss)(in_torch)
    assert list(gradient) == ["b", "a"]
    jax.tree.map(np.testing.assert_array_equal, expected, gradient)
    around_in_jax, around = jaxclamp.subdifferential(loss)(in_jax), interop.subdifferential(loss)(in_torch)
    np.testing.assert_array_equal(around_in_jax.points, around.points)
    jax.tree.map(np.testing.assert_array_equal, around_in_jax.gradients[0], around.gradients[0])
    # A dict of other keys, which JAX refuses.
    mixed = interop.grad(lambda tree: tree[0].abs() - tree["a"].abs())({0: torch.zeros(()), "a": torch.zeros(())})
    assert set(mixed) == {0, "a"}


def test_a_key_and_a_generator_give_other_directions() -> None:
    drawn = [
        jaxclamp.grad(lambda x: jnp.abs(x).sum(), key=key)(jnp.zeros(64)).tolist()
        for key in (None, jax.random.key(0), jax.random.key(1))
    ]
    seeded = torch.Generator().manual_seed(0)
    drawn += [
        interop.grad(lambda x: x.abs().sum(), generator=generator)(torch.zeros(64)).tolist()
        for generator in (None, seeded, seeded)
    ]
    assert drawn[0] == drawn[3]
    assert len({tuple(signs) for signs in drawn}) == 5


def test_subdifferentials_ask_in_the_same_directions() -> None:
    # The largest of 200 linear functions, all equal at 0: 16 directions find some of the pieces.
    slopes = np.random.default_rng(0).standard_normal((200, 6)).astype("float32")
    in_jax = jaxclamp.subdifferential(lambda x: jnp.max(slopes @ x))(jnp.zeros(6))
    in_torch = interop.subdifferential(lambda x: (torch.tensor(slopes) @ x).amax())(torch.zeros(6))
    assert 1 < len(in_jax.gradients) < 200
    np.testing.assert_array_equal(in_jax.points, in_torch.points)
    assert str(in_jax) == str(in_torch)
    elsewhere = interop.subdifferential(
        lambda x: (torch.tensor(slopes) @ x).amax(), generator=torch.Generator().manual_seed(0)
    )(torch.zeros(6))
    assert elsewhere.points.tolist() != in_torch.points.tolist()
