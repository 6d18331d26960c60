"""The parity matrix by two processes: this one begins with the first op, a helper with the last.

Most of the work is Python that traces programs, which threads of one process would do in turns.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interop.survey.matrix import Row


@contextlib.contextmanager
def helper() -> Iterator[Executor]:
    """A process that imports what the matrix needs, while this one does."""
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _ready)
    try:
        pool.submit(len, ())  # the first call starts it
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _ready() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who interrupts the command ends both
    importlib.import_module("interop.survey.matrix")


def matrix(helper: Executor, ops: Sequence[str], dtypes: Sequence[str], frameworks: Sequence[str]) -> Iterator[Row]:
    """The rows of `interop.survey.matrix.matrix`; the helper takes ops from the end until there is none left."""
    asked = [(op, dtype) for dtype in dtypes for op in ops]
    given: dict[tuple[str, str], Future[list[Row]]] = {}
    with contextlib.suppress(BrokenExecutor):  # a process may not start, or die: then this one asks alone
        for one in reversed(asked):
            given[one] = helper.submit(_rows, *one, frameworks)
    for one in asked:
        answer = given.get(one)
        if answer is None or answer.cancel() or isinstance(answer.exception(), BrokenExecutor):
            yield from _rows(*one, frameworks)
        else:
            yield from answer.result()


def _rows(op: str, dtype: str, frameworks: Sequence[str]) -> list[Row]:
    from interop.survey import matrix
    from jaxclamp import OPS

    return list(matrix.matrix([OPS[op]], [dtype], frameworks))
