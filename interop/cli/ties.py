"""The command that counts the ties in a function."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from interop._terminal import console
from interop.cli.names import CONVERTIBLES
from interop.cli.options import AS_JSON, FUNCTION, INPUTS, arguments_in, bad_usage, function_named
from interop.cli.packages import require


@click.command()
@click.argument("function", metavar=FUNCTION)
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
def ties(function: str, files: tuple[Path, ...], influence: bool, framework: Any, as_json: bool) -> None:
    """Count the ties in a function of JAX or torch, by line.

    FUNCTION is called with the arrays of --inputs. FILE.py:FUNCTION names it, too.

    Exit status 0, whether there are ties or not, 2 on bad usage and when the function raises.
    """
    if not as_json:
        require("rich")
    with bad_usage(as_json):
        counted = function_named(function)
        from interop._audit.restoring import restoring
        from interop.comparison.recording import computation_of

        call = _in_a_line(function, counted)
        with restoring():  # to find its framework, the function is called: ties are those of its first step
            computation = computation_of("ties: MODULE:FUNCTION", call, tuple(arguments_in(files)), {}, framework)
        report = computation.framework.ties(computation.function, computation.arrays, influence)
    if as_json:
        click.echo(report.to_json())
    else:
        terminal = console()
        terminal.print(report)
        if not influence:
            terminal.print("How far they move the gradient: --influence.", style="dim")
        terminal.print("Which gradient to choose at ties: docs/which.md.", style="dim")


def _in_a_line(name: str, counted: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``counted`` from a line of a file called ``name``.

    A function of a library, such as ``torch:relu``, is called from no line of the user's. And a module of torch by
    itself would be a function of its parameters.
    """
    from interop.comparison.recording import signature_of

    call = lambda *args: counted(*args)  # noqa: E731  # in one line, number 1
    call.__code__ = call.__code__.replace(co_filename=name, co_firstlineno=1)
    call.__name__ = getattr(counted, "__name__", type(counted).__name__)
    with contextlib.suppress(TypeError, ValueError):  # functions in C have no signature
        vars(call)["__signature__"] = signature_of(counted)
    return call
