"""The rules of the extrema under a compiler that computes a number anew for each use, and rounds it in another way.

XLA may do that, on a GPU by other tilings of a kernel. Nothing says that it does, so that it is played here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Literal

import jaxclamp

EXTREMA: dict[str, Callable[[jax.Array], jax.Array]] = {
    "amax": lambda x: jaxclamp.amax(x, 0),
    "amin": lambda x: jaxclamp.amin(x, 0, keepdims=True),
    "amax, initial": lambda x: jaxclamp.amax(x, 0, initial=-9.0, where=x < 9.0),
    "max along": lambda x: jaxclamp.max_with_indices(x, 0)[0],
    "max_pool2d": lambda x: jaxclamp.max_pool2d(x[None], (4, 1)),
    "max_pool2d, large": lambda x: jaxclamp.max_pool2d(jnp.tile(x, (5, 1))[None], (20, 1)),
    "maximum": lambda x: jaxclamp.maximum(jaxclamp.maximum(x[0], x[1]), jaxclamp.maximum(x[2], x[3])),
}
_ROUND = ("sin", "add", "mul", "sub")
"""Of the primitives here, those whose results depend on how they are rounded."""


class Unsteady:
    """Runs a program equation by equation; who reads what rests on rounding gets it one unit smaller or larger.

    Only what is behind a `jax.lax.optimization_barrier` is the same for all that read it.
    """

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def run(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[tuple[Any, bool]]) -> list[Any]:
        known = dict(zip(jaxpr.constvars, [(c, False) for c in constants], strict=True))
        known |= dict(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> tuple[Any, bool]:
            return (atom.val, False) if isinstance(atom, Literal) else known[atom]

        for eqn in jaxpr.eqns:
            inputs = [read(atom) for atom in eqn.invars]
            inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
            if inner is not None:
                body, of_body = getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())
                results = self.run(body, of_body, inputs)
            else:
                read_once = {id(atom): self.shaken(*pair) for atom, pair in zip(eqn.invars, inputs, strict=True)}
                values = eqn.primitive.bind(*[read_once[id(atom)] for atom in eqn.invars], **eqn.params)
                values = values if eqn.primitive.multiple_results else [values]
                depends = eqn.primitive.name in _ROUND or any(is_rounded for _, is_rounded in inputs)
                results = [(value, depends and eqn.primitive.name != "optimization_barrier") for value in values]
            known |= dict(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def shaken(self, value: Any, is_rounded: bool) -> Any:
        if not is_rounded or not jnp.issubdtype(value.dtype, jnp.floating):
            return value
        sides = self.random.choice([-np.inf, np.inf], value.shape)
        return jnp.nextafter(value, jnp.asarray(sides, value.dtype))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.thorough] * (name not in ("amin", "amax", "max_pool2d", "maximum")))
        for name in EXTREMA
    ],
)
def test_the_extreme_element_gets_all(name: str) -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6)), jnp.float32)

    def weights(zero: jax.Array) -> jax.Array:
        return jax.grad(lambda zero: EXTREMA[name](jnp.sin(x) + zero).sum())(zero)

    program = jax.make_jaxpr(weights)(jnp.zeros_like(x))
    ((found, _),) = Unsteady().run(program.jaxpr, program.consts, [(jnp.zeros_like(x), False)])
    elements = np.sin(np.asarray(x))
    extreme = elements.min(0) if name == "amin" else elements.max(0)
    np.testing.assert_allclose(found, elements == extreme, atol=1e-5)


def test_the_index_is_that_of_the_extreme_element() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6)), jnp.float32)
    program = jax.make_jaxpr(lambda x: jaxclamp.max_with_indices(jnp.sin(x), 0).indices)(x)
    ((found, _),) = Unsteady().run(program.jaxpr, program.consts, [(x, False)])
    np.testing.assert_array_equal(found, np.sin(np.asarray(x)).argmax(0))


@pytest.mark.parametrize(
    "largest",
    [
        lambda x: jnp.max(x, 0),
        lambda x: jnp.take_along_axis(x, jnp.argmax(x, 0)[None], 0),
        lambda x: jax.ops.segment_max(x.ravel(), np.arange(24, dtype=np.uint32) % 6, 6),
        lambda x: jax.vmap(lambda row: jax.lax.pmax(row, "rows"), axis_name="rows")(x)[0],
    ],
    ids=["max", "argmax", "scatter_max", "pmax"],
)
def test_the_piece_is_that_of_the_largest_element(largest: Callable[[jax.Array], jax.Array]) -> None:
    x, zero = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6)), jnp.float32), jnp.zeros((4, 6))
    of_piece = jaxclamp.grad(lambda zero: largest(jnp.sin(x) + jnp.cos(x) * zero).sum())
    program = jax.make_jaxpr(of_piece)(zero)
    ((found, _),) = Unsteady().run(program.jaxpr, program.consts, [(zero, False)])
    elements = np.sin(np.asarray(x))
    np.testing.assert_allclose(found, np.where(elements == elements.max(0), np.cos(np.asarray(x)), 0.0), atol=1e-5)
