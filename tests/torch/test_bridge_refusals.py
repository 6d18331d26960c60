"""What the bridge refuses: the message names the call, the argument and the cure."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import interop
from interop import jax_to_torch, torch_to_jax, wrap_for_torch
from tests.support.calls import refusal
from tests.torch.bridged import ONES

pytestmark = pytest.mark.usefixtures("float32")


def quietly(make: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
    """Torch warns that some kinds of tensor are experimental, or on their way out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*args, **kwargs)


NOT_PLAIN: dict[str, Callable[[], torch.Tensor]] = {
    "sparse": lambda: torch.eye(4).to_sparse(),
    "compressed": lambda: quietly(torch.eye(4).to_sparse_csr),
    "quantized": lambda: quietly(torch.quantize_per_tensor, torch.ones(4), 0.1, 0, torch.qint8),
    "nested": lambda: quietly(torch.nested.nested_tensor, [torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "meta": lambda: torch.ones(4, device="meta"),
    "fake": lambda: FakeTensorMode().from_tensor(torch.ones(4)),
    "complex32": lambda: quietly(torch.zeros, 4, dtype=torch.complex32),
}
PLAIN = "pass a dense tensor with data and of a dtype that JAX has"

not_plain = pytest.mark.parametrize("name", NOT_PLAIN)
without_plain_memory = pytest.mark.parametrize("name", [name for name in NOT_PLAIN if name != "meta"])


@not_plain
@pytest.mark.parametrize("copy", [True, False])
def test_conversion_of_a_tensor_without_plain_memory(name: str, copy: bool) -> None:
    with pytest.raises(TypeError, match=PLAIN):
        torch_to_jax(NOT_PLAIN[name](), copy=copy)


@without_plain_memory
def test_call_with_a_tensor_without_plain_memory(name: str) -> None:
    def function(first: jax.Array, rest: dict[str, list[jax.Array]]) -> jax.Array:
        return first

    wrapped = wrap_for_torch(function)
    x = NOT_PLAIN[name]()
    first = torch.ones(4, device=x.device, requires_grad=True)
    with pytest.raises(TypeError, match=rf"function: first: .*{PLAIN}"):
        wrapped(x, {})
    with pytest.raises(TypeError, match=rf"function: rest\['a'\]\[1\]: .*{PLAIN}"):
        wrapped(first, rest={"a": [first, x]})


@without_plain_memory
def test_op_with_a_tensor_without_plain_memory(name: str) -> None:
    message = "relu: input has the complex dtype" if name == "complex32" else rf"relu: (x|input): .*{PLAIN}"
    with pytest.raises((TypeError, RuntimeError), match=message):
        interop.relu(NOT_PLAIN[name]())


def test_zeros_without_memory_are_written_out() -> None:
    """Torch has them in the place of tangents and cotangents."""
    for zeros in (torch._efficientzerotensor((4,)), torch._efficientzerotensor((1,)).expand(4)):
        assert torch_to_jax(zeros).tolist() == interop.relu(zeros).tolist() == [0, 0, 0, 0]
        with pytest.raises(ValueError, match="pass copy=True"):
            torch_to_jax(zeros, copy=False)


def test_conversion_inside_functionalize() -> None:
    with pytest.raises(TypeError, match=PLAIN):
        torch.func.functionalize(lambda x: (torch_to_jax(x), x)[1])(torch.ones(4))


@pytest.mark.parametrize("transform", [torch.func.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())])
def test_conversion_inside_a_transform(transform: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=PLAIN):
        transform(lambda x: (torch_to_jax(x), x)[1])(torch.ones(4))


def test_conversion_of_a_traced_array() -> None:
    with pytest.raises(TypeError, match="jax_to_torch: the array is traced"):
        jax.jit(jax_to_torch)(jnp.ones(3))


def test_tensors_on_different_devices() -> None:
    def function(first: Any, second: Any) -> Any:
        return first

    here, there = torch.ones(3), torch.ones(3, device="meta")
    message = r"function: the tensors are on different devices: first\[0\] on cpu, second on meta"
    with pytest.raises(ValueError, match=message):
        wrap_for_torch(function)([here], second=there)
    with pytest.raises(ValueError, match="the tensors are on different devices: first on meta, second on cpu"):
        wrap_for_torch(function)(there, second=here)
    with pytest.raises(ValueError, match="maximum: the tensors are on different devices"):
        interop.maximum(here, there)


def test_argument_that_is_not_hashable() -> None:
    def function(x: Any, *rest: Any, options: Any = None) -> Any:
        return x

    wrapped = wrap_for_torch(function)
    x = torch.ones(3)
    with pytest.raises(TypeError, match=r"function: options\['a'\]\[0\] is a set, .*hashable"):
        wrapped(x, options={"a": [{1, 2}]})
    with pytest.raises(TypeError, match=r"function: argument 1 is a bytearray, .*hashable"):
        wrapped(x, bytearray(b"a"))


def test_argument_beside_others_that_is_not_hashable() -> None:
    def function(x: Any, *rest: Any, options: Any = None) -> Any:
        return x

    with pytest.raises(TypeError, match=r"function: argument 2 is a bytearray, .*hashable"):
        wrap_for_torch(function)(torch.ones(3), np.ones(3), bytearray(b"a"))


def test_argument_by_position_alone_that_is_not_hashable() -> None:
    def function(x: Any, names: Any, /, scale: float = 1.0) -> Any:
        return x

    with pytest.raises(TypeError, match="function: names is a bytearray"):
        wrap_for_torch(function)(torch.ones(3), bytearray(b"a"))


WHOLE = torch.ones(3, dtype=torch.int32)
IMAGINARY = torch.ones(3) * 1j


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        pytest.param(
            lambda: interop.clamp(IMAGINARY, 0, 1), RuntimeError, "clamp: (x|input) has the complex", id="complex"
        ),
        pytest.param(
            lambda: interop.relu(IMAGINARY), NotImplementedError, "relu: (x|input) has the complex", id="complex relu"
        ),
        pytest.param(lambda: interop.abs(IMAGINARY), TypeError, "abs: (x|input) has the complex", id="complex abs"),
        pytest.param(
            lambda: interop.clamp(ONES, 0, 1j), RuntimeError, "clamp: max has the complex", id="complex number"
        ),
        pytest.param(
            lambda: interop.maximum(ONES, IMAGINARY),
            refusal(lambda: torch.maximum(ONES, IMAGINARY)),
            "maximum: (y|other) has the complex",
            id="complex second",
        ),
        pytest.param(lambda: interop.relu("1.0"), TypeError, r"relu: input must be a torch\.Tensor", id="string"),
        pytest.param(lambda: interop.clamp(ONES, "0"), TypeError, "clamp: min must be .* got str '0'", id="bound"),
        pytest.param(lambda: interop.clamp(WHOLE, "0"), TypeError, "min must be .* got str '0'", id="bound of int"),
        pytest.param(
            lambda: interop.clamp(ONES, [0.0], 2.0),
            TypeError,
            "clamp: min must be .* got list",
            id="list beside a number",
        ),
        pytest.param(lambda: interop.maximum(ONES, None), TypeError, "maximum: (y|other) must be", id="none"),
        pytest.param(lambda: interop.relu(3.0), TypeError, r"relu: input must be .*jaxclamp\.relu", id="number"),
        pytest.param(lambda: interop.clamp(ONES), RuntimeError, "clamp: .*(?i:min.*max.*none)", id="no bound"),
        pytest.param(lambda: interop.clamp(WHOLE), RuntimeError, "(?i:min.*max.*none)", id="no bound of int"),
        pytest.param(
            lambda: interop.clamp(ONES, torch.ones(4), 2.0),
            RuntimeError,
            r"clamp: the shapes do not broadcast: (x|input) \(3,\), min \(4,\)",
            id="shapes",
        ),
        pytest.param(
            lambda: interop.maximum(WHOLE, torch.ones(4)),
            RuntimeError,
            r"maximum: the shapes do not broadcast: (x|input) \(3,\), (y|other) \(4,\)",
            id="shapes of two dtypes",
        ),
        pytest.param(
            lambda: interop.hardtanh(ONES, 2, 1),
            ValueError,
            r"hardtanh: min_val=2(\.0)? is greater than",
            id="hardtanh",
        ),
        pytest.param(
            lambda: interop.hardtanh(ONES, 2.0, 1.0),
            ValueError,
            r"hardtanh: min_val=2\.0 is greater than",
            id="hardtanh of floats",
        ),
        pytest.param(
            lambda: interop.clamp(WHOLE, 0, 2**40),
            refusal(lambda: torch.clamp(WHOLE, 0, 2**40)),
            "max=1099511627776 does not",
            id="large",
        ),
        pytest.param(
            lambda: interop.threshold(WHOLE, float("nan"), 1),
            refusal(lambda: torch.nn.functional.threshold(WHOLE, float("nan"), 1)),
            "threshold: threshold=nan does not fit",
            id="nan beside integers",
        ),
        pytest.param(
            lambda: interop.hardtanh(WHOLE.char(), -1, float("inf")),
            RuntimeError,
            "hardtanh: torch refuses these arguments",
            id="infinity beside integers",
        ),
        pytest.param(
            lambda: interop.max_pool1d(torch.ones(1, 8), 4, ties="half"), ValueError, "ties='half'", id="ties of a pool"
        ),
        pytest.param(
            lambda: interop.amax(torch.ones(2, 0), 1),
            refusal(lambda: torch.amax(torch.ones(2, 0), 1)),
            "amax: ",
            id="an axis of no elements",
        ),
        pytest.param(
            lambda: interop.softshrink(WHOLE, 1),
            refusal(lambda: torch.nn.functional.softshrink(WHOLE, 1)),
            "softshrink: torch refuses these arguments: .*not implemented",
            id="integers",
        ),
        pytest.param(lambda: interop.relu(ONES, ties="half"), ValueError, "ties='half' .*'min_norm'", id="ties"),
    ],
)
def test_ops_refuse(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_ops_name_an_argument_as_torch_does() -> None:
    with pytest.raises(TypeError, match="maximum: other: "):
        interop.maximum(torch.ones(4, 4), torch.eye(4).to_sparse())


@pytest.mark.parametrize("x", [ONES, WHOLE], ids=["floats", "integers"])
def test_the_numbers_of_each_call_are_checked(x: torch.Tensor) -> None:
    """Not those of the first call of a kind alone, for which the calls are planned."""
    interop.hardtanh(x, 0, 6)
    with pytest.raises(ValueError, match="is greater than"):
        interop.hardtanh(x, 6, 0)


def test_errors_of_jax_name_the_function() -> None:
    def decide(x: jax.Array) -> jax.Array:
        return x if x[0] > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"the function decide at .* argument arrays\[0\]"):
        wrap_for_torch(decide)(torch.ones(3))


@pytest.mark.parametrize(
    "function",
    [torch.relu, torch.nn.functional.softplus, lambda x: x.relu(), torch.nn.ReLU()],
    ids=["relu", "softplus", "of a method", "module"],
)
def test_a_function_of_torch_is_not_one_of_jax(function: Callable[..., Any]) -> None:
    with pytest.raises((TypeError, AttributeError)) as raised:
        wrap_for_torch(function)(torch.ones(3))
    assert "called with arrays of JAX; write it with jax.numpy" in raised.value.__notes__[0]


def test_the_kind_of_error_is_that_of_torch_without_memory_of_that_size() -> None:
    with pytest.raises(IndexError, match="axis=5 is out of range"):
        interop.amax(torch.empty(2**45, device="meta"), 5)
