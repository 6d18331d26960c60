"""What every model can be asked, whichever library it is of."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, jaxpr_as_fun, jaxprs_in_params
from jax.extend.core.primitives import reshape_p

import jaxclamp
from interop.comparison.models.boundaries import Opened, new_tape, opened
from interop.comparison.models.layers import Answer, Key, Layer, Point, Tape
from interop.comparison.models.parameters import Parameter
from interop.frameworks.base import Array, weighted_total
from interop.frameworks.reseed import draws, redrawn_in_jax

Call: TypeAlias = Callable[..., Any]
"""How a model is called: ``call(model, *inputs)``."""
Orders: TypeAlias = Sequence[tuple[int, ...] | None]
"""For each result of floats or complex numbers, the order of axes in which they are weighted and summed."""


class Run(NamedTuple):
    """How a model is run."""

    dtype: type[np.floating[Any]] | None = None
    """In which it computes; None is that of the arrays."""
    min_norm: bool = False
    """Whether it is under the convention."""
    redrawn: bool = False
    """Whether its random numbers are others than in each other run."""
    nudges: Mapping[Key, Array] = MappingProxyType({})
    """What is added to the arrays that cross boundaries."""


class Model(ABC):
    """A model with its inputs."""

    channels_last: ClassVar[bool]
    """Where convolutions of the library expect the channels of an image."""
    version: str
    flattened: Sequence[tuple[int, ...]] = ()
    """The shapes, without the first axis, of the arrays of channels last that it makes rows of."""

    def __init__(self, model: Any, call: Call | None, inputs: Sequence[Any]) -> None:
        self.model = model
        self.call: Call = call or (lambda model, *inputs: model(*inputs))
        self.inputs = inputs

    @property
    def name(self) -> str:
        return type(self.model).__name__

    def __str__(self) -> str:
        return f"{self.name} ({self.version})"

    @property
    @abstractmethod
    def parameters(self) -> Sequence[Parameter]:
        """In the order in which the library lists them."""

    @property
    @abstractmethod
    def layers(self) -> Sequence[Layer]:
        """The calls of its modules; values may be forms without numbers, and gradients are missing."""

    @property
    @abstractmethod
    def draws(self) -> bool:
        """Whether it may draw random numbers."""

    @abstractmethod
    def answer(self, values: Mapping[str, Array], orders: Orders | None, run: Run) -> Answer:
        """What it answers with these parameters.

        ``orders`` has one entry for each result that is differentiated; None leaves all as they are.
        """

    @abstractmethod
    def ties(self, values: Mapping[str, Array]) -> jaxclamp.TieReport:
        """Where it is on ties."""

    def _inputs_in(self, dtype: type[np.floating[Any]] | None) -> list[Any]:
        return [cast(given, dtype) for given in self.inputs]


def cast(leaf: Any, dtype: type[np.floating[Any]] | None) -> Any:
    """An array of floats in ``dtype``, one of complex numbers in pairs of these, and all else as it is."""
    if dtype is None or not isinstance(leaf, np.ndarray) or not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf
    return leaf.astype(np.result_type(dtype, np.complex64) if np.iscomplexobj(leaf) else dtype)


def ordered_total(results: Iterable[Any], orders: Orders | None) -> Any:
    """The weighted sum of the floats in the results, each with its axes in the order given for it."""
    if orders is None:
        return weighted_total(list(results))
    pairs = zip(results, orders, strict=True)
    return weighted_total([result if order is None else _in_order(result, order) for result, order in pairs])


def _in_order(result: Any, order: tuple[int, ...]) -> Any:
    return result.transpose(order) if isinstance(result, jax.Array) else result.permute(order)


class JaxModel(Model):
    """A model of a library of JAX."""

    @property
    def version(self) -> str:  # type: ignore[override]
        import importlib.metadata

        return f"{self.distribution} {importlib.metadata.version(self.distribution)}"

    distribution: ClassVar[str]
    """What pip calls the package."""

    @abstractmethod
    def run(self, tape: Tape, values: Mapping[str, Any], inputs: Sequence[Any]) -> tuple[Any, Mapping[str, Any]]:
        """The result, and what the call makes of the parameters that are not trained; the tape sees the modules."""

    @functools.cached_property
    def _of_forms(self) -> tuple[list[Layer], Opened]:
        forms = {p.name: jax.ShapeDtypeStruct(p.layout.own, p.dtype) for p in self.parameters}
        layers, program, _ = self._traced(forms, self.inputs)
        return layers, program

    @functools.cached_property
    def layers(self) -> Sequence[Layer]:
        layers, program = self._of_forms
        return _filled(layers, program, program.forms, [program.forms[i] for i in program.added])

    @functools.cached_property
    def flattened(self) -> Sequence[tuple[int, ...]]:  # type: ignore[override]
        return list(_flattened(self._of_forms[1].program.jaxpr))

    @property
    def draws(self) -> bool:
        return draws(self._of_forms[1].program)

    def _traced(self, values: Mapping[str, Any], inputs: Sequence[Any]) -> tuple[list[Layer], Opened, Any]:
        """The calls, the program of the arrays among the values and the inputs, and the structure of its results."""
        tape = new_tape()
        arrays = [given for given in inputs if isinstance(given, np.ndarray)]

        def of_arrays(values: Mapping[str, Any], arrays: Sequence[Any]) -> Any:
            remaining = iter(arrays)
            passed = [next(remaining) if isinstance(given, np.ndarray) else given for given in inputs]
            result, state = self.run(tape, values, tape.enter("", self.name, self.name, passed))
            result = tape.leave(result)
            floats = [leaf for leaf in jax.tree.leaves(result) if jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.inexact)]
            return floats, dict(state)

        with jax.disable_jit(False):
            traced, structure = jax.make_jaxpr(of_arrays, return_shape=True)(values, arrays)
        return tape.layers, opened(traced), structure

    def answer(self, values: Mapping[str, Array], orders: Orders | None, run: Run) -> Answer:
        values = {name: cast(value, run.dtype) for name, value in values.items()}
        inputs = self._inputs_in(run.dtype)
        arrays = [given for given in inputs if isinstance(given, np.ndarray)]
        trained = {p.name for p in self.parameters if p.trained}
        wide = any(array.dtype == np.float64 for array in (*values.values(), *arrays))
        with jax.enable_x64(wide or jax.config.jax_enable_x64):  # type: ignore[attr-defined]
            layers, opening, structure = self._traced(values, inputs)
            program: Any = jaxpr_as_fun(opening.program)
            program = jaxclamp.min_norm(program) if run.min_norm else program
            program = redrawn_in_jax(program) if run.redrawn else program

            def total(chosen: Any, rest: Any) -> Any:
                added, floats, weights = chosen
                leaves = jax.tree.leaves(
                    (
                        {name: weights.get(name, rest[0].get(name)) for name in values},
                        [floats.get(i, array) for i, array in enumerate(rest[1])],
                    )
                )
                found = program(*added, *leaves)
                count = len(found) - len(opening.forms)
                results, state = jax.tree.unflatten(jax.tree.structure(structure), found[:count])
                return ordered_total(results, orders), (results, state, found[count:])

            weights = {name: value for name, value in values.items() if name in trained}
            floats = {i: array for i, array in enumerate(arrays) if jnp.issubdtype(array.dtype, jnp.floating)}
            others = {name: value for name, value in values.items() if name not in trained}
            differentiated = jax.jit(jax.grad(total, has_aux=True))
            gradients, (results, state, crossed) = jax.tree.map(
                np.asarray, differentiated((opening.nudged(run.nudges), floats, weights), (others, arrays))
            )
        return Answer(_filled(layers, opening, crossed, gradients[0]), results, gradients[1], gradients[2], dict(state))

    def ties(self, values: Mapping[str, Array]) -> jaxclamp.TieReport:
        arrays = [given for given in self.inputs if isinstance(given, np.ndarray)]
        _, opening, _ = self._traced(values, self.inputs)
        run: Any = jaxpr_as_fun(opening.program)
        given = jax.tree.map(jnp.asarray, jax.tree.leaves((dict(values), arrays)))
        _, report = jaxclamp.ties(run)(*opening.zeros, *given)
        return report


def _flattened(jaxpr: Jaxpr) -> Iterator[tuple[int, ...]]:
    for eqn in jaxpr.eqns:
        if eqn.primitive is reshape_p:
            operand, result = eqn.invars[0].aval, eqn.outvars[0].aval
            before, after = operand.shape, result.shape  # type: ignore[attr-defined]
            if len(before) > len(after) == 2 and before[0] == after[0]:
                yield before[1:]
        for inner in jaxprs_in_params(eqn.params):
            yield from _flattened(inner)


def _filled(layers: Sequence[Layer], opening: Opened, values: Sequence[Any], gradients: Sequence[Any]) -> list[Layer]:
    """The layers, with what crossed their boundaries, and the gradients of the floats among that."""
    of_floats = dict(zip(opening.added, gradients, strict=True))
    for key, home in sorted(opening.keys.items()):
        getattr(layers[key.layer], key.side).append(Point(values[home], of_floats.get(home)))
    return list(layers)
