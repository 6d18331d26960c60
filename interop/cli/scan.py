"""The command that reads source files for gradients that are a choice."""

from pathlib import Path
from typing import Any

import click

from interop._terminal import terminal_width
from interop.cli.options import AS_JSON, bad_usage


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--before", help="Find what changed since this version of torch, as 2.13, too.")
@click.option("--after", help="The version to compare with, by default the newest recorded.")
@click.option(
    "--at-least",
    type=click.Choice(("likely", "possible", "rare")),
    default="likely",
    show_default=True,
    help="How likely a tie has to be.",
)
@AS_JSON
@click.pass_context
def scan(
    context: click.Context, paths: tuple[Path, ...], before: str | None, after: str | None, at_least: Any, as_json: bool
) -> None:
    """Read source for gradients that differ at ties.

    Nothing is imported or run: neither the code nor torch or JAX. PATH is a file, or a folder with files *.py.

    Exit status 1 when a place is shown, 2 on bad usage.
    """
    with bad_usage(as_json):
        from interop.scan import scan as scanned

        result = scanned(paths, before=before, after=after, at_least=at_least)
    click.echo(result.to_json().rstrip("\n") if as_json else result.text(terminal_width()))
    if before is None and not as_json:
        click.echo("To find what an upgrade of torch changes, too: --before, as --before 2.13.")
    context.exit(1 if result.findings else 0)
