"""That README and documentation tell the truth: their code runs, tables are fresh, docstrings complete."""

import contextlib
import importlib.util
import inspect
import io
import itertools
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest
from click.testing import CliRunner

import interop
import jaxclamp
from interop.__main__ import main
from jaxclamp import OPS, Op
from tests.support.pinned import of_documented, of_pinned

ROOT = Path(__file__).parents[2]
PAGES = [
    file
    for file in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))
    if "```python" in file.read_text("utf-8")
]
FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def code_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Each Python block of a page, and what it prints: the block behind it, if that is untagged."""
    blocks = [*FENCED.findall(text), ("end", "")]
    before = ""
    for (language, content), (following, shown) in itertools.pairwise(blocks):
        assert language or before == "python", f"what prints this?\n{content}"
        if language == "python":
            yield content, shown if not following else ""
        before = language


def run(text: str, alone: bool = False) -> int:
    """Run the Python blocks of a page in one namespace, or each in its own; check what it prints, and count them."""
    namespace: dict[str, object] = {"__name__": "page"}
    count = 0
    for code, shown in code_blocks(text):
        count += 1
        namespace = {"__name__": "page"} if alone else namespace
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"block {count}", "exec"), namespace)
        assert printed.getvalue() == shown, f"block {count}:\n{code}"
    return count


TELL_ANSWERS = dict.fromkeys(("README", "command-line", "architecture"), of_pinned) | {"porting-a-model": of_documented}
"""Maps a page that asks torch itself about ties, or names versions, to the mark that skips it with other versions."""


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch.export.load of torch 2.11
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=TELL_ANSWERS.get(page.stem, ())) for page in PAGES],
)
def test_code_prints_what_the_page_says(page: Path) -> None:
    text = page.read_text("utf-8")
    assert run(text, alone=page.stem == "README") == text.count("```python")


@pytest.mark.parametrize(
    "page",
    [
        "```python\nprint(1)\n```\n\n```\n2\n```\n",
        "```python\nprint(1)\n```\n",
        "```python\nx = 1\n```\n\n```\n1\n```\n",
        "```\n1\n```\n",
    ],
    ids=["wrong", "untold", "silent", "of nothing"],
)
def test_the_check_of_pages_can_fail(page: str) -> None:
    with pytest.raises(AssertionError):
        run(page)
    in_two_blocks = "```python\nx = 1\nprint(x)\n```\n\nand\n\n```\n1\n```\n\n```python\nx += 1\n```\n"
    assert run(in_two_blocks) == 2
    with pytest.raises(NameError):
        run(in_two_blocks, alone=True)


@of_pinned
def test_commands_print_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder of ``train.py``, the block that begins with that name, and in a terminal of 80 columns."""
    page = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    blocks = FENCED.findall(page)
    (code,) = (code for language, code in blocks if language == "python")
    (tmp_path / "train.py").write_text(code.removeprefix("# train.py\n"))
    monkeypatch.chdir(tmp_path)
    numpy.savez("codes.npz", codes=numpy.float32([-2, 0, 1]))
    sessions = [text for language, text in blocks if language == "console"]
    assert len(sessions) == page.count("$ jaxclamp")
    for session in sessions:
        command, _, shown = session.partition("\n")
        arguments = shlex.split(command.removeprefix("$ jaxclamp "))
        result = CliRunner().invoke(main, arguments, env={"COLUMNS": "80"}, prog_name="jaxclamp")
        assert [line.rstrip() for line in result.stdout.splitlines()] == shown.splitlines(), command


def test_readme_is_read_in_a_minute() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 110


def test_no_page_has_the_marks_of_a_conflict() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert len(pages) > 30
    assert [page.name for page in pages if _CONFLICT.search(page.read_text("utf-8"))] == []
    assert all(_CONFLICT.search(f"text\n{mark} main\ntext\n") for mark in ("<" * 7, "|" * 7, ">" * 7))


_CONFLICT = re.compile(r"^(<{7}|\|{7}|>{7})( |$)", re.MULTILINE)
"""The marks that git leaves, but for the line in between, which is a heading's in Markdown."""


def pieces_not_found(diff: str) -> list[str]:
    """The runs of added lines in a diff that its files do not have; an ellipsis stands for text left out."""
    missing = []
    for part in diff.split("--- ")[1:]:
        file, *lines = part.splitlines()
        source = (ROOT / file).read_text("utf-8")
        added = "\n".join(line.removeprefix("+") for line in lines)
        pieces = [piece.strip() for run in re.split(r"\n\n", added) for piece in run.split("[...]")]
        missing += [piece for piece in pieces if piece.strip('"') and piece not in source]
    return missing


def test_the_recipe_for_an_op_shows_the_source() -> None:
    (diff,) = [
        content
        for language, content in FENCED.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8"))
        if language == "diff"
    ]
    assert pieces_not_found(diff) == []
    assert pieces_not_found(diff.replace('follows("hardswish", input)', 'follows("relu", input)')) != []


def places_not_found(table: str) -> list[str]:
    """The files and functions in a table of questions that are not there; a name alone is that of a file beside one."""
    missing = []
    for row in table.splitlines():
        _, _, where, what, _ = row.split("|")
        names = re.findall(r"`([^`]+)`", where + what)
        files = [ROOT / name for name in names if (ROOT / name).exists()]
        folders = [file if file.is_dir() else file.parent for file in files]
        beside = [name for name in names if name.endswith((".py", "/")) and not (ROOT / name).exists()]
        files += [folder / name for name in beside for folder in folders if (folder / name).exists()]
        missing += [name for name in beside if not any((folder / name).exists() for folder in folders)]
        sources = [inner for file in files for inner in (file.rglob("*.py") if file.is_dir() else [file])]
        words = set(re.findall(r"\w+", "".join(source.read_text("utf-8") for source in sources)))
        parts = (name.rpartition(".")[2] for name in re.findall(r"`([^`]+)`", what) if name not in beside)
        missing += [name for name in parts if name not in words]
    return missing


def test_architecture_names_files_and_functions_that_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    _, *tables = page.split("| --- | --- | --- |\n")
    table = "\n".join(rest.partition("\n\n")[0] for rest in tables)
    assert len(table.splitlines()) > 50
    assert places_not_found(table) == []
    moved = table.replace("interop/_audit/audit.py", "interop/audit.py").replace("cause_of", "cause_in")
    assert places_not_found(moved) == ["cause_in", "interop/audit.py", "_compared", "_cure"]  # the check can fail


@of_documented
def test_generated_tables_are_fresh() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)  # type: ignore[union-attr]
    for file, text in generate.pages().items():
        assert "| `clamp` |" in text
        assert file.read_text("utf-8") == text, "run `make tables`"


def lacking_of_op(op: Op, doc: str) -> list[str]:
    """What the docstring of an op leaves out."""
    summary, _, rest = doc.partition("\n\n")
    parts = {
        "formula": ":math:`" in summary,
        "Ties": "\n\nTies: " in doc,
        "Raises": "\n\nRaises:\n" in rest,
        "Counterparts": re.search(r"\n\nCounterparts?: ", doc) is not None,
        "torch's name": all(
            re.search(
                rf"torch\.(nn\.functional\.)?{native.name.rpartition('.')[2]}\b", rest.partition("\n\nCounterpart")[2]
            )
            for native in op.counterparts
            if native.framework == "torch"
        ),
    }
    return [name for name, there in parts.items() if not there] + lacking(op.function, doc)


def lacking(function: Callable[..., object], doc: str) -> list[str]:
    """What the docstring of any public function leaves out."""
    arguments = re.search(r"^Args:\n((?:  .*\n|\n)*)", doc + "\n", re.MULTILINE)
    told = re.findall(r"^  (\w+(?:, \w+)*): ", arguments[1], re.MULTILINE) if arguments else []
    documented = {name for names in told for name in names.split(", ")}
    parameters = {name.lstrip("*") for name in inspect.signature(function).parameters}
    missing = [f"argument {name}" for name in sorted(parameters - documented)]
    missing += [f"no such argument: {name}" for name in sorted(documented - parameters)]
    if not re.search(r"^(Returns|Raises.*):\n", doc, re.MULTILINE):
        missing.append("Returns or Raises")
    if ">>> " not in doc:
        missing.append("example")
    return missing


def doc_of(thing: object) -> str:
    return inspect.getdoc(thing) or ""


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_docstring_of_op_is_complete(op: Op) -> None:
    assert not lacking_of_op(op, doc_of(op.function))


FUNCTIONS = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in (jaxclamp, interop, interop.nn)
    for name in package.__all__
    if inspect.isroutine(getattr(package, name)) or (inspect.isclass(getattr(package, name)) and name.islower())
    if name not in interop.TORCH_OPS.keys() | interop.IN_PLACE_OPS.keys()
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_of_function_is_complete(name: str) -> None:
    assert not lacking(FUNCTIONS[name], doc_of(FUNCTIONS[name]))


def test_everything_public_has_a_docstring() -> None:
    for package in (jaxclamp, interop, interop.nn):
        for name in package.__all__:
            thing = getattr(package, name)
            if callable(thing) and not hasattr(thing, "__args__"):
                assert doc_of(thing), name


def test_the_check_of_docstrings_can_fail() -> None:
    doc = doc_of(jaxclamp.clamp)
    clamp = OPS["clamp"]
    assert lacking_of_op(clamp, doc.replace("Ties: ", "At ties ")) == ["Ties"]
    assert lacking_of_op(clamp, doc.replace(":math:", "")) == ["formula"]
    assert lacking_of_op(clamp, doc.replace("  x: real", "  y: real")) == ["argument x", "no such argument: y"]
    assert lacking_of_op(clamp, doc.replace("torch.clamp", "torch")) == ["torch's name"]
    assert lacking(jaxclamp.clamp, doc.replace("Raises:", "Errors:").replace(">>>", "e.g.")) == [
        "Returns or Raises",
        "example",
    ]
