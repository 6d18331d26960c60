"""The plots and the report: what is drawn and listed is what the matrix says, and the page works in a browser."""

import html
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from matplotlib.axes import Axes
from matplotlib.collections import FillBetweenPolyCollection, LineCollection
from matplotlib.figure import Figure, SubFigure

from interop.__main__ import main
from interop.frameworks.registry import ADAPTERS
from interop.survey import matrix as parity
from interop.survey.matrix import Answer, Row
from interop.survey.show.plot import COLOURS, MARKERS, figure
from interop.survey.show.render import cells_of, tallies
from interop.survey.show.report import page, picture
from interop.survey.versions import rounded
from jaxclamp import OPS, Op
from jaxclamp._shared.tie_cases import cases
from tests.support.representatives import represented

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium-headless-shell")


def made_up(op: Op, dtype: str = "float32") -> list[Row]:
    """Rows for every case of ``op`` in which no number occurs twice, without asking anyone."""
    numbers = (sign * number / 4 for number in itertools.count(1) for sign in (1, -1))
    names = ("jaxclamp", "interop", "interop.native")
    spellings = [(name.rpartition(".")[2], f"{name}.{op.name}") for name in names]
    spellings += [(counterpart.framework, counterpart.name) for counterpart in op.counterparts]
    rows = []
    for arguments, active, inactive in cases(op):
        size = sum(np.size(arguments[name]) for name in active)

        def some(size: int = size) -> tuple[float, ...]:
            return tuple(next(numbers) for _ in range(size))

        answers = tuple(
            Answer(framework, f"{framework} 1.0", spelling, some(), framework in parity.PACKAGES, ())
            for framework, spelling in spellings
        )
        rows.append(Row(op.name, arguments, active, inactive, dtype, some(), answers))
    return rows


def panels(figure: Figure | SubFigure) -> Iterator[tuple[str, Axes]]:
    """Each panel that shows answers, or values of x, below the call that it belongs to."""
    for part in figure.subfigs:
        yield from panels(part)
    if not figure.subfigs:
        call = figure.get_suptitle()
        yield from ((call, axes) for axes in figure.axes)


def drawn_answers(figure: Figure) -> set[tuple[str, str, str, str, float]]:
    """(call, tie, what is differentiated, spelling or "definition", gradient) of all that a reader sees."""
    seen = set()
    for call, axes in panels(figure):
        tie = axes.get_title()
        if tie.startswith("at x"):
            labels = [label.get_text() for label in axes.get_xticklabels()]
            for line in axes.lines:
                spelling = str(line.get_label())
                if "." in spelling:
                    ((x, y),) = line.get_xydata()
                    seen.add((call, tie, labels[round(x)], spelling, y))
            lines = [
                segment
                for lines in axes.collections
                if isinstance(lines, LineCollection)
                for segment in lines.get_segments()
            ]
            for (start, y), (end, _) in lines:
                seen.add((call, tie, labels[round((start + end) / 2)], "definition", y))
    return seen


def call_of(row: Row) -> str:
    given = [f"{n}={v:g}" if isinstance(v, float) else f"{n}={v}" for n, v in row.arguments.items() if n != "x"]
    return f"{row.op}({', '.join(['x', *given])})"


def expected_answers(rows: list[Row]) -> set[tuple[str, str, str, str, float]]:
    seen = set()
    for row in rows:
        tie = f"at x = {row.arguments['x']:g}"
        if row.active == ("x",):
            labels = ["gradient" if row.inactive == "none" else f"x alone,\n{row.inactive}"]
        elif row.inactive == "none":
            labels = [name if len(name) <= 10 else name.replace("_", "_\n") for name in row.active]
        else:
            continue
        gradients = {"definition": row.definition, **{a.spelling: a.gradient for a in row.answers}}
        for spelling, gradient in gradients.items():
            seen |= {(call_of(row), tie, label, spelling, g) for label, g in zip(labels, gradient, strict=True)}
    return seen


@pytest.mark.parametrize("op", represented(op for op in OPS.values() if op.family != "reduction"))
def test_what_is_drawn_at_the_ties_is_what_the_rows_say(op: Op) -> None:
    rows = made_up(op)
    drawn = figure(op, rows)
    assert drawn_answers(drawn) == expected_answers(rows)
    lines = [line for _, axes in panels(drawn) for line in axes.lines if "." in line.get_label()]
    styles = {line.get_label(): (line.get_color(), line.get_marker()) for line in lines}
    assert len(set(styles.values())) == len(styles) == 3 + len(op.counterparts)
    assert {colour for colour, _ in styles.values()} <= set(COLOURS.values())


def test_what_a_spelling_does_not_take_is_not_drawn() -> None:
    def unanswered(row: Row) -> Row:
        if row.arguments["max"] is None or row.active == ("max",):
            return replace(row, answers=tuple(a for a in row.answers if a.spelling != "jax.lax.clamp"))
        return row

    rows = [unanswered(row) for row in made_up(OPS["clamp"])]
    drawn = figure(OPS["clamp"], rows)
    assert drawn_answers(drawn) == expected_answers(rows)
    assert {line.get_marker() for call, axes in panels(drawn) for line in axes.lines if axes.get_title()} <= {
        *itertools.chain(*MARKERS.values()),
        "None",  # the line between x alone and all active
    }


@pytest.mark.parametrize("name", ["clamp", "relu"])
def test_spellings_of_one_framework_differ_in_their_fill(name: str) -> None:
    lines = [line for _, axes in panels(figure(OPS[name], made_up(OPS[name]))) for line in axes.lines]
    styles = {
        line.get_label(): (line.get_color(), line.get_markerfacecolor()) for line in lines if "." in line.get_label()
    }
    assert len(set(styles.values())) == len(styles)


def test_a_weight_that_is_nan_is_drawn() -> None:
    row = made_up(OPS["amax"])[0]
    first, *others = row.answers
    unknown = replace(first, gradient=(float("nan"),) * len(first.gradient))
    (part,) = figure(OPS["amax"], [replace(row, answers=(unknown, *others))]).subfigs
    (axes,) = (axes for axes in part.axes if axes.get_title().endswith(f" {first.spelling}"))
    assert {text.get_text() for text in axes.texts} == {"nan"}


def test_an_answer_that_is_nan_is_written_below_the_definition() -> None:
    rows = [
        replace(row, answers=tuple(replace(a, gradient=(float("nan"),)) for a in row.answers))
        for row in made_up(OPS["relu"])
    ]
    texts = [text for _, axes in panels(figure(OPS["relu"], rows)) for text in axes.texts if text.get_text() == "nan"]
    assert texts
    assert np.isfinite([text.xy for text in texts]).all()


@pytest.mark.parametrize("op", represented(op for op in OPS.values() if op.family == "reduction"))
def test_weights_of_reductions_are_drawn_in_the_shape_of_x(op: Op) -> None:
    rows = made_up(op)
    for part, row in zip(figure(op, rows).subfigs, rows, strict=True):
        assert part.get_suptitle() == call_of(row)
        x = np.asarray(row.arguments["x"])
        places = [(column + 0.5, line + 0.5) for line, column in np.ndindex(x.size // x.shape[-1], x.shape[-1])]
        expected = {"x": [f"{number:g}" for number in x.ravel()], "by definition": [f"{w:g}" for w in row.definition]}
        for a in row.answers:
            expected[f"{'✓' if a.agrees else '✗'} {a.spelling}"] = [f"{weight:g}" for weight in a.gradient]
        shown = {axes.get_title(): axes for axes in part.axes}
        assert {title: [text.get_text() for text in axes.texts] for title, axes in shown.items()} == expected
        for axes in shown.values():
            assert [text.xy for text in axes.texts] == places
            assert [tuple(cell.get_center()) for cell in axes.patches] == places
        weights = [cell.get_facecolor()[3] for cell in shown["by definition"].patches]
        assert weights == pytest.approx([0.6 * min(abs(weight), 1) for weight in row.definition])


def test_both_zeros_and_both_forms_are_told_once_where_they_are_alike() -> None:
    rows = list(parity.matrix([OPS["clamp_min"]], ["float32"]))

    def answered(of_torch: dict[str, float]) -> list[Row]:
        """With these answers of torch for x alone, by how the bound is given."""
        return [
            replace(
                row,
                answers=tuple(
                    replace(a, gradient=(of_torch[row.inactive],)) if a.framework == "torch" else a for a in row.answers
                ),
            )
            if row.active == ("x",)
            else row
            for row in rows
        ]

    alike = drawn_answers(figure(OPS["clamp_min"], answered({"numbers": 1.0, "arrays": 1.0})))
    seen = {(tie, label) for call, tie, label, _, _ in alike if "=0" in call}
    assert seen == {("at x = 0 and -0", label) for label in ("x alone", "x", "min")}
    # Where arrays are answered otherwise, as in torch 2.15, both are shown.
    seen = drawn_answers(figure(OPS["clamp_min"], answered({"numbers": 1.0, "arrays": 0.5})))
    assert {(label, y) for _, _, label, spelling, y in seen if spelling == "torch.clamp_min" and "alone" in label} == {
        ("x alone,\nnumbers", 1.0),
        ("x alone,\narrays", 0.5),
    }


def test_ties_at_which_all_agree_are_left_out_beside_others() -> None:
    """Numbers that are printed alike are no difference."""

    def agreeing(row: Row) -> Row:
        alike = tuple(weight + 1e-9 for weight in row.definition)
        return replace(row, answers=tuple(replace(answer, gradient=alike) for answer in row.answers))

    rows = made_up(OPS["hardtanh"])
    at_minus_1 = [agreeing(row) if row.arguments["x"] == -1 else row for row in rows]
    before, after = ({tie for _, tie, *_ in drawn_answers(figure(OPS["hardtanh"], r))} for r in (rows, at_minus_1))
    assert before - after == {"at x = -1"}


def function_and_slopes(name: str) -> list[Axes]:
    return [axes for _, axes in panels(figure(OPS[name], made_up(OPS[name])))][:2]


def test_values_and_slopes_of_a_curved_function() -> None:
    values, slopes = function_and_slopes("hardswish")
    x, y = values.lines[0].get_data()
    np.testing.assert_allclose(y, x * np.clip(x + 3, 0, 6) / 6, atol=1e-12)
    x, y = (data[~np.isnan(data)] for data in slopes.lines[0].get_data())
    np.testing.assert_allclose(y, np.where(np.abs(x) > 3, x > 0, x / 3 + 0.5), atol=1e-9)
    bands = [b.get_datalim(slopes.transData) for b in slopes.collections if isinstance(b, FillBetweenPolyCollection)]
    assert [(b.y0, b.y1) for b in bands] == [pytest.approx((-0.5, 0), abs=1e-4), pytest.approx((1, 1.5), abs=1e-4)]


def test_a_jump_is_left_open() -> None:
    values, slopes = function_and_slopes("hardshrink")
    y = values.lines[0].get_ydata()
    assert np.isnan(y).sum() == 2
    assert not slopes.collections
    assert np.nanmax(slopes.lines[0].get_ydata()) == pytest.approx(1)


def test_title_and_footer() -> None:
    drawn = figure(OPS["abs"], made_up(OPS["abs"]))
    title, _, verdict = drawn.get_suptitle().partition("\n")
    assert title == "The gradient of abs at its ties"
    differing = ("jax.numpy.abs", "jax.lax.abs", "torch.abs")
    expected = ", ".join(f"{spelling} in 2 of 2 cases" for spelling in differing)
    assert " ".join(verdict.split()) == f"differing from the definition: {expected}"
    footer = drawn.get_supxlabel()
    assert "jax 1.0, torch 1.0" in footer
    assert "float32" in footer


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    ("suffix", "start"),
    [("png", b"\x89PNG\r\n\x1a\n"), pytest.param("svg", b"<?xml", marks=pytest.mark.thorough)],
)
def test_plot_writes_the_kind_of_picture_that_is_asked_for(suffix: str, start: bytes, tmp_path: Path) -> None:
    file = tmp_path / f"hardsigmoid.{suffix}"
    result = run("plot", "hardsigmoid", "--output", str(file))
    assert (result.exit_code, result.stdout) == (0, f"plot written to {file}\n")
    assert file.read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plot", "Missing argument 'OP'"),
        ("plot clmp --output x.png", "Did you mean 'clamp' or 'clamp_min' or 'clamp_max'?"),
        ("plot hard_tanh --output x.png", "Did you mean 'hardtanh'"),
        ("report --op max_pol2d --output x.html", "Did you mean 'max_pool2d'"),
        ("--op abbs", "Did you mean 'abs'?"),
        ("plot abs --output x.nonsense", "'.nonsense' is not a kind of picture; choose one of "),
        ("plot abs --output nowhere/x.png", "the folder 'nowhere' does not exist"),
        ("report", "Missing option '--output'"),
        ("report --output .", "is a directory"),
        ("report --output nowhere/x.html", "the folder 'nowhere' does not exist"),
        ("report --dtype int8 --output x.html", "'int8' is not one of 'float32', "),
        ("--op abs report --output x.html", "--op is for the matrix, not for 'report'"),
    ],
)
def test_status_2_names_the_cure(arguments: str, message: str) -> None:
    result = run(*arguments.split())
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


class Page(HTMLParser):
    """What a report holds: ids, references, and the text of each cell of its table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.lines: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.ids += [given["id"]] if "id" in given else []
        named = {"href", "src", "srcset", "xlink:href", "data", "action", "poster"} & given.keys()
        self.references += [given[name] for name in named]
        self.references += re.findall(r"url\((.*?)\)", " ".join(given.values()))
        if tag == "tr":
            self.lines.append([])
        elif tag == "td":
            self.lines[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.lines and self.lines[-1]:
            self.lines[-1][-1] += data.strip("\n")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [row for op in OPS.values() for dtype in ("float32", "bfloat16") for row in made_up(op, dtype)]


@pytest.fixture(scope="module")
def report(rows: list[Row]) -> str:
    pictures = {
        name: picture(op, made_up(op)) if name in ("abs", "prelu", "amax") else "<svg></svg>"
        for name, op in OPS.items()
    }
    return page(rows, pictures, "--dtype float32 --dtype bfloat16")


def test_report_lists_every_op_and_row(rows: list[Row], report: str) -> None:
    listed = Page(report)
    _, *lines = listed.lines
    assert set(OPS) <= set(listed.ids)
    _, expected = cells_of(rows, tallies(rows))
    assert len(lines) == len(expected) == len(rows) / 2
    found = {tuple(line[:3]): line for line in lines}
    for row in rows:
        at = ", ".join(f"{n}={v:g}" if isinstance(v, float) else f"{n}={v}" for n, v in row.arguments.items())
        line = found[row.op, at, ", ".join(row.active) + " (numbers)" * (row.inactive == "numbers")]
        assert row.dtype in line[3]
        assert line[4] == rounded(row.definition)
        for answer in row.answers:
            cell = line[5 + parity.FRAMEWORKS.index(answer.framework)]
            assert f"{'✓' if answer.agrees else '✗'} {rounded(answer.gradient)}" in cell


def test_report_is_self_contained(report: str) -> None:
    listed = Page(report)
    assert listed.references
    for reference in listed.references:
        assert reference.startswith("#")
        assert reference[1:] in listed.ids
    assert len(listed.ids) == len(set(listed.ids))
    without_namespaces = re.sub(r'xmlns(:xlink)?="[^"]*"', "", report)
    assert not re.search(r"https?:|//\w|@import|<link|<iframe|fetch\(|XMLHttp", without_namespaces)


def test_report_says_how_to_reproduce_it(report: str) -> None:
    assert "python -m interop report --dtype float32 --dtype bfloat16 --output report.html" in report
    assert "python -m interop --dtype float32 --dtype bfloat16 --format csv --output matrix.csv" in report
    assert re.search(r"jax \d+\.\d+", report)
    assert re.search(r"torch \d+\.\d+", report)


def test_pictures_are_the_same_every_time_and_take_their_black_from_the_page() -> None:
    drawn = [picture(OPS["abs"], made_up(OPS["abs"])) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert "currentColor" in drawn[0]
    assert "#000000" not in drawn[0]
    assert "jaxclamp.abs</text>" in drawn[0]


def test_report_command(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    result = run("report", "--op", "hardsigmoid", "--op", "relu", "--dtype", "float16", "--output", str(file))
    assert (result.exit_code, result.stdout) == (0, f"report written to {file}\n")
    text = file.read_text("utf-8")
    _, *lines = Page(text).lines
    assert [line[0] for line in lines] == ["hardsigmoid"] * 2 + ["relu"] * 2
    assert text.count("<svg ") == 2
    assert "float16 ·" in text
    assert "report --op hardsigmoid --op relu --dtype float16 --output" in text


PROBE = """
<pre id="probe"></pre>
<script>
const shown = column => cases.filter(body => !body.hidden).map(body => body.rows[0].cells[column].textContent);
const header = column => document.querySelectorAll("th button")[column];
const order = column => [...table.tBodies].map(body => body.rows[0].cells[column].textContent);
const type = value => { text.value = value; text.dispatchEvent(new Event("input")); };
const choose = value => { differing.value = value; differing.dispatchEvent(new Event("input")); };
const probe = {all: document.querySelector("#count").value};
type("relu6 BFLOAT16"); probe.text = shown(0); probe.count = document.querySelector("#count").value;
type(""); choose("torch"); probe.torch = [shown(0), shown(9)];
choose("jaxclamp"); probe.jaxclamp = shown(0);
choose("any"); probe.any = shown(0).length; choose("");
header(4).click(); probe.rising = order(4); probe.sort = header(4).parentNode.ariaSort;
header(4).click(); probe.falling = order(4);
header(0).click(); probe.ops = order(0); header(9).click(); probe.answers = order(9);
const [first] = table.tBodies, button = first.querySelector("button");
button.click(); header(0).click();
const [figure, ...more] = first.querySelectorAll("figure:has(svg)");
probe.open = [button.ariaExpanded, first.rows.length, figure.ariaLabel, more.length];
type("no such case"); probe.none = shown(0); type("");
button.click(); probe.closed = [button.ariaExpanded, first.rows.length, button.textContent];
document.querySelector("#probe").textContent = JSON.stringify(probe);
</script>
"""


def probed(page: str, probe: str, folder: Path, width: int = 1400) -> Any:
    """What a script that is added to the page leaves in the element #probe, in a window so many pixels wide."""
    assert BROWSER is not None
    file = folder / "report.html"
    file.write_text(page.replace("</body>", probe + "</body>"), encoding="utf-8")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += f" --disable-component-update --disable-sync --dump-dom --window-size={width},900"
    command = [BROWSER, *flags.split(), f"--user-data-dir={folder / 'profile'}", file.as_uri()]
    shown = subprocess.run(command, check=True, capture_output=True, encoding="utf-8", timeout=120).stdout
    match = re.search(r'<pre id="probe">(.*?)</pre>', shown, re.DOTALL)
    assert match is not None
    return json.loads(html.unescape(match[1]))


@needs_browser
def test_the_page_sorts_filters_and_expands(rows: list[Row], report: str, tmp_path: Path) -> None:
    probe = probed(report, PROBE, tmp_path)
    half = [row for row in rows if row.dtype == "float32"]
    assert probe["all"] == f"{len(half)} of {len(half)} lines"
    assert probe["text"] == ["relu6"] * 3
    assert probe["count"] == f"3 of {len(half)} lines"
    with_torch = [row for row in half if any(answer.framework == "torch" for answer in row.answers)]
    assert probe["torch"][0] == [row.op for row in with_torch]
    assert all(answer.startswith("✗") for answer in probe["torch"][1])
    assert probe["jaxclamp"] == []
    assert probe["any"] == len(half)
    rising = [float(definition.split()[0]) for definition in probe["rising"]]
    assert rising == sorted(rising)
    assert rising[0] < rising[-1]
    assert probe["sort"] == "ascending"
    assert [float(definition.split()[0]) for definition in probe["falling"]] == sorted(rising, reverse=True)
    assert probe["ops"] == sorted(row.op for row in half)
    answers = [float(answer.split()[1]) for answer in probe["answers"]]
    assert answers == sorted(answers)
    op, state = probe["open"][2].partition(":")[0], probe["open"]
    assert state == ["true", 2, f"{op}: values, slopes and the gradients answered at its ties", 0]
    assert probe["none"] == []
    assert probe["closed"] == ["false", 1, op]


LAYOUT = """
<pre id="probe"></pre>
<script>
cases[0].querySelector("button").click();
const width = document.documentElement.clientWidth;
const seen = [...document.querySelectorAll("body *:not(svg)")].filter(element => element.getClientRects().length);
const beyond = box => box.left < 0 || box.right > width + 0.5;
const cut = element => element.scrollWidth > element.clientWidth + 1;
const source = element => element.outerHTML.slice(0, 99);
document.querySelector("#probe").textContent = JSON.stringify({
  width: innerWidth, scrolls: document.documentElement.scrollWidth > width, columns: table.tHead.rows[0].cells.length,
  beyond: seen.filter(element => beyond(element.getBoundingClientRect())).map(source),
  cut: [...table.querySelectorAll("td, th, button")].filter(cut).map(source),
});
</script>
"""


@needs_browser
@pytest.mark.parametrize("width", [*(pytest.param(width, marks=pytest.mark.thorough) for width in (1400, 1000)), 420])
def test_no_column_is_cut_off(rows: list[Row], width: int, tmp_path: Path) -> None:
    def everywhere(row: Row) -> Row:
        others = [
            Answer(name, f"{name} 1.0", f"{name}.{row.op}", row.definition, False, ("inclusive",)) for name in ADAPTERS
        ]
        return replace(row, answers=(*row.answers, *others))

    all_frameworks = [everywhere(row) for row in rows if row.dtype == "float32"]
    pictures = dict.fromkeys(OPS, "<svg width='2000pt' height='400pt' viewBox='0 0 2000 400'></svg>")
    probe = probed(page(all_frameworks, pictures), LAYOUT, tmp_path, width)
    assert probe == {
        "width": width,
        "scrolls": False,
        "columns": 5 + len(parity.FRAMEWORKS),
        "beyond": [],
        "cut": [],
    }
