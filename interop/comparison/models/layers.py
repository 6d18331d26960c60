"""What a run of a model leaves behind: what crossed the boundary of each of its modules, and the derivatives there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from interop.frameworks.base import Array

Side: TypeAlias = Literal["inputs", "outputs"]


class Key(NamedTuple):
    """Which crossing of a boundary: that of the layer of this index, inward or outward, and the number of the array."""

    layer: int
    side: Side
    position: int


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
    """The index of the layer itself."""
    kind: str
    """The class."""
    settings: str
    """The class with its settings, such as ``BatchNorm(epsilon=1e-05)``."""
    parent: int | None
    """The index of the layer that called it."""
    end: int = -1
    """How many layers had begun when it ended: the layers that ran in it have the indices from its own up to this."""
    inputs: list[Point] = field(default_factory=list)
    outputs: list[Point] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path or self.kind


@dataclass(frozen=True)
class Answer:
    """What a model answers."""

    layers: Sequence[Layer]
    """In the order in which they began."""
    results: Sequence[Array]
    inputs: Mapping[int, Array]
    """The gradients with respect to the inputs, by position."""
    gradients: Mapping[str, Array]
    """With respect to the parameters that are trained."""
    state: Mapping[str, Array]
    """What the call made of the other parameters, such as the statistics of a batch norm."""


class Tape:
    """Notes the calls of modules, and marks the arrays that cross their boundaries.

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
        """A module is called: note it, and mark its arguments."""
        self.layers.append(Layer(path, len(self.layers), kind, settings, self._running[-1] if self._running else None))
        self._running.append(len(self.layers) - 1)
        return self._marked("inputs", arguments)

    def leave(self, result: Any) -> Any:
        """The module called last that has not left yet leaves: mark its result."""
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

    def _marked(self, side: Side, tree: Any) -> Any:
        leaves, structure = self._flatten(tree)
        position = 0
        for i, leaf in enumerate(leaves):
            passed = self._mark(Key(self._running[-1], side, position), leaf)
            if passed is not None:
                leaves[i] = passed
                position += 1
        return self._unflatten(structure, leaves)
