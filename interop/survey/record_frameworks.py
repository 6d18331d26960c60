"""Asks the installed frameworks at every tie, in both modes: ``python -m interop.survey.record_frameworks``.

It writes one record for each framework that is named behind that. By default it asks all that are installed, and writes
the choices that there are by definition.
"""

from __future__ import annotations

import datetime
import functools
import platform
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from interop.frameworks.base import Array, Question
from interop.survey.matrix import THEIRS, Answer, Row, absent, counterparts, matrix, theirs
from interop.survey.records import MODES, Cell, Choices, Gradient, Mode, Record, write, write_choices
from interop.survey.show.render import as_in_a_call, at
from jaxclamp import CONVENTIONS, OPS, Convention, Op
from jaxclamp._shared.oracle import corners_of_values
from jaxclamp._shared.tie_cases import cases, in_form, round_to, values_near

DTYPE = "float32"


def records(rows: Iterable[Row], modes: Collection[Mode] = MODES) -> dict[str, Record]:
    """By framework, the answers in ``rows`` of the matrix, and, if asked for, those in forward mode."""
    answers: dict[str, dict[Cell, Mapping[Mode, Gradient]]] = {}
    for row in rows:
        for answer in row.answers:
            if answer.framework in THEIRS:
                cell = Cell(row.op, at(row), row.active, row.inactive, answer.spelling)
                found: dict[Mode, Gradient] = {"reverse": _written(answer.gradient)}
                pushed = _forward(row, answer) if "forward" in modes else None
                if pushed is not None:
                    found["forward"] = _written(pushed)
                answers.setdefault(answer.framework, {})[cell] = found
    where = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    today = datetime.date.today().isoformat()
    return {
        framework: Record(framework, theirs(framework).version.partition(" ")[2], where, today, f"{DTYPE}, CPU", cells)
        for framework, cells in answers.items()
    }


def _written(gradient: Iterable[float]) -> Gradient:
    """In the shortest form that is the same number in float32, as 0.01 is; zero without a sign."""
    return tuple(float(str(np.float32(element))) + 0.0 for element in gradient)


def _forward(row: Row, answer: Answer) -> Gradient | None:
    """What the spelling of ``answer`` gives in forward mode, if it has one."""
    (function,) = (c for c in counterparts(OPS[row.op]) if c.name == answer.spelling)
    rounded = {
        name: value.astype(DTYPE) if isinstance(value, np.ndarray) else value
        for name, value in round_to(DTYPE, row.arguments).items()
    }
    given = in_form(rounded, row.active, row.inactive)
    try:
        gradient = theirs(answer.framework).forward_gradient(function, given, row.active)
    except NotImplementedError:
        return None
    return _flat(gradient, row.active)


def _flat(gradient: Mapping[str, Array], active: tuple[str, ...]) -> Gradient:
    return tuple(np.concatenate([gradient[name].ravel() for name in active]).tolist())


def choices(op: Op) -> dict[str, Choices]:
    """The gradients that ``op`` may have, case by case."""
    asked = {
        (as_in_a_call(arguments), active): (round_to("float64", arguments), active)
        for arguments, active, _ in cases(op)
    }
    conventions: list[dict[str, Gradient]] = [{} for _ in asked]
    for convention in CONVENTIONS if op.has_conventions else CONVENTIONS[:1]:
        function = functools.partial(_under, op, convention)
        questions = [Question(function, arguments, active) for arguments, active in asked.values()]
        answers = theirs("jax").values_and_gradients(questions, "float64")
        for (_, active), answer, found in zip(asked, answers, conventions, strict=True):
            if isinstance(answer, TypeError):
                raise answer
            found[convention] = _written(_flat(answer[1], active))
    near = values_near(op, list(asked.values()))
    corners = [tuple(_written(corner.round(5)) for corner in corners_of_values(*values)) for values in near]
    names = [f"{op.name}({at}), {' '.join(active)}" for at, active in asked]
    return dict(zip(names, map(Choices, conventions, corners), strict=True))


def _under(op: Op, convention: Convention, given: Mapping[str, Any]) -> Any:
    return op.function(**given, ties=convention) if op.has_conventions else op.function(**given)


if __name__ == "__main__":
    names = sys.argv[1:] or [name for name in THEIRS if name not in absent()]
    for name, reason in absent(names).items():
        sys.exit(f"{name} cannot be asked ({reason}).")
    for record in records(matrix(dtypes=[DTYPE], frameworks=names)).values():
        print(f"{record.name}: {len(record.answers)} answers in {write(record)}")
    if not sys.argv[1:]:
        write_choices({case: found for op in OPS.values() for case, found in choices(op).items()})
