"""Where results are on a tie, by torch's kernels and by JAX: two ways that share the records of the ops alone."""

import math
from typing import Any

import jax
import numpy as np
import pytest
import torch

from interop import torch_to_jax as to_jax
from interop.native._rules.on_tie import mask_of_ties
from jaxclamp import OPS, Op
from tests.support.representatives import represented

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ELEMENTWISE = represented(op for op in OPS.values() if op.family != "reduction" and op.name not in ("prelu", "hypot"))
X = (-math.inf, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5, 3.0, 6.0, 6.5, 20.0, math.inf, math.nan)


def by_torch(op: Op, *operands: Any) -> np.ndarray[Any, Any]:
    names = list(op.signature.parameters)
    defaults = {name: p.default for name, p in op.signature.parameters.items()}
    mask = mask_of_ties(op, {**defaults, **dict(zip(names, operands, strict=False))})
    assert mask is not None
    return np.asarray(mask)


def by_jax(op: Op, *operands: Any) -> np.ndarray[Any, Any]:
    return np.asarray(op.on_tie(*operands))


def agree(op: Op, x: torch.Tensor, *parameters: Any) -> None:
    """Check both; where the value is NaN, nothing is on a tie."""
    others = [to_jax(value) if isinstance(value, torch.Tensor) else value for value in parameters]
    value = op.function(to_jax(x), *others)
    value = np.asarray(value[0] if isinstance(value, tuple) else value, np.float64)
    expected = by_jax(op, to_jax(x), *others) & ~np.isnan(value)
    found = by_torch(op, x, *parameters).reshape(value.shape)
    np.testing.assert_array_equal(found, expected, err_msg=f"{op.name}{(x, *parameters)}")


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(d, marks=[pytest.mark.thorough] * (d in (torch.float16, torch.float64))) for d in DTYPES],
    ids=str,
)
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_elementwise(op: Op, dtype: torch.dtype) -> None:
    with jax.enable_x64(dtype is torch.float64):
        for _, *parameters in op.tie_points:
            near = torch.tensor([value for value in parameters if value is not None], dtype=dtype)
            # Not the neighbours of 0, which XLA takes for 0.
            beside = near + torch.finfo(dtype).eps * near + torch.finfo(dtype).tiny
            x = torch.cat([torch.tensor(X, dtype=dtype), near, beside])
            agree(op, x, *parameters)
            if op.family == "selection" and len(near):
                bounds = [None if value is None else torch.full_like(x, value) for value in parameters]
                bounds[0] = bounds[0] if bounds[0] is None else bounds[0].where(x != 3, math.nan)
                agree(op, x, *bounds)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operands_of_two_dtypes(dtype: torch.dtype) -> None:
    # In the common dtype: in float32 2**24 + 1 is 2**24, and 0.1 is not what it is in float16.
    x = torch.tensor([0.1, 1.0, 2.0**24], dtype=dtype)
    for y in (torch.tensor([0.1, 1.0, 2.0**24]), torch.tensor([0, 1, 2**24 + 1])):
        expected = (torch.maximum(x, y) == x) & (torch.maximum(x, y) == y)
        np.testing.assert_array_equal(by_torch(OPS["maximum"], x, y), expected.numpy())


def test_numbers_whose_sign_torch_has_put_off() -> None:
    x = torch.tensor([1 + 6j, 1 - 6j]).conj().imag
    assert x.is_neg()
    assert by_torch(OPS["relu6"], x).tolist() == [False, True]


@pytest.mark.parametrize("bounds", [(2.0, 1.0), (1.0, 1.0), (math.nan, 1.0), (-math.inf, math.inf)], ids=str)
def test_bounds_that_meet_or_cross(bounds: tuple[float, float]) -> None:
    agree(OPS["clamp"], torch.tensor([*X, 2.0]), *bounds)


def drawn(*shape: int) -> torch.Tensor:
    """Small integers, so that most windows have ties; some are NaN or infinite."""
    random = torch.Generator().manual_seed(0)
    x = torch.randint(0, 3, shape, generator=random).float()
    kind = torch.randint(0, 30, shape, generator=random)
    return x.masked_fill(kind == 0, math.nan).masked_fill(kind == 1, math.inf).masked_fill(kind == 2, -math.inf)


@pytest.mark.parametrize("name", ["amax", "amin", "max_with_indices", "min_with_indices"])
@pytest.mark.parametrize("axis", [0, -1])
def test_extrema(name: str, axis: int) -> None:
    agree(OPS[name], drawn(5, 7), axis)


@pytest.mark.parametrize("axis", [None, (0, 2)])
def test_extrema_along_several_axes(axis: Any) -> None:
    agree(OPS["amax"], drawn(2, 3, 2), axis)
    agree(OPS["amax"], torch.tensor(1.0))


FEW, MANY = (2, 3, 9, 8), (40, 3, 17, 16)
WINDOWS = ((2,), (3, 2, 1), (3, 1, 1), (2, 2, 0, 2), (3, 2, 0, 1, True), (5, 1, 2))
QUICK = [(FEW, (3, 2, 1)), (FEW, (2, 2, 0, 2)), (FEW, (3, 2, 0, 1, True)), (MANY, (2,)), (MANY, (5, 1, 2))]


@pytest.mark.parametrize(
    ("shape", "window"),
    [
        pytest.param(s, w, id=f"{name}-{w}", marks=[pytest.mark.thorough] * ((s, w) not in QUICK))
        for name, s in {"few": FEW, "many": MANY}.items()
        for w in WINDOWS
    ],
)
def test_pools(window: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    agree(OPS["max_pool2d"], drawn(*shape), *window)
    agree(OPS["max_pool1d"], drawn(*shape[1:]), *window)


def test_calls_that_torch_does_not_answer() -> None:
    """Two tensors of hypot, a slope in a tensor, a mask, complex numbers, and what is traced."""
    x, arguments = torch.zeros(3), {"x": torch.zeros(3)}
    assert mask_of_ties(OPS["hypot"], {"x": x, "y": x}) is None
    assert mask_of_ties(OPS["prelu"], {"x": x, "weight": torch.zeros(1)}) is None
    assert mask_of_ties(OPS["relu"], {"x": x.to(torch.complex64)}) is None
    assert mask_of_ties(OPS["relu"], {"x": x.to("meta")}) is None
    torch.func.vmap(lambda x: x if mask_of_ties(OPS["relu"], {"x": x}) is None else 1 / 0)(x)
    assert mask_of_ties(OPS["relu"], arguments) is not None
