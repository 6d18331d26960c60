"""Which parameter of one model is which of the other: by names, else by the order in which the layers run."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import TypeAlias

from interop.comparison.models.matching import Image
from interop.comparison.models.model import Model
from interop.comparison.models.parameters import Layout, Parameter
from interop.comparison.models.tables import aligned
from interop.frameworks.base import Array

Override: TypeAlias = Mapping[str, str | tuple[str, Sequence[int]] | None]
"""For the name of a parameter of the first model, or of a module of it, its name in the second; a parameter may be
given with the order of axes that makes of its array the other; None if it has no counterpart."""

_WORDS = {
    "query": "q",
    "key": "k",
    "value": "v",
    "ln": "layernorm",
    "bn": "batchnorm",
    "fc": "dense",
    "linear": "dense",
}


@dataclass(frozen=True)
class Pair:
    """A parameter of both models."""

    first: Parameter
    second: Parameter
    reason: str
    """How it was found, as ``name``, ``order``, ``given``, or ``given axes``."""

    def to_second(self, array: Array) -> Array:
        return self.second.layout.from_torch(self.first.layout.to_torch(array))

    def to_first(self, array: Array) -> Array:
        return self.first.layout.from_torch(self.second.layout.to_torch(array))

    @property
    def rows(self) -> int:
        """The length of the rows that a dense layer multiplies with it; 0 of other kernels, or if axes were given."""
        layouts = self.first.layout, self.second.layout
        is_dense = self.first.role == "weight" and all(len(layout.own) == len(layout.shape) == 2 for layout in layouts)
        return layouts[0].shape[1] if is_dense and self.reason != "given axes" else 0

    @property
    def image(self) -> Image | None:
        """What the rows are made of, if they lie in another order on both sides."""
        layouts = ((self.first.layout, True), (self.second.layout, False))
        return next((Image(a.split[:-1], first) for a, first in layouts if self.rows and len(a.split) > 2), None)

    def orders(self, images: Iterable[Image]) -> list[Image | None]:
        """What the rows may be made of, the likeliest last; None if they are alike on both sides."""
        return [None, *(image for image in images if math.prod(image.axes) == self.rows)]

    def behind(self, image: Image | None) -> Pair:
        """The pair, if its rows are made of this image."""
        either = image or self.image
        if either is None:
            return self
        kernel = self.first if either.is_last_in_first else self.second
        split = (*image.axes, kernel.layout.own[1]) if image else kernel.layout.own
        *window, inputs, outputs = range(len(split))
        layout = replace(kernel.layout, split=split, order=(outputs, inputs, *window))
        kernel = replace(kernel, layout=layout)
        return replace(self, first=kernel) if either.is_last_in_first else replace(self, second=kernel)


@dataclass(frozen=True)
class ParameterMapping:
    """The parameters of two models, in pairs; `str` gives a table."""

    pairs: tuple[Pair, ...]
    alone: tuple[str, ...] = ()
    """Those that were said to have no counterpart."""

    def __str__(self) -> str:
        rows = [
            (pair.first.name, _shape(pair.first), pair.second.name, _shape(pair.second), pair.reason)
            for pair in self.pairs
        ]
        return aligned(("first", "shape", "second", "shape", "by"), rows, folded=(0, 2))

    def as_override(self) -> dict[str, str]:
        """The names, to be changed and passed as ``mapping``."""
        return {pair.first.name: pair.second.name for pair in self.pairs}


@dataclass(frozen=True)
class _Owner:
    """A module with parameters of its own."""

    path: str
    parameters: Mapping[str, Parameter]
    """By role."""
    turn: tuple[int, int]
    """When it first ran, beside the others."""

    @property
    def signature(self) -> Hashable:
        """The shapes of its parameters, as torch has them."""
        return frozenset((role, _squeezed(p.layout.shape)) for role, p in self.parameters.items())


def inferred(first: Model, second: Model, override: Override) -> ParameterMapping:
    """The mapping.

    Modules whose names differ at most in how they are written are pairs. The others are, if they have parameters of the
    same shapes in torch's layout. Where several have, their names, or the order in which they run beside all others has
    to tell them apart.

    Raises:
      ValueError: a parameter has no counterpart, or several that nothing tells apart.
    """
    pairs, alone = _given(first, second, override)
    paired = {p.first.name for p in pairs} | set(alone), {p.second.name for p in pairs} | set(alone)
    ours, theirs = (_owners(model, used) for model, used in zip((first, second), paired, strict=True))
    named = _by_name(ours, theirs)
    found = [(a, b, "name") for a, b in named]
    for i, side in enumerate((ours, theirs)):
        side[:] = [owner for owner in side if not any(owner is pair[i] for pair in named)]
    found += [(a, b, "order") for a, b in _by_order(ours, theirs)]
    for a, b, reason in found:
        for role in a.parameters.keys() & b.parameters.keys():
            pair = _fitted(a.parameters[role], b.parameters[role], reason)
            if pair is not None:
                pairs.append(pair)
    _refuse_unpaired(first, second, pairs, alone)
    images = images_of(first, second)
    pairs = [pair.behind(pair.orders(images)[-1]) for pair in pairs]
    places = {p.name: place for place, p in zip(_turns(first), first.parameters, strict=True)}
    return ParameterMapping(tuple(sorted(pairs, key=lambda pair: places[pair.first.name])), tuple(alone))


def _given(first: Model, second: Model, override: Override) -> tuple[list[Pair], list[str]]:
    """The pairs that ``override`` names, and the names of parameters that it leaves alone."""
    ours, theirs = ({p.name: p for p in model.parameters} for model in (first, second))
    pairs: list[Pair] = []
    alone: list[str] = []
    for name, value in override.items():
        other, order = (value, None) if isinstance(value, str) or value is None else value
        if other is None:
            alone += [n for n in (*ours, *theirs) if n == name or n.startswith(f"{name}.")] or [_unknown(name, first)]
            continue
        inside = {p.role: p for p in first.parameters if p.name == name or p.owner == name}
        beside = {p.role: p for p in second.parameters if p.name == other or p.owner == other}
        if not inside or not beside:
            _unknown(*((other, second) if inside else (name, first)))
        if name in ours and other in theirs:  # whatever their roles
            inside, beside = {"": ours[name]}, {"": theirs[other]}
        for role in inside.keys() & beside.keys():
            pair = _fitted(inside[role], beside[role], "given", order)
            if pair is None:
                raise ValueError(
                    f"compare_models: mapping makes {inside[role].name} of shape {inside[role].layout.own} "
                    f"{beside[role].name} of shape {beside[role].layout.own}; give the order of axes that does, as in "
                    f'mapping={{"{name}": ("{other}", (1, 0))}}, or another name.'
                )
            pairs.append(pair)
    return pairs, alone


def _unknown(name: str, model: Model) -> str:
    known = ", ".join(p.name for p in model.parameters)
    raise ValueError(f"compare_models: mapping names {name!r}, which is no parameter or module of {model}: {known}.")


def _fitted(first: Parameter, second: Parameter, reason: str, order: Sequence[int] | None = None) -> Pair | None:
    """The pair, if the array of one has the shape of the other, as it is, transposed, or but for axes of length 1."""
    if order is not None:
        layout = Layout(first.layout.own, first.layout.own, tuple(order), second.layout.own)
        moved = tuple(first.layout.own[axis] for axis in order)
        kept = Layout.same(second.layout.own)
        return (
            Pair(replace(first, layout=layout), replace(second, layout=kept), f"{reason} axes")
            if moved == kept.shape
            else None
        )
    a, b = first.layout, second.layout
    if a.shape == b.shape:
        return Pair(first, second, reason)
    if _squeezed(a.shape) == _squeezed(b.shape):
        return Pair(first, replace(second, layout=Layout(b.own, b.split, b.order, a.shape, b.flipped)), reason)
    if len(a.shape) == 2 and a.shape == b.shape[::-1]:
        return Pair(first, replace(second, layout=Layout(b.own, b.split, b.order[::-1], a.shape)), reason)
    return None


def images_of(first: Model, second: Model) -> list[Image]:
    """What is flattened where one model has the channels last and the other first, in the order in which it is."""
    if first.channels_last == second.channels_last:
        return []
    shapes = (first if first.channels_last else second).flattened
    return [Image(axes, first.channels_last) for axes in shapes if axes[-1] > 1 and math.prod(axes[:-1]) > 1]


def _owners(model: Model, used: Collection[str]) -> list[_Owner]:
    """The modules with parameters that are not used yet, in the order in which they run."""
    found: dict[str, dict[str, Parameter]] = defaultdict(dict)
    turns: dict[str, tuple[int, int]] = {}
    for turn, parameter in zip(_turns(model), model.parameters, strict=True):
        if parameter.name not in used:
            found[parameter.owner][parameter.role] = parameter
            turns.setdefault(parameter.owner, turn)
    owners = [_Owner(path, parameters, turns[path]) for path, parameters in found.items()]
    return sorted(owners, key=lambda owner: owner.turn)


def _turns(model: Model) -> list[tuple[int, int]]:
    """For each parameter, when its module, or the one around that, first ran, and its place in the list."""
    began: dict[str, int] = {}
    for i, layer in enumerate(model.layers):
        began.setdefault(layer.path, i)
    turns = []
    for place, parameter in enumerate(model.parameters):
        path = parameter.owner
        while path and path not in began:
            path = path.rpartition(".")[0]
        turns.append((began.get(path, len(began)), place))
    return turns


def _by_name(ours: Sequence[_Owner], theirs: Sequence[_Owner]) -> list[tuple[_Owner, _Owner]]:
    """The pairs whose names are the same when written the same way, and are so once on each side.

    Numbers tell only where all names of the same words are numbered alike: ``conv1`` and ``conv2`` are not the first
    and the second of ``Conv_0`` and ``Conv_1``.
    """
    written = [Counter(map(_tokens, side)) for side in (ours, theirs)]
    numbered = [_numbers(side) for side in written]
    beside = {_tokens(owner): owner for owner in theirs}

    def is_told(name: tuple[str, ...]) -> bool:
        numbers = [side[_without_numbers(name)] for side in numbered]
        return written[0][name] == written[1][name] == 1 and (numbers[0] <= numbers[1] or numbers[1] <= numbers[0])

    return [(owner, beside[_tokens(owner)]) for owner in ours if is_told(_tokens(owner))]


def _numbers(names: Iterable[tuple[str, ...]]) -> Mapping[tuple[str, ...], set[tuple[str, ...]]]:
    """By the words of names in their order, the numbers in them."""
    found: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for name in names:
        found[_without_numbers(name)].add(tuple(token for token in name if token.isdigit()))
    return found


def _without_numbers(name: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(token for token in name if not token.isdigit())


def _by_order(ours: Sequence[_Owner], theirs: Sequence[_Owner]) -> list[tuple[_Owner, _Owner]]:
    """The pairs among modules with parameters of the same shapes: stretches in which these run in the same order, then
    what is left, such as a shortcut that one model computes before its block and the other behind it."""
    marks = _marks(ours, theirs), _marks(theirs, ours)
    blocks = SequenceMatcher(None, *marks, autojunk=False).get_matching_blocks()
    pairs = [(ours[block.a + k], theirs[block.b + k]) for block in blocks for k in range(block.size)]
    paired = {id(owner) for pair in pairs for owner in pair}
    rest = [
        [(owner, mark) for owner, mark in zip(side, its, strict=True) if id(owner) not in paired]
        for side, its in zip((ours, theirs), marks, strict=True)
    ]
    for mark in dict.fromkeys(mark for _, mark in rest[0]):
        group, beside = ([owner for owner, its in side if its == mark] for side in rest)
        if len(group) == len(beside) > 1:
            candidates = "\n".join(f"  {a.path}: {', '.join(b.path for b in beside)}" for a in group)
            raise ValueError(
                "compare_models: these modules have parameters of the same shapes, and neither their names nor the "
                f"order in which they run tell which is which:\n{candidates}\nPass "
                f'mapping={{"{group[0].path}": "{beside[0].path}", ...}}, with the names of modules or of parameters.'
            )
        if len(group) == len(beside):
            pairs += zip(group, beside, strict=True)
    return pairs


def _marks(owners: Sequence[_Owner], others: Sequence[_Owner]) -> list[Hashable]:
    """For each module, what its counterpart has to have too.

    That is the shapes of its parameters, the words in its name as far as both models use them alike, and for a
    normalization the shapes of the module before.
    """
    marks: list[Hashable] = []
    for i, owner in enumerate(owners):
        group, beside = ([o for o in side if o.signature == owner.signature] for side in (owners, others))
        shared = _words_of(group) & _words_of(beside)
        words = Counter(_words(o) & shared for o in group), Counter(_words(o) & shared for o in beside)
        is_norm = all(len(_squeezed(p.layout.shape)) < 2 for p in owner.parameters.values())
        marks.append(
            (
                owner.signature,
                _words(owner) & shared if words[0] == words[1] else None,
                owners[i - 1].signature if i and is_norm else None,
            )
        )
    return marks


def _tokens(owner: _Owner) -> tuple[str, ...]:
    """The words and the numbers in a path."""
    return tuple(_WORDS.get(token, token) for token in re.findall(r"[a-z]+|\d+", owner.path.lower()))


def _words(owner: _Owner) -> frozenset[str]:
    return frozenset(_without_numbers(_tokens(owner)))


def _words_of(owners: Iterable[_Owner]) -> frozenset[str]:
    return frozenset().union(*map(_words, owners))


def _refuse_unpaired(first: Model, second: Model, pairs: Iterable[Pair], alone: Collection[str]) -> None:
    paired = [{pair.first.name for pair in pairs}, {pair.second.name for pair in pairs}]
    rest = [
        [p for p in model.parameters if p.name not in names and p.name not in alone]
        for model, names in zip((first, second), paired, strict=True)
    ]
    if not any(rest):
        return
    lines = []
    for model, missing, others in ((first, rest[0], rest[1]), (second, rest[1], rest[0])):
        for parameter in missing:
            shape = _squeezed(parameter.layout.shape)
            candidates = [p.name for p in others if sorted(_squeezed(p.layout.shape)) == sorted(shape)]
            told = f"candidates {', '.join(candidates)}" if candidates else "no candidate of its shape"
            lines.append(f"  {model.name} {parameter.name} {list(parameter.layout.own)}: {told}")
    raise ValueError(
        "compare_models: these parameters have no counterpart:\n" + "\n".join(lines) + "\nPass mapping={...}: from "
        "names of the first model to names of the second, or a name to None if it has none there and keeps its value."
    )


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def _shape(parameter: Parameter) -> str:
    return "×".join(map(str, parameter.layout.own)) or "1"
