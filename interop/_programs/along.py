"""The block `along`, in which a backward pass gives the gradient of the piece that a loss enters along a direction."""

from __future__ import annotations

import contextlib
import functools
import reprlib
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, final

import torch
from torch.autograd import forward_ad
from torch.utils.weak import WeakTensorKeyDictionary

from interop._programs.choices import quadratic_forms
from interop._programs.decided import BACKWARD, Decided, operands
from interop._programs.directions import (
    Drawn,
    checked_direction,
    leaves_of,
    random_direction,
    refuse_both,
    refuse_nowhere,
)
from interop._programs.forward_mode import CURES, alone, named_cure, refuse_here
from interop._programs.late_tangents import Tape, refuse_without_jvp, waits
from interop._programs.nan_gradients import Losses
from interop._programs.order import LateTangentError, Tangents, moves, moving_by
from interop._torch.around_calls import AroundCalls
from interop._torch.private_api import (
    depth_of_transformations,
    is_compiled,
    outside_of_transformations,
    propagates_tangents,
    refuse_compiled,
    version_of,
    whole_of,
    with_forward_mode,
    with_old_versions,
    without_forward_mode,
)
from interop._transforms.as_of import PINNED
from interop._transforms.source_lines import line_of_user, name_of
from interop._transforms.tied_elements import can_tie, tied_elements
from jaxclamp._transforms.undecided import warn_once


@final
class along(AroundCalls):  # noqa: N801  # it is used as a function
    """A block in which ``loss.backward()`` gives the gradient of the piece that the loss enters along a direction.

    For training loops and modules as they are: the parameters stay the same tensors, with their values, gradients and
    hooks. On the CPU they get tangents when a choice is first on a tie, so that a step without one costs little more.
    The backward pass may follow the block, and an optimizer may step in the block or behind it. What is decided, and
    what is not, is said at `directional_derivative`; choices in other threads are not. Checkpoints compute again
    without tangents: they are refused. One with ``use_reentrant=True`` whose inputs need no gradient has none in torch,
    and so none here. Compiled functions are refused, too, and so are `torch.func.jvp`, `torch.func.jacfwd` and
    `torch.func.hessian`, since torch has one level of forward mode outside of torch.func.

    The loss is computed once, with choices decided along the direction: it may differ from the usual one by rounding,
    and where a choice jumps, as that of an expert among equal ones, it is that of the piece that is entered.
    Where a branch that is not taken would make a gradient NaN, the loss gets its true gradients when the block ends, or
    in a backward pass in the block, if it has one element. It can be differentiated once, then.

    Args:
      parameters: a module, or tensors, such as parameters and inputs together.
      direction: a tensor, or one for each of those that require grad, in the order of ``parameters``, or of
        ``module.parameters()``. Without it, they have numbers between -1 and 1, always the same, and are kept with
        the parameters for the next block.
      generator: for others, drawn from a normal distribution, such as another direction in each step.

    Raises:
      TypeError: ``parameters`` is neither a module nor tensors, or one of them is not floating-point, was made under
        `torch.inference_mode`, or is cut into parts by FullyShardedDataParallel, ``fully_shard`` or tensor parallelism;
        ``generator`` is no `torch.Generator`; or a class, or a generator or coroutine function, is decorated.
      ValueError: no parameter requires grad, or one is of a lazy module that has not run; ``direction`` has another
        number of tensors, or one has another shape, dtype or device, or is not finite, or all are 0; both
        ``direction`` and ``generator`` are given.
      RuntimeError: forward mode is at work already, in whichever thread, as in another such block; or called in a
        compiled function; in the block, a compiled function is called; at its end, the module has a parameter that
        was made or unfrozen in it.

    >>> layer, x = torch.nn.Linear(1, 1, bias=False), torch.ones(1, 1)
    >>> _ = torch.nn.init.zeros_(layer.weight)
    >>> with along(layer):
    ...     y = layer(x)
    ...     (torch.relu(y) - torch.relu(-y)).sum().backward()
    >>> layer.weight.grad
    tensor([[1.]])
    """

    def __init__(
        self,
        parameters: torch.nn.Module | torch.Tensor | Iterable[torch.Tensor],
        *,
        direction: torch.Tensor | Sequence[torch.Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        refuse_both("along", direction, generator)
        # An iterator, such as ``model.parameters()``, has them once, and the block may be entered again.
        self._parameters = parameters if isinstance(parameters, torch.nn.Module) else _tensors_among(parameters)
        self._direction, self._generator = direction, generator

    def __enter__(self) -> None:
        block = _moving_along(self._parameters, self._direction, self._generator)
        block.__enter__()
        self._block = block

    def __exit__(self, *exception: Any) -> bool | None:
        return self._block.__exit__(*exception)


@contextlib.contextmanager
def _moving_along(
    parameters: torch.nn.Module | list[torch.Tensor],
    direction: torch.Tensor | Sequence[torch.Tensor] | None,
    generator: torch.Generator | None,
) -> Iterator[None]:
    """Let the parameters move in the block, and give its losses their gradients at its end."""
    refuse_compiled("along")
    refuse_here("along")
    moving = _trained(parameters)
    if direction is None:
        drawn = _DRAWN.setdefault(moving[0], Drawn())
        direction = drawn.of(moving) if generator is None else random_direction(moving, generator)
    else:
        if isinstance(direction, torch.Tensor) or not isinstance(direction, Iterable):
            direction = [direction]
        direction = checked_direction("along", moving, "parameters that require grad", [*direction], "direction")
        refuse_nowhere("along", direction)
    losses = Losses(moving)
    directions = dict(zip(moving, direction, strict=True))
    tangents = Tangents(depth_of_transformations())
    with alone("along"), forward_ad.dual_level(), moving_by(tangents):
        with named_cure("along", CURES), _Along(losses, tangents, directions) as block:
            yield
        losses.settle(block.complete)  # while there are tangents, and no longer watched by the block
    if isinstance(parameters, torch.nn.Module):
        named = parameters.named_parameters()
        if new := [name for name, parameter in named if parameter.requires_grad and parameter not in directions]:
            raise RuntimeError(
                f"along: {new[0]} was made or unfrozen in the block, and has the gradient of torch; call "
                "load_state_dict(assign=True), requires_grad_() and the like before the block."
            )


def _tensors_among(parameters: Any) -> list[torch.Tensor]:
    """Return the tensors that the caller has given as parameters; raise unless they are tensors."""
    if isinstance(parameters, torch.Tensor):
        return [parameters]
    if isinstance(parameters, str) or not isinstance(parameters, Iterable):
        raise TypeError(f"along: parameters is {reprlib.repr(parameters)}; {_TO_PASS}")
    tensors = list(parameters)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"along: one of the parameters is {reprlib.repr(tensor)}; {_TO_PASS}")
    return tensors


def _trained(parameters: torch.nn.Module | list[torch.Tensor]) -> list[torch.Tensor]:
    """Return those of the parameters that require grad, once each."""
    tensors = [*parameters.parameters()] if isinstance(parameters, torch.nn.Module) else parameters
    for tensor in tensors:
        if torch.nn.parameter.is_lazy(tensor):
            raise ValueError(
                "along: one of the parameters is uninitialized; run its lazy module once before the block."
            )
        if tensor.is_inference():
            raise TypeError(
                "along: one of the parameters was made under torch.inference_mode(), and no gradient reaches it; make "
                "the model outside of that, or pass a clone that was taken outside of it."
            )
    moving = list(dict.fromkeys(tensor for tensor in tensors if tensor.requires_grad))  # weights may be tied
    if not moving:
        raise ValueError(
            "along: none of the parameters requires grad; pass those with respect to which to differentiate."
        )
    return leaves_of("along", moving, "parameters")


_TO_PASS = "pass a module, a tensor or several, as model.parameters()."
_DRAWN: MutableMapping[torch.Tensor, Drawn] = WeakTensorKeyDictionary()
"""Maps the first of several parameters to the direction of all."""


_FREEZING = (torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__)  # type: ignore[attr-defined]
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]  # as `torch.nn.Module.double` does


class _Along(Decided):
    """The block of `along`: it gives tensors their tangents, refuses compiled functions, and watches for losses."""

    def __init__(self, losses: Losses, tangents: Tangents, directions: Mapping[torch.Tensor, torch.Tensor]) -> None:
        super().__init__()
        self._losses = losses
        self._tangents = tangents
        self._directions = directions
        self._tape = Tape(directions)
        self._passed = weakref.WeakSet[Any]()
        """The forms and selections of which a root would find all tangents that it reads."""
        self._parts = defaultdict[torch.Tensor, list[torch.Tensor]](list)
        """Maps what parameters show the memory of, as a rule themselves, to these."""
        for parameter in directions:
            self._parts[whole_of(parameter)].append(parameter)
        self._versions = {whole: version_of(whole) for whole in self._parts}
        tangents.are_late = True
        if not self._tape.begins_late():
            self._give_late_tangents()

    def _give_late_tangents(self) -> None:
        """Give the parameters their tangents, if these are late."""
        if self._tangents.are_late:
            self._tangents.are_late = False
            self._tape.end()
            torch.clear_autocast_cache()  # it may hold casts of the parameters from before they had tangents
            self._move(self._directions)

    def _move(self, parameters: Iterable[torch.Tensor]) -> None:
        """Give parameters their tangents: their directions, or 0 where they are frozen."""
        v = self._directions
        _give_tangents({x: v[x] if x.requires_grad else torch.zeros_like(v[x]) for x in parameters})

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_compiled():
            raise RuntimeError("along: a compiled function has no tangents; call the function that was compiled.")
        if func == _SET_DATA and args[0] in self._versions and args[0].dtype != args[1].dtype:
            raise RuntimeError(
                f"along: a parameter of {args[0].dtype} becomes one of {args[1].dtype} in the block, and its tangent "
                "stays; convert the model before the block."
            )
        # Such a backward pass frees the graph, in which the gradients of a loss are looked for.
        if func in BACKWARD and not (kwargs or {}).get("create_graph"):
            self._losses.settle(self.complete)
        result = self._called(func, types, args, kwargs)
        if func in _FREEZING and args[0] in self._directions and not self._tangents.are_late:
            self._move(args[:1])
        # What overwrites a parameter or a part of it, as `torch.nn.init` and ``w[0] = 0`` do, overwrites its tangent.
        for overwritten in operands(result, *args[:1]):
            if isinstance(overwritten, torch.Tensor) and (whole := whole_of(overwritten)) in self._versions:
                self._restore_tangents(whole)
        self._losses.see(PINNED.get(func, func), args, result)
        return result

    def _called(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        """Call the function in the block of `Decided`, and give tensors the tangents that it needs and they lack.

        Of ``relu(w * x)`` with late tangents the product waits, and is noted on the tape. So does the relu, unless it
        is given a 0: then it raises a LateTangentError, w and the product get their tangents, and it is called again.
        """
        args = self._noted(func, args)
        call = functools.partial(super().__torch_function__, func, types, args, kwargs)
        if not self._tangents.are_late and self._tape.is_empty():
            return call()  # what moves has its tangent
        tensors = [x for x in operands(*args, *(kwargs or {}).values()) if isinstance(x, torch.Tensor)]
        if self._tangents.are_late and waits(PINNED.get(func, func), args, kwargs or {}, tensors):
            with contextlib.suppress(LateTangentError):
                result = call()
                self._tape.note(result)
                return result
        if func in BACKWARD and not self._tape.is_empty():
            # The numbers that it has saved may lack their tangents. So the gradients get theirs as what is on the tape.
            with without_forward_mode():
                result = call()
            self._tape.end()
            self._tape.note(result)
            return result
        # torch.func allows `requires_grad_` in a block of its own, which a backward pass would end.
        if func is not torch.Tensor.requires_grad_:
            for needed in (y for x in tensors for y in (x, *quadratic_forms.behind(x, self._passed))):
                outside_of_transformations(self._tangents.depth, self.complete, needed)
        return call()

    def _noted(self, func: Callable[..., Any], args: Any) -> Any:
        """Tell the tape of what its reverse passes would disturb, or not find, and return the arguments of the call."""
        if func is torch.Tensor.register_hook and len(args) == 2:
            return args[0], self._tape.apart_from(args[1])
        if func is torch.Tensor.retain_grad:
            self._tape.retain(args[0])
        if func in _FREEZING and args[0] in self._directions:
            self._tape.hold(args[0])
        return args

    def complete(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """Give a tensor, and the parameters, the tangents that they lack."""
        self._give_late_tangents()
        is_tangent = torch.is_grad_enabled() and not propagates_tangents()  # as the numbers in a ``jvp`` are
        may_lack_one = x.requires_grad and not is_tangent and not moves(x) and x.layout is torch.strided
        if may_lack_one and self._tape.lacks_tangent(x):
            refuse_without_jvp(x)
            _give_tangents(self._tape.tangents_of(x))
        return ()  # `outside_of_transformations` takes functions that return tensors

    def on_choice_of_torch(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Warn, once for each line, of a tie of what needs a gradient, as a weight computed before the block does."""
        # Not by `is_active`: in forward mode, as here, that holds of all tensors.
        needs_gradient = any(isinstance(x, torch.Tensor) and x.requires_grad for x in operands(*args, *kwargs.values()))
        if not (needs_gradient and torch.is_grad_enabled() and can_tie(func)):
            return
        try:
            _, tied = tied_elements(func, args, kwargs)
        except (TypeError, ValueError, RuntimeError):  # no numbers to see, or a call that fails by itself too
            return
        if tied:
            warn_once(
                line_of_user(),
                f"{name_of(func)} is on a tie, and torch decides it, since what needs a gradient there has no tangent. "
                "Name the tensor to along, and compute in the block what is made of it; interop.ties lists the line",
            )

    def _restore_tangents(self, whole: torch.Tensor) -> None:
        if self._versions[whole] != (version := version_of(whole)):
            self._versions[whole] = version
            # A write to what is no leaf is a part of the program, where gradients are recorded.
            self._move(x for x in self._parts[whole] if x.is_leaf or not torch.is_grad_enabled())


def _give_tangents(tangents: Mapping[torch.Tensor, torch.Tensor]) -> None:
    """Give tensors their tangents by what is copied to them; they stay the same tensors."""
    # Forward mode is off in a Function's ``forward``, and nothing records it in inference mode.
    with torch.inference_mode(False), torch.no_grad(), with_forward_mode(), with_old_versions(tangents):
        for tensor, tangent in tangents.items():
            tensor.copy_(forward_ad.make_dual(tensor.detach(), tangent))
