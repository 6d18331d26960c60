"""`interop.native` at special values: torch's own values, and the gradients of the programs of JAX."""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks
from torch.nn import functional

from interop import TORCH_OPS, native
from interop._torch.private_api import top_hooks
from interop.native import NATIVE
from interop.native._rules import kinked
from jaxclamp import CONVENTIONS, OPS
from jaxclamp.kinked import SELU_ALPHA, SELU_SCALE
from tests.support.representatives import thorough
from tests.torch.natively import DTYPES, OF_OPS, TAKE_TENSORS, WANT_TENSORS, Tensor, gradients_of, own, values

NUMBERS = (-math.inf, -7.0, -6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 7.0, math.inf, math.nan)
KINKS = (-6.0, -3.0, -1.0, 0.5, 1.0, 3.0, 6.0)
"""Those of the numbers whose neighbours are no subnormal numbers, which XLA takes for 0."""
HAVE_A_TENSOR = {"maximum", "minimum", "fmax", "fmin", "hypot"}


def special(dtype: torch.dtype) -> Tensor:
    """The numbers, the neighbours of the kinks, and of 0 the nearest whose parts are no subnormal numbers."""
    kinks = torch.tensor(KINKS, dtype=dtype)
    far = torch.full_like(kinks, math.inf)
    near_0 = torch.tensor([-64.0, 64.0], dtype=dtype) * torch.finfo(dtype).tiny
    numbers = torch.tensor(NUMBERS, dtype=dtype)
    return torch.cat([numbers, torch.nextafter(kinks, far), torch.nextafter(kinks, -far), near_0])


def further_arguments(name: str, x: Tensor) -> Iterator[list[Any]]:
    """The arguments beside x: as numbers, as tensors, and as tensors that are differentiated."""

    def like_x(value: float | None, active: bool) -> Tensor | None:
        return None if value is None else torch.full_like(x, value).requires_grad_(active)

    for tie in dict.fromkeys(tie[1:] for tie in OPS[name].tie_points):
        if name not in WANT_TENSORS:
            yield list(tie)
        if name in TAKE_TENSORS | HAVE_A_TENSOR:
            yield from ([like_x(value, active) for value in tie] for active in (False, True))
        if name == "prelu":
            yield from ([torch.tensor(tie, dtype=x.dtype, requires_grad=active)] for active in (False, True))
    if name in HAVE_A_TENSOR:
        yield from ([like_x(math.nan, active)] for active in (False, True))


def at_special_values(name: str, dtype: torch.dtype) -> Iterator[tuple[Tensor, list[Any]]]:
    x = special(dtype)
    if OPS[name].family == "reduction":
        rolled = torch.stack([x.roll(shift) for shift in range(12)])
        axes: list[Any] = [2 if "3d" in name else 4] if "pool" in name else [2, 1] if name == "norm" else [1]
        yield torch.stack([rolled] * 2)[None] if "3d" in name else rolled[None], axes
    else:
        yield from ((x, given) for given in further_arguments(name, x))


def bits(x: Tensor) -> Tensor:
    """Where NaN is NaN: of its many forms any will do."""
    known = torch.where(x.isnan(), math.nan, x.detach()).contiguous()
    return known.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def of_sign(expected: Tensor, found: Tensor, name: str, x: Tensor, given: list[Any]) -> Tensor:
    """Where 0.0 and -0.0 may tie in an extremum of tensors, the expected zeros with the signs of those found."""
    bounds = [bound for bound in given if isinstance(bound, Tensor)]
    if name not in {"maximum", "minimum"} | TAKE_TENSORS or not bounds:
        return expected
    zeros = torch.stack([x, *bounds]) == 0
    may_tie = (zeros.sum(0) > 1) & (expected == 0)
    return torch.where(may_tie, expected.abs().copysign(found), expected)


@pytest.mark.parametrize("name", OF_OPS)
def test_values_are_those_of_torch_to_the_bit(name: str) -> None:
    for x, given in itertools.chain(*(at_special_values(name, dtype) for dtype in DTYPES.values())):
        for ties in CONVENTIONS if OPS[name].has_conventions else (None,):
            active = x.clone().requires_grad_()
            found = NATIVE[name](active, *given, **({"ties": ties} if ties else {}))
            expected = own(name)(x, *given)
            like_found = of_sign(values(expected), values(found), name, x, given)
            assert torch.equal(bits(values(found)), bits(like_found)), (x.dtype, given, ties)
            if isinstance(expected, tuple):
                assert torch.equal(found[1], expected[1]), (x.dtype, given, ties)


@pytest.mark.parametrize(
    "around",
    [contextlib.nullcontext, save_on_cpu, functools.partial(disable_saved_tensors_hooks, "refused")],
    ids=["alone", "in other hooks", "where hooks are refused"],
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("function", "slopes"),
    [
        (lambda lib, x: lib.elu(x, 2.0), [2 / math.e, 1.0, 1.0, 1.0]),
        (lambda lib, x: lib.leaky_relu(x, 3.0), [3.0, 1.0, 1.0, 1.0]),
        (lambda lib, x: lib.selu(x), [SELU_SCALE * SELU_ALPHA / math.e, *[SELU_SCALE] * 3]),
    ],
    ids=["elu", "leaky_relu", "selu"],
)
def test_the_slope_above_counts_at_0(
    function: Any, slopes: list[float], dtype: str, around: Callable[[], AbstractContextManager[Any]]
) -> None:
    """By hooks of the tape where it takes some, elsewhere by a Function."""
    x = torch.tensor([-1.0, -0.0, 0.0, 1.0], dtype=getattr(torch, dtype), requires_grad=True)
    with around():
        y = function(native, x)
    assert torch.equal(bits(y.detach()), bits(function(functional, x.detach())))
    assert top_hooks() is None
    (gradient,) = torch.autograd.grad(y, x, torch.full_like(y, 2.0), retain_graph=True)
    torch.testing.assert_close(gradient, 2 * torch.tensor(slopes).to(x.dtype))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, torch.tensor(slopes).to(x.dtype))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()


@pytest.mark.parametrize("name", sorted(kinked._KEEP_X_ALONE))
def test_torch_keeps_x_alone(name: str) -> None:
    """All that it keeps is moved up."""
    kept = []
    with saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):  # type: ignore[func-returns-value]
        getattr(functional, name)(x := torch.tensor([-1.0, 0.0, 1.0], requires_grad=True))
    assert [tensor.tolist() for tensor in kept] == [x.tolist()]


def test_what_is_moved_up_may_be_overwritten() -> None:
    """Where torch's own function refuses to be differentiated."""
    x = 1 * (leaf := torch.tensor([-1.0, 0.0, 1.0], requires_grad=True))
    y = native.elu(x, 2.0)
    with torch.no_grad():
        x.fill_(5.0)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), leaf)[0], torch.tensor([2 / math.e, 1.0, 1.0]))


@pytest.mark.parametrize("repeats", [1, 2**12], ids=["few elements", "many"])
@pytest.mark.parametrize("bound", [0.5, -0.0, 0.0, math.inf, -math.inf])
def test_clamp_max_of_any_size(bound: float, repeats: int) -> None:
    """Small tensors and large ones have it by different ways."""
    x = torch.tensor([-math.inf, -1.0, 0.0, 0.5, 1.0, math.inf]).repeat(repeats).requires_grad_()
    y = native.clamp_max(x, bound)
    assert torch.equal(bits(y.detach()), bits(torch.clamp_max(x.detach(), bound)))
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.where(x < bound, 1.0, 0.0))


def test_clamp_min_by_negative_zero_and_by_nan() -> None:
    """For which torch's ReLU and its threshold have other values."""
    x = torch.tensor([-1.0, 2.0], requires_grad=True)
    for bound in (-0.0, math.nan):
        assert torch.equal(bits(native.clamp_min(x, bound)), bits(torch.clamp_min(x.detach(), bound)))
        assert torch.equal(bits(native.clamp_max(x, bound)), bits(torch.clamp_max(x.detach(), bound)))


SHAPES: list[tuple[int, ...]] = [(), (3,), (2, 1), (2, 3)]


@pytest.mark.parametrize("active", range(3), ids=["x", "min", "max"])
@pytest.mark.parametrize("shapes", [*itertools.product(SHAPES, repeat=3)], ids=str)
def test_clamp_of_tensors_that_are_broadcast(shapes: Sequence[tuple[int, ...]], active: int) -> None:
    """Torch's own clamp fails for some of these shapes."""
    random = torch.Generator().manual_seed(0)
    operands = [torch.randint(3, shape, generator=random).double() for shape in shapes]
    leaf = operands[active].requires_grad_()
    x, low, high = torch.broadcast_tensors(*operands)
    y = native.clamp(*operands)
    assert torch.equal(y, torch.clamp(x, low, high))
    is_alone = ((low < x) & (x < high), (x < low) & (low < high), (torch.maximum(x, low) > high))[active]
    assert torch.equal(torch.autograd.grad(y.sum(), leaf)[0], is_alone.double().sum_to_size(leaf.shape))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first active", "second active"])
@pytest.mark.parametrize("constant", ["channels_last", "transposed", "broadcast"])
def test_an_extremum_lies_in_memory_as_that_of_torch(constant: str, order: tuple[int, int]) -> None:
    x = torch.zeros(2, 3, 4, 4, requires_grad=True)
    y = {
        "channels_last": x.detach().to(memory_format=torch.channels_last),
        "transposed": x.detach().mT,
        "broadcast": torch.zeros(3, 1, 1),
    }[constant]
    first, second = ((x, y)[k] for k in order)
    assert NATIVE["maximum"](first, second).stride() == torch.maximum(first.detach(), second.detach()).stride()
    assert NATIVE["clamp_min"](first, second).stride() == torch.clamp_min(first.detach(), second.detach()).stride()


CURVED = {"elu", "selu", "celu", "hardswish", "hardsigmoid", "prelu", "hypot"}
"""Those whose slopes are computed, so that two libraries round differently."""
TORCH_S_AT_NAN = {
    "relu6", "hardtanh", "hardsigmoid", "elu", "celu", "selu", "softshrink", "hardshrink", "hardswish", "clamp",
    "clamp_min", "clamp_max", "leaky_relu", "threshold", "abs", "relu",
}  # fmt: skip
"""Those that are torch's own functions, whose derivatives at NaN differ even between the parts of one tensor."""
OF_TWO = {"maximum", "minimum"}
"""Those that are torch's own if both tensors are differentiated: each gets all where one is NaN."""


@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(dtype, marks=pytest.mark.thorough) for dtype in DTYPES if dtype != "float32")]
)
@pytest.mark.parametrize("name", [pytest.param(name, marks=thorough(name)) for name in OF_OPS])
def test_gradients_are_those_of_jax(name: str, dtype: str) -> None:
    """Under every convention, for the cotangent 0 too; each further dtype under min_norm alone."""
    wrong = []
    for x, given in at_special_values(name, DTYPES[dtype]):
        for ties in CONVENTIONS if OPS[name].has_conventions and dtype == "float32" else (None,):
            for cotangent in (-2.0, 0.0):
                found, expected = (
                    gradients_of(functions[name], x, given, cotangent, ties) for functions in (NATIVE, TORCH_OPS)
                )
                tolerance = 8 * torch.finfo(x.dtype).eps if name in CURVED or x.dim() > 1 else 0
                if name == "hardsigmoid":  # torch has 1/6 in float32 only
                    tolerance = max(tolerance, torch.finfo(torch.float32).eps)
                for index, (one, other) in enumerate(zip(found, expected, strict=True)):
                    same = torch.isclose(one, other, rtol=tolerance, atol=2 * tolerance, equal_nan=True)
                    if index == 0 or name in OF_TWO:
                        same |= differs_at_nan(name, ties, x, given)
                    if not same.all():
                        pairs = list(zip(one[~same].tolist(), other[~same].tolist(), strict=True))
                        wrong.append(f"{x.dtype}, {given}, {ties}, {cotangent}: (ours, JAX's) {pairs}")
    assert not wrong, "\n".join(wrong)


def differs_at_nan(name: str, ties: str | None, x: Tensor, given: list[Any]) -> Tensor:
    """Where torch's own function answers, and its gradient with NaN is not that of jaxclamp."""
    unknown = x.isnan()
    if "pool" in name and ties == "inclusive":  # torch takes the last NaN of a window
        return unknown.any().expand_as(x)
    if name in ("amax", "amin"):
        return unknown.any(1, keepdim=True).expand_as(x)
    if name in OF_TWO:
        return unknown | given[0].isnan()
    return unknown & (name in TORCH_S_AT_NAN)


@pytest.mark.parametrize("cotangent", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["clamp", "clamp_min", "clamp_max", "maximum", "relu", "hardtanh", "amax", "amin", "max", "max_pool1d"]
)
def test_bad_cotangents_reach_only_what_has_weight(name: str, dtype: str, cotangent: float) -> None:
    x = torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 2.0], dtype=DTYPES[dtype])
    given = {
        "clamp": (-1.0, 1.0), "clamp_min": (0.0,), "clamp_max": (0.0,), "maximum": (torch.zeros_like(x),), "relu": (),
        "hardtanh": (), "amax": (), "amin": (0,), "max": (), "max_pool1d": (3,),
    }[name]  # fmt: skip
    x = x[None] if "pool" in name else x
    (clean,) = gradients_of(NATIVE[name], x, [*given], 1.0, None)
    (found,) = gradients_of(NATIVE[name], x, [*given], cotangent, None)
    assert torch.equal(found.isfinite(), clean == 0)
    assert torch.equal(found[clean == 0], clean[clean == 0])
