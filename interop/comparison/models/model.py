"""Run a model of any library, and record its layers, its results and their gradients."""

import functools
import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, jaxpr_as_fun
from jax.extend.core.primitives import reshape_p

import jaxclamp
from interop.comparison.models.boundaries import Opened, new_recorder, opened
from interop.comparison.models.layers import Answer, CallRecorder, Key, Layer, Point, Span, distinct, filled, leaves_of
from interop.comparison.models.parameters import Layout, Parameter
from interop.frameworks.base import Array, is_float, weighted_total
from interop.frameworks.reseed import CURE, draws, reseeded_in_jax
from jaxclamp._transforms.jaxprs import equations

Call: TypeAlias = Callable[..., Any]
"""How a model is called: ``call(model, *inputs)``."""
Orders: TypeAlias = Sequence[tuple[int, ...] | None]
"""For each result of floats or complex numbers, the order of axes in which they are weighted and summed."""
Dtype: TypeAlias = type[np.floating[Any]] | None
"""The dtype in which a model computes; None is that of its arrays."""
Values: TypeAlias = Mapping[str, Any]
"""Maps the names of parameters to arrays."""


class Run(NamedTuple):
    """How a model is run."""

    dtype: Dtype = None
    min_norm: bool = False
    """Whether its gradients follow min_norm."""
    reseeded: bool = False
    """Whether it draws other random numbers than in all runs that are not reseeded."""
    nudges: Mapping[Key, Array] | None = None
    """Maps crossings to what is added to the arrays there."""


class Model(ABC):
    """One of the two models, with its inputs and the values of its parameters; its library's subclass runs it."""

    channels_last: ClassVar[bool]
    """Where convolutions of the library expect the channels of an image."""
    version: str
    flattened_shapes: Sequence[tuple[int, ...]] = ()
    """The shapes, without the first axis, of the images that it makes rows of, if it has the channels last."""

    def __init__(self, model: Any, call: Call | None, inputs: Sequence[Any]) -> None:
        self.model = model
        self.call: Call = call or (lambda model, *inputs: model(*inputs))
        self.inputs = inputs
        self.refusal = ""
        """The error that it raised in another precision, so that it ran in its own; empty if it raised none."""
        self.bind({})

    def bind(self, values: Mapping[str, Array], orders: Orders | None = None) -> None:
        """Give the parameters these values, and weight the results in these orders of axes; None leaves them."""
        self.values, self._orders = values, orders
        self._answers: dict[Run, Answer] = {}
        self._equal_inputs: list[list[list[int]]] = []
        """For each layer, the positions of its inputs, equal ones together."""

    @property
    def name(self) -> str:
        return type(self.model).__name__

    def __str__(self) -> str:
        return f"{self.name} ({self.version})"

    @property
    @abstractmethod
    def parameters(self) -> Sequence[Parameter]:
        """All arrays of floats and complex numbers that it has, in the order in which the library lists them."""

    @property
    def integers(self) -> Mapping[str, Array]:
        """The arrays of integers and truth values that it keeps, as an index, but for single numbers, as a count."""
        return {}

    @property
    @abstractmethod
    def layers(self) -> Sequence[Layer]:
        """The calls of its modules; values may be shapes without numbers, and gradients are missing."""

    @property
    @abstractmethod
    def draws(self) -> bool:
        """Whether it may draw random numbers."""

    def answer(self, run: Run) -> Answer:
        """Run the model, and differentiate the weighted sum of its results; what runs without nudges is remembered."""
        if run.nudges is not None:
            return self._answered(run)
        if run not in self._answers:
            self._answers[run] = self._answered(run)
        return self._answers[run]

    def _answered(self, run: Run) -> Answer:
        try:
            return self._joined(self._run(run))
        except Exception as error:  # such as torch's, which multiplies no matrix of float32 with one of float64
            if run.dtype is None:
                raise
            self.refusal = f"{type(error).__name__}: {error}".partition("\n")[0]
        return self.answer(run._replace(dtype=None))

    def _joined(self, answer: Answer) -> Answer:
        """Make one input of a layer of those that are equal: a port may pass a copy where the model passes x twice."""
        # The inputs of the model itself are those of the caller.
        inputs = [layer.inputs for layer in answer.layers[1:]]
        self._equal_inputs = self._equal_inputs or [*map(_equal, inputs)]
        if [*map(len, inputs)] != [sum(map(len, positions)) for positions in self._equal_inputs]:
            raise ValueError(f"compare_models: {self} calls other layers when it is run again. {CURE}")
        for layer, positions in zip(answer.layers[1:], self._equal_inputs, strict=True):
            layer.inputs = [_sum([layer.inputs[i] for i in equal]) for equal in positions]
        return answer

    @abstractmethod
    def _run(self, run: Run) -> Answer:
        """Run the model as `answer` does, once."""

    @abstractmethod
    def ties(self, span: Span) -> jaxclamp.TieReport:
        """Report where the model is on ties in a span of its run."""

    def _inputs_in(self, dtype: Dtype) -> list[Any]:
        return [cast(leaf, dtype) for leaf in self.inputs]

    def _total(self, results: Sequence[Any]) -> Any:
        """Return the weighted sum of the floats in the results, each with its axes in the order given for it."""
        if self._orders is None:
            return weighted_total(results)
        pairs = zip(results, self._orders, strict=True)
        return weighted_total([result if order is None else _transposed(result, order) for result, order in pairs])


def _equal(points: Sequence[Point]) -> list[list[int]]:
    """Return the numbers of the points, those of equal floats together: [[0, 2], [1]] of x, y and x."""
    groups: list[list[int]] = []
    for i, point in enumerate(points):
        equal = [g for g in groups if point.gradient is not None and np.array_equal(points[g[0]].value, point.value)]
        if equal:
            equal[0].append(i)
        else:
            groups.append([i])
    return groups


def _sum(points: Sequence[Point]) -> Point:
    gradients: Any = [point.gradient for point in points]
    return Point(points[0].value, functools.reduce(np.add, gradients))


def _transposed(result: Any, order: tuple[int, ...]) -> Any:
    return result.transpose(order) if isinstance(result, jax.Array) else result.permute(order)


def is_float_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and is_float(leaf)


def cast(leaf: Any, dtype: Dtype) -> Any:
    """Return an array of floats in ``dtype``, one of complex numbers in pairs of these, and all else as it is."""
    if dtype is None or not isinstance(leaf, np.ndarray) or not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf
    return leaf.astype(np.result_type(dtype, np.complex64) if np.iscomplexobj(leaf) else dtype)


class JaxModel(Model):
    """A model of a library on JAX, which is traced to a program with its boundaries opened (see `boundaries`)."""

    @property
    def version(self) -> str:  # type: ignore[override]
        return f"{self.distribution} {importlib.metadata.version(self.distribution)}"

    distribution: ClassVar[str]
    """What pip calls the package."""

    @property
    @abstractmethod
    def arrays(self) -> Values:
        """All parameters by name, arrays or the shapes of arrays, in the order in which the library lists them."""

    @abstractmethod
    def is_trained(self, name: str) -> bool: ...

    @abstractmethod
    def layout(self, name: str, shape: tuple[int, ...], module: Any, bias: tuple[int, ...] | None) -> Layout:
        """Return the layout of a parameter.

        ``name`` is the last part of its name. ``module`` is None if the module was not called, and ``bias`` the shape
        of the bias beside it, if there is one.
        """

    @functools.cached_property
    def parameters(self) -> Sequence[Parameter]:
        modules = self._traced_with_shapes[0].modules
        parameters = []
        for name, leaf in self.arrays.items():
            owner, _, last = name.rpartition(".")
            bias = self.arrays.get(f"{owner}.bias".lstrip("."))
            layout = self.layout(
                last, tuple(leaf.shape), modules.get(owner), None if bias is None else tuple(bias.shape)
            )
            value = None if isinstance(leaf, jax.ShapeDtypeStruct) else np.asarray(leaf)
            parameters.append(Parameter(name, layout, np.dtype(leaf.dtype), self.is_trained(name), value))
        return parameters

    def _initial(self, initialize: Callable[..., Any]) -> Any:
        """Return what a function makes of the inputs, parameters as their shapes alone."""

        def of_arrays(arrays: Sequence[Any]) -> Any:
            return initialize(*_with_arrays(self.inputs, arrays))

        initial = jax.jit(of_arrays)(_arrays_in(self.inputs))
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_parameter(leaf) else leaf, initial
        )

    @abstractmethod
    def run(self, recorder: CallRecorder, values: Values, inputs: Sequence[Any], dtype: Dtype) -> tuple[Any, Values]:
        """Call the model, its modules recorded; return the result, and the values that parameters have after it.

        What records modules is in `patching`. Those that say themselves in which dtype they compute are asked for
        ``dtype``, if there is one.
        """

    @functools.cached_property
    def _traced_with_shapes(self) -> tuple[CallRecorder, Opened]:
        recorder = new_recorder()
        shapes = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in self.arrays.items()}
        return recorder, self._traced(recorder, shapes, self.inputs, None)[0]

    @functools.cached_property
    def layers(self) -> Sequence[Layer]:
        recorder, program = self._traced_with_shapes
        return filled(
            recorder.layers, _points(program, program.shapes.values(), map(program.shapes.get, program.floats))
        )

    @functools.cached_property
    def flattened_shapes(self) -> Sequence[tuple[int, ...]]:  # type: ignore[override]
        return list(_flattened_shapes(self._traced_with_shapes[1].program.jaxpr))

    @property
    def draws(self) -> bool:
        return draws(self._traced_with_shapes[1].program)

    def _traced(
        self, recorder: CallRecorder, values: Values, inputs: Sequence[Any], dtype: Dtype
    ) -> tuple[Opened, Any]:
        """Return the program of the arrays among values and inputs, and the structure of its results."""

        def of_arrays(values: Values, arrays: Sequence[Any]) -> Any:
            passed = _with_arrays(inputs, arrays)
            result, state = self.run(recorder, values, recorder.enter("", self.model, self.name, passed), dtype)
            result = recorder.leave(result)
            arrays_in_result = [leaf for leaf in distinct(leaves_of(result)) if isinstance(leaf, jax.Array)]
            floats = [array for array in arrays_in_result if jnp.issubdtype(array.dtype, jnp.inexact)]
            return floats, {name: array for name, array in state.items() if not self.is_trained(name)}

        with jax.disable_jit(False):  # else loops and conditions would ask tracers for numbers
            traced, structure = jax.make_jaxpr(of_arrays, return_shape=True)(values, _arrays_in(inputs))
        return opened(traced), structure

    def _run(self, run: Run) -> Answer:
        values = {name: cast(value, run.dtype) for name, value in self.values.items()}
        inputs = self._inputs_in(run.dtype)
        arrays = _arrays_in(inputs)
        recorder = new_recorder()
        trained = {p.name for p in self.parameters if p.trained}
        wide = any(array.dtype == np.float64 for array in (*values.values(), *arrays))
        # Without x64 JAX would narrow float64 to float32.
        with jax.enable_x64(wide or jax.config.jax_enable_x64):  # type: ignore[attr-defined]
            opening, structure = self._traced(recorder, values, inputs, run.dtype)
            program: Any = jaxpr_as_fun(opening.program)
            program = jaxclamp.min_norm(program) if run.min_norm else program
            program = reseeded_in_jax(program) if run.reseeded else program

            # What is differentiated are the zeros that are added at boundaries, or nudges, and the trained parameters.
            # Beside the total it returns the state after the call, and all that crossed boundaries.
            def total(differentiated: Any, constant: Any) -> Any:
                added, weights = differentiated
                untrained, arrays = constant
                outputs = program(*added, *jax.tree.leaves(({**untrained, **weights}, arrays)))
                count = len(outputs) - len(opening.shapes)
                results, state = jax.tree.unflatten(jax.tree.structure(structure), outputs[:count])
                return self._total(results), (state, outputs[count:])

            # The inputs cross the boundary of the model itself: their gradients are those of the zeros added there.
            added = opening.added(run.nudges or {})
            weights = {name: value for name, value in values.items() if name in trained}
            untrained = {name: value for name, value in values.items() if name not in trained}
            (of_added, of_weights), (state, crossed) = jax.tree.map(
                np.asarray, jax.jit(jax.grad(total, has_aux=True))((added, weights), (untrained, arrays))
            )
        layers = filled(recorder.layers, _points(opening, crossed, of_added))
        return Answer(layers, of_weights, dict(state), opening.eps(layers))

    def ties(self, span: Span) -> jaxclamp.TieReport:
        opening, _ = self._traced(new_recorder(), self.values, self.inputs, None)
        before, inside = opening.split(span)
        leaves = jax.tree.map(jnp.asarray, jax.tree.leaves((dict(self.values), _arrays_in(self.inputs))))
        _, report = jaxclamp.ties(inside)(*before(*opening.added({}), *leaves))
        return report


def is_parameter(leaf: Any) -> bool:
    """Return whether an array of a model is a parameter; counts and keys stay what they are."""
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def _arrays_in(inputs: Sequence[Any]) -> list[Array]:
    return [leaf for leaf in inputs if isinstance(leaf, np.ndarray)]


def _with_arrays(inputs: Sequence[Any], arrays: Iterable[Any]) -> list[Any]:
    """Return the inputs with other arrays; what is no array, such as a flag, is a constant of a program."""
    remaining = iter(arrays)
    return [next(remaining) if isinstance(leaf, np.ndarray) else leaf for leaf in inputs]


def _flattened_shapes(jaxpr: Jaxpr) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of the samples that a program reshapes to rows: (4, 4, 3) where (2, 4, 4, 3) becomes (2, 48)."""
    for eqn in (inner for outer in jaxpr.eqns for inner in equations(outer)):
        if eqn.primitive is reshape_p:
            operand, result = eqn.invars[0].aval, eqn.outvars[0].aval
            before, after = operand.shape, result.shape  # type: ignore[attr-defined]
            if len(before) > len(after) == 2 and before[0] == after[0]:
                yield before[1:]


def _points(opening: Opened, values: Iterable[Any], gradients: Iterable[Any]) -> dict[Key, Point]:
    """Map crossings to what crossed there, and the gradients of the floats among that."""
    of_floats = dict(zip(opening.floats, gradients, strict=True))
    return {key: Point(value, of_floats.get(key)) for key, value in zip(opening.shapes, values, strict=True)}
