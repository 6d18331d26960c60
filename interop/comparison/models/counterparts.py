"""Find what in one model corresponds to what in the other: parameters, then layers, images and results.

Parameters are paired by modules, as those of one module belong together. Say these are the modules with parameters, in
the order in which they run, with the shapes of their weights as torch has them:

    first:   stem (8, 3, 3, 3)   Dense_0 (16, 8)   Dense_1 (16, 16)   head (2, 16)
    second:  conv (8, 3, 3, 3)   fc1 (16, 8)       fc2 (16, 16)       head (2, 16)

1. What the caller's mapping names is paired first.
2. ``head`` is written alike on both sides, and is paired by name. ``Dense_0`` and ``fc1`` are not: ``fc`` and ``Dense``
   are one word, but the models number it from 0 and from 1, so that ``Dense_1`` must not become ``fc1``.
3. Of the rest each has its criteria, what its counterpart must have too: here the shapes. The longest runs of modules
   with the same criteria in the same order are paired, as `difflib` pairs lines: all three.
4. What is still left is paired if only one module on each side has its criteria. If several have, nothing tells them
   apart, and that is an error, as is a parameter that is left alone.

A dense layer behind a flattened image is a case of its own: if one model has the channels last, and the other first,
their flattened rows differ in order, and so do the rows of the kernels. `Pair.image` accounts for it.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import NoReturn, TypeAlias

import numpy as np

from interop.comparison.leaves import kind_of
from interop.comparison.models.mapping import Counterparts, Image, Pair, ParameterMapping
from interop.comparison.models.matched_layers import called_around, first_calls_of, matched_layers, matched_parent
from interop.comparison.models.model import Model, Orders
from interop.comparison.models.parameters import Layout, Parameter, channel_order

Override: TypeAlias = Mapping[str, str | tuple[str, Sequence[int]] | None]
"""Maps the name of a parameter of the first model, or of a module of it, to its name in the second.

A parameter may be mapped to the name and the order of axes that makes of its array the other; None if it has no
counterpart."""

# Each is short for a word, or another word for the same layer in another library.
_SYNONYMS = {
    "query": "q",
    "key": "k",
    "value": "v",
    "wq": "q",
    "wk": "k",
    "wv": "v",
    "ln": "layernorm",
    "bn": "batchnorm",
    "fc": "dense",
    "linear": "dense",
}


def counterparts_of(first: Model, second: Model, override: Override) -> Counterparts:
    """Pair the parameters of two models, and by them the layers."""
    mapping = _inferred(first, second, override)
    matches = matched_layers(first.layers, second.layers, [(p.first.owner, p.second.owner) for p in mapping.pairs])
    numbers = {i: n for n, (i, _) in enumerate(matches)}
    first_calls = first_calls_of(first.layers)

    def match_of(path: str) -> int:
        i = first_calls[called_around(path, first_calls)]
        return numbers[i if i in numbers else matched_parent(first.layers, i, numbers)]

    to_last = None if first.channels_last == second.channels_last else first.channels_last
    # Those that both models flatten, in this order, if their channels lie in different places. With one channel, or at
    # one place alone, the numbers have the same order in both.
    flattened = () if to_last is None else (first if to_last else second).flattened_shapes
    images = tuple(Image(axes, bool(to_last)) for axes in flattened if axes[-1] > 1 and math.prod(axes[:-1]) > 1)
    # Until the models run, the last image of the right size is taken for flattened; `bind` asks the inputs of the
    # layers.
    pairs = tuple(replace(pair, image=pair.possible_images(images)[-1]) for pair in mapping.pairs)
    return Counterparts(
        mapping=replace(mapping, pairs=pairs),
        matches=tuple(matches),
        parents=(None, *(numbers[matched_parent(first.layers, i, numbers)] for i, _ in matches[1:])),
        match_of={pair.first.name: match_of(pair.first.owner) for pair in pairs},
        images=images,
        result_orders=_result_orders(first, second, to_last),
        to_last=to_last,
    )


def _result_orders(first: Model, second: Model, to_last: bool | None) -> Orders:
    """Return for each result of the second model that is differentiated the order of axes that makes it the first's."""
    results = [[(kind_of(p.value.dtype), tuple(p.value.shape)) for p in m.layers[0].outputs] for m in (first, second)]
    differentiated = ("floats", "complex numbers")
    if len(results[0]) != len(results[1]) or not any(kind in differentiated for kind, _ in results[0]):
        lists = [", ".join(f"{kind} {shape}" for kind, shape in side) or "nothing" for side in results]
        raise ValueError(
            f"compare_models: {first} returns {lists[0]}; {second} {lists[1]}. Choose arrays to compare, one of "
            "floats among them: calls=(lambda model, x: model(x)[0], None)."
        )
    if all(0 in shape for _, shape in results[0]):
        empty = [f"; input {i} has shape {leaf.shape}" for i, leaf in enumerate(first.inputs) if 0 in np.shape(leaf)]
        raise ValueError(
            f"compare_models: what {first} returns has no elements, so that nothing is compared{''.join(empty)}. Pass "
            "a batch of one sample at least."
        )
    result_orders: list[tuple[int, ...] | None] = []
    for i, ((kind, shape), (second_kind, second_shape)) in enumerate(zip(*results, strict=True)):
        if kind != second_kind:
            raise ValueError(f"compare_models: result {i} is of {kind} in {first}, and of {second_kind} in {second}.")
        orders = channel_orders(shape, second_shape, to_last)
        if not orders and shape != second_shape:
            raise ValueError(
                f"compare_models: result {i} has shape {shape} in {first}, and {second_shape} in {second}."
            )
        if kind in differentiated:
            is_image = len(shape) >= 4 or shape != second_shape  # of three axes and one shape is a sequence of vectors
            result_orders.append(orders[0] if orders and is_image else None)
    return result_orders


def channel_orders(first: tuple[int, ...], second: tuple[int, ...], to_last: bool | None) -> list[tuple[int, ...]]:
    """Return the channel orders that make the second shape the first, that of ``to_last`` before its inverse.

    Of (2, 4, 5, 3) and (2, 3, 4, 5) that is (0, 2, 3, 1).
    """
    if to_last is None or len(first) != len(second) or len(first) < 3:
        return []
    orders = [channel_order(len(first), to_last=direction) for direction in (to_last, not to_last)]
    return [order for order in orders if tuple(second[axis] for axis in order) == first]


@dataclass(frozen=True, eq=False)  # a key, by its identity
class _Module:
    """A module, with the parameters that are its alone and not yet paired."""

    path: str
    parameters: Mapping[str, Parameter]
    """Maps the role to the parameter."""

    @property
    def shapes(self) -> Hashable:
        """The shapes of its parameters, as torch has them."""
        return frozenset((role, _squeezed(p.layout.torch_shape)) for role, p in self.parameters.items())

    @property
    def tokens(self) -> tuple[str, ...]:
        """The words and the numbers in its path: dense, 0 for ``Dense_0``, ``linear0`` and ``fc.0``."""
        return tuple(_SYNONYMS.get(token, token) for token in re.findall(r"[a-z]+|\d+", self.path.lower()))

    @property
    def words(self) -> tuple[str, ...]:
        """Its tokens, but for numbers."""
        return tuple(token for token in self.tokens if not token.isdigit())

    @property
    def numbers(self) -> tuple[str, ...]:
        return tuple(token for token in self.tokens if token.isdigit())

    @property
    def is_norm(self) -> bool:
        """Whether no parameter has two axes, as in a normalization."""
        return all(len(_squeezed(p.layout.torch_shape)) < 2 for p in self.parameters.values())


def _inferred(first: Model, second: Model, override: Override) -> ParameterMapping:
    """Pair the parameters of two models.

    Raises:
      ValueError: a parameter has no counterpart, or several that nothing tells apart.
    """
    pairs, alone = _overridden(first, second, override)
    first_modules = _modules(first, {pair.first.name for pair in pairs} | set(alone))
    second_modules = _modules(second, {pair.second.name for pair in pairs} | set(alone))
    by_name = _paired_by_name(first_modules, second_modules)
    named = {module for module_pair in by_name for module in module_pair}
    by_order = _paired_by_order(
        [module for module in first_modules if module not in named],
        [module for module in second_modules if module not in named],
    )
    for reason, module_pairs in (("name", by_name), ("order", by_order)):
        for a, b in module_pairs:
            for role in a.parameters.keys() & b.parameters.keys():
                pair = _fitted(a.parameters[role], b.parameters[role], reason)
                if pair is not None:
                    pairs.append(pair)
    _refuse_unpaired(first, second, pairs, alone)
    places = {parameter.name: place for place, parameter in enumerate(_in_order_of_runs(first))}
    return ParameterMapping(tuple(sorted(pairs, key=lambda pair: places[pair.first.name])), tuple(alone))


def _overridden(first: Model, second: Model, override: Override) -> tuple[list[Pair], list[str]]:
    """Return the pairs that ``override`` names, and the names of parameters that it leaves alone."""
    first_names, second_names = ({p.name: p for p in model.parameters} for model in (first, second))
    pairs: list[Pair] = []
    alone: list[str] = []
    for name, value in override.items():
        if isinstance(value, str | None):
            counterpart, order = value, None
        elif isinstance(value, tuple | list) and len(value) == 2:
            counterpart, order = value
        else:
            raise TypeError(f"compare_models: mapping has {value!r} for {name!r}; pass a name, or (name, axes).")
        if counterpart is None:
            names = [n for n in (*first_names, *second_names) if n == name or n.startswith(f"{name}.")]
            if not names:
                _refuse_unknown(name, first)
            alone += names
            continue
        of_first = {p.role: p for p in first.parameters if name in (p.name, p.owner)}
        of_second = {p.role: p for p in second.parameters if counterpart in (p.name, p.owner)}
        if not of_first:
            _refuse_unknown(name, first)
        if not of_second:
            _refuse_unknown(counterpart, second)
        if name in first_names and counterpart in second_names:  # two parameters are a pair whatever their roles are
            of_first, of_second = {"": first_names[name]}, {"": second_names[counterpart]}
        if of_first.keys().isdisjoint(of_second):
            in_first, in_second = (", ".join(p.name for p in of.values()) for of in (of_first, of_second))
            raise ValueError(
                f"compare_models: mapping pairs {name!r} with {counterpart!r}, which have no parameter of one kind: "
                f"{in_first}; {in_second}. Pair the parameters, by these names."
            )
        for role in of_first.keys() & of_second.keys():
            pair = _fitted(of_first[role], of_second[role], "given", order)
            if pair is None:
                raise ValueError(
                    f"compare_models: mapping makes {of_first[role].name} of shape {of_first[role].layout.shape} "
                    f"{of_second[role].name} of shape {of_second[role].layout.shape}; give the order of axes that "
                    f'does, as in mapping={{"{of_first[role].name}": ("{of_second[role].name}", (1, 0))}}, or another '
                    "name."
                )
            pairs.append(pair)
    return pairs, alone


def _refuse_unknown(name: str, model: Model) -> NoReturn:
    names = ", ".join(p.name for p in model.parameters)
    raise ValueError(
        f"compare_models: mapping names {name!r}, which is no parameter of {model}, nor a module that has some itself: "
        f"{names}."
    )


def _fitted(first: Parameter, second: Parameter, reason: str, order: Sequence[int] | None = None) -> Pair | None:
    """Return the pair, if one shape is the other as it is, transposed, but for axes of length 1, or by ``order``."""
    a, b = first.layout, second.layout
    if order is not None:
        if sorted(order) != list(range(len(a.shape))):  # axes counted from the end have no inverse in `Layout`
            return None
        a = Layout(a.shape, a.shape, tuple(order), tuple(a.shape[axis] for axis in order))
        b = Layout.same(b.shape)
        is_fitting = a.torch_shape == b.torch_shape
        return Pair(replace(first, layout=a), replace(second, layout=b), f"{reason} axes") if is_fitting else None
    if a.torch_shape == b.torch_shape:
        return Pair(first, second, reason)
    # Equinox has the bias of a convolution with axes of length 1 for the window.
    if _squeezed(a.torch_shape) == _squeezed(b.torch_shape):
        return Pair(first, replace(second, layout=replace(b, torch_shape=a.torch_shape)), reason)
    # A model that multiplies matrices by hand has them in either order, and no name tells which.
    if len(a.torch_shape) == 2 and a.torch_shape == b.torch_shape[::-1]:
        return Pair(first, replace(second, layout=Layout(b.shape, b.split, b.order[::-1], a.torch_shape)), reason)
    return None


def _modules(model: Model, paired: Collection[str]) -> list[_Module]:
    """Return the modules with parameters that are not paired yet, in the order in which they run."""
    by_path: dict[str, dict[str, Parameter]] = defaultdict(dict)
    for parameter in _in_order_of_runs(model):
        if parameter.name not in paired:
            by_path[parameter.owner][parameter.role] = parameter
    return [_Module(path, parameters) for path, parameters in by_path.items()]


def _in_order_of_runs(model: Model) -> list[Parameter]:
    """Return the parameters in the order in which their modules first run; those of one module keep their order."""
    first_calls = first_calls_of(model.layers)
    return sorted(model.parameters, key=lambda parameter: first_calls[called_around(parameter.owner, first_calls)])


def _paired_by_name(first: Sequence[_Module], second: Sequence[_Module]) -> list[tuple[_Module, _Module]]:
    """Pair modules whose paths have the same tokens, if no other on either side has them.

    Numbers tell only where all names of the same words are numbered alike: ``conv1`` and ``conv2`` are not the first
    and the second of ``Conv_0`` and ``Conv_1``.
    """
    counts = [Counter(module.tokens for module in side) for side in (first, second)]
    numbers = [_numbers_by_words(side) for side in (first, second)]
    by_tokens = {module.tokens: module for module in second}

    def is_distinct(module: _Module) -> bool:
        # If one has another name, nothing tells which: ``fc1``, ``fc2`` and ``head`` are ``Dense_0`` to ``Dense_2``.
        a, b = (side[module.words] for side in numbers)
        return all(count[module.tokens] == 1 for count in counts) and a == b

    return [(module, by_tokens[module.tokens]) for module in first if is_distinct(module)]


def _numbers_by_words(modules: Iterable[_Module]) -> Mapping[tuple[str, ...], set[tuple[str, ...]]]:
    """Map the words of a name to the numbers that go with them in a model."""
    numbers: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for module in modules:
        numbers[module.words].add(module.numbers)
    return numbers


def _paired_by_order(first: Sequence[_Module], second: Sequence[_Module]) -> list[tuple[_Module, _Module]]:
    """Pair modules with the same criteria: runs of them in the same order, then what is left.

    Left is, for instance, a shortcut that one model computes before its block and the other after it.
    """
    criteria = _criteria(first, second), _criteria(second, first)
    # Autojunk would drop frequent criteria, as those of equal blocks, in models of 200 modules or more.
    blocks = SequenceMatcher(None, *criteria, autojunk=False).get_matching_blocks()
    pairs = [(first[block.a + k], second[block.b + k]) for block in blocks for k in range(block.size)]
    paired = {module for pair in pairs for module in pair}
    unpaired: list[dict[Hashable, list[_Module]]] = [defaultdict(list), defaultdict(list)]
    for groups, modules, criteria_of_side in zip(unpaired, (first, second), criteria, strict=True):
        for module, criterion in zip(modules, criteria_of_side, strict=True):
            if module not in paired:
                groups[criterion].append(module)
    for criterion, group in unpaired[0].items():
        candidates = unpaired[1].get(criterion, [])
        if len(group) == len(candidates) > 1:
            _refuse_ambiguous(group, candidates)
        # Groups of two sizes are left: their parameters are reported with all that have no counterpart.
        if len(group) == len(candidates):
            pairs += zip(group, candidates, strict=True)
    return pairs


def _criteria(modules: Sequence[_Module], counterparts: Sequence[_Module]) -> list[Hashable]:
    """Return for each module what its counterpart has to have too.

    That is the shapes of its parameters, the words in its name as far as both models use them alike, and for a
    normalization the shapes of the module before.
    """
    sides = modules, counterparts
    criteria: list[Hashable] = []
    for i, module in enumerate(modules):
        first, second = ([frozenset(m.words) for m in side if m.shapes == module.shapes] for side in sides)
        shared = frozenset[str]().union(*first) & frozenset[str]().union(*second)
        # Words tell only if both use them equally often: `out` does not, if there are two of it here and one there.
        uses = Counter(words & shared for words in first), Counter(words & shared for words in second)
        criteria.append(
            (
                module.shapes,
                frozenset(module.words) & shared if uses[0] == uses[1] else None,
                # All normalizations of as many channels have the same shapes: what they normalize tells them apart.
                modules[i - 1].shapes if i and module.is_norm else None,
            )
        )
    return criteria


def _refuse_ambiguous(group: Sequence[_Module], candidates: Sequence[_Module]) -> NoReturn:
    paths = ", ".join(module.path for module in candidates)
    lines = "\n".join(f"  {module.path}: {paths}" for module in group)
    raise ValueError(
        "compare_models: these modules have parameters of the same shapes, and neither their names nor the order in "
        f"which they run tell which is which:\n{lines}\nPass "
        f'mapping={{"{group[0].path}": "{candidates[0].path}", ...}}, with the names of modules or of parameters.'
    )


def _refuse_unpaired(first: Model, second: Model, pairs: Iterable[Pair], alone: Collection[str]) -> None:
    paired = {pair.first.name for pair in pairs}, {pair.second.name for pair in pairs}
    unpaired = [
        [p for p in model.parameters if p.name not in names and p.name not in alone]
        for model, names in zip((first, second), paired, strict=True)
    ]
    if not any(unpaired):
        return
    lines = []
    for model, parameters, of_other_model in zip((first, second), unpaired, unpaired[::-1], strict=True):
        for parameter in parameters:
            shape = sorted(_squeezed(parameter.layout.torch_shape))
            candidates = [p.name for p in of_other_model if sorted(_squeezed(p.layout.torch_shape)) == shape]
            hint = f"candidates {', '.join(candidates)}" if candidates else "no candidate of its shape is left"
            lines.append(f"  {model.name} {parameter.name} {list(parameter.layout.shape)}: {hint}")
    roles = {parameter.name.rpartition(".")[2] for parameter in (*unpaired[0], *unpaired[1])}
    adds_biases = any(role.startswith("bias_ih") for role in roles) and "bias" in roles
    raise ValueError(
        "compare_models: these parameters have no counterpart:\n" + "\n".join(lines) + "\nPass mapping={...}: from "
        "names of the first model to names of the second, or a name to None if it has none there and keeps its value."
        + " torch adds two biases where others have one: map bias_ih, fill bias_hh with zeros, and map it to None."
        * adds_biases
    )


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)
