"""Functions of torch of an operand that moves and one that does not: the same ones, called so that they are fast.

Torch takes the tangent of what does not move for a zero without data, and looks at a sum or product with that in
Python: ``x * 2`` takes a hundred times as long where ``x`` is a dual tensor. Here a number is passed to the function of
torch that takes numbers, and a tensor gets a tangent of zeros. The values are the same to the bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import has_torch_function

from interop._programs.order import is_transformed_within, moves

Tensor = torch.Tensor
Function = Callable[..., Any]


def _all_dual(own: Function, *args: Any, **kwargs: Any) -> Any:
    """``own``, all of whose tensors have a tangent if one of them has."""
    if is_transformed_within():  # where a tensor cannot get a tangent
        return own(*args, **kwargs)
    tensors = [value for value in (*args, *kwargs.values()) if _may_move(value)]
    still = [tensor for tensor in tensors if not moves(tensor)]
    if not 0 < len(still) < len(tensors) or kwargs.get("out") is not None:
        return own(*args, **kwargs)
    overwritten = args[0] if _overwrites(own) else None
    duals = {id(x): forward_ad.make_dual(x, torch.zeros_like(x)) for x in still if x is not overwritten}
    return own(
        *(duals.get(id(value), value) for value in args),
        **{name: duals.get(id(value), value) for name, value in kwargs.items()},
    )


def _may_move(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.layout is torch.strided


def _overwrites(own: Function) -> bool:
    return own.__name__.endswith("_")


def _with_number(of_number: Function, own: Function, *args: Any, **kwargs: Any) -> Any:
    """A function of two tensors, and its form ``of_number`` for a tensor and a number."""
    if len(args) != 2 or kwargs or not isinstance(args[1], int | float) or not _may_move(args[0]):
        return _all_dual(own, *args, **kwargs)
    if _overwrites(own) and args[0].dtype not in (torch.float32, torch.float64):  # mul_ would round the number first
        return own(*args)
    return own(*args) if has_torch_function(args) else of_number(*args)


def _difference(form: str) -> Function:
    """A sum with the opposite: torch.func does not let the result of ``aten.sub.Scalar`` be overwritten.

    A difference with a bool torch refuses.
    """
    subtracted, added = (getattr(torch.ops.aten, name + form).Scalar for name in ("sub", "add"))
    return lambda input, number: subtracted(input, number) if isinstance(number, bool) else added(input, -number)


def _product(of_number: Function, own: Function, *args: Any, **kwargs: Any) -> Any:
    """A product, whose factors may be masks or integers, which are converted as torch does it."""
    if len(args) == 2 and all(isinstance(factor, Tensor) for factor in args):
        dtype, kept = torch.result_type(*args), 1 if _overwrites(own) else 0
        args = (*args[:kept], *(factor.to(dtype) if _is_discrete(factor) else factor for factor in args[kept:]))
    return _with_number(of_number, own, *args, **kwargs)


def _is_discrete(x: Tensor) -> bool:
    return not x.is_floating_point() and not x.is_complex()


def _divided(input: Tensor, other: Any) -> Any:
    """``other / input``, as torch computes it."""
    return FASTER[torch.Tensor.mul](input.reciprocal(), other)


def _normalized(
    own: Function, input: Tensor, running_mean: Any = None, running_var: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """A normalization, whose averages cannot have tangents."""

    def of_others(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        return own(input, running_mean, running_var, *args, **kwargs)

    return _all_dual(of_others, input, *args, **kwargs)


def _dropout(own: Function, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """A product with random factors."""
    if inplace or not training or not moves(input):
        return own(input, p, training, *([True] if inplace else []))
    return _all_dual(torch.mul, input, own(torch.ones_like(input), p, training))


_OF_TWO = {
    "add": "add",
    **dict.fromkeys(("sub", "subtract"), "sub"),
    **dict.fromkeys(("mul", "multiply"), "mul"),
    **dict.fromkeys(("div", "divide", "true_divide"), "div"),
}
# fmt: off
_OF_SEVERAL = (
    "addmm", "addmv", "addbmm", "baddbmm", "addr", "addcmul", "addcdiv", "matmul", "dot", "vdot", "inner", "outer",
    "kron", "cross", "einsum", "tensordot", "rsub", "pow", "fmod", "remainder", "atan2", "hypot", "logaddexp",
    "logaddexp2", "xlogy", "ldexp", "linear", "bilinear", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "group_norm", "layer_norm", "rms_norm", "cosine_similarity",
    "cross_entropy", "kl_div", "poisson_nll_loss",
)
# fmt: on
_IN_LINALG = ("cross", "matmul", "solve", "solve_triangular", "vecdot")


def _faster() -> Iterator[tuple[Function, Function]]:
    several = [getattr(home, name, None) for home in (torch, torch.Tensor, functional) for name in _OF_SEVERAL]
    for own in (*several, *(getattr(torch.linalg, name) for name in _IN_LINALG)):
        if own is not None:
            yield own, functools.partial(_all_dual, own)
    for home in (torch, torch.Tensor):
        for name, plain in _OF_TWO.items():
            for form in ("", "_"):
                if own := getattr(home, name + form, None):
                    of_number = _difference(form) if plain == "sub" else getattr(torch.ops.aten, plain + form).Scalar
                    yield own, functools.partial(_product if plain == "mul" else _with_number, of_number, own)
    yield torch.Tensor.__rtruediv__, _divided
    for own in (functional.batch_norm, functional.instance_norm):
        yield own, functools.partial(_normalized, own)
    for own in (torch.dropout, functional.dropout):
        yield own, functools.partial(_dropout, own)


FASTER: Mapping[Function, Function] = dict(_faster())
"""By a function of torch, what is called in its place."""
