"""Fast paths for functions of one dual tensor and constants.

A constant has no tangent. Torch makes one without data for it, a zero, and decomposes the function in Python to handle
that: ``x * 2`` takes a hundred times as long where ``x`` is a dual tensor. There are ways around it, and the values
are the same to the bit:

- A number is passed to the form of the function that takes numbers: ``aten.mul.Scalar(x, 2)``.
- A tensor gets a tangent of zeros with data: ``torch.matmul(x, w)`` becomes ``matmul(x, make_dual(w, zeros))``.
- A product with a constant is linear in the other factor: its tangent is the product of the tangent.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import TorchFunctionMode, has_torch_function

from interop._programs.order import is_transformed_within, moves
from interop._torch.autocast import in_full_precision
from interop._torch.private_api import number_apart, operators_named, unpacked
from interop.native.losses import reduced

Tensor = torch.Tensor
Function = Callable[..., Any]
_aten = torch.ops.aten


def _all_dual(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Call the function with tangents of zeros for tensors that have none, if one of them has a tangent."""
    if is_transformed_within():  # where a tensor cannot get a tangent
        return function(*args, **kwargs)
    tensors = [value for value in (*args, *kwargs.values()) if _may_move(value)]
    still = [tensor for tensor in tensors if not moves(tensor)]
    # Where all tensors move, or none does, torch is as fast as it can be.
    if not 0 < len(still) < len(tensors):
        return function(*args, **kwargs)
    # `make_dual` returns another tensor: if the function overwrote that, the one that the caller has would not move.
    overwritten = args[0] if _overwrites(function) else None
    # Torch refuses to write tangents where elements share memory, as after ``expand()``.
    duals = {
        id(x): forward_ad.make_dual(x.clone() if 0 in x.stride() else x, torch.zeros_like(x))
        for x in still
        if x is not overwritten
    }
    return function(
        *(duals.get(id(value), value) for value in args),
        **{name: duals.get(id(value), value) for name, value in kwargs.items()},
    )


def _linear(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Call a function that is linear in each tensor, as a product: its tangent is that of the one that moves.

    A tangent of zeros for a constant would be multiplied by what moves, and 0 times infinity, as of a masked score, is
    NaN.
    """
    active = [i for i, x in enumerate(args) if _is_active(x)]
    i = active[0] if len(active) == 1 else None
    if i is None or not moves(args[i]) or kwargs or _overwrites(function) or is_transformed_within():
        return function(*args, **kwargs)
    value, tangent = (function(*args[:i], part, *args[i + 1 :]) for part in unpacked(args[i]))
    return number_apart(forward_ad.make_dual(value, tangent))


def _is_active(x: Any) -> bool:
    """Say whether torch has to see the operand: a gradient by a constant is made of what moves, and moves, too."""
    return isinstance(x, Tensor) and (x.requires_grad or moves(x))


def _weighted(function: Function, input: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Call a function that is linear in its input, and in its weight and bias together, as a convolution."""
    if not is_transformed_within():
        (x, dx), (w, dw), (b, db) = (unpacked(part) if moves(part) else (part, None) for part in (input, weight, bias))
        # The tangent of the one that moves, and the value of the other; a bias is added by its tangent.
        factors = (dx, w) if not _is_active(weight) else (x, dw) if not _is_active(input) else (None, None)
        if all(factor is not None for factor in factors):
            tangent = function(*factors, db, *args, **kwargs)
            return number_apart(forward_ad.make_dual(function(x, w, b, *args, **kwargs), tangent))
    return _all_dual(function, input, weight, bias, *args, **kwargs)


def _sparse_product(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Multiply by a sparse matrix; what a third argument names, such as maxima in the place of sums, is not linear."""
    return function(*args, **kwargs) if len(args) > 2 else _linear(function, *args, **kwargs)


def _quotient(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Divide, which is linear in the dividend."""
    return (_all_dual if any(map(moves, args[1:])) else _linear)(function, *args, **kwargs)


def _may_move(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.layout is torch.strided


def _overwrites(function: Function) -> bool:
    return function.__name__.endswith("_")


def _with_number(of_number: Function, of_tensors: Function, function: Function, *args: Any, **kwargs: Any) -> Any:
    """Call a function of two tensors as ``of_tensors`` does, or, for a tensor and a number, its form ``of_number``."""
    if len(args) != 2 or kwargs or not isinstance(args[1], int | float) or not _may_move(args[0]):
        return of_tensors(function, *args, **kwargs)
    # In place, the form for numbers rounds the number to a narrow dtype: in bfloat16 it makes 1.5 of 1.5 times 1.003,
    # where ``mul_`` makes 1.5078.
    if _overwrites(function) and args[0].dtype not in (torch.float32, torch.float64):
        return function(*args)
    # Modes around this one and subclasses of tensors are to see the function that was called, and no operator.
    return function(*args) if has_torch_function(args) else of_number(*args)


def _difference(form: str) -> Function:
    """Return a difference with a number, written as a sum with its opposite.

    The reason is that torch.func does not let the result of ``aten.sub.Scalar`` be overwritten. A bool has no opposite:
    it goes to ``aten.sub.Scalar``, which refuses it as torch does.
    """
    subtracted, added = (getattr(_aten, name + form).Scalar for name in ("sub", "add"))

    def difference(input: Tensor, number: Any) -> Any:
        if isinstance(number, bool):
            return subtracted(input, number)
        # ``-0.0 - 0`` is -0.0, which is what ``-0.0 + -0.0`` is; the opposite of the integer 0 is no -0.0.
        return added(input, -number or -float(number))

    return difference


def _divided(input: Tensor, numerator: Any) -> Any:
    """Return ``numerator / input``, as torch computes it."""
    return FASTER[torch.Tensor.mul](input.reciprocal(), numerator)


def _normalized(
    function: Function, input: Tensor, running_mean: Any = None, running_var: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Normalize, with running averages that get no tangents: in evaluation torch would refuse them."""

    def with_averages(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        return function(input, running_mean, running_var, *args, **kwargs)

    return _all_dual(with_averages, input, *args, **kwargs)


def _in_groups(function: Function, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Normalize in groups; below 2.15 torch's forward mode refuses ``channels_last``, which the result is in again."""
    result = _all_dual(function, input.contiguous(), *args, **kwargs)
    last = torch.channels_last
    return result.contiguous(memory_format=last) if input.is_contiguous(memory_format=last) else result


def as_floats(input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Convert integers among the operands of a loss: in forward mode torch fails to write the tangent to them."""
    dtype = torch.result_type(*in_full_precision(input, target))
    input, target = (x if x.is_floating_point() or x.is_complex() else x.to(dtype) for x in (input, target))
    return input, target


def _loss_of_floats(function: Function, input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:
    return function(*as_floats(input, target), *args, **kwargs)


def _squared_error(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Any:
    """Compute `mse_loss`, written out: torch fails in forward mode of its gradient."""
    input, target = as_floats(input, target)
    # Torch writes out the first, warns of the second, and refuses the last.
    if weight is not None or input.shape != target.shape or torch.result_type(input, target).is_complex:
        further = () if weight is None else (weight,)
        return functional.mse_loss(input, target, size_average, reduce, reduction, *further)
    difference = _all_dual(torch.sub, *in_full_precision(input, target))
    return reduced(difference.square(), size_average, reduce, reduction)


def _dropout(function: Function, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Drop out by a product: ``dropout(ones)`` has the factors, 0 or ``1 / (1 - p)``, as torch would draw them."""
    if inplace or not training or not moves(input):
        return function(input, p, training, *([True] if inplace else []))
    return _linear(torch.mul, input, function(torch.ones_like(input), p, training))


_ARITHMETIC = {
    "add": "add",
    **dict.fromkeys(("sub", "subtract"), "sub"),
    **dict.fromkeys(("mul", "multiply"), "mul"),
    **dict.fromkeys(("div", "divide", "true_divide"), "div"),
}
"""Maps a name of a function of two numbers to that of its operator, which has a form for a tensor and a number."""
# fmt: off
_DECOMPOSED = (
    "addmm", "addmv", "addbmm", "baddbmm", "rsub", "fmod", "remainder", "logaddexp", "logaddexp2", "bilinear",
    "layer_norm", "rms_norm", "cosine_similarity", "cross_entropy", "poisson_nll_loss",
)
# fmt: on
"""The functions that torch decomposes beside a constant, as tests/programs/test_constants.py sees from its frames.

Those whose slope by the constant has no bound, as pow, are not among them: 0 times that may be NaN.
"""
_PRODUCTS = ("matmul", "mm", "mv", "dot", "vdot", "vecdot", "inner", "outer", "kron", "cross", "einsum", "tensordot")
"""Further ones, which are linear in each tensor."""
_WEIGHTED = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
"""Further ones, which have a bias beside the product."""


def _faster() -> Iterator[tuple[Function, Function]]:
    """Yield functions of torch, and what is called in the place of each."""
    for names, path in ((_DECOMPOSED, _all_dual), (_PRODUCTS, _linear), (_WEIGHTED, _weighted)):
        for name in names:
            for home in (torch, torch.Tensor, functional, torch.linalg):
                if function := getattr(home, name, None):
                    yield function, functools.partial(path, function)
    yield torch.sparse.mm, functools.partial(_sparse_product, torch.sparse.mm)
    for function in (torch.linalg.solve, torch.linalg.solve_triangular):
        yield function, functools.partial(_all_dual, function)
    for home in (torch, torch.Tensor):
        for name, operator in _ARITHMETIC.items():
            of_tensors = {"mul": _linear, "div": _quotient}.get(operator, _all_dual)
            for form in ("", "_"):
                if function := getattr(home, name + form, None):
                    of_number = _difference(form) if operator == "sub" else getattr(_aten, operator + form).Scalar
                    yield function, functools.partial(_with_number, of_number, of_tensors, function)
    yield torch.Tensor.__rtruediv__, _divided
    for function in (functional.batch_norm, functional.instance_norm):
        yield function, functools.partial(_normalized, function)
    for function in (torch.group_norm, functional.group_norm):
        yield function, functools.partial(_in_groups, function)
    yield functional.mse_loss, _squared_error
    for function in operators_named("mse_loss"):
        yield function, functools.partial(_loss_of_floats, function)
    for function in (torch.dropout, functional.dropout):
        yield function, functools.partial(_dropout, function)


FASTER: Mapping[Function, Function] = dict(_faster())
"""Maps a function of torch to the one that is called in its place."""


class FastPaths(TorchFunctionMode, contextlib.ContextDecorator):
    """A block, or a decorator, in which functions of one dual tensor and constants take their fast paths."""

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return FASTER.get(func, func)(*args, **(kwargs or {}))
