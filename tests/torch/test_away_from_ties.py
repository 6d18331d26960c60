"""Away from ties there is nothing to choose: values and gradients equal those of native JAX and native torch."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.nn import functional

import interop
from interop.frameworks.base import Question, Refusal, total
from interop.survey.matrix import UNMODIFIED, load
from jaxclamp import OPS, Op
from jaxclamp._shared.counterparts import Counterpart
from jaxclamp._shared.tie_cases import is_differentiable

PAIRS = [
    pytest.param(op, counterpart, id=f"{op.name}-{counterpart.name}")
    for op in OPS.values()
    for counterpart in op.counterparts
    if counterpart.framework in UNMODIFIED
]
TINY = 1e-6


Points = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""From many x, in rows, to the values there, part by part, and the gradients with respect to x."""


def stacked(result: Any) -> np.ndarray:
    """One array of a result, which may have several parts."""
    return np.stack([np.asarray(part) for part in (result if isinstance(result, tuple) else (result,))])


def points(shape: tuple[int, ...]) -> np.ndarray:
    """Many x of one shape, half of them from a grid, on which ops have their kinks and elements are equal."""
    rng = np.random.default_rng(0)
    return np.concatenate([rng.uniform(-8, 8, (16, *shape)), rng.integers(-16, 17, (16, *shape)) / 2])


def in_torch(op: Op, function: Any, form: dict[str, Any]) -> Points:
    def at(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        arguments = form | {"x": x}
        tensors = {n: torch.tensor(v) if isinstance(v, np.ndarray) else v for n, v in arguments.items()}
        (answer,) = load("torch").gradients([Question(function, arguments, ("x",))], "float64")
        if isinstance(answer, Refusal):
            raise TypeError(answer.reason)
        return stacked(function(tensors)), answer.by_argument["x"]

    def at_each(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = zip(*map(at, rows), strict=True)
        return np.stack(values, axis=1), np.stack(gradients)

    at(form["x"])
    return at_each if op.family == "reduction" else at


def in_jax(function: Any, form: dict[str, Any]) -> Points:
    """In one program, which is compiled once."""

    def at_one(x: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
        def of_x(x: jax.Array) -> tuple[Any, Any]:
            result = function(form | {"x": x})
            return total(result), result

        gradient, result = jax.grad(of_x, has_aux=True)(x)
        return tuple(jax.tree.leaves(result)), gradient

    program = jax.jit(jax.vmap(at_one))

    def at_all(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(True):
            values, gradients = program(rows)
        return stacked(values), np.asarray(gradients)

    with jax.enable_x64(True):
        jax.eval_shape(at_one, form["x"])
    return at_all


def forms(op: Op, counterpart: Counterpart, tie: dict[str, Any]) -> Iterator[tuple[np.ndarray, Points, Points]]:
    """(x, natively, here), with arrays for numbers, or with numbers but for x, as far as the native op takes it."""

    def ours(arguments: dict[str, Any]) -> Any:
        return op.function(**arguments)

    arrays = {n: np.asarray(v) if is_differentiable(v) else v for n, v in tie.items()}
    for form in (arrays, tie | {"x": arrays["x"]}):
        with contextlib.suppress(TypeError):
            natively = (
                in_torch(op, counterpart, form) if counterpart.framework == "torch" else in_jax(counterpart, form)
            )
            yield form["x"], natively, in_jax(ours, form)


@pytest.mark.thorough
@pytest.mark.parametrize(("op", "counterpart"), PAIRS)
def test_equal_away_from_ties(op: Op, counterpart: Counterpart) -> None:
    parameters = op.signature.parameters
    ties = [dict(zip(parameters, tie, strict=False)) for tie in op.tie_points]
    same = [t for t in ties if all(n in counterpart.parameters or v == parameters[n].default for n, v in t.items())]
    asked = 0
    for tie in same:
        for x, natively, here in forms(op, counterpart, tie):
            drawn = points(x.shape)
            # Where the native gradient does not change nearby, no convention decided it.
            nearby = drawn + TINY * np.random.default_rng(0).uniform(-1, 1, (6, 1, *x.shape))
            values, slopes = natively(np.concatenate([drawn, *nearby]))
            values, (slopes, *others) = values[:, : len(drawn)], slopes.reshape(7, *drawn.shape)
            away = np.isclose(others, slopes, atol=1e-4).reshape(6, len(drawn), -1).all(axis=(0, 2))
            assert away.sum() > len(drawn) / 4, tie
            our_values, our_slopes = here(drawn)
            label = f"{tie} at x={drawn[away].tolist()}"
            np.testing.assert_allclose(our_values[:, away], values[:, away], rtol=1e-12, atol=1e-12, err_msg=label)
            # torch has 1/6 in float32
            np.testing.assert_allclose(our_slopes[away], slopes[away], rtol=1e-7, atol=1e-10, err_msg=label)
            asked += 1
    assert asked


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def ordinals(x: torch.Tensor) -> torch.Tensor:
    """The numbers of the floats in ascending order: the difference of two is that in units in the last place."""
    width = x.element_size()
    bits = x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[width]).to(torch.int64)
    return torch.where(bits < 0, -(2 ** (8 * width - 1)) - bits, bits)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_hardswish_at_infinities(dtype: torch.dtype) -> None:
    """To the bit: minus infinity times 0 is NaN."""
    largest = torch.finfo(dtype).max
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 3.0, -3.0, -largest], dtype=dtype)
    found, expected = interop.hardswish(x), functional.hardswish(x)
    unknown = [False, True, True, False, False, False, False, False]
    assert found.isnan().tolist() == expected.isnan().tolist() == unknown
    known = ~torch.tensor(unknown)
    assert torch.equal(ordinals(found[known]), ordinals(expected[known]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_hardswish_elsewhere(dtype: torch.dtype) -> None:
    """Torch divides the product by 6, XLA multiplies by a sixth: two units in the last place at most."""
    info = torch.finfo(dtype)
    if dtype.itemsize == 2:
        x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)  # all numbers
    else:
        x = 3 * torch.randn(100_000, dtype=dtype, generator=torch.Generator().manual_seed(0))
    x = x[(x.abs() > 4 * info.tiny) & (x.abs() < info.max / 8)]  # no subnormal products, and none that overflow
    found, expected = interop.hardswish(x), functional.hardswish(x)
    is_flushed = expected.abs() < info.tiny
    assert int((ordinals(found) - ordinals(expected)).abs()[~is_flushed].max()) <= 2
