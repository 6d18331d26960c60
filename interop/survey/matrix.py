"""The parity matrix: what every op answers at every tie, by definition, here and natively, as data."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from interop._bridge.ops import TORCH_OPS
from interop.frameworks.base import Framework, Function, Question
from interop.frameworks.jax import Jax
from interop.frameworks.registry import ADAPTERS
from interop.frameworks.torch import Torch
from interop.native import NATIVE
from jaxclamp import CONVENTIONS, OPS, Op
from jaxclamp._shared.counterparts import Counterpart
from jaxclamp._shared.tie_cases import DTYPES, cases, definitions, in_form, round_to

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

OURS = ("jaxclamp", "interop", "native")
"""The ops in JAX, those programs in torch, and torch's own kernels under the convention."""
THEIRS: dict[str, type[Framework]] = {"jax": Jax, "torch": Torch, **ADAPTERS}
FRAMEWORKS = (*OURS, *THEIRS)


@dataclass(frozen=True)
class Answer:
    """The gradient that one spelling gives, flattened over the active arguments in their order."""

    framework: str
    version: str
    spelling: str
    gradient: tuple[float, ...]
    agrees: bool
    conventions: tuple[str, ...]
    """Where it disagrees, the values of ``ties=`` under which jaxclamp gives this gradient, if the op takes any."""


@dataclass(frozen=True)
class Row:
    """One op at one tie, with some of its arguments active, in one dtype."""

    op: str
    arguments: dict[str, Any]
    active: tuple[str, ...]
    inactive: str
    """How the inactive arguments are given: as "numbers", as "arrays", or "none" if all are active."""
    dtype: str
    definition: tuple[float, ...]
    answers: tuple[Answer, ...]

    @property
    def agrees(self) -> bool:
        return all(answer.agrees for answer in self.answers)


@functools.cache
def theirs(name: str) -> Framework:
    """The framework of that name; ImportError where it is not installed."""
    return THEIRS[name]()


def absent(frameworks: Iterable[str] = FRAMEWORKS) -> dict[str, str]:
    """Why those of the ``frameworks`` that cannot be imported cannot, and the cure, by name."""
    reasons = {}
    for name in ADAPTERS.keys() & frameworks:
        try:
            theirs(name)
        except ImportError as error:
            reasons[name] = f"{error}; pip install {ADAPTERS[name].requirement}"
    return dict(sorted(reasons.items()))


def counterparts(op: Op) -> list[Counterpart]:
    """The spellings of ``op`` in the other frameworks, installed or not."""
    return [*op.counterparts, *itertools.chain.from_iterable(a.counterparts_of(op.name) for a in ADAPTERS.values())]


def matrix(
    ops: Iterable[Op] | None = None, dtypes: Sequence[str] = DTYPES, frameworks: Sequence[str] = FRAMEWORKS
) -> Iterator[Row]:
    """The rows for ``ops`` (all by default); those of one op in one dtype are asked together.

    Of the ``frameworks``, those that are installed answer.
    """
    missing = absent(frameworks)
    present = [framework for framework in frameworks if framework not in missing]
    for dtype in dtypes:
        for op in OPS.values() if ops is None else ops:
            yield from _rows(op, dtype, present)


@dataclass(frozen=True)
class _Case:
    """A row before it is answered."""

    arguments: dict[str, Any]
    active: tuple[str, ...]
    inactive: str
    rounded: dict[str, Any]

    @property
    def given(self) -> dict[str, Any]:
        """The arguments in the form in which they are asked."""
        return in_form(self.rounded, self.active, self.inactive)


@dataclass(frozen=True)
class _Spelling:
    """One way to write an op, and who differentiates it."""

    framework: str
    name: str
    function: Function
    asked: Framework

    def takes(self, op: Op, case: _Case) -> bool:
        """Whether what it has no parameter for is at the default, and not active."""
        if not isinstance(self.function, Counterpart):
            return True
        unknown = case.arguments.keys() - self.function.names
        defaults = op.signature.parameters
        return all(name not in case.active and case.arguments[name] == defaults[name].default for name in unknown)


def _spellings(op: Op, frameworks: Collection[str]) -> list[_Spelling]:
    ours: dict[str, tuple[str, Function, str]] = {
        "jaxclamp": ("jaxclamp", lambda given: op.function(**given), "jax"),
        "interop": ("interop", lambda given: TORCH_OPS[op.name](*given.values()), "torch"),
        "native": ("interop.native", lambda given: NATIVE[op.name](*given.values()), "torch"),
    }
    return [
        _Spelling(framework, f"{module}.{op.name}", function, theirs(asked))
        for framework, (module, function, asked) in ours.items()
        if framework in frameworks
    ] + [
        _Spelling(counterpart.framework, counterpart.name, counterpart, theirs(counterpart.framework))
        for counterpart in counterparts(op)
        if counterpart.framework in frameworks
    ]


def _rows(op: Op, dtype: str, frameworks: Collection[str]) -> Iterator[Row]:
    asked = [
        _Case(arguments, active, inactive, round_to(dtype, arguments)) for arguments, active, inactive in cases(op)
    ]
    known = definitions(op, [(case.rounded, case.active) for case in asked])
    relative = 4 * float(jnp.finfo(dtype).eps)
    answers: list[list[tuple[_Spelling, Array, bool]]] = [[] for _ in asked]
    for i, spelling, answer in _answered(op, asked, dtype, frameworks):
        value, expected = known[i]
        if not isinstance(answer, TypeError) and not math.isclose(answer[0], value, rel_tol=relative, abs_tol=1e-3):
            answer = TypeError(f"{spelling.name} is another function there, as some clips are with min > max.")
        if not isinstance(answer, TypeError):
            gradient = _flat(answer[1], asked[i].active)
            agrees = bool((np.abs(gradient - expected) <= 1e-3 + relative * np.abs(expected)).all())
            answers[i].append((spelling, gradient, agrees))
        elif spelling.framework in ("jaxclamp", "interop"):  # they take every form
            raise answer
        # else this spelling does not take the arguments in this form
    differing = [i for i, given in enumerate(answers) if not all(agrees for _, _, agrees in given)]
    conventions = dict(zip(differing, _under_each_convention(op, [asked[i] for i in differing], dtype), strict=True))
    for i, (case, (_, expected), given) in enumerate(zip(asked, known, answers, strict=True)):
        row = []
        for spelling, gradient, agrees in given:
            found = conventions[i] if not agrees else {}
            like = tuple(ties for ties, other in found.items() if np.allclose(gradient, other, rtol=1e-3))
            version = spelling.asked.version
            row.append(Answer(spelling.framework, version, spelling.name, tuple(gradient.tolist()), agrees, like))
        yield Row(op.name, case.arguments, case.active, case.inactive, dtype, tuple(expected.tolist()), tuple(row))


def _answered(
    op: Op, asked: Sequence[_Case], dtype: str, frameworks: Collection[str]
) -> Iterator[tuple[int, _Spelling, tuple[float, dict[str, Array]] | TypeError]]:
    """The answer of each spelling, in its order, in each of the cases that it has the parameters for."""
    spellings = _spellings(op, frameworks)
    asking = [(i, spelling) for i, case in enumerate(asked) for spelling in spellings if spelling.takes(op, case)]
    answers: dict[tuple[int, str], tuple[float, dict[str, Array]] | TypeError] = {}
    for framework in dict.fromkeys(spelling.asked for spelling in spellings):
        its = [(i, spelling) for i, spelling in asking if spelling.asked is framework]
        questions = [Question(spelling.function, asked[i].given, asked[i].active) for i, spelling in its]
        found = framework.values_and_gradients(questions, dtype)
        answers |= {(i, spelling.name): answer for (i, spelling), answer in zip(its, found, strict=True)}
    for i, spelling in asking:
        yield i, spelling, answers[i, spelling.name]


def _under_each_convention(op: Op, asked: Sequence[_Case], dtype: str) -> list[dict[str, Array]]:
    """By case, the gradients by the other values of ``ties=``, if the op takes any.

    Those of torch's kernels, which are the same and need no compiler, but for the arguments that torch does not take.
    """
    if not op.has_conventions:
        return [{} for _ in asked]
    others = [ties for ties in CONVENTIONS if ties != "min_norm"]
    kernels = {ties: functools.partial(_kernel, op, ties) for ties in others}
    programs = {ties: functools.partial(_program, op, ties) for ties in others}
    found: dict[tuple[int, str], tuple[float, dict[str, Array]] | TypeError] = {}
    for framework, functions in (("torch", kernels), ("jax", programs)):
        open_ = [(i, t) for i in range(len(asked)) for t in others if isinstance(found.get((i, t)), TypeError | None)]
        if not open_:
            break
        questions = [Question(functions[ties], asked[i].given, asked[i].active) for i, ties in open_]
        found |= dict(zip(open_, theirs(framework).values_and_gradients(questions, dtype), strict=True))
    gradients: list[dict[str, Array]] = [{} for _ in asked]
    for (i, ties), answer in found.items():
        if isinstance(answer, TypeError):
            raise answer
        gradients[i][ties] = _flat(answer[1], asked[i].active)
    return gradients


def _kernel(op: Op, ties: str, given: Mapping[str, Any]) -> Any:
    return NATIVE[op.name](*given.values(), ties=ties)


def _program(op: Op, ties: str, given: Mapping[str, Any]) -> Any:
    return op.function(**given, ties=ties)


def _flat(gradient: Mapping[str, Array], active: tuple[str, ...]) -> Array:
    return np.concatenate([gradient[name].ravel() for name in active])
