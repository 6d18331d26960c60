"""PyTorch as a framework that is compared, and whose functions `interop.compare` takes."""

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from interop._bridge.arrays import lend, tensor_over
from interop._torch.grad_state import leaves_behind
from interop._torch.private_api import keywords_of, version_of
from interop._transforms.influence import influence as influence_of
from interop._transforms.min_norm import min_norm
from interop._transforms.ties import ties
from interop.frameworks.base import (
    NOTHING_TO_DIFFERENTIATE,
    Arguments,
    Arrays,
    Convertible,
    Function,
    Gradient,
    differentiated_in_words,
    is_float,
    total,
)
from interop.frameworks.reseed import reseeded_in_torch
from jaxclamp import OPS, TieReport

_TAKES_A_STEP = (
    "ties: the function differentiates by itself, or overwrites its parameters; pass one that computes the loss alone."
)


class Torch(Convertible):
    """PyTorch, reverse mode; its random numbers on CPU are the same at each call, as the state is put back."""

    name = "torch"
    version = f"torch {torch.__version__.partition('+')[0]}"

    def differentiate(
        self, function: Function, arguments: Arguments, active: Collection[str], summed: Callable[[Any], Any] = total
    ) -> Gradient:
        tensors = {
            name: tensor_over(value.copy()).requires_grad_(name in active)
            for name, value in arguments.items()
            if isinstance(value, np.ndarray)
        }
        # The caller may have turned gradients off.
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            # Clones, since torch refuses to overwrite a leaf that requires grad.
            result = function({**arguments, **{name: tensor.clone() for name, tensor in tensors.items()}})
            result = jax.tree.map(_to_tensor, with_plain_tuples(result))
            differentiable = _differentiable(summed(result))
        chosen = [tensors[name] for name in active]
        gradients = (
            torch.autograd.grad(differentiable, chosen, allow_unused=True, materialize_grads=True) if chosen else ()
        )
        # JAX has the conjugate of what torch calls the gradient.
        gradient = {name: g.conj().resolve_conj() for name, g in zip(active, gradients, strict=True)}
        return Gradient(*jax.tree.map(lambda tensor: np.array(lend(tensor)), (result, gradient)))

    def attempt(self, function: Function, arguments: Arrays) -> None:
        self.differentiate(function, arguments, ())

    def min_norm(self, function: Function) -> Function:
        return min_norm()(function)

    reseeded = staticmethod(reseeded_in_torch)

    def bounds(self, function: Function, arguments: Arrays) -> set[float]:
        """Collect the numbers in its calls of ops and comparisons, and the kinks that the ops have without them."""
        collected = _CollectBounds()
        with collected:
            self.attempt(function, arguments)
        return collected.bounds

    def ties(self, function: Function, arguments: Arrays, influence: bool) -> TieReport:
        tensors = {
            name: tensor_over(array.copy()).requires_grad_(influence and is_float(array))
            for name, array in arguments.items()
        }

        def of_floats() -> Any:  # of clones, since functions may overwrite their arguments
            return total(function({name: tensor.clone() for name, tensor in tensors.items()}))

        with ties() as counted:
            value = of_floats()
        if not influence:
            return counted.report
        active = {id(tensor): tensor for tensor in tensors.values() if tensor.requires_grad}
        leaves = leaves_behind(value) if isinstance(value, torch.Tensor) else []
        parameters = [leaf for leaf in leaves if id(leaf) not in active]
        if not active and not parameters:
            raise ValueError(NOTHING_TO_DIFFERENTIATE)
        # `influence` calls the function again, and each call has to differentiate the same parameters. One that steps
        # overwrites them, which their versions count, or frees the graph by a backward pass of its own.
        versions = [version_of(leaf) for leaf in parameters]
        try:
            measured = influence_of(lambda: _differentiable(of_floats()), [*active.values(), *parameters])
        except RuntimeError as error:
            if "second time" not in str(error) and versions == [version_of(leaf) for leaf in parameters]:
                raise
            raise ValueError(_TAKES_A_STEP) from error
        if versions != [version_of(leaf) for leaf in parameters]:
            raise ValueError(_TAKES_A_STEP)
        size = sum(leaf.numel() for leaf in parameters)
        held = f"{len(parameters)} parameters ({size} numbers)" if parameters else ""
        return replace(counted.report, influence=measured, differentiated=differentiated_in_words(arguments, held))


class _CollectBounds(TorchFunctionMode):
    """Collects the numbers that torch code compares with."""

    _COMPARISONS = frozenset(
        {"gt", "ge", "lt", "le", "eq", "ne", "greater", "greater_equal", "less", "less_equal", "not_equal"}
        | {"where", "clip", "max", "min"}
    )
    """Those that are no ops of `OPS`, by which all other names are known."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds: set[float] = set()

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = keywords_of(func, kwargs)
        name = getattr(func, "__name__", "").strip("_")  # clamp for `clamp_`, and gt for `__gt__`, which > calls
        if name in OPS or name in self._COMPARISONS:
            # An op has kinks that no argument names, as hardswish at -3 and 3.
            kinks = [point[0] for point in OPS[name].tie_points] if name in OPS else []
            operands = (*args, *kwargs.values(), *kinks)
            numbers = (v.item() if isinstance(v, torch.Tensor) and v.numel() == 1 else v for v in operands)
            self.bounds.update(float(n) for n in numbers if isinstance(n, int | float) and math.isfinite(n))
        return func(*args, **kwargs)


def with_plain_tuples(result: Any) -> Any:
    """Turn named tuples of torch, which are leaves for JAX, into plain ones."""
    return jax.tree.map(lambda leaf: tuple(leaf) if isinstance(leaf, tuple) else leaf, result)


def _to_tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, jax.Array):
        raise TypeError("the result of torch's function is an array of JAX.")
    return torch.as_tensor(leaf)


def _differentiable(number: Any) -> torch.Tensor:
    """Make ``number`` a tensor of which torch takes gradients, if only zeros."""
    return torch.zeros((), requires_grad=True) + number
