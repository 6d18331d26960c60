"""The ops of jaxclamp under torch's own signatures and type promotion, derived from their records."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
from array import array
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.overrides import handle_torch_function, has_torch_function

import jaxclamp
from interop._arrays import WIDE, jax_dtype, refuse_after_fork
from interop._forms import annotate, bind, in_place, with_forms
from interop._function import FlatFunction, in_width, is_wide, resolver, traceable
from jaxclamp import OPS, Op, WithIndices
from jaxclamp._counterparts import Counterpart

_TORCH_NAMES = {"x": "input", "y": "other", "axis": "dim", "keepdims": "keepdim"}
_NUMPY_NAMES = {"x": "input", "a": "input", "x1": "input", "x2": "other", "axis": "dim", "keepdims": "keepdim"}
_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_PLAIN_STATIC = frozenset({bool, int, str, tuple, type(None)})
_AUTOCAST = {"prelu"}
"""The ops that torch.autocast computes in its lower precision."""


def derive(op: Op) -> Callable[..., Any]:
    """``op`` under torch's signature and type promotion."""
    native = _native(op)
    parameters = inspect.signature(op.function).parameters
    jax_names = {_TORCH_NAMES.get(name, name): name for name in parameters}

    @functools.wraps(op.function)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        return op.function(*args, **{jax_names.get(name, name): value for name, value in kwargs.items()})

    bounds = [torch_name for torch_name, name in jax_names.items() if "ArrayLike" in str(parameters[name].annotation)]
    with_indices = "WithIndices" in str(inspect.signature(op.function).return_annotation)
    signature = inspect.Signature(
        [
            parameters[name].replace(
                name=torch_name, annotation=_in_torch(torch_name, str(parameters[name].annotation))
            )
            for torch_name, name in jax_names.items()
        ],
        return_annotation=tuple[torch.Tensor, torch.Tensor] if with_indices else torch.Tensor,
    )
    annotate(renamed, signature)
    resolve = resolver(renamed, is_elementwise=op.family != "reduction")

    names = list(signature.parameters)
    slots: frozenset[int | str] = frozenset([*bounds, *map(names.index, bounds)])  # by name and by position
    required = sum(p.default is p.empty for p in signature.parameters.values())
    prepared: dict[Any, tuple[FlatFunction, bool]] = {}  # for a kind of call, and whether it needs the 64-bit mode

    def promote(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as torch's promotion would have them."""
        kwargs = {name if name in names else _NUMPY_NAMES.get(name, name): value for name, value in kwargs.items()}
        if len(args) < required or not kwargs.keys() <= signature.parameters.keys() or "dim" in names:
            bound = bind(op.name, signature, args, kwargs)  # it names what is missing or unknown
            if "dim" in bound.arguments:
                bound.arguments.update(_along(**bound.arguments))
            args, kwargs = bound.args, bound.kwargs
        if op.name in _AUTOCAST:
            args, kwargs = _autocast(args), dict(zip(kwargs, _autocast(kwargs.values()), strict=True))
        dtypes = {value.dtype for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)}
        if not dtypes:
            raise TypeError(
                f"{op.name}: input must be a torch.Tensor; jaxclamp.{op.name} takes numbers and JAX arrays."
            )
        floating = all(dtype.is_floating_point for dtype in dtypes)
        args = tuple([_as_number(v, floating) if slot in slots else v for slot, v in enumerate(args)])
        kwargs = {name: _as_number(v, floating) if name in slots else v for name, v in kwargs.items()}
        if (len(dtypes) > 1 or not floating) and not any(dtype.is_complex for dtype in dtypes):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            # Where torch refuses, jaxclamp may still compute; if it refuses too, its error says why.
            with contextlib.suppress(TypeError, RuntimeError, ValueError):
                dtype = _result_dtype(op, _kinds(bound.arguments, jax_names), torch.get_default_dtype())
                bound.arguments.update(
                    {name: _to(dtype, bound.arguments[name], f"{op.name}: {name}") for name in bounds}
                )
                args, kwargs = bound.args, bound.kwargs
        return args, kwargs

    @functools.wraps(renamed)
    def function(*args: Any, **kwargs: Any) -> Any:
        key, tensors, numbers = _sort(args, kwargs, slots)
        if has_torch_function(tensors):
            return handle_torch_function(function, tensors, *args, **kwargs)
        traced = None
        known = prepared.get(key)
        if known is not None:
            flat, wide = known
            wide = wide or jax.config.jax_enable_x64  # type: ignore[attr-defined]
        else:
            given = tensors
            flat, traced, tensors = resolve(*promote(args, kwargs))
            wide = is_wide((*tensors, *traced))
            if all(type(value) is float for value in traced):
                numbers, traced = list(traced), None
            if key is not None and _needs_no_promotion(op, given) and all(map(operator.is_, given, tensors)):
                prepared[key] = flat, given[0].dtype in WIDE
        if traced is None:
            traced = _constants(flat, array("d", numbers).tobytes(), wide) if numbers else ()
        result = flat(traced, wide, tensors)
        if isinstance(result, WithIndices):
            as_in_torch = getattr(torch.return_types, native.function.__name__)
            values, indices = cast("tuple[torch.Tensor, torch.Tensor]", result)
            return as_in_torch((values, indices.long()))
        return result

    symbols = " and ".join(
        f"{jax_name} is ``{name}``" for name, jax_name in jax_names.items() if jax_name in ("x", "y")
    )
    about, _, _ = inspect.cleandoc(op.function.__doc__ or "").partition("Args:")
    function.__doc__ = (
        f"`jaxclamp.{op.name}` for torch tensors: the signature and type promotion of torch, the gradient of jaxclamp."
        f"\n\nHere {symbols}; the arguments and errors are described there.\n\n{about.rstrip()}\n"
    )
    function.__module__ = "interop"
    return function


def _in_torch(name: str, annotation: str) -> Any:
    """The annotation of a parameter, as torch has it."""
    if "ArrayLike" not in annotation:
        return annotation
    taken = torch.Tensor if name == "input" else torch.Tensor | float
    return taken | None if "None" in annotation else taken


def _native(op: Op) -> Counterpart:
    return next(c for c in map(Counterpart, op.counterparts) if c.framework == "torch")


def _as_number(value: Any, floating: bool) -> Any:
    """A bound as a number: NumPy's scalars would promote as arrays, and every new int would compile anew."""
    if isinstance(value, np.generic):
        value = value.item()
    return float(value) if floating and type(value) is int else value


def _autocast(values: Iterable[Any]) -> tuple[Any, ...]:
    def cast_(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not torch.amp.is_autocast_available(value.device.type):
            return value
        if not torch.is_autocast_enabled(value.device.type):
            return value
        is_cast = value.is_floating_point() and value.dtype != torch.float64
        return value.to(torch.get_autocast_dtype(value.device.type)) if is_cast else value

    return tuple(map(cast_, values))


def _to(dtype: torch.dtype, value: Any, name: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    if dtype.is_floating_point or value is None:
        return value
    try:
        return np.asarray(int(value), jax_dtype(dtype))  # an array, since every new int would compile anew
    except OverflowError as error:
        raise OverflowError(
            f"{name}={value} does not fit into {dtype}, the dtype of the result; convert the tensors to a wider one."
        ) from error


def _along(input: torch.Tensor, dim: Any, **rest: Any) -> dict[str, Any]:
    """The arguments of a reduction with axes as torch reads them."""
    if isinstance(dim, list | tuple):
        dim = tuple(map(operator.index, dim)) or None  # no axes are all axes
    elif dim is not None:
        dim = operator.index(dim)
    if isinstance(input, torch.Tensor) and input.dim() == 0 and dim is not None:  # it has an axis, and loses it
        return {**rest, "input": input.reshape(1), "dim": dim, "keepdim": False}
    return {**rest, "input": input, "dim": dim}


def _sort(
    args: tuple[Any, ...], kwargs: dict[str, Any], bounds: Container[int | str]
) -> tuple[tuple[Any, ...] | None, list[torch.Tensor], list[float]]:
    """What a call has in common with others, its tensors and its numbers.

    The first is None where a call has arguments that need to be looked at each time.
    """
    key: list[Any] = []
    tensors: list[torch.Tensor] = []
    numbers: list[float] = []
    is_plain = True
    for slot, value in (*enumerate(args), *sorted(kwargs.items())) if kwargs else enumerate(args):
        kind = type(value)
        if kind in _PLAIN_TENSORS:
            tensors.append(value)
            key += slot, value.dtype, value.dim() > 0
        elif kind is float or (kind is int and slot in bounds):
            numbers.append(value)
            key += slot, float
        elif kind in _PLAIN_STATIC:
            key += slot, kind, value
        else:
            is_plain = False
            if isinstance(value, torch.Tensor):
                tensors.append(value)
    return tuple(key) if is_plain else None, tensors, numbers


def _needs_no_promotion(op: Op, tensors: list[torch.Tensor]) -> bool:
    dtypes = {tensor.dtype for tensor in tensors}
    return len(dtypes) == 1 and next(iter(dtypes)).is_floating_point and op.name not in _AUTOCAST


@functools.lru_cache(maxsize=4096)
def _constants(flat: FlatFunction, numbers: bytes, wide: bool) -> tuple[jax.Array, ...]:
    """Numbers of a call as JAX takes them, once the op has looked at them: traced they would have no value."""
    refuse_after_fork()
    values = array("d", numbers).tolist()
    flat.function(values, *[jnp.zeros(())] * len(flat.arguments))
    arrays: tuple[jax.Array, ...] = in_width(wide, lambda: tuple(map(jnp.asarray, values)))
    return arrays


def _kinds(arguments: Mapping[str, Any], jax_names: Mapping[str, str]) -> tuple[tuple[str, Any, Any], ...]:
    """What type promotion depends on: (name, dtype, whether it has dimensions), or (name, type, number)."""
    return tuple(
        (jax_names[name], value.dtype, value.dim() > 0)
        if isinstance(value, torch.Tensor)
        else (jax_names[name], type(value), value)
        for name, value in arguments.items()
        if isinstance(value, torch.Tensor | int | float)
    )


@functools.lru_cache(maxsize=1024)
def _result_dtype(op: Op, kinds: tuple[tuple[str, Any, Any], ...], default: torch.dtype) -> torch.dtype:
    """What torch's op answers on tensors without data; a bound that it takes only as a tensor is given as one."""
    native = _native(op)
    tensors = {
        name: torch.empty((1,) * has_dimensions, dtype=dtype, device="meta")
        for name, dtype, has_dimensions in kinds
        if isinstance(dtype, torch.dtype)
    }
    numbers = {name: number for name, kind, number in kinds if not isinstance(kind, torch.dtype)}
    try:
        result = native(tensors | numbers)
    except (TypeError, RuntimeError):
        result = native(tensors | {n: torch.tensor(number, device="meta") for n, number in numbers.items()})
    dtype: torch.dtype = (result[0] if isinstance(result, tuple) else result).dtype
    return dtype


PLAIN_OPS = {op.function: derive(op) for op in OPS.values()}
"""Every op for torch without further forms, by the function of jaxclamp: what `torch.overrides` gets to see."""

_all_forms = {op.function: traceable(with_forms(_native(op), PLAIN_OPS[op.function])) for op in OPS.values()}
_by_name = {name: f for name, f in vars(jaxclamp).items() if inspect.isfunction(f) and f in PLAIN_OPS}

TORCH_OPS: dict[str, Callable[..., Any]] = {name: _all_forms[function] for name, function in _by_name.items()}
"""Every op of jaxclamp for torch, under each of its names."""

IN_PLACE_OPS: dict[str, Callable[..., Any]] = {
    f"{name}_": traceable(in_place(f"{name}_", PLAIN_OPS[function]))
    for name, function in _by_name.items()
    if any(hasattr(home, f"{name}_") for home in (torch, torch.Tensor, torch.nn.functional))
}
"""The forms that overwrite their first argument, for the ops of which torch has one."""
