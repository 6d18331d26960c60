"""Away from ties there is nothing to choose: values and gradients equal those of native JAX and native torch."""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from interop.parity.rows import NATIVE, is_differentiable, native
from jaxclamp import OPS, Op
from jaxclamp._counterparts import Counterpart

PAIRS = [
    pytest.param(op, counterpart, id=f"{op.name}-{counterpart.name}")
    for op in OPS.values()
    for counterpart in op.counterparts
    if counterpart.framework in NATIVE
]
TINY = 1e-6


def value(framework: str, function: Any, arguments: dict[str, Any]) -> np.ndarray:
    if framework == "torch":
        tensors = {n: torch.tensor(v) if isinstance(v, np.ndarray) else v for n, v in arguments.items()}
        return np.asarray(function(tensors))
    with jax.enable_x64(True):
        return np.asarray(function(arguments))


def gradient_of_x(framework: str, function: Any, arguments: dict[str, Any]) -> np.ndarray:
    return native(framework).value_and_gradient(function, arguments, ("x",), "float64")[1]["x"]


def forms(counterpart: Counterpart, tie: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """``tie`` with arrays for numbers, or with numbers but for x, as far as the native op takes it."""
    arrays = {n: np.asarray(v) if is_differentiable(v) else v for n, v in tie.items()}
    for form in (arrays, tie | {"x": arrays["x"]}):
        with contextlib.suppress(TypeError):
            value(counterpart.framework, counterpart, form)
            yield form


@pytest.mark.parametrize(("op", "counterpart"), PAIRS)
def test_equal_away_from_ties(op: Op, counterpart: Counterpart) -> None:
    parameters = inspect.signature(op.function).parameters
    ties = [dict(zip(parameters, tie, strict=False)) for tie in op.tie_points]
    same = [t for t in ties if all(n in counterpart.names or v == parameters[n].default for n, v in t.items())]
    known = [form for tie in same for form in forms(counterpart, tie)]

    @given(st.sampled_from(known), st.data())
    def check(form: dict[str, Any], data: st.DataObject) -> None:
        arguments = dict(form)
        shape = arguments["x"].shape
        drawn = data.draw(st.lists(st.floats(-8, 8), min_size=arguments["x"].size, max_size=arguments["x"].size))
        arguments["x"] = np.asarray(drawn).reshape(shape)
        # Where the native gradient does not change nearby, no convention decided it.
        shifts = TINY * np.random.default_rng(0).uniform(-1, 1, (6, *shape))
        here, *nearby = (
            gradient_of_x(counterpart.framework, counterpart, arguments | {"x": np.asarray(x)})
            for x in (arguments["x"], *(arguments["x"] + shifts))
        )
        assume(all(np.allclose(here, other, atol=1e-4) for other in nearby))

        def ours(given: Any) -> Any:
            return op.function(**given)

        theirs = value(counterpart.framework, counterpart, arguments)
        np.testing.assert_allclose(value("jax", ours, arguments), theirs, rtol=1e-12, atol=1e-12)
        gradient = gradient_of_x("jax", ours, arguments)
        np.testing.assert_allclose(gradient, here, rtol=1e-7, atol=1e-10)  # torch has 1/6 in float32

    check()
