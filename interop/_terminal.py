"""How wide what is printed may be, and the console that commands print to."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
"""The columns of what is printed to a file, and the most that a text takes on a terminal."""


def terminal_width() -> int:
    """Return the columns of the terminal, those that ``COLUMNS`` says, or `WIDTH`."""
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if is_known else WIDTH


def text_width() -> int:
    """Return the columns of a text, at most `WIDTH`: longer lines are hard to read."""
    return min(terminal_width(), WIDTH)


def console() -> Console:
    """Return a console as wide as the terminal."""
    from rich.console import Console

    return Console(width=terminal_width())
