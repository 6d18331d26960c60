"""Finds the line of the user's source that is running, and the name by which users know a function of torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from jaxclamp._transforms.source_lines import innermost

_LIBRARIES = tuple(str(folder) + os.sep for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))


def line_of_user() -> tuple[str, int]:
    """Return the file and the line of the user's code that is running."""
    file, frame = innermost(((frame.f_code.co_filename, frame) for frame in _frames()), *_LIBRARIES)
    return file, frame.f_lineno if frame else 0  # of one frame alone, as Python has to look it up


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def name_of(func: Callable[..., Any]) -> str:
    """Return the name by which users know a function of torch: ``sqrt`` of the operator ``sqrt.default``.

    >>> name_of(torch.ops.aten.sqrt.default), name_of(torch.Tensor.__rtruediv__)
    ('sqrt', 'rdiv')
    """
    return func.__name__.partition(".")[0].strip("_").removeprefix("special_")
