"""The command that says what changed between two versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from interop._terminal import terminal_width
from interop.cli.options import OUTPUT, a_picture
from interop.cli.packages import require

if TYPE_CHECKING:
    from interop.survey.changes import Changes


@click.command()
@click.argument("framework")
@click.argument("before")
@click.argument("after")
@click.option("--format", "form", type=click.Choice(("table", "markdown", "json")), default="table", show_default=True)
@click.option(
    "--output",
    "file",
    type=OUTPUT,
    callback=a_picture,
    help="Draw the ops that changed, in every version between them.",
)
def changes(framework: str, before: str, after: str, form: str, file: Path | None) -> None:
    """Say which gradients changed from one version to another.

    As in: changes torch 2.13 2.15. Neither version has to be installed, as this package has records of the gradients at
    ties.

    Exit status 0, whether something changed or not, 2 on bad usage.
    """
    # The records are data: what has changed is computed without any package, and printed with rich.
    if form != "json":
        require("rich")
    from interop.survey.changes import Changes, changes, printed

    try:
        changed = changes(framework, before, after)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    forms: Mapping[str, Callable[[Changes], str]] = {
        "table": lambda changed: printed(changed, terminal_width()),
        "markdown": Changes.to_markdown,
        "json": Changes.to_json,
    }
    click.echo(forms[form](changed).rstrip("\n"))
    if file is not None:
        changed.figure().savefig(file, dpi=150)
        click.echo(f"picture written to {file}", err=True)
