"""Which layouts and dtypes cross the bridge, and how they come back."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import interop
from interop import jax_to_torch, torch_to_jax, wrap_for_torch
from tests.torch.bridged import FLOATS, INTEGERS, Layout, points

pytestmark = pytest.mark.usefixtures("float32")

UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
COMPLEX = (torch.complex64, torch.complex128)
WIDE = (torch.float64, torch.int64, torch.uint64, torch.complex128)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes, so that NaN equals itself and -0 is not 0."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def extremes(dtype: torch.dtype) -> torch.Tensor:
    """Values that no other dtype keeps, and all values of a dtype of one byte."""
    if dtype == torch.bool:
        return torch.tensor([True, False, True])
    if dtype.is_complex:
        parts = extremes(dtype.to_real())
        return torch.complex(parts, parts.flip(0))
    if dtype.itemsize == 1:
        return torch.arange(256).to(torch.uint8).view(dtype)
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        return torch.tensor([info.min, info.max, info.tiny, 1 + info.eps, 1 / 3, -0.0, math.inf, math.nan], dtype=dtype)
    limits = torch.iinfo(dtype)
    return torch.tensor([limits.min, limits.max, limits.max - 2, 3], dtype=dtype)


# Layouts.

LAYOUTS: dict[str, tuple[tuple[int, ...], Layout]] = {
    "misaligned": ((1001,), lambda x: x[1:]),
    "strided": ((1000,), lambda x: x[::3]),
    "column": ((40, 25), lambda x: x[:, 3:7]),
    "transposed": ((40, 25), lambda x: x.t()),
    "permuted": ((4, 5, 6), lambda x: x.permute(2, 0, 1)),
    "channels last": ((2, 3, 4, 5), lambda x: x.contiguous(memory_format=torch.channels_last)),
    "expanded": ((1, 25), lambda x: x.expand(40, 25)),
    "overlapping": ((30,), lambda x: x.as_strided((10, 4), (2, 1))),
    "0-dim": ((), lambda x: x),
    "0-dim view": ((25,), lambda x: x[3]),
    "empty": ((0,), lambda x: x),
    "empty rows": ((0, 3), lambda x: x),
    "empty columns": ((3, 0), lambda x: x),
    "expanded empty": ((0, 1), lambda x: x.expand(0, 3)),
    "negative bit": ((25,), torch._neg_view),
    "strided negative bit": ((50,), lambda x: torch._neg_view(x[1::2])),
}
LAYOUT = pytest.mark.parametrize("name", LAYOUTS)


def in_layout(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    shape, layout = LAYOUTS[name]
    return layout(points(*shape, dtype=dtype))


@LAYOUT
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, *(pytest.param(dtype, marks=pytest.mark.thorough) for dtype in (torch.float64, torch.bfloat16))],
    ids=str,
)
def test_layout_of_the_input(name: str, dtype: torch.dtype) -> None:
    shape, layout = LAYOUTS[name]
    results = []
    for clamp in (torch.clamp, interop.clamp):
        leaf = points(*shape, dtype=dtype).requires_grad_()
        y = clamp(layout(leaf), 0.0, 6.0)
        y.sum().backward()  # sends back an expanded gradient
        results.append((y, leaf.grad))
    (native, native_gradient), (ours, our_gradient) = results
    assert torch.equal(ours, native)
    assert torch.equal(our_gradient, native_gradient)


@LAYOUT
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layout_of_the_incoming_gradient(name: str, dtype: torch.dtype) -> None:
    incoming = in_layout(name, dtype)
    x = points(*incoming.shape, dtype=dtype).requires_grad_()
    (native,) = torch.autograd.grad(torch.clamp(x, 0.0, 6.0), x, incoming)
    (ours,) = torch.autograd.grad(interop.clamp(x, 0.0, 6.0), x, incoming)
    assert torch.equal(ours, native)


@LAYOUT
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int16], ids=str)
def test_layout_in_a_conversion(name: str, dtype: torch.dtype) -> None:
    if dtype == torch.bool and "negative" in name:
        dtype = torch.int8
    x = in_layout(name, dtype)
    back = jax_to_torch(torch_to_jax(x))
    assert torch.equal(back, x)
    assert back.dtype == dtype


def test_two_layouts_in_one_call() -> None:
    x, other = points(25, 40).t().requires_grad_(), (points(1, 25) + 0.625).expand(40, 25)
    native = torch.maximum(x, other)
    ours = interop.maximum(x, other)
    assert torch.equal(ours, native)
    assert torch.equal(*(torch.autograd.grad((y * y).sum(), x)[0] for y in (ours, native)))


@pytest.mark.parametrize("part", ["real", "imag"])
def test_parts_of_a_conjugate_view(part: str) -> None:
    """The imaginary part of a conjugate view is strided, misaligned, and has the negative bit."""
    gradients = []
    for clamp in (torch.clamp, interop.clamp):
        z = torch.complex(points(40), points(40).flip(0)).requires_grad_()
        x = getattr(z.conj(), part)
        assert x.is_neg() == (part == "imag")
        clamp(x, 0.0, 6.0).sum().backward()
        gradients.append(z.grad)
    assert torch.equal(gradients[0], gradients[1])


def test_conjugate_view() -> None:
    square = wrap_for_torch(jnp.square)
    z = torch.complex(points(40), points(40).flip(0)).requires_grad_()
    view = z.conj()
    assert view.is_conj()
    torch.testing.assert_close(square(view), torch.square(view))
    incoming = torch.complex(points(40), points(40)).conj()
    ours, native = (torch.autograd.grad(f(view), z, incoming, retain_graph=True)[0] for f in (square, torch.square))
    torch.testing.assert_close(ours, native)


# Dtypes.


@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS, *UNSIGNED, *FLOATS, *FLOAT8, *COMPLEX], ids=str)
def test_dtype_goes_both_ways_unchanged(dtype: torch.dtype) -> None:
    x = extremes(dtype)
    with jax.enable_x64(dtype in WIDE):
        array = torch_to_jax(x)
        back = jax_to_torch(array)
    assert f"torch.{array.dtype}" == str(dtype)
    assert back.dtype == dtype
    assert torch.equal(bits(back), bits(x))


@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS, *UNSIGNED, *FLOATS, *FLOAT8, *COMPLEX], ids=str)
def test_dtype_goes_through_a_call_unchanged(dtype: torch.dtype) -> None:
    """Also the 64-bit ones, since JAX's 64-bit mode is off here."""
    x = extremes(dtype)
    y = wrap_for_torch(lambda x: x[None])(x)
    assert y.dtype == dtype
    assert torch.equal(bits(y), bits(x))
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_means_the_same_on_both_sides(dtype: torch.dtype) -> None:
    x = extremes(dtype)
    y = wrap_for_torch(lambda x: x.astype(jnp.float32))(x)
    torch.testing.assert_close(y, x.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_dtype_of_a_gradient(dtype: torch.dtype) -> None:
    for op in ("clamp", "hardtanh", "clamp_min"):
        bounds = (0.0, 6.0)[: 1 if op == "clamp_min" else 2]
        native = torch.nn.functional.hardtanh if op == "hardtanh" else getattr(torch, op)
        gradients = []
        for function in (native, getattr(interop, op)):
            x = points(40, dtype=dtype).requires_grad_()
            y = function(x, *bounds)
            assert y.dtype == dtype
            y.backward(points(40, dtype=dtype))
            gradients.append(x.grad)
        assert torch.equal(*gradients)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_dtype_of_an_op(dtype: torch.dtype) -> None:
    x = torch.arange(40).to(dtype)
    for ours, native in (
        (interop.clamp(x, 3, 9), torch.clamp(x, 3, 9)),
        (interop.maximum(x, x.flip(0)), torch.maximum(x, x.flip(0))),
        (interop.relu(x), torch.relu(x)),
    ):
        assert ours.dtype == dtype
        assert torch.equal(ours, native)


def test_64_bits_while_jax_has_32() -> None:
    large = 2**40 + 3
    x = torch.tensor([large, large + 1])
    assert interop.clamp(x, 0, large).tolist() == [large, large]
    assert interop.maximum(x, x + 1).tolist() == [large + 1, large + 2]

    near_one = 1 + 2.0**-40
    y = torch.tensor([near_one], dtype=torch.float64, requires_grad=True)
    square = wrap_for_torch(jnp.square)(y)
    square.sum().backward()
    assert square.item() == near_one**2
    assert y.grad.item() == 2 * near_one

    z = torch.tensor([near_one + near_one * 1j], dtype=torch.complex128)
    assert wrap_for_torch(lambda z: 2 * z)(z).item() == 2 * z.item()

    assert not jax.config.jax_enable_x64
    assert jnp.arange(2).dtype == jnp.int32


@pytest.mark.parametrize("value", [np.array([2**40 + 3]), np.array([2**63], np.uint64), np.array([1 / 3])], ids=str)
def test_64_bits_of_a_numpy_argument(value: np.ndarray) -> None:
    y = wrap_for_torch(lambda x, value: value)(torch.ones(1), value)
    assert y.tolist() == value.tolist()


def test_index_of_64_bits_beside_a_float() -> None:
    x, index = points(5).requires_grad_(), torch.tensor([3, 1, 1])
    y = wrap_for_torch(lambda x, index: x[index] * index)(x, index)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad.tolist() == [0.0, 2.0, 0.0, 3.0, 0.0]


def test_64_bit_mode_switched_on_before_the_backward_pass() -> None:
    x = torch.ones(3, requires_grad=True)
    y = wrap_for_torch(lambda x: x + jnp.zeros(3))(x)
    with jax.enable_x64(True):
        y.sum().backward()
    assert torch.equal(x.grad, torch.ones(3))


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("copy", [True, False])
def test_conversion_that_would_truncate_is_refused(dtype: torch.dtype, copy: bool) -> None:
    x = torch.ones(3, dtype=dtype)
    with pytest.raises(TypeError, match=rf"torch_to_jax: JAX would truncate {dtype}.*jax\.enable_x64\(True\)"):
        torch_to_jax(x, copy=copy)
    with jax.enable_x64(True):
        assert f"torch.{torch_to_jax(x).dtype}" == str(dtype)


@pytest.mark.parametrize("name", ["int2", "int4", "uint4", "float8_e3m4", "float8_e4m3", "float4_e2m1fn"])
def test_jax_dtype_that_torch_lacks(name: str) -> None:
    dtype = getattr(jnp, name)
    with pytest.raises(TypeError, match=rf"torch has no dtype for {name}; convert the array"):
        jax_to_torch(jnp.zeros(3, dtype))
    with pytest.raises(TypeError, match=rf"torch has no dtype for {name}; convert the array"):
        wrap_for_torch(lambda x: x.astype(dtype))(torch.zeros(3))


COMPLEX_FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.dtype, ...]]] = {
    "holomorphic": (lambda z: jnp.exp(z) * z, (torch.complex128,)),
    "conjugate": (lambda z: z * z * jnp.conj(z), (torch.complex128,)),
    "to real": (lambda z: jnp.abs(z) + jnp.imag(z * z), (torch.complex128,)),
    "from real": (lambda x: jnp.exp(1j * x), (torch.float64,)),
    "mixed": (lambda z, x: (z * x, jnp.real(z) ** x), (torch.complex128, torch.float64)),
    "two complex": (lambda z, w: (z * w, jnp.conj(z) / w), (torch.complex128, torch.complex128)),
    "real": (lambda x, y: (jnp.sin(x) * y, jnp.exp(y)), (torch.float64, torch.float64)),
}


@pytest.mark.parametrize("name", COMPLEX_FUNCTIONS)
def test_gradcheck(name: str) -> None:
    function, dtypes = COMPLEX_FUNCTIONS[name]
    generator = torch.Generator().manual_seed(0)
    inputs = [(torch.rand(3, dtype=dtype, generator=generator) + 0.5).requires_grad_() for dtype in dtypes]
    assert torch.autograd.gradcheck(wrap_for_torch(function), inputs)
    assert torch.autograd.gradgradcheck(wrap_for_torch(function), inputs)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_dtype_of_a_gradient(dtype: torch.dtype) -> None:
    z = torch.complex(points(40), points(40).flip(0)).to(dtype).requires_grad_()
    incoming = torch.complex(points(40), -points(40)).to(dtype)
    (ours,) = torch.autograd.grad(wrap_for_torch(lambda z: z * z * jnp.conj(z))(z), z, incoming)
    (native,) = torch.autograd.grad(z * z * z.conj(), z, incoming)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, native)


def test_64_bits_stay_without_jit() -> None:
    numbers = torch.arange(3) + 2**40
    x = torch.tensor([1 / 3, 2.0], dtype=torch.float64, requires_grad=True)
    with jax.disable_jit():
        assert torch.equal(wrap_for_torch(lambda x: x)(numbers), numbers)
        y = wrap_for_torch(lambda x: x**3)(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close([y, first, second], [x**3, 3 * x**2, 6 * x])
