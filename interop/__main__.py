"""The command line, ``python -m interop``."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import pkgutil
import re
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import interop
from jaxclamp import OPS

try:
    import click
    from click.core import ParameterSource
    from matplotlib.backend_bases import FigureCanvasBase
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from interop._commands.cases import compare_cases
    from interop._commands.digits import PAIRS, VARIANTS, plot_steps, train
    from interop.parity import render
    from interop.parity import rows as parity
    from interop.parity.frameworks import Array, frameworks_of
    from interop.parity.plot import COLOURS, figure
    from interop.parity.report import page, picture

    if not importlib.util.find_spec("sklearn"):  # which takes seconds to import, and one command alone needs it
        raise ModuleNotFoundError(name="sklearn")
except ModuleNotFoundError as missing:
    sys.exit(f"python -m interop needs {missing.name}: pip install 'jaxclamp[cli]', or in a checkout '.[cli]'")


class _OpName(click.Choice[str]):
    def __init__(self) -> None:
        super().__init__(sorted(OPS))

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        near = difflib.get_close_matches(str(value), OPS)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        return super().get_invalid_choice_message(value, ctx) + hint


OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)
ONLY_OPS = click.option("--op", "ops", multiple=True, type=_OpName(), help="Only this op; repeatable.")
ONLY_DTYPES = click.option(
    "--dtype", "dtypes", multiple=True, type=click.Choice(parity.DTYPES), help="Only this dtype; repeatable."
)


def _in_a_folder(context: click.Context, parameter: click.Parameter, file: Path | None) -> Path | None:
    if file is not None and not file.parent.is_dir():
        raise click.BadParameter(f"the folder {str(file.parent)!r} does not exist.")
    return file


def _a_picture(context: click.Context, parameter: click.Parameter, file: Path | None) -> Path | None:
    formats = FigureCanvasBase.get_supported_filetypes()
    if file is not None and file.suffix[1:] not in formats:
        raise click.BadParameter(
            f"{file.suffix!r} is not a kind of picture; choose one of {', '.join(sorted(formats))}."
        )
    return _in_a_folder(context, parameter, file)


def _a_function(context: click.Context, parameter: click.Parameter, name: str) -> Callable[..., Any]:
    try:
        found = pkgutil.resolve_name(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise click.BadParameter(f"{name!r} is not found ({error}); give MODULE:FUNCTION.") from error
    if not callable(found):
        raise click.BadParameter(f"{name!r} is a {type(found).__name__}; give MODULE:FUNCTION.")
    function: Callable[..., Any] = found
    return function


def _arrays(context: click.Context, parameter: click.Parameter, file: Path) -> list[Array]:
    if not zipfile.is_zipfile(file):
        raise click.BadParameter(f"{str(file)!r} is not an npz file; write one with numpy.savez.")
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return [arrays[name] for name in arrays.files]
    except ValueError as error:
        raise click.BadParameter(f"{str(file)!r}: {error}") from error


def _installed(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    for name, reason in parity.absent(names).items():
        raise click.BadParameter(f"{name} cannot be asked ({reason}).")
    return names


def _ask(
    progress: Progress, ops: Sequence[str], dtypes: Sequence[str], frameworks: Sequence[str] = parity.FRAMEWORKS
) -> list[parity.Row]:
    for name, reason in parity.absent(frameworks).items():
        click.echo(f"not asked: {name} ({reason})", err=True)
    chosen = [OPS[name] for name in dict.fromkeys(ops)] or list(OPS.values())
    chosen_dtypes = tuple(dict.fromkeys(dtypes)) or parity.DTYPES
    total = len(chosen_dtypes) * sum(len(list(parity.cases(op))) for op in chosen)
    asked = parity.matrix(chosen, chosen_dtypes, frameworks)
    return list(progress.track(asked, total=total, description="asking for gradients"))


INPUTS = click.option(
    "--inputs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    callback=_arrays,
    help="An npz file; its arrays are the positional arguments, in its order.",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON in place of a table.")


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@ONLY_OPS
@ONLY_DTYPES
@click.option(
    "--framework",
    "frameworks",
    multiple=True,
    type=click.Choice(parity.FRAMEWORKS),
    callback=_installed,
    help="Only ask this framework; repeatable.",
)
@click.option("--only-disagreements", is_flag=True, help="Only the rows in which some answer differs.")
@click.option("--format", "form", type=click.Choice(list(render.FORMATS)), default="table", show_default=True)
@click.option("--output", type=OUTPUT, callback=_in_a_folder, help="Write to a file.")
@click.pass_context
def main(
    context: click.Context,
    ops: tuple[str, ...],
    dtypes: tuple[str, ...],
    frameworks: tuple[str, ...],
    only_disagreements: bool,
    form: str,
    output: Path | None,
) -> None:
    """Print the gradients at every tie: by definition, and of jaxclamp, interop and the frameworks that are installed.

    Exit status 1 when jaxclamp or interop disagrees with the definition, 2 on bad usage.
    """
    if context.invoked_subcommand is not None:
        for option in context.command.params:
            if context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"{option.opts[0]} is for the matrix, not for {context.invoked_subcommand!r}.")
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        rows = _ask(progress, ops, dtypes, frameworks or parity.FRAMEWORKS)
    shown = [row for row in rows if not (only_disagreements and row.agrees)]
    text = render.FORMATS[form](shown, render.tallies(rows))
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(click.unstyle(text), encoding="utf-8")
    if any(not answer.agrees for row in rows for answer in row.answers if answer.framework in parity.OURS):
        context.exit(1)


@main.command()
def cases() -> None:
    """Run the four worked cases: native torch against the wrapped ops."""
    table = Table(title=f"Gradients of equal formulas, native torch {torch.__version__} against interop")
    for heading in ("case", "spelling", "native", "interop"):
        table.add_column(heading)
    title = None
    for comparison in compare_cases():
        if title not in (None, comparison.title):
            table.add_section()
        repeated, title = comparison.title == title, comparison.title
        gradients = [re.sub(r"\.0\b", "", str(gradient.tolist())) for gradient in (comparison.native, comparison.ours)]
        table.add_row("" if repeated else title, comparison.spelling, *gradients)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


@main.command()
@click.option("--steps", type=click.IntRange(min=1), default=300, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--plot", "file", type=OUTPUT, callback=_a_picture, help="Draw the steps.")
def digits(steps: int, seed: int, file: Path | None) -> None:
    """Train one network in four spellings on scikit-learn's digits and compare the gradients at every step."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        done = list(progress.track(train(steps, seed), total=steps, description="training"))
    console = Console(width=None if sys.stdout.isatty() else 140)
    differences = Table(title="The largest difference between the gradients of two variants, and the ties of the first")
    for heading in ("step", *(" against\n".join(pair) for pair in PAIRS), "ties"):
        differences.add_column(heading, justify="right")
    shown = sorted({*range(0, steps, max(1, steps // 10)), steps - 1})
    for index in shown:
        figures = (f"{done[index].difference(*pair):.1e}" for pair in PAIRS)
        differences.add_row(str(index), *figures, str(done[index].variants[PAIRS[0][0]].ties))
    largest = (f"{max(step.difference(*pair) for step in done):.1e}" for pair in PAIRS)
    differences.add_section()
    differences.add_row("largest", *largest)
    console.print(differences)
    summary = Table(title=f"Losses and ties over {steps} step{'s' * (steps > 1)}")
    for heading in ("variant", "first loss", "last loss", "ties per step", "ties in all"):
        summary.add_column(heading)
    for name in VARIANTS:
        results = [step.variants[name] for step in done]
        ties = sum(result.ties for result in results)
        summary.add_row(name, f"{results[0].loss:.4f}", f"{results[-1].loss:.4f}", f"{ties / steps:.0f}", str(ties))
    console.print(summary)
    if file is not None:
        plot_steps(done, file)
        console.print(f"plot written to {file}")


@main.command()
@click.argument("first", metavar="MODULE:FUNCTION", callback=_a_function)
@click.argument("second", metavar="MODULE:FUNCTION", callback=_a_function)
@INPUTS
@click.option("--rtol", type=click.FloatRange(min=0), help="Relative tolerance, by default what rounding explains.")
@click.option("--atol", type=click.FloatRange(min=0), help="Absolute tolerance, by default what rounding explains.")
@AS_JSON
@click.pass_context
def compare(
    context: click.Context,
    first: Callable[..., Any],
    second: Callable[..., Any],
    inputs: list[Array],
    rtol: float | None,
    atol: float | None,
    as_json: bool,
) -> None:
    """Compare the values and gradients of two functions, of JAX or torch, and say which differences ties explain.

    Exit status 1 when the functions, as they are, disagree beyond the tolerance; 2 on bad usage.
    """
    try:
        comparison = dataclasses.replace(interop.compare(first, second, *inputs), rtol=rtol, atol=atol)
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        click.echo(comparison.to_json(), nl=False)
    else:
        Console(width=None if sys.stdout.isatty() else 140).print(comparison)
    context.exit(0 if comparison.agree else 1)


@main.command()
@click.argument("op", metavar="OP", type=_OpName())
@click.option("--output", "file", type=OUTPUT, callback=_a_picture, required=True, help="The picture to write.")
def plot(op: str, file: Path) -> None:
    """Draw an op, its slopes, and the gradients that are answered at its ties, in float32."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        rows = _ask(progress, [op], ["float32"], list(COLOURS))
    figure(OPS[op], rows).savefig(file, dpi=150)
    click.echo(f"plot written to {file}")


@main.command()
@ONLY_OPS
@ONLY_DTYPES
@click.option("--output", "file", type=OUTPUT, callback=_in_a_folder, required=True, help="The HTML file to write.")
def report(ops: tuple[str, ...], dtypes: tuple[str, ...], file: Path) -> None:
    """Write the matrix and a plot of every op as one page that needs no network; the whole takes a few minutes."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        rows = _ask(progress, ops, dtypes)
        first = [row for row in rows if row.dtype == rows[0].dtype]
        drawn = list(dict.fromkeys(row.op for row in rows))
        pictures = {
            name: picture(OPS[name], [row for row in first if row.op == name])
            for name in progress.track(drawn, description="drawing")
        }
    chosen = " ".join([*(f"--op {op}" for op in ops), *(f"--dtype {dtype}" for dtype in dtypes)])
    file.write_text(page(rows, pictures, chosen), encoding="utf-8")
    click.echo(f"report written to {file}")


@main.command()
@click.argument("function", metavar="MODULE:FUNCTION", callback=_a_function)
@INPUTS
@click.option(
    "--influence",
    is_flag=True,
    help="Say how far they move the gradient, with respect to all inputs, of the sum of the results.",
)
@AS_JSON
def ties(function: Callable[..., Any], inputs: list[Array], influence: bool, as_json: bool) -> None:
    """Count the ties in a function of JAX or torch: per line and module, how many elements are on one.

    Exit status 0, whether there are ties or not, 2 on bad usage.
    """
    arguments = {str(i): array for i, array in enumerate(inputs)}
    if influence and all(array.dtype.kind != "f" for array in inputs):
        raise click.UsageError("--influence: there is no array of floats among the inputs to differentiate by.")

    def call(given: Mapping[str, Any]) -> Any:
        return function(*(given[i] for i in arguments))

    try:
        framework = frameworks_of(getattr(function, "__name__", type(function).__name__), call, arguments)[0]
    except TypeError as error:
        raise click.UsageError(str(error)) from error
    report = framework.ties(call, arguments, influence)
    if as_json:
        click.echo(report.to_json())
    else:
        Console(width=None if sys.stdout.isatty() else 140).print(report)


if __name__ == "__main__":
    main(prog_name="python -m interop")
