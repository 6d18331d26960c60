"""Existing torch code under the convention: a mode in which calls of torch's functions become calls of the ops."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, TypeVar, final, overload

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from interop._bridge.ops import IN_PLACE_OPS, TORCH_OPS
from interop._private_torch import carry_into_recomputation
from jaxclamp import CONVENTIONS, Convention
from jaxclamp._rules.conventions import refuse_convention

F = TypeVar("F", bound=Callable[..., Any])
_SUSPENDED = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)


@final
class min_norm(TorchFunctionMode, contextlib.ContextDecorator):  # noqa: N801  # it is used as a function
    """A context manager and decorator in which unmodified torch code gets the gradients of jaxclamp.

    Functions of torch and torch.nn.functional, methods of tensors, in-place and ``out=`` forms, and the modules of
    torch.nn that call them: `min_norm.intercepted` has the list. Calls without a floating-point tensor stay as they
    are; sparse, nested and quantized tensors are refused. It holds for the thread that enters it, nests, and ends with
    the block, by an exception too; a backward pass may follow later, and recomputes checkpoints under the convention.

    It does not see what other functions of torch call in turn (the ``clamp_min`` in `torch.nn.functional.normalize`),
    nor into TorchScript, exported programs, checkpoints inside a compiled function, or the ``backward`` of a
    `torch.autograd.Function`.

    Args:
      function: what is decorated by ``@min_norm``, which is ``@min_norm()``.
      ties: the convention of the selection ops, as for `jaxclamp.clamp`; the innermost block decides.

    Raises:
      ValueError: ``ties`` is unknown.
      TypeError: ``function`` is not callable, or a generator or coroutine function.

    Raises when called:
      NotImplementedError: `torch.fx.symbolic_trace` would record torch's own function.

    >>> x = torch.tensor([0.0, 3.0, 6.0], requires_grad=True)
    >>> with min_norm():
    ...     y = x.clamp(0.0, 6.0)
    >>> torch.autograd.grad(y.sum(), x)
    (tensor([0., 1., 0.]),)
    """

    intercepted: tuple[str, ...]
    """The names of the functions that are replaced."""

    @overload
    def __new__(cls, *, ties: Convention = "min_norm") -> Self: ...
    @overload
    def __new__(cls, function: F, *, ties: Convention = "min_norm") -> F: ...  # type: ignore[misc]  # as torch.no_grad does
    def __new__(cls, function: Callable[..., Any] | None = None, *, ties: Convention = "min_norm") -> Any:
        if function is None:
            return super().__new__(cls)
        if not callable(function):
            raise TypeError(f"min_norm: function is {function!r}; pass a function, or ties={function!r} by its name.")
        return cls(ties=ties)(function)

    def __init__(self, *, ties: Convention = "min_norm") -> None:
        super().__init__()
        if ties not in CONVENTIONS:
            refuse_convention(ties)
        self.ties = ties

    def __call__(self, function: F) -> F:
        if any(is_kind(function) for is_kind in _SUSPENDED):
            raise TypeError(
                f"min_norm() cannot decorate {function.__name__}, which runs after the call has returned; "
                "use `with min_norm():` around the computations in it."
            )
        return super().__call__(function)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _REPLACEMENTS and any(
            isinstance(argument, torch.fx.Proxy) for argument in (*args, *kwargs.values())
        ):
            raise NotImplementedError(
                f"torch.fx.symbolic_trace would record torch's own {func.__name__}, and with it torch's gradient at "
                "ties; use torch.export, or trace before interop.nn.convert and outside of interop.min_norm()."
            )
        if func in _REPLACEMENTS and has_real_float_tensor((*args, *kwargs.values())):
            replacement, has_conventions = _REPLACEMENTS[func]
            carry_into_recomputation(self, self)
            if has_conventions:
                return replacement(*args, **kwargs, ties=self.ties)
            return replacement(*args, **kwargs)
        return func(*args, **kwargs)


def has_real_float_tensor(arguments: tuple[Any, ...]) -> bool:
    """Whether an op of jaxclamp is meant, which is one of real numbers."""
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    return any(t.is_floating_point() for t in tensors) and not any(t.is_complex() for t in tensors)


def _overloaded(ops: Mapping[str, Callable[..., Any]], name: str) -> Callable[..., Any]:
    """torch.max and torch.min: of two tensors, along an axis, of all elements."""
    of_two, along_an_axis, of_all = ops[f"{name}imum"], ops[f"{name}_with_indices"], ops[f"a{name}"]

    def function(input: torch.Tensor, *args: Any, ties: Convention, **kwargs: Any) -> Any:
        if (args and isinstance(args[0], torch.Tensor)) or not kwargs.keys().isdisjoint(("other", "x2")):
            return of_two(input, *args, ties=ties, **kwargs)
        if args or not kwargs.keys().isdisjoint(("dim", "axis")):
            return along_an_axis(input, *args, ties=ties, **kwargs)
        return of_all(input, ties=ties, **kwargs)

    return function


def _with_indices(pool: Callable[..., Any]) -> Callable[..., Any]:
    """What `torch.nn.functional` calls when a pool is asked for its indices."""

    def function(*args: Any, ties: Convention, return_indices: bool = True, **kwargs: Any) -> Any:
        return pool(*args, ties=ties, return_indices=True, **kwargs)

    return function


def namesakes(ops: Mapping[str, Callable[..., Any]]) -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """All functions of torch that have the name of one of ``ops``: the dotted name, the function, and that op."""
    homes = {"torch": torch, "torch.Tensor": torch.Tensor, "torch.nn.functional": functional}
    named = {
        **ops,
        **{name: _overloaded(ops, name) for name in ("max", "min")},
        **{f"{name}_with_indices": _with_indices(ops[name]) for name in ("max_pool1d", "max_pool2d")},
        "__abs__": ops["abs"],
    }
    for name, function in named.items():
        for home, namespace in homes.items():
            if hasattr(namespace, name):
                yield f"{home}.{name}", getattr(namespace, name), function


_FOUND = tuple(namesakes(TORCH_OPS | IN_PLACE_OPS))
_REPLACEMENTS = {native: (f, "ties" in inspect.signature(f).parameters) for _, native, f in _FOUND}
min_norm.intercepted = tuple(sorted(name for name, _, _ in _FOUND))
