"""The ops of jaxclamp under torch's own signatures and type promotion, made from their records."""

from __future__ import annotations

import functools
import inspect
import operator
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.overrides import handle_torch_function, has_torch_function

import jaxclamp
from interop._bridge.arrays import X64, jax_dtype, jax_to_torch, refuse_after_fork, tensor_over
from interop._bridge.bounded import Bounded
from interop._bridge.flat import FlatFunction, Layout, with_x64
from interop._bridge.opaque import opaque
from interop._bridge.signatures import MISSING, Signature, torch_counterpart
from interop._bridge.tape import call
from interop._torch.autocast import autocast, in_full_precision
from interop._torch.forms import overwrite, write_to
from interop._torch.private_api import without_dispatch_modes
from jaxclamp import OPS, Op, WithIndices

_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_PLAIN_NUMBERS = frozenset({float, int, torch.SymFloat})
_PLAIN_STATIC = frozenset({bool, int, str, tuple, type(None), type(MISSING)})
_AUTOCAST: Mapping[str, Callable[..., list[Any]]] = {"prelu": autocast, "max_pool3d": in_full_precision}
"""The ops that torch.autocast computes in its lower precision, or in float32, and what does that."""


@dataclass(frozen=True, eq=False)
class _Plan:
    """How calls of one kind are computed."""

    flat: FlatFunction
    dtype: torch.dtype | None
    """What the tensors are cast to, if they need to be."""
    x64: bool
    numbers: tuple[str, ...]
    """The parameters that are numbers, as jaxclamp calls them."""
    check: Callable[..., object]
    """From the numbers, by name; it raises for those that the op does not take."""


class TorchOp:
    """An op with the arguments of torch.

    A call is of a kind: the dtypes of its tensors, the slots of its numbers, and all its other arguments. The first
    call of a kind makes a plan, which includes the type promotion, and the others follow it.

    Args:
      op: the record.
      compute: what is computed with the arguments of the op; its function, as a rule.
    """

    public: Callable[..., Any]
    """The function by which it is called, which `torch.overrides` gets to see."""

    def __init__(self, op: Op, compute: Callable[..., Any]) -> None:
        self.signature = Signature(op)
        self._op = op
        self._compute = compute
        self._autocast = _AUTOCAST.get(op.name)
        self._plans: dict[Any, _Plan] = Bounded(1024)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values: Sequence[Any] = args
        if kwargs or len(args) > self.signature.plain:
            values = self.signature.arranged(args, kwargs)
        if self._autocast is not None:
            values = self._autocast(*values)
        kind, tensors, numbers = self._classified(values)
        if has_torch_function(tensors):
            return handle_torch_function(self.public, tensors, *args, **kwargs)
        plan = self._plans.get(kind)
        try:
            if plan is None or _are_on_several_devices(tensors):
                values = self.signature.arranged(args, kwargs)
                return self._in_any_form(values)
            return self._follow(plan, tensors, numbers)
        except (TypeError, ValueError, OverflowError) as error:
            refusal = self._refusal_of_torch(values)
            if refusal is None or isinstance(error, refusal):
                raise
            raise refusal(str(error)) from None  # code that expects the kind of exception of torch gets it

    def _classified(self, values: Sequence[Any]) -> tuple[Any, list[torch.Tensor], list[float]]:
        """The kind of a call, its tensors and its numbers.

        The kind is None where there are arguments that `_prepared` has to look at.
        """
        kind: list[Any] = []
        tensors: list[torch.Tensor] = []
        numbers: list[float] = []
        is_plain = is_floating = True
        for slot, value in enumerate(values):
            of = type(value)
            takes_arrays = slot in self.signature.arrays
            if takes_arrays and isinstance(value, torch.Tensor):
                tensors.append(value)
                kind += value.dtype, value.dim() > 0
                is_plain &= of in _PLAIN_TENSORS and (value.dim() > 0 or not self._reduces)
                is_floating &= value.is_floating_point()
            elif takes_arrays and of in _PLAIN_NUMBERS:
                numbers.append(value)
                kind.append(float)
            else:
                kind += of, value
                is_plain &= of in _PLAIN_STATIC and value != ()
        if not is_plain:
            return None, tensors, numbers
        if not is_floating:  # then 1 and 1.0 promote to different dtypes
            kind += *map(type, numbers), torch.get_default_dtype()
        return tuple(kind), tensors, numbers

    @property
    def _reduces(self) -> bool:
        return self._op.family == "reduction"

    @property
    def _layout(self) -> Layout:
        if not self._reduces:
            return "kept"
        return "channels_last" if "kernel_size" in self._op.signature.parameters else "row-major"

    def _follow(self, plan: _Plan, tensors: Sequence[torch.Tensor], numbers: Sequence[float]) -> Any:
        if plan.dtype is not None:
            tensors = [tensor.to(plan.dtype) for tensor in tensors]
        x64 = plan.x64 or jax.config.jax_enable_x64  # type: ignore[attr-defined]
        result = call(plan.flat, self._traced(plan, numbers, x64) if numbers else (), x64, tensors)
        if isinstance(result, WithIndices):
            values, indices = result
            as_in_torch = getattr(torch.return_types, torch_counterpart(self._op).function.__name__)
            return as_in_torch((values, indices.long()))  # type: ignore[attr-defined]
        return result

    def _traced(self, plan: _Plan, numbers: Sequence[float], x64: bool) -> tuple[Any, ...]:
        """The numbers of a call, checked, as arrays. XLA would compile anew for each Python int."""
        if torch.SymFloat in map(type, numbers):
            return tuple(numbers)
        if plan.dtype is None or plan.dtype.is_floating_point:
            return _arrays(plan, array("d", numbers).tobytes(), x64)
        plan.check(*numbers)
        pairs = zip(plan.numbers, numbers, strict=True)
        return tuple([_integer(n, plan.dtype, f"{self._op.name}: {name}") for name, n in pairs])

    # The first call of a kind.

    def _in_any_form(self, values: list[Any]) -> Any:
        """The result for the arguments by slot, in the form that they ask for."""
        forms = {
            form: values[slot]
            for form, slot in self.signature.forms.items()
            if slot < len(values) and values[slot] is not MISSING
        }
        plain = self.signature.unformed(values)
        if "inplace" in forms:
            return overwrite(f"{self._op.name}_", self.of_slots, *plain)
        if "out" in forms:
            return write_to(forms["out"], self._op.name, self.of_slots, *plain)
        result = self.of_slots(*plain)
        if "return_indices" in forms:
            x, *rest = self._prepared(plain)
            arguments = self.signature.named([x.detach(), *rest])
            return result, torch_counterpart(self._op)({**arguments, "return_indices": True})[1]
        return result

    def of_slots(self, *values: Any) -> Any:
        prepared = self._prepared(values)
        kind, tensors, numbers = self._classified(prepared)
        plan = self._plans.get(kind) or self._plan(prepared, tensors)
        if kind is not None:
            self._plans[kind] = plan
        return self._follow(plan, tensors, numbers)

    def _prepared(self, values: Sequence[Any]) -> list[Any]:
        """The arguments by slot as plain ones: tensors on one device, Python's numbers, ints and tuples of them."""
        if not any(isinstance(values[slot], torch.Tensor) for slot in self.signature.arrays if slot < len(values)):
            raise TypeError(
                f"{self._op.name}: input must be a torch.Tensor; jaxclamp.{self._op.name} takes numbers and JAX arrays."
            )
        prepared = [
            _as_tensor_or_number(v) if slot in self.signature.arrays else _as_static(v) for slot, v in enumerate(values)
        ]
        device = next((v.device for v in prepared if isinstance(v, torch.Tensor) and v.dim()), None)
        if self._autocast is not None:
            prepared = self._autocast(*prepared)
        if device is not None:  # as in torch, a number may come in a tensor on CPU
            prepared = [v.to(device) if _is_number_on_cpu(v) else v for v in prepared]
        dim, keepdim = self.signature.slot("dim"), self.signature.slot("keepdim")
        if dim is not None and dim < len(prepared) and prepared[dim] is not MISSING:
            if prepared[dim] == ():  # no axes are all axes
                prepared[dim] = MISSING
            elif prepared[0].dim() == 0:  # torch lets a tensor without axes reduce one, and none is left
                prepared[0] = prepared[0].reshape(1)
                if keepdim is not None and keepdim < len(prepared):
                    prepared[keepdim] = MISSING
        return prepared

    def _plan(self, values: Sequence[Any], tensors: Sequence[torch.Tensor]) -> _Plan:
        """How to compute calls with arguments such as ``values``."""
        self._refuse_complex(values)
        sources: dict[str, Any] = {}  # by the name of an argument, where it comes from
        for slot, value in enumerate(values):
            if value is not MISSING:
                sources[self.signature.jax_names[slot]] = self._source(slot, value)
        check = functools.partial(_check, self._op, sources)
        check(*[v for v, source in zip(filter(_is_given, values), sources.values(), strict=True) if source is _NUMBER])
        dtypes = {tensor.dtype for tensor in tensors}
        # Of what no array can be, jaxclamp says what to do instead.
        is_known = not any(isinstance(source, str | list) for source in sources.values())
        dtype = self._promoted(values) if is_known and not self._reduces else None
        if dtype is not None and not dtype.is_floating_point:  # a default such as -1.0 would promote
            for name, parameter in self._op.signature.parameters.items():
                if name not in sources and type(parameter.default) is float:
                    sources[name] = _integer(parameter.default, dtype, f"{self._op.name}: {name}")
        elif dtypes == {dtype}:
            dtype = None
        flat = FlatFunction(
            functools.partial(_of_arrays, self._compute, sources),
            self._op.name,
            [self.signature.torch_name(slot) for slot, v in enumerate(values) if isinstance(v, torch.Tensor)],
            layout=self._layout,
        )
        x64 = dtype in X64 if dtype is not None else not dtypes.isdisjoint(X64)
        numbers = tuple(name for name, source in sources.items() if source is _NUMBER)
        return _Plan(flat, dtype, x64, numbers, check)

    def _refuse_complex(self, values: Sequence[Any]) -> None:
        for slot, value in enumerate(values):
            dtype = torch.complex128 if isinstance(value, complex) else getattr(value, "dtype", None)
            if isinstance(dtype, torch.dtype) and dtype.is_complex:
                raise TypeError(
                    f"{self._op.name}: {self.signature.torch_name(slot)} has the complex dtype {dtype}, and the "
                    "ordering of complex numbers is undefined; apply the op to the real and the imaginary part, or to "
                    "torch.abs(...)."
                )

    def _source(self, slot: int, value: Any) -> Any:
        if slot in self.signature.arrays:
            if isinstance(value, torch.Tensor):
                return _TENSOR
            if type(value) in _PLAIN_NUMBERS:
                return _NUMBER
        return value

    def _promoted(self, values: Sequence[Any]) -> torch.dtype | None:
        """The dtype of the result by torch's type promotion; None where torch takes no such arguments.

        Raises:
          Exception: of the kind that torch raises for a call with one tensor. Where there are more, jaxclamp may take
            them as arguments for which torch wants numbers.
        """
        shapes = [(1,) * v.dim() if isinstance(v, torch.Tensor) else None for v in values]
        result = self._answer_of_torch(values, shapes, device="cpu")
        if result is None or isinstance(result, Exception):
            # Without memory torch refuses less, such as numbers that are too large, but loads its compiler for it.
            result = self._answer_of_torch(values, shapes)
        if isinstance(result, Exception):
            if len(shapes) - shapes.count(None) > 1:
                return None
            raise type(result)(f"{self._op.name}: torch refuses these arguments: {result}")
        return None if result is None else (result[0] if isinstance(result, tuple) else result).dtype

    def _refusal_of_torch(self, values: Sequence[Any]) -> type[Exception] | None:
        """The kind of exception that torch raises for the arguments, if it does."""
        try:
            shapes = [v.shape if isinstance(v, torch.Tensor) else None for v in values]
            # Without memory, torch has other exceptions for an axis of no elements.
            answer = self._answer_of_torch(self.signature.unformed(values), shapes, device="cpu")
        except Exception:  # of tensors that have no counterpart without data, such as nested ones
            return None
        return type(answer) if isinstance(answer, Exception) else None

    def _answer_of_torch(self, values: Sequence[Any], shapes: Sequence[Any], device: str = "meta") -> Any:
        """What torch's function answers for tensors of ones of these shapes, or the exception that it raises.

        A number beside a tensor, which it may not take, is asked again as a tensor. None where it takes neither, and
        for dtypes without a 1, such as quantized ones.
        """
        answer = None
        with without_dispatch_modes():
            try:
                of_shape = [
                    torch.ones(shape, dtype=v.dtype, device=device) if shape is not None else _without_symbol(v)
                    for v, shape in zip(values, shapes, strict=True)
                ]
            except RuntimeError:
                return None
            like = next(v for v in of_shape if isinstance(v, torch.Tensor))
            as_tensors = [
                torch.ones((), dtype=torch.result_type(like, v), device=device) if isinstance(v, int | float) else v
                for v in of_shape
            ]
            for given in (of_shape, as_tensors):
                try:
                    return torch_counterpart(self._op)(self.signature.named(given))
                except TypeError:
                    continue
                except NotImplementedError as refusal:
                    answer = refusal
                except (IndexError, RuntimeError, ValueError) as refusal:
                    return refusal
        return answer


_TENSOR, _NUMBER = object(), object()


def _of_arrays(compute: Callable[..., Any], sources: Mapping[str, Any], numbers: Any, *tensors: Any) -> Any:
    """``compute`` of its arguments by name, of which some come in ``numbers``, some in ``tensors``."""
    in_numbers, in_tensors = iter(numbers), iter(tensors)

    def found(source: Any) -> Any:
        return next(in_tensors) if source is _TENSOR else next(in_numbers) if source is _NUMBER else source

    # Torch broadcasts and promotes, whatever JAX has been told.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        return compute(**{name: found(source) for name, source in sources.items()})


def _check(op: Op, sources: Mapping[str, Any], *numbers: float) -> None:
    """Have the op check the numbers: it cannot see the values of traced ones."""
    if numbers and torch.SymFloat not in map(type, numbers):
        zero = np.zeros(())
        _of_arrays(op.applied, sources, numbers, *[zero for source in sources.values() if source is _TENSOR])


def _without_symbol(value: Any) -> Any:
    """A number in the place of a symbol of torch: reading the symbol would make torch guard its value."""
    return 0.5 if isinstance(value, torch.SymFloat) else value


def _is_given(value: Any) -> bool:
    return value is not MISSING


@functools.lru_cache(maxsize=4096)
def _arrays(plan: _Plan, numbers: bytes, x64: bool) -> tuple[jax.Array, ...]:
    refuse_after_fork()
    values = array("d", numbers).tolist()
    plan.check(*values)
    arrays: tuple[jax.Array, ...] = with_x64(x64, lambda: tuple(map(jnp.asarray, values)))
    return arrays


def _integer(number: float, dtype: torch.dtype, name: str) -> Any:
    try:
        return np.asarray(int(number), jax_dtype(dtype))
    except OverflowError as error:
        raise OverflowError(
            f"{name}={number} does not fit into {dtype}, the dtype of the result; convert the tensors to a wider one."
        ) from error


def _are_on_several_devices(tensors: Sequence[torch.Tensor]) -> bool:
    return len(tensors) > 1 and any(tensor.device != tensors[0].device for tensor in tensors)


def _is_number_on_cpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu"


def _as_tensor_or_number(value: Any) -> Any:
    """Arrays of other libraries as tensors; NumPy's numbers as Python's, lest they promote as arrays do."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return tensor_over(value.copy())
    return jax_to_torch(value) if isinstance(value, jax.Array) else value


def _as_static(value: Any) -> Any:
    """Sizes and axes as ints and tuples of them."""
    if isinstance(value, list | tuple):
        return tuple(map(operator.index, value))
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    return operator.index(value)


class _InPlaceOp:
    """A `TorchOp` that overwrites its first argument and returns it."""

    public: Callable[..., Any]

    def __init__(self, op: TorchOp, name: str) -> None:
        self._op = op
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        values = self._op.signature.arranged(args, kwargs)
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if has_torch_function(tensors):
            overwritten: torch.Tensor = handle_torch_function(self.public, tensors, *args, **kwargs)
            return overwritten
        return overwrite(self._name, self._op.of_slots, *values)


def _public(op: Op, torch_op: TorchOp) -> Callable[..., Any]:
    signature = torch_op.signature
    parameters = zip(signature.jax_names.values(), signature.jax_names, strict=True)
    names = list(signature.inspected.parameters)
    symbols = " and ".join(f"{name} is ``{names[slot]}``" for name, slot in parameters if name in ("x", "y"))
    about, _, _ = inspect.cleandoc(op.function.__doc__ or "").partition("Args:")
    torch_op.public = _described(
        opaque(torch_op, op.name),
        op.name,
        signature.inspected,
        f"`jaxclamp.{op.name}` for torch tensors: the signature and type promotion of torch, the gradient of jaxclamp."
        f"\n\nHere {symbols}; the arguments and errors are described there.\n\n{about.rstrip()}\n",
    )
    return torch_op.public


def _public_in_place(op: Op, torch_op: TorchOp, name: str) -> Callable[..., Any]:
    in_place = _InPlaceOp(torch_op, name)
    parameters = torch_op.signature.inspected.parameters.values()
    signature = inspect.Signature(
        [p for p in parameters if p.name not in torch_op.signature.forms], return_annotation=torch.Tensor
    )
    about = f"`interop.{op.name}`, which overwrites its first argument and returns it."
    in_place.public = _described(opaque(in_place, name), name, signature, about)
    return in_place.public


def _described(function: Callable[..., Any], name: str, signature: inspect.Signature, about: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__module__ = "interop"
    function.__doc__ = about
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    function.__annotations__["return"] = signature.return_annotation
    return function


_IMPLEMENTED = {op.function: TorchOp(op, op.function) for op in OPS.values()}
_BY_NAME = {name: op.function for op in OPS.values() for name, f in vars(jaxclamp).items() if f is op.function}
_PUBLIC = {function: _public(OPS[function.__name__], torch_op) for function, torch_op in _IMPLEMENTED.items()}
_HOMES = (torch, torch.Tensor, torch.nn.functional)

TORCH_OPS: dict[str, Callable[..., Any]] = {name: _PUBLIC[function] for name, function in _BY_NAME.items()}
"""Every op of jaxclamp for torch, under each of its names."""

IN_PLACE_OPS: dict[str, Callable[..., Any]] = {
    f"{name}_": _public_in_place(OPS[function.__name__], _IMPLEMENTED[function], f"{name}_")
    for name, function in _BY_NAME.items()
    if any(hasattr(home, f"{name}_") for home in _HOMES)
}
"""The forms that overwrite their first argument, for the ops of which torch has one."""
