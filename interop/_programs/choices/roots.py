"""Roots of quadratic forms: norms that are written by hand, as ``x.pow(2).sum().sqrt()`` or ``(x * x + y * y) ** 0.5``.

At 0 torch makes NaN of them, as the infinite slope of the root meets the slope 0 of the squares. Here they are what
`torch.linalg.vector_norm` is in `reductions.py`. Say q is a quadratic form of elements that are 0 and move by v, and
q(v, x) is its bilinear form. Then the root of q(x) is taken for its linear piece at v, ``x -> q(v, x) / sqrt(q(v))``.
A standard deviation is such a root too.

Of what is selected of forms, as the smallest of several, it is kept how: ``sqrt(min(s))`` is ``min(sqrt(s))``, of
roots, whose tangents say which is the smallest at 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch

from interop._programs.choices.kinks import stands_still_at_0
from interop._programs.choices.quadratic_forms import Form, Selection, form_of, keep, known_as, square
from interop._programs.order import may_be_at, moves, value_and_tangent, value_of
from interop._torch.forms import overwrite
from interop._torch.in_numpy import is_any
from interop.native._rules.windows_stage import is_on_gpu, is_plain

Tensor = torch.Tensor
Function = Callable[..., Any]


def selecting(choice: Function) -> Function:
    """Return the choice of elements of its first argument, of whose values roots know that they are selected."""

    def values_in(result: Any) -> Tensor:
        return result if isinstance(result, Tensor) else result[0]  # of values and indices

    @functools.wraps(choice)
    def chosen(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = choice(input, *args, **kwargs)
        if known_as(input):
            selection = Selection((input,), lambda root: values_in(choice(root(input), *args, **kwargs)))
            keep(values_in(result), selection)
        return result

    return chosen


def comparing(name: str, choice: Function) -> Function:
    """Return the choice called ``name`` between a tensor and its bounds, whose results are known to roots.

    A sum of squares is not negative, but for a negative constant, and what counts is where it is 0. There a bound of 0
    or less below it leaves it as it is, and so does a positive one above it. Other forms may be negative a step away.
    """
    is_bounded_above = name.removesuffix("_") in ("minimum", "fmin", "clamp_max")

    @functools.wraps(choice)
    def chosen(input: Any, *args: Any, **kwargs: Any) -> Tensor:
        if not any(map(known_as, (input, *args, *kwargs.values()))):
            result: Tensor = choice(input, *args, **kwargs)
            return result
        is_overwritten = name.endswith("_") or any(argument is True for argument in (*args, *kwargs.values()))
        before = _copy(input) if is_overwritten else input
        above = (*args[1:], *(x for key, x in kwargs.items() if key.startswith("max")))
        compared = (before, *args[:1], *(x for key, x in kwargs.items() if not key.startswith("max")))
        squares = [(x, form) for x in compared if (form := form_of(x)) and form.is_square]
        below = [x for x in compared if not ((form := form_of(x)) and form.is_square)]
        if is_bounded_above:
            above, below = (*above, *below), []

        def of_roots(root: Callable[[Any], Any]) -> Tensor:
            operand = root(before)
            named = {key: root(x) for key, x in kwargs.items()}
            result = choice(operand.clone() if is_overwritten else operand, *map(root, args), **named)
            # At a bound, a number or a tensor, the operand whose slope is not known is taken: the bound would hide it.
            value, tangent = value_and_tangent(operand)
            return torch.where(tangent.isnan() & (value == value_of(result)), operand, result)

        result = choice(input, *args, **kwargs)
        is_the_square = [x.shape for x, _ in squares] == [result.shape]
        is_unbounded_at_0 = (
            not any(map(moves, (*below, *above)))
            and all(_is_everywhere(lambda bound: bound <= 0, bound) for bound in below)
            and all(_is_everywhere(lambda bound: bound > 0, bound) for bound in above)
            and all(_is_everywhere(lambda x: x >= 0, x) for x, _ in squares)
        )
        if is_the_square and is_unbounded_at_0:
            keep(result, squares[0][1])
        else:
            tensors = tuple(x for x in (before, *args, *kwargs.values()) if isinstance(x, Tensor))
            keep(result, Selection(tensors, of_roots))
        return result

    return chosen


def _copy(x: Tensor) -> Tensor:
    """Return a copy of which the same is known."""
    copy = x.clone()
    keep(copy, known_as(x))
    return copy


def _is_everywhere(condition: Callable[[Any], Any], x: Any) -> bool:
    """Return whether a tensor, or a number, is known to meet a condition everywhere; None meets all."""
    if isinstance(x, Tensor):
        return (is_plain(x) or is_on_gpu(x)) and not is_any(~condition(x))
    return x is None or (isinstance(x, Real) and bool(condition(float(x))))


def overwriting(name: str, choice: Function) -> Function:
    """Return the variant of a root, called ``name``, that overwrites its first argument, of which it knows as much."""

    def overwritten(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        known = known_as(input)  # before it is overwritten

        def of_copy(copy: Tensor) -> Tensor:
            keep(copy, known)
            result: Tensor = choice(copy, *args, **kwargs)
            return result

        return overwrite(name, of_copy, input)

    return overwritten


def sqrt(input: Tensor) -> Tensor:
    """Take the root, which of a quadratic form is linear at 0."""
    return _root(torch.sqrt, input)


def pow(input: Any, exponent: Any) -> Tensor:
    """Take a power; that of 1/2 as `sqrt`, and a square is known to roots."""
    if isinstance(exponent, float) and exponent == 0.5:
        return _root(lambda x: torch.pow(x, exponent), input)
    result: Tensor = torch.pow(input, exponent)
    if isinstance(exponent, int | float) and exponent == 2:
        keep(result, square(torch.square, input))
    return result


def _root(in_torch: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
    result = in_torch(input)
    if not may_be_at(result, 0.0):
        return result
    value_and_tangent(input)  # to have the tangent, if it is late: the slope is infinite
    if (known := known_as(input)) is None:
        still = stands_still_at_0(input)  # where the tangent would be 0 times the infinite slope
        return result if still is None else _with_piece(in_torch, input, still, torch.zeros_like(value_of(input)))
    if isinstance(known, Form) and known.is_square:
        return _root_of_form(in_torch, input, known)
    signed = _signed_root(in_torch, input)
    value, tangent = value_and_tangent(signed)
    return _with_piece(in_torch, input, (value > 0) | ((value == 0) & (tangent >= 0)), signed)


def _signed_root(in_torch: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
    """Take the root of a form or a selection, and minus that of its size where it is negative, or a step makes it so.

    So roots are ordered as what they are taken of: of ``minimum(x * y, z * z)`` at 0, along (1, -1, 2), x * y is the
    smaller one, and its root has the slope -1, and that of z * z the slope 2.
    """
    signed = functools.partial(_signed_root_of_number, in_torch)
    # Each root once, and no recursion: a loop may select of its last result many times.
    root_by_id = dict[int, Tensor]()
    pending = [input]
    while pending:
        x, known = pending[-1], known_as(pending[-1])
        if isinstance(known, Selection) and may_be_at(x, 0.0):
            if needed := [y for y in known.elements if id(y) not in root_by_id]:
                pending += needed
                continue
            piece = known.of_roots(functools.partial(_root_of_operand, root_by_id))
            root = _with_piece(signed, x, value_of(x) == 0, piece)
        elif isinstance(known, Form) and may_be_at(x, 0.0):
            root = _root_of_form(signed, x, known)
        else:
            root = signed(x)
        root_by_id[id(pending.pop())] = root
    return root_by_id[id(input)]


def _root_of_form(in_torch: Callable[[Tensor], Tensor], x: Tensor, form: Form) -> Tensor:
    """Take the root of a tensor, which at 0 is that of a form, if this still holds."""
    if (piece_at_0 := _piece_at_0(form)) is None:
        return in_torch(x)
    at_0, piece = piece_at_0
    return _with_piece(in_torch, x, (value_of(x) == 0) & at_0, piece)


def _signed_root_of_number(in_torch: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Take torch's root of the size, with the sign of x."""
    is_negative = value_of(x) < 0
    root_of_size = in_torch(torch.where(is_negative, -x, x) + 0.0)  # torch's root falls where -0.0 rises
    return torch.where(is_negative, -root_of_size, root_of_size)


def _root_of_operand(root_by_id: Mapping[int, Tensor], operand: Any) -> Any:
    """Take the root of what a form was compared to, or is, as `_signed_root` does."""
    if isinstance(operand, Tensor):
        return root_by_id[id(operand)]
    if isinstance(operand, bool):  # whether to overwrite
        return False
    return math.copysign(abs(operand) ** 0.5, operand) if isinstance(operand, int | float) else operand


def _with_piece(in_torch: Callable[[Tensor], Tensor], x: Tensor, at_0: Tensor, piece: Tensor) -> Tensor:
    """Return the piece ``at_0``, and elsewhere torch's root, whose infinite slope at 0 makes no NaN so."""
    root = in_torch(torch.where(at_0, 1.0, x))
    return torch.where(at_0, piece.to(root.dtype), root)  # of a form that was computed under autocast


def std(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Compute a standard deviation, the root of a sum of squares of what differs from the mean."""
    result = torch.std(input, *args, **kwargs)
    squares = square(torch.var, input, *args, **kwargs) if may_be_at(result, 0.0) else None
    piece_at_0 = _piece_at_0(squares) if squares else None
    return torch.where(*piece_at_0, result) if piece_at_0 else result


def std_mean(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return std(input, *args, **kwargs), torch.std_mean(input, *args, **kwargs)[1]


def _piece_at_0(form: Form) -> tuple[Tensor, Tensor] | None:
    """Return where a form q is 0, with all that it reads, and the piece x -> q(v, x) / sqrt(|q(v)|) of its root there.

    The elements move by v. Where nothing moves that q reads, the piece is 0. Where something does, and yet q(v) is 0,
    as of x * y along (1, 0), the root has an infinite slope.
    """
    if (forms := form.in_order()) is None:
        return None
    factors = list({id(x): x for each in forms for x in each.factors}.values())

    def q(replaced: Sequence[Tensor]) -> Tensor:
        by_id = {id(x): new for x, new in zip(factors, replaced, strict=True)}
        by_form = dict[Form, Tensor]()
        for each in forms:
            operands = (by_form[x] if isinstance(x, Form) else by_id[id(x)] for x in each.operands)
            by_form[each] = each.function(*operands)
        return by_form[form]

    values, tangents = zip(*map(value_and_tangent, factors), strict=True)
    ahead = q(tangents)
    stands = ahead == 0
    at_0 = q(values) == 0 if form.is_square else ~_reads_any(q, values) & ~(stands & _reads_any(q, tangents))
    # Weights have derivatives too: NaN, if the root of 0 were taken.
    by_speed = torch.where(stands, 0.0, torch.where(stands, 1.0, ahead.abs()).rsqrt())
    moved = [x - value for x, value in zip(factors, values, strict=True)]
    # The two differ by 4 q(v, x), which is linear in x: so all higher derivatives are 0.
    forwards, backwards = (q([v + sign * x for v, x in zip(tangents, moved, strict=True)]) for sign in (1, -1))
    return at_0, (forwards - backwards) / 4 * by_speed


def _reads_any(q: Callable[[Sequence[Tensor]], Tensor], elements: Sequence[Tensor]) -> Tensor:
    """Return where q(x, r), as linear in r, reads elements x that are not 0: whether it is 0 for numbers r in general.

    Of ``x * y`` at (0, 2), that is ``0 * r[1] + 2 * r[0]``.
    """
    marks, numbers = [], []
    for shift, x in enumerate(elements, 1):
        # x + r would lose small numbers. So others stand for them, 0 for 0, equal ones for equal ones, -m for -x.
        marks.append(torch.where(x == 0, 0.0, x.sign() * (x.abs().log2() * _GOLDEN_RATIO % 1 + 0.5)))
        places = torch.arange(x.numel(), device=x.device, dtype=torch.float32).reshape(x.shape)
        numbers.append(((places * _GOLDEN_RATIO + shift * _ROOT_OF_2) % 1 + 0.5).to(x.dtype))
    forwards, backwards = (q([x + sign * r for x, r in zip(marks, numbers, strict=True)]) for sign in (1, -1))
    return forwards != backwards


_GOLDEN_RATIO, _ROOT_OF_2 = 0.618034, 1.414214
"""The multiples of the first spread over [0, 1), and those of the second shift them, so that no two are equal."""
