"""Roots of sums of squares: norms that are written by hand, as ``x.pow(2).sum().sqrt()`` or ``(x * x + y * y) ** 0.5``.

At 0 torch makes NaN of them, as the infinite slope of the root meets the slope 0 of the squares. Here they are what
`torch.linalg.vector_norm` is in `reductions.py`: where all elements are 0 and move by v, the linear piece with the
gradient that the norm has at v. A standard deviation is such a root too.

A root sees a sum of 0, but not of what. So the block keeps for each square of what elements it is, and how it is
computed of them, and the same for what linear functions make of squares. Of ``s = (x * x).sum() + 4 * y * y``, for
example, that is the function from x and y to s. Of what is selected of sums, as the smallest of several, the block
keeps how: ``sqrt(min(s))`` is ``min(sqrt(s))``, of norms, whose tangents say which is the smallest at 0.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from interop._programs.dual_fast_paths import as_floats
from interop._programs.order import are_late, may_be_at, moves, value_and_tangent, value_of
from interop._torch.in_numpy import is_any
from interop._torch.private_api import flattened, operators_named, version_of, whole_of
from interop.native._rules.windows_stage import is_on_gpu, is_plain

Tensor = torch.Tensor
Function = Callable[..., Any]


class Squares(NamedTuple):
    """A sum of squares, with weights that are not negative: a quadratic form q of the elements of several tensors."""

    elements: tuple[Tensor, ...]
    form: Callable[..., Tensor]
    """Computes the sum of these tensors, or of others in their place."""
    constants: tuple[Tensor, ...] = ()
    """What is added on the way, and is no square: if it moves, the sum is none of squares. A weight may move.

    Nor is it if the constant has a tangent of 0: that of ``2 * x * y``, as of a square, is 0 where x and y are.
    """
    beside: tuple[Tensor, ...] = ()
    """All that is read beside the elements: constants, weights, masks and indices."""


class Selection(NamedTuple):
    """What is taken of sums of squares, as the smallest of several: its root is what is taken of their roots."""

    elements: tuple[Tensor, ...]
    """The tensors that it is taken of, not all of which need be sums of squares."""
    of_roots: Callable[[Callable[[Any], Any]], Tensor]
    """Takes it of what a function makes of these tensors, and of the numbers beside them."""
    beside: tuple[Tensor, ...] = ()
    """What is read beside: masks and indices."""


_KNOWN: MutableMapping[Tensor, tuple[Squares | Selection, list[int]]] = WeakTensorKeyDictionary()
"""Maps a tensor to the sum or the selection that it is, and to the state in which it was computed."""
_MULTIPLES: MutableMapping[Tensor, tuple[Real, weakref.ref[Tensor], list[Any]]] = WeakTensorKeyDictionary()
"""Maps ``c * x``, for a number c that is not negative, to c, the tensor whose memory x shows, its part and state."""


def _state(*tensors: Tensor) -> list[int]:
    """Return what changes where a tensor is overwritten, and between a block of `torch.no_grad` and outside of it.

    A sum that was computed in such a block is a constant to a root behind it, although its elements are none.
    """
    return [torch.is_grad_enabled(), *map(version_of, tensors)]


def _keep(result: Tensor, known: Squares | Selection | None) -> None:
    if known is not None:
        _KNOWN[result] = known, _state(*known.elements, *known.beside, result)


def forget() -> None:
    """Forget all sums of a block that is left: what they are made of would live as long as they do."""
    _KNOWN.clear()
    _MULTIPLES.clear()


def _known(x: Any) -> Squares | Selection | None:
    """Return what is known of ``x``, if it still holds."""
    known, state = _KNOWN.get(x, (None, [])) if _KNOWN and isinstance(x, Tensor) else (None, [])
    return known if known and state == _state(*known.elements, *known.beside, x) else None


def _squares_in(x: Any) -> Squares | None:
    """Return the sum that ``x`` is, if that is known and still holds."""
    squares = _known(x)
    if not isinstance(squares, Squares):
        return None
    return squares if are_late() or not any(map(moves, squares.constants)) else None


def behind(x: Tensor, passed: MutableMapping[Tensor, None]) -> Iterator[Tensor]:
    """Yield the tensors whose tangents a root of ``x`` reads beside that of ``x``, unless they are behind one passed.

    What is passed on the way is noted: a loop may select of its last result many times.
    """
    pending = [x] if _KNOWN else []
    while pending:
        tensor = pending.pop()
        known, _ = _KNOWN.get(tensor, (None, []))
        if known is None or tensor in passed:
            continue
        passed[tensor] = None
        yield from known.elements
        if isinstance(known, Squares):
            yield from known.constants
        else:
            pending += known.elements


# What is kept: for the arguments of a function of torch the squares that it adds up, or None.


def _form(function: Function, input: Tensor, *args: Any, **kwargs: Any) -> Squares | None:
    if not isinstance(input, Tensor) or not input.is_floating_point():
        return None  # complex numbers have a sum of 0 elsewhere too, as 1 + 1j ** 2
    return Squares((input,), lambda x: function(x, *args, **kwargs))


def _product(function: Function, *args: Any, **kwargs: Any) -> Squares | None:
    """Take the square of one tensor, or ``c * x * x``, or a sum of squares with a weight."""
    first, second = factors = (*args, *kwargs.values())
    if _are_same(first, second):
        return _form(lambda x: function(x, x), first)
    for x, multiple in (factors, factors[::-1]):
        if (number := _number_times(x, multiple)) is not None:
            return _form(lambda x: number * x * x, x)
    for i, weight in ((0, second), (1, first)):
        if _squares_in(factors[i]) and _is_weight(weight, factors[i]):
            return _linear([i], function, *factors)
    return None


def _number_times(x: Any, multiple: Any) -> Any:
    """Return the number c if ``multiple`` is ``c * x``."""
    if not (isinstance(x, Tensor) and isinstance(multiple, Tensor) and multiple in _MULTIPLES):
        return None
    number, whole, state = _MULTIPLES[multiple]
    return number if whole() is whole_of(x) and state == [*_part(x), *_state(x, multiple)] else None


def _quotient(function: Function, *args: Any, **kwargs: Any) -> Squares | None:
    dividend, divisor = *args, *(kwargs.pop(name) for name in ("input", "other") if name in kwargs)
    is_scaled = _squares_in(dividend) and _is_weight(divisor, dividend)
    return _linear([0], function, dividend, divisor, **kwargs) if is_scaled else None


def _is_weight(x: Any, weighted: Any) -> bool:
    """Return whether a root of the product of ``x`` and the sum of squares is a norm, with x in its form."""
    if not isinstance(x, Tensor):
        return isinstance(x, Real) and float(x) >= 0
    if x.is_complex() or not (is_plain(x) or is_on_gpu(x)):
        return False  # a graph that is traced has no numbers yet
    # Where a weight of 0 moves and the sum of squares is not 0, the slope of the root is infinite.
    return not is_any((x <= 0) & (weighted != 0) | (x < 0) if moves(x) else x < 0)


def _inner_product(function: Function, *args: Any, **kwargs: Any) -> Squares | None:
    first, second = *args, *kwargs.values()  # torch calls the second one tensor, tensor2 or other
    return _form(lambda x: function(x, x), first) if _are_same(first, second) and first.dim() == 1 else None


def _squared_error(function: Function, input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Squares | None:
    """Take the squares of the differences of two tensors, a form of both: it is 0 where they are equal."""
    if kwargs.get("weight") is not None or input.is_complex() or target.is_complex():
        return None
    return Squares(as_floats(input, target), lambda x, y: function(x, y, *args, **kwargs))


def _are_same(x: Any, y: Any) -> bool:
    """Return whether two operands are one tensor, or the same part of one, as in ``x[0] * x[0]``."""
    if x is y or not (isinstance(x, Tensor) and isinstance(y, Tensor)) or x._base is None or x._base is not y._base:
        return x is y
    return _part(x) == _part(y)


def _part(x: Tensor) -> tuple[Any, ...]:
    """Return which part a tensor is of what it shows the memory of."""
    return x.shape, x.stride(), x.storage_offset(), x.dtype, x.is_neg(), x.requires_grad


def _linear(terms: Sequence[int], function: Function, *args: Any, **kwargs: Any) -> Squares | None:
    """Take what a function makes of the arguments at ``terms``, in which it is linear, if some are sums of squares.

    The others of these are constants, which count as 0: where they are not, the result is not 0 where all elements are.

    Of ``add(s, c)``, where ``s = x * x`` is such a sum and c is none, it is the form x -> add(x * x, 0 * c), with the
    constant c. Of ``where(mask, s, c)``, whose terms are the arguments 1 and 2, the mask stays as it is.
    """
    sums = {i: squares for i in terms if i < len(args) and (squares := _squares_in(args[i]))}
    if not sums or "alpha" in kwargs:
        return None

    constants = {i: arg for i, arg in enumerate(args) if i not in sums}  # the sums themselves need no memory then

    def form(*elements: Tensor) -> Tensor:
        remaining = iter(elements)
        operands = {i: 0 * arg if i in terms else arg for i, arg in constants.items()}
        operands |= {i: squares.form(*(next(remaining) for _ in squares.elements)) for i, squares in sums.items()}
        return function(*(operands[i] for i in range(len(operands))), **kwargs)

    return Squares(
        tuple(x for squares in sums.values() for x in squares.elements),
        form,
        (
            *(x for squares in sums.values() for x in squares.constants),
            *(arg for i, arg in constants.items() if i in terms and isinstance(arg, Tensor)),
        ),
        (*(x for squares in sums.values() for x in squares.beside), *_tensors_in(constants, kwargs)),
    )


def _tensors_in(*arguments: Any) -> tuple[Tensor, ...]:
    """Return the tensors among arguments, also those in a tuple of indices."""
    return tuple(x for x in flattened(arguments)[0] if isinstance(x, Tensor))


def _taken(function: Function, input: Tensor, *args: Any, **kwargs: Any) -> Squares | Selection | None:
    """Take what a function only moves, as `reshape`: a sum of squares, or what is taken of such."""
    if not isinstance(_known(input), Selection):
        return _linear([0], function, input, *args, **kwargs)
    return Selection((input,), lambda root: function(root(input), *args, **kwargs), _tensors_in(args, kwargs))


def _joined(function: Function, tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Squares | None:
    """Take what is joined of sums of squares and others, in which a function of a list of tensors is linear."""

    def of_tensors(*tensors: Tensor) -> Tensor:
        result: Tensor = function(tensors, *args, **kwargs)
        return result

    return _linear(range(len(tensors)), of_tensors, *tensors)


_MAKERS: Mapping[str, Callable[..., Squares | Selection | None]] = {
    **dict.fromkeys(("square", "var"), _form),
    **dict.fromkeys(("div", "divide", "true_divide"), _quotient),
    **dict.fromkeys(("dot", "matmul", "inner", "vdot"), _inner_product),
    "mse_loss": _squared_error,
    "add": functools.partial(_linear, (0, 1)),
    "where": functools.partial(_linear, (1, 2)),
    "masked_fill": functools.partial(_linear, (0, 2)),
    **dict.fromkeys(("sum", "mean", "cumsum", "trace", "sum_to_size"), functools.partial(_linear, (0,))),
    **dict.fromkeys(
        (
            *("reshape", "view", "flatten", "squeeze", "unsqueeze", "expand", "repeat", "transpose"),
            *("t", "permute", "movedim", "swapaxes", "flip", "clone", "contiguous", "select", "narrow", "diagonal"),
            *("__getitem__", "gather", "index_select", "take_along_dim", "masked_select", "unflatten"),
            *("numpy_T", "mT", "slice", "index", "alias", "_unsafe_view"),  # in graphs of operators
        ),
        _taken,
    ),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "hstack", "vstack"), _joined),
}


def _watched() -> Iterator[tuple[Function, Function]]:
    watches: dict[str, Function] = {name: functools.partial(_watch, maker) for name, maker in _MAKERS.items()}
    for attribute in (torch.Tensor.T.__get__, torch.Tensor.mT.__get__):  # type: ignore[attr-defined]
        yield attribute, functools.partial(watches["transpose"], attribute)
    for name, watch in {**watches, "mul": _watch_product, "multiply": _watch_product}.items():
        functions = (getattr(home, name, None) for home in (torch, torch.Tensor, functional))
        for function in (*filter(None, functions), *operators_named(name)):
            yield function, functools.partial(watch, function)


def _watch(maker: Function, function: Function, result: Tensor, *args: Any, out: Any = None, **kwargs: Any) -> None:
    if out is None:
        _keep(result, maker(function, *args, **kwargs))


def _watch_product(function: Function, result: Tensor, *args: Any, out: Any = None, **kwargs: Any) -> None:
    """Keep what square or weighted sum the result is, or of which tensor it is a multiple."""
    _watch(_product, function, result, *args, out=out, **kwargs)
    first, second = *args, *kwargs.values()
    for number, x in ((first, second), (second, first)):
        if out is None and isinstance(x, Tensor) and isinstance(number, Real) and _is_weight(number, x):
            _MULTIPLES[result] = number, weakref.ref(whole_of(x)), [*_part(x), *_state(x, result)]


WATCHED: Mapping[Function, Function] = dict(_watched())
"""Maps a function of torch to what sees its result, and its arguments."""


# Where a choice is made.


def selecting(choice: Function) -> Function:
    """Return the choice of elements of its first argument, of whose values roots know that they are selected."""

    def values_in(result: Any) -> Tensor:
        return result if isinstance(result, Tensor) else result[0]  # of values and indices

    @functools.wraps(choice)
    def chosen(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = choice(input, *args, **kwargs)
        if _known(input):
            selection = Selection((input,), lambda root: values_in(choice(root(input), *args, **kwargs)))
            _keep(values_in(result), selection)
        return result

    return chosen


def comparing(name: str, choice: Function) -> Function:
    """Return the choice called ``name`` between a tensor and its bounds, whose results are known to roots.

    A sum of squares is not negative, and what counts is where it is 0. There a bound of 0 or less below it leaves it as
    it is, and so does a positive one above it.
    """
    is_bounded_above = name.removesuffix("_") in ("minimum", "fmin", "clamp_max")

    @functools.wraps(choice)
    def chosen(input: Any, *args: Any, **kwargs: Any) -> Tensor:
        if not any(map(_known, (input, *args, *kwargs.values()))):
            result: Tensor = choice(input, *args, **kwargs)
            return result
        is_overwritten = name.endswith("_") or any(argument is True for argument in (*args, *kwargs.values()))
        before = _copy(input) if is_overwritten else input
        above = (*args[1:], *(x for key, x in kwargs.items() if key.startswith("max")))
        compared = (before, *args[:1], *(x for key, x in kwargs.items() if not key.startswith("max")))
        sums = [(x.shape, squares) for x in compared if (squares := _squares_in(x))]
        below = [x for x in compared if not _squares_in(x)]
        if is_bounded_above:
            above, below = (*above, *below), []

        def of_roots(root: Callable[[Any], Any]) -> Tensor:
            named = {key: root(x) for key, x in kwargs.items()}
            result: Tensor = choice(root(before), *map(root, args), **named)
            return result

        result = choice(input, *args, **kwargs)
        is_the_sum = [shape for shape, _ in sums] == [result.shape]
        is_unbounded_at_0 = all(_is_constant(bound, lambda bound: bound <= 0) for bound in below) and all(
            _is_constant(bound, lambda bound: bound > 0) for bound in above
        )
        if is_the_sum and is_unbounded_at_0:
            _keep(result, sums[0][1])
        else:
            tensors = tuple(x for x in (before, *args, *kwargs.values()) if isinstance(x, Tensor))
            _keep(result, Selection(tensors, of_roots))
        return result

    return chosen


def _copy(x: Tensor) -> Tensor:
    """Return a copy of which the same is known."""
    copy = x.clone()
    _keep(copy, _known(x))
    return copy


def _is_constant(bound: Any, is_inactive_at_0: Callable[[Any], Any]) -> bool:
    """Return whether a bound does not move, and nowhere counts where the sum is 0; None bounds nothing."""
    if isinstance(bound, Tensor):
        has_numbers = is_plain(bound) or is_on_gpu(bound)
        return not moves(bound) and has_numbers and not is_any(~is_inactive_at_0(bound))
    return bound is None or (isinstance(bound, Real) and bool(is_inactive_at_0(float(bound))))


def sqrt(input: Tensor) -> Tensor:
    """Take the root, which of a sum of squares is a norm."""
    return _root(torch.sqrt, input)


def pow(input: Any, exponent: Any) -> Tensor:
    """Take a power; that of 1/2 as `sqrt`, and a square is known to roots."""
    if isinstance(exponent, float) and exponent == 0.5:
        return _root(lambda x: torch.pow(x, exponent), input)
    result: Tensor = torch.pow(input, exponent)
    if isinstance(exponent, int | float) and exponent == 2:
        _keep(result, _form(torch.square, input))
    return result


def _root(in_torch: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
    result = in_torch(input)
    if not may_be_at(result, 0.0):
        return result
    value_and_tangent(input)  # to have the tangent, if it is late: the slope is infinite
    if _known(input) is None:
        return result
    # Each root once, and no recursion: a loop may select of its last result many times.
    root_by_id = dict[int, Tensor]()
    pending = [input]
    while pending:
        x, known = pending[-1], _known(pending[-1])
        if isinstance(known, Selection) and may_be_at(x, 0.0):
            if needed := [y for y in known.elements if id(y) not in root_by_id]:
                pending += needed
                continue
            piece = known.of_roots(functools.partial(_root_of_operand, root_by_id))
            root = _with_piece(in_torch, x, value_of(x) == 0, piece)
        else:
            # What is no sum of squares is beyond one, where it is negative, as 0 is.
            root = _root_of_sum(in_torch, x) if known else in_torch(x.clamp(min=0))
        root_by_id[id(pending.pop())] = root
    return root_by_id[id(input)]


def _root_of_operand(root_by_id: Mapping[int, Tensor], operand: Any) -> Any:
    """Take the root of what a sum of squares was compared to, or is; negative numbers are beyond it as 0 is."""
    if isinstance(operand, Tensor):
        return root_by_id[id(operand)]
    if isinstance(operand, bool):  # whether to overwrite
        return False
    return max(operand, 0.0) ** 0.5 if isinstance(operand, int | float) else operand


def _root_of_sum(in_torch: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Take the root of what is a sum of squares, if that is known, and else torch's."""
    squares = _squares_in(x)
    if squares is None or not may_be_at(x, 0.0):
        return in_torch(x)
    is_0, piece = _where_0(squares)
    return _with_piece(in_torch, x, (value_of(x) == 0) & is_0, piece)


def _with_piece(in_torch: Callable[[Tensor], Tensor], x: Tensor, at_0: Tensor, piece: Tensor) -> Tensor:
    """Return the piece ``at_0``, and elsewhere torch's root, whose infinite slope at 0 makes no NaN so."""
    return torch.where(at_0, piece, in_torch(torch.where(at_0, 1.0, x)))


def std(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Compute a standard deviation, the root of a sum of squares of what differs from the mean."""
    result = torch.std(input, *args, **kwargs)
    squares = _form(torch.var, input, *args, **kwargs) if may_be_at(result, 0.0) else None
    return result if squares is None else torch.where(*_where_0(squares), result)


def std_mean(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return std(input, *args, **kwargs), torch.std_mean(input, *args, **kwargs)[1]


def _where_0(squares: Squares) -> tuple[Tensor, Tensor]:
    """Return where the sum is 0, and for there, as the elements move by v, the piece x -> q(v, x) / |v| of the root."""
    values, tangents = zip(*map(value_and_tangent, squares.elements), strict=True)
    squared_speed = squares.form(*tangents)
    stands = squared_speed == 0
    # Weights have derivatives too: NaN, if the root of 0 were taken.
    by_speed = torch.where(stands, 0.0, torch.where(stands, 1.0, squared_speed).rsqrt())
    moved = [x - value for x, value in zip(squares.elements, values, strict=True)]
    # The two differ by 4 q(v, x), which is linear in x: so all higher derivatives are 0.
    ahead, behind = (squares.form(*(v + sign * x for v, x in zip(tangents, moved, strict=True))) for sign in (1, -1))
    return squares.form(*values) == 0, (ahead - behind) / 4 * by_speed
