"""Wrong calls of interop: the message names the call, what is wrong and the cure."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

import interop
from interop._bridge.signatures import Signature
from jaxclamp import OPS
from tests.support.calls import refusal

ONES = torch.ones(2)
WITHOUT_TORCH = dataclasses.replace(OPS["relu"], counterparts=OPS["relu"].counterparts_in("jax"))
LEAF = torch.ones(2, requires_grad=True)
WRAPPED = interop.wrap_for_torch(lambda module, x: x)
OF_COMPLEX = refusal(lambda: torch.fmax(ONES, 1j * ONES))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: interop.clamp(ONES, mim=0.0), TypeError, r"clamp: .*'mim'; its arguments are \(input, min, max, ties"),
        (lambda: interop.maximum(ONES, y=ONES), TypeError, r"maximum: .*'other'; its arguments are"),
        (
            lambda: interop.clamp(ONES * 1j, 0.0),
            RuntimeError,
            r"clamp: input has the complex dtype torch\.complex64, .* or to torch\.abs",
        ),
        (lambda: interop.fmax(ONES, ONES * 1j), OF_COMPLEX, r"fmax: other has .*torch\.complex64.*torch\.abs"),
        (lambda: interop.max_with_indices(ONES * 1j, 0), OF_COMPLEX, r"input has .*torch\.complex64.*torch\.abs"),
        (lambda: interop.native.clamp(1j * LEAF, 0.0), RuntimeError, r"^clamp is not supported for complex types"),
        (lambda: interop.native.hardtanh(1.0), TypeError, r"argument 'input' \(position 1\) must be Tensor, not float"),
        (lambda: interop.native.fmax(LEAF, 1j * LEAF), OF_COMPLEX, r"^fmax not implemented for complex"),
        (
            lambda: interop.min_norm(lambda: torch.clamp(1j * LEAF, 0.0))(),
            RuntimeError,
            r"^clamp is not supported for complex types",
        ),
        (lambda: interop.torch_to_jax(np.ones(2)), TypeError, r"tensor is a ndarray; pass a torch\.Tensor"),
        (lambda: interop.torch_to_jax({"a": ONES}), TypeError, r"tensor is a dict; .*jax\.tree\.map\(torch_to_jax"),
        (lambda: interop.torch_to_jax(LEAF), RuntimeError, r"requires grad.*tensor\.detach\(\).*wrap_for_torch"),
        (lambda: interop.jax_to_torch(np.ones(2)), TypeError, r"array is a ndarray; .*torch\.as_tensor"),
        (lambda: Signature(WITHOUT_TORCH), ValueError, r"relu has no counterpart in torch.*name one in counterparts="),
        (lambda: interop.wrap_for_torch(3), TypeError, r"wrap_for_torch: function is 3"),
        (
            lambda: WRAPPED(torch.nn.ReLU(), ONES),
            TypeError,
            r"module is a ReLU, .*dict\(module\.named_parameters\(\)\)",
        ),
        (lambda: interop.min_norm("inclusive"), TypeError, r"function is 'inclusive'; .*ties='inclusive'"),
        (
            lambda: interop.nn.convert(torch.relu),
            TypeError,
            r"convert: model is .*; pass an object of torch\.nn\.Module",
        ),
        (lambda: interop.nn.convert(torch.nn.ReLU), TypeError, r"convert: model is .*; pass an object"),
        (
            lambda: interop.influence(lambda: LEAF.sum(), LEAF),
            TypeError,
            r"a list of tensors, .*, but is Tensor",
        ),
        (
            lambda: interop.influence(lambda: LEAF.sum(), {"a": LEAF}),
            TypeError,
            r"a list of tensors, .*, but is one of str",
        ),
        (lambda: interop.influence(lambda: LEAF.sum(), torch.nn.ReLU()), TypeError, r"tensors, .*, but is ReLU"),
        (lambda: interop.influence(LEAF.sum(), [LEAF]), TypeError, r"closure is tensor.*pass a function"),  # type: ignore[arg-type]
        (lambda: interop.influence(lambda: LEAF.sum(), [LEAF, ONES]), ValueError, r"one .* does not require grad"),
        (lambda: interop.influence(lambda: LEAF, [LEAF]), ValueError, r"closure returned tensor.*return a scalar"),
        (lambda: interop.influence(lambda: 1.0, [LEAF]), ValueError, r"closure returned 1\.0; return a scalar"),
        (lambda: interop.influence(lambda: ONES.sum(), [LEAF]), ValueError, r"return a scalar tensor computed from"),
        (
            lambda: interop.influence(lambda: LEAF.sum(), [LEAF.detach().requires_grad_()]),
            ValueError,
            r"on none of the",
        ),
        (
            lambda: interop.compare(torch.relu, torch.relu, 6.0),
            TypeError,
            r"pass arrays, such as numpy\.float32\(6\.0\)",
        ),
    ],
)
def test_message(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_graphs_of_fx_would_drop_the_convention() -> None:
    """With the programs of JAX; functions of `interop.native` become nodes of the graph."""
    with interop.min_norm(backend="jax"), pytest.raises(NotImplementedError, match="own relu"):
        torch.fx.symbolic_trace(torch.nn.ReLU())


@pytest.mark.parametrize(
    ("missing", "statement", "status", "message"),
    [
        ("click", "import interop.__main__", 2, "This needs click: pip install 'jaxclamp[cli]'"),
        ("torch", "import interop", 1, "interop needs PyTorch: pip install 'jaxclamp[torch]'"),
    ],
)
def test_what_is_not_installed(missing: str, statement: str, status: int, message: str) -> None:
    code = f"import sys\nsys.modules[{missing!r}] = None\n{statement}"
    process = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert process.returncode == status
    assert message in process.stderr
