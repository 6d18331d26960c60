"""Shows the matrix, if no command is named, and groups all commands."""

import io
import itertools
import sys
from pathlib import Path

import click
from click.core import ParameterSource

from interop._terminal import WIDTH, terminal_width
from interop.cli.audit import audit
from interop.cli.changes import changes
from interop.cli.compare import compare
from interop.cli.names import DTYPES, FORMATS, FRAMEWORKS, OPS
from interop.cli.options import ONLY_DTYPES, ONLY_OPS, OUTPUT, chosen_dtypes, hint, in_a_folder
from interop.cli.packages import require
from interop.cli.plot import plot
from interop.cli.report import report
from interop.cli.rows import compile_quickly, installed, rows_of
from interop.cli.scan import scan
from interop.cli.ties import ties

_EXAMPLES = {"cases": "worked_cases.py", "digits": "digits.py"}
"""Maps a former command to the example that it is now; until 0.3."""


class _Commands(click.Group):
    """Reads the names of ops, before a command, as the options that select them.

    So ``clamp --dtype float64 relu`` becomes ``--op=clamp --dtype float64 --op=relu``. As arguments, ops would take the
    names of commands for their own.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [parameter for parameter in self.params if isinstance(parameter, click.Option)]
        with_value = {name for option in options if not option.is_flag for name in option.opts}
        words, unread = [], iter(args)
        for word in unread:
            words.append(f"--op={word}" if word in OPS else word)
            if word in with_value:  # the next word is its value, as in --output relu
                words += itertools.islice(unread, 1)
            elif word in self.commands:  # what follows is for the command, as in plot relu
                words += unread
        return super().parse_args(ctx, words)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in _EXAMPLES:
            ctx.fail(f"{name!r} is an example now: in a checkout, python examples/{_EXAMPLES[name]}.")
        if name not in self.commands and not name.startswith("-"):
            ctx.fail(f"No such command {name!r}, and no such op." + hint(name, [*self.commands, *OPS]))
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    subcommand_metavar="[OP]... | COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@ONLY_OPS
@ONLY_DTYPES
@click.option(
    "--framework",
    "frameworks",
    multiple=True,
    type=click.Choice(FRAMEWORKS),
    callback=installed,
    help="Only ask this framework; repeatable.",
)
@click.option("--all", "every_case", is_flag=True, help="Every case, and those in which all agree.")
@click.option("--only-disagreements", is_flag=True, help="Only the cases in which some answer differs.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True)
@click.version_option(package_name="jaxclamp")
@click.option("--output", type=OUTPUT, callback=in_a_folder, help="Write to a file.")
@click.pass_context
def main(
    context: click.Context,
    ops: tuple[str, ...],
    dtypes: tuple[str, ...],
    frameworks: tuple[str, ...],
    every_case: bool,
    only_disagreements: bool,
    form: str,
    output: Path | None,
) -> None:
    """Print the gradients at every tie: by definition, and of jaxclamp, interop and the frameworks that are installed.

    The dtype is float32, if none is named. Name ops for the ties of these at which somebody differs.

    Exit status 1 when jaxclamp or interop disagrees with the definition, 2 on bad usage.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # on Windows a pipe may have an encoding without ✓ and →
            stream.reconfigure(errors="backslashreplace")
    if context.invoked_subcommand is not None:
        # Click would take an option of the group before a command, and nothing would come of it.
        for option in context.command.params:
            if context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"{option.opts[0]} is for the matrix, not for {context.invoked_subcommand!r}.")
        return
    require("rich")
    compile_quickly()
    from interop.survey.matrix import PACKAGES
    from interop.survey.show import listing, render, screen

    # Who asks for something in particular wants the cases, and not what is counted of them.
    on_one_screen = form == "table" and not (ops or every_case or only_disagreements)
    columns = terminal_width() if output is None else WIDTH
    rows = rows_of(ops, chosen_dtypes(dtypes, default=DTYPES[:1]), frameworks or FRAMEWORKS)
    shown = [row for row in rows if not (only_disagreements and row.agrees)]
    if on_one_screen:
        width = min(columns, WIDTH)
        text = render.drawn(screen.screen(rows, width, context.command_path), width)
    elif form == "table":
        text = render.drawn(listing.listing(shown, render.tallies(rows), columns, folded=not every_case), columns)
    else:
        text = render.FORMATS[form](shown, render.tallies(rows))
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(click.unstyle(text), encoding="utf-8")
    # Frameworks disagree as they are: no fault of this package.
    if any(not answer.agrees for row in rows for answer in row.answers if answer.framework in PACKAGES):
        context.exit(1)


for _command in (compare, changes, plot, report, ties, audit, scan):
    main.add_command(_command)
