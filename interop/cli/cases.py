"""The command that runs the four worked cases."""

import re

import click

from interop._terminal import console
from interop.cli.packages import require


@click.command()
def cases() -> None:
    """Run four worked cases: unmodified torch against interop."""
    require("rich")
    import torch

    from interop.cli.worked_cases import compare_cases
    from jaxclamp._shared.tables import rich_table

    table = rich_table("case", "spelling", "unmodified", "interop")
    title = None
    for comparison in compare_cases():
        repeated, title = comparison.title == title, comparison.title
        gradients = [
            re.sub(r"\.0\b", "", str(gradient.tolist()))  # [0, 0.5] for [0.0, 0.5]
            for gradient in (comparison.unmodified, comparison.wrapped)
        ]
        table.add_row("" if repeated else title, comparison.spelling, *gradients)
    terminal = console()
    terminal.print(f"Gradients of equal formulas, unmodified torch {torch.__version__} against interop:")
    terminal.print(table)
    terminal.print("In your own code: with interop.min_norm(): around it.", style="dim")
