"""The parity matrix: the gradient of every op at every tie, by definition and by each framework, as data.

A row is one op at one tie. That of ``maximum`` at x = y = 2, with both arguments active, has the definition
``(0.5, 0.5)``: the gradients on either side of the tie are (1, 0) and (0, 1), and this is the point of minimum norm
between them. It has an answer for each spelling of the op that takes arguments in this form, such as
``torch.maximum``, whose gradient ``(0.5, 0.5)`` agrees. Where an answer does not agree, the row names the conventions
under which jaxclamp gives the same gradient.
"""

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from interop._bridge.ops import TORCH_OPS
from interop.frameworks.base import Array, Framework, Function, Gradient, Question, Refusal, flattened
from interop.frameworks.registry import ADAPTERS, CONVERTIBLES
from interop.native import NATIVE
from jaxclamp import CONVENTIONS, OPS, Op
from jaxclamp._shared.counterparts import Counterpart
from jaxclamp._shared.tie_cases import DTYPES, cases, definitions, in_form, round_to

PACKAGES = ("jaxclamp", "interop", "native")
"""The ops in JAX, those programs in torch, and `interop.native`, torch's own kernels under the convention."""
UNMODIFIED: dict[str, type[Framework]] = {**CONVERTIBLES, **ADAPTERS}
"""Maps a name to the framework as it is."""
FRAMEWORKS = (*PACKAGES, *UNMODIFIED)


@dataclass(frozen=True)
class Answer:
    """The gradient that one spelling gives, flattened over the active arguments in their order."""

    framework: str
    version: str
    spelling: str
    gradient: tuple[float, ...]
    agrees: bool
    conventions: tuple[str, ...]
    """If it does not agree, the values of ``ties=`` under which jaxclamp gives this gradient too."""


@dataclass(frozen=True)
class Row:
    """One op at one tie, with some of its arguments active, in one dtype."""

    op: str
    arguments: dict[str, Any]
    active: tuple[str, ...]
    inactive: str
    """How the inactive arguments are given: as "numbers", as "arrays", or "none" if all are active.

    Numbers and arrays make two rows, as a framework may have another gradient beside either: torch 2.15 has 0 and 0.5
    for clamp(0, 0, 6).
    """
    dtype: str
    definition: tuple[float, ...]
    answers: tuple[Answer, ...]

    @property
    def agrees(self) -> bool:
        return all(answer.agrees for answer in self.answers)

    def question(self, function: Function) -> Question:
        """Ask for the gradient of a spelling of the op, at the arguments rounded to the dtype."""
        rounded = round_to(self.dtype, self.arguments)
        return Question(function, in_form(rounded, self.active, self.inactive), self.active)


@functools.cache
def load(name: str) -> Framework:
    """Import the framework of that name; ImportError where it is not installed."""
    return UNMODIFIED[name]()


def absent(frameworks: Iterable[str] = FRAMEWORKS) -> dict[str, str]:
    """Map the name of each of the ``frameworks`` that cannot be imported to the reason, and the cure."""
    reasons = {}
    for name in ADAPTERS.keys() & frameworks:
        try:
            load(name)
        except ImportError as error:
            reasons[name] = f"{error}; pip install {ADAPTERS[name].requirement}"
    return dict(sorted(reasons.items()))


def counterparts(op: Op) -> list[Counterpart]:
    """List the spellings of ``op`` in all frameworks, installed or not."""
    return [*op.counterparts, *itertools.chain.from_iterable(a.counterparts_of(op.name) for a in ADAPTERS.values())]


def matrix(
    ops: Iterable[Op] | None = None, dtypes: Sequence[str] = DTYPES, frameworks: Sequence[str] = FRAMEWORKS
) -> Iterator[Row]:
    """Yield the rows for ``ops``, by default all. Of the ``frameworks``, those that are installed answer.

    Raises:
      ValueError: a framework or a dtype is unknown.
    """
    # Else a mistyped name would leave rows without answers, in which all agree.
    for kind, names, known in (("framework", frameworks, FRAMEWORKS), ("dtype", dtypes, DTYPES)):
        for name in names:
            if name not in known:
                raise ValueError(f"matrix: {name!r} is no {kind}; choose among {', '.join(known)}.")
    missing = absent(frameworks)
    present = [framework for framework in frameworks if framework not in missing]
    for dtype in dtypes:
        for op in OPS.values() if ops is None else ops:
            yield from _rows(op, dtype, present)


@dataclass(frozen=True)
class _Spelling:
    """One way to write an op."""

    framework: str
    name: str
    function: Function
    differentiated_by: Framework

    def takes(self, op: Op, row: Row) -> bool:
        """Say whether what it has no parameter for is at the default, and not active."""
        if not isinstance(self.function, Counterpart):
            return True
        unknown = row.arguments.keys() - self.function.parameters
        defaults = op.signature.parameters
        return all(name not in row.active and row.arguments[name] == defaults[name].default for name in unknown)


def _spellings(op: Op, frameworks: Collection[str]) -> list[_Spelling]:
    # Torch's names of parameters are not those of the record, but their order is the same.
    in_packages: dict[str, tuple[str, Function, str]] = {
        "jaxclamp": ("jaxclamp", lambda arguments: op.function(**arguments), "jax"),
        "interop": ("interop", lambda arguments: TORCH_OPS[op.name](*arguments.values()), "torch"),
        "native": ("interop.native", lambda arguments: NATIVE[op.name](*arguments.values()), "torch"),
    }
    return [
        _Spelling(package, f"{module}.{op.name}", function, load(framework))
        for package, (module, function, framework) in in_packages.items()
        if package in frameworks
    ] + [
        _Spelling(counterpart.framework, counterpart.name, counterpart, load(counterpart.framework))
        for counterpart in counterparts(op)
        if counterpart.framework in frameworks
    ]


def _rows(op: Op, dtype: str, frameworks: Collection[str]) -> Iterator[Row]:
    all_cases = list(cases(op))
    defined = definitions(op, [(round_to(dtype, arguments), active) for arguments, active, _ in all_cases])
    unanswered = [
        Row(op.name, *case, dtype, tuple(gradient.tolist()), ())
        for case, (_, gradient) in zip(all_cases, defined, strict=True)
    ]
    # A gradient is a product or a sum of a few rounded numbers, so it is off by a few eps. The oracle takes the
    # definition from differences of values, which are right to some 1e-4 of the slope.
    relative, absolute = 4 * float(jnp.finfo(dtype).eps), 1e-3
    answers: list[list[Answer]] = [[] for _ in all_cases]
    spellings = _spellings(op, frameworks)
    pairs = [(i, spelling) for i, row in enumerate(unanswered) for spelling in spellings if spelling.takes(op, row)]
    for (i, spelling), gradient in zip(pairs, _gradients(unanswered, pairs), strict=True):
        # Only of the same function a gradient can agree, and the value tells whether it is the same: some clips are
        # another function with min > max.
        value, expected = defined[i]
        if isinstance(gradient, Gradient) and math.isclose(gradient.value, value, rel_tol=relative, abs_tol=absolute):
            flat = flattened(gradient.by_argument, unanswered[i].active)
            agrees = bool((np.abs(flat - expected) <= absolute + relative * np.abs(expected)).all())
            version = spelling.differentiated_by.version
            answers[i].append(Answer(spelling.framework, version, spelling.name, tuple(flat.tolist()), agrees, ()))
        elif spelling.framework in ("jaxclamp", "interop"):  # they take every form
            raise TypeError(f"{spelling.name} at {unanswered[i].arguments}: {gradient}")
        # else this spelling does not take the arguments in this form
    answered = [replace(row, answers=tuple(of_row)) for row, of_row in zip(unanswered, answers, strict=True)]
    alternatives = iter(_alternatives(op, [row for row in answered if not row.agrees]))
    for row in answered:
        yield row if row.agrees else replace(row, answers=tuple(_explained(row.answers, next(alternatives), relative)))


def _gradients(rows: Sequence[Row], pairs: Sequence[tuple[int, _Spelling]]) -> list[Gradient | Refusal]:
    """Return what spellings answer in rows, by their numbers.

    All are asked at once, as frameworks answer the questions of one function in a batch, compiled once.
    """
    answers: dict[int, Gradient | Refusal] = {}
    for framework in dict.fromkeys(spelling.differentiated_by for _, spelling in pairs):
        places = [k for k, (_, spelling) in enumerate(pairs) if spelling.differentiated_by is framework]
        questions = [rows[i].question(spelling.function) for i, spelling in map(pairs.__getitem__, places)]
        answers |= zip(places, framework.gradients(questions, rows[0].dtype), strict=True)
    return [answers[k] for k in range(len(pairs))]


def _explained(answers: Iterable[Answer], alternatives: Mapping[str, Array], relative: float) -> Iterator[Answer]:
    """Name the conventions that give the answers that do not agree, up to this relative difference."""
    for answer in answers:
        equal = [ties for ties, g in alternatives.items() if np.allclose(answer.gradient, g, rtol=relative, atol=0)]
        yield answer if answer.agrees else replace(answer, conventions=tuple(equal))


def _alternatives(op: Op, rows: Sequence[Row]) -> list[dict[str, Array]]:
    """Map, for each row, the further values of ``ties=`` to the gradients that they give, if the op takes any.

    Torch's kernels have the same gradients as jaxclamp, and need no compiler. Where they do not take the arguments,
    jaxclamp itself is asked.
    """
    under: dict[str, Callable[..., Any]] = {
        "torch": lambda ties, arguments: NATIVE[op.name](*arguments.values(), ties=ties),
        "jax": lambda ties, arguments: op.function(**arguments, ties=ties),
    }
    alternatives: list[dict[str, Array]] = [{} for _ in rows]
    for framework, function in under.items() if op.has_conventions else ():
        # One function for each convention, as questions of the same function are asked in a batch.
        spellings = [
            _Spelling(framework, ties, functools.partial(function, ties), load(framework))
            for ties in CONVENTIONS
            if ties != "min_norm"
        ]
        pairs = [(i, s) for i, known in enumerate(alternatives) for s in spellings if s.name not in known]
        for (i, spelling), answer in zip(pairs, _gradients(rows, pairs), strict=True):
            if isinstance(answer, Gradient):
                alternatives[i][spelling.name] = flattened(answer.by_argument, rows[i].active)
    return alternatives
