"""The command that names the lines whose gradient changes."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from interop.cli.options import AS_JSON, INPUTS, a_function

if TYPE_CHECKING:
    from interop.frameworks.base import Array


@click.command()
@click.argument("function", metavar="MODULE:FUNCTION", callback=a_function)
@INPUTS
@click.option("--before", required=True, metavar="VERSION", help="Of torch, as 'torch 2.13'.")
@click.option("--after", required=True, metavar="VERSION", help="Of torch, as 'torch 2.15'.")
@click.option("--probe", is_flag=True, help="Where nothing ties, say what would change with every element on a bound.")
@AS_JSON
@click.pass_context
def audit(
    context: click.Context,
    function: Callable[..., Any],
    inputs: list[Array],
    before: str,
    after: str,
    probe: bool,
    as_json: bool,
) -> None:
    """Name the lines of torch code whose gradient changes from one version of torch to another, and what keeps it.

    Exit status 1 when the gradient changes at some line, 2 on bad usage and when the function raises. What --probe
    finds does not count.
    """
    import interop

    try:
        report = interop.audit(function, *inputs, before=before, after=after, probe=probe)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise click.UsageError(str(error)) from error
    except Exception:  # of the function itself: status 1 says that a gradient changes
        traceback.print_exc()
        context.exit(2)
    click.echo(report.to_json() if as_json else str(report))
    context.exit(1 if report.changes else 0)
