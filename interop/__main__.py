"""The command line: ``python -m interop``, and ``jaxclamp`` in a shell.

What a command needs is imported when it runs, so that help and bad usage take no time.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.metadata
import importlib.util
import itertools
import os
import pkgutil
import re
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interop._commands.names import ALLOWED, CONVERTIBLES, DTYPES, FORMATS, FRAMEWORKS, OPS

try:
    import click
    from click.core import ParameterSource

    for _package in ("jinja2", "matplotlib", "rich", "sklearn"):
        if importlib.util.find_spec(_package) is None:
            raise ModuleNotFoundError(name=_package)
except ModuleNotFoundError as missing:
    sys.exit(f"The command line needs {missing.name}: pip install 'jaxclamp[cli]', or in a checkout '.[cli]'")

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from rich.console import Console, RenderableType

    from interop.frameworks.base import Array
    from interop.survey.matrix import Row


def _hint(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


class _OpName(click.Choice[str]):
    def __init__(self) -> None:
        super().__init__(sorted(OPS))

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return super().get_invalid_choice_message(value, ctx) + _hint(str(value), OPS)


class _Commands(click.Group):
    """Commands, and in the place of one the ops to be shown."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ops = list(itertools.takewhile(OPS.__contains__, args))
        return super().parse_args(ctx, [*(f"--op={op}" for op in ops), *args[len(ops) :]])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in OPS:
            ctx.fail(f"{name!r} is an op: name it before the options, or as --op {name}.")
        if name not in self.commands and not name.startswith("-"):
            ctx.fail(f"No such command {name!r}, and no such op." + _hint(name, [*self.commands, *OPS]))
        return super().resolve_command(ctx, args)


OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)
ONLY_OPS = click.option("--op", "ops", multiple=True, type=_OpName(), metavar="OP", help="Only this op; repeatable.")
ONLY_DTYPES = click.option(
    "--dtype", "dtypes", multiple=True, type=click.Choice([*DTYPES, "all"]), help="Only this dtype; repeatable."
)


def _in_a_folder(context: click.Context, parameter: click.Parameter, file: Path | None) -> Path | None:
    if file is not None and not file.parent.is_dir():
        raise click.BadParameter(f"the folder {str(file.parent)!r} does not exist.")
    return file


def _a_picture(context: click.Context, parameter: click.Parameter, file: Path | None) -> Path | None:
    if file is None:
        return None
    from matplotlib.backend_bases import FigureCanvasBase

    formats = FigureCanvasBase.get_supported_filetypes()
    if file.suffix[1:] not in formats:
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


def _arguments(context: click.Context, parameter: click.Parameter, files: tuple[Path, ...]) -> list[Any]:
    return list(itertools.chain.from_iterable(map(_arguments_in, files)))


def _arguments_in(file: Path) -> Iterable[Any]:
    """The arrays of an npz file, each an argument; or one argument, the arrays of a file of safetensors by name."""
    import numpy as np

    try:
        if file.suffix == ".safetensors":
            return [_safetensors().load_file(file)]
        if zipfile.is_zipfile(file):
            with np.load(file, allow_pickle=False) as arrays:
                return [arrays[name] for name in arrays.files]
    except Exception as error:  # safetensors has an error of its own
        raise click.BadParameter(f"{str(file)!r}: {error}") from error
    raise click.BadParameter(f"{str(file)!r} is not an npz file; write one with numpy.savez.")


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.numpy")
    except ModuleNotFoundError as missing:
        raise click.UsageError(
            "a file of safetensors needs safetensors: pip install 'jaxclamp[safetensors]', or in a checkout "
            "'.[safetensors]'"
        ) from missing


@contextlib.contextmanager
def _bad_usage() -> Iterator[None]:
    """Errors of a comparison are bad usage; those of a function that is compared, known by a note, stay its own."""
    try:
        yield
    except (TypeError, ValueError, ModuleNotFoundError) as error:
        if hasattr(error, "__notes__"):
            raise
        raise click.UsageError(str(error)) from error


def _installed(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return names
    _compile_quickly()
    from interop.survey.matrix import absent

    for name, reason in absent(names).items():
        raise click.BadParameter(f"{name} cannot be asked ({reason}).")
    return names


def _compile_quickly() -> None:
    """Most programs for the matrix run once, so that compiling them is most of the work.

    XLA rewrites them as ever; what is left out is how LLVM improves their machine code.
    """
    if "jax" not in sys.modules:  # which reads this when it is imported
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        if importlib.metadata.version("jaxlib").startswith("0.10."):  # XLA ends a process for a flag that it has not
            os.environ["XLA_FLAGS"] = f"--xla_cpu_use_fusion_emitters=false {os.environ.get('XLA_FLAGS', '')}"


def _chosen(dtypes: Sequence[str], default: Sequence[str]) -> Sequence[str]:
    return DTYPES if "all" in dtypes else list(dict.fromkeys(dtypes)) or default


def _first(row: Row) -> str:
    from interop.survey.show.render import AGREES, DISAGREES, at
    from interop.survey.versions import rounded

    answers = {answer.framework: AGREES if answer.agrees else DISAGREES for answer in row.answers}
    return f"the first: {row.op}({at(row)}), by definition {rounded(row.definition)}, " + ", ".join(
        f"{name} {mark}" for name, mark in answers.items()
    )


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 140)


def _ask(
    ops: Sequence[str],
    dtypes: Sequence[str],
    frameworks: Sequence[str] = FRAMEWORKS,
    shown: Callable[[Sequence[Row]], RenderableType] | None = None,
) -> list[Row]:
    """The rows of the matrix; on a terminal with a progress bar, below it what is ``shown`` of the rows by then."""
    _compile_quickly()
    from interop._commands import halves

    # To start a process takes as long as several ops.
    many = len(set(ops) or OPS) * len(dtypes) > 10 and (os.cpu_count() or 1) > 1
    with halves.helper() if many else contextlib.nullcontext() as helper:
        return _gathered(helper, ops, dtypes, frameworks, shown)


def _gathered(
    helper: Executor | None,
    ops: Sequence[str],
    dtypes: Sequence[str],
    frameworks: Sequence[str],
    shown: Callable[[Sequence[Row]], RenderableType] | None,
) -> list[Row]:
    from rich.console import Console
    from rich.progress import Progress

    from interop._commands import halves
    from interop.survey import matrix as parity
    from jaxclamp import OPS as RECORDS
    from jaxclamp._shared.tie_cases import cases

    class Display(Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            if shown and rows:
                yield shown(rows)

    for name, reason in parity.absent(frameworks).items():
        click.echo(f"not asked: {name} ({reason})", err=True)
    order = list(dict.fromkeys(ops)) or list(RECORDS)
    total = {name: len(list(cases(RECORDS[name]))) for name in order}
    smallest_first = sorted(order, key=total.__getitem__)
    if helper:
        asked = halves.matrix(helper, smallest_first, dtypes, frameworks)
    else:
        asked = parity.matrix([RECORDS[name] for name in smallest_first], dtypes, frameworks)
    rows: list[Row] = []
    console = Console(stderr=True)
    with Display(console=console, transient=True, refresh_per_second=2, disable=not console.is_terminal) as progress:
        for row in progress.track(asked, len(dtypes) * sum(total.values()), description="asking for gradients"):
            rows.append(row)
            if len(rows) == 1 and not console.is_terminal:
                click.echo(
                    f"asking for {sum(total.values())} gradients in {', '.join(dtypes)}; {_first(row)}", err=True
                )
    return sorted(rows, key=lambda row: (dtypes.index(row.dtype), order.index(row.op)))


INPUTS = click.option(
    "--inputs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    multiple=True,
    callback=_arguments,
    help="An npz file, whose arrays are positional arguments, in its order; or a file of safetensors, which is one, a "
    "dict. Repeatable.",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON in place of a table.")


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
    callback=_installed,
    help="Only ask this framework; repeatable.",
)
@click.option("--all", "every_case", is_flag=True, help="A line for each case, as there is where ops are named.")
@click.option("--only-disagreements", is_flag=True, help="Only the cases in which some answer differs.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option("--output", type=OUTPUT, callback=_in_a_folder, help="Write to a file.")
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

    They are asked in float32, if no dtype is named. Name ops for the cases of these.

    Exit status 1 when jaxclamp or interop disagrees with the definition, 2 on bad usage.
    """
    if context.invoked_subcommand is not None:
        for option in context.command.params:
            if context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"{option.opts[0]} is for the matrix, not for {context.invoked_subcommand!r}.")
        return
    _compile_quickly()
    from interop.survey.matrix import OURS
    from interop.survey.show import listing, render, screen

    on_one_screen = form == "table" and not (ops or every_case or only_disagreements)
    overview = functools.partial(screen.screen, program=context.command_path) if on_one_screen else None
    rows = _ask(ops, _chosen(dtypes, default=DTYPES[:1]), frameworks or FRAMEWORKS, overview)
    width = _console().width if output is None and sys.stdout.isatty() else screen.WIDTH
    shown = [row for row in rows if not (only_disagreements and row.agrees)]
    if overview:
        text = render.drawn(overview(rows), min(width, screen.WIDTH))
    elif form == "table":
        text = render.drawn(listing.listing(shown, render.tallies(rows), width), width)
    else:
        text = render.FORMATS[form](shown, render.tallies(rows))
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(click.unstyle(text), encoding="utf-8")
    if any(not answer.agrees for row in rows for answer in row.answers if answer.framework in OURS):
        context.exit(1)


@main.command()
def cases() -> None:
    """Run the four worked cases: native torch against the wrapped ops."""
    import torch
    from rich.table import Table

    from interop._commands.cases import compare_cases

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
    _console().print(table)


@main.command()
@click.option("--steps", type=click.IntRange(min=1), default=300, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--plot", "file", type=OUTPUT, callback=_a_picture, help="Draw the steps.")
def digits(steps: int, seed: int, file: Path | None) -> None:
    """Train one network in four spellings on scikit-learn's digits and compare the gradients at every step."""
    import torch
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from interop._commands.digits import PAIRS, VARIANTS, plot_steps, train

    torch.set_num_threads(1)  # the tensors are too small to share
    with Progress(console=Console(stderr=True), transient=True) as progress:
        done = list(progress.track(train(steps, seed), total=steps, description="training"))
    console = _console()
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
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the draws.")
@click.option("--nonfinite", is_flag=True, help="Draw NaN and infinities too.")
@click.option("--save-case", type=OUTPUT, callback=_in_a_folder, help="Where to keep the inputs that are found.")
@click.option(
    "--case",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file that --save-case wrote, in place of the inputs, whose form it has.",
)
@AS_JSON
@click.pass_context
def compare(
    context: click.Context,
    first: Callable[..., Any],
    second: Callable[..., Any],
    inputs: list[Any],
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
    """Compare the values and gradients of two functions, of JAX or torch, and say which differences ties explain.

    Exit status 1 when the functions, as they are, disagree beyond the tolerance and what is allowed; 2 on bad usage.
    """
    import interop

    drawn = interop.Probe(probe, seed, nonfinite) if probe else None
    settings: dict[str, Any] = {"frameworks": frameworks, "rtol": rtol, "atol": atol, "probe": drawn, "case": case}
    with _bad_usage():
        comparison = interop.compare(first, second, *inputs, **settings)
    if save_case and comparison.probed and comparison.probed.case:
        comparison.probed.case.save(save_case)
    if as_json:
        click.echo(comparison.to_json(), nl=False)
    else:
        _console().print(comparison)
    context.exit(1 if comparison.disagreeing(allow) else 0)


@main.command()
@click.argument("framework")
@click.argument("before")
@click.argument("after")
@click.option("--format", "form", type=click.Choice(("table", "markdown", "json")), default="table", show_default=True)
@click.option("--output", "file", type=OUTPUT, callback=_a_picture, help="Draw every op in every version between them.")
def changes(framework: str, before: str, after: str, form: str, file: Path | None) -> None:
    """Say which gradients at ties changed from one version of a framework to another, by the records of this package.

    As in: changes torch 2.13 2.15. Neither version need be installed.

    Exit status 0, whether something changed or not, 2 on bad usage.
    """
    from interop.survey.changes import Changes, changes

    try:
        found = changes(framework, before, after)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    forms: Mapping[str, Callable[[Changes], str]] = {
        "table": str,
        "markdown": Changes.to_markdown,
        "json": Changes.to_json,
    }
    click.echo(forms[form](found).rstrip("\n"))
    if file is not None:
        found.figure().savefig(file, dpi=150)
        click.echo(f"picture written to {file}", err=True)


@main.command()
@click.argument("op", metavar="OP", type=_OpName())
@click.option("--output", "file", type=OUTPUT, callback=_a_picture, required=True, help="The picture to write.")
def plot(op: str, file: Path) -> None:
    """Draw an op, its slopes, and the gradients that are answered at its ties, in float32."""
    _compile_quickly()
    from interop.survey.show.plot import COLOURS, figure
    from jaxclamp import OPS as RECORDS

    rows = _ask([op], ["float32"], list(COLOURS))
    figure(RECORDS[op], rows).savefig(file, dpi=150)
    click.echo(f"plot written to {file}")


@main.command()
@ONLY_OPS
@ONLY_DTYPES
@click.option("--output", "file", type=OUTPUT, callback=_in_a_folder, required=True, help="The HTML file to write.")
def report(ops: tuple[str, ...], dtypes: tuple[str, ...], file: Path) -> None:
    """Write the matrix and a plot of every op as one page that needs no network; the whole takes a few minutes."""
    rows = _ask(ops, _chosen(dtypes, default=DTYPES))
    from rich.console import Console
    from rich.progress import Progress

    from interop.survey.show.report import page, picture
    from jaxclamp import OPS as RECORDS

    first = [row for row in rows if row.dtype == rows[0].dtype]
    drawn = list(dict.fromkeys(row.op for row in rows))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        pictures = {
            name: picture(RECORDS[name], [row for row in first if row.op == name])
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
    from interop.comparison.recording import computation_of

    def call(*args: Any) -> Any:  # a module is called with its own parameters
        return function(*args)

    call.__name__ = getattr(function, "__name__", type(function).__name__)
    with _bad_usage():
        computation = computation_of("ties: MODULE:FUNCTION", call, tuple(inputs), {}, framework)
        computation.check_framework("ties", "--framework torch")
        report = computation.frameworks[0].ties(computation.function, computation.arrays, influence)
    if as_json:
        click.echo(report.to_json())
    else:
        _console().print(report)


@main.command()
@click.argument("function", metavar="MODULE:FUNCTION", callback=_a_function)
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
        found = interop.audit(function, *inputs, before=before, after=after, probe=probe)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise click.UsageError(str(error)) from error
    except Exception:  # of the function itself: status 1 says that a gradient changes
        traceback.print_exc()
        context.exit(2)
    click.echo(found.to_json() if as_json else str(found))
    context.exit(1 if found.changes else 0)


if __name__ == "__main__":
    main()
