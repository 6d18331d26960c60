"""Takes the branch of a `torch.where` that its condition has at the point, if the one that a step enters is NaN there.

A condition that is on a tie holds as it does a small step along the direction. The branch of that side may not be
defined at the point itself. Of ``where(x == 0, 1, sin(y) / y)`` with ``y = where(x == 0, 1, x)``, the double where, a
step from 0 enters ``sin(0) / 0``. Then the other branch counts, as in torch: 1, of slope 0.

A condition knows by an attribute how it holds at the point. What is made of conditions knows it of them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from interop._programs.order import AT_THE_POINT, value_of
from interop._torch.in_numpy import is_any
from interop.native._rules.windows_stage import is_plain

Function = Callable[..., Any]

_OF_ONE = (
    *("logical_not", "bitwise_not", "__invert__", "unsqueeze", "squeeze", "expand", "expand_as", "broadcast_to"),
    *("view", "reshape", "transpose", "permute", "__getitem__"),
)
_OF_TWO = (
    *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
    *("__and__", "__or__", "__xor__", "__rand__", "__ror__", "__rxor__"),
)
_OVERWRITING = (
    *("logical_not_", "logical_and_", "logical_or_", "logical_xor_", "bitwise_not_", "bitwise_and_", "bitwise_or_"),
    *("bitwise_xor_", "__iand__", "__ior__", "__ixor__", "copy_", "fill_", "masked_fill_"),
)
_SELECTING = ("where", "masked_fill")


def following(faster: Mapping[Function, Function]) -> Iterator[tuple[Function, Function]]:
    """Yield functions of torch that take conditions, and what is called in their place; ``faster`` is `FASTER`."""
    follows = {_OF_ONE: _of_one, _OF_TWO: _of_two, _OVERWRITING: _overwritten, _SELECTING: _defined}
    for names, follow in follows.items():
        for name in names:
            for home in (torch, torch.Tensor):
                if in_torch := getattr(home, name, None):
                    yield in_torch, functools.partial(follow, faster.get(in_torch, in_torch))
    yield torch.Tensor.__setitem__, _written


def _of_one(function: Function, condition: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function that makes a condition of one, its first argument: a mask is an index too."""
    return _of_two(lambda condition: function(condition, *args, **kwargs), condition)


def _of_two(function: Function, *conditions: Any, **kwargs: Any) -> Any:
    """Call a function that makes a condition of others."""
    result = function(*conditions, **kwargs)
    if at_the_point := _at_the_point(conditions):
        setattr(result, AT_THE_POINT, function(*at_the_point, **kwargs))
    return result


def _overwritten(function: Function, condition: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function that overwrites a condition, of which nothing is known then."""
    vars(condition).pop(AT_THE_POINT, None)
    return function(condition, *args, **kwargs)


def _defined(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Call a function that selects by a condition, and take the branch at the point where that of the step is NaN."""
    entered = function(*args, **kwargs)
    at_the_point = _at_the_point(args)
    if not at_the_point or len(args) + len(kwargs) == 1:  # `where` of a condition alone has its indices
        return entered
    is_nan = value_of(entered).isnan()
    if is_plain(is_nan) and not is_any(is_nan):
        return entered
    instead = function(*at_the_point, **kwargs)
    return torch.where(is_nan & ~value_of(instead).isnan(), instead, entered)


def _written(input: torch.Tensor, mask: Any, values: Any) -> None:
    """Write to a tensor by a mask, so that no NaN gets into it, or stays in it, that is not there at the point."""
    vars(input).pop(AT_THE_POINT, None)  # it may be a condition itself
    at_the_point = getattr(mask, AT_THE_POINT, None)
    if at_the_point is not None and mask.shape == input.shape:
        if isinstance(values, torch.Tensor) and values.dim():  # an element for each place where the mask holds
            before = input[mask]
            is_nan, was_nan = (value_of(part).isnan() for part in (values, before))
            values = torch.where(is_nan & ~was_nan & ~at_the_point[mask], before, values)
        else:
            mask = mask | (at_the_point & value_of(input).isnan())
    input[mask] = values


def _at_the_point(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the arguments with conditions as they hold at the point, or None if that is known of none."""
    known = tuple(getattr(argument, AT_THE_POINT, argument) for argument in args)
    return None if all(map(operator.is_, known, args)) else known
