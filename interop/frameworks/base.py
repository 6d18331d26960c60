"""The interface by which every framework is asked for a gradient in the same words."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import torch

from interop._bridge.arrays import X64
from jaxclamp import TieReport
from jaxclamp._shared.counterparts import Counterpart

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Arrays: TypeAlias = Mapping[str, Array]
Arguments: TypeAlias = Mapping[str, Any]
"""Maps names to the arguments of a function, arrays of NumPy among them."""
Function: TypeAlias = Callable[[Arguments], Any]


def converted(arguments: Arguments, to_array: Callable[[Array], Any]) -> dict[str, Any]:
    """Make arrays of another kind of the NumPy arrays among the arguments; all else stays as it is."""
    return {name: to_array(value) if isinstance(value, np.ndarray) else value for name, value in arguments.items()}


def total(result: Any) -> Any:
    """Sum the floats in a pytree of arrays of either framework."""
    return sum((leaf.sum() for leaf in jax.tree.leaves(result) if is_float(leaf)), start=0.0)


def weighted_total(result: Any) -> Any:
    """Sum the floats with a weight for each: the plain sum may be constant, as that of a softmax is.

    The weights depend on the position of the leaf and the index alone; 1 in a leaf of one number. A complex number
    counts as two floats.
    """
    leaves = enumerate(map(_as_floats, jax.tree.leaves(result)))
    return sum(((leaf * _weights(i, leaf)).sum() for i, leaf in leaves if is_float(leaf)), start=0.0)


def _weights(position: int, leaf: Any) -> Any:
    if math.prod(leaf.shape) == 1:
        return 1
    # Multiples of 1/128 from 0.5 up to 1.5: bfloat16, the coarsest dtype, has 8 bits, and holds each of them exactly.
    # The numbers of RandomState, unlike those of default_rng, are the same in every version of NumPy.
    weights = 0.5 + np.random.RandomState(position).randint(128, size=leaf.shape, dtype=np.int64) / 128
    return torch.from_numpy(weights).to(leaf) if isinstance(leaf, torch.Tensor) else weights.astype(leaf.dtype)


def _as_floats(leaf: Any) -> Any:
    """Write complex numbers as pairs along one axis more; all else stays as it is."""
    if isinstance(leaf, torch.Tensor):
        return torch.stack([leaf.real, leaf.imag], dim=-1) if leaf.is_complex() else leaf
    return jnp.stack([leaf.real, leaf.imag], axis=-1) if jnp.iscomplexobj(leaf) else leaf


def is_float(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.is_floating_point()
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)  # what a training step returns has none


NOTHING_TO_DIFFERENTIATE = "there is no array of floats among the inputs to differentiate by, and no parameter."


@dataclass(frozen=True)
class Question:
    """A call ``function(arguments)``, to be differentiated with respect to the ``active`` arguments."""

    function: Function
    arguments: Arguments
    active: tuple[str, ...]


@dataclass(frozen=True)
class Gradient:
    """What a function returns, or the sum of that, and the gradient of the sum."""

    value: Any
    by_argument: Mapping[str, Array]
    """Maps the name of an active argument to the gradient with respect to it; of complex numbers, as JAX has it."""


@dataclass(frozen=True)
class Refusal:
    """Why a framework does not differentiate a call, as where it has no such dtype or takes no array as a bound."""

    reason: str


class Framework(ABC):
    """A library that differentiates."""

    name: str
    """As its functions are imported: the first part of their dotted names."""
    version: str

    @abstractmethod
    def differentiate(self, function: Function, arguments: Arguments, active: Collection[str]) -> Gradient:
        """Call ``function(arguments)``, and differentiate the sum of its floats by the ``active`` arguments.

        NumPy arrays among the arguments become arrays of the framework, all else stays as it is; the results are
        NumPy arrays again. A dtype or a form of the arguments that the framework does not take is a TypeError.
        """

    def differentiate_all(self, questions: Sequence[Question]) -> list[Gradient | Refusal]:
        """Differentiate each of the questions; a TypeError becomes a refusal."""
        answers: list[Gradient | Refusal] = []
        for question in questions:
            try:
                answers.append(self.differentiate(question.function, question.arguments, question.active))
            except TypeError as error:
                answers.append(Refusal(str(error)))
        return answers

    def gradients(self, questions: Sequence[Question], dtype: str) -> list[Gradient | Refusal]:
        """Differentiate each of the questions in ``dtype``: the arrays are rounded to it, the results are float64.

        The value is the sum of the floats. A framework that computes in a narrower dtype than it was given refuses.
        """
        rounded = [
            replace(question, arguments=converted(question.arguments, lambda array: array.astype(jnp.dtype(dtype))))
            for question in questions
        ]
        return [self._in_float64(answer, dtype) for answer in self.differentiate_all(rounded)]

    def _in_float64(self, answer: Gradient | Refusal, dtype: str) -> Gradient | Refusal:
        if isinstance(answer, Refusal):
            return answer
        for array in answer.by_argument.values():
            if jnp.finfo(array.dtype).bits < jnp.finfo(dtype).bits:
                return Refusal(f"{self.name} answers in {array.dtype}, which is narrower than {dtype}.")
        by_argument = {name: array.astype(np.float64) for name, array in answer.by_argument.items()}
        return Gradient(float(total(answer.value)), by_argument)


def flattened(gradient: Mapping[str, Array], active: Iterable[str]) -> Array:
    """Join the gradients with respect to the ``active`` arguments, in this order, to one vector."""
    return np.concatenate([gradient[name].ravel() for name in active])


class Convertible(Framework):
    """A framework whose functions can be put under the convention, and examined for ties."""

    @abstractmethod
    def differentiate(
        self, function: Function, arguments: Arguments, active: Collection[str], summed: Callable[[Any], Any] = total
    ) -> Gradient:
        """Differentiate as for any framework; ``summed`` replaces `total`: it makes one number of the result."""

    @abstractmethod
    def attempt(self, function: Function, arguments: Arrays) -> None:
        """Raise what ``function`` raises when it is traced or run."""

    @abstractmethod
    def min_norm(self, function: Function) -> Function:
        """Put ``function`` under the convention."""

    @abstractmethod
    def reseeded(self, function: Function) -> Function:
        """Make ``function`` draw other random numbers than it draws by itself, if it draws any."""

    @abstractmethod
    def bounds(self, function: Function, arguments: Arrays) -> set[float]:
        """Collect numbers that ``function(arguments)`` may compare with, where there are ties or another piece."""

    @abstractmethod
    def ties(self, function: Function, arguments: Arrays, influence: bool) -> TieReport:
        """Count the ties in ``function(arguments)``; say how far they move the gradient of the sum of its floats."""


class Adapter(Framework):
    """A framework that is only compared, and need not be installed: making the object imports it or raises ImportError.

    The functions that it differentiates return one array.
    """

    requirement: ClassVar[str]
    """What pip installs."""
    counterparts: ClassVar[Mapping[str, str | tuple[str, ...]]]
    """Maps the name of an op to its spelling there, or to several, written as in the record of the op."""

    @classmethod
    def counterparts_of(cls, op: str) -> tuple[Counterpart, ...]:
        """Read the spellings of the op of that name."""
        written = cls.counterparts.get(op, ())
        return tuple(map(Counterpart, (written,) if isinstance(written, str) else written))


def differentiated_in_words(arguments: Arrays, held: str, missing: str = "") -> str:
    """Name the inputs that are floats, and what the function holds; behind "not" all else, and what is missing."""
    floats = [label for label, array in arguments.items() if is_float(array)]
    discrete = [f"{label} ({array.dtype})" for label, array in arguments.items() if not is_float(array)]
    with_respect_to = " and ".join(filter(None, (f"the inputs {', '.join(floats)}" if floats else "", held)))
    without = " and ".join(filter(None, (", ".join(discrete), missing)))
    return f"{with_respect_to}, but not {without}," if without else with_respect_to


def needs_64_bits(arguments: Iterable[Any]) -> bool:
    """Say whether JAX's 64-bit mode is on, or has to be lest it round the arguments; small integers do not need it."""
    # It is not simply turned on, as functions make arrays of float64 then: jnp.ones, jnp.linspace, a cast to float.
    wide = [value for value in arguments if isinstance(value, np.ndarray) and value.dtype in X64]
    return jax.config.jax_enable_x64 or any(  # type: ignore[attr-defined]
        array.dtype.kind in "fc" or (array != array.astype(f"{array.dtype.kind}4")).any() for array in wide
    )
