"""Which calls change their gradient at a tie with the version, or have another one than equal spellings.

Both follow from the records of `interop.survey`; nothing is said here of any version.
"""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from interop.scan.finding import Finding
from interop.scan.likelihood import tie_of
from interop.scan.source import Call, Source
from interop.survey.changes import changes
from interop.survey.records import Record, choices
from interop.survey.versions import Line, rounded, same

_BOUNDS_WITHIN = {
    **{f"torch.nn.functional.{n}_loss": 0.0 for n in ("hinge_embedding", "margin_ranking", "triplet_margin")},
    **{f"torch.nn.{name}Loss": 0.0 for name in ("HingeEmbedding", "MarginRanking", "TripletMargin")},
    "torch.nn.functional.normalize": 1e-12,
}
"""Maps what calls `torch.clamp_min` within to the bound there."""
# The records have a function by one of its names, and a module by the function that it calls.
_ALIASES = {
    **dict.fromkeys(_BOUNDS_WITHIN, "torch.clamp_min"),
    "torch.clip": "torch.clamp",
    **{f"torch.nn.MaxPool{n}d": f"torch.nn.functional.max_pool{n}d" for n in (1, 2, 3)},
}
_OF_TWO = {"torch.max": "torch.maximum", "torch.min": "torch.minimum"}


@dataclass(frozen=True)
class Versions:
    """What to compare the calls of a framework by."""

    after: Record
    before: Record | None = None

    @functools.cached_property
    def changed(self) -> Mapping[str, list[Line]]:
        """Map the spelling of a function to what changed, by x alone with numbers, or by all operands."""
        lines: dict[str, list[Line]] = {}
        if self.before is not None:
            for line in changes(self.before.framework, self.before.version, self.after.version).lines:
                lines.setdefault(line.cell.spelling, []).append(line)
        return lines

    @functools.cached_property
    def conventions(self) -> Mapping[tuple[str, bool], tuple[str, str]]:
        """Map a function, and whether its bounds are numbers, to its op, and the convention of it if not min_norm.

        In torch 2.15 ``("torch.clamp", False)`` is mapped to ``("clamp", "balanced")``. With numbers it follows
        min_norm, and is left out.
        """
        named: dict[tuple[str, bool], tuple[str, str]] = {}
        for cell, answers in self.after.answers.items():
            possible = choices()[cell.case].conventions
            gradient = answers.get("reverse")
            if cell.active != ("x",) or same(gradient, possible["min_norm"]):
                continue
            convention = next((name for name, expected in possible.items() if same(gradient, expected)), None)
            if convention:
                named.setdefault((cell.spelling, cell.inactive == "numbers"), (cell.op, convention))
        return named

    @functools.cached_property
    def taking_numbers(self) -> frozenset[str]:
        """The functions that were asked with numbers as operands; others, such as pools, take none."""
        return frozenset(cell.spelling for cell in self.after.answers if cell.inactive == "numbers")


def findings(source: Source, call: Call, versions: Mapping[str, Versions]) -> Iterator[Finding]:
    """Return what depends on the version, or else on the spelling."""
    name = _recorded_name(source, call)
    of_framework = versions.get(name.partition(".")[0])
    if of_framework is None:
        return
    x, *bounds = call.x_and_bounds or (call.node,)  # all may be in **kwargs
    if source.is_flat(x):
        return
    if name in _OF_TWO:  # the axis is no operand
        bounds = []
    if call.name in _BOUNDS_WITHIN:
        bounds = [ast.Constant(_BOUNDS_WITHIN[call.name])]
    tie = tie_of(source, x, bounds)
    if "pool" in name:  # what is pooled is often a relu's result, whose zeros tie; the source of the call says nothing
        tie = "possible"
    # torch takes no tensor for one bound beside a number for the other, but one without axes, which it makes a number.
    are_numbers = any(map(source.is_number, bounds))
    lines = of_framework.changed.get(name, [])
    if lines:
        # The records have numbers as bounds, and tensors; a bound that the source does not tell may be either.
        line = next((line for line in lines if (line.cell.inactive == "numbers") == are_numbers), lines[0])
        assert of_framework.before is not None
        before, after = (rounded(answer) if answer else "none" for answer in line.answers)
        old, new = (f"{record.framework} {record.version}" for record in (of_framework.before, of_framework.after))
        slopes = f"by {', '.join(line.cell.active)} was {before} in {old} and is {after} in {new}"
        what = f"{line.cell.op}: on a tie the gradient {slopes}, recorded at {line.cell.at}"
        yield Finding.at(source, call.node, "version", what, tie, f'with interop.as_of("{old}"):')
    elif choice := of_framework.conventions.get((name, are_numbers and name in of_framework.taking_numbers)):
        op, convention = choice
        what = f"{name} is {convention} at a tie, and other spellings may not be"
        cure = f"interop.native.{op}" if name.startswith("torch") else f"jaxclamp.min_norm(f), or jaxclamp.{op}"
        if call.name.rpartition(".")[0] == "torch.nn":
            cure = call.name.replace("torch", "interop", 1)
        yield Finding.at(source, call.node, "spelling", what, tie, cure)


def _recorded_name(source: Source, call: Call) -> str:
    """Return the name by which the records have a function; empty if a gradient of it is no choice."""
    name = call.name.removesuffix("_")
    if name not in _OF_TWO:
        return _ALIASES.get(name, name)
    # By arguments three functions: of two tensors, along an axis, as the records have it, and of all elements. Those of
    # all that tie share the gradient, which is min_norm.
    if any(word.arg in ("dim", "axis") for word in call.node.keywords):
        return name
    if len(call.x_and_bounds) < 2:
        return ""
    second = call.x_and_bounds[1]
    is_axis = source.is_number(second) or re.search("dim|axis", ast.unparse(second).lower())
    return name if is_axis else _OF_TWO[name]
