"""The command that counts the ties in a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from interop.cli.console import console
from interop.cli.names import CONVERTIBLES
from interop.cli.options import AS_JSON, INPUTS, a_function, bad_usage
from interop.cli.packages import require


@click.command()
@click.argument("function", metavar="MODULE:FUNCTION", callback=a_function)
@INPUTS
@click.option(
    "--influence",
    is_flag=True,
    help="Say how far they move the gradient, by inputs and torch's parameters, of the sum of the results.",
)
@click.option(
    "--framework",
    type=click.Choice(CONVERTIBLES),
    help="To call it in; needed where it runs in both, as operators and methods may.",
)
@AS_JSON
def ties(function: Callable[..., Any], inputs: list[Any], influence: bool, framework: Any, as_json: bool) -> None:
    """Count the ties in a function of JAX or torch: per line and module, how many elements are on one.

    Exit status 0, whether there are ties or not, 2 on bad usage.
    """
    if not as_json:
        require("rich")
    from interop.comparison.recording import computation_of

    def call(*args: Any) -> Any:  # a module is called with its own parameters
        return function(*args)

    call.__name__ = getattr(function, "__name__", type(function).__name__)
    with bad_usage():
        computation = computation_of("ties: MODULE:FUNCTION", call, tuple(inputs), {}, framework)
        computation.check_framework("ties", "--framework torch")
        report = computation.frameworks[0].ties(computation.function, computation.arrays, influence)
    if as_json:
        click.echo(report.to_json())
    else:
        console().print(report)
