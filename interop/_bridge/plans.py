"""Plans the calls of an op: one plan for all calls of a kind, made at the first of them.

A kind is what a compiled program depends on: the dtypes of the tensors, which arguments are numbers, and the values of
all others. ``clamp(x, 0.0, 6.0)`` and ``clamp(y, 0.0, 1.0)`` of float32 are of one kind: the numbers become arrays.
"""

import functools
import operator
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from interop._bridge.arrays import X64, jax_dtype, jax_to_torch, refuse_after_fork, tensor_over
from interop._bridge.flat import FlatFunction, with_x64
from interop._bridge.promotion import result_dtype
from interop._bridge.signatures import MISSING, Signature
from interop._bridge.tape import call
from jaxclamp import Op, WithIndices

_PLAIN_NUMBERS = frozenset({float, int, torch.SymFloat})
_PLAIN_STATIC = frozenset({bool, int, str, tuple, type(None), type(MISSING)})
_TENSOR, _NUMBER = object(), object()


@dataclass(frozen=True, eq=False)
class Plan:
    """How calls of one kind are computed."""

    flat: FlatFunction
    signature: Signature
    dtype: torch.dtype | None
    """What the tensors are cast to, if they need to be."""
    x64: bool
    numbers: tuple[str, ...]
    """The parameters that are numbers, as jaxclamp calls them."""
    check: Callable[..., object]
    """Takes the numbers, and raises for those that the op does not take."""

    def run(self, tensors: Sequence[torch.Tensor], numbers: Sequence[float]) -> Any:
        """Compute a call of this kind."""
        if self.dtype is not None:
            tensors = [tensor.to(self.dtype) for tensor in tensors]
        x64 = self.x64 or jax.config.jax_enable_x64  # type: ignore[attr-defined]
        result = call(self.flat, self._checked_numbers(numbers, x64) if numbers else (), x64, tensors)
        if isinstance(result, WithIndices):
            values, indices = result
            as_in_torch = getattr(torch.return_types, self.signature.in_torch.function.__name__)
            return as_in_torch((values, indices.long()))  # type: ignore[attr-defined]
        return result

    def _checked_numbers(self, numbers: Sequence[float], x64: bool) -> tuple[Any, ...]:
        """Return the numbers of a call, checked, as arrays. XLA would compile anew for each Python int."""
        if torch.SymFloat in map(type, numbers):  # to read a symbol would make torch guard its value
            return tuple(numbers)
        if self.dtype is None or self.dtype.is_floating_point:
            return _arrays(self, array("d", numbers).tobytes(), x64)
        self.check(*numbers)
        pairs = zip(self.numbers, numbers, strict=True)
        return tuple([_integer(n, self.dtype, f"{self.signature.name}: {name}") for name, n in pairs])


def classify(signature: Signature, values: Sequence[Any]) -> tuple[Any, list[torch.Tensor], list[float]]:
    """Return the kind of a call, its tensors and its numbers.

    The kind is None if `normalized` has to convert an argument first, as a number of NumPy or a list of axes. That of
    ``clamp(x, 0.0, 6.0)`` for a matrix x of float32 is ``(torch.float32, True, float, float)``.
    """
    kind: list[Any] = []
    tensors: list[torch.Tensor] = []
    numbers: list[float] = []
    is_normal = is_floating = True
    for slot, value in enumerate(values):
        kind_of_value = type(value)
        takes_arrays = slot in signature.arrays
        if takes_arrays and isinstance(value, torch.Tensor):
            tensors.append(value)
            kind += value.dtype, value.dim() > 0  # one without axes promotes as a number does
            is_floating &= value.is_floating_point()
        elif takes_arrays and kind_of_value in _PLAIN_NUMBERS:
            numbers.append(value)
            kind.append(float)
        else:
            kind += kind_of_value, value  # its type too: True equals 1, and so does their hash
            # No axes are all axes to torch, and none to JAX.
            is_normal &= kind_of_value in _PLAIN_STATIC and value != ()
    if not is_normal:
        return None, tensors, numbers
    if not is_floating:  # then 1 and 1.0 promote to different dtypes, 1.0 to the default one
        kind += *map(type, numbers), torch.get_default_dtype()
    return tuple(kind), tensors, numbers


def normalized(signature: Signature, values: Sequence[Any]) -> list[Any]:
    """Return the arguments by slot as tensors on one device, Python's numbers, ints and tuples of them."""
    name = signature.name
    if not any(isinstance(values[slot], torch.Tensor) for slot in signature.arrays if slot < len(values)):
        raise TypeError(f"{name}: input must be a torch.Tensor; jaxclamp.{name} takes numbers and JAX arrays.")
    result = [_as_tensor_or_number(v) if slot in signature.arrays else _as_static(v) for slot, v in enumerate(values)]
    device = next((v.device for v in result if isinstance(v, torch.Tensor) and v.dim()), None)
    if signature.cast is not None:
        result = signature.cast(*result)
    if device is not None:  # as in torch, a number may come in a tensor on CPU
        result = [
            v.to(device) if isinstance(v, torch.Tensor) and not v.dim() and v.device.type == "cpu" else v
            for v in result
        ]
    dim, keepdim = signature.slot("dim"), signature.slot("keepdim")
    if dim is not None and dim < len(result) and result[dim] is not MISSING:
        if result[dim] == ():  # no axes are all axes
            result[dim] = MISSING
        elif result[0].dim() == 0:  # torch lets a tensor without axes reduce one, and none is left
            result[0] = result[0].reshape(1)
            if keepdim is not None and keepdim < len(result):
                result[keepdim] = MISSING
    return result


def make_plan(
    op: Op, compute: Callable[..., Any], signature: Signature, values: Sequence[Any], tensors: Sequence[torch.Tensor]
) -> Plan:
    """Plan the calls of an op with arguments such as ``values``, which are `normalized`.

    Of ``amax(x, 1)`` the program takes x, and 1 is a constant in it. Of ``clamp(x, 0.0, 6.0)`` it takes x and both
    numbers, so that ``clamp(y, 0.0, 1.0)`` runs the same program.
    """
    _refuse_complex(signature, values)
    arguments = {signature.jax_names[slot]: value for slot, value in enumerate(values) if value is not MISSING}
    # Maps a parameter to where its argument comes from: a tensor of the call, a number of it, or a constant, itself.
    sources = {name: _source(name in op.arrays, value) for name, value in arguments.items()}
    numbers = {name: value for name, value in arguments.items() if sources[name] is _NUMBER}
    check = functools.partial(_check, op, sources)
    check(*numbers.values())
    dtypes = {tensor.dtype for tensor in tensors}
    dtype = None if signature.reduces else result_dtype(signature, values)
    if dtype is not None and not dtype.is_floating_point:  # a default such as -1.0 would promote
        for name, parameter in op.signature.parameters.items():
            if name not in sources and type(parameter.default) is float:
                sources[name] = _integer(parameter.default, dtype, f"{op.name}: {name}")
    elif dtypes == {dtype}:
        dtype = None
    # As torch lays out results: pools keep channels_last, reductions are row-major, all others keep any order of axes.
    flat = FlatFunction(
        functools.partial(_of_arrays, compute, sources),
        op.name,
        [signature.torch_name(slot) for slot, v in enumerate(values) if isinstance(v, torch.Tensor)],
        layout="channels_last" if signature.has_windows else "row-major" if signature.reduces else "kept",
    )
    x64 = dtype in X64 if dtype is not None else not dtypes.isdisjoint(X64)
    return Plan(flat, signature, dtype, x64, tuple(numbers), check)


def _source(takes_arrays: bool, value: Any) -> Any:
    if takes_arrays and isinstance(value, torch.Tensor):
        return _TENSOR
    return _NUMBER if takes_arrays and type(value) in _PLAIN_NUMBERS else value


def _refuse_complex(signature: Signature, values: Sequence[Any]) -> None:
    for slot, value in enumerate(values):
        dtype = torch.complex128 if isinstance(value, complex) else getattr(value, "dtype", None)
        if isinstance(dtype, torch.dtype) and dtype.is_complex:
            raise TypeError(
                f"{signature.name}: {signature.torch_name(slot)} has the complex dtype {dtype}, and the ordering of "
                "complex numbers is undefined; apply the op to the real and the imaginary part, or to torch.abs(...)."
            )


def _of_arrays(compute: Callable[..., Any], sources: Mapping[str, Any], numbers: Any, *tensors: Any) -> Any:
    """Return ``compute`` of its arguments by name; some come in ``numbers``, some in ``tensors``."""
    in_numbers, in_tensors = iter(numbers), iter(tensors)

    def argument(source: Any) -> Any:
        return next(in_tensors) if source is _TENSOR else next(in_numbers) if source is _NUMBER else source

    # Torch broadcasts and promotes, whatever JAX has been told.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        return compute(**{name: argument(source) for name, source in sources.items()})


def _check(op: Op, sources: Mapping[str, Any], *numbers: float) -> None:
    """Have the op check the numbers now: once they are traced, it does not see their values."""
    if numbers and torch.SymFloat not in map(type, numbers):
        zero = np.zeros(())
        _of_arrays(op.applied, sources, numbers, *[zero for source in sources.values() if source is _TENSOR])


# By the bytes of the numbers: 0.0 and -0.0 are equal, as floats, and NaN is not even equal to itself.
@functools.lru_cache(maxsize=4096)
def _arrays(plan: Plan, numbers: bytes, x64: bool) -> tuple[jax.Array, ...]:
    refuse_after_fork()
    values = array("d", numbers).tolist()
    plan.check(*values)
    return with_x64(x64, lambda: tuple(map(jnp.asarray, values)))


def _integer(number: float, dtype: torch.dtype, name: str) -> Any:
    try:
        return np.asarray(int(number), jax_dtype(dtype))
    except (OverflowError, ValueError) as error:  # ValueError of NaN
        raise OverflowError(
            f"{name}={number} does not fit into {dtype}, the dtype of the result; convert the tensors to a wider one."
        ) from error


def _as_tensor_or_number(value: Any) -> Any:
    """Make a tensor of an array of another library, and Python's number of NumPy's, which would promote as an array."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return tensor_over(value.copy())
    return jax_to_torch(value) if isinstance(value, jax.Array) else value


def _as_static(value: Any) -> Any:
    """Return sizes and axes as ints, and tuples of them; all else as it is."""
    if isinstance(value, list | tuple):
        return tuple(map(operator.index, value))
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    return operator.index(value)
