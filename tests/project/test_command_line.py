"""The command line: every format, filter and exit status, and what the subcommands print."""

import csv
import importlib.metadata
import io
import json
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner, Result

from interop.__main__ import main
from interop.cli.names import FORMATS
from interop.cli.options import function_named
from interop.survey import matrix as parity
from interop.survey.matrix import Answer, Row
from interop.survey.show import render
from interop.survey.show.listing import listing
from interop.survey.show.screen import screen
from jaxclamp import OPS, Op
from jaxclamp._shared.tie_cases import DTYPES, cases
from tests.support.strict_json import strictly

ALWAYS = (*parity.PACKAGES, "jax", "torch")
"""The frameworks that are installed wherever the tests run."""
INSTALLED = [name for name in parity.FRAMEWORKS if name not in parity.absent()]
ONLY_ALWAYS = [f"--framework={name}" for name in ALWAYS]
SMALL = (*ONLY_ALWAYS, "--op", "abs", "--op", "maximum", "--op", "selu", "--dtype", "float32")


FORMS = pytest.mark.parametrize(
    "form",
    [pytest.param(f, marks=[pytest.mark.thorough] * (f != "table")) for f in FORMATS],
)


def run(*arguments: str, color: bool = False) -> Result:
    return CliRunner().invoke(main, arguments, color=color)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """What SMALL asks for."""
    return list(parity.matrix([OPS["abs"], OPS["maximum"], OPS["selu"]], ["float32"], ALWAYS))


def as_json(rows: Sequence[Row]) -> Any:
    return json.loads(json.dumps([asdict(row) for row in rows]))


def numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


def test_json(rows: list[Row]) -> None:
    result = run(*SMALL, "--format", "json")
    assert result.exit_code == 0
    content = strictly(result.stdout)
    assert content["rows"] == as_json(rows)
    tallies = {tally["framework"]: tally for tally in content["summary"]}
    assert set(tallies) == set(ALWAYS)
    for framework, tally in tallies.items():
        answers = [answer for row in rows for answer in row.answers if answer.framework == framework]
        assert tally["cases"] == len(answers)
        assert tally["agreeing"] == sum(answer.agrees for answer in answers)
        assert tally["dtypes"] == ["float32"]


def test_csv(rows: list[Row]) -> None:
    result = run(*SMALL, "--format", "csv")
    assert result.exit_code == 0
    lines = list(csv.DictReader(io.StringIO(result.stdout), strict=True))
    expected = [(row, answer) for row in rows for answer in row.answers]
    for line, (row, answer) in zip(lines, expected, strict=True):
        assert (line["op"], line["inactive"], line["dtype"]) == (row.op, row.inactive, row.dtype)
        assert tuple(line["active"].split()) == row.active
        assert all(f"{name}=" in line["at"] for name in row.arguments)
        assert numbers(line["definition"]) == row.definition
        assert (line["framework"], line["version"]) == (answer.framework, answer.version)
        assert line["spelling"] == answer.spelling
        assert numbers(line["gradient"]) == answer.gradient
        assert line["agrees"] == str(answer.agrees)


def test_markdown(rows: list[Row]) -> None:
    result = run(*SMALL, "--format", "markdown")
    assert result.exit_code == 0
    table, _, summary = result.stdout.partition("\n\n")
    headings, rule, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
    assert headings == ["op", "at", "active", "dtype", "definition", *map(render.heading, ALWAYS)]
    assert set(rule) == {"---"}
    assert {len(line) for line in [rule, *lines]} == {len(headings)}
    assert [line[0] for line in lines] == [row.op for row in rows]
    for line, row in zip(lines, rows, strict=True):
        assert line[2:4] == [", ".join(row.active) + " (numbers)" * (row.inactive == "numbers"), "float32"]
        assert numbers(line[4]) == pytest.approx(row.definition, abs=0.01)
        for framework, cell in zip(ALWAYS, line[5:], strict=True):
            answers = [answer for answer in row.answers if answer.framework == framework]
            assert ("✓" in cell) == any(answer.agrees for answer in answers)
            assert ("✗" in cell) == any(not answer.agrees for answer in answers)
    assert len(summary.splitlines()) == len(ALWAYS)
    assert all(line.startswith("- ") for line in summary.splitlines())


def test_lines_of_an_op_are_together() -> None:
    """The matrix is computed dtype by dtype, and the gradients of selu are rounded."""
    result = run("selu", "abs", *ONLY_ALWAYS, "--dtype", "float32", "--dtype", "bfloat16", "--format", "markdown")
    lines = [line.split("|") for line in result.stdout.splitlines() if line.startswith(("| selu", "| abs"))]
    ops = [op.strip() for _, op, *_ in lines]
    assert ops == sorted(ops, reverse=True)
    assert {"float32", "bfloat16", "all"} <= {dtype.strip() for _, _, _, _, dtype, *_ in lines}


def test_table(rows: list[Row]) -> None:
    result = run(*SMALL)
    assert result.exit_code == 0
    assert result.stdout == run(*SMALL, "--format", "table").stdout
    lines = result.stdout.splitlines()
    titles = [line for line in lines if line.endswith(", float32")]
    assert titles == ["abs, float32", "maximum, float32", "selu, float32"]
    headings = [line.split() for line in lines if line.split()[:1] == ["definition"]]
    assert headings == [
        ["definition", "ours", "numpy.abs", "lax.abs", "torch"],
        ["definition", "ours", "numpy.maximum", "lax.max", "torch"],
        ["definition", "ours", "jax", "torch"],
    ]
    cases = [line for line in lines if line.startswith("  ") and "definition" not in line]
    for line, row in zip(cases, rows, strict=True):
        active, definition, ours, *theirs = re.split(r"  +", line.strip())
        assert active == ", ".join(row.active) + " (numbers)" * (row.inactive == "numbers")
        assert numbers(definition) == pytest.approx(row.definition, abs=0.01)
        assert ours == "✓"
        answers = [answer for name in ("jax", "torch") for answer in row.answers if answer.framework == name]
        for cell, answer in zip((cell for cell in theirs if cell != "–"), answers, strict=True):
            assert cell == "✓" if answer.agrees else numbers(cell) == pytest.approx(answer.gradient, abs=0.01)
    for framework in ALWAYS:
        answers = [answer for row in rows for answer in row.answers if answer.framework == framework]
        assert f"{sum(answer.agrees for answer in answers)} of {len(answers)} cases agree" in result.stdout


def test_answers_that_are_alike_in_all_dtypes_share_a_line() -> None:
    one, all_of_them = (run("--op", "abs", *ONLY_ALWAYS, "--dtype", dtype) for dtype in ("float32", "all"))
    assert f"abs, {', '.join(DTYPES)}\n" in all_of_them.stdout
    assert len(one.stdout.splitlines()) == len(all_of_them.stdout.splitlines())


@FORMS
def test_only_disagreements(form: str, rows: list[Row]) -> None:
    """The summary still counts every row."""
    everything, result = run(*SMALL, "--format", form), run(*SMALL, "--format", form, "--only-disagreements")
    assert result.exit_code == 0
    differing = [row for row in rows if not all(answer.agrees for answer in row.answers)]
    assert 0 < len(differing) < len(rows)
    if form == "json":
        shown = strictly(result.stdout)
        assert shown["rows"] == as_json(differing)
        assert shown["summary"] == strictly(everything.stdout)["summary"]
    elif form == "csv":
        assert len(result.stdout.splitlines()) == 1 + sum(len(row.answers) for row in differing)
    elif form == "table":
        cases = [line for line in result.stdout.splitlines() if line.startswith("  ") and "definition" not in line]
        assert len(cases) == len(differing)
        assert result.stdout.splitlines()[-len(ALWAYS) :] == everything.stdout.splitlines()[-len(ALWAYS) :]
    else:
        lines, shown = everything.stdout.splitlines(), result.stdout.splitlines()
        assert len(lines) - len(shown) == len(rows) - len(differing)
        assert shown[-len(ALWAYS) :] == lines[-len(ALWAYS) :]


@pytest.mark.parametrize("form", FORMATS)
def test_no_disagreements_at_all(form: str) -> None:
    result = run(
        "--op", "relu", "--dtype", "float32", "--framework", "interop", "--only-disagreements", "--format", form
    )
    assert result.exit_code == 0
    if form == "json":
        assert strictly(result.stdout)["rows"] == []
    else:
        assert result.stdout
        assert "x=0" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "ops", "dtypes", "frameworks"),
    [
        pytest.param("--op abs --dtype float32", ["abs"], ["float32"], INSTALLED, marks=pytest.mark.thorough),
        pytest.param(
            "--op relu --op abs --dtype float16", ["relu", "abs"], ["float16"], INSTALLED, marks=pytest.mark.thorough
        ),
        ("--op abs --dtype float32 --dtype bfloat16", ["abs"], ["float32", "bfloat16"], INSTALLED),
        ("--op abs --framework jax", ["abs"], ["float32"], ["jax"]),
        ("abs --framework jax", ["abs"], ["float32"], ["jax"]),
        ("--framework jax abs", ["abs"], ["float32"], ["jax"]),
        ("relu abs --all --dtype float64 --framework jax", ["relu", "abs"], ["float64"], ["jax"]),
        ("--op abs --dtype all --framework torch --framework jaxclamp", ["abs"], DTYPES, ["torch", "jaxclamp"]),
    ],
)
def test_filters(arguments: str, ops: list[str], dtypes: list[str], frameworks: list[str]) -> None:
    result = run(*arguments.split(), "--format", "json")
    assert result.exit_code == 0
    shown = strictly(result.stdout)["rows"]
    assert shown == as_json(list(parity.matrix([OPS[op] for op in ops], dtypes, frameworks)))
    assert {row["op"] for row in shown} == set(ops)
    assert {row["dtype"] for row in shown} == set(dtypes)
    assert {answer["framework"] for row in shown for answer in row["answers"]} == set(frameworks)


def test_without_filters_all_is_asked_in_float32(monkeypatch: pytest.MonkeyPatch, rows: list[Row]) -> None:
    asked: list[tuple[Any, ...]] = []

    def remember(*arguments: Any) -> list[Row]:
        asked.append(arguments)
        return rows

    monkeypatch.setattr(parity, "matrix", remember)
    assert run().exit_code == 0
    ((ops, dtypes, frameworks),) = asked
    assert [op.name for op in ops] == list(OPS)
    assert tuple(dtypes) == ("float32",)
    assert tuple(frameworks) == parity.FRAMEWORKS


@pytest.fixture
def everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """All frameworks answer in all cases, and all but ours differ in one of three ways."""

    def asked(ops: Iterable[Op], dtypes: Sequence[str], frameworks: Sequence[str]) -> Iterator[Row]:
        for op in ops:
            for i, (arguments, active, inactive) in enumerate(cases(op)):
                gradients = {name: (0.0,) if name in parity.PACKAGES else (-1.25 * (i % 4),) for name in frameworks}
                answers = [
                    Answer(name, f"{name} 10.10.10", f"{name}.{op.name}", gradient, not any(gradient), ())
                    for name, gradient in gradients.items()
                ]
                yield Row(op.name, arguments, active, inactive, dtypes[0], (0.0,), tuple(answers))

    monkeypatch.setattr(parity, "matrix", asked)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_one_screen(width: int, everybody: None) -> None:
    rows = list(parity.matrix(OPS.values(), ["float32"], parity.FRAMEWORKS))
    lines = click.unstyle(render.drawn(screen(rows, width, "python -m interop"), width)).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 40 + len(parity.FRAMEWORKS) + 3 * (width < 100)  # there sentences take a line more
    words = [line.split() for line in lines if line]
    assert [line[0] for line in words if line[0] in parity.FRAMEWORKS] == list(parity.FRAMEWORKS)
    assert [line[0] for line in words if line[0] in OPS] == list(OPS)
    (headings,) = (line for line in words if line[:2] == ["op", "ours"])
    assert len(headings) == 2 + len(parity.UNMODIFIED)
    for heading, name in zip(headings[2:], parity.UNMODIFIED, strict=True):
        assert heading == name or (width <= 100 and heading.endswith("…") and name.startswith(heading[:-1]))
    assert "–" not in "".join(lines)


def test_narrow_screens_go_on_in_further_tables(everybody: None) -> None:
    rows = list(parity.matrix([OPS["clamp"], OPS["max_pool2d"]], ["float32"], parity.FRAMEWORKS))
    lines = click.unstyle(render.drawn(screen(rows, 60, "python -m interop"), 60)).splitlines()
    assert max(map(len, lines)) <= 60
    headings = [line.split()[1:] for line in lines if line.split()[:1] == ["op"]]
    assert len(headings) > 1
    assert [title for line in headings for title in line] == ["ours", *parity.UNMODIFIED]  # none is cut off
    assert sum(line.startswith("max_pool2d ") for line in lines) == len(headings)
    assert "…" not in "".join(lines)
    wide = click.unstyle(render.drawn(screen(rows, 80, "python -m interop"), 80)).splitlines()
    assert len([line for line in wide if line.split()[:1] == ["op"]]) == 1  # whose cells may be cut off


@pytest.mark.parametrize(
    ("slopes", "headings"),
    [
        ({"jaxclamp": 0.0, "interop": 0.0}, ["definition", "ours"]),
        ({"jaxclamp": 0.0, "interop": 1.0}, ["definition", "jaxclamp", "interop"]),
        ({"jaxclamp": 0.0}, ["definition", "jaxclamp"]),
    ],
)
def test_packages_of_this_project_share_a_column_where_they_agree(
    slopes: dict[str, float], headings: list[str]
) -> None:
    answers = [Answer(name, "jax 1.0", f"{name}.abs", (g,), g == 0, ()) for name, g in slopes.items()]
    row = Row("abs", {"x": 0.0}, ("x",), "none", "float32", (0.0,), tuple(answers))
    lines = click.unstyle(render.drawn(listing([row], [], 80), 80)).splitlines()
    assert next(line.split() for line in lines if "definition" in line) == headings


def test_cases_that_are_alike_are_told_once() -> None:
    """In several dtypes, and if folded those in which all agree; of the others, the conventions are counted."""

    def row(op: str, x: float, dtype: str, definition: float, gradient: float, *conventions: str) -> Row:
        answer = Answer("native", "torch 1.0", f"interop.native.{op}", (gradient,), gradient == definition, conventions)
        return Row(op, {"x": x}, ("x",), "none", dtype, (definition,), (answer,))

    rows = [
        *(row("abs", 0.0, dtype, 0.0, 1.0, "inclusive") for dtype in ("float32", "float64")),
        *(row("abs", x, dtype, 0.0, 0.5, "balanced", "odd") for x in (1.0, 2.0) for dtype in ("float32", "float64")),
        *(row("abs", 3.0, dtype, 1.0, 1.0, "agreed") for dtype in ("float32", "float64")),
        row("relu", 0.0, "float32", 0.0, 0.5),
        row("relu", 0.0, "float64", 1.0, 0.5),
        row("elu", 0.0, "float32", 0.0, 1.0),
        row("elu", 0.0, "float64", 0.0, 2.0),
        row("selu", 0.0, "float32", 0.0, 1e-9),
        row("selu", 0.0, "float64", 0.0, 0.0),
    ]
    lines = click.unstyle(render.drawn(listing(rows, [], 80, folded=True), 80)).splitlines()
    table = "     definition  interop.native"
    expected = (
        ["abs, float32, float64", table, "x=0", "  x  0           1", "x=1", "  x  0           0.5"]
        + ["x=2", "  x  0           0.5", "1 more tie at which all agree: --all"]
        + ["interop.native: 1 of 4 agree; 2 as ties=balanced, 1 as ties=inclusive"]
        + ["relu, float32", table, "x=0", "  x  0           0.5", "interop.native: 0 of 1 agree"]
        + ["relu, float64", table, "x=0", "  x  1           0.5", "interop.native: 0 of 1 agree"]
        + ["elu, float32", table, "x=0", "  x  0           1", "interop.native: 0 of 1 agree"]
        + ["elu, float64", table, "x=0", "  x  0           2", "interop.native: 0 of 1 agree"]
        + ["selu, float32", table, "x=0", "  x  0           0", "interop.native: 0 of 1 agree"]
        + ["selu, float64", "1 tie at which all agree: --all"]
    )
    assert [line.rstrip() for line in lines if line][: len(expected)] == expected


@pytest.mark.parametrize("width", [60, 80])
def test_cases_fit_and_no_word_is_broken(width: int, everybody: None) -> None:
    """A column that has no room is in a further table."""
    rows = list(parity.matrix([OPS[name] for name in ("clamp", "amax", "max_pool2d")], ["float32"], parity.FRAMEWORKS))
    text = click.unstyle(render.drawn(listing(rows, render.tallies(rows), width), width))
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    headings = [line.split()[1:] for line in text.splitlines() if line.split()[:1] == ["definition"]]
    assert len(headings) == {60: 7, 80: 6}[width]
    for name in ("ours", *parity.UNMODIFIED):
        assert sum(name in line for line in headings) == 3
    ties = [line for line in text.splitlines() if "=" in line and not line.startswith(" ")]
    assert any(line.startswith("x=0, min=0, max=6") for line in ties)


def test_one_screen_by_default(everybody: None) -> None:
    result = run()
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert (len(lines) <= 40 + len(parity.FRAMEWORKS), max(map(len, lines)) <= 100) == (True, True)
    (first,) = (line for line in result.stderr.splitlines() if not line.startswith("not installed"))
    assert first == "asking for 351 gradients in float32"
    (mine,) = (line for line in lines if line.startswith("jaxclamp"))
    assert mine.split()[1:6] == ["10.10.10", "351", "of", "351", "agree"]
    (relu,) = (line for line in lines if line.startswith("relu "))
    assert relu.split()[:3] == ["relu", "✓", "-1.25"]
    for option in ("--all", "--only-disagreements"):
        assert "max_pool3d, float32" in run(option).stdout


@FORMS
def test_output_is_a_file_without_colours(form: str, tmp_path: Path) -> None:
    file = tmp_path / "report"
    file.write_text("from an earlier run")
    result = run(*SMALL, "--format", form, "--output", str(file), color=True)
    assert (result.exit_code, result.stdout) == (0, "")
    written = file.read_bytes()
    assert b"\x1b" not in written
    assert written.decode() == run(*SMALL, "--format", form).stdout


def test_a_terminal_gets_colours() -> None:
    coloured = run(*SMALL, color=True).stdout
    assert "\x1b[" in coloured
    assert click.unstyle(coloured) == run(*SMALL).stdout


def wrong_abs(x: jax.Array) -> jax.Array:
    return jnp.abs(x)


wrong_abs.__name__ = "abs"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((), 1),
        (("--only-disagreements",), 1),
        (("--framework", "jaxclamp"), 1),
        (("--framework", "torch"), 0),
        (("--framework", "interop"), 0),
    ],
)
@pytest.mark.parametrize("form", render.FORMATS)
def test_status_1_where_jaxclamp_is_wrong(
    arguments: Sequence[str], status: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPS, "abs", replace(OPS["abs"], function=wrong_abs))
    result = run("--op", "abs", "--dtype", "float32", "--format", form, *arguments)
    assert result.exit_code == status
    assert result.stdout, "the report comes first"


def test_status_1_where_interop_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(parity.TORCH_OPS, "abs", lambda x: x * x.sign() + x - x.detach())
    file = tmp_path / "report"
    result = run("--op", "abs", "--dtype", "float32", "--format", "json", "--output", str(file))
    assert result.exit_code == 1
    wrong = {a["framework"] for row in strictly(file.read_text())["rows"] for a in row["answers"] if not a["agrees"]}
    assert "interop" in wrong
    assert "jaxclamp" not in wrong


@pytest.mark.parametrize(
    ("option", "choices"),
    [("--op", list(OPS)), ("--dtype", DTYPES), ("--framework", parity.FRAMEWORKS), ("--format", FORMATS)],
)
def test_status_2_names_the_valid_choices(option: str, choices: Sequence[str]) -> None:
    result = run(option, "nonsense")
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': 'nonsense' is not one of " in result.stderr
    assert all(f"'{choice}'" in result.stderr for choice in choices)
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nonsense", "No such command 'nonsense', and no such op.\n"),
        ("chnges", "Did you mean 'changes'?"),
        ("clmp", "Did you mean 'clamp' or "),
        ("plot clmp", "Did you mean 'clamp' or "),
        ("clamp changes torch 2.13 2.15", "--op is for the matrix, not for 'changes'"),
        ("--nonsense", "No such option"),
        ("--op", "requires an argument"),
        ("--output .", "is a directory"),
        ("plot relu nonsense", "unexpected extra argument"),
        ("plot relu --output .", "is a directory"),
        ("cases", "'cases' is an example now: in a checkout, python examples/worked_cases.py"),
        ("digits --steps 3", "'digits' is an example now: in a checkout, python examples/digits.py"),
    ],
)
def test_status_2_on_bad_usage(arguments: str, message: str) -> None:
    result = run(*arguments.split())
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize(
    "command",
    [
        "",
        "abs clamp",
        "ties tying:in_jax --inputs",
        "compare tying:in_jax tying:in_jax --inputs",
    ],
)
def test_what_is_printed_keeps_to_the_terminal(command: str, width: int, everybody: None, inputs: str) -> None:
    arguments = [*command.split(), *([inputs] if command.endswith("inputs") else [])]
    result = CliRunner().invoke(main, arguments, env={"COLUMNS": str(width)})
    assert result.exit_code == 0, result.output
    assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= width


def test_summaries_of_commands_are_whole() -> None:
    shown = CliRunner().invoke(main, ["--help"], terminal_width=80).stdout
    _, _, commands = shown.partition("Commands:")
    assert "..." not in commands
    assert len(commands.strip().splitlines()) == len(main.commands)


def test_ties_at_which_all_agree_are_counted() -> None:
    """Of celu's three ties some framework differs at none or some; --all has the cases of all."""
    folded, whole = (run("relu6", *ONLY_ALWAYS, *options) for options in ((), ("--all",)))
    assert "3 ties at which all agree: --all" in folded.stdout
    assert "x=6" not in folded.stdout
    assert "x=6" in whole.stdout
    assert folded.stdout.startswith("jaxclamp on jax")


def test_version() -> None:
    assert run("--version").stdout.split()[-1] == importlib.metadata.version("jaxclamp")


def test_the_current_folder_is_searched(tmp_path: Path) -> None:
    """By the script, too, which has its own folder on the path, where ``python -m`` has the current one."""
    (tmp_path / "here.py").write_text("def clipped(x): return x.clamp(0.0, 6.0)\n")
    code = "import sys; sys.path.remove(''); from interop.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "audit", "here:nowhere", "--before", "2.13"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "has no attribute 'nowhere'" in done.stderr


@pytest.mark.parametrize("name", ["my-train.py", "01_train.py", "a b.py", "train.v2.py"])
def test_a_file_need_not_be_named_as_a_module(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text("class Loss:\n    def of(x): return x\n")
    assert function_named(f"{file}:Loss.of")(3) == 3


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize(("path", "command"), [((), main), *(((name,), c) for name, c in main.commands.items())])
def test_help(path: tuple[str, ...], command: click.Command, flag: str) -> None:
    result = run(*path, flag)
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert all(name in result.stdout for option in options for name in option.opts)
    summary = (command.help or "").splitlines()[0]
    assert " ".join(result.stdout.split()).count(" ".join(summary.split())) == 1
    if isinstance(command, click.Group):
        assert all(f"\n  {name} " in result.stdout for name in command.commands)


@pytest.mark.thorough
def test_as_a_process() -> None:
    arguments = ["--framework=torch", "--op", "abs", "--dtype", "float32"]
    command = [sys.executable, "-m", "interop", *arguments]
    # It loads no program that another run compiled: XLA of JAX 0.10.0 comments on these to stderr. And without env it
    # would get the COLUMNS that readline sets, of which Python does not know.
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    process = subprocess.run(command, check=False, capture_output=True, encoding="utf-8", env=environment)
    assert process.returncode == 0, process.stderr
    assert process.stdout == run(*arguments).stdout
    assert process.stderr.startswith("asking for ")
    assert len(process.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["plot", "-h"],
        ["nonsense"],
        ["--op", "nonsense"],
        ["changes", "torch", "0", "1"],
        ["audit", "a:b", "--before", "1"],
        ["scan", __file__],
    ],
)
def test_help_and_bad_usage_wait_for_no_import(arguments: list[str]) -> None:
    code = f"""
import atexit, sys
from interop.__main__ import main
slow = "torch", "jax", "numpy", "scipy", "matplotlib", "rich", "click"
atexit.register(lambda: print([name for name in slow if name in sys.modules]))
main({arguments})
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "['click']", done.stderr  # which shows that the check can see one


@pytest.mark.thorough
def test_the_matrix_is_compiled_quickly() -> None:
    """JAX reads the settings when it is imported, so that they have to come first."""
    code = """
import os, sys
from interop.__main__ import main
main(["relu", "--framework", "jaxclamp"], standalone_mode=False)
print(os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"], os.environ["XLA_FLAGS"])
"""
    plain = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=plain)
    assert done.stdout.splitlines()[-1].split() == ["1", "--xla_cpu_use_fusion_emitters=false"]


@pytest.mark.parametrize(
    ("package", "extra", "command"),
    [
        ("click", "cli", "changes torch 2.13 2.15"),
        ("rich", "cli", "changes torch 2.13 2.15"),
        ("rich", "cli", "relu"),
        ("matplotlib", "plot", "changes torch 2.13 2.15 --output changes.png"),
        ("jinja2", "plot", "report --output report.html"),
    ],
)
def test_a_missing_package_is_named(package: str, extra: str, command: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from interop.__main__ import main; main({command.split()})"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    cure = f"pip install 'jaxclamp[{extra}]', or in a checkout '.[{extra}]'"
    assert done.stderr == f"This needs {package}: {cure}\n"


def test_what_the_encoding_of_a_pipe_has_no_letter_for_is_escaped() -> None:
    command = [sys.executable, "-m", "interop", "changes", "torch", "2.13", "2.15"]
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}  # as on Windows
    done = subprocess.run(command, check=True, capture_output=True, env=environment)
    assert rb"1 \u2192 0" in done.stdout


def test_packages_of_other_commands_may_be_missing() -> None:
    code = """
import sys
sys.modules |= dict.fromkeys(["jinja2", "matplotlib", "rich"])
from interop.__main__ import main
main(["changes", "torch", "2.13", "2.15", "--format", "json"])
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout)["after"]["version"] == "2.15.0"


def test_the_shell_has_it_as_jaxclamp() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert pkgutil.resolve_name(project["scripts"]["jaxclamp"]) is main
