"""torch's own kernels under the convention, on CUDA: the same values and gradients as on CPU. JAX takes no part."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import interop
from interop import min_norm
from interop.native import NATIVE
from jaxclamp import CONVENTIONS, OPS, Op
from tests.support.calls import arguments

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device that torch sees"),
]

DEVICE = "cuda"


def value_and_gradients(function: Callable[..., Any], given: list[Any], device: str) -> list[torch.Tensor]:
    moved = [a.to(device).requires_grad_() if isinstance(a, torch.Tensor) else a for a in given]
    result = function(*moved)
    value = result[0] if isinstance(result, tuple) else result
    active = [a for a in moved if isinstance(a, torch.Tensor)]
    assert value.device.type == device
    return [value.detach().cpu(), *(part.cpu() for part in torch.autograd.grad(value.sum(), active))]


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_ops_as_on_cpu(op: Op) -> None:
    """At every tie, under every convention."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for tie in op.tie_points:
            given = arguments(op, dtype, tie)
            for ties in CONVENTIONS if op.has_conventions else (None,):

                def function(*args: Any, ties: Any = ties) -> Any:
                    return NATIVE[op.name](*args, **({"ties": ties} if ties else {}))

                found, expected = (value_and_gradients(function, given, device) for device in (DEVICE, "cpu"))
                for one, other in zip(found, expected, strict=True):
                    torch.testing.assert_close(one, other, msg=f"{dtype}, {tie}, {ties}")


def test_bounds_on_the_cpu() -> None:
    """torch takes a tensor without axes from another device."""
    x = torch.tensor([-1.0, 0.0, 2.0], device=DEVICE, requires_grad=True)
    y = interop.native.maximum(x, torch.tensor(0.0))
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [0, 0, 1]


def test_the_mode_and_converted_models() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Hardtanh(), torch.nn.MaxPool2d(2), torch.nn.SELU())
    x = torch.zeros(2, 1, 8, 8)
    with min_norm():
        expected = value_and_gradients(model, [x], "cpu")
        found = value_and_gradients(model.to(DEVICE), [x], DEVICE)
    interop.nn.convert(model)
    for one, other, third in zip(found, expected, value_and_gradients(model, [x], DEVICE), strict=True):
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(one, third)
