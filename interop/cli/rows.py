"""Computes the rows of the matrix for the commands that show it, with a progress bar meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from interop.cli.names import FRAMEWORKS

if TYPE_CHECKING:
    from interop.survey.matrix import Row


def installed(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse to ask a framework that is not installed."""
    if names:
        from interop.survey.matrix import absent

        for name, reason in absent(names).items():
            raise click.BadParameter(f"{name} cannot be asked ({reason}).")
    return names


def rows_of(ops: Sequence[str], dtypes: Sequence[str], frameworks: Sequence[str] = FRAMEWORKS) -> list[Row]:
    """Compute rows of the matrix; on a terminal with a progress bar."""
    from rich.console import Console
    from rich.progress import track

    from interop.survey import matrix
    from jaxclamp import OPS as RECORDS
    from jaxclamp._shared.tie_cases import cases

    records = [RECORDS[name] for name in dict.fromkeys(ops)] or list(RECORDS.values())
    count = sum(len(list(cases(record))) for record in records)
    console = Console(stderr=True)
    if not console.is_terminal:  # where no progress bar says that something happens
        click.echo(f"asking for {count} gradients in {', '.join(dtypes)}", err=True)
    rows = list(
        track(
            matrix.matrix(records, dtypes, frameworks),
            "asking for gradients",
            len(dtypes) * count,
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
    )
    if absent := matrix.absent(frameworks):
        click.echo(f"not installed, so not asked: {', '.join(absent)}", err=True)
    return rows
