"""The block in which choices of torch's functions are decided by tangents, and the table of what is called there.

An op of jaxclamp that selects or has kinks is in the table by its record. Any other function that chooses has a line
in it, and its code in the file of `choices` for its subject.
"""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from interop import native
from interop._bridge.ops import IN_PLACE_OPS, TORCH_OPS
from interop._programs.choices import (
    comparisons,
    constant_factors,
    derivatives,
    jumps,
    kinks,
    losses,
    pooling,
    quadratic_forms,
    records,
    recurrent,
    reductions,
    roots,
    scattering,
    selections,
    sorting,
)
from interop._programs.defined_branches import following
from interop._programs.dual_fast_paths import FASTER, FastPaths
from interop._programs.operators import operators_of, overwriting, parts_of
from interop._programs.order import are_late, as_is, moves, value_and_tangent
from interop._torch.checkpoint_modes import Block
from interop._torch.forms import NUMPY_NAMES, in_place, of_each, overloaded, overwrite
from interop._torch.in_numpy import is_any
from interop._torch.private_api import (
    foreach_named,
    keywords_of,
    operators_named,
    without_forward_mode,
    without_function_modes,
)
from interop._transforms.as_of import PINNED
from interop._transforms.jumps import Jump, jump_of, places_of, undecided
from interop._transforms.min_norm import namesakes
from interop._transforms.source_lines import line_of_user
from jaxclamp._transforms.undecided import warn_once

Function = Callable[..., Any]


class Decided(Block):
    """A block in which the choices of torch's functions are decided by the tangents of their operands."""

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = keywords_of(func, kwargs)
        if not torch.compiler.is_compiling():
            self.reach_checkpoints(func)  # a checkpoint around this call is to enter the block again, by `again`
        if func in BACKWARD and not kwargs.get("create_graph"):
            # Some backward passes, as torch's of mish, fail on tangents. Gradients of create_graph=True alone need
            # them, as the program may choose among those.
            with without_forward_mode():
                return func(*args, **kwargs)
        in_torch = PINNED.get(func, func)
        choice, jump = CHOICES_BY_CALL.get(in_torch), jump_of(in_torch, kwargs)
        if jump and choice is None:
            choice = _ROUNDED.get(in_torch)
        # A tensor without elements has nothing to choose, and torch knows what raises: the maximum of none does.
        is_moving = (choice or jump) and any(
            moves(value) and value.numel() for value in operands(*args, *kwargs.values())
        )
        if jump and is_moving:
            name, at = jump
            if remaining := at if choice is None else undecided(at):
                _warn_on_jump(name, remaining, args, kwargs)
        if choice and is_moving:
            result = _chosen(func, choice, args, kwargs)
        else:
            if choice:
                self.on_choice_of_torch(func, args, kwargs)
            # The usual case, and the only fast one.
            result = (func if are_late() else _CALLED.get(func, func))(*args, **kwargs)
        if watch := quadratic_forms.WATCHED.get(in_torch):
            watch(result, *args, **kwargs)
        return result

    def on_choice_of_torch(self, func: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Do what a subclass does before torch makes a choice among operands that do not move."""

    def again(self) -> TorchFunctionMode:
        return _RefusesChoices()


def _chosen(func: Function, choice: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a choice in the place of a function of torch; ``out`` is overwritten, as by an optimizer."""
    # ``ties`` means nothing here: the tangents decide for one side of the tie, where all conventions agree.
    named = {NUMPY_NAMES.get(name, name): v for name, v in kwargs.items() if name not in _IGNORED}
    if (out := kwargs.get("out")) is None:
        return choice(*args, **named)
    if torch.is_grad_enabled() or not isinstance(out, torch.Tensor):
        raise NotImplementedError(f"{func.__name__}: out= has no derivative; call it without, and copy the result.")
    result = choice(*args, **named)
    if not out.numel():
        out.resize_(result.shape)  # as torch does
    return overwrite(func.__name__, lambda _: result, out)


def operands(*values: Any) -> Iterator[Any]:
    """Yield the values, and of a list of tensors each."""
    for value in values:
        yield from value if isinstance(value, list | tuple) else (value,)


def _warn_on_jump(name: str, jump: Jump, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Warn, once for each line, if an operand of the function of that name is where that jumps, and moves."""
    try:
        with torch.no_grad(), without_function_modes():
            with without_forward_mode():  # tangents of the masks would take most of the time
                places = places_of(jump, args, kwargs)
            is_at_jump = any(
                is_any(at) and is_any(at & (value_and_tangent(operand)[1] != 0))
                for operand, at in places
                if moves(operand)
            )
    except (TypeError, ValueError, RuntimeError):  # no numbers to see, or a call that fails by itself too
        return
    if is_at_jump:
        warn_once(
            line_of_user(),
            f"{name} jumps, or has no slope, at a value that it was given, and is taken as it is there. The gradient "
            "may be that of another piece of the function; interop.ties lists the line",
        )


class _RefusesChoices(TorchFunctionMode):
    """A block that refuses choices, entered where a checkpoint recomputes.

    There are no tangents there, so a choice might fall otherwise.
    """

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        in_torch = PINNED.get(func, func)
        if func in _CONVERSIONS:
            # Offloading hooks bring tensors back with `.to()`, which may convert to no bools or integers.
            is_choice = jumps.is_discrete(*args[1:], **kwargs)
        else:
            is_choice = in_torch in CHOICES_BY_CALL or bool(in_torch in _ROUNDED and kwargs.get("rounding_mode"))
        tensors = [x for x in operands(*args) if isinstance(x, torch.Tensor)] if is_choice else []
        if any(x.is_floating_point() or x.is_complex() for x in tensors):
            raise RuntimeError(
                "torch.utils.checkpoint computes again, without tangents, what was decided by tangents; "
                "call the function without a checkpoint in along and interop.grad."
            )
        return func(*args, **kwargs)


class _SpelledOut(Decided, contextlib.ContextDecorator):
    """A block around a function of this package, in which torch's function of the same name is not replaced again.

    A mode is off while it handles a call. So the calls in the function need a block of their own. Arguments that torch
    refuses are handed to its function, so that it raises its own error.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", None) == self._name:
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def _spelled_out(function: Function) -> Function:
    """Return the function with the choices in its body decided; it is written with functions that choose."""
    return _SpelledOut(function.__name__)(function)


def _of_native(name: str) -> Function:
    """Return the function of that name of `interop.native`, as it is written there, spelled out."""
    return _spelled_out(native.NATIVE[name].__wrapped__)  # type: ignore[attr-defined]


def _each(make: Callable[[str], Function], *names: str) -> dict[str, Function]:
    """Map each name of a function of torch to the choice that is made of it."""
    return {name: make(name) for name in names}


# Gradients of a whole loss: torch's own kernels of derivatives are refused by `parts_of`.
BACKWARD = {torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad}
_CONVERSIONS = {torch.Tensor.to, torch.Tensor.type, torch.Tensor.type_as}
_ASKING_OF_0 = ("__bool__", "is_nonzero", "any", "all", "nonzero", "argwhere", "count_nonzero")
_IGNORED = {"out", "ties"}
_CALLED = {
    **FASTER,
    **dict(following(FASTER)),
    torch.Tensor.data.__get__: derivatives.data,  # type: ignore[attr-defined]
    **dict.fromkeys((torch.detach_, torch.Tensor.detach_), derivatives.detach_),
}

_OF_RECORDS = dict(records.choices_of_records())
_MAX, _MIN = reductions.with_indices("max", as_is), reductions.with_indices("min", torch.neg)

_CHOICES_BY_NAME: Mapping[str, Function] = {
    **_OF_RECORDS,
    "clip": _OF_RECORDS["clamp"],
    **dict.fromkeys(("abs", "absolute", "__abs__"), selections.abs),
    "prelu": kinks.prelu,
    "i0e": kinks.i0e,
    "softsign": kinks.softsign,
    "rrelu": kinks.rrelu,
    **dict.fromkeys(("eq", "__eq__"), comparisons.comparison(operator.eq)),
    **dict.fromkeys(("ne", "not_equal", "__ne__"), comparisons.comparison(operator.ne)),
    **dict.fromkeys(("gt", "greater", "__gt__"), comparisons.comparison(operator.gt)),
    **dict.fromkeys(("ge", "greater_equal", "__ge__"), comparisons.comparison(operator.ge)),
    **dict.fromkeys(("lt", "less", "__lt__"), comparisons.comparison(operator.lt)),
    **dict.fromkeys(("le", "less_equal", "__le__"), comparisons.comparison(operator.le)),
    "bool": comparisons.is_not_zero,
    **{name: jumps.conversion(getattr(torch.Tensor, name)) for name in ("to", "type", "type_as")},
    **{name: jumps.step(getattr(torch.Tensor, name)) for name in ("int", "long", "short", "byte", "char", "__int__")},
    **{name: jumps.step(getattr(torch, name)) for name in ("floor", "ceil", "trunc", "fix", "round", "signbit")},
    "angle": jumps.step(torch.angle),
    "frac": jumps.frac,
    "fmod": jumps.fmod,
    **dict.fromkeys(("remainder", "__mod__"), jumps.remainder),
    "copysign": jumps.copysign,
    **dict.fromkeys(("atan2", "arctan2"), jumps.atan2),
    "bucketize": jumps.bucketize,
    "searchsorted": jumps.searchsorted,
    "isclose": jumps.isclose,
    "allclose": jumps.allclose,
    "equal": jumps.equal,
    **{name: jumps.asks_of_0(getattr(torch.Tensor, name)) for name in _ASKING_OF_0},
    **{name: jumps.quantile(getattr(torch, name)) for name in ("quantile", "nanquantile")},
    "logical_not": comparisons.logical_not,
    "logical_and": comparisons.of_truth_values(operator.and_),
    "logical_or": comparisons.of_truth_values(operator.or_),
    "logical_xor": comparisons.of_truth_values(operator.xor),
    **dict.fromkeys(("sign", "sgn"), comparisons.sign),
    "heaviside": comparisons.heaviside,
    "max_with_indices": _MAX,
    "min_with_indices": _MIN,
    "max": functools.partial(overloaded, roots.comparing("maximum", _OF_RECORDS["maximum"]), _MAX, reductions.amax),
    "min": functools.partial(overloaded, roots.comparing("minimum", _OF_RECORDS["minimum"]), _MIN, reductions.amin),
    "amax": reductions.amax,
    "amin": reductions.amin,
    "argmax": reductions.index(as_is),
    "argmin": reductions.index(torch.neg),
    "aminmax": reductions.aminmax,
    "norm": reductions.norm(torch.norm),
    "vector_norm": reductions.vector_norm,
    "linalg_norm": reductions.norm_of_either,
    # Both have constants beside what moves: numbers, and where only one operand moves, the other one.
    "hypot": FastPaths()(reductions.hypot),
    "sqrt": roots.sqrt,
    **dict.fromkeys(("pow", "__pow__"), roots.pow),
    "std": roots.std,
    "std_mean": roots.std_mean,
    "dist": reductions.dist,
    # Torch has no forward mode of the first three.
    "cdist": reductions.cdist,
    "pdist": reductions.pdist,
    "_weight_norm": reductions.weight_norm,
    "norm_except_dim": reductions.norm_except_dim,
    "renorm": _spelled_out(reductions.renorm),
    "pairwise_distance": reductions.pairwise_distance,
    "sort": sorting.sort,
    "argsort": sorting.argsort,
    "msort": sorting.msort,
    "topk": sorting.topk,
    "kthvalue": sorting.kthvalue,
    **_each(sorting.median, "median", "nanmedian"),
    "cummax": sorting.cumulative("cummax", as_is),
    "cummin": sorting.cumulative("cummin", torch.neg),
    "index_reduce": scattering.index_reduce,
    "scatter_reduce": scattering.scatter_reduce,
    **_each(pooling.max_pool, "max_pool1d", "max_pool2d", "max_pool3d"),
    **_each(pooling.adaptive_max_pool, "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    **_each(pooling.fractional_max_pool, "fractional_max_pool2d", "fractional_max_pool3d"),
    **_each(pooling.power_average_pool, "lp_pool1d", "lp_pool2d", "lp_pool3d"),
    # These choose nothing; but torch's derivative is NaN beside a constant 0, or where all terms are minus infinity.
    "xlogy": constant_factors.constant_beside_0(torch.xlogy, 0.0),
    "xlog1py": constant_factors.constant_beside_0(torch.special.xlog1py, -1.0),
    "logsumexp": native.NATIVE["logsumexp"],
    "logaddexp": FastPaths()(native.NATIVE["logaddexp"].__wrapped__),  # type: ignore[attr-defined]
    # Nor do these: torch's derivative is wrong, or missing.
    "det": derivatives.det,
    "cholesky_inverse": derivatives.cholesky_inverse,
    "nan_to_num": derivatives.nan_to_num,
    "to_dense": derivatives.to_dense,
    "linear_cross_entropy": derivatives.linear_cross_entropy,
    **_each(_of_native, "normalize", "margin_ranking_loss", "hinge_embedding_loss"),
    **_each(_of_native, "triplet_margin_loss", "triplet_margin_with_distance_loss"),
    "l1_loss": _spelled_out(losses.l1_loss),
    "smooth_l1_loss": losses.smooth_l1_loss,
    "huber_loss": losses.huber_loss,
    "multi_margin_loss": _spelled_out(losses.multi_margin_loss),
    "cosine_embedding_loss": losses.cosine_embedding_loss,
    "logit": _spelled_out(losses.logit),
    "rnn_relu": _spelled_out(recurrent.rnn_relu),
    "rnn_relu_cell": _spelled_out(recurrent.rnn_relu_cell),
}

_OF_BOUNDS = (
    *("maximum", "fmax", "minimum", "fmin", "clamp", "clip", "clamp_min", "clamp_max"),
    *("relu", "relu6", "hardtanh", "threshold"),
)
"""The functions that compare a tensor to bounds: a sum of squares may stay one."""
_CHOICES_BY_NAME_OR_IN_PLACE: dict[str, Function] = {
    **_CHOICES_BY_NAME,
    **{f"{name}_": overwriting(f"{name}_", choice) for name, choice in _CHOICES_BY_NAME.items() if in_place(name)},
}
# What overwrites chooses by a copy, of which it is not known that it is a quadratic form, unless that is told here.
_CHOICES_BY_NAME_OR_IN_PLACE |= {
    f"{name}_": roots.overwriting(f"{name}_", _CHOICES_BY_NAME[name]) for name in ("sqrt", "pow")
}
_CHOICES_BY_NAME_OR_IN_PLACE |= {
    name: roots.comparing(name, choice)
    for name, choice in _CHOICES_BY_NAME_OR_IN_PLACE.items()
    if name.removesuffix("_") in _OF_BOUNDS
}

CHOICES_BY_FUNCTION: Mapping[Function, Function] = {
    torch.linalg.matrix_norm: reductions.matrix_norm,
    torch.polar: derivatives.polar,  # in torch 2.15 `torch.linalg.polar` decomposes matrices
    **{
        op: _CHOICES_BY_NAME_OR_IN_PLACE[name]
        for ops in (native.NATIVE, TORCH_OPS | IN_PLACE_OPS)
        for name, op in ops.items()
        if name in _CHOICES_BY_NAME_OR_IN_PLACE
    },
    **{in_torch: choice for _, in_torch, choice in namesakes(_CHOICES_BY_NAME_OR_IN_PLACE)},
}
"""Maps a function of torch or of this package to what is called in its place.

`where` is not here: its condition is.
"""

CHOICES_BY_CALL: Mapping[Function, Function] = {
    **CHOICES_BY_FUNCTION,
    **dict(operators_of(CHOICES_BY_FUNCTION)),
    **{copy: jumps.conversion(copy) for copy in operators_named("_to_copy")},  # which `to` calls
    **dict(parts_of(CHOICES_BY_FUNCTION)),
    # Torch has no derivative of this one. In a block of its own `copy_` warns where it writes to integers.
    **dict.fromkeys(
        foreach_named("copy_"), _SpelledOut("_foreach_copy_")(functools.partial(of_each, torch.Tensor.copy_))
    ),
}
"""`CHOICES_BY_FUNCTION` plus the ATen operators behind its functions: what the block looks up."""

_ROUNDED: Mapping[Function, Function] = {
    division: overwriting(name, jumps.quotient) if name.endswith("_") else jumps.quotient
    for name in ("div", "divide", "div_", "divide_")
    for division in (
        *(getattr(home, name) for home in (torch, torch.Tensor) if hasattr(home, name)),
        *operators_named(name),
    )
}
"""Maps the forms of a division to what is called where it rounds: others, which are frequent, choose nothing."""
