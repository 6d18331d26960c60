"""How wide what is printed may be."""

from __future__ import annotations

import os
import shutil
import sys

WIDTH = 100
"""The columns of what is printed to a file, and the most that a text takes on a terminal."""


def terminal_width() -> int:
    """Return the columns of the terminal, those that ``COLUMNS`` says, or `WIDTH`."""
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if is_known else WIDTH


def text_width() -> int:
    """Return the columns of a text, at most `WIDTH`: longer lines are hard to read."""
    return min(terminal_width(), WIDTH)
