"""Torch's own samples and error inputs for its functions, given to those of this package.

They are kept beside torch's own tests, in a private module, and are loaded here alone: that takes some seconds.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import types
import unittest
from collections.abc import Callable
from typing import Any

import pytest
import torch

import interop
from interop import native

pytestmark = pytest.mark.thorough

Tensor = torch.Tensor
Call = Callable[..., Any]


def _op_db() -> list[Any]:
    """Torch's list, which needs a package of torch's own tests for a class to derive from, and nothing else of it."""
    absent = types.ModuleType("expecttest")
    absent.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules.setdefault("expecttest", absent)
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def under_mode(backend: Any, function: Call, *args: Any, **kwargs: Any) -> Any:
    with interop.min_norm(backend=backend):
        return function(*args, **kwargs)


def name_of(info: Any) -> str:
    return info.name.removeprefix("nn.functional.")


OPS = {info.formatted_name: info for info in _op_db() if name_of(info) in native.NATIVE}
"""Every function of `interop.native` that has samples; the aliases and in-place forms have those of their namesakes."""
EXACT = ("native", "min_norm")
"""What computes by torch's own kernels."""
COUNT = 8
"""How many samples are taken at most, evenly from all, of an op for one dtype."""
COUNT_OF_POOLS = 2
"""They have up to 1440, which take longest to count ties in, and XLA compiles each for interop."""


def homes_of(info: Any) -> dict[str, Call]:
    """The functions that are to do what torch's own does."""
    name = name_of(info)
    homes: dict[str, Call] = {
        "native": native.NATIVE[name],
        "min_norm": functools.partial(under_mode, "torch", info.op),
    }
    if name in interop.TORCH_OPS:
        homes["interop"] = interop.TORCH_OPS[name]
    elif name in ("max", "min"):  # elsewhere it is what interop has
        homes["min_norm of jax"] = functools.partial(under_mode, "jax", info.op)
    return homes


CASES = [
    (name, home) for name, info in OPS.items() for home in homes_of(info) if (name, home) != ("norm_nuc", "interop")
]
every_case = pytest.mark.parametrize(("name", "home"), CASES)


@functools.cache
def samples(name: str, home: str, dtype: torch.dtype, requires_grad: bool) -> list[Any]:
    torch.manual_seed(0)
    drawn = list(OPS[name].sample_inputs("cpu", dtype, requires_grad=requires_grad))
    if name_of(OPS[name]) == "norm" and home == "interop":  # which has no other orders
        drawn = [sample for sample in drawn if not sample.args or sample.args[0] in (1, 2, math.inf, "fro")]
    return drawn[:: -(-len(drawn) // (COUNT_OF_POOLS if "max_pool" in name else COUNT))]


def leaves(result: Any) -> list[Tensor]:
    return [*result] if isinstance(result, tuple) else [result]


def check_values(home: str, found: Any, expected: Any) -> None:
    assert isinstance(found, tuple) == isinstance(expected, tuple)
    tolerance = {"rtol": 0, "atol": 0} if home in EXACT else {}
    torch.testing.assert_close(leaves(found), leaves(expected), equal_nan=True, **tolerance)  # dtypes and shapes too


@every_case
def test_values(name: str, home: str) -> None:
    op, info = homes_of(OPS[name])[home], OPS[name]
    for dtype in (torch.int64, torch.bool, torch.bfloat16):
        if dtype in info.supported_dtypes("cpu"):
            for sample in samples(name, home, dtype, requires_grad=False):
                expected = info.op(sample.input, *sample.args, **sample.kwargs)
                check_values(home, op(sample.input, *sample.args, **sample.kwargs), expected)


@every_case
def test_gradients_where_nothing_ties(name: str, home: str) -> None:
    op, info, compared = homes_of(OPS[name])[home], OPS[name], 0
    for sample in samples(name, home, torch.float32, requires_grad=True):
        given = [sample.input, *sample.args, *sample.kwargs.values()]
        inputs = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
        expected, found = (f(sample.input, *sample.args, **sample.kwargs) for f in (info.op, op))
        check_values(home, found, expected)
        with interop.ties() as counted:
            info.op(sample.input, *sample.args, **sample.kwargs)
        if counted.report.tied or not inputs:
            continue
        cotangent = torch.randn(leaves(expected)[0].shape, generator=torch.Generator().manual_seed(0))
        gradients = [torch.autograd.grad(leaves(r)[0], inputs, cotangent, allow_unused=True) for r in (found, expected)]
        for of_found, of_expected in zip(*gradients, strict=True):
            torch.testing.assert_close(of_found, of_expected, equal_nan=True)
        compared += 1
    assert compared


TAKES_NUMBERS = ("maximum", "minimum", "fmax", "fmin", "clamp_min", "clamp_max", "hypot")


def is_more(name: str, home: str, sample: Any) -> bool:
    """Whether interop takes what torch refuses: a number beside a tensor, and a pool of no channels."""
    if home != "interop":
        return False
    if name in TAKES_NUMBERS:
        return sum(isinstance(x, Tensor) for x in (sample.input, *sample.args)) == 1
    if "max_pool" not in name:
        return False
    dims = int(name[-2])
    return sample.kwargs == {"kernel_size": 1} and 0 in sample.input.shape[:-dims]


@pytest.mark.parametrize(("name", "home"), [case for case in CASES if OPS[case[0]].error_inputs_func])
def test_errors(name: str, home: str) -> None:
    """Of the kind that torch raises."""
    op, info, refused = homes_of(OPS[name])[home], OPS[name], 0
    for error in info.error_inputs("cpu"):
        sample = error.sample_input
        try:
            info.op(sample.input, *sample.args, **sample.kwargs)
        except Exception as of_torch:
            refused += 1
            with contextlib.nullcontext() if is_more(name, home, sample) else pytest.raises(type(of_torch)):
                op(sample.input, *sample.args, **sample.kwargs)
    assert refused
