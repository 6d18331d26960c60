"""Record what a run of a model leaves behind: the calls of its modules, and what crossed the boundary of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from interop.frameworks.base import Array

Direction: TypeAlias = Literal["inputs", "outputs"]
"""In which direction an array crosses a boundary."""
What: TypeAlias = Literal["inputs", "outputs", "parameters", "state"]
"""What a layer has: arrays that cross its boundary, parameters that are trained, and those that only a call changes."""


class Key(NamedTuple):
    """Names one crossing of a boundary: which layer, inward or outward, and which of the arrays there."""

    layer: int
    direction: Direction
    position: int


class Moment(NamedTuple):
    """When a layer begins, or ends, while its model runs."""

    layer: int
    is_end: bool


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


def parts_of(tree: Any) -> dict[Any, Any] | None:
    """Return what a container holds, in the order of the names if it has names; None if it is no container.

    A crossing is known by its position, which has to be the same in all libraries. These have the entries of a dict and
    the fields of a dataclass in various orders, and torch looks into no dataclass.
    """
    if isinstance(tree, dict):  # first, as results of transformers are dataclasses too
        return {key: tree[key] for key in sorted(tree, key=str)}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {name: getattr(tree, name, None) for name in sorted(field.name for field in dataclasses.fields(tree))}
    return dict(enumerate(tree)) if isinstance(tree, list | tuple) else None


class CallRecorder:
    """Records the calls of modules, and marks the arrays that cross their boundaries.

    The layers of ``second(first(x))`` in a model are recorded by ``enter("")``, ``enter("first")``, ``leave()``,
    ``enter("second")``, ``leave()``, ``leave()``: three layers, of which the model has the index 0 and the end 3.

    ``mark(key, leaf)`` returns what passes on in the place of a leaf, or None for one that is no array of numbers.
    """

    def __init__(
        self, mark: Callable[[Key, Any], Any], flatten: Callable[[Any], tuple[list[Any], Any]], unflatten: Any
    ):
        self.layers: list[Layer] = []
        self._running: list[int] = []
        self._mark = mark
        self._flatten, self._unflatten = flatten, unflatten

    def enter(self, path: str, kind: str, settings: str, arguments: Any) -> Any:
        """Record that a module is called; return its arguments, marked."""
        self.layers.append(Layer(path, len(self.layers), kind, settings, self._running[-1] if self._running else None))
        self._running.append(len(self.layers) - 1)
        return self._marked("inputs", arguments)

    def leave(self, result: Any) -> Any:
        """Record that the innermost running module returns; return its result, marked."""
        marked = self._marked("outputs", result)
        self.layers[self._running.pop()].end = len(self.layers)
        return marked

    @property
    def innermost(self) -> str | None:
        """The path of the module that runs."""
        return self.layers[self._running[-1]].path if self._running else None

    @property
    def running(self) -> int:
        """The index of the layer that runs."""
        return self._running[-1]

    def leaves(self, tree: Any) -> list[Any]:
        """Return the leaves of a tree, in the order in which they would cross a boundary."""
        return self._flatten(tree)[0]

    def _marked(self, direction: Direction, tree: Any) -> Any:
        leaves, structure = self._flatten(tree)
        marked: dict[int, Any] = {}  # by identity
        # Positions count what is marked, as the libraries differ in what else they pass: masks, keys, flags. An array
        # that is passed several times crosses once: attention takes x as query, key and value, or once for all three.
        for leaf in leaves:
            if id(leaf) not in marked:
                passed = self._mark(Key(self._running[-1], direction, len(marked)), leaf)
                if passed is not None:
                    marked[id(leaf)] = passed
        return self._unflatten(structure, [marked.get(id(leaf), leaf) for leaf in leaves])
