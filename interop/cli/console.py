"""The console that commands print to."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


WIDTH = 100
"""The columns of what is printed to a file."""


def width() -> int:
    """Return the columns of the terminal, those that ``COLUMNS`` says, or `WIDTH`."""
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if is_known else WIDTH


def console() -> Console:
    from rich.console import Console

    return Console(width=width())
