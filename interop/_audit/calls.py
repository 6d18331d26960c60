"""Keeps the calls of functions whose gradient depends on the version, and differentiates them again, as in either."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import jax
import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from interop._torch.checkpoint_modes import Block
from interop._torch.forms import functions_named
from interop._torch.grad_state import is_recorded
from interop._torch.private_api import is_transformed, keywords_of, operators_named, whole_of
from interop._transforms.as_of import as_of
from interop._transforms.min_norm import is_of_an_op, namesakes
from interop._transforms.tied_elements import can_tie, tied_elements
from interop._transforms.ties import ties
from interop.native import NATIVE
from jaxclamp import Convention
from jaxclamp._shared.tie_report import Site


@dataclass(eq=False)
class WatchedCall:
    """A call of a function of torch, to be differentiated again."""

    site: Site
    function: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]]
    """Copies."""
    tied: tuple[int, int] | None
    """The number of elements, and of those on a tie; None for a loss, which clamps inside."""
    cotangents: list[torch.Tensor] = field(default_factory=list)

    def gradient(self, version: str) -> torch.Tensor:
        """Differentiate the call by all its operands, as that version does."""
        with as_of(version):
            return flat(self._gradients(self.function, self._cotangent))

    def slopes(self, version: str) -> torch.Tensor:
        """Differentiate the sum of the result by the operands of its shape, or by all if there are none."""
        # An operand of another shape, such as a bound of one element, has a sum of slopes for its gradient.
        ones = torch.ones_like(self._cotangent)
        with as_of(version):
            gradients = self._gradients(self.function, ones)
        return flat([gradient for gradient in gradients if gradient.shape == ones.shape] or gradients)

    def has(self, convention: Convention, gradient: torch.Tensor) -> bool:
        """Say whether that convention gives that gradient, if the call can name one, which operators cannot."""
        if self.function not in _NATIVE:
            return False
        kernel = functools.partial(_NATIVE[self.function], ties=convention)
        return not difference_of(flat(self._gradients(kernel, self._cotangent)), gradient).any()

    @property
    def _cotangent(self) -> torch.Tensor:
        # Several backward passes through the call, as two losses of one network, have left a cotangent each.
        return torch.stack(self.cotangents).sum(0)

    def _gradients(self, function: Callable[..., Any], cotangent: torch.Tensor) -> Sequence[torch.Tensor]:
        leaves, structure = jax.tree.flatten(self.arguments)
        fresh = list(map(_copied, leaves))
        active = [leaf for leaf in fresh if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        # Clones: the function may overwrite them, which torch refuses of a leaf that requires grad.
        operands = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in fresh]
        args, kwargs = jax.tree.unflatten(structure, operands)
        value = function(*args, **kwargs)
        return torch.autograd.grad(value, active, cotangent, allow_unused=True, materialize_grads=True)

    def moved(self) -> WatchedCall:
        """Move each element of the first operand onto the nearest of the further ones, which are its bounds.

        ``clamp([1, 5], 0, 6)`` becomes ``clamp([0, 6], 0, 6)``.
        """
        args, kwargs = self.arguments
        x = args[0] if args else kwargs.get("input")
        further = [value for value in (*args[1:], *kwargs.values()) if value is not x]
        if self.tied is None or not isinstance(x, torch.Tensor):
            return self
        bounds = [torch.as_tensor(v, dtype=x.dtype, device=x.device) for v in further if isinstance(v, _BOUNDS)]
        if not bounds:
            return self
        x, nearest, *bounds = torch.broadcast_tensors(x, *bounds)
        for bound in bounds:
            nearest = torch.where(abs(x - bound) < abs(x - nearest), bound, nearest)
        moved = nearest.detach().clone().requires_grad_(x.requires_grad)
        elements, _ = self.tied
        arguments = ((moved, *args[1:]), kwargs) if args else ((), {**kwargs, "input": moved})
        return dataclasses.replace(self, arguments=arguments, tied=(elements, elements))


_BOUNDS = (float, int, np.number, torch.Tensor)
_NATIVE = {function: op for _, function, op in namesakes(NATIVE)}
"""Maps a function of torch to that of `interop.native`, which takes ``ties=``."""


_UNWATCHED = {function: name for name in ("quantile", "nanquantile") for function in functions_named(name)}
"""Maps a function that gives another one of equal elements the gradient in 2.15 than in 2.13 to its name."""


class Watching(ties, Block):  # for the line and the module of a call, which `ties` knows; it counts nothing
    """Keeps the calls of the watched functions whose results require grad, and which derivatives were asked for.

    It is a `Block`, as a reentrant checkpoint records its calls where it computes again. What another checkpoint
    computes again gets no gradient, and does not count.
    """

    def __init__(self, watched: Collection[Callable[..., Any]], uncovered: Mapping[Callable[..., Any], str]) -> None:
        super().__init__()
        self.calls: list[WatchedCall] = []
        self._handles: list[RemovableHandle] = []
        self.derivatives: set[Callable[..., Any]] = set()
        self.unwatched: set[str] = set()
        # Exported programs call operators, torch.ops.aten.clamp.default.
        operators = {operator: f for f in watched for operator in operators_named(f.__name__)}
        self._watched = {**operators, **{f: f for f in watched}}
        self._uncovered = uncovered

    def __enter__(self) -> Self:
        # Where a checkpoint computes again, the block may be entered within itself.
        self._handles.append(register_module_forward_pre_hook(lambda module, _: refuse_script(module)))
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._handles.pop().remove()

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = keywords_of(func, kwargs)
        self.reach_checkpoints(func)
        tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
        if func in _UNWATCHED and is_recorded(tensors):
            self.unwatched.add(_UNWATCHED[func])
        if func in self._uncovered and is_recorded(tensors):
            raise NotImplementedError(
                f"audit: the versions differentiate {self._uncovered[func]} otherwise, which cannot be asked of both; "
                "write its formula with torch.clamp_min."
            )
        if func in (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad):
            self.derivatives.add(func)
        watched = self._watched.get(func)
        if watched is None or not is_of_an_op(watched, args, kwargs):
            return func(*args, **kwargs)
        if is_transformed():
            raise NotImplementedError(
                f"audit: {watched.__name__} is called within torch.func, whose gradients are not seen; pass a function "
                "that the tape of torch differentiates."
            )
        with torch.no_grad():  # before the call, which may overwrite them
            copies = jax.tree.map(_copied, (args, dict(kwargs)))
            counts = tied_elements(watched, args, kwargs) if can_tie(watched) else None
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            file, number, module = self._place()
            tied = counts and (counts[0], int(counts[1]))
            call = WatchedCall((file, number, watched.__name__.strip("_"), False, module), func, copies, tied)
            _keep_gradient(result, call.cotangents)
            self.calls.append(call)
        return result


def _keep_gradient(result: torch.Tensor, gradients: list[torch.Tensor]) -> None:
    """Let each backward pass append the gradient of a result.

    Where a part of a tensor was overwritten, as by ``boxes[:, 0].clamp_(0, 6)``, that comes by the whole.
    """
    whole = whole_of(result)
    of_whole, of_part = ((x.size(), x.stride(), x.storage_offset()) for x in (whole, result))
    offset = of_part[2] - of_whole[2]

    def append_part(gradient: torch.Tensor) -> None:
        laid_out = gradient.new_empty_strided(*of_whole[:2]).copy_(gradient)
        gradients.append(laid_out.as_strided(*of_part[:2], offset))

    whole.register_hook(gradients.append if whole is result else append_part)


def refuse_script(function: object) -> None:
    """Raise if the function, or the module, is TorchScript."""
    if isinstance(function, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise NotImplementedError(
            "audit: TorchScript shows its calls to no mode; pass the module or the function that it was made of."
        )


def flat(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the gradients as one vector, in float64."""
    return torch.cat([gradient.flatten().double() for gradient in gradients])


def difference_of(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the difference, which is 0 of equal infinities, and of NaN on both sides, too."""
    same = (first == second) | (first.isnan() & second.isnan())
    return torch.where(same, 0.0, first - second)


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf
