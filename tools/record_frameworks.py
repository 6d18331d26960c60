"""Records the gradients of frameworks at every tie, in both modes: ``python -m tools.record_frameworks``.

It writes one record for each framework that is named behind that, such as ``interop/answers/torch-2.14.0.json``. By
default it records all that are installed, and writes the choices that there are by definition. ``make answers`` calls
it; for a version that is not installed, in an environment of its own.
"""

import datetime
import functools
import json
import platform
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from interop.frameworks.base import Question, Refusal, flattened
from interop.survey.matrix import UNMODIFIED, Answer, Row, absent, counterparts, load, matrix
from interop.survey.records import FOLDER, MODES, Cell, Choices, FlatGradient, Mode, Record, writable
from interop.survey.show.render import as_in_a_call, at
from jaxclamp import CONVENTIONS, OPS, Convention, Op
from jaxclamp._shared.oracle import corners_of_values
from jaxclamp._shared.tie_cases import cases, in_form, round_to, values_near
from tools.forward_mode import forward_gradient

DTYPE = "float32"


def records(rows: Iterable[Row], modes: Collection[Mode] = MODES) -> dict[str, Record]:
    """Map each framework to its record, made of the answers in ``rows`` and, if wanted, those in forward mode."""
    answers: dict[str, dict[Cell, Mapping[Mode, FlatGradient]]] = {}
    for row in rows:
        for answer in row.answers:
            if answer.framework in UNMODIFIED:
                cell = Cell(row.op, at(row), row.active, row.inactive, answer.spelling)
                gradients: dict[Mode, FlatGradient] = {"reverse": _written(answer.gradient)}
                forward = _forward(row, answer) if "forward" in modes else None
                if forward is not None:
                    gradients["forward"] = _written(forward)
                answers.setdefault(answer.framework, {})[cell] = gradients
    where = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    today = datetime.date.today().isoformat()
    return {
        framework: Record(framework, load(framework).version.partition(" ")[2], where, today, f"{DTYPE}, CPU", cells)
        for framework, cells in answers.items()
    }


def _written(gradient: Iterable[float]) -> FlatGradient:
    """Write numbers in the shortest form that is the same in float32, as 0.01 is; zero without a sign."""
    return tuple(float(str(np.float32(element))) + 0.0 for element in gradient)


def _forward(row: Row, answer: Answer) -> FlatGradient | None:
    """Differentiate the spelling of ``answer`` in forward mode, if it has one."""
    # The rows have float64 arrays, and forward mode answers in the dtype of its arguments.
    (function,) = (c for c in counterparts(OPS[row.op]) if c.name == answer.spelling)
    rounded = {
        name: value.astype(DTYPE) if isinstance(value, np.ndarray) else value
        for name, value in round_to(DTYPE, row.arguments).items()
    }
    arguments = in_form(rounded, row.active, row.inactive)
    try:
        gradient = forward_gradient(answer.framework, function, arguments, row.active)
    except NotImplementedError:
        return None
    return tuple(flattened(gradient, row.active).tolist())


def choices(op: Op) -> dict[str, Choices]:
    """Map each case of ``op``, as text, to the gradients that it may have there."""
    # In float64: the choices are those of mathematics, and not of a dtype, nor of a form of the inactive arguments.
    arguments_at = {
        (as_in_a_call(arguments), active): (round_to("float64", arguments), active)
        for arguments, active, _ in cases(op)
    }
    conventions: list[dict[str, FlatGradient]] = [{} for _ in arguments_at]
    for convention in CONVENTIONS if op.has_conventions else CONVENTIONS[:1]:
        function = functools.partial(_under, op, convention)
        questions = [Question(function, arguments, active) for arguments, active in arguments_at.values()]
        answers = load("jax").gradients(questions, "float64")
        for (_, active), answer, by_convention in zip(arguments_at, answers, conventions, strict=True):
            if isinstance(answer, Refusal):
                raise TypeError(answer.reason)
            by_convention[convention] = _written(flattened(answer.by_argument, active))
    near = values_near(op, list(arguments_at.values()))
    # They are differences of values, whose further places are noise.
    corners = [tuple(_written(corner.round(5)) for corner in corners_of_values(*values)) for values in near]
    names = [f"{op.name}({at}), {' '.join(active)}" for at, active in arguments_at]
    return dict(zip(names, map(Choices, conventions, corners), strict=True))


def write(record: Record) -> Path:
    """Write the file of a record, with a line for each cell, so that `diff` of two versions shows what changed."""
    answers = {str(cell): json.dumps(_by_mode(modes)) for cell, modes in record.answers.items()}
    origin = {name: json.dumps(value) for name, value in record.origin.items()}
    file = FOLDER / f"{record.name.replace(' ', '-')}.json"
    file.write_text(_in_lines({**origin, "answers": _in_lines(answers)}) + "\n", encoding="utf-8")
    return file


def _in_lines(values: Mapping[str, str]) -> str:
    """Write a JSON object of values that are JSON already, with a line for each."""
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {value}" for name, value in values.items()) + "\n}"


def _by_mode(modes: Mapping[Mode, FlatGradient]) -> dict[str, list[float | str]]:
    """Return the gradients as they are written; what both modes answer is written once."""
    written: dict[str, list[float | str]] = {mode: writable(gradient) for mode, gradient in modes.items()}
    is_same = len(written) == 2 and written["reverse"] == written["forward"]
    return {"both": written["reverse"]} if is_same else written


def write_choices(choices: Mapping[str, Choices]) -> Path:
    """Write the choices at every tie, a line for each case."""
    file = FOLDER / "choices.json"
    written = {
        name: json.dumps(
            {**{c: writable(g) for c, g in case.conventions.items()}, "corners": [*map(writable, case.corners)]}
        )
        for name, case in choices.items()
    }
    file.write_text(_in_lines(written) + "\n", encoding="utf-8")
    return file


def _under(op: Op, convention: Convention, arguments: Mapping[str, Any]) -> Any:
    return op.function(**arguments, ties=convention) if op.has_conventions else op.function(**arguments)


if __name__ == "__main__":
    names = sys.argv[1:] or [name for name in UNMODIFIED if name not in absent()]
    for name, reason in absent(names).items():
        sys.exit(f"{name} cannot be recorded ({reason}).")
    for record in records(matrix(dtypes=[DTYPE], frameworks=names)).values():
        print(f"{record.name}: {len(record.answers)} answers in {write(record)}")
    if not sys.argv[1:]:
        write_choices({case: gradients for op in OPS.values() for case, gradients in choices(op).items()})
