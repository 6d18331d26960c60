"""Every op beside its counterparts, as functions of x alone, and the ways in which they are timed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from interop import TORCH_OPS
from interop._bridge.arrays import adopt, lend
from jaxclamp import Op
from jaxclamp._shared.counterparts import Counterpart

Call = Callable[[], object]


def inputs(op: Op, size: int, dtype: str) -> tuple[np.ndarray, dict[str, Any]]:
    """Return x, with ties among its elements, and the other arguments of the fullest tie."""
    x, *parameters = max(op.tie_points, key=len)
    shape = [(size,), (size,), (size // 100, 100), (1, size // 100, 100), (1, size // 100, 10, 10)][np.ndim(x)]
    numbers = np.random.default_rng(0).integers(-32, 32, shape) / 4
    _, *names = inspect.signature(op.function).parameters
    return numbers.astype(dtype), dict(zip(names, parameters, strict=False))


def functions(op: Op, arguments: dict[str, Any]) -> Iterator[tuple[str, str, Callable[[Any], Any]]]:
    """Yield the name, the framework and the function of each contender."""
    yield f"jaxclamp.{op.name}", "jax", lambda x: _first(op.function(x, **arguments))
    torch_op = TORCH_OPS[op.name]
    yield f"interop.{op.name}", "torch", lambda x: _first(torch_op(x, *arguments.values()))
    for counterpart in op.counterparts:
        if arguments.keys() <= counterpart.parameters.keys() and counterpart.framework in ("jax", "torch"):
            function = functools.partial(_called, counterpart, arguments)
            yield counterpart.name, counterpart.framework, function


def two_programs(function: Callable[[Any], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the floor in torch: a compiled program for each pass of a function of JAX, with no check but of memory."""
    forward = jax.jit(function)
    backward = jax.jit(lambda x, cotangent: jax.vjp(function, x)[1](cotangent)[0])

    class InPrograms(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return adopt(forward(lend(x)), not x.is_cuda)

        @staticmethod
        def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return adopt(backward(lend(x), lend(cotangent)), not x.is_cuda)

    return InPrograms.apply


def _called(counterpart: Counterpart, arguments: dict[str, Any], x: Any) -> Any:
    """Call a counterpart: torch wants a second operand, and a weight, as a tensor, lax all of one dtype."""
    if isinstance(x, torch.Tensor):
        arguments = {n: _operand(v, x.dtype, x.device) if n in ("y", "weight") else v for n, v in arguments.items()}
    elif counterpart.name.startswith("jax.lax."):
        arguments = {n: jnp.asarray(v, x.dtype) for n, v in arguments.items()}
    return _first(counterpart({"x": x, **arguments}))


@functools.cache  # not timed
def _operand(value: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.tensor(value, dtype=dtype, device=device)


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def convert(framework: str, x: np.ndarray) -> Any:
    """Make an array of a framework, to be shared by contenders: where an array lies decides on a tenth of the time."""
    if framework == "jax":
        return jnp.asarray(x)
    dtype = torch.bfloat16 if x.dtype == jnp.bfloat16 else torch.float32
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    return torch.from_numpy(x.astype("float32", copy=False)).to(device, dtype, copy=True)  # in torch's own memory


@functools.lru_cache(maxsize=2)  # one for each framework
def _ones(ones: Callable[..., Any], shape: tuple[int, ...], dtype: Any, device: Any) -> Any:
    """Make a cotangent, which the contenders share too."""
    return ones(shape, dtype=dtype, device=device)


def call(kind: str, framework: str, function: Callable[[Any], Any], x: Any) -> Call:
    """Return what is timed: one call of ``function``, compiled and warm, whose results are awaited."""
    return (_in_jax if framework == "jax" else _in_torch)(kind, function, x)


def _in_jax(kind: str, function: Callable[[Any], Any], array: jax.Array) -> Call:
    compiled = jax.jit(function)
    value = compiled(array)
    cotangent = _ones(jnp.ones, value.shape, value.dtype, value.device)
    gradient = jax.jit(jax.value_and_grad(lambda x, c: jnp.vdot(function(x), c)))

    def crossing() -> object:
        """Run both passes outside jit, so that the residuals cross from one to the other."""
        value, pull = jax.vjp(compiled, array)
        return value, pull(cotangent)

    _, pull = jax.vjp(compiled, array)
    calls = {
        "forward": lambda: compiled(array),
        "backward": lambda: pull(cotangent),
        "crossing": crossing,
        "gradient": lambda: gradient(array, cotangent),
    }
    return lambda: jax.block_until_ready(calls[kind]())


def _in_torch(kind: str, function: Callable[[Any], Any], tensor: torch.Tensor) -> Call:
    leaf = tensor.detach().requires_grad_()
    result = function(leaf)
    cotangent = _ones(torch.ones, result.shape, result.dtype, result.device)
    calls = {
        "forward": lambda: function(tensor),
        "backward": lambda: torch.autograd.grad(result, leaf, cotangent, retain_graph=True),
        "crossing": lambda: torch.autograd.grad(function(leaf), leaf, cotangent),
    }
    return _awaited(calls[kind], tensor)


def _awaited(once: Call, tensor: torch.Tensor) -> Call:
    """Return ``once`` or, on a GPU, what also waits for the end of what it queued."""
    if not tensor.is_cuda:
        return once

    def call_and_wait() -> None:
        once()
        torch.cuda.synchronize()

    return call_and_wait


def copies(array: jax.Array, tensor: torch.Tensor) -> dict[str, Call]:
    """Return copies, the floor of bandwidth: one element read and one written."""
    target = torch.empty_like(tensor)
    calls = (
        lambda: jax.block_until_ready(jnp.array(array, copy=True)),
        _awaited(lambda: tensor.clone(), tensor),
        _awaited(lambda: target.copy_(tensor), tensor),
    )
    return dict(zip(COPIES, calls, strict=True))


def single_operations(array: jax.Array) -> dict[str, Call]:
    """Return compiled programs that move the bytes of a pass and do next to nothing with them."""
    cotangent = _ones(jnp.ones, array.shape, array.dtype, array.device)
    codes = (array > 0).astype(jnp.int8)
    negation = jax.jit(jnp.negative)
    selection = jax.jit(lambda codes, cotangent: jnp.where(codes == 1, cotangent, 0))
    product = jax.jit(jnp.multiply)
    return {
        "negation": lambda: negation(array).block_until_ready(),
        "selection": lambda: selection(codes, cotangent).block_until_ready(),
        "product": lambda: product(array, cotangent).block_until_ready(),
    }


COPIES = ("copy in jax", "copy in torch", "copy in torch into memory at hand")

CHIEF = ("clamp", "relu", "maximum", "abs")
"""The ops that are timed at every size."""
