"""The command that compares two functions."""

from pathlib import Path
from typing import Any

import click

from interop._terminal import console
from interop.cli.names import ALLOWED, CONVERTIBLES
from interop.cli.options import AS_JSON, FUNCTION, INPUTS, OUTPUT, arguments_in, bad_usage, function_named, in_a_folder
from interop.cli.packages import require


@click.command()
@click.argument("first", metavar=FUNCTION)
@click.argument("second", metavar=FUNCTION)
@INPUTS
@click.option(
    "--frameworks",
    nargs=2,
    type=click.Choice(CONVERTIBLES),
    help="That of each function; needed where both run in both, as operators and methods may.",
)
@click.option("--rtol", type=click.FloatRange(min=0), help="Relative tolerance, by default what rounding explains.")
@click.option("--atol", type=click.FloatRange(min=0), help="Absolute tolerance, by default what rounding explains.")
@click.option(
    "--allow",
    multiple=True,
    type=click.Choice(ALLOWED),
    default=("rounding",),
    show_default=True,
    help="A finding that counts as agreement; repeatable.",
)
@click.option("--probe", type=click.IntRange(min=1), help="Draw so many inputs, for one at which they differ more.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed of the draws.")
@click.option("--nonfinite", is_flag=True, help="Draw NaN and infinities too.")
@click.option("--save-case", type=OUTPUT, callback=in_a_folder, help="Where to keep the inputs that are found.")
@click.option(
    "--case",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file that --save-case wrote, in place of the inputs, whose form it has.",
)
@AS_JSON
@click.pass_context
def compare(
    context: click.Context,
    first: str,
    second: str,
    files: tuple[Path, ...],
    frameworks: tuple[Any, Any] | None,
    rtol: float | None,
    atol: float | None,
    allow: tuple[Any, ...],
    probe: int | None,
    seed: int,
    nonfinite: bool,
    save_case: Path | None,
    case: Path | None,
    as_json: bool,
) -> None:
    """Compare two functions, and say what ties explain.

    Each is of JAX or torch, and is called with the arrays of --inputs. Values and gradients are compared.
    FILE.py:FUNCTION names a function, too.

    Exit status 1 when the functions, as they are, disagree beyond the tolerance and what is allowed; 2 on bad usage
    and when one raises.
    """
    if not as_json:
        require("rich")
    if probe is None and (save_case or nonfinite):
        raise click.UsageError("--save-case and --nonfinite are for what --probe draws; pass how many inputs to draw.")
    with bad_usage(as_json):
        functions = function_named(first), function_named(second)
        import interop

        comparison = interop.compare(
            *functions,
            *arguments_in(files),
            frameworks=frameworks,
            rtol=rtol,
            atol=atol,
            probe=interop.Probe(probe, seed, nonfinite) if probe else None,
            case=case,
        )
    if save_case and comparison.probed and comparison.probed.case:
        comparison.probed.case.save(save_case)
    if as_json:
        click.echo(comparison.to_json(), nl=False)
    else:
        terminal = console()
        terminal.print(comparison)
        for cure in comparison.cures():
            terminal.print(cure, style="dim")
    context.exit(1 if comparison.disagreeing(allow) else 0)
