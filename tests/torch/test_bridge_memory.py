"""Memory across the bridge: nothing is unfinished when a call returns or shared unasked, and changes are noticed."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import interop
from interop import jax_to_torch, torch_to_jax, wrap_for_torch
from interop._torch.in_numpy import as_numpy
from tests.torch.bridged import Layout, points

pytestmark = pytest.mark.usefixtures("float32")


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


def test_conversions_of_nothing() -> None:
    assert jax_to_torch(torch_to_jax(torch.ones(0, 3), copy=False), copy=False).shape == (0, 3)


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


def test_outputs_share_no_memory_without_jit() -> None:
    x = torch.ones(3)
    with jax.disable_jit():
        y, z = wrap_for_torch(lambda x: (x, x))(x)
    assert len({tensor.data_ptr() for tensor in (x, y, z)}) == 3


def test_gradients_share_no_memory_without_jit() -> None:
    x, y, cotangent = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True), torch.ones(3)
    with jax.disable_jit():
        # Not compiled, JAX hands the cotangent of a sum on as it is, to both.
        gradients = torch.autograd.grad(wrap_for_torch(lambda x, y: x + y)(x, y), (x, y), cotangent)
    assert [gradient.tolist() for gradient in gradients] == [[1.0] * 3] * 2
    assert len({tensor.data_ptr() for tensor in (cotangent, *gradients)}) == 3


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


def test_changed_numpy_bound_does_not_reach_the_backward_pass() -> None:
    x, bound = torch.ones(3, requires_grad=True), np.full(3, 2.0, np.float32)
    y = interop.maximum(x, bound)
    bound.fill(0.0)
    y.sum().backward()
    assert x.grad.tolist() == [0.0] * 3


def test_changed_output_does_not_reach_the_backward_pass() -> None:
    x = points(5).requires_grad_()
    y = wrap_for_torch(jnp.square)(x)
    with torch.no_grad():
        y.fill_(77.0)
    y.sum().backward()
    assert torch.equal(x.grad, 2 * points(5))


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


LOOKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "an op": lambda x: interop.clamp(x, 0.0, 1.0),
    "a comparison in along": lambda x: x.detach().requires_grad_().relu().sum().backward(),
    "ties": lambda x: torch.relu(x),
    "torch_to_jax": lambda x: torch_to_jax(x.view(torch.float32)),
    "torch_to_jax of bfloat16": lambda x: torch_to_jax(x.view(torch.bfloat16)),
}


@pytest.mark.parametrize("name", LOOKS)
def test_whoever_looks_at_numbers_leaves_the_storage_resizable(name: str) -> None:
    """FullyShardedDataParallel frees the memory of weights so, and ``out=`` is given its size."""
    x = torch.linspace(-1.0, 1.0, 64, dtype=torch.float64)
    block = {"ties": interop.ties, "a comparison in along": lambda: interop.along([torch.zeros(1, requires_grad=True)])}
    with block.get(name, contextlib.nullcontext)():
        LOOKS[name](x.requires_grad_() if name == "ties" else x)
    x.untyped_storage().resize_(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint16])
def test_what_has_no_memory_yet_stays_resizable(dtype: torch.dtype) -> None:
    """An empty tensor is the usual ``out=``; weights whose memory was freed get it back."""
    empty, freed = torch.empty(0, dtype=dtype), torch.ones(4, dtype=dtype)
    freed.untyped_storage().resize_(0)
    assert not torch_to_jax(empty).size
    with pytest.raises(TypeError, match="it has none"):
        torch_to_jax(freed)
    assert torch.cat([torch.ones(2, dtype=dtype)], out=empty).tolist() == [1, 1]
    freed.untyped_storage().resize_(8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_that_is_shared_is_not_freed(dtype: torch.dtype) -> None:
    x = torch.ones(64, dtype=dtype)
    array = torch_to_jax(x, copy=False)
    with pytest.raises(RuntimeError, match="not resizable"):
        x.untyped_storage().resize_(0)
    assert array.tolist() == [1.0] * 64


def test_memory_that_numpy_shows_lives_as_long_as_the_array() -> None:
    """With strides that are none of numpy's own, without elements, of one element, and negated."""
    whole = torch.arange(12.0).reshape(3, 4)
    for x in (whole.T[1:, ::2], whole[:0], whole[1, 2], whole.expand(2, 3, 4), whole.to(torch.complex64).conj().imag):
        array = as_numpy(x)
        assert array.shape == x.shape
        assert array.tolist() == x.tolist()
    assert as_numpy(torch._efficientzerotensor(2)).tolist() == [0.0, 0.0]  # as forward mode has tangents of 0
    array = as_numpy(torch.full((1000,), 7.0))
    torch.full((1000,), 8.0)
    assert (array == 7.0).all()
