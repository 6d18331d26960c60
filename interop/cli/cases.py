"""The command that runs the four worked cases."""

from __future__ import annotations

import re

import click

from interop.cli.console import console
from interop.cli.packages import require


@click.command()
def cases() -> None:
    """Run the four worked cases: unmodified torch against the wrapped ops."""
    require("rich")
    import torch
    from rich.table import Table

    from interop.cli.worked_cases import compare_cases

    table = Table(title=f"Gradients of equal formulas, unmodified torch {torch.__version__} against interop")
    for heading in ("case", "spelling", "unmodified", "interop"):
        table.add_column(heading)
    title = None
    for comparison in compare_cases():
        if title not in (None, comparison.title):
            table.add_section()
        repeated, title = comparison.title == title, comparison.title
        gradients = [
            re.sub(r"\.0\b", "", str(gradient.tolist())) for gradient in (comparison.unmodified, comparison.wrapped)
        ]
        table.add_row("" if repeated else title, comparison.spelling, *gradients)
    console().print(table)
