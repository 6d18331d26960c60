"""Puts existing torch code under the convention, by a mode that replaces torch's functions as they are called."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Self, TypeAlias, TypeVar, final, get_args, overload

import torch
from torch.overrides import handle_torch_function

from interop import native
from interop._bridge.ops import IN_PLACE_OPS, TORCH_OPS
from interop._programs.operators import operators_of
from interop._torch.around_calls import AroundCalls
from interop._torch.checkpoint_modes import Block
from interop._torch.forms import HOMES, overloaded
from interop._torch.grad_state import is_recorded
from interop._torch.private_api import (
    calls_functions,
    compiled_within_others_only,
    is_in_function_mode,
    keywords_of,
    make_overridable,
)
from interop._torch.sharding import is_distributed
from jaxclamp import CONVENTIONS, Convention
from jaxclamp._rules.conventions import check_convention
from jaxclamp._rules.norms import ORDERS

F = TypeVar("F", bound=Callable[..., Any])
Backend: TypeAlias = Literal["torch", "jax"]
"""Whose computations take the place of torch's: its own kernels, or the programs of JAX behind the ops of interop."""

Functions: TypeAlias = Mapping[str, Callable[..., Any]]
Replacements: TypeAlias = Mapping[Callable[..., Any], Callable[..., Any]]

_NORM = torch.Tensor.norm


class Intercepting(Block, AroundCalls):
    """A context manager and decorator in which calls of torch's functions go to others, by a table."""

    _cure_of_a_class = "decorate its forward, or use interop.nn.convert(model)"
    _replacements: Replacements
    """Maps a function of torch to what is called in its place."""
    _right_in_torch: Collection[Callable[..., Any]]
    """The replacements that are torch's own functions, and that blocks around do not replace."""
    _uncovered: Mapping[Callable[..., Any], str] = MappingProxyType({})
    """Maps a function of torch without a replacement, whose calls are noticed, to its dotted name."""

    def _pass(self, name: str, arguments: Sequence[Any]) -> None:
        """Notice a call of the uncovered function of that name; a block that has some overrides this."""

    @compiled_within_others_only
    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _NORM:  # a method in Python, which Dynamo finds in a table only if it has it by a name
            func = _NORM
        replacement = self._replacements.get(func)
        if not torch.compiler.is_compiling():
            self.reach_checkpoints(func)
            # The frequent case, without the checks of the function, which is called for tensors in several processes:
            # there it takes another way if torch cannot differentiate its own function.
            if (
                replacement in self._right_in_torch
                and not is_in_function_mode()  # there is no outer block that would replace it
                and not any(map(is_distributed, args))
            ):
                return func(*args, **(kwargs or {}))
            kwargs = keywords_of(func, kwargs)
            if func in self._uncovered:
                self._pass(self._uncovered[func], (*args, *kwargs.values()))
        elif calls_functions(func, args):
            raise NotImplementedError(
                "a block of interop does not reach into functions that torch.cond, checkpoint and other operators of "
                "higher order call in a compiled function, and their gradient would be torch's own; outside of the "
                "block, call functions of interop.native in them, or modules that interop.nn.convert has converted."
            )
        return (func if replacement is None else replacement)(*args, **(kwargs or {}))


@final
class min_norm(Intercepting):  # noqa: N801  # it is used as a function
    """A context manager and decorator in which unmodified torch code gets the gradients of jaxclamp.

    Functions of torch and torch.nn.functional, methods of tensors, in-place and ``out=`` forms, and the modules of
    torch.nn that call them: `min_norm.intercepted` has the list. So are their operators in programs of `torch.export`.
    They become the functions of `interop.native`, torch's own kernels. Where all operands of ``logsumexp`` or
    ``logaddexp`` are minus infinity, these have the gradient 0, instead of NaN. The mode holds for the thread that
    enters it, nests, and ends with the block, by an exception too; a backward pass may follow later, and recomputes
    checkpoints under the convention.

    It does not see what other functions of torch call in turn, nor into TorchScript, or the ``backward`` of a
    `torch.autograd.Function`. Functions that have ties and no counterpart, such as `torch.cummax`, stay torch's own,
    and are counted in ``passed``.

    Args:
      function: what is decorated by ``@min_norm``, which is ``@min_norm()``.
      ties: the convention of the ops that take one, as for `jaxclamp.clamp`; the innermost block decides.
      backend: ``"torch"``, or ``"jax"`` for the programs of JAX behind the ops of this package, `interop.clamp` and so
        on: slower, for comparison.

    Raises:
      ValueError: ``ties`` or ``backend`` is unknown.
      TypeError: ``function`` is not callable, a class, or a generator or coroutine function.

    Raises when called:
      NotImplementedError: `torch.fx.symbolic_trace` would record torch's own function, with ``backend="jax"``; or
        `torch.cond`, a checkpoint or another operator of higher order calls functions in a compiled function.

    >>> x = torch.tensor([0.0, 3.0, 6.0], requires_grad=True)
    >>> with min_norm():
    ...     y = x.clamp(0.0, 6.0)
    >>> torch.autograd.grad(y.sum(), x)
    (tensor([0., 1., 0.]),)
    """

    intercepted: tuple[str, ...]
    """The names of the functions that are replaced."""
    passed: Counter[str]
    """Counts the recorded calls of functions that have ties and are not replaced, by the name of the function."""

    @overload
    def __new__(cls, *, ties: Convention = "min_norm", backend: Backend = "torch") -> Self: ...
    @overload
    def __new__(cls, function: F, *, ties: Convention = "min_norm", backend: Backend = "torch") -> F: ...  # type: ignore[misc]  # as torch.no_grad does
    def __new__(
        cls, function: Callable[..., Any] | None = None, *, ties: Convention = "min_norm", backend: Backend = "torch"
    ) -> Any:
        if function is None:
            return super().__new__(cls)
        if not callable(function):
            raise TypeError(f"min_norm: function is {function!r}; pass a function, or ties={function!r} by its name.")
        return cls(ties=ties, backend=backend)(function)

    def __init__(self, *, ties: Convention = "min_norm", backend: Backend = "torch") -> None:
        super().__init__()
        check_convention("min_norm", ties)
        if backend not in get_args(Backend):
            raise ValueError(f"min_norm: backend={backend!r} is not one of {', '.join(map(repr, get_args(Backend)))}.")
        self.ties = ties
        self.backend = backend
        self.passed = Counter()
        self._replacements = _REPLACEMENTS[backend, ties]
        self._right_in_torch = native.RIGHT_IN_TORCH
        self._uncovered = UNCOVERED

    def _pass(self, name: str, arguments: Sequence[Any]) -> None:
        """Count a call of the uncovered function of that name, if it takes an extremum and torch records it."""
        if not is_recorded([argument for argument in arguments if isinstance(argument, torch.Tensor)]):
            return
        kinds = {argument for argument in arguments if isinstance(argument, (str, float))}
        if name.rpartition(".")[2] not in _OF_MANY_KINDS or not kinds.isdisjoint(_EXTREMA):
            self.passed[name] += 1


def in_block() -> bool:
    """Return whether there is a block around the call, which then has the last word."""
    # The list of the active modes would not do. It lacks the mode that is handling a call just now, and Dynamo, which
    # keeps a list of its own while it traces, cannot look at that of Python. So the question goes the way of every call
    # of torch, by torch's protocol: it is put as a function that each block replaces. In `_REPLACEMENTS` the function
    # stands with one that answers True. If no mode is a block, the protocol ends at this function itself, outside of
    # all modes: False.
    return is_in_function_mode() and bool(handle_torch_function(in_block, ()))


OF_OTHER_ARGUMENTS = {"torch.margin_ranking_loss", "torch.hinge_embedding_loss", "torch.triplet_margin_loss"}
"""The functions that their namesakes in torch.nn.functional call, with a number for the kind of reduction."""


def namesakes(ops: Functions) -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """Return all functions of torch with the name of one of ``ops``: the dotted name, the function, and that op.

    Of ``relu`` these are `torch.relu`, `torch.Tensor.relu` and `torch.nn.functional.relu`.
    """
    with_indices: Functions = {
        f"{name}_with_indices": functools.partial(_with_indices, op) for name, op in ops.items() if "max_pool" in name
    }
    extrema: Functions = {
        name: functools.partial(overloaded, ops[f"{name}imum"], ops[f"{name}_with_indices"], ops[f"a{name}"])
        for name in ("max", "min")
    }
    named: Functions = {**extrema, **with_indices, **ops, "__abs__": ops["abs"]}
    for name, op in named.items():
        for home, namespace in HOMES.items():
            dotted = f"{home}.{name}"
            if dotted == "torch.adaptive_max_pool1d":  # it always has indices
                yield dotted, torch.adaptive_max_pool1d, with_indices[f"{name}_with_indices"]
            elif dotted == "torch.linalg.norm":  # it has other parameters than torch.norm
                if "linalg_norm" in ops:
                    yield dotted, torch.linalg.norm, ops["linalg_norm"]
            elif hasattr(namespace, name) and dotted not in OF_OTHER_ARGUMENTS:
                yield dotted, getattr(namespace, name), op


def _with_indices(pool: Callable[..., Any], *args: Any, return_indices: bool = True, **kwargs: Any) -> Any:
    """Call a pool with its indices, as `torch.nn.functional` does when it has to return them."""
    return pool(*args, return_indices=True, **kwargs)


def _replacing(backend: Backend, ties: Convention) -> Replacements:
    backed = native.NATIVE if backend == "torch" else TORCH_OPS | IN_PLACE_OPS
    replacements = {
        in_torch: op for _, in_torch, op in namesakes({name: _with_ties(op, ties) for name, op in backed.items()})
    }
    if backend == "jax":
        replacements = {in_torch: functools.partial(_of_jax, in_torch, op) for in_torch, op in replacements.items()}
    return {in_block: lambda: True, **replacements, **dict(operators(replacements))}


def operators(replacements: Replacements) -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """Yield the operators of ATen behind the functions that are replaced, and what replaces each.

    Exported programs, and pipelines that torch has split, are graphs of these: ``torch.ops.aten.relu.default``.
    """
    for operator, op in operators_of(replacements):
        if not inspect.isbuiltin(operator):  # that would be a binding, which torch's own functions call in turn
            yield operator, op


def _with_ties(op: Callable[..., Any], ties: Convention) -> Callable[..., Any]:
    is_default = ties == "min_norm" or "ties" not in inspect.signature(op).parameters
    return op if is_default else functools.partial(op, ties=ties)


def _of_jax(in_torch: Callable[..., Any], op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``op``, or torch's function where no op of real numbers is meant."""
    arguments = (*args, *kwargs.values())
    if any(isinstance(value, torch.fx.Proxy) for value in arguments):
        raise NotImplementedError(
            f"torch.fx.symbolic_trace would record torch's own {in_torch.__name__}, and with it torch's gradient at "
            'ties; trace outside of min_norm(backend="jax").'
        )
    return op(*args, **kwargs) if is_of_an_op(in_torch, args, kwargs) else in_torch(*args, **kwargs)


def is_of_an_op(in_torch: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call of that function means an op of jaxclamp: one of real numbers, and no norm of degree 3."""
    tensors = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, torch.Tensor)]
    if not any(t.is_floating_point() for t in tensors) or any(t.is_complex() for t in tensors):
        return False
    return in_torch not in _NORMS or kwargs.get("p", args[1] if len(args) > 1 else "fro") in ("fro", *ORDERS)


_NORMS = (torch.norm, torch.Tensor.norm, TORCH_OPS["norm"], native.NATIVE["norm"])


_REPLACEMENTS = {(backend, ties): _replacing(backend, ties) for backend in get_args(Backend) for ties in CONVENTIONS}
"""Maps a backend and a convention to the replacements in such a block."""
# At import: Dynamo copies torch's list of overridable functions at the first function that it compiles.
make_overridable(in_torch for _, in_torch, _ in namesakes(native.NATIVE))
min_norm.intercepted = tuple(sorted(name for name, _, _ in namesakes(native.NATIVE)))

UNCOVERED = {
    getattr(namespace, name): f"{home}.{name}"
    for home, namespace in HOMES.items()
    for name in (
        *("cummax", "cummin", "topk", "sort", "msort", "kthvalue", "median", "nanmedian", "mode", "quantile"),
        *("nanquantile", "logit", "scatter_reduce", "scatter_reduce_", "index_reduce", "index_reduce_"),
        *("fractional_max_pool2d", "fractional_max_pool3d", "fractional_max_pool2d_with_indices"),
        *("fractional_max_pool3d_with_indices", "embedding_bag", "multilabel_margin_loss", "cosine_embedding_loss"),
        *("cosine_similarity", "rrelu", "rrelu_", "cdist", "pdist", "lp_pool1d", "lp_pool2d", "lp_pool3d"),
    )
    if hasattr(namespace, name)
} | {getattr(HOMES[name.rpartition(".")[0]], name.rpartition(".")[2]): name for name in OF_OTHER_ARGUMENTS}
"""Maps a function of torch that has ties and is not replaced in a block to its dotted name."""
_OF_MANY_KINDS = {
    *("cdist", "pdist", "embedding_bag", "lp_pool1d", "lp_pool2d", "lp_pool3d"),
    *("scatter_reduce", "scatter_reduce_", "index_reduce", "index_reduce_"),
}
"""The functions in `UNCOVERED` that take an extremum or a sum, by an argument; distances and pools, by their order."""
_EXTREMA = {"max", "amax", "amin", torch.inf, -torch.inf}
