"""`jaxclamp.as_of` at each recorded tie: what the record of the version says."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from interop.survey import records
from interop.survey.records import record_of
from interop.survey.show.render import as_in_a_call
from jaxclamp import OPS, as_of
from jaxclamp._shared.counterparts import Counterpart
from jaxclamp._shared.tie_cases import cases, is_differentiable
from jaxclamp._shared.version_derivatives import VERSIONS

Cells = dict[str, dict[str, list[float]]]
"""By the question, the answers of the spellings."""


def asked(version: str) -> Cells:
    """The gradients of all counterparts in JAX, in all cells that are recorded of them, in one program.

    Questions that differ in the numbers of arrays alone are asked at once.
    """
    batches: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    functions: dict[str, Callable[..., Any]] = {}
    for op in OPS.values():
        for native in op.counterparts_in("jax"):
            for arguments, active, inactive in cases(op):
                cell = f"{op.name}({as_in_a_call(arguments)}), {' '.join(active)}, {inactive}"
                if native.name not in recorded("jax 0.10.2").get(cell, {}):
                    continue  # it does not take the arguments in that form
                arrays = {
                    name: np.asarray(value, np.float32)
                    for name, value in arguments.items()
                    if is_differentiable(value) and (name in active or inactive == "arrays")
                }
                static = {name: value for name, value in arguments.items() if name not in arrays}
                batch = repr((native, active, static, {name: array.shape for name, array in arrays.items()}))
                functions[batch] = functools.partial(gradient, version, native, static, active)
                batches.setdefault(batch, []).append((f"{cell}: {native.name}", arrays))
    stacked = [
        {name: np.stack([arrays[name] for _, arrays in batch]) for name in batch[0][1]} for batch in batches.values()
    ]

    @jax.jit
    def program(stacked: list[dict[str, jax.Array]]) -> list[tuple[jax.Array, ...]]:
        return [jax.vmap(functions[batch])(arrays) for batch, arrays in zip(batches, stacked, strict=True)]

    found = program(stacked)
    cells: Cells = {}
    for batch, gradients in zip(batches.values(), found, strict=True):
        for k, (cell, _) in enumerate(batch):
            question, _, spelling = cell.rpartition(": ")
            cells.setdefault(question, {})[spelling] = np.concatenate([np.ravel(g[k]) for g in gradients]).tolist()
    return cells


def gradient(
    version: str, native: Counterpart, static: dict[str, Any], active: tuple[str, ...], arrays: dict[str, jax.Array]
) -> tuple[jax.Array, ...]:
    def function(arrays: dict[str, jax.Array]) -> jax.Array:
        return jnp.sum(native({**static, **arrays}))

    found = jax.grad(as_of(version)(function))(arrays)
    return tuple(found[name] for name in active)


@functools.cache
def recorded(text: str) -> Cells:
    cells: Cells = {}
    for cell, modes in record_of(*text.split(" ")).answers.items():
        question, _, spelling = str(cell).rpartition(": ")
        cells.setdefault(question, {})[spelling] = list(modes["reverse"])
    return cells


@pytest.mark.parametrize("text", [pytest.param("torch 2.13.0", marks=pytest.mark.thorough), "torch 2.15.0"])
def test_every_recorded_cell_of_torch(text: str) -> None:
    """Whatever JAX calls the op, it has the gradient of its counterpart in torch, where that is a number."""
    record, found = recorded(text), asked(text)
    both = record.keys() & found.keys()
    assert len(both) > 130
    wrong = {
        (cell, spelling): (gradient, record[cell])
        for cell in both
        for spelling, gradient in found[cell].items()
        if not np.isnan(*record[cell].values()).any()  # of torch.hypot at (0, 0)
        and not np.allclose(gradient, *record[cell].values(), rtol=1e-6)
    }
    assert wrong == {}


@pytest.mark.thorough
def test_every_recorded_cell_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a later version, which this one is taken for; else nothing is rewritten."""
    assert as_of("jax 0.10.2")(jnp.abs) is jnp.abs
    monkeypatch.setattr(jax, "__version__", "0.12.9")  # of a minor version that was tested
    found, record = asked("jax 0.10.2"), recorded("jax 0.10.2")
    wrong = {
        (cell, spelling): (found[cell][spelling], answer)
        for cell, answers in record.items()
        for spelling, answer in answers.items()
        if spelling != "jax.numpy.hypot"  # NaN at (0, 0) in JAX 0.12, which is left
        and not np.allclose(found[cell][spelling], answer, rtol=1e-6, equal_nan=True)
    }
    assert wrong == {}
    jaxpr = jax.make_jaxpr(as_of("jax 0.10.2")(lambda x, y: jnp.maximum(abs(x), lax.clamp(0.0, y, 1.0))))(0.0, 0.0)
    assert [str(eqn.primitive) for eqn in jaxpr.eqns] == ["custom_jvp_call"] * 3  # this test asks what is rewritten


def test_versions_are_those_recorded() -> None:
    for framework, versions in VERSIONS.items():
        assert {str(version) for version in versions.values()} == {r.name for r in records.recorded()[framework]}
