"""The command that names the lines whose gradient changes."""

from pathlib import Path

import click

from interop._terminal import terminal_width
from interop.cli.options import AS_JSON, FUNCTION, INPUTS, arguments_in, bad_usage, function_named


@click.command()
@click.argument("function", metavar=FUNCTION)
@INPUTS
@click.option("--before", required=True, help="The version of torch whose gradients are known, as 2.13.")
@click.option(
    "--after",
    help="The version to compare with; by default the installed one, or the newest recorded if that is not later.",
)
@click.option(
    "--probe", is_flag=True, help="Say what would change, at lines without a tie, with every element on a bound."
)
@AS_JSON
@click.pass_context
def audit(
    context: click.Context,
    function: str,
    files: tuple[Path, ...],
    before: str,
    after: str | None,
    probe: bool,
    as_json: bool,
) -> None:
    """Name the lines whose gradient a version of torch changes.

    FUNCTION is called with the arrays of --inputs, and its result is differentiated. FILE.py:FUNCTION names it, too.
    What keeps the gradient is said at each line. Neither version has to be installed. The function runs for real;
    what its optimizers write is put back.

    Exit status 1 when the gradient changes at some line, 2 on bad usage and when the function raises. What --probe
    finds does not count.
    """
    with bad_usage(as_json):
        audited = function_named(function)
        import interop
        from interop.comparison.recording import check_call

        arguments = tuple(arguments_in(files))
        check_call("audit: MODULE:FUNCTION", audited, arguments, {})
        report = interop.audit(audited, *arguments, before=before, after=after, probe=probe)
    click.echo(report.to_json() if as_json else report.text(terminal_width()))
    context.exit(1 if report.changes else 0)
