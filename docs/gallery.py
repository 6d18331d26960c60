"""Makes docs/_gallery, which the documentation embeds: the report of all ops, or of those named as arguments."""

import itertools
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from interop.survey.matrix import Row, matrix
from interop.survey.show.plot import COLOURS
from interop.survey.show.report import page, picture
from jaxclamp import OPS

FOLDER = Path(__file__).parent / "_gallery"


def answered(name: str) -> tuple[list[Row], str]:
    """The rows of the op of that name, and its picture."""
    rows = list(matrix([OPS[name]], ["float32"], list(COLOURS)))
    return rows, picture(OPS[name], rows)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    names = sys.argv[1:] or list(OPS)
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        rows, pictures = zip(*processes.map(answered, names), strict=True)
    report = page(list(itertools.chain(*rows)), dict(zip(names, pictures, strict=True)), "--dtype float32")
    (FOLDER / "report.html").write_text(report, "utf-8")
