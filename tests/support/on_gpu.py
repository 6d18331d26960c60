"""A plugin of pytest that runs the tests of torch on a GPU: what tests and torch's modules create is on CUDA.

``python -m pytest -p tests.support.on_gpu tests/torch`` takes it. What the package itself creates stays where it puts
it, so that tensors of two devices that meet are seen, as they would not be under `torch.set_default_device`.
"""

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

DEVICE = "cuda"
CREATING = (
    *("arange", "as_tensor", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand"),
    *("randint", "randn", "randperm", "scalar_tensor", "tensor", "zeros"),
)


def on_device(create: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the function of torch with another default of its device, for calls by tests and by modules."""

    @functools.wraps(create)
    def created(*args: Any, **kwargs: Any) -> torch.Tensor:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if kwargs.get("device") is not None or not caller.startswith(("tests.", "torch.nn")):
            return create(*args, **kwargs)
        if kwargs.get("generator") is None:
            return create(*args, **{**kwargs, "device": DEVICE})
        requires_grad = kwargs.pop("requires_grad", False)  # the generators of the tests are those of the CPU
        return create(*args, **kwargs).to(DEVICE).requires_grad_(requires_grad)

    return created


def pytest_configure() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch._decomp.decompositions_for_jvp  # TorchScript compiles it, and cannot compile what is put here
    for name in CREATING:
        setattr(torch, name, on_device(getattr(torch, name)))
    to_numpy, to_array, from_numpy = torch.Tensor.numpy, torch.Tensor.__array__, torch.from_numpy
    torch.Tensor.numpy = lambda self, **options: to_numpy(self.cpu(), **options)  # type: ignore[method-assign]
    torch.Tensor.__array__ = lambda self, *args, **options: to_array(self.cpu(), *args, **options)  # type: ignore
    torch.from_numpy = lambda array: from_numpy(array).to(DEVICE)
