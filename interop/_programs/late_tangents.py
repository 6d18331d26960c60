"""Gives the tensors in a block of `along` their tangents when a choice first asks for one.

Tangents double the work of a forward pass, and most steps of a training have no choice that is on a tie. So the
parameters start without. A choice that is on a tie asks. From then on a tensor that was computed before gets, when it
is used next, the tangent that it would have had: two reverse passes over what has been computed so far find it. For a
tensor y of the parameters x, with its Jacobian J, the first gives u J for a vector u. That is linear in u, and the
slope of u J v along u is J v. Of y = (x1 x2, x1), for example, at x = (2, 3) along v = (1, 0), u J is
(3 u1 + u2, 2 u1), and u J v is 3 u1 + u2: so the tangent of y is (3, 1).

It holds for functions that have finite slopes, and that torch differentiates twice. Any other one asks for tangents
before it is called, and so does whatever runs outside of the tape, as under `torch.no_grad`.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.utils.weak import WeakTensorKeyDictionary

from interop._bridge.ops import IN_PLACE_OPS, TORCH_OPS
from interop._programs.decided import BACKWARD
from interop._programs.order import moves
from interop._torch.forms import functions_named
from interop._torch.private_api import (
    has_jvp,
    hooks_of,
    is_transformed,
    next_number,
    number_of,
    propagates_tangents,
    top_hooks,
    whole_of,
    without_forward_mode,
)
from interop._transforms.unbounded import has_slope_without_bound
from interop.native import NATIVE
from interop.native._rules.windows_stage import is_plain
from jaxclamp import OPS

Tensor = torch.Tensor

_BLOCKS_AFTER_A_TIE = 15
_TIED: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()
"""Maps the first of several parameters to how many blocks begin with tangents, since those of one came late.

A training with ties in each step has few steps that cost two reverse passes more.
"""


class Tape:
    """What a block computes of its parameters until these get tangents.

    Nodes of autograd are numbered in the order in which they are made. So two numbers say which are on the tape. Say h
    is 0 in a block that begins before node 7::

        h = w * x     node 7   on the tape: h is noted, and has no tangent
        relu(h)                asks for one: w gets its direction, the tape ends before node 8, and h gets J v
        y = relu(h)   node 8   behind the tape: torch gives y its tangent
    """

    def __init__(self, directions: Mapping[Tensor, Tensor]) -> None:
        self._directions, self._first = directions, next(iter(directions))
        self._ends: dict[Tensor, Any] = {x: x for x in directions}
        """Maps each parameter to where reverse passes find its gradient."""
        self._begin = self._end = next_number()
        """The nodes on the tape have numbers from the first up to the second, which is set when the tangents come."""
        self._is_pushing = False
        self._apart = set[int]()
        """The nodes known not to be made of those on the tape, or to be of no use, as they are freed."""
        self._retained: list[weakref.ref[Tensor]] = []
        self._results: list[weakref.ref[Tensor]] = []

    def begins_late(self) -> bool:
        """Return whether the block is to begin without tangents, which takes parameters without hooks, on the CPU."""
        if remaining := _TIED.get(self._first, 0):
            _TIED[self._first] = remaining - 1
            return False
        return all(x.is_leaf and is_plain(x) and not hooks_of(x) for x in self._directions)

    def end(self) -> None:
        """Note that what is computed from here on has tangents, if it moves."""
        self._end = next_number()

    def hold(self, parameter: Tensor) -> None:
        """Note that the parameter may be frozen, after which only its edge tells where its gradient is."""
        if parameter.requires_grad:
            self._ends[parameter] = get_gradient_edge(parameter)

    def is_empty(self) -> bool:
        """Return whether no node is on it, as in a block that begins with tangents, and as long as they are late."""
        return self._begin == self._end

    def lacks_tangent(self, x: Tensor) -> bool:
        """Return whether a tensor without tangent is on the tape, or made of what is.

        The second holds of results of an autograd.Function, and whatever else the block does not see being called.
        """
        seen, pending = set[int](), [x.grad_fn]
        while pending:
            node = pending.pop()
            if node is None or (number := number_of(node)) < self._begin or number in self._apart or number in seen:
                continue
            if number < self._end:
                return True
            seen.add(number)
            pending += [behind for behind, _ in node.next_functions]
        self._apart |= seen
        return False

    def note(self, result: Any) -> None:
        """Note what a function returned that was called without tangents."""
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, Tensor) and x.requires_grad and x.layout is torch.strided and not is_transformed():
                self._results.append(weakref.ref(x))

    def tangents_of(self, x: Tensor) -> dict[Tensor, Tensor]:
        """Map the tensor, or what it shows if it is a view, to its tangent, if the tape still has it.

        So are all results that the program holds and that lack theirs: a loop may ask for one after the other.
        """
        whole = whole_of(x)
        held = (whole_of(y) for y in (reference() for reference in self._results) if y is not None and not moves(y))
        # The whole may be no part of a graph: ``batch[:2].requires_grad_()`` is a leaf, and shows a part of the batch.
        tensors = dict.fromkeys(y for y in (whole, *held) if y.requires_grad)
        self._results.clear()
        tangents = self._pushed_where_possible([*tensors], whole)
        if whole in tangents:
            _TIED[self._first] = _BLOCKS_AFTER_A_TIE
        elif x.grad_fn:
            self._apart.add(number_of(x.grad_fn))
        return tangents

    def _pushed_where_possible(self, tensors: Sequence[Tensor], needed: Tensor) -> dict[Tensor, Tensor]:
        """Map those of the tensors that the tape still has to their tangents; a choice needs the one that is named."""
        try:
            return self._pushed_forward(tensors)
        except RuntimeError as error:
            if len(tensors) > 1:
                half = len(tensors) // 2
                parts = tensors[:half], tensors[half:]
                first, second = (self._pushed_where_possible(part, needed) for part in parts)
                return first | second
            # A backward pass has freed the nodes, or a write has changed what they need. So no gradient will reach
            # the tensor, and it counts as a constant.
            words = ("second time", "modified by an inplace operation")
            if tensors[0] is needed and not any(map(str(error).__contains__, words)):
                raise
            return {}

    def _pushed_forward(self, tensors: Sequence[Tensor]) -> dict[Tensor, Tensor]:
        # What the reverse passes save is none of a checkpoint's around them, nor to be moved to another device.
        apart = saved_tensors_hooks(_as_it_is, _as_it_is) if top_hooks() else contextlib.nullcontext()
        with self._pushing(), torch.inference_mode(False), without_forward_mode(), apart:  # which enables grad, too
            u = [torch.zeros_like(x, requires_grad=True) for x in tensors]
            # u J, for each parameter its part; then the terms of u J v, whose slopes along u are J v.
            pulled = torch.autograd.grad(tensors, list(self._ends.values()), u, create_graph=True, allow_unused=True)
            if all(part is None for part in pulled):  # made of no parameter
                return {}
            terms = [
                (part * v).sum()
                for part, v in zip(pulled, self._directions.values(), strict=True)
                if part is not None and part.requires_grad
            ]
            slopes: Sequence[Any] = torch.autograd.grad(terms, u, allow_unused=True) if terms else [None] * len(u)
            if len(u) == 1:  # of several, some may be made of no parameter, which is found when they are asked for
                slopes = [u[0] if slopes[0] is None else slopes[0]]
            return {x: slope for x, slope in zip(tensors, slopes, strict=True) if slope is not None}

    @contextlib.contextmanager
    def _pushing(self) -> Iterator[None]:
        alive = (reference() for reference in self._retained)
        retained = [(x, x.grad) for x in alive if x is not None and x.retains_grad]
        self._is_pushing = True
        try:
            yield
        finally:
            self._is_pushing = False
            for x, gradient in retained:
                x.grad = gradient

    def retain(self, x: Tensor) -> None:
        """Note that reverse passes write to ``x.grad``, which those by which tangents are found are to leave alone."""
        self._retained.append(weakref.ref(x))

    def apart_from(self, hook: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        """Return a hook of a tensor that leaves the reverse passes alone by which tangents are found."""
        return lambda gradient: None if self._is_pushing else hook(gradient)


def _as_it_is(x: Tensor) -> Tensor:
    return x


def waits(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Iterable[Tensor]
) -> bool:
    """Return whether a function may be called without tangents of the tensors among its arguments."""
    if is_transformed() or not propagates_tangents():  # a Function may not show torch what it does
        return False
    active = [x for x in tensors if x.requires_grad]
    for x in active:
        refuse_without_jvp(x)
    if not active or function in _READING:
        return True
    return (
        function in _SMOOTH
        and torch.is_grad_enabled()
        and (function in _FINITE_BY_VALUE or not has_slope_without_bound(function, args))
        and top_hooks() is None  # a checkpoint would compute again
        and all(map(is_plain, active))
        and kwargs.get("approximate") != "tanh"  # of gelu, whose slope is NaN at large numbers
        and kwargs.get("padding_idx") is None  # of embedding, whose row moves and gets no gradient
    )


def refuse_without_jvp(x: Tensor) -> None:
    """Raise an error if the program computed ``x`` by an autograd.Function that torch would refuse with tangents."""
    if x.numel() and isinstance(node := x.grad_fn, BackwardCFunction) and not has_jvp(node):
        raise NotImplementedError(f"{node.name().removesuffix('Backward')} has no jvp.")


# fmt: off
_NAMES_OF_FINITE = (
    "exp", "exp2", "expm1", "sinh", "cosh", "log", "log2", "log10", "log1p", "reciprocal", "rsqrt", "div", "divide",
    "true_divide", "__rtruediv__", "__rdiv__", "softmax", "log_softmax", "logsumexp", "cross_entropy", "layer_norm",
    "rms_norm", "group_norm", "batch_norm", "instance_norm", "gelu", "sqrt", "norm", "vector_norm", "std", "std_mean",
    "var", "normalize",
)
"""Functions whose slope has no bound. Where it is not finite, their value is not either, or they ask for tangents."""
_NAMES_OF_SMOOTH = (
    *_NAMES_OF_FINITE, "add", "sub", "subtract", "mul", "multiply", "neg", "negative",
    "rsub", "__radd__", "__rsub__", "__rmul__", "square", "pow", "__pow__", "sin", "cos", "tanh", "sigmoid", "silu",
    "mish", "logsigmoid", "softplus", "erf", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "dot", "inner",
    "outer", "einsum", "addmm", "addmv", "baddbmm", "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "bilinear", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "embedding", "dropout", "sum", "mean",
    "cumsum", "reshape", "view", "view_as", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze", "permute",
    "transpose", "t", "swapaxes", "movedim", "contiguous", "clone", "expand", "expand_as", "broadcast_to", "repeat",
    "repeat_interleave", "cat", "concat", "concatenate", "stack", "hstack", "vstack", "split", "chunk", "unbind",
    "narrow", "select", "__getitem__", "index_select", "gather", "where", "masked_fill", "tril", "triu", "flip",
    "roll", "pad", "lerp", "addcmul", "mse_loss", "nll_loss",
    "binary_cross_entropy_with_logits", "pixel_shuffle", "interpolate", "unfold", "diagonal", "atleast_1d",
    "atleast_2d", "atleast_3d", "broadcast_tensors", "dropout2d", "tanhshrink", "glu", "copy_", "float",
    "double", "half", "bfloat16", "cpu",
)
"""The functions that torch differentiates twice, and whose slopes are finite, or as `_NAMES_OF_FINITE`."""
_NAMES_OF_CHOICES = (
    *(name for name, op in OPS.items() if op.family in ("selection", "kinked") and name != "hardsigmoid"),
    "clip", "abs", "absolute", "__abs__",
    "prelu", "softsign", "sign", "sgn", "eq", "__eq__", "ne", "not_equal", "__ne__", "gt", "greater", "__gt__", "ge",
    "greater_equal", "__ge__", "lt", "less", "__lt__", "le", "less_equal", "__le__", "to", "type", "type_as",
    "logical_not", "logical_and", "logical_or", "logical_xor", "l1_loss", "smooth_l1_loss", "huber_loss", "max", "min",
    "max_pool1d", "max_pool2d", "max_pool3d", "amax", "amin", "argmax", "argmin", "aminmax", "sort", "argsort",
    "topk", "median", "floor", "ceil", "round", "trunc", "fix", "frac", "fmod", "remainder", "__mod__", "int", "long",
    "short", "byte", "char", "__int__", "signbit", "bucketize", "searchsorted", "isclose", "allclose", "equal",
    "quantile", "nanquantile", "__bool__", "is_nonzero", "any", "all", "nonzero", "argwhere", "count_nonzero",
)
"""The functions that choose, and see by values that nothing ties; torch has no second derivative of hardsigmoid."""
_NAMES_OF_READING = (
    "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "is_contiguous", "is_floating_point",
    "is_complex", "item", "tolist", "detach", "__len__", "__repr__", "__format__", "__float__", "isnan", "isfinite",
    "isinf", "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_ones",
    "new_empty", "new_full", "new_tensor",
)
_ATTRIBUTES = (
    "shape", "ndim", "dtype", "device", "layout", "is_cuda", "is_cpu", "is_sparse", "is_leaf", "is_meta", "is_nested",
    "requires_grad", "grad",
)
# fmt: on


def _named(names: Sequence[str]) -> Iterator[Callable[..., Any]]:
    return (function for name in names for function in functions_named(name))


_FINITE_BY_VALUE = frozenset(_named(_NAMES_OF_FINITE))
_SMOOTH = frozenset(
    (
        *_named((*_NAMES_OF_SMOOTH, *_NAMES_OF_CHOICES)),
        *(ops[name] for ops in (NATIVE, TORCH_OPS, IN_PLACE_OPS) for name in _NAMES_OF_CHOICES if name in ops),
        *(getattr(Tensor, name).__get__ for name in ("T", "mT")),
    )
)
_READING = frozenset(
    (
        *BACKWARD,
        *_named(_NAMES_OF_READING),
        *(getattr(Tensor, name).__get__ for name in _ATTRIBUTES),
        *(getattr(Tensor, name).__set__ for name in ("grad", "requires_grad")),  # as `zero_grad` does
    )
)
