"""The console that commands print to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interop._terminal import terminal_width

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    from rich.console import Console

    return Console(width=terminal_width())
