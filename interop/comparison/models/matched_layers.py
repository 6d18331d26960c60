"""Find which layers of two models are the same.

They are the same by the parameters used in them, else by their place. Say one model calls ``Dense_0``, a gelu
function and ``Dense_1``, and its port ``stem``, a module ``act``, ``dropout`` and ``head``. `Dense_0` and `stem` use
the same parameters, and so do `Dense_1` and `head`: they are the same layers. ``act`` and ``dropout`` have no
parameters. A dropout of the first model, if it called one between its two layers, would be the same as ``dropout``, as
it lies in the same gap and its class is of the same family; ``act`` stays alone.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from interop.comparison.models.layers import Layer

_FAMILIES = (
    *("dropout", "max_?pool", "a(vg|verage)_?pool", "log_?softmax", "softmax", "leaky_?relu", "relu6", "relu", "gelu"),
    *("sigmoid", "tanh", "flatten", "identity"),
)
"""What the names of classes without parameters have in common; the first that fits counts, so log_softmax is first."""


def matched_layers(
    first: Sequence[Layer], second: Sequence[Layer], owners: Iterable[tuple[str, str]]
) -> list[tuple[int, int]]:
    """Return the indices of layers that are the same, in the order of the first model.

    Args:
      first, second: the layers of both, the model itself first.
      owners: for each parameter, the paths of the modules that own it on both sides.

    Layers are the same if the same parameters are used in them, and if they are called equally often. A layer and the
    one around it may use the same parameters: then the innermost of both models are the same, and so on outwards.
    Layers without parameters are the same if they lie between the same others, and their classes are called alike.
    """
    owners = list(owners)
    chains = _chains(first, [path for path, _ in owners]), _chains(second, [path for _, path in owners])
    matches = {0: 0}  # the models themselves, whatever is in them
    for parameters in chains[0].keys() & chains[1].keys():
        calls = chains[0][parameters], chains[1][parameters]
        if len(calls[0]) == len(calls[1]):  # else nothing tells which call is left out
            for first_chain, second_chain in zip(*calls, strict=True):
                # Innermost first: a wrapper that one model alone has is outside, and stays without counterpart. The
                # models themselves stay a pair, though one may be a single layer that the other wraps.
                innermost_first = zip(reversed(first_chain), reversed(second_chain), strict=False)
                matches |= {i: j for i, j in innermost_first if i and j}
    # Gaps are those between layers with parameters, which are in the same places in both models if these are right.
    by_parameters = dict(matches)
    gaps = _in_gaps(first, by_parameters), _in_gaps(second, set(by_parameters.values()))
    for (parent, gap, family), indices in gaps[0].items():
        counterparts = gaps[1].get((by_parameters[parent], gap, family), [])
        # If a model has one more of a family in a gap, nothing tells which one.
        if len(indices) == len(counterparts):
            matches |= dict(zip(indices, counterparts, strict=True))
    return sorted(matches.items())


def _chains(layers: Sequence[Layer], owners: Sequence[str]) -> Mapping[frozenset[int], list[list[int]]]:
    """Map the numbers of parameters to the layers that use just these: for each call, the chain from outside inward.

    If the model calls ``block``, and that calls ``block.dense``, which has all parameters, the chain is [0, 1, 2].
    """
    chains: dict[frozenset[int], list[list[int]]] = defaultdict(list)
    used = _used(layers, owners)
    for i, layer in enumerate(layers):
        if used[i]:
            if layer.parent is not None and used[layer.parent] == used[i]:
                chains[used[i]][-1].append(i)
            else:
                chains[used[i]].append([i])
    return chains


def _used(layers: Sequence[Layer], owners: Sequence[str]) -> list[frozenset[int]]:
    """Return for each layer the numbers of the parameters that are used in it, whose owners' paths these are."""
    paths = {layer.path for layer in layers}
    by_path: dict[str, set[int]] = defaultdict(set)
    for number, path in enumerate(owners):
        by_path[called_around(path, paths)].add(number)
    return [
        frozenset[int]().union(*(by_path[inner.path] for inner in layers[i : layer.end]))
        for i, layer in enumerate(layers)
    ]


def _in_gaps(layers: Sequence[Layer], matched: Collection[int]) -> Mapping[tuple[int, int, str], list[int]]:
    """Map a gap between matched layers, and a family, to the layers of that family in it.

    The gap is the matched layer around it, and the number of matched ones that began in that before.
    """
    gaps: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    begun: dict[int, int] = defaultdict(int)
    for i in range(1, len(layers)):
        parent = matched_parent(layers, i, matched)
        if i in matched:
            begun[parent] += 1
        elif family := _family_of(layers[i].kind):
            gaps[parent, begun[parent], family].append(i)
    return gaps


def matched_parent(layers: Sequence[Layer], i: int, matched: Collection[int]) -> int:
    """Return the innermost layer around this one that has a counterpart; the model itself has one."""
    parent = layers[i].parent or 0
    return parent if parent in matched else matched_parent(layers, parent, matched)


def _family_of(kind: str) -> str:
    """Return the family of a class of layers without parameters; empty if it is of none."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()  # as functions of other libraries are written: MaxPool
    return next((family for family in _FAMILIES if re.search(family, snake)), "")


def first_calls_of(layers: Sequence[Layer]) -> dict[str, int]:
    """Map the paths of modules to the indices of their first calls."""
    # Backwards, so that of several calls of a module the first one stays.
    return {layer.path: i for i, layer in reversed(list(enumerate(layers)))}


def called_around(path: str, called: Collection[str]) -> str:
    """Return the path of the innermost module there that is called: it uses the parameters of those that are not."""
    while path not in called:  # the model itself, whose path is empty, is called
        path = path.rpartition(".")[0]
    return path
