"""The records as data, and what they say of versions: lines, formats, pictures, and that nothing is imported for it."""

import dataclasses
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import interop
from interop.__main__ import main
from interop.survey import records
from interop.survey.changes import Changes, changes
from interop.survey.classify import CLASSES, classify, explanations
from interop.survey.history import COLOURS, figure
from interop.survey.records import MODES, Cell, FlatGradient, Mode, Record, choices, read, record_of, recorded
from interop.survey.versions import same, side_by_side
from tests.support.strict_json import strictly
from tools import record_frameworks

RECORDS = [record for records in recorded().values() for record in records]


def record(cells: Mapping[str, Mapping[Mode, FlatGradient]], version: str = "1.0") -> Record:
    return Record("torch", version, "here", "2026-11-23", "float32, CPU", {Cell.of(c): m for c, m in cells.items()})


def both(*gradient: float) -> dict[Mode, FlatGradient]:
    return dict.fromkeys(MODES, gradient)


# The files.


@pytest.mark.parametrize("found", RECORDS, ids=lambda found: found.name)
def test_a_record_says_what_was_asked_where_and_when(found: Record) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found.date)
    assert found.platform
    assert found.asked == "float32, CPU"
    assert len(found.answers) >= 80
    for cell, modes in found.answers.items():
        assert cell.case in choices(), "run `make answers`"
        assert "reverse" in modes
        for gradient in modes.values():
            assert len(gradient) == len(choices()[cell.case].conventions["min_norm"])


def test_the_torch_of_the_last_versions_and_both_ends_of_jax_are_recorded() -> None:
    assert {"2.11.0", "2.12.0", "2.13.0", "2.14.0", "2.15.0"} <= {record.version for record in recorded()["torch"]}
    assert {"0.10.0", "0.10.2"} <= {record.version for record in recorded()["jax"]}
    for found in (*recorded()["torch"], *recorded()["jax"]):
        assert all("forward" in modes for modes in found.answers.values()), found.name


def test_versions_are_in_order() -> None:
    """As numbers: 2.9 is older than 2.13."""
    versions = ["3.15.1 on torch 2.13.0", "2.13.0.1", "2.9.1", "3.15.1 on jax 0.10.2", "2.13.0"]
    assert sorted(versions, key=records._order) == [versions[i] for i in (2, 4, 1, 3, 0)]


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_frameworks, "FOLDER", tmp_path)
    written = record(
        {
            "maximum(x=0, y=0), x y, none: torch.maximum": both(0.5, 0.5),
            "fmax(x=0, y=0), x y, none: torch.fmax": {"reverse": (1.0, 0.0), "forward": (0.0, 1.0)},
            "abs(x=-0), x, none: torch.abs": {"reverse": (float("-inf"),)},
        }
    )
    file = record_frameworks.write(written)
    assert file.name == "torch-1.0.json"
    assert read(file) == written
    lines = file.read_text("utf-8").splitlines()
    assert '"maximum(x=0, y=0), x y, none: torch.maximum": {"both": [0.5, 0.5]},' in lines
    assert '"abs(x=-0), x, none: torch.abs": {"reverse": ["-inf"]}' in lines
    strictly("\n".join(lines))


def test_every_record_is_as_it_would_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_frameworks, "FOLDER", tmp_path)
    for found in RECORDS:
        file = record_frameworks.write(found)
        assert file.read_text("utf-8") == (records.FOLDER / file.name).read_text("utf-8"), file.name


def test_threads_on_another_framework_are_no_sources() -> None:
    """Of MLX there is no version 2.14, but of torch there is."""
    versions = [record({}, version) for version in ("2.13.0", "2.15.0")]
    assert {source.framework for source in records.sources(*versions)} == {"torch"}
    assert records.sources(*(dataclasses.replace(found, framework="mlx") for found in versions)) == []


@pytest.mark.parametrize("version", ["2.13", "2.13.0", "torch 2.13", "2.13.0+cpu"])
def test_a_version_is_found_by_its_beginning(version: str) -> None:
    assert record_of("torch", version).version == "2.13.0"


@pytest.mark.parametrize(
    ("framework", "version", "message"),
    [
        ("torch", "2.1", r"no record of torch '2\.1'; recorded are 2\.11\.0, .*2\.15\.0\."),
        ("torch", "13", "no record of torch '13'; recorded are 2"),
        ("pytorch", "2.13", r"no record of 'pytorch'; recorded are autograd, .*torch\. Did you mean 'torch'\?"),
        ("numpy", "2.0", r"no record of 'numpy'; recorded are autograd, .*torch\.$"),
    ],
)
def test_an_unknown_version_is_refused_with_those_that_there_are(framework: str, version: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interop.changes(framework, version, version)


def test_a_version_that_is_a_number_is_refused() -> None:
    """2.10 would be 2.1."""
    with pytest.raises(TypeError, match=r"2\.1 is a float; pass a string"):
        interop.changes("torch", 2.10, "2.15")  # type: ignore[arg-type]


# What changed.

ANNOUNCED = """
clamp(x=0, min=0, max=6)     both     1 → 0             1 0 0 → 0.5 0.5 0
clamp(x=6, min=0, max=6)     both     1 → 0             1 0 0 → 0.5 0 0.5
clamp(x=2, min=2, max=2)     both     1 → 0
clamp(x=-1, min=2, max=2)    reverse                    0 0 0 → 0 1 0
clamp(x=0, min=0, max=None)  reverse  1 → 0             1 0 → 0.5 0.5
clamp(x=0, min=0, max=None)  forward  1 → 0             0 1 → 0.5 0.5
clamp(x=6, min=None, max=6)  reverse  1 → 0             1 0 → 0.5 0.5
clamp(x=6, min=None, max=6)  forward  1 → 0             0 1 → 0.5 0.5
clamp_min(x=0, min=0)        both     1 → 0             1 0 → 0.5 0.5
clamp_min(x=2.5, min=2.5)    both     1 → 0             1 0 → 0.5 0.5
clamp_max(x=0, max=0)        both     1 → 0             1 0 → 0.5 0.5
clamp_max(x=6, max=6)        both     1 → 0             1 0 → 0.5 0.5
fmax(x=0, y=0)               reverse                    1 0 → 0.5 0.5
fmax(x=0, y=0)               forward                    0 1 → 0.5 0.5
fmax(x=2.5, y=2.5)           reverse                    1 0 → 0.5 0.5
fmax(x=2.5, y=2.5)           forward                    0 1 → 0.5 0.5
fmin(x=0, y=0)               both                       1 0 → 0.5 0.5
fmin(x=2.5, y=2.5)           both                       1 0 → 0.5 0.5
"""
"""By pytorch/pytorch#191142, for 2.14; at x < lo = hi it says that any subgradient is allowed."""


def table(found: Changes) -> list[str]:
    return [line for line in str(found).splitlines() if " → " in line]


@pytest.mark.parametrize(("after", "since"), [("2.14", ["#191142"]), ("2.15", ["#191142", "#193035"])])
def test_torch_changed_what_was_announced_for_2_14(after: str, since: list[str]) -> None:
    found = changes("torch", "2.13", after)
    assert found.ops == ("clamp", "clamp_min", "clamp_max", "fmax", "fmin")
    assert [line.split() for line in table(found)] == [line.split() for line in ANNOUNCED.strip().splitlines()]
    assert [source.thread for source in found.sources] == [f"pytorch/pytorch{number}" for number in since]


@pytest.mark.parametrize(("before", "after"), [("2.11", "2.13"), ("2.14.0", "2.15")])
def test_torch_changed_nothing_else(before: str, after: str) -> None:
    found = changes("torch", before, after)
    assert (found.lines, found.sources) == ((), ())
    assert str(found).startswith(f"From torch {before}")
    assert "no gradient at a tie changed" in str(found)


def test_backwards_the_same_changed() -> None:
    found, back = changes("torch", "2.13", "2.15"), changes("torch", "2.15", "2.13")
    assert [(line.cell, line.modes, line.answers[::-1]) for line in found.lines] == [
        (line.cell, line.modes, line.answers) for line in back.lines
    ]
    assert back.sources == found.sources


def test_of_paddle_the_maxima_share_since_2025() -> None:
    found = changes("paddle", "3.0", "3.1")
    assert found.ops == ("clamp", "maximum", "minimum", "amax", "amin")
    told = {str(line.cell): line.answers for line in found.lines}
    assert told["maximum(x=0, y=0), x y, none: paddle.maximum"] == ((0, 1), (0.5, 0.5))
    assert told["amax(x=(2.0, 5.0, 5.0)), x, none: paddle.max"] == ((0, 1, 1), (0, 0.5, 0.5))
    assert "as paddle.max " in str(found)
    assert "paddle.amax" not in str(found)
    assert [source.thread for source in found.sources] == ["PaddlePaddle/Paddle#71716", "PaddlePaddle/Paddle#72512"]


JOINT = "clamp(x=0, min=0, max=6), x min max, none: torch.clamp"
PART = "clamp(x=0, min=0, max=6), x min, arrays: torch.clamp"
NUMBERS = "clamp(x=0, min=0, max=6), x, numbers: torch.clamp"
ALONE = "clamp(x=0, min=0, max=6), x, arrays: torch.clamp"
NEGATIVE = "clamp(x=-0, min=0, max=6), x, numbers: torch.clamp"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({JOINT: both(1, 0, 0)}, {JOINT: both(1, 0, 0)}, []),
        ({JOINT: both(1, 0, 0)}, {JOINT: both(1 + 1e-8, 0, 0)}, []),
        ({JOINT: both(1, 0, 0)}, {JOINT: both(0.9, 0, 0)}, [(JOINT, "both")]),
        (
            {JOINT: both(1, 0, 0), PART: both(1, 0)},
            {JOINT: both(0, 1, 0), PART: both(0, 1)},
            [(JOINT, "both")],
        ),
        (
            {JOINT: both(1, 0, 0), PART: both(1, 0)},
            {JOINT: both(0, 1, 0), PART: both(0, 0.5)},
            [(PART, "both"), (JOINT, "both")],
        ),
        ({NUMBERS: both(1), ALONE: both(1)}, {NUMBERS: both(0), ALONE: both(0)}, [(NUMBERS, "both")]),
        ({NUMBERS: both(1), ALONE: both(1)}, {NUMBERS: both(1), ALONE: both(0)}, [(ALONE, "both")]),
        ({NUMBERS: both(1), NEGATIVE: both(1)}, {NUMBERS: both(0), NEGATIVE: both(0)}, [(NUMBERS, "both")]),
        ({NUMBERS: both(1), NEGATIVE: both(1)}, {NUMBERS: both(1), NEGATIVE: both(0)}, [(NEGATIVE, "both")]),
        ({JOINT: both(1, 0, 0)}, {JOINT: {"reverse": (1, 0, 0), "forward": (0, 1, 0)}}, [(JOINT, "forward")]),
        ({JOINT: {"reverse": (1, 0, 0)}}, {JOINT: {"reverse": (0, 1, 0)}}, [(JOINT, "reverse")]),
        ({NUMBERS: both(1), JOINT: both(1, 0, 0)}, {NUMBERS: both(1)}, [(JOINT, "both")]),
        ({NUMBERS: both(1)}, {NUMBERS: both(1), JOINT: both(1, 0, 0)}, [(JOINT, "both")]),
        ({JOINT: both(1, 0, 0)}, {}, []),  # of which the op was not asked
        ({JOINT: both(float("nan"), 0, 0)}, {JOINT: both(float("nan"), 0, 0)}, []),
        ({JOINT: both(1, 0, 0)}, {JOINT: both(float("nan"), 0, 0)}, [(JOINT, "both")]),
    ],
)
def test_lines(
    before: Mapping[str, Mapping[Mode, FlatGradient]],
    after: Mapping[str, Mapping[Mode, FlatGradient]],
    told: list[tuple[str, str]],
) -> None:
    found = Changes(record(before), record(after, "2.0"))
    assert [(str(line.cell), line.mode) for line in found.lines] == told
    assert len(strictly(found.to_json())["lines"]) == len(told)
    assert found.to_markdown().count("\n| clamp(") == len({cell.partition(",")[0] for cell, _ in told})


def test_no_change_of_a_cell_is_lost() -> None:
    """Each answer of the record that is altered makes a line, or the line that it followed from no longer tells it."""
    before = record_of("torch", "2.13")
    for cell in before.answers:
        if cell.op in ("clamp", "prelu"):
            gradient = before.answers[cell]["reverse"]
            altered = {**before.answers, cell: {**before.answers[cell], "reverse": tuple(g + 3 for g in gradient)}}
            found = Changes(before, dataclasses.replace(before, answers=altered))
            assert [line.cell.case for line in found.lines] == [cell.case], cell


def test_ways_to_ask_that_do_not_follow_are_named() -> None:
    found = Changes(
        record({JOINT: both(1, 0, 0), PART: both(1, 0)}), record({JOINT: both(1, 0, 0), PART: both(0, 0.5)}, "2.0")
    )
    assert table(found) == ["clamp(x=0, min=0, max=6)  both  x min: 1 0 → 0 0.5"]


def test_the_spelling_is_named_where_there_are_several() -> None:
    old = record({"abs(x=0), x, none: jax.numpy.abs": both(1), "abs(x=0), x, none: jax.lax.abs": both(1)})
    new = record({"abs(x=0), x, none: jax.numpy.abs": both(0), "abs(x=0), x, none: jax.lax.abs": both(0)})
    assert [line.split("  ")[0] for line in table(Changes(old, new))] == [
        "abs(x=0) as jax.numpy.abs",
        "abs(x=0) as jax.lax.abs",
    ]


# How it is told.


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["changes", *arguments])


@pytest.mark.parametrize(("before", "after"), [("2.13", "2.15"), ("2.14", "2.15")])
def test_the_command_prints_the_text_in_a_hundred_columns(before: str, after: str) -> None:
    result = run("torch", before, after)
    assert (result.exit_code, result.stdout) == (0, f"{changes('torch', before, after)}\n")
    assert max(map(len, result.stdout.splitlines())) <= 100


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_command_keeps_to_the_terminal(width: int) -> None:
    """Says first what changed, and last what to do."""
    result = CliRunner().invoke(main, ["changes", "torch", "2.13", "2.15"], env={"COLUMNS": str(width)})
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(lines).startswith("From torch 2.13.0 to 2.15.0 5 of 28 ops changed their gradient at ties: ")
    assert lines[-1] == 'To keep the old gradients: interop.as_of("torch 2.13.0")'
    assert "Is your code affected? jaxclamp audit FILE.py:FUNCTION --before 2.13.0" in " ".join(lines[-4:])


def test_even_long_ties_fit_in_a_hundred_columns() -> None:
    pooled = record_of("torch", "2.13")
    cells = {
        cell: {mode: tuple(g / 2 for g in gradient) for mode, gradient in modes.items()}
        for cell, modes in pooled.answers.items()
    }
    text = str(Changes(pooled, dataclasses.replace(pooled, answers=cells)))
    assert max(map(len, text.splitlines())) <= 100
    assert "max_pool3d(" in text


def test_as_markdown() -> None:
    result = run("torch", "2.13", "2.15", "--format", "markdown")
    assert result.exit_code == 0
    summary, lines, sources = result.stdout.strip().split("\n\n")
    assert summary == changes("torch", "2.13", "2.15").summary
    headings, rule, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines())
    assert headings == ["at a tie", "mode", "others are numbers", "all differentiated"]
    assert set("".join(rule)) == {"-"}
    assert [re.sub(" +", " ", " ".join(row)).strip() for row in rows] == [
        re.sub(" +", " ", line) for line in ANNOUNCED.strip().splitlines()
    ]
    assert sources.startswith("- pytorch/pytorch#191142, since 2.14.0: ")


def test_as_json() -> None:
    result = run("torch", "2.13", "2.15", "--format", "json")
    assert result.exit_code == 0
    content = strictly(result.stdout)
    assert (content["before"]["version"], content["after"]["version"]) == ("2.13.0", "2.15.0")
    assert content["lines"][0] == {
        "op": "clamp",
        "at": "x=0, min=0, max=6",
        "active": ["x"],
        "inactive": "numbers",
        "spelling": "torch.clamp",
        "modes": ["reverse", "forward"],
        "before": [1.0],
        "after": [0.0],
    }
    assert len(content["lines"]) == len(changes("torch", "2.13", "2.15").lines)


def test_the_command_draws(tmp_path: Path) -> None:
    file = tmp_path / "changes.png"
    result = run("torch", "2.13", "2.15", "--output", str(file))
    assert result.exit_code == 0
    assert result.stdout == run("torch", "2.13", "2.15").stdout
    assert file.read_bytes().startswith(b"\x89PNG\r")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("torch", "2.13", "3.0"), "no record of torch '3.0'; recorded are 2.11.0"),
        (("trch", "2.13", "2.14"), "Did you mean 'torch'?"),
        (("torch", "2.13"), "Missing argument 'AFTER'"),
        (("torch", "2.13", "2.15", "--output", "x.nonsense"), "is not a kind of picture"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_it_reads_data_and_imports_no_framework(tmp_path: Path) -> None:
    code = f"""
import sys
from interop.__main__ import main
command = ["changes", "torch", "2.13", "2.15"]
main([*command, "--format", "markdown"], standalone_mode=False)
main([*command, "--format", "json"], standalone_mode=False)
main(command, standalone_mode=False)
print([name for name in ("jax", "torch", "numpy", "rich") if name in sys.modules])
main([*command, "--output", {str(tmp_path / "changes.svg")!r}], standalone_mode=False)
print([name for name in ("jax", "torch", "numpy", "rich") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    told = [line for line in done.stdout.splitlines() if line.startswith("['")]
    # A picture asks jaxclamp for the nearest subgradient, which shows that the check can see JAX.
    assert told == ["['rich']", "['jax', 'numpy', 'rich']"]


# What answers follow.


def test_explanations_by_hand() -> None:
    at_a_bound = Cell.of(JOINT)
    assert explanations(at_a_bound, (0.5, 0.5, 0)) == ["min_norm", "balanced"]
    assert explanations(at_a_bound, (1, 0, 0)) == ["inclusive"]
    assert explanations(at_a_bound, (0.75, 0.25, 0)) == ["another subgradient"]
    assert explanations(at_a_bound, (0.5, 0.25, 0)) == ["no subgradient"]
    assert explanations(at_a_bound, (1.5, -0.5, 0)) == ["no subgradient"]
    assert explanations(Cell.of("abs(x=0), x, none: jax.numpy.abs"), (1.0,)) == ["another subgradient"]


@pytest.mark.parametrize(
    ("version", "mode", "expected"),
    [
        # of each of three ties: x beside numbers and beside an array, the bound, and both
        ("2.13", "reverse", {"inclusive": 12}),
        ("2.15", "reverse", {"min_norm": 3, "balanced": 9}),
        ("2.15", "forward", {"min_norm": 3, "balanced": 9}),
    ],
)
def test_what_clamp_min_follows(version: str, mode: Mode, expected: Mapping[str, int]) -> None:
    assert classify(record_of("torch", version), "clamp_min", mode) == Counter(expected)


def test_fmax_followed_another_convention_in_each_mode() -> None:
    before = record_of("torch", "2.13")
    assert [set(classify(before, "fmax", mode)) for mode in MODES] == [{"inclusive"}, {"exclusive"}]


def test_the_picture_shows_changed_ops_in_the_colours_of_what_they_follow() -> None:
    records = [record_of("torch", "2.13"), record_of("torch", "2.15")]
    drawn = figure(records)
    (axes,) = drawn.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert set(labels) == {
        *("clamp", "clamp, forward mode", "clamp_min", "clamp_max", "fmax", "fmax, forward mode", "fmin")
    }
    ops = {cell.op for record in records for cell in record.answers}
    assert axes.get_xlabel() == f"{len(ops - set(labels))} more ops never changed"
    same = [record_of("torch", "2.15"), record_of("torch", "2.15")]
    of_same = figure(same).axes[0]
    assert {cell.op for cell in same[0].answers} <= {label.get_text() for label in of_same.get_yticklabels()}
    assert of_same.get_xlabel() == ""
    row = labels.index("clamp_min")
    bars = [bar for bar in axes.patches if round(bar.get_y() + bar.get_height() / 2) == row]
    rgb = {name: matplotlib_rgb(colour) for name, colour in COLOURS.items()}
    shown = [(next(n for n in CLASSES if rgb[n] == bar.get_facecolor()), bar.get_width() / 0.92) for bar in bars]
    assert shown == [("inclusive", 1.0), ("min_norm", pytest.approx(0.25)), ("balanced", pytest.approx(0.75))]


def matplotlib_rgb(colour: str) -> tuple[float, ...]:
    from matplotlib.colors import to_rgba

    return to_rgba(colour)


def test_the_picture_has_every_version_between() -> None:
    versions = [record.version for record in recorded()["torch"]]
    drawn = changes("torch", versions[-1], versions[0]).figure()
    assert [label.get_text() for label in drawn.axes[0].get_xticklabels()] == versions
    drawn = changes("torch", "2.13", "2.14.0").figure()
    assert [label.get_text() for label in drawn.axes[0].get_xticklabels()] == ["2.13.0", "2.14.0"]


def test_side_by_side_has_a_column_for_each_record() -> None:
    records = recorded()["torch"]
    for line in side_by_side(records):
        assert len(line.answers) == len(records)
        for found, answer in zip(records, line.answers, strict=True):
            assert same(answer, found.answers.get(line.cell, {}).get(line.modes[0]))
