"""Random compositions of the ops under random transformations of JAX, against the definition.

For longer than here: python -m tests.fuzz ops-jax
"""

from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from tests.fuzz import by_definition, definition
from tests.fuzz.by_definition import Form, check, check_what_is_drawn, failures
from tests.fuzz.programs import Call, Composition, Ref
from tests.support.representatives import parts

JAX_SEEDS = range(60)
DEVICE_SEEDS = range(60, 70)
EAGER_SEEDS = range(70, 72)


# Ten at a time, so that one program of JAX is not too large.
@parts(JAX_SEEDS, 10, quick=10)
def test_jax(seeds: range) -> None:
    check(by_definition.of_jax(seeds), by_definition.answers_of_jax)


@pytest.mark.thorough
def test_jax_over_devices() -> None:
    check(by_definition.of_jax(DEVICE_SEEDS, *by_definition.DEVICES), by_definition.answers_of_jax)


@pytest.mark.thorough
def test_jax_op_by_op() -> None:
    check(by_definition.of_jax(EAGER_SEEDS), functools.partial(by_definition.answers_of_jax, compiled=False))


def test_what_is_drawn() -> None:
    """Every op, every way to run it, and ties in most programs."""
    pairs = by_definition.of_jax(JAX_SEEDS)
    check_what_is_drawn(pairs, by_definition.JAX_MODES)
    assert {form.dialect for _, form in pairs} == {*by_definition.DIALECTS}
    assert {name for _, form in pairs for name in form.wrapped} == {*by_definition.JAX_WRAPPERS, "min_norm"}


@pytest.mark.parametrize(
    ("operands", "shares"),
    [
        ((1.0, 0.0, 2.0), (1, 0, 0)),
        ((0.0, 0.0, 2.0), (1 / 2, 1 / 2, 0)),
        ((2.0, 0.0, 2.0), (1 / 2, 0, 1 / 2)),
        ((2.0, 2.0, 2.0), (1 / 3, 1 / 3, 1 / 3)),
        ((1.0, 2.0, 2.0), (0, 1 / 2, 1 / 2)),
        ((3.0, 2.0, 2.0), (0, 0, 1)),
        ((1.0, 2.0, -5.0), (0, 0, 1)),
    ],
)
def test_the_reference_knows_the_table_of_clamp(operands: tuple[float, ...], shares: tuple[float, ...]) -> None:
    """The table of docs/convention.md, in which all operands are active; and x alone, where it shares with none."""
    fold, exact = ("max", "min"), (True,) * 3
    assert definition.select(fold, definition.Point(operands, exact, exact, 0.0)).partials == shares
    alone = definition.select(fold, definition.Point(operands, (True, False, False), exact, 0.0)).partials[0]
    assert alone == (shares[0] == 1)


def test_a_wrong_gradient_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's own maximum gives half of the gradient at 0."""
    monkeypatch.setitem(by_definition.DIALECTS, "jaxclamp", {**by_definition.JAXCLAMP, "maximum": jnp.maximum})
    v0, v1 = Ref(0), Ref(1)
    steps = (Call("add", (v0, 1.0)), Call("maximum", (v0, np.zeros(()))), Call("multiply", (v1, Ref(2))))
    program = Composition(0, "float32", (np.array([[1.0, 2.0], [0.0, 3.0]]),), (True,), steps)
    form = Form("jaxclamp", "jvp", ("checkpoint",), "map", (0,), False)
    (text,) = failures([(program, form)], by_definition.answers_of_jax)
    assert text.splitlines()[:4] == [
        "# seed 0, float32",
        "v0 = [[0.0, 3.0]]  # a row each, differentiated",
        "v1 = maximum(v0, 0.0)",
        "jaxclamp; grad (axes (0,)), then vmap",
    ]
    assert not failures([(dataclasses.replace(program, steps=steps[:1]), form)], by_definition.answers_of_jax)
