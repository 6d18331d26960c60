"""Quadratic forms: which tensors of a block are products of what moves, and what linear functions make of such.

A root sees a 0, but not of what. So the block keeps for each product what its factors are, and for what is added up,
scaled or moved the forms that it is made of. Of ``s = (x * x).sum() + 4 * y * z``, for example, these are the square of
x, its sum, the product of 4 y and z, and the sum of both. So s can be computed of other numbers for x, 4 y and z.
"""

from __future__ import annotations

import dataclasses
import functools
import graphlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSet, Sequence
from numbers import Real
from typing import Any

import torch
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from interop._programs.dual_fast_paths import as_floats
from interop._programs.order import moves
from interop._torch.forms import NUMPY_NAMES
from interop._torch.in_numpy import is_any
from interop._torch.private_api import operators_named, version_of
from interop.native._rules.windows_stage import is_on_gpu, is_plain

Tensor = torch.Tensor
Function = Callable[..., Any]


@dataclasses.dataclass(eq=False)
class Form:
    """A product of what moves, or what a linear function makes of such: a quadratic form of all the factors."""

    function: Callable[..., Tensor]
    operands: tuple[Tensor | Form, ...]
    """What the function takes: the factors of a product, once if it is the square of one, or forms."""
    is_square: bool
    """Whether it is a sum of squares with weights that are not negative, and so is not negative itself."""
    constants: tuple[Tensor, ...] = ()
    """What is added, and is no form; the function takes it for 0.

    If one moves, the sum is no quadratic form. That a tangent is 0 does not say that it stands still: at x = 0 that of
    ``1 - cos(x)`` is 0, too.
    """
    beside: tuple[Tensor, ...] = ()
    """What else the function reads: weights, which may move, masks and indices."""
    factors: tuple[Tensor, ...] = dataclasses.field(init=False)
    """The tensors among the operands."""
    forms: tuple[Form, ...] = dataclasses.field(init=False)
    """The forms among the operands."""
    has_moving_constants: bool = dataclasses.field(init=False)
    """Whether a constant moves, of this form or of one that it is made of."""

    def __post_init__(self) -> None:
        self.factors = tuple(x for x in self.operands if isinstance(x, Tensor))
        self.forms = tuple(x for x in self.operands if isinstance(x, Form))
        self.has_moving_constants = any(map(moves, self.constants)) or any(x.has_moving_constants for x in self.forms)
        self._state = _state(*self.factors, *self.constants, *self.beside)

    def in_order(self) -> list[Form] | None:
        """Return all forms that this one is made of, and it, each behind those that it takes.

        Return None if a tensor was overwritten since, or a constant moves.
        """
        taken: dict[Form, tuple[Form, ...]] = {}
        pending = [self]  # no recursion: a loop may add to its last result many times
        while pending:
            form = pending.pop()
            if form in taken:
                continue
            is_as_it_was = form._state == _state(*form.factors, *form.constants, *form.beside)
            if not is_as_it_was or any(map(moves, form.constants)):
                return None
            taken[form] = form.forms
            pending += form.forms
        return [*graphlib.TopologicalSorter(taken).static_order()]


@dataclasses.dataclass(eq=False)
class Selection:
    """What is taken of quadratic forms, as the smallest of several: its root is what is taken of their roots."""

    elements: tuple[Tensor, ...]
    """The tensors that it is taken of, not all of which need be forms."""
    of_roots: Callable[[Callable[[Any], Any]], Tensor]
    """Takes it of what a function makes of these tensors, and of the numbers beside them."""
    beside: tuple[Tensor, ...] = ()
    """What is read beside: masks and indices."""

    def __post_init__(self) -> None:
        self._state = _state(*self.elements, *self.beside)

    def is_as_it_was(self) -> bool:
        """Return whether no tensor was overwritten since."""
        return self._state == _state(*self.elements, *self.beside)


_KNOWN: MutableMapping[Tensor, tuple[Form | Selection, list[int]]] = WeakTensorKeyDictionary()
"""Maps a tensor to the form or the selection that it is, and to the state in which it was computed."""


def _state(*tensors: Tensor) -> list[int]:
    """Return what changes where a tensor is overwritten, and between a block of `torch.no_grad` and outside of it.

    A form that was computed in such a block is a constant to a root behind it, although its factors are none.
    """
    return [torch.is_grad_enabled(), *map(version_of, tensors)]


def keep(result: Tensor, known: Form | Selection | None) -> None:
    """Keep what a result is, if it is one of these, and real numbers: `type` may return a string, `to` complex ones."""
    if known is not None and isinstance(result, Tensor) and result.is_floating_point():
        _KNOWN[result] = known, _state(result)


def forget() -> None:
    """Forget all forms of a block that is left: what they are made of would live as long as they do."""
    _KNOWN.clear()


def known_as(x: Any) -> Form | Selection | None:
    """Return the form or the selection that ``x`` is, if that is known, and x was not overwritten."""
    entry, state = _KNOWN.get(x, (None, [])) if _KNOWN and isinstance(x, Tensor) else (None, [])
    if entry is None or state != _state(x) or (isinstance(entry, Selection) and not entry.is_as_it_was()):
        return None
    return entry


def form_of(x: Any) -> Form | None:
    """Return the form that ``x`` is, if that is known, and x was not overwritten."""
    form = known_as(x)
    return form if isinstance(form, Form) else None


def behind(x: Tensor, passed: MutableSet[Form | Selection]) -> Iterator[Tensor]:
    """Yield the tensors whose tangents a root of ``x`` reads beside that of ``x``, unless they are behind one passed.

    What is passed on the way is noted: a loop may select of its last result many times.
    """
    pending: list[Tensor | Form] = [x] if _KNOWN else []
    while pending:
        each = pending.pop()
        entry = each if isinstance(each, Form) else _KNOWN.get(each, (None, []))[0]
        if entry is None or entry in passed:
            continue
        passed.add(entry)
        if isinstance(entry, Form):
            yield from (*entry.factors, *entry.constants)
            pending += entry.forms
        else:
            yield from entry.elements
            pending += entry.elements


# What is kept: for the arguments of a function of torch the form that it computes, or None.


def square(function: Function, input: Tensor, *args: Any, **kwargs: Any) -> Form | None:
    """Take a function of one tensor for a sum of squares of its elements, if they are real numbers."""
    if not isinstance(input, Tensor) or not input.is_floating_point():
        return None  # complex numbers have a sum of 0 elsewhere too, as 1 + 1j ** 2
    return Form(lambda x: function(x, *args, **kwargs), (input,), is_square=True)


def _squared_error(function: Function, input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Form | None:
    """Take the squares of the differences of two tensors, a form of both: it is 0 where they are equal."""
    if kwargs.get("weight") is not None or input.is_complex() or target.is_complex():
        return None
    return Form(lambda x, y: function(x, y, *args, **kwargs), as_floats(input, target), is_square=True)


def _product(
    function: Function, *args: Any, is_elementwise: bool = False, is_inner: bool = False, **kwargs: Any
) -> Form | None:
    """Take a form with a weight, or the product of two tensors that move, which is a form of both.

    ``is_elementwise`` says that it multiplies elements at the same place, and may add up such products, ``is_inner``
    that of two vectors it is the inner product.
    """
    factors = (*args, *(kwargs.pop(name) for name in _NAMES_OF_FACTORS if name in kwargs))
    if len(factors) != 2:
        return None
    for i, weight in ((0, factors[1]), (1, factors[0])):
        form = form_of(factors[i])
        squares = factors[i] if form and form.is_square and is_elementwise else None
        if form and not form.has_moving_constants and _may_weigh(weight, squares):
            keeps_sign = isinstance(weight, Real) and float(weight) >= 0
            return _linear([i], function, *factors, keeps_sign=keeps_sign, **kwargs)
    if not all(moves(x) and x.is_floating_point() for x in factors):
        return None
    is_square = _are_same(*factors) and (is_elementwise or (is_inner and factors[0].dim() == 1))
    return Form(functools.partial(function, **kwargs), factors, is_square)


_NAMES_OF_FACTORS = ("input", "other", "tensor", "tensor2", "y", "mat2", "vec", "vec2")


def _einsum(function: Function, equation: Any, *operands: Any) -> Form | None:
    """Take a product whose equation is a string; that of one tensor with equal subscripts is a sum of squares."""
    subscripts = equation.replace(" ", "").split("->")[0].split(",") if isinstance(equation, str) else []
    is_elementwise = len(subscripts) == 2 and subscripts[0] == subscripts[1]
    return _product(functools.partial(function, equation), *operands, is_elementwise=is_elementwise)


def _may_weigh(weight: Any, squares: Tensor | None) -> bool:
    """Return whether a weight does not move where it is 0; where squares that it weighs one by one are 0, it may.

    Then the slope of the product is that of the form with this weight.
    """
    if not moves(weight):
        return isinstance(weight, Real) or (isinstance(weight, Tensor) and not weight.is_complex())
    has_numbers = is_plain(weight) or is_on_gpu(weight)  # a graph that is traced has none yet
    return has_numbers and not is_any((weight == 0) & (True if squares is None else squares != 0))


def _weighted(
    function: Function, input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Form | None:
    """Take what a layer with constant weights makes of a form, as a convolution that adds up squares in windows."""
    if bias is not None or moves(weight):
        return None
    return _linear([0], function, input, weight, None, *args, keeps_sign=False, **kwargs)


def _quotient(function: Function, *args: Any, **kwargs: Any) -> Form | None:
    operands = (*args, *(kwargs.pop(name) for name in ("input", "other") if name in kwargs))
    keeps_sign = isinstance(operands[-1], Real) and float(operands[-1]) > 0
    return _linear([0], function, *operands, keeps_sign=keeps_sign, **kwargs)


def _addition(function: Function, *args: Any, keeps_sign: bool = True, **kwargs: Any) -> Form | None:
    """Take a sum or a difference of two; an older call of torch has a number between them, which scales the second."""
    terms = (*args, *(kwargs.pop(name) for name in ("input", "other") if name in kwargs))
    return _linear((0, 1), function, *terms, keeps_sign=keeps_sign, **kwargs) if len(terms) == 2 else None


def _interpolation(function: Function, *args: Any, **kwargs: Any) -> Form | None:
    """Take what lies between two by a constant weight: where one that moves is 0, a root may have an infinite slope."""
    if any(map(moves, (*args[2:], *kwargs.values()))):
        return None
    return _linear((0, 1), function, *args, keeps_sign=False, **kwargs)


def _are_same(x: Tensor, y: Tensor) -> bool:
    """Return whether two operands are one tensor, or the same part of one, as in ``x[0] * x[0]``."""
    return x is y or (x._base is not None and x._base is y._base and _part(x) == _part(y))


def _part(x: Tensor) -> tuple[Any, ...]:
    """Return which part a tensor is of what it shows the memory of."""
    return x.shape, x.stride(), x.storage_offset(), x.dtype, x.is_neg(), x.requires_grad


def _linear(
    terms: Sequence[int], function: Function, *args: Any, keeps_sign: bool = True, **kwargs: Any
) -> Form | None:
    """Take what a function makes of the arguments at ``terms``, in which it is linear, if some are quadratic forms.

    The others of these are constants, which count as 0: where they are not, the result is not 0 where all factors are.
    ``keeps_sign`` says that the function makes no negative number of numbers that are none, but for an ``alpha``.

    Of ``add(s, c)``, where ``s = x * x`` is such a form and c is none, it is the function s -> add(s, 0 * c), with the
    constant c. Of ``where(mask, s, c)``, whose terms are the arguments 1 and 2, the mask stays as it is.
    """
    forms = {i: form for i in terms if i < len(args) and (form := form_of(args[i]))}
    if not forms or len(args) <= max(terms):  # a term may be a keyword argument
        return None

    no_forms = {i: arg for i, arg in enumerate(args) if i not in forms}  # the forms themselves need no memory then

    def of_forms(*values: Tensor) -> Tensor:
        operands = {i: 0 * arg if i in terms else arg for i, arg in no_forms.items()}
        operands |= zip(forms, values, strict=True)
        result: Tensor = function(*(operands[i] for i in range(len(operands))), **kwargs)
        return result

    return Form(
        of_forms,
        tuple(forms.values()),
        keeps_sign and "alpha" not in kwargs and all(form.is_square for form in forms.values()),
        constants=tuple(arg for i, arg in no_forms.items() if i in terms and isinstance(arg, Tensor)),
        beside=tuple(_tensors_in((*no_forms.values(), *kwargs.values()))),
    )


def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments, also those in a tuple of indices; a pytree takes many times as long."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors_in(value)


def _taken(function: Function, input: Tensor, *args: Any, **kwargs: Any) -> Form | Selection | None:
    """Take what a function only moves, as `reshape`: a form, or what is taken of such."""
    if not isinstance(known_as(input), Selection):
        return _linear([0], function, input, *args, **kwargs)
    beside = tuple(_tensors_in((*args, *kwargs.values())))
    return Selection((input,), lambda root: function(root(input), *args, **kwargs), beside)


def _joined(function: Function, tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Form | None:
    """Take what is joined of forms and others, in which a function of a list of tensors is linear."""

    def of_tensors(*tensors: Tensor) -> Tensor:
        result: Tensor = function(tensors, *args, **kwargs)
        return result

    return _linear(range(len(tensors)), of_tensors, *tensors)


_sum = functools.partial(_linear, (0,))

_MAKERS: Mapping[str, Callable[..., Form | Selection | None]] = {
    **dict.fromkeys(("square", "var"), square),
    "mse_loss": _squared_error,
    **dict.fromkeys(("mul", "multiply", "vecdot"), functools.partial(_product, is_elementwise=True)),
    **dict.fromkeys(("dot", "vdot", "inner", "matmul"), functools.partial(_product, is_inner=True)),
    **dict.fromkeys(("outer", "mm", "bmm", "mv"), _product),
    "einsum": _einsum,
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d"), _weighted),
    **dict.fromkeys(("div", "divide", "true_divide"), _quotient),
    "add": _addition,
    **dict.fromkeys(("sub", "subtract", "rsub"), functools.partial(_addition, keeps_sign=False)),
    "lerp": _interpolation,
    **dict.fromkeys(("neg", "negative"), functools.partial(_linear, (0,), keeps_sign=False)),
    "where": functools.partial(_linear, (1, 2)),
    "masked_fill": functools.partial(_linear, (0, 2)),
    **dict.fromkeys(("scatter_add", "index_add"), functools.partial(_linear, (0, 3))),
    **dict.fromkeys(("sum", "nansum", "mean", "cumsum", "trace", "sum_to_size"), _sum),
    **dict.fromkeys(
        (
            *("avg_pool1d", "avg_pool2d", "avg_pool3d"),
            *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
        ),
        _sum,
    ),
    **dict.fromkeys(
        (
            *("reshape", "view", "flatten", "squeeze", "unsqueeze", "expand", "repeat", "transpose"),
            *("t", "permute", "movedim", "swapaxes", "flip", "roll", "clone", "contiguous", "select", "narrow"),
            *("diagonal", "tril", "triu", "__getitem__", "gather", "index_select", "take_along_dim", "masked_select"),
            *("unflatten", "double", "float", "half", "bfloat16", "to", "type", "type_as"),
            *("numpy_T", "mT", "slice", "index", "alias", "_unsafe_view", "_to_copy"),  # in graphs of operators
        ),
        _taken,
    ),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "hstack", "vstack"), _joined),
}
_SPLITTING = ("split", "chunk", "tensor_split", "unbind")
_TORCH_NAMES = {**NUMPY_NAMES, "self": "input"}
"""Maps what NumPy and operators call a parameter to what functions of torch call it."""


def _watched() -> Iterator[tuple[Function, Function]]:
    watches: dict[str, Function] = {name: functools.partial(_watch, maker) for name, maker in _MAKERS.items()}
    for attribute in (torch.Tensor.T.__get__, torch.Tensor.mT.__get__):  # type: ignore[attr-defined]
        yield attribute, functools.partial(watches["transpose"], attribute)
    for name, watch in {**watches, **dict.fromkeys(_SPLITTING, _watch_parts)}.items():
        functions = (getattr(home, name, None) for home in (torch, torch.Tensor, torch.linalg, functional))
        for function in (*filter(callable, functions), *operators_named(name)):  # `torch.half` is a dtype
            yield function, functools.partial(watch, function)


def _watch(maker: Function, function: Function, result: Tensor, *args: Any, out: Any = None, **kwargs: Any) -> None:
    if out is None:
        named = {_TORCH_NAMES.get(name, name): value for name, value in kwargs.items()}
        keep(result, maker(function, *args, **named))


def _watch_parts(function: Function, result: Sequence[Tensor], *args: Any, **kwargs: Any) -> None:
    """Do as `_watch` for each of the parts that a tensor is split into."""
    for i, part in enumerate(result if args else ()):
        of_whole = lambda *args, i=i, **kwargs: function(*args, **kwargs)[i]  # noqa: E731
        keep(part, _taken(of_whole, *args, **kwargs))


WATCHED: Mapping[Function, Function] = dict(_watched())
"""Maps a function of torch to what sees its result, and its arguments."""
