"""Record what a run of a model leaves behind: the calls of its modules, and what crossed the boundary of each."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import numpy as np

from interop.frameworks.base import Array

Direction: TypeAlias = Literal["inputs", "outputs"]
"""In which direction an array crosses a boundary."""
What: TypeAlias = Literal["inputs", "outputs", "parameters", "state"]
"""What a layer has: arrays that cross its boundary, parameters that are trained, and those that only a call changes."""


class Moment(NamedTuple):
    """When a layer begins or ends while its model runs: once its inputs, or its outputs, have crossed the boundary."""

    layer: int
    direction: Direction


class Key(NamedTuple):
    """Names one crossing of a boundary: which layer, inward or outward, and which of the arrays there."""

    layer: int
    direction: Direction
    position: int

    @property
    def moment(self) -> Moment:
        """When it happens."""
        return Moment(self.layer, self.direction)


def is_result_of_numbers(key: Key, leaf: Any) -> bool:
    """Return whether a leaf is a result of the whole model, in numbers of Python or NumPy: they count as arrays."""
    # Integers of Python are sizes and flags: dataclasses have such fields, which JAX takes for no part of a result.
    is_of_numbers = isinstance(leaf, float | complex | np.ndarray | np.generic)
    return is_of_numbers and key.moment == Moment(0, "outputs") and np.asarray(leaf).dtype.kind in "biufc"


Span: TypeAlias = tuple[Moment, Moment]
"""A stretch of the run of a model, from one moment to another."""


@dataclass(frozen=True)
class Point:
    """An array that crossed a boundary; if it is of floats, the gradient with respect to what crossed here alone."""

    value: Array
    gradient: Array | None


@dataclass
class Layer:
    """One call of one module."""

    path: str
    """Of the module in the model; empty for the model itself."""
    begin: int
    """The index of this layer among all, which are in the order in which they began."""
    kind: str
    """The class of the module."""
    settings: str
    """The class with its settings, such as ``BatchNorm(epsilon=1e-05)``."""
    parent: int | None
    """The index of the layer that called this one."""
    end: int = -1
    """How many layers had begun when this one ended: ``begin + 1`` to ``end - 1`` are those that ran in it."""
    inputs: list[Point] = field(default_factory=list)
    outputs: list[Point] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path or self.kind


def crossing(layers: Sequence[Layer], key: Key) -> Point:
    """Return what crossed at ``key``."""
    points: Sequence[Point] = getattr(layers[key.layer], key.direction)
    return points[key.position]


def filled(layers: Sequence[Layer], points: Mapping[Key, Point]) -> Sequence[Layer]:
    """Return the layers with what crossed their boundaries."""
    for key in sorted(points):
        getattr(layers[key.layer], key.direction).append(points[key])
    return layers


@dataclass(frozen=True)
class Answer:
    """What one run of a model computes: what crosses boundaries, and the gradients of the weighted sum of results."""

    layers: Sequence[Layer]
    """In the order in which they began."""
    gradients: Mapping[str, Array]
    """Maps the name of a trained parameter to its gradient."""
    state: Mapping[str, Array]
    """Maps the name of a parameter that is not trained, such as a statistic of a batch norm, to its value after the
    call."""
    eps: Mapping[Moment, float]
    """Maps the moments at which layers begin and end to the largest epsilon of dtypes that were converted before."""


def leaves_of(tree: Any) -> list[Any]:
    """Return the leaves of containers in each other, in the order of the names where these have names.

    Of ``{"b": z, "a": (x, y)}`` they are x, y and z.

    A crossing is known by its position, which has to be the same in all libraries. These have the entries of a dict and
    the fields of a dataclass in various orders, and torch looks into no dataclass.
    """
    opened = _opened(tree)
    return [tree] if opened is None else [leaf for part in opened[0] for leaf in leaves_of(part)]


def distinct(leaves: Sequence[Any]) -> list[Any]:
    """Return each object once, as an array that is passed several times crosses a boundary once."""
    return [*{id(leaf): leaf for leaf in leaves}.values()]


def with_leaves(tree: Any, leaves: Iterator[Any]) -> Any:
    """Return the tree with the next of these leaves, its containers copied."""
    opened = _opened(tree)
    if opened is None:
        return next(leaves)
    parts, closed = opened
    return closed([with_leaves(part, leaves) for part in parts])


def _opened(tree: Any) -> tuple[Sequence[Any], Callable[[Sequence[Any]], Any]] | None:
    """Return what a container holds, and a function that makes one of other contents; None if it is no container."""
    if callable(tree):  # modules and classes among the arguments stay the objects that they are
        return None
    if isinstance(tree, dict):  # first, as results of transformers are dataclasses too
        names = sorted(tree, key=str)
        return [tree[name] for name in names], functools.partial(_with_parts, tree, names)
    if dataclasses.is_dataclass(tree):
        names = sorted(field.name for field in dataclasses.fields(tree) if hasattr(tree, field.name))
        return [getattr(tree, name) for name in names], functools.partial(_with_parts, tree, names)
    if isinstance(tree, list | tuple):  # also those that JAX does not know, as torch.max returns
        return tree, lambda parts: type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    parts, structure = jax.tree.flatten(tree, is_leaf=lambda part: part is not tree)
    is_leaf = len(parts) == 1 and parts[0] is tree
    return None if is_leaf else (parts, functools.partial(jax.tree.unflatten, structure))


def _with_parts(tree: Any, names: Sequence[str], parts: Sequence[Any]) -> Any:
    copied = copy.copy(tree)
    for name, part in zip(names, parts, strict=True):
        if isinstance(copied, dict):
            dict.__setitem__(copied, name, part)
        # Results of transformers are read by either way: as ``result["logits"]``, and as ``result.logits``.
        if not isinstance(copied, dict) or name in getattr(copied, "__dict__", ()):
            object.__setattr__(copied, name, part)  # a dataclass may be frozen
    return copied


class CallRecorder:
    """Records the calls of modules, and marks the arrays that cross their boundaries.

    The layers of ``second(first(x))`` in a model are recorded by ``enter("")``, ``enter("first")``, ``leave()``,
    ``enter("second")``, ``leave()``, ``leave()``: three layers, of which the model has the index 0 and the end 3.

    ``mark(key, leaf)`` returns what passes on in the place of a leaf, or None for one that is no array of numbers.
    ``at_moment(moment)`` is called when a layer begins and when it ends, once its arrays are marked.
    """

    def __init__(
        self, mark: Callable[[Key, Any], Any], at_moment: Callable[[Moment], None] = lambda moment: None
    ) -> None:
        self.layers: list[Layer] = []
        self.modules: dict[str, Any] = {}
        """Maps paths to the modules that were called."""
        self._running: list[int] = []
        self._mark, self._at_moment = mark, at_moment

    def enter(self, path: str, module: Any, settings: str, arguments: Any) -> Any:
        """Record that a module is called; return its arguments, marked."""
        parent = self._running[-1] if self._running else None
        self.modules[path] = module
        self.layers.append(Layer(path, len(self.layers), type(module).__name__, settings, parent))
        self._running.append(len(self.layers) - 1)
        return self._marked("inputs", arguments)

    def leave(self, result: Any) -> Any:
        """Record that the innermost running module returns; return its result, marked."""
        marked = self._marked("outputs", result)
        self.layers[self._running.pop()].end = len(self.layers)
        return marked

    @property
    def innermost(self) -> str:
        """The path of the module that runs."""
        return self.layers[self.running].path

    @property
    def running(self) -> int:
        """The index of the layer that runs."""
        return self._running[-1]

    def _marked(self, direction: Direction, tree: Any) -> Any:
        leaves = leaves_of(tree)
        marked: dict[int, Any] = {}  # by identity
        # Positions count what is marked, as the libraries differ in what else they pass: masks, keys, flags. An array
        # that is passed several times crosses once: attention takes x as query, key and value, or once for all three.
        for leaf in leaves:
            if id(leaf) not in marked:
                passed = self._mark(Key(self.running, direction, len(marked)), leaf)
                if passed is not None:
                    marked[id(leaf)] = passed
        self._at_moment(Moment(self.running, direction))
        return with_leaves(tree, iter([marked.get(id(leaf), leaf) for leaf in leaves]))
