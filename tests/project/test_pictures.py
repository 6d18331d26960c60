"""The pictures in docs: each shows what the frameworks answer, is drawn alike each time, and a page has it."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import interop

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "docs" / "_static"


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def texts(svg: str) -> list[str]:
    """Matplotlib draws text as paths, and says before each in a comment what it is."""
    return re.findall(r"<!-- (.*?) -->", svg)


def test_the_spellings_are_one_function(pictures: ModuleType) -> None:
    x = np.array([-1.0, 0.0, 2.5, 6.0, 7.0], np.float32)
    for name, function in {**pictures.UNMODIFIED, **pictures.OURS}.items():
        given = x if name.startswith("jax") else pictures.torch.tensor(x)
        np.testing.assert_array_equal(np.asarray(function(given)), np.clip(x, 0, 6), err_msg=name)


def test_the_picture_of_spellings_is_fresh(pictures: ModuleType) -> None:
    """Each spelling with the slopes that it answers."""
    shown = texts((STATIC / "spellings.svg").read_text("utf-8"))
    names = [*pictures.UNMODIFIED, *pictures.OURS]
    answers = [pictures.gradients(name) for name in names]
    assert [text for text in shown if text in names] == names
    assert [text for text in shown if text in pictures.SLOPES.values()] == [
        pictures.SLOPES[slope] for slopes in answers for slope in slopes
    ]
    assert len(set(map(tuple, answers[: len(pictures.UNMODIFIED)]))) > 1
    assert answers[len(pictures.UNMODIFIED) :] == [[0, 0]] * len(pictures.OURS)


def test_the_picture_of_a_training_is_of_this_code(
    pictures: ModuleType, load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it draws, the texts in the file, and that a second drawing has the same bytes."""
    example = load("pinned_training")
    runs = [example.train(4, 3, interop.as_of(version)) for version in (example.BEFORE, example.AFTER)]
    left, right = pictures.learning(*runs).axes
    for run, learning, bound in zip(runs, left.lines, right.lines, strict=True):
        np.testing.assert_allclose(learning.get_ydata(), 100 - 100 * np.array(run.stopped))
        np.testing.assert_allclose(bound.get_ydata(), 100 * np.array(run.tail))
    assert list(left.lines[1].get_ydata()) == [0, 0, 0] < list(left.lines[0].get_ydata())
    shown = texts((STATIC / "learning.svg").read_text("utf-8"))
    assert {left.get_title(), right.get_title(), *(line.get_label() for line in left.lines)} <= set(shown)
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    written = []
    for _ in range(2):
        pictures.write(pictures.learning(*runs), "learning")
        written.append((tmp_path / "learning.svg").read_bytes())
    assert written[0] == written[1]


def test_readme_shows_one_with_a_text_for_those_who_do_not_see_it() -> None:
    shown = re.findall(r"!\[([^]]+)\]\((docs/_static/[^)]+)\)", (ROOT / "README.md").read_text("utf-8"))
    assert [file for _, file in shown] == ["docs/_static/learning.svg"]


@pytest.mark.parametrize(
    ("name", "least"),
    [("pieces", (1, 0)), *(pytest.param(name, (0, 0), marks=pytest.mark.thorough) for name in ("lasso", "machine"))],
)
def test_the_pictures_of_kinks_are_fresh(
    name: str, least: tuple[float, float], pictures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    figure = pictures.pieces(*pictures.FUNCTIONS[name])
    star = next(line for line in figure.axes[1].lines if line.get_label() == "least point of their hull")
    np.testing.assert_allclose(star.get_xydata(), [least], atol=1e-6)
    pictures.write(figure, name)
    drawn, shown = (texts((folder / f"{name}.svg").read_text("utf-8")) for folder in (tmp_path, STATIC))
    assert drawn == shown


def test_the_picture_of_versions_is_fresh() -> None:
    """The records that it shows, and the ops of which the gradients changed, in bold."""
    shown = texts((STATIC / "changes.svg").read_text("utf-8"))
    (axes,) = interop.changes("torch", "2.11", "2.15").figure().axes
    labels = [label.get_text() for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    assert [text for text in shown if text in labels] == labels
