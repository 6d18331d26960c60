"""Which calls change their gradient at a tie with the version, or have another one than equal spellings.

Both follow from the records of `interop.survey`; nothing is said here of any version.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from interop.scan.finding import Finding
from interop.scan.likelihood import is_flat, tie_of_bounds, tie_of_operands
from interop.scan.source import Call, Source
from interop.survey.changes import changes
from interop.survey.records import Record, choices
from interop.survey.versions import Line, rounded, same

# The records have a function by one of its names, and a module by the function that it calls.
_ALIASES = {"torch.clip": "torch.clamp"}
_POOLS = {f"torch.nn.MaxPool{n}d": f"torch.nn.functional.max_pool{n}d" for n in (1, 2, 3)}
_BOUNDED = ("clamp", "clip", "clamp_min", "clamp_max", "hardtanh", "hard_tanh", "relu6")


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
    def conventions(self) -> Mapping[tuple[str, bool], str]:
        """Map a function, and whether its bounds are numbers, to the convention of its gradient if not min_norm."""
        named: dict[tuple[str, bool], str] = {}
        for cell, answers in self.after.answers.items():
            possible = choices()[cell.case].conventions
            gradient = answers.get("reverse")
            if cell.active != ("x",) or gradient is None or same(gradient, possible["min_norm"]):
                continue
            convention = next((name for name, expected in possible.items() if same(gradient, expected)), None)
            if convention:
                named.setdefault((cell.spelling, cell.inactive == "numbers"), convention)
        return named

    @functools.cached_property
    def taking_numbers(self) -> frozenset[str]:
        """The functions that were asked with numbers as operands; others, such as pools, take none."""
        return frozenset(cell.spelling for cell in self.after.answers if cell.inactive == "numbers")


def findings(source: Source, call: Call, versions: Mapping[str, Versions], file: str) -> Iterator[Finding]:
    """Return what depends on the version, or else on the spelling."""
    name = call.name.removesuffix("_")
    name = _ALIASES.get(name, _POOLS.get(name, name))
    of_framework = versions.get(name.partition(".")[0])
    if of_framework is None or not source.has_gradient(call.node):
        return
    x, *bounds = call.x_and_bounds or (call.node,)  # all may be in **kwargs
    if is_flat(source, x):
        return
    op = name.rpartition(".")[2]
    # By arguments torch.max is three functions; the record of the name is that along an axis.
    if name in ("torch.max", "torch.min") and len(call.operands) < 2 and not call.node.keywords:
        return  # of all elements: those that tie share the gradient, which is min_norm
    tie = tie_of_bounds(source, call) if op in _BOUNDED else tie_of_operands(source, call)
    if "pool" in op:  # what is pooled is often a relu's result, whose zeros tie; the source of the call says nothing
        tie = "possible"
    are_numbers = bool(bounds) and all(source.number(bound) is not None for bound in bounds)
    lines = of_framework.changed.get(name, [])
    if lines:
        # The records have numbers as bounds, and tensors; a bound that the source does not tell may be either.
        line = next((line for line in lines if (line.cell.inactive == "numbers") == are_numbers), lines[0])
        assert of_framework.before is not None
        before, after = (rounded(answer) if answer else "none" for answer in line.answers)
        what = f"{line.cell.op}({line.cell.at}) by {line.asked}: {before} → {after}"
        old = f"{of_framework.before.framework} {of_framework.before.version}"
        yield Finding.at(call.node, file, "version", what, tie, f'with interop.as_of("{old}"):')
    elif convention := of_framework.conventions.get((name, are_numbers and name in of_framework.taking_numbers)):
        what = f"{name} is {convention} at a tie, where spellings differ"
        cure = f"interop.native.{op}" if name.startswith("torch") else f"jaxclamp.min_norm(f), or jaxclamp.{op}"
        yield Finding.at(call.node, file, "spelling", what, tie, cure)
