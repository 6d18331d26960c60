"""Forward mode of the frameworks, for their records: a derivative along each element of the arguments."""

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from torch.autograd import forward_ad

from interop._bridge.arrays import tensor_over
from interop.frameworks.base import Arguments, Array, Arrays, Function, converted, needs_64_bits, total
from interop.frameworks.torch import with_plain_tuples

Along: TypeAlias = Callable[[Function, Arguments, Arrays], float]
"""Differentiates the sum of the floats of ``function(arguments)`` along tangents of some of the arguments."""


def forward_gradient(
    framework: str, function: Function, arguments: Arguments, active: Collection[str]
) -> dict[str, Array]:
    """Compute the gradient of the sum of the floats of ``function(arguments)`` in the framework of that name.

    NotImplementedError where the framework has no forward mode, or the function has none there.
    """
    backend = importlib.import_module("keras").backend.backend() if framework == "keras" else framework
    if backend not in _ALONG:
        raise NotImplementedError(f"{framework} has no forward mode.")
    gradient: dict[str, Array] = {}
    for name in active:
        elements = []
        for i in range(arguments[name].size):
            tangents = {argument: np.zeros_like(arguments[argument]) for argument in active}
            tangents[name].flat[i] = 1
            elements.append(_ALONG[backend](function, arguments, tangents))
        gradient[name] = np.reshape(np.array(elements, arguments[name].dtype), arguments[name].shape)
    return gradient


def _in_autograd(function: Function, arguments: Arguments, tangents: Arrays) -> float:
    numpy: Any = importlib.import_module("autograd.numpy")

    def of_chosen(*chosen: Any) -> Any:
        return numpy.sum(function({**arguments, **dict(zip(tangents, chosen, strict=True))}))

    along = importlib.import_module("autograd").make_jvp(of_chosen, argnum=tuple(range(len(tangents))))
    return float(along(*(arguments[name] for name in tangents))(tuple(tangents.values()))[1])


def _in_jax(function: Function, arguments: Arguments, tangents: Arrays) -> float:
    with jax.enable_x64(needs_64_bits(arguments.values())):
        operands = converted(arguments, jnp.array)
        active = {name: operands[name] for name in tangents}
        directions = {name: jnp.array(tangent) for name, tangent in tangents.items()}
        _, derivative = jax.jvp(lambda active: total(function({**operands, **active})), (active,), (directions,))
        return float(derivative)


def _in_mlx(function: Function, arguments: Arguments, tangents: Arrays) -> float:
    mx: Any = importlib.import_module("mlx.core")

    def to_mlx(array: Array) -> Any:
        return mx.array(array, getattr(mx, array.dtype.name))  # without a dtype, float64 becomes float32

    with mx.stream(mx.cpu):  # a GPU has no float64
        operands = converted(arguments, to_mlx)

        def of_chosen(*chosen: Any) -> Any:
            return function({**operands, **dict(zip(tangents, chosen, strict=True))}).sum()

        directions = list(map(to_mlx, tangents.values()))
        _, (derivative,) = mx.jvp(of_chosen, [operands[name] for name in tangents], directions)
        return float(derivative.item())


def _in_tensorflow(function: Function, arguments: Arguments, tangents: Arrays) -> float:
    tf: Any = importlib.import_module("tensorflow")
    operands = converted(arguments, tf.constant)
    directions = list(map(tf.constant, tangents.values()))
    with tf.autodiff.ForwardAccumulator([operands[name] for name in tangents], directions) as accumulator:
        result = tf.reduce_sum(function(operands))
    return float(accumulator.jvp(result, unconnected_gradients=tf.UnconnectedGradients.ZERO))


def _in_torch(function: Function, arguments: Arguments, tangents: Arrays) -> float:
    operands = converted(arguments, lambda array: tensor_over(array.copy()))
    with forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(operands[name], tensor_over(v)) for name, v in tangents.items()}
        derivative = forward_ad.unpack_dual(total(with_plain_tuples(function({**operands, **duals})))).tangent
        return 0.0 if derivative is None else float(derivative)


_ALONG: Mapping[str, Along] = {
    "autograd": _in_autograd,
    "jax": _in_jax,
    "mlx": _in_mlx,
    "tensorflow": _in_tensorflow,
    "torch": _in_torch,
}
