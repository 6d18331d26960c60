"""How to ask JAX and torch for a gradient in the same words."""

from __future__ import annotations

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

Function: TypeAlias = Callable[[Mapping[str, Any]], Any]


def total(result: Any) -> Any:
    """The sum of the floats in a pytree of arrays of either framework."""
    return sum((leaf.sum() for leaf in jax.tree.leaves(result) if is_float(leaf)), start=0.0)


def weighted_total(result: Any) -> Any:
    """The sum of the floats with a weight for each, as the plain one may be constant (softmax, normalizations).

    The weights depend on the position of the leaf and the index alone; 1 in a leaf of one number. They are multiples
    of 1/128 from 0.5 up to 1.5, which every dtype of 16 bits or more holds exactly. A complex number counts as two
    floats.
    """
    leaves = enumerate(map(_as_floats, jax.tree.leaves(result)))
    return sum(((leaf * _weights(i, leaf)).sum() for i, leaf in leaves if is_float(leaf)), start=0.0)


def _weights(position: int, leaf: Any) -> Any:
    if math.prod(leaf.shape) == 1:
        return 1
    # The numbers of RandomState, unlike those of default_rng, are the same in every version of NumPy.
    weights = 0.5 + np.random.RandomState(position).randint(128, size=leaf.shape, dtype=np.int64) / 128
    return torch.from_numpy(weights).to(leaf) if isinstance(leaf, torch.Tensor) else weights.astype(leaf.dtype)


def _as_floats(leaf: Any) -> Any:
    """Complex numbers as pairs, an axis more; all else as it is."""
    if isinstance(leaf, torch.Tensor):
        return torch.stack([leaf.real, leaf.imag], dim=-1) if leaf.is_complex() else leaf
    return jnp.stack([leaf.real, leaf.imag], axis=-1) if jnp.iscomplexobj(leaf) else leaf


def is_float(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.is_floating_point()
    return jnp.issubdtype(leaf.dtype, jnp.floating)


NOTHING_TO_DIFFERENTIATE = "there is no array of floats among the inputs to differentiate by, and no parameter."


@dataclass(frozen=True)
class Question:
    """A call ``function(arguments)``, to be differentiated with respect to the ``active`` arguments."""

    function: Function
    arguments: Mapping[str, Any]
    active: tuple[str, ...]


class Framework(ABC):
    """A library that differentiates."""

    name: str
    """As its functions are imported: the first part of their dotted names."""
    version: str

    @abstractmethod
    def answer(
        self, function: Function, arguments: Mapping[str, Any], active: Collection[str]
    ) -> tuple[Any, dict[str, Array]]:
        """``function(arguments)``, and the gradient of the sum of its floats with respect to the ``active`` arguments.

        NumPy arrays among the arguments become arrays of the framework, all else stays as it is; the results are
        NumPy arrays again. A dtype or a form of the arguments that the framework does not take is a TypeError.
        """

    def value_and_gradient(
        self, function: Function, arguments: Mapping[str, Any], active: Collection[str], dtype: str
    ) -> tuple[float, dict[str, Array]]:
        """The one answer of `values_and_gradients`; a TypeError is raised."""
        (answer,) = self.values_and_gradients([Question(function, arguments, tuple(active))], dtype)
        if isinstance(answer, TypeError):
            raise answer
        return answer

    def answers(self, questions: Sequence[Question]) -> list[tuple[Any, dict[str, Array]] | TypeError]:
        """What `answer` returns for each of the questions, or the TypeError that it raises."""
        found: list[tuple[Any, dict[str, Array]] | TypeError] = []
        for question in questions:
            try:
                found.append(self.answer(question.function, question.arguments, question.active))
            except TypeError as refusal:
                found.append(refusal)
        return found

    def forward_gradient(
        self, function: Function, arguments: Mapping[str, Any], active: Collection[str]
    ) -> dict[str, Array]:
        """The gradient that `answer` gives, by forward mode: a directional derivative for each element.

        NotImplementedError where the framework has no forward mode, or the function has none there.
        """
        found: dict[str, Array] = {}
        for name in active:
            elements = []
            for i in range(arguments[name].size):
                tangents = {other: np.zeros_like(arguments[other]) for other in active}
                tangents[name].flat[i] = 1
                elements.append(self.directional_derivative(function, arguments, tangents))
            found[name] = np.reshape(np.array(elements, arguments[name].dtype), arguments[name].shape)
        return found

    def directional_derivative(
        self, function: Function, arguments: Mapping[str, Any], tangents: Mapping[str, Array]
    ) -> float:
        """That of the sum of the floats of ``function(arguments)``, by forward mode, along the ``tangents``."""
        raise NotImplementedError(f"{self.name} has no forward mode.")

    def values_and_gradients(
        self, questions: Sequence[Question], dtype: str
    ) -> list[tuple[float, dict[str, Array]] | TypeError]:
        """For each of the questions, with arrays rounded to ``dtype``, the sum of the floats of ``function``, and its
        gradient as float64; or the TypeError of a framework that does not take it, or answers in a narrower dtype.
        """
        rounded = [
            replace(
                question,
                arguments={
                    name: value.astype(jnp.dtype(dtype)) if isinstance(value, np.ndarray) else value
                    for name, value in question.arguments.items()
                },
            )
            for question in questions
        ]
        return [self._in_float64(answer, dtype) for answer in self.answers(rounded)]

    def _in_float64(
        self, answer: tuple[Any, dict[str, Array]] | TypeError, dtype: str
    ) -> tuple[float, dict[str, Array]] | TypeError:
        if isinstance(answer, TypeError):
            return answer
        result, gradient = answer
        for found in gradient.values():
            if jnp.finfo(found.dtype).bits < jnp.finfo(dtype).bits:
                return TypeError(f"{self.name} answers in {found.dtype}, which is narrower than {dtype}.")
        return float(total(result)), {name: g.astype(np.float64) for name, g in gradient.items()}


class Convertible(Framework):
    """One whose functions can be put under the convention, and examined for ties."""

    @abstractmethod
    def answer(
        self,
        function: Function,
        arguments: Mapping[str, Any],
        active: Collection[str],
        summed: Callable[[Any], Any] = total,
    ) -> tuple[Any, dict[str, Array]]:
        """As for any framework; ``summed`` makes the number to differentiate of the result, in place of `total`."""

    @abstractmethod
    def attempt(self, function: Function, arguments: Mapping[str, Array]) -> None:
        """Raise what ``function`` raises when it is traced or run."""

    @abstractmethod
    def min_norm(self, function: Function) -> Function:
        """``function`` under the convention."""

    @abstractmethod
    def redrawn(self, function: Function) -> Function:
        """``function`` with other random numbers than it draws by itself, if it draws any."""

    @abstractmethod
    def bounds(self, function: Function, arguments: Mapping[str, Array]) -> set[float]:
        """Numbers that ``function(arguments)`` may compare with: where there are ties, or values of another piece."""

    @abstractmethod
    def ties(self, function: Function, arguments: Mapping[str, Array], influence: bool) -> TieReport:
        """Where ties happen in ``function(arguments)``, and how far they move the gradient of the sum of its floats."""


class Adapter(Framework):
    """One that is only compared, and need not be installed: making the object imports it, or raises ImportError.

    The functions that it is asked about return one array.
    """

    requirement: ClassVar[str]
    """What pip installs."""
    counterparts: ClassVar[Mapping[str, str | tuple[str, ...]]]
    """By the name of an op, its spelling there, or several, written as in the record of the op."""

    @classmethod
    def counterparts_of(cls, op: str) -> tuple[Counterpart, ...]:
        """The spellings of the op of that name."""
        written = cls.counterparts.get(op, ())
        return tuple(map(Counterpart, (written,) if isinstance(written, str) else written))


def differentiated_in_words(arguments: Mapping[str, Array], held: str, missing: str = "") -> str:
    """The inputs that are floats, and what the function holds; behind "not" the others, and what is missing."""
    floats = [label for label, array in arguments.items() if is_float(array)]
    others = [f"{label} ({array.dtype})" for label, array in arguments.items() if not is_float(array)]
    with_respect_to = " and ".join(filter(None, (f"the inputs {', '.join(floats)}" if floats else "", held)))
    without = " and ".join(filter(None, (", ".join(others), missing)))
    return f"{with_respect_to}, but not {without}," if without else with_respect_to


def needs_64_bits(arguments: Iterable[Any]) -> bool:
    """Whether JAX's 64-bit mode is on, or has to be lest it round the arguments; small integers do not need it."""
    wide = [value for value in arguments if isinstance(value, np.ndarray) and value.dtype in X64]
    return jax.config.jax_enable_x64 or any(  # type: ignore[attr-defined]
        array.dtype.kind in "fc" or (array != array.astype(f"{array.dtype.kind}4")).any() for array in wide
    )
