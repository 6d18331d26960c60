"""The bridge between torch and JAX inside one process: memory, layouts, dtypes, refusals, arguments and threads."""

import itertools
import math
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import interop
from interop import jax_to_torch, torch_to_jax, wrap_for_torch
from tests.support.calls import refusal
from tests.support.compilations import compilations

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
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

Layout = Callable[[torch.Tensor], torch.Tensor]


def points(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Steps of 1/4 from -1.125 to 7.875: exact in every float dtype, and never on the bounds 0 and 6."""
    steps = torch.arange(math.prod(shape)) % 37
    return (steps * 0.25 - 1.125).reshape(shape).to(dtype)


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


def memory(array: Any) -> range:
    """The addresses that ``array`` occupies."""
    if isinstance(array, torch.Tensor):
        storage = array.untyped_storage()
        return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())
    start = array.unsafe_buffer_pointer() if isinstance(array, jax.Array) else array.ctypes.data
    return range(start, start + array.nbytes)


def overlaps(arrays: Iterable[Any]) -> bool:
    """Whether any two of ``arrays`` share memory."""
    ranges = sorted((memory(array) for array in arrays), key=lambda r: r.start)
    return any(before.stop > after.start for before, after in itertools.pairwise(ranges))


def snapshot(arrays: Iterable[Any]) -> list[list[float]]:
    return [(a.detach() if isinstance(a, torch.Tensor) else a).tolist() for a in arrays]


@pytest.fixture(autouse=True)
def _narrow() -> Iterator[None]:
    """JAX's 64-bit mode is off, whatever the environment says."""
    with jax.enable_x64(False):
        yield


# The hand-off: nothing is unfinished when a call returns.

SIZES = pytest.mark.parametrize("size", [1_000, 100_000, 1_000_000])


@SIZES
def test_input_overwritten_right_after_a_call(size: int) -> None:
    source = points(size)
    expected = source.clamp(0.0, 6.0)
    for _ in range(10):
        x = source.clone()
        y = interop.clamp(x, 0.0, 6.0)
        x.fill_(100.0)
        assert torch.equal(y, expected)


@SIZES
def test_every_output_is_finished_when_a_call_returns(size: int) -> None:
    """The second output takes far longer than the first and reads the input late."""

    def slow(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        start = jax.lax.fori_loop(0, 200, lambda _, c: jnp.sin(c + x[:1000]), x[:1000])
        return x[:10], jnp.clip(x, 0.0, 6.0) + 0.0 * start.sum()

    wrapped = wrap_for_torch(slow)
    source = points(size)
    for _ in range(5):
        x = source.clone()
        first, second = wrapped(x)
        x.fill_(100.0)
        assert torch.equal(first, source[:10])
        assert torch.equal(second, source.clamp(0.0, 6.0))


@SIZES
def test_input_and_gradient_overwritten_right_after_a_backward_pass(size: int) -> None:
    source = points(size)
    expected = source * ((source > 0) & (source < 6))
    for _ in range(5):
        x = source.clone().requires_grad_()
        incoming = source.clone()
        (gradient,) = torch.autograd.grad(interop.clamp(x, 0.0, 6.0), x, incoming)
        incoming.fill_(100.0)
        with torch.no_grad():
            x.fill_(100.0)
        assert torch.equal(gradient, expected)


@SIZES
def test_conversions_are_finished_when_they_return(size: int) -> None:
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, c: c + 1.0, x))
    source = points(size)
    for _ in range(5):
        x = source.clone()
        array = torch_to_jax(x)
        x.fill_(100.0)
        assert torch.equal(jax_to_torch(loop(array)), source + 20)


# Memory: who shares it with whom.

CONSTANT = jnp.arange(1000.0) + 1.0
HOST_CONSTANT = np.arange(1000, dtype=np.float32)
PASSING_ON: dict[str, Callable[[Any, Any, Any], Any]] = {
    "identity": lambda x, array, host: x,
    "same shape": lambda x, array, host: x.reshape(x.shape),
    "slice": lambda x, array, host: x[:],
    "same dtype": lambda x, array, host: x.astype(x.dtype),
    "no gradient": lambda x, array, host: jax.lax.stop_gradient(x),
    "input twice": lambda x, array, host: (x, x),
    "result twice": lambda x, array, host: (jnp.sin(x),) * 2,
    "nested": lambda x, array, host: {"a": x, "b": [x, {"c": x}]},
    "other arguments": lambda x, array, host: (array, host, array),
    "closed-over array": lambda x, array, host: (CONSTANT, CONSTANT),
    "closed-over NumPy array": lambda x, array, host: jnp.asarray(HOST_CONSTANT),
    "constant": lambda x, array, host: (jnp.zeros(1000), jnp.zeros(1000)),
}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", PASSING_ON)
def test_outputs_share_no_memory(name: str, recorded: bool) -> None:
    wrapped = wrap_for_torch(PASSING_ON[name])
    arguments = (points(1000).requires_grad_(recorded), jnp.arange(1000.0), np.arange(1000, dtype=np.float32))
    outputs = jax.tree.leaves(wrapped(*arguments))
    everything = [*outputs, *arguments, CONSTANT, HOST_CONSTANT]
    assert not overlaps(everything)

    originals = snapshot(outputs)
    for index, output in enumerate(outputs):
        expected = snapshot(everything)
        expected[index] = [77.0] * 1000
        with torch.no_grad():
            output.fill_(77.0)
        assert snapshot(everything) == expected
    assert snapshot(jax.tree.leaves(wrapped(*arguments))) == originals


def test_overlaps_sees_shared_memory() -> None:
    x = points(1000)
    assert overlaps([x, x[10:]])
    assert overlaps([x, jax.device_put(x.numpy())])
    assert overlaps([x, x.numpy()])
    assert not overlaps([x, x.clone()])


def test_gradients_share_no_memory() -> None:
    x, y = points(1000).requires_grad_(), points(1000).requires_grad_()
    incoming = points(1000)
    gradients = torch.autograd.grad(wrap_for_torch(lambda x, y: x + y)(x, y), (x, y), incoming)
    assert not overlaps([*gradients, incoming, x, y])
    gradients[0].fill_(77.0)
    assert torch.equal(gradients[1], points(1000))
    assert torch.equal(incoming, points(1000))


@pytest.mark.parametrize("size", [1, 16, 1_000, 1_000_000])
def test_conversions_copy(size: int) -> None:
    x = points(size)
    array = torch_to_jax(x)
    back = jax_to_torch(array)
    assert not overlaps([x, array, back])
    x.fill_(77.0)
    back.fill_(78.0)
    assert np.array_equal(array, points(size))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.complex64, torch.bool], ids=str
)
def test_conversions_share_if_told_so(dtype: torch.dtype) -> None:
    x = torch.ones(1000).to(dtype)
    array = torch_to_jax(x, copy=False)
    back = jax_to_torch(array, copy=False)
    x[0] = 0
    assert array[0] == 0
    back[1] = 0
    assert array[1] == 0
    assert x[1] == 0


def test_conversions_share_64_bits_in_jax_s_64_bit_mode() -> None:
    x = points(1000, dtype=torch.float64)
    with jax.enable_x64(True):
        array = torch_to_jax(x, copy=False)
    assert array.dtype == np.float64
    assert overlaps([x, array])


def test_shared_memory_outlives_its_first_owner() -> None:
    array = torch_to_jax(points(100_000), copy=False)
    others = [torch.full((100_000,), -1.0) for _ in range(5)]
    assert np.array_equal(array, points(100_000))
    del others
    back = jax_to_torch(array + 0.0, copy=False)
    rest = [jnp.full(100_000, -1.0) for _ in range(5)]
    assert torch.equal(back, points(100_000))
    del rest


CANNOT_BE_SHARED: dict[str, Layout] = {
    "misaligned": lambda x: x[1:],
    "strided": lambda x: x[::2],
    "transposed": lambda x: x.reshape(40, 25).t(),
    "column": lambda x: x.reshape(40, 25)[:, :3],
    "expanded": lambda x: x[:1].expand(4),
    "negative bit": torch._neg_view,
    "conjugate bit": lambda x: x.to(torch.complex64).conj(),
}


@pytest.mark.parametrize("name", CANNOT_BE_SHARED)
def test_memory_that_cannot_be_shared_is_refused_or_copied(name: str) -> None:
    base = points(1000)
    x = CANNOT_BE_SHARED[name](base)
    expected = x.resolve_conj().resolve_neg().clone()
    with pytest.raises(ValueError, match=r"torch_to_jax: a tensor with strides .* cannot be shared.*copy=True"):
        torch_to_jax(x, copy=False)
    array = torch_to_jax(x)
    base.fill_(77.0)
    assert np.array_equal(array, expected)


def test_an_aligned_row_of_a_larger_tensor_is_shared() -> None:
    x = points(64)[16:]
    assert overlaps([x, torch_to_jax(x, copy=False)])


# What was changed in place between the forward and the backward pass.

CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "whole": lambda x: x.add_(1.0),
    "element": lambda x: x.__setitem__(0, 5.0),
    "view": lambda x: x[1:].mul_(2.0),
    "copy": lambda x: x.copy_(torch.ones(5)),
}
SAVING_OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "native clamp": lambda x: torch.clamp(x, 0.0, 6.0),
    "clamp": lambda x: interop.clamp(x, 0.0, 6.0),
    "native square": torch.square,
    "square": wrap_for_torch(jnp.square),
}
IN_PLACE = pytest.raises(RuntimeError, match=r"modified by an inplace operation.*version")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("op", SAVING_OPS)
def test_changed_input_is_noticed_in_the_backward_pass(op: str, change: str) -> None:
    x = points(5).requires_grad_() * 1.0
    y = SAVING_OPS[op](x)
    with torch.no_grad():
        CHANGES[change](x)
    with IN_PLACE:
        y.sum().backward()


@pytest.mark.parametrize("op", SAVING_OPS)
def test_changed_base_of_a_view_is_noticed_in_the_backward_pass(op: str) -> None:
    base = points(10).requires_grad_() * 1.0
    y = SAVING_OPS[op](base[2:7])
    with torch.no_grad():
        base.zero_()
    with IN_PLACE:
        y.sum().backward()


@pytest.mark.parametrize("maximum", [torch.maximum, interop.maximum])
def test_changed_input_without_gradient_is_noticed_in_the_backward_pass(maximum: Callable[..., Any]) -> None:
    x, other = points(5).requires_grad_(), torch.zeros(5)
    y = maximum(x, other)
    other.fill_(9.0)
    with IN_PLACE:
        y.sum().backward()


def test_changed_numpy_argument_does_not_reach_the_backward_pass() -> None:
    x, factor = torch.ones(3, requires_grad=True), np.full(3, 2.0, np.float32)
    y = wrap_for_torch(lambda x, factor: x * factor)(x, factor)
    factor.fill(77.0)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_changed_output_does_not_reach_the_backward_pass() -> None:
    x = points(5).requires_grad_()
    y = wrap_for_torch(jnp.square)(x)
    with torch.no_grad():
        y.fill_(77.0)
    y.sum().backward()
    assert torch.equal(x.grad, 2 * points(5))


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
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
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


@pytest.mark.parametrize("value", [np.array([2**40 + 3]), np.array([1 / 3])], ids=["int64", "float64"])
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


# What is refused.


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
    "zero": lambda: torch._efficientzerotensor((4,)),
    "expanded zero": lambda: torch._efficientzerotensor((1,)).expand(4),
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
        wrap_for_torch(function)(torch.ones(3), torch.ones(3), bytearray(b"a"))


ONES = torch.ones(3)
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
        pytest.param(lambda: interop.clamp(ONES), RuntimeError, "clamp: .* both min and max are none", id="no bound"),
        pytest.param(lambda: interop.clamp(WHOLE), RuntimeError, "both min and max are none", id="no bound of int"),
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
        pytest.param(lambda: interop.relu(ONES, ties="half"), ValueError, "ties='half' .*'min_norm'", id="ties"),
    ],
)
def test_ops_refuse(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_ops_name_an_argument_as_torch_does() -> None:
    with pytest.raises(TypeError, match="maximum: other: "):
        interop.maximum(torch.ones(4, 4), torch.eye(4).to_sparse())


# Subclasses.


class Marked(torch.Tensor):
    pass


def test_subclass_keeps_its_type() -> None:
    x = points(5).as_subclass(Marked)
    assert type(interop.clamp(x, 0.0)) is Marked
    assert type(interop.maximum(points(5), x)) is Marked
    assert type(interop.clamp(x.int(), 0.5)) is Marked
    assert [type(y) for y in wrap_for_torch(lambda d: (d["a"], -d["a"]))({"a": x})] == [Marked, Marked]

    x.requires_grad_()
    y = interop.clamp(x, 0.0, 6.0)
    assert type(y) is Marked
    y.sum().backward()
    assert x.grad.tolist() == ((points(5) > 0) & (points(5) < 6)).float().tolist()


def test_subclass_that_overrides_functions_sees_the_call() -> None:
    seen = []

    class Watching(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(getattr(function, "__name__", ""))
            return super().__torch_function__(function, types, args, kwargs)

    interop.relu(points(5).as_subclass(Watching))
    assert "relu" in seen


def test_conversion_of_a_subclass() -> None:
    assert np.array_equal(torch_to_jax(points(5).as_subclass(Marked)), points(5))


def test_parameter() -> None:
    weight = torch.nn.Parameter(points(5))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    y = interop.clamp(weight, 0.0, 6.0)
    assert type(y) is torch.Tensor
    y.sum().backward()
    expected = points(5) - ((points(5) > 0) & (points(5) < 6)).float()
    optimizer.step()
    assert torch.equal(interop.clamp(weight, -9.0, 9.0), expected)


# Arguments and results.


class Pair(NamedTuple):
    left: Any
    right: Any


def test_trees_in_and_out() -> None:
    def function(parameters: Any, pair: Any, *more: Any, scale: Any = 1.0, **named: Any) -> Any:
        total = parameters["w"] @ parameters["b"][0] + scale * pair.left
        return {"total": total, "pair": Pair(more[0] * named["last"], None), "list": [(pair.right + 1.0,)]}

    names = ("w", "b", "left", "right", "more", "last")
    shapes = ((3, 4), (4,), (3,), (2,), (5,), ())
    ours = {n: (points(*s) + i).requires_grad_() for i, (n, s) in enumerate(zip(names, shapes, strict=True))}
    native = {n: x.detach().clone().requires_grad_() for n, x in ours.items()}

    def call(f: Callable[..., Any], t: dict[str, torch.Tensor]) -> Any:
        return f({"w": t["w"], "b": [t["b"]]}, Pair(t["left"], t["right"]), t["more"], scale=2.5, last=t["last"])

    result, expected = call(wrap_for_torch(function), ours), call(function, native)
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    assert isinstance(result["pair"], Pair)
    for mine, theirs in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        torch.testing.assert_close(mine, theirs)
    for tree in (result, expected):
        sum((leaf**2).sum() for leaf in jax.tree.leaves(tree)).backward()
    for name in names:
        torch.testing.assert_close(ours[name].grad, native[name].grad)


def test_defaults_and_keywords() -> None:
    wrapped = wrap_for_torch(lambda x, *, power=2, shift=1.0: x**power + shift)
    x = points(5)
    torch.testing.assert_close(wrapped(x), x**2 + 1)
    torch.testing.assert_close(wrapped(x, power=3), x**3 + 1)
    torch.testing.assert_close(wrapped(shift=0.25, x=x), x**2 + 0.25)
    torch.testing.assert_close(interop.clamp(max=2.0, input=x), x.clamp(max=2.0))


def test_results_without_arrays() -> None:
    x = torch.ones(3, requires_grad=True)
    assert wrap_for_torch(lambda x: {})(x) == {}
    assert wrap_for_torch(lambda x: None)(x) is None


@pytest.mark.parametrize(
    "values",
    [(0.5, 1.5, -0.0), tuple(np.float32([0.5, 1.5, 2.5])), tuple(np.ones((2, 3), np.float32)), (*jnp.ones((2, 3)),)],
    ids=["float", "NumPy number", "NumPy array", "JAX array"],
)
def test_new_value_of_a_traced_argument_compiles_nothing(values: tuple[Any, ...]) -> None:
    traces = []

    def scale(x: jax.Array, factor: Any) -> jax.Array:
        traces.append(factor)
        return x * factor

    wrapped = wrap_for_torch(scale)
    counts = []
    for value in values:
        x = torch.ones(3, requires_grad=True)
        y = wrapped(x, value)
        y.sum().backward()
        assert y.tolist() == x.grad.tolist() == np.broadcast_to(value, 3).tolist()
        counts.append(len(traces))
    assert counts == [2] * len(values)  # the forward and the backward pass, once each


def test_static_arguments_are_told_apart() -> None:
    seen = []

    def function(x: jax.Array, option: Any) -> jax.Array:
        seen.append(option)
        return x + {int: 1, bool: 2, str: 3}.get(type(option), 4)

    wrapped = wrap_for_torch(function)
    x = torch.zeros(1)
    for _ in range(2):
        for option, expected in ((0, 1), (False, 2), (1, 1), (True, 2), ("a", 3), (1.0, 4), (None, 4)):
            assert wrapped(x, option).item() == expected
    assert [(type(s), s) for s in seen if not isinstance(s, jax.Array)] == [
        (int, 0),
        (bool, False),
        (int, 1),
        (bool, True),
        (str, "a"),
        (type(None), None),
    ]
    assert len(seen) == 7


def test_int_may_be_a_shape() -> None:
    assert wrap_for_torch(lambda x, rows: x.reshape(rows, -1))(points(6), 2).shape == (2, 3)


def test_integer_outputs_have_no_gradient() -> None:
    x = points(5).requires_grad_()
    y, index, mask, count = wrap_for_torch(lambda x: (x * x, jnp.argmax(x), x > 0, jnp.int32(7)))(x)
    assert [out.requires_grad for out in (y, index, mask, count)] == [True, False, False, False]
    assert index.item() == 4
    assert mask.tolist() == (points(5) > 0).tolist()
    y.sum().backward()
    assert torch.equal(x.grad, 2 * points(5))


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2)])
def test_unused_outputs(used: tuple[int, ...]) -> None:
    def function(numpy: Any, x: Any, y: Any) -> tuple[Any, ...]:
        return numpy.sin(x) * y, x * x, numpy.exp(y)

    ours, native = ([points(5).requires_grad_(), (points(5) / 4).requires_grad_()] for _ in range(2))
    for (x, y), outputs in (
        (ours, wrap_for_torch(lambda x, y: function(jnp, x, y))(*ours)),
        (native, function(torch, *native)),
    ):
        sum(outputs[i].sum() for i in used).backward()
        assert x.grad is not None or used == (2,)
        assert y.grad is not None or used == (1,)
    for mine, theirs in zip(ours, native, strict=True):
        expected = torch.zeros(5) if theirs.grad is None else theirs.grad
        torch.testing.assert_close(mine.grad, expected)


def test_tape_only_where_a_gradient_is_wanted() -> None:
    x = points(5)
    assert not interop.relu(x).requires_grad
    with torch.no_grad():
        assert not interop.relu(x.clone().requires_grad_()).requires_grad
    with torch.inference_mode():
        assert torch.equal(interop.relu(torch.ones(3)), torch.ones(3))
    assert interop.relu(x.clone().requires_grad_()).requires_grad


# Which inputs are active decides at a tie.


@pytest.mark.parametrize(
    ("point", "active", "expected"),
    [
        ((2.0, 2.0), (True, False), (0.0, None)),
        ((2.0, 2.0), (False, True), (None, 0.0)),
        ((2.0, 2.0), (True, True), (0.5, 0.5)),
        ((2.0, 2.0, 2.0), (True, False, False), (0.0, None, None)),
        ((2.0, 2.0, 2.0), (True, True, False), (0.0, 0.0, None)),
        ((2.0, 2.0, 2.0), (True, True, True), (1 / 3, 1 / 3, 1 / 3)),
        ((2.0, 2.0, 5.0), (True, True, False), (0.5, 0.5, None)),
        ((2.0, -1.0, 2.0), (False, True, True), (None, 0.0, 0.0)),
        ((1.0, 2.0, 2.0), (False, True, True), (None, 0.5, 0.5)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_active_inputs(
    point: tuple[float, ...], active: tuple[bool, ...], expected: tuple[float | None, ...], dtype: torch.dtype
) -> None:
    inputs = [
        torch.full((2,), value, dtype=dtype, requires_grad=moves) for value, moves in zip(point, active, strict=True)
    ]
    interop.clamp(*inputs).sum().backward()
    for tensor, value in zip(inputs, expected, strict=True):
        if value is None:
            assert tensor.grad is None
        else:
            torch.testing.assert_close(tensor.grad, torch.full((2,), value, dtype=dtype))


def test_active_inputs_may_change_from_call_to_call() -> None:
    """One compiled forward pass, but one backward pass for each active set."""
    x, lo = torch.tensor(2.0), torch.tensor(2.0)
    for active, expected in (((0,), [0.0]), ((0, 1), [0.5, 0.5]), ((1,), [0.0]), ((0, 1), [0.5, 0.5])):
        inputs = [t.clone().requires_grad_(i in active) for i, t in enumerate((x, lo))]
        gradients = torch.autograd.grad(interop.clamp(*inputs), [inputs[i] for i in active])
        assert [g.item() for g in gradients] == expected


# Type promotion is torch's.

PROMOTED = (torch.bool, *INTEGERS, *FLOATS)


@pytest.mark.parametrize("dims", [(1, 1), (1, 0), (0, 1), (0, 0)], ids=str)
@pytest.mark.parametrize("second", PROMOTED, ids=str)
@pytest.mark.parametrize("first", PROMOTED, ids=str)
def test_promotion_of_tensors(first: torch.dtype, second: torch.dtype, dims: tuple[int, int]) -> None:
    x, y = torch.tensor([0.0, 1.0, 3.0]).to(first), torch.tensor([2.0, 1.0, 0.0]).to(second)
    x, y = (t if dim else t[0] for t, dim in zip((x, y), dims, strict=True))
    ours, native = interop.maximum(x, y), torch.maximum(x, y)
    assert ours.dtype == native.dtype
    assert torch.equal(ours, native)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    "bounds",
    [
        (1, 2),
        (0.5, 2.5),
        (1, 2.5),
        (0.5, None),
        (None, 2),
        (True, None),
        (torch.tensor(1.0), None),
        (torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64), None),
        (torch.tensor(1), torch.tensor([2.0, 2.0, 1.0], dtype=torch.float16)),
        (np.float64(0.5), None),
        (np.float32(0.5), 2.5),
    ],
    ids=str,
)
def test_promotion_of_bounds(bounds: tuple[Any, Any], dim: int) -> None:
    for dtype in (*INTEGERS, *FLOATS):
        x = torch.tensor([0.0, 1.0, 3.0]).to(dtype)
        x = x if dim else x[2]
        ours, native = interop.clamp(x, *bounds), torch.clamp(x, *bounds)
        assert ours.dtype == native.dtype, dtype
        assert torch.equal(ours, native), dtype


@pytest.mark.parametrize("bounds", [(3, 3.0), (3.0, 3), (1, True, 1.0)], ids=str)
def test_promotion_does_not_depend_on_earlier_calls(bounds: tuple[Any, ...]) -> None:
    x = torch.arange(5)
    assert [interop.clamp(x, b).dtype for b in bounds] == [torch.clamp(x, b).dtype for b in bounds]


def test_promotion_follows_the_default_dtype() -> None:
    x = torch.arange(5)
    assert interop.clamp(x, 0.5).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert interop.clamp(x, 0.5).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_array_as_a_bound_beside_a_number(array: Callable[..., Any]) -> None:
    bound = array([0.0, 1.0, 2.0], "float32")
    assert interop.clamp(points(3), bound).tolist() == [0.0, 1.0, 2.0]
    assert interop.clamp(points(3), bound, 1.5).tolist() == [0.0, 1.0, 1.5]


def test_large_int_as_the_bound_of_a_float() -> None:
    assert torch.equal(interop.clamp(ONES, 2**40), torch.clamp(ONES, 2**40))


def test_promoted_operands_get_gradients_of_their_own_dtype() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float16, requires_grad=True)
    other = torch.tensor([2.5, 1.5, 0.5], dtype=torch.float64, requires_grad=True)
    ours = torch.autograd.grad(interop.maximum(x, other).sum(), (x, other))
    native = torch.autograd.grad(torch.maximum(x, other).sum(), (x, other))
    assert [g.dtype for g in ours] == [torch.float16, torch.float64]
    for mine, theirs in zip(ours, native, strict=True):
        assert torch.equal(mine, theirs)


# Threads.


def test_threads() -> None:
    """Eight threads start with the same function, not yet compiled, in both widths of float."""
    wrapped = wrap_for_torch(lambda x: 2 * jnp.clip(x, 0.0, 6.0))
    barrier = threading.Barrier(8)

    def work(seed: int) -> list[int]:
        barrier.wait(60)
        wrong = []
        for i in range(200):
            dtype = torch.float64 if (seed + i) % 2 else torch.float32
            source = points((3, 1_000, 50_000)[i % 3], dtype=dtype).roll(seed + i) + 2.0**-40
            x = source.clone().requires_grad_()
            y = wrapped(x)
            y.backward(source)
            inside = (source > 0) & (source < 6)
            if not (torch.equal(y, 2 * source.clamp(0.0, 6.0)) and torch.equal(x.grad, 2 * source * inside)):
                wrong.append(i)
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [[]] * 8


@pytest.mark.parametrize(
    ("ours", "native"),
    [
        (lambda x: interop.hardtanh(x), lambda x: functional.hardtanh(x)),
        (lambda x: interop.threshold(x, 0.0, 2.5), lambda x: functional.threshold(x, 0.0, 2.5)),
        (lambda x: interop.clamp(x, 0.5), lambda x: torch.clamp(x, 0.5)),
        (lambda x: interop.clamp(x, max=1.5), lambda x: torch.clamp(x, max=1.5)),
    ],
    ids=["hardtanh", "threshold", "clamp", "clamp from above"],
)
def test_integers_with_float_parameters_as_in_torch(ours: Callable[..., Any], native: Callable[..., Any]) -> None:
    x = torch.tensor([-3, 0, 2], dtype=torch.int32)
    assert ours(x).dtype == native(x).dtype
    assert torch.equal(ours(x), native(x))


def test_errors_of_jax_name_the_function() -> None:
    def decide(x: jax.Array) -> jax.Array:
        return x if x[0] > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"the function decide at .* argument arrays\[0\]"):
        wrap_for_torch(decide)(torch.ones(3))


def test_outputs_share_no_memory_without_jit() -> None:
    x = torch.ones(3)
    with jax.disable_jit():
        y, z = wrap_for_torch(lambda x: (x, x))(x)
    assert len({tensor.data_ptr() for tensor in (x, y, z)}) == 3


def test_64_bits_stay_without_jit() -> None:
    numbers = torch.arange(3) + 2**40
    x = torch.tensor([1 / 3, 2.0], dtype=torch.float64, requires_grad=True)
    with jax.disable_jit():
        assert torch.equal(wrap_for_torch(lambda x: x)(numbers), numbers)
        y = wrap_for_torch(lambda x: x**3)(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close([y, first, second], [x**3, 3 * x**2, 6 * x])


def test_gradients_share_no_memory_without_jit() -> None:
    x, y, cotangent = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True), torch.ones(3)
    with jax.disable_jit():
        # Not compiled, JAX hands the cotangent of a sum on as it is, to both.
        gradients = torch.autograd.grad(wrap_for_torch(lambda x, y: x + y)(x, y), (x, y), cotangent)
    assert [gradient.tolist() for gradient in gradients] == [[1.0] * 3] * 2
    assert len({tensor.data_ptr() for tensor in (cotangent, *gradients)}) == 3


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64])
def test_integer_bounds_of_integers_compile_nothing(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 100], dtype=dtype)
    interop.clamp(x, 0, 50)
    count = compilations()
    for bound in range(60, 64):
        assert interop.clamp(x, 0, bound).tolist() == [1, bound]
    assert compilations() == count
    interop.clamp(x[:1], 0, 60)  # another shape
    assert compilations() > count
    byte = torch.tensor([1], dtype=torch.int8)
    with pytest.raises(refusal(lambda: torch.clamp(byte, 0, 300)), match="clamp: max=300 does not fit into"):
        interop.clamp(byte, 0, 300)


def overwritten_under_vmap(wrapped: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    y = torch.func.vmap(wrapped)(x)
    x.fill_(100.0)
    return y


@pytest.mark.parametrize("size", [1_000, 300_000])
def test_hazards_under_vmap(size: int) -> None:
    """An input overwritten right after the call, odd layouts, and a change before the backward pass."""
    wrapped = wrap_for_torch(lambda x: 2 * x)
    for _ in range(10):
        assert (overwritten_under_vmap(wrapped, torch.ones(2, size)) == 2).all()
        assert (overwritten_under_vmap(wrapped, torch.ones(size, 2).T) == 2).all()
    square = wrap_for_torch(lambda x: x * x)
    x = torch.ones(2, size).requires_grad_()
    y = torch.func.vmap(square)(x)
    with torch.no_grad():
        x.fill_(5.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
